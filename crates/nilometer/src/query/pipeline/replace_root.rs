//! `$replaceRoot` and `$replaceWith`: replace each document by a computed one.

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, array, doc};

use super::{PipelineContext, Stage};
use crate::error::{Error, Result, location};
use crate::eval::{Expression, ParseContext};

/// A parsed `$replaceRoot`.
#[derive(Clone, Debug)]
pub struct ReplaceRootStage {
    /// Computes the new document.
    pub expression: Expression,
    /// The expression's name in errors.
    pub called: &'static str,
    /// The expression as written.
    pub source: Value,
}

impl ReplaceRootStage {
    /// Returns a stage that replaces each document by the index key `key` and the fields `names` of the document.
    pub fn of_key(key: Document, names: &[String], expressions: &ParseContext) -> Result<Self> {
        let mut more = DocumentBuilder::new();
        for name in names {
            more.append(name, format!("${name}"));
        }
        let source = doc! {"$mergeObjects": array![key, more.finish()]};
        Ok(Self {
            expression: Expression::parse(ValueRef::Document(source.as_ref()), expressions)?,
            called: "'newRoot' expression",
            source: source.into(),
        })
    }
}

/// Parses `$replaceRoot`.
pub(super) fn parse_replace_root(
    cx: &PipelineContext,
    _: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let Some(document) = value.as_document() else {
        return Err(Error::location(
            location::REPLACE_ROOT_NOT_OBJECT,
            format!(
                "expected an object as specification for $replaceRoot stage, got {}",
                value.type_name()
            ),
        ));
    };
    let mut new_root = ValueRef::Missing;
    for element in document {
        if element.name() != "newRoot" {
            return Err(Error::location(
                location::REPLACE_ROOT_OPTION_UNKNOWN,
                format!(
                    "unrecognized option to $replaceRoot stage: {}, only valid option is 'newRoot'.",
                    element.name()
                ),
            ));
        }
        new_root = element.value();
    }
    if new_root.is_missing() {
        return Err(Error::location(
            location::REPLACE_ROOT_WITHOUT_NEW_ROOT,
            "no newRoot specified for the $replaceRoot stage",
        ));
    }
    push(cx, "'newRoot' expression", new_root, out)
}

/// Parses `$replaceWith`.
pub(super) fn parse_replace_with(
    cx: &PipelineContext,
    _: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    push(cx, "'replacement document'", value, out)
}

fn push(
    cx: &PipelineContext,
    called: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    out.push(Stage::ReplaceRoot(ReplaceRootStage {
        expression: Expression::parse(value, &cx.expressions)?,
        called,
        source: value.to_value(),
    }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::code;
    use nilometer_bson::{array, doc};

    #[test]
    fn arguments_are_checked() {
        assert_eq!(
            code(array![doc! {"$replaceRoot": doc! {"newRoot": "$a"}}]),
            0
        );
        assert_eq!(code(array![doc! {"$replaceWith": "$a"}]), 0);
        assert_eq!(code(array![doc! {"$replaceRoot": 1}]), 40_229);
        assert_eq!(code(array![doc! {"$replaceRoot": doc! {"x": 1}}]), 40_230);
        assert_eq!(code(array![doc! {"$replaceRoot": doc! {}}]), 40_231);
    }
}
