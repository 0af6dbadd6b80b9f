//! Parsing of accumulator arguments, with MongoDB's error codes.

use nilometer_bson::{DocRef, Value, ValueRef};

use super::percentile::PercentileList;
use super::registry::ACCUMULATORS;
use super::{AccumulatorKind as K, AccumulatorSpec};
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::matcher::value_tests::{exact_i64, format_value};
use crate::eval::sort_key::SortPattern;
use crate::eval::{Collation, Expression, ParseContext};

pub(super) type ParseFn = fn(K, &str, ValueRef<'_>, &ParseContext) -> Result<AccumulatorSpec>;

/// Code of an operator where a number of documents is required.
const COUNT_ARGUMENT: ErrorCode = ErrorCode::TypeMismatch;

impl AccumulatorSpec {
    /// Parses the right side of `{<output>: {$accumulator: argument}}` in `$group`.
    pub fn parse_field(output: &str, value: ValueRef<'_>, ctx: &ParseContext) -> Result<Self> {
        if output.contains('.') {
            return Err(Error::location(
                location::ACCUMULATOR_OUTPUT_DOTTED,
                format!("The field name '{output}' cannot contain '.'"),
            ));
        }
        if output.starts_with('$') {
            return Err(Error::location(
                location::ACCUMULATOR_OUTPUT_DOLLAR,
                format!("The field name '{output}' cannot be an operator name"),
            ));
        }
        let not_an_accumulator = || {
            Error::location(
                location::ACCUMULATOR_NOT_OBJECT,
                format!("The field '{output}' must be an accumulator object"),
            )
        };
        let doc = value.as_document().ok_or_else(not_an_accumulator)?;
        let mut fields = doc.iter();
        let first = fields.next().ok_or_else(not_an_accumulator)?;
        if !first.name().starts_with('$') {
            return Err(not_an_accumulator());
        }
        if fields.next().is_some() {
            return Err(Error::location(
                location::ACCUMULATOR_NOT_ONE,
                format!("The field '{output}' must specify one accumulator"),
            ));
        }
        Self::parse(first.name(), first.value(), ctx)
    }

    /// Parses the argument of the accumulator called `name`.
    pub fn parse(name: &str, argument: ValueRef<'_>, ctx: &ParseContext) -> Result<Self> {
        let row = ACCUMULATORS.iter().find(|row| row.name == name);
        let row = row.ok_or_else(|| {
            Error::location(
                location::ACCUMULATOR_UNKNOWN,
                format!("unknown group operator '{name}'"),
            )
        })?;
        (row.parse)(row.kind.unwrap_or(K::Sum), name, argument, ctx)
    }

    /// Creates an accumulator with a single argument, for rewrite rules.
    pub fn of(kind: K, argument: Expression, ctx: &ParseContext) -> Self {
        Self {
            kind,
            argument,
            n: None,
            sort: None,
            percentiles: PercentileList::None,
            collation: Collation::of(ctx),
        }
    }
}

/// Parses one expression; an array stands for its single element.
pub(super) fn unary(
    kind: K,
    name: &str,
    argument: ValueRef<'_>,
    ctx: &ParseContext,
) -> Result<AccumulatorSpec> {
    let operand = match argument {
        ValueRef::Array(array) if array.len() == 1 => array.get(0),
        ValueRef::Array(_) => {
            return Err(Error::location(
                location::ACCUMULATOR_NOT_UNARY,
                format!("The {name} accumulator is a unary operator"),
            ));
        }
        single => single,
    };
    let expression = Expression::parse(operand, ctx)?;
    Ok(AccumulatorSpec::of(kind, expression, ctx))
}

/// `{$count: {}}`
pub(super) fn count(
    kind: K,
    _: &str,
    argument: ValueRef<'_>,
    ctx: &ParseContext,
) -> Result<AccumulatorSpec> {
    match argument {
        ValueRef::Document(doc) if doc.is_empty() => Ok(AccumulatorSpec::of(
            kind,
            Expression::constant(Value::Int32(1)),
            ctx,
        )),
        _ => Err(Error::new(
            COUNT_ARGUMENT,
            "$count takes no arguments, i.e. $count:{}",
        )),
    }
}

/// Rejects JavaScript.
pub(super) fn javascript(
    _: K,
    name: &str,
    _: ValueRef<'_>,
    _: &ParseContext,
) -> Result<AccumulatorSpec> {
    Err(Error::new(
        ErrorCode::NotImplemented,
        format!("{name} is not available: this server runs no JavaScript"),
    ))
}

/// The fields of an argument object, each at most once.
struct ArgumentFields<'a> {
    doc: DocRef<'a>,
}

impl<'a> ArgumentFields<'a> {
    fn of(
        argument: ValueRef<'a>,
        not_object: i32,
        known: &[&str],
        unknown: i32,
        name: &str,
    ) -> Result<Self> {
        let doc = argument.as_document().ok_or_else(|| {
            Error::location(
                not_object,
                format!(
                    "specification must be an object; found {name}: {}",
                    format_value(argument)
                ),
            )
        })?;
        if let Some(stranger) = doc.iter().find(|e| !known.contains(&e.name())) {
            return Err(Error::location(
                unknown,
                format!(
                    "Unknown argument for '{name}' operator: {}",
                    stranger.name()
                ),
            ));
        }
        Ok(Self { doc })
    }

