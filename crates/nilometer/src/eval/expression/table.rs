//! The rows of the operator table, in the order of the manual's families.

use super::registry::Arguments::{Any, Between, Exactly, Named, Own};
use super::registry::OperatorSpec;
use super::{arithmetic, boolean, comparison, conditional, date_parts, date_trunc, literal};

type Row = OperatorSpec;

pub(super) const TABLE: &[OperatorSpec] = &[
    // Arithmetic
    Row::node("$add", Any, arithmetic::parse),
    Row::node("$divide", Exactly(2), arithmetic::parse),
    Row::eager("$mod", Exactly(2), arithmetic::modulo),
    Row::node("$multiply", Any, arithmetic::parse),
    Row::node("$subtract", Exactly(2), arithmetic::parse),
    // Boolean
    Row::node("$and", Any, boolean::parse),
    Row::node("$not", Exactly(1), boolean::parse),
    Row::node("$or", Any, boolean::parse),
    // Comparison
    Row::node("$cmp", Exactly(2), comparison::parse),
    Row::node("$eq", Exactly(2), comparison::parse),
    Row::node("$gt", Exactly(2), comparison::parse),
    Row::node("$gte", Exactly(2), comparison::parse),
    Row::node("$lt", Exactly(2), comparison::parse),
    Row::node("$lte", Exactly(2), comparison::parse),
    Row::node("$ne", Exactly(2), comparison::parse),
    // Conditional
    Row::node("$cond", Exactly(3), conditional::parse_cond),
    Row::lazy("$ifNull", Any, conditional::if_null)
        .parsed_by(conditional::parse_if_null)
        .branching(),
    Row::lazy("$switch", Own, conditional::switch)
        .parsed_by(conditional::parse_switch)
        .branching(),
    // Literal
    Row::node("$const", Own, literal::parse),
    Row::node("$literal", Own, literal::parse),
    // Dates
    part("$dayOfMonth"),
    part("$dayOfWeek"),
    part("$dayOfYear"),
    part("$hour"),
    part("$isoDayOfWeek"),
    part("$isoWeek"),
    part("$isoWeekYear"),
    part("$millisecond"),
    part("$minute"),
    part("$month"),
    part("$second"),
    part("$week"),
    part("$year"),
    Row::lazy(
        "$dateToParts",
        Named(&date_parts::TO_PARTS),
        date_parts::to_parts,
    )
    .prepared_by(date_parts::prepare),
    Row::node(
        "$dateTrunc",
        Named(&date_trunc::ARGUMENTS),
        date_trunc::parse,
    ),
];

const fn part(name: &'static str) -> Row {
    Row::lazy(name, Own, date_parts::part)
        .parsed_by(date_parts::parse)
        .prepared_by(date_parts::prepare)
}
