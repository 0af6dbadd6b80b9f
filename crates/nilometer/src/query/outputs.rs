//! The interface between `$out` and `$merge` and the collections that they write.
//!
//! The stages describe writes; the database performs them.

use std::sync::Arc;

use nilometer_bson::path::FieldPath;
use nilometer_bson::{DocRef, Document, ObjectId};

use crate::catalog::{Namespace, TimeseriesOptions};
use crate::error::Result;
use crate::eval::matcher::MatchExpression;
use crate::eval::variables::SharedCollator;
use crate::eval::{Collation, EvalContext};
use crate::operation::OperationContext;
use crate::write::update::Update;

/// The destination of `$out` and `$merge`. This module only describes the writes; the implementation performs them.
pub trait Outputs: Send + Sync {
    /// Checks, without writing, that [`Outputs::replace`] is allowed.
    fn check_replaceable(
        &self,
        target: &Namespace,
        timeseries: Option<&TimeseriesOptions>,
    ) -> Result<()>;

    /// Starts to replace the contents of a collection, which keeps its options and indexes. A missing collection is
    /// created when the replacement finishes, as a time series if `timeseries` is given.
    fn replace(
        &self,
        target: &Namespace,
        timeseries: Option<&TimeseriesOptions>,
    ) -> Result<Box<dyn Replacement>>;

    /// Returns a collection to merge into. A missing collection is created by the first insert.
    fn merge_into(&self, target: &Namespace) -> Result<Box<dyn MergeTarget>>;

    /// Returns what has the documents of a `$merge` written in other databases; `None` if [`Outputs::merge_into`] writes them.
    fn merge_elsewhere(&self, target: &Namespace) -> Result<Option<Box<dyn DistantMerge>>> {
        let _ = target;
        Ok(None)
    }
}

/// A collection in other databases that `$merge` writes.
pub trait DistantMerge: Send {
    /// Returns the fields that identify documents: those of the stage, if it names them. Fails if these do not identify any: see
    /// [`MergeTarget::has_unique_index_on`].
    fn identity(
        &self,
        named: Option<&[FieldPath]>,
        collation: &Collation,
    ) -> Result<Arc<[FieldPath]>>;

    /// Writes documents as one batch: what one of them cannot be written for is reported when the others are.
    fn write(
        &mut self,
        merge: &DistantMergeStage,
        documents: Vec<Document>,
        operation: &OperationContext,
    ) -> Result<()>;
}

/// A `$merge` as it is sent to other databases.
#[derive(Clone, Debug)]
pub struct DistantMergeStage {
    /// The database of the command, in which the target is looked for.
    pub database: Arc<str>,
    /// The stage as written.
    pub stage: Document,
    /// The fields that identify a document.
    pub on: Arc<[FieldPath]>,
    /// True if documents without a match are inserted.
    pub inserts: bool,
    /// The names and values of the query's variables.
    pub variables: Document,
    /// The collation of the query; `None` for the simple one.
    pub collation: Option<Document>,
}

/// New contents of a collection. Dropped before it is finished, it leaves no data behind.
pub trait Replacement: Send {
    /// Adds documents.
    fn insert(&mut self, documents: &[Document], operation: &OperationContext) -> Result<()>;

    /// Replaces the old contents atomically.
    fn finish(self: Box<Self>, operation: &OperationContext) -> Result<()>;
}

/// A collection that `$merge` writes.
pub trait MergeTarget: Send {
    /// True if no two documents can have the same values in exactly these fields, in any order. That takes a unique
    /// index that is not partial and has the collation of the query.
    fn has_unique_index_on(&self, fields: &[FieldPath], collation: &Collation) -> Result<bool>;

    /// Returns a new `_id`, for a document without one.
    fn new_id(&self, operation: &OperationContext) -> ObjectId;

    /// Returns the document in the form in which it would be stored. `on` compares this form.
    fn prepared(&self, document: Document) -> Result<Document> {
        Ok(document)
    }

    /// Inserts a document that does not exist yet; code 11000 if it exists. By default a unique index detects that.
    fn insert_new(&mut self, change: Change<'_>, operation: &OperationContext) -> Result<()> {
        match change.otherwise {
            Some(document) => self.insert(document, operation),
            None => Ok(()),
        }
    }

    /// Inserts a document.
    fn insert(&mut self, document: DocRef<'_>, operation: &OperationContext) -> Result<()>;

    /// Updates the document that the filter matches, or inserts a new one. Returns true if a document matched.
    fn change(&mut self, change: Change<'_>, operation: &OperationContext) -> Result<bool>;

    /// Makes the written data as durable as the operation requires.
    fn finish(&mut self, operation: &OperationContext) -> Result<()>;
}

/// One write of `$merge`.
pub struct Change<'a> {
    /// Matches the document.
    pub wanted: &'a MatchExpression,
    /// The update of the matched document.
    pub update: &'a Update,
    /// The document to insert if none matches.
    pub otherwise: Option<DocRef<'a>>,
    /// The context in which filter and update are evaluated.
    pub eval: EvalContext<'a>,
    /// The collation of the filter's strings; `None` compares bytes.
    pub collator: Option<&'a SharedCollator>,
}
