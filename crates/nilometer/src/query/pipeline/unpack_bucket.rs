//! `$_unpackBucket` and `$_internalUnpackBucket` as clients may write them: they unpack the measurements of bucket
//! documents read from `system.buckets.<name>`.
//!
//! The first takes only the names of the time and metadata fields. The second also takes the options that explain
//! shows: the fields to return, the bucket fields to copy, and filters. Queries on the collection itself read columns
//! and refuse both stages. No optimiser rule inspects them.

use std::collections::BTreeSet;
use std::sync::Arc;

use nilometer_bson::{DocRef, DocumentBuilder, Value, ValueRef};

use super::needs::Needs;
use super::{PipelineContext, PipelineStage, Stage};
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::matcher::MatchExpression;
use crate::query::batch::FieldSet;
use crate::timeseries::unpack::Shown;

/// Either stage, parsed.
#[derive(Clone, Debug)]
pub struct UnpackBucketStage {
    name: &'static str,
    time_field: Arc<str>,
    meta_field: Option<Arc<str>>,
    /// The fields that measurements return.
    fields: FieldSet,
    /// Bucket fields copied into each measurement.
    copied: Vec<Arc<str>>,
    /// The filter that returned measurements pass.
    pub event_filter: Option<MatchExpression>,
    /// A filter on buckets; all measurements of a matching bucket are returned.
    pub whole_bucket_filter: Option<MatchExpression>,
    source: Value,
}

impl UnpackBucketStage {
    /// Returns the names under which a bucket's contents are returned.
    pub fn shown(&self) -> Shown<'_> {
        Shown {
            time_field: &self.time_field,
            meta_field: self.meta_field.as_deref(),
            copied: &self.copied,
        }
    }

    /// True if measurements return the field.
    pub fn shows(&self, name: &str) -> bool {
        self.fields.contains(name)
    }
}

impl PipelineStage for UnpackBucketStage {
    fn name(&self) -> &'static str {
        self.name
    }

    fn explain(&self, name: &str, out: &mut DocumentBuilder) {
        out.append(name, self.source.clone());
    }

    fn needs(&self, _: &Needs) -> Needs {
        Needs::All
    }

    fn unpacks(&self) -> bool {
        true
    }
}

/// Checks that a name has no NUL byte.
fn without_nul(name: &str, what: &str, code: i32) -> Result<Arc<str>> {
    if name.contains('\0') {
        return Err(Error::location(
            code,
            format!("'{what}' must not contain a NUL byte"),
        ));
    }
    Ok(name.into())
}

/// Parses `$_unpackBucket`.
pub(super) fn parse(
    _: &PipelineContext,
    name: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let fail = |code, what: &str| Error::location(code, format!("{name}: {what}"));
    let Some(document) = value.as_document() else {
        return Err(fail(
            location::UNPACK_NOT_OBJECT,
            "the specification must be an object",
        ));
    };
    let (mut time_field, mut meta_field) = (None, None);
    for option in document {
        match (option.name(), option.value()) {
            ("timeField", ValueRef::String(text)) => {
                time_field = Some(without_nul(
                    text,
                    "timeField",
                    location::UNPACK_TIME_FIELD_NUL,
                )?);
            }
            ("timeField", _) => {
                return Err(fail(
                    location::UNPACK_TIME_FIELD_TYPE,
                    "timeField must be a string",
                ));
            }
            ("metaField", ValueRef::String(text)) => {
                if text.contains('.') {
                    return Err(fail(
                        location::UNPACK_META_FIELD_DOTTED,
                        "metaField must be a single field",
                    ));
                }
                meta_field = Some(without_nul(
                    text,
                    "metaField",
                    location::UNPACK_META_FIELD_NUL,
                )?);
            }
            ("metaField", _) => {
                return Err(fail(
                    location::UNPACK_META_FIELD_TYPE,
                    "metaField must be a string",
                ));
            }
            (other, _) => {
                let what = format!("unrecognized option '{other}'");
                return Err(fail(location::UNPACK_OPTION_UNKNOWN, &what));
            }
        }
    }
    let missing = || fail(location::UNPACK_TIME_FIELD_MISSING, "timeField is required");
    let time_field = time_field.ok_or_else(missing)?;
    out.push(Stage::UnpackBucket(Arc::new(UnpackBucketStage {
        name,
        time_field,
        meta_field,
        fields: FieldSet::All,
        copied: Vec::new(),
        event_filter: None,
        whole_bucket_filter: None,
        source: value.to_value(),
    })));
    Ok(())
}

