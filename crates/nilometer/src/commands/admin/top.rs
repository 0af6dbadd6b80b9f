//! `top`: time spent per collection.

use nilometer_bson::{Document, DocumentBuilder, doc};

use crate::auth::Action;
use crate::commands::{Authorization, CommandContext, CommandSpec, OnRouter};
use crate::database::Database;
use crate::error::Result;
use crate::operation::Request;
use crate::services::{TopEntry, TopKind, TopUse};

pub(crate) const SPEC: CommandSpec = CommandSpec {
    admin_only: true,
    ..CommandSpec::new(
        "top",
        "Returns the time spent on each collection.",
        Authorization::OnCluster(&[Action::Top]),
        OnRouter::Same,
        run,
    )
};

/// The kinds of operations under their names in the reply.
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

#[cfg(test)]
mod tests {
    use crate::Database;
    use bson::{Document, doc};

    #[test]
    fn what_is_gone_or_never_was_is_not_followed() {
        let database = Database::in_memory().unwrap();
        let run = |name: &str, command: Document| database.command(name, &command).unwrap();
        let followed = || {
            let told = run("admin", doc! { "top": 1 });
            let totals = told.get_document("totals").unwrap();
            let names = totals.keys().filter(|name| *name != "note");
            names.cloned().collect::<Vec<_>>()
        };
        for round in 0..3 {
            let (plain, ts) = (format!("plain{round}"), format!("ts{round}"));
            let by_time = doc! { "timeField": "t" };
            run("db", doc! { "create": &plain });
            run("db", doc! { "create": &ts, "timeseries": by_time });
            for name in [&plain, &ts, &format!("system.buckets.{ts}")] {
                run("db", doc! { "count": name });
            }
            run("db", doc! { "count": "never was" });
            assert_eq!(followed().len(), 3, "{:?}", followed());
            let moved = format!("db.moved{round}");
            run(
                "admin",
                doc! { "renameCollection": format!("db.{plain}"), "to": &moved },
            );
            run("db", doc! { "count": format!("moved{round}") });
            assert!(followed().contains(&moved) && followed().len() == 3);
            run("db", doc! { "drop": &ts });
            assert_eq!(followed(), [moved.as_str()]);
            run("db", doc! { "dropDatabase": 1 });
            assert!(followed().is_empty(), "{:?}", followed());
        }
    }
}
