//! Entries read back, differences applied, damaged bytes.

use nilometer_bson::testing::{apply_description, with_sorted_fields};
use nilometer_bson::{Array, Document, DocumentBuilder, Value, array, doc};
use nilometer_storage::WriteBatch;

use super::*;

const UUID: [u8; 16] = [7; 16];

fn collection() -> LoggedCollection<'static> {
    LoggedCollection {
        uuid: UUID,
        name: "db.c",
        time_field: "t",
        meta_field: "",
    }
}

fn annotation(note: impl FnOnce(&mut ChangeNotes)) -> Vec<u8> {
    let mut notes = ChangeNotes::new(1, collection());
    note(&mut notes);
    let mut batch = WriteBatch::new();
    notes.add_to(&mut batch);
    batch.take_annotation()
}

#[test]
fn entries_read_back_and_are_refused_when_cut() {
    let (old, new) = (doc! {"_id": 1, "a": 1}, doc! {"_id": 1, "a": 2});
    let bucket = doc! {
        "_id": 5, "control": doc! {"count": 2}, "data": doc! {"t": 1, "_id": 2, "v": 3}
    };
    let options = doc! {"capped": true};
    let reordered = doc! {"_id": 1, "b": 1, "a": 1};
    let bytes = annotation(|notes| {
        notes.inserted(old.as_ref());
        notes.updated(old.as_ref(), new.as_ref());
        notes.replaced(old.as_ref(), new.as_ref());
        notes.deleted(new.as_ref());
        notes.created(options.as_ref());
        notes.dropped();
        notes.renamed("db.d", Some([3; 16]));
        notes.renamed("db.e", None);
        notes.dropped_database("db");
        notes.measurements([1; 12], 300, b"tail");
        notes.header([2; 12], (9, ValueRef::Missing), ["t", "v"].into_iter());
        notes.bucket_added(bucket.as_ref());
        notes.bucket_removed(bucket.as_ref());
        notes.created_indexes(std::iter::once(new.clone()));
        notes.dropped_indexes(std::iter::once(new.clone()));
        notes.modified(new.as_ref(), old.as_ref());
        notes.bucket_image(bucket.as_ref());
        notes.bucket_gone([4; 12]);
        notes.view_changed(options.as_ref());
        notes.view_dropped();
        notes.updated(doc! {"_id": 1, "a": 1, "b": 1}.as_ref(), reordered.as_ref());
    });
    let read: Vec<_> = Entries::new(&bytes).map(Result::unwrap).collect();
    let key = doc! {"_id": 1};
    let description = doc! {
        "updatedFields": doc! {"a": 2}, "removedFields": array![], "truncatedArrays": array![]
    };
    let none = doc! {
        "updatedFields": doc! {}, "removedFields": array![], "truncatedArrays": array![]
    };
    let header = doc! {"start": Value::DateTime(9), "columns": array!["t", "v"]};
    let indexes = doc! {"indexes": array![new.clone()]};
    let reduced = doc! {
        "_id": 5, "control": doc! {"count": 2}, "data": doc! {"t": 1, "_id": 2}
    };
    let wanted = [
        Entry::Namespace(collection()),
        Entry::Insert(old.as_ref()),
        Entry::Update {
            key: key.as_ref(),
            description: description.as_ref(),
            after: None,
        },
        Entry::Replace {
            key: key.as_ref(),
            after: new.as_ref(),
        },
        Entry::Delete(key.as_ref()),
        Entry::Create(options.as_ref()),
        Entry::Drop,
        Entry::Rename {
            to: "db.d",
            dropped: Some([3; 16]),
        },
        Entry::Rename {
            to: "db.e",
            dropped: None,
        },
        Entry::DropDatabase("db"),
        Entry::Measurements {
            bucket: [1; 12],
            rows_before: 300,
            tail: b"tail",
        },
        Entry::Header {
            bucket: [2; 12],
            columns: 2,
            document: header.as_ref(),
        },
        Entry::BucketAdded(bucket.as_ref()),
        Entry::BucketRemoved(reduced.as_ref()),
        Entry::CreateIndexes(indexes.as_ref()),
        Entry::DropIndexes(indexes.as_ref()),
        Entry::Modify {
            change: new.as_ref(),
            before: old.as_ref(),
        },
        Entry::BucketImage(bucket.as_ref()),
        Entry::BucketGone([4; 12]),
        Entry::ViewChanged(options.as_ref()),
        Entry::ViewDropped,
        Entry::After(reordered.as_ref()),
        Entry::Update {
            key: key.as_ref(),
            description: none.as_ref(),
            after: None,
        },
    ];
    let shown = |entries: &[Entry<'_>]| format!("{entries:?}");
    assert_eq!(shown(&read), shown(&wanted));
    let mut others = Vec::new();
    let taken = split(&bytes, &mut others).unwrap();
    assert_eq!(taken.names[0], "db.c");
    // Time series: neither documents nor measurements count, but their buckets.
    assert_eq!(taken.operations, 15);
    let headers = taken.headers;
    assert_eq!((headers.len(), headers[0].uuid), (1, UUID));
    assert_eq!(Entries::new(&others).count(), wanted.len() - 1);
    for end in 0..bytes.len() {
        // A cut between two entries leaves whole entries; elsewhere the last one fails.
        let cut = Entries::new(&bytes[..end]);
        let whole = cut.filter(Result::is_ok).count();
        assert!(whole < wanted.len());
        let mut flipped = bytes.clone();
        flipped[end] ^= 0x55;
        Entries::new(&flipped).for_each(drop);
        drop(split(&flipped, &mut Vec::new()));
    }
}

#[test]
fn images_are_noted_where_they_are_kept() {
    let (old, new) = (doc! {"_id": 1, "a": 1}, doc! {"_id": 1, "a": 2});
    let mut notes = ChangeNotes::new(1, collection()).with_images(true);
    notes.updated(old.as_ref(), new.as_ref());
    notes.deleted(new.as_ref());
    let mut batch = WriteBatch::new();
    notes.add_to(&mut batch);
    let bytes = batch.take_annotation();
    let read: Vec<_> = Entries::new(&bytes).skip(1).map(Result::unwrap).collect();
    let (key, description) = (
        doc! {"_id": 1},
        description(old.as_ref(), new.as_ref()).unwrap(),
    );
    let wanted = [
        Entry::Before(old.as_ref()),
        Entry::Update {
            key: key.as_ref(),
            description: description.as_ref(),
            after: Some(new.as_ref()),
        },
        Entry::Before(new.as_ref()),
        Entry::Delete(key.as_ref()),
    ];
    assert_eq!(format!("{read:?}"), format!("{wanted:?}"));
}

#[test]
fn the_bytes_of_an_entry_stay_the_same() {
    let bytes = annotation(|notes| notes.inserted(doc! {"_id": 1}.as_ref()));
    let mut wanted = vec![1, 16 + 5 + 2 + 1];
    wanted.extend_from_slice(&UUID);
    wanted.extend_from_slice(b"\x04db.c\x01t\x00");
    wanted.extend_from_slice(b"\x02\x0e\x0e\0\0\0\x10_id\0\x01\0\0\0\0");
    assert_eq!(bytes, wanted);
    assert!(annotation(|_| {}).is_empty());
    let mut off = ChangeNotes::off();
    off.inserted(doc! {"_id": 1}.as_ref());
    let mut batch = WriteBatch::new();
    off.add_to(&mut batch);
    assert!(batch.take_annotation().is_empty());
}

#[test]
fn differences_are_as_small_as_their_fields() {
    let difference = |before: Document, after: Document| {
        let found = description(before.as_ref(), after.as_ref()).unwrap();
        nilometer_bson::extjson::to_relaxed(found.as_ref())
    };
    assert_eq!(
        difference(
            doc! {"_id": 1, "a": doc! {"b": 1, "c": 2}, "d": array![1, 2, 3], "e": 1},
            doc! {"_id": 1, "a": doc! {"b": 1, "c": 3}, "d": array![1, 5], "f": 1},
        ),
        r#"{"updatedFields":{"a.c":3,"d.1":5,"f":1},"removedFields":["e"],"truncatedArrays":[{"field":"d","newSize":2}]}"#
    );
    assert_eq!(
        difference(doc! {"a": doc! {"b": 1}}, doc! {"a": doc! {"c": 1}}),
        r#"{"updatedFields":{"a":{"c":1}},"removedFields":[],"truncatedArrays":[]}"#
    );
    assert_eq!(
        difference(doc! {"a": array![1]}, doc! {"a": array![]}),
        r#"{"updatedFields":{"a":[]},"removedFields":[],"truncatedArrays":[]}"#
    );
    assert_eq!(
        difference(
            doc! {"a.b": 1, "": 1, "n": doc! {"0": 1, "x": 1}},
            doc! {"a.b": 2, "n": doc! {"0": 2, "x": 1}}
        ),
        r#"{"updatedFields":{"a.b":2,"n.0":2},"removedFields":[""],"truncatedArrays":[],"disambiguatedPaths":{"a.b":["a.b"],"n.0":["n","0"],"":[""]}}"#
    );
}

/// A value of a few kinds, nested.
fn value(draw: &mut u64, depth: usize) -> Value {
    let mut below = |n: u64| {
        *draw = draw
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (*draw >> 33) % n
    };
    match below(if depth > 2 { 2 } else { 4 }) {
        0 => Value::Int32(below(4) as i32),
        1 => ["x", "y"][below(2) as usize].into(),
        2 => {
            let count = below(4);
            (0..count)
                .map(|_| value(draw, depth + 1))
                .collect::<Array>()
                .into()
        }
        _ => fields(draw, depth + 1).into(),
    }
}

fn fields(draw: &mut u64, depth: usize) -> Document {
    let mut out = DocumentBuilder::new();
    for name in ["a", "b", "c", "0", "a.0", ""] {
        *draw = draw
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        if (*draw >> 40).is_multiple_of(2) {
            out.append(name, value(draw, depth));
        }
    }
    out.finish()
}

#[test]
fn a_description_applied_to_the_old_version_gives_the_new_one() {
    let (mut draw, mut unclear) = (3, 0);
    for _ in 0..3000 {
        let (before, after) = (fields(&mut draw, 0), fields(&mut draw, 0));
        let Some(found) = description(before.as_ref(), after.as_ref()) else {
            unclear += 1;
            continue;
        };
        let applied = apply_description(before.as_ref(), found.as_ref());
        let sorted = |document: &Document| with_sorted_fields(document.as_ref());
        assert_eq!(sorted(&applied), sorted(&after), "{before:?} {found:?}");
    }
    assert!((1..1000).contains(&unclear), "{unclear}");
}
