//! COMPATIBILITY.md agrees with the tables of statements and functions, and the tables with the parser.

use std::fmt::Write;
use std::path::Path;

use nilometer_influx::influxql::functions::{FUNCTIONS, FunctionKind};
use nilometer_influx::influxql::support::SUPPORT;
use nilometer_influx::influxql::{Bindings, parse};

/// The path of the page, from this crate's folder.
const PAGE: &str = "../../COMPATIBILITY.md";

#[test]
fn statements_are_parsed_or_refused_by_name() {
    for support in SUPPORT {
        let parsed = parse(support.example, &Bindings::new());
        assert_eq!(
            parsed.is_ok(),
            support.is_supported,
            "{}: {parsed:?}",
            support.example
        );
        if let Err(problem) = parsed {
            let text = problem.to_string();
            assert!(
                text.contains("not supported"),
                "{}: {text}",
                support.example
            );
        }
    }
}

#[test]
fn compatibility_page_agrees_with_the_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let page = std::fs::read_to_string(&path).expect("the page is there");
    let mut wanted = page.clone();
    for (name, table) in [
        ("influxql", statements()),
        ("influxql functions", functions()),
    ] {
        wanted = replace_table(&wanted, name, &table);
    }
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, wanted).expect("the page can be written");
    } else {
        assert!(
            page == wanted,
            "COMPATIBILITY.md differs from the code: run `cargo xtask compatibility`"
        );
    }
}

fn replace_table(page: &str, name: &str, table: &str) -> String {
    let start = format!("<!-- table: {name} -->\n");
    let at = page
        .find(&start)
        .unwrap_or_else(|| panic!("the page has no table `{name}`"));
    let from = at + start.len();
    let length = page[from..].find("<!-- end -->").expect("a table ends");
    format!("{}\n{table}\n{}", &page[..from], &page[from + length..])
}

fn statements() -> String {
    let mut out = String::from("| of InfluxQL | |\n|---|---|\n");
    for support in SUPPORT {
        let what = match (support.is_supported, support.note) {
            (false, _) => "no",
            (true, "") => "yes",
            (true, note) => &format!("yes; {note}"),
        };
        let _ = writeln!(out, "| {} | {what} |", support.name);
    }
    out
}

fn functions() -> String {
    let mut works = String::from("| function | |\n|---|---|\n");
    let mut refused = Vec::new();
    for function in FUNCTIONS {
        let kind = match function.kind {
            FunctionKind::Aggregate => "one value of a window",
            FunctionKind::Selector => "one point of a window",
            FunctionKind::Multiple => "several points of a window, in the first column",
            FunctionKind::Transformation => "of values in order of time, also of aggregates",
            FunctionKind::Scalar => "of numbers",
            FunctionKind::Refused(_) => {
                refused.push(format!("`{}`", function.name));
                continue;
            }
        };
        let note = match function.note {
            "" => String::new(),
            note => format!("; {note}"),
        };
        let _ = writeln!(works, "| `{}` | {kind}{note} |", function.name);
    }
    format!("{works}\nRefused by name: {}\n", refused.join(" "))
}
