//! Checking the manifest of a tree, which `lsm-tree` does not do.
//!
//! A tree directory holds `current`, which names the manifest `v<id>` and carries its checksum, and
//! the manifest, which names the tables and the files of separated values with the checksum of each:
//!
//! ```text
//! current = manifest id u64, xxh3-128 of the whole file v<id>, one zero byte   (little-endian)
//! ```
//!
//! `lsm-tree` opens both without checking the checksum, and one flipped bit in a manifest can make a tree open with
//! wrong data. So this module checks it before every opening.

use std::fs;
use std::path::{Path, PathBuf};

use crate::checksum::checksum_128;
use crate::error::{Error, Result};

const POINTER_BYTES: usize = 25;

/// Checks the manifest that `current` names and returns its path.
pub(crate) fn verify(tree: &Path) -> Result<PathBuf> {
    let pointer_path = tree.join("current");
    let pointer = read(&pointer_path)?;
    let fields = (
        pointer.first_chunk::<8>(),
        pointer.get(8..24).and_then(|sum| sum.first_chunk::<16>()),
    );
    let (Some(id), Some(sum)) = fields else {
        return Err(bad_pointer(&pointer_path, pointer.len()));
    };
    if pointer.len() != POINTER_BYTES || pointer.last() != Some(&0) {
        return Err(bad_pointer(&pointer_path, pointer.len()));
    }
    let manifest_path = tree.join(format!("v{}", u64::from_le_bytes(*id)));
    let expected = u128::from_le_bytes(*sum);
    let found = checksum_128(&read(&manifest_path)?);
    if found != expected {
        return Err(Error::corruption(
            "manifest",
            &manifest_path,
            0,
            format!("checksum {expected:032x}"),
            format!("{found:032x}"),
        ));
    }
    Ok(manifest_path)
}

/// Returns the id of the manifest that `current` names.
pub(crate) fn current_id(tree: &Path) -> Option<u64> {
    let pointer = fs::read(tree.join("current")).ok()?;
    Some(u64::from_le_bytes(*pointer.first_chunk::<8>()?))
}

fn bad_pointer(path: &Path, length: usize) -> Error {
    let found = format!("{length} other bytes");
    Error::corruption("manifest pointer", path, 0, "a manifest pointer", found)
}

/// Reads a file that must exist.
fn read(path: &Path) -> Result<Vec<u8>> {
    match fs::read(path) {
        Ok(bytes) => Ok(bytes),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Error::corruption("tree", path, 0, "a file", "no file"))
        }
        Err(source) => Err(Error::io("read", path, source)),
    }
}

