//! Sort patterns such as `{a: 1, "b.c": -1}`, the keys they extract from documents, and the order
//! of keys.
//!
//! ```text
//! pattern ──parse──▶ SortPattern ──extract(document)──▶ SortKey ──compare──▶ order
//! ```
//!
//! A missing field sorts as null. A path that meets an array has several values: an ascending sort
//! uses the least, a descending one the greatest. Paths into the same array are expanded together,
//! element by element, so that a key is always one that an index would contain. Paths into two
//! different arrays are error 2.
//!
//! Used by `$sort`, `find`'s sort, `$top`, `$bottom` and `$setWindowFields`. Spilling and merging
//! are done by the executor.

use std::cmp::Ordering;
use std::sync::Arc;

use nilometer_bson::order::Collator;
use nilometer_bson::path::FieldPath;
use nilometer_bson::path::keys::{KeyError, plain_value, visit_keys};
use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

use super::matcher::TextTest;
use super::projection::MetaField;
use super::{Collation, Dependencies, EvalContext, ParseContext, expression};
use crate::error::{Error, Result, location};

/// Most fields a sort pattern may name.
pub const SORT_KEYS_MAX: usize = 32;

/// The name of the text score in a pattern that explain shows.
const SHOWN_TEXT_SCORE: &str = "$computed0";

/// What one part of a pattern sorts by.
#[derive(Clone, Debug)]
pub enum SortBy {
    /// A field.
    Field(FieldPath),
    /// `{$meta: "randVal"}`: a random number for each document.
    Random,
    /// `{$meta: "textScore"}` where no stage adds the score to documents: in writes.
    TextScore(Arc<TextTest>),
}

/// One part of a pattern.
#[derive(Clone, Debug)]
pub struct SortPart {
    /// Field or random value.
    pub by: SortBy,
    /// True for -1.
    pub descending: bool,
}

impl SortPart {
    /// True if it sorts by the text score.
    fn is_text_score(&self) -> bool {
        match &self.by {
            SortBy::Field(path) => path.as_str() == MetaField::TextScore.carrier(),
            SortBy::TextScore(_) => true,
            SortBy::Random => false,
        }
    }
}

/// A parsed sort pattern.
#[derive(Clone, Debug)]
pub struct SortPattern {
    parts: Vec<SortPart>,
    /// The fields' paths, in order, for keys that need all at once.
    paths: Vec<FieldPath>,
    collation: Collation,
}

/// The values a document is sorted by. Compared with [`SortPattern::compare`].
#[derive(Clone, Debug)]
pub enum SortKey {
    /// Key of a pattern with one part.
    One(Value),
    /// Key of a pattern with two parts.
    Two([Value; 2]),
    /// Key of a pattern with more parts.
    Many(Arc<[Value]>),
}

impl SortKey {
    /// Returns the values, in the order of the pattern's parts.
    pub fn values(&self) -> &[Value] {
        match self {
            Self::One(value) => std::slice::from_ref(value),
            Self::Two(values) => values,
            Self::Many(values) => values,
        }
    }

    /// Creates the key with these values.
    pub(crate) fn from_values(values: impl IntoIterator<Item = Value>) -> Self {
        let mut values = values.into_iter();
        match (values.next(), values.next(), values.next()) {
            (Some(only), None, _) => Self::One(only),
            (Some(first), Some(second), None) => Self::Two([first, second]),
            (first, second, third) => {
                let front = [first, second, third].into_iter().flatten();
                Self::Many(front.chain(values).collect())
            }
        }
    }

    /// Returns the key as the array shown by `{$meta: "sortKey"}`.
    pub fn to_array(&self) -> Value {
        Value::from(self.values().to_vec())
    }

    /// Returns the approximate memory use in bytes.
    pub fn memory_bytes(&self) -> usize {
        let heap: usize = self.values().iter().map(super::memory_bytes).sum();
        size_of::<Self>() + heap
    }
}

