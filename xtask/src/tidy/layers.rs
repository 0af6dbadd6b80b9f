//! The order of the modules inside a folder: a module names only modules of lower layers.
//!
//! [`LAYERED`] has one entry for each ordered folder: its direct children from the top layer to the bottom one. A child
//! may name children of lower layers, not of its own or of a higher one. An import that goes another way is an exception
//! with a reason. A child without a place, a place without a child and an exception that is not needed are violations,
//! so the table is always the whole truth. Imports are those of `cargo xtask imports`, outside tests, re-exports
//! followed; `cargo xtask imports FOLDER --edges` shows them.

use std::collections::BTreeSet;

use crate::code::tree::Crate;

/// One folder whose children are ordered.
pub(crate) struct Layered {
    /// Module path of the folder below the crate, `query::exec`.
    pub(crate) folder: &'static str,
    /// Children by layer, the top layer first.
    pub(crate) layers: &'static [&'static [&'static str]],
    /// Imports against the order, or inside a layer.
    pub(crate) exceptions: &'static [Exception],
    /// Children that may name items which the folder's own `mod.rs` defines; none means any.
    pub(crate) may_name_parent: Option<&'static [&'static str]>,
}

/// An import that the order forbids. `from` and `to` are module paths below the folder: `row::sample` is that module
/// alone, `join::*` are all modules inside `join`.
pub(crate) struct Exception {
    pub(crate) from: &'static str,
    pub(crate) to: &'static str,
    pub(crate) reason: &'static str,
}

/// The table, for the crate `nilometer`.
pub(crate) const LAYERED: &[Layered] = &[
    Layered {
        folder: "",
        layers: &[
            &["client"],
            &["commands"],
            &["database"],
            &["background"],
            &["modify", "retryable_writes", "router", "services"],
            &["parameters"],
            &["query"],
            &["change_log", "timeseries"],
            &["write"],
            &["rollup"],
            &["index"],
            &["operation"],
            &["session"],
            &["args", "auth", "eval"],
            &["catalog", "geo", "insertion", "text", "turns"],
            &["change_entry"],
            &["budget", "error", "ids", "limits", "validation"],
        ],
        exceptions: &[
            Exception {
                from: "database::offline::salvage",
                to: "client",
                reason: "writes the surviving documents into a new database as a client does",
            },
            Exception {
                from: "database",
                to: "commands",
                reason: "`run_command` is the interface of an embedding program and dispatches to the table",
            },
            Exception {
                from: "database",
                to: "commands::dispatch",
                reason: "`run_command` is the interface of an embedding program and dispatches to the table",
            },
        ],
        may_name_parent: None,
    },
    Layered {
        folder: "timeseries",
        layers: &[
            &["transaction"],
            &["insert"],
            &["fold", "modify", "validate"],
            &["index"],
            &["scan"],
            &["bucket_catalog", "cache", "unpack"],
            &["format", "measurement_counts", "metrics", "rewrite"],
        ],
        exceptions: &[],
        may_name_parent: Some(&[
            "transaction",
            "insert",
            "fold",
            "modify",
            "index",
            "validate",
        ]),
    },
    Layered {
        folder: "query",
        layers: &[
            &["cursor", "explain"],
            &["collector", "exec"],
            &["planner"],
            &["pipeline"],
            &["batch"],
            &["source"],
            &["number", "outputs", "partitions"],
        ],
        exceptions: &[],
        may_name_parent: None,
    },
    Layered {
        folder: "query::exec",
        layers: &[
            &["change_stream"],
            &["build"],
            &["join", "sink", "window"],
            &["scan"],
            &["row"],
            &["group"],
            &["sort"],
            &["vector"],
            &["memory"],
            &["parts"],
            &["context"],
            &["workers"],
        ],
        exceptions: &[
            Exception {
                from: "join::*",
                to: "build",
                reason: "these operators run pipelines of their own, which they build for each document or branch",
            },
            Exception {
                from: "scan::rollup",
                to: "build",
                reason: "plans and builds what computes the bins that are not stored, when it knows them",
            },
            Exception {
                from: "scan::rollup::*",
                to: "build",
                reason: "builds what computes open bins, when it knows which of them are kept",
            },
            Exception {
                from: "sink::*",
                to: "build",
                reason: "these operators run pipelines of their own, which they build for each document or branch",
            },
        ],
        may_name_parent: None,
    },
    Layered {
        folder: "commands",
        layers: &[
            &["dispatch"],
            &["routed"],
            &["admin", "target"],
            &["crud"],
            &["ddl"],
            &["security"],
            &["cursor_reply", "members", "server_version", "snapshots"],
            &["generic"],
            &["stable_api", "transactions"],
        ],
        exceptions: &[],
        may_name_parent: None,
    },
];

