//! The rows of the operator table, in the order of the manual's families.

use super::registry::Arguments::{Any, Between, Exactly, Named, Own};
use super::registry::OperatorSpec;
use super::{
    accumulating, arithmetic, array, array_build, array_search, bitwise, boolean, comparison,
    conditional, convert, date_arithmetic, date_from_parts, date_from_string, date_parts,
    date_to_string, date_trunc, extended_json, hash, hashed_index_key, higher_order, let_binding,
    literal, math, meta, object, percentile, regex, rounding, set, size, sort_array, string,
    string_search, substring, timestamp, trigonometry, trim,
};
use crate::error::ErrorCode;

type Row = OperatorSpec;

pub(super) const TABLE: &[OperatorSpec] = &[
    // Arithmetic
    Row::eager("$abs", Exactly(1), math::abs),
    Row::node("$add", Any, arithmetic::parse),
    Row::eager("$ceil", Exactly(1), math::ceil),
    Row::node("$divide", Exactly(2), arithmetic::parse),
    Row::eager("$exp", Exactly(1), math::exp),
    Row::eager("$floor", Exactly(1), math::floor),
    Row::eager("$ln", Exactly(1), math::ln),
    Row::eager("$log", Exactly(2), math::log),
    Row::eager("$log10", Exactly(1), math::log10),
    Row::eager("$mod", Exactly(2), arithmetic::modulo),
    Row::node("$multiply", Any, arithmetic::parse),
    Row::eager("$pow", Exactly(2), math::pow),
    Row::eager("$round", Between(1, 2), rounding::round),
    Row::eager("$sqrt", Exactly(1), math::sqrt),
    Row::node("$subtract", Exactly(2), arithmetic::parse),
    Row::eager("$trunc", Between(1, 2), rounding::trunc),
    // Bits
    Row::eager("$bitAnd", Any, bitwise::and),
    Row::eager("$bitNot", Exactly(1), bitwise::not),
    Row::eager("$bitOr", Any, bitwise::or),
    Row::eager("$bitXor", Any, bitwise::xor),
    // Trigonometry
    Row::eager("$acos", Exactly(1), trigonometry::acos),
    Row::eager("$acosh", Exactly(1), trigonometry::acosh),
    Row::eager("$asin", Exactly(1), trigonometry::asin),
    Row::eager("$asinh", Exactly(1), trigonometry::asinh),
    Row::eager("$atan", Exactly(1), trigonometry::atan),
    Row::eager("$atan2", Exactly(2), trigonometry::atan2),
    Row::eager("$atanh", Exactly(1), trigonometry::atanh),
    Row::eager("$cos", Exactly(1), trigonometry::cos),
    Row::eager("$cosh", Exactly(1), trigonometry::cosh),
    Row::eager(
        "$degreesToRadians",
        Exactly(1),
        trigonometry::degrees_to_radians,
    ),
    Row::eager(
        "$radiansToDegrees",
        Exactly(1),
        trigonometry::radians_to_degrees,
    ),
    Row::eager("$sin", Exactly(1), trigonometry::sin),
    Row::eager("$sinh", Exactly(1), trigonometry::sinh),
    Row::eager("$tan", Exactly(1), trigonometry::tan),
    Row::eager("$tanh", Exactly(1), trigonometry::tanh),
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
    // Arrays
    Row::eager("$arrayElemAt", Exactly(2), array::elem_at),
    Row::eager("$arrayToObject", Exactly(1), array_build::array_to_object),
    Row::eager("$concatArrays", Any, array::concat),
    Row::lazy("$filter", Own, higher_order::filter)
        .parsed_by(higher_order::parse_filter)
        .never_folded(),
    Row::eager("$first", Exactly(1), array::first),
    Row::eager(
        "$firstN",
        Named(&accumulating::FIRST_N),
        accumulating::some_of,
    ),
    Row::lazy("$in", Exactly(2), array_search::is_in).prepared_by(array_search::prepare),
    Row::eager("$indexOfArray", Between(2, 4), array_search::index_of),
    Row::eager("$isArray", Exactly(1), array::is_array),
    Row::eager("$last", Exactly(1), array::last),
    Row::eager(
        "$lastN",
        Named(&accumulating::FIRST_N),
        accumulating::some_of,
    ),
    Row::lazy("$map", Own, higher_order::map)
        .parsed_by(higher_order::parse_map)
        .never_folded(),
    Row::eager("$maxN", Named(&accumulating::MIN_N), accumulating::some_of),
    Row::eager("$minN", Named(&accumulating::MIN_N), accumulating::some_of),
    Row::eager("$objectToArray", Exactly(1), array_build::object_to_array),
    Row::eager("$range", Between(2, 3), array::range),
    Row::lazy("$reduce", Own, higher_order::reduce)
        .parsed_by(higher_order::parse_reduce)
        .never_folded(),
    Row::eager("$reverseArray", Exactly(1), array::reverse),
    Row::eager("$size", Exactly(1), array::size),
    Row::eager("$slice", Between(2, 3), array::slice),
    Row::lazy("$sortArray", Own, sort_array::sort).parsed_by(sort_array::parse),
    Row::eager("$zip", Own, array_build::zip).parsed_by(array_build::parse_zip),
    // Sets
    Row::eager("$allElementsTrue", Exactly(1), set::all_true),
    Row::eager("$anyElementTrue", Exactly(1), set::any_true),
    Row::eager("$setDifference", Exactly(2), set::difference),
    Row::eager("$setEquals", Any, set::equals).parsed_by(set::parse_equals),
    Row::eager("$setIntersection", Any, set::intersection),
    Row::eager("$setIsSubset", Exactly(2), set::is_subset),
    Row::eager("$setUnion", Any, set::union),
    // Strings
    Row::eager("$concat", Any, string::concat),
    Row::eager("$indexOfBytes", Between(2, 4), string_search::bytes),
    Row::eager("$indexOfCP", Between(2, 4), string_search::code_points),
    Row::lazy("$ltrim", Named(&trim::ARGUMENTS), trim::trim),
    Row::lazy("$regexFind", Named(&regex::ARGUMENTS), regex::regex).prepared_by(regex::prepare),
    Row::lazy("$regexFindAll", Named(&regex::ARGUMENTS), regex::regex).prepared_by(regex::prepare),
    Row::lazy("$regexMatch", Named(&regex::ARGUMENTS), regex::regex).prepared_by(regex::prepare),
    Row::eager("$replaceAll", Named(&string::REPLACE), string::replace_all),
    Row::eager("$replaceOne", Named(&string::REPLACE), string::replace_one),
    Row::lazy("$rtrim", Named(&trim::ARGUMENTS), trim::trim),
    Row::eager("$split", Exactly(2), string::split),
    Row::eager("$strLenBytes", Exactly(1), string::len_bytes),
    Row::eager("$strLenCP", Exactly(1), string::len_cp),
    Row::eager("$strcasecmp", Exactly(2), string::strcasecmp),
    Row::eager("$substr", Exactly(3), substring::bytes),
    Row::eager("$substrBytes", Exactly(3), substring::bytes),
    Row::eager("$substrCP", Exactly(3), substring::code_points),
    Row::eager("$toLower", Exactly(1), string::to_lower),
    Row::eager("$toUpper", Exactly(1), string::to_upper),
    Row::lazy("$trim", Named(&trim::ARGUMENTS), trim::trim),
    // Objects
    Row::lazy("$getField", Own, object::get_field).parsed_by(object::parse_get_field),
    Row::eager("$mergeObjects", Any, object::merge),
    Row::eager("$setField", Named(&object::SET_FIELD), object::set_field),
    Row::eager(
        "$unsetField",
        Named(&object::UNSET_FIELD),
        object::set_field,
    ),
    // Variables and literals
    Row::node("$const", Own, literal::parse),
    Row::lazy("$let", Own, let_binding::evaluate)
        .parsed_by(let_binding::parse)
        .never_folded(),
    Row::node("$literal", Own, literal::parse),
    // Dates
    Row::lazy(
        "$dateAdd",
        Named(&date_arithmetic::ADD),
        date_arithmetic::add,
    )
    .prepared_by(date_arithmetic::prepare),
    Row::lazy(
        "$dateDiff",
        Named(&date_arithmetic::DIFF),
        date_arithmetic::diff,
    )
    .prepared_by(date_arithmetic::prepare),
    Row::lazy(
        "$dateFromParts",
        Named(&date_from_parts::ARGUMENTS),
        date_from_parts::date_from_parts,
    )
    .parsed_by(date_from_parts::parse)
    .prepared_by(date_from_parts::prepare),
    Row::lazy(
        "$dateFromString",
        Named(&date_from_string::ARGUMENTS),
        date_from_string::date_from_string,
    )
    .prepared_by(date_from_string::prepare),
    Row::lazy(
        "$dateSubtract",
        Named(&date_arithmetic::ADD),
        date_arithmetic::add,
    )
    .prepared_by(date_arithmetic::prepare),
    Row::lazy(
        "$dateToParts",
        Named(&date_parts::TO_PARTS),
        date_parts::to_parts,
    )
    .prepared_by(date_parts::prepare),
    Row::lazy(
        "$dateToString",
        Named(&date_to_string::ARGUMENTS),
        date_to_string::date_to_string,
    )
    .prepared_by(date_to_string::prepare),
    Row::node(
        "$dateTrunc",
        Named(&date_trunc::ARGUMENTS),
        date_trunc::parse,
    ),
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
    Row::eager("$tsIncrement", Exactly(1), timestamp::increment),
    Row::eager("$tsSecond", Exactly(1), timestamp::second),
    // Types
    Row::lazy("$convert", Named(&convert::ARGUMENTS), convert::convert),
    Row::eager("$isNumber", Exactly(1), convert::is_number),
    Row::eager("$toBool", Exactly(1), convert::to_type),
    Row::eager("$toDate", Exactly(1), convert::to_type),
    Row::eager("$toDecimal", Exactly(1), convert::to_type),
    Row::eager("$toDouble", Exactly(1), convert::to_type),
    Row::eager("$toInt", Exactly(1), convert::to_type),
    Row::eager("$toLong", Exactly(1), convert::to_type),
    Row::eager("$toObjectId", Exactly(1), convert::to_type),
    Row::eager("$toString", Exactly(1), convert::to_type),
    Row::eager("$toUUID", Exactly(1), convert::to_type),
    Row::eager("$type", Exactly(1), convert::type_name),
    // Accumulators as expressions
    Row::eager("$avg", Any, accumulating::avg),
    Row::eager("$max", Any, accumulating::max),
    Row::eager("$median", Named(&percentile::MEDIAN), percentile::median)
        .parsed_by(percentile::parse),
    Row::eager("$min", Any, accumulating::min),
    Row::eager(
        "$percentile",
        Named(&percentile::PERCENTILE),
        percentile::percentile,
    )
    .parsed_by(percentile::parse),
    Row::eager("$stdDevPop", Any, accumulating::std_dev_pop),
    Row::eager("$stdDevSamp", Any, accumulating::std_dev_samp),
    Row::eager("$sum", Any, accumulating::sum),
    // Others
    Row::eager("$binarySize", Exactly(1), size::binary),
    Row::eager("$bsonSize", Exactly(1), size::bson),
    Row::lazy("$createObjectId", Own, meta::object_id)
        .parsed_by(meta::parse_without_arguments)
        .random(),
    Row::lazy("$currentDate", Own, meta::current_date)
        .parsed_by(meta::parse_without_arguments)
        .random(),
    Row::lazy(
        "$deserializeEJSON",
        Named(&extended_json::DESERIALIZE),
        extended_json::deserialize,
    ),
    Row::eager("$hash", Named(&hash::ARGUMENTS), hash::hash),
    Row::eager("$hexHash", Named(&hash::ARGUMENTS), hash::hex_hash),
    Row::lazy(
        "$serializeEJSON",
        Named(&extended_json::SERIALIZE),
        extended_json::serialize,
    ),
    Row::eager("$subtype", Exactly(1), hash::subtype),
    Row::node("$meta", Own, meta::parse_meta),
    Row::lazy("$rand", Own, meta::rand)
        .parsed_by(meta::parse_rand)
        .random(),
    Row::eager(
        "$toHashedIndexKey",
        Exactly(1),
        hashed_index_key::to_hashed_index_key,
    ),
    // Rejected
    Row::refused("$function", ErrorCode::CommandNotSupported, NO_JAVASCRIPT),
];

/// Completes the sentence of operators that run JavaScript.
const NO_JAVASCRIPT: &str = "is not supported: this server does not run JavaScript";

const fn part(name: &'static str) -> Row {
    Row::lazy(name, Own, date_parts::part)
        .parsed_by(date_parts::parse)
        .prepared_by(date_parts::prepare)
}
