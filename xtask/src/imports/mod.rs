//! `cargo xtask imports`: how the modules of a folder hang together.
//!
//! One table line for each folder:
//!
//! - *modules*: direct children of the folder; *files*: all its files outside tests.
//! - *imports*: pairs of children of which one names the other, in any of their files, outside tests.
//! - *levels*: levels of the condensation (cycles count as one node): how many floors the folder has.
//! - *upward*: imports against the best order of each cycle; without them there would be no cycle.
//! - *cycles*: cycles of children, each as `modules/files`; *file cycles*: cycles of files, each as its number of files.
//! - *parent*: children that name something the folder's own `mod.rs` defines.
//!
//! `pub use` does not count as an import: paths are followed to the module that defines the item.

mod report;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::code::tree::Crate;
use crate::process::{Outcome, root, run_quietly, target_folder};
use report::Folder;

/// Folders shown when none is named, below `crates/nilometer/src`.
const FOLDERS: [&str; 5] = ["", "timeseries", "query", "query/exec", "commands"];
/// Where a folder lies when it is not named with its crate.
const SOURCES: &str = "crates/nilometer/src";

/// What the command line asks for.
struct Request {
    folders: Vec<String>,
    revision: Option<String>,
    edges: bool,
}

/// Prints the table, and with `--edges` every import.
pub(crate) fn run(arguments: &[&str]) -> Outcome {
    let request = parse(arguments)?;
    let mut rows = Vec::new();
    if let Some(revision) = &request.revision {
        rows.extend(measure(&checkout(revision)?, &request.folders, revision)?);
    }
    rows.extend(measure(&root(), &request.folders, "now")?);
    rows.sort_by_key(|(at, _, _)| *at);
    print!("{}", report::table(&rows));
    if request.edges {
        for (_, _, folder) in &rows {
            print!("{}", report::edges(folder));
        }
    }
    Ok(())
}

fn parse(arguments: &[&str]) -> Outcome<Request> {
    let mut request = Request {
        folders: Vec::new(),
        revision: None,
        edges: false,
    };
    let mut rest = arguments.iter();
    while let Some(argument) = rest.next() {
        match *argument {
            "--edges" => request.edges = true,
            "--revision" => {
                let revision = rest.next().ok_or("--revision takes a revision or a path")?;
                request.revision = Some((*revision).to_string());
            }
            option if option.starts_with("--") => {
                return Err(format!("unknown option `{option}`"));
            }
            folder => request
                .folders
                .push(folder.trim_end_matches('/').to_string()),
        }
    }
    if request.folders.is_empty() {
        request.folders = FOLDERS.map(String::from).to_vec();
    }
    Ok(request)
}

/// The folders of one state; one that it does not have is left out.
fn measure(base: &Path, folders: &[String], state: &str) -> Outcome<Vec<(usize, String, Folder)>> {
    let mut crates: HashMap<PathBuf, Crate> = HashMap::new();
    let mut found = Vec::new();
    for (at, name) in folders.iter().enumerate() {
        let (sources, inner) = split(name);
        let tree = match crates.entry(sources) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(place) => {
                let tree = Crate::load(&base.join(place.key()))?;
                place.insert(tree)
            }
        };
        let path = inner.replace('/', "::");
        if let Some(folder) = Folder::measure(tree, &path) {
            found.push((at, state.to_string(), folder));
        }
    }
    Ok(found)
}

/// A folder's crate sources and its path below them.
fn split(folder: &str) -> (PathBuf, String) {
    match folder.split_once("src") {
        Some((before, inner)) if before.is_empty() || before.ends_with('/') => {
            let sources = if before.is_empty() {
                PathBuf::from(SOURCES)
            } else {
                PathBuf::from(format!("{before}src"))
            };
            (sources, inner.trim_start_matches('/').to_string())
        }
        _ => (PathBuf::from(SOURCES), folder.to_string()),
    }
}

/// The folder that holds the state `revision`: a path as it is, a revision of git written out below `target`.
fn checkout(revision: &str) -> Outcome<PathBuf> {
    let path = PathBuf::from(revision);
    if path.join(SOURCES).is_dir() {
        return Ok(path);
    }
    let folder = target_folder()
        .join("imports")
        .join(revision.replace('/', "_"));
    if folder.exists() {
        std::fs::remove_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    }
    std::fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let index = folder.join("index");
    let git = |arguments: &[&str]| {
        let mut command = Command::new("git");
        command
            .args(arguments)
            .current_dir(root())
            .env("GIT_INDEX_FILE", &index);
        run_quietly(&mut command)
    };
    git(&["read-tree", revision])?;
    let prefix = format!("--prefix={}/", folder.display());
    git(&["checkout-index", "--all", &prefix])?;
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_named_with_or_without_their_crate() {
        for (name, sources, inner) in [
            ("", SOURCES, ""),
            ("src", SOURCES, ""),
            ("query/exec", SOURCES, "query/exec"),
            (
                "crates/nilometer-storage/src",
                "crates/nilometer-storage/src",
                "",
            ),
            (
                "crates/nilometer-storage/src/lsm",
                "crates/nilometer-storage/src",
                "lsm",
            ),
        ] {
            let (found, below) = split(name);
            assert_eq!(
                (found, below.as_str()),
                (PathBuf::from(sources), inner),
                "{name}"
            );
        }
    }
}
