//! `validate` on a router: what each partition says of its part of the collection.

use nilometer_bson::{Array, Document, DocumentBuilder, ValueRef};

use super::change::without_ok;
use super::{is_true, read, rollups, router_of, stats, sum, writable};
use crate::args::Args;
use crate::commands::CommandContext;
use crate::database::Database;
use crate::error::Result;
use crate::operation::Request;

/// Numbers that are added.
const SUMS: [&str; 3] = ["nInvalidDocuments", "nNonCompliantDocuments", "nrecords"];

pub(super) fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let router = router_of(database);
    let args = Args::new("validate", request.body.as_ref());
    let namespace = writable(context.database_name(), args.required_string("validate")?)?;
    let Some(placement) = rollups::place_of(database, &namespace) else {
        // The router's own catalog says what is wrong with it.
        return (context.spec.handler)(database, context, request);
    };
    let operation = &context.operation;
    let body = read(request.body.as_ref(), &[]);
    let partitions = placement.partitions(router.count());
    let replies = router.ask_all(&partitions, &namespace.database, &body, operation)?;
    if let [only] = replies.as_slice() {
        return Ok(without_ok(only));
    }
    let first = |name: &str| {
        let first = replies.first();
        first.map_or(ValueRef::Missing, |reply| reply.get(name))
    };
    let mut out = DocumentBuilder::new();
    out.append_ref("ns", first("ns"));
    for name in SUMS {
        out.append(name, sum(&replies, name));
    }
    out.append_ref("nIndexes", first("nIndexes"));
    out.append("keysPerIndex", stats::sums_of_all(&replies, "keysPerIndex"));
    out.append(
        "valid",
        replies.iter().all(|reply| is_true(reply.get("valid"))),
    );
    out.append(
        "repaired",
        replies.iter().any(|reply| is_true(reply.get("repaired"))),
    );
    for name in ["warnings", "errors"] {
        let lists = replies
            .iter()
            .filter_map(|reply| reply.get(name).as_array());
        let texts = lists.flat_map(|list| list.iter().map(|text| text.to_value()));
        out.append(name, texts.collect::<Array>());
    }
    out.begin_document("raw");
    for (partition, reply) in partitions.iter().zip(&replies) {
        out.append(router.name(*partition), without_ok(reply));
    }
    out.end();
    Ok(out.finish())
}
