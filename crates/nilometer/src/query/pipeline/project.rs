//! `$project`, `$addFields` (`$set`), `$unset`, and the projection of `find`: one stage, two kinds.

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, Value, ValueRef};

use super::needs::Needs;
use super::{PipelineContext, Stage};
use crate::error::{Error, Result, location};
use crate::eval::matcher::MatchExpression;
use crate::eval::projection::{AddFields, MetaField, Mode, Projection};
use crate::eval::sort_key::SortPattern;
use crate::eval::{Dependencies, Expression, ParseContext};
use crate::query::batch::{FieldSet, MeasurementShape};

/// A stage that changes fields.
#[derive(Clone, Debug)]
pub struct ProjectStage {
    /// The kind of change and its arguments.
    pub kind: Arc<ProjectKind>,
    name: &'static str,
    /// The argument as explain shows it.
    pub source: Value,
    /// True if parsing name and argument gives this stage.
    pub is_as_written: bool,
}

/// The kinds of stages that change fields.
#[derive(Debug)]
pub enum ProjectKind {
    /// Keeps or drops fields, and computes some.
    Projection {
        /// The fields to keep, drop and compute.
        projection: Projection,
        /// The filter of `find`, for a projection that needs the position of the matching element.
        position_of: Option<MatchExpression>,
        /// The sort order of `find`, for a projection that returns the sort key.
        sort_key_of: Option<SortPattern>,
    },
    /// Keeps all fields and computes some.
    AddFields(AddFields),
}

impl ProjectStage {
    fn of(projection: Projection, name: &'static str, source: Value) -> Self {
        Self {
            kind: Arc::new(ProjectKind::Projection {
                projection,
                position_of: None,
                sort_key_of: None,
            }),
            name,
            source,
            is_as_written: false,
        }
    }

    /// Returns the projection of a `find` with this filter and sort order. `shows_record_id` keeps the record id, which
    /// the option `showRecordId` adds.
    pub fn of_find(
        spec: DocRef<'_>,
        filter: MatchExpression,
        sort: Option<SortPattern>,
        shows_record_id: bool,
        expressions: &ParseContext,
    ) -> Result<Self> {
        let mut projection = Projection::parse_find(spec, expressions)?;
        for field in MetaField::ALL {
            if shows_record_id && field == MetaField::RecordId {
                projection.keep(field);
            } else if projection.needs_meta(field) {
                projection.leave_out(field);
            }
        }
        let position_of = projection.needs_position().then_some(filter);
        let sort_key_of = sort.filter(|_| projection.needs_meta(MetaField::SortKey));
        Ok(Self {
            kind: Arc::new(ProjectKind::Projection {
                projection,
                position_of,
                sort_key_of,
            }),
            name: "$project",
            source: spec.into(),
            is_as_written: false,
        })
    }

    /// Returns the stage that adds the sort key of a preceding sort as a field.
    pub fn of_sort_key(pattern: SortPattern) -> Self {
        let projection = Projection::of_sort_key();
        let source = projection.source().clone().into();
        Self {
            kind: Arc::new(ProjectKind::Projection {
                projection,
                position_of: None,
                sort_key_of: Some(pattern),
            }),
            name: "$project",
            source,
            is_as_written: false,
        }
    }

    /// Returns the stage that removes the field of some metadata.
    pub fn without(field: MetaField) -> Self {
        let projection = Projection::without(field);
        let source = projection.source().clone().into();
        Self::of(projection, "$project", source)
    }

    /// True if the stage returns this metadata, and reads it from the document.
    pub fn returns(&self, field: MetaField) -> bool {
        match &*self.kind {
            ProjectKind::Projection {
                projection,
                sort_key_of,
                ..
            } => {
                let is_given = field == MetaField::SortKey && sort_key_of.is_some();
                projection.needs_meta(field) && !is_given
            }
            ProjectKind::AddFields(_) => false,
        }
    }

