//! Updates by pipeline: `$set` (`$addFields`), `$unset`, `$project`, `$replaceWith` (`$replaceRoot`) in
//! sequence, with the expressions and variables of an aggregation.

use nilometer_bson::{ArrayRef, DocRef, Document, Element, Value, ValueRef};

use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::projection::{AddFields, MetaField, Projection};
use crate::eval::{EvalContext, Expression, ParseContext};

/// Most stages of an update.
const STAGES_MAX: usize = 1000;

#[derive(Debug)]
enum UpdateStage {
    AddFields(AddFields),
    Projection(Projection),
    Replace {
        expression: Expression,
        operand_name: &'static str,
    },
}

/// A parsed pipeline.
#[derive(Debug)]
pub(super) struct UpdatePipeline(Vec<UpdateStage>);

impl UpdatePipeline {
    /// Parses the stages.
    pub(super) fn parse(stages: ArrayRef<'_>, ctx: &ParseContext) -> Result<Self> {
        let ctx = &ctx.clone().deferring_errors();
        let mut out = Vec::new();
        for stage in stages.iter() {
            if out.len() == STAGES_MAX {
                return Err(Error::location(
                    location::PIPELINE_TOO_LONG,
                    format!("Pipeline length must be no longer than {STAGES_MAX} stages"),
                ));
            }
            let ValueRef::Document(stage) = stage else {
                return Err(Error::type_mismatch(
                    "Each element of the 'pipeline' array must be an object",
                ));
            };
            let mut elements = stage.iter();
            match (elements.next(), elements.next()) {
                (Some(element), None) => out.push(parse_stage(element, ctx)?),
                _ => {
                    return Err(Error::location(
                        location::STAGE_NOT_ONE_FIELD,
                        "A pipeline stage specification object must contain exactly one field.",
                    ));
                }
            }
        }
        Ok(Self(out))
    }

    /// Returns the document after all stages.
    pub(super) fn apply(&self, doc: DocRef<'_>, eval: &EvalContext<'_>) -> Result<Document> {
        let mut current = doc.to_document();
        for stage in &self.0 {
            let doc = current.as_ref();
            current = match stage {
                UpdateStage::AddFields(fields) => fields.apply(doc, eval)?,
                UpdateStage::Projection(projection) => projection.apply(doc, eval)?,
                UpdateStage::Replace {
                    expression,
                    operand_name,
                } => match expression.evaluate(doc, eval)? {
                    Value::Document(document) => document,
                    other => {
                        return Err(Error::location(
                            location::NEW_ROOT_NOT_OBJECT,
                            format!(
                                "{operand_name} must evaluate to an object, but the type of the resulting \
                                 value was: '{}'",
                                other.type_name()
                            ),
                        ));
                    }
                },
            };
        }
        Ok(current)
    }
}

fn parse_stage(element: Element<'_>, ctx: &ParseContext) -> Result<UpdateStage> {
    let value = element.value();
    let operand = |name: &str, code: i32| {
        value.as_document().ok_or_else(|| {
            Error::location(
                code,
                format!(
                    "{name} specification stage must be an object, got {}",
                    value.type_name()
                ),
            )
        })
    };
    match element.name() {
        name @ ("$addFields" | "$set") => {
            let spec = operand(name, location::ADD_FIELDS_NOT_OBJECT)?;
            AddFields::parse(spec, ctx)
                .map(UpdateStage::AddFields)
                .map_err(|error| error.context(&format!("Invalid {name}")))
        }
        "$unset" => Projection::parse_unset(value, ctx).map(UpdateStage::Projection),
        "$project" => {
            let spec = operand("$project", location::PROJECT_NOT_OBJECT)?;
            let projection = Projection::parse_project(spec, ctx)?;
            match projection.needs_meta(MetaField::TextScore) {
                true => Err(MetaField::TextScore.unavailable()),
                false => Ok(UpdateStage::Projection(projection)),
            }
        }
        "$replaceWith" => Ok(UpdateStage::Replace {
            expression: Expression::parse(value, ctx)?,
            operand_name: "'replacement document'",
        }),
        "$replaceRoot" => {
            let options = operand("$replaceRoot", location::REPLACE_ROOT_NOT_OBJECT)?;
            if let Some(other) = options.iter().find(|e| e.name() != "newRoot") {
                return Err(Error::location(
                    location::REPLACE_ROOT_OPTION_UNKNOWN,
                    format!(
                        "unrecognized option to $replaceRoot stage: {}, only valid option is 'newRoot'.",
                        other.name()
                    ),
                ));
            }
            let new_root = options.get("newRoot");
            if new_root.is_missing() {
                return Err(Error::location(
                    location::REPLACE_ROOT_WITHOUT_NEW_ROOT,
                    "no newRoot specified for the $replaceRoot stage",
                ));
            }
            Ok(UpdateStage::Replace {
                expression: Expression::parse(new_root, ctx)?,
                operand_name: "'newRoot' expression",
            })
        }
        other if OTHER_STAGES.contains(&other) => Err(Error::new(
            ErrorCode::InvalidOptions,
            format!("{other} is not allowed to be used within an update"),
        )),
        other => Err(Error::location(
            location::STAGE_UNKNOWN,
            format!("Unrecognized pipeline stage name: '{other}'"),
        )),
    }
}

/// Stages of aggregations that updates do not support: their error differs from that of unknown names.
const OTHER_STAGES: [&str; 36] = [
    "$bucket",
    "$bucketAuto",
    "$changeStream",
    "$changeStreamSplitLargeEvent",
    "$collStats",
    "$count",
    "$currentOp",
    "$densify",
    "$documents",
    "$facet",
    "$fill",
    "$geoNear",
    "$graphLookup",
    "$group",
    "$indexStats",
    "$limit",
    "$listLocalSessions",
    "$listSampledQueries",
    "$listSearchIndexes",
    "$listSessions",
    "$lookup",
    "$match",
    "$merge",
    "$out",
    "$planCacheStats",
    "$redact",
    "$sample",
    "$search",
    "$setWindowFields",
    "$skip",
    "$sort",
    "$sortByCount",
    "$unionWith",
    "$unwind",
    "$vectorSearch",
    "$searchMeta",
];
