//! The totals in a block of summaries.

use nilometer_bson::varint;

use super::ColumnSummary;
use crate::eval::accumulator::ColumnTotal;
use crate::timeseries::format::tail::{ByteReader, unzigzag, zigzag};

/// Added to the kind of a total.
const IS_CONSTANT: u8 = 8;

/// The largest sum of doubles that is written as a whole number: up to it doubles hold each of them.
const WHOLE_DOUBLE_MAX: f64 = (1u64 << f64::MANTISSA_DIGITS) as f64;

pub(super) fn put_total(out: &mut Vec<u8>, column: &ColumnSummary) {
    let constant = u8::from(column.is_constant) * IS_CONSTANT;
    match column.total {
        None => out.push(constant),
        Some(ColumnTotal::Whole { is_long, sum, .. }) => {
            out.push(constant + 1 + u8::from(is_long));
            varint::put(out, zigzag(sum));
        }
        Some(ColumnTotal::Doubles { sum, rest, .. }) => {
            let is_whole = sum.trunc() == sum && sum.abs() <= WHOLE_DOUBLE_MAX;
            // Negative zeros keep their sign in the other form.
            let is_plain = is_whole && rest.to_bits() == 0 && (sum != 0.0 || sum.to_bits() == 0);
            if is_plain {
                out.push(constant + 3);
                varint::put(out, zigzag(sum as i64));
            } else {
                out.push(constant + 4);
                out.extend_from_slice(&sum.to_le_bytes());
                out.extend_from_slice(&rest.to_le_bytes());
            }
        }
    }
}

/// The totals of a column by place: side by side, since many blocks are kept in memory. Counts are those of the rows.
#[derive(Debug, Default)]
pub(super) struct StoredTotals {
    /// As they are stored.
    kinds: Vec<u8>,
    /// Whole sums as they are, others as the bits of doubles.
    sums: Vec<i64>,
    /// What sums of doubles lack; empty if none lacks anything.
    rests: Vec<f64>,
}

impl StoredTotals {
    pub(super) fn decode(reader: &mut ByteReader<'_>, rows: usize) -> Option<Self> {
        let mut totals = Self {
            kinds: Vec::with_capacity(rows),
            sums: Vec::with_capacity(rows),
            rests: Vec::new(),
        };
        for row in 0..rows {
            let kind = *reader.take(1)?.first()?;
            let sum = match kind & !IS_CONSTANT {
                0 => 0,
                1..=3 => unzigzag(reader.varint()?),
                4 => {
                    let sum = f64_of(reader)?.to_bits().cast_signed();
                    totals.rests.resize(rows, 0.0);
                    totals.rests[row] = f64_of(reader)?;
                    sum
                }
                _ => return None,
            };
            totals.kinds.push(kind);
            totals.sums.push(sum);
        }
        Some(totals)
    }

    /// True if all measurements of a row have the same value.
    pub(super) fn is_constant(&self, place: usize) -> bool {
        let kind = self.kinds.get(place);
        kind.is_some_and(|kind| kind & IS_CONSTANT != 0)
    }

    /// Returns the total of a row with `count` measurements.
    pub(super) fn total(&self, place: usize, count: u32) -> Option<ColumnTotal> {
        let kind = *self.kinds.get(place)? & !IS_CONSTANT;
        let sum = *self.sums.get(place)?;
        Some(match kind {
            0 => return None,
            1 | 2 => ColumnTotal::Whole {
                count,
                is_long: kind == 2,
                sum,
            },
            3 => ColumnTotal::Doubles {
                count,
                sum: sum as f64,
                rest: 0.0,
            },
            _ => ColumnTotal::Doubles {
                count,
                sum: f64::from_bits(sum.cast_unsigned()),
                rest: self.rests.get(place).copied().unwrap_or(0.0),
            },
        })
    }
}

pub(super) fn f64_of(reader: &mut ByteReader<'_>) -> Option<f64> {
    Some(f64::from_le_bytes(reader.take(8)?.try_into().ok()?))
}
