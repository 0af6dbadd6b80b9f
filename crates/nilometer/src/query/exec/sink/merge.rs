//! `$merge`: writes each document of its input into a collection, as a new document or a change of an existing one.
//!
//! ```text
//! document ── values of `on` ──► does one with the same exist?  yes ──► replace · merge · keep · pipeline · fail
//!                                                               no  ──► insert · discard · fail
//! ```
//!
//! Each document is written separately: an error leaves earlier writes in place, and the rest of its batch is written
//! before it is reported, as in MongoDB. A document without values of `on` ends the operation at once. An unmatched document
//! is inserted unchanged, even if a pipeline handles matched ones. A stage that writes
//! into the collection it reads may read its own writes, as in MongoDB.

use std::sync::Arc;

use nilometer_bson::path::FieldPath;
use nilometer_bson::validate::SIZE_MAX;
use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, array};

use super::merge_elsewhere::MergeElsewhere;
use crate::catalog::Namespace;
use crate::error::{Error, Result, location};
use crate::eval::matcher::MatchExpression;
use crate::eval::{Collation, EvalContext, ParseContext};
use crate::query::batch::Batch;
use crate::query::exec::build::Builder;
use crate::query::exec::{BoxOperator, ExecContext, Operator, next_filled};
use crate::query::pipeline::{MergeStage, WhenMatched, WhenNotMatched};
use crate::query::source::{Change, Collections, MergeTarget, outputs_of};
use crate::write::update::Update;
use crate::write::with_id;

/// Writes into a collection.
pub struct Merge {
    input: Option<BoxOperator>,
    stage: MergeStage,
    target: Namespace,
    collections: Arc<dyn Collections>,
    /// Parse context of filters on `on`; holds the collation.
    expressions: ParseContext,
    /// An update that changes nothing.
    no_change: Update,
}

impl Merge {
    /// Returns what writes the documents of `input` as `stage` says: here, or in other databases.
    pub fn build(input: BoxOperator, stage: MergeStage, builder: &Builder) -> Result<BoxOperator> {
        let collections = Arc::clone(&builder.collections);
        let target = stage.target.namespace(&builder.database)?;
        if target.is_in_internal_database() {
            return Err(Error::location(
                location::MERGE_TO_INTERNAL_DATABASE,
                format!("Cannot $merge to internal database: {}", target.database),
            ));
        }
        let outputs = outputs_of(&*collections)?;
        if let Some(writer) = outputs.merge_elsewhere(&target)? {
            return Ok(Box::new(MergeElsewhere::new(
                input, &stage, writer, builder,
            )?));
        }
        let writer = outputs.merge_into(&target)?;
        let collation = Collation::from(builder.settings.plan.collator.clone());
        // A router knows more: `_id` and a shard key are unique without an index on both.
        let is_identified = builder.settings.is_merge_identified;
        if !is_identified && !writer.has_unique_index_on(&stage.on, &collation)? {
            return Err(Error::location(
                location::MERGE_ON_NOT_UNIQUE,
                "Cannot find index to verify that join fields will be unique",
            ));
        }
        Ok(Box::new(Self {
            input: Some(input),
            stage,
            target,
            collections,
            expressions: ParseContext::new().with_collator(collation.shared()),
            no_change: Update::parse(array![].as_ref(), None, &ParseContext::new())?,
        }))
    }

    /// Returns the document to write, and the filter for the existing one.
    fn prepared(
        &self,
        row: Document,
        to: &mut dyn MergeTarget,
        cx: &ExecContext<'_>,
    ) -> Result<(Document, MatchExpression)> {
        let row = match self.is_on_id() {
            true => with_id(row, &|| to.new_id(cx.operation)),
            false => row,
        };
        let row = to.prepared(row)?;
        let wanted = self.filter(row.as_ref())?;
        Ok((row, wanted))
    }

