//! The tables of the reference, row by row.

use nilometer_bson::{Document, doc, extjson};

use super::{CollationOrigin, to_buckets, to_user};
use crate::catalog::{IndexSpec, TimeseriesOptions};
use crate::error::Result;

fn options() -> TimeseriesOptions {
    TimeseriesOptions::parse(doc! { "timeField": "t", "metaField": "m" }.as_ref()).unwrap()
}

/// Reads a document as the shell would: names need no quotes, and quotes may be single.
fn json(text: &str) -> Document {
    let mut strict = String::new();
    let mut rest = text.replace('\'', "\"");
    while let Some(start) = rest.find(|c: char| c.is_alphabetic() || "_$\"".contains(c)) {
        let tail = rest.split_off(start);
        strict.push_str(&rest);
        let quoted = tail.starts_with('"');
        let end = match quoted {
            true => tail[1..].find('"').map_or(tail.len(), |at| at + 2),
            false => tail
                .find(|c: char| !c.is_alphanumeric() && !"_$".contains(c))
                .unwrap_or(tail.len()),
        };
        let (word, after) = tail.split_at(end);
        match !quoted && after.starts_with(':') {
            true => strict.push_str(&format!("\"{word}\"")),
            false => strict.push_str(word),
        }
        rest = after.to_owned();
    }
    strict.push_str(&rest);
    extjson::parse_document(&strict).unwrap_or_else(|error| panic!("{strict}: {error}"))
}

fn spec(key: Document) -> IndexSpec {
    IndexSpec {
        key,
        name: "i".into(),
        ..IndexSpec::default()
    }
}

fn convert(user: &IndexSpec) -> Result<IndexSpec> {
    to_buckets(&options(), user, CollationOrigin::default())
}

fn code(user: &IndexSpec) -> i32 {
    match convert(user) {
        Ok(made) => panic!("{:?} became {:?}", user.key, made.key),
        Err(error) => error.code.0,
    }
}

/// Section 8.2, and the compounds asserted below it.
const KEYS: &[(&str, &str)] = &[
    ("{t: 1}", "{'control.min.t': 1, 'control.max.t': 1}"),
    ("{t: -1}", "{'control.max.t': -1, 'control.min.t': -1}"),
    ("{m: 1}", "{meta: 1}"),
    ("{m: -1}", "{meta: -1}"),
    ("{'m.a': 1}", "{'meta.a': 1}"),
    ("{'m.a': -1}", "{'meta.a': -1}"),
    ("{m: 'hashed'}", "{meta: 'hashed'}"),
    ("{'m.a': 'hashed'}", "{'meta.a': 'hashed'}"),
    ("{m: '2d'}", "{meta: '2d'}"),
    ("{'m.a': '2d'}", "{'meta.a': '2d'}"),
    ("{m: '2dsphere'}", "{meta: '2dsphere'}"),
    ("{'m.a': '2dsphere'}", "{'meta.a': '2dsphere'}"),
    ("{'m.$**': 1}", "{'meta.$**': 1}"),
    ("{'m.a.$**': 1}", "{'meta.a.$**': 1}"),
    ("{x: 1}", "{'control.min.x': 1, 'control.max.x': 1}"),
    ("{x: -1}", "{'control.max.x': -1, 'control.min.x': -1}"),
    ("{'x.y': 1}", "{'control.min.x.y': 1, 'control.max.x.y': 1}"),
    (
        "{'x.y': -1}",
        "{'control.max.x.y': -1, 'control.min.x.y': -1}",
    ),
    ("{_id: 1}", "{'control.min._id': 1, 'control.max._id': 1}"),
    ("{mm: 1}", "{'control.min.mm': 1, 'control.max.mm': 1}"),
    ("{x: '2dsphere'}", "{'data.x': '2dsphere_bucket'}"),
    ("{'x.y': '2dsphere'}", "{'data.x.y': '2dsphere_bucket'}"),
    (
        "{m: 1, t: 1}",
        "{meta: 1, 'control.min.t': 1, 'control.max.t': 1}",
    ),
    (
        "{m: 1, x: -1}",
        "{meta: 1, 'control.max.x': -1, 'control.min.x': -1}",
    ),
    (
        "{x: 1, 'm.a': -1, t: -1}",
        "{'control.min.x': 1, 'control.max.x': 1, 'meta.a': -1, 'control.max.t': -1, 'control.min.t': -1}",
    ),
    (
        "{'m.a': 'hashed', 'm.b': -1}",
        "{'meta.a': 'hashed', 'meta.b': -1}",
    ),
    (
        "{'m.b': 1, 'm.a': 'hashed'}",
        "{'meta.b': 1, 'meta.a': 'hashed'}",
    ),
    (
        "{'m.loc': '2dsphere', v: 1}",
        "{'meta.loc': '2dsphere', 'control.min.v': 1, 'control.max.v': 1}",
    ),
    (
        "{v: 1, 'm.loc': '2dsphere', w: -1}",
        "{'control.min.v': 1, 'control.max.v': 1, 'meta.loc': '2dsphere', 'control.max.w': -1, 'control.min.w': -1}",
    ),
    (
        "{t: 1, x: '2dsphere'}",
        "{'control.min.t': 1, 'control.max.t': 1, 'data.x': '2dsphere_bucket'}",
    ),
    ("{'m.a': '2d', 'm.b': 1}", "{'meta.a': '2d', 'meta.b': 1}"),
];

