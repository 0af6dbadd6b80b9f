//! Parsing of `$setWindowFields`, with MongoDB's error codes.

use nilometer_bson::number::Number;
use nilometer_bson::{DocRef, Element, Value, ValueRef};

use super::frame::{Bound, Bounds};
use super::{SetWindowFields, WindowFunction, WindowOutput};
use crate::error::{Error, Result, location};
use crate::eval::accumulator::AccumulatorSpec;
use crate::eval::date::Unit;
use crate::eval::expression::parse_path;
use crate::eval::matcher::value_tests::{exact_i64, format_value};
use crate::eval::projection::FieldWriter;
use crate::eval::sort_key::SortPattern;
use crate::eval::{Expression, ParseContext};

/// Accumulators that are also window functions.
const ACCUMULATORS: &[&str] = &[
    "$sum",
    "$avg",
    "$min",
    "$max",
    "$first",
    "$last",
    "$push",
    "$addToSet",
    "$concatArrays",
    "$setUnion",
    "$count",
    "$stdDevPop",
    "$stdDevSamp",
    "$firstN",
    "$lastN",
    "$minN",
    "$maxN",
    "$top",
    "$bottom",
    "$topN",
    "$bottomN",
    "$percentile",
    "$median",
];

type FunctionFn = fn(&FunctionContext<'_>, ValueRef<'_>) -> Result<WindowFunction>;

/// Functions that are only window functions.
const FUNCTIONS: &[(&str, FunctionFn)] = &[
    ("$covariancePop", |c, v| covariance(c, v, false)),
    ("$covarianceSamp", |c, v| covariance(c, v, true)),
    ("$derivative", derivative),
    ("$integral", integral),
    ("$expMovingAvg", exp_moving_avg),
    ("$shift", shift),
    ("$rank", |c, v| rank(c, v, WindowFunction::Rank)),
    ("$denseRank", |c, v| rank(c, v, WindowFunction::DenseRank)),
    ("$documentNumber", |c, v| {
        rank(c, v, WindowFunction::DocumentNumber)
    }),
    ("$locf", locf),
    ("$linearFill", linear_fill),
];

const fn function_names() -> [&'static str; ACCUMULATORS.len() + FUNCTIONS.len()] {
    let mut names = [""; ACCUMULATORS.len() + FUNCTIONS.len()];
    let mut at = 0;
    while at < ACCUMULATORS.len() {
        names[at] = ACCUMULATORS[at];
        at += 1;
    }
    let mut next = 0;
    while next < FUNCTIONS.len() {
        names[at + next] = FUNCTIONS[next].0;
        next += 1;
    }
    names
}

/// All window functions.
pub const WINDOW_FUNCTION_NAMES: [&str; ACCUMULATORS.len() + FUNCTIONS.len()] = function_names();

/// The context of parsing one function.
struct FunctionContext<'a> {
    ctx: &'a ParseContext,
    name: &'a str,
    sort_by: Option<&'a SortPattern>,
    /// `None` if the function has no `window`.
    bounds: Option<Bounds>,
}

impl FunctionContext<'_> {
    fn refuse_window(&self) -> Result<()> {
        match self.bounds {
            None => Ok(()),
            Some(_) => Err(failed(format!(
                "{} does not accept a 'window' field",
                self.name
            ))),
        }
    }

    fn need_sort(&self) -> Result<()> {
        match self.sort_by {
            Some(_) => Ok(()),
            None => Err(failed(format!("{} requires a sortBy", self.name))),
        }
    }

    /// Returns the fields of an argument object; an error if one is not in `known`.
    fn fields<'v>(&self, argument: ValueRef<'v>, known: &[&str]) -> Result<DocRef<'v>> {
        let doc = argument.as_document().ok_or_else(|| {
            failed(format!(
                "Argument to {} must be an object, got {}",
                self.name,
                format_value(argument)
            ))
        })?;
        match doc.iter().find(|e| !known.contains(&e.name())) {
            Some(stranger) => Err(failed(format!(
                "{} got unexpected argument: {}",
                self.name,
                stranger.name()
            ))),
            None => Ok(doc),
        }
    }

    fn required(&self, doc: DocRef<'_>, field: &str) -> Result<Expression> {
        match doc.get(field) {
            ValueRef::Missing => Err(failed(format!(
                "{} requires an '{field}' expression",
                self.name
            ))),
            value => Expression::parse(value, self.ctx),
        }
    }
}

fn failed(message: impl Into<String>) -> Error {
    Error::failed_to_parse(message)
}

