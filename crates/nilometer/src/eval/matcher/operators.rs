//! The operators of the filter language in two tables, and the parsing of their operands.
//!
//! A name that is not in a table is an error. A known operator that is not supported (JavaScript)
//! has a row that rejects it, so the tables are complete.

use std::sync::Arc;

use nilometer_bson::number::Number;
use nilometer_bson::{DocRef, Element, Value, ValueRef, array, doc};

use super::comparison::{CompareOp, Comparison, InList};
use super::expr::ExprTest;
use super::json_schema::JsonSchema;
use super::parse::{FilterLevel, FilterParser, is_operator_document};
use super::path::MatchPath;
use super::regex::Pattern;
use super::value_tests::{BitTest, BitTestKind, ModTest, TypeSet, parse_size};
use super::{MatchExpression, geo, rewrite, text};
use crate::error::{Error, Result, location};
use crate::eval::Collation;
use crate::eval::expression::is_true;

/// `None` for operators that add no condition (`$comment`, `$options`).
type ParseResult = Result<Option<MatchExpression>>;
type TopLevelParser = fn(FilterParser<'_>, Element<'_>) -> ParseResult;
/// Also receives the whole operator document, since `$regex` and `$options` belong together.
type PathOperatorParser = fn(FilterParser<'_>, &MatchPath, Element<'_>, DocRef<'_>) -> ParseResult;

/// Operators in place of a field.
const TOP_LEVEL: &[(&str, TopLevelParser)] = &[
    ("$and", |p, e| logical(p, e, MatchExpression::And)),
    ("$or", |p, e| logical(p, e, MatchExpression::Or)),
    ("$nor", |p, e| logical(p, e, MatchExpression::Nor)),
    ("$expr", expr),
    ("$jsonSchema", json_schema),
    ("$comment", |_, _| Ok(None)),
    ("$sampleRate", sample_rate),
    ("$alwaysTrue", |_, e| {
        constant(e, MatchExpression::AlwaysTrue)
    }),
    ("$alwaysFalse", |_, e| {
        constant(e, MatchExpression::AlwaysFalse)
    }),
    ("$_internalBucketGeoWithin", |p, e| {
        geo::bucket(p, e).map(Some)
    }),
    ("$where", where_),
    ("$text", |p, e| text::parse(p, e).map(Some)),
];

/// Operators on a path.
const ON_PATH: &[(&str, PathOperatorParser)] = &[
    ("$eq", |p, path, e, _| {
        p.compare(path.clone(), CompareOp::Eq, e.value()).map(Some)
    }),
    ("$ne", not_equal),
    ("$gt", |p, path, e, _| {
        p.compare(path.clone(), CompareOp::Gt, e.value()).map(Some)
    }),
    ("$gte", |p, path, e, _| {
        p.compare(path.clone(), CompareOp::Gte, e.value()).map(Some)
    }),
    ("$lt", |p, path, e, _| {
        p.compare(path.clone(), CompareOp::Lt, e.value()).map(Some)
    }),
    ("$lte", |p, path, e, _| {
        p.compare(path.clone(), CompareOp::Lte, e.value()).map(Some)
    }),
    ("$in", |p, path, e, _| in_list(p, path, e).map(Some)),
    ("$nin", |p, path, e, _| {
        in_list(p, path, e).map(rewrite::not).map(Some)
    }),
    ("$not", not),
    ("$exists", exists),
    ("$type", type_),
    ("$mod", |_, path, e, _| {
        let test = ModTest::parse(e.value())?;
        let path = path.clone();
        Ok(Some(MatchExpression::Mod { path, test }))
    }),
    ("$size", |_, path, e, _| {
        let size = parse_size(e.value())?;
        let path = path.clone();
        Ok(Some(MatchExpression::Size { path, size }))
    }),
    ("$all", all),
    ("$elemMatch", elem_match),
    ("$regex", regex),
    ("$options", options),
    ("$bitsAllSet", |_, path, e, _| {
        bits(path, e, BitTestKind::AllSet)
    }),
    ("$bitsAllClear", |_, path, e, _| {
        bits(path, e, BitTestKind::AllClear)
    }),
    ("$bitsAnySet", |_, path, e, _| {
        bits(path, e, BitTestKind::AnySet)
    }),
    ("$bitsAnyClear", |_, path, e, _| {
        bits(path, e, BitTestKind::AnyClear)
    }),
    ("$_internalExprEq", |p, path, e, _| {
        Ok(expr_compare(p, path, e, CompareOp::Eq))
    }),
    ("$_internalExprGt", |p, path, e, _| {
        Ok(expr_compare(p, path, e, CompareOp::Gt))
    }),
    ("$_internalExprGte", |p, path, e, _| {
        Ok(expr_compare(p, path, e, CompareOp::Gte))
    }),
    ("$_internalExprLt", |p, path, e, _| {
        Ok(expr_compare(p, path, e, CompareOp::Lt))
    }),
    ("$_internalExprLte", |p, path, e, _| {
        Ok(expr_compare(p, path, e, CompareOp::Lte))
    }),
    ("$geoIntersects", |_, path, e, _| {
        geo::intersects(path, e).map(Some)
    }),
    ("$geoWithin", |_, path, e, _| geo::within(path, e).map(Some)),
    ("$within", |_, path, e, _| geo::within(path, e).map(Some)),
    ("$near", near),
    ("$nearSphere", near),
    ("$geoNear", near),
    ("$maxDistance", near_limit),
    ("$minDistance", near_limit),
];

const fn names<const N: usize, T>(table: &'static [(&'static str, T)]) -> [&'static str; N] {
    let mut names = [""; N];
    let mut at = 0;
    while at < N {
        names[at] = table[at].0;
        at += 1;
    }
    names
}