#[test]
fn key_conversion() {
    for (user, buckets) in KEYS {
        let made = convert(&spec(json(user))).unwrap_or_else(|error| panic!("{user}: {error}"));
        assert_eq!(made.key, json(buckets), "{user}");
        assert_eq!(made.name, "i");
        // And back, by what is kept as by the key alone.
        let bare = spec(json(buckets));
        for back in [&made, &bare] {
            let back = to_user(&options(), back).unwrap_or_else(|| panic!("{buckets}"));
            assert_eq!(back.key, json(user), "{buckets}");
            assert!(back.original_spec.is_none());
        }
    }
}

#[test]
fn keys_no_user_could_have_asked_for_are_left_out() {
    for buckets in [
        "{z: 1}",
        "{'control.min.x': 1}",
        "{'control.max.x': 1}",
        "{'control.max.x': 1, 'control.min.x': 1}",
        "{'control.min.x': -1, 'control.max.x': -1}",
        "{'control.min.x': 1, 'control.max.x': -1}",
        "{'control.min.x': 1, 'control.max.y': 1}",
        "{'data.x': 1}",
        "{'control.min.x': 1, 'control.max.x': 1, 'data.x': 1}",
        "{'control.min.m': 1, 'control.max.m': 1}",
        "{'control.min.t': 1}",
        "{metadata: 1}",
    ] {
        assert!(
            to_user(&options(), &spec(json(buckets))).is_none(),
            "{buckets}"
        );
    }
    let no_meta = TimeseriesOptions::parse(doc! { "timeField": "t" }.as_ref()).unwrap();
    assert!(to_user(&no_meta, &spec(json("{meta: 1}"))).is_none());
}

#[test]
fn refused_keys() {
    for (key, expected) in [
        ("{x: 'text'}", 72),
        ("{m: 'text'}", 72),
        ("{t: 1, m: 'text'}", 72),
        ("{x: '2dsphere_bucket'}", 67),
        ("{m: '2dsphere_bucket'}", 67),
        ("{}", 67),
        ("{$natural: 1}", 67),
        ("{$natural: -1}", 67),
        ("{$hint: 'i'}", 67),
        ("{x: 'bad'}", 67),
        ("{x: {a: 1}}", 67),
        ("{x: true}", 67),
        ("{x: 0}", 67),
        ("{t: 'hashed'}", 67),
        ("{t: '2dsphere'}", 67),
        ("{m: 1, x: 'bad'}", 67),
        ("{x: {a: 1}, t: 1}", 67),
        ("{m: 'bad'}", 67),
        ("{_id: 'hashed'}", 67),
        ("{x: 'hashed'}", 67),
        ("{m: 1, x: 'hashed'}", 67),
        ("{x: '2d'}", 67),
        ("{'$**': 1}", 67),
        ("{'_id.$**': 1}", 67),
        ("{'x.$**': 1}", 67),
        ("{m: 1, 'x.$**': 1}", 67),
    ] {
        assert_eq!(code(&spec(json(key))), expected, "{key}");
    }
}

#[test]
fn options_that_are_refused() {
    let with = |key: &str, change: fn(&mut IndexSpec)| {
        let mut made = spec(json(key));
        change(&mut made);
        made
    };
    for key in ["{m: 1}", "{t: 1}", "{m: 1, t: -1}", "{'m.loc': '2dsphere'}"] {
        assert!(convert(&with(key, |s| s.sparse = true)).unwrap().sparse);
    }
    for key in ["{x: 1}", "{t: 1, x: 1}", "{'m.loc': '2dsphere', x: 1}"] {
        assert_eq!(code(&with(key, |s| s.sparse = true)), 72, "{key}");
    }
    assert_eq!(code(&with("{m: 1}", |s| s.unique = true)), 72);
    let echoed = convert(&with("{m: '2dsphere'}", |s| {
        s.hidden = true;
        s.others = doc! { "2dsphereIndexVersion": 3 };
    }))
    .unwrap();
    assert!(echoed.hidden);
    assert_eq!(echoed.others, doc! { "2dsphereIndexVersion": 3 });
}

