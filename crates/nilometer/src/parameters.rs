//! Server parameters: one table of names, types, bounds and defaults, and their current values.
//!
//! Each entry of the table defines a typed method on [`Parameters`] for the core, and the input of
//! `getParameter` and `setParameter`. The values are atomics: reading one costs a load, and a change at run
//! time is visible to the next read. Parameters are set when the database is opened
//! ([`Parameters::set_at_startup`], for `--setParameter`) or while it runs, as each entry allows.
//!
//! Every parameter in the table has an effect.

use std::sync::atomic::{AtomicI64, Ordering};

use nilometer_bson::{Value, ValueRef};

use crate::error::{Error, ErrorCode, Result};
use crate::query::planner::rules::RuleSet;

/// The MongoDB version whose behaviour is offered.
pub(crate) const MONGODB_VERSION: &str = "8.0.12";

/// The feature compatibility version: that of the MongoDB whose behaviour is offered.
pub const FEATURE_COMPATIBILITY_VERSION: &str = "8.0";

/// The version of the form in which users and roles are shown.
pub const AUTH_SCHEMA_VERSION: i32 = 5;

/// The type of a parameter's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ParameterType {
    /// True or false.
    Bool,
    /// A 32-bit number.
    Int,
    /// A 64-bit number.
    Long,
    /// A list of names of planner rules, or one text with commas between them.
    Rules,
}

impl ParameterType {
    /// Describes a valid value, for messages.
    fn takes(self) -> &'static str {
        match self {
            Self::Bool => "true or false",
            Self::Int | Self::Long => "a whole number",
            Self::Rules => "a list of names",
        }
    }
}

/// When a parameter may be set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetAt {
    /// Never: it reports a fact.
    Never,
    /// On the command line and in the configuration file.
    Startup,
    /// Only while running.
    Runtime,
    /// Both.
    Any,
}

impl SetAt {
    /// True if it may be set when the database is opened.
    pub fn startup(self) -> bool {
        matches!(self, Self::Startup | Self::Any)
    }

    /// True if `setParameter` may set it.
    pub fn runtime(self) -> bool {
        matches!(self, Self::Runtime | Self::Any)
    }
}

/// The definition of a parameter.
#[derive(Debug)]
pub struct ParameterSpec {
    /// The name.
    pub name: &'static str,
    /// The type of its value.
    pub kind: ParameterType,
    /// When it may be set.
    pub set_at: SetAt,
    /// The default value (1 is true).
    pub default: i64,
    /// Smallest value allowed.
    pub min: i64,
    /// Largest value allowed.
    pub max: i64,
    /// The effect, with the unit.
    pub help: &'static str,
}

/// The current values.
#[derive(Debug)]
pub struct Parameters {
    values: Vec<AtomicI64>,
}

impl Clone for Parameters {
    /// Copies the current values; later changes are not shared.
    fn clone(&self) -> Self {
        let values = self.values.iter();
        let values = values.map(|value| AtomicI64::new(value.load(Ordering::Relaxed)));
        Self {
            values: values.collect(),
        }
    }
}

macro_rules! parameters {
    ($($method:ident = $name:literal, $kind:ident, $set_at:ident, $default:expr, $min:expr, $max:expr, $help:literal;)*) => {
        /// All parameters, by name.
        pub const PARAMETERS: &[ParameterSpec] = &[$(ParameterSpec {
            name: $name,
            kind: ParameterType::$kind,
            set_at: SetAt::$set_at,
            default: $default,
            min: $min,
            max: $max,
            help: $help,
        },)*];

        #[allow(non_camel_case_types, reason = "one name serves the method and its position")]
        #[derive(Clone, Copy)]
        enum Position { $($method,)* }

        impl Parameters {
            $(
                #[doc = $help]
                pub fn $method(&self) -> i64 {
                    self.at(Position::$method as usize)
                }
            )*
        }
    };
}

/// The largest value of an `Int` parameter.
const INT_MAX: i64 = i32::MAX as i64;

/// Most threads of one query.
pub const QUERY_THREADS_MAX: usize = 64;

