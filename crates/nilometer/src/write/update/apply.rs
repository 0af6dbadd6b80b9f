//! Walks a document along the tree of an update.
//!
//! Several nodes of the tree may lead to one value of the document: `a.0` and `a.$`, or `a.$[x]` and
//! `a.$[y]`. They are walked together, as a list; a leaf must be alone in its list, or the update conflicts
//! with itself (code 40).
//!
//! | a field is wanted in …            | what happens                                           |
//! |-----------------------------------|--------------------------------------------------------|
//! | an object that lacks it           | it is appended                                         |
//! | an array, by index                | that element; nulls fill a gap behind the end          |
//! | an array, by name                 | error 28                                               |
//! | a scalar, null included           | error 28                                               |
//!
//! Operators that create nothing (`$unset`, `$pull`, …) leave a missing field missing.

use std::borrow::Cow;
use std::collections::BTreeMap;

use nilometer_bson::{DocRef, Document, Value, ValueRef};

use super::check;
use super::modifier::{MissingPathRule, Modifier, ModifierContext, Outcome, element_text};
use super::node::DocumentNode;
use super::path::FieldName;
use super::tree::{Operators, PathNode};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::EvalContext;

/// Most nulls inserted between the end of an array and a new element.
const PADDING_MAX: usize = 1_500_000;

/// The constants of a walk.
struct UpdateWalk<'w> {
    operators: &'w Operators,
    document: DocRef<'w>,
    position: Option<usize>,
    inserting: bool,
    eval: &'w EvalContext<'w>,
}

/// The children of nodes that lead to one object or array.
type ChildNodes<'n> = BTreeMap<FieldName, Vec<&'n PathNode>>;

/// Returns the document after the update; `None` if it does not change.
pub(super) fn apply(
    operators: &Operators,
    document: DocRef<'_>,
    position: Option<usize>,
    inserting: bool,
    eval: &EvalContext<'_>,
) -> Result<Option<Document>> {
    let walk = UpdateWalk {
        operators,
        document,
        position,
        inserting,
        eval,
    };
    let mut root = DocumentNode::Old(ValueRef::Document(document));
    let mut path = String::new();
    let changed = walk.value(&[&operators.root], &mut root, &mut path)?;
    Ok(changed.then(|| root.to_document()))
}

/// Runs `body` with `name` appended to the path.
fn with_component<T>(path: &mut String, name: &str, body: impl FnOnce(&mut String) -> T) -> T {
    let length = path.len();
    if length > 0 {
        path.push('.');
    }
    path.push_str(name);
    let out = body(path);
    path.truncate(length);
    out
}

