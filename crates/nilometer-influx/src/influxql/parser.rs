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
mod tests {
    use super::*;

    fn one(text: &str) -> Statement {
        let mut all = parse(text, &Bindings::new()).unwrap_or_else(|e| panic!("{text}: {e}"));
        assert_eq!(all.len(), 1, "{text}");
        all.remove(0)
    }

    fn select(text: &str) -> Select {
        match one(text) {
            Statement::Select(select) => *select,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_query_of_a_dashboard() {
        let parsed = select(
            "SELECT mean(\"usage\") * 2 AS \"u\", max(b) FROM \"db\".\"autogen\".\"cpu\", /m.*/ WHERE (\"host\"::tag =~ /^a$/ OR \
             host = 'b') AND time >= 1500ms and time <= now() - 1h GROUP BY time(10s, -2s), \"host\"::tag, * fill(previous) \
             ORDER BY time DESC LIMIT 5 OFFSET 1 SLIMIT 2 SOFFSET 3 tz('Europe/Berlin')",
        );
        assert_eq!(parsed.fields[0].expr.to_string(), "(mean(\"usage\") * 2)");
        assert_eq!(parsed.fields[0].alias.as_deref(), Some("u"));
        assert_eq!(parsed.sources[0].db.as_deref(), Some("db"));
        assert_eq!(parsed.sources[0].policy.as_deref(), Some("autogen"));
        assert_eq!(parsed.sources[1].name, SourceName::Regex("m.*".into()));
        assert_eq!(
            parsed.condition.unwrap().to_string(),
            "((((\"host\" =~ /^a$/) OR (\"host\" = 'b')) AND (\"time\" >= 1500000000ns)) AND (\"time\" <= (now() - 3600000000000ns)))"
        );
        let interval = parsed.interval.unwrap();
        assert_eq!(interval.length_ns, 10_000_000_000);
        assert_eq!(interval.offset, Some(Expr::Duration(-2_000_000_000)));
        assert_eq!(
            parsed.dimensions,
            [Dimension::Tag("host".into()), Dimension::All]
        );
        assert_eq!(parsed.fill, Fill::Previous);
        assert!(parsed.descending);
        let limits = Limits {
            limit: 5,
            offset: 1,
            slimit: 2,
            soffset: 3,
        };
        assert_eq!(parsed.limits, limits);
        assert_eq!(parsed.time_zone.as_deref(), Some("Europe/Berlin"));
    }

    #[test]
    fn targets_of_into() {
        let some = |text: &str| Some(text.to_owned());
        for (text, db, policy, name) in [
            ("m", None, None, some("m")),
            ("p.m", None, some("p"), some("m")),
            ("d..m", some("d"), None, some("m")),
            ("d.p.\"a b\"", some("d"), some("p"), some("a b")),
            ("d..:MEASUREMENT", some("d"), None, None),
            ("d.p.:measurement", some("d"), some("p"), None),
            ("p.:MEASUREMENT", None, some("p"), None),
        ] {
            let parsed = select(&format!("SELECT a INTO {text} FROM n"));
            assert_eq!(parsed.into, Some(IntoTarget { db, policy, name }), "{text}");
        }
        assert!(!one("SELECT a INTO b FROM m").is_reading());
        assert!(one("SELECT a FROM m").is_reading());
    }

    #[test]
    fn operators_bind_as_in_influxdb() {
        let text = |text: &str| select(text).fields[0].expr.to_string();
        assert_eq!(
            text("SELECT a + b * c - d FROM m"),
            "((\"a\" + (\"b\" * \"c\")) - \"d\")"
        );
        assert_eq!(
            text("SELECT (a + b) * -c % 2 FROM m"),
            "(((\"a\" + \"b\") * (-1 * \"c\")) % 2)"
        );
        assert_eq!(text("SELECT -2.5 FROM m"), "-2.5");
        assert_eq!(
            text("SELECT top(a, host, 3) FROM m"),
            "top(\"a\", \"host\", 3)"
        );
        assert_eq!(text("SELECT DISTINCT a FROM m"), "distinct(\"a\")");
        assert_eq!(
            text("SELECT count(DISTINCT a) FROM m"),
            "count(distinct(\"a\"))"
        );
        assert_eq!(text("SELECT a / b / c FROM m"), "((\"a\" / \"b\") / \"c\")");
    }

    #[test]
    fn statements_that_show() {
        for text in [
            "SHOW DATABASES",
            "SHOW MEASUREMENTS ON d WITH MEASUREMENT =~ /(?i)cpu/ WHERE host = 'a' LIMIT 100",
            "show tag keys from \"autogen\".\"cpu\"",
            "SHOW TAG VALUES FROM cpu WITH KEY IN (\"a\", b) WHERE region =~ /x/ LIMIT 5",
            "SHOW TAG VALUES WITH KEY != a",
            "SHOW FIELD KEYS ON d FROM cpu",
            "SHOW RETENTION POLICIES on \"d\"",
            "SHOW SERIES FROM cpu WHERE host = 'a'",
            "CREATE DATABASE \"telegraf\"",
            "DROP MEASUREMENT cpu",
        ] {
            one(text);
        }
        assert_eq!(
            one("CREATE DATABASE d WITH DURATION 30d REPLICATION 1 SHARD DURATION 1d"),
            Statement::CreateDatabase("d".into(), 2_592_000_000_000_000)
        );
    }

    #[test]
    fn what_is_not_supported_is_refused_by_name() {
        for (text, expected) in [
            (
                "SELECT a FROM (SELECT a INTO b FROM c)",
                "INTO is not supported in a subquery at line 1, char 25",
            ),
            (
                "SELECT a INTO :MEASUREMENT FROM c",
                "found :, expected identifier at line 1, char 15",
            ),
            (
                "SELECT a INTO b, c FROM d",
                "found ,, expected FROM at line 1, char 16",
            ),
            (
                "SELECT a INTO a.b.c.d FROM m",
                "found d, expected FROM at line 1, char 21",
            ),
            (
                "DELETE FROM a",
                "DELETE FROM is not supported at line 1, char 1",
            ),
            (
                "DROP SERIES FROM a",
                "DROP SERIES is not supported at line 1, char 1",
            ),
            (
                "SHOW USERS",
                "SHOW USERS  is not supported at line 1, char 6",
            ),
            (
                "SELECT a FROM m GROUP BY 5",
                "only time and tag dimensions allowed",
            ),
            (
                "SELECT a,\n  frobnicate(b) FROM m",
                "undefined function frobnicate() at line 2, char 3",
            ),
            (
                "SELECT a FROM m WHERE foo(a) > 1",
                "undefined function foo() at line 1, char 23",
            ),
            (
                "SELECT mode(a) FROM m",
                "the function mode(): it is not supported yet at line 1, char 8",
            ),
            ("SELECT FROM m", "found FROM, expected identifier"),
            ("SELECT a FROM m ORDER BY b", "only ORDER BY time supported"),
            (
                "SELECT a FROM m x",
                "found x, expected ; or EOF at line 1, char 17",
            ),
            ("SELECT a FROM m WHERE x = $y", "missing parameter: y"),
            (
                "SELECT a FROM m GROUP BY time(5)",
                "time dimension expects a duration",
            ),
        ] {
            let error = parse(text, &Bindings::new()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
        let nested = |depth| {
            format!(
                "SELECT a FROM {}m{}",
                "(SELECT a FROM ".repeat(depth),
                ")".repeat(depth)
            )
        };
        assert!(parse(&nested(SUBQUERY_DEPTH_MAX), &Bindings::new()).is_ok());
        let error = parse(&nested(SUBQUERY_DEPTH_MAX + 1), &Bindings::new()).unwrap_err();
        assert!(error.message.contains("nest more than 8 deep"), "{error}");
        let deep = format!("SELECT {}a{} FROM m", "(".repeat(100), ")".repeat(100));
        assert!(parse(&deep, &Bindings::new()).is_err());
        let long = format!("SELECT a FROM m WHERE a{}", "+1".repeat(3000));
        assert!(parse(&long, &Bindings::new()).is_err());
        assert!(parse(&";SELECT a FROM m".repeat(300), &Bindings::new()).is_err());
    }
}
