//! One definition of `createIndexes`, checked and converted to its stored form.
//!
//! Everything that can be refused without the collection's other indexes is refused here.

use nilometer_bson::extjson::to_relaxed;
use nilometer_bson::number::Number;
use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef};

use super::IndexTarget;
use super::key;
use super::key::{KeyShape, refused};
use super::{kinds, partial_filter, text};
use crate::args::{Args, truncated_i64};
use crate::catalog::{Collection, IndexSpec};
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::matcher::MatchExpression;
use crate::eval::{Collation, ParseContext};
use crate::index::Index;
use crate::timeseries::index::spec;
use crate::timeseries::index::spec::CollationOrigin;

/// The fields of a definition.
const FIELDS: &[&str] = &[
    "2dsphereIndexVersion",
    "background",
    "bits",
    "bucketSize",
    "clustered",
    "coarsestIndexedLevel",
    "collation",
    "default_language",
    "dropDups",
    "expireAfterSeconds",
    "finestIndexedLevel",
    "hidden",
    "key",
    "language_override",
    "max",
    "min",
    "name",
    "ns",
    "originalSpec",
    "partialFilterExpression",
    "prepareUnique",
    "sparse",
    "storageEngine",
    "textIndexVersion",
    "unique",
    "v",
    "weights",
    "wildcardProjection",
];

/// The fields accepted for the index on `_id`, which always exists.
const FIELDS_OF_ID: &[&str] = &["key", "name", "v", "ns", "collation", "clustered"];

/// The version all indexes have.
const INDEX_VERSION: i64 = 2;

/// The collection of the index.
pub(super) struct IndexPlace<'a> {
    pub(super) target: IndexTarget,
    /// The collection, or the buckets behind it; `None` if it does not exist yet.
    pub(super) collection: Option<&'a Collection>,
    /// Unknown options are dropped instead of refused, as restores need it.
    pub(super) ignore_unknown: bool,
}

/// The result of a definition.
pub(super) enum ParsedIndex {
    /// The index on `_id`, or on the clustered `_id`: it exists.
    Id,
    /// An index in its stored form.
    Index(IndexSpec),
}

/// Checks a definition.
pub(super) fn parse(description: DocRef<'_>, place: &IndexPlace<'_>) -> Result<ParsedIndex> {
    parse_in(description, place).map_err(|error| {
        let shown = to_relaxed(description);
        error.context(&format!("Error in specification {shown}"))
    })
}

fn parse_in(description: DocRef<'_>, place: &IndexPlace<'_>) -> Result<ParsedIndex> {
    let args = Args::new("createIndexes.indexes", description);
    args.check_names_with(|_| true)?;
    if !place.ignore_unknown
        && let Some(unknown) = first_beside(description, FIELDS)
    {
        return Err(not_valid(unknown, "an index specification"));
    }
    let key = match args.value("key") {
        ValueRef::Missing => {
            return Err(Error::failed_to_parse(
                "The 'key' field is a required property of an index specification",
            ));
        }
        ValueRef::Document(key) => key,
        other => return Err(args.wrong_type("key", other, "object")),
    };
    check_version(&args)?;
    let shape = key::check(key, place.target)?;
    let name = name(&args, key, shape)?;
    let has_id_index = matches!(place.target, IndexTarget::Ordinary | IndexTarget::Buckets);
    if shape.is_id && has_id_index {
        check_id(&args, description, place)?;
        return Ok(ParsedIndex::Id);
    }
    if args.boolean("clustered")? == Some(true) {
        return Err(refused("a clustered index is on '_id' alone"));
    }
    let default = default_collation(place);
    let given = given_collation(&args)?;
    let is_given = given.is_some();
    let collation = given.unwrap_or_else(|| default.clone());
    let mut spec = IndexSpec {
        key: key.to_document(),
        name,
        unique: flag(&args, "unique")?,
        prepare_unique: flag(&args, "prepareUnique")?,
        sparse: flag(&args, "sparse")?,
        hidden: flag(&args, "hidden")?,
        partial_filter: filter(&args, place.target)?,
        collation: collation.to_document(),
        expire_after_seconds: expiry(&args)?,
        original_spec: args.document("originalSpec")?.map(DocRef::to_document),
        others: kinds::options(&args, shape)?,
    };
    if shape.plugin == Some("text") {
        text::settle(&mut spec, &args)?;
    }
    check_together(&spec, shape, place.target)?;
    if let (IndexTarget::Timeseries, Some(buckets)) = (place.target, place.collection)
        && let Some(timeseries) = &buckets.timeseries
    {
        let default = default.to_document();
        let origin = CollationOrigin {
            is_given,
            default: default.as_ref(),
        };
        spec = spec::to_buckets(timeseries, &spec, origin)?;
    }
    if let Some(filter) = &spec.partial_filter {
        partial_filter::check(filter.as_ref())?;
        let context = ParseContext::new().with_collator(collation.shared());
        MatchExpression::parse(filter.as_ref(), &context)?;
    }
    Index::check(&spec)?;
    Ok(ParsedIndex::Index(spec))
}

