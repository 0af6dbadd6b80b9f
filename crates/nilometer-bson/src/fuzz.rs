//! Entry points for fuzzing: each accepts arbitrary bytes and panics only on a bug.
//!
//! A libFuzzer target is a wrapper around one of these, and `cargo test` runs each with 200 fixed
//! seeds. [`column_bytes`] generates bytes that are almost a valid column, which random bytes
//! practically never are.

use crate::column::{self, ColumnBuilder, ColumnError, RawValue};
use crate::document::write_value;

/// Maximum number of values in a fuzzed column.
const VALUES_MAX: usize = 6000;

/// Decodes bytes as a column with every decoder and compares the results.
///
/// # Panics
///
/// Panics if two decoders disagree, or if a decoded column does not round-trip.
pub fn column_decode(bytes: &[u8]) {
    column_pack(bytes);
    let plain = column::decode_raw(bytes, VALUES_MAX);
    let block = column::decode_block(bytes, VALUES_MAX);
    let count = column::count(bytes);
    let last = column::last(bytes, VALUES_MAX);
    let values = match (&plain, &block) {
        (_, Err(ColumnError::TooLarge { .. } | ColumnError::InvalidUtf8 { .. }))
        | (Err(ColumnError::TooLarge { .. }), _) => return,
        (Err(_), Err(_)) => return,
        (Ok(values), Ok(block)) => {
            let read: Vec<RawValue> = block.iter().map(raw).collect();
            assert!(*values == read, "block and values differ");
            values
        }
        (plain, block) => panic!("values: {plain:?}, block: {block:?}"),
    };
    assert_eq!(count, Ok(values.len()));
    let last = last.map(|value| raw(value.as_ref()));
    assert_eq!(last, Ok(values.last().cloned().unwrap_or_default()));
    let reopened = ColumnBuilder::reopen(bytes, VALUES_MAX).map(|builder| {
        let again = builder.to_bytes();
        (builder.count(), column::decode_raw(&again, VALUES_MAX))
    });
    assert_eq!(reopened, Ok((values.len(), plain.clone())));
    column_encode(values);
}

/// Packs bytes as a column, and decodes them as a packed one.
///
/// # Panics
///
/// Panics if a packed column does not round-trip or is not smaller.
pub fn column_pack(bytes: &[u8]) {
    if let Some(packed) = column::pack(bytes) {
        assert!(packed.len() < bytes.len());
        let back = column::unpack(&packed, usize::MAX);
        assert!(back.as_deref() == Ok(bytes), "the column comes back");
    }
    let as_packed = [&[0x60 + bytes.len() as u8 % 31], bytes].concat();
    let column = column::unpack(&as_packed, VALUES_MAX);
    let column = column.and_then(|column| column::decode_block(&column, VALUES_MAX));
    let values = column::decode_packed(&as_packed, VALUES_MAX);
    // A damaged column may contain differences that no word can hold.
    if let (Ok(column), Ok(values)) = (column, values)
        && column.len() == values.len()
    {
        assert!(
            column.iter().map(raw).eq(values.iter().map(raw)),
            "values differ"
        );
    }
}

/// Encodes values as a column, whole and in parts, and decodes them.
///
/// # Panics
///
/// Panics if the values differ, or the parts do not give the same column.
pub fn column_encode(values: &[RawValue]) {
    let mut builder = ColumnBuilder::new();
    let mut column = Vec::new();
    for (at, value) in values.iter().enumerate() {
        if builder.append_raw(value.tag, &value.bytes).is_err() {
            return;
        }
        if at % 37 == 5 {
            builder.diff().apply(&mut column);
            assert!(column == builder.to_bytes(), "diff after {at} values");
        }
    }
    builder.diff().apply(&mut column);
    assert_eq!(builder.count(), values.len());
    assert!(column == builder.finish(), "last diff");
    let read = column::decode_raw(&column, values.len());
    assert!(read.as_deref() == Ok(values), "values come back");
}

/// Converts a value to the bytes a column stores.
fn raw(value: crate::ValueRef<'_>) -> RawValue {
    let mut bytes = Vec::new();
    write_value(&mut bytes, value);
    RawValue {
        tag: value.type_code(),
        bytes: bytes.into(),
    }
}

/// A small pseudo-random number generator.
#[derive(Debug, Clone)]
pub struct Numbers(u64);

impl Numbers {
    /// Creates the generator with a seed.
    pub fn new(seed: u64) -> Self {
        Numbers(seed.wrapping_add(0x9E37_79B9_7F4A_7C15))
    }

    /// Returns the next number.
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `limit`, which is not 0.
    pub fn below(&mut self, limit: u64) -> u64 {
        self.next_u64() % limit
    }
}

/// Generates a column that is valid or almost valid: pieces in any order, words of any shape,
/// occasionally a wrong byte.
pub fn column_bytes(seed: u64) -> Vec<u8> {
    let numbers = &mut Numbers::new(seed);
    let mut out = Vec::new();
    for _ in 0..numbers.below(8) {
        if numbers.below(6) == 0 {
            push_section(numbers, &mut out);
        } else {
            push_piece(numbers, &mut out);
        }
    }
    out.push(0);
    if numbers.below(3) == 0 {
        let at = numbers.below(out.len() as u64) as usize;
        out[at] ^= 1 << numbers.below(8);
    }
    out
}

