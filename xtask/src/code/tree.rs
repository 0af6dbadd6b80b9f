//! The modules of a crate outside tests, and which of them each names.
//!
//! [`Crate::load`] follows `mod name;` from `lib.rs`, so a file that only tests declare is left out. A path resolves
//! through re-exports to the module that defines the item: `use super::X`, where `mod.rs` says `pub use x::X`, names
//! the module `x`. Items that a macro defines and `#[path]` are not understood.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use super::paths::{Named, paths};
use super::source::{Source, is_word, tokens};
use crate::process::Outcome;

/// Longest chain of re-exports followed.
const REEXPORTS_MAX: usize = 16;

/// One module: one file.
pub(crate) struct Module {
    /// Path below the crate, `a::b`; empty for the root.
    pub(crate) path: String,
    /// The file, relative to the crate's `src`.
    pub(crate) file: PathBuf,
    code: String,
    children: BTreeMap<String, usize>,
    parent: usize,
    names: Vec<Named>,
    bindings: HashMap<String, String>,
    globs: Vec<String>,
    items: BTreeSet<String>,
}

/// One module naming another.
pub(crate) struct Import {
    pub(crate) from: usize,
    pub(crate) to: usize,
    /// The line in the file of `from`.
    pub(crate) line: usize,
}

/// The modules of a crate, the root first.
pub(crate) struct Crate {
    pub(crate) modules: Vec<Module>,
    /// Every import between two modules, one for each name.
    pub(crate) imports: Vec<Import>,
}

/// What a path leads to: a module, or an item that a module defines.
#[derive(Clone, Copy)]
struct Target {
    module: usize,
    is_item: bool,
}

impl Crate {
    /// Reads the crate whose sources lie in `folder`.
    pub(crate) fn load(folder: &Path) -> Outcome<Self> {
        let mut files = HashMap::new();
        read_sources(folder, Path::new(""), &mut files)?;
        Self::of(&files).map_err(|e| format!("{}: {e}", folder.display()))
    }

    /// A crate of these files, their paths relative to `src`.
    #[cfg(test)]
    pub(crate) fn parse(files: &[(&str, &str)]) -> Outcome<Self> {
        let files = files
            .iter()
            .map(|(path, text)| (PathBuf::from(path), (*text).to_string()));
        Self::of(&files.collect())
    }

    fn of(files: &HashMap<PathBuf, String>) -> Outcome<Self> {
        let mut tree = Self {
            modules: Vec::new(),
            imports: Vec::new(),
        };
        tree.add(files, PathBuf::from("lib.rs"), String::new(), 0)?;
        tree.imports = tree.resolve_all();
        Ok(tree)
    }

    /// Adds one file and the modules it declares.
    fn add(
        &mut self,
        files: &HashMap<PathBuf, String>,
        file: PathBuf,
        path: String,
        parent: usize,
    ) -> Outcome<usize> {
        let text = files
            .get(&file)
            .ok_or_else(|| format!("no {}", file.display()))?;
        let code = Source::new(text).code;
        let declared = declared_modules(&code);
        let names = paths(&code);
        let own = self.modules.len();
        self.modules.push(Module {
            path: path.clone(),
            file: file.clone(),
            children: BTreeMap::new(),
            parent,
            bindings: bindings(&names),
            globs: globs(&names),
            names,
            items: items(&code),
            code,
        });
        let stem = file.file_stem().unwrap_or_default().to_string_lossy();
        let beside = file.parent().unwrap_or(Path::new(""));
        let inner = match &*stem {
            "lib" | "main" | "mod" => beside.to_path_buf(),
            stem => beside.join(stem),
        };
        for name in declared {
            let flat = inner.join(format!("{name}.rs"));
            let nested = inner.join(&name).join("mod.rs");
            let child = match (files.contains_key(&flat), files.contains_key(&nested)) {
                (true, _) => flat,
                (_, true) => nested,
                _ => return Err(format!("{}: no file for `mod {name}`", file.display())),
            };
            let child_path = if path.is_empty() {
                name.clone()
            } else {
                format!("{path}::{name}")
            };
            let child = self.add(files, child, child_path, own)?;
            self.modules[own].children.insert(name, child);
        }
        Ok(own)
    }

    /// The number of the module at `path`.
    pub(crate) fn find(&self, path: &str) -> Option<usize> {
        self.modules.iter().position(|module| module.path == path)
    }

    /// The direct child of the module path `folder` that `module` is or lies in.
    pub(crate) fn child_of(&self, folder: &str, module: usize) -> Option<&str> {
        let path = self.modules[module].path.as_str();
        let inner = if folder.is_empty() {
            path
        } else {
            path.strip_prefix(folder)?.strip_prefix("::")?
        };
        let first = inner.split("::").next()?;
        (!first.is_empty()).then_some(first)
    }

    fn resolve_all(&self) -> Vec<Import> {
        let mut found = Vec::new();
        for (from, module) in self.modules.iter().enumerate() {
            for named in &module.names {
                if named.is_reexport && !module.uses(named) {
                    continue;
                }
                let Some(target) = self.resolve(from, &named.path, 0) else {
                    continue;
                };
                if target.module != from {
                    found.push(Import {
                        from,
                        to: target.module,
                        line: module.code[..named.offset].matches('\n').count() + 1,
                    });
                }
            }
        }
        found
    }