    fn required(&self, field: &str, code: i32, name: &str) -> Result<ValueRef<'a>> {
        match self.doc.get(field) {
            ValueRef::Missing => Err(Error::location(
                code,
                format!("Missing value for '{field}' of '{name}'"),
            )),
            value => Ok(value),
        }
    }
}

/// `{n, input}`
pub(super) fn several(
    kind: K,
    name: &str,
    argument: ValueRef<'_>,
    ctx: &ParseContext,
) -> Result<AccumulatorSpec> {
    let not_object = match kind {
        K::FirstN | K::LastN => location::FIRST_N_NOT_OBJECT,
        _ => location::MIN_N_NOT_OBJECT,
    };
    let fields = ArgumentFields::of(
        argument,
        not_object,
        &["n", "input"],
        location::N_FIELD_UNKNOWN,
        name,
    )?;
    let n = fields.required("n", location::N_MISSING, name)?;
    let input = fields.required("input", location::N_INPUT_MISSING, name)?;
    Ok(AccumulatorSpec {
        n: Some(parse_n(n, name, ctx)?),
        ..AccumulatorSpec::of(kind, Expression::parse(input, ctx)?, ctx)
    })
}

/// `{sortBy, output}` and, for the plural forms, `n`.
pub(super) fn ranked(
    kind: K,
    name: &str,
    argument: ValueRef<'_>,
    ctx: &ParseContext,
) -> Result<AccumulatorSpec> {
    let plural = matches!(kind, K::TopN | K::BottomN);
    let known: &[&str] = if plural {
        &["n", "output", "sortBy"]
    } else {
        &["output", "sortBy"]
    };
    let fields = ArgumentFields::of(
        argument,
        location::TOP_NOT_OBJECT,
        known,
        location::TOP_FIELD_UNKNOWN,
        name,
    )?;
    let n = if plural {
        let n = fields.required("n", location::TOP_N_MISSING, name)?;
        Some(parse_n(n, name, ctx)?)
    } else {
        None
    };
    let output = fields.required("output", location::TOP_OUTPUT_MISSING, name)?;
    let sort = fields.required("sortBy", location::TOP_SORT_BY_MISSING, name)?;
    let sort = sort.as_document().ok_or_else(|| {
        Error::location(
            location::OBJECT_EXPECTED,
            format!(
                "invalid parameter: expected an object (sortBy), found {}",
                format_value(sort)
            ),
        )
    })?;
    Ok(AccumulatorSpec {
        n,
        sort: Some(SortPattern::parse(sort, ctx)?),
        ..AccumulatorSpec::of(kind, Expression::parse(output, ctx)?, ctx)
    })
}

fn parse_n(n: ValueRef<'_>, name: &str, ctx: &ParseContext) -> Result<Expression> {
    let expression = Expression::parse(n, ctx)?;
    if let Some(value) = expression.as_constant() {
        check_n(value.as_ref(), name)?;
    }
    Ok(expression)
}

/// Checks `n`: a positive integer.
pub(crate) fn check_n(value: ValueRef<'_>, name: &str) -> Result<i64> {
    if !value.is_number() {
        return Err(Error::location(
            location::N_NOT_NUMBER,
            format!(
                "Value for 'n' of {name} must be of integral type, but found {}",
                format_value(value)
            ),
        ));
    }
    let n = exact_i64(value).ok_or_else(|| {
        Error::location(
            location::N_NOT_WHOLE,
            format!(
                "Value for 'n' of {name} must be of integral type, but found {}",
                format_value(value)
            ),
        )
    })?;
    if n <= 0 {
        return Err(Error::location(
            location::N_NOT_POSITIVE,
            format!("'n' of {name} must be greater than 0, found {n}"),
        ));
    }
    Ok(n)
}

/// Parses `{input, p, method}`; `$median` has no `p`.
pub(super) fn percentile(
    kind: K,
    name: &str,
    argument: ValueRef<'_>,
    ctx: &ParseContext,
) -> Result<AccumulatorSpec> {
    let (not_object, known): (i32, &[&str]) = match kind {
        K::Median => (location::MEDIAN_NOT_OBJECT, &["input", "method"]),
        _ => (location::PERCENTILE_NOT_OBJECT, &["input", "p", "method"]),
    };
    let (unknown, missing) = (ErrorCode::IDLUnknownField.0, ErrorCode::IDLFailedToParse.0);
    let fields = ArgumentFields::of(argument, not_object, known, unknown, name)?;
    let input = fields.required("input", missing, name)?;
    let percentiles = if kind == K::Median {
        PercentileList::Constant([0.5].into())
    } else {
        let p = fields.required("p", missing, name)?;
        PercentileList::parse(Expression::parse(p, ctx)?)?
    };
    check_method(fields.required("method", missing, name)?, name)?;
    Ok(AccumulatorSpec {
        percentiles,
        ..AccumulatorSpec::of(kind, Expression::parse(input, ctx)?, ctx)
    })
}

/// Checks the method: only `approximate` exists in this version of the language.
pub(crate) fn check_method(method: ValueRef<'_>, name: &str) -> Result<()> {
    match method {
        ValueRef::String("approximate") => Ok(()),
        ValueRef::String(other) => Err(Error::bad_value(format!(
            "Currently only 'approximate' can be used as percentile 'method', found '{other}'"
        ))),
        other => Err(Error::wrong_field_type(
            format_args!("{name}.method"),
            other,
            "string",
        )),
    }
}
