//! `setClusterParameter` and `getClusterParameter`: parameters of a replica set, which are stored in `config.clusterParameters`.
//!
//! There is one, `changeStreamOptions`: how long change streams show documents before and after their changes.

use nilometer_bson::{DocRef, Document, Timestamp, Value, ValueRef, doc};

use crate::args::Args;
use crate::auth::Action;
use crate::catalog::CONFIG;
use crate::commands::crud::update;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, OnRouter};
use crate::database::{CHANGE_STREAM_OPTIONS, CLUSTER_PARAMETERS, Database};
use crate::error::{Error, ErrorCode, Result};
use crate::operation::Request;

pub(crate) const GET: CommandSpec = CommandSpec {
    admin_only: true,
    access: Access::Read,
    ..CommandSpec::new(
        "getClusterParameter",
        "Returns parameters of the replica set.",
        Authorization::OnCluster(&[Action::GetClusterParameter]),
        OnRouter::Refused,
        get,
    )
};

pub(crate) const SET: CommandSpec = CommandSpec {
    admin_only: true,
    access: Access::Write,
    write_concern: true,
    ..CommandSpec::new(
        "setClusterParameter",
        "Sets a parameter of the replica set.",
        Authorization::OnCluster(&[Action::SetClusterParameter]),
        OnRouter::Refused,
        set,
    )
};

fn unknown(name: &str) -> Error {
    Error::new(
        ErrorCode::NoSuchKey,
        format!("Unknown server parameter: {name}"),
    )
}

fn no_set() -> Error {
    Error::new(
        ErrorCode::NoReplicationEnabled,
        "there are cluster parameters in a replica set alone",
    )
}

fn get(database: &Database, _: &mut CommandContext<'_>, request: &Request) -> Result<Document> {
    let args = Args::new(GET.name, request.body.as_ref());
    database.change_log().ok_or_else(no_set)?;
    let mut shown = Vec::new();
    let mut show = |name: ValueRef<'_>| match name {
        ValueRef::String(CHANGE_STREAM_OPTIONS) => {
            shown.push(Value::from(database.collections().change_stream_options()?));
            Ok(())
        }
        ValueRef::String(name) => Err(unknown(name)),
        other => Err(args.wrong_type(GET.name, other, "string")),
    };
    match args.value(GET.name) {
        ValueRef::String("*") => show(ValueRef::String(CHANGE_STREAM_OPTIONS))?,
        ValueRef::Array(names) if !names.as_document().is_empty() => {
            names.iter().try_for_each(show)?;
        }
        ValueRef::Array(_) => {
            return Err(Error::bad_value(
                "Must supply at least one cluster server parameter name to getClusterParameter",
            ));
        }
        name => show(name)?,
    }
    Ok(doc! {"clusterParameters": shown})
}

fn set(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new(SET.name, request.body.as_ref());
    let log = database.change_log().ok_or_else(no_set)?;
    let wanted = args.required_document(SET.name)?;
    let mut fields = wanted.iter();
    let (Some(parameter), None) = (fields.next(), fields.next()) else {
        return Err(Error::invalid_options(
            "setClusterParameter takes one parameter at a time",
        ));
    };
    if parameter.name() != CHANGE_STREAM_OPTIONS {
        return Err(unknown(parameter.name()));
    }
    let options = match parameter.value() {
        ValueRef::Document(options) => options,
        other => return Err(args.wrong_type(CHANGE_STREAM_OPTIONS, other, "object")),
    };
    let expiry = expiry_of(options)?;
    let time = Timestamp::from_u64(log.last_committed());
    let shown = expiry.map_or_else(|| "off".into(), Value::from);
    let stored = doc! {
        "_id": CHANGE_STREAM_OPTIONS,
        "clusterParameterTime": Value::Timestamp(time),
        "preAndPostImages": doc! {"expireAfterSeconds": shown}
    };
    let statement = doc! {"q": doc! {"_id": CHANGE_STREAM_OPTIONS}, "u": stored, "upsert": true};
    let command = doc! {"update": CLUSTER_PARAMETERS, "updates": vec![Value::from(statement)]};
    let outer = std::mem::replace(&mut context.operation.database, CONFIG.to_owned());
    let reply = (update::SPEC.handler)(database, context, &Request::new(command));
    context.operation.database = outer;
    if let Some(errors) = reply?.get("writeErrors").as_array() {
        return Err(Error::new(
            ErrorCode::OperationFailed,
            format!("the parameter could not be stored: {errors:?}"),
        ));
    }
    log.set_image_expiry(expiry);
    Ok(Document::new())
}

/// Returns the time after which images are not shown any more, in seconds; `None` if the log decides.
fn expiry_of(options: DocRef<'_>) -> Result<Option<i64>> {
    let args = Args::new(CHANGE_STREAM_OPTIONS, options);
    args.check_names(&["preAndPostImages"])?;
    let images = args.required_document("preAndPostImages")?;
    let images = Args::new("changeStreamOptions.preAndPostImages", images);
    images.check_names(&["expireAfterSeconds"])?;
    match images.value("expireAfterSeconds") {
        ValueRef::String("off") => Ok(None),
        value if value.is_number() => match value.as_exact_i64() {
            Some(seconds) if seconds > 0 => Ok(Some(seconds)),
            _ => Err(Error::bad_value(
                "Expected a positive integer for 'expireAfterSeconds' parameter",
            )),
        },
        ValueRef::Missing => Err(images.missing("expireAfterSeconds")),
        _ => Err(Error::bad_value(
            "Non-numeric value of 'expireAfterSeconds' should be 'off'",
        )),
    }
}
