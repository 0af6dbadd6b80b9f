//! `$currentDate`: the start time of the operation, as a date or a timestamp.

use nilometer_bson::{Element, Timestamp, Value, ValueRef};

use super::modifier::{MissingPathRule, Modifier, ModifierContext, Outcome};
use crate::error::{Error, Result};
use crate::eval::ParseContext;

const MS_PER_SECOND: i64 = 1000;

#[derive(Debug)]
struct CurrentDate {
    as_timestamp: bool,
}

impl Modifier for CurrentDate {
    fn apply(&self, _: ValueRef<'_>, leaf: &ModifierContext<'_>) -> Result<Outcome> {
        let now_ms = leaf.eval.now_ms;
        Ok(Outcome::Set(if self.as_timestamp {
            Value::Timestamp(Timestamp {
                seconds: u32::try_from(now_ms.div_euclid(MS_PER_SECOND)).unwrap_or(0),
                increment: 1,
            })
        } else {
            Value::DateTime(now_ms)
        }))
    }

    fn missing_path(&self, _: bool) -> MissingPathRule {
        MissingPathRule::Create
    }
}

/// Parses `$currentDate`: true, false, or `{$type: "date" | "timestamp"}`.
pub(super) fn parse(argument: Element<'_>, _: &ParseContext) -> Result<Box<dyn Modifier>> {
    let as_timestamp = match argument.value() {
        ValueRef::Bool(_) => false,
        ValueRef::Document(options) => {
            if let Some(other) = options.iter().find(|e| e.name() != "$type") {
                return Err(Error::bad_value(format!(
                    "Unrecognized $currentDate option: {}",
                    other.name()
                )));
            }
            match options.get("$type") {
                ValueRef::String("date") => false,
                ValueRef::String("timestamp") => true,
                _ => {
                    return Err(Error::bad_value(
                        "The '$type' string field is required to be 'date' or 'timestamp': \
                         {$currentDate: {field : {$type: 'date'}}}",
                    ));
                }
            }
        }
        other => {
            return Err(Error::bad_value(format!(
                "{} is not valid type for $currentDate. Please use a boolean ('true') or a $type \
                 expression ({{$type: 'timestamp/date'}}).",
                other.type_name()
            )));
        }
    };
    Ok(Box::new(CurrentDate { as_timestamp }))
}
