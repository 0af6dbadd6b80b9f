//! All operators of an update as one tree of paths.
//!
//! ```text
//! {$set: {"a.b": 1, "a.c": 2}, $inc: {"x.$[e].n": 1}}
//!
//! fields ─ a ─ fields ─ b  $set 1
//!        │            └ c  $set 2
//!        └ x ─ elements ─ e ─ fields ─ n  $inc 1
//! ```
//!
//! Two modifiers at one path, or at a path and one above it, are a conflict: code 40. The element of `$` is
//! unknown before the document is, so `$` has its own child here and is compared with the other children
//! when the update is applied.

use std::collections::{BTreeMap, BTreeSet};

use nilometer_bson::{DocRef, Document, ValueRef};

use super::array_filters::ArrayFilters;
use super::modifier::{self, Modifier};
use super::path::{self, FieldName, PathComponent};
use super::{apply, rename};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::{EvalContext, ParseContext};

/// A node of the tree.
#[derive(Debug)]
pub(super) enum PathNode {
    /// The end of a path.
    Leaf(Box<dyn Modifier>),
    /// Children by name, and the child of `$`.
    Fields {
        children: BTreeMap<FieldName, PathNode>,
        positional: Option<Box<PathNode>>,
    },
    /// Children by array filter; the empty identifier is `$[]`.
    Elements(BTreeMap<String, PathNode>),
}

impl PathNode {
    fn fields() -> Self {
        Self::Fields {
            children: BTreeMap::new(),
            positional: None,
        }
    }
}

/// A parsed update of operators.
#[derive(Debug)]
pub(super) struct Operators {
    pub(super) root: PathNode,
    pub(super) filters: ArrayFilters,
    needs_position: bool,
}

impl Operators {
    /// Parses the update.
    pub(super) fn parse(
        update: DocRef<'_>,
        filters: ArrayFilters,
        ctx: &ParseContext,
    ) -> Result<Self> {
        let mut builder = TreeBuilder {
            root: PathNode::fields(),
            filters: &filters,
            used: BTreeSet::new(),
            needs_position: false,
        };
        for operator in update {
            let name = operator.name();
            let parse = modifier::find(name)?;
            let ValueRef::Document(arguments) = operator.value() else {
                return Err(Error::failed_to_parse(format!(
                    "Modifiers operate on fields but we found type {} instead. For example: {{$mod: \
                     {{<field>: ...}}}} not {{{name}: {}}}",
                    operator.value().type_name(),
                    nilometer_bson::extjson::value_to_relaxed(operator.value())
                )));
            };
            for argument in arguments {
                match parse {
                    Some(parse) => {
                        // The path is parsed first, as its errors are clearer.
                        let components = path::parse(argument.name())?;
                        let modifier = parse(argument, ctx)?;
                        builder.insert(argument.name(), &components, modifier)?;
                    }
                    None => {
                        for (path, modifier) in rename::parse(argument)? {
                            builder.insert(&path, &path::parse(&path)?, modifier)?;
                        }
                    }
                }
            }
        }
        let TreeBuilder {
            root,
            used,
            needs_position,
            ..
        } = builder;
        filters.check_used(&used, update)?;
        Ok(Self {
            root,
            filters,
            needs_position,
        })
    }

    /// True if some path has a `$`.
    pub(super) fn needs_position(&self) -> bool {
        self.needs_position
    }

    /// True if every path begins with `name`.
    pub(super) fn touches_only(&self, name: &str) -> bool {
        match &self.root {
            PathNode::Fields {
                children,
                positional: None,
            } => !children.is_empty() && children.keys().all(|child| child.as_str() == name),
            _ => false,
        }
    }

    /// Returns the changed document; `None` if it does not change.
    pub(super) fn apply(
        &self,
        doc: DocRef<'_>,
        position: Option<usize>,
        inserting: bool,
        eval: &EvalContext<'_>,
    ) -> Result<Option<Document>> {
        apply::apply(self, doc, position, inserting, eval)
    }
}

struct TreeBuilder<'f> {
    root: PathNode,
    filters: &'f ArrayFilters,
    used: BTreeSet<String>,
    needs_position: bool,
}

impl TreeBuilder<'_> {
    fn insert(
        &mut self,
        path: &str,
        components: &[PathComponent],
        modifier: Box<dyn Modifier>,
    ) -> Result<()> {
        for component in components {
            match component {
                PathComponent::Positional => self.needs_position = true,
                PathComponent::Elements(identifier) if !identifier.is_empty() => {
                    self.filters.check_known(identifier, path)?;
                    self.used.insert(identifier.clone());
                }
                _ => {}
            }
        }
        let mut at = &mut self.root;
        for (depth, component) in components.iter().enumerate() {
            let below = match components.get(depth + 1) {
                None => None,
                Some(PathComponent::Elements(_)) => Some(PathNode::Elements(BTreeMap::new())),
                Some(_) => Some(PathNode::fields()),
            };
            let conflict = || conflict(path, depth + 1);
            let Some(below) = below else {
                return insert_leaf(at, component, PathNode::Leaf(modifier)).ok_or_else(conflict);
            };
            at = descend(at, component, below).ok_or_else(conflict)?;
        }
        Ok(())
    }
}

/// Puts a leaf into `parent`; `None` if there is a child already.
fn insert_leaf(parent: &mut PathNode, component: &PathComponent, leaf: PathNode) -> Option<()> {
    match (parent, component) {
        (PathNode::Fields { children, .. }, PathComponent::Field(name)) => {
            if children.contains_key(name) {
                return None;
            }
            children.insert(name.clone(), leaf);
        }
        (PathNode::Fields { positional, .. }, PathComponent::Positional) => {
            if positional.is_some() {
                return None;
            }
            *positional = Some(Box::new(leaf));
        }
        (PathNode::Elements(children), PathComponent::Elements(identifier)) => {
            if children.contains_key(identifier) {
                return None;
            }
            children.insert(identifier.clone(), leaf);
        }
        _ => return None,
    }
    Some(())
}

/// Descends one component, inserting `below` if there is no child; `None` if the child is of another kind
/// than `below`.
fn descend<'t>(
    parent: &'t mut PathNode,
    component: &PathComponent,
    below: PathNode,
) -> Option<&'t mut PathNode> {
    let wants_elements = matches!(below, PathNode::Elements(_));
    let child = match (parent, component) {
        (PathNode::Fields { children, .. }, PathComponent::Field(name)) => {
            children.entry(name.clone()).or_insert(below)
        }
        (PathNode::Fields { positional, .. }, PathComponent::Positional) => {
            &mut **positional.get_or_insert_with(|| Box::new(below))
        }
        (PathNode::Elements(children), PathComponent::Elements(identifier)) => {
            children.entry(identifier.clone()).or_insert(below)
        }
        _ => return None,
    };
    match child {
        PathNode::Leaf(_) => None,
        PathNode::Elements(_) if wants_elements => Some(child),
        PathNode::Fields { .. } if !wants_elements => Some(child),
        _ => None,
    }
}

/// Returns the error for `path`, which meets another modifier within its first `depth` components.
fn conflict(path: &str, depth: usize) -> Error {
    let at: Vec<&str> = path.split('.').take(depth).collect();
    Error::new(
        ErrorCode::ConflictingUpdateOperators,
        format!(
            "Updating the path '{path}' would create a conflict at '{}'",
            at.join(".")
        ),
    )
}