parameters! {
    allow_disk_use_by_default = "allowDiskUseByDefault", Bool, Any, 1, 0, 1,
        "True if queries may spill to disk unless they say otherwise.";
    cursor_timeout_millis = "cursorTimeoutMillis", Long, Any, 600_000, 1, i64::MAX,
        "Milliseconds after which an idle cursor is closed.";
    enable_localhost_auth_bypass = "enableLocalhostAuthBypass", Bool, Startup, 1, 0, 1,
        "True to let a client on this machine create the first user or role while there is none.";
    enable_test_commands = "enableTestCommands", Bool, Startup, 0, 0, 1,
        "True if commands for tests exist: configureFailPoint.";
    internal_nilometer_disabled_rules = "internalNilometerDisabledRules", Rules, Any, 0, 0, i64::MAX,
        "Names of planner rules to disable, for tests and to locate an error; answers stay the same.";
    internal_query_max_blocking_sort_memory_usage_bytes = "internalQueryMaxBlockingSortMemoryUsageBytes", Long, Any, 104_857_600, 0, i64::MAX,
        "Bytes a sort may hold before it spills to disk or fails.";
    internal_document_source_group_max_memory_bytes = "internalDocumentSourceGroupMaxMemoryBytes", Long, Any, 104_857_600, 1, i64::MAX,
        "Bytes a group may hold before it spills to disk or fails.";
    internal_query_max_allowed_densify_docs = "internalQueryMaxAllowedDensifyDocs", Long, Any, 500_000, 0, i64::MAX,
        "Documents a $densify may generate.";
    max_sessions = "maxSessions", Int, Startup, 1_000_000, 1, INT_MAX,
        "Logical sessions that may be open at once.";
    nilometer_bucket_cache_bytes = "nilometerBucketCacheBytes", Long, Any, 268_435_456, 0, i64::MAX,
        "Bytes of opened buckets, with their decoded columns, cached for later queries; 0 to cache none. Unless set, at most a sixteenth of memory.";
    nilometer_memory_bytes = "nilometerMemoryBytes", Long, Startup, 0, 0, i64::MAX,
        "Bytes of memory the process may use, shared by caches, queries and messages; 0 for the limit of the machine and its control groups.";
    nilometer_query_memory_bytes = "nilometerQueryMemoryBytes", Long, Any, 0, 0, i64::MAX,
        "Bytes the stages of all queries may hold together before they spill to disk or fail; 0 for half of the machine's memory.";
    nilometer_query_threads = "nilometerQueryThreads", Int, Any, 0, 0, QUERY_THREADS_MAX as i64,
        "Threads that may work on one query; 0 for the number of processor cores, 1 for a single thread.";
    nilometer_stuck_disk_millis = "nilometerStuckDiskMillis", Long, Any, 5000, 1, i64::MAX,
        "Milliseconds after which an unfinished write or sync is reported in the log, in serverStatus and by /readyz.";
    quiet = "quiet", Bool, Any, 0, 0, 1,
        "True to log no connections.";
    scram_iteration_count = "scramIterationCount", Int, Any, 10_000, 5000, INT_MAX,
        "Hash iterations for the SCRAM-SHA-1 passwords of new users.";
    scram_sha256_iteration_count = "scramSHA256IterationCount", Int, Any, 15_000, 5000, INT_MAX,
        "Hash iterations for the SCRAM-SHA-256 passwords of new users.";
    timeseries_bucket_max_count = "timeseriesBucketMaxCount", Int, Startup, 1000, 1, INT_MAX,
        "Measurements a bucket may hold.";
    timeseries_bucket_max_size = "timeseriesBucketMaxSize", Int, Startup, 128_000, 1, INT_MAX,
        "Bytes a bucket document may have, except with a few large measurements.";
    timeseries_bucket_min_count = "timeseriesBucketMinCount", Int, Startup, 10, 1, INT_MAX,
        "Measurements a bucket may hold even if they exceed its size; 1 for no exception.";
    timeseries_bucket_min_size = "timeseriesBucketMinSize", Int, Any, 5120, 1, INT_MAX,
        "Bytes a bucket document may always have, however many buckets share the cache.";
    timeseries_idle_bucket_expiry_max_count_per_attempt = "timeseriesIdleBucketExpiryMaxCountPerAttempt", Int, Startup, 3, 2, INT_MAX,
        "Idle series whose buckets one insert may close when memory is short.";
    timeseries_idle_bucket_expiry_memory_usage_threshold = "timeseriesIdleBucketExpiryMemoryUsageThreshold", Int, Any, 0, -1, INT_MAX,
        "Bytes of open buckets above which idle ones are archived and closed; 0 or -1 is 2.5 % of memory, and 512 MiB where that is unknown.";
    transaction_lifetime_limit_seconds = "transactionLifetimeLimitSeconds", Int, Any, 60, 1, INT_MAX,
        "Seconds after which an open transaction is aborted.";
    ttl_monitor_enabled = "ttlMonitorEnabled", Bool, Any, 1, 0, 1,
        "False to keep expired documents.";
    ttl_monitor_sleep_secs = "ttlMonitorSleepSecs", Int, Any, 60, 1, INT_MAX,
        "Seconds between two searches for expired documents.";
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            values: PARAMETERS
                .iter()
                .map(|p| AtomicI64::new(p.default))
                .collect(),
        }
    }
}

