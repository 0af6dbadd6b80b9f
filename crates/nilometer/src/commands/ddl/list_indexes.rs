//! `listIndexes`.

use nilometer_bson::Document;

use super::indexes;
use crate::args::Args;
use crate::auth::Action;
use crate::catalog::Namespace;
use crate::commands::cursor_reply::{listing_batch_size, open_listing};
use crate::commands::generic::RAW_DATA;
use crate::commands::{Access, Authorization, CommandContext, CommandSpec, Fields, OnRouter};
use crate::database::Database;
use crate::error::Result;
use crate::operation::Request;

pub(crate) const SPEC: CommandSpec = CommandSpec {
    access: Access::Read,
    in_api_v1: true,
    fields: Fields::Only(&["cursor", RAW_DATA]),
    ..CommandSpec::new(
        "listIndexes",
        "Lists the indexes of a collection.",
        Authorization::OnCollection(&[Action::ListIndexes]),
        OnRouter::Same,
        run,
    )
};

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let args = Args::new("listIndexes", request.body.as_ref());
    let namespace = Namespace::new(
        context.database_name(),
        args.required_string("listIndexes")?,
    )?;
    let batch_size = listing_batch_size(&args)?;
    let listed = match database.collections().generated_indexes(&namespace) {
        Some(listed) => listed,
        None => indexes_of(database, &namespace)?,
    };
    let (operation, namespace) = (&context.operation, namespace.to_string());
    open_listing(
        database,
        operation,
        namespace,
        listed,
        batch_size,
        &request.body,
    )
}

fn indexes_of(database: &Database, namespace: &Namespace) -> Result<Vec<Document>> {
    let owner = indexes::owner(database, namespace, "ns does not exist:")?;
    let mut listed: Vec<Document> = owner.id_index().into_iter().collect();
    let others = owner.listed();
    listed.extend(others.iter().map(|index| index.spec.to_document()));
    Ok(listed)
}
