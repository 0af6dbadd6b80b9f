//! The table of expression operators.
//!
//! Each row defines the arguments of an operator and its evaluator, or why it is rejected. Parsing,
//! error texts and the compatibility list are derived from it; an operator that is not in the table
//! is not supported.

use std::collections::HashMap;
use std::sync::LazyLock;

use nilometer_bson::ValueRef;

use super::evaluated::Evaluated;
use super::operation::{CallContext, Operation, PreparedData};
use super::parse::ExpressionParser;
use super::scope::Scope;
use super::{Expression, table};
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::FoldBudget;

/// Called with all arguments evaluated.
pub(crate) type EagerFn =
    for<'s> fn(&[Evaluated<'s>], CallContext<'_, 's>) -> Result<Evaluated<'s>>;
/// Evaluates the required arguments itself.
pub(crate) type LazyFn = for<'s> fn(&'s Operation, &Scope<'s>) -> Result<Evaluated<'s>>;
/// Parses the operator's argument itself.
pub(crate) type ParseFn =
    fn(&mut ExpressionParser<'_>, &'static OperatorSpec, ValueRef<'_>) -> Result<Expression>;
/// Prepares data from constant arguments.
pub(crate) type PrepareFn = fn(&Operation, &FoldBudget) -> Option<PreparedData>;

/// The arguments of an operator.
#[derive(Clone, Copy, Debug)]
pub enum Arguments {
    /// This number of arguments, in an array; a single one may stand alone.
    Exactly(usize),
    /// A number of arguments between the two.
    Between(usize, usize),
    /// Any number of arguments.
    Any,
    /// An object with these members.
    Named(&'static NamedArguments),
    /// Parsed by the operator.
    Own,
}

/// The members of an argument object.
#[derive(Clone, Copy, Debug)]
pub struct NamedArguments {
    /// Code if the argument is not an object.
    pub not_object: i32,
    /// Code of an unknown member.
    pub unknown: i32,
    /// The members, in the order of an operation's arguments.
    pub fields: &'static [NamedArgument],
}

/// A member of an argument object.
#[derive(Clone, Copy, Debug)]
pub struct NamedArgument {
    /// Its name.
    pub name: &'static str,
    /// Code if it is absent; `None` if it is optional.
    pub required: Option<i32>,
}

/// Creates a required member.
pub(crate) const fn required(name: &'static str, code: i32) -> NamedArgument {
    NamedArgument {
        name,
        required: Some(code),
    }
}

/// Creates an optional member.
pub(crate) const fn optional(name: &'static str) -> NamedArgument {
    NamedArgument {
        name,
        required: None,
    }
}

/// Support status of an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SupportStatus {
    /// Behaves as in MongoDB.
    Supported,
    /// Known, and rejected with this error.
    Refused {
        /// The code.
        code: ErrorCode,
        /// Completes the sentence that starts with the operator's name.
        reason: &'static str,
    },
}

/// Constant folding of an operator's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FoldMode {
    /// All arguments are always evaluated.
    Strict,
    /// Only the first is always evaluated.
    Branches,
    /// Depends on more than its arguments.
    Never,
}

#[derive(Clone, Copy)]
pub(crate) enum Evaluator {
    Eager(EagerFn),
    Lazy(LazyFn),
    /// The operator has its own variant in [`Expression`], or is rejected.
    None,
}

/// A row of the table.
#[derive(Clone, Copy)]
pub struct OperatorSpec {
    /// The name, with its dollar sign.
    pub name: &'static str,
    /// Its arguments.
    pub arguments: Arguments,
    /// Its support status.
    pub status: SupportStatus,
    pub(crate) parse: Option<ParseFn>,
    pub(crate) evaluator: Evaluator,
    pub(crate) prepare: Option<PrepareFn>,
    pub(crate) fold: FoldMode,
    pub(crate) random: bool,
}

impl OperatorSpec {
    const fn new(name: &'static str, arguments: Arguments, evaluator: Evaluator) -> Self {
        Self {
            name,
            arguments,
            status: SupportStatus::Supported,
            parse: None,
            evaluator,
            prepare: None,
            fold: FoldMode::Strict,
            random: false,
        }
    }

