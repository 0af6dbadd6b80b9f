//! The manifest of a backup: what it consists of and which objects have it.
//!
//! ```text
//! nilometer backup 1
//! number 12
//! time 1763915000000
//! format 2
//! log 100 230
//! run 12
//! file <SHA-256> <size> <bytes stored> <object> <offset> <identity> <path>
//! …
//! end <SHA-256 of everything before this line>
//! ```
//!
//! `log` has the index of the next batch and the last sequence number, `run` (only in the continuous mode) the backup
//! whose number the parts of the log are stored under. The object is `<number>/<part>` below `files`. The identity is the
//! place of the file on the disk it came from, `-` if it has none.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::str::FromStr;

use nilometer_storage::LogPosition;
use ring::digest::{Context, SHA256};

use super::BackupInfo;

const FIRST_LINE: &str = "nilometer backup 1";

/// Most bytes of a manifest: some hundred thousand files.
pub(super) const MANIFEST_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// A SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Sum([u8; 32]);

impl Sum {
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut summing = Summing::default();
        summing.add(bytes);
        summing.finish()
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0
            .iter()
            .try_for_each(|byte| write!(formatter, "{byte:02x}"))
    }
}

impl fmt::Debug for Sum {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl FromStr for Sum {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let mut sum = [0; 32];
        if text.len() != 2 * sum.len() || !text.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(());
        }
        for (byte, digits) in sum.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let digits = std::str::from_utf8(digits).map_err(drop)?;
            *byte = u8::from_str_radix(digits, 16).map_err(drop)?;
        }
        Ok(Self(sum))
    }
}

/// Computes a SHA-256.
pub(super) struct Summing(Context);

impl Default for Summing {
    fn default() -> Self {
        Self(Context::new(&SHA256))
    }
}

impl Summing {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(super) fn finish(self) -> Sum {
        let mut sum = [0; 32];
        sum.copy_from_slice(self.0.finish().as_ref());
        Sum(sum)
    }
}

/// The name of an object with files: the backup that stored it, and its number there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct FileObject {
    pub(super) number: u64,
    pub(super) part: u64,
}

impl fmt::Display for FileObject {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{:020}/{}", self.number, self.part)
    }
}

impl FromStr for FileObject {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (number, part) = text.split_once('/').ok_or(())?;
        Ok(Self {
            number: number.parse().map_err(drop)?,
            part: part.parse().map_err(drop)?,
        })
    }
}

impl FileObject {
    /// Returns the name of the object.
    pub(super) fn name(self) -> String {
        format!("files/{self}")
    }
}

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct StoredFile {
    pub(super) path: String,
    /// The size of the file. What follows the stored bytes is zeros.
    pub(super) bytes: u64,
    pub(super) stored_bytes: u64,
    /// Of the stored bytes.
    pub(super) sum: Sum,
    pub(super) object: FileObject,
    /// Where in the object they begin.
    pub(super) offset: u64,
    pub(super) identity: String,
}

/// A backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Manifest {
    pub(super) number: u64,
    pub(super) time_ms: i64,
    pub(super) format_version: u32,
    pub(super) end: LogPosition,
    pub(super) run: Option<u64>,
    pub(super) files: Vec<StoredFile>,
}

impl Manifest {
    pub(super) fn encode(&self) -> String {
        let run = self.run.map_or(String::new(), |run| format!("run {run}\n"));
        let mut text = format!(
            "{FIRST_LINE}\nnumber {}\ntime {}\nformat {}\nlog {} {}\n{run}",
            self.number,
            self.time_ms,
            self.format_version,
            self.end.next_index,
            self.end.last_sequence
        );
        for file in &self.files {
            // Writing to a text cannot fail.
            let _ = writeln!(
                text,
                "file {} {} {} {} {} {} {}",
                file.sum,
                file.bytes,
                file.stored_bytes,
                file.object,
                file.offset,
                file.identity,
                file.path
            );
        }
        let sum = Sum::of(text.as_bytes());
        let _ = writeln!(text, "end {sum}");
        text
    }

