//! The options every command takes.
//!
//! They are parsed once per command, before its handler: database, session, time limit, stable API, read and
//! write concern. A handler finds their values in its
//! [`OperationContext`](crate::operation::OperationContext).
//!
//! Without the name of a replica set, numbers of writes and transactions are refused with the code drivers know from a MongoDB
//! standalone.

use nilometer_bson::{DocRef, Document, Element, Timestamp, Value, ValueRef, doc};

use super::stable_api::StableApi;
use super::transactions::{self, TransactionArgs};
use super::{CommandSpec, Fields};
use crate::args::{Args, truncated_i64};
use crate::error::{Error, ErrorCode, Result, location};
use crate::operation::{AFTER_CLUSTER_TIME, WriteConcern};
use crate::services::ReplicaSet;
use crate::session::{ApiParameters, SessionId};

/// The read preference of the primary alone.
const PRIMARY: &str = "primary";

/// Read preference modes.
const READ_PREFERENCE_MODES: &[&str] = &[
    PRIMARY,
    "primaryPreferred",
    "secondary",
    "secondaryPreferred",
    "nearest",
];

/// The largest `maxTimeMS`.
const MAX_TIME_MS_MAX: i64 = i32::MAX as i64;

/// Names of the options every command takes.
const GENERIC_FIELDS: &[&str] = &[
    "$clusterTime",
    "$db",
    "$queryOptions",
    "$readPreference",
    "apiDeprecationErrors",
    "apiStrict",
    "apiVersion",
    "autocommit",
    "comment",
    "lsid",
    "maxTimeMS",
    "readConcern",
    "startTransaction",
    "txnNumber",
    "writeConcern",
];

/// The option that makes a command mean the buckets of a time series. Commands that take it list it.
pub(super) const RAW_DATA: &str = "rawData";

/// True if every command takes the option `name`.
pub(crate) fn is_generic(name: &str) -> bool {
    GENERIC_FIELDS.contains(&name)
}

/// The values of the options every command takes.
#[derive(Clone, Debug, Default)]
pub(crate) struct GenericArgs {
    pub(crate) database: String,
    pub(crate) lsid: Option<SessionId>,
    /// `txnNumber` of a retryable write, or of a command that ends a transaction.
    pub(crate) txn_number: Option<i64>,
    /// Of a command that belongs to a transaction.
    pub(crate) transaction: Option<TransactionArgs>,
    /// Of a read of a snapshot outside of transactions.
    pub(crate) snapshot: Option<SnapshotArgs>,
    pub(crate) max_time_ms: i64,
    pub(crate) comment: Option<Value>,
    pub(crate) write_concern: WriteConcern,
    /// The error of a write concern that the set cannot meet. The write is done.
    pub(crate) unmet_concern: Option<Document>,
    pub(crate) api: ApiParameters,
    /// True with a read preference that members other than the primary satisfy.
    pub(crate) secondary_ok: bool,
}

/// Which numbers of writes and transactions commands may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Numbers {
    /// None: the server is a standalone.
    None,
    /// Those of retryable writes: the server is a router, or a partition of one.
    OfWrites,
    /// Also those of transactions.
    All,
}

/// Which snapshot a command reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SnapshotArgs {
    /// The cluster time of an earlier one; `None` for that of now.
    pub(crate) at: Option<Timestamp>,
}