/// Parses `$_internalUnpackBucket`.
// long function: one arm for each option
pub(super) fn parse_internal(
    cx: &PipelineContext,
    name: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let document = super::object(value, "$_internalUnpackBucket takes an object, not")?;
    let wrong = |option: &str, what: &str| {
        Error::failed_to_parse(format!("{name}: '{option}' must be {what}"))
    };
    let mut time_field = None;
    let mut stage = UnpackBucketStage {
        name,
        time_field: "".into(),
        meta_field: None,
        fields: FieldSet::All,
        copied: Vec::new(),
        event_filter: None,
        whole_bucket_filter: None,
        source: value.to_value(),
    };
    for option in document {
        let (option, value) = (option.name(), option.value());
        match (option, value) {
            ("timeField", ValueRef::String(text)) => {
                let code = location::INTERNAL_UNPACK_TIME_FIELD_NUL;
                time_field = Some(without_nul(text, option, code)?);
            }
            ("metaField", ValueRef::String(text)) => {
                let code = location::INTERNAL_UNPACK_META_FIELD_NUL;
                stage.meta_field = Some(without_nul(text, option, code)?);
            }
            ("timeField" | "metaField", _) => return Err(wrong(option, "a string")),
            ("include" | "exclude", _) => {
                if stage.fields != FieldSet::All {
                    return Err(Error::failed_to_parse(format!(
                        "{name}: either 'include' or 'exclude' is given, once"
                    )));
                }
                let names = names(name, option, value, location::UNPACK_INCLUDED_NAME_NUL)?;
                let names: BTreeSet<Arc<str>> = names.into_iter().collect();
                stage.fields = match option {
                    "include" => FieldSet::Only(names),
                    _ => FieldSet::Except(names),
                };
            }
            ("computedMetaProjFields", _) => {
                stage.copied = names(name, option, value, location::UNPACK_COMPUTED_NAME_NUL)?;
            }
            ("eventFilter", ValueRef::Document(filter)) => {
                stage.event_filter = Some(parsed(filter, cx)?);
            }
            ("wholeBucketFilter", ValueRef::Document(filter)) => {
                stage.whole_bucket_filter = Some(parsed(filter, cx)?);
            }
            ("eventFilter" | "wholeBucketFilter", _) => return Err(wrong(option, "an object")),
            // Properties of the collection, which do not affect single buckets.
            ("bucketMaxSpanSeconds", span) if span.as_exact_i64().is_some_and(|s| s > 0) => {}
            ("bucketMaxSpanSeconds", _) => return Err(wrong(option, "a positive whole number")),
            ("fixedBuckets", ValueRef::Bool(_)) => {}
            ("fixedBuckets", _) => return Err(wrong(option, "a boolean")),
            (other, _) => {
                return Err(Error::new(
                    ErrorCode::IDLUnknownField,
                    format!("{name}: unrecognized option '{other}'"),
                ));
            }
        }
    }
    let Some(time_field) = time_field else {
        return Err(wrong("timeField", "given"));
    };
    stage.time_field = time_field;
    out.push(Stage::UnpackBucket(Arc::new(stage)));
    Ok(())
}

fn parsed(filter: DocRef<'_>, cx: &PipelineContext) -> Result<MatchExpression> {
    MatchExpression::parse(filter, &cx.expressions).map(MatchExpression::simplify)
}