impl Parameters {
    fn at(&self, position: usize) -> i64 {
        self.values[position].load(Ordering::Relaxed)
    }

    /// Returns the value of the parameter called `name`, as `getParameter` shows it.
    pub fn value(&self, name: &str) -> Option<Value> {
        let position = PARAMETERS.iter().position(|p| p.name == name)?;
        let spec = &PARAMETERS[position];
        let number = self.at(position);
        Some(match spec.kind {
            ParameterType::Bool => Value::Bool(number != 0),
            ParameterType::Int => Value::Int32(i32::try_from(number).unwrap_or(i32::MAX)),
            ParameterType::Long => Value::Int64(number),
            ParameterType::Rules => {
                let names = RuleSet::from_number(number).names();
                names
                    .into_iter()
                    .map(Value::from)
                    .collect::<Vec<_>>()
                    .into()
            }
        })
    }

    /// Fails if [`Parameters::set_at_runtime`] would fail, without setting the parameter. Code 72 for an
    /// unknown name, 20 for one that may not be set now, 14 and 2 for bad values.
    pub fn check_at_runtime(&self, name: &str, value: ValueRef<'_>) -> Result<()> {
        runtime_value(name, value).map(|_| ())
    }

    /// Sets a parameter while the database runs. Returns the previous value.
    pub fn set_at_runtime(&self, name: &str, value: ValueRef<'_>) -> Result<Value> {
        let (spec, number) = runtime_value(name, value)?;
        let before = self.value(name).unwrap_or_default();
        self.set(spec, number);
        Ok(before)
    }

    /// Sets a parameter before the database is opened, from the text of a command line.
    pub fn set_at_startup(&self, name: &str, text: &str) -> Result<()> {
        let spec = lookup(name)?;
        if !spec.set_at.startup() {
            return Err(Error::new(
                ErrorCode::IllegalOperation,
                format!("the parameter {name} cannot be set at startup"),
            ));
        }
        self.set(spec, within_bounds(spec, parse_text(spec, text)?)?);
        Ok(())
    }

    fn set(&self, spec: &ParameterSpec, number: i64) {
        let mut parameters = PARAMETERS.iter();
        let position = parameters.position(|p| p.name == spec.name);
        let position = position.expect("a parameter of the table");
        self.values[position].store(number, Ordering::Relaxed);
    }
}

fn runtime_value(name: &str, value: ValueRef<'_>) -> Result<(&'static ParameterSpec, i64)> {
    let spec = lookup(name)?;
    if !spec.set_at.runtime() {
        return Err(Error::new(
            ErrorCode::IllegalOperation,
            format!("not allowed to change [{name}] at runtime"),
        ));
    }
    let number = within_bounds(spec, parse_value(spec, value)?)?;
    Ok((spec, number))
}

fn within_bounds(spec: &ParameterSpec, number: i64) -> Result<i64> {
    let (relation, bound) = if number < spec.min {
        ("greater than or equal to", spec.min)
    } else if number > spec.max {
        ("less than or equal to", spec.max)
    } else {
        return Ok(number);
    };
    Err(Error::bad_value(format!(
        "Invalid value for parameter {}: {number} is not {relation} {bound}",
        spec.name
    )))
}

fn lookup(name: &str) -> Result<&'static ParameterSpec> {
    PARAMETERS.iter().find(|p| p.name == name).ok_or_else(|| {
        Error::invalid_options(format!(
            "attempted to set unrecognized parameter [{name}], use help:true to see options "
        ))
    })
}

