//! A collection of a cluster as queries see it, and what its partitions return.

use std::sync::Arc;

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, doc};

use super::partition::{self, PendingReply};
use super::{Placement, Router};
use crate::catalog::Namespace;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::matcher::MatchExpression;
use crate::operation::{OperationContext, Request, RoutedRequest};
use crate::query::partitions::{Part, PartForm, PartitionCursor, PartitionSource};
use crate::session::SessionId;

/// Documents that a partition returns at once; it sends the next ones while these are read.
const PART_BATCH_DOCUMENTS: i32 = 1000;

/// One collection of a cluster.
pub(crate) struct RoutedCollection {
    pub(crate) router: Arc<Router>,
    pub(crate) namespace: Namespace,
    /// The time series by which a rollup is placed, and the definitions by which its bins are merged.
    pub(crate) series: Option<(Namespace, Document)>,
    /// Where its documents were when the query began.
    pub(crate) placement: Arc<Placement>,
}

impl PartitionSource for RoutedCollection {
    fn targets(&self, filter: Option<&MatchExpression>) -> Result<Vec<usize>> {
        // A condition on bins is none on the keys of measurements.
        let filter = filter.filter(|_| self.series.is_none());
        Ok(self.placement.targets(filter))
    }

    fn name(&self, partition: usize) -> String {
        self.router.name(partition).to_owned()
    }

    fn host(&self, partition: usize) -> String {
        self.router.host(partition)
    }

    fn explain(
        &self,
        partitions: &[usize],
        part: &Part,
        verbosity: &str,
        operation: &OperationContext,
    ) -> Result<Vec<Document>> {
        let command = command_of(&self.namespace.collection, part);
        let command = doc! {"explain": command, "verbosity": verbosity};
        let database = &self.namespace.database;
        self.router
            .ask_all(partitions, database, &command, operation)
    }

    fn open(
        &self,
        partition: usize,
        part: &Part,
        operation: &OperationContext,
    ) -> Result<Box<dyn PartitionCursor>> {
        let session = self.router.new_session();
        let mut cursor = PartCursor {
            router: Arc::clone(&self.router),
            namespace: self.namespace.clone(),
            partition,
            session,
            pending: None,
            first: None,
            is_finished: false,
        };
        let mut request = Request::new(partition::command(
            &self.namespace.database,
            command_of(&self.namespace.collection, part),
            operation,
            Some(session),
        ));
        let series = self.series.as_ref();
        let placed = series.map_or(&self.namespace, |(series, _)| series);
        let merges = part.form == PartForm::States;
        let definitions = series.filter(|_| merges).map(|(_, known)| known.clone());
        request.routed = Some(Arc::new(RoutedRequest {
            part: Some(part.request()),
            placement: Some(self.placement.version_of(placed)),
            definitions,
            ..RoutedRequest::default()
        }));
        cursor.pending = Some(self.router.send(partition, request)?);
        Ok(Box::new(cursor))
    }
}

/// Returns a part as the command `aggregate`.
fn command_of(collection: &str, part: &Part) -> Document {
    let stages = part.stages.iter().cloned().map(Value::from);
    doc! {
        "aggregate": collection,
        "pipeline": stages.collect::<Vec<_>>(),
        "cursor": doc! {"batchSize": PART_BATCH_DOCUMENTS},
        "allowDiskUse": part.allows_disk_use,
        "let": constants(&part.variables),
        "collation": part.collation.clone().unwrap_or_else(|| doc! {"locale": "simple"}),
        "hint": part.hint.clone(),
    }
}

/// Returns values as a command's `let` has them: expressions that are these values.
pub(crate) fn constants(variables: &Document) -> Document {
    let mut out = DocumentBuilder::new();
    for variable in variables.iter() {
        out.begin_document(variable.name());
        out.append_ref("$literal", variable.value());
        out.end();
    }
    out.finish()
}

/// The documents that a partition returns for a part. The next batch is asked for when one arrives.
struct PartCursor {
    router: Arc<Router>,
    namespace: Namespace,
    partition: usize,
    /// The session of this part alone, so that ending it ends what runs.
    session: SessionId,
    pending: Option<Box<dyn PendingReply>>,
    /// The first reply, from when the part has started until its documents are read.
    first: Option<Document>,
    is_finished: bool,
}

impl PartitionCursor for PartCursor {
    fn wait_for_start(&mut self, operation: &OperationContext) -> Result<()> {
        if let Some(mut pending) = self.pending.take() {
            self.first = Some(partition::wait(&mut *pending, operation)?);
        }
        Ok(())
    }

    fn next(&mut self, operation: &OperationContext) -> Result<Option<Vec<Document>>> {
        let reply = match (self.first.take(), self.pending.take()) {
            (Some(first), _) => first,
            (None, Some(mut pending)) => partition::wait(&mut *pending, operation)?,
            (None, None) => return Ok(None),
        };
        let (rows, id) = batch_of(&reply)?;
        if id == 0 {
            self.is_finished = true;
        } else {
            let more = doc! {
                "getMore": id, "collection": self.namespace.collection.as_str(),
                "batchSize": PART_BATCH_DOCUMENTS,
            };
            let database = &self.namespace.database;
            let more = partition::command(database, more, operation, Some(self.session));
            let mut more = Request::new(more);
            more.routed = Some(Arc::default());
            self.pending = Some(self.router.send(self.partition, more)?);
        }
        Ok(Some(rows))
    }
}

impl Drop for PartCursor {
    fn drop(&mut self) {
        if !self.is_finished {
            let end = Request::new(partition::end_of(self.session));
            // A partition that is gone has nothing to end.
            let _ = self.router.send(self.partition, end);
        }
    }
}

/// Returns the documents of a reply, and the id of the cursor.
pub(crate) fn batch_of(reply: &Document) -> Result<(Vec<Document>, i64)> {
    let no_batch = || {
        Error::new(
            ErrorCode::InternalError,
            "a partition answered without a batch",
        )
    };
    let cursor = reply.get("cursor").as_document().ok_or_else(no_batch)?;
    let batch = match cursor.get("firstBatch") {
        ValueRef::Missing => cursor.get("nextBatch"),
        first => first,
    };
    let batch = batch.as_array().ok_or_else(no_batch)?;
    let rows = batch
        .iter()
        .map(|row| row.as_document().map(|row| row.to_document()));
    let rows = rows.collect::<Option<Vec<_>>>().ok_or_else(no_batch)?;
    let id = cursor.get("id").as_exact_i64().ok_or_else(no_batch)?;
    Ok((rows, id))
}