/// All operator names in place of a field.
pub const TOP_LEVEL_OPERATOR_NAMES: [&str; TOP_LEVEL.len()] = names(TOP_LEVEL);

/// All operator names on a path.
pub const PATH_OPERATOR_NAMES: [&str; ON_PATH.len()] = names(ON_PATH);

/// Operators that are known and rejected: no JavaScript.
pub const REFUSED_OPERATOR_NAMES: &[&str] = &["$where"];

/// Parses an operator in place of a field.
pub(super) fn parse_top_level(parser: FilterParser<'_>, element: Element<'_>) -> ParseResult {
    let name = element.name();
    match TOP_LEVEL.iter().find(|(known, _)| *known == name) {
        Some((_, parse)) => parse(parser, element),
        None => Err(Error::bad_value(format!(
            "unknown top level operator: {name}. If you have a field name that starts with a '$' \
             symbol, consider using $getField or $setField."
        ))),
    }
}

/// Parses an operator on a path, one of those in `all`.
pub(super) fn parse_on_path(
    parser: FilterParser<'_>,
    path: &MatchPath,
    element: Element<'_>,
    all: DocRef<'_>,
) -> ParseResult {
    let name = element.name();
    match ON_PATH.iter().find(|(known, _)| *known == name) {
        Some((_, parse)) => parse(parser, path, element, all),
        None => Err(Error::bad_value(format!("unknown operator: {name}"))),
    }
}

fn logical(
    parser: FilterParser<'_>,
    element: Element<'_>,
    join: fn(Vec<MatchExpression>) -> MatchExpression,
) -> ParseResult {
    let name = element.name();
    let arms = element
        .value()
        .as_array()
        .ok_or_else(|| Error::bad_value(format!("{name} must be an array")))?;
    let mut inner = parser.deeper(parser.level)?;
    match name {
        "$and" => {
            inner.near = parser.near;
            inner.text = parser.text;
        }
        "$or" => inner.text = parser.text,
        _ => {}
    }
    let mut parsed = Vec::new();
    for arm in arms.iter() {
        let arm = arm
            .as_document()
            .ok_or_else(|| Error::bad_value(format!("{name} entries need to be full objects")))?;
        parsed.push(inner.document(arm)?);
    }
    if parsed.is_empty() {
        return Err(Error::bad_value(format!("{name} must be a nonempty array")));
    }
    Ok(Some(join(parsed)))
}

pub(super) fn only_top_level(parser: FilterParser<'_>, name: &str) -> Result<()> {
    if parser.level == FilterLevel::Document {
        return Ok(());
    }
    Err(Error::bad_value(format!(
        "{name} can only be applied to the top-level document"
    )))
}

fn expr(parser: FilterParser<'_>, element: Element<'_>) -> ParseResult {
    only_top_level(parser, "$expr")?;
    let expression = ExprTest::parse(element.value(), parser.ctx)?;
    Ok(Some(MatchExpression::Expr(Arc::new(expression))))
}

fn json_schema(parser: FilterParser<'_>, element: Element<'_>) -> ParseResult {
    only_top_level(parser, "$jsonSchema")?;
    let schema = element
        .value()
        .as_document()
        .ok_or_else(|| Error::type_mismatch("$jsonSchema must be an object"))?;
    let schema = JsonSchema::parse_within(schema, parser.ctx.folding())?;
    Ok(Some(MatchExpression::JsonSchema(Arc::new(schema))))
}

