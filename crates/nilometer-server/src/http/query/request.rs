//! The parameters of a query: in the target, and in the JSON of a body.

use nilometer_bson::extjson::{parse_document, parse_value};
use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, doc};

use super::QueryRefusal;
use crate::columns::layout::NamedColumns;
use crate::http::parameters::Parameters;
use crate::http::web::WRITING_STAGES;

/// A form of results.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Format {
    /// An array of documents in extended JSON.
    Json,
    /// A document a line, in extended JSON.
    NdJson,
    /// Values separated by commas, under a line of names.
    Csv,
    /// Columns as an Arrow IPC stream.
    Arrow,
    /// Columns as a Parquet file.
    Parquet,
}

impl Format {
    /// Names, and content types.
    const NAMES: [(&'static str, &'static str, Self); 5] = [
        ("json", "application/json", Self::Json),
        ("ndjson", "application/x-ndjson", Self::NdJson),
        ("csv", "text/csv", Self::Csv),
        ("arrow", "application/vnd.apache.arrow.stream", Self::Arrow),
        ("parquet", "application/vnd.apache.parquet", Self::Parquet),
    ];

    /// Returns the content type of a response.
    pub(super) fn content_type(self) -> &'static str {
        match self {
            Self::Json => "application/json; charset=utf-8",
            Self::Csv => "text/csv; charset=utf-8",
            _ => {
                let known = Self::NAMES.iter().find(|(_, _, format)| *format == self);
                known.map_or("", |(_, kind, _)| kind)
            }
        }
    }

    fn named(name: &str) -> Result<Self, QueryRefusal> {
        let known = Self::NAMES.iter().find(|(known, _, _)| *known == name);
        known.map(|(_, _, format)| *format).ok_or_else(|| {
            let names = Self::NAMES.map(|(name, _, _)| name).join(", ");
            QueryRefusal::bad(format!("there is no format '{name}'; there are {names}"))
        })
    }

    /// Returns the first acceptable format of `Accept`; weights are not compared.
    fn accepted(field: &str) -> Result<Self, QueryRefusal> {
        for kind in field.split(',') {
            let kind = kind.split(';').next().unwrap_or_default().trim();
            if matches!(kind, "*/*" | "application/*" | "") {
                return Ok(Self::Json);
            }
            let mut known = Self::NAMES.iter();
            if let Some(known) = known.find(|(_, known, _)| known.eq_ignore_ascii_case(kind)) {
                return Ok(known.2);
            }
        }
        let kinds = Self::NAMES.map(|(_, kind, _)| kind).join(", ");
        Err(QueryRefusal::new(
            "406 Not Acceptable",
            format!("Accept names no type of {kinds}"),
        ))
    }
}

/// How the value of a parameter is written in a target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Written {
    Text,
    /// Names separated by commas; an array in a body.
    Names,
    Json,
    /// Text, or JSON that is a document.
    TextOrJson,
}

/// The parameters. Those behind `hint` belong to one of the commands.
const PARAMETERS: &[(&str, Written)] = &[
    ("database", Written::Text),
    ("db", Written::Text),
    ("collection", Written::Text),
    ("format", Written::Text),
    ("fields", Written::Names),
    ("canonical", Written::Json),
    ("allowDiskUse", Written::Json),
    ("collation", Written::Json),
    ("hint", Written::TextOrJson),
    ("let", Written::Json),
    ("maxTimeMS", Written::Json),
    ("pipeline", Written::Json),
    ("filter", Written::Json),
    ("projection", Written::Json),
    ("sort", Written::Json),
    ("skip", Written::Json),
    ("limit", Written::Json),
];

/// Options that both commands take.
const SHARED: &[&str] = &["allowDiskUse", "collation", "hint", "let", "maxTimeMS"];

/// Options of `find`.
const OF_FIND: &[&str] = &["filter", "projection", "sort", "skip", "limit"];

/// A query.
#[derive(Debug)]
pub(super) struct QueryRequest {
    pub(super) database: String,
    /// The command, which returns no documents at first.
    pub(super) command: Document,
    pub(super) format: Format,
    /// True if JSON has the type of every number and date.
    pub(super) canonical: bool,
    /// The columns, if they were named.
    pub(super) fields: NamedColumns,
}

