//! Converts one test of one path to the intervals of its values.
//!
//! | test | intervals | exact |
//! |---|---|---|
//! | `$eq v`, `$in` | points | yes |
//! | `$lt $lte $gt $gte` | to the end of the operand's type; NaN alone with NaN | yes |
//! | … with null | `[null, null]`: null and missing have one key | no |
//! | … with MinKey, MaxKey | over all types | one key per document |
//! | `$eq` an array | its first element, and the array as an element | no |
//! | order with an array | all | no |
//! | pattern | strings with its literal prefix, and the pattern itself as a value | if it consists of the prefix only |
//! | `$type` | the type | if its keys are of that type alone |
//! | `$exists` | all; `false`: null | no |
//! | `$mod` | numbers | no |
//! | `$not` and `$ne`, `$nin` | the complement, if the negated test is exact | one key per document |
//! | `$elemMatch: {$gt: …}` | of one element: intersected | no |
//! | `$elemMatch: {$elemMatch: …}` | arrays: an array in an array is one key | no |
//! | `$_internalExprEq` … | order over all types, on parts without arrays | no |
//!
//! A string, or a value that may contain one, is bounded only if query and index have the same collation. A path with a
//! numeric component is bounded conservatively: the number may be an array index, where filters see more values
//! (missing values, whole arrays) than the index has keys.

use nilometer_bson::order::{CanonicalType, canonical_type};
use nilometer_bson::{Value, ValueRef, type_code};

use super::brackets::{greatest, has_text, least, whole};
use super::interval::{complement, intersection, normalised};
use super::prefix::{literal_prefix, next_text};
use super::{IndexShape, Interval, PartBounds, PartShape};
use crate::eval::matcher::comparison::is_nan;
use crate::eval::matcher::{CompareOp, Comparison, InList, MatchExpression, Pattern, TypeSet};

/// What is known about the values that a test reads.
#[derive(Clone, Copy)]
pub(super) struct Leaf<'a> {
    shape: &'a IndexShape,
    /// True if the test reads one value and the document has one key for it.
    single: bool,
    /// True if the path has a numeric component.
    numbered: bool,
    /// True if the test applies to an element of an array: an array there is one key, not that of its elements.
    is_element: bool,
}

