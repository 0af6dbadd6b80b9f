//! Variables: names resolved while an expression is parsed, and their values during evaluation.
//!
//! ```text
//! ParseContext   user names ─── position ───▶ slot       ($let, $map … append slots)
//! EvalContext    slot ───▶ value                          (inner bindings live on the stack)
//! ```
//!
//! Names are resolved once, at parse time; evaluation uses slots only. A stage that defines
//! variables (`let` of a command or of `$lookup`, `$$new` of `$merge`, `$$KEEP` of `$redact`) adds
//! them to its [`ParseContext`] and passes the values in the same order.

use std::sync::Arc;

use nilometer_bson::Value;
use nilometer_bson::order::Collator;

use super::collation::LocaleOrder;
use super::limits::{EvaluationLimits, FoldBudget, Interrupt};
use crate::error::{Error, ErrorCode, Result};

/// Source of random numbers, used only by `$rand`.
pub trait Random {
    /// Returns a random number, uniform in [0, 1).
    fn next_f64(&self) -> f64;
}

/// A collation shared between threads.
pub type SharedCollator = Arc<LocaleOrder>;

/// The names an expression may refer to while it is parsed.
#[derive(Clone, Default)]
pub struct ParseContext {
    /// User variables; the position is the slot in [`EvalContext::variables`].
    variables: Vec<Arc<str>>,
    /// The collation of the operation, if not binary.
    collator: Option<SharedCollator>,
    /// True if a constant that cannot be evaluated fails only where it is evaluated.
    defers_errors: bool,
    /// The work that folding may still do; shared with all clones.
    folding: Arc<FoldBudget>,
}

impl ParseContext {
    /// Creates a context with the system variables only, comparing strings by bytes.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a variable and returns its slot.
    ///
    /// A name defined twice hides the earlier one, as an inner `let` hides an outer one.
    pub fn define(&mut self, name: &str) -> usize {
        self.variables.push(name.into());
        self.variables.len() - 1
    }

    /// Adds a variable.
    #[must_use]
    pub fn with_variable(mut self, name: &str) -> Self {
        self.define(name);
        self
    }

    /// Sets the collation.
    #[must_use]
    pub fn with_collator(mut self, collator: Option<SharedCollator>) -> Self {
        self.collator = collator;
        self
    }

    /// Lets constants that cannot be evaluated fail only where they are evaluated: an update that matches nothing
    /// succeeds.
    #[must_use]
    pub fn deferring_errors(mut self) -> Self {
        self.defers_errors = true;
        self
    }

    /// True if a constant that cannot be evaluated fails only where it is evaluated.
    pub fn defers_errors(&self) -> bool {
        self.defers_errors
    }

    /// Returns the collation, if there is one.
    pub fn collator(&self) -> Option<&SharedCollator> {
        self.collator.as_ref()
    }

    /// Lets the interrupt end the parsing, which may compile many patterns.
    #[must_use]
    pub fn with_interrupt(self, interrupt: Arc<dyn Interrupt + Send + Sync>) -> Self {
        self.folding.set_interrupt(interrupt);
        self
    }

    /// Returns the budget of constant folding.
    pub(crate) fn folding(&self) -> &FoldBudget {
        &self.folding
    }

    /// Returns the number of user variables.
    pub fn variable_count(&self) -> usize {
        self.variables.len()
    }

    /// Returns the names of the user variables, by slot.
    pub fn variable_names(&self) -> &[Arc<str>] {
        &self.variables
    }

    /// Returns the slot of the innermost user variable called `name`.
    pub fn slot(&self, name: &str) -> Option<usize> {
        self.variables.iter().rposition(|known| &**known == name)
    }
}

impl std::fmt::Debug for ParseContext {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParseContext")
            .field("variables", &self.variables)
            .field("collator", &self.collator.is_some())
            .finish()
    }
}

/// The inputs of an expression besides the document.
#[derive(Clone, Copy, Default)]
pub struct EvalContext<'a> {
    /// `$$NOW`: the operation's start, milliseconds since 1970.
    pub now_ms: i64,
    /// Values of the user variables, by slot.
    pub variables: &'a [Value],
    /// The collation of the operation, if not binary.
    pub collator: Option<&'a dyn Collator>,
    /// Source of `$rand`.
    pub random: Option<&'a dyn Random>,
    /// `$$USER_ROLES`; `None` without an authenticated user, read as an empty array.
    pub user_roles: Option<&'a Value>,
    /// Interrupts and memory of the operation; `None` if the work is known to be small.
    pub limits: Option<EvaluationLimits<'a>>,
}

impl std::fmt::Debug for EvalContext<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EvalContext")
            .field("now_ms", &self.now_ms)
            .field("variables", &self.variables)
            .finish_non_exhaustive()
    }
}

/// Checks a variable name that a user defines (`let`, `vars`, `as`): a lower-case letter or a
/// non-ASCII character first, then letters, digits and underscores. `CURRENT` may be redefined.
pub fn check_user_name(name: &str) -> Result<()> {
    let mut chars = name.chars();
    let Some(first) = chars.next() else {
        return Err(Error::new(
            ErrorCode::FailedToParse,
            "empty variable names are not allowed",
        ));
    };
    if name == "CURRENT" {
        return Ok(());
    }
    if first.is_ascii() && !first.is_ascii_lowercase() {
        return Err(Error::new(
            ErrorCode::FailedToParse,
            format!("'{name}' starts with an invalid character for a user variable name"),
        ));
    }
    check_rest(name, chars)
}

/// Checks a variable name that is read; system variables start with a capital letter.
pub(crate) fn check_read_name(name: &str) -> Result<()> {
    let mut chars = name.chars();
    match chars.next() {
        None => Err(Error::new(
            ErrorCode::FailedToParse,
            "empty variable names are not allowed",
        )),
        Some(first) if first.is_ascii() && !first.is_ascii_alphabetic() => Err(Error::new(
            ErrorCode::FailedToParse,
            format!("'{name}' starts with an invalid character for a variable name"),
        )),
        Some(_) => check_rest(name, chars),
    }
}

fn check_rest(name: &str, mut chars: std::str::Chars<'_>) -> Result<()> {
    match chars.find(|c| c.is_ascii() && !c.is_ascii_alphanumeric() && *c != '_') {
        None => Ok(()),
        Some(c) => Err(Error::new(
            ErrorCode::FailedToParse,
            format!("'{name}' contains an invalid character for a variable name: '{c}'"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_names() {
        for good in ["a", "aB_9", "CURRENT", "é", "ünder"] {
            assert!(check_user_name(good).is_ok(), "{good}");
        }
        for bad in ["", "A", "_a", "1", "a-b", "a.b", "ROOT"] {
            let error = check_user_name(bad).unwrap_err();
            assert_eq!(error.code, ErrorCode::FailedToParse, "{bad}");
        }
        assert!(check_read_name("NOW").is_ok());
        assert!(check_read_name("_x").is_err());
        assert!(check_read_name("").is_err());
    }

    #[test]
    fn inner_names_hide_outer_ones() {
        let mut context = ParseContext::new().with_variable("x").with_variable("y");
        assert_eq!(context.slot("x"), Some(0));
        assert_eq!(context.define("x"), 2);
        assert_eq!(context.slot("x"), Some(2));
        assert_eq!(context.slot("z"), None);
        assert_eq!(context.variable_count(), 3);
    }
}
