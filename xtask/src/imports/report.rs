//! The figures of one folder of modules, and their text.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::code::graph::{Graph, components, levels, upward};
use crate::code::tree::Crate;

/// The imports among the direct children of a folder.
pub(crate) struct Folder {
    name: String,
    children: Vec<String>,
    files: Vec<usize>,
    graph: Graph,
    levels: Vec<usize>,
    cycles: Vec<Vec<usize>>,
    upward: BTreeSet<(usize, usize)>,
    naming_parent: usize,
    /// Files of each cycle of files, largest first.
    file_cycles: Vec<Vec<String>>,
    /// For each import: how many names, and one place.
    places: BTreeMap<(usize, usize), (usize, String)>,
}

impl Folder {
    /// Measures the folder at the module path `path` (empty for the crate); none where there is no such folder.
    pub(crate) fn measure(tree: &Crate, path: &str) -> Option<Self> {
        let own = tree.find(path)?;
        let child_of = |module: usize| tree.child_of(path, module);
        let mut children: Vec<String> = (0..tree.modules.len())
            .filter_map(child_of)
            .map(String::from)
            .collect();
        children.sort();
        children.dedup();
        if children.is_empty() {
            return None;
        }
        let number = |module: usize| {
            let name = child_of(module)?;
            children.iter().position(|child| child == name)
        };
        let mut files = vec![0; children.len()];
        for child in (0..tree.modules.len()).filter_map(number) {
            files[child] += 1;
        }
        let mut graph: Graph = vec![BTreeSet::new(); children.len()];
        let mut file_graph: Graph = vec![BTreeSet::new(); tree.modules.len()];
        let mut places = BTreeMap::new();
        let mut naming_parent = BTreeSet::new();
        for import in &tree.imports {
            let inside = |module: usize| module == own || child_of(module).is_some();
            if inside(import.from) && inside(import.to) {
                file_graph[import.from].insert(import.to);
            }
            let from = number(import.from);
            if import.to == own {
                naming_parent.extend(from);
            }
            let (Some(from), Some(to)) = (from, number(import.to)) else {
                continue;
            };
            if from != to {
                graph[from].insert(to);
                let file = tree.modules[import.from].file.display();
                let place = places
                    .entry((from, to))
                    .or_insert_with(|| (0, format!("{file}:{}", import.line)));
                place.0 += 1;
            }
        }
        let parts = components(&graph);
        let cycles: Vec<_> = parts.iter().filter(|c| c.len() > 1).cloned().collect();
        Some(Self {
            name: if path.is_empty() { "src" } else { path }.replace("::", "/"),
            levels: levels(&graph, &parts),
            upward: cycles.iter().flat_map(|c| upward(&graph, c)).collect(),
            naming_parent: naming_parent.len(),
            file_cycles: file_cycles(tree, &file_graph),
            children,
            files,
            graph,
            cycles,
            places,
        })
    }
}

fn file_cycles(tree: &Crate, graph: &Graph) -> Vec<Vec<String>> {
    let mut cycles: Vec<Vec<String>> = components(graph)
        .into_iter()
        .filter(|component| component.len() > 1)
        .map(|component| {
            let files = component.iter().map(|file| &tree.modules[*file].file);
            files.map(|file| file.display().to_string()).collect()
        })
        .collect();
    cycles.sort_by_key(|cycle| std::cmp::Reverse(cycle.len()));
    cycles
}

/// One line for each folder and state.
pub(crate) fn table(rows: &[(usize, String, Folder)]) -> String {
    let mut lines = vec![
        [
            "folder",
            "state",
            "modules",
            "files",
            "imports",
            "levels",
            "upward",
            "cycles",
            "file cycles",
            "parent",
        ]
        .map(String::from),
    ];
    for (_, state, folder) in rows {
        let cycles = folder.cycles.iter().map(|cycle| {
            let files: usize = cycle.iter().map(|child| folder.files[*child]).sum();
            format!("{}/{files}", cycle.len())
        });
        let file_cycles = folder.file_cycles.iter().map(|c| c.len().to_string());
        lines.push([
            folder.name.clone(),
            state.clone(),
            folder.children.len().to_string(),
            folder.files.iter().sum::<usize>().to_string(),
            folder
                .graph
                .iter()
                .map(BTreeSet::len)
                .sum::<usize>()
                .to_string(),
            folder
                .levels
                .iter()
                .max()
                .map_or(0, |top| top + 1)
                .to_string(),
            folder.upward.len().to_string(),
            list(cycles.collect()),
            list(file_cycles.collect()),
            folder.naming_parent.to_string(),
        ]);
    }
    aligned(&lines)
}

/// How many, and the first few.
fn list(mut parts: Vec<String>) -> String {
    const SHOWN: usize = 6;
    let count = parts.len();
    if count > SHOWN {
        parts.truncate(SHOWN);
        parts.push("…".to_string());
    }
    match count {
        0 => "0".to_string(),
        count => format!("{count} ({})", parts.join(" ")),
    }
}

fn aligned<const N: usize>(lines: &[[String; N]]) -> String {
    let mut text = String::new();
    for line in lines {
        let mut row = String::new();
        for (column, cell) in line.iter().enumerate() {
            let width = lines.iter().map(|line| line[column].chars().count()).max();
            let _ = write!(row, "{cell:<width$}  ", width = width.unwrap_or(0));
        }
        text.push_str(row.trim_end());
        text.push('\n');
    }
    text
}

/// Every child by level, the highest first, with what it names; then the cycles.
pub(crate) fn edges(folder: &Folder) -> String {
    let mut text = format!("\n{}\n", folder.name);
    let top = folder.levels.iter().max().copied().unwrap_or(0);
    for level in (0..=top).rev() {
        for (node, child) in folder.children.iter().enumerate() {
            if folder.levels[node] != level {
                continue;
            }
            let _ = writeln!(text, "  {level:>2} {child} ({} files)", folder.files[node]);
            for other in &folder.graph[node] {
                let mark = if folder.upward.contains(&(node, *other)) {
                    "  UPWARD"
                } else {
                    ""
                };
                let name = &folder.children[*other];
                if let Some((count, place)) = folder.places.get(&(node, *other)) {
                    let _ = writeln!(text, "       {name:<26} {count:>4} from {place}{mark}");
                }
            }
        }
    }
    for cycle in &folder.cycles {
        let names: Vec<&str> = cycle.iter().map(|c| folder.children[*c].as_str()).collect();
        let _ = writeln!(text, "  cycle of modules: {}", names.join(" "));
    }
    for cycle in &folder.file_cycles {
        let _ = writeln!(text, "  cycle of files: {}", cycle.join(" "));
    }
    text
}
