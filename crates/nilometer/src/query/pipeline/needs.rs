//! Which fields of its input a stage, or a pipeline, needs.
//!
//! Worked out from the last stage to the first: what is needed of a stage's output says what it
//! needs of its input. Only top-level fields are told apart; that is what columns are.

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
    /// No field at all: only how many documents there are.
    pub fn none() -> Self {
        Self::Fields(BTreeSet::new())
    }

    /// What these dependencies ask for.
    pub fn of(dependencies: &Dependencies) -> Self {
        if dependencies.whole {
            return Self::All;
        }
        let names = dependencies.top_level_fields();
        Self::Fields(names.into_iter().map(Arc::from).collect())
    }

    /// What an expression asks for.
    pub fn of_expression(expression: &Expression) -> Self {
        let mut dependencies = Dependencies::default();
        expression.dependencies(&mut dependencies);
        Self::of(&dependencies)
    }

    /// Adds what `other` needs.
    pub fn add(&mut self, other: &Needs) {
        match (&mut *self, other) {
            (Self::Fields(own), Self::Fields(other)) => own.extend(other.iter().cloned()),
            _ => *self = Self::All,
        }
    }

    /// Both together.
    #[must_use]
    pub fn and(mut self, other: &Needs) -> Self {
        self.add(other);
        self
    }

    /// Adds one field by name or dotted path.
    pub fn add_path(&mut self, path: &str) {
        if let Self::Fields(fields) = self {
            let first = path.split('.').next().unwrap_or(path);
            fields.insert(first.into());
        }
    }

    /// Takes one top-level field away.
    pub fn remove(&mut self, name: &str) {
        if let Self::Fields(fields) = self {
            fields.remove(name);
        }
    }

    /// Whether the field is needed.
    pub fn contains(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Fields(fields) => fields.contains(name),
        }
    }
}

/// The fields `stages` need of their input when `after` is needed of their output.
pub fn needs_of(stages: &[Stage], after: &Needs) -> Needs {
    stages
        .iter()
        .rev()
        .fold(after.clone(), |needs, stage| stage.needs(&needs))
}
