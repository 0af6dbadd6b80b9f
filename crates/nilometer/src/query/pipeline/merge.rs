//! `$merge`: writes its input, document by document, into a collection.
//!
//! | option | meaning | default |
//! |---|---|---|
//! | `into` | the collection | |
//! | `on` | the fields that identify a document; they need a unique index | `_id`, and the shard key of the collection |
//! | `whenMatched` | the action for an existing document | `merge` |
//! | `let` | variables for the pipeline of `whenMatched` | |
//! | `whenNotMatched` | the action for a new document | `insert` |

use std::sync::Arc;

use nilometer_bson::path::FieldPath;
use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, array, doc};

use super::needs::Needs;
use super::{OutputTarget, PipelineContext, PipelineStage, Stage};
use crate::error::{Error, Result, location};
use crate::eval::expression::parse_path;
use crate::eval::variables::check_user_name;
use crate::eval::{Expression, ParseContext};
use crate::write::update::Update;

/// A parsed `$merge`.
#[derive(Clone, Debug)]
pub struct MergeStage {
    /// The collection to write.
    pub target: OutputTarget,
    /// The fields that identify a document; `_id` if the stage names none.
    pub on: Arc<[FieldPath]>,
    /// True if the stage names them.
    pub names_on: bool,
    /// The action for an existing document.
    pub matched: WhenMatched,
    /// The action for a new document.
    pub not_matched: WhenNotMatched,
    /// Variables of the update, after `$$new`.
    pub variables: Arc<[Expression]>,
    /// The names of the enclosing variables; the slots of `$$new` and the others follow theirs.
    pub outer: Vec<Arc<str>>,
    source: Value,
}

/// The action for an existing document.
#[derive(Clone, Debug)]
pub enum WhenMatched {
    /// Replace it.
    Replace,
    /// Keep it.
    Keep,
    /// Fail the operation.
    Fail,
    /// Update it: merge it with the incoming document, or apply a pipeline in which `$$new` is the incoming document.
    Update(Arc<Update>),
}

/// The action for a new document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenNotMatched {
    /// Insert it.
    Insert,
    /// Do nothing.
    Discard,
    /// Fail the operation.
    Fail,
}

impl MergeStage {
    /// Returns the stage as written.
    pub fn to_document(&self) -> Document {
        doc! {"$merge": self.source.clone()}
    }

    /// Returns the stage with these fields as `on`, if it names none.
    pub fn identified_by(&self, on: &[FieldPath]) -> Document {
        if self.names_on {
            return self.to_document();
        }
        let mut out = DocumentBuilder::new();
        match &self.source {
            Value::Document(spec) => out.append_all(spec.as_ref()),
            into => out.append("into", into.clone()),
        };
        let on = on.iter().map(|path| Value::from(path.as_str()));
        out.append("on", on.collect::<Vec<_>>());
        doc! {"$merge": out.finish()}
    }
}

impl PipelineStage for MergeStage {
    fn name(&self) -> &'static str {
        "$merge"
    }

    fn explain(&self, name: &str, out: &mut DocumentBuilder) {
        out.append(name, self.source.clone());
    }

    fn needs(&self, _: &Needs) -> Needs {
        Needs::All
    }

    fn writes(&self) -> bool {
        true
    }
}

/// Parses `$merge`.
pub(super) fn parse(
    cx: &PipelineContext,
    name: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let mut options = Options::default();
    let target = match value {
        ValueRef::String(collection) => OutputTarget::of_name(collection),
        ValueRef::Document(spec) => {
            for element in spec {
                options.read(element.name(), element.value())?;
            }
            match spec.get("into") {
                ValueRef::String(collection) => OutputTarget::of_name(collection),
                ValueRef::Document(into) => OutputTarget::parse("$merge.into", into, &[])?,
                ValueRef::Missing => return Err(Error::missing_field("$merge.into")),
                other => return Err(Error::wrong_field_type("$merge.into", other, "object")),
            }
        }
        other => {
            return Err(Error::location(
                location::MERGE_TARGET,
                format!(
                    "{name} requires a string or object argument, but found {}",
                    other.type_name()
                ),
            ));
        }
    };
    let collection = target.collection();
    if collection.starts_with("system.") {
        return Err(Error::location(
            location::MERGE_TO_SPECIAL_COLLECTION,
            format!("Cannot $merge to special collection: {collection}"),
        ));
    }
    let (matched, variables) = options.when_matched(&cx.expressions)?;
    check_modes(&matched, options.not_matched)?;
    out.push(Stage::Merge(Arc::new(MergeStage {
        target,
        names_on: options.on.is_some(),
        on: match options.on {
            Some(on) => on.into(),
            None => [parse_path("_id")?].into(),
        },
        matched,
        not_matched: options.not_matched.unwrap_or(WhenNotMatched::Insert),
        variables: variables.into(),
        outer: cx.expressions.variable_names().to_vec(),
        source: value.to_value(),
    })));
    Ok(())
}

