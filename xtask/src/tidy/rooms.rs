//! Who may know whom: the table of rooms, and the check that nobody imports what it must not.
//!
//! The crates' dependencies already forbid most of it; this table forbids the rest: what of the
//! standard library a crate may touch, and which rooms of `nilometer` a room may name. A room is a
//! folder (or file) directly under `crates/nilometer/src`. The reasons are in `ARCHITECTURE.md`.

use crate::code::paths::named_paths;
use crate::code::source::{Source, tokens};

/// What one folder must not name.
pub(crate) struct Rule {
    /// Folder or file the rule is about, relative to the root.
    pub(crate) place: &'static str,
    /// Path prefixes outside its crate that it must not name.
    pub(crate) never: &'static [&'static str],
    /// Rooms of its own crate it may name (beside itself); none means any.
    pub(crate) rooms: Option<&'static [&'static str]>,
}

/// Rooms everybody may name: they hold no behaviour, only what is passed around.
const COMMON: [&str; 5] = ["budget", "error", "insertion", "limits", "validation"];

/// Names that `nilometer`'s root re-exports, and the room each belongs to.
const REEXPORTS: [(&str, &str); 3] = [
    ("Error", "error"),
    ("ErrorCode", "error"),
    ("Result", "error"),
];

/// The only rooms of `timeseries` that `query` may name.
const TIMESERIES_FOR_QUERY: [&str; 2] = ["unpack", "rewrite"];

/// Modules of `nilometer`'s root that may name `commands`.
const MAY_RUN_COMMANDS: [&str; 1] = ["database"];

/// Words that mean the layer above, which storage must not know.
const STORAGE_NEVER_SAYS: [&str; 3] = ["collection", "bucket", "command"];

/// Facts and values that lie in a forbidden place: what the program was built for, an address.
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
        rooms: None,
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
        rooms: None,
    },
    Rule {
        place: "crates/nilometer/src",
        never: &["std::env", "clap", "nilometer_server"],
        rooms: None,
    },
    Rule {
        place: "crates/nilometer/src",
        never: NETWORK,
        rooms: None,
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
        rooms: Some(&["geo"]),
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
        rooms: Some(&["eval", "geo"]),
    },
    Rule {
        place: "crates/nilometer/src/catalog",
        never: &[],
        rooms: Some(&["catalog", "config", "operation", "stats"]),
    },
    Rule {
        place: "crates/nilometer/src/index",
        never: &[],
        rooms: Some(&[
            "index",
            "catalog",
            "eval",
            "geo",
            "config",
            "operation",
            "stats",
        ]),
    },
    Rule {
        place: "crates/nilometer/src/write",
        never: &[],
        rooms: Some(&[
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
        place: "crates/nilometer/src/timeseries",
        never: &[],
        rooms: Some(&[
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
        rooms: Some(&[
            "query",
            "ids",
            "session",
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
        place: "crates/nilometer/src/auth",
        never: NETWORK,
        rooms: Some(&["auth", "catalog", "config", "operation", "stats"]),
    },
    Rule {
        place: "crates/nilometer/src/background",
        never: &[],
        rooms: Some(&[
            "background",
            "catalog",
            "index",
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
        rooms: None,
    },
];

/// Everything in `source`, the file at `path`, that the table forbids: line and message.
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
            if let Some(room) = forbidden_room(rule, named) {
                let message = format!("{} must not name the room `{room}`", rule.place);
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

/// The rules that are about more than one room naming another.
fn special_case(path: &str, named: &str) -> Option<String> {
    let own_room = room_of(path)?;
    let mut parts = named.strip_prefix("crate::")?.split("::");
    let (room, inner) = (parts.next()?, parts.next().unwrap_or("*"));
    if room == "commands" && own_room != "commands" && !MAY_RUN_COMMANDS.contains(&own_room) {
        return Some(format!(
            "only {MAY_RUN_COMMANDS:?} may name the room `commands`"
        ));
    }
    if own_room == "query" && room == "timeseries" && !TIMESERIES_FOR_QUERY.contains(&inner) {
        return Some(format!(
            "of `timeseries`, `query` may name only {TIMESERIES_FOR_QUERY:?}, not `{inner}`"
        ));
    }
    if own_room == "timeseries" && room == "write" && inner != "update" {
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

/// The room that `named` lies in, when the rule does not allow it.
fn forbidden_room<'a>(rule: &Rule, named: &'a str) -> Option<&'a str> {
    let allowed = rule.rooms?;
    let first = named.strip_prefix("crate::")?.split("::").next()?;
    let room = REEXPORTS
        .iter()
        .find(|(name, _)| *name == first)
        .map_or(first, |(_, room)| *room);
    let known = allowed.contains(&room) || COMMON.contains(&room);
    // Macros exported at the root have no room.
    let is_macro = named.ends_with('!');
    (!known && !is_macro).then_some(first)
}

/// The room of a file of `nilometer`: the folder or file directly under `src`.
fn room_of(path: &str) -> Option<&str> {
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
    fn a_room_may_name_what_lies_below_it() {
        let text = "use crate::{Error, catalog::{Catalog, views}};\nuse crate::eval::matcher;\n";
        assert_eq!(
            messages("crates/nilometer/src/index/build.rs", text),
            [""; 0]
        );
    }

    #[test]
    fn a_room_must_not_name_what_lies_above_it() {
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
    fn what_query_needs_of_timeseries_is_allowed() {
        let text = "use crate::timeseries::{rewrite::Predicate, unpack};";
        assert_eq!(
            messages("crates/nilometer/src/query/planner/rules.rs", text),
            [""; 0]
        );
    }
}
