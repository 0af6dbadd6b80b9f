//! Tests of decimal arithmetic.

use std::cmp::Ordering;

use super::*;

fn dec(text: &str) -> Decimal128 {
    text.parse().unwrap()
}

#[test]
fn text_round_trips() {
    for text in [
        "0",
        "-0",
        "1",
        "-1.10",
        "0.001234",
        "0.00000123",
        "1.23E-7",
        "12345.67",
        "1E+3",
        "1.2E+4",
        "NaN",
        "Infinity",
        "-Infinity",
        "9.999999999999999999999999999999999E+6144",
        "1E-6176",
        "0E-6176",
        "0E+6111",
        "1234567890123456789012345678901234",
        "0E-7",
        "0.000000",
        "1.000000000000000000000000000000000E+6144",
    ] {
        assert_eq!(dec(text).to_string(), text, "{text}");
    }
}

#[test]
fn text_is_parsed_leniently_and_rounded_correctly() {
    for (text, shown) in [
        ("+1e3", "1E+3"),
        (".5", "0.5"),
        ("5.", "5"),
        ("inf", "Infinity"),
        ("-INFINITY", "-Infinity"),
        ("nan", "NaN"),
        ("00012", "12"),
        (
            "12345678901234567890123456789012345",
            "1.234567890123456789012345678901234E+34",
        ),
        (
            "12345678901234567890123456789012355",
            "1.234567890123456789012345678901236E+34",
        ),
        (
            "1234567890123456789012345678901234500000000000000000000000000000000000000000000000001",
            "1.234567890123456789012345678901235E+84",
        ),
        ("1E+6144", "1.000000000000000000000000000000000E+6144"),
        ("1E+6145", "Infinity"),
        ("1E+99999999999999999999", "Infinity"),
        ("1E-99999999999999999999", "0E-6176"),
        ("5E-6177", "0E-6176"),
        ("5.1E-6177", "1E-6176"),
        ("15E-6177", "2E-6176"),
        ("0E+99999", "0E+6111"),
        ("10E+6111", "1.0E+6112"),
    ] {
        assert_eq!(dec(text).to_string(), shown, "{text}");
    }
    for text in [
        "", "-", ".", "e5", "1e", "1e+", "1..2", "1x", " 1", "--1", "1e1.5", "infin",
    ] {
        assert_eq!(
            text.parse::<Decimal128>(),
            Err(ParseDecimalError::Syntax),
            "{text}"
        );
    }
    assert!(Decimal128::parse_exact("1E+6144").is_ok());
    assert!(Decimal128::parse_exact("1.0000000000000000000000000000000000").is_ok());
    assert!(Decimal128::parse_exact("12345678901234567890123456789012345").is_err());
    assert!(Decimal128::parse_exact("1E+6145").is_err());
}

#[test]
fn golden_bits() {
    assert_eq!(dec("1").bits(), 0x3040_0000_0000_0000_0000_0000_0000_0001);
    assert_eq!(
        dec("-0.1").bits(),
        0xb03e_0000_0000_0000_0000_0000_0000_0001
    );
    assert_eq!(Decimal128::NAN.bits() >> 112, 0x7c00);
    assert_eq!(Decimal128::ONE, dec("1"));
    // A coefficient of 10^34 and the large form are read as zero.
    let too_large = Decimal128::from_le_bytes(((0x3040u128 << 112) | 10u128.pow(34)).to_le_bytes());
    assert!(too_large.is_zero());
    assert_eq!(
        Decimal128 {
            low: 5,
            high: 0x6C10 << 48
        }
        .to_string(),
        "0"
    );
}

#[test]
fn sums() {
    for (a, b, sum) in [
        ("1.10", "1.20", "2.30"),
        ("1", "-1.00", "0.00"),
        ("-0", "-0.0", "-0.0"),
        ("0", "-0", "0"),
        ("1E+40", "1", "1.000000000000000000000000000000000E+40"),
        (
            "1E+40",
            "-1E-6000",
            "1.000000000000000000000000000000000E+40",
        ),
        (
            "9999999999999999999999999999999999",
            "0.5",
            "1.000000000000000000000000000000000E+34",
        ),
        (
            "9999999999999999999999999999999999",
            "0.4",
            "9999999999999999999999999999999999",
        ),
        (
            "1000000000000000000000000000000000",
            "-0.05",
            "1000000000000000000000000000000000",
        ),
        (
            "1000000000000000000000000000000000",
            "-0.050000001",
            "999999999999999999999999999999999.9",
        ),
        ("0E+10", "1", "1"),
        ("1E+10", "0", "10000000000"),
        ("Infinity", "-Infinity", "NaN"),
        ("Infinity", "1", "Infinity"),
        (
            "9.999999999999999999999999999999999E+6144",
            "9E+6144",
            "Infinity",
        ),
    ] {
        assert_eq!(dec(a).add(dec(b)).to_string(), sum, "{a} + {b}");
        assert_eq!(dec(b).add(dec(a)).to_string(), sum, "{b} + {a}");
    }
}

