//! Keys of documents: readable cases, and generated ones against an oracle.

mod generated;

use std::sync::Arc;

use nilometer_bson::key_string::decode;
use nilometer_bson::{Document, DocumentBuilder, Value, array, doc};

use super::{DocumentKeys, Index};
use crate::catalog::{IndexSpec, StoredIndex};
use crate::error::Result;
use crate::eval::expression::hashed_index_key::hash;

pub(super) fn index(key: Document) -> Arc<Index> {
    index_with(IndexSpec {
        key,
        ..IndexSpec::default()
    })
}

fn index_with(spec: IndexSpec) -> Arc<Index> {
    Index::of(&Arc::new(StoredIndex::detached(spec))).unwrap()
}

fn try_keys(index: &Index, document: &Document) -> Result<DocumentKeys> {
    index.keys(document.as_ref())
}

/// Returns the keys of a document as an array of arrays of values.
fn keys(index: &Index, document: &Document) -> Value {
    let keys = try_keys(index, document).unwrap().keys;
    let decoded = keys.iter().map(|key| {
        let read = decode(&key.key, index.order(), index.components(), &key.type_bits);
        let (values, rest) = read.unwrap();
        assert!(rest.is_empty());
        Value::from(values)
    });
    Value::from(decoded.collect::<Vec<_>>())
}

fn check(key: Document, document: Document, expected: Value) {
    let found = keys(&index(key.clone()), &document);
    assert_eq!(
        doc! { "": found },
        doc! { "": expected },
        "{key:?} of {document:?}"
    );
}

fn code(key: Document, document: Document) -> i32 {
    try_keys(&index(key), &document).unwrap_err().code.0
}

#[test]
fn values_are_in_the_order_of_the_index() {
    let null = Value::Null;
    check(doc! { "a": 1 }, doc! { "a": 5 }, array![array![5]]);
    check(doc! { "a": 1 }, doc! {}, array![array![null.clone()]]);
    check(
        doc! { "a": 1, "b": -1 },
        doc! { "a": 1, "b": array![2, 1, 2, 3] },
        array![array![1, 3], array![1, 2], array![1, 1]],
    );
    check(
        doc! { "a": -1 },
        doc! { "a": array![] },
        array![array![Value::Undefined]],
    );
    check(
        doc! { "a.b": 1, "a.c": 1 },
        doc! { "a": array![doc! { "b": 2, "c": "x" }, doc! { "b": 1 }] },
        array![array![1, null], array![2, "x"]],
    );
    check(
        doc! { "a": 1 },
        doc! { "a": array![1, 1.0, array![1]] },
        array![array![1], array![array![1]]],
    );
}

#[test]
fn multikey_is_set_per_part() {
    let index = index(doc! { "a": 1, "b.c": 1, "d": 1 });
    let bits = |document: Document| try_keys(&index, &document).unwrap().multikey;
    assert_eq!(bits(doc! { "a": 1 }), 0);
    assert_eq!(bits(doc! { "a": array![1] }), 0b001);
    assert_eq!(bits(doc! { "b": array![] }), 0b010);
    assert_eq!(bits(doc! { "d": array![doc! {}] }), 0b100);
}

#[test]
fn unindexable_values_are_refused() {
    let two = doc! { "a": 1, "b": 1 };
    assert_eq!(code(two, doc! { "a": array![1], "b": array![2] }), 171);
    assert_eq!(
        code(doc! { "a.0": 1 }, doc! { "a": array![doc! { "0": 5 }] }),
        16746
    );
    assert_eq!(code(doc! { "a": "hashed" }, doc! { "a": array![1] }), 16766);
    assert_eq!(
        code(
            doc! { "a.b": "hashed" },
            doc! { "a": array![doc! { "b": 1 }] }
        ),
        16766
    );
    // A hundred keys of two megabytes.
    let many: nilometer_bson::Array = (0..100).map(Value::Int32).collect();
    assert_eq!(
        code(
            doc! { "a": 1, "b": 1 },
            doc! { "a": many, "b": "x".repeat(2 << 20) }
        ),
        17280
    );
}

#[test]
fn hashed_parts_store_the_hash() {
    let of = |value: Value| Value::Int64(hash(value.as_ref()));
    check(
        doc! { "a": "hashed", "b": -1 },
        doc! { "a": 5.5, "b": 2 },
        array![array![of(5.into()), 2]],
    );
    let index = index_with(IndexSpec {
        key: doc! { "a": "hashed", "b": -1 },
        ..IndexSpec::default()
    });
    let refused = try_keys(&index, &doc! { "a": 5.5, "b": array![1, 2] });
    assert_eq!(refused.unwrap_err().code.0, 16_766);
    check(
        doc! { "a": "hashed" },
        doc! {},
        array![array![of(Value::Null)]],
    );
}

