//! Codes of ObjectIds: their times and their counters apart.
//!
//! The numbers of a column interleave the bytes of both, so one step of a counter is spread over several bytes. Apart, times
//! rarely change, and counters step by the number of series that are written side by side, or by one of a few such numbers.
//!
//! ```text
//! ids       nibble of the blocks │ varint how many follow │ literal │ times │ table │ counters
//! times     series of zigzag differences
//! table     varint length, 0 if unused │ each: varint zigzag difference; the most frequent first
//! counters  series of places in the table, or of zigzag differences
//! series    varint bytes that follow │ parameter of Rice codes, or SPARSE │ codes
//! ```

use super::super::delta::{object_id_from_int, object_id_to_int, unzigzag, zigzag};
use super::{BlockRun, PackedHeader, VALUES_MAX, rice, sparse};
use crate::column::element::tag;
use crate::value::ObjectId;
use crate::varint;

/// The parameter that says sparse codes.
const SPARSE: u8 = rice::PARAMETER_MAX as u8 + 1;

/// Most distinct differences of counters in a table.
const TABLE_MAX: usize = 64;

/// Bits of a counter.
const COUNTER_BITS: u32 = 24;

/// Appends the codes of a column with these second-order differences after its literal. `None` if the column has another
/// form, or the codes would take more than `bytes_max`.
pub(super) fn write(
    out: &mut Vec<u8>,
    head: &PackedHeader,
    values: &[u64],
    bytes_max: usize,
) -> Option<()> {
    let ([run], tag::OBJECT_ID) = (head.runs.as_slice(), head.tag) else {
        return None;
    };
    let literal: [u8; 12] = head.literal.as_slice().try_into().ok()?;
    let ids = ids_of(literal, values);
    // Sums may wrap in columns of another writer.
    if differences_of(&ids) != values {
        return None;
    }
    let start = out.len();
    out.push(run.nibble);
    varint::put(out, values.len() as u64);
    out.extend_from_slice(&literal);
    let steps = |part: fn(&[u8; 12]) -> u32, bits: u32| -> Vec<u64> {
        let pairs = ids.windows(2);
        let steps = pairs.map(|pair| match pair {
            [before, id] => step(part(&before.0), part(&id.0), bits),
            _ => 0,
        });
        steps.map(zigzag).collect()
    };
    write_series(out, &steps(time_of, u32::BITS));
    let counters = steps(counter_of, COUNTER_BITS);
    match table_of(&counters) {
        Some((table, places)) => {
            varint::put(out, table.len() as u64);
            for difference in table {
                varint::put(out, difference);
            }
            write_series(out, &places);
        }
        None => {
            varint::put(out, 0);
            write_series(out, &counters);
        }
    }
    if out.len() - start <= bytes_max {
        return Some(());
    }
    out.truncate(start);
    None
}

/// ObjectIds whose codes were read.
pub(super) struct PackedIds {
    pub(super) nibble: u8,
    pub(super) ids: Vec<ObjectId>,
}

/// Reads the codes of at most `max_values` ids. The outer `None` stands for damage, the inner one for too many ids.
pub(super) fn read(mut bytes: &[u8], max_values: usize) -> Option<Option<PackedIds>> {
    let (&nibble, rest) = bytes.split_first()?;
    bytes = rest;
    if nibble & 0x0F != 0 {
        return None;
    }
    let count = usize::try_from(varint::take(&mut bytes)?).ok()?;
    if count >= max_values.min(VALUES_MAX) {
        return Some(None);
    }
    let (literal, rest) = bytes.split_first_chunk::<12>()?;
    bytes = rest;
    let times = read_series(&mut bytes, count)?;
    let length = usize::try_from(varint::take(&mut bytes)?).ok()?;
    let table = (0..length.min(TABLE_MAX)).map(|_| varint::take(&mut bytes));
    let table = table.collect::<Option<Vec<u64>>>()?;
    let mut counters = read_series(&mut bytes, count)?;
    if length > TABLE_MAX || !bytes.is_empty() {
        return None;
    }
    if !table.is_empty() {
        for counter in &mut counters {
            *counter = *table.get(usize::try_from(*counter).ok()?)?;
        }
    }
    let mut ids = Vec::with_capacity(count + 1);
    ids.push(ObjectId(*literal));
    let (mut time, mut counter) = (time_of(literal), counter_of(literal));
    for (time_step, counter_step) in times.into_iter().zip(counters) {
        time = time.wrapping_add(unzigzag(time_step) as u32);
        counter = counter.wrapping_add(unzigzag(counter_step) as u32) & (u32::MAX >> 8);
        let mut id = *literal;
        id[..4].copy_from_slice(&time.to_be_bytes());
        id[9..].copy_from_slice(&counter.to_be_bytes()[1..]);
        ids.push(ObjectId(id));
    }
    Some(Some(PackedIds { nibble, ids }))
}

