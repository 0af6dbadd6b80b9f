//! The sources of inputs: the commands of the golden scripts and their parts; and the corpus.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use nilometer_bson::extjson::parse_document;
use nilometer_bson::{Document, Value, ValueRef};

use crate::tree::Node;

/// Commands of the scripts and their parts.
pub struct Seeds {
    /// The commands of each script, in order.
    pub scripts: Vec<Vec<Document>>,
    /// All names of fields and operators.
    pub names: Vec<String>,
    /// All parts that are documents or arrays, except long ones.
    pub parts: Vec<Node>,
    /// All stages of pipelines.
    pub stages: Vec<Node>,
    /// Documents that are inserted.
    pub documents: Vec<Node>,
    /// Unusual values.
    pub odd: Vec<Value>,
}

/// Maximum nodes of a part that is moved elsewhere.
const PART_NODES_MAX: usize = 60;

/// The placeholder of a cursor id in scripts.
const CURSOR: &str = "<cursor>";

impl Seeds {
    /// Reads the scripts of the database's tests.
    ///
    /// # Panics
    ///
    /// If they cannot be found or read.
    pub fn read() -> Self {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../crates/nilometer/testdata");
        let mut scripts = Vec::new();
        for area in list(&root).into_iter().filter(|path| path.is_dir()) {
            for path in list(&area) {
                let text = std::fs::read_to_string(&path).unwrap_or_default();
                scripts.push(commands(&text));
            }
        }
        assert!(!scripts.is_empty(), "no scripts in {}", root.display());
        let mut seeds = Self {
            scripts,
            names: Vec::new(),
            parts: Vec::new(),
            stages: Vec::new(),
            documents: Vec::new(),
            odd: nilometer_bson::testing::awkward_values()
                .into_iter()
                .map(|(_, value)| value)
                .collect(),
        };
        let mut names = BTreeSet::new();
        let all: Vec<Document> = seeds.scripts.iter().flatten().cloned().collect();
        for command in &all {
            seeds.take(&Node::of(command.as_ref()), &mut names);
        }
        seeds.names = names.into_iter().collect();
        seeds
    }

    fn take(&mut self, node: &Node, names: &mut BTreeSet<String>) {
        match node {
            Node::Leaf(_) => {}
            Node::Fields(fields) => {
                for (name, part) in fields {
                    names.insert(name.clone());
                    if let Node::Items(items) = part {
                        match name.as_str() {
                            "pipeline" => self.stages.extend(items.iter().cloned()),
                            "documents" => self.documents.extend(items.iter().cloned()),
                            _ => {}
                        }
                    }
                    self.take(part, names);
                }
                self.keep(node);
            }
            Node::Items(items) => {
                items.iter().for_each(|item| self.take(item, names));
                self.keep(node);
            }
        }
    }

    fn keep(&mut self, node: &Node) {
        if node.count() <= PART_NODES_MAX {
            self.parts.push(node.clone());
        }
    }
}

fn list(path: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(path);
    let mut paths: Vec<PathBuf> = entries
        .map(|entries| {
            entries
                .filter_map(|entry| Some(entry.ok()?.path()))
                .collect()
        })
        .unwrap_or_default();
    paths.sort();
    paths
}

/// Returns the commands of a script: the text before each `---`.
pub fn commands(script: &str) -> Vec<Document> {
    let mut commands = Vec::new();
    for step in script.split("\n\n") {
        let given = step.split_once("\n---").map_or(step, |(given, _)| given);
        let lines = given.lines().filter(|line| !line.starts_with('#'));
        let text = lines.collect::<Vec<_>>().join("\n");
        if let Ok(command) = parse_document(&text) {
            commands.push(with_cursor(&command));
        }
    }
    commands
}

/// Replaces the placeholder of a cursor id.
fn with_cursor(command: &Document) -> Document {
    let mut node = Node::of(command.as_ref());
    for number in 0..node.count() {
        if let Some(Node::Leaf(value)) = node.at(number)
            && matches!(value.as_ref(), ValueRef::String(CURSOR))
        {
            *value = Value::Int64(1);
        }
    }
    node.document()
}

/// Returns the files in the corpus of a target, with their texts.
///
/// # Panics
///
/// If one of them cannot be read.
pub fn corpus(target: &str) -> Vec<(PathBuf, String)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("corpus")
        .join(target);
    let texts = list(&folder).into_iter().map(|path| {
        let text = std::fs::read_to_string(&path).expect("a text");
        (path, text)
    });
    texts.collect()
}
