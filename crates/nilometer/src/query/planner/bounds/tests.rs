//! Compares bounds with a naive implementation: every matching document has a key inside, exact bounds contain no key
//! of another document, and the encoded bounds agree with the values.

use nilometer_bson::path::FieldPath;
use nilometer_bson::path::keys::visit_keys;
use nilometer_bson::testing::awkward_values;
use nilometer_bson::{Document, DocumentBuilder, Value, array, doc, key_string};

use super::*;
use crate::eval::matcher::MatchExpression;
use crate::eval::{EvalContext, ParseContext};

/// A small deterministic random generator.
struct Dice(u64);

impl Dice {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % bound as u64) as usize
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

struct World {
    dice: Dice,
    values: Vec<Value>,
}

const PATHS: &[&str] = &["a", "b", "a.b", "a.c", "a.0", "a.0.b"];

impl World {
    fn new(seed: u64) -> Self {
        let awkward = awkward_values();
        let values = awkward.into_iter().map(|(_, value)| value);
        Self {
            dice: Dice(seed),
            values: values.filter(|v| !v.is_missing()).collect(),
        }
    }

    fn scalar(&mut self) -> Value {
        // Few distinct values, so that equal ones are frequent.
        match self.dice.below(8) {
            0 => Value::Null,
            1 => Value::Int32(1),
            2 => Value::Double(2.0),
            3 => Value::from("a"),
            4 => Value::from("ab"),
            _ => self.dice.pick(&self.values).clone(),
        }
    }

    fn value(&mut self, depth: usize) -> Value {
        match self.dice.below(4) {
            0 if depth > 0 => {
                let count = self.dice.below(3);
                let list: Vec<Value> = (0..count).map(|_| self.value(depth - 1)).collect();
                list.into()
            }
            1 if depth > 0 => self.document(depth - 1).into(),
            _ => self.scalar(),
        }
    }

    fn document(&mut self, depth: usize) -> Document {
        let mut out = DocumentBuilder::new();
        for name in ["a", "b", "c"] {
            if self.dice.below(4) > 0 {
                out.append(name, self.value(depth));
            }
        }
        out.finish()
    }

    fn operators(&mut self, depth: usize) -> Document {
        let name = *self.dice.pick(&[
            "$eq",
            "$gt",
            "$gte",
            "$lt",
            "$lte",
            "$ne",
            "$in",
            "$nin",
            "$exists",
            "$type",
            "$regex",
            "$not",
            "$elemMatch",
            "$mod",
            "$size",
            "$_internalExprLt",
            "$_internalExprEq",
            "$_internalExprGte",
        ]);
        let operand: Value = match name {
            "$in" | "$nin" => array![self.value(1), self.scalar()],
            "$exists" => (self.dice.below(2) == 0).into(),
            "$type" => (*self.dice.pick(&[
                "number",
                "int",
                "string",
                "null",
                "array",
                "object",
                "date",
                "bool",
                "undefined",
            ]))
            .into(),
            "$regex" => (*self.dice.pick(&["^a", "^ab", "b", "^a.*", "^a?b"])).into(),
            "$not" | "$elemMatch" if depth > 0 => self.operators(depth - 1).into(),
            "$not" | "$elemMatch" => doc! {"$gt": self.scalar()}.into(),
            "$mod" => array![2, 1],
            "$size" => Value::Int32(1),
            _ => self.value(1),
        };
        let mut out = DocumentBuilder::new();
        out.append(name, operand);
        out.finish()
    }

    fn filter(&mut self, depth: usize) -> Document {
        let mut out = DocumentBuilder::new();
        match self.dice.below(7) {
            0 if depth > 0 => {
                out.append(
                    "$and",
                    array![self.filter(depth - 1), self.filter(depth - 1)],
                );
            }
            1 if depth > 0 => {
                out.append(
                    "$or",
                    array![self.filter(depth - 1), self.filter(depth - 1)],
                );
            }
            2 if depth > 0 => {
                let inner = doc! {"b": self.operators(1), "c": self.operators(0)};
                out.append("a", doc! {"$elemMatch": inner});
            }
            _ => {
                let path = *self.dice.pick(PATHS);
                out.append(path, self.operators(1));
            }
        }
        out.finish()
    }

    fn shape(&mut self) -> IndexShape {
        let count = 1 + self.dice.below(3);
        let mut parts: Vec<PartShape> = Vec::new();
        while parts.len() < count {
            let path = *self.dice.pick(PATHS);
            if parts.iter().all(|part| &*part.path != path) {
                parts.push(PartShape {
                    path: path.into(),
                    descending: self.dice.below(2) == 0,
                    form: PartForm::Ordered,
                    multikey: false,
                });
            }
        }
        IndexShape {
            parts,
            collation: Collation::default(),
            same_collation: true,
        }
    }
}