impl PackedIds {
    /// Returns the head of the column, and the second-order differences after its literal.
    pub(super) fn into_parts(self) -> (PackedHeader, Vec<u64>) {
        let values = differences_of(&self.ids);
        let literal = self.ids.first().copied().unwrap_or_default();
        let head = PackedHeader {
            tag: tag::OBJECT_ID,
            literal: literal.0.to_vec(),
            runs: vec![BlockRun {
                nibble: self.nibble,
                count: values.len(),
            }],
        };
        (head, values)
    }
}

fn ids_of(literal: [u8; 12], values: &[u64]) -> Vec<ObjectId> {
    let (mut number, mut delta) = (object_id_to_int(&literal), 0i64);
    let rest = values.iter().map(|value| {
        delta = delta.wrapping_add(unzigzag(*value));
        number = number.wrapping_add(delta);
        ObjectId(object_id_from_int(number, &literal))
    });
    std::iter::once(ObjectId(literal)).chain(rest).collect()
}

fn differences_of(ids: &[ObjectId]) -> Vec<u64> {
    let mut numbers = ids.iter().map(|id| object_id_to_int(&id.0));
    let (mut last, mut delta) = (numbers.next().unwrap_or_default(), 0i64);
    let differences = numbers.map(|number| {
        let now = number.wrapping_sub(last);
        let difference = now.wrapping_sub(delta);
        (last, delta) = (number, now);
        zigzag(difference)
    });
    differences.collect()
}

fn time_of(id: &[u8; 12]) -> u32 {
    let [t0, t1, t2, t3, ..] = *id;
    u32::from_be_bytes([t0, t1, t2, t3])
}

fn counter_of(id: &[u8; 12]) -> u32 {
    let [.., c0, c1, c2] = *id;
    u32::from_be_bytes([0, c0, c1, c2])
}

/// Returns the difference of two numbers of this many bits, by the shorter way around.
fn step(from: u32, to: u32, bits: u32) -> i64 {
    let unused = u32::BITS - bits;
    let difference = to.wrapping_sub(from) << unused;
    i64::from(difference.cast_signed() >> unused)
}

/// Returns the distinct differences, the most frequent first, and the place of each difference among them; `None` if there
/// are too many.
fn table_of(differences: &[u64]) -> Option<(Vec<u64>, Vec<u64>)> {
    let mut sorted = differences.to_vec();
    sorted.sort_unstable();
    let mut counts = Vec::with_capacity(TABLE_MAX);
    for same in sorted.chunk_by(|a, b| a == b) {
        if counts.len() == TABLE_MAX {
            return None;
        }
        counts.extend(same.first().map(|difference| (same.len(), *difference)));
    }
    counts.sort_unstable_by_key(|(count, difference)| (std::cmp::Reverse(*count), *difference));
    let table: Vec<u64> = counts
        .into_iter()
        .map(|(_, difference)| difference)
        .collect();
    // A table of values that occur once is longer than they are.
    if table.is_empty() || table.len() * 2 > differences.len() {
        return None;
    }
    let mut known: Vec<(u64, u64)> = table.iter().copied().zip(0..).collect();
    known.sort_unstable();
    let places = differences.iter().map(|difference| {
        let at = known
            .binary_search_by_key(difference, |(known, _)| *known)
            .ok()?;
        known.get(at).map(|(_, place)| *place)
    });
    let places = places.collect::<Option<Vec<u64>>>()?;
    Some((table, places))
}

fn write_series(out: &mut Vec<u8>, values: &[u64]) {
    let (parameter, bits) = rice::best_parameter(values);
    let mut codes = vec![SPARSE];
    if sparse::write(&mut codes, values, bits.div_ceil(8)).is_none() {
        codes = vec![parameter as u8];
        rice::write(&mut codes, values, parameter);
    }
    varint::put(out, codes.len() as u64);
    out.extend_from_slice(&codes);
}