    /// What `path` means in the module `from`; none for another crate or an unknown name.
    fn resolve(&self, from: usize, path: &str, depth: usize) -> Option<Target> {
        if depth > REEXPORTS_MAX {
            return None;
        }
        let mut segments = path.split("::").peekable();
        let mut module = from;
        match *segments.peek()? {
            "crate" => {
                segments.next();
                module = 0;
            }
            "self" => {
                segments.next();
            }
            "super" => {
                while segments.next_if_eq(&"super").is_some() {
                    module = self.modules[module].parent;
                }
            }
            first => {
                let here = &self.modules[from];
                if !here.children.contains_key(first) && !here.bindings.contains_key(first) {
                    return None;
                }
            }
        }
        for segment in segments {
            let target = self.member(module, segment, depth)?;
            if target.is_item {
                return Some(target);
            }
            module = target.module;
        }
        Some(Target {
            module,
            is_item: false,
        })
    }

    /// What `name` means inside `module`.
    fn member(&self, module: usize, name: &str, depth: usize) -> Option<Target> {
        let here = &self.modules[module];
        let own_item = Target {
            module,
            is_item: true,
        };
        if let Some(child) = here.children.get(name) {
            return Some(Target {
                module: *child,
                is_item: false,
            });
        }
        if here.items.contains(name) || name == "*" {
            return Some(own_item);
        }
        if let Some(path) = here.bindings.get(name) {
            return self.resolve(module, path, depth + 1);
        }
        let from_glob = here.globs.iter().find_map(|glob| {
            let other = self.resolve(module, glob, depth + 1)?;
            let defines = self.modules[other.module].items.contains(name);
            defines.then_some(Target {
                module: other.module,
                is_item: true,
            })
        });
        Some(from_glob.unwrap_or(own_item))
    }
}

impl Module {
    /// True when the file uses a name it re-exports.
    fn uses(&self, named: &Named) -> bool {
        let Some(name) = &named.binds else {
            return true;
        };
        let count = tokens(&self.code)
            .iter()
            .filter(|(_, token)| token == name)
            .count();
        count > 1
    }
}

/// All Rust files below `folder`, by path relative to the first folder.
fn read_sources(folder: &Path, inner: &Path, files: &mut HashMap<PathBuf, String>) -> Outcome {
    let failed = |e: std::io::Error| format!("{}: {e}", folder.join(inner).display());
    for entry in std::fs::read_dir(folder.join(inner)).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let path = inner.join(entry.file_name());
        if entry.path().is_dir() {
            read_sources(folder, &path, files)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let text = std::fs::read_to_string(entry.path()).map_err(failed)?;
            files.insert(path, text);
        }
    }
    Ok(())
}

/// Names of `mod name;`.
fn declared_modules(code: &str) -> Vec<String> {
    let tokens = tokens(code);
    tokens
        .windows(3)
        .filter_map(|window| match window {
            [(_, "mod"), (_, name), (_, ";")] => Some((*name).to_string()),
            _ => None,
        })
        .collect()
}

/// Names that `use` binds, and their paths; renamed ones and those as they are.
fn bindings(names: &[Named]) -> HashMap<String, String> {
    names
        .iter()
        .filter_map(|named| Some((named.binds.clone()?, named.path.clone())))
        .filter(|(name, _)| name != "*" && name != "_")
        .collect()
}

/// Modules that `use module::*` names.
fn globs(names: &[Named]) -> Vec<String> {
    names
        .iter()
        .filter_map(|named| named.path.strip_suffix("::*"))
        .map(String::from)
        .collect()
}

/// Names that the file defines.
fn items(code: &str) -> BTreeSet<String> {
    const KEYWORDS: [&str; 9] = [
        "fn",
        "struct",
        "enum",
        "union",
        "trait",
        "type",
        "const",
        "static",
        "macro_rules",
    ];
    let tokens = tokens(code);
    let mut found = BTreeSet::new();
    for window in tokens.windows(3) {
        let name = match window {
            [(_, "macro_rules"), (_, "!"), (_, name)] => name,
            [(_, keyword), (_, name), _] if KEYWORDS.contains(keyword) => name,
            _ => continue,
        };
        if is_word(name) {
            found.insert((*name).to_string());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::process::root;

    #[test]
    fn modules_and_imports_of_this_workspace_are_found() {
        let tree = Crate::load(&root().join("crates/nilometer/src")).expect("readable");
        assert!(tree.find("timeseries::bucket_catalog").is_some());
        assert!(tree.find("compatibility_tests").is_none(), "a test");
        let named = |from: &str, to: &str| {
            let (from, to) = (tree.find(from), tree.find(to));
            tree.imports
                .iter()
                .any(|i| Some(i.from) == from && Some(i.to) == to)
        };
        assert!(named("client", "error"), "through the root's re-export");
        assert!(!named("error", "client"));
    }
}