impl SortPattern {
    /// Parses a pattern with at least one field.
    pub fn parse(pattern: DocRef<'_>, ctx: &ParseContext) -> Result<Self> {
        let mut parts = Vec::new();
        let mut paths: Vec<FieldPath> = Vec::new();
        for element in pattern {
            let part = parse_part(element.name(), element.value())?;
            if let SortBy::Field(path) = &part.by {
                if paths.contains(path) {
                    return Err(Error::location(
                        location::SORT_FIELD_TWICE,
                        format!("Field name duplication not allowed: {}", path.as_str()),
                    ));
                }
                paths.push(path.clone());
            }
            parts.push(part);
        }
        if parts.is_empty() {
            return Err(Error::location(
                location::SORT_EMPTY,
                "$sort stage must have at least one sort key",
            ));
        }
        if parts.len() > SORT_KEYS_MAX {
            return Err(Error::location(
                location::TOO_MANY_KEY_FIELDS,
                "too many compound keys",
            ));
        }
        Ok(Self {
            parts,
            paths,
            collation: Collation::of(ctx),
        })
    }

    /// Creates a pattern of one field.
    pub fn by_field(path: &str, descending: bool, ctx: &ParseContext) -> Result<Self> {
        let direction = if descending { -1 } else { 1 };
        let mut pattern = DocumentBuilder::new();
        pattern.append(path, direction);
        Self::parse(pattern.finish().as_ref(), ctx)
    }

    /// Returns the ascending pattern by the field that carries metadata.
    pub fn by_carrier(field: MetaField) -> Self {
        let path = FieldPath::parse_lenient(field.carrier());
        Self {
            parts: vec![SortPart {
                by: SortBy::Field(path.clone()),
                descending: false,
            }],
            paths: vec![path],
            collation: Collation::SIMPLE,
        }
    }

    /// True if it sorts by the text score.
    pub fn reads_text_score(&self) -> bool {
        self.parts.iter().any(SortPart::is_text_score)
    }

    /// Returns the pattern for documents that do not carry their text score: it is computed.
    #[must_use]
    pub fn scoring(mut self, test: &Arc<TextTest>) -> Self {
        for part in &mut self.parts {
            if part.is_text_score() {
                part.by = SortBy::TextScore(Arc::clone(test));
            }
        }
        let carrier = MetaField::TextScore.carrier();
        self.paths.retain(|path| path.as_str() != carrier);
        self
    }

    /// Returns the parts of the pattern.
    pub fn parts(&self) -> &[SortPart] {
        &self.parts
    }

    /// Returns the paths of the fields.
    pub fn paths(&self) -> &[FieldPath] {
        &self.paths
    }

    /// Returns path and direction, if the pattern is a single field.
    pub fn single_field(&self) -> Option<(&FieldPath, bool)> {
        match &*self.parts {
            [
                SortPart {
                    by: SortBy::Field(path),
                    descending,
                },
            ] => Some((path, *descending)),
            _ => None,
        }
    }

    /// Returns the collation by which strings are ordered.
    pub fn collator(&self) -> Option<&dyn Collator> {
        self.collation.collator()
    }

    /// Adds the fields the pattern reads.
    pub fn dependencies(&self, into: &mut Dependencies) {
        for path in &self.paths {
            into.paths.insert(path.as_str().into());
        }
        into.random |= self
            .parts
            .iter()
            .any(|part| matches!(part.by, SortBy::Random));
    }

    /// Returns the pattern as a document.
    pub fn to_document(&self) -> Document {
        let mut out = DocumentBuilder::new();
        for part in &self.parts {
            match &part.by {
                _ if part.is_text_score() => {
                    let operand = MetaField::TextScore.operand();
                    out.append(SHOWN_TEXT_SCORE, doc! { "$meta": operand })
                }
                SortBy::Field(path) => {
                    out.append(path.as_str(), if part.descending { -1 } else { 1 })
                }
                SortBy::Random | SortBy::TextScore(_) => {
                    out.append("$rand", doc! { "$meta": "randVal" })
                }
            };
        }
        out.finish()
    }

    /// Extracts the key of a document.
    pub fn extract(&self, doc: DocRef<'_>, ctx: &EvalContext<'_>) -> Result<SortKey> {
        if let [part] = &*self.parts {
            return Ok(SortKey::One(self.single_value(part, doc, ctx)?));
        }
        let score = self.score_of(doc, ctx)?;
        match self.plain_key(doc, &score, ctx) {
            Some(key) => Ok(key),
            None => self.array_key(doc, &score, ctx),
        }
    }