impl QueryRequest {
    /// Parses the parameters of a target and of a body in JSON.
    pub(super) fn parse(
        parameters: &Parameters,
        body: Option<&[u8]>,
        accept: Option<&str>,
    ) -> Result<Self, QueryRefusal> {
        let mut given: Vec<(&'static str, Value)> = Vec::new();
        for (name, text) in parameters.iter() {
            let (name, written) = known(name)?;
            add(&mut given, name, of_text(name, written, text)?)?;
        }
        if let Some(body) = body.filter(|body| !body.is_empty()) {
            let text = std::str::from_utf8(body);
            let text = text.map_err(|_| QueryRefusal::bad("the body is not UTF-8"))?;
            let document = parse_document(text)
                .map_err(|e| QueryRefusal::bad(format!("the body is not extended JSON: {e}")))?;
            for element in document.iter() {
                let (name, _) = known(element.name())?;
                add(&mut given, name, element.value().to_value())?;
            }
        }
        let find = |name: &str| {
            given
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, v)| v)
        };
        let text = |name: &str| match find(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text.to_string())),
            Some(_) => Err(QueryRefusal::bad(format!("'{name}' must be a text"))),
        };
        let database = match (text("database")?, text("db")?) {
            (Some(name), None) | (None, Some(name)) => name,
            (Some(_), Some(_)) => {
                return Err(QueryRefusal::bad("'database' and 'db' are the same"));
            }
            (None, None) => return Err(QueryRefusal::bad("the parameter 'database' is missing")),
        };
        let canonical = match find("canonical") {
            None => false,
            Some(Value::Bool(canonical)) => *canonical,
            Some(_) => return Err(QueryRefusal::bad("'canonical' must be true or false")),
        };
        let format = match (text("format")?, accept) {
            (Some(name), _) => Format::named(&name)?,
            (None, Some(accept)) => Format::accepted(accept)?,
            (None, None) => Format::Json,
        };
        Ok(Self {
            command: command(&database, text("collection")?, &given)?,
            fields: names(find("fields"))?,
            database,
            format,
            canonical,
        })
    }
}

fn known(name: &str) -> Result<(&'static str, Written), QueryRefusal> {
    let known = PARAMETERS.iter().find(|(known, _)| *known == name);
    known.copied().ok_or_else(|| {
        let names: Vec<&str> = PARAMETERS.iter().map(|(name, _)| *name).collect();
        QueryRefusal::bad(format!(
            "there is no parameter '{}'; there are {}",
            name.escape_default(),
            names.join(", ")
        ))
    })
}

