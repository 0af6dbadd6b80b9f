//! Spill files: documents that exceed a stage's memory limit are written to a file and read back in order.
//!
//! The files are unnamed, so they vanish when closed, also after a crash. Reading is sequential: a
//! merge of many runs holds one buffer per run.

use std::fs::File;
use std::io::{self, BufReader, BufWriter, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;

use nilometer_bson::Document;

use crate::error::{Error, ErrorCode, Result};

/// Bytes read or written at a time. A merge holds one such buffer per file.
pub(crate) const BUFFER_BYTES: usize = 16 << 10;

/// The largest document of a run in bytes: far above what a stage can produce.
const DOCUMENT_BYTES_MAX: u32 = 1 << 30;

/// Files one stage may have open at once; beyond this they are merged into one.
pub(crate) const RUNS_MAX: usize = 128;

/// Documents in a file, in the order they were written.
pub(crate) struct SpilledRun {
    reader: BufReader<File>,
    count: u64,
    left: u64,
}

fn failed(error: &io::Error) -> Error {
    let code = match error.kind() {
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded | ErrorKind::FileTooLarge => {
            ErrorCode::OutOfDiskSpace
        }
        _ => ErrorCode::InternalError,
    };
    Error::new(
        code,
        format!("writing what a query cannot hold in memory: {error}"),
    )
}

/// Writes documents to a file.
pub(crate) struct RunWriter {
    writer: BufWriter<File>,
    count: u64,
}

impl RunWriter {
    /// Creates an unnamed file in `folder`, which is created if missing.
    pub(crate) fn new(folder: &Path) -> Result<Self> {
        let file = std::fs::create_dir_all(folder).and_then(|()| tempfile::tempfile_in(folder));
        let file = file.map_err(|error| failed(&error))?;
        Ok(Self {
            writer: BufWriter::with_capacity(BUFFER_BYTES, file),
            count: 0,
        })
    }

    /// Appends a document.
    pub(crate) fn push(&mut self, document: &Document) -> Result<()> {
        self.count += 1;
        let written = self.writer.write_all(document.as_bytes());
        written.map_err(|error| failed(&error))
    }

    /// Returns the written documents as a run, positioned at the start.
    pub(crate) fn finish(self) -> Result<SpilledRun> {
        let rewound = || -> io::Result<File> {
            let mut file = self
                .writer
                .into_inner()
                .map_err(io::IntoInnerError::into_error)?;
            file.seek(SeekFrom::Start(0))?;
            Ok(file)
        };
        let file = rewound().map_err(|error| failed(&error))?;
        Ok(SpilledRun {
            reader: BufReader::with_capacity(BUFFER_BYTES, file),
            count: self.count,
            left: self.count,
        })
    }
}

impl SpilledRun {
    /// Repositions to the first document.
    pub(crate) fn rewind(&mut self) -> Result<()> {
        let rewound = self.reader.seek(SeekFrom::Start(0));
        rewound.map_err(|error| failed(&error))?;
        self.left = self.count;
        Ok(())
    }

    /// Returns the next document.
    pub(crate) fn next(&mut self) -> Result<Option<Document>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        self.read().map(Some).map_err(|error| failed(&error))
    }

    fn read(&mut self) -> io::Result<Document> {
        let mut length = [0; 4];
        self.reader.read_exact(&mut length)?;
        let size = u32::from_le_bytes(length);
        if !(5..=DOCUMENT_BYTES_MAX).contains(&size) {
            return Err(io::Error::new(
                ErrorKind::InvalidData,
                "a length makes no sense",
            ));
        }
        let mut bytes = vec![0; size as usize];
        let (head, rest) = bytes.split_at_mut(4);
        head.copy_from_slice(&length);
        self.reader.read_exact(rest)?;
        Document::from_bytes(bytes)
            .ok_or_else(|| io::Error::new(ErrorKind::InvalidData, "it is no document any more"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::doc;

    #[test]
    fn what_was_written_comes_back() {
        let folder = tempfile::tempdir().unwrap();
        let given: Vec<Document> = (0..1000)
            .map(|i| doc! { "i": i, "s": "x".repeat(i as usize) })
            .collect();
        let mut writer = RunWriter::new(&folder.path().join("spill")).unwrap();
        for document in &given {
            writer.push(document).unwrap();
        }
        let mut run = writer.finish().unwrap();
        for document in &given {
            assert_eq!(run.next().unwrap().as_ref(), Some(document));
        }
        assert!(run.next().unwrap().is_none());
        run.rewind().unwrap();
        assert_eq!(run.next().unwrap().as_ref(), given.first());
        // No named file remains.
        assert_eq!(
            std::fs::read_dir(folder.path().join("spill"))
                .unwrap()
                .count(),
            0
        );
    }
}
