//! Which paths a crate or module must not name, and which modules of `nilometer` a module may name.
//!
//! The crates' dependencies forbid most of it; this table forbids the rest: what of the standard library a crate may
//! use, and which top modules of `nilometer` a top module may name. A top module is a folder or file directly under
//! `crates/nilometer/src`. The order inside folders is checked by [`super::layers`]. The reasons are in
//! `ARCHITECTURE.md`.

use crate::code::paths::named_paths;
use crate::code::source::{Source, tokens};

/// What one folder may name.
pub(crate) struct Rule {
    /// Folder or file, relative to the root.
    pub(crate) place: &'static str,
    /// Path prefixes outside its crate that it must not name.
    pub(crate) never: &'static [&'static str],
    /// Top modules of its own crate that it may name (beside itself); none means any.
    pub(crate) modules: Option<&'static [&'static str]>,
}

/// Top modules that every module may name: types that are passed around, without behaviour.
const COMMON: [&str; 5] = ["budget", "error", "insertion", "limits", "validation"];

/// Names that `nilometer`'s root re-exports, and the module of each.
const REEXPORTS: [(&str, &str); 3] = [
    ("Error", "error"),
    ("ErrorCode", "error"),
    ("Result", "error"),
];

/// The only modules of `timeseries` that `query` may name.
const TIMESERIES_FOR_QUERY: [&str; 2] = ["unpack", "rewrite"];

/// Top modules that may name `commands`.
const MAY_RUN_COMMANDS: [&str; 1] = ["database"];

/// Words of the layer above, which storage must not use.
const STORAGE_NEVER_SAYS: [&str; 3] = ["collection", "bucket", "command"];

/// Constants and plain values below a forbidden prefix: the build target, an address.
const HARMLESS: [&str; 3] = [
    "std::env::consts",
    "std::net::SocketAddr",
    "std::net::IpAddr",
];

const NETWORK: &[&str] = &[
    "std::net",
    "std::os::unix::net",
    "tokio",
    "mio",
    "rustls",
    "hyper",
];