fn first_beside<'d>(description: DocRef<'d>, known: &[&str]) -> Option<&'d str> {
    let mut names = description.iter().map(|e| e.name());
    names.find(|name| !known.contains(name))
}

fn not_valid(field: &str, of: &str) -> Error {
    Error::new(
        ErrorCode::InvalidIndexSpecificationOption,
        format!("The field '{field}' is not valid for {of}"),
    )
}

fn check_version(args: &Args<'_>) -> Result<()> {
    match args.value("v") {
        ValueRef::Missing => Ok(()),
        value => match value.as_exact_i64() {
            Some(INDEX_VERSION) => Ok(()),
            _ if !value.is_number() => Err(args.wrong_type("v", value, "number")),
            _ => Err(refused(
                "Invalid index specification: only indexes of version 2 are supported",
            )),
        },
    }
}

fn name(args: &Args<'_>, key: DocRef<'_>, shape: KeyShape) -> Result<String> {
    let name = match args.value("name") {
        ValueRef::Missing => key::default_name(key),
        ValueRef::String(name) => name.to_owned(),
        other => return Err(args.wrong_type("name", other, "string")),
    };
    match name.as_str() {
        "" => Err(refused("The index name cannot be empty")),
        "*" => Err(Error::bad_value("The index name '*' is not valid.")),
        name if name.contains('\0') => Err(refused("The index name cannot contain NUL bytes")),
        "_id_" if !shape.is_id => Err(Error::bad_value(
            "The index name '_id_' is reserved for the _id index, which must have key pattern {_id: 1}",
        )),
        _ => Ok(name),
    }
}

/// Checks a definition of the existing index on `_id`.
fn check_id(args: &Args<'_>, description: DocRef<'_>, place: &IndexPlace<'_>) -> Result<()> {
    let is_clustered = place.target == IndexTarget::Buckets
        || place.collection.is_some_and(Collection::is_clustered);
    if args.boolean("clustered")? == Some(true) {
        if !is_clustered {
            return Err(Error::location(
                location::CLUSTERED_ON_OTHER_COLLECTION,
                "Cannot create index with option 'clustered' on a collection that is not already clustered",
            ));
        }
        if args.boolean("unique")? != Some(true) {
            return Err(refused("A clustered index must be unique"));
        }
    } else if flag(args, "hidden")? {
        return Err(Error::bad_value("can't hide _id index"));
    }
    let known = [FIELDS_OF_ID, &["unique", "hidden"]].concat();
    let known = if is_clustered { &known } else { FIELDS_OF_ID };
    if let Some(other) = first_beside(description, known)
        && !place.ignore_unknown
    {
        return Err(not_valid(other, "an _id index specification"));
    }
    match given_collation(args)? {
        Some(given) if given != default_collation(place) => Err(Error::bad_value(
            "The _id index must have the same collation as the collection",
        )),
        _ => Ok(()),
    }
}

fn default_collation(place: &IndexPlace<'_>) -> Collation {
    // Stored filters were parsed before they were stored.
    let options = place.collection.map(|c| c.options.clone());
    let options = options.unwrap_or_default();
    Collation::of_stored(options.as_ref()).unwrap_or_default()
}