impl<'a> Leaf<'a> {
    /// Describes tests that apply a part's path to the document.
    pub(super) fn of(shape: &'a IndexShape, part: &PartShape) -> Self {
        let is_number = |name: &str| !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit());
        Self {
            shape,
            single: !part.multikey,
            numbered: part.path.split('.').any(is_number),
            is_element: false,
        }
    }

    /// Describes tests of an array element.
    fn element(self) -> Self {
        Self {
            single: true,
            is_element: true,
            ..self
        }
    }

    /// Returns the bounds of a test of the path; `None` if it has none.
    pub(super) fn bounds(self, test: &MatchExpression) -> Option<PartBounds> {
        if self.numbered && !self.single {
            return None;
        }
        match test {
            MatchExpression::Compare(comparison) => self.comparison(comparison),
            MatchExpression::ExprCompare(comparison) => self.any_type(comparison),
            MatchExpression::In(list) => self.list(list),
            MatchExpression::Exists(_) => Some(PartBounds::all()),
            MatchExpression::Type { types, .. } => Some(self.types(*types)),
            MatchExpression::Regex { pattern, .. } => Some(self.pattern(pattern)),
            MatchExpression::Mod { .. } => {
                Some(self.set(vec![whole(CanonicalType::Number)], false))
            }
            MatchExpression::ElemMatchValue { .. } if self.is_element => {
                Some(self.set(vec![whole(CanonicalType::Array)], false))
            }
            MatchExpression::ElemMatchValue { tests, .. } if !self.numbered => {
                self.one_element(tests)
            }
            MatchExpression::Not(inner) => self.negation(inner),
            MatchExpression::Or(arms) => self.any_of(arms),
            MatchExpression::And(arms) if self.single => self.all_of(arms),
            MatchExpression::AlwaysFalse => Some(PartBounds::none()),
            _ => None,
        }
    }

    fn set(self, intervals: Vec<Interval>, exact: bool) -> PartBounds {
        PartBounds {
            intervals: normalised(intervals, self.shape.collator()),
            exact,
        }
    }

    /// True if the index compares the strings in `value` as the test does.
    fn understands(self, value: ValueRef<'_>) -> bool {
        self.shape.same_collation || !has_text(value)
    }

    fn comparison(self, comparison: &Comparison) -> Option<PartBounds> {
        let operand = &comparison.value;
        if !self.understands(operand.as_ref()) {
            return None;
        }
        match operand {
            Value::Null => self.null(comparison.op),
            Value::MinKey | Value::MaxKey => Some(self.extreme(comparison.op, operand)),
            Value::Array(_) => Some(self.array(comparison.op, operand)),
            Value::Missing | Value::Undefined => None,
            other if is_nan(other.as_ref()) => Some(match comparison.op {
                CompareOp::Lt | CompareOp::Gt => PartBounds::none(),
                _ => self.set(vec![Interval::point(other.clone())], true),
            }),
            other => Some(self.set(vec![within_type(comparison.op, other)], true)),
        }
    }

    fn null(self, op: CompareOp) -> Option<PartBounds> {
        if self.numbered {
            return None;
        }
        Some(match op {
            CompareOp::Lt | CompareOp::Gt => PartBounds::none(),
            _ => self.set(vec![Interval::point(Value::Null)], false),
        })
    }

    /// Comparison with MinKey or MaxKey applies to values of all types, whole arrays included.
    fn extreme(self, op: CompareOp, operand: &Value) -> PartBounds {
        let interval = over_types(op, operand);
        if op == CompareOp::Eq || self.single {
            self.set(vec![interval], op == CompareOp::Eq)
        } else {
            PartBounds::all()
        }
    }

    fn array(self, op: CompareOp, operand: &Value) -> PartBounds {
        match op {
            CompareOp::Eq => self.set(array_points(operand), false),
            _ => PartBounds::all(),
        }
    }

    /// Comparison over all types. Missing sorts below all values but MinKey. The document is tested again.
    fn any_type(self, comparison: &Comparison) -> Option<PartBounds> {
        let operand = &comparison.value;
        // A range over all types includes strings.
        let crosses = comparison.op != CompareOp::Eq && !self.shape.same_collation;
        if !self.single || self.numbered || crosses || !self.understands(operand.as_ref()) {
            return None;
        }
        let mut intervals = vec![over_types(comparison.op, operand)];
        let below_null = canonical_type(operand.as_ref()) <= CanonicalType::Null;
        if below_null {
            // A missing field compares as missing, but its key is that of null.
            intervals.push(Interval::point(Value::Null));
        }
        Some(self.set(intervals, false))
    }

    fn list(self, list: &InList) -> Option<PartBounds> {
        let mut exact = true;
        let mut intervals = Vec::with_capacity(list.values().len());
        for value in list.values() {
            if !self.understands(value.as_ref()) {
                return None;
            }
            match value {
                Value::Null if self.numbered => return None,
                Value::Null => {
                    exact = false;
                    intervals.push(Interval::point(Value::Null));
                }
                Value::Array(_) => {
                    exact = false;
                    intervals.extend(array_points(value));
                }
                other => intervals.push(Interval::point(other.clone())),
            }
        }
        for pattern in list.patterns() {
            let of_pattern = self.pattern(pattern);
            exact &= of_pattern.exact;
            intervals.extend(of_pattern.intervals);
        }
        Some(self.set(intervals, exact))
    }

    /// Patterns match the bytes of strings, whatever the collation of the query.
    fn pattern(self, pattern: &Pattern) -> PartBounds {
        let itself = Interval::point(
            ValueRef::Regex {
                pattern: pattern.source(),
                options: pattern.options(),
            }
            .to_value(),
        );
        let prefix = match self.shape.collator() {
            None => literal_prefix(pattern.source(), pattern.options()),
            Some(_) => None,
        };
        let Some((prefix, exact)) = prefix else {
            return self.set(vec![whole(CanonicalType::String), itself], false);
        };
        let end = greatest(CanonicalType::String);
        let (high, inclusive) = match next_text(&prefix) {
            Some(next) => (Value::from(next.as_str()), false),
            None => (end.value, end.inclusive),
        };
        let texts = Interval::new(Value::from(prefix.as_str()), true, high, inclusive);
        self.set(vec![texts, itself], exact)
    }

    fn types(self, types: TypeSet) -> PartBounds {
        let mut exact = true;
        let mut intervals = Vec::new();
        for code in types.codes() {
            let Some((of, alone)) = place_of(code) else {
                return PartBounds::all();
            };
            exact &= alone || (types.is_number() && of == CanonicalType::Number);
            intervals.push(whole(of));
        }
        // The range of objects ends where that of arrays begins, so no interval extends into another type. Strings
        // stay within their range under any collation.
        self.set(intervals, exact)
    }

    fn one_element(self, tests: &[MatchExpression]) -> Option<PartBounds> {
        let bounds = self.element().all_of(tests)?;
        Some(PartBounds {
            exact: false,
            ..bounds
        })
    }

    /// Returns the bounds of a conjunction whose tests all read the same value.
    fn all_of(self, tests: &[MatchExpression]) -> Option<PartBounds> {
        let mut all: Option<PartBounds> = None;
        let mut exact = true;
        for test in tests {
            let Some(bounds) = self.bounds(test) else {
                exact = false;
                continue;
            };
            exact &= bounds.exact;
            all = Some(match all {
                None => bounds,
                Some(known) => self.both(&known, &bounds),
            });
        }
        all.map(|all| PartBounds { exact, ..all })
    }

    fn any_of(self, arms: &[MatchExpression]) -> Option<PartBounds> {
        let mut exact = true;
        let mut intervals = Vec::new();
        for arm in arms {
            let bounds = self.bounds(arm)?;
            exact &= bounds.exact;
            intervals.extend(bounds.intervals);
        }
        Some(self.set(intervals, exact))
    }

    /// Returns the intersection; exact if both are exact.
    pub(super) fn both(self, a: &PartBounds, b: &PartBounds) -> PartBounds {
        PartBounds {
            intervals: intersection(&a.intervals, &b.intervals, self.shape.collator()),
            exact: a.exact && b.exact,
        }
    }

    fn negation(self, inner: &MatchExpression) -> Option<PartBounds> {
        let of_null = match inner {
            MatchExpression::Exists(_) => {
                let missing = vec![Interval::point(Value::Null)];
                return (!self.numbered).then(|| self.set(missing, false));
            }
            // A document without a value has a key here that equals none of the values.
            MatchExpression::Compare(c) => matches!(c.value, Value::Null),
            MatchExpression::In(list) => {
                list.patterns().is_empty() && list.values().iter().any(|v| matches!(v, Value::Null))
            }
            MatchExpression::Type { .. } => false,
            _ => return None,
        };
        let bounds = self.bounds(inner)?;
        let has_array = match inner {
            MatchExpression::Compare(c) => matches!(c.value, Value::Array(_)),
            MatchExpression::In(list) => list.values().iter().any(|v| matches!(v, Value::Array(_))),
            _ => false,
        };
        // With one key per document, the key identifies null and missing exactly.
        let certain = bounds.exact || (of_null && self.single && !has_array);
        if !certain {
            return None;
        }
        Some(PartBounds {
            intervals: complement(&bounds.intervals, self.shape.collator()),
            exact: self.single,
        })
    }
}