    fn write(
        &self,
        (row, wanted): (Document, MatchExpression),
        to: &mut dyn MergeTarget,
        cx: &ExecContext<'_>,
    ) -> Result<()> {
        let is_insert = self.stage.not_matched == WhenNotMatched::Insert;
        let replacement;
        let update = match &self.stage.matched {
            WhenMatched::Fail => {
                let change = Change {
                    wanted: &wanted,
                    update: &self.no_change,
                    otherwise: Some(row.as_ref()),
                    eval: cx.eval,
                    collator: self.expressions.collator(),
                };
                return to.insert_new(change, cx.operation);
            }
            WhenMatched::Keep => &self.no_change,
            WhenMatched::Update(update) => update,
            WhenMatched::Replace => {
                replacement = Update::replacement(row.as_ref());
                &replacement
            }
        };
        let mut variables = cx.eval.variables.to_vec();
        variables.resize(self.stage.outer.len(), Value::Missing);
        let mut own = vec![Value::Document(row.clone())];
        for expression in self.stage.variables.iter() {
            own.push(expression.evaluate(row.as_ref(), &cx.eval)?);
        }
        variables.append(&mut own);
        let change = Change {
            wanted: &wanted,
            update,
            otherwise: is_insert.then(|| row.as_ref()),
            eval: EvalContext {
                variables: &variables,
                ..cx.eval
            },
            collator: self.expressions.collator(),
        };
        let was_there = to.change(change, cx.operation)?;
        if !was_there && self.stage.not_matched == WhenNotMatched::Fail {
            return Err(Error::location(
                location::MERGE_NOT_FOUND,
                "$merge could not find a matching document in the target collection for at least one document in the source collection",
            ));
        }
        Ok(())
    }

    fn is_on_id(&self) -> bool {
        self.stage.on.iter().any(|path| path.as_str() == "_id")
    }

    /// Returns a filter for the document with the same values of `on`.
    fn filter(&self, row: DocRef<'_>) -> Result<MatchExpression> {
        let mut filter = DocumentBuilder::new();
        for path in self.stage.on.iter() {
            filter.begin_document(path.as_str());
            filter.append_ref("$eq", on_value(row, path)?);
            filter.end();
        }
        MatchExpression::parse(filter.finish().as_ref(), &self.expressions)
    }
}

/// Returns the value of a field of `on`.
fn on_value<'a>(row: DocRef<'a>, path: &FieldPath) -> Result<ValueRef<'a>> {
    match crate::query::exec::row::unwind::value_at(row, path) {
        ValueRef::Array(_) => Err(Error::location(
            location::MERGE_ON_ARRAY,
            "$merge write error: 'on' field cannot be an array",
        )),
        value if value.is_nullish() => Err(Error::location(
            location::MERGE_ON_MISSING,
            "$merge write error: 'on' field cannot be missing, null, undefined or an array",
        )),
        value => Ok(value),
    }
}

impl Operator for Merge {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        let Some(mut input) = self.input.take() else {
            return Ok(None);
        };
        let mut to = outputs_of(&*self.collections)?.merge_into(&self.target)?;
        let mut failed: Option<Error> = None;
        let mut batch_bytes = 0;
        while let Some(batch) = next_filled(&mut input, cx)? {
            for row in batch.into_rows()? {
                batch_bytes += row.as_bytes().len();
                if batch_bytes > SIZE_MAX {
                    if failed.is_some() {
                        break;
                    }
                    batch_bytes = 0;
                }
                let row = self.prepared(row, &mut *to, cx)?;
                if let Err(error) = self.write(row, &mut *to, cx) {
                    cx.operation.check_interrupt()?;
                    failed = failed.or(Some(error));
                }
            }
            if failed.is_some() && batch_bytes > SIZE_MAX {
                break;
            }
        }
        to.finish(cx.operation)?;
        failed.map_or(Ok(None), Err)
    }

    fn is_exhausted(&self) -> bool {
        self.input.is_none()
    }
}