fn add(
    given: &mut Vec<(&'static str, Value)>,
    name: &'static str,
    value: Value,
) -> Result<(), QueryRefusal> {
    if given.iter().any(|(known, _)| *known == name) {
        return Err(QueryRefusal::bad(format!("'{name}' is there twice")));
    }
    given.push((name, value));
    Ok(())
}

/// Reads the value of a parameter in a target.
fn of_text(name: &str, written: Written, text: &str) -> Result<Value, QueryRefusal> {
    match written {
        Written::Text => Ok(text.into()),
        Written::TextOrJson if !text.starts_with('{') => Ok(text.into()),
        Written::Names => {
            let names = text.split(',').map(|name| Value::from(name.trim()));
            Ok(names.collect::<Vec<_>>().into())
        }
        Written::Json | Written::TextOrJson => parse_value(text)
            .map_err(|e| QueryRefusal::bad(format!("'{name}' is not extended JSON: {e}"))),
    }
}

/// Returns the columns of `fields`.
fn names(value: Option<&Value>) -> Result<NamedColumns, QueryRefusal> {
    let Some(value) = value else {
        return Ok(NamedColumns::default());
    };
    let wrong = || QueryRefusal::bad("'fields' must be an array of names");
    let list = value.as_ref().as_array().ok_or_else(wrong)?;
    let names = list.iter().map(|name| name.as_str().ok_or_else(wrong));
    let names: Vec<&str> = names.collect::<Result<_, _>>()?;
    NamedColumns::parse(names.into_iter()).map_err(QueryRefusal::bad)
}

/// Returns the command of a query.
fn command(
    database: &str,
    collection: Option<String>,
    given: &[(&'static str, Value)],
) -> Result<Document, QueryRefusal> {
    let is_given = |name: &str| given.iter().any(|(known, _)| *known == name);
    let mut out = DocumentBuilder::new();
    let mut of_command: Vec<&str> = SHARED.to_vec();
    match (is_given("pipeline"), collection) {
        (true, collection) => {
            if let Some(name) = OF_FIND.iter().find(|name| is_given(name)) {
                return Err(QueryRefusal::bad(format!(
                    "'{name}' is for queries without 'pipeline'"
                )));
            }
            match collection {
                Some(name) => out.append("aggregate", name),
                None => out.append("aggregate", 1),
            };
            of_command.push("pipeline");
            out.append("cursor", doc! {"batchSize": 0});
        }
        (false, Some(name)) => {
            out.append("find", name);
            of_command.extend(OF_FIND);
            out.append("batchSize", 0);
        }
        (false, None) => return Err(QueryRefusal::bad("the parameter 'collection' is missing")),
    }
    for (name, value) in given {
        if of_command.contains(name) {
            out.append(name, value.clone());
        }
    }
    out.append("$db", database);
    let command = out.finish();
    if let ValueRef::Array(stages) = command.get("pipeline") {
        let stages = stages.iter().filter_map(ValueRef::as_document);
        for name in stages.flat_map(|stage| stage.iter().map(|field| field.name())) {
            if WRITING_STAGES.contains(&name) {
                let text = format!("'{name}' writes, and a query over HTTP only reads");
                return Err(QueryRefusal::new("403 Forbidden", text));
            }
            if name == "$changeStream" {
                return Err(QueryRefusal::bad("a change stream has no end"));
            }
        }
    }
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(
        query: &str,
        body: Option<&str>,
        accept: Option<&str>,
    ) -> Result<QueryRequest, String> {
        let parameters = Parameters::of_query(query);
        let parsed = QueryRequest::parse(&parameters, body.map(str::as_bytes), accept);
        parsed.map_err(|refusal| format!("{} {}", refusal.status, refusal.text))
    }

    #[test]
    fn commands_are_made_of_parameters() {
        let found = parse(
            "db=d&collection=c&filter={\"a\":1}&limit=5&format=csv&fields=a,b.c",
            None,
            None,
        );
        let found = found.unwrap();
        let expected =
            doc! {"find": "c", "batchSize": 0, "filter": doc! {"a": 1}, "limit": 5, "$db": "d"};
        assert_eq!(found.command, expected);
        assert_eq!(found.format, Format::Csv);
        assert!(!found.fields.is_empty());
        let body =
            r#"{"database": "d", "collection": "c", "pipeline": [{"$limit": 1}], "maxTimeMS": 9}"#;
        let found = parse(
            "",
            Some(body),
            Some("text/html, application/vnd.apache.parquet;q=0.5"),
        )
        .unwrap();
        assert_eq!(found.format, Format::Parquet);
        let stages = nilometer_bson::array![doc! {"$limit": 1}];
        let expected = doc! {"aggregate": "c", "cursor": doc! {"batchSize": 0}, "pipeline": stages, "maxTimeMS": 9, "$db": "d"};
        assert_eq!(found.command, expected);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (query, body, accept, expected) in [
            (
                "collection=c",
                None,
                None,
                "400 Bad Request the parameter 'database' is missing",
            ),
            (
                "db=d",
                None,
                None,
                "400 Bad Request the parameter 'collection' is missing",
            ),
            ("db=d&collection=c&x=1", None, None, "no parameter 'x'"),
            (
                "db=d&collection=c&format=xml",
                None,
                None,
                "no format 'xml'; there are json, ndjson, csv, arrow, parquet",
            ),
            (
                "db=d&collection=c&filter={\"a\":",
                None,
                None,
                "line 1 column 5",
            ),
            (
                "db=d&collection=c",
                Some("{\n  \"filter\": {,}\n}"),
                None,
                "line 2 column 14",
            ),
            ("db=d&collection=c&db=e", None, None, "'db' is there twice"),
            (
                "db=d&collection=c&pipeline=[]&limit=1",
                None,
                None,
                "'limit' is for queries without 'pipeline'",
            ),
            (
                "db=d&collection=c&pipeline=[{\"$out\":\"x\"}]",
                None,
                None,
                "403 Forbidden",
            ),
            (
                "db=d&pipeline=[{\"$changeStream\":{}}]",
                None,
                None,
                "has no end",
            ),
            (
                "db=d&collection=c",
                None,
                Some("text/html"),
                "406 Not Acceptable",
            ),
            (
                "db=d&collection=c&fields=a.wrong()",
                None,
                None,
                "has the type 'wrong'",
            ),
        ] {
            let error = parse(query, body, accept).unwrap_err();
            assert!(error.contains(expected), "{query}: {error}");
        }
    }
}
