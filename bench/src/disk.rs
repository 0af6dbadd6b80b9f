//! The size on disk: of the data folder if it is accessible, else as reported by the server.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use nilometer_bson::doc;

use crate::options::Options;
use crate::target::{Connection, Outcome, run as call};

/// The folder is settled if nothing changed for this long.
const REST: Duration = Duration::from_secs(3);
const LOOK_EVERY: Duration = Duration::from_millis(200);
/// Bytes of the unit of `st_blocks`.
const BLOCK: u64 = 512;

/// A measured size.
#[derive(Clone, Debug)]
pub(crate) struct DiskUsage {
    pub(crate) bytes: u64,
    /// The source of the size.
    pub(crate) source: &'static str,
    /// Parts of the folder, largest first.
    pub(crate) parts: Vec<(String, u64)>,
}

/// Measures the size of the database.
pub(crate) fn weigh(
    connection: &mut dyn Connection,
    options: &Options,
) -> Outcome<Option<DiskUsage>> {
    if let Some(folder) = &options.dbpath {
        wait_for_rest(Path::new(folder), Duration::from_secs(options.settle_s))?;
        let mut parts = parts(Path::new(folder))?;
        parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
        let bytes = parts.iter().map(|(_, bytes)| bytes).sum();
        return Ok(Some(DiskUsage {
            bytes,
            source: "data folder",
            parts,
        }));
    }
    let asked = doc! { "dbStats": 1, "$db": &options.database };
    let Ok(reply) = call(connection, &asked, None) else {
        return Ok(None);
    };
    let bytes = reply
        .get("totalSize")
        .as_exact_i64()
        .and_then(|b| u64::try_from(b).ok());
    Ok(bytes.map(|bytes| DiskUsage {
        bytes,
        source: "dbStats.totalSize",
        parts: Vec::new(),
    }))
}

/// Waits until background work no longer changes sizes.
fn wait_for_rest(folder: &Path, longest: Duration) -> Outcome {
    let start = Instant::now();
    let (mut size, mut since) = (total(folder)?, Instant::now());
    while start.elapsed() < longest && since.elapsed() < REST {
        std::thread::sleep(LOOK_EVERY);
        let now = total(folder)?;
        if now != size {
            (size, since) = (now, Instant::now());
        }
    }
    Ok(())
}

/// Returns the bytes of a data folder, whatever is still to be done in it.
pub(crate) fn folder_bytes(folder: &str) -> Outcome<u64> {
    total(Path::new(folder))
}

fn total(path: &Path) -> Outcome<u64> {
    match std::fs::symlink_metadata(path) {
        Ok(found) if found.is_dir() => Ok(parts(path)?.iter().map(|(_, bytes)| bytes).sum()),
        Ok(found) => Ok(found.blocks() * BLOCK),
        // Files come and go while a server works.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(e) => Err(format!("{}: {e}", path.display())),
    }
}

fn parts(folder: &Path) -> Outcome<Vec<(String, u64)>> {
    let entries = match std::fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(format!("{}: {e}", folder.display())),
    };
    entries
        .filter_map(Result::ok)
        .map(|entry| {
            let name = entry.file_name().to_string_lossy().into_owned();
            Ok((name, total(&entry.path())?))
        })
        .collect()
}
