//! The stages of an aggregation, parsed once into types.
//!
//! ```text
//! [{$match: …}, {$count: "n"}]  ── parse_pipeline ──►  [Match, Group, Project]
//! ```
//!
//! [`STAGES`] is the one table of stage names. One name may expand to several stages: `$count` is a `$group` and a
//! `$project`, as the manual says. A stage is data: its parsed arguments, the fields it needs, and its form in explain.
//! The planner chooses the operator and `exec` builds it.
//!
//! Parsing has no access to collections or data: it checks names and keeps namespaces unresolved.

mod bucket;
mod bucket_auto;
pub mod change_stream;
mod count;
mod densify;
mod documents;
mod facet;
mod fill;
mod geo_near;
pub mod granularity;
mod graph_lookup;
mod group;
mod introspection;
mod limit;
mod lookup;
mod match_;
mod merge;
pub mod meta;
pub mod needs;
mod out;
mod project;
mod redact;
mod replace_root;
mod sample;
mod set_window_fields;
mod sort;
mod sort_by_count;
mod target;
mod text_score;
mod union_with;
mod unpack_bucket;
mod unwind;

use std::fmt;
use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder, ValueRef};

use self::needs::Needs;
use crate::error::{Error, ErrorCode, Result, location};
use crate::eval::ParseContext;

pub use bucket_auto::BucketAutoStage;
pub use densify::{AxisPoint, DensifyBounds, DensifyStage, DensifyStep};
pub use documents::DocumentsStage;
pub use documents::given as given_documents;
pub(crate) use documents::not_an_array as documents_not_an_array;
pub use facet::FacetStage;
pub(crate) use geo_near::not_first as geo_near_not_first;
pub use geo_near::{GeoDistanceStage, GeoNearOutput, GeoNearStage, NearFrom};
pub use graph_lookup::GraphLookupStage;
pub use group::{GroupStage, NamedPart, ShownField};
pub use introspection::IntrospectionStage;
pub use lookup::{LookupEquality, LookupStage, draws};
pub use match_::MatchStage;
pub(crate) use match_::text_not_first;
pub use merge::{MergeStage, WhenMatched, WhenNotMatched};
pub use out::OutStage;
pub use project::{ProjectKind, ProjectStage};
pub(crate) use project::{is_field, with_names};
pub use redact::{REDACT_ANSWERS, RedactStage};
pub use replace_root::ReplaceRootStage;
pub use sample::SampleStage;
pub use set_window_fields::SetWindowFieldsStage;
pub use sort::SortStage;
pub use target::OutputTarget;
pub use text_score::TextScoreStage;
pub use union_with::UnionWithStage;
pub use unpack_bucket::UnpackBucketStage;
pub use unwind::UnwindStage;

/// Most stages of one pipeline, counted as written.
pub const PIPELINE_STAGES_MAX: usize = 1000;

/// Deepest nesting of pipelines (`$facet`, `$lookup`, `$unionWith`, views).
pub const PIPELINE_DEPTH_MAX: usize = 20;

/// The context of a pipeline. Some stages are not allowed in every context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// The pipeline of the command.
    Top,
    /// The pipeline of a view.
    View,
    /// A pipeline of `$facet`.
    Facet,
    /// The pipeline of `$lookup`.
    Lookup,
    /// The pipeline of `$unionWith`.
    Union,
}

/// The context in which a stage is parsed.
#[derive(Clone, Debug)]
pub struct PipelineContext {
    /// Variables and collation.
    pub expressions: ParseContext,
    /// The context of the pipeline.
    pub place: Place,
    /// Nesting depth: the number of enclosing pipelines.
    pub depth: usize,
}

impl PipelineContext {
    /// Returns the context for the pipeline of a view.
    pub fn view(expressions: ParseContext) -> Self {
        Self {
            place: Place::View,
            ..Self::top(expressions)
        }
    }

    /// Returns the context for the pipeline of a command.
    pub fn top(expressions: ParseContext) -> Self {
        Self {
            expressions,
            place: Place::Top,
            depth: 0,
        }
    }

