//! Statements and expressions.

use std::fmt;

/// A statement.
#[derive(Clone, Debug, PartialEq)]
pub enum Statement {
    /// `SELECT`.
    Select(Box<Select>),
    /// `SHOW DATABASES`.
    ShowDatabases,
    /// `SHOW MEASUREMENTS [ON db] [WITH MEASUREMENT = name]`.
    ShowMeasurements(Show),
    /// `SHOW TAG KEYS`.
    ShowTagKeys(Show),
    /// `SHOW TAG VALUES … WITH KEY`: the filter of keys.
    ShowTagValues(Show, KeyFilter),
    /// `SHOW FIELD KEYS`.
    ShowFieldKeys(Show),
    /// `SHOW SERIES`.
    ShowSeries(Show),
    /// `SHOW RETENTION POLICIES [ON db]`.
    ShowRetentionPolicies(Option<String>),
    /// `CREATE DATABASE name [WITH DURATION d]`: the duration in nanoseconds, 0 for endless.
    CreateDatabase(String, i64),
    /// `DROP DATABASE name`.
    DropDatabase(String),
    /// `DROP MEASUREMENT name`.
    DropMeasurement(String),
}

impl Statement {
    /// True if it only reads.
    pub fn is_reading(&self) -> bool {
        match self {
            Self::CreateDatabase(..) | Self::DropDatabase(_) | Self::DropMeasurement(_) => false,
            Self::Select(select) => select.into.is_none(),
            _ => true,
        }
    }
}

/// The clauses of `SHOW`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Show {
    /// The database of `ON`.
    pub db: Option<String>,
    /// The measurements of `FROM`, or of `WITH MEASUREMENT`; none means all.
    pub sources: Vec<Source>,
    /// `WHERE`.
    pub condition: Option<Expr>,
    /// `LIMIT` and the like.
    pub limits: Limits,
}

/// Which keys `WITH KEY` selects.
#[derive(Clone, Debug, PartialEq)]
pub enum KeyFilter {
    /// `=`, `IN`.
    OneOf(Vec<String>),
    /// `!=`.
    Not(String),
    /// `=~`.
    Matches(String),
    /// `!~`.
    MatchesNot(String),
}

/// `LIMIT`, `OFFSET`, `SLIMIT`, `SOFFSET`; a limit of 0 is none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Rows of a series.
    pub limit: u64,
    /// Rows to skip of a series.
    pub offset: u64,
    /// Series.
    pub slimit: u64,
    /// Series to skip.
    pub soffset: u64,
}

/// A measurement that is read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Source {
    /// The database, if it is named.
    pub db: Option<String>,
    /// The retention policy, if it is named.
    pub policy: Option<String>,
    /// The measurement.
    pub name: SourceName,
}

/// The name of a measurement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SourceName {
    /// A name.
    Name(String),
    /// A pattern for names.
    Regex(String),
    /// A pattern that names do not match.
    NotRegex(String),
    /// Every name but this.
    Not(String),
}

/// The measurement of `INTO`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct IntoTarget {
    /// The database, if it is named.
    pub db: Option<String>,
    /// The retention policy, if it is named.
    pub policy: Option<String>,
    /// The measurement; `None` is `:MEASUREMENT`, that of the rows.
    pub name: Option<String>,
}

impl IntoTarget {
    /// Returns the target of the names before the measurement: of the database and the policy, either of which may be missing or empty.
    pub(super) fn of(mut before: Vec<String>, name: Option<String>) -> Self {
        let filled = |name: String| Some(name).filter(|name| !name.is_empty());
        let policy = before.pop().and_then(filled);
        Self {
            db: before.pop().and_then(filled),
            policy,
            name,
        }
    }
}

/// `SELECT`.
#[derive(Clone, Debug, PartialEq)]
pub struct Select {
    /// The columns.
    pub fields: Vec<SelectField>,
    /// Where the rows are written.
    pub into: Option<IntoTarget>,
    /// The measurements.
    pub sources: Vec<Source>,
    /// The subqueries whose rows are read like those of measurements.
    pub subqueries: Vec<Select>,
    /// `WHERE`.
    pub condition: Option<Expr>,
    /// `GROUP BY time(interval, offset)`.
    pub interval: Option<Interval>,
    /// `GROUP BY` tags.
    pub dimensions: Vec<Dimension>,
    /// `fill(…)`.
    pub fill: Fill,
    /// `ORDER BY time DESC`.
    pub descending: bool,
    /// `LIMIT` and the like.
    pub limits: Limits,
    /// `tz('…')`.
    pub time_zone: Option<String>,
}

/// A column of `SELECT`.
#[derive(Clone, Debug, PartialEq)]
pub struct SelectField {
    /// The value.
    pub expr: Expr,
    /// `AS`.
    pub alias: Option<String>,
}

/// Windows of time.
#[derive(Clone, Debug, PartialEq)]
pub struct Interval {
    /// Their length in nanoseconds.
    pub length_ns: i64,
    /// Their shift against 1970, in nanoseconds or a time.
    pub offset: Option<Expr>,
}