/// Returns the keys of a document and the parts it makes multikey; `None` if it cannot be indexed.
fn keys_of(shape: &IndexShape, document: &Document) -> Option<(Vec<Vec<Value>>, Vec<bool>)> {
    let paths: Vec<FieldPath> = shape
        .parts
        .iter()
        .map(|part| FieldPath::parse_lenient(&part.path))
        .collect();
    let mut keys = Vec::new();
    let multikey = visit_keys(&paths, document.as_ref(), &mut |key| {
        keys.push(key.iter().map(|value| value.to_value()).collect());
    })
    .ok()?;
    Some((keys, multikey))
}

fn is_inside(bounds: &IndexBounds, key: &[Value]) -> bool {
    bounds.parts.iter().zip(key).all(|(part, value)| {
        let mut intervals = part.intervals.iter();
        intervals.any(|interval| interval.contains(value, None))
    })
}

/// Returns the number of the interval of the first part with several that contains the value of a key, and how many there are.
fn progress(bounds: &IndexBounds, shape: &IndexShape, key: &[Value]) -> Option<(usize, usize)> {
    let mut parts = bounds.parts.iter().zip(&shape.parts).zip(key);
    let ((part, of), value) = parts.find(|((part, _), _)| part.intervals.len() > 1)?;
    let mut intervals = part.intervals.iter();
    let at = intervals.position(|interval| interval.contains(value, None))?;
    let all = part.intervals.len();
    Some((if of.descending { all - 1 - at } else { at }, all))
}

fn parse(filter: &Document) -> Option<MatchExpression> {
    MatchExpression::parse(filter.as_ref(), &ParseContext::new())
        .ok()
        .map(MatchExpression::simplify)
}

/// Returns the shape of an index of two ascending parts.
fn ascending(paths: [&str; 2], multikey: bool) -> IndexShape {
    let parts = paths.map(|path| PartShape {
        path: path.into(),
        descending: false,
        form: PartForm::Ordered,
        multikey,
    });
    IndexShape {
        parts: parts.into(),
        collation: Collation::default(),
        same_collation: true,
    }
}

#[test]
fn matching_documents_have_a_key_inside() {
    let mut world = World::new(0x9E37_79B9_7F4A_7C15);
    let context = EvalContext::default();
    let (mut bounded, mut exact) = (0, 0);
    for _ in 0..1_500 {
        let mut shape = world.shape();
        let mut stored = Vec::new();
        for _ in 0..12 {
            let document = world.document(2);
            if let Some((keys, multikey)) = keys_of(&shape, &document) {
                for (part, flag) in shape.parts.iter_mut().zip(multikey) {
                    part.multikey |= flag;
                }
                stored.push((document, keys));
            }
        }
        for _ in 0..8 {
            let filter = world.filter(2);
            let Some(parsed) = parse(&filter) else {
                continue;
            };
            let conjuncts = parsed.into_conjuncts();
            let assigned = Assigned::of(&conjuncts, &shape);
            bounded += usize::from(assigned.used.contains(&true));
            exact += usize::from(assigned.covered.contains(&true));
            for (document, keys) in &stored {
                let passes: Vec<bool> = conjuncts
                    .iter()
                    .map(|c| c.matches(document.as_ref(), &context).unwrap())
                    .collect();
                let inside = keys.iter().any(|key| is_inside(&assigned.bounds, key));
                if passes.iter().all(|passes| *passes) {
                    assert!(
                        inside,
                        "{filter:?} matches {document:?}, which has no key within {:?} of {:?}",
                        assigned.bounds.explain(&shape, false),
                        shape.parts
                    );
                }
                if inside {
                    for (covered, passes) in assigned.covered.iter().zip(&passes) {
                        assert!(
                            *passes || !covered,
                            "{filter:?} does not match {document:?}, which has a key within {:?} of {:?}",
                            assigned.bounds.explain(&shape, false),
                            shape.parts
                        );
                    }
                }
            }
        }
    }
    assert!(
        bounded > 1_000 && exact > 300,
        "{bounded} bounded, {exact} exact"
    );
}