    /// Returns the context for a pipeline inside this one.
    pub fn nested(&self, place: Place, expressions: ParseContext) -> Result<Self> {
        if self.depth + 1 > PIPELINE_DEPTH_MAX {
            return Err(Error::new(
                ErrorCode::MaxSubPipelineDepthExceeded,
                format!(
                    "Maximum number of nested sub-pipelines exceeded. Limit is {PIPELINE_DEPTH_MAX}"
                ),
            ));
        }
        Ok(Self {
            expressions,
            // Everything nested in a facet counts as part of the facet.
            place: if self.place == Place::Facet {
                Place::Facet
            } else {
                place
            },
            depth: self.depth + 1,
        })
    }
}

/// One stage of a pipeline.
#[derive(Clone, Debug)]
pub enum Stage {
    /// `$match`: filters documents.
    Match(MatchStage),
    /// `$project`, `$addFields`, `$set` and `$unset`: change fields.
    Project(ProjectStage),
    /// `$group`: groups documents by key.
    Group(GroupStage),
    /// `$sort`.
    Sort(SortStage),
    /// `$limit`: passes the first documents.
    Limit(u64),
    /// `$skip`: drops the first documents.
    Skip(u64),
    /// `$unwind`: one document for each array element.
    Unwind(UnwindStage),
    /// `$replaceRoot` and `$replaceWith`.
    ReplaceRoot(ReplaceRootStage),
    /// `$bucketAuto`.
    BucketAuto(Arc<BucketAutoStage>),
    /// `$densify`.
    Densify(Arc<DensifyStage>),
    /// `$documents`.
    Documents(Arc<DocumentsStage>),
    /// `$facet`.
    Facet(Arc<FacetStage>),
    /// `$geoNear` and `$near`, before the planner determines the geometry field.
    GeoNear(Arc<GeoNearStage>),
    /// A settled `$geoNear`.
    GeoDistance(Arc<GeoDistanceStage>),
    /// `$graphLookup`.
    GraphLookup(Arc<GraphLookupStage>),
    /// `$currentOp`, `$listSessions` and other stages that read the server.
    Introspection(Arc<IntrospectionStage>),
    /// `$lookup`.
    Lookup(Arc<LookupStage>),
    /// `$merge`.
    Merge(Arc<MergeStage>),
    /// `$out`.
    Out(Arc<OutStage>),
    /// `$redact`.
    Redact(Arc<RedactStage>),
    /// `$sample`.
    Sample(Arc<SampleStage>),
    /// `$setWindowFields`.
    SetWindowFields(Arc<SetWindowFieldsStage>),
    /// Adds the score of the `$text` of the `$match` in front.
    TextScore(Arc<TextScoreStage>),
    /// `$unionWith`.
    UnionWith(Arc<UnionWithStage>),
    /// `$_unpackBucket` and `$_internalUnpackBucket`.
    UnpackBucket(Arc<UnpackBucketStage>),
}

/// The interface the planner uses for stages that it does not inspect.
pub trait PipelineStage: fmt::Debug + Send + Sync {
    /// Returns the name with the dollar sign.
    fn name(&self) -> &'static str;

    /// Appends the argument to `out` as the field `name`.
    fn explain(&self, name: &str, out: &mut DocumentBuilder);

    /// Returns the fields needed of the input if `after` is needed of the output.
    fn needs(&self, after: &Needs) -> Needs;

    /// True if the stage generates its documents and must be the first.
    fn is_source(&self) -> bool {
        false
    }

    /// True if the stage writes its input to a collection and returns nothing.
    fn writes(&self) -> bool {
        false
    }

    /// True if the stage unpacks bucket documents into measurements.
    fn unpacks(&self) -> bool {
        false
    }

    /// Returns the written path if each output document is one input document in which only this path changes.
    fn adds(&self) -> Option<&str> {
        None
    }
}

