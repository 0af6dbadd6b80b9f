//! `configureFailPoint`: lets commands fail on purpose, as the test suites of drivers need it.
//!
//! It exists only if the parameter `enableTestCommands` is true. The fail points are `failCommand`, whose fields are those of the
//! drivers' specification of unified tests, `failGetMoreAfterCursorCheckout`, which lets a `getMore` fail that has its cursor, and
//! `onPrimaryTransactionalWrite`, which lets statements of retryable writes fail before they are committed, or closes the connection
//! behind them.

use std::time::Duration;

use nilometer_bson::number::Number;
use nilometer_bson::{Document, Value, ValueRef, doc};

use crate::args::{Args, truncated_i64};
use crate::commands::{Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;
use crate::services::{CommandFailure, FAIL_WRITE, FailPointData, FailPointMode};

pub(crate) const SPEC: CommandSpec = CommandSpec {
    admin_only: true,
    fields: Fields::Only(&["mode", "data"]),
    ..CommandSpec::new(
        "configureFailPoint",
        "Lets commands fail on purpose, for tests.",
        Authorization::LoggedIn,
        OnRouter::Refused,
        run,
    )
};

/// The longest wait of a command, in milliseconds.
const BLOCK_MS_MAX: i64 = 3_600_000;

fn run(database: &Database, _: &mut CommandContext<'_>, request: &Request) -> Result<Document> {
    let services = database.services();
    if services.parameters.enable_test_commands() == 0 {
        return Err(Error::new(
            ErrorCode::CommandNotFound,
            format!("no such command: '{}'", SPEC.name),
        ));
    }
    let args = Args::new(SPEC.name, request.body.as_ref());
    let name = args.required_string(SPEC.name)?;
    let point = match name {
        "failCommand" => &services.fail_point,
        AFTER_CHECKOUT => &services.fail_get_more,
        ON_WRITE => &services.fail_write,
        _ => {
            return Err(Error::new(
                ErrorCode::FailPointSetFailed,
                format!("{name} not found"),
            ));
        }
    };
    let mode = mode(&args)?;
    let none = Document::new();
    let data = args.document("data")?.unwrap_or_else(|| none.as_ref());
    let data = Args::new("data", data);
    let mut data = match name {
        ON_WRITE => data_of_write(&data)?,
        _ => data_of(&data)?,
    };
    if name == AFTER_CHECKOUT {
        data.commands = vec!["getMore".to_owned()];
    }
    let count = point.configure(mode, data);
    tracing::warn!(
        c = "CONTROL",
        id = 23_829,
        failPoint = name,
        mode = ?mode,
        "Set fail point"
    );
    Ok(doc! {"count": count})
}

/// The fail point of a `getMore` that has its cursor.
const AFTER_CHECKOUT: &str = "failGetMoreAfterCursorCheckout";

/// The fail point of statements of retryable writes.
const ON_WRITE: &str = "onPrimaryTransactionalWrite";

/// Returns the data of that fail point: with a code the statement is not committed; the connection is closed by default.
fn data_of_write(data: &Args<'_>) -> Result<FailPointData> {
    const CODE: &str = "failBeforeCommitExceptionCode";
    data.check_names(&[CODE, "closeConnection"])?;
    Ok(FailPointData {
        commands: vec![FAIL_WRITE.to_owned()],
        failure: CommandFailure {
            closes_connection: data.boolean("closeConnection")? != Some(false),
            code: code(data, CODE)?,
            ..CommandFailure::default()
        },
        ..FailPointData::default()
    })
}

/// Returns the error code in a field.
fn code(data: &Args<'_>, field: &str) -> Result<Option<i32>> {
    match data.value(field) {
        ValueRef::Missing => Ok(None),
        value => truncated_i64(value)
            .and_then(|code| i32::try_from(code).ok())
            .map(Some)
            .ok_or_else(|| data.wrong_type(field, value, "int")),
    }
}

/// Returns the mode: `"off"`, `"alwaysOn"`, or a document with one of three fields.
fn mode(args: &Args<'_>) -> Result<FailPointMode> {
    match args.value("mode") {
        ValueRef::String("off") => Ok(FailPointMode::Off),
        ValueRef::String("alwaysOn") => Ok(FailPointMode::AlwaysOn),
        ValueRef::String(other) => Err(Error::bad_value(format!("unknown mode: {other}"))),
        ValueRef::Document(mode) => {
            let mode = Args::new("mode", mode);
            mode.check_names(&["times", "skip", "activationProbability"])?;
            if mode.document_ref().iter().count() != 1 {
                return Err(Error::bad_value(
                    "mode takes one of times, skip and activationProbability",
                ));
            }
            if let Some(times) = mode.integer_within("times", 0, i64::from(i32::MAX))? {
                return Ok(match times {
                    0 => FailPointMode::Off,
                    _ => FailPointMode::Times(times),
                });
            }
            if let Some(skip) = mode.integer_within("skip", 0, i64::from(i32::MAX))? {
                return Ok(FailPointMode::Skip(skip));
            }
            let share = mode.value("activationProbability");
            match Number::of(share).map(Number::to_f64) {
                Some(share) if (0.0..=1.0).contains(&share) => {
                    Ok(FailPointMode::Probability(share))
                }
                Some(share) => Err(Error::bad_value(format!(
                    "activationProbability must be between 0.0 and 1.0; found {share}"
                ))),
                None => Err(mode.wrong_type("activationProbability", share, "number")),
            }
        }
        ValueRef::Missing => Err(args.missing("mode")),
        other => Err(args.wrong_type("mode", other, "string or object")),
    }
}

fn data_of(data: &Args<'_>) -> Result<FailPointData> {
    data.check_names(&[
        "failCommands",
        "namespace",
        "appName",
        "blockConnection",
        "blockTimeMS",
        "closeConnection",
        "errorCode",
        "errorLabels",
        "writeConcernError",
        "failInternalCommands",
    ])?;
    let mut commands = Vec::new();
    for command in data
        .array("failCommands")?
        .into_iter()
        .flat_map(|a| a.iter())
    {
        let name = command
            .as_str()
            .ok_or_else(|| data.wrong_type("failCommands", command, "string"))?;
        commands.push(name.to_owned());
    }
    let block = data.integer_within("blockTimeMS", 0, BLOCK_MS_MAX)?;
    let blocks = data.boolean("blockConnection")? == Some(true);
    let block = match (blocks, block) {
        (false, _) => Duration::ZERO,
        (true, Some(ms)) => Duration::from_millis(ms.unsigned_abs()),
        (true, None) => {
            return Err(Error::invalid_options(
                "must specify 'blockTimeMS' when 'blockConnection' is true",
            ));
        }
    };
    // Commands of one database to another do not exist.
    data.boolean("failInternalCommands")?;
    let labels = data.array("errorLabels")?;
    let labels = labels.map(|labels| {
        labels
            .iter()
            .map(ValueRef::to_value)
            .collect::<Vec<Value>>()
    });
    Ok(FailPointData {
        commands,
        namespace: data.string("namespace")?.map(str::to_owned),
        application: data.string("appName")?.map(str::to_owned),
        failure: CommandFailure {
            block,
            closes_connection: data.boolean("closeConnection")? == Some(true),
            code: code(data, "errorCode")?,
            labels,
            write_concern_error: data
                .document("writeConcernError")?
                .map(|error| error.to_document()),
        },
    })
}
