//! Parsing of a specification to a tree of names.
//!
//! | value                     | means                                             |
//! |---------------------------|---------------------------------------------------|
//! | true, number but 0        | keep                                              |
//! | false, 0                  | leave out                                         |
//! | `{$operator: …}`          | compute                                           |
//! | `{name: …}`               | the same for `path.name`                          |
//! | anything else             | compute: `"$path"`, array literal, string, null … |
//!
//! Inclusion and exclusion cannot be mixed, except for `_id`. `$slice`, `$elemMatch` and `$meta`
//! combine with both; alone, `$elemMatch` implies an inclusion and the others an exclusion.

use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef};

use super::array_operators::Slice;
use super::tree::{Child, FieldAction, PathCollision, ProjectionNode};
use super::{MetaField, Mode, Projection};
use crate::error::{Error, Result, location};
use crate::eval::expression::{OPERATORS, is_true, parse_path};
use crate::eval::matcher::MatchExpression;
use crate::eval::{Expression, ParseContext};

/// The command a specification belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Dialect {
    Find,
    Project,
}

struct ProjectionParser<'c> {
    ctx: &'c ParseContext,
    dialect: Dialect,
    root: ProjectionNode,
    mode: Option<Mode>,
    /// The specification of `_id` itself.
    id: Option<bool>,
    has_elem_match: bool,
    positional: Option<Vec<String>>,
}

impl Projection {
    /// Parses the projection of `find`; an empty one keeps everything.
    pub fn parse_find(spec: DocRef<'_>, ctx: &ParseContext) -> Result<Self> {
        ProjectionParser::new(ctx, Dialect::Find).parse(spec)
    }

    /// Parses the operand of `$project`.
    pub fn parse_project(spec: DocRef<'_>, ctx: &ParseContext) -> Result<Self> {
        if spec.is_empty() {
            return Err(Error::location(
                location::PROJECTION_EMPTY,
                "Invalid $project :: caused by :: projection specification must have at least one \
                 field",
            ));
        }
        ProjectionParser::new(ctx, Dialect::Project).parse(spec)
    }

    /// Parses the operand of `$unset`: a path or an array of paths.
    pub fn parse_unset(operand: ValueRef<'_>, ctx: &ParseContext) -> Result<Self> {
        let mut spec = DocumentBuilder::new();
        match operand {
            ValueRef::String(path) => {
                spec.append(path, false);
            }
            ValueRef::Array(paths) => {
                if paths.is_empty() {
                    return Err(Error::location(
                        location::UNSET_EMPTY,
                        "$unset specification must be a string or an array with at least one field",
                    ));
                }
                for path in paths.iter() {
                    let path = path.as_str().ok_or_else(|| {
                        Error::location(
                            location::UNSET_ELEMENT_NOT_STRING,
                            "$unset specification must be a string or an array containing only \
                             string values",
                        )
                    })?;
                    spec.append(path, false);
                }
            }
            _ => {
                return Err(Error::location(
                    location::UNSET_OPERAND,
                    "$unset specification must be a string or an array",
                ));
            }
        }
        ProjectionParser::new(ctx, Dialect::Project).parse(spec.finish().as_ref())
    }
}

impl<'c> ProjectionParser<'c> {
    fn new(ctx: &'c ParseContext, dialect: Dialect) -> Self {
        Self {
            ctx,
            dialect,
            root: ProjectionNode::default(),
            mode: None,
            id: None,
            has_elem_match: false,
            positional: None,
        }
    }

    fn parse(mut self, spec: DocRef<'_>) -> Result<Projection> {
        for element in spec {
            self.entry(element.name().to_owned(), element.value())?;
        }
        if self.positional.is_some() && self.has_elem_match {
            return Err(Error::location(
                location::PROJECTION_POSITIONAL_AND_ELEM_MATCH,
                "Cannot specify positional operator and $elemMatch.",
            ));
        }
        let mode = self.final_mode();
        self.resolve_id(mode);
        self.root.close();
        Ok(Projection {
            mode,
            root: self.root,
            positional: self.positional,
            source: spec.to_document(),
        })
    }

    fn final_mode(&self) -> Mode {
        let only_made = self.dialect == Dialect::Project && !self.root.children.is_empty();
        match self.mode {
            Some(mode) => mode,
            None if self.id == Some(true) || self.has_elem_match => Mode::Inclusion,
            None if only_made && self.id.is_none() => Mode::Inclusion,
            None => Mode::Exclusion,
        }
    }

