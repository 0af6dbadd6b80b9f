//! `$unwind`: returns one document for each element of an array.

use std::sync::Arc;

use nilometer_bson::path::FieldPath;
use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef};

use super::{PipelineContext, Stage};
use crate::error::{Error, Result, location};
use crate::eval::expression::parse_path;

/// A parsed `$unwind`.
#[derive(Clone, Debug)]
pub struct UnwindStage {
    /// The path of the array.
    pub path: FieldPath,
    /// The path that receives the index in the array.
    pub index_path: Option<FieldPath>,
    /// True if documents without array elements are kept.
    pub preserve_empty: bool,
}

impl UnwindStage {
    /// Returns the argument as explain shows it.
    pub fn explain(&self) -> Document {
        let mut out = DocumentBuilder::new();
        out.append("path", format!("${}", self.path.as_str()));
        if let Some(index) = &self.index_path {
            out.append("includeArrayIndex", index.as_str());
        }
        if self.preserve_empty {
            out.append("preserveNullAndEmptyArrays", true);
        }
        out.finish()
    }
}

/// Parses `$unwind`.
pub(super) fn parse(
    _: &PipelineContext,
    _: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let mut options = Options::default();
    match value {
        ValueRef::String(text) => options.path = Some(text.into()),
        ValueRef::Document(document) => options.read(document)?,
        other => {
            return Err(Error::location(
                location::UNWIND_OPERAND,
                format!(
                    "expected either a string or an object as specification for $unwind stage, got {}",
                    other.type_name()
                ),
            ));
        }
    }
    let Some(path) = options.path.filter(|path| !path.is_empty()) else {
        return Err(Error::location(
            location::UNWIND_PATH_MISSING,
            "no path specified to $unwind stage",
        ));
    };
    let Some(path) = path.strip_prefix('$') else {
        return Err(Error::location(
            location::UNWIND_PATH_PREFIX,
            format!("path option to $unwind stage should be prefixed with a '$': {path}"),
        ));
    };
    out.push(Stage::Unwind(UnwindStage {
        path: parse_path(path)?,
        index_path: options.index_path,
        preserve_empty: options.preserve_empty,
    }));
    Ok(())
}

/// The object form of the argument.
#[derive(Default)]
struct Options {
    path: Option<Arc<str>>,
    index_path: Option<FieldPath>,
    preserve_empty: bool,
}

impl Options {
    fn read(&mut self, document: DocRef<'_>) -> Result<()> {
        for element in document {
            match (element.name(), element.value()) {
                ("path", ValueRef::String(text)) => self.path = Some(text.into()),
                ("path", other) => {
                    return Err(Error::location(
                        location::UNWIND_PATH_NOT_STRING,
                        format!(
                            "expected a string as the path for $unwind stage, got {}",
                            other.type_name()
                        ),
                    ));
                }
                ("preserveNullAndEmptyArrays", ValueRef::Bool(keep)) => self.preserve_empty = keep,
                ("preserveNullAndEmptyArrays", other) => {
                    return Err(Error::location(
                        location::UNWIND_PRESERVE_NOT_BOOL,
                        format!(
                            "expected a boolean for the preserveNullAndEmptyArrays option to $unwind stage, got {}",
                            other.type_name()
                        ),
                    ));
                }
                ("includeArrayIndex", value) => self.index_path = Some(parse_index_path(value)?),
                (other, _) => {
                    return Err(Error::location(
                        location::UNWIND_OPTION_UNKNOWN,
                        format!("unrecognized option to $unwind stage: {other}"),
                    ));
                }
            }
        }
        Ok(())
    }
}

fn parse_index_path(value: ValueRef<'_>) -> Result<FieldPath> {
    let text = match value {
        ValueRef::String(text) if !text.is_empty() => text,
        _ => {
            return Err(Error::location(
                location::UNWIND_INDEX_NAME_INVALID,
                "expected a non-empty string for the includeArrayIndex option to $unwind stage",
            ));
        }
    };
    if text.starts_with('$') {
        return Err(Error::location(
            location::UNWIND_INDEX_NAME_PREFIX,
            format!(
                "includeArrayIndex option to $unwind stage should not be prefixed with a '$': {text}"
            ),
        ));
    }
    parse_path(text)
}

#[cfg(test)]
mod tests {
    use super::super::testing::{code, parse};
    use super::*;
    use nilometer_bson::{Value, array, doc};

    #[test]
    fn both_forms_are_read() {
        let short = parse(array![doc! {"$unwind": "$a.b"}]).unwrap();
        let Some(Stage::Unwind(stage)) = short.first() else {
            panic!("an unwind")
        };
        assert_eq!(stage.path.as_str(), "a.b");
        let long =
            doc! {"path": "$a", "includeArrayIndex": "i", "preserveNullAndEmptyArrays": true};
        let long = parse(array![doc! {"$unwind": long.clone()}]).unwrap();
        let Some(Stage::Unwind(stage)) = long.first() else {
            panic!("an unwind")
        };
        assert!(stage.preserve_empty && stage.index_path.is_some());
    }

    #[test]
    fn bad_arguments_are_refused() {
        assert_eq!(code(array![doc! {"$unwind": 1}]), 15_981);
        assert_eq!(code(array![doc! {"$unwind": "a"}]), 28_818);
        assert_eq!(code(array![doc! {"$unwind": ""}]), 28_812);
        assert_eq!(code(array![doc! {"$unwind": doc! {}}]), 28_812);
        assert_eq!(code(array![doc! {"$unwind": doc! {"path": 1}}]), 28_808);
        let with = |name: &str, value: Value| {
            let mut spec = DocumentBuilder::new();
            spec.append("path", "$a");
            spec.append(name, value);
            code(array![doc! {"$unwind": spec.finish()}])
        };
        assert_eq!(with("preserveNullAndEmptyArrays", 1.into()), 28_809);
        assert_eq!(with("includeArrayIndex", "".into()), 28_810);
        assert_eq!(with("includeArrayIndex", "$i".into()), 28_822);
        assert_eq!(with("what", 1.into()), 28_811);
    }
}
