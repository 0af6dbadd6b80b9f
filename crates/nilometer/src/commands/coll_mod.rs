//! `collMod`: the bucketing parameters and the expiry of a time-series collection.

use nilometer_bson::{Document, DocumentBuilder, ValueRef};

use super::args::Args;
use super::create::check_expire_after;
use super::{Access, CommandContext, CommandSpec, Fields};
use crate::catalog::{CatalogEntry, Collection, Namespace, TimeseriesOptions};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

pub(super) const SPEC: CommandSpec = CommandSpec {
    access: Access::Write,
    write_concern: true,
    in_api_v1: true,
    fields: Fields::Only(FIELDS),
    ..CommandSpec::new("collMod", "Changes options of a collection.", run)
};

/// What the command can be asked to change.
const FIELDS: &[&str] = &[
    "timeseries",
    "expireAfterSeconds",
    "index",
    "validator",
    "validationLevel",
    "validationAction",
    "viewOn",
    "pipeline",
    MIXED_SCHEMA,
];

/// Buckets may bound a field by values of different types.
const MIXED_SCHEMA: &str = "timeseriesBucketsMayHaveMixedSchemaData";

/// What only other kinds of collections can change.
const NOT_FOR_TIMESERIES: &[&str] = &[
    "validator",
    "validationLevel",
    "validationAction",
    "viewOn",
    "pipeline",
];

/// What cannot be changed yet.
const UNSUPPORTED: &[&str] = &["index"];

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let body = request.body.as_ref();
    let args = Args::new("collMod", body);
    let namespace = Namespace::new(context.database_name(), args.required_string("collMod")?)?;
    let given = |names: &[&'static str]| names.iter().copied().find(|name| body.contains(name));
    let unsupported = |name: &str| {
        Error::new(
            ErrorCode::CommandNotSupported,
            format!("the option 'collMod.{name}' is not supported yet"),
        )
    };
    let catalog = database.catalog();
    let Some(buckets) = catalog.timeseries(&namespace) else {
        let changes = body.iter().skip(1).map(|e| e.name());
        let mut changes = changes.filter(|name| FIELDS.contains(name));
        return match (catalog.get(&namespace), changes.next()) {
            (None, _) => Err(Error::new(
                ErrorCode::NamespaceNotFound,
                format!("ns does not exist: {namespace}"),
            )),
            (Some(CatalogEntry::Collection(found)), Some(_)) if found.timeseries.is_some() => {
                Err(Error::new(
                    ErrorCode::InvalidNamespace,
                    format!("collMod on {namespace}: change the time-series collection instead"),
                ))
            }
            (Some(_), Some(name @ ("timeseries" | "expireAfterSeconds" | MIXED_SCHEMA))) => {
                Err(Error::invalid_options(format!(
                    "'{name}' is only for time-series and clustered collections"
                )))
            }
            (Some(_), Some(name)) => Err(unsupported(name)),
            (Some(_), None) => Ok(Document::new()),
        };
    };
    if let Some(name) = given(NOT_FOR_TIMESERIES) {
        return Err(Error::invalid_options(format!(
            "option not supported on a time-series collection: {name}"
        )));
    }
    if let Some(name) = given(UNSUPPORTED) {
        return Err(unsupported(name));
    }
    let timeseries = match (args.document("timeseries")?, &buckets.timeseries) {
        (Some(change), Some(now)) => Some(now.modified(change)?),
        _ => buckets.timeseries.clone(),
    };
    let options = with_expiry(&buckets, args.value("expireAfterSeconds"), &args)?;
    let mixed_schema = mixed_schema(&buckets, &args)?;
    catalog.modify(&buckets, options, timeseries, mixed_schema)?;
    // Buckets opened from now on have the new widths; open ones are taken up again under them.
    database.timeseries().bucket_catalog.clear(buckets.uuid);
    Ok(Document::new())
}

/// The flag once set stays: buckets that need it may be there.
fn mixed_schema(buckets: &Collection, args: &Args<'_>) -> Result<bool> {
    match (args.boolean(MIXED_SCHEMA)?, buckets.may_have_mixed_schema()) {
        (None, now) => Ok(now),
        (Some(false), true) => Err(Error::invalid_options(format!(
            "'{MIXED_SCHEMA}' cannot be taken back"
        ))),
        (Some(asked), _) => Ok(asked),
    }
}

/// The collection's options with `expireAfterSeconds` as asked.
fn with_expiry(buckets: &Collection, asked: ValueRef<'_>, args: &Args<'_>) -> Result<Document> {
    const NAME: &str = "expireAfterSeconds";
    let seconds = match asked {
        ValueRef::Missing => return Ok(buckets.options.clone()),
        ValueRef::String("off") => None,
        ValueRef::String(_) => {
            return Err(Error::invalid_options(format!(
                "'{NAME}' must be a number or 'off'"
            )));
        }
        _ => args.integer(NAME)?,
    };
    if let Some(seconds) = seconds {
        check_expire_after(seconds)?;
    }
    let mut options = DocumentBuilder::new();
    for element in buckets.options.iter().filter(|e| e.name() != NAME) {
        options.append_element(element);
    }
    options.append(NAME, seconds);
    Ok(options.finish())
}

