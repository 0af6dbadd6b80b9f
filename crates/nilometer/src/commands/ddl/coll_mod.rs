//! `collMod`: changes the bucketing parameters and the expiry of a time-series collection, the definition of
//! a view, the limits of a capped collection, validators, and indexes.

mod index;
mod unique;

use std::sync::{Arc, PoisonError};

use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef};

use index::IndexChange;

use super::create::{
    IMAGES, changed_options, check_expire_after, check_graph, images, parse_pipeline, stored_images,
};
use super::indexes::IndexOwner;
use super::{capped, collection_uuid, validation};
use crate::args::Args;
use crate::catalog::{
    CatalogEntry, Collection, DuplicatePolicy, DuplicateRule, EXTENSION, Namespace,
    TimeseriesOptions, View,
};
use crate::commands::security::authorization::rules;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::database::indexes::IndexForm;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::Collation;
use crate::operation::Request;
use crate::write::CappedLimits;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Write,
    write_concern: true,
    in_api_v1: true,
    fields: Fields::Only(FIELDS),
    ..CommandSpec::new(
        "collMod",
        "Changes options of a collection.",
        Authorization::ByRule(rules::coll_mod),
        OnRouter::Catalog,
        run,
    )
};

/// The options of the command.
const FIELDS: &[&str] = &[
    "timeseries",
    "rollup",
    "expireAfterSeconds",
    "index",
    "validator",
    "validationLevel",
    "validationAction",
    "viewOn",
    "pipeline",
    "timeseriesBucketsMayHaveMixedSchemaData",
    "changeStreamPreAndPostImages",
    "cappedSize",
    "cappedMax",
    "dryRun",
    collection_uuid::NAME,
];

/// Options for views only.
const OF_VIEWS: &[&str] = &["viewOn", "pipeline"];

/// Options for other collections than views.
const NOT_FOR_TIMESERIES: &[&str] = &[
    "rollup",
    "validator",
    "validationLevel",
    "validationAction",
    "viewOn",
    "pipeline",
    "changeStreamPreAndPostImages",
    "cappedSize",
    "cappedMax",
    "dryRun",
];

/// The limits of capped collections.
const OF_CAPPED: &[&str] = &["cappedSize", "cappedMax"];

const MIXED_SCHEMA: &str = "timeseriesBucketsMayHaveMixedSchemaData";

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let body = request.body.as_ref();
    let args = Args::new("collMod", body);
    let namespace = Namespace::new(context.database_name(), args.required_string("collMod")?)?;
    collection_uuid::check(database, &args, &namespace)?;
    let change = CollectionChange {
        database,
        args: &args,
        body,
        namespace,
    };
    let catalog = database.catalog();
    catalog.check_is_not_oplog(&change.namespace, "modify")?;
    if let Some(buckets) = catalog.timeseries(&change.namespace) {
        return change.timeseries(&buckets);
    }
    match catalog.get(&change.namespace) {
        Some(CatalogEntry::Collection(found)) if found.timeseries.is_some() => {
            change.buckets(&found)
        }
        Some(CatalogEntry::Collection(found)) => change.ordinary(&found),
        Some(CatalogEntry::View(found)) => change.view(&found),
        None => Err(Error::new(
            ErrorCode::NamespaceNotFound,
            format!("ns does not exist: {}", change.namespace),
        )),
    }
}

/// A `collMod` in execution.
struct CollectionChange<'a> {
    database: &'a Database,
    args: &'a Args<'a>,
    body: DocRef<'a>,
    namespace: Namespace,
}

