//! Describes a file of a database directory for people.
//!
//! Reads the file without the directory's lock. For tables it also reads the manifest beside them.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;

use super::log::payload;
use super::log::record::{
    RECORD_HEADER_BYTES, RecordHeader, RecordKind, SEGMENT_HEADER_BYTES, SegmentHeader,
};
use super::log::{SEGMENTS_FILE, SegmentRange, read_segment_list, segment_id};
use super::manifest;
use super::tree_list::TreeList;
use super::verify::file_checksum;
use crate::checksum::checksum;
use crate::engine::KeyspaceOptions;
use crate::error::{Error, Result};

/// Describes the file at `path`, one line per fact.
pub fn describe_file(path: &Path) -> Result<Vec<String>> {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.unwrap_or_default();
    if segment_id(name).is_some() || name.starts_with("spare-") {
        return segment(path);
    }
    let folder = path.parent().unwrap_or_else(|| Path::new(""));
    let folder_name = folder.file_name().and_then(OsStr::to_str);
    match (name, folder_name) {
        ("TREES", _) => list(folder),
        ("FORMAT", _) => {
            let text = fs::read_to_string(path);
            let text = text.map_err(|source| Error::io("read", path, source))?;
            Ok(vec![format!("the format of a database: {}", text.trim())])
        }
        (SEGMENTS_FILE, _) => {
            let range = read_segment_list(folder)?.unwrap_or(SegmentRange { first: 0, last: 0 });
            Ok(vec![match range.last {
                0 => "the list of log segments: none".to_owned(),
                last => format!("the list of log segments: {} to {last}", range.first),
            }])
        }
        ("current", _) => {
            let named = manifest::verify(folder)?;
            Ok(vec![format!("names the manifest {}", named.display())])
        }
        (_, Some(kind @ ("tables" | "blobs"))) => table(path, kind, name),
        _ => Err(Error::ForeignDirectory {
            path: path.to_path_buf(),
        }),
    }
}

fn list(folder: &Path) -> Result<Vec<String>> {
    let list = TreeList::read(folder)?.unwrap_or_default();
    let count = list.keyspaces.len();
    let mut lines = vec![format!("the list of keyspaces: {count}, checksum matches")];
    for keyspace in &list.keyspaces {
        let apart = match keyspace.options {
            KeyspaceOptions {
                separate_values: true,
                ..
            } => ", separated values",
            KeyspaceOptions {
                short_lived: true, ..
            } => ", short-lived entries",
            KeyspaceOptions {
                large_blocks: true, ..
            } => ", large blocks",
            _ => "",
        };
        let unflushed = match list.unflushed.contains(&keyspace.id) {
            true => ", unflushed",
            false => "",
        };
        let (id, name) = (keyspace.id.0, &keyspace.name);
        lines.push(format!("  {id} {name}{apart}{unflushed}"));
    }
    Ok(lines)
}

/// Describes a file of a tree and compares it with its manifest.
fn table(path: &Path, kind: &str, name: &str) -> Result<Vec<String>> {
    let length = fs::metadata(path).map_err(|source| Error::io("stat", path, source))?;
    let what = match kind {
        "tables" => "a table",
        _ => "a file of separated values",
    };
    let tree = path.parent().and_then(Path::parent);
    let tree = tree.unwrap_or_else(|| Path::new(""));
    let mut lines = vec![format!(
        "{what} of the keyspace in {}, {} bytes",
        tree.display(),
        length.len()
    )];
    let listed = manifest::verify(tree).and_then(|m| manifest::list_files(&m));
    let listed = match listed {
        Ok(listed) => listed,
        Err(error) => {
            lines.push(format!("cannot check it: {error}"));
            return Ok(lines);
        }
    };
    let expected = listed
        .iter()
        .find(|(folder, id, _)| *folder == kind && id.to_string() == name);
    lines.push(match expected {
        None => "no manifest names it: orphaned, removed at the next opening".to_owned(),
        Some((_, _, sum)) if file_checksum(path)? == *sum => "its checksum matches".to_owned(),
        Some(_) => "DAMAGED: its checksum does not match".to_owned(),
    });
    Ok(lines)
}

/// Describes a segment of the log.
fn segment(path: &Path) -> Result<Vec<String>> {
    let bytes = fs::read(path).map_err(|source| Error::io("read", path, source))?;
    let Some(header) = SegmentHeader::decode(&bytes) else {
        return Ok(vec![format!(
            "{} bytes for a log segment, without a header: a spare, or damaged",
            bytes.len()
        )]);
    };
    let mut lines = vec![format!(
        "segment {} of the log, {} bytes, first batch {}",
        header.id,
        bytes.len(),
        header.first_index
    )];
    let (mut at, mut batches) = (SEGMENT_HEADER_BYTES, 0u64);
    let mut operations: BTreeMap<u64, u64> = BTreeMap::new();
    let end = loop {
        let rest = bytes.get(at..).unwrap_or_default();
        let Some(record) = RecordHeader::decode(rest, header.id) else {
            break "no further record: the end, or damage; opening the database decides which";
        };
        if record.kind == RecordKind::End {
            break "the end mark follows";
        }
        let payload = rest.get(RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + record.length as usize);
        let whole = payload.filter(|payload| checksum(payload, 0) == record.payload_checksum);
        let counted = whole.and_then(|payload| {
            payload::decode(payload, |entry| {
                *operations.entry(entry.keyspace).or_default() += 1;
            })
        });
        if counted.is_none() {
            break "DAMAGED: the checksum of the next batch does not match";
        }
        batches += 1;
        at += record.record_bytes();
    };
    lines.push(format!("{batches} batches in the first {at} bytes; {end}"));
    for (keyspace, count) in operations {
        lines.push(format!("  keyspace {keyspace}: {count} operations"));
    }
    Ok(lines)
}