    /// Keeps `_id` unless the specification names it.
    fn resolve_id(&mut self, mode: Mode) {
        let named = self.root.find(b"_id").is_some();
        let item = match (mode, self.id) {
            (Mode::Inclusion, None) if !named => FieldAction::Keep,
            (Mode::Inclusion, Some(true)) => FieldAction::Keep,
            (Mode::Exclusion, Some(false)) => FieldAction::Drop,
            _ => return,
        };
        let child = Child {
            name: "_id".into(),
            item,
        };
        self.root.children.insert(0, child);
    }

    /// Parses one path with its value.
    fn entry(&mut self, path: String, value: ValueRef<'_>) -> Result<()> {
        if let Some(array) = path.strip_suffix(".$") {
            return self.positional(array, value);
        }
        parse_path(&path)?;
        match value {
            ValueRef::Bool(_) => self.keep_or_drop(&path, is_true(value)),
            number if number.is_number() => self.keep_or_drop(&path, is_true(number)),
            ValueRef::Document(inner) => self.object(path, inner, value),
            other => self.computed(&path, other),
        }
    }

    fn object(&mut self, path: String, inner: DocRef<'_>, value: ValueRef<'_>) -> Result<()> {
        let Some(first) = inner.iter().next() else {
            return Err(Error::location(
                location::PROJECTION_EMPTY_OBJECT,
                format!(
                    "An empty sub-projection is not a valid value. Found empty object at path \
                     {path}"
                ),
            ));
        };
        let alone = inner.iter().nth(1).is_none();
        match (first.name(), self.dialect) {
            ("$meta", _) if alone => self.meta(&path, first.value()),
            ("$slice", Dialect::Find) if alone => self.slice(&path, first.value(), value),
            ("$elemMatch", Dialect::Find) if alone => self.elem_match(&path, first.value()),
            (operator, _) if operator.starts_with('$') => self.computed(&path, value),
            _ => {
                for element in inner {
                    self.entry(format!("{path}.{}", element.name()), element.value())?;
                }
                Ok(())
            }
        }
    }

    fn insert(&mut self, path: &str, item: FieldAction) -> Result<()> {
        let parts: Vec<&str> = path.split('.').collect();
        if parts == ["_id"] && self.id.is_some() {
            return Err(collision(path, &PathCollision::Same));
        }
        if parts.len() > 1 && parts.first() == Some(&"_id") && self.id.is_some() {
            return Err(collision(path, &PathCollision::Below(parts[1..].join("."))));
        }
        self.root
            .insert(&parts, item)
            .map_err(|at| collision(path, &at))
    }

    fn keep_or_drop(&mut self, path: &str, keep: bool) -> Result<()> {
        if path == "_id" {
            if self.id.is_some() || self.root.find(b"_id").is_some() {
                return Err(collision(path, &PathCollision::Same));
            }
            self.id = Some(keep);
            return Ok(());
        }
        match (self.mode, keep) {
            (Some(Mode::Exclusion), true) => Err(Error::location(
                location::PROJECTION_INCLUSION_IN_EXCLUSION,
                format!("Cannot do inclusion on field {path} in exclusion projection"),
            )),
            (Some(Mode::Inclusion), false) => Err(Error::location(
                location::PROJECTION_EXCLUSION_IN_INCLUSION,
                format!("Cannot do exclusion on field {path} in inclusion projection"),
            )),
            (_, true) => {
                self.mode = Some(Mode::Inclusion);
                self.insert(path, FieldAction::Keep)
            }
            (_, false) => {
                self.mode = Some(Mode::Exclusion);
                self.insert(path, FieldAction::Drop)
            }
        }
    }

    fn computed(&mut self, path: &str, value: ValueRef<'_>) -> Result<()> {
        if self.mode == Some(Mode::Exclusion) {
            return Err(Error::location(
                location::PROJECTION_EXPRESSION_IN_EXCLUSION,
                "Cannot use an expression other than $meta in exclusion projection",
            ));
        }
        if let Some(unknown) = unknown_operator(value) {
            return Err(Error::location(
                location::PROJECTION_EXPRESSION_UNKNOWN,
                format!("Unknown expression {unknown}"),
            ));
        }
        let expression = Expression::parse(value, self.ctx)?;
        self.mode = Some(Mode::Inclusion);
        self.insert(path, FieldAction::Computed(Box::new(expression)))
    }

