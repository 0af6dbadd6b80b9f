//! Values of answers.

use std::cmp::Ordering;
use std::fmt::Write as _;

use nilometer_bson::ValueRef;

use crate::influxql::ast::Operator;

/// A value.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Cell {
    /// None.
    #[default]
    Null,
    /// An integer.
    Integer(i64),
    /// A double.
    Float(f64),
    /// A text.
    String(String),
    /// A truth value.
    Boolean(bool),
    /// Nanoseconds since 1970, in the column of times.
    Time(i64),
}

impl Cell {
    /// Converts a value of a document. Others than numbers, texts and truth values are null.
    pub fn of(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Int32(value) => Self::Integer(value.into()),
            ValueRef::Int64(value) => Self::Integer(value),
            ValueRef::Double(value) => Self::Float(value),
            ValueRef::Decimal128(value) => match value.to_string().parse() {
                Ok(value) => Self::Float(value),
                Err(_) => Self::Null,
            },
            ValueRef::String(text) => Self::String(text.to_owned()),
            ValueRef::Bool(value) => Self::Boolean(value),
            _ => Self::Null,
        }
    }

    /// True if there is no value.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }

    /// Returns a number as a double.
    #[allow(clippy::cast_precision_loss, reason = "InfluxDB calculates in doubles")]
    pub fn as_f64(&self) -> Option<f64> {
        match self {
            Self::Integer(value) => Some(*value as f64),
            Self::Float(value) => Some(*value),
            _ => None,
        }
    }

    /// Returns a finite double, or null.
    pub fn finite(value: f64) -> Self {
        match value.is_finite() {
            true => Self::Float(value),
            false => Self::Null,
        }
    }

    /// Compares values, numbers by their value; for the order of series and of distinct values.
    pub fn order(&self, other: &Self) -> Ordering {
        let rank = |cell: &Self| match cell {
            Self::Null => 0,
            Self::Boolean(_) => 1,
            Self::Integer(_) | Self::Float(_) => 2,
            Self::Time(_) => 3,
            Self::String(_) => 4,
        };
        match (self, other) {
            (Self::Integer(a), Self::Integer(b)) | (Self::Time(a), Self::Time(b)) => a.cmp(b),
            (Self::String(a), Self::String(b)) => a.cmp(b),
            (Self::Boolean(a), Self::Boolean(b)) => a.cmp(b),
            _ => match (self.as_f64(), other.as_f64()) {
                (Some(a), Some(b)) => a.total_cmp(&b),
                _ => rank(self).cmp(&rank(other)),
            },
        }
    }

    /// Appends the value as JSON.
    pub fn write_json(&self, out: &mut String) {
        // Writing to a String does not fail.
        let _ = match self {
            Self::Null => write!(out, "null"),
            Self::Integer(value) | Self::Time(value) => write!(out, "{value}"),
            Self::Float(value) if !value.is_finite() => write!(out, "null"),
            Self::Float(value) if *value != 0.0 && !(1e-6..1e21).contains(&value.abs()) => {
                write!(out, "{value:e}")
            }
            Self::Float(value) => write!(out, "{value}"),
            Self::Boolean(value) => write!(out, "{value}"),
            Self::String(text) => {
                write_json_text(out, text);
                Ok(())
            }
        };
    }
}

/// Appends a text as JSON.
pub fn write_json_text(out: &mut String, text: &str) {
    out.push('"');
    for character in text.chars() {
        match character {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            control if u32::from(control) < 0x20 => {
                // Writing to a String does not fail.
                let _ = write!(out, "\\u{:04x}", u32::from(control));
            }
            other => out.push(other),
        }
    }
    out.push('"');
}