#[test]
fn sparse_leaves_out_documents_without_the_fields() {
    let sparse = index_with(IndexSpec {
        key: doc! { "a": 1, "b.c": 1 },
        sparse: true,
        ..IndexSpec::default()
    });
    let count = |document: Document| try_keys(&sparse, &document).unwrap().keys.len();
    assert_eq!(count(doc! {}), 0);
    assert_eq!(count(doc! { "b": 5 }), 0);
    assert_eq!(count(doc! { "a": Value::Null }), 1);
    assert_eq!(count(doc! { "b": doc! { "c": 1 } }), 1);
    assert_eq!(count(doc! { "b": array![doc! { "c": 1 }, doc! {}] }), 1);
    assert_eq!(
        count(doc! { "a": 1, "b": array![doc! { "c": 1 }, doc! {}] }),
        2
    );
    assert_eq!(count(doc! { "b": array![] }), 0);
    assert_eq!(count(doc! { "a": array![] }), 1);
}

#[test]
fn partial_leaves_out_documents_that_do_not_match() {
    let partial = index_with(IndexSpec {
        key: doc! { "a": 1 },
        partial_filter: Some(doc! { "b": doc! { "$gt": 5 } }),
        ..IndexSpec::default()
    });
    let count = |document: Document| try_keys(&partial, &document).unwrap().keys.len();
    assert_eq!(count(doc! { "a": 1, "b": 5 }), 0);
    assert_eq!(count(doc! { "a": 1, "b": 6 }), 1);
    assert_eq!(count(doc! { "b": array![1, 6] }), 1);
}

#[test]
fn wildcards_index_every_leaf() {
    let document = doc! {
        "_id": 7,
        "a": 1,
        "b": doc! {
            "c": array![2, doc! { "d": 3 }, array![4]],
            "e": array![],
            "f": doc! {},
            "g": Value::Null,
        },
    };
    check(
        doc! { "$**": 1 },
        document.clone(),
        array![
            array!["a", 1],
            array!["b.c", 2],
            array!["b.c", array![4]],
            array!["b.c.d", 3],
            array!["b.e", Value::Undefined],
            array!["b.f", doc! {}],
            array!["b.g", Value::Null]
        ],
    );
    check(
        doc! { "b.c.$**": -1 },
        document.clone(),
        array![
            array!["b.c", array![4]],
            array!["b.c", 2],
            array!["b.c.d", 3]
        ],
    );
    check(doc! { "x.$**": 1 }, document.clone(), array![]);
    let projected = |projection: Document| {
        let index = index_with(IndexSpec {
            key: doc! { "$**": 1 },
            others: doc! { "wildcardProjection": projection },
            ..IndexSpec::default()
        });
        doc! { "": keys(&index, &document) }
    };
    assert_eq!(
        projected(doc! { "a": 1, "b.c.d": 1, "_id": 1 }),
        doc! { "": array![array!["_id", 7], array!["a", 1], array!["b.c.d", 3]] }
    );
    assert_eq!(
        projected(doc! { "b": 0 }),
        doc! { "": array![array!["a", 1]] }
    );
}

#[test]
fn a_wildcard_beside_other_fields_has_a_key_for_every_document() {
    let key = doc! { "a": 1, "m.$**": 1, "b": -1 };
    check(
        key.clone(),
        doc! { "a": 1, "m": doc! { "x": array![5, 6] }, "b": 2 },
        array![array![1, "m.x", 5, 2], array![1, "m.x", 6, 2]],
    );
    let none = array![1, Value::MinKey, Value::MinKey, Value::Null];
    check(key.clone(), doc! { "a": 1 }, array![none]);
    let multikey = |document: Document| try_keys(&index(key.clone()), &document).unwrap().multikey;
    assert_eq!(multikey(doc! { "m": array![1], "b": array![1] }), 0b110);
}

#[test]
fn diff_entries_writes_only_changed_keys() {
    let index = index(doc! { "a": 1 });
    let of = |values: Value| {
        let mut out = DocumentBuilder::new();
        out.append("a", values);
        try_keys(&index, &out.finish()).unwrap()
    };
    let before = of(array![1, 2, 3]);
    let after = of(array![2.0, 3, 4]);
    let mut batch = nilometer_storage::WriteBatch::new();
    super::diff_entries(&mut batch, &index, &before, &after, b"r");
    // Deletes 1, changes the type bits of 2, adds 4.
    assert_eq!(batch.len(), 3);
}
