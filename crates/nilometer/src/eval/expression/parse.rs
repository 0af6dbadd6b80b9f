//! Parsing of a BSON value to an expression: the rules common to all operators.
//!
//! - a string that starts with `$` is a path, with `$$` a variable; any other scalar is itself;
//! - a document whose first name starts with `$` is an operator call and has that one member;
//! - any other document is an object literal, an array an array literal, of operands.

use std::collections::HashSet;
use std::sync::Arc;

use nilometer_bson::{DocRef, Value, ValueRef};

use super::field_path::check_field_name;
use super::operation::Operation;
use super::registry::{self, Arguments, NamedArguments, OperatorSpec, SupportStatus};
use super::variable::INNER_SLOT_MIN;
use super::{EXPRESSION_DEPTH_MAX, Expression};
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::variables::ParseContext;

/// Parser of operands, with the variables bound at the current place.
pub(crate) struct ExpressionParser<'c> {
    context: &'c ParseContext,
    /// Names bound by enclosing operators, innermost last.
    bound: Vec<(Arc<str>, usize)>,
    next_slot: usize,
    depth: usize,
}

impl<'c> ExpressionParser<'c> {
    pub(super) fn new(context: &'c ParseContext) -> Self {
        Self {
            context,
            bound: Vec::new(),
            next_slot: INNER_SLOT_MIN,
            depth: 0,
        }
    }

    /// Parses one operand.
    pub(super) fn operand(&mut self, value: ValueRef<'_>) -> Result<Expression> {
        match value {
            ValueRef::String(text) if text.starts_with('$') => self.dollar_string(text),
            ValueRef::Document(doc) => self.nested(|parser| parser.document(doc)),
            ValueRef::Array(array) => self.nested(|parser| {
                let elements = array.iter().map(|element| parser.operand(element));
                Ok(Expression::Array(elements.collect::<Result<_>>()?))
            }),
            other => Ok(Expression::Constant(other.to_value())),
        }
    }

    fn nested(
        &mut self,
        parse: impl FnOnce(&mut Self) -> Result<Expression>,
    ) -> Result<Expression> {
        if self.depth >= EXPRESSION_DEPTH_MAX {
            return Err(Error::new(
                ErrorCode::Overflow,
                format!("expression nests deeper than {EXPRESSION_DEPTH_MAX} levels"),
            ));
        }
        self.depth += 1;
        let result = parse(self);
        self.depth -= 1;
        result
    }

    fn document(&mut self, doc: DocRef<'_>) -> Result<Expression> {
        let mut elements = doc.iter();
        match elements.next() {
            Some(first) if first.name().starts_with('$') => {
                if elements.next().is_some() {
                    return Err(Error::location(
                        location::EXPRESSION_NOT_ONE_FIELD,
                        format!(
                            "an object representing an expression must have exactly one field, \
                             the first is '{}'",
                            first.name()
                        ),
                    ));
                }
                self.operator(first.name(), first.value())
            }
            _ => self.object(doc),
        }
    }

    fn object(&mut self, doc: DocRef<'_>) -> Result<Expression> {
        let mut fields: Vec<(Arc<str>, Expression)> = Vec::new();
        let mut names = HashSet::new();
        for element in doc.iter() {
            let name = element.name();
            check_field_name(name)?;
            if !names.insert(name) {
                return Err(Error::location(
                    location::OBJECT_FIELD_TWICE,
                    format!("duplicate field name specified in object literal: '{name}'"),
                ));
            }
            fields.push((name.into(), self.operand(element.value())?));
        }
        Ok(Expression::Object(fields))
    }

    fn operator(&mut self, name: &str, value: ValueRef<'_>) -> Result<Expression> {
        let Some(spec) = registry::find(name) else {
            return Err(Error::new(
                ErrorCode::InvalidPipelineOperator,
                format!("Unrecognized expression '{name}'"),
            ));
        };
        if let SupportStatus::Refused { code, reason } = spec.status {
            return Err(Error::new(code, format!("{name} {reason}")));
        }
        if let Some(parse) = spec.parse {
            return parse(self, spec, value);
        }
        let arguments = self.arguments(spec, value)?;
        Ok(Operation::new(spec, arguments).into_expression())
    }