/// The table.
pub(crate) const RULES: &[Rule] = &[
    Rule {
        place: "crates/nilometer-bson/src",
        never: &[
            "std::fs",
            "std::net",
            "std::thread",
            "std::time",
            "std::env",
            "std::process",
            "nilometer",
            "nilometer_storage",
            "nilometer_server",
        ],
        modules: None,
    },
    Rule {
        place: "crates/nilometer-influx/src",
        never: &[
            "std::fs",
            "std::net",
            "std::thread",
            "std::time",
            "std::env",
            "std::process",
            "nilometer",
            "nilometer_storage",
            "nilometer_server",
        ],
        modules: None,
    },
    Rule {
        place: "crates/nilometer-storage/src",
        never: &[
            "bson",
            "nilometer",
            "nilometer_bson",
            "nilometer_server",
            "std::net",
        ],
        modules: None,
    },
    Rule {
        place: "crates/nilometer/src",
        never: &["std::env", "clap", "nilometer_server"],
        modules: None,
    },
    Rule {
        place: "crates/nilometer/src",
        never: NETWORK,
        modules: None,
    },
    Rule {
        place: "crates/nilometer/src/geo",
        never: &[
            "nilometer_storage",
            "std::fs",
            "std::thread",
            "std::time",
            "rand",
        ],
        modules: Some(&["geo"]),
    },
    Rule {
        place: "crates/nilometer/src/text",
        never: &[
            "nilometer_storage",
            "std::fs",
            "std::thread",
            "std::time",
            "rand",
        ],
        modules: Some(&["text"]),
    },
    Rule {
        place: "crates/nilometer/src/eval",
        never: &[
            "nilometer_storage",
            "std::fs",
            "std::thread",
            "std::time",
            "rand",
        ],
        modules: Some(&["eval", "geo", "text"]),
    },
    Rule {
        place: "crates/nilometer/src/catalog",
        never: &[],
        modules: Some(&["change_entry", "catalog", "config", "operation", "stats"]),
    },
    Rule {
        place: "crates/nilometer/src/change_entry",
        never: &["std::fs", "std::thread", "std::time"],
        modules: Some(&["change_entry"]),
    },
    Rule {
        place: "crates/nilometer/src/change_log",
        never: &[],
        modules: Some(&["change_log", "change_entry", "operation", "write"]),
    },
    Rule {
        place: "crates/nilometer/src/index",
        never: &[],
        modules: Some(&[
            "index",
            "catalog",
            "eval",
            "geo",
            "text",
            "config",
            "operation",
            "stats",
        ]),
    },
    Rule {
        place: "crates/nilometer/src/write",
        never: &[],
        modules: Some(&[
            "change_entry",
            "write",
            "catalog",
            "index",
            "eval",
            "geo",
            "config",
            "operation",
            "stats",
        ]),
    },
    Rule {
        place: "crates/nilometer/src/rollup",
        never: &["std::fs", "std::thread", "std::time"],
        modules: Some(&["rollup", "catalog", "index", "eval"]),
    },
    Rule {
        place: "crates/nilometer/src/timeseries",
        never: &[],
        modules: Some(&[
            "change_entry",
            "rollup",
            "timeseries",
            "write",
            "catalog",
            "index",
            "eval",
            "geo",
            "config",
            "operation",
            "stats",
        ]),
    },
    Rule {
        place: "crates/nilometer/src/query",
        never: &[],
        modules: Some(&[
            "change_entry",
            "change_log",
            "query",
            "rollup",
            "ids",
            "session",
            "timeseries",
            "write",
            "catalog",
            "index",
            "eval",
            "geo",
            "text",
            "config",
            "operation",
            "stats",
        ]),
    },
    Rule {
        place: "crates/nilometer/src/router",
        never: &["std::thread"],
        modules: Some(&[
            "router",
            "catalog",
            "query",
            "eval",
            "operation",
            "session",
            "ids",
        ]),
    },
    Rule {
        place: "crates/nilometer/src/modify",
        never: &[],
        modules: Some(&[
            "modify",
            "query",
            "ids",
            "timeseries",
            "write",
            "catalog",
            "index",
            "eval",
            "operation",
        ]),
    },
    Rule {
        place: "crates/nilometer/src/auth",
        never: NETWORK,
        modules: Some(&["auth", "catalog", "config", "operation", "stats"]),
    },
    Rule {
        place: "crates/nilometer/src/retryable_writes",
        never: &[],
        modules: Some(&[
            "retryable_writes",
            "catalog",
            "change_entry",
            "operation",
            "session",
        ]),
    },
    Rule {
        place: "crates/nilometer/src/background",
        never: &[],
        modules: Some(&[
            "change_log",
            "background",
            "catalog",
            "index",
            "retryable_writes",
            "services",
            "timeseries",
            "write",
            "config",
            "operation",
            "stats",
        ]),
    },
    Rule {
        place: "crates/nilometer-server/src",
        never: &["nilometer_storage"],
        modules: None,
    },
];

/// Paths in `source`, the file at `path`, that the table forbids: line and message.
pub(crate) fn check(path: &str, source: &Source) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let paths = named_paths(path, &source.code);
    for rule in RULES.iter().filter(|rule| lies_in(path, rule.place)) {
        for (offset, named) in &paths {
            let harmless = HARMLESS.iter().any(|value| starts_with(named, value));
            if !harmless && let Some(prefix) = rule.never.iter().find(|p| starts_with(named, p)) {
                let message = format!("{} must not name `{prefix}`", rule.place);
                found.push((source.line_of(*offset), message));
            }
            if let Some(module) = forbidden_module(rule, named) {
                let message = format!("{} must not name the module `{module}`", rule.place);
                found.push((source.line_of(*offset), message));
            }
        }
    }
    for (offset, named) in &paths {
        if let Some(message) = special_case(path, named) {
            found.push((source.line_of(*offset), message));
        }
    }
    if lies_in(path, "crates/nilometer-storage/src") {
        found.extend(words_of_the_layer_above(source));
    }
    found
}

/// Rules between particular modules.
fn special_case(path: &str, named: &str) -> Option<String> {
    let own_module = top_module(path)?;
    let mut parts = named.strip_prefix("crate::")?.split("::");
    let (module, inner) = (parts.next()?, parts.next().unwrap_or("*"));
    if module == "commands" && own_module != "commands" && !MAY_RUN_COMMANDS.contains(&own_module) {
        return Some(format!(
            "only {MAY_RUN_COMMANDS:?} may name the module `commands`"
        ));
    }
    if own_module == "query" && module == "timeseries" && !TIMESERIES_FOR_QUERY.contains(&inner) {
        return Some(format!(
            "of `timeseries`, `query` may name only {TIMESERIES_FOR_QUERY:?}, not `{inner}`"
        ));
    }
    if own_module == "timeseries" && module == "write" && inner != "update" {
        return Some(format!(
            "of `write`, `timeseries` may name only `update`, not `{inner}`"
        ));
    }
    None
}