impl SetWindowFields {
    /// Parses the operand of the stage.
    pub fn parse(spec: ValueRef<'_>, ctx: &ParseContext) -> Result<Self> {
        let doc = spec.as_document().ok_or_else(|| {
            failed(format!(
                "the $setWindowFields stage specification must be an object, found {}",
                spec.type_name()
            ))
        })?;
        let mut partition_by = None;
        let mut sort_by = None;
        let mut output = None;
        for element in doc {
            let wrong_type = |field: &str| {
                Error::wrong_field_type(
                    format_args!("$setWindowFields.{field}"),
                    element.value(),
                    "object",
                )
            };
            match (element.name(), element.value()) {
                ("partitionBy", value) => partition_by = Some(Expression::parse(value, ctx)?),
                ("sortBy", ValueRef::Document(sort)) if sort.is_empty() => {}
                ("sortBy", ValueRef::Document(sort)) => {
                    sort_by = Some(SortPattern::parse(sort, ctx)?);
                }
                ("output", ValueRef::Document(fields)) => output = Some(fields),
                (name @ ("sortBy" | "output"), _) => return Err(wrong_type(name)),
                (name, _) => {
                    return Err(Error::unknown_field(format_args!(
                        "$setWindowFields.{name}"
                    )));
                }
            }
        }
        let output = output.ok_or_else(|| Error::missing_field("$setWindowFields.output"))?;
        let outputs = output
            .iter()
            .map(|element| parse_output(element, sort_by.as_ref(), ctx))
            .collect::<Result<Vec<_>>>()?;
        let writer = FieldWriter::new(outputs.iter().map(|output| output.path.as_str()))
            .map_err(|e| Error::location(location::WINDOW_OUTPUT_PATHS_CONFLICT, e.message))?;
        Ok(Self {
            // A constant puts all documents into one partition.
            partition_by: partition_by.filter(|by: &Expression| by.as_constant().is_none()),
            sort_by,
            outputs,
            writer,
            source: doc.to_document(),
        })
    }
}

/// `path: {$function: argument, window?: …}`
fn parse_output(
    element: Element<'_>,
    sort_by: Option<&SortPattern>,
    ctx: &ParseContext,
) -> Result<WindowOutput> {
    let path = element.name();
    parse_path(path)?;
    let spec = element.value().as_document().ok_or_else(|| {
        failed(format!(
            "The field '{path}' must be a window function object"
        ))
    })?;
    let mut function = None;
    let mut window = None;
    for part in spec {
        match part.name() {
            "window" => window = Some(part.value()),
            name if name.starts_with('$') && function.is_none() => {
                function = Some((name, part.value()));
            }
            name if name.starts_with('$') => {
                return Err(failed(format!(
                    "The field '{path}' must specify one window function, found also {name}"
                )));
            }
            name => {
                return Err(failed(format!(
                    "Unknown argument '{name}' to the window function of '{path}'"
                )));
            }
        }
    }
    let (name, argument) = function
        .ok_or_else(|| failed(format!("Expected a $-prefixed window function in '{path}'")))?;
    let bounds = window.map(|window| parse_bounds(window, ctx)).transpose()?;
    let context = FunctionContext {
        ctx,
        name,
        sort_by,
        bounds,
    };
    let parsed = if ACCUMULATORS.contains(&name) {
        WindowFunction::Accumulator(AccumulatorSpec::parse(name, argument, ctx)?)
    } else {
        let known = FUNCTIONS.iter().find(|(known, _)| *known == name);
        let (_, parse) =
            known.ok_or_else(|| failed(format!("Unrecognized window function, {name}")))?;
        parse(&context, argument)?
    };
    if let Some(bounds) = &bounds {
        check_bounds(bounds, sort_by)?;
    }
    Ok(WindowOutput {
        path: path.to_owned(),
        function: parsed,
        bounds: bounds.unwrap_or(Bounds::ALL),
    })
}

fn parse_bounds(window: ValueRef<'_>, ctx: &ParseContext) -> Result<Bounds> {
    let doc = window
        .as_document()
        .ok_or_else(|| failed("'window' field must be an object"))?;
    for element in doc {
        if !matches!(element.name(), "documents" | "range" | "unit") {
            return Err(failed(format!(
                "'window' field can only contain 'documents', 'range' and 'unit', found '{}'",
                element.name()
            )));
        }
    }
    let unit = match doc.get("unit") {
        ValueRef::Missing => None,
        ValueRef::String(name) => Some(parse_unit(name)?),
        other => {
            return Err(failed(format!(
                "'unit' must be a string, found {}",
                other.type_name()
            )));
        }
    };
    match (doc.get("documents"), doc.get("range")) {
        (ValueRef::Missing, ValueRef::Missing) if unit.is_some() => Err(failed(
            "Window bounds can only specify 'unit' with range-based bounds.",
        )),
        (ValueRef::Missing, ValueRef::Missing) => Ok(Bounds::ALL),
        (documents, ValueRef::Missing) => {
            if unit.is_some() {
                return Err(failed(
                    "Window bounds can only specify 'unit' with range-based bounds.",
                ));
            }
            let (lower, upper) = parse_pair(documents, ctx, integer)?;
            if is_reversed(lower, upper, 0, |a, b| a > b) {
                return Err(lower_above_upper());
            }
            Ok(Bounds::Documents(lower, upper))
        }
        (ValueRef::Missing, range) => {
            let (lower, upper) = match unit {
                Some(_) => parse_pair(range, ctx, |v| integer(v).map(Number::Long))?,
                None => parse_pair(range, ctx, number)?,
            };
            if is_reversed(lower, upper, Number::Int(0), |a, b| a.compare(b).is_gt()) {
                return Err(lower_above_upper());
            }
            Ok(Bounds::Range(lower, upper, unit))
        }
        _ => Err(failed(
            "Window bounds can specify either 'documents' or 'range', not both.",
        )),
    }
}