    /// Keeps the field of some metadata for a later stage, or removes it.
    #[must_use]
    pub fn carrying(&self, field: MetaField, keeps: bool) -> Self {
        let kind = match &*self.kind {
            ProjectKind::Projection {
                projection,
                position_of,
                sort_key_of,
            } => {
                let mut projection = projection.clone();
                if keeps {
                    projection.keep(field);
                } else {
                    projection.leave_out(field);
                }
                ProjectKind::Projection {
                    projection,
                    position_of: position_of.clone(),
                    sort_key_of: sort_key_of.clone(),
                }
            }
            ProjectKind::AddFields(fields) => {
                let mut fields = fields.clone();
                if !keeps {
                    fields.leave_out(field);
                }
                ProjectKind::AddFields(fields)
            }
        };
        Self {
            kind: Arc::new(kind),
            is_as_written: false,
            ..self.clone()
        }
    }

    /// Returns the stage name as written.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the fields needed of the input if `after` is needed of the output.
    pub fn needs(&self, after: &Needs) -> Needs {
        let mut dependencies = Dependencies::default();
        match &*self.kind {
            ProjectKind::Projection {
                projection,
                position_of,
                sort_key_of,
            } => {
                projection.dependencies(&mut dependencies);
                if let Some(filter) = position_of {
                    filter.add_dependencies(&mut dependencies);
                }
                if let Some(pattern) = sort_key_of {
                    pattern.dependencies(&mut dependencies);
                }
                let own = Needs::of(&dependencies);
                match projection.mode() {
                    Mode::Inclusion => own,
                    Mode::Exclusion => {
                        let mut kept = after.clone();
                        for path in projection.excluded_paths() {
                            kept.remove(&path);
                        }
                        kept.and(&own)
                    }
                }
            }
            ProjectKind::AddFields(fields) => {
                fields.dependencies(&mut dependencies);
                // A recomputed field keeps its position, so the input must contain it.
                after.clone().and(&Needs::of(&dependencies))
            }
        }
    }

    /// True if a filter on `path` finds the same values before and after the stage.
    ///
    /// Only whole top-level fields are considered: a projection below a field may change what a path finds through
    /// arrays.
    pub fn leaves_alone(&self, path: &str) -> bool {
        let first = first_of(path);
        match &*self.kind {
            ProjectKind::Projection { projection, .. } => {
                let computes = computed_firsts(projection.computed().iter().map(|(p, _)| p), first)
                    || computed_firsts(projection.meta_paths().iter(), first);
                match projection.mode() {
                    Mode::Inclusion => {
                        !computes && projection.included_paths().iter().any(|p| p == first)
                    }
                    Mode::Exclusion => {
                        !computes && !computed_firsts(projection.excluded_paths().iter(), first)
                    }
                }
            }
            ProjectKind::AddFields(fields) => {
                !computed_firsts(fields.computed().iter().map(|(p, _)| p), first)
            }
        }
    }

    /// Returns the computed paths and their expressions.
    pub fn computed(&self) -> Vec<(String, &Expression)> {
        match &*self.kind {
            ProjectKind::Projection { projection, .. } => projection.computed(),
            ProjectKind::AddFields(fields) => fields.computed(),
        }
    }

    /// Returns the new and old names of top-level fields that are renamed or copied.
    pub fn renames(&self) -> Vec<(String, String)> {
        let plain = |(new, expression): (String, &Expression)| {
            let old = expression.as_field_path().filter(|old| old.len() == 1)?;
            (!new.contains('.')).then(|| (new, old.as_str().to_owned()))
        };
        self.computed().into_iter().filter_map(plain).collect()
    }

    /// Returns the remaining fields of `shown` if the stage only keeps or drops whole top-level fields.
    pub fn narrows(&self, shown: &FieldSet) -> Option<FieldSet> {
        let ProjectKind::Projection { projection, .. } = &*self.kind else {
            return None;
        };
        projection
            .is_simple()
            .then(|| narrowed(projection, shown))?
    }