    /// Creates a row for a function of evaluated arguments.
    pub(crate) const fn eager(name: &'static str, arguments: Arguments, f: EagerFn) -> Self {
        Self::new(name, arguments, Evaluator::Eager(f))
    }

    /// Creates a row for a function that evaluates its arguments itself.
    pub(crate) const fn lazy(name: &'static str, arguments: Arguments, f: LazyFn) -> Self {
        Self::new(name, arguments, Evaluator::Lazy(f))
    }

    /// Creates a row for an operator with its own variant.
    pub(crate) const fn node(name: &'static str, arguments: Arguments, parse: ParseFn) -> Self {
        let mut spec = Self::new(name, arguments, Evaluator::None);
        spec.parse = Some(parse);
        spec
    }

    /// Creates a row for a rejected operator.
    pub(crate) const fn refused(name: &'static str, code: ErrorCode, reason: &'static str) -> Self {
        let mut spec = Self::new(name, Arguments::Own, Evaluator::None);
        spec.status = SupportStatus::Refused { code, reason };
        spec
    }

    /// Sets the parser of the argument.
    pub(crate) const fn parsed_by(mut self, parse: ParseFn) -> Self {
        self.parse = Some(parse);
        self
    }

    /// Sets the preparation from constant arguments.
    pub(crate) const fn prepared_by(mut self, prepare: PrepareFn) -> Self {
        self.prepare = Some(prepare);
        self
    }

    /// Declares that only the first argument is always evaluated.
    pub(crate) const fn branching(mut self) -> Self {
        self.fold = FoldMode::Branches;
        self
    }

    /// Declares that it depends on more than its arguments, such as parts with bound variables.
    pub(crate) const fn never_folded(mut self) -> Self {
        self.fold = FoldMode::Never;
        self
    }

    /// Declares that results differ between evaluations.
    pub(crate) const fn random(mut self) -> Self {
        self.random = true;
        self
    }
}

impl std::fmt::Debug for OperatorSpec {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OperatorSpec")
            .field("name", &self.name)
            .field("arguments", &self.arguments)
            .field("status", &self.status)
            .finish_non_exhaustive()
    }
}

impl Arguments {
    /// Checks the number of positional arguments.
    pub(crate) fn check_count(self, operator: &str, count: usize) -> Result<()> {
        let fits = match self {
            Self::Exactly(n) => count == n,
            Self::Between(min, max) => (min..=max).contains(&count),
            Self::Any | Self::Named(_) | Self::Own => true,
        };
        if fits {
            Ok(())
        } else {
            Err(self.count_error(operator, count))
        }
    }

    /// Returns the error of a wrong number of arguments.
    pub(crate) fn count_error(self, operator: &str, count: usize) -> Error {
        match self {
            Self::Between(min, max) => Error::location(
                location::ARGUMENT_COUNT_RANGE,
                format!(
                    "Expression {operator} takes at least {min} arguments, and at most {max}, \
                     but {count} were passed in."
                ),
            ),
            Self::Exactly(n) => Error::location(
                location::ARGUMENT_COUNT,
                format!(
                    "Expression {operator} takes exactly {n} arguments. {count} were passed in."
                ),
            ),
            Self::Any | Self::Named(_) | Self::Own => Error::location(
                location::ARGUMENT_COUNT,
                format!("Expression {operator} cannot take {count} arguments."),
            ),
        }
    }
}

/// All operators.
pub static OPERATORS: &[OperatorSpec] = table::TABLE;

static BY_NAME: LazyLock<HashMap<&'static str, &'static OperatorSpec>> =
    LazyLock::new(|| OPERATORS.iter().map(|spec| (spec.name, spec)).collect());

/// Returns the row called `name`, including the dollar sign.
pub(crate) fn find(name: &str) -> Option<&'static OperatorSpec> {
    BY_NAME.get(name).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_every_row_does_something() {
        assert_eq!(BY_NAME.len(), OPERATORS.len());
        for spec in OPERATORS {
            assert!(spec.name.starts_with('$'), "{}", spec.name);
            let refused = matches!(spec.status, SupportStatus::Refused { .. });
            let works = spec.parse.is_some() || !matches!(spec.evaluator, Evaluator::None);
            assert!(refused != works, "{}", spec.name);
        }
    }
}
