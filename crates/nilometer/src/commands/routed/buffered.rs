//! Writes of one command that partitions have answered before they are durable.
//!
//! ```text
//! first part ─► p0001, j: false ─┐
//! next part  ─► p0002, j: false ─┼─► then each partition makes all durable, at the same time
//! next part  ─► p0001, j: false ─┘
//! ```
//!
//! So parts that follow one another do not wait for the storage one by one. What a partition has buffered is lost with the
//! process that has it open: the command then fails, and a numbered one is repeated.

use std::collections::BTreeMap;

use nilometer_bson::{Document, DocumentBuilder, doc};

use super::number;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::{OperationContext, Request};
use crate::router::{OPENING_FIELD, Router, SYNC_COMMAND, command, wait};

/// The partitions that have buffered writes of a command, and their openings.
pub(super) struct BufferedWrites {
    /// True if the client waits for the storage.
    is_awaited: bool,
    /// True if parts are answered before they are durable.
    is_on: bool,
    openings: BTreeMap<usize, i64>,
}

impl BufferedWrites {
    /// Begins a command. Its parts are not buffered.
    pub(super) fn new(operation: &OperationContext) -> Self {
        Self {
            is_awaited: operation.write_concern.journaled,
            is_on: false,
            openings: BTreeMap::new(),
        }
    }

    /// Buffers what follows if it is several parts, one after the other, and the client waits for the storage.
    pub(super) fn expect(&mut self, parts: usize) {
        self.is_on |= parts > 1 && self.is_awaited;
    }

    /// Returns the part of a command as a partition is asked for it.
    pub(super) fn body(&self, body: &Document) -> Document {
        if !self.is_on {
            return body.clone();
        }
        let mut out = DocumentBuilder::with_capacity(body.as_bytes().len());
        for element in body
            .iter()
            .filter(|element| element.name() != "writeConcern")
        {
            out.append_element(element);
        }
        out.append("writeConcern", doc! {"w": 1, "j": false});
        out.finish()
    }

    /// Notes the reply of a partition, which may have buffered what it did before, too. Fails if what it had buffered for this
    /// command is lost.
    pub(super) fn note(&mut self, partition: usize, reply: &Document) -> Result<()> {
        let mut repeated = ["retriedStmtIds", "retriedStmtId"].into_iter();
        let is_repeated = repeated.any(|field| !reply.get(field).is_missing());
        if !(self.is_on || self.is_awaited && is_repeated) {
            return Ok(());
        }
        let opening = number(reply.get(OPENING_FIELD));
        match self.openings.insert(partition, opening) {
            Some(before) if before != opening => Err(Error::new(
                ErrorCode::HostUnreachable,
                "another process has opened the partition before the write was durable",
            )),
            _ => Ok(()),
        }
    }

    /// Waits until all parts are durable, in all partitions at the same time.
    pub(super) fn sync(&self, router: &Router, operation: &OperationContext) -> Result<()> {
        let pending = self.openings.iter().map(|(partition, opening)| {
            let mut sync = DocumentBuilder::new();
            sync.append(SYNC_COMMAND, *opening);
            let sync = command(&operation.database, sync.finish(), operation, None);
            router.send(*partition, Request::new(sync))
        });
        let pending: Vec<_> = pending.collect();
        let replies = pending.into_iter();
        let replies = replies.map(|reply| reply.and_then(|mut reply| wait(&mut *reply, operation)));
        let replies: Vec<Result<Document>> = replies.collect();
        replies.into_iter().try_for_each(|reply| reply.map(drop))
    }
}