/// Applies an arithmetic operator. Null if an operand is no number. A division by zero is 0, as in InfluxDB; integers that overflow
/// become doubles.
pub(super) fn arithmetic(operator: Operator, left: &Cell, right: &Cell) -> Cell {
    if let (Cell::Integer(a), Cell::Integer(b)) = (left, right) {
        let exact = match operator {
            Operator::Add => a.checked_add(*b),
            Operator::Subtract => a.checked_sub(*b),
            Operator::Multiply => a.checked_mul(*b),
            Operator::Modulo if *b == 0 => Some(0),
            Operator::Modulo => a.checked_rem(*b),
            Operator::BitAnd => Some(a & b),
            Operator::BitOr => Some(a | b),
            Operator::BitXor => Some(a ^ b),
            _ => None,
        };
        if let Some(value) = exact {
            return Cell::Integer(value);
        }
    }
    let (Some(a), Some(b)) = (left.as_f64(), right.as_f64()) else {
        return Cell::Null;
    };
    match operator {
        Operator::Add => Cell::finite(a + b),
        Operator::Subtract => Cell::finite(a - b),
        Operator::Multiply => Cell::finite(a * b),
        Operator::Divide | Operator::Modulo if b == 0.0 => Cell::Float(0.0),
        Operator::Divide => Cell::finite(a / b),
        Operator::Modulo => Cell::finite(a % b),
        _ => Cell::Null,
    }
}

/// Applies a function of one or two numbers. Null if an argument is no number or the result is not finite.
pub(super) fn scalar(name: &str, arguments: &[Cell]) -> Cell {
    if let ("abs" | "ceil" | "floor" | "round", [Cell::Integer(value)]) = (name, arguments) {
        return Cell::Integer(match name {
            "abs" => value.saturating_abs(),
            _ => *value,
        });
    }
    let numbers: Option<Vec<f64>> = arguments.iter().map(Cell::as_f64).collect();
    Cell::finite(match (name, numbers.as_deref()) {
        ("abs", Some([a])) => a.abs(),
        ("acos", Some([a])) => a.acos(),
        ("asin", Some([a])) => a.asin(),
        ("atan", Some([a])) => a.atan(),
        ("atan2", Some([a, b])) => a.atan2(*b),
        ("ceil", Some([a])) => a.ceil(),
        ("cos", Some([a])) => a.cos(),
        ("exp", Some([a])) => a.exp(),
        ("floor", Some([a])) => a.floor(),
        ("ln", Some([a])) => a.ln(),
        ("log", Some([a, b])) => a.log(*b),
        ("log10", Some([a])) => a.log10(),
        ("log2", Some([a])) => a.log2(),
        ("pow", Some([a, b])) => a.powf(*b),
        ("round", Some([a])) => a.round(),
        ("sin", Some([a])) => a.sin(),
        ("sqrt", Some([a])) => a.sqrt(),
        ("tan", Some([a])) => a.tan(),
        _ => return Cell::Null,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_json() {
        let json = |cell: Cell| {
            let mut out = String::new();
            cell.write_json(&mut out);
            out
        };
        assert_eq!(json(Cell::Float(1.0)), "1");
        assert_eq!(json(Cell::Float(0.1)), "0.1");
        assert_eq!(json(Cell::Float(1e300)), "1e300");
        assert_eq!(json(Cell::Float(-2.5e-9)), "-2.5e-9");
        assert_eq!(json(Cell::Float(f64::NAN)), "null");
        assert_eq!(json(Cell::Integer(i64::MIN)), "-9223372036854775808");
        assert_eq!(
            json(Cell::String("a\"\\\n\u{1}ä".into())),
            "\"a\\\"\\\\\\n\\u0001ä\""
        );
    }

    #[test]
    fn arithmetic_is_that_of_influxdb() {
        let (one, two) = (Cell::Integer(1), Cell::Integer(2));
        assert_eq!(arithmetic(Operator::Divide, &one, &two), Cell::Float(0.5));
        assert_eq!(arithmetic(Operator::Add, &one, &two), Cell::Integer(3));
        assert_eq!(
            arithmetic(Operator::Divide, &one, &Cell::Integer(0)),
            Cell::Float(0.0)
        );
        assert_eq!(arithmetic(Operator::Add, &one, &Cell::Null), Cell::Null);
        assert_eq!(
            arithmetic(Operator::Add, &Cell::Integer(i64::MAX), &one),
            Cell::Float(9_223_372_036_854_775_807.0)
        );
        assert_eq!(scalar("sqrt", &[Cell::Integer(4)]), Cell::Float(2.0));
        assert_eq!(scalar("ln", &[Cell::Integer(-1)]), Cell::Null);
    }
}
