//! Several walks one after the other, a record once: `OR`.

use std::collections::HashSet;
use std::sync::Arc;

use super::index_scan::{IndexScan, KeyStats, KeyStream, ViewAt};
use crate::error::Result;
use crate::query::source::{IndexEntry, RecordKey};

/// The records of all walks.
pub(crate) struct IndexUnion {
    scans: Vec<IndexScan>,
    at: usize,
    seen: HashSet<RecordKey>,
    stats: Arc<KeyStats>,
}

impl IndexUnion {
    pub(crate) fn new(scans: Vec<IndexScan>, stats: Arc<KeyStats>) -> Self {
        Self {
            scans,
            at: 0,
            seen: HashSet::new(),
            stats,
        }
    }
}

impl KeyStream for IndexUnion {
    fn next(&mut self, at: ViewAt<'_>) -> Result<Option<(IndexEntry, usize)>> {
        while let Some(scan) = self.scans.get_mut(self.at) {
            match scan.next(at)? {
                None => self.at += 1,
                Some((entry, _)) if self.seen.insert(entry.record.clone()) => {
                    KeyStats::add(&self.stats.returned);
                    return Ok(Some((entry, self.at)));
                }
                Some(_) => KeyStats::add(&self.stats.repeated),
            }
        }
        Ok(None)
    }

    fn skip_equal(&mut self, parts: usize) -> Result<()> {
        match self.scans.get_mut(self.at) {
            Some(scan) => scan.skip_equal(parts),
            None => Ok(()),
        }
    }
}
