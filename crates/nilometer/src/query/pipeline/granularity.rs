//! Series of preferred numbers, to which the bounds of `$bucketAuto` may be rounded.
//!
//! The series are the Renard series and the E series of ISO 3 and IEC 60063, 1-2-5, and the powers of two. A series of
//! the first three kinds is stored for one power of ten and repeats in all others. Rounding always changes a number: up
//! to the next greater member, or down to the next smaller one. Zero stays zero.

use std::cmp::Ordering;

use nilometer_bson::decimal128::Rounding;
use nilometer_bson::number::Number;
use nilometer_bson::{Decimal128, Value, ValueRef};

use crate::error::{Error, Result, location};

/// Powers of ten that enclose every decimal and therefore every double.
const TEN_EXPONENTS: (i32, i32) = (-6_200, 6_150);
/// Powers of two that enclose every double.
const TWO_EXPONENTS: (i32, i32) = (-1_080, 1_024);

#[rustfmt::skip]
const SERIES: &[(&str, &[u16])] = &[
    ("R5", &[10, 16, 25, 40, 63]),
    ("R10", &[100, 125, 160, 200, 250, 315, 400, 500, 630, 800]),
    ("R20", &[
        100, 112, 125, 140, 160, 180, 200, 224, 250, 280, 315, 355, 400, 450, 500, 560, 630, 710, 800, 900,
    ]),
    ("R40", &[
        100, 106, 112, 118, 125, 132, 140, 150, 160, 170, 180, 190, 200, 212, 224, 236, 250, 265, 280, 300,
        315, 335, 355, 375, 400, 425, 450, 475, 500, 530, 560, 600, 630, 670, 710, 750, 800, 850, 900, 950,
    ]),
    ("R80", &[
        100, 103, 106, 109, 112, 115, 118, 122, 125, 128, 132, 136, 140, 145, 150, 155, 160, 165, 170, 175,
        180, 185, 190, 195, 200, 206, 212, 218, 224, 230, 236, 243, 250, 258, 265, 272, 280, 290, 300, 307,
        315, 325, 335, 345, 355, 365, 375, 387, 400, 412, 425, 437, 450, 462, 475, 487, 500, 515, 530, 545,
        560, 580, 600, 615, 630, 650, 670, 690, 710, 730, 750, 775, 800, 825, 850, 875, 900, 925, 950, 975,
    ]),
    ("1-2-5", &[10, 20, 50]),
    ("E6", &[10, 15, 22, 33, 47, 68]),
    ("E12", &[10, 12, 15, 18, 22, 27, 33, 39, 47, 56, 68, 82]),
    ("E24", &[
        10, 11, 12, 13, 15, 16, 18, 20, 22, 24, 27, 30, 33, 36, 39, 43, 47, 51, 56, 62, 68, 75, 82, 91,
    ]),
    ("E48", &[
        100, 105, 110, 115, 121, 127, 133, 140, 147, 154, 162, 169, 178, 187, 196, 205, 215, 226, 237, 249,
        261, 274, 287, 301, 316, 332, 348, 365, 383, 402, 422, 442, 464, 487, 511, 536, 562, 590, 619, 649,
        681, 715, 750, 787, 825, 866, 909, 953,
    ]),
    ("E96", &[
        100, 102, 105, 107, 110, 113, 115, 118, 121, 124, 127, 130, 133, 137, 140, 143, 147, 150, 154, 158,
        162, 165, 169, 174, 178, 182, 187, 191, 196, 200, 205, 210, 215, 221, 226, 232, 237, 243, 249, 255,
        261, 267, 274, 280, 287, 294, 301, 309, 316, 324, 332, 340, 348, 357, 365, 374, 383, 392, 402, 412,
        422, 432, 442, 453, 464, 475, 487, 499, 511, 523, 536, 549, 562, 576, 590, 604, 619, 634, 649, 665,
        681, 698, 715, 732, 750, 768, 787, 806, 825, 845, 866, 887, 909, 931, 953, 976,
    ]),
    ("E192", &[
        100, 101, 102, 104, 105, 106, 107, 109, 110, 111, 113, 114, 115, 117, 118, 120, 121, 123, 124, 126,
        127, 129, 130, 132, 133, 135, 137, 138, 140, 142, 143, 145, 147, 149, 150, 152, 154, 156, 158, 160,
        162, 164, 165, 167, 169, 172, 174, 176, 178, 180, 182, 184, 187, 189, 191, 193, 196, 198, 200, 203,
        205, 208, 210, 213, 215, 218, 221, 223, 226, 229, 232, 234, 237, 240, 243, 246, 249, 252, 255, 258,
        261, 264, 267, 271, 274, 277, 280, 284, 287, 291, 294, 298, 301, 305, 309, 312, 316, 320, 324, 328,
        332, 336, 340, 344, 348, 352, 357, 361, 365, 370, 374, 379, 383, 388, 392, 397, 402, 407, 412, 417,
        422, 427, 432, 437, 442, 448, 453, 459, 464, 470, 475, 481, 487, 493, 499, 505, 511, 517, 523, 530,
        536, 542, 549, 556, 562, 569, 576, 583, 590, 597, 604, 612, 619, 626, 634, 642, 649, 657, 665, 673,
        681, 690, 698, 706, 715, 723, 732, 741, 750, 759, 768, 777, 787, 796, 806, 816, 825, 835, 845, 856,
        866, 876, 887, 898, 909, 920, 931, 942, 953, 965, 976, 988,
    ]),
];