    /// Decodes a manifest. `None` if the bytes are not one.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (body, end) = text.strip_suffix('\n')?.rsplit_once('\n')?;
        let body_bytes = text.get(..body.len() + 1)?;
        if end.strip_prefix("end ")?.parse() != Ok(Sum::of(body_bytes.as_bytes())) {
            return None;
        }
        let mut lines = body.split('\n').peekable();
        if lines.next()? != FIRST_LINE {
            return None;
        }
        let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        let number = field("number")?.parse().ok()?;
        let time_ms = field("time")?.parse().ok()?;
        let format_version = field("format")?.parse().ok()?;
        let (next_index, last_sequence) = field("log")?.split_once(' ')?;
        let run = lines.next_if(|line| line.starts_with("run "));
        let run = match run.and_then(|line| line.strip_prefix("run ")) {
            Some(run) => Some(run.parse().ok()?),
            None => None,
        };
        let files = lines.map(decode_file).collect::<Option<Vec<_>>>()?;
        Some(Self {
            number,
            time_ms,
            format_version,
            end: LogPosition {
                next_index: next_index.parse().ok()?,
                last_sequence: last_sequence.parse().ok()?,
            },
            run,
            files,
        })
    }

    /// Describes the backup. `until_ms` is the time of the last part of its log.
    pub(super) fn info(&self, until_ms: Option<i64>) -> BackupInfo {
        let new = self.files.iter();
        let new = new.filter(|file| file.object.number == self.number);
        BackupInfo {
            number: self.number,
            time_ms: self.time_ms,
            files: self.files.len() as u64,
            bytes: self.files.iter().map(|file| file.stored_bytes).sum(),
            new_bytes: new.map(|file| file.stored_bytes).sum(),
            until_ms,
        }
    }

    /// Returns the objects of the files, each with the bytes that it must have.
    pub(super) fn objects(&self) -> BTreeMap<FileObject, u64> {
        let mut objects = BTreeMap::new();
        for file in &self.files {
            let end = file.offset.saturating_add(file.stored_bytes);
            let bytes = objects.entry(file.object).or_default();
            *bytes = end.max(*bytes);
        }
        objects
    }
}

fn decode_file(line: &str) -> Option<StoredFile> {
    let mut fields = line.strip_prefix("file ")?.splitn(7, ' ');
    let mut next = || fields.next();
    let file = StoredFile {
        sum: next()?.parse().ok()?,
        bytes: next()?.parse().ok()?,
        stored_bytes: next()?.parse().ok()?,
        object: next()?.parse().ok()?,
        offset: next()?.parse().ok()?,
        identity: next()?.to_owned(),
        path: next()?.to_owned(),
    };
    let fits = file.stored_bytes <= file.bytes && is_path(&file.path);
    fits.then_some(file)
}

/// True for the path of a file below a directory, in the characters that files of a database have.
fn is_path(path: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    path.split('/')
        .all(|part| !part.is_empty() && part != "." && part != ".." && part.bytes().all(is_plain))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest() -> Manifest {
        let file = |path: &str, part, offset| StoredFile {
            path: path.to_owned(),
            bytes: 4096,
            stored_bytes: 100,
            sum: Sum::of(path.as_bytes()),
            object: FileObject { number: 12, part },
            offset,
            identity: "1-2-3".to_owned(),
        };
        Manifest {
            number: 12,
            time_ms: -7,
            format_version: 2,
            end: LogPosition {
                next_index: 100,
                last_sequence: 230,
            },
            run: Some(12),
            files: vec![
                file("TREES", 0, 0),
                file("trees/1/tables/34", 1, 0),
                file("wal/00000000000000000007.log", 0, 100),
            ],
        }
    }

    #[test]
    fn a_manifest_survives_the_round_trip_and_no_flipped_bit() {
        let text = manifest().encode();
        assert_eq!(Manifest::decode(text.as_bytes()), Some(manifest()));
        let alone = Manifest {
            run: None,
            files: Vec::new(),
            ..manifest()
        };
        assert_eq!(Manifest::decode(alone.encode().as_bytes()), Some(alone));
        let bytes = text.into_bytes();
        for at in 0..bytes.len() {
            for bit in [0, 4, 7] {
                let mut flipped = bytes.clone();
                flipped[at] ^= 1 << bit;
                assert_ne!(Manifest::decode(&flipped), Some(manifest()), "{at} {bit}");
            }
            assert_eq!(Manifest::decode(&bytes[..at]), None, "{at}");
        }
    }

    #[test]
    fn golden_manifest() {
        let text = manifest().encode();
        assert!(text.starts_with(
            "nilometer backup 1\nnumber 12\ntime -7\nformat 2\nlog 100 230\nrun 12\nfile "
        ));
        assert!(text.contains(" 4096 100 00000000000000000012/0 0 1-2-3 TREES\nfile "));
    }

    #[test]
    fn a_path_that_leaves_the_directory_is_refused() {
        for path in [
            "../x", "/etc/x", "a//b", "a/./b", "", "a b", "a\\b", "trees/..",
        ] {
            let mut manifest = manifest();
            manifest.files[0].path = path.to_owned();
            assert_eq!(
                Manifest::decode(manifest.encode().as_bytes()),
                None,
                "{path}"
            );
        }
    }
}
