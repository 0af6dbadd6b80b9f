//! The functions of InfluxQL, and what becomes of each.

/// What a function does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FunctionKind {
    /// One value of all values of a window: an accumulator of `$group`.
    Aggregate,
    /// One of the values of a window, with its time.
    Selector,
    /// Several of the values of a window, each with its time.
    Multiple,
    /// Values in order of time to values in order of time.
    Transformation,
    /// One number of one or two numbers.
    Scalar,
    /// Refused, with the reason.
    Refused(&'static str),
}

/// A function.
#[derive(Clone, Copy, Debug)]
pub struct Function {
    /// Its name.
    pub name: &'static str,
    /// What it does.
    pub kind: FunctionKind,
    /// It takes fields of any type, not only numbers.
    pub takes_any_type: bool,
    /// What COMPATIBILITY.md says of it.
    pub note: &'static str,
}

const fn function(name: &'static str, kind: FunctionKind, note: &'static str) -> Function {
    Function {
        name,
        kind,
        takes_any_type: false,
        note,
    }
}

const fn any_type(name: &'static str, kind: FunctionKind, note: &'static str) -> Function {
    Function {
        takes_any_type: true,
        ..function(name, kind, note)
    }
}

const LATER: FunctionKind = FunctionKind::Refused("it is not supported yet");

use FunctionKind::{Aggregate, Multiple, Scalar, Selector, Transformation};

/// All functions, by name.
pub const FUNCTIONS: &[Function] = &[
    function("abs", Scalar, ""),
    function("acos", Scalar, ""),
    function("asin", Scalar, ""),
    function("atan", Scalar, ""),
    function("atan2", Scalar, ""),
    function("bottom", Multiple, "also by tags"),
    function("ceil", Scalar, ""),
    function("chande_momentum_oscillator", LATER, ""),
    function("cos", Scalar, ""),
    any_type("count", Aggregate, "also of `distinct(…)`"),
    function("cumulative_sum", Transformation, ""),
    function("derivative", Transformation, ""),
    function("difference", Transformation, ""),
    any_type("distinct", Multiple, "in order of the values"),
    function("double_exponential_moving_average", LATER, ""),
    function("elapsed", LATER, ""),
    function("exp", Scalar, ""),
    function("exponential_moving_average", LATER, ""),
    any_type("first", Selector, ""),
    function("floor", Scalar, ""),
    function("histogram", LATER, ""),
    function("holt_winters", LATER, ""),
    function("integral", LATER, ""),
    function("kaufmans_adaptive_moving_average", LATER, ""),
    function("kaufmans_efficiency_ratio", LATER, ""),
    any_type("last", Selector, ""),
    function("ln", Scalar, ""),
    function("log", Scalar, ""),
    function("log10", Scalar, ""),
    function("log2", Scalar, ""),
    function("max", Selector, ""),
    function("mean", Aggregate, ""),
    function("median", Aggregate, "exact"),
    function("min", Selector, ""),
    any_type("mode", LATER, ""),
    function("moving_average", Transformation, ""),
    function("non_negative_derivative", Transformation, ""),
    function("non_negative_difference", Transformation, ""),
    function(
        "percentile",
        Aggregate,
        "exact; the rank is rounded up, InfluxDB rounds it to the nearest; without windows the time is that of the range, not of the point",
    ),
    function("pow", Scalar, ""),
    function("relative_strength_index", LATER, ""),
    function("round", Scalar, ""),
    function("sample", LATER, ""),
    function("sin", Scalar, ""),
    function("spread", Aggregate, ""),
    function("sqrt", Scalar, ""),
    function("stddev", Aggregate, ""),
    function("sum", Aggregate, ""),
    function("tan", Scalar, ""),
    function("top", Multiple, "also by tags"),
    function("triple_exponential_derivative", LATER, ""),
    function("triple_exponential_moving_average", LATER, ""),
];

/// Returns a function by its name in lower case.
pub fn find(name: &str) -> Option<&'static Function> {
    FUNCTIONS.iter().find(|function| function.name == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_in_order_and_occur_once() {
        let names: Vec<&str> = FUNCTIONS.iter().map(|function| function.name).collect();
        assert!(names.windows(2).all(|pair| pair[0] < pair[1]));
    }
}