/// A series of numbers to round to.
#[derive(Clone, Copy, Debug)]
pub enum Granularity {
    /// Preferred numbers of one power of ten.
    Preferred(&'static [u16]),
    /// Powers of two.
    PowersOfTwo,
}

impl Granularity {
    /// Returns the series with this name.
    pub fn parse(name: &str) -> Result<Self> {
        if name == "POWERSOF2" {
            return Ok(Self::PowersOfTwo);
        }
        let known = SERIES.iter().find(|(known, _)| *known == name);
        match known {
            Some((_, series)) => Ok(Self::Preferred(series)),
            None => Err(Error::location(
                location::GRANULARITY_UNKNOWN,
                format!("Unknown rounding granularity '{name}'"),
            )),
        }
    }

    /// Checks that the value can be rounded: a number that is neither NaN nor negative.
    pub fn check(value: ValueRef<'_>) -> Result<Number> {
        let Some(number) = Number::of(value) else {
            return Err(Error::location(
                location::GRANULARITY_VALUE_NOT_NUMBER,
                format!(
                    "$bucketAuto can specify a 'granularity' with numeric boundaries only, but found a value with type: {}",
                    value.type_name()
                ),
            ));
        };
        if number.is_nan() {
            return Err(Error::location(
                location::GRANULARITY_VALUE_NAN,
                "$bucketAuto can specify a 'granularity' with numeric boundaries only, but found a NaN",
            ));
        }
        if number.compare(Number::Int(0)).is_lt() {
            return Err(Error::location(
                location::GRANULARITY_VALUE_NEGATIVE,
                "$bucketAuto can specify a 'granularity' with non-negative numbers only, but found a negative number",
            ));
        }
        Ok(number)
    }

    /// Returns the next member of the series above `number`: a decimal for a decimal, otherwise a double.
    pub fn round_up(self, number: Number) -> Value {
        self.round(number, Ordering::Greater).into()
    }

    /// Returns the next member of the series below `number`.
    pub fn round_down(self, number: Number) -> Value {
        self.round(number, Ordering::Less).into()
    }

    fn round(self, number: Number, towards: Ordering) -> Number {
        let is_decimal = matches!(number, Number::Decimal(_));
        let number = match number {
            decimal @ Number::Decimal(_) => decimal,
            other => Number::Double(other.to_f64()),
        };
        if !number.is_truthy() || number.to_f64().is_infinite() && !is_finite(number) {
            return number;
        }
        let (exponents, series): (_, &[u16]) = match self {
            Self::Preferred(series) => (TEN_EXPONENTS, series),
            Self::PowersOfTwo => (TWO_EXPONENTS, &[1]),
        };
        let at = |exponent: i32, step: u16| self.at(exponent, step, is_decimal);
        let first = series.first().copied().unwrap_or(1);
        let last = series.last().copied().unwrap_or(1);
        // Find the greatest exponent whose first member is not above `number`.
        let (mut low, mut high) = exponents;
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if at(middle, first).compare(number).is_le() {
                low = middle;
            } else {
                high = middle;
            }
        }
        let mut here = series.iter().map(|step| at(low, *step));
        match towards {
            Ordering::Greater => here
                .find(|candidate| candidate.compare(number).is_gt())
                .unwrap_or_else(|| at(low + 1, first)),
            _ => here
                .rfind(|candidate| candidate.compare(number).is_lt())
                .unwrap_or_else(|| at(low - 1, last)),
        }
    }

    /// Returns a member of the series at a power of its base.
    fn at(self, exponent: i32, step: u16, is_decimal: bool) -> Number {
        match (self, is_decimal) {
            (Self::Preferred(_), _) => {
                // Parsed from text, so that 15 · 10^-3 is the double closest to 0.015.
                let text = format!("{step}E{exponent}");
                if is_decimal {
                    let decimal: Option<Decimal128> = text.parse().ok();
                    Number::Decimal(shortest(decimal.unwrap_or(Decimal128::ZERO)))
                } else {
                    Number::Double(text.parse().unwrap_or(0.0))
                }
            }
            (Self::PowersOfTwo, false) => Number::Double(2f64.powi(exponent)),
            (Self::PowersOfTwo, true) => {
                let (two, exponent) = (Number::Int(2), Number::Int(exponent));
                Number::Decimal(two.to_decimal().pow(exponent.to_decimal()))
            }
        }
    }
}

