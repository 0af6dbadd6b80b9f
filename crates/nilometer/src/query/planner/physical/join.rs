//! A `$lookup` in the physical plan: the `$unwind` it takes over, and the fields that later stages read.

use std::collections::BTreeSet;
use std::sync::Arc;

use nilometer_bson::path::FieldPath;
use nilometer_bson::{Document, DocumentBuilder};

use super::PhysicalStage;
use super::stage::needs_of;
use crate::eval::Dependencies;
use crate::query::pipeline::needs::Needs;
use crate::query::pipeline::{LookupStage, PipelineStage, ProjectKind, Stage, UnwindStage};

/// Names of top-level fields.
pub type FieldNames = Arc<BTreeSet<Arc<str>>>;

/// A `$lookup` and its strategy.
#[derive(Clone, Debug)]
pub struct PhysicalLookup {
    /// The stage.
    pub stage: Arc<LookupStage>,
    /// The `$unwind` of its array: a row is returned for each joined document, and the array is never built.
    pub unwind: Option<UnwindStage>,
    /// The fields of the rows that later stages read; `None` for all.
    pub row_fields: Option<FieldNames>,
    /// The fields of the joined documents that later stages read; `None` for all.
    pub joined_fields: Option<FieldNames>,
}

impl PhysicalLookup {
    /// Returns a lookup that returns arrays of whole documents.
    pub fn new(stage: Arc<LookupStage>) -> Self {
        Self {
            stage,
            unwind: None,
            row_fields: None,
            joined_fields: None,
        }
    }

    /// Returns the fields it reads from its input when `after` is needed of its output.
    pub(super) fn needs(&self, after: &Needs) -> Needs {
        self.stage.needs(after)
    }

    /// Returns the operator for explain.
    pub(super) fn explain(&self) -> Document {
        let mut out = DocumentBuilder::new();
        let Some(unwind) = &self.unwind else {
            self.stage.explain(self.stage.name(), &mut out);
            return out.finish();
        };
        out.begin_document(self.stage.name());
        for element in self.stage.arguments() {
            out.append_element(element);
        }
        out.begin_document("unwinding");
        out.append("preserveNullAndEmptyArrays", unwind.preserve_empty);
        if let Some(index) = &unwind.index_path {
            out.append("includeArrayIndex", index.as_str());
        }
        out.end();
        out.end();
        out.finish()
    }
}

/// Limits each `$lookup` to the fields that later stages read; true if that leaves some out.
pub(crate) fn narrow_lookups(stages: &mut [PhysicalStage], wanted: &Needs) -> bool {
    let mut any = false;
    for at in 0..stages.len() {
        let (before, later) = stages.split_at_mut(at + 1);
        let Some(PhysicalStage::Lookup(lookup)) = before.last_mut() else {
            continue;
        };
        if let Needs::Fields(fields) = needs_of(later, wanted) {
            lookup.row_fields = Some(Arc::new(fields));
            any = true;
        }
        if let Some(fields) = joined_fields(lookup, later, wanted) {
            lookup.joined_fields = Some(Arc::new(fields));
            any = true;
        }
    }
    any
}

/// Returns the fields of joined documents that `later` stages read; `None` if they may read any.
fn joined_fields(
    lookup: &PhysicalLookup,
    later: &[PhysicalStage],
    wanted: &Needs,
) -> Option<BTreeSet<Arc<str>>> {
    let read = paths_read(later, wanted)?;
    let target = &lookup.stage.target;
    let mut fields = BTreeSet::new();
    for path in &read {
        match below(path, target) {
            Below::Apart => {}
            Below::Whole => return None,
            Below::Field(name) => {
                // In an array a number is a position.
                let is_number = name.bytes().all(|b| b.is_ascii_digit());
                if is_number && lookup.unwind.is_none() {
                    return None;
                }
                fields.insert(name.into());
            }
        }
    }
    Some(fields)
}

/// A path beside that of the joined documents.
enum Below<'p> {
    Apart,
    /// It shows whole documents.
    Whole,
    /// It leads into this field of them.
    Field(&'p str),
}

fn below<'p>(path: &'p str, target: &FieldPath) -> Below<'p> {
    let mut names = path.split('.');
    for own in target.names() {
        match names.next() {
            None => return Below::Whole,
            Some(name) if name == own => {}
            // A number may be a position in an array along the path.
            Some(name) if name.bytes().all(|b| b.is_ascii_digit()) => return Below::Whole,
            Some(_) => return Below::Apart,
        }
    }
    names.next().map_or(Below::Whole, Below::Field)
}

/// Returns the dotted paths that `stages` read of their input when `wanted` is needed of their output; `None` if they may read any.
fn paths_read(stages: &[PhysicalStage], wanted: &Needs) -> Option<BTreeSet<Arc<str>>> {
    let mut read = Dependencies::default();
    let mut is_replaced = false;
    for stage in stages {
        match stage {
            PhysicalStage::Limit(_) | PhysicalStage::Skip(_) => {}
            PhysicalStage::Match(stage) => stage.filter.add_dependencies(&mut read),
            PhysicalStage::Sort(sort) => sort.stage.pattern.dependencies(&mut read),
            PhysicalStage::Group(group) => {
                group.stage.key.dependencies(&mut read);
                for (_, field) in group.stage.fields.iter() {
                    field.dependencies(&mut read);
                }
                is_replaced = true;
            }
            PhysicalStage::Project(project) => is_replaced = add_project(&project.kind, &mut read)?,
            PhysicalStage::Lookup(lookup) => {
                if let Some(equality) = &lookup.stage.equality {
                    read.paths.insert(equality.local.as_str().into());
                }
                for variable in &lookup.stage.variables {
                    variable.dependencies(&mut read);
                }
            }
            PhysicalStage::Plain(Stage::Unwind(stage)) => {
                read.paths.insert(stage.path.as_str().into());
            }
            PhysicalStage::Plain(Stage::ReplaceRoot(stage)) => {
                stage.expression.dependencies(&mut read);
                is_replaced = true;
            }
            _ => return None,
        }
        if is_replaced {
            break;
        }
    }
    match wanted {
        _ if is_replaced => {}
        Needs::All => return None,
        Needs::Fields(fields) => read.paths.extend(fields.iter().cloned()),
    }
    (!read.whole).then_some(read.paths)
}

/// Adds what a projection reads; true if its output has nothing else of its input. `None` if it may read anything.
fn add_project(kind: &ProjectKind, read: &mut Dependencies) -> Option<bool> {
    use crate::eval::projection::Mode;
    match kind {
        ProjectKind::AddFields(fields) => {
            fields.dependencies(read);
            Some(false)
        }
        ProjectKind::Projection {
            projection,
            position_of: None,
            sort_key_of: None,
        } => {
            projection.dependencies(read);
            Some(projection.mode() == Mode::Inclusion)
        }
        ProjectKind::Projection { .. } => None,
    }
}