    /// True if a recomputed field keeps its position in the document.
    pub fn keeps_places(&self) -> bool {
        matches!(&*self.kind, ProjectKind::AddFields(_))
    }

    /// Returns the fields of the output if the stage only keeps, drops or computes whole top-level fields and computes
    /// neither time nor metadata.
    pub fn shown_behind(&self, shape: &MeasurementShape) -> Option<FieldSet> {
        let computed = self.computed();
        let names = || computed.iter().map(|(name, _)| name.as_str());
        if computed.is_empty() || !names().all(|name| is_field(name, shape)) {
            return None;
        }
        let fields = match &*self.kind {
            ProjectKind::AddFields(fields) if fields.only_computes() => shape.fields.clone(),
            ProjectKind::AddFields(_) => return None,
            ProjectKind::Projection {
                projection,
                position_of: None,
                sort_key_of: None,
            } if projection.only_selects_fields() => narrowed(projection, &shape.fields)?,
            ProjectKind::Projection { .. } => return None,
        };
        Some(with_names(fields, names()))
    }
}

/// True if `path` is a top-level field other than the time and metadata fields.
pub(crate) fn is_field(path: &str, shape: &MeasurementShape) -> bool {
    !path.contains('.') && path != &*shape.time_field && shape.meta_field.as_deref() != Some(path)
}

/// Returns the output fields of a stage that computes `names` from measurements with the fields `fields`.
pub(crate) fn with_names<'n>(fields: FieldSet, names: impl Iterator<Item = &'n str>) -> FieldSet {
    match fields {
        FieldSet::All => FieldSet::All,
        FieldSet::Only(mut shown) => {
            shown.extend(names.map(Arc::from));
            FieldSet::Only(shown)
        }
        FieldSet::Except(mut hidden) => {
            for name in names {
                hidden.remove(name);
            }
            FieldSet::Except(hidden)
        }
    }
}

/// Returns the remaining fields of `shown` after a projection of whole top-level fields.
fn narrowed(projection: &Projection, shown: &FieldSet) -> Option<FieldSet> {
    match projection.mode() {
        Mode::Inclusion => {
            let paths = projection.included_paths();
            if paths.iter().any(|path| path.contains('.')) {
                return None;
            }
            let kept = paths.iter().filter(|path| shown.contains(path));
            Some(FieldSet::Only(kept.map(|p| p.as_str().into()).collect()))
        }
        Mode::Exclusion => {
            let paths = projection.excluded_paths();
            if paths.iter().any(|path| path.contains('.')) {
                return None;
            }
            let dropped = paths.iter().map(|p| Arc::from(p.as_str()));
            Some(match shown {
                FieldSet::All => FieldSet::Except(dropped.collect()),
                FieldSet::Except(hidden) => {
                    FieldSet::Except(hidden.iter().cloned().chain(dropped).collect())
                }
                FieldSet::Only(names) => {
                    let left = names.iter().filter(|n| !paths.iter().any(|p| **p == ***n));
                    FieldSet::Only(left.cloned().collect())
                }
            })
        }
    }
}

fn first_of(path: &str) -> &str {
    path.split('.').next().unwrap_or(path)
}

fn computed_firsts<'a>(mut paths: impl Iterator<Item = &'a String>, first: &str) -> bool {
    paths.any(|path| first_of(path) == first)
}

/// Parses `$project`.
pub(super) fn parse_project(
    cx: &PipelineContext,
    name: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let Some(spec) = value.as_document() else {
        return Err(Error::location(
            location::PROJECT_NOT_OBJECT,
            "$project specification must be an object",
        ));
    };
    let projection = Projection::parse_project(spec, &cx.expressions)?;
    let source = value.to_value();
    out.push(Stage::Project(ProjectStage {
        is_as_written: true,
        ..ProjectStage::of(projection, name, source)
    }));
    Ok(())
}

