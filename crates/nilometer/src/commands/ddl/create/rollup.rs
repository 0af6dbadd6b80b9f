//! Rollups: `{create: "hourly", rollup: {source, pipeline, lateness, refresh, indexes}, expireAfterSeconds}`.

use std::sync::Arc;

use nilometer_bson::{ArrayRef, Document, ValueRef};

use super::options::check_expire_after;
use super::{Creation, FIELDS};
use crate::args::Args;
use crate::catalog::{Collection, Namespace, RollupOptions, StoredRollup};
use crate::commands::ddl::create_indexes;
use crate::database::check_collation_of_source;
use crate::error::{Error, ErrorCode, Result};
use crate::rollup::{RollupDefinition, definition_of};

/// The options of a rollup.
const OPTIONS: &[&str] = &["source", "pipeline", "lateness", "refresh", "indexes"];

/// Options of `create` that rollups take. All others are refused.
const WITH_ROLLUP: &[&str] = &["rollup", "expireAfterSeconds"];

/// The seconds after which a bin is taken to be complete, if nothing else is asked for.
const LATENESS_SECONDS: i64 = 60;

/// The seconds between two refreshes, if nothing else is asked for.
const REFRESH_SECONDS: i64 = 10;

/// The most seconds of either: a hundred years.
const SECONDS_MAX: i64 = 3_155_760_000;

impl Creation<'_> {
    /// Refuses options and names that a rollup does not have.
    fn check_rollup(&self) -> Result<()> {
        let others = FIELDS.iter().filter(|name| !WITH_ROLLUP.contains(name));
        let others: Vec<&str> = others.copied().collect();
        if let Some(refused) = self.given(&others) {
            return Err(Error::invalid_options(format!(
                "'rollup' is not allowed with '{refused}'"
            )));
        }
        if self.uuid.is_some() {
            return Err(Error::invalid_options(format!(
                "{} is a rollup: rollups have no UUID",
                self.namespace
            )));
        }
        if self.namespace.is_reserved() || self.namespace.is_system() {
            return Err(Error::new(
                ErrorCode::InvalidNamespace,
                format!("{} cannot be the name of a rollup", self.namespace),
            ));
        }
        Ok(())
    }

    /// Creates a rollup.
    pub(super) fn create_rollup(&self) -> Result<()> {
        self.check_rollup()?;
        let default = RollupOptions {
            lateness_ms: LATENESS_SECONDS * 1000,
            refresh_ms: REFRESH_SECONDS * 1000,
            expire_after_seconds: None,
        };
        let options = changed_options_of(self.args, default, OPTIONS)?;
        let Some(args) = self.args.nested("rollup", OPTIONS)? else {
            return Err(self.args.missing("rollup"));
        };
        let Some(stages) = args.array("pipeline")? else {
            return Err(args.missing("pipeline"));
        };
        let stages = stages.iter().map(|stage| match stage {
            ValueRef::Document(stage) => Ok(stage.to_document()),
            _ => Err(Error::type_mismatch(
                "Each element of the 'pipeline' array must be an object",
            )),
        });
        let pipeline = stages.collect::<Result<Vec<_>>>()?;
        let definition = (args.required_string("source")?.to_owned(), pipeline);
        // The source may be created in between.
        while !self.store_rollup(&definition, options)? {}
        match args.array("indexes")? {
            None => Ok(()),
            Some(indexes) => self.create_indexes_of_rollup(indexes),
        }
    }

    /// Creates the indexes that a definition names, as a restored one does.
    fn create_indexes_of_rollup(&self, indexes: ArrayRef<'_>) -> Result<()> {
        let wanted = create_indexes::of_rollup(indexes, true)?;
        let Some(rollup) = self.database.catalog().rollup(&self.namespace) else {
            return Ok(());
        };
        // A new rollup has no bins, and one that is there has its indexes.
        let pace = || Ok(());
        create_indexes::add_to_rollup(self.database, (&self.namespace, &rollup), &wanted, &pace)?;
        Ok(())
    }

    /// Stores a definition; false if it must be looked at again.
    fn store_rollup(
        &self,
        definition: &(String, Vec<Document>),
        options: RollupOptions,
    ) -> Result<bool> {
        let (source, pipeline) = definition;
        let catalog = self.database.catalog();
        let source_name = Namespace {
            database: self.namespace.database.clone(),
            collection: source.clone(),
        };
        let chain = catalog.rollup_chain(&source_name.database, source);
        if chain.is_none()
            && catalog.get(&source_name).is_some()
            && catalog.rollup(&source_name).is_none()
        {
            return Err(Error::new(
                ErrorCode::NamespaceNotFound,
                format!("rollup: {source_name} is no time series and no rollup"),
            ));
        }
        match &chain {
            Some((below, bottom)) => check_definition(below, bottom, pipeline)?,
            None => RollupDefinition::check_stages(pipeline)?,
        }
        if catalog.get(&self.namespace).is_some() {
            let is_same = catalog.rollup(&self.namespace).is_some_and(|known| {
                (&known.source, &known.pipeline) == (source, pipeline) && known.options() == options
            });
            return is_same.then_some(true).ok_or_else(|| self.exists());
        }
        let uuid = self.database.services().ids.uuid();
        let (name, definition) = (&self.namespace, definition.clone());
        match &chain {
            Some((_, bottom)) => {
                catalog.create_rollup(name, bottom, uuid, definition, options)?;
                Ok(true)
            }
            None => catalog.create_waiting_rollup(name, uuid, definition, options),
        }
    }
}

/// Compiles a definition over the rollups `below`, the nearest first, and a time series.
fn check_definition(
    below: &[(Namespace, Arc<StoredRollup>)],
    bottom: &Collection,
    pipeline: &[Document],
) -> Result<()> {
    let Some(series) = &bottom.timeseries else {
        return Err(Error::bad_value(
            "a rollup stands on a time-series collection",
        ));
    };
    check_collation_of_source(bottom)?;
    match below.first() {
        None => RollupDefinition::over_series(series, pipeline)?,
        Some((_, parent)) => {
            RollupDefinition::over_rollup(&*definition_of(parent, series)?, pipeline)?
        }
    };
    Ok(())
}

/// Returns the options with those that `collMod` gives.
pub(in crate::commands) fn changed_options(
    args: &Args<'_>,
    now: RollupOptions,
) -> Result<RollupOptions> {
    changed_options_of(args, now, &["lateness", "refresh"])
}

fn changed_options_of(
    args: &Args<'_>,
    mut options: RollupOptions,
    names: &'static [&'static str],
) -> Result<RollupOptions> {
    match args.value("expireAfterSeconds") {
        ValueRef::Missing => {}
        ValueRef::String("off") => options.expire_after_seconds = None,
        _ => {
            let seconds = args.integer("expireAfterSeconds")?;
            seconds.map_or(Ok(()), check_expire_after)?;
            options.expire_after_seconds = seconds;
        }
    }
    let Some(rollup) = args.nested("rollup", names)? else {
        return Ok(options);
    };
    let seconds = |name: &str, now_ms: i64| -> Result<i64> {
        match rollup.integer(name)? {
            None => Ok(now_ms),
            Some(seconds) if (0..=SECONDS_MAX).contains(&seconds) => Ok(seconds * 1000),
            Some(seconds) => Err(Error::invalid_options(format!(
                "'rollup.{name}' must be between 0 and {SECONDS_MAX} seconds, got {seconds}"
            ))),
        }
    };
    options.lateness_ms = seconds("lateness", options.lateness_ms)?;
    options.refresh_ms = seconds("refresh", options.refresh_ms)?;
    Ok(options)
}
