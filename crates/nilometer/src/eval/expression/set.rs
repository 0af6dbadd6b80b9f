//! Arrays as sets: `$setUnion $setIntersection $setDifference $setEquals $setIsSubset
//! $allElementsTrue $anyElementTrue`.
//!
//! Elements are equal by BSON order (numbers by value, strings by the collation); arrays inside the
//! arrays are elements. Unions and intersections are in ascending order, differences in the order
//! of the first array; none repeats an element. Null gives null for the three that build a set, an
//! error for the others.
//!
//! Errors where an operand is no array: 17043 `$setUnion`, 17047 `$setIntersection`, 17048 and 17049
//! `$setDifference`, 17044 `$setEquals` (17045 for fewer than two), 17046 and 17042 `$setIsSubset`,
//! 17040 `$allElementsTrue`, 17041 `$anyElementTrue`.

use std::collections::BTreeSet;

use nilometer_bson::order::Collator;
use nilometer_bson::{ArrayRef, ValueRef, order};

use super::Expression;
use super::array::ArrayBuilder;
use super::evaluated::{Evaluated, is_true};
use super::operation::{CallContext, Operation, arg};
use super::parse::ExpressionParser;
use super::registry::OperatorSpec;
use crate::error::{Error, Result, location};

/// A value in a set ordered by the operation's collation.
#[derive(Clone, Copy)]
pub(super) struct SetMember<'v> {
    pub(super) value: ValueRef<'v>,
    pub(super) collator: Option<&'v dyn Collator>,
}

impl PartialEq for SetMember<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for SetMember<'_> {}

impl PartialOrd for SetMember<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for SetMember<'_> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        order::compare_with(self.value, other.value, self.collator)
    }
}

fn members<'v>(array: ArrayRef<'v>, call: CallContext<'_, 'v>) -> Result<BTreeSet<SetMember<'v>>> {
    let context = call.scope.context;
    let (collator, mark) = (context.collator, context.mark());
    let mut members = BTreeSet::new();
    for value in array.iter() {
        context.charge_value(value)?;
        members.insert(SetMember { value, collator });
        context.hold(mark, members.len() * size_of::<SetMember<'_>>())?;
    }
    Ok(members)
}

fn require_array<'v>(value: &'v Evaluated<'_>, name: &str, code: i32) -> Result<ArrayRef<'v>> {
    value.as_array().ok_or_else(|| {
        Error::location(
            code,
            format!(
                "operands of {name} must be arrays, but one is of type: {}",
                value.type_name()
            ),
        )
    })
}

fn build<'v, 's>(
    members: impl IntoIterator<Item = SetMember<'v>>,
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let mut out = ArrayBuilder::new(call.scope);
    out.extend(members.into_iter().map(|member| member.value))?;
    Ok(out.finish())
}

pub(super) fn union<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let mut all = BTreeSet::new();
    for value in values {
        if value.is_nullish() {
            return Ok(Evaluated::NULL);
        }
        let array = require_array(value, call.name, location::SET_UNION_NOT_ARRAY)?;
        all.append(&mut members(array, call)?);
    }
    build(all, call)
}

pub(super) fn intersection<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let mut common: Option<BTreeSet<SetMember<'_>>> = None;
    for value in values {
        if value.is_nullish() {
            return Ok(Evaluated::NULL);
        }
        let set = members(
            require_array(value, call.name, location::SET_INTERSECTION_NOT_ARRAY)?,
            call,
        )?;
        common = Some(match common {
            None => set,
            Some(common) => common.intersection(&set).copied().collect(),
        });
    }
    build(common.unwrap_or_default(), call)
}

pub(super) fn difference<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let (left, right) = (arg(values, 0), arg(values, 1));
    if left.is_nullish() || right.is_nullish() {
        return Ok(Evaluated::NULL);
    }
    let left = require_array(left, call.name, location::SET_DIFFERENCE_FIRST_NOT_ARRAY)?;
    let mut seen = members(
        require_array(right, call.name, location::SET_DIFFERENCE_SECOND_NOT_ARRAY)?,
        call,
    )?;
    let collator = call.scope.context.collator;
    let mut out = ArrayBuilder::new(call.scope);
    for value in left.iter() {
        if seen.insert(SetMember { value, collator }) {
            out.push(value)?;
        } else {
            out.skip()?;
        }
    }
    Ok(out.finish())
}

pub(super) fn parse_equals(
    parser: &mut ExpressionParser<'_>,
    spec: &'static OperatorSpec,
    value: ValueRef<'_>,
) -> Result<Expression> {
    let operands = parser.two_or_more(spec, value, location::SET_EQUALS_ARGUMENT_COUNT)?;
    let arguments = operands.into_iter().map(Some).collect();
    Ok(Operation::new(spec, arguments).into_expression())
}

pub(super) fn equals<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let mut first: Option<BTreeSet<SetMember<'_>>> = None;
    let mut equal = true;
    for value in values {
        let set = members(
            require_array(value, call.name, location::SET_EQUALS_NOT_ARRAY)?,
            call,
        )?;
        match &first {
            None => first = Some(set),
            Some(first) => equal &= *first == set,
        }
    }
    Ok(Evaluated::from(equal))
}