/// Removes trailing zeros behind the point, and the exponent of a whole number that fits.
fn shortest(decimal: Decimal128) -> Decimal128 {
    let reduced = decimal.reduce();
    match reduced.quantize(0, Rounding::HalfEven) {
        Some(whole)
            if Number::Decimal(whole)
                .compare(Number::Decimal(reduced))
                .is_eq() =>
        {
            whole
        }
        _ => reduced,
    }
}

/// False for infinities of any type.
fn is_finite(number: Number) -> bool {
    let beyond = number.add(number);
    beyond.compare(number).is_ne()
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::{Document, doc};

    /// Wraps a value so that it can be compared.
    fn of(value: impl Into<Value>) -> Document {
        doc! {"v": value.into()}
    }

    fn up(name: &str, value: impl Into<Value>) -> Document {
        let number = Granularity::check(value.into().as_ref()).unwrap();
        of(Granularity::parse(name).unwrap().round_up(number))
    }

    fn down(name: &str, value: impl Into<Value>) -> Document {
        let number = Granularity::check(value.into().as_ref()).unwrap();
        of(Granularity::parse(name).unwrap().round_down(number))
    }

    #[test]
    fn the_e_series_are_roots_of_ten() {
        for (name, series) in SERIES.iter().filter(|(name, _)| name.starts_with('E')) {
            let count: usize = name.strip_prefix('E').unwrap().parse().unwrap();
            assert_eq!(series.len(), count, "{name}");
            assert!(series.is_sorted());
            let scale = f64::from(series[0]);
            for (at, value) in series.iter().enumerate() {
                let exact = scale * 10f64.powf(at as f64 / count as f64);
                // The short series, and 9.20 in E192, deviate from the formula by tradition.
                let slack: f64 = if count < 48 { 0.05 } else { 0.0012 };
                assert!(
                    (f64::from(*value) / exact - 1.0).abs() < slack.max(0.5 / exact * 1.01),
                    "{name} {value}"
                );
            }
        }
    }

    #[test]
    fn the_renard_series_are_roots_of_ten() {
        for (name, series) in SERIES.iter().filter(|(name, _)| name.starts_with('R')) {
            assert!(series.is_sorted());
            let ratio = f64::from(series[1]) / f64::from(series[0]);
            for pair in series.windows(2) {
                let next = f64::from(pair[1]) / f64::from(pair[0]);
                assert!((next / ratio - 1.0).abs() < 0.05, "{name} {pair:?}");
            }
        }
    }

    #[test]
    fn rounding_always_moves() {
        assert_eq!(up("R5", 16), of(25.0));
        assert_eq!(up("R5", 63.5), of(100.0));
        assert_eq!(down("R5", 16), of(10.0));
        assert_eq!(down("R5", 10), of(6.3));
        assert_eq!(up("1-2-5", 1i64), of(2.0));
        assert_eq!(up("E6", 0.0149), of(0.015));
        assert_eq!(up("R10", 1e-300), of(1.25e-300));
        assert_eq!(up("POWERSOF2", 31), of(32.0));
        assert_eq!(up("POWERSOF2", 32), of(64.0));
        assert_eq!(down("POWERSOF2", 32), of(16.0));
        assert_eq!(down("POWERSOF2", 0.3), of(0.25));
        for name in ["R5", "POWERSOF2"] {
            assert_eq!(up(name, 0), of(0.0));
            assert_eq!(down(name, 0), of(0.0));
            assert_eq!(up(name, f64::INFINITY), of(f64::INFINITY));
            assert_eq!(up(name, f64::MAX), of(f64::INFINITY));
        }
    }

    #[test]
    fn decimals_stay_decimals() {
        let decimal = |text: &str| Value::Decimal128(text.parse().unwrap());
        assert_eq!(up("R5", decimal("1.7")), of(decimal("2.5")));
        assert_eq!(down("E12", decimal("1E+3000")), of(decimal("8.2E+2999")));
        assert_eq!(up("POWERSOF2", decimal("5")), of(decimal("8")));
    }

    #[test]
    fn what_cannot_be_rounded() {
        let code = |value: Value| Granularity::check(value.as_ref()).unwrap_err().code.0;
        assert_eq!(code("x".into()), location::GRANULARITY_VALUE_NOT_NUMBER);
        assert_eq!(code(Value::Null), location::GRANULARITY_VALUE_NOT_NUMBER);
        assert_eq!(code(f64::NAN.into()), location::GRANULARITY_VALUE_NAN);
        assert_eq!(code((-1).into()), location::GRANULARITY_VALUE_NEGATIVE);
        assert_eq!(
            Granularity::parse("R6").unwrap_err().code.0,
            location::GRANULARITY_UNKNOWN
        );
    }
}
