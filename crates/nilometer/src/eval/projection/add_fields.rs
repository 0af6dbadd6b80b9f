//! `$addFields` and `$set`: all fields are kept and computed fields are added.
//!
//! `{a: {b: 1}}` and `{"a.b": 1}` both write `b` into `a`, into each element if `a` is an array,
//! and replace `a` by an object if it is a scalar. Numbers and booleans are values here, not
//! inclusion flags.

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef};

use super::apply::{ApplyContext, Mode, write_fields};
use super::tree::{FieldAction, PathCollision, ProjectionNode};
use super::{MetaField, ProjectionInput};
use crate::error::{Error, Result, location};
use crate::eval::expression::parse_path;
use crate::eval::{Dependencies, EvalContext, Expression, ParseContext};

/// A parsed `$addFields`.
#[derive(Clone, Debug)]
pub struct AddFields {
    root: ProjectionNode,
    source: Document,
}

impl AddFields {
    /// Parses the operand of the stage; an empty one changes nothing.
    pub fn parse(spec: DocRef<'_>, ctx: &ParseContext) -> Result<Self> {
        let mut root = ProjectionNode::default();
        for element in spec {
            parse_path(element.name())?;
            entry(&mut root, element.name().to_owned(), element.value(), ctx)?;
        }
        root.close();
        Ok(Self {
            root,
            source: spec.to_document(),
        })
    }

    /// Creates the stage for one computed field, for stages that are expressed by others.
    pub fn single(path: &str, expression: Expression) -> Result<Self> {
        parse_path(path)?;
        let mut root = ProjectionNode::default();
        insert(&mut root, path, FieldAction::Computed(Box::new(expression)))?;
        root.close();
        Ok(Self {
            root,
            source: Document::new(),
        })
    }

    /// Removes the field of some metadata.
    pub fn leave_out(&mut self, field: MetaField) {
        self.root.set(field.carrier(), FieldAction::Drop);
    }

    /// True if every item is a computed field.
    pub fn only_computes(&self) -> bool {
        !self
            .root
            .any_item(&|item| matches!(item, FieldAction::Drop))
    }

    /// Returns the specification as written by the user.
    pub fn source(&self) -> &Document {
        &self.source
    }

    /// Returns the computed paths with their expressions.
    pub fn computed(&self) -> Vec<(String, &Expression)> {
        self.root.computed()
    }

    /// Adds the inputs of the expressions.
    pub fn dependencies(&self, into: &mut Dependencies) {
        self.root.dependencies(into);
    }

    /// Returns the new document.
    pub fn apply(&self, doc: DocRef<'_>, ctx: &EvalContext<'_>) -> Result<Document> {
        let mut out = DocumentBuilder::with_capacity(doc.as_bytes().len() + 64);
        let environment = ApplyContext {
            mode: Mode::Add,
            root: doc,
            ctx,
            input: &ProjectionInput::default(),
            slots: &[],
            in_nested_array: false,
            mark: ctx.mark(),
        };
        let written = write_fields(&self.root, &environment, doc, &mut out);
        ctx.release(environment.mark);
        written?;
        Ok(out.finish())
    }
}

/// Writes values computed elsewhere with the rules of `$addFields`, for stages that compute over
/// several documents (windows, densify, fill).
#[derive(Clone, Debug)]
pub struct FieldWriter {
    root: ProjectionNode,
}

impl FieldWriter {
    /// Creates a writer for these paths, of which none may be a prefix of another.
    pub fn new<'p>(paths: impl IntoIterator<Item = &'p str>) -> Result<Self> {
        let mut root = ProjectionNode::default();
        for (slot, path) in paths.into_iter().enumerate() {
            insert(&mut root, path, FieldAction::Slot(slot))?;
        }
        root.close();
        Ok(Self { root })
    }

    /// Returns the document with `values`, one for each path; a missing value removes its field.
    pub fn apply(
        &self,
        doc: DocRef<'_>,
        values: &[Value],
        ctx: &EvalContext<'_>,
    ) -> Result<Document> {
        let mut out = DocumentBuilder::with_capacity(doc.as_bytes().len() + 64);
        let environment = ApplyContext {
            mode: Mode::Add,
            root: doc,
            ctx,
            input: &ProjectionInput::default(),
            slots: values,
            in_nested_array: false,
            mark: ctx.mark(),
        };
        let written = write_fields(&self.root, &environment, doc, &mut out);
        ctx.release(environment.mark);
        written?;
        Ok(out.finish())
    }
}

fn entry(
    root: &mut ProjectionNode,
    path: String,
    value: ValueRef<'_>,
    ctx: &ParseContext,
) -> Result<()> {
    let ValueRef::Document(inner) = value else {
        let expression = Expression::parse(value, ctx)?;
        return insert(root, &path, FieldAction::Computed(Box::new(expression)));
    };
    let Some(first) = inner.iter().next() else {
        let empty = Expression::constant(Document::new());
        return insert(root, &path, FieldAction::Computed(Box::new(empty)));
    };
    if first.name().starts_with('$') {
        let expression = Expression::parse(value, ctx)?;
        return insert(root, &path, FieldAction::Computed(Box::new(expression)));
    }
    for element in inner {
        let name = element.name();
        if name.starts_with('$') {
            return Err(Error::location(
                location::ADD_FIELDS_MIXED_OBJECT,
                format!("Bad projection specification, cannot mix fields and the operator {name}"),
            ));
        }
        if name.contains('.') {
            return Err(Error::location(
                location::ADD_FIELDS_DOTTED_IN_OBJECT,
                format!("cannot use dotted field name '{name}' in a sub object"),
            ));
        }
        let below = format!("{path}.{name}");
        parse_path(&below)?;
        entry(root, below, element.value(), ctx)?;
    }
    Ok(())
}

fn insert(root: &mut ProjectionNode, path: &str, item: FieldAction) -> Result<()> {
    let parts: Vec<&str> = path.split('.').collect();
    let other = match root.insert(&parts, item) {
        Ok(()) => return Ok(()),
        Err(PathCollision::Below(rest)) => path
            .strip_suffix(&rest)
            .map_or(path, |prefix| prefix.trim_end_matches('.'))
            .to_owned(),
        Err(PathCollision::Same) => root.path_from(&parts),
    };
    Err(Error::location(
        location::ADD_FIELDS_PATH_COLLISION,
        format!(
            "specification contains two conflicting paths. Cannot specify both '{path}' and '{other}'"
        ),
    ))
}
