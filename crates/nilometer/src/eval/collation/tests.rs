//! Options, orders and sort keys.

use std::collections::HashSet;

use nilometer_bson::{Value, array, doc};

use super::*;

fn collation(spec: Document) -> Collation {
    Collation::parse(spec.as_ref(), "collation").unwrap()
}

fn refused(spec: Document) -> (i32, String) {
    let error = Collation::parse(spec.as_ref(), "collation").unwrap_err();
    (error.code.0, error.message)
}

fn order(spec: Document, a: &str, b: &str) -> Ordering {
    collation(spec).compare(ValueRef::String(a), ValueRef::String(b))
}

#[test]
fn listings_show_every_option() {
    let format_document = collation(doc! {"locale": "en"}).to_document();
    let all = doc! {
        "locale": "en", "caseLevel": false, "caseFirst": "off", "strength": 3,
        "numericOrdering": false, "alternate": "non-ignorable", "maxVariable": "punct",
        "normalization": false, "backwards": false, "version": "57.1",
    };
    assert_eq!(format_document, Some(all.clone()));
    // The listed options can be parsed again, with the same result.
    assert_eq!(collation(all), collation(doc! {"locale": "en"}));
    assert_eq!(
        collation(doc! {"locale": "simple", "strength": 1}),
        Collation::SIMPLE
    );
    let shows = |locale: &str, field: &str, value: Value| {
        let format_document = collation(doc! {"locale": locale}).to_document().unwrap();
        nilometer_bson::order::equal(format_document.get(field), value.as_ref())
    };
    assert!(shows("da", "caseFirst", "upper".into()));
    assert!(shows("th", "alternate", "shifted".into()));
    assert!(shows("fr_CA", "backwards", true.into()));
    assert!(shows("vi", "normalization", true.into()));
}

#[test]
fn wrong_documents_are_refused() {
    let with = |name: &str, value: Value| {
        let mut spec = nilometer_bson::DocumentBuilder::new();
        spec.append("locale", "en").append(name, value);
        refused(spec.finish())
    };
    assert_eq!(refused(doc! {}).0, 40_414);
    assert_eq!(refused(doc! {"strength": 2}).0, 40_414);
    assert_eq!(refused(doc! {"locale": Value::Null}).0, 40_414);
    assert_eq!(refused(doc! {"locale": 5}).0, 14);
    assert_eq!(with("bogus", 1.into()).0, 40_415);
    assert_eq!(with("locale", "de".into()).0, 40_413);
    assert_eq!(with("strength", "x".into()).0, 14);
    assert_eq!(with("strength", true.into()).0, 14);
    assert_eq!(with("strength", 0.into()).0, 2);
    assert_eq!(with("strength", 6.into()).0, 51_024);
    assert_eq!(with("strength", (-1i64).into()).0, 51_024);
    assert_eq!(with("caseLevel", 1.into()).0, 14);
    assert_eq!(with("numericOrdering", "x".into()).0, 14);
    assert_eq!(with("normalization", 1.into()).0, 14);
    assert_eq!(with("backwards", "x".into()).0, 14);
    assert_eq!(with("caseFirst", "sideways".into()).0, 2);
    assert_eq!(with("alternate", "no".into()).0, 2);
    assert_eq!(with("maxVariable", "no".into()).0, 2);
    assert_eq!(with("maxVariable", 1.into()).0, 14);
    assert_eq!(with("version", "99".into()).0, 161);
    // Truncated to an integer, as in MongoDB.
    assert_eq!(
        collation(doc! {"locale": "en", "strength": 2.5}),
        collation(doc! {"locale": "en", "strength": 2}),
    );
}

#[test]
fn locales_are_matched_exactly() {
    let text = |locale: &str| refused(doc! {"locale": locale});
    assert_eq!(
        text("zz_nope"),
        (
            2,
            "Field 'locale' is invalid in: { locale: \"zz_nope\" }".to_owned()
        )
    );
    assert_eq!(
        text("en-US"),
        (
            2,
            "Field 'locale' is invalid in: { locale: \"en-US\" }. Did you mean 'en_US'?".to_owned()
        )
    );
    for bad in [
        "",
        "EN",
        "en_US@",
        "en@collation=phonebook",
        "de@collation=",
        "de@x=y",
        "a b",
    ] {
        assert_eq!(text(bad).0, 2, "{bad}");
    }
    assert_eq!(text("de@collation=search").0, 115);
    let mut seen = HashSet::new();
    for name in locale::all() {
        let made = collation(doc! {"locale": name.as_str()});
        assert_eq!(
            made.compare(ValueRef::String("a"), ValueRef::String("b")),
            Ordering::Less
        );
        assert!(seen.insert(name));
    }
    assert!(seen.len() > 100);
}

