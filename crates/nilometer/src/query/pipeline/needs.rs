//! The input fields that a stage or a pipeline needs.
//!
//! Needs are computed from the last stage to the first: the fields needed of a stage's output determine the fields
//! needed of its input. Only top-level fields are distinguished, as they correspond to columns.

use std::collections::BTreeSet;
use std::sync::Arc;

use crate::eval::{Dependencies, Expression};
use crate::query::pipeline::Stage;

/// Fields needed of documents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Needs {
    /// The whole document.
    All,
    /// These top-level fields.
    Fields(BTreeSet<Arc<str>>),
}

impl Needs {
    /// Returns the needs of a reader that only counts documents: no field.
    pub fn none() -> Self {
        Self::Fields(BTreeSet::new())
    }

    /// Returns the fields that these dependencies read.
    pub fn of(dependencies: &Dependencies) -> Self {
        if dependencies.whole {
            return Self::All;
        }
        let names = dependencies.top_level_fields();
        Self::Fields(names.into_iter().map(Arc::from).collect())
    }

    /// Returns the fields that an expression reads.
    pub fn of_expression(expression: &Expression) -> Self {
        let mut dependencies = Dependencies::default();
        expression.dependencies(&mut dependencies);
        Self::of(&dependencies)
    }

    /// Adds the needs of `other`.
    pub fn add(&mut self, other: &Needs) {
        match (&mut *self, other) {
            (Self::Fields(own), Self::Fields(other)) => own.extend(other.iter().cloned()),
            _ => *self = Self::All,
        }
    }

    /// Returns the union with `other`.
    #[must_use]
    pub fn and(mut self, other: &Needs) -> Self {
        self.add(other);
        self
    }

    /// Adds a field by its name or dotted path.
    pub fn add_path(&mut self, path: &str) {
        if let Self::Fields(fields) = self {
            let first = path.split('.').next().unwrap_or(path);
            fields.insert(first.into());
        }
    }

    /// Removes a top-level field.
    pub fn remove(&mut self, name: &str) {
        if let Self::Fields(fields) = self {
            fields.remove(name);
        }
    }

    /// True if the field is needed.
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Fields(fields) => fields.contains(name),
        }
    }
}

/// Returns the fields that `stages` need of their input if `after` is needed of their output.
pub fn needs_of(stages: &[Stage], after: &Needs) -> Needs {
    stages
        .iter()
        .rev()
        .fold(after.clone(), |needs, stage| stage.needs(&needs))
}