impl Stage {
    /// Returns the stage as a trait object, unless the planner inspects it.
    pub fn opaque(&self) -> Option<&dyn PipelineStage> {
        Some(match self {
            Self::Match(_)
            | Self::Project(_)
            | Self::Group(_)
            | Self::Sort(_)
            | Self::Limit(_)
            | Self::Skip(_)
            | Self::Unwind(_)
            | Self::ReplaceRoot(_) => return None,
            Self::BucketAuto(stage) => &**stage,
            Self::Densify(stage) => &**stage,
            Self::Documents(stage) => &**stage,
            Self::Facet(stage) => &**stage,
            Self::GeoNear(stage) => &**stage,
            Self::GeoDistance(stage) => &**stage,
            Self::GraphLookup(stage) => &**stage,
            Self::Introspection(stage) => &**stage,
            Self::Lookup(stage) => &**stage,
            Self::Merge(stage) => &**stage,
            Self::Out(stage) => &**stage,
            Self::Redact(stage) => &**stage,
            Self::Sample(stage) => &**stage,
            Self::SetWindowFields(stage) => &**stage,
            Self::TextScore(stage) => &**stage,
            Self::UnionWith(stage) => &**stage,
            Self::UnpackBucket(stage) => &**stage,
        })
    }

    /// Returns the name that explain shows.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Match(_) => "$match",
            Self::Project(stage) => stage.name(),
            Self::Group(_) => "$group",
            Self::Sort(_) => "$sort",
            Self::Limit(_) => "$limit",
            Self::Skip(_) => "$skip",
            Self::Unwind(_) => "$unwind",
            Self::ReplaceRoot(_) => "$replaceRoot",
            other => other.opaque().map_or("", PipelineStage::name),
        }
    }

    /// Returns the stage as explain shows it.
    pub fn explain(&self) -> Document {
        let mut out = DocumentBuilder::new();
        let name = self.name();
        match self {
            Self::Match(stage) => out.append(name, stage.source.clone()),
            Self::Project(stage) => out.append(name, stage.source.clone()),
            Self::Group(stage) => out.append(name, stage.source.clone()),
            Self::Sort(stage) => out.append(name, stage.explain()),
            Self::Limit(n) | Self::Skip(n) => {
                out.append(name, i64::try_from(*n).unwrap_or(i64::MAX))
            }
            Self::Unwind(stage) => out.append(name, stage.explain()),
            Self::ReplaceRoot(stage) => {
                out.append(name, nilometer_bson::doc! {"newRoot": stage.source.clone()})
            }
            other => {
                if let Some(stage) = other.opaque() {
                    stage.explain(name, &mut out);
                }
                &mut out
            }
        };
        out.finish()
    }

    /// Returns the fields needed of the input if `after` is needed of the output.
    pub fn needs(&self, after: &Needs) -> Needs {
        match self {
            Self::Match(stage) => after.clone().and(&stage.needs()),
            Self::Project(stage) => stage.needs(after),
            Self::Group(stage) => stage.needs(),
            Self::Sort(stage) => after.clone().and(&stage.needs()),
            Self::Limit(_) | Self::Skip(_) => after.clone(),
            Self::Unwind(stage) => {
                let mut needs = after.clone();
                needs.add_path(stage.path.as_str());
                // A dotted index path is written into an existing object.
                if let Some(index) = &stage.index_path {
                    needs.add_path(index.as_str());
                }
                needs
            }
            Self::ReplaceRoot(stage) => Needs::of_expression(&stage.expression),
            other => other
                .opaque()
                .map_or(Needs::All, |stage| stage.needs(after)),
        }
    }

    /// True if the stage generates its documents.
    pub fn is_source(&self) -> bool {
        self.opaque().is_some_and(PipelineStage::is_source)
    }

    /// True if the stage writes its input to a collection: `$out` and `$merge`.
    pub fn writes(&self) -> bool {
        self.opaque().is_some_and(PipelineStage::writes)
    }

    /// True if the stage unpacks bucket documents into measurements.
    pub fn unpacks(&self) -> bool {
        self.opaque().is_some_and(PipelineStage::unpacks)
    }
}

