//! Each update operator on its worst input: applying it ends at the first interrupt.

use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};

use super::{MODIFIER_NAMES, Update};
use crate::error::ErrorCode;
use crate::eval::limits::testing::InterruptAfter;
use crate::eval::{EvalContext, EvaluationCounters, EvaluationLimits, ParseContext};

const ELEMENTS: i32 = 20_000;

/// Returns `{name: value}`.
fn field(name: &str, value: impl Into<Value>) -> Document {
    let mut out = DocumentBuilder::new();
    out.append(name, value);
    out.finish()
}

/// Returns an update whose work grows with the document.
fn worst_update(name: &str) -> Value {
    let on = |path: &str, argument: Value| Value::from(field(name, field(path, argument)));
    let numbers: Value = (0..ELEMENTS).map(Value::from).collect::<Vec<_>>().into();
    match name {
        "$addToSet" => on("list", doc! { "$each": numbers }.into()),
        "$bit" => on("list.$[]", doc! { "and": 1 }.into()),
        "$currentDate" => on("list.$[]", true.into()),
        "$inc" | "$max" | "$min" | "$mul" | "$set" | "$unset" => on("list.$[]", 3.into()),
        "$pop" => on("lists.$[]", 1.into()),
        "$pull" => on("list", doc! { "$gte": 0 }.into()),
        "$pullAll" => on("list", numbers),
        "$push" => on("list", doc! { "$each": numbers, "$sort": -1 }.into()),
        "$rename" | "$setOnInsert" => {
            let mut paths = DocumentBuilder::new();
            for at in 0..ELEMENTS {
                paths.append(&format!("f{at}"), format!("g{at}"));
            }
            field(name, paths.finish()).into()
        }
        other => panic!("{other} has no worst input: add one"),
    }
}

#[test]
fn every_operator_is_interrupted_on_its_worst_input() {
    let list: Vec<Value> = (0..ELEMENTS).map(Value::from).collect();
    let lists: Vec<Value> = (0..ELEMENTS).map(|at| array![at]).collect();
    let mut fields = DocumentBuilder::new();
    fields
        .append("_id", 1)
        .append("list", list)
        .append("lists", lists);
    for at in 0..ELEMENTS {
        fields.append(&format!("f{at}"), at);
    }
    let document = fields.finish();
    for name in MODIFIER_NAMES {
        let update = worst_update(name);
        let update = Update::parse(update.as_ref(), None, &ParseContext::new()).unwrap();
        let interrupt = InterruptAfter::new(0);
        let counters = EvaluationCounters::default();
        let context = EvalContext {
            limits: Some(EvaluationLimits {
                counters: &counters,
                interrupt: &interrupt,
                clock: None,
            }),
            ..EvalContext::default()
        };
        let applied = match name {
            "$setOnInsert" => update.apply_to_new(&document, &context).map(Some),
            _ => update.apply(document.as_ref(), None, &context),
        };
        match applied {
            Ok(_) => panic!("{name} never looked for an interrupt"),
            Err(error) => assert_eq!(error.code, ErrorCode::Interrupted, "{name}: {error}"),
        }
    }
}