    fn meta(&mut self, path: &str, operand: ValueRef<'_>) -> Result<()> {
        let name = operand.as_str().ok_or_else(|| {
            Error::location(
                location::META_NOT_STRING,
                "$meta requires a string argument",
            )
        })?;
        let field = match name {
            name if MetaField::of_operand(name).is_some() => MetaField::of_operand(name),
            "searchScore"
            | "searchHighlights"
            | "searchScoreDetails"
            | "vectorSearchScore"
            | "randVal"
            | "searchSequenceToken" => {
                return Err(Error::location(
                    location::TEXT_SCORE_MISSING,
                    format!("query requires {name} metadata, but it is not available"),
                ));
            }
            _ => {
                return Err(Error::location(
                    location::META_UNKNOWN,
                    format!("Unsupported argument to $meta: {name}"),
                ));
            }
        };
        match field {
            Some(field) => self.insert(path, FieldAction::Meta(field)),
            None => Ok(()),
        }
    }

    /// Parses `$slice` in the form of `find`, else the expression operator of that name.
    fn slice(&mut self, path: &str, operand: ValueRef<'_>, whole: ValueRef<'_>) -> Result<()> {
        match Slice::parse(operand) {
            Ok(slice) => self.insert(path, FieldAction::Slice(slice)),
            Err(not_find) => self.computed(path, whole).map_err(|not_expression| {
                not_expression.context(&format!(
                    "Invalid $slice syntax. It is not find's because :: {not_find} :: and not the \
                     expression's"
                ))
            }),
        }
    }

    fn elem_match(&mut self, path: &str, operand: ValueRef<'_>) -> Result<()> {
        if !matches!(operand, ValueRef::Document(_)) {
            return Err(Error::location(
                location::PROJECTION_ELEM_MATCH_OPERAND,
                format!(
                    "elemMatch: Invalid argument, object required, but got {}",
                    operand.type_name()
                ),
            ));
        }
        if path.contains('.') {
            return Err(Error::location(
                location::PROJECTION_ELEM_MATCH_NESTED,
                "Cannot use $elemMatch projection on a nested field",
            ));
        }
        let mut test = DocumentBuilder::new();
        test.begin_document(path);
        test.append_ref("$elemMatch", operand);
        let test: Document = test.finish();
        let filter = MatchExpression::parse(test.as_ref(), self.ctx)?;
        self.has_elem_match = true;
        self.insert(path, FieldAction::ElemMatch(Box::new(filter)))
    }

    fn positional(&mut self, array: &str, value: ValueRef<'_>) -> Result<()> {
        if self.dialect == Dialect::Project {
            return Err(Error::location(
                location::PROJECTION_POSITIONAL_IN_PROJECT,
                "Cannot use positional projection in aggregation projection",
            ));
        }
        if self.positional.is_some() {
            return Err(Error::location(
                location::PROJECTION_POSITIONAL_TWICE,
                "Cannot specify more than one positional projection per query.",
            ));
        }
        if array.split('.').any(|name| name == "$") {
            return Err(Error::location(
                location::PROJECTION_POSITIONAL_PATH,
                "As of 4.4, it's illegal to specify positional operator in the middle of a path. \
                 Positional projection may only be used at the end",
            ));
        }
        let keeps = (value.is_number() || matches!(value, ValueRef::Bool(_))) && is_true(value);
        if !keeps {
            let is_flag = value.is_number() || matches!(value, ValueRef::Bool(_));
            return Err(if is_flag {
                positional_in_exclusion()
            } else {
                Error::location(
                    location::PROJECTION_POSITIONAL_VALUE,
                    "positional projection cannot be used with an expression or sub-object",
                )
            });
        }
        if self.mode == Some(Mode::Exclusion) {
            return Err(positional_in_exclusion());
        }
        parse_path(array)?;
        self.mode = Some(Mode::Inclusion);
        self.insert(array, FieldAction::Keep)?;
        self.positional = Some(array.split('.').map(str::to_owned).collect());
        Ok(())
    }
}

fn positional_in_exclusion() -> Error {
    Error::location(
        location::PROJECTION_POSITIONAL_IN_EXCLUSION,
        "positional projection cannot be used with exclusion",
    )
}

fn collision(path: &str, at: &PathCollision) -> Error {
    match at {
        PathCollision::Below(rest) => Error::location(
            location::PROJECTION_PATH_BELOW_OTHER,
            format!("Path collision at {path} remaining portion {rest}"),
        ),
        PathCollision::Same => Error::location(
            location::PROJECTION_PATH_TWICE,
            format!("Path collision at {path}"),
        ),
    }
}
/// Returns the operator of a value that looks like an expression, if there is none of that name.
fn unknown_operator(value: ValueRef<'_>) -> Option<&str> {
    let first = value.as_document()?.iter().next()?;
    let name = first.name();
    let is_known = || OPERATORS.iter().any(|operator| operator.name == name);
    (name.starts_with('$') && !is_known()).then_some(name)
}
