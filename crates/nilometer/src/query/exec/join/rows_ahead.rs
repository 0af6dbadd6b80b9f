//! Reading the other collection for several rows of a `$lookup` at a time.
//!
//! ```text
//! rows     1 │ 16 │ 64 │ 256 │ 256 │ …      a `$limit` behind the stage may need the first row alone
//! tables     │  T │  T │  T  │  T  │        the documents that equal any row of the part, hashed by the foreign field
//! ```
//!
//! When a tenth as many rows were joined as the other collection has documents, it is read once instead.
//!
//! A part that is refused (too large for memory, or not served by an index) is joined row by row, and the next ones are
//! a quarter of the size.

use nilometer_bson::Document;

use super::foreign_table::ForeignTable;
use crate::error::Result;

/// Rows of the second part; the first has one.
const ROWS_FIRST: usize = 16;
/// Growth from one part to the next.
const GROWTH: usize = 4;
/// Rows of a part.
const ROWS_MAX: usize = 256;
/// Looking up one row costs about as much as reading so many documents in order.
const LOOKUP_COST: u64 = 10;

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
    /// Rows so far.
    joined: u64,
    /// The documents of the other collection, if it may be read once.
    all: Option<u64>,
}

impl RowsAhead {
    /// Begins with the first row. `all` is the number of documents, if reading all of them once is another way.
    pub(super) fn new(all: Option<u64>) -> Self {
        Self {
            table: None,
            left: 0,
            next: 1,
            rows_max: ROWS_MAX,
            joined: 0,
            all,
        }
    }

    /// True, once, if so many rows were joined that reading all documents would have cost no more.
    pub(super) fn may_read_all(&mut self) -> bool {
        let is_due = |all: &mut u64| *all <= self.joined.saturating_mul(LOOKUP_COST);
        self.left == 0 && self.all.take_if(is_due).is_some()
    }

    /// Returns the table that holds all documents for `row`, reading it with those for some `upcoming` rows if a new part
    /// begins; none if the row must read its own. Rows are passed in order, each once.
    pub(super) fn table(
        &mut self,
        row: &Document,
        upcoming: &[Document],
        read: impl FnOnce(&[&Document]) -> Result<Option<ForeignTable>>,
    ) -> Result<Option<&ForeignTable>> {
        if self.left == 0 {
            self.table = None;
            let rows = std::iter::once(row).chain(upcoming).take(self.next);
            let rows: Vec<&Document> = rows.collect();
            self.left = rows.len();
            self.next = (self.next * GROWTH)
                .clamp(ROWS_FIRST, ROWS_MAX)
                .min(self.rows_max);
            if rows.len() > 1 {
                self.table = read(&rows)?;
                if self.table.is_none() {
                    self.rows_max = (rows.len() / GROWTH).max(1);
                    self.next = self.rows_max;
                }
            }
        }
        self.left -= 1;
        self.joined += 1;
        Ok(self.table.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::doc;

    use super::*;

    /// Passes `count` rows; `read` tells whether a part of some size is read. Returns the sizes of the parts it was asked for.
    fn parts(count: usize, may_read: impl Fn(usize) -> bool) -> Vec<usize> {
        let rows: Vec<Document> = (0..count as i64).map(|a| doc! {"a": a}).collect();
        let mut ahead = RowsAhead::new(None);
        let mut asked = Vec::new();
        for (at, row) in rows.iter().enumerate() {
            let table = ahead.table(row, &rows[at + 1..], |part| {
                assert_eq!(part[0], row);
                asked.push(part.len());
                Ok(may_read(part.len()).then(ForeignTable::empty))
            });
            table.unwrap();
        }
        asked
    }

    #[test]
    fn parts_grow_up_to_a_limit_and_cover_each_row_once() {
        assert!(parts(1, |_| true).is_empty());
        assert_eq!(parts(900, |_| true), [16, 64, 256, 256, 256, 51]);
    }

    #[test]
    fn all_documents_are_read_once_when_many_rows_were_joined() {
        let mut ahead = RowsAhead::new(Some(100));
        let row = doc! {"a": 1};
        let mut due = Vec::new();
        for at in 0..60 {
            if ahead.may_read_all() {
                due.push(at);
            }
            ahead.table(&row, &[], |_| Ok(None)).unwrap();
        }
        assert_eq!(due, [10]);
        assert!(!RowsAhead::new(None).may_read_all());
    }

    #[test]
    fn a_refused_part_makes_later_ones_smaller() {
        assert_eq!(
            parts(200, |rows| rows < 60),
            [16, 64, 16, 16, 16, 16, 16, 16, 16, 7]
        );
        assert_eq!(parts(100, |_| false), [16, 4]);
    }
}
