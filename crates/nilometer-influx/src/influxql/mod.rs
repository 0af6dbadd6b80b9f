//! InfluxQL: text to statements.
//!
//! ```text
//! SELECT mean("usage") FROM "cpu" WHERE "host" = 'a' AND time > now() - 1h GROUP BY time(1m), "host" fill(null)
//!    │ lexer: tokens with their positions
//!    ▼ parser
//! Select {fields, sources, condition, group_by, fill, …}
//! ```
//!
//! The language is that of InfluxDB 1.8, without the statements that manage users and shards: the parser names
//! what it refuses. [`functions`] is the table of functions. Errors say what was found and where, as InfluxDB does.

pub mod ast;
mod expression;
pub mod functions;
mod lexer;
mod parser;
pub mod support;

pub use ast::{Expr, Select, Statement};
pub use parser::{Bindings, parse};

use std::fmt;

/// The longest text of statements, in bytes.
pub const QUERY_BYTES_MAX: usize = 256 * 1024;

/// How deep expressions nest.
pub const DEPTH_MAX: usize = 64;

/// How deep subqueries nest.
pub const SUBQUERY_DEPTH_MAX: usize = 8;

/// Operators of one statement.
pub const OPERATORS_MAX: usize = 2048;

/// Statements in one text.
pub const STATEMENTS_MAX: usize = 256;

/// Fields, sources or dimensions of one statement.
pub const LIST_MAX: usize = 1024;

/// Why a text is no list of statements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ParseError {
    /// What was found, and what was expected or is not supported.
    pub message: String,
    /// The line, from 1.
    pub line: usize,
    /// The character in the line, from 1.
    pub column: usize,
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "error parsing query: {} at line {}, char {}",
            self.message, self.line, self.column
        )
    }
}
