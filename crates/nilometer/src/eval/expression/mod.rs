//! The aggregation expression language: parse once, evaluate per document.
//!
//! ```text
//! value ──parse──▶ Expression ──fold──▶ Expression ──evaluate(document, context)──▶ Value
//!                     │
//!                     └─ registry: name → argument shape, evaluator or reason of refusal
//! ```
//!
//! **Layout.** [`registry`] is the table of all operators. Each row names a function in a family
//! file (`arithmetic`, `date_parts`, `array` …), whose head documents MongoDB's behaviour and whose
//! end contains its tests. Adding an operator takes a function and a row.
//!
//! **Variants.** Operators that kernels and planner rules inspect (comparison, boolean logic, the
//! four basic arithmetic operators, `$cond`, `$dateTrunc`) have their own variant. All others are
//! an [`Operation`]: a row of the table, its argument expressions, and prepared constants.
//!
//! **Guarantees.** Parsing returns an expression or an error with MongoDB's code for any input;
//! nesting is limited by [`EXPRESSION_DEPTH_MAX`]. Evaluation is pure, borrows from the document
//! where possible, and gives the results of MongoDB 8.0: null and missing propagate as documented
//! for each operator, numbers keep MongoDB's types.
//!
//! **Not here.** Projection and accumulators over groups are other modules; JavaScript
//! (`$function`) is rejected.

mod accumulating;
mod arithmetic;
mod array;
mod array_build;
mod array_search;
mod binary_text;
mod bitwise;
mod boolean;
mod comparison;
mod conditional;
mod convert;
mod date_arguments;
mod date_arithmetic;
mod date_from_parts;
mod date_from_string;
mod date_parts;
mod date_to_string;
mod date_trunc;
mod decimal_math;
mod evaluated;
mod extended_json;
mod field_path;
mod fold;
mod hash;
pub mod hashed_index_key;
mod higher_order;
mod let_binding;
mod literal;
mod math;
mod meta;
pub(crate) mod numeric;
mod object;
mod operation;
mod parse;
mod percentile;
mod regex;
mod registry;
mod rounding;
mod scope;
mod set;
mod size;
mod sort_array;
mod string;
mod string_search;
mod substring;
mod table;
#[cfg(test)]
mod testing;
mod timestamp;
mod trigonometry;
mod trim;
mod variable;

use std::sync::Arc;

use nilometer_bson::value::Array;
use nilometer_bson::{DocRef, DocumentBuilder, Value, ValueRef};

pub use arithmetic::{Arithmetic, ArithmeticOperator, DateShift};
pub use comparison::{Comparison, ComparisonOperator};
pub use conditional::Conditional;
pub use date_trunc::{Bin, DateBins, DateTrunc};
pub use evaluated::{Evaluated, is_true};
pub(crate) use field_path::parse_path;
pub use nilometer_bson::path::FieldPath;
use nilometer_bson::path::PathValue;
pub use operation::Operation;
pub use registry::{Arguments, OPERATORS, OperatorSpec, SupportStatus};
pub use scope::Scope;
pub use variable::{Variable, VariablePath};

use super::Dependencies;
use super::variables::{EvalContext, ParseContext};
use crate::error::{Error, ErrorCode, Result};

/// Maximum nesting of expressions. MongoDB's limit is that of documents (200 levels); most
/// expressions take two levels of a document.
pub const EXPRESSION_DEPTH_MAX: usize = 150;

/// Maximum size of a computed string, array or object in bytes.
pub const VALUE_BYTES_MAX: usize = 100 << 20;

/// Returns error 146 for a value above the size limit.
fn check_bytes(bytes: usize, name: &str) -> Result<()> {
    if bytes <= VALUE_BYTES_MAX {
        return Ok(());
    }
    Err(Error::new(
        ErrorCode::ExceededMemoryLimit,
        format!("{name} would use too much memory and cannot spill: {VALUE_BYTES_MAX} bytes"),
    ))
}