fn lower_above_upper() -> Error {
    Error::location(
        location::WINDOW_LOWER_ABOVE_UPPER,
        "Lower bound must not exceed upper bound of a window",
    )
}

fn is_reversed<T: Copy>(
    lower: Bound<T>,
    upper: Bound<T>,
    zero: T,
    greater: impl Fn(T, T) -> bool,
) -> bool {
    let value = |bound: Bound<T>| match bound {
        Bound::Unbounded => None,
        Bound::Current => Some(zero),
        Bound::At(value) => Some(value),
    };
    match (value(lower), value(upper)) {
        (Some(lower), Some(upper)) => greater(lower, upper),
        _ => false,
    }
}

fn parse_pair<T>(
    pair: ValueRef<'_>,
    ctx: &ParseContext,
    read: impl Fn(ValueRef<'_>) -> Result<T>,
) -> Result<(Bound<T>, Bound<T>)> {
    let array = pair
        .as_array()
        .filter(|array| array.len() == 2)
        .ok_or_else(|| failed("Window bounds must be a 2-element array"))?;
    let bound = |value: ValueRef<'_>| -> Result<Bound<T>> {
        match value {
            ValueRef::String("unbounded") => Ok(Bound::Unbounded),
            ValueRef::String("current") => Ok(Bound::Current),
            other => {
                let expression = Expression::parse(other, ctx)?;
                let constant = expression
                    .as_constant()
                    .ok_or_else(|| failed("Window bounds expression must be constant"))?;
                read(constant.as_ref()).map(Bound::At)
            }
        }
    };
    Ok((bound(array.get(0))?, bound(array.get(1))?))
}

fn integer(value: ValueRef<'_>) -> Result<i64> {
    exact_i64(value).ok_or_else(|| {
        failed(format!(
            "Numeric window bounds must be integers, found {}",
            format_value(value)
        ))
    })
}

fn number(value: ValueRef<'_>) -> Result<Number> {
    Number::of(value).ok_or_else(|| {
        failed(format!(
            "Window bounds must be 'unbounded', 'current', or a number, found {}",
            format_value(value)
        ))
    })
}

fn parse_unit(name: &str) -> Result<Unit> {
    Unit::parse(name).ok_or_else(|| failed(format!("unknown time unit value: {name}")))
}

/// Checks that the order suits the bounds.
fn check_bounds(bounds: &Bounds, sort_by: Option<&SortPattern>) -> Result<()> {
    match bounds {
        bounds if bounds.is_all() => Ok(()),
        Bounds::Documents(..) if sort_by.is_none() => Err(Error::location(
            location::WINDOW_DOCUMENTS_WITHOUT_SORT,
            "Document-based bounds require a sortBy",
        )),
        Bounds::Documents(..) => Ok(()),
        Bounds::Range(..) => match sort_by.and_then(SortPattern::single_field) {
            Some((_, false)) => Ok(()),
            _ => Err(Error::location(
                location::WINDOW_RANGE_WITHOUT_SORT,
                "Range-based bounds require sortBy a single field, in ascending order",
            )),
        },
    }
}

fn covariance(
    c: &FunctionContext<'_>,
    argument: ValueRef<'_>,
    sample: bool,
) -> Result<WindowFunction> {
    Ok(WindowFunction::Covariance {
        input: Expression::parse(argument, c.ctx)?,
        sample,
    })
}

/// Parses `{input, unit?}` of `$derivative` and `$integral`.
fn parse_over_time(
    c: &FunctionContext<'_>,
    argument: ValueRef<'_>,
) -> Result<(Expression, Option<Unit>)> {
    let doc = c.fields(argument, &["input", "unit"])?;
    let input = c.required(doc, "input")?;
    let unit = match doc.get("unit") {
        ValueRef::Missing => None,
        ValueRef::String(name) => Some(parse_unit(name)?),
        other => {
            return Err(failed(format!(
                "'unit' must be a string, found {}",
                other.type_name()
            )));
        }
    };
    if let Some(unit) = unit.filter(|unit| unit.months().is_some()) {
        return Err(Error::location(
            match c.name {
                "$derivative" => location::DERIVATIVE_UNIT_TOO_LONG,
                _ => location::INTEGRAL_UNIT_TOO_LONG,
            },
            format!("unit must be 'week' or smaller, found '{}'", unit.name()),
        ));
    }
    if c.sort_by.and_then(SortPattern::single_field).is_none() {
        return Err(failed(format!("{} requires a sortBy of one field", c.name)));
    }
    Ok((input, unit))
}

