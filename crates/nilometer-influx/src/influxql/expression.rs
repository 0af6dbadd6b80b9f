//! Expressions: operands, and operators by how strongly they bind.

use super::ast::{Cast, Expr, Operator};
use super::functions::{self, FunctionKind};
use super::lexer::Token;
use super::parser::{Parsed, Parser};
use super::{DEPTH_MAX, OPERATORS_MAX};

/// Words that end an expression; as names they need quotes.
const RESERVED: [&str; 22] = [
    "AND", "AS", "ASC", "BY", "DESC", "FILL", "FROM", "GROUP", "IN", "INTO", "LIMIT", "OFFSET",
    "ON", "OR", "ORDER", "SELECT", "SLIMIT", "SOFFSET", "TZ", "WHERE", "WITH", "SHOW",
];

impl Parser<'_> {
    pub(super) fn expression(&mut self) -> Parsed<Expr> {
        self.binary(0)
    }

    /// Counts one more level of nesting while `read` runs.
    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Parsed<T>) -> Parsed<T> {
        if self.depth == DEPTH_MAX {
            return Err(self.here(format!("expressions nest more than {DEPTH_MAX} deep")));
        }
        self.depth += 1;
        let read = read(self);
        self.depth -= 1;
        read
    }

    /// Reads operands with operators that bind more strongly than `precedence`.
    fn binary(&mut self, precedence: u8) -> Parsed<Expr> {
        self.nested(|parser| {
            let mut left = parser.operand()?;
            while let Some(operator) = parser.operator()?
                && operator.precedence() > precedence
            {
                // A chain nests as deeply as it is long.
                parser.operators += 1;
                if parser.operators > OPERATORS_MAX {
                    let message = format!("there are more than {OPERATORS_MAX} operators");
                    return Err(parser.here(message));
                }
                parser.skip_operator()?;
                let right = match operator {
                    Operator::Matches | Operator::MatchesNot => Expr::Regex(parser.expect_regex()?),
                    _ => parser.binary(operator.precedence())?,
                };
                left = Expr::Binary(operator, Box::new(left), Box::new(right));
            }
            Ok(left)
        })
    }

    /// Returns the operator that follows, if one does.
    fn operator(&mut self) -> Parsed<Option<Operator>> {
        Ok(match self.peek()? {
            Token::Word(word) if word.eq_ignore_ascii_case("AND") => Some(Operator::And),
            Token::Word(word) if word.eq_ignore_ascii_case("OR") => Some(Operator::Or),
            Token::Sign(sign) => match sign {
                "+" => Some(Operator::Add),
                "-" => Some(Operator::Subtract),
                "*" => Some(Operator::Multiply),
                "/" => Some(Operator::Divide),
                "%" => Some(Operator::Modulo),
                "&" => Some(Operator::BitAnd),
                "|" => Some(Operator::BitOr),
                "^" => Some(Operator::BitXor),
                "=" => Some(Operator::Equal),
                "!=" | "<>" => Some(Operator::NotEqual),
                "<" => Some(Operator::Less),
                "<=" => Some(Operator::LessOrEqual),
                ">" => Some(Operator::Greater),
                ">=" => Some(Operator::GreaterOrEqual),
                "=~" => Some(Operator::Matches),
                "!~" => Some(Operator::MatchesNot),
                _ => None,
            },
            _ => None,
        })
    }

    fn skip_operator(&mut self) -> Parsed<()> {
        self.lexer.next().map(drop)
    }

    pub(super) fn operand(&mut self) -> Parsed<Expr> {
        let at = self.lexer.position();
        match self.peek()? {
            Token::Sign("(") => {
                self.lexer.next()?;
                let inside = self.expression()?;
                self.expect_sign(")")?;
                Ok(inside)
            }
            Token::Sign("-") => {
                self.lexer.next()?;
                let operand = self.nested(Self::operand)?;
                Ok(negated(operand))
            }
            Token::Sign("+") => {
                self.lexer.next()?;
                self.nested(Self::operand)
            }
            Token::Sign("*") => {
                self.lexer.next()?;
                Ok(Expr::Wildcard(self.cast()?))
            }
            Token::Integer(value) => self.literal(Expr::Integer(value)),
            Token::Number(value) => self.literal(Expr::Number(value)),
            Token::Duration(ns) => self.literal(Expr::Duration(ns)),
            Token::String(text) => self.literal(Expr::String(text)),
            Token::Bound(name) => match self.bindings.get(&name).cloned() {
                Some(value) => self.literal(value),
                None => Err(self.lexer.error(at, format!("missing parameter: {name}"))),
            },
            Token::Word(word) => {
                self.lexer.next()?;
                self.word_operand(at, word)
            }
            Token::Quoted(name) => {
                self.lexer.next()?;
                Ok(Expr::Name(name, self.cast()?))
            }
            Token::End | Token::Sign(_) => Err(self.unexpected("identifier, string, number, bool")),
        }
    }

    fn literal(&mut self, value: Expr) -> Parsed<Expr> {
        self.lexer.next()?;
        Ok(value)
    }

    /// Reads what a word without quotes begins.
    fn word_operand(&mut self, at: usize, word: String) -> Parsed<Expr> {
        if matches!(self.peek()?, Token::Sign("(")) {
            self.lexer.next()?;
            let name = word.to_ascii_lowercase();
            let mut arguments = Vec::new();
            while !self.take_sign(")")? {
                if !arguments.is_empty() {
                    self.expect_sign(",")?;
                    self.check_list(arguments.len())?;
                }
                arguments.push(match self.lexer.regex()? {
                    Some(pattern) => Expr::Regex(pattern),
                    None => self.expression()?,
                });
            }
            self.check_function(at, &name)?;
            return Ok(Expr::Call(name, arguments));
        }
        let upper = word.to_ascii_uppercase();
        match upper.as_str() {
            "TRUE" => Ok(Expr::Boolean(true)),
            "FALSE" => Ok(Expr::Boolean(false)),
            "DISTINCT" if matches!(self.peek()?, Token::Word(_) | Token::Quoted(_)) => {
                let name = self.name()?;
                Ok(Expr::Call(
                    "distinct".to_owned(),
                    vec![Expr::Name(name, None)],
                ))
            }
            reserved if RESERVED.contains(&reserved) => Err(self.lexer.error(
                at,
                format!("found {word}, expected identifier, string, number, bool"),
            )),
            _ => Ok(Expr::Name(word, self.cast()?)),
        }
    }

    /// Fails at the name of a function that does not exist or is not supported. `now` and `time` are no functions of the table.
    fn check_function(&self, at: usize, name: &str) -> Parsed<()> {
        let message = match functions::find(name).map(|function| function.kind) {
            None if matches!(name, "now" | "time") => return Ok(()),
            None => format!("undefined function {name}()"),
            Some(FunctionKind::Refused(why)) => format!("the function {name}(): {why}"),
            Some(_) => return Ok(()),
        };
        Err(self.lexer.error(at, message))
    }

    /// Reads `::type`, if it follows.
    pub(super) fn cast(&mut self) -> Parsed<Option<Cast>> {
        if !self.take_sign("::")? {
            return Ok(None);
        }
        let at = self.lexer.position();
        let name = self.name()?.to_ascii_lowercase();
        Ok(Some(match name.as_str() {
            "field" => Cast::Field,
            "tag" => Cast::Tag,
            "float" => Cast::Float,
            "integer" => Cast::Integer,
            "string" => Cast::String,
            "boolean" => Cast::Boolean,
            _ => {
                return Err(self.lexer.error(
                    at,
                    format!("found {name}, expected float, integer, string, boolean, field, tag"),
                ));
            }
        }))
    }
}

/// Returns the expression with the other sign.
fn negated(operand: Expr) -> Expr {
    match operand {
        Expr::Integer(value) => match value.checked_neg() {
            Some(value) => Expr::Integer(value),
            None => Expr::Number(9_223_372_036_854_775_808.0),
        },
        Expr::Number(value) => Expr::Number(-value),
        Expr::Duration(ns) => Expr::Duration(ns.saturating_neg()),
        other => Expr::Binary(
            Operator::Multiply,
            Box::new(Expr::Integer(-1)),
            Box::new(other),
        ),
    }
}
