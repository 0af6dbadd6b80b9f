//! `$redact`: evaluates an expression on a document and on the objects in it, and removes those it prunes.

use nilometer_bson::{ArrayRef, DocRef, Document, DocumentBuilder, Value, ValueRef};

use crate::error::{Error, Result, location};
use crate::eval::EvalContext;
use crate::query::batch::Batch;
use crate::query::exec::{BoxOperator, ExecContext, Operator, next_filled};
use crate::query::pipeline::{REDACT_ANSWERS, RedactStage};

/// Removes parts of documents.
pub struct Redact {
    input: BoxOperator,
    stage: RedactStage,
}

impl Redact {
    /// Removes parts of the documents of `input` as `stage` says.
    pub fn new(input: BoxOperator, stage: RedactStage) -> Self {
        Self { input, stage }
    }
}

impl Operator for Redact {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        let Some(batch) = next_filled(&mut self.input, cx)? else {
            return Ok(None);
        };
        let mut variables = cx.eval.variables.to_vec();
        variables.resize(self.stage.outer, Value::Missing);
        variables.extend(REDACT_ANSWERS.map(|(_, answer)| Value::from(answer)));
        variables.push(Value::Missing);
        let mut rows = Vec::new();
        for row in batch.into_rows()? {
            cx.operation.check_interrupt()?;
            let mut redaction = Redaction {
                stage: &self.stage,
                root: row.as_ref(),
                variables: &mut variables,
                cx,
            };
            rows.extend(redaction.document(row.as_ref())?);
        }
        Ok(Some(Batch::Rows(rows)))
    }

    fn is_exhausted(&self) -> bool {
        self.input.is_exhausted()
    }
}

/// State of redacting one document.
struct Redaction<'a> {
    stage: &'a RedactStage,
    root: DocRef<'a>,
    /// Variable values; the last one is `$$CURRENT`.
    variables: &'a mut Vec<Value>,
    cx: &'a ExecContext<'a>,
}

impl Redaction<'_> {
    /// Returns the remaining part of an object; `None` if it is pruned. The recursion is bounded by the nesting limit of
    /// documents.
    fn document(&mut self, current: DocRef<'_>) -> Result<Option<Document>> {
        if let Some(slot) = self.variables.last_mut() {
            *slot = Value::Document(current.to_document());
        }
        let eval = EvalContext {
            variables: self.variables,
            ..self.cx.eval
        };
        let answer = self.stage.expression.evaluate(self.root, &eval)?;
        match answer.as_ref() {
            ValueRef::String("keep") => Ok(Some(current.to_document())),
            ValueRef::String("prune") => Ok(None),
            ValueRef::String("descend") => {
                let mut out = DocumentBuilder::with_capacity(current.as_bytes().len());
                for element in current {
                    match element.value() {
                        ValueRef::Document(inner) => {
                            if let Some(left) = self.document(inner)? {
                                out.append(element.name(), left);
                            }
                        }
                        ValueRef::Array(inner) => {
                            out.append(element.name(), self.array(inner)?);
                        }
                        _ => {
                            out.append_element(element);
                        }
                    }
                }
                Ok(Some(out.finish()))
            }
            _ => Err(Error::location(
                location::REDACT_RESULT,
                "$redact's expression should not return anything aside from the variables \
                 $$KEEP, $$DESCEND, and $$PRUNE",
            )),
        }
    }

    fn array(&mut self, current: ArrayRef<'_>) -> Result<Value> {
        let mut out = Vec::new();
        for value in current.iter() {
            match value {
                ValueRef::Document(inner) => {
                    out.extend(self.document(inner)?.map(Value::Document));
                }
                ValueRef::Array(inner) => out.push(self.array(inner)?),
                other => out.push(other.to_value()),
            }
        }
        Ok(out.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::query::exec::testing::run_stages;
    use nilometer_bson::{array, doc};

    fn redact(expression: Value, document: Document) -> Result<Vec<Document>> {
        run_stages(array![doc! {"$redact": expression}], vec![document])
    }

    #[test]
    fn levels_are_asked_about_one_by_one() {
        let document = doc! {
            "level": 1,
            "open": doc! {"level": 0, "deep": doc! {"level": 9}},
            "secret": doc! {"level": 7, "x": 1},
            "list": array![1, doc! {"level": 7}, doc! {"a": 1}, array![doc! {"level": 8}, 2]],
        };
        let test = doc! {"$gt": array!["$level", 5]};
        let cond = doc! {"$cond": array![test, "$$PRUNE", "$$DESCEND"]};
        let found = redact(cond.into(), document).unwrap();
        assert_eq!(
            found,
            [doc! {
                "level": 1,
                "open": doc! {"level": 0},
                "list": array![1, doc! {"a": 1}, array![2]],
            }]
        );
    }

    #[test]
    fn the_root_stays_the_root() {
        let document = doc! {"keep": "a", "o": doc! {"name": "a"}, "p": doc! {"name": "b"}};
        let test = doc! {"$in": array!["$$CURRENT.name", array!["$$ROOT.keep", "$none"]]};
        let test =
            doc! {"$or": array![test, doc! {"$eq": array![doc! {"$type": "$name"}, "missing"]}]};
        let cond = doc! {"$cond": array![test, "$$DESCEND", "$$PRUNE"]};
        let found = redact(cond.into(), document).unwrap();
        assert_eq!(found, [doc! {"keep": "a", "o": doc! {"name": "a"}}]);
    }

    #[test]
    fn whole_documents() {
        let document = doc! {"a": doc! {"b": 1}};
        assert!(
            redact("$$PRUNE".into(), document.clone())
                .unwrap()
                .is_empty()
        );
        let kept = redact("$$KEEP".into(), document.clone()).unwrap();
        assert!(kept == vec![document.clone()]);
        for other in [Value::from("$a"), 1.into(), "$none".into()] {
            let error = redact(other, document.clone()).unwrap_err();
            assert_eq!(error.code.0, location::REDACT_RESULT);
        }
    }
}