/// A parsed expression.
#[derive(Clone, Debug)]
pub enum Expression {
    /// A constant: a literal, or the result of folding a constant part.
    Constant(Value),
    /// `$a.b`: a path in the document.
    FieldPath(FieldPath),
    /// `$$name` or `$$name.path`.
    Variable(VariablePath),
    /// An object literal; missing members are left out.
    Object(Vec<(Arc<str>, Expression)>),
    /// An array literal; missing elements become null.
    Array(Vec<Expression>),
    /// `$eq $ne $gt $gte $lt $lte $cmp`.
    Compare(Box<Comparison>),
    /// `$and`: true unless one operand is false.
    And(Vec<Expression>),
    /// `$or`: false unless one operand is true.
    Or(Vec<Expression>),
    /// `$not`.
    Not(Box<Expression>),
    /// `$add $subtract $multiply $divide`.
    Arithmetic(Arithmetic),
    /// `$cond`.
    Conditional(Box<Conditional>),
    /// `$dateTrunc`.
    DateTrunc(Box<DateTrunc>),
    /// Every other operator.
    Operation(Box<Operation>),
}

impl Expression {
    /// Parses any operand: literal, `"$path"`, `"$$variable"`, object, array or `{$operator: …}`.
    /// Constant parts are folded.
    pub fn parse(value: ValueRef<'_>, context: &ParseContext) -> Result<Expression> {
        let mut expression = parse::ExpressionParser::new(context).operand(value)?;
        if context.defers_errors() {
            let unfolded = expression.clone();
            return Ok(match expression.fold(context) {
                Ok(()) => expression,
                Err(_) => unfolded,
            });
        }
        expression.fold(context)?;
        Ok(expression)
    }

    /// Creates an expression that is always `value`.
    pub fn constant(value: impl Into<Value>) -> Expression {
        Self::Constant(value.into())
    }

    /// Replaces constant parts by their value.
    ///
    /// [`Expression::parse`] does this; a rule that builds or rewrites expressions calls it again.
    pub fn fold(&mut self, context: &ParseContext) -> Result<()> {
        fold::fold(self, context)
    }

    /// Returns the value for one document.
    pub fn evaluate(&self, doc: DocRef<'_>, context: &EvalContext<'_>) -> Result<Value> {
        let mark = context.mark();
        let value = self.eval(&Scope::new(doc, context));
        context.release(mark);
        Ok(value?.into_value())
    }

