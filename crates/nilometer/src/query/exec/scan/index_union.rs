//! Several index scans one after another, each record once: `OR`.

use std::sync::Arc;

use super::index_scan::{IndexScan, KeyStats, KeyStream, Next, ViewAt};
use super::returned_records::ReturnedRecords;
use crate::error::Result;

/// The records of all scans.
pub(crate) struct IndexUnion {
    scans: Vec<IndexScan>,
    at: usize,
    returned: ReturnedRecords,
    stats: Arc<KeyStats>,
}

impl IndexUnion {
    pub(crate) fn new(scans: Vec<IndexScan>, stats: Arc<KeyStats>) -> Self {
        Self {
            scans,
            at: 0,
            returned: ReturnedRecords::new("OR"),
            stats,
        }
    }
}

impl KeyStream for IndexUnion {
    fn next(&mut self, at: ViewAt<'_>) -> Result<Next> {
        let Some(scan) = self.scans.get_mut(self.at) else {
            return Ok(Next::End);
        };
        match scan.next(at)? {
            Next::End => self.at += 1,
            Next::NotYet => {}
            Next::Entry(entry, _) if self.returned.insert(&entry.record, at.memory)? => {
                KeyStats::add(&self.stats.returned);
                return Ok(Next::Entry(entry, self.at));
            }
            Next::Entry(..) => KeyStats::add(&self.stats.repeated),
        }
        Ok(Next::NotYet)
    }

    fn skip_equal(&mut self, parts: usize) -> Result<()> {
        match self.scans.get_mut(self.at) {
            Some(scan) => scan.skip_equal(parts),
            None => Ok(()),
        }
    }
}
