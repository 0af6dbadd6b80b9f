//! Rollups: `{create: "hourly", rollup: {source, pipeline, lateness, refresh}, expireAfterSeconds}`.

use nilometer_bson::ValueRef;

use super::options::check_expire_after;
use super::{Creation, FIELDS};
use crate::args::Args;
use crate::catalog::{Namespace, RollupOptions};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::Collation;
use crate::rollup::{RollupDefinition, definition_of};

/// The options of a rollup.
const OPTIONS: &[&str] = &["source", "pipeline", "lateness", "refresh"];

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
        let source = args.required_string("source")?.to_owned();
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
        let database = self.namespace.database.clone();
        let catalog = self.database.catalog();
        let chain = catalog.rollup_chain(&database, &source);
        let Some((below, bottom)) = chain else {
            return Err(Error::new(
                ErrorCode::NamespaceNotFound,
                format!("rollup: {database}.{source} is no time series and no rollup"),
            ));
        };
        let Some(series) = &bottom.timeseries else {
            return Err(Error::bad_value(
                "a rollup stands on a time-series collection",
            ));
        };
        if Collation::of_stored(bottom.options.as_ref())? != Collation::SIMPLE {
            return Err(Error::invalid_options(
                "rollup: the source has a collation, by which its groups would differ",
            ));
        }
        // Compiling checks the definition.
        match below.first() {
            None => RollupDefinition::over_series(series, &pipeline)?,
            Some((_, parent)) => {
                RollupDefinition::over_rollup(&*definition_of(parent, series)?, &pipeline)?
            }
        };
        let known = |namespace: &Namespace| catalog.rollup(namespace);
        if catalog.get(&self.namespace).is_some() {
            let is_same = known(&self.namespace).is_some_and(|known| {
                (&known.source, &known.pipeline) == (&source, &pipeline)
                    && known.options() == options
            });
            return is_same.then_some(()).ok_or_else(|| self.exists());
        }
        let uuid = self.database.services().ids.uuid();
        let definition = (source, pipeline);
        catalog.create_rollup(&self.namespace, &bottom, uuid, definition, options)?;
        Ok(())
    }
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
