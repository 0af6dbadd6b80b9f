//! `collStats` and `dbStats`.

use nilometer_bson::{Document, DocumentBuilder};

use crate::args::Args;
use crate::auth::Action;
use crate::catalog::Namespace;
use crate::commands::generic::RAW_DATA;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::{Error, Result, location};
use crate::operation::Request;

pub(crate) const COLL_STATS: CommandSpec = CommandSpec {
    aliases: &["collstats"],
    access: Access::Read,
    read_concern: true,
    fields: Fields::Only(&["scale", RAW_DATA]),
    ..CommandSpec::new(
        "collStats",
        "Returns sizes and counters of a collection.",
        Authorization::OnCollection(&[Action::CollStats]),
        OnRouter::Own,
        coll_stats,
    )
};

pub(crate) const DB_STATS: CommandSpec = CommandSpec {
    aliases: &["dbstats"],
    access: Access::Read,
    read_concern: true,
    fields: Fields::Only(&["scale", "freeStorage"]),
    ..CommandSpec::new(
        "dbStats",
        "Returns sizes of a database.",
        Authorization::OnDatabase(&[Action::DbStats]),
        OnRouter::Own,
        db_stats,
    )
};

fn scale(args: &Args<'_>) -> Result<i64> {
    match args.integer("scale")? {
        None => Ok(1),
        Some(scale) if scale > 0 => Ok(scale),
        Some(scale) => Err(Error::location(
            location::OPTION_OUT_OF_BOUNDS,
            format!("BSON field 'scale' value must be >= 1, actual value '{scale}'"),
        )),
    }
}

fn coll_stats(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("collStats", request.body.as_ref());
    let namespace = Namespace::new(context.database_name(), args.command_target("collStats")?)?;
    let stats = database
        .collections()
        .storage_stats(&namespace, scale(&args)?)?;
    let mut out = DocumentBuilder::new();
    out.append("ns", namespace.to_string());
    for element in stats.iter() {
        out.append_element(element);
    }
    Ok(out.finish())
}

fn db_stats(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("dbStats", request.body.as_ref());
    let tells_free = args.lenient_boolean("freeStorage")?.unwrap_or(false);
    let stats = database
        .collections()
        .db_stats(context.database_name(), scale(&args)?)?;
    if !tells_free {
        return Ok(stats);
    }
    let mut out = DocumentBuilder::new();
    for element in stats.iter() {
        out.append_element(element);
    }
    // Tables have no free space inside: removed entries disappear with the file.
    for name in [
        "freeStorageSize",
        "indexFreeStorageSize",
        "totalFreeStorageSize",
    ] {
        out.append(name, 0.0);
    }
    Ok(out.finish())
}