fn sample_rate(parser: FilterParser<'_>, element: Element<'_>) -> ParseResult {
    only_top_level(parser, "$sampleRate")?;
    let value = element.value();
    if !value.is_number() {
        return Err(Error::bad_value(
            "argument to $sampleRate must be a numeric type",
        ));
    }
    let rate = Number::of(value).map_or(f64::NAN, Number::to_f64);
    if !(0.0..=1.0).contains(&rate) {
        return Err(Error::bad_value(
            "numeric argument to $sampleRate must be in [0, 1]",
        ));
    }
    if rate == 1.0 {
        return Ok(Some(MatchExpression::AlwaysTrue));
    }
    if rate == 0.0 {
        return Ok(Some(MatchExpression::AlwaysFalse));
    }
    let draw = doc! { "$lt": array![doc! { "$rand": doc! {} }, rate] };
    let expression = ExprTest::parse(Value::Document(draw).as_ref(), parser.ctx)?;
    Ok(Some(MatchExpression::Expr(Arc::new(expression))))
}

fn constant(element: Element<'_>, constant: MatchExpression) -> ParseResult {
    if element.value().as_exact_i64() == Some(1) {
        return Ok(Some(constant));
    }
    Err(Error::failed_to_parse(format!(
        "{} must be an integer value of 1",
        element.name()
    )))
}

fn where_(parser: FilterParser<'_>, _: Element<'_>) -> ParseResult {
    only_top_level(parser, "$where")?;
    Err(Error::bad_value(
        "no globalScriptEngine in $where parsing: this server runs no JavaScript",
    ))
}

fn near(
    parser: FilterParser<'_>,
    path: &MatchPath,
    _: Element<'_>,
    all: DocRef<'_>,
) -> ParseResult {
    geo::near(parser, path, all).map(Some)
}

fn near_limit(
    _: FilterParser<'_>,
    _: &MatchPath,
    element: Element<'_>,
    all: DocRef<'_>,
) -> ParseResult {
    geo::distance_limit(element, all).map(|()| None)
}

fn not_equal(
    parser: FilterParser<'_>,
    path: &MatchPath,
    e: Element<'_>,
    _: DocRef<'_>,
) -> ParseResult {
    if matches!(e.value(), ValueRef::Regex { .. }) {
        return Err(Error::bad_value("Can't have regex as arg to $ne."));
    }
    let equal = parser.compare(path.clone(), CompareOp::Eq, e.value())?;
    Ok(Some(rewrite::not(equal)))
}

fn in_list(
    parser: FilterParser<'_>,
    path: &MatchPath,
    element: Element<'_>,
) -> Result<MatchExpression> {
    let name = element.name();
    let array = element
        .value()
        .as_array()
        .ok_or_else(|| Error::bad_value(format!("{name} needs an array")))?;
    let mut values = Vec::new();
    let mut patterns = Vec::new();
    for value in array.iter() {
        match value {
            ValueRef::Document(doc) if is_operator_document(doc) => {
                return Err(Error::bad_value(format!("cannot nest $ under {name}")));
            }
            ValueRef::Undefined => {
                return Err(Error::bad_value(
                    "InMatchExpression equality cannot be undefined",
                ));
            }
            ValueRef::Regex { pattern, options } => {
                patterns.push(Pattern::parse_within(
                    pattern,
                    options,
                    parser.ctx.folding(),
                )?);
            }
            value => values.push(value.to_value()),
        }
    }
    Ok(MatchExpression::In(InList::new(
        path.clone(),
        values,
        patterns,
        Collation::of(parser.ctx),
    )))
}

fn not(
    parser: FilterParser<'_>,
    path: &MatchPath,
    element: Element<'_>,
    _: DocRef<'_>,
) -> ParseResult {
    let inner = match element.value() {
        ValueRef::Regex { pattern, options } => MatchExpression::Regex {
            path: path.clone(),
            pattern: Pattern::parse_within(pattern, options, parser.ctx.folding())?,
        },
        ValueRef::Document(doc) if doc.is_empty() => {
            return Err(Error::bad_value("$not cannot be empty"));
        }
        ValueRef::Document(doc) => {
            let mut parts = Vec::new();
            parser
                .deeper(parser.level)?
                .operators(path, doc, &mut parts)?;
            rewrite::and(parts)
        }
        _ => return Err(Error::bad_value("$not needs a regex or a document")),
    };
    Ok(Some(rewrite::not(inner)))
}

fn exists(
    _: FilterParser<'_>,
    path: &MatchPath,
    element: Element<'_>,
    _: DocRef<'_>,
) -> ParseResult {
    let wanted = match element.value() {
        ValueRef::Undefined => {
            return Err(Error::bad_value("cannot compare to undefined"));
        }
        value => is_true(value),
    };
    let exists = MatchExpression::Exists(path.clone());
    Ok(Some(if wanted { exists } else { rewrite::not(exists) }))
}

fn type_(
    _: FilterParser<'_>,
    path: &MatchPath,
    element: Element<'_>,
    _: DocRef<'_>,
) -> ParseResult {
    let types = TypeSet::parse(element.value(), path.as_str())?;
    let path = path.clone();
    Ok(Some(MatchExpression::Type { path, types }))
}

