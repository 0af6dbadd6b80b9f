//! Reading the other collection for several rows of a `$lookup` at a time.
//!
//! ```text
//! by an index   1 │ 16 │ 64 │ 256 │ 1024 │ …   a `$limit` behind the stage may need the first row alone
//! by scans      1 │ 1024 │ 1024 │ …            a scan of buckets costs about the same for each part
//! tables        │  T   │  T   │                the documents that equal any row of the part, hashed by the foreign field
//! ```
//!
//! When the parts so far cost as much as reading the other collection once, it is read once instead.
//!
//! If a part is refused (too large for memory, or not served by an index), its first row is joined by itself, and later parts have
//! at most a quarter of its rows.

use nilometer_bson::Document;

use super::foreign_table::ForeignTable;
use crate::error::Result;

/// Rows of the second part by an index; the first has one.
const ROWS_FIRST: usize = 16;
/// Growth from one part to the next.
const GROWTH: usize = 4;
/// Rows of a part.
const ROWS_MAX: usize = 1024;
/// Looking up one row costs about as much as reading so many documents in order.
const LOOKUP_COST: u64 = 10;
/// Testing one bucket for a part, and decoding a column of it, cost as much as reading so many documents.
const BUCKET_COST: u64 = 4;
/// As many measurements are tested for a part at the cost of reading one as a document.
const MEASUREMENTS_PER_DOCUMENT: u64 = 64;

/// The part of the rows that is being joined.
pub(super) struct RowsAhead {
    /// The documents for the rows of the part; none if each row reads its own.
    table: Option<ForeignTable>,
    /// Rows of the part that are still to come.
    left: usize,
    /// Rows of the next part.
    next: usize,
    /// Limit of rows of later parts.
    rows_max: usize,
    /// True if buckets were scanned for the last part.
    was_scan: bool,
    costs: Costs,
}

/// What reading costs, in documents read in order.
#[derive(Default)]
struct Costs {
    /// Of all documents, if they may be read once.
    all: Option<u64>,
    /// Of a row by an index; 0 for measurements.
    row: u64,
    /// Of a part by a scan of buckets; 0 for documents.
    scan: u64,
    /// Of the rows and parts so far.
    spent: u64,
}

/// The documents for the rows of a part.
pub(super) struct Part {
    pub(super) table: ForeignTable,
    pub(super) reads: PartReads,
}

/// What was read for a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartReads {
    /// What an index led to.
    Index,
    /// Buckets whose bounds hold one of the values.
    SomeBuckets,
    /// Everything.
    All,
}

impl RowsAhead {
    /// Begins with the first row, of which documents are read in parts only.
    pub(super) fn in_parts() -> Self {
        Self::new(Costs::default())
    }

    /// Begins with the first row of a join with `count` documents by an index.
    pub(super) fn of_documents(count: u64) -> Self {
        Self::new(Costs {
            all: Some(count),
            row: LOOKUP_COST,
            ..Costs::default()
        })
    }

    /// Begins with the first row of a join with measurements, by an index or by a scan; all of them are read once only if their
    /// number is known.
    pub(super) fn of_buckets(buckets: u64, measurements: Option<u64>, is_indexed: bool) -> Self {
        let tested = measurements.unwrap_or(0) / MEASUREMENTS_PER_DOCUMENT;
        let ahead = Self::new(Costs {
            all: measurements,
            scan: buckets.saturating_mul(BUCKET_COST).saturating_add(tested),
            ..Costs::default()
        });
        Self {
            was_scan: !is_indexed,
            ..ahead
        }
    }

    fn new(costs: Costs) -> Self {
        Self {
            table: None,
            left: 0,
            next: 1,
            rows_max: ROWS_MAX,
            was_scan: false,
            costs,
        }
    }

    /// Returns how many rows should be waiting: those of the next part, if one begins.
    pub(super) fn rows_wanted(&self) -> usize {
        match self.left {
            0 => self.next,
            _ => 1,
        }
    }

    /// True, once, if the parts so far cost as much as reading all documents would have.
    pub(super) fn may_read_all(&mut self) -> bool {
        let spent = self.costs.spent;
        let is_due = |all: &mut u64| *all <= spent;
        self.left == 0 && self.costs.all.take_if(is_due).is_some()
    }

