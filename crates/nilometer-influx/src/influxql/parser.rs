//! From tokens to statements.

use std::collections::HashMap;

use super::ast::{
    Cast, Dimension, Expr, Fill, Interval, IntoTarget, KeyFilter, Limits, Select, SelectField,
    Show, Source, SourceName, Statement,
};
use super::lexer::{Lexer, Token};
use super::{LIST_MAX, ParseError, QUERY_BYTES_MAX, STATEMENTS_MAX, SUBQUERY_DEPTH_MAX};

/// Values of `$name`.
pub type Bindings = HashMap<String, Expr>;

/// Statements that are refused by name.
const REFUSED: [&str; 9] = [
    "ALTER", "DELETE", "EXPLAIN", "GRANT", "KILL", "REVOKE", "SET", "CREATE", "DROP",
];

pub(super) type Parsed<T> = Result<T, ParseError>;

/// Parses statements separated by semicolons.
pub fn parse(text: &str, bindings: &Bindings) -> Parsed<Vec<Statement>> {
    let mut parser = Parser {
        lexer: Lexer::new(text),
        bindings,
        depth: 0,
        subqueries: 0,
        operators: 0,
    };
    if text.len() > QUERY_BYTES_MAX {
        return Err(parser.lexer.error(
            0,
            format!("the query is longer than {QUERY_BYTES_MAX} bytes"),
        ));
    }
    let mut statements = Vec::new();
    loop {
        while parser.take_sign(";")? {}
        if parser.peek()? == Token::End {
            return Ok(statements);
        }
        if statements.len() == STATEMENTS_MAX {
            return Err(parser.here(format!("there are more than {STATEMENTS_MAX} statements")));
        }
        parser.operators = 0;
        statements.push(parser.statement()?);
        if parser.peek()? != Token::End && !parser.take_sign(";")? {
            return Err(parser.unexpected("; or EOF"));
        }
    }
}

/// The text, and what is counted while it is read.
pub(super) struct Parser<'a> {
    pub(super) lexer: Lexer<'a>,
    pub(super) bindings: &'a Bindings,
    /// How deep the expression nests.
    pub(super) depth: usize,
    /// How deep the subquery nests.
    subqueries: usize,
    /// Operators of the statement.
    pub(super) operators: usize,
}

