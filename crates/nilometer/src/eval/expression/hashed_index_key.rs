//! `$toHashedIndexKey`: the hash stored in a hashed index, as a long; also for null and missing.
//!
//! ```text
//! MD5( seed 0, int32 | rank of the type, int32 | value ) → first eight bytes, little-endian
//! value:  numbers truncated to a long; documents and arrays as, for each member,
//!         rank of its type, name with its NUL, value; then an end mark; others as their BSON bytes
//! ```

use md5::{Digest, Md5};
use nilometer_bson::document::write_value;
use nilometer_bson::number::Number;
use nilometer_bson::{DocRef, ValueRef};

use super::evaluated::Evaluated;
use super::operation::{CallContext, arg};
use crate::error::Result;

/// Seed of index hashes.
const SEED: i32 = 0;

/// Returns the rank of a type as defined for hashes.
fn place(value: ValueRef<'_>) -> i32 {
    match value {
        ValueRef::MinKey => -1,
        ValueRef::MaxKey => 127,
        ValueRef::Missing | ValueRef::Undefined => 0,
        ValueRef::Null => 5,
        ValueRef::Int32(_) | ValueRef::Int64(_) | ValueRef::Double(_) | ValueRef::Decimal128(_) => {
            10
        }
        ValueRef::String(_) | ValueRef::Symbol(_) => 15,
        ValueRef::Document(_) => 20,
        ValueRef::Array(_) => 25,
        ValueRef::Binary { .. } => 30,
        ValueRef::ObjectId(_) => 35,
        ValueRef::Bool(_) => 40,
        ValueRef::DateTime(_) => 45,
        ValueRef::Timestamp(_) => 47,
        ValueRef::Regex { .. } => 50,
        ValueRef::DbPointer { .. } => 55,
        ValueRef::Code(_) => 60,
        ValueRef::CodeWithScope { .. } => 65,
    }
}

/// Returns the hash of a value.
pub fn hash(value: ValueRef<'_>) -> i64 {
    let mut state = Md5::new();
    state.update(SEED.to_le_bytes());
    // A missing field is indexed as null.
    let value = if value.is_missing() {
        ValueRef::Null
    } else {
        value
    };
    add(&mut state, value, None);
    let digest = state.finalize();
    digest
        .first_chunk::<8>()
        .map_or(0, |bytes| i64::from_le_bytes(*bytes))
}

fn add(state: &mut Md5, value: ValueRef<'_>, name: Option<&[u8]>) {
    state.update(place(value).to_le_bytes());
    if let Some(name) = name {
        state.update(name);
        state.update([0]);
    }
    match value {
        ValueRef::Document(doc) => add_members(state, doc),
        ValueRef::Array(array) => add_members(state, array.as_document()),
        value => match Number::of(value) {
            Some(number) => state.update(whole(number).to_le_bytes()),
            None => {
                let mut bytes = Vec::new();
                write_value(&mut bytes, value);
                state.update(&bytes);
            }
        },
    }
}

fn add_members(state: &mut Md5, doc: DocRef<'_>) {
    for element in doc.iter() {
        add(state, element.value(), Some(element.name_bytes()));
    }
    state.update(0i32.to_le_bytes());
    state.update([0]);
}

/// Truncates towards zero; NaN is zero, values out of range are clamped.
fn whole(number: Number) -> i64 {
    match number {
        Number::Double(v) => v as i64,
        other => other
            .to_i64_truncated()
            .unwrap_or_else(|_| other.to_f64() as i64),
    }
}

pub(super) fn to_hashed_index_key<'s>(
    values: &[Evaluated<'s>],
    _: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    Ok(Evaluated::from(hash(arg(values, 0).as_ref())))
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, array, doc};

    use super::super::testing::check_exact;
    use super::*;

    #[test]
    fn the_published_example() {
        // ISODate("2013-02-12T22:12:57.211Z"), from the manual's page on _hashBSONElement.
        assert_eq!(
            hash(ValueRef::DateTime(1_360_707_177_211)),
            -4_185_544_074_338_741_873
        );
    }

    #[test]
    fn equal_numbers_hash_alike() {
        let three = hash(ValueRef::Int32(3));
        for other in [Value::from(3i64), 3.0.into(), 3.7.into()] {
            assert_eq!(hash(other.as_ref()), three);
        }
        assert_ne!(hash(ValueRef::Int32(4)), three);
        assert_eq!(hash(ValueRef::Missing), hash(ValueRef::Null));
        let (a, b) = (Value::from(doc! { "a": 1 }), Value::from(doc! { "a": 1.0 }));
        assert_eq!(hash(a.as_ref()), hash(b.as_ref()));
        assert_ne!(hash(array![1].as_ref()), hash(array![2].as_ref()));
        check_exact(
            &doc! {},
            doc! { "$type": doc! { "$toHashedIndexKey": "$gone" } },
            "long",
        );
    }
}