/// Imports of `tree` that break the order of a folder: file (relative to the crate's `src`), line, message.
pub(crate) fn check(tree: &Crate, table: &[Layered]) -> Vec<(String, usize, String)> {
    table
        .iter()
        .flat_map(|folder| check_folder(tree, folder))
        .collect()
}

fn check_folder(tree: &Crate, folder: &Layered) -> Vec<(String, usize, String)> {
    let Some(own) = tree.find(folder.folder) else {
        let message = format!(
            "the table of layers names `{}`, which is no module",
            folder.folder
        );
        return vec![("lib.rs".to_string(), 1, message)];
    };
    let file = |module: usize| tree.modules[module].file.display().to_string();
    let mut found: Vec<_> = check_places(tree, folder)
        .into_iter()
        .map(|message| (file(own), 1, message))
        .collect();
    let mut needed = BTreeSet::new();
    for import in &tree.imports {
        let Some(from) = tree.child_of(folder.folder, import.from) else {
            continue;
        };
        let place = (file(import.from), import.line);
        if import.to == own && folder.may_name_parent.is_some_and(|m| !m.contains(&from)) {
            let message = format!("`{from}` must not name items of `{}` itself", folder.folder);
            found.push((place.0.clone(), place.1, message));
        }
        let Some(to) = tree.child_of(folder.folder, import.to) else {
            continue;
        };
        let (Some(high), Some(low)) = (folder.layer_of(from), folder.layer_of(to)) else {
            continue;
        };
        if from == to || high < low {
            continue;
        }
        let (from, to) = (
            folder.path_below(tree, import.from),
            folder.path_below(tree, import.to),
        );
        if let Some(at) = folder.exception(from, to) {
            needed.insert(at);
            continue;
        }
        let message = format!(
            "in `{}`, `{from}` must not name `{to}`, which lies {} it",
            if folder.folder.is_empty() {
                "src"
            } else {
                folder.folder
            },
            if high == low { "beside" } else { "above" }
        );
        found.push((place.0, place.1, message));
    }
    for (at, exception) in folder.exceptions.iter().enumerate() {
        if !needed.contains(&at) {
            let message = format!(
                "the table of layers excuses `{}` naming `{}` without need",
                exception.from, exception.to
            );
            found.push((file(own), 1, message));
        }
    }
    found
}

/// Children without exactly one place, places without a child, exceptions without a reason.
fn check_places(tree: &Crate, folder: &Layered) -> Vec<String> {
    let children: BTreeSet<&str> = (0..tree.modules.len())
        .filter_map(|module| tree.child_of(folder.folder, module))
        .collect();
    let listed: Vec<&str> = folder.layers.iter().copied().flatten().copied().collect();
    let mut found = Vec::new();
    for child in &children {
        if listed.iter().filter(|name| *name == child).count() != 1 {
            found.push(format!(
                "`{child}` needs one place in the layers of `{}` (xtask/src/tidy/layers.rs)",
                folder.folder
            ));
        }
    }
    for name in listed.iter().filter(|name| !children.contains(*name)) {
        found.push(format!(
            "the layers of `{}` list `{name}`, which is not there",
            folder.folder
        ));
    }
    for exception in folder.exceptions {
        if exception.reason.chars().count() < super::REASON_CHARS_MIN {
            found.push(format!(
                "`{}` naming `{}` needs a reason",
                exception.from, exception.to
            ));
        }
    }
    found
}