fn names(stage: &str, option: &str, value: ValueRef<'_>, nul: i32) -> Result<Vec<Arc<str>>> {
    let wrong = || {
        Error::failed_to_parse(format!(
            "{stage}: '{option}' must be an array of field names"
        ))
    };
    let list = value.as_array().ok_or_else(wrong)?;
    let names = list.iter().map(|name| {
        let name = name.as_str().ok_or_else(wrong)?;
        without_nul(name, option, nul)
    });
    names.collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::code;
    use nilometer_bson::{Document, Value, array, doc};

    fn of(name: &str, spec: impl Into<Value>) -> i32 {
        let mut stage = nilometer_bson::DocumentBuilder::new();
        stage.append(name, spec.into());
        code(array![stage.finish()])
    }

    #[test]
    fn names_of_the_public_form_are_checked() {
        let of = |spec: Document| of("$_unpackBucket", spec);
        assert_eq!(of(doc! {"timeField": "t"}), 0);
        assert_eq!(of(doc! {"timeField": "t", "metaField": "m"}), 0);
        assert_eq!(super::tests::of("$_unpackBucket", 1), 5_612_400);
        assert_eq!(of(doc! {"timeField": 1}), 5_612_401);
        assert_eq!(of(doc! {"timeField": "t", "metaField": 1}), 5_612_402);
        assert_eq!(of(doc! {"timeField": "t", "metaField": "m.a"}), 5_612_403);
        for (other, value) in [
            ("include", array!["a"]),
            ("exclude", array!["a"]),
            ("bucketMaxSpanSeconds", 3600.into()),
            ("computedMetaProjFields", array!["a"]),
            ("sometimes", true.into()),
        ] {
            let mut spec = nilometer_bson::DocumentBuilder::new();
            spec.append("timeField", "t");
            spec.append(other, value);
            assert_eq!(of(spec.finish()), 5_612_404, "{other}");
        }
        assert_eq!(of(doc! {"metaField": "m"}), 5_612_405);
        assert_eq!(of(doc! {"timeField": "t\0"}), 9_568_703);
        assert_eq!(of(doc! {"timeField": "t", "metaField": "m\0"}), 9_568_704);
    }

    #[test]
    fn options_of_the_internal_form_are_checked() {
        let of = |spec: Document| of("$_internalUnpackBucket", spec);
        let whole = doc! {
            "timeField": "t", "metaField": "m", "bucketMaxSpanSeconds": 3600, "include": array!["_id"],
            "computedMetaProjFields": array!["x"], "eventFilter": doc! {"v": 1},
            "wholeBucketFilter": doc! {"control.min.v": 1}, "fixedBuckets": true,
        };
        assert_eq!(of(whole), 0);
        assert_eq!(of(doc! {"timeField": "t\0"}), 9_568_701);
        assert_eq!(of(doc! {"timeField": "t", "metaField": "\0"}), 9_568_702);
        for name in ["include", "exclude"] {
            let mut spec = nilometer_bson::DocumentBuilder::new();
            spec.append("timeField", "t");
            spec.append(name, array!["a\0"]);
            assert_eq!(of(spec.finish()), 9_568_705);
        }
        let computed = doc! {"timeField": "t", "computedMetaProjFields": array!["a\0"]};
        assert_eq!(of(computed), 9_568_706);
        let both = doc! {"timeField": "t", "include": array!["a"], "exclude": array!["b"]};
        assert_eq!(of(both), 9);
        assert_eq!(of(doc! {"metaField": "m"}), 9);
        assert_eq!(of(doc! {"timeField": "t", "bucketMaxSpanSeconds": 0}), 9);
        assert_eq!(of(doc! {"timeField": "t", "include": "a"}), 9);
        assert_eq!(of(doc! {"timeField": "t", "other": 1}), 40_415);
    }
}
