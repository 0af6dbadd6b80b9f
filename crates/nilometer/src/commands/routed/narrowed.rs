//! Statements for one document of a sharded collection, whose filters get further conditions.
//!
//! ```text
//! the update writes the shard key     if it must not change one: only a document that has these values already
//! the statement has a sort order      only the document that is the first of all partitions
//! ```

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, doc};

use super::change::filter_of;
use super::first_batch;
use super::key_updates::KeyTreatment;
use crate::catalog::Namespace;
use crate::database::Database;
use crate::error::{Error, Result};
use crate::eval::matcher::MatchExpression;
use crate::operation::OperationContext;
use crate::router::{Router, narrowed};

/// Fields of a statement that a query for its documents has, too.
const OF_QUERY: [&str; 3] = ["collation", "hint", "sort"];

/// The router, the command that runs, and its collection.
type Place<'p> = (&'p Router, &'p OperationContext, &'p Namespace);

/// A statement with further conditions.
pub(super) struct Narrowed {
    statement: Document,
    /// A query for the documents of the original statement, if one that keeps its key is wanted, and why.
    others: Option<(Document, Error)>,
}

impl Narrowed {
    /// Returns a statement with further conditions; `None` if it needs none. `name` is the field with its filter, `targets` the
    /// number of partitions that may have its documents.
    pub(super) fn of(
        database: &Database,
        (_, operation, namespace): Place<'_>,
        treatment: &KeyTreatment,
        (original, name): (DocRef<'_>, &str),
        (is_multi, targets): (bool, usize),
    ) -> Result<Option<Self>> {
        let mut conditions = treatment.conditions.clone();
        let refusal = treatment.refusal.clone();
        let refusal = refusal.filter(|_| !conditions.is_empty());
        let sort = original.get("sort").as_document();
        let is_sorted = sort.is_some_and(|sort| !sort.is_empty());
        if is_sorted && !is_multi && targets > 1 {
            let query = query_of(namespace, original, name);
            let mut reply = DocumentBuilder::extending(query);
            if let Some(left) = operation.time_left() {
                // 0 would mean no limit.
                let left = i64::try_from(left.as_millis()).unwrap_or(i64::MAX).max(1);
                reply.append("maxTimeMS", left.min(i64::from(i32::MAX)));
            }
            let found = first_batch(&database.call(&namespace.database, reply.finish())?);
            conditions.extend(found.first().map(|first| {
                let id = doc! {"$eq": first.get("_id").to_value()};
                doc! {"_id": id}
            }));
        }
        if conditions.is_empty() {
            return Ok(None);
        }
        Ok(Some(Self {
            statement: narrowed(original, name, &conditions),
            others: refusal.map(|refusal| (query_of(namespace, original, name), refusal)),
        }))
    }

    /// Returns the statement with the conditions.
    pub(super) fn statement(&self) -> DocRef<'_> {
        self.statement.as_ref()
    }

    /// Returns the filter with the conditions.
    pub(super) fn filter(&self, by_bytes: bool) -> Option<MatchExpression> {
        filter_of(self.statement.as_ref(), by_bytes)
    }

    /// Fails if the statement has found nothing, but would change the key of another document.
    pub(super) fn check(&self, database: &Database, (.., namespace): Place<'_>) -> Result<()> {
        let Some((query, refusal)) = &self.others else {
            return Ok(());
        };
        let found = database.call(&namespace.database, query.clone())?;
        match first_batch(&found).is_empty() {
            true => Ok(()),
            false => Err(refusal.clone()),
        }
    }
}

/// Returns a `find` for the first document of a statement.
fn query_of(namespace: &Namespace, statement: DocRef<'_>, name: &str) -> Document {
    let mut out = DocumentBuilder::new();
    out.append("find", namespace.collection.as_str());
    let filter = statement.get(name).as_document();
    out.append(
        "filter",
        filter.map_or_else(Document::new, |filter| filter.to_document()),
    );
    for field in OF_QUERY {
        out.append_ref(field, statement.get(field));
    }
    out.append("projection", doc! {"_id": 1});
    out.append("limit", Value::Int32(1));
    out.append("singleBatch", true);
    out.finish()
}