#[test]
fn each_option_has_its_effect() {
    use Ordering::{Equal, Greater, Less};
    let en = |name: &str, value: Value| {
        let mut spec = nilometer_bson::DocumentBuilder::new();
        spec.append("locale", "en").append(name, value);
        spec.finish()
    };
    let strength = |n: i32| en("strength", n.into());
    assert_eq!(order(strength(1), "résumé", "Resume"), Equal);
    assert_eq!(order(strength(2), "résumé", "resume"), Greater);
    assert_eq!(order(strength(2), "Resume", "resume"), Equal);
    assert_eq!(order(strength(3), "resume", "Resume"), Less);
    // Lower-case letters first, but case decides only between equal letters.
    assert_eq!(order(strength(3), "a", "A"), Less);
    assert_eq!(order(strength(3), "A", "b"), Less);
    let shifted = |strength: i32, max: &str| {
        doc! {"locale": "en", "strength": strength, "alternate": "shifted", "maxVariable": max}
    };
    assert_eq!(
        order(shifted(3, "punct"), "black-bird", "black bird"),
        Equal
    );
    assert_ne!(order(shifted(4, "punct"), "black-bird", "blackbird"), Equal);
    assert_eq!(order(shifted(3, "space"), "black bird", "blackbird"), Equal);
    assert_ne!(order(shifted(3, "space"), "black-bird", "blackbird"), Equal);
    assert_eq!(
        order(en("numericOrdering", true.into()), "a10", "a9"),
        Greater
    );
    assert_eq!(
        order(en("numericOrdering", false.into()), "a10", "a9"),
        Less
    );
    assert_eq!(order(en("caseFirst", "upper".into()), "A", "a"), Less);
    assert_eq!(order(en("caseFirst", "lower".into()), "A", "a"), Greater);
    let case_level = doc! {"locale": "en", "strength": 1, "caseLevel": true};
    assert_eq!(order(case_level.clone(), "e", "é"), Equal);
    assert_eq!(order(case_level, "e", "E"), Less);
    // Composed and decomposed forms are equal, whatever the value of `normalization`.
    for normalization in [false, true] {
        let spec = en("normalization", normalization.into());
        assert_eq!(order(spec, "\u{e9}", "e\u{301}"), Equal);
    }
    assert_eq!(order(strength(5), "\u{5d0}\u{591}", "\u{5d0}"), Greater);
    assert_eq!(order(strength(4), "\u{5d0}\u{591}", "\u{5d0}"), Equal);
}

/// Also for a locale with tailored rules, and against the locale's own direction.
#[test]
fn the_second_level_can_run_backwards() {
    for locale in ["en", "es", "hr", "fr", "fr_CA", "de@collation=phonebook"] {
        let spec = |backwards: bool| doc! {"locale": locale, "backwards": backwards};
        assert_eq!(
            order(spec(true), "cot\u{e9}", "c\u{f4}te"),
            Ordering::Greater,
            "{locale}"
        );
        assert_eq!(
            order(spec(false), "cot\u{e9}", "c\u{f4}te"),
            Ordering::Less,
            "{locale}"
        );
    }
    assert_eq!(
        order(doc! {"locale": "fr_CA"}, "coté", "côte"),
        Ordering::Greater
    );
}

#[test]
fn locales_have_tailored_rules() {
    use Ordering::{Greater, Less};
    let of = |locale: &str, a, b| order(doc! {"locale": locale}, a, b);
    assert_eq!(of("de", "ä", "b"), Less);
    assert_eq!(of("sv", "ä", "z"), Greater);
    assert_eq!(of("de", "Ärger", "Afrika"), Greater);
    assert_eq!(of("de@collation=phonebook", "Ärger", "Afrika"), Less);
    assert_eq!(of("es", "ch", "cz"), Less);
    assert_eq!(of("es@collation=traditional", "ch", "cz"), Greater);
    assert_eq!(of("zh", "北", "安"), Greater);
    assert_eq!(of("zh_Hant", "北", "安"), Less);
    assert_eq!(of("en_US_POSIX", "a", "B"), Greater);
    assert_eq!(of("da", "A", "a"), Less);
}

