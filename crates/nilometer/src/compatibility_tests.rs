//! COMPATIBILITY.md agrees with the tables of the code.
//!
//! The page has a section for each table, between `<!-- table: NAME -->` and `<!-- end -->`. This test
//! compares them with the code; with `UPDATE_EXPECT=1` in the environment (`cargo xtask compatibility`) it
//! writes them. The text around the tables is written by hand.

use std::fmt::Write;
use std::path::Path;

use crate::commands::{COMMANDS, CommandSpec, OnRouter, ROUTER_COMMANDS};
use crate::eval::accumulator::ACCUMULATORS;
use crate::eval::expression::{OPERATORS, SupportStatus};
use crate::eval::matcher::{PATH_OPERATOR_NAMES, TOP_LEVEL_OPERATOR_NAMES};
use crate::eval::window::WINDOW_FUNCTION_NAMES;
use crate::parameters::{PARAMETERS, ParameterType, SetAt};
use crate::query::pipeline::{STAGES, Support};
use crate::write::update::MODIFIER_NAMES;

/// The path of the page, from this crate's folder.
const PAGE: &str = "../../COMPATIBILITY.md";

/// Operators the filter parser only refuses: JavaScript.
const REFUSED_IN_FILTERS: [&str; 1] = ["$where"];

#[test]
fn compatibility_page_agrees_with_the_tables() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(PAGE);
    let page = std::fs::read_to_string(&path).expect("the page is there");
    let mut wanted = page.clone();
    for (name, table) in tables() {
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

/// Returns every table with its name.
fn tables() -> Vec<(&'static str, String)> {
    vec![
        ("commands", commands(COMMANDS)),
        ("router commands", commands(ROUTER_COMMANDS)),
        ("commands refused on a router", refused_on_a_router()),
        ("stages", stages()),
        ("match operators", match_operators()),
        ("update operators", update_operators()),
        ("expressions", expressions()),
        ("accumulators", accumulators()),
        ("window functions", window_functions()),
        ("parameters", parameters()),
    ]
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

/// Returns the commands of one server that a router refuses.
fn refused_on_a_router() -> String {
    let refused = COMMANDS.iter().filter(|command| {
        let is_refused = matches!(command.on_router, OnRouter::Refused);
        is_refused && !command.help.starts_with("Refused")
    });
    let names: Vec<_> = refused
        .map(|command| format!("`{}`", command.name))
        .collect();
    names.join(" ") + "\n"
}

fn commands(commands: &[CommandSpec]) -> String {
    let mut out = String::from("| command | also as | what it does |\n|---|---|---|\n");
    for command in commands {
        let aliases = command.aliases.join("`, `");
        let aliases = if aliases.is_empty() {
            aliases
        } else {
            format!("`{aliases}`")
        };
        let _ = writeln!(out, "| `{}` | {aliases} | {} |", command.name, command.help);
    }
    out
}

fn stages() -> String {
    let mut works = Vec::new();
    let mut others = String::new();
    for stage in STAGES {
        match stage.support {
            Support::Yes(_) => works.push(stage.name),
            Support::Refused(code, reason) => {
                let _ = writeln!(others, "| `{}` | refused ({code}): {reason} |", stage.name);
            }
        }
    }
    let works = works.join("` `");
    format!("`{works}`\n\n| stage | |\n|---|---|\n{others}")
}

fn accumulators() -> String {
    let list = |refused: bool| {
        let chosen = ACCUMULATORS
            .iter()
            .filter(|row| row.kind.is_none() == refused);
        let names: Vec<&str> = chosen.map(|row| row.name).collect();
        format!("`{}`", names.join("` `"))
    };
    format!("{}\n\nRefused: {}\n", list(false), list(true))
}

fn window_functions() -> String {
    format!("`{}`\n", WINDOW_FUNCTION_NAMES.join("` `"))
}

fn match_operators() -> String {
    let list = |names: &[&str], refused: bool| {
        let chosen = |name: &&str| REFUSED_IN_FILTERS.contains(name) == refused;
        let mut names: Vec<&str> = names.iter().copied().filter(chosen).collect();
        names.sort_unstable();
        format!("`{}`", names.join("` `"))
    };
    let all = [&TOP_LEVEL_OPERATOR_NAMES[..], &PATH_OPERATOR_NAMES[..]].concat();
    format!(
        "At the top of a filter: {}\n\nOn a path: {}\n\nRefused: {}\n",
        list(&TOP_LEVEL_OPERATOR_NAMES, false),
        list(&PATH_OPERATOR_NAMES, false),
        list(&all, true),
    )
}

fn update_operators() -> String {
    format!("`{}`\n", MODIFIER_NAMES.join("` `"))
}

fn expressions() -> String {
    let mut works: Vec<&str> = Vec::new();
    let mut refused = String::new();
    for spec in OPERATORS {
        match spec.status {
            SupportStatus::Supported => works.push(spec.name),
            SupportStatus::Refused { reason, .. } => {
                let _ = writeln!(refused, "| `{}` | refused: {reason} |", spec.name);
            }
        }
    }
    works.sort_unstable();
    let mut out = format!("`{}`\n", works.join("` `"));
    if !refused.is_empty() {
        let _ = write!(out, "\n| operator | |\n|---|---|\n{refused}");
    }
    out
}

fn parameters() -> String {
    let mut out = String::from(
        "| parameter | type | default | set | what it does |\n|---|---|---:|---|---|\n",
    );
    for parameter in PARAMETERS {
        let kind = match parameter.kind {
            ParameterType::Bool => "bool",
            ParameterType::Int => "int",
            ParameterType::Long => "long",
            ParameterType::Rules => "list of names",
        };
        let set = match parameter.set_at {
            SetAt::Never => "never",
            SetAt::Startup => "at start",
            SetAt::Runtime => "while running",
            SetAt::Any => "at any time",
        };
        let (name, default, help) = (parameter.name, parameter.default, parameter.help);
        let _ = writeln!(out, "| `{name}` | {kind} | {default} | {set} | {help} |");
    }
    out
}