impl Layered {
    fn layer_of(&self, child: &str) -> Option<usize> {
        self.layers.iter().position(|layer| layer.contains(&child))
    }

    fn exception(&self, from: &str, to: &str) -> Option<usize> {
        self.exceptions
            .iter()
            .position(|exception| covers(exception.from, from) && covers(exception.to, to))
    }

    /// The path of a module below the folder.
    fn path_below<'t>(&self, tree: &'t Crate, module: usize) -> &'t str {
        let path = tree.modules[module].path.as_str();
        let below = path.strip_prefix(self.folder).unwrap_or(path);
        below.strip_prefix("::").unwrap_or(below)
    }
}

/// True if `path` is the module `place`, or lies inside it where `place` ends in `::*`.
fn covers(place: &str, path: &str) -> bool {
    match place.strip_suffix("::*") {
        Some(outer) => path
            .strip_prefix(outer)
            .is_some_and(|rest| rest.starts_with("::")),
        None => place == path,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLDER: Layered = Layered {
        folder: "a",
        layers: &[&["top"], &["left", "right"], &["base"]],
        exceptions: &[Exception {
            from: "base",
            to: "top",
            reason: "a reason that is long enough",
        }],
        may_name_parent: Some(&["top"]),
    };

    /// Violations of a crate whose folder `a` has four modules with these imports.
    fn violations(top: &str, left: &str, base: &str) -> Vec<String> {
        let tree = Crate::parse(&[
            ("lib.rs", "mod a;"),
            (
                "a/mod.rs",
                "mod top; mod left; mod right; mod base; pub use base::B; struct A;",
            ),
            ("a/top.rs", top),
            ("a/left.rs", left),
            ("a/right.rs", "pub struct R;"),
            ("a/base.rs", base),
        ])
        .expect("a crate");
        let found = check(&tree, &[FOLDER]);
        found.into_iter().map(|(_, _, message)| message).collect()
    }

    #[test]
    fn imports_go_down() {
        let base = "use super::top::T; pub struct B;";
        assert_eq!(
            violations("use super::{A, left, B};", "use super::B;", base),
            [""; 0]
        );
    }

    #[test]
    fn imports_up_beside_and_of_the_parent_are_found() {
        let base = "use super::top::T;\nuse super::left::L;";
        let found = violations("", "use super::right::R; use super::A;", base);
        assert_eq!(
            found,
            [
                "in `a`, `left` must not name `right`, which lies beside it",
                "`left` must not name items of `a` itself",
                "in `a`, `base` must not name `left`, which lies above it",
            ]
        );
    }

    #[test]
    fn an_exception_must_be_needed() {
        let found = violations("", "", "");
        assert_eq!(
            found,
            ["the table of layers excuses `base` naming `top` without need"]
        );
    }

    #[test]
    fn an_exception_covers_one_module_or_all_inside_one() {
        assert!(covers("scan", "scan") && covers("scan::*", "scan::index_scan"));
        assert!(!covers("scan", "scan::index_scan") && !covers("scan::*", "scanner::x"));
    }

    #[test]
    fn every_child_has_one_place() {
        let tree = Crate::parse(&[
            ("lib.rs", "mod a;"),
            ("a/mod.rs", "mod extra;"),
            ("a/extra.rs", ""),
        ])
        .expect("a crate");
        let found = check(&tree, &[FOLDER]);
        assert_eq!(found.len(), 6, "{found:?}");
        assert!(found[0].2.starts_with("`extra` needs one place"));
    }
}