impl UpdateWalk<'_> {
    fn leaf<'l>(&'l self, path: &'l str) -> ModifierContext<'l> {
        ModifierContext {
            document: self.document,
            path,
            inserting: self.inserting,
            eval: self.eval,
        }
    }

    /// Applies `nodes` to an existing value; true if it changed.
    fn value(
        &self,
        nodes: &[&PathNode],
        target: &mut DocumentNode<'_>,
        path: &mut String,
    ) -> Result<bool> {
        if let Some(modifier) = only_leaf(nodes, path)? {
            if let DocumentNode::Old(value) = target {
                self.eval.charge_value(*value)?;
            }
            let outcome = match target {
                DocumentNode::Old(value) => modifier.apply(*value, &self.leaf(path))?,
                ref other => modifier.apply(other.to_value().as_ref(), &self.leaf(path))?,
            };
            return Ok(match outcome {
                Outcome::Unchanged => false,
                Outcome::Set(value) => {
                    *target = DocumentNode::New(value);
                    true
                }
                // The holder of the value removes it; see `fields` and `elements`.
                Outcome::Remove => {
                    *target = DocumentNode::New(Value::Missing);
                    true
                }
            });
        }
        target.open();
        if let Some(children) = element_children(nodes, path)? {
            return self.elements(&children, target, path);
        }
        let children = self.field_children(nodes)?;
        self.fields(&children, target, path)
    }

    /// Returns the children by name of nodes that all have named children.
    fn field_children<'n>(&self, nodes: &[&'n PathNode]) -> Result<ChildNodes<'n>> {
        let mut out = ChildNodes::new();
        for node in nodes {
            let PathNode::Fields {
                children,
                positional,
            } = node
            else {
                continue;
            };
            for (name, child) in children {
                out.entry(name.clone()).or_default().push(child);
            }
            if let Some(child) = positional {
                let position = self.position.ok_or_else(|| {
                    Error::bad_value(
                        "The positional operator did not find the match needed from the query.",
                    )
                })?;
                let name = FieldName::new(&position.to_string());
                out.entry(name).or_default().push(child);
            }
        }
        Ok(out)
    }

    fn fields(
        &self,
        children: &ChildNodes<'_>,
        target: &mut DocumentNode<'_>,
        path: &mut String,
    ) -> Result<bool> {
        let mut changed = false;
        for (name, nodes) in children {
            changed |= match target {
                DocumentNode::Object(fields) => self.field_of_object(name, nodes, fields, path)?,
                DocumentNode::Array(items) if name.index().is_some() => {
                    self.element_by_index(name, nodes, items, path)?
                }
                ref other => {
                    let holder = other.to_value();
                    self.not_viable(name, nodes, &holder, path)?;
                    false
                }
            };
        }
        Ok(changed)
    }

    fn field_of_object<'a>(
        &self,
        name: &FieldName,
        nodes: &[&PathNode],
        fields: &mut Vec<(Cow<'a, str>, DocumentNode<'a>)>,
        path: &mut String,
    ) -> Result<bool> {
        self.eval.charge(1 + fields.len() / 16)?;
        let found = fields.iter().position(|(known, _)| known == name.as_str());
        let is_top = path.is_empty();
        with_component(path, name.as_str(), |path| match found {
            Some(index) => {
                let (_, target) = &mut fields[index];
                let changed = self.value(nodes, target, path)?;
                if matches!(target, DocumentNode::New(Value::Missing)) {
                    fields.remove(index);
                } else if changed && is_top && !self.inserting {
                    check::top_level_name(name.as_str())?;
                }
                Ok(changed)
            }
            None => {
                let made = self.create(nodes, path)?;
                let changed = made.is_some();
                if changed && is_top && !self.inserting {
                    check::top_level_name(name.as_str())?;
                }
                let name = || Cow::Owned(name.as_str().to_owned());
                fields.extend(made.map(|made| (name(), made)));
                Ok(changed)
            }
        })
    }

    fn element_by_index<'a>(
        &self,
        name: &FieldName,
        nodes: &[&PathNode],
        items: &mut Vec<DocumentNode<'a>>,
        path: &mut String,
    ) -> Result<bool> {
        let index = name.index().expect("the name is an index");
        with_component(path, name.as_str(), |path| {
            if let Some(target) = items.get_mut(index) {
                return self.element(nodes, target, path);
            }
            let Some(made) = self.create(nodes, path)? else {
                return Ok(false);
            };
            if index - items.len() > PADDING_MAX {
                return Err(Error::new(
                    ErrorCode::CannotBackfillArray,
                    format!("can't backfill more than {PADDING_MAX} elements"),
                ));
            }
            items.resize(index, DocumentNode::Old(ValueRef::Null));
            items.push(made);
            Ok(true)
        })
    }

    /// Changes an array element; a removed one becomes null.
    fn element(
        &self,
        nodes: &[&PathNode],
        target: &mut DocumentNode<'_>,
        path: &mut String,
    ) -> Result<bool> {
        let was_null = matches!(target, DocumentNode::Old(ValueRef::Null));
        let changed = self.value(nodes, target, path)?;
        if matches!(target, DocumentNode::New(Value::Missing)) {
            *target = DocumentNode::Old(ValueRef::Null);
            return Ok(!was_null);
        }
        Ok(changed)
    }

    /// Applies the children of `$[…]` nodes to the elements they match.
    fn elements(
        &self,
        children: &BTreeMap<&str, Vec<&PathNode>>,
        target: &mut DocumentNode<'_>,
        path: &mut String,
    ) -> Result<bool> {
        let DocumentNode::Array(items) = target else {
            let field = path.rsplit('.').next().unwrap_or_default();
            return Err(Error::bad_value(format!(
                "Cannot apply array updates to non-array element {}",
                element_text(field, target.to_value().as_ref())
            )));
        };
        let mut changed = false;
        for (index, item) in items.iter_mut().enumerate() {
            self.eval.charge(1)?;
            let mut meant: Vec<&PathNode> = Vec::new();
            for (identifier, nodes) in children {
                let matches = identifier.is_empty()
                    || self
                        .operators
                        .filters
                        .matches(identifier, item, self.eval)?;
                if matches {
                    meant.extend(nodes);
                }
            }
            if !meant.is_empty() {
                changed |= with_component(path, &index.to_string(), |path| {
                    self.element(&meant, item, path)
                })?;
            }
        }
        Ok(changed)
    }

    /// Creates the value that `nodes` set at a missing path; `None` if they set none.
    fn create(
        &self,
        nodes: &[&PathNode],
        path: &mut String,
    ) -> Result<Option<DocumentNode<'static>>> {
        if let Some(modifier) = only_leaf(nodes, path)? {
            if modifier.missing_path(self.inserting) != MissingPathRule::Create {
                return Ok(None);
            }
            return Ok(match modifier.apply(ValueRef::Missing, &self.leaf(path))? {
                Outcome::Set(value) => Some(DocumentNode::New(value)),
                Outcome::Unchanged | Outcome::Remove => None,
            });
        }
        if element_children(nodes, path)?.is_some() {
            return Err(Error::bad_value(format!(
                "The path '{path}' must exist in the document in order to apply array updates."
            )));
        }
        let mut fields = Vec::new();
        for (name, nodes) in &self.field_children(nodes)? {
            let made = with_component(path, name.as_str(), |path| self.create(nodes, path))?;
            if let Some(made) = made {
                fields.push((Cow::Owned(name.as_str().to_owned()), made));
            }
        }
        Ok((!fields.is_empty()).then_some(DocumentNode::Object(fields)))
    }

    /// Handles `holder`, the value at `path`, which cannot have a field `name`: an error for every modifier
    /// that requires one.
    fn not_viable(
        &self,
        name: &FieldName,
        nodes: &[&PathNode],
        holder: &Value,
        path: &mut String,
    ) -> Result<()> {
        let name = name.as_str();
        let field = path.rsplit('.').next().unwrap_or_default().to_owned();
        let error = |text: String| Error::new(ErrorCode::PathNotViable, text);
        with_component(path, name, |path| {
            if let Some(modifier) = only_leaf(nodes, path)? {
                let element = element_text(&field, holder.as_ref());
                return match modifier.missing_path(self.inserting) {
                    MissingPathRule::Create => Err(error(format!(
                        "Cannot create field '{name}' in element {element}"
                    ))),
                    MissingPathRule::Keep => Err(error(format!(
                        "Cannot use the part ({name}) of ({path}) to traverse the element ({element})"
                    ))),
                    MissingPathRule::Ignore => Ok(()),
                };
            }
            if element_children(nodes, path)?.is_some() {
                return Err(Error::bad_value(format!(
                    "The path '{path}' must exist in the document in order to apply array updates."
                )));
            }
            for nodes in self.field_children(nodes)?.values() {
                // All below fail for the same reason, or ignore the path.
                if wants_place(nodes, self.inserting) {
                    return Err(error(format!(
                        "Cannot create field '{name}' in element {}",
                        element_text(&field, holder.as_ref())
                    )));
                }
            }
            Ok(())
        })
    }
}

