//! `getParameter` and `setParameter`.
//!
//! Beside the table of [`crate::parameters`] there are read-only values, which are computed here.

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef, doc};

use crate::args::Args;
use crate::auth::Action;
use crate::commands::generic;
use crate::commands::{Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, Result};
use crate::operation::Request;
use crate::parameters::{AUTH_SCHEMA_VERSION, FEATURE_COMPATIBILITY_VERSION, PARAMETERS, SetAt};
use crate::services::{LogLevels, VERBOSITY_MAX};

pub(crate) const GET: CommandSpec = CommandSpec {
    admin_only: true,
    fields: Fields::Any,
    ..CommandSpec::new(
        "getParameter",
        "Returns the values of server parameters.",
        Authorization::OnCluster(&[Action::GetParameter]),
        OnRouter::Same,
        get,
    )
};

pub(crate) const SET: CommandSpec = CommandSpec {
    admin_only: true,
    fields: Fields::Any,
    ..CommandSpec::new(
        "setParameter",
        "Sets server parameters.",
        Authorization::OnCluster(&[Action::SetParameter]),
        OnRouter::Same,
        set,
    )
};

/// Read-only values exposed by `getParameter`.
fn fact(name: &str) -> Option<Value> {
    match name {
        "authSchemaVersion" => Some(AUTH_SCHEMA_VERSION.into()),
        "featureCompatibilityVersion" => {
            Some(doc! {"version": FEATURE_COMPATIBILITY_VERSION}.into())
        }
        _ => None,
    }
}

/// Returns the names of all read-only values.
const FACTS: &[&str] = &["authSchemaVersion", "featureCompatibilityVersion"];

/// The parameters of the log.
const LOG_LEVELS: &[&str] = &[LOG_COMPONENT_VERBOSITY, "logLevel"];

/// The parameter that holds the verbosity of each component.
const LOG_COMPONENT_VERBOSITY: &str = "logComponentVerbosity";

fn log_level(database: &Database, name: &str) -> Value {
    let levels = &database.services().log.levels;
    match name {
        LOG_COMPONENT_VERBOSITY => levels.to_document().into(),
        _ => levels.level().into(),
    }
}

/// Sets a parameter of the log, or only checks its value.
fn set_log_level(database: &Database, name: &str, value: ValueRef<'_>, dry: bool) -> Result<()> {
    let levels = &database.services().log.levels;
    if name == LOG_COMPONENT_VERBOSITY {
        let Some(given) = value.as_document() else {
            return Err(Error::type_mismatch(format!(
                "log component verbosity is not a BSON object: {}",
                value.type_name()
            )));
        };
        return if dry {
            LogLevels::check(given)
        } else {
            levels.set(given)
        };
    }
    let level = value
        .as_exact_i64()
        .and_then(|level| i32::try_from(level).ok());
    match level.filter(|level| (0..=VERBOSITY_MAX).contains(level)) {
        Some(level) if !dry => levels.set_level(level),
        Some(_) => {}
        None => {
            return Err(Error::bad_value(format!(
                "Invalid value for logLevel: it takes a number from 0 to {VERBOSITY_MAX}"
            )));
        }
    }
    Ok(())
}

/// The requested parameters, and whether their details are shown.
#[derive(Default)]
struct ParameterRequest {
    all: bool,
    details: bool,
    set_at: Option<SetAt>,
}

fn question(args: &Args<'_>) -> Result<ParameterRequest> {
    match args.value("getParameter") {
        ValueRef::String("*") => Ok(ParameterRequest {
            all: true,
            ..ParameterRequest::default()
        }),
        ValueRef::Document(_) => {
            let known = ["showDetails", "allParameters", "setAt"];
            let Some(options) = args.nested("getParameter", &known)? else {
                return Ok(ParameterRequest::default());
            };
            let set_at = match options.string("setAt")? {
                None => None,
                Some("startup") => Some(SetAt::Startup),
                Some("runtime") => Some(SetAt::Runtime),
                Some(other) => {
                    return Err(Error::bad_value(format!(
                        "Enumeration value '{other}' for field 'getParameter.setAt' is not a valid value."
                    )));
                }
            };
            Ok(ParameterRequest {
                all: options.lenient_boolean("allParameters")?.unwrap_or(false),
                details: options.lenient_boolean("showDetails")?.unwrap_or(false),
                set_at,
            })
        }
        _ => Ok(ParameterRequest::default()),
    }
}

fn get(database: &Database, _: &mut CommandContext<'_>, request: &Request) -> Result<Document> {
    let args = Args::new("getParameter", request.body.as_ref());
    let question = question(&args)?;
    let mut reply = DocumentBuilder::new();
    for spec in PARAMETERS {
        let asked = question.all || args.element(spec.name).is_some();
        let fits = match question.set_at {
            Some(SetAt::Startup) => spec.set_at.startup(),
            Some(_) => spec.set_at.runtime(),
            None => true,
        };
        if asked && fits {
            let value = database.services().parameters.value(spec.name);
            reply.append(spec.name, shown(spec.set_at, value, question.details));
        }
    }
    for name in FACTS {
        let asked = question.all || args.element(name).is_some();
        if asked && question.set_at.is_none() {
            reply.append(name, shown(SetAt::Never, fact(name), question.details));
        }
    }
    for name in LOG_LEVELS {
        let asked = question.all || args.element(name).is_some();
        let fits = question.set_at.is_none_or(SetAt::runtime);
        if asked && fits {
            let value = Some(log_level(database, name));
            reply.append(name, shown(SetAt::Runtime, value, question.details));
        }
    }
    if reply.is_empty() {
        return Err(Error::invalid_options("no option found to get"));
    }
    Ok(reply.finish())
}

fn shown(set_at: SetAt, value: Option<Value>, details: bool) -> Option<Value> {
    if !details {
        return value;
    }
    Some(
        doc! {
            "value": value,
            "settableAtRuntime": set_at.runtime(),
            "settableAtStartup": set_at.startup(),
        }
        .into(),
    )
}

/// All are checked before the first is set, so a refused command changes nothing.
fn set(database: &Database, _: &mut CommandContext<'_>, request: &Request) -> Result<Document> {
    let parameters = &database.services().parameters;
    let given = request.body.iter().skip(1);
    let given: Vec<_> = given.filter(|e| !generic::is_generic(e.name())).collect();
    if given.is_empty() {
        return Err(Error::invalid_options(
            "no option found to set, use help:true to see options ",
        ));
    }
    for element in &given {
        if LOG_LEVELS.contains(&element.name()) {
            set_log_level(database, element.name(), element.value(), true)?;
        } else {
            parameters.check_at_runtime(element.name(), element.value())?;
        }
    }
    let mut before = Value::Missing;
    for element in &given {
        let was = if LOG_LEVELS.contains(&element.name()) {
            let was = log_level(database, element.name());
            set_log_level(database, element.name(), element.value(), false)?;
            was
        } else {
            parameters.set_at_runtime(element.name(), element.value())?
        };
        if before.is_missing() {
            before = was;
        }
    }
    database.apply_parameters();
    Ok(doc! {"was": before})
}
