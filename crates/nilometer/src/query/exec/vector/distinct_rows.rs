//! Rows of a block with the same values in the columns of an expression: it is evaluated once for them.
//!
//! ```text
//! {$concat: ["$m.host", "-", "$level"]}
//!
//! column level   |info info warn info|
//! numbers        |  0    0    1    0 |   the expression is evaluated for rows 0 and 2
//! ```

use std::collections::HashMap;

use foldhash::fast::RandomState;
use nilometer_bson::block::{BlockData, ColumnBlock};

use crate::query::batch::Selection;

/// The distinct combinations of the values of some columns.
#[derive(Debug)]
pub(super) struct DistinctRows {
    /// The number of the combination of each selected row.
    pub(super) numbers: Vec<u32>,
    /// The first row of each combination, in the order of the selection.
    pub(super) first: Vec<u32>,
}

impl DistinctRows {
    /// Numbers the combinations in the selected rows. `None` if more than half occur once, or a column holds
    /// timestamps, ids, objects, arrays, or numbers of several types.
    pub(super) fn of<'c>(
        columns: impl Iterator<Item = &'c ColumnBlock>,
        selection: &Selection,
    ) -> Option<Self> {
        let mut rows = Self {
            numbers: vec![0; selection.len()],
            first: selection.get(0).into_iter().collect(),
        };
        for column in columns {
            rows.distinguish_by(column, selection)?;
        }
        Some(rows)
    }

    /// Tells rows with different values of a column apart.
    fn distinguish_by(&mut self, column: &ColumnBlock, selection: &Selection) -> Option<()> {
        match column.data() {
            BlockData::Missing => Some(()),
            BlockData::Constant(_) if column.is_all_present() => Some(()),
            BlockData::Constant(_) => self.distinguish(column, selection, |_| 0),
            BlockData::Bool(values) => {
                self.distinguish(column, selection, bits_of(values, |value| value.into()))
            }
            BlockData::Int32(values) => self.distinguish(
                column,
                selection,
                bits_of(values, |value| i64::from(value).cast_unsigned()),
            ),
            BlockData::ShortInt64(values) => self.distinguish(
                column,
                selection,
                bits_of(values, |value| i64::from(value).cast_unsigned()),
            ),
            BlockData::Int64(values) | BlockData::DateTime(values) => {
                self.distinguish(column, selection, bits_of(values, i64::cast_unsigned))
            }
            BlockData::Double(values) => {
                self.distinguish(column, selection, bits_of(values, f64::to_bits))
            }
            BlockData::Dictionary { codes, .. } => {
                self.distinguish(column, selection, bits_of(codes, u64::from))
            }
            BlockData::Timestamp(_) | BlockData::ObjectId(_) | BlockData::Mixed(_) => None,
        }
    }

    fn distinguish(
        &mut self,
        column: &ColumnBlock,
        selection: &Selection,
        bits: impl Fn(usize) -> u64,
    ) -> Option<()> {
        let most = self.numbers.len() / 2;
        let mut known: HashMap<(u32, bool, u64), u32, RandomState> = HashMap::default();
        let mut first = Vec::new();
        for (at, number) in self.numbers.iter_mut().enumerate() {
            let row = selection.get(at)?;
            let is_missing = column.is_missing(row as usize);
            let value = if is_missing { 0 } else { bits(row as usize) };
            let next = first.len() as u32;
            *number = *known.entry((*number, is_missing, value)).or_insert(next);
            if *number == next {
                first.push(row);
                if first.len() > most {
                    return None;
                }
            }
        }
        self.first = first;
        Some(())
    }
}

fn bits_of<T: Copy>(values: &[T], bits: impl Fn(T) -> u64) -> impl Fn(usize) -> u64 {
    move |row| values.get(row).map_or(0, |value| bits(*value))
}

#[cfg(test)]
mod tests {
    use nilometer_bson::Value;

    use super::*;

    fn distinct(columns: &[ColumnBlock], rows: Vec<u32>) -> Option<(Vec<u32>, Vec<u32>)> {
        let rows = DistinctRows::of(columns.iter(), &Selection::Rows(rows))?;
        Some((rows.numbers, rows.first))
    }

    #[test]
    fn rows_with_the_same_values_have_one_number() {
        let text =
            ColumnBlock::from_values(&["a".into(), "b".into(), "a".into(), "b".into(), "a".into()]);
        let gaps =
            ColumnBlock::from_values(&[1.into(), 1.into(), Value::Missing, 1.into(), 1.into()]);
        let all = || (0..5).collect::<Vec<u32>>();
        let texts = std::slice::from_ref(&text);
        assert_eq!(
            distinct(texts, all()),
            Some((vec![0, 1, 0, 1, 0], vec![0, 1]))
        );
        assert_eq!(
            distinct(texts, vec![3, 4, 1, 2]),
            Some((vec![0, 1, 0, 1], vec![3, 4]))
        );
        // (a, 1), (b, 1), (a, missing) are more than half of five rows.
        assert_eq!(distinct(&[text.clone(), gaps.clone()], all()), None);
        assert_eq!(
            distinct(&[gaps, ColumnBlock::missing(5)], all()),
            Some((vec![0, 0, 1, 0, 0], vec![0, 2]))
        );
        let mixed = ColumnBlock::from_values(&[1.into(), "a".into()]);
        assert_eq!(distinct(&[mixed], vec![0, 1]), None);
        assert_eq!(distinct(&[text], vec![]), Some((vec![], vec![])));
    }
}
