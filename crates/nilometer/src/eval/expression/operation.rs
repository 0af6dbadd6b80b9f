//! An operator of the table with its arguments, for operators without their own variant.

use std::any::Any;
use std::sync::Arc;

use super::evaluated::Evaluated;
use super::registry::{Evaluator, OperatorSpec};
use super::scope::Scope;
use super::{Expression, check_bytes};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::memory_bytes;

/// Data prepared from constant arguments: a compiled pattern, a parsed zone, a set.
pub(crate) type PreparedData = Arc<dyn Any + Send + Sync>;

/// A call of an operator.
#[derive(Clone)]
pub struct Operation {
    /// The row of the table.
    pub spec: &'static OperatorSpec,
    /// The arguments: positional, or in the order of the table's names; `None` if absent.
    pub arguments: Vec<Option<Expression>>,
    /// Slots of the variables this operator binds (`$map`'s `this`), in the operator's own order.
    pub(crate) bindings: Vec<usize>,
    /// Set after folding by the row's `prepare`.
    pub(crate) prepared: Option<PreparedData>,
}

impl Operation {
    /// Creates a call without bindings.
    pub(crate) fn new(spec: &'static OperatorSpec, arguments: Vec<Option<Expression>>) -> Self {
        Self {
            spec,
            arguments,
            bindings: Vec::new(),
            prepared: None,
        }
    }

    /// Converts to an expression.
    pub(crate) fn into_expression(self) -> Expression {
        Expression::Operation(Box::new(self))
    }

    /// Returns the operator's name, with its dollar sign.
    pub fn name(&self) -> &'static str {
        self.spec.name
    }

    /// Returns the argument at `index`, if present.
    pub fn argument(&self, index: usize) -> Option<&Expression> {
        self.arguments.get(index).and_then(Option::as_ref)
    }

    /// Evaluates the argument at `index`; missing if absent.
    pub(crate) fn value<'s>(&'s self, index: usize, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
        Ok(self.optional(index, scope)?.unwrap_or(Evaluated::MISSING))
    }

    /// Evaluates the argument at `index`; `None` if absent.
    pub(crate) fn optional<'s>(
        &'s self,
        index: usize,
        scope: &Scope<'s>,
    ) -> Result<Option<Evaluated<'s>>> {
        let Some(argument) = self.argument(index) else {
            return Ok(None);
        };
        let value = argument.eval(scope)?;
        // Operators take time that is linear in the bytes they read; those that take more charge for it.
        scope.context.charge_value(value.as_ref())?;
        Ok(Some(value))
    }

    /// Returns the value of argument `index`, if it is a constant.
    pub(crate) fn constant(&self, index: usize) -> Option<&nilometer_bson::Value> {
        self.argument(index).and_then(Expression::as_constant)
    }

    /// Returns the slot of binding `index`.
    pub(crate) fn binding(&self, index: usize) -> usize {
        self.bindings[index]
    }

    /// Returns the prepared data, if it is a `T`.
    pub(crate) fn prepared<T: 'static>(&self) -> Option<&T> {
        self.prepared.as_ref()?.downcast_ref()
    }

    /// Evaluates the call in a scope.
    pub(crate) fn evaluate<'s>(&'s self, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
        let value = match self.spec.evaluator {
            Evaluator::Eager(function) => self.evaluate_eager(function, scope)?,
            Evaluator::Lazy(function) => function(self, scope)?,
            Evaluator::None => {
                return Err(Error::new(
                    ErrorCode::InternalError,
                    format!("{} has no evaluator", self.spec.name),
                ));
            }
        };
        if let Evaluated::Owned(owned) = &value {
            check_bytes(memory_bytes(owned), self.spec.name)?;
        }
        Ok(value)
    }

    /// Evaluates all arguments first, on the stack if there are few.
    fn evaluate_eager<'s>(
        &'s self,
        function: super::registry::EagerFn,
        scope: &Scope<'s>,
    ) -> Result<Evaluated<'s>> {
        let call = CallContext {
            name: self.spec.name,
            scope,
        };
        match self.arguments.len() {
            0 => function(&[], call),
            1 => function(&[self.value(0, scope)?], call),
            2 => function(&[self.value(0, scope)?, self.value(1, scope)?], call),
            count => {
                let mut values = Vec::with_capacity(count);
                for index in 0..count {
                    values.push(self.value(index, scope)?);
                }
                function(&values, call)
            }
        }
    }
}

impl std::fmt::Debug for Operation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Operation")
            .field("name", &self.spec.name)
            .field("arguments", &self.arguments)
            .finish_non_exhaustive()
    }
}

/// The context of an eager function.
#[derive(Clone, Copy)]
pub(crate) struct CallContext<'c, 's> {
    /// The operator's name, for messages.
    pub name: &'static str,
    /// The scope, for collation and context.
    pub scope: &'c Scope<'s>,
}

/// Returns the argument at `index`; missing if there are fewer.
pub(crate) fn arg<'a, 's>(values: &'a [Evaluated<'s>], index: usize) -> &'a Evaluated<'s> {
    values.get(index).unwrap_or(&Evaluated::MISSING)
}
