//! Covered queries: answers from keys alone.
//!
//! A key holds the values of the index's paths, and its type bits tell apart equal values such as 1 and 1.0. If later
//! stages read only such paths, a row is built from the key and the document is not fetched. Not covered are
//!
//! * arrays: keys hold elements,
//! * collations: keys hold sort keys,
//! * hashes, and the `_id` index, whose entries have no type bits,
//! * a null key where it matters: the field may be missing. Such a document is fetched.

use std::collections::BTreeSet;
use std::sync::Arc;

use nilometer_bson::{Document, DocumentBuilder, Value};

use super::ID_INDEX;
use crate::eval::Dependencies;
use crate::eval::matcher::MatchPath;
use crate::eval::projection::Mode;
use crate::index::Index;
use crate::query::pipeline::ProjectKind;
use crate::query::pipeline::needs::Needs;
use crate::query::planner::bounds::{IndexShape, PartForm};
use crate::query::planner::physical::PhysicalStage;

/// How rows are built from keys.
#[derive(Clone, Debug)]
pub struct Covering {
    /// Dotted path and component of each field of a row, no path below another.
    fields: Arc<[(Arc<str>, usize)]>,
}

impl Covering {
    /// Returns rows with `paths`, built from keys of this index; `None` if the keys are not enough.
    pub fn of(index: &Index, shape: &IndexShape, paths: &BTreeSet<Arc<str>>) -> Option<Self> {
        if paths.is_empty() {
            return Some(Self {
                fields: Arc::from([]),
            });
        }
        let plain = index.collation().collator().is_none()
            && index.stored.spec.name != ID_INDEX
            && shape.parts.iter().all(|part| !part.multikey)
            && shape.parts.len() == index.components();
        if !plain {
            return None;
        }
        let mut fields: Vec<(Arc<str>, usize)> = Vec::new();
        for path in paths {
            let number = shape.parts.iter().position(|part| {
                part.form == PartForm::Ordered && is_at_or_below(path, &part.path)
            })?;
            let known = shape.parts.get(number).map(|part| Arc::clone(&part.path))?;
            if fields.iter().all(|(_, known)| *known != number) {
                fields.push((known, number));
            }
        }
        let apart = fields.iter().enumerate().all(|(at, (path, _))| {
            let mut others = fields.iter().enumerate().filter(|(other, _)| *other != at);
            !others.any(|(_, (other, _))| is_at_or_below(path, other))
        });
        // A number may mean an array position; a row would have a field of that name.
        let is_number = |name: &str| name.bytes().all(|b| b.is_ascii_digit());
        let numbered = fields
            .iter()
            .any(|(path, _)| path.split('.').any(is_number));
        (apart && !numbered).then(|| Self {
            fields: fields.into(),
        })
    }

    /// True if a row has no fields: only their number matters.
    pub fn is_empty(&self) -> bool {
        self.fields.is_empty()
    }

    /// True if the document has a value for each field.
    pub fn is_found_in(&self, document: &Document) -> bool {
        self.fields.iter().all(|(path, _)| {
            let value = MatchPath::new(path).value_without_arrays(document.as_ref());
            value.is_some_and(|value| !value.is_missing())
        })
    }

    /// Returns the row of a key; `None` if the document must be fetched.
    pub fn row(&self, values: &[Value]) -> Option<Document> {
        let mut fields: Vec<(&str, &Value)> = Vec::with_capacity(self.fields.len());
        for (path, component) in self.fields.iter() {
            let value = values.get(*component)?;
            if matches!(value, Value::Null | Value::Undefined | Value::Missing) {
                return None;
            }
            fields.push((path, value));
        }
        let mut out = DocumentBuilder::new();
        nested(&fields, &mut out);
        Some(out.finish())
    }
}

/// Writes fields by dotted path; those with the same first component are adjacent.
fn nested(fields: &[(&str, &Value)], out: &mut DocumentBuilder) {
    let mut done: Vec<&str> = Vec::new();
    for (path, value) in fields {
        match path.split_once('.') {
            None => {
                out.append(path, (*value).clone());
            }
            Some((first, _)) if done.contains(&first) => {}
            Some((first, _)) => {
                done.push(first);
                let below: Vec<(&str, &Value)> = fields
                    .iter()
                    .filter_map(|(path, value)| {
                        let rest = path.strip_prefix(first)?.strip_prefix('.')?;
                        Some((rest, *value))
                    })
                    .collect();
                out.begin_document(first);
                nested(&below, out);
                out.end();
            }
        }
    }
}

fn is_at_or_below(path: &str, of: &str) -> bool {
    path.strip_prefix(of)
        .is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

/// Returns the dotted paths that stages read from their input, if they read nothing else. `distinct` is the path of a
/// `distinct` command after them.
pub fn paths_read(
    stages: &[PhysicalStage],
    wanted: &Needs,
    distinct: Option<&str>,
) -> Option<BTreeSet<Arc<str>>> {
    let mut read = Dependencies::default();
    for stage in stages {
        match stage {
            PhysicalStage::Match(stage) => stage.filter.add_dependencies(&mut read),
            PhysicalStage::Sort(sort) => sort.stage.pattern.dependencies(&mut read),
            PhysicalStage::Limit(_) | PhysicalStage::Skip(_) => {}
            PhysicalStage::Group(group) => {
                let stage = &group.stage;
                stage.key.dependencies(&mut read);
                for (_, field) in stage.fields.iter() {
                    field.dependencies(&mut read);
                }
                return (!read.whole).then_some(read.paths);
            }
            PhysicalStage::Project(stage) => {
                let ProjectKind::Projection {
                    projection,
                    position_of: None,
                    sort_key_of: None,
                } = &*stage.kind
                else {
                    return None;
                };
                if projection.mode() != Mode::Inclusion {
                    return None;
                }
                projection.dependencies(&mut read);
                return (!read.whole).then_some(read.paths);
            }
            _ => return None,
        }
    }
    match (distinct, wanted) {
        (Some(path), _) => {
            read.paths.insert(path.into());
        }
        (None, Needs::All) => return None,
        (None, Needs::Fields(fields)) => read.paths.extend(fields.iter().cloned()),
    }
    (!read.whole).then_some(read.paths)
}
