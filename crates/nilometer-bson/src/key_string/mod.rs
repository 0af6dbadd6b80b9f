//! Index keys as bytes: `memcmp` of two keys agrees with [`crate::order::compare`] of the values.
//!
//! A key is the concatenation of its components. Each is a lead byte for the rank of its type and a
//! body that is never a prefix of another body of that type; all bits of a descending component are
//! inverted. Equal values of different types (int 1, double 1.0; string and symbol) have the same
//! key. Separate *type bits* record the difference, so that [`decode()`] returns the original
//! values, except for NaN payloads and missing, which is decoded as undefined.
//!
//! ```text
//! 0A MinKey   14 undefined   19 null   3C string   46 object   50 array   5A binary   64 object id
//! 6E false    6F true        78 date   82 timestamp            8C regex   96 dbPointer
//! A0 code     AA code with scope       F0 MaxKey
//!
//! numbers   1E NaN
//!           20 size 2^63 and up, below zero      29 size below 1, below zero     2A zero
//!           21 … 28 below zero, 8 … 1 bytes      2B size below 1
//!                                                2C … 33 1 … 8 bytes             34 2^63 and up
//!   1 … 8 bytes   whole part × 2 + (1 if there is a fraction), big-endian; then with a fraction
//!                 7 bytes: fraction × 2^55 truncated, × 2 + (1 if inexact)
//!   2B, 34        8 bytes: the double truncated towards zero, its bits × 2 + (1 if inexact)
//!   inexact       17 bytes more: power of ten of the first digit + 8192 (2), then the 34 digits (15);
//!                 only decimals need this
//!   below zero    the same bytes with all bits inverted
//!
//! string    bytes, 00 as 00 FF, then 00 00      regex: two strings       code: a string
//! object    per field: rank of the type (1), name 00, the value's component; then 00
//! array     the components of the elements; then 00
//! binary    length (1, or FF and 4 big-endian), subtype, bytes
//! date      8 big-endian, sign bit inverted       timestamp: 8 big-endian   object id: 12
//! dbPointer length of namespace (4), namespace, id     code with scope: a string, an object body
//!
//! type bits   for each number and string that is not of its key's default type (int, then long,
//!             for whole numbers and zero; double for others; string): one byte, type + 8 × number of
//!             numbers and strings since the last (31: a varint of the rest follows);
//!             decimals add their exponent (zigzag varint). Empty if all types are default.
//! ```
//!
//! Keys of a collated index contain the collation's sort keys instead of the strings; they compare
//! like the strings but cannot be decoded.

#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)
)]

mod decode;
mod encode;
mod number;
#[cfg(test)]
mod tests;
mod type_bits;

pub use decode::{KeyStringError, decode, skip};
pub use encode::KeyBuilder;

use crate::order::CanonicalType;
use crate::value::ValueRef;

/// Maximum number of components in a key.
pub const COMPONENTS_MAX: usize = 32;
/// Maximum nesting that [`decode()`] accepts.
pub const DEPTH_MAX: usize = 250;

/// Lead bytes, in the order of the types.
mod lead {
    pub(super) const MIN_KEY: u8 = 0x0A;
    pub(super) const UNDEFINED: u8 = 0x14;
    pub(super) const NULL: u8 = 0x19;
    pub(super) const NAN: u8 = 0x1E;
    pub(super) const NEGATIVE_LARGE: u8 = 0x20;
    /// Eight bytes; each following byte means one byte less.
    pub(super) const NEGATIVE_WHOLE_8: u8 = 0x21;
    pub(super) const NEGATIVE_WHOLE_1: u8 = 0x28;
    pub(super) const NEGATIVE_SMALL: u8 = 0x29;
    pub(super) const ZERO: u8 = 0x2A;
    pub(super) const SMALL: u8 = 0x2B;
    /// One byte; each following byte means one byte more.
    pub(super) const WHOLE_1: u8 = 0x2C;
    pub(super) const WHOLE_8: u8 = 0x33;
    pub(super) const LARGE: u8 = 0x34;
    pub(super) const STRING: u8 = 0x3C;
    pub(super) const OBJECT: u8 = 0x46;
    pub(super) const ARRAY: u8 = 0x50;
    pub(super) const BINARY: u8 = 0x5A;
    pub(super) const OBJECT_ID: u8 = 0x64;
    pub(super) const FALSE: u8 = 0x6E;
    pub(super) const TRUE: u8 = 0x6F;
    pub(super) const DATE: u8 = 0x78;
    pub(super) const TIMESTAMP: u8 = 0x82;
    pub(super) const REGEX: u8 = 0x8C;
    pub(super) const DB_POINTER: u8 = 0x96;
    pub(super) const CODE: u8 = 0xA0;
    pub(super) const CODE_WITH_SCOPE: u8 = 0xAA;
    pub(super) const MAX_KEY: u8 = 0xF0;
}

/// Ends the fields of an object and the elements of an array; below every lead byte and rank.
const END: u8 = 0x00;
/// Follows a 00 that is part of a string.
const ESCAPE: u8 = 0xFF;
/// Added to a type's rank in an object, to stay above [`END`].
const PLACE_OFFSET: u8 = 1;

/// Returns the byte for a type's rank in front of a field's name.
fn place_byte(canonical: CanonicalType) -> u8 {
    canonical as u8 + PLACE_OFFSET
}

/// Which components of a key are descending.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct KeyOrder(u32);

impl KeyOrder {
    /// All ascending.
    pub const ASCENDING: Self = Self(0);

    /// Creates an order from one flag per component, true for descending; components beyond
    /// [`COMPONENTS_MAX`] are ascending.
    pub fn new(descending: impl IntoIterator<Item = bool>) -> Self {
        let flags = descending.into_iter().take(COMPONENTS_MAX).enumerate();
        Self(flags.fold(0, |bits, (at, down)| bits | (u32::from(down) << at)))
    }

    /// True if the component is descending.
    pub fn is_descending(self, component: usize) -> bool {
        component < COMPONENTS_MAX && (self.0 >> component) & 1 == 1
    }

    /// Returns the order with every direction reversed.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self(!self.0)
    }
}

/// Encodes a key of several values; returns its bytes and its type bits.
pub fn encode<'a>(
    values: impl IntoIterator<Item = ValueRef<'a>>,
    order: KeyOrder,
) -> (Vec<u8>, Vec<u8>) {
    let mut builder = KeyBuilder::new(order);
    for value in values {
        builder.push(value);
    }
    builder.finish()
}

/// Returns the least byte string above every key that starts with `key`; `None` if there is none.
///
/// With this every bound of a range is a plain byte string: the keys that start with a prefix lie
/// between the prefix (inclusive) and its end (exclusive), whatever follows the prefix: more
/// components, or the record id after the last.
pub fn prefix_end(mut key: Vec<u8>) -> Option<Vec<u8>> {
    while let Some(last) = key.pop() {
        if last < u8::MAX {
            key.push(last + 1);
            return Some(key);
        }
    }
    None
}

/// The side of the keys that start with a prefix on which a bound lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BoundSide {
    /// Below them: a range that starts here includes them, one that ends here excludes them.
    Before,
    /// Above them: a range that starts here excludes them, one that ends here includes them.
    After,
}

/// Returns the bound on one side of the keys that start with `prefix`; `None` is the end of the key
/// space.
pub fn bound(prefix: Vec<u8>, side: BoundSide) -> Option<Vec<u8>> {
    match side {
        BoundSide::Before => Some(prefix),
        BoundSide::After => prefix_end(prefix),
    }
}
