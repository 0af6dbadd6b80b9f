//! `$_requestResumeToken` and `$_resumeAfter` of `find`: a scan in record order that a later query continues.
//!
//! Every batch then ends with `postBatchResumeToken: {$recordId: …}`, the key of its last document. The scan reads
//! the keys as `showRecordId` does, and the cursor takes them out again.

use nilometer_bson::{Value, ValueRef};

use super::find::natural_direction_of;
use crate::args::Args;
use crate::error::{Error, ErrorCode, Result};
use crate::query::cursor::ResumePosition;
use crate::query::planner::cut::not_over_partitions;
use crate::query::planner::logical::LogicalSource;
use crate::query::source::RecordKey;

const REQUEST: &str = "$_requestResumeToken";
const AFTER: &str = "$_resumeAfter";

/// Returns the position to report, before the first document; `None` if it is not asked for.
pub(super) fn position(args: &Args<'_>) -> Result<Option<ResumePosition>> {
    if !args.lenient_boolean(REQUEST)?.unwrap_or(false) {
        return Ok(None);
    }
    let after = args.document(AFTER)?;
    let start = after.map(|token| token.get("$recordId").to_value());
    Ok(Some(ResumePosition {
        record_id: start.filter(|id| !id.is_missing()).unwrap_or(Value::Null),
        shows_record_id: args.lenient_boolean("showRecordId")?.unwrap_or(false),
    }))
}

/// Makes the scan continue after the position in the command, and tell the keys of records.
pub(super) fn apply(source: &mut LogicalSource, args: &Args<'_>) -> Result<()> {
    let asked = args.lenient_boolean(REQUEST)?.unwrap_or(false);
    let after = args.document(AFTER)?.filter(|token| !token.is_empty());
    if !asked && after.is_none() {
        return Ok(());
    }
    if !asked {
        return Err(Error::bad_value(format!(
            "'{AFTER}' needs '{REQUEST}: true'"
        )));
    }
    let is_natural = |name: &str| -> Result<bool> {
        match args.value(name) {
            ValueRef::Document(order) => Ok(natural_direction_of(order)?.is_some()),
            _ => Ok(false),
        }
    };
    if !is_natural("hint")? {
        return Err(Error::bad_value(format!(
            "hint must be {{$natural: 1}} if '{REQUEST}' is set"
        )));
    }
    if args.document("sort")?.is_some_and(|sort| !sort.is_empty()) && !is_natural("sort")? {
        return Err(Error::bad_value(format!(
            "sort must be unset or {{$natural: 1}} if '{REQUEST}' is set"
        )));
    }
    match source {
        LogicalSource::Records(scan) => {
            scan.show_record_id = true;
            if let Some(token) = after {
                let args = Args::new(AFTER, token);
                args.check_names(&["$recordId", "$initialSyncId"])?;
                scan.start_after = key(args.value("$recordId"))?;
            }
            Ok(())
        }
        LogicalSource::Measurements(_) | LogicalSource::Rollup(_) => Err(Error::new(
            ErrorCode::InvalidPipelineOperator,
            "Option requestResumeToken not supported in aggregation.",
        )),
        LogicalSource::Partitions(_) => Err(not_over_partitions(REQUEST)),
        LogicalSource::Nothing | LogicalSource::FirstStage => Ok(()),
    }
}

/// Returns the key of a record from its `$recordId`; none for null, the position before the first record.
fn key(id: ValueRef<'_>) -> Result<Option<RecordKey>> {
    match id {
        ValueRef::Null => Ok(None),
        ValueRef::Int64(id) => Ok(Some(id.to_be_bytes().to_vec())),
        ValueRef::Binary { bytes, .. } => Ok(Some(bytes.to_vec())),
        other => Err(Error::bad_value(format!(
            "Malformed resume token: the '{AFTER}' object must contain '$recordId' as a long, binary data or null, not {}",
            other.type_name()
        ))),
    }
}