#[derive(Default)]
struct Options {
    on: Option<Vec<FieldPath>>,
    variables: Option<Value>,
    matched: Option<Value>,
    not_matched: Option<WhenNotMatched>,
}

impl Options {
    fn read(&mut self, name: &str, value: ValueRef<'_>) -> Result<()> {
        match (name, value) {
            ("into", _) => {}
            ("on", value) => self.on = Some(parse_on(value)?),
            ("let", ValueRef::Document(_)) => self.variables = Some(value.to_value()),
            ("let", other) => return Err(Error::wrong_field_type("$merge.let", other, "object")),
            ("whenMatched", ValueRef::String(_) | ValueRef::Array(_)) => {
                self.matched = Some(value.to_value());
            }
            ("whenMatched", other) => {
                return Err(Error::location(
                    location::MERGE_MATCHED_TYPE,
                    format!(
                        "$merge 'whenMatched' must be a string or an array, but found {}",
                        other.type_name()
                    ),
                ));
            }
            ("whenNotMatched", ValueRef::String(mode)) => {
                self.not_matched = Some(match mode {
                    "insert" => WhenNotMatched::Insert,
                    "discard" => WhenNotMatched::Discard,
                    "fail" => WhenNotMatched::Fail,
                    other => return Err(unknown_mode("whenNotMatched", other)),
                });
            }
            ("whenNotMatched", other) => {
                return Err(Error::wrong_field_type(
                    "$merge.whenNotMatched",
                    other,
                    "string",
                ));
            }
            (other, _) => return Err(Error::unknown_field(format_args!("$merge.{other}"))),
        }
        Ok(())
    }

    /// Returns the action for existing documents and the expressions of the variables it reads.
    fn when_matched(&self, outer: &ParseContext) -> Result<(WhenMatched, Vec<Expression>)> {
        let mut inner = outer.clone();
        inner.define("new");
        let mut variables = Vec::new();
        let given = self.variables.as_ref().map(Value::as_ref);
        let given = given
            .and_then(ValueRef::as_document)
            .unwrap_or(DocRef::EMPTY);
        for element in given {
            check_user_name(element.name())?;
            if element.name() == "new" && element.value().as_str() != Some("$$ROOT") {
                return Err(Error::location(
                    location::MERGE_LET_NEW,
                    "'let' may not define a value for the reserved 'new' variable other than '$$ROOT'",
                ));
            }
            variables.push(Expression::parse(element.value(), outer)?);
            inner.define(element.name());
        }
        let matched = self.matched.as_ref().map(Value::as_ref);
        let mode = match matched {
            Some(ValueRef::Array(stages)) => {
                let update = Update::parse(ValueRef::Array(stages), None, &inner)?;
                return Ok((WhenMatched::Update(Arc::new(update)), variables));
            }
            Some(ValueRef::String(mode)) => mode,
            _ => "merge",
        };
        if self.variables.is_some() {
            return Err(Error::location(
                location::MERGE_LET_WITHOUT_PIPELINE,
                format!("Cannot use 'let' variables with 'whenMatched: {mode}' mode"),
            ));
        }
        let matched = match mode {
            "replace" => WhenMatched::Replace,
            "keepExisting" => WhenMatched::Keep,
            "fail" => WhenMatched::Fail,
            "merge" => {
                let merged = doc! {"$mergeObjects": array!["$$ROOT", "$$new"]};
                let stages = array![doc! {"$replaceWith": merged}];
                let update = Update::parse(stages.as_ref(), None, &inner)?;
                WhenMatched::Update(Arc::new(update))
            }
            other => return Err(unknown_mode("whenMatched", other)),
        };
        Ok((matched, Vec::new()))
    }
}

fn check_modes(matched: &WhenMatched, not_matched: Option<WhenNotMatched>) -> Result<()> {
    let needs_insert = matches!(matched, WhenMatched::Keep | WhenMatched::Fail);
    match not_matched {
        Some(mode @ (WhenNotMatched::Discard | WhenNotMatched::Fail)) if needs_insert => {
            Err(Error::location(
                location::MERGE_MODES,
                format!(
                    "Combination of $merge modes 'whenMatched: {}' and 'whenNotMatched: {}' is not supported",
                    if matches!(matched, WhenMatched::Keep) {
                        "keepExisting"
                    } else {
                        "fail"
                    },
                    if mode == WhenNotMatched::Discard {
                        "discard"
                    } else {
                        "fail"
                    },
                ),
            ))
        }
        _ => Ok(()),
    }
}

