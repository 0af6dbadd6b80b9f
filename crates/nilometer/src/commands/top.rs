//! `top`: time spent per collection.

use nilometer_bson::{Document, DocumentBuilder, doc};

use super::{Authorization, CommandContext, CommandSpec};
use crate::auth::Action;
use crate::database::Database;
use crate::error::Result;
use crate::operation::Request;
use crate::services::{TopEntry, TopKind, TopUse};

pub(super) const SPEC: CommandSpec = CommandSpec {
    admin_only: true,
    ..CommandSpec::new(
        "top",
        "Tells the time spent on each collection.",
        Authorization::OnCluster(&[Action::Top]),
        run,
    )
};

/// The kinds of operations by the names clients read.
const KINDS: [(&str, TopKind); 6] = [
    ("queries", TopKind::Queries),
    ("getmore", TopKind::GetMore),
    ("insert", TopKind::Insert),
    ("update", TopKind::Update),
    ("remove", TopKind::Remove),
    ("commands", TopKind::Commands),
];

fn run(database: &Database, _: &mut CommandContext<'_>, _: &Request) -> Result<Document> {
    let mut totals = DocumentBuilder::new();
    totals.append("note", "all times in microseconds");
    for (namespace, entry) in database.services().top.list() {
        totals.append(&namespace, figures(&entry));
    }
    Ok(doc! {"totals": totals.finish()})
}

fn figures(entry: &TopEntry) -> Document {
    let mut figures = DocumentBuilder::new();
    figures
        .append("total", shown(entry.total))
        .append("readLock", shown(entry.read_lock))
        .append("writeLock", shown(entry.write_lock));
    for (name, kind) in KINDS {
        figures.append(name, shown(entry.kind(kind)));
    }
    figures.finish()
}

fn shown(used: TopUse) -> Document {
    let long = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
    doc! {"time": long(used.time_us), "count": long(used.count)}
}
