//! `$$name` and `$$name.path`.
//!
//! | name | value |
//! |---|---|
//! | `$$ROOT`, `$$CURRENT` | the document (`CURRENT` until a `$let` redefines it) |
//! | `$$NOW` | the operation's start, one value for the whole operation |
//! | `$$REMOVE` | missing: leaves a field out |
//! | `$$USER_ROLES` | roles of the authenticated user |
//! | `$$SEARCH_META` | missing: there is no search |
//! | `$$CLUSTER_TIME` | rejected (51144): only replica sets have one |
//! | others | user variables; an unknown name is error 17276 |

use nilometer_bson::ValueRef;
use nilometer_bson::path::FieldPath;

use super::Expression;
use super::evaluated::Evaluated;
use super::field_path::{follow, parse_path};
use super::parse::ExpressionParser;
use super::scope::Scope;
use crate::error::{Error, Result, location};
use crate::eval::Dependencies;
use crate::eval::value_bytes;
use crate::eval::variables::check_read_name;

/// Slots of inner bindings start here, above those of any command's variables.
pub(crate) const INNER_SLOT_MIN: usize = 1 << 32;

/// The meaning of a variable's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variable {
    /// The document.
    Root,
    /// The operation's start time.
    Now,
    /// A missing value.
    Remove,
    /// Roles of the user.
    UserRoles,
    /// A user variable or an inner binding.
    Slot(usize),
}

/// A variable and a path into it.
#[derive(Clone, Debug)]
pub struct VariablePath {
    /// The variable.
    pub variable: Variable,
    /// The path inside it.
    pub path: Option<FieldPath>,
}

impl VariablePath {
    pub(super) fn evaluate<'s>(&'s self, scope: &Scope<'s>) -> Result<Evaluated<'s>> {
        let base = match self.variable {
            Variable::Root => ValueRef::Document(scope.root),
            Variable::Now => ValueRef::DateTime(scope.context.now_ms),
            Variable::Remove => ValueRef::Missing,
            Variable::UserRoles => match scope.context.user_roles {
                Some(roles) => roles.as_ref(),
                None => {
                    ValueRef::Array(nilometer_bson::ArrayRef::new(nilometer_bson::DocRef::EMPTY))
                }
            },
            Variable::Slot(slot) => scope.variable(slot),
        };
        match &self.path {
            None => Ok(Evaluated::from(base)),
            Some(path) => {
                scope.context.charge_lookup(value_bytes(base))?;
                Ok(follow(path, base))
            }
        }
    }

    pub(super) fn dependencies(&self, into: &mut Dependencies) {
        match (self.variable, &self.path) {
            (Variable::Root, None) => into.whole = true,
            (Variable::Root, Some(path)) => {
                into.paths.insert(path.as_str().into());
            }
            (Variable::Slot(slot), _) if slot < INNER_SLOT_MIN => {
                into.variables.insert(slot);
            }
            _ => {}
        }
    }
}

impl ExpressionParser<'_> {
    /// Parses the text of a string operand that starts with a dollar sign.
    pub(super) fn dollar_string(&self, text: &str) -> Result<Expression> {
        if let Some(variable) = text.strip_prefix("$$") {
            return self.variable(variable);
        }
        let path = text.strip_prefix('$').unwrap_or(text);
        if path.is_empty() {
            return Err(Error::location(
                location::VARIABLE_NAME_MISSING,
                "'$' by itself is not a valid FieldPath",
            ));
        }
        let path = parse_path(path)?;
        Ok(match self.slot("CURRENT") {
            // `$a` means `$$CURRENT.a`, and `CURRENT` was redefined.
            Some(slot) => Expression::Variable(VariablePath {
                variable: Variable::Slot(slot),
                path: Some(path),
            }),
            None => Expression::FieldPath(path),
        })
    }

    /// Parses `$$CURRENT`.
    pub(super) fn dollar_current(&self) -> Expression {
        Expression::Variable(VariablePath {
            variable: self.slot("CURRENT").map_or(Variable::Root, Variable::Slot),
            path: None,
        })
    }

    fn variable(&self, text: &str) -> Result<Expression> {
        let (name, path) = match text.split_once('.') {
            Some((name, path)) => (name, Some(path)),
            None => (text, None),
        };
        check_read_name(name)?;
        let path = path.map(parse_path).transpose()?;
        let variable = match (self.slot(name), name) {
            (Some(slot), _) => Variable::Slot(slot),
            (None, "ROOT" | "CURRENT") => match path {
                Some(path) => return Ok(Expression::FieldPath(path)),
                None => Variable::Root,
            },
            (None, "NOW") => Variable::Now,
            (None, "REMOVE" | "SEARCH_META") => Variable::Remove,
            (None, "USER_ROLES") => Variable::UserRoles,
            (None, "CLUSTER_TIME") => {
                return Err(Error::location(
                    location::CLUSTER_TIME_UNAVAILABLE,
                    "Builtin variable '$$CLUSTER_TIME' is not available",
                ));
            }
            (None, _) => {
                return Err(Error::location(
                    location::VARIABLE_UNDEFINED,
                    format!("Use of undefined variable: {name}"),
                ));
            }
        };
        Ok(Expression::Variable(VariablePath { variable, path }))
    }
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{Value, array, doc};

    use super::super::testing::{check, parse_code};
    use super::*;
    use crate::eval::{EvalContext, ParseContext};

    #[test]
    fn system_variables() {
        let doc = doc! { "a": doc! { "b": 1 } };
        check(&doc, Value::from("$$ROOT"), doc.clone());
        check(&doc, Value::from("$$CURRENT.a.b"), 1);
        check(&doc, Value::from("$$ROOT.a"), doc! { "b": 1 });
        check(&doc, Value::from("$$REMOVE"), Value::Missing);
        check(&doc, Value::from("$$USER_ROLES"), array![]);
        check(&doc, Value::from("$$SEARCH_META"), Value::Missing);
        for (text, code) in [
            ("$", 16872),
            ("$$", 9),
            ("$$unknown", 17276),
            ("$$UNKNOWN.a", 17276),
            ("$$CLUSTER_TIME", 51144),
            ("$$a-b", 9),
            ("$$ROOT.", 40352),
            ("$a.", 40353),
            ("$a.$b", 16410),
        ] {
            assert_eq!(parse_code(Value::from(text)), code, "{text}");
        }
    }

    #[test]
    fn user_variables_and_dependencies() {
        let context = ParseContext::new().with_variable("x").with_variable("y");
        let values = [Value::from(1), Value::from(doc! { "k": 2 })];
        let eval = EvalContext {
            variables: &values,
            ..Default::default()
        };
        let text = Value::from("$$y.k");
        let expression = Expression::parse(text.as_ref(), &context).unwrap();
        let value = expression.evaluate(doc! {}.as_ref(), &eval).unwrap();
        assert!(matches!(value, Value::Int32(2)));
        let mut dependencies = Dependencies::default();
        expression.dependencies(&mut dependencies);
        assert!(dependencies.reads_nothing());
        assert!(dependencies.variables.contains(&1));

        let whole = Expression::parse(Value::from("$$ROOT").as_ref(), &context).unwrap();
        whole.dependencies(&mut dependencies);
        assert!(dependencies.whole);
    }
}