fn derivative(c: &FunctionContext<'_>, argument: ValueRef<'_>) -> Result<WindowFunction> {
    let (input, unit) = parse_over_time(c, argument)?;
    if c.bounds.is_none() {
        return Err(failed("$derivative requires explicit window bounds"));
    }
    Ok(WindowFunction::Derivative { input, unit })
}

fn integral(c: &FunctionContext<'_>, argument: ValueRef<'_>) -> Result<WindowFunction> {
    let (input, unit) = parse_over_time(c, argument)?;
    Ok(WindowFunction::Integral { input, unit })
}

fn exp_moving_avg(c: &FunctionContext<'_>, argument: ValueRef<'_>) -> Result<WindowFunction> {
    let doc = c.fields(argument, &["input", "N", "alpha"])?;
    let input = c.required(doc, "input")?;
    let alpha = match (doc.get("N"), doc.get("alpha")) {
        (ValueRef::Missing, ValueRef::Missing) => {
            return Err(failed("$expMovingAvg requires either N or alpha"));
        }
        (n, ValueRef::Missing) => {
            let n = exact_i64(n)
                .filter(|n| *n > 0)
                .ok_or_else(|| failed("'N' field must be a positive integer"))?;
            Number::Double(2.0 / (n as f64 + 1.0))
        }
        (ValueRef::Missing, alpha) => Number::of(alpha)
            .filter(|alpha| {
                alpha.compare(Number::Int(0)).is_gt() && alpha.compare(Number::Int(1)).is_lt()
            })
            .ok_or_else(|| failed("'alpha' must be between 0 and 1 (exclusive)"))?,
        _ => return Err(failed("$expMovingAvg takes either N or alpha, not both")),
    };
    c.need_sort()?;
    c.refuse_window()?;
    Ok(WindowFunction::ExpMovingAvg { input, alpha })
}

fn shift(c: &FunctionContext<'_>, argument: ValueRef<'_>) -> Result<WindowFunction> {
    let doc = c.fields(argument, &["output", "by", "default"])?;
    let output = c.required(doc, "output")?;
    let by = match doc.get("by") {
        ValueRef::Missing => return Err(failed("$shift requires 'by'")),
        by => exact_i64(by).ok_or_else(|| failed("'$shift:by' field must be an integer"))?,
    };
    let default = match doc.get("default") {
        ValueRef::Missing => Value::Null,
        value => Expression::parse(value, c.ctx)?
            .as_constant()
            .cloned()
            .ok_or_else(|| failed("'$shift:default' expression must be constant"))?,
    };
    c.need_sort()?;
    c.refuse_window()?;
    Ok(WindowFunction::Shift {
        output,
        by,
        default: crate::eval::accumulator::or_null(default),
    })
}

fn rank(
    c: &FunctionContext<'_>,
    argument: ValueRef<'_>,
    function: WindowFunction,
) -> Result<WindowFunction> {
    if !argument.as_document().is_some_and(DocRef::is_empty) {
        return Err(Error::location(
            location::RANK_WITH_ARGUMENT,
            format!("{} must be specified with '{{}}' as the value", c.name),
        ));
    }
    if c.bounds.is_some() {
        return Err(Error::location(
            location::RANK_WITH_WINDOW,
            format!("{} does not accept a 'window' field", c.name),
        ));
    }
    if c.sort_by.is_none_or(|sort| sort.parts().len() != 1) {
        return Err(Error::location(
            location::RANK_WITHOUT_SORT,
            format!(
                "{} must be specified with a top level sortBy expression with exactly one element",
                c.name
            ),
        ));
    }
    Ok(function)
}

fn locf(c: &FunctionContext<'_>, argument: ValueRef<'_>) -> Result<WindowFunction> {
    c.refuse_window()?;
    Expression::parse(argument, c.ctx).map(WindowFunction::LastCarriedForward)
}

fn linear_fill(c: &FunctionContext<'_>, argument: ValueRef<'_>) -> Result<WindowFunction> {
    c.refuse_window()?;
    if c.sort_by.and_then(SortPattern::single_field).is_none() {
        return Err(Error::location(
            location::LINEAR_FILL_SORT,
            "$linearFill must be specified with a top level sortBy expression with exactly one \
             element",
        ));
    }
    Expression::parse(argument, c.ctx).map(WindowFunction::LinearFill)
}