fn all(
    parser: FilterParser<'_>,
    path: &MatchPath,
    element: Element<'_>,
    _: DocRef<'_>,
) -> ParseResult {
    let array = element
        .value()
        .as_array()
        .ok_or_else(|| Error::bad_value("$all needs an array"))?;
    let is_elem_match = |value: ValueRef<'_>| {
        value
            .as_document()
            .and_then(|doc| doc.iter().next())
            .is_some_and(|first| first.name() == "$elemMatch")
    };
    let wants_elem_match = array.iter().next().is_some_and(is_elem_match);
    let mut parts = Vec::new();
    for value in array.iter() {
        match value {
            ValueRef::Document(doc) if wants_elem_match => {
                if !is_elem_match(value) || doc.iter().count() != 1 {
                    return Err(Error::bad_value("$all/$elemMatch has to be consistent"));
                }
                parser.operators(path, doc, &mut parts)?;
            }
            _ if wants_elem_match => {
                return Err(Error::bad_value("$all/$elemMatch has to be consistent"));
            }
            ValueRef::Document(doc) if is_operator_document(doc) => {
                return Err(Error::bad_value("no $ expressions in $all"));
            }
            ValueRef::Regex { pattern, options } => parts.push(MatchExpression::Regex {
                path: path.clone(),
                pattern: Pattern::parse_within(pattern, options, parser.ctx.folding())?,
            }),
            value => parts.push(parser.compare(path.clone(), CompareOp::Eq, value)?),
        }
    }
    if parts.is_empty() {
        return Ok(Some(MatchExpression::AlwaysFalse));
    }
    Ok(Some(rewrite::and(parts)))
}

fn elem_match(
    parser: FilterParser<'_>,
    path: &MatchPath,
    element: Element<'_>,
    _: DocRef<'_>,
) -> ParseResult {
    let doc = element
        .value()
        .as_document()
        .ok_or_else(|| Error::bad_value("$elemMatch needs an Object"))?;
    let inner = parser.deeper(FilterLevel::Element)?;
    let first = doc.iter().next().map_or("", |first| first.name());
    let on_value = is_operator_document(doc) && !TOP_LEVEL_OPERATOR_NAMES.contains(&first);
    let path = path.clone();
    if on_value {
        let mut tests = Vec::new();
        inner.operators(&MatchPath::itself(), doc, &mut tests)?;
        Ok(Some(MatchExpression::ElemMatchValue { path, tests }))
    } else {
        let filter = Box::new(inner.document(doc)?);
        Ok(Some(MatchExpression::ElemMatchObject { path, filter }))
    }
}

fn regex(
    parser: FilterParser<'_>,
    path: &MatchPath,
    element: Element<'_>,
    all: DocRef<'_>,
) -> ParseResult {
    let position = |name: &str| all.iter().position(|e| e.name() == name);
    let given = match all.get("$options") {
        ValueRef::Missing => None,
        ValueRef::String(options) => Some(options),
        _ => return Err(Error::bad_value("$options has to be a string")),
    };
    let (pattern, embedded) = match element.value() {
        ValueRef::String(pattern) => (pattern, ""),
        ValueRef::Regex { pattern, options } => (pattern, options),
        _ => return Err(Error::bad_value("$regex has to be a string")),
    };
    if given.is_some() && !embedded.is_empty() {
        let code = if position("$options") < position("$regex") {
            location::REGEX_OPTIONS_BEFORE_PATTERN
        } else {
            location::REGEX_OPTIONS_AFTER_PATTERN
        };
        return Err(Error::location(
            code,
            "options set in both $regex and $options",
        ));
    }
    Ok(Some(MatchExpression::Regex {
        path: path.clone(),
        pattern: Pattern::parse_within(pattern, given.unwrap_or(embedded), parser.ctx.folding())?,
    }))
}

fn options(_: FilterParser<'_>, _: &MatchPath, _: Element<'_>, all: DocRef<'_>) -> ParseResult {
    if all.contains("$regex") {
        return Ok(None);
    }
    Err(Error::bad_value("$options needs a $regex"))
}

fn bits(path: &MatchPath, element: Element<'_>, kind: BitTestKind) -> ParseResult {
    let test = BitTest::parse(kind, element.value(), path.as_str())?;
    let path = path.clone();
    Ok(Some(MatchExpression::Bits { path, test }))
}

fn expr_compare(
    parser: FilterParser<'_>,
    path: &MatchPath,
    element: Element<'_>,
    op: CompareOp,
) -> Option<MatchExpression> {
    Some(MatchExpression::ExprCompare(Comparison {
        path: path.clone(),
        op,
        value: element.value().to_value(),
        collation: Collation::of(parser.ctx),
    }))
}