/// Checks the names in `body` and reads the options every command takes. `set` is the replica set of the server.
pub(crate) fn parse(
    spec: &CommandSpec,
    body: DocRef<'_>,
    set: Option<&ReplicaSet>,
    numbers: Numbers,
) -> Result<GenericArgs> {
    let args = Args::new(spec.name, body);
    let mut first = true;
    args.check_names_with(|_| true)?;
    let mut parsed = GenericArgs::default();
    let mut api = StableApi::default();
    let mut transaction = Transaction::default();
    let mut database = None;
    for element in body {
        if std::mem::take(&mut first) {
            continue;
        }
        match element.name() {
            "$db" => database = Some(args.required_string("$db")?),
            "lsid" => {
                parsed.lsid = Some(SessionId::parse(
                    element.value(),
                    &format!("{}.lsid", spec.name),
                )?);
            }
            "$readPreference" => parsed.secondary_ok = read_preference(&args, element)?,
            "$queryOptions" => parsed.secondary_ok |= query_options(&args)?,
            "$clusterTime" => {
                args.required_document("$clusterTime")?;
            }
            "apiVersion" => api.version = Some(args.required_string("apiVersion")?),
            "apiStrict" => api.strict = args.boolean("apiStrict")?,
            "apiDeprecationErrors" => {
                api.deprecation_errors = args.boolean("apiDeprecationErrors")?;
            }
            "comment" => parsed.comment = Some(element.value().to_value()),
            "maxTimeMS" => parsed.max_time_ms = max_time(element.value(), "maxTimeMS")?,
            "readConcern" => parsed.snapshot = read_concern(spec, &args, set)?,
            "writeConcern" => {
                (parsed.write_concern, parsed.unmet_concern) = write_concern(spec, &args, set)?;
            }
            "txnNumber" => transaction.number = args.long("txnNumber")?,
            "autocommit" => transaction.autocommit = args.boolean("autocommit")?,
            "startTransaction" => transaction.start = args.boolean("startTransaction")?,
            name => check_own_field(spec, &args, name)?,
        }
    }
    parsed.api = api.check(spec, body)?;
    parsed.transaction = transaction.check(spec, parsed.lsid, numbers)?;
    parsed.txn_number = transaction.number;
    if let Some(transaction) = parsed.transaction {
        check_concerns(spec, body, transaction)?;
        if !transactions::is_end(spec) {
            parsed.txn_number = None;
        }
    }
    let Some(database) = database else {
        return Err(Error::location(
            location::DB_MISSING,
            "OP_MSG requests require a $db argument",
        ));
    };
    parsed.database = database.to_owned();
    Ok(parsed)
}

fn check_own_field(spec: &CommandSpec, args: &Args<'_>, name: &str) -> Result<()> {
    match spec.fields {
        Fields::Any => Ok(()),
        Fields::Only(known) if known.contains(&name) => Ok(()),
        Fields::Only(_) => Err(args.unknown(name)),
    }
}

/// The options of a transaction that are present.
#[derive(Default)]
struct Transaction {
    number: Option<i64>,
    autocommit: Option<bool>,
    start: Option<bool>,
}

/// Refuses the concerns of a statement: those of the first one hold for the reads of the transaction, those of its commit for
/// its writes.
fn check_concerns(spec: &CommandSpec, body: DocRef<'_>, args: TransactionArgs) -> Result<()> {
    if !transactions::is_end(spec) && body.contains("writeConcern") {
        return Err(Error::invalid_options(
            "writeConcern is not allowed within a multi-statement transaction",
        ));
    }
    if !args.starts && body.contains("readConcern") {
        return Err(Error::invalid_options(
            "Only the first command in a transaction may specify a readConcern",
        ));
    }
    Ok(())
}

impl Transaction {
    /// Checks the options. Returns those of a transaction.
    fn check(
        &self,
        spec: &CommandSpec,
        lsid: Option<SessionId>,
        numbers: Numbers,
    ) -> Result<Option<TransactionArgs>> {
        let Some(number) = self.number else {
            let other = self.autocommit.map(|_| "autocommit");
            return match other.or(self.start.map(|_| "startTransaction")) {
                Some(field) => Err(Error::invalid_options(format!(
                    "'{field}' field requires a transaction number to also be specified"
                ))),
                None => Ok(None),
            };
        };
        if lsid.is_none() {
            return Err(Error::invalid_options(
                "Transaction number requires a session ID to also be specified",
            ));
        }
        if numbers == Numbers::None {
            return Err(Error::new(
                ErrorCode::IllegalOperation,
                "Transaction numbers are only allowed on a replica set member or mongos",
            ));
        }
        if number < 0 {
            return Err(Error::invalid_options("Invalid transaction number"));
        }
        match (self.autocommit, self.start) {
            (Some(true), _) => {
                return Err(Error::invalid_options(
                    "Specifying autocommit=true is not allowed.",
                ));
            }
            (_, Some(false)) => {
                return Err(Error::invalid_options(
                    "Specifying startTransaction=false is not allowed.",
                ));
            }
            (None, Some(true)) => {
                return Err(Error::invalid_options(
                    "'startTransaction' field requires 'autocommit' field to also be specified",
                ));
            }
            (Some(false), _) if numbers == Numbers::OfWrites => {
                return Err(Error::new(
                    ErrorCode::CommandNotSupported,
                    "transactions are not supported on a router",
                ));
            }
            (Some(false), start) => {
                let starts = start == Some(true);
                return Ok(Some(TransactionArgs { number, starts }));
            }
            (None, None) => {}
        }
        if !spec.retryable {
            return Err(Error::new(
                ErrorCode::NotARetryableWriteCommand,
                format!(
                    "It is illegal to provide a txnNumber for command {}",
                    spec.name
                ),
            ));
        }
        Ok(None)
    }
}