impl CollectionChange<'_> {
    /// Returns the first of `names` that is set.
    fn given<'n>(&self, names: &[&'n str]) -> Option<&'n str> {
        names.iter().copied().find(|name| self.body.contains(name))
    }

    fn refuse(&self, names: &[&str], kind: &str) -> Result<()> {
        match self.given(names) {
            Some(name) => Err(Error::invalid_options(format!(
                "option not supported on a {kind}: {name}"
            ))),
            None => Ok(()),
        }
    }

    fn timeseries(&self, buckets: &Arc<Collection>) -> Result<Document> {
        let args = self.args;
        self.refuse(NOT_FOR_TIMESERIES, "time-series collection")?;
        // Changes of different parts of the catalog are separate commands.
        let not_with: &[&str] = match self.given(&[MIXED_SCHEMA]) {
            Some(_) => &["index", "expireAfterSeconds"],
            None => &["index"],
        };
        if let Some(alone) = self.given(&[MIXED_SCHEMA, "timeseries"])
            && let Some(other) = self.given(not_with)
        {
            return Err(Error::invalid_options(format!(
                "'{alone}' cannot be changed together with '{other}'"
            )));
        }
        let catalog = self.database.catalog();
        let timeseries = match (args.document("timeseries")?, &buckets.timeseries) {
            (Some(change), Some(now)) => Some(now.modified(change)?),
            _ => buckets.timeseries.clone(),
        };
        let options = with_expiry(buckets, args.value("expireAfterSeconds"), args)?;
        let owner = IndexOwner::Collection(Arc::clone(buckets), IndexForm::User);
        let index = index::parse(args, &owner)?;
        let widths = buckets.has_other_widths(timeseries.as_ref());
        let mixed_schema = mixed_schema(buckets, args)?;
        let changed = timeseries.as_ref().map(DuplicateRule::of);
        // Waits for inserts under the current rule; later inserts follow the new one.
        let mut rule = buckets
            .duplicates
            .write()
            .unwrap_or_else(PoisonError::into_inner);
        catalog.change_options(buckets, options, timeseries, mixed_schema)?;
        *rule = changed.unwrap_or_default();
        // The rule "keep" needs no locks.
        self.database.timeseries().series_locks.forget(buckets.uuid);
        drop(rule);
        if widths {
            // New buckets have the new widths; open ones are reopened under them.
            self.database
                .timeseries()
                .bucket_catalog
                .clear(buckets.uuid);
        }
        self.change_index(&owner, index)
    }

    fn change_index(&self, owner: &IndexOwner, index: Option<IndexChange>) -> Result<Document> {
        match index {
            Some(change) => change.apply(self.database, owner),
            None => Ok(Document::new()),
        }
    }

    /// Changes buckets by their own name: the options of the collection are changed through it.
    fn buckets(&self, buckets: &Arc<Collection>) -> Result<Document> {
        let of_collection = [&["timeseries"], validation::NAMES].concat();
        if self.given(&of_collection).is_some() {
            return Err(Error::new(
                ErrorCode::InvalidNamespace,
                format!(
                    "collMod on {}: change the time-series collection instead",
                    self.namespace
                ),
            ));
        }
        self.refuse(NOT_FOR_TIMESERIES, "collection of buckets")?;
        let options = with_expiry(buckets, self.args.value("expireAfterSeconds"), self.args)?;
        let owner = IndexOwner::Collection(Arc::clone(buckets), IndexForm::Stored);
        let index = index::parse(self.args, &owner)?;
        let mixed_schema = mixed_schema(buckets, self.args)?;
        let timeseries = buckets.timeseries.clone();
        self.database
            .catalog()
            .change_options(buckets, options, timeseries, mixed_schema)?;
        self.change_index(&owner, index)
    }

    fn ordinary(&self, collection: &Arc<Collection>) -> Result<Document> {
        self.refuse(OF_VIEWS, "collection")?;
        let not_here: &[&str] = match collection.is_clustered() {
            true => &["timeseries", MIXED_SCHEMA],
            false => &["timeseries", "expireAfterSeconds", MIXED_SCHEMA],
        };
        if let Some(name) = self.given(not_here) {
            return Err(Error::invalid_options(format!(
                "'{name}' is only for time-series and clustered collections"
            )));
        }
        if let Some(name) = self.given(OF_CAPPED)
            && CappedLimits::of(collection).is_none()
        {
            return Err(Error::invalid_options(format!(
                "'{name}' is only for capped collections"
            )));
        }
        if self.body.contains("dryRun") && !self.body.contains("index") {
            return Err(index::dry_run_alone());
        }
        let options = self.ordinary_options(collection)?;
        let owner = IndexOwner::Collection(Arc::clone(collection), IndexForm::Stored);
        let index = index::parse(self.args, &owner)?;
        // A command that changes nothing is stored, too: change streams show it.
        if index.is_none() || options != collection.options {
            self.database
                .catalog()
                .change_options(collection, options, None, false)?;
        }
        self.change_index(&owner, index)
    }

    /// Returns the changed options of an ordinary collection.
    fn ordinary_options(&self, collection: &Collection) -> Result<Document> {
        let expiring = with_expiry(collection, self.args.value("expireAfterSeconds"), self.args)?;
        let known = expiring.as_ref();
        let collation = Collation::of_stored(known)?;
        let given = validation::ValidationOptions::parse(self.args, &self.namespace, &collation)?;
        let is_resized = self.given(OF_CAPPED).is_some();
        let images = images(self.args, &self.namespace)?;
        if given.is_empty() && !is_resized && images.is_none() {
            return Ok(expiring);
        }
        let mut out = DocumentBuilder::new();
        if is_resized {
            capped::append_changed(self.args, known, &mut out)?;
        }
        let others = |name: &str| {
            !(validation::NAMES.contains(&name)
                || is_resized && capped::NAMES.contains(&name)
                || images.is_some() && name == IMAGES)
        };
        for element in known.iter().filter(|e| others(e.name())) {
            out.append_element(element);
        }
        given.append_changed(known, &mut out);
        out.append(IMAGES, images.and_then(stored_images));
        Ok(out.finish())
    }

    /// Changes the collection or the pipeline of a view, or both.
    fn view(&self, view: &View) -> Result<Document> {
        if let Some(rollup) = &view.rollup {
            let own = [
                "rollup",
                "expireAfterSeconds",
                "index",
                collection_uuid::NAME,
            ];
            let mut others = FIELDS.iter().copied().filter(|name| !own.contains(name));
            if let Some(name) = others.find(|name| self.body.contains(name)) {
                return Err(Error::invalid_options(format!(
                    "option not supported on a rollup: {name}"
                )));
            }
            let owner = IndexOwner::Rollup(self.namespace.clone(), Arc::clone(rollup));
            let index = index::parse(self.args, &owner)?;
            let options = changed_options(self.args, rollup.options())?;
            if index.is_none() || options != rollup.options() {
                let catalog = self.database.catalog();
                catalog.modify_rollup(&self.namespace, options)?;
            }
            return self.change_index(&owner, index);
        }
        let own = [OF_VIEWS, &[collection_uuid::NAME]].concat();
        let mut others = FIELDS.iter().copied().filter(|name| !own.contains(name));
        if let Some(name) = others.find(|name| self.body.contains(name)) {
            return Err(Error::invalid_options(format!(
                "option not supported on a view: {name}"
            )));
        }
        let mut changed = view.clone();
        if let Some(view_on) = self.args.string("viewOn")? {
            view_on.clone_into(&mut changed.view_on);
        }
        if let Some(stages) = self.args.array("pipeline")? {
            let collation = Collation::of_stored(view.options.as_ref())?;
            changed.pipeline = parse_pipeline(stages, &collation)?;
        }
        if changed != *view {
            check_graph(self.database, &changed)?;
            self.database.catalog().modify_view(changed)?;
        }
        Ok(Document::new())
    }
}

