//! What is measured: something that takes a command and gives its reply.

mod wire;

use std::sync::Arc;

use nilometer_bson::{Document, ValueRef};

use crate::options::Options;

/// A result whose error is text for a person.
pub(crate) type Outcome<T = ()> = Result<T, String>;

/// One connection, or its like in process.
pub(crate) trait Connection: Send {
    /// Runs a command that names its database in `$db`. `documents`, framed one behind the other,
    /// go beside it as the sequence of that name.
    fn call(&mut self, command: &Document, documents: Option<Arc<Vec<u8>>>) -> Outcome<Document>;
}

/// As many connections as the options ask for.
pub(crate) fn connect(options: &Options) -> Outcome<Vec<Box<dyn Connection>>> {
    (0..options.connections)
        .map(|_| -> Outcome<Box<dyn Connection>> {
            Ok(Box::new(wire::Wire::connect(&options.address)?))
        })
        .collect()
}

/// Runs a command; a reply that is not ok, or holds write errors, is an error.
pub(crate) fn run(
    connection: &mut dyn Connection,
    command: &Document,
    documents: Option<Arc<Vec<u8>>>,
) -> Outcome<Document> {
    let reply = connection.call(command, documents)?;
    let name = command.iter().next().map_or("", |e| e.name());
    if reply.get("ok").as_exact_i64() != Some(1) {
        return Err(format!("{name}: {}", error_text(&reply)));
    }
    if let Some(first) = reply
        .get("writeErrors")
        .as_array()
        .and_then(|a| a.iter().next())
    {
        return Err(format!("{name}: {first:?}"));
    }
    Ok(reply)
}

fn error_text(reply: &Document) -> String {
    let code = reply.get("code").as_exact_i64().unwrap_or(0);
    let text = reply.get("errmsg").as_str().unwrap_or("no message");
    format!("{text} (code {code})")
}

/// The documents of one batch of a cursor, as the reply that holds them.
pub(crate) struct Batch {
    reply: Document,
    field: &'static str,
}

impl Batch {
    /// The number of the cursor; 0 when it is exhausted.
    fn cursor(&self) -> i64 {
        let cursor = self.reply.get("cursor").as_document();
        cursor.and_then(|c| c.get("id").as_exact_i64()).unwrap_or(0)
    }

    /// The documents.
    pub(crate) fn documents(&self) -> impl Iterator<Item = nilometer_bson::DocRef<'_>> {
        let cursor = self.reply.get("cursor").as_document();
        let batch = cursor.map_or(ValueRef::Missing, |c| c.get(self.field));
        let elements = batch
            .as_array()
            .into_iter()
            .flat_map(|a| a.as_document().iter());
        elements.filter_map(|e| e.value().as_document())
    }

    /// Bytes of the reply.
    pub(crate) fn bytes(&self) -> usize {
        self.reply.as_bytes().len()
    }
}

/// Runs a command that answers with a cursor, and drains it.
pub(crate) fn drain(
    connection: &mut dyn Connection,
    command: &Document,
    options: &Options,
) -> Outcome<Vec<Batch>> {
    let reply = run(connection, command, None)?;
    let mut batches = vec![Batch {
        reply,
        field: "firstBatch",
    }];
    while let Some(id) = batches.last().map(Batch::cursor).filter(|id| *id != 0) {
        let more = nilometer_bson::doc! {
            "getMore": id,
            "collection": &options.collection,
            "$db": &options.database,
        };
        let reply = run(connection, &more, None)?;
        batches.push(Batch {
            reply,
            field: "nextBatch",
        });
    }
    Ok(batches)
}
