//! Digests and subtypes of binary data: `$hash $hexHash $subtype`, as MongoDB 8.3 has them.
//!
//! `$hash` and `$hexHash` take a string or binary data and the name of an algorithm; null or missing gives null. The
//! digest is binary data, or upper-case hexadecimal digits. That of `xxh64` is the number with its highest byte first.

use md5::Md5;
use nilometer_bson::{Binary, Value, ValueRef};
use sha2::{Digest, Sha256};

use super::evaluated::Evaluated;
use super::operation::{CallContext, arg};
use super::registry::{NamedArguments, required};
use crate::error::{Error, ErrorCode, Result};

pub(super) const ARGUMENTS: NamedArguments = NamedArguments {
    not_object: ErrorCode::FailedToParse.0,
    unknown: ErrorCode::IDLUnknownField.0,
    fields: &[
        required("input", ErrorCode::IDLFailedToParse.0),
        required("algorithm", ErrorCode::IDLFailedToParse.0),
    ],
};

pub(super) fn hash<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    Ok(match digest(values, call.name)? {
        Some(digest) => Evaluated::from(Value::from(Binary {
            subtype: 0,
            bytes: digest.into(),
        })),
        None => Evaluated::NULL,
    })
}

pub(super) fn hex_hash<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    Ok(match digest(values, call.name)? {
        Some(digest) => {
            let digits: String = digest.iter().map(|byte| format!("{byte:02X}")).collect();
            Evaluated::from(Value::from(digits))
        }
        None => Evaluated::NULL,
    })
}