    /// Returns the text score of a document, if the pattern sorts by it.
    fn score_of(&self, doc: DocRef<'_>, ctx: &EvalContext<'_>) -> Result<Value> {
        let mut parts = self.parts.iter();
        let test = parts.find_map(|part| match &part.by {
            SortBy::TextScore(test) => Some(test),
            _ => None,
        });
        test.map_or(Ok(Value::Null), |test| score(test, doc, ctx))
    }

    fn single_value(
        &self,
        part: &SortPart,
        doc: DocRef<'_>,
        ctx: &EvalContext<'_>,
    ) -> Result<Value> {
        match &part.by {
            SortBy::Field(path) => {
                nilometer_bson::path::keys::sort_value(path, doc, part.descending, self.collator())
                    .map(ValueRef::to_value)
                    .map_err(key_error)
            }
            SortBy::Random => Ok(random(ctx)),
            SortBy::TextScore(test) => score(test, doc, ctx),
        }
    }

    /// Returns the key if no path meets an array.
    fn plain_key(&self, doc: DocRef<'_>, score: &Value, ctx: &EvalContext<'_>) -> Option<SortKey> {
        self.key_from(|part| {
            Some(match &part.by {
                SortBy::Field(path) => null_if_missing(plain_value(path, doc)?),
                SortBy::Random => random(ctx),
                SortBy::TextScore(_) => score.clone(),
            })
        })
    }

    /// Builds a key from the values that `value` returns; `None` if it returns `None` for a part.
    pub(crate) fn key_from(
        &self,
        value: impl FnMut(&SortPart) -> Option<Value>,
    ) -> Option<SortKey> {
        let mut value = value;
        Some(match &*self.parts {
            [single] => SortKey::One(value(single)?),
            [first, second] => SortKey::Two([value(first)?, value(second)?]),
            parts => SortKey::Many(parts.iter().map(value).collect::<Option<_>>()?),
        })
    }

    /// Returns the first key in the pattern's order of those that a document with arrays has.
    fn array_key(&self, doc: DocRef<'_>, score: &Value, ctx: &EvalContext<'_>) -> Result<SortKey> {
        let mut best: Option<Vec<ValueRef<'_>>> = None;
        visit_keys(&self.paths, doc, &mut |key| {
            let better = best
                .as_ref()
                .is_none_or(|best| self.compare_fields(key, best).is_lt());
            if better {
                best = Some(key.to_vec());
            }
        })
        .map_err(key_error)?;
        let mut fields = best.unwrap_or_default().into_iter();
        let values = self.parts.iter().map(|part| match part.by {
            SortBy::Field(_) => fields.next().unwrap_or(ValueRef::Null).to_value(),
            SortBy::Random => random(ctx),
            SortBy::TextScore(_) => score.clone(),
        });
        Ok(SortKey::from_values(values))
    }

    /// Compares the values of the fields only.
    fn compare_fields(&self, a: &[ValueRef<'_>], b: &[ValueRef<'_>]) -> Ordering {
        let fields = self
            .parts
            .iter()
            .filter(|part| matches!(part.by, SortBy::Field(_)));
        for (part, (a, b)) in fields.zip(a.iter().zip(b)) {
            let order = self.collation.compare(*a, *b);
            if order.is_ne() {
                return directed(order, part.descending);
            }
        }
        Ordering::Equal
    }

    /// Compares two keys of this pattern.
    pub fn compare(&self, a: &SortKey, b: &SortKey) -> Ordering {
        for (part, (a, b)) in self.parts.iter().zip(a.values().iter().zip(b.values())) {
            let order = self.collation.compare(a.as_ref(), b.as_ref());
            if order.is_ne() {
                return directed(order, part.descending);
            }
        }
        Ordering::Equal
    }

    /// True if the two values are equal under every part of the pattern.
    pub fn is_equal(&self, a: &Value, b: &Value) -> bool {
        self.collation.compare(a.as_ref(), b.as_ref()).is_eq()
    }

    /// Compares two documents. For many comparisons extract the keys once instead.
    pub fn compare_documents(
        &self,
        a: DocRef<'_>,
        b: DocRef<'_>,
        ctx: &EvalContext<'_>,
    ) -> Result<Ordering> {
        Ok(self.compare(&self.extract(a, ctx)?, &self.extract(b, ctx)?))
    }
}