#[test]
fn bytes_agree_with_values() {
    let mut world = World::new(0xD1B5_4A32_D192_ED03);
    let mut progresses = 0;
    for _ in 0..400 {
        let shape = world.shape();
        let mut keys: Vec<(Vec<u8>, Vec<Value>)> = (0..40)
            .map(|_| {
                let values: Vec<Value> = shape.parts.iter().map(|_| world.value(1)).collect();
                let refs = values.iter().map(Value::as_ref);
                let mut bytes = key_string::encode(refs, shape.order()).0;
                bytes.extend_from_slice(&[0, 0, 1]);
                (bytes, values)
            })
            .collect();
        keys.sort_by(|a, b| a.0.cmp(&b.0));
        let mut conjuncts = Vec::new();
        for part in shape.parts.clone() {
            let mut filter = DocumentBuilder::new();
            filter.append(&part.path, world.operators(1));
            conjuncts.extend(parse(&filter.finish()));
        }
        let bounds = Assigned::of(&conjuncts, &shape).bounds;
        let bytes = KeyBounds::new(&bounds, &shape);
        let expected: Vec<&[u8]> = keys
            .iter()
            .filter(|(_, values)| is_inside(&bounds, values))
            .map(|(key, _)| key.as_slice())
            .collect();
        assert_eq!(forward(&bytes, &keys), expected, "{:?}", bounds.parts);
        for (key, values) in keys.iter().filter(|(_, values)| is_inside(&bounds, values)) {
            let told = bytes.progress(key);
            let known = told.is_none() || told == progress(&bounds, &shape, values);
            assert!(known, "{told:?} in {:?}", bounds.parts);
            progresses += usize::from(told.is_some());
        }
        let mut backward = backward(&bytes, &keys);
        backward.reverse();
        assert_eq!(backward, expected, "{:?}", bounds.parts);
        let ranges = bytes.ranges();
        for key in expected {
            let mut holds = ranges
                .iter()
                .map(|(start, end)| start.as_slice() <= key && key < end.as_slice());
            assert!(holds.any(|holds| holds), "{:?}", bounds.parts);
        }
        assert!(ranges.windows(2).all(|pair| pair[0].0 <= pair[1].0));
    }
    assert!(progresses > 100, "{progresses}");
}

#[test]
fn behind_the_last_interval_the_next_value_is_sought() {
    let shape = ascending(["a", "b"], false);
    let bounds = |a: Value| {
        let of_a = doc! {"a": doc! {"$in": a}};
        let of_b = doc! {"b": doc! {"$gt": 3, "$lt": 10}};
        let conjuncts: Vec<_> = [of_a, of_b].iter().filter_map(parse).collect();
        KeyBounds::new(&Assigned::of(&conjuncts, &shape).bounds, &shape)
    };
    let both = bounds(array![1, 5]);
    let key = |a: i32, b: i32| {
        let values = [Value::from(a), Value::from(b)];
        key_string::encode(values.iter().map(Value::as_ref), shape.order()).0
    };
    let next = bounds(array![5]).start();
    let position = |a, b| both.check_forward(&key(a, b)).unwrap();
    assert_eq!(position(1, 10), Position::Seek(next.clone()));
    assert_eq!(position(2, 4), Position::Seek(next));
    assert_eq!(position(5, 4), Position::Inside);
    assert_eq!(position(5, 10), Position::Past);
}

/// Returns the keys that a forward scan finds when it follows all seeks.
fn forward<'a>(bounds: &KeyBounds, keys: &'a [(Vec<u8>, Vec<Value>)]) -> Vec<&'a [u8]> {
    let mut found = Vec::new();
    if bounds.is_empty() {
        return found;
    }
    let (mut at, end) = (bounds.start(), bounds.end());
    while let Some((key, _)) = keys.iter().find(|(key, _)| *key >= at) {
        if end.as_ref().is_some_and(|end| key >= end) {
            break;
        }
        match bounds.check_forward(key).unwrap() {
            Position::Inside => {
                if found.last() != Some(&key.as_slice()) {
                    found.extend(keys.iter().filter(|(k, _)| k == key).map(|(k, _)| &k[..]));
                }
                at = [key.as_slice(), &[0]].concat();
            }
            Position::Seek(to) => {
                assert!(to > *key, "a seek continues");
                at = to;
            }
            Position::Past => break,
        }
    }
    found
}

/// Returns the keys that a backward scan finds.
fn backward<'a>(bounds: &KeyBounds, keys: &'a [(Vec<u8>, Vec<Value>)]) -> Vec<&'a [u8]> {
    let mut found = Vec::new();
    if bounds.is_empty() {
        return found;
    }
    let (start, mut end) = (bounds.start(), bounds.end());
    loop {
        let below = keys.iter().rev();
        let next = below
            .filter(|(key, _)| end.as_ref().is_none_or(|end| key < end))
            .find(|(key, _)| *key >= start);
        let Some((key, _)) = next else {
            break;
        };
        match bounds.check_backward(key).unwrap() {
            Position::Inside => {
                found.extend(keys.iter().filter(|(k, _)| k == key).map(|(k, _)| &k[..]));
                end = Some(key.clone());
            }
            Position::Seek(to) => {
                assert!(to <= *key, "a seek continues");
                end = Some(to);
            }
            Position::Past => break,
        }
    }
    found
}