/// Returns the argument as an object. The error is `complaint` followed by the actual type.
fn object<'a>(value: ValueRef<'a>, complaint: &str) -> Result<DocRef<'a>> {
    value
        .as_document()
        .ok_or_else(|| Error::failed_to_parse(format!("{complaint} {}", value.type_name())))
}

/// Whether a stage of the language is supported.
#[derive(Clone, Copy, Debug)]
pub enum Support {
    /// Supported. The function parses the argument and appends the resulting stages.
    Yes(ParseStage),
    /// Permanently refused, with a code and a reason.
    Refused(i32, &'static str),
}

/// Parses the argument of a stage and appends the resulting stages.
pub type ParseStage =
    fn(&PipelineContext, &'static str, ValueRef<'_>, &mut Vec<Stage>) -> Result<()>;

/// An entry of the stage table.
#[derive(Clone, Copy, Debug)]
pub struct StageEntry {
    /// Name with the dollar sign.
    pub name: &'static str,
    /// Must be the first stage.
    pub first: bool,
    /// Must be the last stage, in the pipeline of a command.
    pub last: bool,
    /// Is allowed inside `$facet`.
    pub in_facet: bool,
    /// Whether the stage is supported.
    pub support: Support,
}

const fn stage(name: &'static str, parse: ParseStage) -> StageEntry {
    StageEntry {
        name,
        first: false,
        last: false,
        in_facet: true,
        support: Support::Yes(parse),
    }
}

const fn source(name: &'static str, parse: ParseStage) -> StageEntry {
    StageEntry {
        name,
        first: true,
        last: false,
        in_facet: false,
        support: Support::Yes(parse),
    }
}

const fn sink(name: &'static str, parse: ParseStage) -> StageEntry {
    StageEntry {
        name,
        first: false,
        last: true,
        in_facet: false,
        support: Support::Yes(parse),
    }
}

const fn refused(name: &'static str, code: i32, reason: &'static str) -> StageEntry {
    StageEntry {
        name,
        first: false,
        last: false,
        in_facet: false,
        support: Support::Refused(code, reason),
    }
}

/// All stages of MongoDB 8.0 that a client may use.
pub static STAGES: &[StageEntry] = &[
    stage("$_internalUnpackBucket", unpack_bucket::parse_internal),
    stage("$_unpackBucket", unpack_bucket::parse),
    stage("$addFields", project::parse_add_fields),
    stage("$bucket", bucket::parse),
    stage("$bucketAuto", bucket_auto::parse),
    source(change_stream::NAME, change_stream::parse),
    refused(
        "$changeStreamSplitLargeEvent",
        location::REPLICA_SET_ONLY,
        "The $changeStreamSplitLargeEvent stage is only supported on replica sets",
    ),
    source("$collStats", introspection::parse),
    stage("$count", count::parse),
    source("$currentOp", introspection::parse),
    stage("$densify", densify::parse),
    source("$documents", documents::parse),
    StageEntry {
        in_facet: false,
        ..stage("$facet", facet::parse)
    },
    stage("$fill", fill::parse),
    source("$geoNear", geo_near::parse),
    stage("$graphLookup", graph_lookup::parse),
    stage("$group", group::parse),
    source("$indexStats", introspection::parse),
    stage("$limit", limit::parse_limit),
    source("$listCatalog", introspection::parse),
    source("$listLocalSessions", introspection::parse),
    refused(
        "$listSampledQueries",
        115,
        "$listSampledQueries is not supported on a standalone",
    ),
    refused(
        "$listSearchIndexes",
        location::SEARCH_NOT_ENABLED,
        "Using Atlas Search Database Commands and the $listSearchIndexes aggregation stage requires additional configuration",
    ),
    source("$listSessions", introspection::parse),
    stage("$lookup", lookup::parse),
    stage("$match", match_::parse),
    sink("$merge", merge::parse),
    sink("$out", out::parse),
    source("$planCacheStats", introspection::parse),
    stage("$project", project::parse_project),
    refused(
        "$querySettings",
        115,
        "$querySettings is not supported on a standalone",
    ),
    refused(
        "$queryStats",
        115,
        "$queryStats is not supported: statistics by query shape are not collected",
    ),
    stage("$redact", redact::parse),
    stage("$replaceRoot", replace_root::parse_replace_root),
    stage("$replaceWith", replace_root::parse_replace_with),
    stage("$sample", sample::parse),
    refused(
        "$search",
        location::SEARCH_NOT_ENABLED,
        "Using $search and $vectorSearch aggregation stages requires additional configuration",
    ),
    refused(
        "$searchMeta",
        location::SEARCH_NOT_ENABLED,
        "Using $search and $vectorSearch aggregation stages requires additional configuration",
    ),
    stage("$set", project::parse_add_fields),
    stage("$setWindowFields", set_window_fields::parse),
    source("$shardedDataDistribution", introspection::parse),
    stage("$skip", limit::parse_skip),
    stage("$sort", sort::parse),
    stage("$sortByCount", sort_by_count::parse),
    stage("$unionWith", union_with::parse),
    stage("$unset", project::parse_unset),
    stage("$unwind", unwind::parse),
    refused(
        "$vectorSearch",
        location::SEARCH_NOT_ENABLED,
        "Using $search and $vectorSearch aggregation stages requires additional configuration",
    ),
];

/// Parses the stages of a pipeline.
pub fn parse_pipeline<'a>(
    cx: &PipelineContext,
    stages: impl IntoIterator<Item = DocRef<'a>>,
) -> Result<Vec<Stage>> {
    let mut out = Vec::new();
    let documents: Vec<_> = stages.into_iter().collect();
    for (at, document) in documents.iter().enumerate() {
        if at >= PIPELINE_STAGES_MAX {
            return Err(Error::location(
                location::PIPELINE_TOO_LONG,
                format!("Pipeline length must be no longer than {PIPELINE_STAGES_MAX} stages"),
            ));
        }
        let position = Position {
            is_first: at == 0,
            is_last: at + 1 == documents.len(),
        };
        parse_stage(cx, *document, position, &mut out)?;
    }
    if meta::is_mentioned(&documents) {
        meta::settle(&mut out)?;
    }
    Ok(out)
}