/// A file named by a manifest: its folder, its id, and the xxh3-128 of the whole file.
pub(crate) type ManifestFile = (&'static str, u64, u128);

/// Returns the files that a manifest names.
///
/// ```text
/// section "tables"     = levels u8, for each: runs u8, for each: tables u32,
///                        for each: id u64, checksum type u8, checksum u128, global number u64
/// section "blob_files" = files u32, for each: id u64, checksum type u8, checksum u128
/// ```
pub(crate) fn list_files(manifest: &Path) -> Result<Vec<ManifestFile>> {
    let mut listed = Vec::new();
    let tables = section(manifest, b"tables")?;
    let blobs = section(manifest, b"blob_files")?;
    let parsed = parse_tables(&tables, &mut listed).and_then(|()| parse_blobs(&blobs, &mut listed));
    match parsed {
        Some(()) => Ok(listed),
        None => Err(unreadable(manifest, "other bytes")),
    }
}

fn section(manifest: &Path, name: &[u8]) -> Result<Vec<u8>> {
    use std::io::Read;
    let reader = sfa::Reader::new(manifest);
    let reader = reader.map_err(|error| unreadable(manifest, format!("{error:?}")))?;
    let section = reader.toc().section(name);
    let section = section.ok_or_else(|| unreadable(manifest, "no such section"))?;
    let mut bytes = Vec::new();
    let read = section.buf_reader(manifest);
    let read = read.and_then(|mut reader| reader.read_to_end(&mut bytes));
    read.map_err(|source| Error::io("read", manifest, source))?;
    Ok(bytes)
}

/// Rewrites the manifest of `tree` without the files for which `keep` is false, so that a tree they made unreadable
/// opens. Returns the files left out.
pub(crate) fn leave_out(
    tree: &Path,
    mut keep: impl FnMut(ManifestFile) -> bool,
) -> Result<Vec<ManifestFile>> {
    let manifest = verify(tree)?;
    let mut gone = Vec::new();
    let mut kept = |file: ManifestFile| {
        let keeps = keep(file);
        if !keeps {
            gone.push(file);
        }
        keeps
    };
    let tables = filter_tables(&section(&manifest, b"tables")?, &mut kept);
    let blobs = filter_blobs(&section(&manifest, b"blob_files")?, &mut kept);
    let (Some(tables), Some(blobs)) = (tables, blobs) else {
        return Err(unreadable(&manifest, "other bytes"));
    };
    let reader = sfa::Reader::new(&manifest);
    let reader = reader.map_err(|error| unreadable(&manifest, format!("{error:?}")))?;
    let mut written = std::io::Cursor::new(Vec::new());
    let mut writer = sfa::Writer::from_writer(&mut written);
    for entry in reader.toc().iter() {
        let bytes = match entry.name() {
            b"tables" => tables.clone(),
            b"blob_files" => blobs.clone(),
            name => section(&manifest, name)?,
        };
        let copied = writer.start(entry.name());
        let copied = copied.and_then(|()| std::io::Write::write_all(&mut writer, &bytes));
        copied.map_err(|source| Error::io("write", &manifest, source))?;
    }
    let finished = writer.finish();
    finished.map_err(|error| unreadable(&manifest, format!("{error:?}")))?;
    let bytes = written.into_inner();
    let id = current_id(tree).unwrap_or_default();
    let mut pointer = id.to_le_bytes().to_vec();
    pointer.extend(checksum_128(&bytes).to_le_bytes());
    pointer.push(0);
    let replaced = fs::write(&manifest, &bytes);
    replaced.map_err(|source| Error::io("write", &manifest, source))?;
    let current = tree.join("current");
    fs::write(&current, pointer).map_err(|source| Error::io("write", &current, source))?;
    Ok(gone)
}

/// Returns the section of tables reduced to those that `keep` accepts, without empty runs.
fn filter_tables(bytes: &[u8], keep: &mut dyn FnMut(ManifestFile) -> bool) -> Option<Vec<u8>> {
    let (levels, mut rest) = bytes.split_first()?;
    let mut out = vec![*levels];
    for _ in 0..*levels {
        let (runs, after) = rest.split_first()?;
        rest = after;
        let (at, mut kept_runs) = (out.len(), 0);
        out.push(0);
        for _ in 0..*runs {
            let (tables, after) = rest.split_first_chunk::<4>()?;
            rest = after;
            let mut run = Vec::new();
            let mut count = 0u32;
            for _ in 0..u32::from_le_bytes(*tables) {
                let entry = rest.get(..TABLE_BYTES)?;
                rest = rest.get(TABLE_BYTES..)?;
                if keeps_file("tables", entry, keep)? {
                    run.extend_from_slice(entry);
                    count += 1;
                }
            }
            if count > 0 {
                out.extend(count.to_le_bytes());
                out.extend(run);
                kept_runs += 1;
            }
        }
        out[at] = kept_runs;
    }
    rest.is_empty().then_some(out)
}

/// Returns the section of files of separated values reduced to those that `keep` accepts.
fn filter_blobs(bytes: &[u8], keep: &mut dyn FnMut(ManifestFile) -> bool) -> Option<Vec<u8>> {
    let (files, mut rest) = bytes.split_first_chunk::<4>()?;
    let mut kept = Vec::new();
    let mut count = 0u32;
    for _ in 0..u32::from_le_bytes(*files) {
        let entry = rest.get(..FILE_BYTES)?;
        rest = rest.get(FILE_BYTES..)?;
        if keeps_file("blobs", entry, keep)? {
            kept.extend_from_slice(entry);
            count += 1;
        }
    }
    let mut out = count.to_le_bytes().to_vec();
    out.extend(kept);
    rest.is_empty().then_some(out)
}

fn keeps_file(
    folder: &'static str,
    entry: &[u8],
    keep: &mut dyn FnMut(ManifestFile) -> bool,
) -> Option<bool> {
    let mut listed = Vec::new();
    parse_file(folder, entry, &mut listed)?;
    listed.pop().map(keep)
}

/// Bytes of a file entry: id, checksum type, checksum.
const FILE_BYTES: usize = 8 + 1 + 16;

/// Bytes of a table entry: a file entry and the global number.
const TABLE_BYTES: usize = FILE_BYTES + 8;

fn unreadable(manifest: &Path, found: impl Into<String>) -> Error {
    Error::corruption("manifest", manifest, 0, "the files of a tree", found)
}

fn parse_tables(bytes: &[u8], listed: &mut Vec<ManifestFile>) -> Option<()> {
    let (levels, mut rest) = bytes.split_first()?;
    for _ in 0..*levels {
        let (runs, after) = rest.split_first()?;
        rest = after;
        for _ in 0..*runs {
            let (tables, after) = rest.split_first_chunk::<4>()?;
            rest = after;
            for _ in 0..u32::from_le_bytes(*tables) {
                rest = parse_file("tables", rest, listed)?;
                rest = rest.get(8..)?;
            }
        }
    }
    rest.is_empty().then_some(())
}

fn parse_blobs(bytes: &[u8], listed: &mut Vec<ManifestFile>) -> Option<()> {
    let (files, mut rest) = bytes.split_first_chunk::<4>()?;
    for _ in 0..u32::from_le_bytes(*files) {
        rest = parse_file("blobs", rest, listed)?;
    }
    rest.is_empty().then_some(())
}

fn parse_file<'a>(
    folder: &'static str,
    bytes: &'a [u8],
    listed: &mut Vec<ManifestFile>,
) -> Option<&'a [u8]> {
    let (id, rest) = bytes.split_first_chunk::<8>()?;
    let (_type, rest) = rest.split_first()?;
    let (sum, rest) = rest.split_first_chunk::<16>()?;
    listed.push((folder, u64::from_le_bytes(*id), u128::from_le_bytes(*sum)));
    Some(rest)
}