fn parse_value(spec: &ParameterSpec, value: ValueRef<'_>) -> Result<i64> {
    match (spec.kind, value) {
        (_, ValueRef::String(text)) => parse_text(spec, text),
        (ParameterType::Rules, ValueRef::Array(list)) => {
            let names: Option<Vec<&str>> = list.iter().map(|name| name.as_str()).collect();
            let names = names.ok_or_else(|| {
                Error::type_mismatch(format!("{} takes a list of names", spec.name))
            })?;
            Ok(RuleSet::named(names)?.number())
        }
        (ParameterType::Bool, ValueRef::Bool(value)) => Ok(i64::from(value)),
        (ParameterType::Bool, value) if value.is_number() => {
            Ok(i64::from(value.as_exact_i64() != Some(0)))
        }
        (ParameterType::Int | ParameterType::Long, value) if value.is_number() => {
            value.as_exact_i64().ok_or_else(|| {
                Error::bad_value(format!(
                    "Failed to set parameter {}: it takes {}",
                    spec.name,
                    spec.kind.takes()
                ))
            })
        }
        (_, other) => Err(Error::type_mismatch(format!(
            "Failed to set parameter {}: it takes {}, not a value of type '{}'",
            spec.name,
            spec.kind.takes(),
            other.type_name()
        ))),
    }
}

fn parse_text(spec: &ParameterSpec, text: &str) -> Result<i64> {
    let parsed = match spec.kind {
        ParameterType::Bool => match text {
            "true" | "1" => Some(1),
            "false" | "0" => Some(0),
            _ => None,
        },
        ParameterType::Int | ParameterType::Long => text.trim().parse().ok(),
        ParameterType::Rules => {
            let names = text
                .split(',')
                .map(str::trim)
                .filter(|name| !name.is_empty());
            Some(RuleSet::named(names)?.number())
        }
    };
    parsed.ok_or_else(|| {
        Error::bad_value(format!(
            "Failed to set parameter {}: it takes {}, not '{text}'",
            spec.name,
            spec.kind.takes()
        ))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_consistent() {
        for (at, spec) in PARAMETERS.iter().enumerate() {
            assert!(
                spec.min <= spec.default && spec.default <= spec.max,
                "{}",
                spec.name
            );
            assert!(PARAMETERS.iter().skip(at + 1).all(|p| p.name != spec.name));
        }
        assert_eq!(Parameters::default().timeseries_bucket_max_count(), 1000);
        assert_eq!(Parameters::default().ttl_monitor_sleep_secs(), 60);
    }

    #[test]
    fn setting_checks_time_type_and_bounds() {
        let parameters = Parameters::default();
        let set = |name, value| parameters.set_at_runtime(name, value).map_err(|e| e.code.0);
        assert!(matches!(
            set("ttlMonitorSleepSecs", ValueRef::Int32(5)),
            Ok(Value::Int32(60))
        ));
        assert_eq!(parameters.ttl_monitor_sleep_secs(), 5);
        assert_eq!(
            set("timeseriesBucketMaxCount", ValueRef::Int32(5)).unwrap_err(),
            20
        );
        assert_eq!(set("nonsense", ValueRef::Int32(5)).unwrap_err(), 72);
        assert_eq!(
            set("ttlMonitorSleepSecs", ValueRef::Int32(0)).unwrap_err(),
            2
        );
        assert_eq!(set("ttlMonitorSleepSecs", ValueRef::Null).unwrap_err(), 14);
        parameters
            .set_at_startup("timeseriesBucketMaxCount", "7")
            .unwrap();
        assert_eq!(parameters.timeseries_bucket_max_count(), 7);
        parameters
            .set_at_startup("enableTestCommands", "1")
            .unwrap();
        assert!(parameters.set_at_startup("quiet", "maybe").is_err());
        let rules = "internalNilometerDisabledRules";
        parameters
            .set_at_startup(rules, "SortLimit, MergeLimits")
            .unwrap();
        let named = parameters.value(rules).unwrap_or_default();
        let named = named.as_ref().as_array().map(|names| names.iter().count());
        assert_eq!(named, Some(2));
        let error = parameters.set_at_startup(rules, "Nonsense").unwrap_err();
        assert_eq!(error.code.0, 2);
        parameters.set_at_startup(rules, "").unwrap();
        assert_eq!(parameters.internal_nilometer_disabled_rules(), 0);
    }
}