#[test]
fn original_specifications() {
    for (key, filter, kept) in [
        ("{t: 1}", None, false),
        ("{m: 1}", None, false),
        ("{t: 1, m: 1}", None, false),
        ("{x: 1}", None, true),
        ("{m: 1, x: 1}", None, true),
        ("{x: '2dsphere'}", None, true),
        ("{t: 1}", Some("{m: 1}"), true),
        ("{m: 1}", Some("{}"), true),
    ] {
        let mut user = spec(json(key));
        user.partial_filter = filter.map(json);
        user.collation = Some(json("{locale: 'en'}"));
        let made = convert(&user).unwrap();
        let Some(original) = &made.original_spec else {
            assert!(!kept, "{key}");
            continue;
        };
        assert!(kept, "{key}");
        let key = original
            .get("key")
            .as_document()
            .map(|key| key.to_document());
        assert_eq!(key.as_ref(), Some(&user.key));
        assert_eq!(original.get("name").as_str(), Some("i"));
        assert_eq!(original.get("v").as_exact_i64(), Some(2));
        assert!(original.get("collation").as_document().is_some());
        let filter = original.get("partialFilterExpression").as_document();
        assert_eq!(filter.map(|f| f.to_document()), user.partial_filter);
        assert_eq!(
            to_user(&options(), &made).unwrap().partial_filter,
            user.partial_filter
        );
    }
}

#[test]
fn a_given_original_specification_agrees_on_the_collation() {
    let full = json(
        "{locale: 'en_US', caseLevel: false, caseFirst: 'off', strength: 3, numericOrdering: false,
          alternate: 'non-ignorable', maxVariable: 'punct', normalization: false, backwards: false,
          version: '57.1'}",
    );
    let try_with = |original: &str, index: Option<&Document>, default: Option<&Document>| {
        let mut user = spec(json("{x: 1}"));
        user.original_spec = Some(json(original));
        user.collation = index.cloned();
        let origin = CollationOrigin {
            is_given: index != default,
            default,
        };
        to_buckets(&options(), &user, origin).map_err(|error| error.code.0)
    };
    let kept = try_with("{key: {x: 'text'}, name: 'i', v: 2}", None, None).unwrap();
    let kept = kept.original_spec.unwrap();
    let key = kept.get("key").as_document().map(|key| key.to_document());
    assert_eq!(key, Some(json("{x: 'text'}")));
    let given = "{collation: {locale: 'en_US'}}";
    assert!(try_with(given, Some(&full), None).is_ok());
    assert!(try_with(given, Some(&full), Some(&full)).is_ok());
    assert!(try_with("{}", Some(&full), Some(&full)).is_ok());
    assert_eq!(try_with("{}", Some(&full), None).unwrap_err(), 197);
    assert_eq!(try_with("{}", None, Some(&full)).unwrap_err(), 197);
    assert_eq!(try_with(given, None, None).unwrap_err(), 197);
    let stronger = "{collation: {locale: 'en_US', strength: 2}}";
    assert_eq!(try_with(stronger, Some(&full), None).unwrap_err(), 197);
    assert!(try_with("{collation: {locale: 'simple'}}", None, None).is_ok());
}

