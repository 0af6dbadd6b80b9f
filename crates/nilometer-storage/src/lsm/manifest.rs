//! Checking the manifest of a tree, which the tree itself does not.
//!
//! A tree directory holds `current`, which names the manifest `v<id>` and carries its checksum, and
//! the manifest, which names the tables and the files of separated values with the checksum of each:
//!
//! ```text
//! current = manifest id u64, xxh3-128 of the whole file v<id>, one zero byte   (little-endian)
//! ```
//!
//! `lsm-tree` opens both without looking at the checksum; one flipped bit in a manifest can make a
//! tree open with wrong data. So it is compared here before every opening.

use std::fs;
use std::path::{Path, PathBuf};

use crate::checksum::checksum_128;
use crate::error::{Error, Result};

const POINTER_BYTES: usize = 25;

/// The manifest that `current` names: its path, once its checksum fits.
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

/// The id of the manifest that `current` names.
pub(crate) fn current_id(tree: &Path) -> Option<u64> {
    let pointer = fs::read(tree.join("current")).ok()?;
    Some(u64::from_le_bytes(*pointer.first_chunk::<8>()?))
}

fn bad_pointer(path: &Path, length: usize) -> Error {
    let found = format!("{length} bytes that are none");
    Error::corruption("manifest pointer", path, 0, "a manifest pointer", found)
}

/// Reads a file that must be there.
fn read(path: &Path) -> Result<Vec<u8>> {
    match fs::read(path) {
        Ok(bytes) => Ok(bytes),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            Err(Error::corruption("tree", path, 0, "a file", "no file"))
        }
        Err(source) => Err(Error::io("read", path, source)),
    }
}

/// A file the manifest names: its folder, its id, and the xxh3-128 of the whole file.
pub(crate) type Listed = (&'static str, u64, u128);

/// The files a manifest names.
///
/// ```text
/// section "tables"     = levels u8, for each: runs u8, for each: tables u32,
///                        for each: id u64, checksum type u8, checksum u128, global number u64
/// section "blob_files" = files u32, for each: id u64, checksum type u8, checksum u128
/// ```
pub(crate) fn list_files(manifest: &Path) -> Result<Vec<Listed>> {
    let mut listed = Vec::new();
    let tables = section(manifest, b"tables")?;
    let blobs = section(manifest, b"blob_files")?;
    let parsed = parse_tables(&tables, &mut listed).and_then(|()| parse_blobs(&blobs, &mut listed));
    match parsed {
        Some(()) => Ok(listed),
        None => Err(unreadable(manifest, "bytes that are none")),
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

fn unreadable(manifest: &Path, found: impl Into<String>) -> Error {
    Error::corruption("manifest", manifest, 0, "the files of a tree", found)
}

fn parse_tables(bytes: &[u8], listed: &mut Vec<Listed>) -> Option<()> {
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

fn parse_blobs(bytes: &[u8], listed: &mut Vec<Listed>) -> Option<()> {
    let (files, mut rest) = bytes.split_first_chunk::<4>()?;
    for _ in 0..u32::from_le_bytes(*files) {
        rest = parse_file("blobs", rest, listed)?;
    }
    rest.is_empty().then_some(())
}

fn parse_file<'a>(
    folder: &'static str,
    bytes: &'a [u8],
    listed: &mut Vec<Listed>,
) -> Option<&'a [u8]> {
    let (id, rest) = bytes.split_first_chunk::<8>()?;
    let (_type, rest) = rest.split_first()?;
    let (sum, rest) = rest.split_first_chunk::<16>()?;
    listed.push((folder, u64::from_le_bytes(*id), u128::from_le_bytes(*sum)));
    Some(rest)
}