fn directed(order: Ordering, descending: bool) -> Ordering {
    if descending { order.reverse() } else { order }
}

/// Returns the value as sorting treats it: null if missing.
pub(crate) fn null_if_missing(value: ValueRef<'_>) -> Value {
    match value {
        ValueRef::Missing => Value::Null,
        value => value.to_value(),
    }
}

fn score(test: &TextTest, doc: DocRef<'_>, ctx: &EvalContext<'_>) -> Result<Value> {
    Ok(test.score(doc, ctx)?.map_or(Value::Null, Value::Double))
}

fn random(ctx: &EvalContext<'_>) -> Value {
    Value::Double(ctx.random.map_or(0.0, |random| random.next_f64()))
}

fn key_error(error: KeyError) -> Error {
    match error {
        KeyError::ParallelArrays(..) => {
            Error::bad_value("cannot sort with keys that are parallel arrays")
        }
        ambiguous @ KeyError::AmbiguousIndex(_) => {
            Error::location(location::PATH_NUMBER_AMBIGUOUS, ambiguous.to_string())
        }
    }
}

fn parse_part(name: &str, direction: ValueRef<'_>) -> Result<SortPart> {
    if let ValueRef::Document(meta) = direction {
        return parse_meta(meta);
    }
    if !direction.is_number() {
        return Err(Error::location(
            location::SORT_DIRECTION_TYPE,
            format!(
                "Illegal key in $sort specification: {name}: directions are numbers or {{$meta: …}}"
            ),
        ));
    }
    let descending = match super::matcher::value_tests::exact_i64(direction) {
        Some(1) => false,
        Some(-1) => true,
        _ => {
            return Err(Error::location(
                location::SORT_DIRECTION_VALUE,
                "$sort key ordering must be 1 (for ascending) or -1 (for descending)",
            ));
        }
    };
    // Returns the errors of field paths with their codes.
    expression::parse_path(name)?;
    Ok(SortPart {
        by: SortBy::Field(FieldPath::parse_lenient(name)),
        descending,
    })
}