fn read_series(bytes: &mut &[u8], count: usize) -> Option<Vec<u64>> {
    let length = usize::try_from(varint::take(bytes)?).ok()?;
    let (codes, rest) = bytes.split_at_checked(length)?;
    *bytes = rest;
    let (&parameter, codes) = codes.split_first()?;
    match parameter {
        SPARSE => sparse::read(codes, count),
        parameter if parameter < SPARSE => rice::read(codes, count, u32::from(parameter)),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::super::ColumnBuilder;
    use super::super::{decode_packed, pack, pack_built, unpack};
    use super::*;
    use crate::value::{Value, ValueRef};

    fn id(time: u32, counter: u32) -> ObjectId {
        let mut id = [0, 0, 0, 0, 1, 2, 3, 4, 5, 0, 0, 0];
        id[..4].copy_from_slice(&time.to_be_bytes());
        id[9..].copy_from_slice(&counter.to_be_bytes()[1..]);
        ObjectId(id)
    }

    fn written(ids: &[ObjectId]) -> Vec<u8> {
        let mut builder = ColumnBuilder::new();
        for id in ids {
            builder.append(ValueRef::ObjectId(*id)).unwrap();
        }
        builder.finish()
    }

    /// Packs a column of ids, checks that it comes back, and returns the bytes of the packed form.
    fn packed(ids: &[ObjectId]) -> usize {
        let column = written(ids);
        let packed = pack(&column).expect("it pays");
        assert_eq!(pack_built(&column).as_ref(), Some(&packed));
        assert_eq!(unpack(&packed, ids.len()).unwrap(), column);
        assert!(unpack(&packed, ids.len() - 1).is_err());
        let block = decode_packed(&packed, ids.len()).unwrap();
        let values = block.to_values();
        let found: Vec<_> = values
            .iter()
            .map(|value| match value {
                Value::ObjectId(id) => *id,
                other => panic!("{other:?}"),
            })
            .collect();
        assert_eq!(found, ids);
        packed.len()
    }

    #[test]
    fn series_written_side_by_side_take_few_bytes() {
        let one_writer: Vec<_> = (0..360)
            .map(|n| id(1_700_000_000 + n / 50, (n * 4000) % (1 << 24)))
            .collect();
        assert!(packed(&one_writer) < 50, "{}", packed(&one_writer));
        // Two writers with batches of 10,000: a batch of the other one is now and then between two ids.
        let mut counter = 0;
        let two_writers: Vec<_> = (0..360)
            .map(|n| {
                counter += 4000 + [0, 10_000, 0, 20_000, 0, 0, 10_000][n % 7];
                id(1_700_000_000 + n as u32 / 50, counter % (1 << 24))
            })
            .collect();
        assert!(packed(&two_writers) < 150, "{}", packed(&two_writers));
    }

    #[test]
    fn times_and_counters_that_wrap_come_back() {
        let mut draw = 7u64;
        let mut next = || {
            draw ^= draw << 13;
            draw ^= draw >> 7;
            draw ^= draw << 17;
            draw
        };
        for spread in 0..32 {
            let mut time = u32::MAX - 5;
            let mut counter = (1 << 24) - 3;
            let ids: Vec<_> = (0..300)
                .map(|_| {
                    time = time.wrapping_add((next() as u32) >> (31 - spread));
                    counter = (counter + ((next() as u32) >> (31 - spread.min(23)))) % (1 << 24);
                    id(time, counter)
                })
                .collect();
            let column = written(&ids);
            if pack(&column).is_some() {
                packed(&ids);
            }
        }
    }

    #[test]
    fn damaged_codes_give_an_error_or_other_ids() {
        let ids: Vec<_> = (0..100).map(|n| id(n / 9, n * n % 50)).collect();
        let packed = pack(&written(&ids)).unwrap();
        for end in 1..packed.len() {
            assert!(decode_packed(&packed[..end], 1000).is_err());
            for bit in 0..8 {
                let mut flipped = packed.clone();
                flipped[end] ^= 1 << bit;
                let _ = unpack(&flipped, 1000);
                let _ = decode_packed(&flipped, 1000);
            }
        }
    }
}
