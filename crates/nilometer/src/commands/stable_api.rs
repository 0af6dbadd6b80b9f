//! The stable API: `apiVersion`, and what `apiStrict` refuses.
//!
//! Version 1 holds commands, some of them without some of their options, and all stages but those that report on the
//! server. A command's own text decides: pipelines are read as they are written, before they are parsed.

use nilometer_bson::{DocRef, ValueRef};

use super::{COMMANDS, CommandSpec, find_command};
use crate::error::{Error, ErrorCode, Result, location};
use crate::session::ApiParameters;

/// Options outside version 1, by command.
const OPTIONS_OUTSIDE: &[(&str, &[&str])] = &[
    (
        "create",
        &[
            "autoIndexId",
            "capped",
            "indexOptionDefaults",
            "max",
            "size",
            "storageEngine",
        ],
    ),
    (
        "find",
        &[
            "awaitData",
            "max",
            "min",
            "noCursorTimeout",
            "oplogReplay",
            "returnKey",
            "showRecordId",
            "tailable",
        ],
    ),
];

/// Options outside version 1 of every command that takes them.
const COMMON_OPTIONS_OUTSIDE: &[&str] = &["rawData"];

/// Options of an index outside version 1.
const INDEX_OPTIONS_OUTSIDE: &[&str] = &["background", "bucketSize", "sparse", "storageEngine"];

/// Kinds of indexes outside version 1.
const INDEX_KINDS_OUTSIDE: &[&str] = &["geoHaystack", "text"];

/// Stages outside version 1.
const STAGES_OUTSIDE: &[&str] = &[
    "$currentOp",
    "$indexStats",
    "$listCatalog",
    "$listLocalSessions",
    "$listSampledQueries",
    "$listSearchIndexes",
    "$listSessions",
    "$planCacheStats",
    "$querySettings",
    "$queryStats",
    "$search",
    "$searchMeta",
    "$vectorSearch",
];

/// Most pipelines inside each other that are read; deeper ones are refused when they are parsed.
const PIPELINE_DEPTH_MAX: usize = 32;

/// The options of the stable API in a command.
#[derive(Default)]
pub(super) struct StableApi<'a> {
    pub(super) version: Option<&'a str>,
    pub(super) strict: Option<bool>,
    pub(super) deprecation_errors: Option<bool>,
}

impl StableApi<'_> {
    /// Fails if the command is outside the version that it asks for.
    pub(super) fn check(&self, spec: &CommandSpec, body: DocRef<'_>) -> Result<ApiParameters> {
        match self.version {
            None if self.strict.is_some() || self.deprecation_errors.is_some() => {
                return Err(Error::location(
                    location::API_VERSION_MISSING,
                    "Provided apiStrict and/or apiDeprecationErrors without passing apiVersion",
                ));
            }
            None => return Ok(ApiParameters::default()),
            Some("1") => {}
            Some(_) => {
                return Err(Error::new(
                    ErrorCode::APIVersionError,
                    "API version must be \"1\"",
                ));
            }
        }
        let strict = self.strict.unwrap_or(false);
        if strict {
            check_strict(spec, body)?;
        }
        Ok(ApiParameters {
            is_versioned: true,
            strict,
            deprecation_errors: self.deprecation_errors.unwrap_or(false),
        })
    }
}

/// Fails if a command is outside version 1.
fn check_strict(spec: &CommandSpec, body: DocRef<'_>) -> Result<()> {
    let name = body.iter().next().map_or(spec.name, |first| first.name());
    if !spec.in_api_v1 || name != spec.name {
        return Err(refused(format!("the command {name}")));
    }
    let outside = OPTIONS_OUTSIDE.iter().find(|(of, _)| *of == spec.name);
    let outside = outside.map_or(&[][..], |(_, options)| options);
    for option in outside.iter().chain(COMMON_OPTIONS_OUTSIDE) {
        if is_set(body.get(option)) {
            return Err(refused(format!("the option '{option}' of {name}")));
        }
    }
    match spec.name {
        "aggregate" => check_pipeline(body.get("pipeline")),
        "createIndexes" => indexes(body.get("indexes")),
        "explain" => {
            let Some(inner) = body.get("explain").as_document() else {
                return Ok(());
            };
            let name = inner.iter().next().map_or("", |first| first.name());
            match find_command(name).and_then(|at| COMMANDS.get(at)) {
                Some(spec) if spec.name != "explain" => check_strict(spec, inner),
                _ => Ok(()),
            }
        }
        _ => Ok(()),
    }
}

fn is_set(value: ValueRef<'_>) -> bool {
    !matches!(
        value,
        ValueRef::Missing | ValueRef::Null | ValueRef::Bool(false)
    )
}

fn refused(what: String) -> Error {
    Error::new(
        ErrorCode::APIStrictError,
        format!("Provided apiStrict:true, but {what} is not in API Version 1"),
    )
}

fn indexes(list: ValueRef<'_>) -> Result<()> {
    let list = list.as_array();
    let mut specs = list.iter().flat_map(|list| list.iter());
    specs.try_for_each(|spec| spec.as_document().map_or(Ok(()), check_index))
}

/// Fails if an index is outside version 1.
pub(super) fn check_index(spec: DocRef<'_>) -> Result<()> {
    for option in INDEX_OPTIONS_OUTSIDE {
        if is_set(spec.get(option)) {
            return Err(refused(format!("the index option '{option}'")));
        }
    }
    let key = spec.get("key").as_document();
    let kinds = key.iter().flat_map(|key| key.iter());
    for kind in kinds.filter_map(|field| field.value().as_str()) {
        if INDEX_KINDS_OUTSIDE.contains(&kind) {
            return Err(refused(format!("an index of the kind '{kind}'")));
        }
    }
    Ok(())
}

/// Fails if a stage is outside version 1.
pub(super) fn check_pipeline(stages: ValueRef<'_>) -> Result<()> {
    pipeline(stages, 0)
}

/// Reads the stages of a pipeline, and those of the pipelines inside it.
fn pipeline(stages: ValueRef<'_>, depth: usize) -> Result<()> {
    let Some(stages) = stages.as_array().filter(|_| depth < PIPELINE_DEPTH_MAX) else {
        return Ok(());
    };
    for stage in stages.iter().filter_map(ValueRef::as_document) {
        for field in stage {
            if STAGES_OUTSIDE.contains(&field.name()) {
                return Err(refused(format!("the stage {}", field.name())));
            }
            let Some(argument) = field.value().as_document() else {
                continue;
            };
            match field.name() {
                "$collStats" => {
                    if let Some(part) = argument.iter().find(|part| part.name() != "count") {
                        return Err(refused(format!("'{}' of $collStats", part.name())));
                    }
                }
                "$facet" => {
                    for facet in argument {
                        pipeline(facet.value(), depth + 1)?;
                    }
                }
                "$lookup" | "$unionWith" => pipeline(argument.get("pipeline"), depth + 1)?,
                _ => {}
            }
        }
    }
    Ok(())
}