/// Sets the flag for mixed schemas, which cannot be unset: buckets may need it.
fn mixed_schema(buckets: &Collection, args: &Args<'_>) -> Result<bool> {
    match (args.boolean(MIXED_SCHEMA)?, buckets.may_have_mixed_schema()) {
        (None, now) => Ok(now),
        (Some(false), true) => Err(Error::invalid_options(format!(
            "'{MIXED_SCHEMA}' cannot be taken back"
        ))),
        (Some(asked), _) => Ok(asked),
    }
}

/// Returns the collection's options with the new `expireAfterSeconds`.
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
    /// Returns the changed time-series options: buckets may only become wider.
    fn modified(&self, change: nilometer_bson::DocRef<'_>) -> Result<Self> {
        if change.is_empty() {
            return Ok(self.clone());
        }
        Args::new("collMod.timeseries", change).check_names(&[
            "granularity",
            "bucketMaxSpanSeconds",
            "bucketRoundingSeconds",
            EXTENSION,
        ])?;
        let duplicates = match change.get(EXTENSION) {
            ValueRef::Missing => None,
            extension => DuplicatePolicy::parse_extension("collMod", extension)?,
        };
        let duplicates = duplicates.or(self.duplicates);
        if change.iter().all(|element| element.name() == EXTENSION) {
            return Ok(Self {
                duplicates,
                ..self.clone()
            });
        }
        let mut spec = DocumentBuilder::new();
        spec.append("timeField", self.time_field.as_str());
        spec.append("metaField", self.meta_field.as_deref());
        for element in change.iter().filter(|e| e.name() != EXTENSION) {
            spec.append_element(element);
        }
        let spec = spec.finish();
        let changed = Self {
            duplicates,
            ..Self::parse(spec.as_ref())?
        };
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
        // The existing bucket takes measurements of the wider span, and all are found.
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