fn given_collation(args: &Args<'_>) -> Result<Option<Collation>> {
    match args.value("collation") {
        ValueRef::Missing => Ok(None),
        ValueRef::Document(given) if given.is_empty() => Err(Error::bad_value(
            "The field 'collation' cannot be an empty object",
        )),
        ValueRef::Document(given) => Collation::parse(given, "collation").map(Some),
        other => Err(args.wrong_type("collation", other, "object")),
    }
}

/// Reads a boolean, or a number.
pub(super) fn flag(args: &Args<'_>, name: &str) -> Result<bool> {
    Ok(args.lenient_boolean(name)?.unwrap_or(false))
}

fn filter(args: &Args<'_>, target: IndexTarget) -> Result<Option<Document>> {
    match args.value("partialFilterExpression") {
        ValueRef::Missing => Ok(None),
        ValueRef::Document(filter) => Ok(Some(filter.to_document())),
        other if target == IndexTarget::Timeseries => Err(Error::location(
            location::OBJECT_EXPECTED,
            format!(
                "invalid parameter: expected an object (partialFilterExpression), found {}",
                other.type_name()
            ),
        )),
        other => Err(args.wrong_type("partialFilterExpression", other, "object")),
    }
}

fn expiry(args: &Args<'_>) -> Result<Option<i64>> {
    let value = args.value("expireAfterSeconds");
    if value.is_missing() {
        return Ok(None);
    }
    let is_nan = Number::of(value).is_some_and(|n| n.to_f64().is_nan());
    match truncated_i64(value) {
        Some(seconds) if !is_nan && (0..=i64::from(i32::MAX)).contains(&seconds) => {
            Ok(Some(seconds))
        }
        Some(seconds) => Err(refused(format!(
            "TTL index 'expireAfterSeconds' option must be within an acceptable range, try a lower number: {seconds}"
        ))),
        None => Err(refused(format!(
            "TTL index 'expireAfterSeconds' option must be numeric, but received a type of '{}'",
            value.type_name()
        ))),
    }
}

/// Refuses options that exclude each other.
fn check_together(spec: &IndexSpec, shape: KeyShape, target: IndexTarget) -> Result<()> {
    if spec.sparse && spec.partial_filter.is_some() {
        return Err(refused(
            "cannot mix \"partialFilterExpression\" and \"sparse\" options",
        ));
    }
    if let Some(plugin) = shape.plugin {
        kinds::check(spec, shape, plugin)?;
    }
    if target == IndexTarget::Rollup {
        return check_of_rollup(spec, shape);
    }
    if target != IndexTarget::Ordinary && spec.prepare_unique {
        return Err(Error::invalid_options(
            "'prepareUnique' is not for indexes of time-series collections",
        ));
    }
    if target == IndexTarget::Buckets && spec.unique {
        return Err(refused("indexes on buckets cannot be unique"));
    }
    // Time-series collections have their own rules for expiry.
    if spec.expire_after_seconds.is_some() && target != IndexTarget::Timeseries {
        if shape.fields > 1 {
            return Err(refused(
                "TTL indexes are single-field indexes, compound indexes do not support TTL",
            ));
        }
        if target == IndexTarget::Buckets {
            return Err(Error::invalid_options(
                "TTL indexes of time-series collections are made on the collection, not on its buckets",
            ));
        }
    }
    Ok(())
}

/// Refuses what the index of a rollup cannot be.
fn check_of_rollup(spec: &IndexSpec, shape: KeyShape) -> Result<()> {
    let refusals = [
        (spec.refuses_duplicates(), "Unique"),
        (spec.sparse, "Sparse"),
        (spec.expire_after_seconds.is_some(), "TTL"),
    ];
    if let Some((_, kind)) = refusals.iter().find(|(given, _)| *given) {
        return Err(Error::invalid_options(format!(
            "{kind} indexes are not supported on rollups"
        )));
    }
    match shape.plugin {
        None => Ok(()),
        Some(kind) => Err(Error::invalid_options(format!(
            "the index of a rollup has ascending and descending fields only, not '{kind}'"
        ))),
    }
}

/// Copies the options that are stored unchanged.
pub(super) fn keep(args: &Args<'_>, names: &[&str], out: &mut DocumentBuilder) {
    for name in names {
        if let Some(element) = args.element(name) {
            out.append_element(element);
        }
    }
}
