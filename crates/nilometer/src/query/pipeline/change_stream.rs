//! `$changeStream`: its options, and the stages that may follow it.
//!
//! The stage is no part of a plan: the command `aggregate` parses its options and opens the stream
//! ([`crate::query::exec::change_stream`]).

use nilometer_bson::{DocRef, Document, Timestamp, ValueRef};

use super::{PipelineContext, Stage};
use crate::error::{Error, ErrorCode, Result, location};

/// The name of the stage.
pub const NAME: &str = "$changeStream";

/// Stages that may follow.
const FOLLOWING: &[&str] = &[
    "$addFields",
    "$match",
    "$project",
    "$redact",
    "$replaceRoot",
    "$replaceWith",
    "$set",
    "$unset",
];

/// Where a stream begins.
#[derive(Clone, Debug)]
pub enum StreamStart {
    /// With the changes that are committed after it is opened.
    Now,
    /// After this token, which must not be that of an `invalidate` event.
    ResumeAfter(Document),
    /// After this token.
    StartAfter(Document),
    /// With the changes at this time.
    AtOperationTime(Timestamp),
}

/// The options of `$changeStream`.
#[derive(Clone, Debug)]
pub struct ChangeStreamOptions {
    /// Where it begins.
    pub start: StreamStart,
    /// Events of updates have the document as it is when the event is read.
    pub looks_up: bool,
    /// It shows the changes of all databases.
    pub of_cluster: bool,
}

/// Returns the argument of `$changeStream` if that is the first stage.
pub fn of_pipeline<'a>(stages: &[DocRef<'a>]) -> Option<ValueRef<'a>> {
    let first = stages.first()?.iter().next()?;
    (first.name() == NAME).then(|| first.value())
}

/// Fails if a stage may not follow `$changeStream`.
pub fn check_following(stages: &[DocRef<'_>]) -> Result<()> {
    for stage in stages {
        let name = stage.iter().next().map_or("", |element| element.name());
        if name == "$changeStreamSplitLargeEvent" {
            return Err(Error::new(
                ErrorCode::CommandNotSupported,
                format!("{name} is not supported"),
            ));
        }
        let is_known = super::STAGES.iter().any(|entry| entry.name == name);
        if is_known && !FOLLOWING.contains(&name) {
            return Err(Error::new(
                ErrorCode::IllegalOperation,
                format!("{name} is not permitted in a $changeStream pipeline"),
            ));
        }
    }
    Ok(())
}

/// Refuses the stage where it is no stream of a command.
pub(super) fn parse(
    _: &PipelineContext,
    _: &'static str,
    _: ValueRef<'_>,
    _: &mut Vec<Stage>,
) -> Result<()> {
    Err(only_on_sets())
}

/// Returns the error for a stream without a change log.
pub fn only_on_sets() -> Error {
    Error::location(
        location::REPLICA_SET_ONLY,
        "The $changeStream stage is only supported on replica sets",
    )
}
