//! Statements that are parsed, and those that are refused.

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