impl Parser<'_> {
    pub(super) fn peek(&mut self) -> Parsed<Token> {
        self.lexer.clone().next()
    }

    /// Returns an error at the next token.
    pub(super) fn here(&mut self, message: impl Into<String>) -> ParseError {
        let at = self.lexer.position();
        self.lexer.error(at, message)
    }

    pub(super) fn unexpected(&mut self, expected: &str) -> ParseError {
        match self.peek() {
            Ok(token) => self.here(format!("found {}, expected {expected}", token.shown())),
            Err(error) => error,
        }
    }

    /// True if the next token is the keyword.
    fn at_word(&mut self, word: &str) -> Parsed<bool> {
        Ok(matches!(self.peek()?, Token::Word(found) if found.eq_ignore_ascii_case(word)))
    }

    fn take_word(&mut self, word: &str) -> Parsed<bool> {
        let found = self.at_word(word)?;
        if found {
            self.lexer.next()?;
        }
        Ok(found)
    }

    fn expect_word(&mut self, word: &str) -> Parsed<()> {
        match self.take_word(word)? {
            true => Ok(()),
            false => Err(self.unexpected(word)),
        }
    }

    pub(super) fn take_sign(&mut self, sign: &str) -> Parsed<bool> {
        let found = matches!(self.peek()?, Token::Sign(found) if found == sign);
        if found {
            self.lexer.next()?;
        }
        Ok(found)
    }

    pub(super) fn expect_sign(&mut self, sign: &str) -> Parsed<()> {
        match self.take_sign(sign)? {
            true => Ok(()),
            false => Err(self.unexpected(sign)),
        }
    }

    /// Reads a name.
    pub(super) fn name(&mut self) -> Parsed<String> {
        match self.peek()? {
            Token::Word(name) | Token::Quoted(name) => {
                self.lexer.next()?;
                Ok(name)
            }
            _ => Err(self.unexpected("identifier")),
        }
    }

    fn statement(&mut self) -> Parsed<Statement> {
        if self.at_word("SELECT")? {
            return Ok(Statement::Select(Box::new(self.select()?)));
        }
        if self.take_word("SHOW")? {
            return self.show();
        }
        let mut ahead = self.lexer.clone();
        let (first, second) = (ahead.next()?, ahead.next()?);
        let is = |token: &Token, word: &str| matches!(token, Token::Word(found) if found.eq_ignore_ascii_case(word));
        for (verb, noun) in [
            ("CREATE", "DATABASE"),
            ("DROP", "DATABASE"),
            ("DROP", "MEASUREMENT"),
        ] {
            if is(&first, verb) && is(&second, noun) {
                self.lexer = ahead;
                let name = self.name()?;
                return match (verb, noun) {
                    ("CREATE", _) => self.create_database(name),
                    (_, "DATABASE") => Ok(Statement::DropDatabase(name)),
                    _ => Ok(Statement::DropMeasurement(name)),
                };
            }
        }
        if let Some(word) = REFUSED.iter().find(|word| is(&first, word)) {
            return Err(self.here(format!("{word} {} is not supported", second.shown())));
        }
        Err(self.unexpected("SELECT, SHOW, CREATE DATABASE, DROP DATABASE, DROP MEASUREMENT"))
    }

    fn create_database(&mut self, name: String) -> Parsed<Statement> {
        let mut duration = 0;
        if self.take_word("WITH")? {
            let mut any = false;
            loop {
                if self.take_word("DURATION")? {
                    duration = self.duration_or_inf()?;
                } else if self.take_word("REPLICATION")? {
                    self.lexer.next()?;
                } else if self.take_word("SHARD")? {
                    self.expect_word("DURATION")?;
                    self.duration_or_inf()?;
                } else if self.at_word("NAME")? {
                    return Err(
                        self.here("NAME is not supported: the only retention policy is autogen")
                    );
                } else if any {
                    break;
                } else {
                    return Err(self.unexpected("DURATION, REPLICATION, SHARD"));
                }
                any = true;
            }
        }
        Ok(Statement::CreateDatabase(name, duration))
    }

    fn duration_or_inf(&mut self) -> Parsed<i64> {
        if self.take_word("INF")? {
            return Ok(0);
        }
        match self.peek()? {
            Token::Duration(ns) => {
                self.lexer.next()?;
                Ok(ns)
            }
            Token::Integer(0) => {
                self.lexer.next()?;
                Ok(0)
            }
            _ => Err(self.unexpected("duration")),
        }
    }

    fn show(&mut self) -> Parsed<Statement> {
        let start = self.lexer.clone();
        let first = self.name()?.to_ascii_uppercase();
        let second = match self.peek()? {
            Token::Word(word) => word.to_ascii_uppercase(),
            _ => String::new(),
        };
        match (first.as_str(), second.as_str()) {
            ("DATABASES", _) => Ok(Statement::ShowDatabases),
            ("MEASUREMENTS", _) => {
                let mut show = Show {
                    db: self.on()?,
                    ..Show::default()
                };
                if self.take_word("WITH")? {
                    self.expect_word("MEASUREMENT")?;
                    show.sources = vec![self.measurement_filter()?];
                }
                self.end_of_show(&mut show)?;
                Ok(Statement::ShowMeasurements(show))
            }
            ("SERIES", "CARDINALITY" | "EXACT") => {
                Err(self.here(format!("SHOW SERIES {second} is not supported")))
            }
            ("SERIES", _) => Ok(Statement::ShowSeries(self.whole_show()?)),
            ("TAG", "KEYS") => {
                self.lexer.next()?;
                Ok(Statement::ShowTagKeys(self.whole_show()?))
            }
            ("FIELD", "KEYS") => {
                self.lexer.next()?;
                Ok(Statement::ShowFieldKeys(self.whole_show()?))
            }
            ("TAG", "VALUES") => {
                self.lexer.next()?;
                let mut show = Show {
                    db: self.on()?,
                    sources: self.from()?,
                    ..Show::default()
                };
                self.expect_word("WITH")?;
                self.expect_word("KEY")?;
                let keys = self.key_filter()?;
                self.end_of_show(&mut show)?;
                Ok(Statement::ShowTagValues(show, keys))
            }
            ("RETENTION", "POLICIES") => {
                self.lexer.next()?;
                Ok(Statement::ShowRetentionPolicies(self.on()?))
            }
            _ => {
                self.lexer = start;
                Err(self.here(format!("SHOW {first} {second} is not supported")))
            }
        }
    }

    fn on(&mut self) -> Parsed<Option<String>> {
        match self.take_word("ON")? {
            true => Ok(Some(self.name()?)),
            false => Ok(None),
        }
    }

    fn whole_show(&mut self) -> Parsed<Show> {
        let mut show = Show {
            db: self.on()?,
            sources: self.from()?,
            ..Show::default()
        };
        self.end_of_show(&mut show)?;
        Ok(show)
    }

    fn end_of_show(&mut self, show: &mut Show) -> Parsed<()> {
        if self.take_word("WHERE")? {
            show.condition = Some(self.expression()?);
        }
        if self.at_word("ORDER")? {
            self.order()?;
        }
        show.limits = self.limits()?;
        Ok(())
    }

    fn measurement_filter(&mut self) -> Parsed<Source> {
        let name = if self.take_sign("=~")? {
            SourceName::Regex(self.expect_regex()?)
        } else if self.take_sign("!~")? {
            SourceName::NotRegex(self.expect_regex()?)
        } else if self.take_sign("!=")? || self.take_sign("<>")? {
            SourceName::Not(self.name()?)
        } else {
            self.expect_sign("=")?;
            match self.lexer.regex()? {
                Some(pattern) => SourceName::Regex(pattern),
                None => SourceName::Name(self.name()?),
            }
        };
        Ok(Source {
            db: None,
            policy: None,
            name,
        })
    }

    pub(super) fn expect_regex(&mut self) -> Parsed<String> {
        match self.lexer.regex()? {
            Some(pattern) => Ok(pattern),
            None => Err(self.unexpected("regex")),
        }
    }

    fn key_filter(&mut self) -> Parsed<KeyFilter> {
        if self.take_sign("=~")? {
            return Ok(KeyFilter::Matches(self.expect_regex()?));
        }
        if self.take_sign("!~")? {
            return Ok(KeyFilter::MatchesNot(self.expect_regex()?));
        }
        if self.take_sign("!=")? || self.take_sign("<>")? {
            return Ok(KeyFilter::Not(self.name()?));
        }
        if self.take_word("IN")? {
            self.expect_sign("(")?;
            let mut keys = vec![self.name()?];
            while self.take_sign(",")? {
                self.check_list(keys.len())?;
                keys.push(self.name()?);
            }
            self.expect_sign(")")?;
            return Ok(KeyFilter::OneOf(keys));
        }
        self.expect_sign("=")?;
        Ok(KeyFilter::OneOf(vec![self.name()?]))
    }

    pub(super) fn check_list(&mut self, count: usize) -> Parsed<()> {
        match count < LIST_MAX {
            true => Ok(()),
            false => Err(self.here(format!("a list has more than {LIST_MAX} elements"))),
        }
    }

    fn from(&mut self) -> Parsed<Vec<Source>> {
        match self.take_word("FROM")? {
            true => self.sources(),
            false => Ok(Vec::new()),
        }
    }

    fn sources(&mut self) -> Parsed<Vec<Source>> {
        let mut sources = vec![self.source()?];
        while self.take_sign(",")? {
            self.check_list(sources.len())?;
            sources.push(self.source()?);
        }
        Ok(sources)
    }

    /// Reads `m`, `policy.m`, `db.policy.m`, `db..m`; the measurement may be a pattern.
    fn source(&mut self) -> Parsed<Source> {
        let mut names = Vec::new();
        let name = loop {
            if let Some(pattern) = self.lexer.regex()? {
                break SourceName::Regex(pattern);
            }
            // Nothing stands between the dots of `db..m`.
            let is_empty = !names.is_empty() && matches!(self.peek()?, Token::Sign("."));
            let name = match is_empty {
                true => String::new(),
                false => self.name()?,
            };
            if !self.take_sign(".")? {
                break SourceName::Name(name);
            }
            if names.len() == 2 {
                return Err(self.unexpected("a measurement"));
            }
            names.push(name);
        };
        let filled = |name: String| Some(name).filter(|name| !name.is_empty());
        let policy = names.pop().and_then(filled);
        Ok(Source {
            db: names.pop().and_then(filled),
            policy,
            name,
        })
    }

    /// Reads the sources of `SELECT`: measurements and subqueries in parentheses.
    fn select_sources(&mut self) -> Parsed<(Vec<Source>, Vec<Select>)> {
        let (mut sources, mut subqueries) = (Vec::new(), Vec::new());
        loop {
            self.check_list(sources.len() + subqueries.len())?;
            if matches!(self.peek()?, Token::Sign("(")) {
                subqueries.push(self.subquery()?);
            } else {
                sources.push(self.source()?);
            }
            if !self.take_sign(",")? {
                return Ok((sources, subqueries));
            }
        }
    }

    fn subquery(&mut self) -> Parsed<Select> {
        if self.subqueries == SUBQUERY_DEPTH_MAX {
            let message = format!("subqueries nest more than {SUBQUERY_DEPTH_MAX} deep");
            return Err(self.here(message));
        }
        self.subqueries += 1;
        self.expect_sign("(")?;
        let select = self.select()?;
        self.expect_sign(")")?;
        self.subqueries -= 1;
        Ok(select)
    }

    fn select(&mut self) -> Parsed<Select> {
        self.expect_word("SELECT")?;
        let mut fields = vec![self.select_field()?];
        while self.take_sign(",")? {
            self.check_list(fields.len())?;
            fields.push(self.select_field()?);
        }
        let into = self.target_of_into()?;
        self.expect_word("FROM")?;
        let (sources, subqueries) = self.select_sources()?;
        let condition = match self.take_word("WHERE")? {
            true => Some(self.expression()?),
            false => None,
        };
        let mut select = Select {
            fields,
            into,
            sources,
            subqueries,
            condition,
            interval: None,
            dimensions: Vec::new(),
            fill: Fill::default(),
            descending: false,
            limits: Limits::default(),
            time_zone: None,
        };
        if self.take_word("GROUP")? {
            self.expect_word("BY")?;
            self.group_by(&mut select)?;
            if self.take_word("FILL")? {
                select.fill = self.fill()?;
            }
        }
        if self.at_word("ORDER")? {
            select.descending = self.order()?;
        }
        select.limits = self.limits()?;
        if self.take_word("TZ")? {
            self.expect_sign("(")?;
            select.time_zone = match self.lexer.next()? {
                Token::String(name) => Some(name),
                _ => return Err(self.here("tz takes the name of a time zone in single quotes")),
            };
            self.expect_sign(")")?;
        }
        Ok(select)
    }

    /// Reads `INTO` and its measurement: `m`, `policy.m`, `db.policy.m`, `db..m`, or `:MEASUREMENT` behind a dot.
    fn target_of_into(&mut self) -> Parsed<Option<IntoTarget>> {
        if !self.at_word("INTO")? {
            return Ok(None);
        }
        if self.subqueries > 0 {
            return Err(self.here("INTO is not supported in a subquery"));
        }
        self.lexer.next()?;
        let mut names = vec![self.name()?];
        while self.take_sign(".")? {
            if names.len() == 3 {
                return Err(self.unexpected("FROM"));
            }
            let is_empty = names.len() == 1 && matches!(self.peek()?, Token::Sign("."));
            if is_empty {
                names.push(String::new());
            } else if self.take_sign(":")? {
                self.expect_word("MEASUREMENT")?;
                return Ok(Some(IntoTarget::of(names, None)));
            } else {
                names.push(self.name()?);
            }
        }
        let name = names.pop();
        Ok(Some(IntoTarget::of(names, name)))
    }

    fn select_field(&mut self) -> Parsed<SelectField> {
        let expr = match self.lexer.regex()? {
            Some(pattern) => Expr::Regex(pattern),
            None => self.expression()?,
        };
        let alias = match self.take_word("AS")? {
            true => Some(self.name()?),
            false => None,
        };
        Ok(SelectField { expr, alias })
    }

    fn group_by(&mut self, select: &mut Select) -> Parsed<()> {
        loop {
            self.check_list(select.dimensions.len())?;
            if let Some(pattern) = self.lexer.regex()? {
                select.dimensions.push(Dimension::Regex(pattern));
            } else if self.take_sign("*")? {
                self.cast()?;
                select.dimensions.push(Dimension::All);
            } else {
                let at = self.lexer.position();
                match self.operand()? {
                    Expr::Name(name, None | Some(Cast::Tag)) => {
                        select.dimensions.push(Dimension::Tag(name));
                    }
                    Expr::Call(name, arguments) if name == "time" && select.interval.is_none() => {
                        select.interval = Some(self.interval(at, arguments)?);
                    }
                    _ => {
                        return Err(self
                            .lexer
                            .error(at, "only time and tag dimensions allowed, and time once"));
                    }
                }
            }
            if !self.take_sign(",")? {
                return Ok(());
            }
        }
    }

    fn interval(&mut self, at: usize, arguments: Vec<Expr>) -> Parsed<Interval> {
        let mut arguments = arguments.into_iter();
        let (length, offset, more) = (arguments.next(), arguments.next(), arguments.next());
        match (length, more) {
            (Some(Expr::Duration(length_ns)), None) if length_ns > 0 => {
                Ok(Interval { length_ns, offset })
            }
            _ => Err(self.lexer.error(
                at,
                "time dimension expects a duration, and a duration or time as offset",
            )),
        }
    }

    fn fill(&mut self) -> Parsed<Fill> {
        self.expect_sign("(")?;
        let at = self.lexer.position();
        let fill = match self.expression()? {
            Expr::Name(name, None) => match name.to_ascii_lowercase().as_str() {
                "null" => Fill::Null,
                "none" => Fill::None,
                "previous" => Fill::Previous,
                "linear" => Fill::Linear,
                _ => {
                    return Err(self
                        .lexer
                        .error(at, format!("fill({name}) is not supported")));
                }
            },
            #[allow(clippy::cast_precision_loss, reason = "fill takes a number")]
            Expr::Integer(value) => Fill::Value(value as f64),
            Expr::Number(value) => Fill::Value(value),
            _ => {
                return Err(self
                    .lexer
                    .error(at, "fill takes null, none, previous, linear or a number"));
            }
        };
        self.expect_sign(")")?;
        Ok(fill)
    }

    /// Reads `ORDER BY time [ASC|DESC]`; true for the latter.
    fn order(&mut self) -> Parsed<bool> {
        self.expect_word("ORDER")?;
        self.expect_word("BY")?;
        if self.take_word("DESC")? {
            return Ok(true);
        }
        if self.take_word("ASC")? {
            return Ok(false);
        }
        let name = self.name()?;
        if !name.eq_ignore_ascii_case("time") {
            return Err(self.here("only ORDER BY time supported at this time"));
        }
        let descending = self.take_word("DESC")?;
        if !descending {
            self.take_word("ASC")?;
        }
        Ok(descending)
    }

    fn limits(&mut self) -> Parsed<Limits> {
        let mut limits = Limits::default();
        for (word, slot) in [
            ("LIMIT", &mut limits.limit),
            ("OFFSET", &mut limits.offset),
            ("SLIMIT", &mut limits.slimit),
            ("SOFFSET", &mut limits.soffset),
        ] {
            if !self.take_word(word)? {
                continue;
            }
            match self.peek()? {
                Token::Integer(value) => {
                    self.lexer.next()?;
                    *slot = u64::try_from(value).unwrap_or(0);
                }
                _ => return Err(self.unexpected("integer")),
            }
        }
        Ok(limits)
    }
}

#[cfg(test)]
mod tests;