/// Reads a time limit in milliseconds from `field`; 0 is none.
pub(crate) fn max_time(value: ValueRef<'_>, field: &str) -> Result<i64> {
    if matches!(value, ValueRef::Null) {
        return Ok(0);
    }
    let Some(number) = truncated_i64(value) else {
        return Err(Error::bad_value(format!("{field} must be a number")));
    };
    if let ValueRef::Double(exact) = value
        && exact.fract() != 0.0
    {
        return Err(Error::bad_value(format!("{field} has non-integral value")));
    }
    if !(0..=MAX_TIME_MS_MAX).contains(&number) {
        return Err(Error::bad_value(format!(
            "{number} value for {field} is out of range [0, {MAX_TIME_MS_MAX}]"
        )));
    }
    Ok(number)
}

/// Checks the read preference. True if members other than the primary satisfy it.
fn read_preference(args: &Args<'_>, element: Element<'_>) -> Result<bool> {
    let Some(document) = element.value().as_document() else {
        return Err(args.wrong_type("$readPreference", element.value(), "object"));
    };
    let preference = Args::new("$readPreference", document);
    let mode = preference.required_string("mode")?;
    if READ_PREFERENCE_MODES.contains(&mode) {
        Ok(mode != PRIMARY)
    } else {
        Err(Error::failed_to_parse(format!(
            "Unknown $readPreference mode: '{mode}'"
        )))
    }
}

fn query_options(args: &Args<'_>) -> Result<bool> {
    let document = args.required_document("$queryOptions")?;
    match document.iter().find(|e| e.name() == "$readPreference") {
        Some(element) => read_preference(args, element),
        None => Ok(false),
    }
}

/// The field of a read concern that names the time of a snapshot.
const AT_CLUSTER_TIME: &str = "atClusterTime";

/// Commands that read a snapshot outside of transactions.
const OF_SNAPSHOTS: [&str; 3] = ["aggregate", "distinct", "find"];

/// Checks the read concern. All acknowledged writes are where all members read, so `local`, `available`, `majority` and, in a set,
/// `linearizable` read the same. In a transaction each command takes a level, of the transaction's reads. Returns the snapshot
/// that a command reads outside of transactions.
fn read_concern(
    spec: &CommandSpec,
    args: &Args<'_>,
    set: Option<&ReplicaSet>,
) -> Result<Option<SnapshotArgs>> {
    let known = ["level", "provenance", AFTER_CLUSTER_TIME, AT_CLUSTER_TIME];
    let Some(concern) = args.nested("readConcern", &known)? else {
        return Ok(None);
    };
    let concern = Args::new("readConcern", concern.document_ref());
    // All that was acknowledged is read here. On a secondary the server has waited for a view that shows it.
    cluster_time(&concern, AFTER_CLUSTER_TIME, set)?;
    let at = cluster_time(&concern, AT_CLUSTER_TIME, set)?;
    let level = concern.string("level")?;
    let in_transaction = !args.value("autocommit").is_missing();
    if at.is_some() && (level != Some("snapshot") || in_transaction) {
        return Err(Error::invalid_options(format!(
            "readConcern {AT_CLUSTER_TIME} needs the level 'snapshot', outside of transactions"
        )));
    }
    if level == Some("snapshot") && set.is_some() && !in_transaction {
        if OF_SNAPSHOTS.contains(&spec.name) {
            return Ok(Some(SnapshotArgs { at }));
        }
        return Err(unsupported_level(spec, "snapshot"));
    }
    check_level(spec, level.unwrap_or("local"), in_transaction, set)?;
    Ok(None)
}

/// Returns a time of a read concern.
fn cluster_time(
    concern: &Args<'_>,
    name: &str,
    set: Option<&ReplicaSet>,
) -> Result<Option<Timestamp>> {
    match (concern.value(name), set) {
        (ValueRef::Missing, _) => Ok(None),
        (ValueRef::Timestamp(time), Some(_)) => Ok(Some(time)),
        (ValueRef::Timestamp(_), None) => Err(Error::new(
            ErrorCode::IllegalOperation,
            format!("Cannot specify {name} readConcern without replication enabled"),
        )),
        (other, _) => Err(concern.wrong_type(name, other, "timestamp")),
    }
}