/// Section 8.6: the span is 3600 seconds.
const FILTERS: &[(&str, &str)] = &[
    ("{}", "{}"),
    ("{m: 5}", "{meta: 5}"),
    ("{'m.a': {$in: [1, 2]}}", "{'meta.a': {$in: [1, 2]}}"),
    (
        "{m: {$gte: 1, $lt: 5}, 'm.b': null}",
        "{meta: {$gte: 1, $lt: 5}, 'meta.b': null}",
    ),
    (
        "{$or: [{m: 1}, {'m.a': {$exists: false}}]}",
        "{$or: [{meta: 1}, {'meta.a': {$exists: false}}]}",
    ),
    (
        "{x: 5}",
        "{$and: [{'control.min.x': {$_internalExprLte: 5}}, {'control.max.x': {$_internalExprGte: 5}}]}",
    ),
    (
        "{x: {$eq: 'a'}}",
        "{$and: [{'control.min.x': {$_internalExprLte: 'a'}}, {'control.max.x': {$_internalExprGte: 'a'}}]}",
    ),
    ("{x: {$lt: 5}}", "{'control.min.x': {$_internalExprLt: 5}}"),
    ("{x: {$lte: 5}}", "{'control.min.x': {$_internalExprLte: 5}}"),
    ("{x: {$gt: 5}}", "{'control.max.x': {$_internalExprGt: 5}}"),
    ("{x: {$gte: 5}}", "{'control.max.x': {$_internalExprGte: 5}}"),
    (
        "{x: {$exists: true}}",
        "{$and: [{'control.min.x': {$exists: true}}, {'control.max.x': {$exists: true}}]}",
    ),
    (
        "{x: {$in: [1, 2]}}",
        "{$or: [{$and: [{'control.min.x': {$_internalExprLte: 1}}, {'control.max.x': {$_internalExprGte: 1}}]},
                {$and: [{'control.min.x': {$_internalExprLte: 2}}, {'control.max.x': {$_internalExprGte: 2}}]}]}",
    ),
    (
        "{$or: [{x: {$lt: 1}}, {m: 2}]}",
        "{$or: [{'control.min.x': {$_internalExprLt: 1}}, {meta: 2}]}",
    ),
    (
        "{x: {$gte: 1, $lt: 9}}",
        "{$and: [{'control.max.x': {$_internalExprGte: 1}}, {'control.min.x': {$_internalExprLt: 9}}]}",
    ),
    (
        "{$and: [{t: {$gt: {$date: '2024-01-01T01:00:00Z'}}}, {m: {$eq: 1}}, {x: {$lt: 3}}]}",
        "{$and: [{meta: {$eq: 1}},
                 {$and: [{$and: [{'control.max.t': {$_internalExprGt: {$date: '2024-01-01T01:00:00Z'}}},
                                 {'control.min.t': {$_internalExprGt: {$date: '2024-01-01T00:00:00Z'}}}]},
                         {'control.min.x': {$_internalExprLt: 3}}]}]}",
    ),
    (
        "{t: {$lt: {$date: '2024-01-01T01:00:00Z'}}}",
        "{$and: [{'control.min.t': {$_internalExprLt: {$date: '2024-01-01T01:00:00Z'}}},
                 {'control.max.t': {$_internalExprLt: {$date: '2024-01-01T02:00:00Z'}}}]}",
    ),
    (
        "{t: {$lte: {$date: '2024-01-01T01:00:00Z'}}}",
        "{$and: [{'control.min.t': {$_internalExprLte: {$date: '2024-01-01T01:00:00Z'}}},
                 {'control.max.t': {$_internalExprLte: {$date: '2024-01-01T02:00:00Z'}}}]}",
    ),
    (
        "{t: {$gt: {$date: '2024-01-01T01:00:00Z'}}}",
        "{$and: [{'control.max.t': {$_internalExprGt: {$date: '2024-01-01T01:00:00Z'}}},
                 {'control.min.t': {$_internalExprGt: {$date: '2024-01-01T00:00:00Z'}}}]}",
    ),
    (
        "{t: {$gte: {$date: '2024-01-01T01:00:00Z'}}}",
        "{$and: [{'control.max.t': {$_internalExprGte: {$date: '2024-01-01T01:00:00Z'}}},
                 {'control.min.t': {$_internalExprGte: {$date: '2024-01-01T00:00:00Z'}}}]}",
    ),
    (
        "{t: {$date: '2024-01-01T01:00:00Z'}}",
        "{$and: [{'control.min.t': {$_internalExprLte: {$date: '2024-01-01T01:00:00Z'}}},
                 {'control.min.t': {$_internalExprGte: {$date: '2024-01-01T00:00:00Z'}}},
                 {'control.max.t': {$_internalExprGte: {$date: '2024-01-01T01:00:00Z'}}},
                 {'control.max.t': {$_internalExprLte: {$date: '2024-01-01T02:00:00Z'}}}]}",
    ),
];

#[test]
fn partial_filters() {
    for (user, buckets) in FILTERS {
        let mut asked = spec(json("{t: 1}"));
        asked.partial_filter = Some(json(user));
        let made = convert(&asked).unwrap_or_else(|error| panic!("{user}: {error}"));
        assert_eq!(made.partial_filter, Some(json(buckets)), "{user}");
    }
    let mut pattern = spec(json("{x: 1}"));
    pattern.partial_filter = Some(json(
        "{x: {$eq: {$regularExpression: {pattern: 'a', options: ''}}}}",
    ));
    assert!(convert(&pattern).is_ok());
}