/// Parses `$addFields` and `$set`.
pub(super) fn parse_add_fields(
    cx: &PipelineContext,
    name: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let Some(spec) = value.as_document() else {
        return Err(Error::location(
            location::ADD_FIELDS_NOT_OBJECT,
            format!(
                "{name} specification stage must be an object, got {}",
                value.type_name()
            ),
        ));
    };
    out.push(Stage::Project(ProjectStage {
        kind: Arc::new(ProjectKind::AddFields(AddFields::parse(
            spec,
            &cx.expressions,
        )?)),
        name,
        source: value.to_value(),
        is_as_written: true,
    }));
    Ok(())
}

/// Parses `$unset`.
pub(super) fn parse_unset(
    cx: &PipelineContext,
    name: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let projection = Projection::parse_unset(value, &cx.expressions)?;
    let source: Document = projection.source().clone();
    // Explain shows `$unset` as the equivalent `$project`.
    let name = if source.is_empty() { name } else { "$project" };
    out.push(Stage::Project(ProjectStage {
        is_as_written: !source.is_empty(),
        ..ProjectStage::of(projection, name, source.into())
    }));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::{code, parse};
    use super::*;
    use nilometer_bson::{array, doc};

    fn stage(name: &str, spec: Document) -> ProjectStage {
        let mut stage = nilometer_bson::DocumentBuilder::new();
        stage.append(name, spec);
        match parse(array![stage.finish()]).unwrap().remove(0) {
            Stage::Project(stage) => stage,
            other => panic!("{other:?}"),
        }
    }

    fn fields(names: &[&str]) -> Needs {
        Needs::Fields(names.iter().map(|n| Arc::from(*n)).collect())
    }

    #[test]
    fn what_is_needed() {
        let include = stage("$project", doc! {"a": 1, "b.c": 1, "x": "$y.z"});
        assert_eq!(include.needs(&Needs::All), fields(&["_id", "a", "b", "y"]));
        let exclude = stage("$project", doc! {"a": 0, "b.c": 0});
        assert_eq!(exclude.needs(&Needs::All), Needs::All);
        assert_eq!(
            exclude.needs(&fields(&["a", "b", "c"])),
            fields(&["b", "c"])
        );
        let add = stage("$addFields", doc! {"a": "$x", "b.c": 1});
        assert_eq!(add.needs(&Needs::All), Needs::All);
        assert_eq!(add.needs(&fields(&["a", "b"])), fields(&["a", "b", "x"]));
    }

    #[test]
    fn what_is_left_alone() {
        let include = stage("$project", doc! {"a": 1, "b.c": 1, "x": "$y"});
        for (path, expected) in [
            ("a", true),
            ("a.b", true),
            ("b", false),
            ("b.c", false),
            ("x", false),
            ("y", false),
            ("_id", true),
        ] {
            assert_eq!(include.leaves_alone(path), expected, "{path}");
        }
        let exclude = stage("$project", doc! {"a": 0, "b.c": 0});
        assert!(!exclude.leaves_alone("a.x") && !exclude.leaves_alone("b.d"));
        assert!(exclude.leaves_alone("c"));
        let add = stage("$set", doc! {"a.b": 1});
        assert!(!add.leaves_alone("a.c") && add.leaves_alone("b"));
    }

    #[test]
    fn arguments_are_checked() {
        assert_eq!(code(array![doc! {"$project": 1}]), 15_969);
        assert_eq!(code(array![doc! {"$project": doc! {}}]), 51_272);
        assert_eq!(
            code(array![doc! {"$project": doc! {"a": 1, "b": 0}}]),
            31_254
        );
        assert_eq!(code(array![doc! {"$addFields": 1}]), 40_272);
        assert_eq!(code(array![doc! {"$unset": 1}]), 31_002);
        assert_eq!(code(array![doc! {"$unset": "a"}]), 0);
    }
}