    /// Returns the value for one document, borrowed from it if possible: for filters, keys and
    /// accumulators, which do not keep it.
    pub fn evaluate_ref<'s>(
        &'s self,
        doc: DocRef<'s>,
        context: &'s EvalContext<'s>,
    ) -> Result<Evaluated<'s>> {
        let mark = context.mark();
        let value = self.eval(&Scope::new(doc, context));
        context.release(mark);
        value
    }

    /// Evaluates in a scope. A computed value counts as live memory until the operator around it returns.
    pub(crate) fn eval<'s>(&'s self, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
        let mark = match self {
            Self::Constant(value) => return Ok(Evaluated::from(value.as_ref())),
            Self::FieldPath(path) => {
                scope.context.charge_lookup(scope.root.as_bytes().len())?;
                match path.get(scope.root) {
                    PathValue::Ref(value) => return Ok(Evaluated::from(value)),
                    many => return count_live(Evaluated::from(many), scope),
                }
            }
            Self::Variable(variable) => return count_live(variable.evaluate(scope)?, scope),
            _ => scope.context.mark(),
        };
        let value = self.compute(scope)?;
        scope.context.hold(mark, value.heap_bytes())?;
        Ok(value)
    }

    /// Evaluates as a condition; the value is dropped.
    pub(crate) fn holds<'s>(&'s self, scope: &Scope<'s>) -> Result<bool> {
        let mark = scope.context.mark();
        let is_true = self.eval(scope)?.is_true();
        scope.context.release(mark);
        Ok(is_true)
    }

    /// Evaluates everything but constants, paths and variables.
    fn compute<'s>(&'s self, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
        match self {
            Self::Constant(_) | Self::FieldPath(_) | Self::Variable(_) => self.eval(scope),
            Self::Object(fields) => evaluate_object(fields, scope),
            Self::Array(elements) => evaluate_array(elements, scope),
            Self::Compare(comparison) => comparison.evaluate(scope),
            Self::And(operands) => boolean::and(operands, scope),
            Self::Or(operands) => boolean::or(operands, scope),
            Self::Not(operand) => Ok(Evaluated::from(!operand.holds(scope)?)),
            Self::Arithmetic(arithmetic) => arithmetic.evaluate(scope),
            Self::Conditional(conditional) => conditional.evaluate(scope),
            Self::DateTrunc(trunc) => trunc.evaluate(scope),
            Self::Operation(operation) => operation.evaluate(scope),
        }
    }

    /// Adds the inputs of this expression.
    pub fn dependencies(&self, into: &mut Dependencies) {
        match self {
            Self::FieldPath(path) => {
                into.paths.insert(path.as_str().into());
            }
            Self::Variable(variable) => variable.dependencies(into),
            Self::Operation(operation) if operation.spec.random => into.random = true,
            _ => {}
        }
        self.for_each_child(&mut |child| child.dependencies(into));
    }

    /// Returns the value of a constant.
    pub fn as_constant(&self) -> Option<&Value> {
        match self {
            Self::Constant(value) => Some(value),
            _ => None,
        }
    }

    /// Returns the path, if the expression is only a path.
    pub fn as_field_path(&self) -> Option<&FieldPath> {
        match self {
            Self::FieldPath(path) => Some(path),
            _ => None,
        }
    }

    /// Calls `visit` with each direct part.
    pub fn for_each_child(&self, visit: &mut dyn FnMut(&Expression)) {
        match self {
            Self::Constant(_) | Self::FieldPath(_) | Self::Variable(_) => {}
            Self::Object(fields) => fields.iter().for_each(|(_, child)| visit(child)),
            Self::Array(children) | Self::And(children) | Self::Or(children) => {
                children.iter().for_each(visit);
            }
            Self::Compare(comparison) => {
                visit(&comparison.left);
                visit(&comparison.right);
            }
            Self::Not(child) => visit(child),
            Self::Arithmetic(arithmetic) => arithmetic.operands.iter().for_each(visit),
            Self::Conditional(conditional) => {
                visit(&conditional.condition);
                visit(&conditional.then);
                visit(&conditional.otherwise);
            }
            Self::DateTrunc(trunc) => trunc.for_each_child(visit),
            Self::Operation(operation) => operation.arguments.iter().flatten().for_each(visit),
        }
    }

    /// Calls `visit` with each direct part, which it may replace; used by rules that rename paths.
    pub fn for_each_child_mut(&mut self, visit: &mut dyn FnMut(&mut Expression)) {
        match self {
            Self::Constant(_) | Self::FieldPath(_) | Self::Variable(_) => {}
            Self::Object(fields) => fields.iter_mut().for_each(|(_, child)| visit(child)),
            Self::Array(children) | Self::And(children) | Self::Or(children) => {
                children.iter_mut().for_each(visit);
            }
            Self::Compare(comparison) => {
                visit(&mut comparison.left);
                visit(&mut comparison.right);
            }
            Self::Not(child) => visit(child),
            Self::Arithmetic(arithmetic) => arithmetic.operands.iter_mut().for_each(visit),
            Self::Conditional(conditional) => {
                visit(&mut conditional.condition);
                visit(&mut conditional.then);
                visit(&mut conditional.otherwise);
            }
            Self::DateTrunc(trunc) => trunc.for_each_child_mut(visit),
            Self::Operation(operation) => {
                operation.arguments.iter_mut().flatten().for_each(visit);
            }
        }
    }
}

/// Counts a value as live memory.
fn count_live<'s>(value: Evaluated<'s>, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    if let Evaluated::Owned(_) = &value {
        scope
            .context
            .hold(scope.context.mark(), value.heap_bytes())?;
    }
    Ok(value)
}

fn evaluate_object<'s>(
    fields: &'s [(Arc<str>, Expression)],
    scope: &Scope<'s>,
) -> Result<Evaluated<'s>> {
    let mut out = DocumentBuilder::new();
    let mark = scope.context.mark();
    for (name, field) in fields {
        out.append_ref(name, field.eval(scope)?.as_ref());
        check_bytes(out.len(), "an object")?;
        scope.context.hold(mark, out.len())?;
    }
    Ok(Evaluated::Owned(Value::Document(out.finish())))
}

fn evaluate_array<'s>(elements: &'s [Expression], scope: &Scope<'s>) -> Result<Evaluated<'s>> {
    let mut out = DocumentBuilder::new();
    let mark = scope.context.mark();
    for (at, element) in elements.iter().enumerate() {
        out.append_indexed(at, element.eval(scope)?.as_ref());
        check_bytes(out.len(), "an array")?;
        scope.context.hold(mark, out.len())?;
    }
    Ok(Evaluated::Owned(Value::Array(Array::from_document(
        out.finish(),
    ))))
}

#[cfg(test)]
mod interrupt_tests;
#[cfg(test)]
mod tests;
