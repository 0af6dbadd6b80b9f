//! Capped collections: their options, and the two commands that make a capped collection from another.
//!
//! ```text
//! convertToCapped           replaces the collection by a capped copy; its indexes are dropped
//! cloneCollectionAsCapped   a capped copy under another name
//! ```
//!
//! Both keep the newest documents that fit. Writers wait during a conversion and then find the new
//! collection.

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder};

use super::collection_uuid;
use super::drop::{end_cursors, forget};
use crate::args::Args;
use crate::auth::Action;
use crate::catalog::{Collection, Namespace};
use crate::commands::security::authorization::rules;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::{OperationContext, Request};

/// The largest size of a capped collection, in bytes: 1 PB.
const BYTES_MAX: i64 = 1_000_000_000_000_000;

/// Sizes are multiples of this.
const BYTES_STEP: i64 = 256;

/// The exclusive limit of `max`, in documents.
const COUNT_LIMIT: i64 = 1 << 31;

/// The options of capped collections only.
pub(crate) const NAMES: &[&str] = &["capped", "size", "max"];

pub(crate) const CONVERT: CommandSpec = CommandSpec {
    access: Access::Write,
    write_concern: true,
    fields: Fields::Only(&["size", collection_uuid::NAME]),
    ..CommandSpec::new(
        "convertToCapped",
        "Converts a collection to a capped one.",
        Authorization::OnCollection(&[Action::ConvertToCapped]),
        OnRouter::Refused,
        convert,
    )
};

pub(crate) const CLONE: CommandSpec = CommandSpec {
    access: Access::Write,
    write_concern: true,
    fields: Fields::Only(&["toCollection", "size"]),
    ..CommandSpec::new(
        "cloneCollectionAsCapped",
        "Copies a collection into a capped one.",
        Authorization::ByRule(rules::clone_as_capped),
        OnRouter::Refused,
        clone,
    )
};

/// Adds `capped`, `size` and `max` from the options of `create`.
pub(crate) fn append_options(args: &Args<'_>, out: &mut DocumentBuilder) -> Result<()> {
    let size = args.integer_within("size", 1, BYTES_MAX)?;
    let max = args.integer("max")?;
    if args.boolean("capped")? != Some(true) {
        if size.is_some() || max.is_some() {
            return Err(Error::invalid_options(
                "the 'capped' field needs to be true when either the 'size' or 'max' fields are present",
            ));
        }
        return Ok(());
    }
    let size = size.ok_or_else(|| {
        Error::invalid_options("the 'size' field is required when 'capped' is true")
    })?;
    append(size, checked_count(max)?, out);
    Ok(())
}

/// Returns the options of a capped collection with the new limits of `collMod`.
pub(crate) fn append_changed(
    args: &Args<'_>,
    known: DocRef<'_>,
    out: &mut DocumentBuilder,
) -> Result<()> {
    let number = |name: &str| known.get(name).as_exact_i64();
    let size = args.integer_within("cappedSize", 1, BYTES_MAX)?;
    let max = match args.integer("cappedMax")? {
        None => number("max"),
        given => checked_count(given)?,
    };
    append(size.or(number("size")).unwrap_or(BYTES_STEP), max, out);
    Ok(())
}

fn append(size: i64, max: Option<i64>, out: &mut DocumentBuilder) {
    out.append("capped", true);
    out.append(
        "size",
        size.saturating_add(BYTES_STEP - 1) / BYTES_STEP * BYTES_STEP,
    );
    out.append("max", max);
}

/// Returns a limit in documents; none for 0 and below.
fn checked_count(max: Option<i64>) -> Result<Option<i64>> {
    match max {
        Some(max) if max >= COUNT_LIMIT => Err(Error::bad_value(
            "max in a capped collection has to be < 2^31 or not set",
        )),
        max => Ok(max.filter(|max| *max > 0)),
    }
}

fn convert(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("convertToCapped", request.body.as_ref());
    let name = args.required_string("convertToCapped")?;
    let namespace = Namespace::new(context.database_name(), name)?;
    database
        .catalog()
        .check_is_not_oplog(&namespace, "convert")?;
    collection_uuid::check(database, &args, &namespace)?;
    let size = required_size(&args)?;
    let source = source(database, &namespace)?;
    let operation = &context.operation;
    let catalog = database.catalog();
    database.records().exclusively(&source, || {
        let fresh = CappedCopy::of(database, &source, &namespace, size, operation)?;
        catalog.install_converted(&fresh.collection, &source)?;
        fresh.keep();
        Ok(())
    })?;
    forget(database, &source);
    end_cursors(database, &[namespace]);
    Ok(Document::new())
}

fn clone(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("cloneCollectionAsCapped", request.body.as_ref());
    let name = args.required_string("cloneCollectionAsCapped")?;
    let target = args.required_string("toCollection")?;
    let target = Namespace::new(context.database_name(), target)?;
    let size = required_size(&args)?;
    let source = source(database, &Namespace::new(context.database_name(), name)?)?;
    let catalog = database.catalog();
    if target.is_system() {
        return Err(Error::new(
            ErrorCode::InvalidNamespace,
            format!("cannot write to '{target}'"),
        ));
    }
    if catalog.get(&target).is_some() {
        return Err(Error::new(
            ErrorCode::NamespaceExists,
            format!(
                "cloneCollectionAsCapped failed - destination collection {target} already exists"
            ),
        ));
    }
    let fresh = CappedCopy::of(database, &source, &target, size, &context.operation)?;
    catalog.install_replacement(&fresh.collection, None, None)?;
    fresh.keep();
    Ok(Document::new())
}

fn required_size(args: &Args<'_>) -> Result<i64> {
    args.integer_within("size", 1, BYTES_MAX)?
        .ok_or_else(|| args.missing("size"))
}

/// Returns the collection to copy: one with documents in insertion order.
fn source(database: &Database, namespace: &Namespace) -> Result<Arc<Collection>> {
    let found = database.catalog().collection_not_view(namespace)?;
    if found.timeseries.is_some() || found.is_clustered() {
        return Err(Error::invalid_options(format!(
            "cannot convert the clustered collection {namespace} to a capped collection"
        )));
    }
    Ok(found)
}

/// A capped copy without a name yet; removed if it is dropped unnamed.
struct CappedCopy<'a> {
    database: &'a Database,
    collection: Arc<Collection>,
    is_kept: bool,
}

impl<'a> CappedCopy<'a> {
    /// Copies the documents of `source`.
    fn of(
        database: &'a Database,
        source: &Collection,
        target: &Namespace,
        size: i64,
        operation: &OperationContext,
    ) -> Result<Self> {
        let mut options = DocumentBuilder::new();
        append(size, None, &mut options);
        let others = |name: &str| !NAMES.contains(&name);
        for element in source.options.iter().filter(|e| others(e.name())) {
            options.append_element(element);
        }
        let uuid = database.services().ids.uuid();
        let catalog = database.catalog();
        let fresh = catalog.prepare_collection(target, uuid, options.finish())?;
        let copied = Self {
            database,
            collection: Arc::new(fresh),
            is_kept: false,
        };
        let records = database.records();
        records.copy(source, &copied.collection, &|| operation.check_interrupt())?;
        records.sync()?;
        Ok(copied)
    }

    /// Marks the copy as named.
    fn keep(mut self) {
        self.is_kept = true;
    }
}

impl Drop for CappedCopy<'_> {
    fn drop(&mut self) {
        if !self.is_kept {
            forget(self.database, &self.collection);
            // Remaining keyspaces are dropped when the database is opened again.
            let _ = self.database.catalog().discard(&self.collection);
        }
    }
}