fn parse_meta(meta: DocRef<'_>) -> Result<SortPart> {
    let mut fields = meta.iter();
    let (Some(field), None) = (fields.next(), fields.next()) else {
        return Err(Error::location(
            location::SORT_EXPRESSION_NOT_META,
            "$meta is the only expression supported by $sort right now",
        ));
    };
    if field.name() != "$meta" {
        return Err(Error::location(
            location::SORT_EXPRESSION_NOT_META,
            "$meta is the only expression supported by $sort right now",
        ));
    }
    match field.value().as_str() {
        Some("randVal") => Ok(SortPart {
            by: SortBy::Random,
            descending: true,
        }),
        // The field that carries it.
        Some("textScore") => Ok(SortPart {
            by: SortBy::Field(FieldPath::parse_lenient(MetaField::TextScore.carrier())),
            descending: true,
        }),
        Some(other) => Err(Error::location(
            location::SORT_META_UNKNOWN,
            format!("Illegal $meta sort: $meta: \"{other}\""),
        )),
        None => Err(Error::location(
            location::SORT_META_UNKNOWN,
            "Illegal $meta sort: the operand must be a string",
        )),
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{array, doc};

    use super::*;

    fn pattern(pattern: Document) -> Result<SortPattern> {
        SortPattern::parse(pattern.as_ref(), &ParseContext::new())
    }

    fn key(sort: Document, document: Document) -> Result<Value> {
        let key = pattern(sort)?.extract(document.as_ref(), &EvalContext::default())?;
        Ok(key.to_array())
    }

    fn check(sort: Document, document: Document, expected: Value) {
        let found = key(sort.clone(), document.clone()).unwrap();
        assert!(
            nilometer_bson::order::equal(found.as_ref(), expected.as_ref()),
            "{sort:?} of {document:?}: {found:?}"
        );
    }

    #[test]
    fn keys() {
        check(doc! {"a": 1}, doc! {"a": 5}, array![5]);
        check(doc! {"a": 1}, doc! {}, array![Value::Null]);
        check(doc! {"a": 1}, doc! {"a": array![3, 1, 2]}, array![1]);
        check(doc! {"a": -1}, doc! {"a": array![3, 1, 2]}, array![3]);
        check(
            doc! {"a": 1},
            doc! {"a": array![]},
            array![Value::Undefined],
        );
        check(
            doc! {"a.b": 1},
            doc! {"a": array![50, 51]},
            array![Value::Null],
        );
        check(
            doc! {"a.b": -1},
            doc! {"a": array![doc! {"b": 1}, doc! {"b": 7}]},
            array![7],
        );
        check(
            doc! {"a": 1, "b": -1},
            doc! {"b": 2},
            array![Value::Null, 2],
        );
        // A single key that an index would contain, not the least value of each field.
        check(
            doc! {"a.b": 1, "a.c": 1},
            doc! {"a": array![doc! {"b": 1, "c": 9}, doc! {"b": 2, "c": 0}]},
            array![1, 9],
        );
        check(
            doc! {"a.b": -1, "a.c": 1},
            doc! {"a": array![doc! {"b": 1, "c": 9}, doc! {"b": 2, "c": 0}]},
            array![2, 0],
        );
    }

    #[test]
    fn parallel_arrays_have_no_key() {
        let error = key(doc! {"a": 1, "b": 1}, doc! {"a": array![1], "b": array![2]}).unwrap_err();
        assert_eq!(error.code.0, 2);
    }

    #[test]
    fn refused_patterns() {
        let mut long = DocumentBuilder::new();
        for at in 0..=SORT_KEYS_MAX {
            long.append(&format!("f{at}"), 1);
        }
        let cases = [
            (doc! {}, 15976),
            (doc! {"a": "x"}, 15974),
            (doc! {"a": true}, 15974),
            (doc! {"a": 0}, 15975),
            (doc! {"a": 2}, 15975),
            (doc! {"a": 1.5}, 15975),
            (doc! {"": 1}, 40352),
            (doc! {"a.": 1}, 40353),
            (doc! {"$a": 1}, 16410),
            (doc! {"a..b": 1}, 15998),
            (doc! {"a": doc! {"$meta": "sortKey"}}, 31138),
            (doc! {"a": doc! {"b": 1}}, 17312),
            (long.finish(), 13103),
        ];
        for (sort, code) in cases {
            assert_eq!(pattern(sort.clone()).unwrap_err().code.0, code, "{sort:?}");
        }
        assert!(pattern(doc! {"a": -1.0, "b": 1i64}).is_ok());
    }

    #[test]
    fn order_of_documents() {
        let sort = pattern(doc! {"a": 1, "b": -1}).unwrap();
        let ctx = EvalContext::default();
        let order = |a: Document, b: Document| {
            sort.compare_documents(a.as_ref(), b.as_ref(), &ctx)
                .unwrap()
        };
        assert!(order(doc! {"a": 1}, doc! {"a": 2}).is_lt());
        assert!(order(doc! {"a": 1, "b": 1}, doc! {"a": 1.0, "b": 2}).is_gt());
        assert!(order(doc! {"a": 1}, doc! {"a": 1, "b": Value::Null}).is_eq());
        assert!(order(doc! {}, doc! {"a": "x"}).is_lt());
    }

    #[test]
    fn awkward_values_sort_as_their_list_says() {
        let ctx = EvalContext::default();
        for (direction, descending) in [(1, false), (-1, true)] {
            let sort = pattern(doc! {"a": direction}).unwrap();
            let keys: Vec<(usize, SortKey)> = nilometer_bson::testing::awkward_values()
                .into_iter()
                // Missing sorts as null, and arrays by their elements: covered by other tests.
                .filter(|(_, value)| !matches!(value, Value::Missing | Value::Array(_)))
                .map(|(group, value)| {
                    let key = sort.extract(doc! {"a": value}.as_ref(), &ctx).unwrap();
                    (group, key)
                })
                .collect();
            for (a, left) in &keys {
                for (b, right) in &keys {
                    let expected = if descending { b.cmp(a) } else { a.cmp(b) };
                    assert_eq!(sort.compare(left, right), expected, "{left:?} {right:?}");
                }
            }
        }
    }
}