#[test]
fn products_and_quotients() {
    assert_eq!(dec("1.20").mul(dec("3")).to_string(), "3.60");
    assert_eq!(dec("-0").mul(dec("1E+294")).to_string(), "-0E+294");
    assert_eq!(dec("Infinity").mul(dec("0")).to_string(), "NaN");
    assert_eq!(dec("1E-6000").mul(dec("1E-6000")).to_string(), "0E-6176");
    for (a, b, quotient) in [
        ("1", "3", "0.3333333333333333333333333333333333"),
        ("2", "3", "0.6666666666666666666666666666666667"),
        ("6", "3", "2"),
        ("2.40", "2", "1.20"),
        ("1", "8", "0.125"),
        ("1000", "10", "100"),
        ("1", "0", "Infinity"),
        ("-1", "0", "-Infinity"),
        ("0", "0", "NaN"),
        ("0", "7", "0"),
        ("1", "Infinity", "0E-6176"),
        (
            "9999999999999999999999999999999999",
            "7",
            "1428571428571428571428571428571428",
        ),
    ] {
        assert_eq!(dec(a).div(dec(b)).to_string(), quotient, "{a} / {b}");
    }
    for (a, b, rest) in [
        ("7", "3", "1"),
        ("-7", "3", "-1"),
        ("7.5", "2", "1.5"),
        ("1E+6000", "7", "1"),
        ("3", "Infinity", "3"),
        ("1", "0", "NaN"),
        ("1", "1E+6000", "1"),
    ] {
        assert_eq!(dec(a).rem(dec(b)).to_string(), rest, "{a} % {b}");
    }
}

#[test]
fn roots_and_rounding() {
    for (a, root) in [
        ("2", "1.414213562373095048801688724209698"),
        ("4", "2"),
        ("1.44", "1.2"),
        ("1E+3", "31.62277660168379331998893544432719"),
        ("0", "0"),
        ("-1", "NaN"),
        ("Infinity", "Infinity"),
    ] {
        assert_eq!(dec(a).sqrt().to_string(), root, "sqrt {a}");
    }
    let q = |a: &str, e| {
        dec(a)
            .quantize(e, Rounding::HalfEven)
            .map(|d| d.to_string())
    };
    assert_eq!(q("2.5", 0).as_deref(), Some("2"));
    assert_eq!(q("3.5", 0).as_deref(), Some("4"));
    assert_eq!(q("2.5", -3).as_deref(), Some("2.500"));
    assert_eq!(q("15", 1).as_deref(), Some("2E+1"));
    assert_eq!(q("15", 60).as_deref(), Some("0E+60"));
    assert_eq!(q("1", -40), None);
    assert_eq!(
        dec("-1.5").round_to_integral(Rounding::Floor).to_string(),
        "-2"
    );
    assert_eq!(
        dec("-1.5").round_to_integral(Rounding::Ceiling).to_string(),
        "-1"
    );
    assert_eq!(
        dec("1E+3").round_to_integral(Rounding::Floor).to_string(),
        "1E+3"
    );
    assert_eq!(dec("1.500").reduce().to_string(), "1.5");
    assert_eq!(dec("1200").reduce().to_string(), "1.2E+3");
}