/// Returns the digest of the input; `None` if it is null or missing.
fn digest(values: &[Evaluated<'_>], name: &str) -> Result<Option<Vec<u8>>> {
    let algorithm = match arg(values, 1).as_ref() {
        ValueRef::String(algorithm @ ("md5" | "sha256" | "xxh64")) => algorithm,
        ValueRef::String(other) => {
            return Err(Error::bad_value(format!(
                "{name} knows the algorithms md5, sha256 and xxh64, not '{other}'"
            )));
        }
        other => {
            return Err(Error::type_mismatch(format!(
                "the algorithm of {name} must be a string, found: {}",
                other.type_name()
            )));
        }
    };
    let input = match arg(values, 0).as_ref() {
        ValueRef::String(text) => text.as_bytes(),
        ValueRef::Binary { bytes, .. } => bytes,
        value if value.is_nullish() => return Ok(None),
        other => {
            return Err(Error::type_mismatch(format!(
                "{name} requires a string or binary data, found: {}",
                other.type_name()
            )));
        }
    };
    Ok(Some(match algorithm {
        "md5" => Md5::digest(input).to_vec(),
        "sha256" => Sha256::digest(input).to_vec(),
        _ => xxh64(input).to_be_bytes().to_vec(),
    }))
}

pub(super) fn subtype<'s>(
    values: &[Evaluated<'s>],
    _: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    match arg(values, 0).as_ref() {
        ValueRef::Binary { subtype, .. } => Ok(Evaluated::from(i32::from(subtype))),
        value if value.is_nullish() => Ok(Evaluated::NULL),
        other => Err(Error::type_mismatch(format!(
            "$subtype requires binary data, found: {}",
            other.type_name()
        ))),
    }
}

/// The constants of XXH64.
const PRIMES: [u64; 5] = [
    0x9E37_79B1_85EB_CA87,
    0xC2B2_AE3D_27D4_EB4F,
    0x1656_67B1_9E37_79F9,
    0x85EB_CA77_C2B2_AE63,
    0x27D4_EB2F_1656_67C5,
];

/// One step of XXH64: mixes eight bytes into a lane.
fn round(lane: u64, input: u64) -> u64 {
    let lane = lane.wrapping_add(input.wrapping_mul(PRIMES[1]));
    lane.rotate_left(31).wrapping_mul(PRIMES[0])
}

/// XXH64 with the seed 0.
fn xxh64(input: &[u8]) -> u64 {
    let (stripes, mut rest) = input.as_chunks::<32>();
    let mut hash = if stripes.is_empty() {
        PRIMES[4]
    } else {
        let mut lanes = [
            PRIMES[0].wrapping_add(PRIMES[1]),
            PRIMES[1],
            0,
            0_u64.wrapping_sub(PRIMES[0]),
        ];
        for stripe in stripes {
            for (lane, word) in lanes.iter_mut().zip(stripe.as_chunks::<8>().0) {
                *lane = round(*lane, u64::from_le_bytes(*word));
            }
        }
        let turns = [1, 7, 12, 18];
        let turned = lanes
            .iter()
            .zip(turns)
            .map(|(lane, by)| lane.rotate_left(by));
        let mixed = turned.fold(0_u64, u64::wrapping_add);
        lanes.iter().fold(mixed, |hash, lane| {
            let hash = hash ^ round(0, *lane);
            hash.wrapping_mul(PRIMES[0]).wrapping_add(PRIMES[3])
        })
    };
    hash = hash.wrapping_add(input.len() as u64);
    while let Some((word, left)) = rest.split_first_chunk::<8>() {
        hash ^= round(0, u64::from_le_bytes(*word));
        hash = hash
            .rotate_left(27)
            .wrapping_mul(PRIMES[0])
            .wrapping_add(PRIMES[3]);
        rest = left;
    }
    if let Some((word, left)) = rest.split_first_chunk::<4>() {
        hash ^= u64::from(u32::from_le_bytes(*word)).wrapping_mul(PRIMES[0]);
        hash = hash
            .rotate_left(23)
            .wrapping_mul(PRIMES[1])
            .wrapping_add(PRIMES[2]);
        rest = left;
    }
    for byte in rest {
        hash ^= u64::from(*byte).wrapping_mul(PRIMES[4]);
        hash = hash.rotate_left(11).wrapping_mul(PRIMES[0]);
    }
    hash = (hash ^ (hash >> 33)).wrapping_mul(PRIMES[1]);
    hash = (hash ^ (hash >> 29)).wrapping_mul(PRIMES[2]);
    hash ^ (hash >> 32)
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, doc, value};

    use super::super::testing::{check_exact, eval_code};

    #[test]
    fn digests_of_published_examples() {
        let digits = |input: Value, algorithm: &str| doc! {"$hexHash": doc! {"input": input, "algorithm": algorithm}};
        for (input, algorithm, expected) in [
            ("hello", "md5", "5D41402ABC4B2A76B9719D911017C592"),
            (
                "hello",
                "sha256",
                "2CF24DBA5FB0A30E26E83B2AC5B9E29E1B161E5C1FA7425E73043362938B9824",
            ),
            ("", "xxh64", "EF46DB3751D8E999"),
            ("a", "xxh64", "D24EC4F1A98C6E5B"),
            ("abc", "xxh64", "44BC2CF5AD770999"),
            (
                "The quick brown fox jumps over the lazy dog",
                "xxh64",
                "0B242D361FDA71BC",
            ),
        ] {
            check_exact(&doc! {}, digits(input.into(), algorithm), expected);
        }
        let bytes = value::Binary {
            subtype: 0,
            bytes: [0x44, 0xBC, 0x2C, 0xF5, 0xAD, 0x77, 0x09, 0x99][..].into(),
        };
        let abc = value::Binary {
            subtype: 5,
            bytes: b"abc"[..].into(),
        };
        let doc = doc! {"b": Value::from(abc)};
        let hash = doc! {"$hash": doc! {"input": "$b", "algorithm": "xxh64"}};
        check_exact(&doc, hash, Value::from(bytes));
        check_exact(&doc, doc! {"$subtype": "$b"}, 5);
        check_exact(&doc, doc! {"$subtype": "$gone"}, Value::Null);
        check_exact(&doc, digits("$gone".into(), "md5"), Value::Null);
        assert_eq!(eval_code(&doc, doc! {"$subtype": "x"}), 14);
        assert_eq!(eval_code(&doc, digits(1.into(), "md5")), 14);
        assert_eq!(eval_code(&doc, digits("x".into(), "crc32")), 2);
    }
}