/// Returns the modifier if the nodes end here; an error if some end here and others do not.
fn only_leaf<'n>(nodes: &[&'n PathNode], path: &str) -> Result<Option<&'n dyn Modifier>> {
    match nodes {
        [PathNode::Leaf(modifier)] => Ok(Some(&**modifier)),
        _ if nodes.iter().any(|node| matches!(node, PathNode::Leaf(_))) => Err(conflict(path)),
        _ => Ok(None),
    }
}

/// Returns the children by identifier if the nodes are `Elements`; an error if only some are.
fn element_children<'n>(
    nodes: &[&'n PathNode],
    path: &str,
) -> Result<Option<BTreeMap<&'n str, Vec<&'n PathNode>>>> {
    let mut out: BTreeMap<&str, Vec<&PathNode>> = BTreeMap::new();
    let mut others = false;
    for node in nodes {
        match node {
            PathNode::Elements(children) => {
                for (identifier, child) in children {
                    out.entry(identifier).or_default().push(child);
                }
            }
            _ => others = true,
        }
    }
    match (out.is_empty(), others) {
        (true, _) => Ok(None),
        (false, false) => Ok(Some(out)),
        (false, true) => Err(conflict(path)),
    }
}

/// True if some leaf below fails when its path is blocked.
fn wants_place(nodes: &[&PathNode], inserting: bool) -> bool {
    nodes.iter().any(|node| match node {
        PathNode::Leaf(modifier) => modifier.missing_path(inserting) != MissingPathRule::Ignore,
        PathNode::Elements(_) => true,
        PathNode::Fields {
            children,
            positional,
        } => {
            let below = children.values().chain(positional.as_deref());
            below
                .into_iter()
                .any(|child| wants_place(&[child], inserting))
        }
    })
}

fn conflict(path: &str) -> Error {
    Error::new(
        ErrorCode::ConflictingUpdateOperators,
        format!("Update created a conflict at '{path}'"),
    )
}