/// What `GROUP BY` names beside windows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Dimension {
    /// A tag.
    Tag(String),
    /// Tags by a pattern.
    Regex(String),
    /// All tags.
    All,
}

/// What windows without values show.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub enum Fill {
    /// Null; a count shows 0.
    #[default]
    Null,
    /// They are left out.
    None,
    /// The value of the window before.
    Previous,
    /// A value on the line between the windows before and after.
    Linear,
    /// This value.
    Value(f64),
}

/// What `::` says of a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cast {
    /// `::field`.
    Field,
    /// `::tag`.
    Tag,
    /// `::float`.
    Float,
    /// `::integer`.
    Integer,
    /// `::string`.
    String,
    /// `::boolean`.
    Boolean,
}

/// An operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `+`
    Add,
    /// `-`
    Subtract,
    /// `*`
    Multiply,
    /// `/`
    Divide,
    /// `%`
    Modulo,
    /// `&`
    BitAnd,
    /// `|`
    BitOr,
    /// `^`
    BitXor,
    /// `=`
    Equal,
    /// `!=`, `<>`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `=~`
    Matches,
    /// `!~`
    MatchesNot,
    /// `AND`
    And,
    /// `OR`
    Or,
}

impl Operator {
    /// Returns how it is written.
    pub fn text(self) -> &'static str {
        match self {
            Self::Add => "+",
            Self::Subtract => "-",
            Self::Multiply => "*",
            Self::Divide => "/",
            Self::Modulo => "%",
            Self::BitAnd => "&",
            Self::BitOr => "|",
            Self::BitXor => "^",
            Self::Equal => "=",
            Self::NotEqual => "!=",
            Self::Less => "<",
            Self::LessOrEqual => "<=",
            Self::Greater => ">",
            Self::GreaterOrEqual => ">=",
            Self::Matches => "=~",
            Self::MatchesNot => "!~",
            Self::And => "AND",
            Self::Or => "OR",
        }
    }

    /// True if the result is a number.
    pub fn is_arithmetic(self) -> bool {
        matches!(
            self,
            Self::Add
                | Self::Subtract
                | Self::Multiply
                | Self::Divide
                | Self::Modulo
                | Self::BitAnd
                | Self::BitOr
                | Self::BitXor
        )
    }

    /// Returns how strongly it binds; more is stronger.
    pub(super) fn precedence(self) -> u8 {
        match self {
            Self::Or => 1,
            Self::And => 2,
            Self::Add | Self::Subtract | Self::BitOr | Self::BitXor => 4,
            Self::Multiply | Self::Divide | Self::Modulo | Self::BitAnd => 5,
            _ => 3,
        }
    }

    /// Returns the operator with its operands exchanged.
    pub fn flipped(self) -> Self {
        match self {
            Self::Less => Self::Greater,
            Self::LessOrEqual => Self::GreaterOrEqual,
            Self::Greater => Self::Less,
            Self::GreaterOrEqual => Self::LessOrEqual,
            other => other,
        }
    }
}

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    /// An integer.
    Integer(i64),
    /// A number with a fraction.
    Number(f64),
    /// A text in single quotes.
    String(String),
    /// `true` or `false`.
    Boolean(bool),
    /// A duration in nanoseconds.
    Duration(i64),
    /// A pattern.
    Regex(String),
    /// The name of a field or tag.
    Name(String, Option<Cast>),
    /// `*`, `*::field`, `*::tag`.
    Wildcard(Option<Cast>),
    /// A function; its name is in lower case.
    Call(String, Vec<Expr>),
    /// Two operands.
    Binary(Operator, Box<Expr>, Box<Expr>),
}

impl Expr {
    /// Calls `visit` with this expression and all inside it.
    pub fn walk<'a>(&'a self, visit: &mut impl FnMut(&'a Expr)) {
        visit(self);
        match self {
            Self::Call(_, arguments) => arguments.iter().for_each(|one| one.walk(visit)),
            Self::Binary(_, left, right) => {
                left.walk(visit);
                right.walk(visit);
            }
            _ => {}
        }
    }

    /// True if a function other than `now` is called.
    pub fn has_calls(&self) -> bool {
        let mut found = false;
        self.walk(&mut |one| found |= matches!(one, Expr::Call(name, _) if name != "now"));
        found
    }
}

impl fmt::Display for Expr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Integer(value) => write!(f, "{value}"),
            Self::Number(value) => write!(f, "{value}"),
            Self::String(text) => write!(f, "'{text}'"),
            Self::Boolean(value) => write!(f, "{value}"),
            Self::Duration(ns) => write!(f, "{ns}ns"),
            Self::Regex(pattern) => write!(f, "/{pattern}/"),
            Self::Name(name, _) => write!(f, "\"{name}\""),
            Self::Wildcard(_) => write!(f, "*"),
            Self::Call(name, arguments) => {
                write!(f, "{name}(")?;
                for (number, argument) in arguments.iter().enumerate() {
                    let comma = if number == 0 { "" } else { ", " };
                    write!(f, "{comma}{argument}")?;
                }
                write!(f, ")")
            }
            Self::Binary(operator, left, right) => {
                write!(f, "({left} {} {right})", operator.text())
            }
        }
    }
}
