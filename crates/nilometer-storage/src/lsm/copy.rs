//! Offline copies of a database, file by file.
//!
//! Files are copied as bytes, so a damaged database can be copied. The copy shares no file with its source. Files that
//! exist only while a database is open are skipped: the lock, spare log files, and those of a backup. `FORMAT` is written last, so that an
//! interrupted copy is not a database.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use super::checkpoint::make_empty;
use super::directory::{BACKUP_FOLDER, FORMAT_FILE, LOCK_FILE, lock_existing, sync};
use crate::error::{Error, Result};
use crate::file_system::{copy_private, create_private_directory};

/// Copies the database in `source` into the empty or absent directory `target`. Calls `each` with every file and its
/// bytes. Fails with [`Error::Locked`] if the source is open.
pub fn copy_database(source: &Path, target: &Path, each: &mut dyn FnMut(&Path, u64)) -> Result<()> {
    let format = source.join(FORMAT_FILE);
    if !format.is_file() {
        return Err(Error::ForeignDirectory {
            path: source.to_path_buf(),
        });
    }
    let _lock = lock_existing(source)?;
    make_empty(target, source)?;
    copy_folder(source, target, each)?;
    copy_file(&format, target, each)?;
    sync(target)?;
    match target.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => sync(parent),
        _ => Ok(()),
    }
}

fn copy_folder(source: &Path, target: &Path, each: &mut dyn FnMut(&Path, u64)) -> Result<()> {
    create_private_directory(target).map_err(|error| Error::io("create", target, error))?;
    for path in entries(source)? {
        let name = path.file_name().expect("a listed file has a name");
        if name == BACKUP_FOLDER {
            continue;
        }
        if path.is_dir() {
            copy_folder(&path, &target.join(name), each)?;
        } else if !is_skipped(name) {
            copy_file(&path, target, each)?;
        }
    }
    sync(target)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>> {
    let failed = |error| Error::io("list", folder, error);
    let entries = fs::read_dir(folder).map_err(failed)?;
    let mut paths = Vec::new();
    for entry in entries {
        paths.push(entry.map_err(failed)?.path());
    }
    paths.sort();
    Ok(paths)
}

fn is_skipped(name: &OsStr) -> bool {
    let spare = name.to_str().is_some_and(|name| name.starts_with("spare-"));
    spare || name == LOCK_FILE || name == FORMAT_FILE
}

fn copy_file(file: &Path, target: &Path, each: &mut dyn FnMut(&Path, u64)) -> Result<()> {
    let target = target.join(file.file_name().expect("a file has a name"));
    let copied = copy_private(file, &target);
    let bytes = copied.map_err(|error| Error::io("copy", file, error))?;
    each(file, bytes);
    Ok(())
}