    /// Parses the arguments of an operator as described by its row.
    pub(super) fn arguments(
        &mut self,
        spec: &'static OperatorSpec,
        value: ValueRef<'_>,
    ) -> Result<Vec<Option<Expression>>> {
        match spec.arguments {
            Arguments::Named(named) => self.named(spec.name, named, value),
            _ => {
                let list = self.positional(spec, value)?;
                Ok(list.into_iter().map(Some).collect())
            }
        }
    }

    /// Parses positional arguments: an array, or a single operand.
    pub(super) fn positional(
        &mut self,
        spec: &OperatorSpec,
        value: ValueRef<'_>,
    ) -> Result<Vec<Expression>> {
        let list: Vec<Expression> = match value {
            ValueRef::Array(array) => array
                .iter()
                .map(|element| self.operand(element))
                .collect::<Result<_>>()?,
            single => vec![self.operand(single)?],
        };
        spec.arguments.check_count(spec.name, list.len())?;
        Ok(list)
    }

    /// Parses positional arguments of an operator that fails with `code` for fewer than two.
    pub(super) fn two_or_more(
        &mut self,
        spec: &OperatorSpec,
        value: ValueRef<'_>,
        code: i32,
    ) -> Result<Vec<Expression>> {
        let list = self.positional(spec, value)?;
        if list.len() < 2 {
            let (name, had) = (spec.name, list.len());
            let text = format!("{name} needs at least two arguments, had: {had}");
            return Err(Error::location(code, text));
        }
        Ok(list)
    }

    fn named(
        &mut self,
        operator: &str,
        named: &NamedArguments,
        value: ValueRef<'_>,
    ) -> Result<Vec<Option<Expression>>> {
        let wanted = format!("{operator} only supports an object as its argument");
        let doc = object(value, named.not_object, &wanted)?;
        let mut arguments = vec![None; named.fields.len()];
        for element in doc.iter() {
            let at = named
                .fields
                .iter()
                .position(|field| field.name == element.name());
            let Some(slot) = at.and_then(|at| arguments.get_mut(at)) else {
                return Err(Error::location(
                    named.unknown,
                    format!("Unrecognized argument to {operator}: {}", element.name()),
                ));
            };
            *slot = Some(self.operand(element.value())?);
        }
        for (field, argument) in named.fields.iter().zip(&arguments) {
            if let (Some(code), None) = (field.required, argument) {
                return Err(Error::location(
                    code,
                    format!("Missing '{}' parameter to {operator}", field.name),
                ));
            }
        }
        Ok(arguments)
    }

    /// Binds `name` and returns its slot; undone by [`ExpressionParser::unbind`].
    pub(super) fn bind(&mut self, name: &str) -> usize {
        let slot = self.next_slot;
        self.next_slot += 1;
        self.bound.push((name.into(), slot));
        slot
    }

    /// Removes the last `count` bindings.
    pub(super) fn unbind(&mut self, count: usize) {
        self.bound.truncate(self.bound.len().saturating_sub(count));
    }

    /// Returns the slot of `name` at the current place.
    pub(super) fn slot(&self, name: &str) -> Option<usize> {
        self.bound
            .iter()
            .rev()
            .find(|(known, _)| &**known == name)
            .map(|(_, slot)| *slot)
            .or_else(|| self.context.slot(name))
    }
}

/// Returns the constant missing value, as an expression.
pub(super) fn missing() -> Expression {
    Expression::Constant(Value::Missing)
}
/// Returns the argument object of an operator, or error `code` with the text `wanted`.
pub(super) fn object<'v>(value: ValueRef<'v>, code: i32, wanted: &str) -> Result<DocRef<'v>> {
    value.as_document().ok_or_else(|| {
        let found = value.type_name();
        Error::location(code, format!("{wanted}, found: {found}"))
    })
}