fn unsupported_level(spec: &CommandSpec, level: &str) -> Error {
    Error::invalid_options(format!(
        "Command {} does not support {{ readConcern: {{ level: \"{level}\" }} }}",
        spec.name
    ))
}

/// Refuses the levels that a command does not take.
fn check_level(
    spec: &CommandSpec,
    level: &str,
    in_transaction: bool,
    set: Option<&ReplicaSet>,
) -> Result<()> {
    match level {
        "local" | "majority" | "snapshot" if in_transaction => Ok(()),
        "available" | "linearizable" if in_transaction => Err(Error::invalid_options(
            "The readConcern level must be either 'local' (default), 'majority' or 'snapshot' in order to run in a transaction",
        )),
        "local" | "available" | "majority" if spec.read_concern || level == "local" => Ok(()),
        "linearizable" if spec.read_concern && set.is_some() => Ok(()),
        "linearizable" | "snapshot" if set.is_none() => Err(Error::new(
            ErrorCode::NotAReplicaSet,
            "node needs to be a replica set member to use read concern",
        )),
        "local" | "available" | "linearizable" | "majority" | "snapshot" => {
            Err(unsupported_level(spec, level))
        }
        _ => Err(Error::bad_value(format!(
            "Enumeration value '{level}' for field 'readConcern.level' is not a valid value."
        ))),
    }
}

// long function: one arm for each form of `w`
/// Reads `{w, j, wtimeout}`, and returns the error of a concern that the set cannot meet. What is acknowledged is where all members
/// read, so no number waits.
fn write_concern(
    spec: &CommandSpec,
    args: &Args<'_>,
    set: Option<&ReplicaSet>,
) -> Result<(WriteConcern, Option<Document>)> {
    let known = ["w", "j", "fsync", "wtimeout", "provenance"];
    let Some(concern) = args.nested("writeConcern", &known)? else {
        return Ok((WriteConcern::default(), None));
    };
    if !spec.write_concern && !concern.document_ref().is_empty() {
        return Err(Error::invalid_options(format!(
            "Command {} does not support writeConcern",
            spec.name
        )));
    }
    let concern = Args::new("writeConcern", concern.document_ref());
    let mut parsed = WriteConcern::default();
    let mut unmet = None;
    match concern.value("w") {
        ValueRef::Missing | ValueRef::Null => {}
        ValueRef::String("majority") => {}
        ValueRef::String(mode) if set.is_some() => {
            let text =
                format!("No write concern mode named '{mode}' found in replica set configuration");
            unmet = Some((ErrorCode::UnknownReplWriteConcern, text));
        }
        ValueRef::String(_) => {
            return Err(Error::bad_value(
                "cannot use non-majority 'w' mode when a host is not a member of a replica set",
            ));
        }
        value => match truncated_i64(value) {
            Some(0) => parsed.acknowledged = false,
            Some(1) => {}
            Some(members @ 2..=50) => match set.map(|set| set.state().hosts.len()) {
                None => {
                    return Err(Error::bad_value(
                        "cannot use 'w' > 1 when a host is not replicated",
                    ));
                }
                Some(known) if usize::try_from(members).is_ok_and(|members| members <= known) => {}
                Some(_) => {
                    let text = "Not enough data-bearing nodes".to_owned();
                    unmet = Some((ErrorCode::UnsatisfiableWriteConcern, text));
                }
            },
            Some(_) => {
                return Err(Error::failed_to_parse(
                    "w has to be a non-negative number and not greater than 50",
                ));
            }
            None => {
                return Err(Error::failed_to_parse(
                    "w has to be a number, string, or object",
                ));
            }
        },
    }
    let journal = concern
        .lenient_boolean("j")?
        .or(concern.lenient_boolean("fsync")?);
    concern.integer("wtimeout")?;
    // `w: 0` waits for nothing, unless `j: true` is set.
    parsed.journaled = journal.unwrap_or(parsed.acknowledged);
    if !parsed.acknowledged && journal == Some(true) {
        parsed.acknowledged = true;
    }
    let unmet = unmet.map(|(code, text)| {
        doc! {
            "code": code.0,
            "codeName": code.name(),
            "errmsg": text,
            "errInfo": doc! {"writeConcern": concern.document_ref().to_document()},
        }
    });
    Ok((parsed, unmet))
}