#[test]
fn partial_filters_that_are_refused() {
    for filter in [
        "{x: {a: 1}}",
        "{x: {$eq: {a: 1}}}",
        "{x: [1]}",
        "{x: {$gt: [1]}}",
        "{x: null}",
        "{x: {$eq: null}}",
        "{x: {$ne: null}}",
        "{x: {$in: [1, null]}}",
        "{x: {$regularExpression: {pattern: 'a', options: ''}}}",
        "{x: {$in: [{$regularExpression: {pattern: 'a', options: ''}}]}}",
        "{x: {$exists: false}}",
        "{t: 5}",
        "{t: {$gt: 'x'}}",
        "{t: {$in: [{$date: {$numberLong: '0'}}, 5]}}",
        "{$or: [{m: {$exists: true}}, {x: null}]}",
        "{$or: [{x: {$exists: true}}, {t: 7}]}",
        "{x: {$type: 'int'}}",
        "{m: 1, $nor: [{x: 1}]}",
    ] {
        let mut asked = spec(json("{t: 1}"));
        asked.partial_filter = Some(json(filter));
        assert_eq!(code(&asked), 5_916_301, "{filter}");
    }
    let mut asked = spec(json("{t: 1}"));
    asked.partial_filter = Some(json("{m: 1}"));
    asked.collation = Some(json("{locale: 'en'}"));
    let default = asked.collation.clone();
    for (is_given, expected) in [(true, Some(85)), (false, None)] {
        let origin = CollationOrigin {
            is_given,
            default: default.as_ref(),
        };
        let made = to_buckets(&options(), &asked, origin);
        assert_eq!(made.err().map(|error| error.code.0), expected);
    }
}

#[test]
fn ttl_indexes() {
    for (key, filter, expected) in [
        ("{t: 1}", Some("{m: 1}"), None),
        ("{t: 1}", Some("{'m.a': {$gt: 1}}"), None),
        ("{t: 1}", None, Some(72)),
        ("{t: 1}", Some("{}"), Some(72)),
        ("{t: 1}", Some("{x: 1}"), Some(72)),
        (
            "{t: 1}",
            Some("{t: {$gt: {$date: {$numberLong: '0'}}}}"),
            Some(72),
        ),
        ("{t: 1}", Some("{m: 1, x: 1}"), Some(72)),
        ("{m: 1}", None, Some(72)),
        ("{m: 1}", Some("{m: 1}"), Some(72)),
        ("{x: 1}", Some("{m: 1}"), Some(72)),
        ("{t: 1, m: 1}", Some("{m: 1}"), Some(67)),
        ("{m: 1, x: 1}", Some("{m: 1}"), Some(67)),
    ] {
        let mut asked = spec(json(key));
        asked.partial_filter = filter.map(json);
        asked.expire_after_seconds = Some(10);
        let made = convert(&asked);
        assert_eq!(made.err().map(|e| e.code.0), expected, "{key} {filter:?}");
    }
}

#[test]
fn the_default_index() {
    use crate::catalog::{Catalog, Namespace};
    let engine = std::sync::Arc::new(nilometer_storage::MemoryEngine::new());
    let catalog = Catalog::open(engine).unwrap();
    let create = |name: &str, options: TimeseriesOptions| {
        let name = Namespace::new("db", name).unwrap();
        catalog
            .create_timeseries(name, [name_byte(); 16], doc! {}, options)
            .unwrap()
    };
    let made = create("ts", options()).indexes.all();
    assert_eq!(made.len(), 1);
    assert!(made[0].is_usable());
    let spec = &made[0].spec;
    assert_eq!(spec.name, "m_1_t_1");
    assert_eq!(
        spec.key,
        convert(&self::spec(json("{m: 1, t: 1}"))).unwrap().key
    );
    assert_eq!(to_user(&options(), spec).unwrap().key, json("{m: 1, t: 1}"));
    assert!(spec.original_spec.is_none());
    let no_meta = TimeseriesOptions::parse(doc! { "timeField": "t" }.as_ref()).unwrap();
    assert!(create("bare", no_meta).indexes.all().is_empty());
}

/// Collections of one test are told apart.
fn name_byte() -> u8 {
    use std::sync::atomic::{AtomicU8, Ordering};
    static NEXT: AtomicU8 = AtomicU8::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