#[test]
fn only_strings_follow() {
    let folded = collation(doc! {"locale": "en", "strength": 1});
    let equal = |a: Value, b: Value| folded.compare(a.as_ref(), b.as_ref()).is_eq();
    assert!(equal(
        doc! {"a": array!["X"]}.into(),
        doc! {"a": array!["x"]}.into()
    ));
    assert!(!equal(doc! {"A": 1}.into(), doc! {"a": 1}.into()));
    let mut set = HashSet::new();
    for text in ["a", "A", "á", "b"] {
        set.insert(folded.key(array![text]));
    }
    assert_eq!(set.len(), 2);
    assert_eq!(
        Collation::SIMPLE.key("a".into()),
        Collation::SIMPLE.key("a".into())
    );
    assert_ne!(
        Collation::SIMPLE.key("a".into()),
        Collation::SIMPLE.key("A".into())
    );
}

/// Edge-case pieces of text.
const PIECES: &[&str] = &[
    "a",
    "A",
    "á",
    "a\u{301}",
    "\u{301}",
    "ä",
    "ae",
    "æ",
    "b",
    "ß",
    "ss",
    "SS",
    "z",
    "0",
    "1",
    "9",
    "10",
    "007",
    "٣",
    " ",
    "-",
    "_",
    ".",
    "\u{ad}",
    "$",
    "€",
    "\0",
    "\u{1}",
    "\u{fffe}",
    "\u{10ffff}",
    "ﬁ",
    "fi",
    "ı",
    "i",
    "İ",
    "I",
    "ñ",
    "ch",
    "ll",
    "あ",
    "ア",
    "ｱ",
    "가",
    "각",
    "\u{1100}",
    "\u{1161}",
    "北",
    "安",
    "😀",
    "ก",
    "เ",
    "ด",
    "\u{5d0}",
    "\u{591}",
    "Ω",
    "ω",
    "\u{fffd}",
    "dž",
    "\u{345}",
    "\u{f71}",
    "\u{f72}",
];

fn orders() -> Vec<Collation> {
    let mut found = Vec::new();
    for locale in [
        "en",
        "de@collation=phonebook",
        "sv",
        "fr_CA",
        "ja",
        "ko",
        "zh",
        "th",
        "lt",
        "vi",
        "tr",
        "da",
        "en_US_POSIX",
    ] {
        for strength in 1..=5 {
            found.push(collation(doc! {"locale": locale, "strength": strength}));
        }
    }
    for strength in 1..=5 {
        for shape in [
            doc! {"locale": "en", "numericOrdering": true, "strength": strength},
            doc! {"locale": "en", "alternate": "shifted", "strength": strength},
            doc! {"locale": "en", "alternate": "shifted", "maxVariable": "space", "strength": strength},
            doc! {"locale": "en", "caseLevel": true, "strength": strength},
            doc! {"locale": "en", "caseFirst": "upper", "strength": strength},
            doc! {"locale": "en", "caseLevel": true, "caseFirst": "upper", "strength": strength},
            doc! {"locale": "es", "backwards": true, "strength": strength},
        ] {
            found.push(collation(shape));
        }
    }
    found
}

/// Checks that sort keys compare like the strings.
fn check_keys(collation: &Collation, a: &str, b: &str) {
    let key = |text: &str| {
        let mut out = Vec::new();
        collation.sort_key(text, &mut out);
        out
    };
    let compared = collation.compare(ValueRef::String(a), ValueRef::String(b));
    assert_eq!(
        key(a).cmp(&key(b)),
        compared,
        "{collation:?}: {a:?} and {b:?}"
    );
}

#[test]
fn sort_keys_order_like_strings() {
    let orders = orders();
    for seed in 1..=nilometer_storage::testing::effort(4, 30, 30) {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut next = move |below: usize| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) as usize % below
        };
        let mut text = || -> String {
            let length = next(5);
            (0..length).map(|_| PIECES[next(PIECES.len())]).collect()
        };
        let texts: Vec<String> = (0..8).map(|_| text()).collect();
        for collation in &orders {
            for a in &texts {
                for b in &texts {
                    check_keys(collation, a, b);
                }
            }
        }
    }
}