pub(super) fn is_subset<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let left = require_array(
        arg(values, 0),
        call.name,
        location::SET_IS_SUBSET_FIRST_NOT_ARRAY,
    )?;
    let right = members(
        require_array(
            arg(values, 1),
            call.name,
            location::SET_IS_SUBSET_SECOND_NOT_ARRAY,
        )?,
        call,
    )?;
    let context = call.scope.context;
    let collator = context.collator;
    for value in left.iter() {
        context.charge_value(value)?;
        if !right.contains(&SetMember { value, collator }) {
            return Ok(Evaluated::from(false));
        }
    }
    Ok(Evaluated::from(true))
}

pub(super) fn all_true<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let array = require_array(
        arg(values, 0),
        call.name,
        location::ALL_ELEMENTS_TRUE_NOT_ARRAY,
    )?;
    for value in array.iter() {
        call.scope.context.charge(1)?;
        if !is_true(value) {
            return Ok(Evaluated::from(false));
        }
    }
    Ok(Evaluated::from(true))
}

pub(super) fn any_true<'s>(
    values: &[Evaluated<'s>],
    call: CallContext<'_, 's>,
) -> Result<Evaluated<'s>> {
    let array = require_array(
        arg(values, 0),
        call.name,
        location::ANY_ELEMENT_TRUE_NOT_ARRAY,
    )?;
    for value in array.iter() {
        call.scope.context.charge(1)?;
        if is_true(value) {
            return Ok(Evaluated::from(true));
        }
    }
    Ok(Evaluated::from(false))
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, array, doc};

    use super::super::testing::{check_exact, eval_code, parse_code};

    #[test]
    fn sets() {
        let doc = doc! { "a": array![3, 1, 1.0, array![2]], "b": array![array![2], 1i64, "x"], "n": Value::Null };
        let cases: Vec<(Value, Value)> = vec![
            (
                doc! { "$setUnion": array!["$a", "$b"] }.into(),
                array![1, 3, "x", array![2]],
            ),
            (doc! { "$setUnion": array![] }.into(), array![]),
            (doc! { "$setUnion": array!["$a", "$n"] }.into(), Value::Null),
            (
                doc! { "$setIntersection": array!["$a", "$b"] }.into(),
                array![1, array![2]],
            ),
            (
                doc! { "$setIntersection": array!["$a", "$gone"] }.into(),
                Value::Null,
            ),
            (doc! { "$setIntersection": array![] }.into(), array![]),
            (
                doc! { "$setDifference": array!["$a", "$b"] }.into(),
                array![3],
            ),
            (
                doc! { "$setDifference": array!["$b", array![]] }.into(),
                array![array![2], 1i64, "x"],
            ),
            (
                doc! { "$setDifference": array!["$n", 5] }.into(),
                Value::Null,
            ),
            (
                doc! { "$setEquals": array![array![1, 2], array![2.0, 1, 1]] }.into(),
                true.into(),
            ),
            (
                doc! { "$setEquals": array!["$a", "$b", "$a"] }.into(),
                false.into(),
            ),
            (
                doc! { "$setIsSubset": array![array![1], "$a"] }.into(),
                true.into(),
            ),
            (
                doc! { "$setIsSubset": array!["$a", "$b"] }.into(),
                false.into(),
            ),
            (
                doc! { "$setIsSubset": array![array![], array![]] }.into(),
                true.into(),
            ),
            (
                doc! { "$allElementsTrue": array!["$a"] }.into(),
                true.into(),
            ),
            (
                doc! { "$allElementsTrue": array![array![1, Value::Null]] }.into(),
                false.into(),
            ),
            (
                doc! { "$allElementsTrue": array![array![]] }.into(),
                true.into(),
            ),
            (
                doc! { "$anyElementTrue": array![array![0, "$gone"]] }.into(),
                false.into(),
            ),
            (doc! { "$anyElementTrue": array!["$a"] }.into(), true.into()),
        ];
        for (expression, expected) in cases {
            super::super::testing::check(&doc, expression, expected);
        }
        check_exact(
            &doc,
            doc! { "$setDifference": array![array![1.0, 1], array![]] },
            array![1.0],
        );
    }

    #[test]
    fn errors() {
        let doc = doc! { "a": array![1], "n": Value::Null };
        for (expression, code) in [
            (doc! { "$setUnion": array!["$a", 5] }, 17043),
            (doc! { "$setIntersection": array!["$a", 5] }, 17047),
            (doc! { "$setDifference": array![5, "$a"] }, 17048),
            (doc! { "$setDifference": array!["$a", 5] }, 17049),
            (doc! { "$setEquals": array!["$a", "$n"] }, 17044),
            (doc! { "$setIsSubset": array!["$n", "$a"] }, 17046),
            (doc! { "$setIsSubset": array!["$a", "$n"] }, 17042),
            (doc! { "$allElementsTrue": array!["$n"] }, 17040),
            (doc! { "$anyElementTrue": array!["$n"] }, 17041),
        ] {
            assert_eq!(eval_code(&doc, expression.clone()), code, "{expression:?}");
        }
        assert_eq!(parse_code(doc! { "$setEquals": array![array![1]] }), 17045);
        assert_eq!(
            parse_code(doc! { "$setIsSubset": array![array![1]] }),
            16020
        );
    }
}