    /// Returns the table that holds all documents for `row`, reading it with those for some `upcoming` rows if a new part
    /// begins; none if the row must read its own. Rows are passed in order, each once.
    pub(super) fn table(
        &mut self,
        row: &Document,
        upcoming: &[Document],
        read: impl FnOnce(&[&Document]) -> Result<Option<Part>>,
    ) -> Result<Option<&ForeignTable>> {
        if self.left == 0 {
            self.table = None;
            let rows = std::iter::once(row).chain(upcoming).take(self.next);
            let rows: Vec<&Document> = rows.collect();
            self.left = rows.len();
            if rows.len() > 1 {
                match read(&rows)? {
                    Some(part) => {
                        self.was_scan = part.reads != PartReads::Index;
                        if part.reads == PartReads::All {
                            self.costs.spent = u64::MAX;
                        }
                        self.table = Some(part.table);
                    }
                    None => {
                        self.left = 1;
                        self.costs.spent = self.costs.spent.saturating_add(self.costs.scan);
                        self.rows_max = (rows.len() / GROWTH).max(1);
                    }
                }
            }
            let next = match self.was_scan && self.costs.scan > 0 {
                true => ROWS_MAX,
                false => (self.next * GROWTH).max(ROWS_FIRST),
            };
            self.next = next.min(self.rows_max);
            if self.was_scan {
                self.costs.spent = self.costs.spent.saturating_add(self.costs.scan);
            }
        }
        self.left -= 1;
        self.costs.spent = self.costs.spent.saturating_add(self.costs.row);
        Ok(self.table.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::doc;

    use super::*;

    fn part_of(is_scan: bool) -> Part {
        Part {
            table: ForeignTable::empty(),
            reads: match is_scan {
                true => PartReads::SomeBuckets,
                false => PartReads::Index,
            },
        }
    }

    /// Passes `count` rows; `may_read` tells whether a part of some size is read. Returns the sizes of the parts that were asked for.
    fn parts(count: usize, may_read: impl Fn(usize) -> bool) -> Vec<usize> {
        let rows: Vec<Document> = (0..count as i64).map(|a| doc! {"a": a}).collect();
        let mut ahead = RowsAhead::in_parts();
        let mut asked = Vec::new();
        for (at, row) in rows.iter().enumerate() {
            let wanted = ahead.rows_wanted();
            let table = ahead.table(row, &rows[at + 1..], |part| {
                assert_eq!(part[0], row);
                assert_eq!(part.len(), wanted.min(count - at));
                asked.push(part.len());
                Ok(may_read(part.len()).then(|| part_of(false)))
            });
            table.unwrap();
        }
        asked
    }

    #[test]
    fn parts_grow_up_to_a_limit_and_cover_each_row_once() {
        assert!(parts(1, |_| true).is_empty());
        let grown = parts(4000, |_| true);
        assert_eq!(grown, [16, 64, 256, 1024, 1024, 1024, 591]);
    }

    /// Passes one row after the other without others; returns after how many all documents may be read.
    fn rows_until_all(mut ahead: RowsAhead) -> Option<usize> {
        let row = doc! {"a": 1};
        let mut due = Vec::new();
        for at in 0..500 {
            if ahead.may_read_all() {
                due.push(at);
            }
            ahead.table(&row, &[], |_| Ok(None)).unwrap();
        }
        assert!(due.len() <= 1, "{due:?}");
        due.pop()
    }

    #[test]
    fn all_documents_are_read_once_when_many_rows_were_joined() {
        assert_eq!(rows_until_all(RowsAhead::of_documents(100)), Some(10));
        assert_eq!(rows_until_all(RowsAhead::in_parts()), None);
        assert_eq!(
            rows_until_all(RowsAhead::of_buckets(10, Some(100), true)),
            None
        );
    }

    #[test]
    fn all_measurements_are_read_once_when_scans_have_cost_as_much() {
        let rows: Vec<Document> = (0..6000_i64).map(|a| doc! {"a": a}).collect();
        // A scan costs 4 * 100 + 2,000 / 64 = 431: the fifth one is one too many.
        for (is_scan, due) in [(true, Some(1 + 4 * ROWS_MAX)), (false, None)] {
            let mut ahead = RowsAhead::of_buckets(100, Some(2_000), !is_scan);
            let mut found = None;
            for (at, row) in rows.iter().enumerate() {
                if ahead.may_read_all() {
                    found = Some(at);
                }
                let read = |part: &[&Document]| {
                    assert!(!is_scan || part.len() > 800);
                    Ok(Some(part_of(is_scan)))
                };
                ahead.table(row, &rows[at + 1..], read).unwrap();
            }
            assert_eq!(found, due);
        }
    }

    #[test]
    fn all_measurements_are_read_once_after_a_part_that_read_all() {
        let rows = vec![doc! {"a": 1}; 20];
        let mut ahead = RowsAhead::of_buckets(100, Some(1_000_000), false);
        let read = |_: &[&Document]| {
            let table = ForeignTable::empty();
            Ok(Some(Part {
                table,
                reads: PartReads::All,
            }))
        };
        for (at, row) in rows.iter().enumerate() {
            assert!(!ahead.may_read_all());
            ahead.table(row, &rows[at + 1..], read).unwrap();
        }
        assert!(ahead.may_read_all());
        assert!(!ahead.may_read_all());
    }

    #[test]
    fn a_refused_part_makes_later_ones_smaller() {
        assert_eq!(
            parts(200, |rows| rows < 60),
            [16, 64, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 6]
        );
        assert_eq!(parts(100, |_| false), [16, 4]);
    }
}