impl TimeseriesOptions {
    /// These options with the changes `collMod` asks for: buckets may only become wider.
    fn modified(&self, change: nilometer_bson::DocRef<'_>) -> Result<Self> {
        if change.is_empty() {
            return Ok(self.clone());
        }
        Args::new("collMod.timeseries", change).check_names(&[
            "granularity",
            "bucketMaxSpanSeconds",
            "bucketRoundingSeconds",
        ])?;
        let mut spec = DocumentBuilder::new();
        spec.append("timeField", self.time_field.as_str());
        spec.append("metaField", self.meta_field.as_deref());
        for element in change {
            spec.append_element(element);
        }
        let spec = spec.finish();
        let changed = Self::parse(spec.as_ref())?;
        if changed.span_seconds < self.span_seconds {
            return Err(Error::invalid_options(format!(
                "buckets may only become wider: {} seconds are less than {}",
                changed.span_seconds, self.span_seconds
            )));
        }
        Ok(changed)
    }
}

#[cfg(test)]
mod tests {
    use crate::Database;
    use bson::{DateTime, doc};

    fn code(database: &Database, command: bson::Document) -> i32 {
        match database.command("db", &command) {
            Ok(_) => 0,
            Err(error) => error.code.0,
        }
    }

    #[test]
    fn buckets_become_wider_never_narrower() {
        let database = Database::in_memory().unwrap();
        let change = |timeseries: bson::Document| {
            code(
                &database,
                doc! { "collMod": "ts", "timeseries": timeseries },
            )
        };
        database
            .command(
                "db",
                &doc! { "create": "ts", "timeseries": { "timeField": "t", "metaField": "m" } },
            )
            .unwrap();
        let insert = |ms: i64| {
            let documents = vec![doc! { "t": DateTime::from_millis(ms), "m": 1 }];
            code(&database, doc! { "insert": "ts", "documents": documents })
        };
        assert_eq!(insert(0), 0);
        assert_eq!(change(doc! {}), 0);
        assert_eq!(change(doc! { "granularity": "minutes" }), 0);
        assert_eq!(change(doc! { "granularity": "seconds" }), 72);
        assert_eq!(
            change(doc! { "granularity": "minutes", "bucketMaxSpanSeconds": 86400 }),
            0
        );
        assert_eq!(change(doc! { "bucketMaxSpanSeconds": 90000 }), 72);
        assert_eq!(
            change(doc! { "bucketMaxSpanSeconds": 90000, "bucketRoundingSeconds": 90000 }),
            0
        );
        assert_eq!(
            change(
                doc! { "bucketMaxSpanSeconds": 31_536_001, "bucketRoundingSeconds": 31_536_001 }
            ),
            2
        );
        assert_eq!(change(doc! { "granularity": "hours" }), 0);
        // The bucket that is there takes what the wider span covers, and everything is found.
        assert_eq!(insert(5 * 86_400_000), 0);
        let buckets = database.collection::<bson::Document>("db", "system.buckets.ts");
        assert_eq!(buckets.count(doc! {}).unwrap(), 1);
        let late = doc! { "t": { "$gte": DateTime::from_millis(86_400_000) } };
        let ts = database.collection::<bson::Document>("db", "ts");
        assert_eq!(ts.count(late).unwrap(), 1);
    }

    #[test]
    fn expiry_is_set_and_taken_away() {
        let database = Database::in_memory().unwrap();
        let options = doc! { "timeField": "t" };
        let create = doc! { "create": "ts", "timeseries": options, "expireAfterSeconds": 60 };
        assert_eq!(code(&database, create), 0);
        let shown = || {
            let listed = doc! { "listCollections": 1, "filter": { "name": "ts" } };
            let reply = database.command("db", &listed).unwrap();
            let first = reply
                .get_document("cursor")
                .unwrap()
                .get_array("firstBatch")
                .unwrap()[0]
                .as_document()
                .unwrap()
                .clone();
            first
                .get_document("options")
                .unwrap()
                .get_i64("expireAfterSeconds")
                .ok()
        };
        assert_eq!(shown(), Some(60));
        for (value, expected) in [
            (bson::Bson::Int32(0), 0),
            (bson::Bson::Int32(-10), 72),
            (bson::Bson::String("10".into()), 72),
            (bson::Bson::Document(doc! {}), 14),
            (bson::Bson::Int32(5), 0),
        ] {
            let change = doc! { "collMod": "ts", "expireAfterSeconds": value.clone() };
            assert_eq!(code(&database, change), expected, "{value}");
        }
        assert_eq!(shown(), Some(5));
        assert_eq!(
            code(
                &database,
                doc! { "collMod": "ts", "expireAfterSeconds": "off" }
            ),
            0
        );
        assert_eq!(shown(), None);
        assert_eq!(code(&database, doc! { "collMod": "absent" }), 26);
        assert_eq!(
            code(&database, doc! { "collMod": "ts", "validator": {} }),
            72
        );
        let raw = doc! { "collMod": "system.buckets.ts", "timeseries": {} };
        assert_eq!(code(&database, raw), 73);
    }
}
