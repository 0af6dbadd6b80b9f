//! `rollupStatus`: how far a rollup is stored, and which of its bins are dirty. It is no command of MongoDB.

use nilometer_bson::{Document, DocumentBuilder, Value, doc};

use crate::auth::Action;
use crate::commands::{Authorization, CommandContext, CommandSpec, OnRouter};
use crate::database::Database;
use crate::error::Result;
use crate::operation::Request;
use crate::rollup::RollupView;

use super::refresh_rollup::named_rollup;

/// Spans of dirty bins in a reply.
pub(crate) const DIRTY_SPANS_MAX: usize = 1000;

pub(crate) const SPEC: CommandSpec = CommandSpec::new(
    "rollupStatus",
    "Returns how far a rollup is stored, and which of its bins are dirty.",
    Authorization::OnCollection(&[Action::CollStats]),
    OnRouter::Own,
    run,
);

fn run(
    database: &Database,
    context: &mut CommandContext<'_>,
    request: &Request,
) -> Result<Document> {
    let (namespace, rollup) = named_rollup(database, context, request, SPEC.name)?;
    let stored = RollupView::open(&**database.engine(), &rollup)?;
    let spans = stored.dirty_spans(DIRTY_SPANS_MAX + 1)?;
    let shown = spans.iter().take(DIRTY_SPANS_MAX);
    let dirty: Vec<Value> = shown
        .map(|(from, to)| doc! {"from": Value::DateTime(*from), "to": Value::DateTime(*to)}.into())
        .collect();
    // An instant before all others says that there is nothing.
    let instant = |ms: i64| match ms {
        i64::MIN => Value::Null,
        ms => Value::DateTime(ms),
    };
    let progress = stored.progress;
    let mut out = DocumentBuilder::new();
    out.append("ns", namespace.to_string())
        .append("source", rollup.source.as_str())
        .append("storedBefore", instant(progress.closed_ms))
        .append("frozenBefore", instant(progress.changeable_from_ms()))
        .append("expiredBefore", instant(progress.expired_ms))
        .append("dirty", dirty)
        .append("isEveryDirtySpanShown", spans.len() <= DIRTY_SPANS_MAX);
    Ok(out.finish())
}