fn parse_on(value: ValueRef<'_>) -> Result<Vec<FieldPath>> {
    let mut on: Vec<FieldPath> = Vec::new();
    match value {
        ValueRef::String(path) => on.push(parse_path(path)?),
        ValueRef::Array(paths) => {
            if paths.is_empty() {
                return Err(Error::location(
                    location::MERGE_ON_EMPTY,
                    "If explicitly specifying $merge 'on', must include at least one field",
                ));
            }
            for path in paths.iter() {
                let Some(path) = path.as_str() else {
                    return Err(Error::location(
                        location::MERGE_ON_ELEMENT,
                        format!(
                            "$merge 'on' array elements must be strings, but found {}",
                            path.type_name()
                        ),
                    ));
                };
                let path = parse_path(path)?;
                if on.contains(&path) {
                    return Err(Error::location(
                        location::MERGE_ON_TWICE,
                        format!(
                            "Found a duplicate field in the $merge.on list: '{}'",
                            path.as_str()
                        ),
                    ));
                }
                on.push(path);
            }
        }
        other => {
            return Err(Error::location(
                location::MERGE_ON_TYPE,
                format!(
                    "$merge 'on' field must be either a string or an array of strings, but found {}",
                    other.type_name()
                ),
            ));
        }
    }
    Ok(on)
}

fn unknown_mode(field: &str, mode: &str) -> Error {
    Error::bad_value(format!(
        "Enumeration value '{mode}' for field '$merge.{field}' is not a valid value."
    ))
}

#[cfg(test)]
mod tests {
    use super::super::testing::code;
    use super::*;

    fn merge(field: &str, value: Value) -> i32 {
        let mut spec = DocumentBuilder::new();
        spec.append("into", "c").append(field, value);
        code(array![doc! {"$merge": spec.finish()}])
    }

    #[test]
    fn targets_are_checked() {
        let into = |into: Value| code(array![doc! {"$merge": doc! {"into": into}}]);
        assert_eq!(code(array![doc! {"$merge": "c"}]), 0);
        assert_eq!(code(array![doc! {"$merge": 1}]), location::MERGE_TARGET);
        assert_eq!(code(array![doc! {"$merge": doc! {}}]), 40_414);
        assert_eq!(into("c".into()), 0);
        assert_eq!(into(doc! {"coll": "c"}.into()), 0);
        assert_eq!(into(doc! {"db": "d"}.into()), 40_414);
        assert_eq!(into(doc! {"coll": "c", "x": 1}.into()), 40_415);
        assert_eq!(into(1.into()), 14);
        assert_eq!(
            into("system.views".into()),
            location::MERGE_TO_SPECIAL_COLLECTION
        );
    }

    #[test]
    fn on_is_checked() {
        assert_eq!(merge("on", "a.b".into()), 0);
        assert_eq!(merge("on", 1.into()), location::MERGE_ON_TYPE);
        assert_eq!(merge("on", array![]), location::MERGE_ON_EMPTY);
        assert_eq!(merge("on", array![1]), location::MERGE_ON_ELEMENT);
        assert_eq!(merge("on", array!["a", "a"]), location::MERGE_ON_TWICE);
        assert_eq!(merge("on", "$a".into()), 16_410);
    }

    #[test]
    fn modes_are_checked() {
        assert_eq!(merge("whenMatched", 1.into()), location::MERGE_MATCHED_TYPE);
        assert_eq!(merge("whenMatched", "lose".into()), 2);
        assert_eq!(merge("whenNotMatched", "lose".into()), 2);
        assert_eq!(merge("whenNotMatched", 1.into()), 14);
        assert_eq!(merge("what", 1.into()), 40_415);
        assert_eq!(merge("let", 1.into()), 14);
        assert_eq!(
            merge("let", doc! {"x": 1}.into()),
            location::MERGE_LET_WITHOUT_PIPELINE
        );
        let with_new = |value: &str| {
            let stages = array![doc! {"$set": doc! {"a": "$$new"}}];
            let spec = doc! {"into": "c", "let": doc! {"new": value}, "whenMatched": stages};
            code(array![doc! {"$merge": spec}])
        };
        assert_eq!(with_new("$a"), location::MERGE_LET_NEW);
        assert_eq!(with_new("$$ROOT"), 0);
        let set = |value: &str| array![doc! {"$set": doc! {"a": value}}];
        assert_eq!(merge("whenMatched", set("$$new.a")), 0);
        assert_eq!(merge("whenMatched", set("$$old.a")), 17_276);
        assert_eq!(merge("whenMatched", array![doc! {"$limit": 1}]), 72);
        for (matched, fits) in [
            ("replace", true),
            ("merge", true),
            ("keepExisting", false),
            ("fail", false),
        ] {
            for not_matched in ["insert", "discard", "fail"] {
                let spec =
                    doc! {"into": "c", "whenMatched": matched, "whenNotMatched": not_matched};
                let expected = if fits || not_matched == "insert" {
                    0
                } else {
                    location::MERGE_MODES
                };
                assert_eq!(code(array![doc! {"$merge": spec}]), expected);
            }
        }
    }
}