fn shown(filter: &Document, paths: &[(&str, bool)], backward: bool) -> String {
    let shape = IndexShape {
        parts: paths
            .iter()
            .map(|(path, descending)| PartShape {
                path: (*path).into(),
                descending: *descending,
                form: PartForm::Ordered,
                multikey: false,
            })
            .collect(),
        collation: Collation::default(),
        same_collation: true,
    };
    let conjuncts = parse(filter).unwrap().into_conjuncts();
    let bounds = Assigned::of(&conjuncts, &shape).bounds;
    let texts = bounds.explain(&shape, backward);
    let mut out = Vec::new();
    for element in texts.iter() {
        for text in element.value().as_array().unwrap().iter() {
            out.push(format!("{}: {}", element.name(), text.as_str().unwrap()));
        }
    }
    out.join("; ")
}

#[test]
fn texts_are_those_of_explain() {
    let a = &[("a", false)][..];
    let cases: Vec<(Document, &str)> = vec![
        (doc! {"a": 5}, "a: [5, 5]"),
        (doc! {"a": 5.0}, "a: [5.0, 5.0]"),
        (doc! {"a": doc! {"$gt": 5.0}}, "a: (5.0, inf.0]"),
        (doc! {"a": doc! {"$lt": 5}}, "a: [-inf.0, 5)"),
        (doc! {"a": doc! {"$gt": 1, "$lte": 3}}, "a: (1, 3]"),
        (
            doc! {"a": doc! {"$in": array![3, 1, 2.5]}},
            "a: [1, 1]; a: [2.5, 2.5]; a: [3, 3]",
        ),
        (
            doc! {"a": doc! {"$ne": 5}},
            "a: [MinKey, 5); a: (5, MaxKey]",
        ),
        (doc! {"a": Value::Null}, "a: [null, null]"),
        (doc! {"a": doc! {"$exists": true}}, "a: [MinKey, MaxKey]"),
        (doc! {"a": doc! {"$gt": "x"}}, "a: (\"x\", {})"),
        (
            doc! {"a": doc! {"$regex": "^ab"}},
            "a: [\"ab\", \"ac\"); a: [/^ab/, /^ab/]",
        ),
        (
            doc! {"a": doc! {"$gte": Value::DateTime(7)}},
            "a: [new Date(7), new Date(9223372036854775807)]",
        ),
        (doc! {"a": doc! {"$lt": true}}, "a: [false, true)"),
        (doc! {"a": doc! {"$type": "number"}}, "a: [nan.0, inf.0]"),
        (doc! {"a": doc! {"x": 1}}, "a: [{ x: 1 }, { x: 1 }]"),
    ];
    for (filter, expected) in cases {
        assert_eq!(shown(&filter, a, false), expected, "{filter:?}");
    }
    assert_eq!(
        shown(
            &doc! {"a": doc! {"$gt": 5}},
            &[("a", true), ("b", false)],
            false
        ),
        "a: [inf.0, 5); b: [MinKey, MaxKey]"
    );
    assert_eq!(
        shown(&doc! {"a": doc! {"$in": array![1, 2]}}, a, true),
        "a: [2, 2]; a: [1, 1]"
    );
}

#[test]
fn another_collation_leaves_texts_unbounded() {
    let mut shape = World::new(7).shape();
    shape.parts.truncate(1);
    shape.parts[0].path = "a".into();
    shape.same_collation = false;
    let bounded = |filter: Document| IndexBounds::of(&parse(&filter).unwrap(), &shape).is_some();
    assert!(!bounded(doc! {"a": "x"}));
    assert!(!bounded(doc! {"a": doc! {"$in": array![1, "x"]}}));
    assert!(!bounded(doc! {"a": doc! {"b": 1}}));
    assert!(bounded(doc! {"a": 1}));
    assert!(bounded(doc! {"a": doc! {"$gt": Value::DateTime(1)}}));
}

#[test]
fn elements_of_one_array_are_bounded_together_only_by_elem_match() {
    let shape = ascending(["a.b", "a.c"], true);
    let bounded = |filter: Document| -> Vec<bool> {
        let conjuncts = parse(&filter).unwrap().into_conjuncts();
        let bounds = Assigned::of(&conjuncts, &shape).bounds;
        bounds.parts.iter().map(|p| !p.is_all()).collect()
    };
    assert_eq!(bounded(doc! {"a.b": 1, "a.c": 2}), [true, false]);
    let inner = doc! {"b": 1, "c": 2};
    assert_eq!(
        bounded(doc! {"a": doc! {"$elemMatch": inner}}),
        [true, true]
    );
    assert_eq!(
        bounded(doc! {"a": doc! {"$elemMatch": doc! {"b": 1}}, "a.c": 2}),
        [true, false]
    );
}