/// Parses an array of stages. `what` is the array's name in errors.
pub fn parse_pipeline_value(
    cx: &PipelineContext,
    what: &str,
    value: ValueRef<'_>,
) -> Result<Vec<Stage>> {
    let Some(array) = value.as_array() else {
        return Err(Error::type_mismatch(format!("{what} must be an array")));
    };
    let mut documents = Vec::new();
    for value in array.iter() {
        let Some(document) = value.as_document() else {
            return Err(Error::type_mismatch(format!(
                "Each element of the '{what}' array must be an object"
            )));
        };
        documents.push(document);
    }
    parse_pipeline(cx, documents)
}

/// The position of a stage in its pipeline.
#[derive(Clone, Copy)]
struct Position {
    is_first: bool,
    is_last: bool,
}

fn parse_stage(
    cx: &PipelineContext,
    document: DocRef<'_>,
    position: Position,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let mut elements = document.iter();
    let (Some(element), None) = (elements.next(), elements.next()) else {
        return Err(Error::location(
            location::STAGE_NOT_ONE_FIELD,
            "A pipeline stage specification object must contain exactly one field.",
        ));
    };
    let name = element.name();
    let Some(entry) = STAGES
        .binary_search_by(|entry| entry.name.cmp(name))
        .ok()
        .and_then(|at| STAGES.get(at))
    else {
        return Err(Error::location(
            location::STAGE_UNKNOWN,
            format!("Unrecognized pipeline stage name: '{name}'"),
        ));
    };
    match entry.support {
        Support::Refused(code, reason) => Err(Error::location(code, reason)),
        Support::Yes(parse) => {
            check_place(cx.place, entry, position)?;
            parse(cx, entry.name, element.value(), out)
        }
    }
}