/// Returns the values of the operand's type for which the comparison is true.
fn within_type(op: CompareOp, operand: &Value) -> Interval {
    let of = canonical_type(operand.as_ref());
    let value = operand.clone();
    match op {
        CompareOp::Eq => Interval::point(value),
        CompareOp::Gt | CompareOp::Gte => {
            let end = greatest(of);
            Interval::new(value, op == CompareOp::Gte, end.value, end.inclusive)
        }
        CompareOp::Lt | CompareOp::Lte => {
            let start = least(of);
            Interval::new(start.value, start.inclusive, value, op == CompareOp::Lte)
        }
    }
}

/// Returns the values of any type for which the comparison is true.
fn over_types(op: CompareOp, operand: &Value) -> Interval {
    let value = operand.clone();
    match op {
        CompareOp::Eq => Interval::point(value),
        CompareOp::Gt | CompareOp::Gte => {
            Interval::new(value, op == CompareOp::Gte, Value::MaxKey, true)
        }
        CompareOp::Lt | CompareOp::Lte => {
            Interval::new(Value::MinKey, true, value, op == CompareOp::Lte)
        }
    }
}

/// Returns the keys of an array equal to `array`: its first element, or the array as an element of another.
fn array_points(array: &Value) -> Vec<Interval> {
    let elements = array.as_ref().as_array();
    let first = elements.and_then(|array| array.iter().next());
    let first = match first {
        Some(value) => value.to_value(),
        // An empty array has this key.
        None => Value::Undefined,
    };
    vec![Interval::point(first), Interval::point(array.clone())]
}

/// Returns the canonical type of a type code, and whether no other type has equal keys. Returns `None` for arrays,
/// whose keys are those of their elements.
fn place_of(code: u8) -> Option<(CanonicalType, bool)> {
    use CanonicalType as T;
    Some(match code {
        type_code::DOUBLE | type_code::INT32 | type_code::INT64 | type_code::DECIMAL128 => {
            (T::Number, false)
        }
        type_code::STRING | type_code::SYMBOL => (T::String, false),
        type_code::DOCUMENT => (T::Object, true),
        type_code::BINARY => (T::Binary, true),
        type_code::UNDEFINED => (T::Undefined, false),
        type_code::OBJECT_ID => (T::ObjectId, true),
        type_code::BOOL => (T::Bool, true),
        type_code::DATE_TIME => (T::Date, true),
        type_code::NULL => (T::Null, false),
        type_code::REGEX => (T::Regex, true),
        type_code::DB_POINTER => (T::DbPointer, true),
        type_code::CODE => (T::Code, true),
        type_code::TIMESTAMP => (T::Timestamp, true),
        type_code::CODE_WITH_SCOPE => (T::CodeWithScope, true),
        type_code::MIN_KEY => (T::MinKey, true),
        type_code::MAX_KEY => (T::MaxKey, true),
        _ => return None,
    })
}