#[test]
fn doubles() {
    assert_eq!(Decimal128::from_f64(0.1).to_string(), "0.100000000000000");
    assert_eq!(
        Decimal128::from_f64(f64::MAX).to_string(),
        "1.79769313486232E+308"
    );
    assert_eq!(Decimal128::from_f64(-0.0).to_string(), "-0");
    assert_eq!(Decimal128::from_f64_closest(0.5).to_string(), "0.5");
    assert_eq!(Decimal128::from_f64_closest(100.0).to_string(), "100");
    assert_eq!(
        Decimal128::from_f64_closest(0.1).to_string(),
        "0.1000000000000000055511151231257827"
    );
    assert_eq!(dec("0.1").to_f64(), 0.1);
    assert_eq!(dec("1E-400").to_f64(), 0.0);
    assert_eq!(dec("1E+400").to_f64(), f64::INFINITY);
    assert_eq!(
        dec("1234567890123456789012345").to_f64(),
        1.234_567_890_123_456_8e24
    );
    assert_eq!(
        dec("0.1000000000000000055511151231257827").to_f64_toward_zero(),
        0.1f64.next_down()
    );
    assert_eq!(
        dec("0.1000000000000000055511151231257828").to_f64_toward_zero(),
        0.1
    );
    assert_eq!(dec("1E+400").to_f64_toward_zero(), f64::MAX);
    assert_eq!(dec("-1E-400").to_f64_toward_zero(), 0.0);
}

#[test]
fn comparison_with_doubles_is_exact() {
    for (decimal, double, order) in [
        ("0.1", 0.1, Ordering::Less),
        ("0.5", 0.5, Ordering::Equal),
        (
            "9007199254740993",
            9_007_199_254_740_992.0,
            Ordering::Greater,
        ),
        ("-0", 0.0, Ordering::Equal),
        ("NaN", f64::NAN, Ordering::Equal),
        ("NaN", f64::NEG_INFINITY, Ordering::Less),
        ("Infinity", f64::INFINITY, Ordering::Equal),
        ("1E+400", f64::INFINITY, Ordering::Less),
        ("1E-400", 0.0, Ordering::Greater),
        ("-1E-400", 0.0, Ordering::Less),
        ("1E+22", 1e22, Ordering::Equal),
        ("1E+23", 1e23, Ordering::Greater),
        (
            "4.940656458412465441765687928682214E-324",
            5e-324,
            Ordering::Greater,
        ),
        (
            "4.940656458412465441765687928682213E-324",
            5e-324,
            Ordering::Less,
        ),
        (
            "1.797693134862315708145274237317044E+308",
            f64::MAX,
            Ordering::Greater,
        ),
        (
            "1.797693134862315708145274237317043E+308",
            f64::MAX,
            Ordering::Less,
        ),
        ("-1E+23", -1e23, Ordering::Less),
    ] {
        assert_eq!(
            dec(decimal).compare_f64(double),
            order,
            "{decimal} against {double}"
        );
    }
}

#[test]
fn integers() {
    assert_eq!(dec("5.5").to_i64(Rounding::HalfEven), Some(6));
    assert_eq!(dec("-9223372036854775808").to_i64_exact(), Some(i64::MIN));
    assert_eq!(dec("9223372036854775808").to_i64_exact(), None);
    assert_eq!(dec("1E+6000").to_i64_exact(), None);
    assert_eq!(dec("0E+6000").to_i64_exact(), Some(0));
    assert_eq!(dec("12.0").to_i64_exact(), Some(12));
    assert_eq!(dec("12.5").to_i64_exact(), None);
    assert_eq!(
        Decimal128::from(i64::MIN).to_string(),
        "-9223372036854775808"
    );
}

/// One case a line: operation, operands, result, from another implementation of the standard
/// (Python's `decimal`, 34 digits, exponents −6143 to 6144, clamped).
const CASES: &str = include_str!("../../testdata/decimal128.txt");

#[test]
fn agrees_with_another_implementation() {
    let mut count = 0;
    for line in CASES.lines() {
        let [operation, a, b, expected] = line.split(' ').collect::<Vec<_>>()[..] else {
            panic!("{line}");
        };
        let (a, b) = (dec(a), if b == "-" { Decimal128::ZERO } else { dec(b) });
        let got = match operation {
            "add" => a.add(b).to_string(),
            "sub" => a.sub(b).to_string(),
            "mul" => a.mul(b).to_string(),
            "div" => a.div(b).to_string(),
            "rem" => a.rem(b).to_string(),
            "sqrt" => a.sqrt().to_string(),
            "quantize" => {
                let exponent = b.finite().unwrap().exponent;
                let result = a.quantize(exponent, Rounding::HalfEven);
                result.unwrap_or(Decimal128::NAN).to_string()
            }
            "cmp" if expected == "NaN" => "NaN".to_owned(),
            "cmp" => (a.compare(b) as i8).to_string(),
            _ => panic!("{line}"),
        };
        assert_eq!(got, expected, "{line}");
        count += 1;
    }
    assert!(count > 300);
}