/// Checks that a stage is allowed at this position in this kind of pipeline.
fn check_place(place: Place, entry: &StageEntry, position: Position) -> Result<()> {
    let name = entry.name;
    if place == Place::Facet && !entry.in_facet {
        return Err(Error::location(
            location::STAGE_NOT_IN_FACET,
            format!("{name} is not allowed to be used within a $facet stage"),
        ));
    }
    if entry.first && !position.is_first {
        return Err(Error::location(
            location::STAGE_NOT_FIRST,
            format!("{name} is only valid as the first stage in a pipeline"),
        ));
    }
    if !entry.last {
        return Ok(());
    }
    check_of_command(place, name)?;
    match position.is_last {
        true => Ok(()),
        false => Err(Error::location(
            location::STAGE_NOT_LAST,
            format!("{name} can only be the final stage in the pipeline"),
        )),
    }
}

/// Refuses a stage in a view, and in the pipelines of `$lookup` and `$unionWith`.
fn check_of_command(place: Place, name: &str) -> Result<()> {
    match place {
        Place::Top | Place::Facet => Ok(()),
        Place::View => Err(Error::new(
            ErrorCode::OptionNotSupportedOnView,
            format!("{name} cannot be used in a view"),
        )),
        Place::Lookup => Err(Error::location(
            location::STAGE_NOT_IN_LOOKUP,
            format!("{name} is not allowed within a $lookup's sub-pipeline"),
        )),
        Place::Union => Err(Error::location(
            location::STAGE_NOT_IN_UNION_WITH,
            format!("{name} is not allowed within a $unionWith's sub-pipeline"),
        )),
    }
}

#[cfg(test)]
pub(crate) mod testing {
    use super::*;
    use nilometer_bson::Value;

    /// Parses an array of stages as the pipeline of a command.
    pub(crate) fn parse(stages: Value) -> Result<Vec<Stage>> {
        let cx = PipelineContext::top(ParseContext::new());
        parse_pipeline_value(&cx, "pipeline", stages.as_ref())
    }

    /// Returns the error code for an array of stages; 0 if it is valid.
    pub(crate) fn code(stages: Value) -> i32 {
        parse(stages).map_or_else(|error| error.code.0, |_| 0)
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{code, parse};
    use super::*;
    use nilometer_bson::{Value, array, doc};

    #[test]
    fn the_table_is_sorted_for_the_search() {
        assert!(STAGES.is_sorted_by(|a, b| a.name < b.name));
    }

    #[test]
    fn malformed_stages_are_named() {
        assert_eq!(code(array![doc! {"$foo": 1}]), 40_324);
        assert_eq!(code(array![doc! {}]), 40_323);
        assert_eq!(code(array![doc! {"$limit": 1, "$skip": 1}]), 40_323);
        assert_eq!(code(array![1]), 14);
        assert_eq!(
            code(array![doc! {"$limit": 1}, doc! {"$documents": array![]}]),
            40_602
        );
        assert_eq!(
            code(array![doc! {"$search": doc! {}}]),
            location::SEARCH_NOT_ENABLED
        );
    }

    #[test]
    fn a_pipeline_has_at_most_a_thousand_stages() {
        let stages = |n: usize| -> Value { vec![Value::from(doc! {"$limit": 1}); n].into() };
        assert!(parse(stages(PIPELINE_STAGES_MAX)).is_ok());
        assert_eq!(code(stages(PIPELINE_STAGES_MAX + 1)), 7_749_501);
    }

    #[test]
    fn pipelines_lie_in_pipelines_only_so_deep() {
        let nested = |depth: usize| -> Value {
            let mut stages = array![doc! {"$limit": 1}];
            for _ in 0..depth {
                stages = array![doc! {"$unionWith": doc! {"coll": "c", "pipeline": stages}}];
            }
            stages
        };
        assert!(parse(nested(PIPELINE_DEPTH_MAX)).is_ok());
        assert_eq!(code(nested(PIPELINE_DEPTH_MAX + 1)), 232);
    }
}