fn words_of_the_layer_above(source: &Source) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (offset, token) in tokens(&source.code) {
        let lower = token.to_lowercase();
        if lower == "collections" {
            // The standard library's module.
            continue;
        }
        if let Some(word) = STORAGE_NEVER_SAYS
            .iter()
            .find(|word| lower.contains(**word))
        {
            let message = format!("storage does not know what a {word} is (`{token}`)");
            found.push((source.line_of(offset), message));
        }
    }
    found
}

/// The top module of `named` if the rule does not allow it.
fn forbidden_module<'a>(rule: &Rule, named: &'a str) -> Option<&'a str> {
    let allowed = rule.modules?;
    let first = named.strip_prefix("crate::")?.split("::").next()?;
    let module = REEXPORTS
        .iter()
        .find(|(name, _)| *name == first)
        .map_or(first, |(_, module)| *module);
    let known = allowed.contains(&module) || COMMON.contains(&module);
    // Macros exported at the root have no module.
    let is_macro = named.ends_with('!');
    (!known && !is_macro).then_some(first)
}

/// The top module of a file of `nilometer`: the folder or file directly under `src`.
fn top_module(path: &str) -> Option<&str> {
    let inner = path.strip_prefix("crates/nilometer/src/")?;
    let first = inner.split('/').next()?;
    Some(first.strip_suffix(".rs").unwrap_or(first))
}

fn lies_in(path: &str, place: &str) -> bool {
    path.strip_prefix(place)
        .is_some_and(|rest| rest.starts_with('/') || rest == ".rs")
}

fn starts_with(named: &str, prefix: &str) -> bool {
    named
        .strip_prefix(prefix)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn messages(path: &str, text: &str) -> Vec<String> {
        let source = Source::new(text);
        check(path, &source).into_iter().map(|(_, m)| m).collect()
    }

    #[test]
    fn a_module_may_name_lower_modules() {
        let text = "use crate::{Error, catalog::{Catalog, views}};\nuse crate::eval::matcher;\n";
        assert_eq!(
            messages("crates/nilometer/src/index/build.rs", text),
            [""; 0]
        );
    }

    #[test]
    fn a_module_must_not_name_higher_modules() {
        for (path, text) in [
            (
                "crates/nilometer/src/catalog/mod.rs",
                "use crate::query::plan;",
            ),
            (
                "crates/nilometer/src/catalog/mod.rs",
                "use crate::{Error, eval::{self}};",
            ),
            (
                "crates/nilometer/src/eval/matcher/mod.rs",
                "use super::super::catalog::Catalog;",
            ),
            (
                "crates/nilometer/src/eval/matcher/mod.rs",
                "fn f() { std::time::Instant::now(); }",
            ),
            (
                "crates/nilometer/src/query/exec/scan.rs",
                "use crate::timeseries::bucket_catalog::X;",
            ),
            (
                "crates/nilometer/src/query/mod.rs",
                "use crate::commands::Table;",
            ),
            (
                "crates/nilometer/src/stats.rs",
                "use crate::commands::Table;",
            ),
            (
                "crates/nilometer/src/session.rs",
                "use tokio::net::TcpStream;",
            ),
            (
                "crates/nilometer-bson/src/order.rs",
                "use std::{collections::HashMap, fs::File};",
            ),
            (
                "crates/nilometer-storage/src/engine.rs",
                "struct BucketName;",
            ),
            (
                "crates/nilometer-server/src/lib.rs",
                "use nilometer_storage::engine;",
            ),
        ] {
            assert!(!messages(path, text).is_empty(), "{path}: {text}");
        }
    }

    #[test]
    fn tests_and_comments_may_name_anything() {
        let text = "// crate::query::x\n#[cfg(test)]\nmod tests { use crate::query::x; }\n";
        assert_eq!(
            messages("crates/nilometer/src/catalog/mod.rs", text),
            [""; 0]
        );
    }

    #[test]
    fn query_may_name_its_part_of_timeseries() {
        let text = "use crate::timeseries::{rewrite::Predicate, unpack};";
        assert_eq!(
            messages("crates/nilometer/src/query/planner/rules.rs", text),
            [""; 0]
        );
    }
}
