//! The tree of names that a projection traverses along with the document.

use std::sync::Arc;

use super::MetaField;
use super::array_operators::Slice;
use crate::eval::matcher::MatchExpression;
use crate::eval::{Dependencies, Expression};

/// The names of one level, in the order of the specification.
#[derive(Clone, Debug, Default)]
pub(super) struct ProjectionNode {
    pub(super) children: Vec<Child>,
    /// True if something at or below this level is computed.
    pub(super) computes: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Child {
    pub(super) name: Arc<str>,
    pub(super) item: FieldAction,
}

/// The treatment of a field.
#[derive(Clone, Debug)]
pub(super) enum FieldAction {
    Keep,
    Drop,
    Nested(ProjectionNode),
    Computed(Box<Expression>),
    Slice(Slice),
    /// A filter that is a single `$elemMatch` on the field itself.
    ElemMatch(Box<MatchExpression>),
    Meta(MetaField),
    /// A value passed with the document.
    Slot(usize),
}

impl FieldAction {
    /// True for values that are computed rather than kept.
    fn computes(&self) -> bool {
        match self {
            Self::Computed(_) | Self::ElemMatch(_) | Self::Meta(_) | Self::Slot(_) => true,
            Self::Nested(node) => node.computes,
            Self::Keep | Self::Drop | Self::Slice(_) => false,
        }
    }
}

/// A collision between two paths of a specification.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum PathCollision {
    /// An earlier path is a prefix of the new one; holds the remaining components.
    Below(String),
    /// An earlier path is equal or lies below.
    Same,
}

impl ProjectionNode {
    /// Inserts an item at the end of a path.
    pub(super) fn insert(&mut self, path: &[&str], item: FieldAction) -> Result<(), PathCollision> {
        let Some((name, rest)) = path.split_first() else {
            return Err(PathCollision::Same);
        };
        let known = self.children.iter_mut().find(|child| &*child.name == *name);
        match (known, rest.is_empty()) {
            (Some(_), true) => Err(PathCollision::Same),
            (Some(child), false) => match &mut child.item {
                FieldAction::Nested(node) => node.insert(rest, item),
                _ => Err(PathCollision::Below(rest.join("."))),
            },
            (None, true) => {
                self.push(name, item);
                Ok(())
            }
            (None, false) => {
                let mut node = Self::default();
                node.insert(rest, item)?;
                self.push(name, FieldAction::Nested(node));
                Ok(())
            }
        }
    }

    /// Returns the first path in the tree that starts with `path`, which must be in it.
    pub(super) fn path_from(&self, path: &[&str]) -> String {
        let child = match path.split_first() {
            Some((name, _)) => self.children.iter().find(|child| &*child.name == *name),
            None => self.children.first(),
        };
        let Some(child) = child else {
            return String::new();
        };
        match &child.item {
            FieldAction::Nested(node) => {
                let rest = node.path_from(path.get(1..).unwrap_or_default());
                format!("{}.{rest}", child.name)
            }
            _ => child.name.to_string(),
        }
    }

    /// Sets the treatment of a top-level field unless the specification names it.
    pub(super) fn set(&mut self, name: &str, item: FieldAction) {
        if self.find(name.as_bytes()).is_none() {
            self.push(name, item);
        }
    }

    fn push(&mut self, name: &str, item: FieldAction) {
        self.children.push(Child {
            name: name.into(),
            item,
        });
    }

    /// Computes `computes` for all levels, once the tree is complete.
    pub(super) fn close(&mut self) {
        for child in &mut self.children {
            if let FieldAction::Nested(node) = &mut child.item {
                node.close();
            }
        }
        self.computes = self.children.iter().any(|child| child.item.computes());
    }

    /// Returns the child called `name` and its position.
    pub(super) fn find(&self, name: &[u8]) -> Option<(usize, &Child)> {
        self.children
            .iter()
            .enumerate()
            .find(|(_, child)| child.name.as_bytes() == name)
    }

    /// True if `test` holds for any item.
    pub(super) fn any_item(&self, test: &dyn Fn(&FieldAction) -> bool) -> bool {
        self.children.iter().any(|child| {
            test(&child.item)
                || matches!(&child.item, FieldAction::Nested(node) if node.any_item(test))
        })
    }

    /// Calls `visit` with every path that has an item.
    fn for_each<'a>(&'a self, prefix: &str, visit: &mut dyn FnMut(String, &'a FieldAction)) {
        for child in &self.children {
            let path = if prefix.is_empty() {
                child.name.to_string()
            } else {
                format!("{prefix}.{}", child.name)
            };
            match &child.item {
                FieldAction::Nested(node) => node.for_each(&path, visit),
                item => visit(path, item),
            }
        }
    }

    /// Returns the paths whose item passes the test.
    pub(super) fn paths(&self, test: &dyn Fn(&FieldAction) -> bool) -> Vec<String> {
        let mut paths = Vec::new();
        self.for_each("", &mut |path, item| {
            if test(item) {
                paths.push(path);
            }
        });
        paths
    }

    /// Returns the computed paths with their expressions.
    pub(super) fn computed(&self) -> Vec<(String, &Expression)> {
        let mut computed = Vec::new();
        self.for_each("", &mut |path, item| {
            if let FieldAction::Computed(expression) = item {
                computed.push((path, &**expression));
            }
        });
        computed
    }

    /// Adds the inputs: kept paths, and the inputs of expressions.
    pub(super) fn dependencies(&self, into: &mut Dependencies) {
        self.for_each("", &mut |path, item| match item {
            FieldAction::Keep | FieldAction::Slice(_) | FieldAction::ElemMatch(_) => {
                into.paths.insert(path.as_str().into());
            }
            FieldAction::Computed(expression) => {
                expression.dependencies(into);
                // Writing below a field depends on its value: object, array or neither.
                if let Some((field, _)) = path.split_once('.') {
                    into.paths.insert(field.into());
                }
            }
            FieldAction::Drop
            | FieldAction::Meta(_)
            | FieldAction::Nested(_)
            | FieldAction::Slot(_) => {}
        });
    }
}