fn push_piece(numbers: &mut Numbers, out: &mut Vec<u8>) {
    if numbers.below(2) == 0 {
        let tag = [
            1, 1, 2, 2, 3, 5, 7, 8, 9, 10, 11, 13, 16, 16, 17, 18, 18, 19, 0x7f, 0xff,
        ][numbers.below(20) as usize];
        out.extend([tag, 0]);
        push_value(tag, numbers, out);
        return;
    }
    let words = numbers.below(4) as u8;
    let scale = [0x80, 0x80, 0x80, 0x90, 0xA0, 0xB0, 0xD0][numbers.below(7) as usize];
    out.push(scale | words);
    for _ in 0..=words {
        let bits = numbers.next_u64();
        let word = match numbers.below(6) {
            0 => 0x0F | (bits & 0x1F0),
            1 => bits & 15,
            2 => (u64::MAX << 8) | bits & 0x7F,
            3 => bits & (bits >> 7) & (bits << 3) | bits & 0xFF,
            _ => bits,
        };
        out.extend(word.to_le_bytes());
    }
}

fn push_value(tag: u8, numbers: &mut Numbers, out: &mut Vec<u8>) {
    let bits = numbers.next_u64();
    match tag {
        1 => {
            let value = [0.0, 1.5, 99.25, -3.0, f64::from_bits(bits)][(bits % 5) as usize];
            out.extend(value.to_le_bytes());
        }
        2 | 13 => {
            let text = &b"abcdefghijklmnopqrs"[..(bits % 20) as usize];
            out.extend((text.len() as u32 + 1).to_le_bytes());
            out.extend(text);
            out.push(0);
        }
        3 => out.extend_from_slice(crate::doc! { "x": bits as i32 }.as_bytes()),
        5 => {
            let len = (bits % 20) as u8;
            out.extend([len, 0, 0, 0, 0]);
            out.extend((0..len).map(|byte| byte.wrapping_mul(bits as u8)));
        }
        7 => out.extend([&bits.to_le_bytes()[..], &[1, 2, 3, 4]].concat()),
        8 => out.push(bits as u8 & 1),
        11 => out.extend(b"a\0i\0"),
        16 => out.extend((bits as i32 >> (bits % 32)).to_le_bytes()),
        19 => out.extend([bits.to_le_bytes(), (bits >> 9).to_le_bytes()].concat()),
        9 | 17 | 18 => out.extend((bits as i64 >> (bits % 64)).to_le_bytes()),
        _ => {}
    }
}

fn push_section(numbers: &mut Numbers, out: &mut Vec<u8>) {
    let kind = 0xF0 + numbers.below(3) as u8;
    let start = out.len() + 1;
    out.extend([kind, 0, 0, 0, 0]);
    let leaves = numbers.below(3);
    for leaf in 0..=leaves {
        let tag = [1, 2, 3, 9, 16, 18][numbers.below(6) as usize];
        out.extend([tag, b'0' + leaf as u8, 0]);
        push_value(tag, numbers, out);
    }
    out.push(0);
    let len = (out.len() - start) as u32;
    out[start..start + 4].copy_from_slice(&len.to_le_bytes());
    if numbers.below(2) == 0 {
        // One block for each stream, all of the same length.
        let word = [14, 13, 0x0F, 9][numbers.below(4) as usize] | numbers.below(1 << 20) << 32;
        for _ in 0..=leaves {
            out.push(0x80);
            out.extend((word & !0xF0).to_le_bytes());
        }
    } else {
        (0..numbers.below(5)).for_each(|_| push_piece(numbers, out));
    }
    out.push(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the seeds of a run: 0 to 199, or those set by `cargo xtask fuzz`.
    fn seeds() -> std::ops::Range<u64> {
        let number = |name, default| {
            std::env::var(name).map_or(default, |text| text.parse().expect("a number"))
        };
        let first: u64 = number("NILOMETER_FUZZ_SEED", 0);
        first..first + number("NILOMETER_FUZZ_RUNS", 200)
    }

    #[test]
    fn fuzz_column_decode() {
        for seed in seeds() {
            let run = std::panic::catch_unwind(|| {
                for column in 0..50 {
                    column_decode(&column_bytes(seed * 50 + column));
                }
                let mut numbers = Numbers::new(seed);
                let noise: Vec<u8> = (0..seed % 300).map(|_| numbers.next_u64() as u8).collect();
                column_decode(&noise);
            });
            assert!(run.is_ok(), "seed {seed}");
        }
    }

    #[test]
    fn some_seeds_give_valid_columns() {
        let sound = |seed: &u64| column::validate(&column_bytes(*seed), VALUES_MAX).is_ok();
        let count = (0..1000).filter(sound).count();
        assert!((200..900).contains(&count), "{count} of 1000 are sound");
    }
}
