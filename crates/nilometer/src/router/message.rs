//! The form in which requests go to partitions in other processes: the command, with a field of its own.
//!
//! ```text
//! $partition  { name, part: { states, now, metadata: [ … ] }, placement: { ns, number }, statements: [ … ], repeatsOnly,
//!               definitions: { … }, upserted: { … }, guardedKey: { key, allowed },
//!               accepted: { before, after, position }, mergeNow }
//! ```
//!
//! Whoever receives a message takes the field out before anything else sees the command, and only of a sender that has
//! proven to belong to the cluster.

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

use crate::error::{Error, Result};
use crate::operation::{
    AcceptedDocument, GuardedKey, PartMetadata, PartRequest, PlacementVersion, Request,
    RoutedRequest,
};

/// The field that names the partition.
pub const PARTITION_FIELD: &str = "$partition";

/// The sequence of documents that stand in front of the pipeline of an `aggregate`.
pub(crate) const GIVEN_SEQUENCE: &str = "$given";

/// Returns the command of a request as it goes to the partition `name` in another process. The sequences go beside it.
pub fn message_to(name: &str, request: &Request) -> Document {
    let mut field = DocumentBuilder::new();
    field.append("name", name);
    if let Some(routed) = &request.routed {
        append(&mut field, routed);
    }
    let mut out = DocumentBuilder::with_capacity(request.body.as_bytes().len() + 160);
    out.append_all(request.body.as_ref());
    out.append(PARTITION_FIELD, field.finish());
    out.finish()
}

fn append(out: &mut DocumentBuilder, routed: &RoutedRequest) {
    if let Some(part) = routed.part {
        let now = Value::DateTime(part.now_ms);
        let metadata: Vec<Value> = part.metadata.names().map(Value::from).collect();
        out.append(
            "part",
            doc! {"states": part.returns_states, "now": now, "metadata": metadata},
        );
    }
    if let Some(placement) = &routed.placement {
        let namespace = placement.namespace.as_str();
        out.append(
            "placement",
            doc! {"ns": namespace, "number": placement.number},
        );
    }
    if !routed.statements.is_empty() {
        let numbers = routed.statements.iter().map(|number| i64::from(*number));
        out.append("statements", numbers.map(Value::from).collect::<Vec<_>>());
    }
    if routed.repeats_only {
        out.append("repeatsOnly", true);
    }
    if let Some(definitions) = &routed.definitions {
        out.append("definitions", definitions.clone());
    }
    if let Some(document) = &routed.upserted {
        out.append("upserted", document.clone());
    }
    if let Some(guarded) = &routed.guarded_key {
        out.begin_document("guardedKey");
        out.append("key", guarded.key.clone());
        if let Some(allowed) = &guarded.allowed {
            out.append("allowed", allowed.clone());
        }
        out.end();
    }
    if let Some(accepted) = &routed.accepted {
        out.begin_document("accepted");
        out.append("before", accepted.before.clone());
        out.append("after", accepted.after.clone());
        if let Some(position) = accepted.position.and_then(|at| i64::try_from(at).ok()) {
            out.append("position", position);
        }
        out.end();
    }
    if let Some(now_ms) = routed.merge_now_ms {
        out.append("mergeNow", Value::DateTime(now_ms));
    }
}

/// Returns the name of the partition that a message is for, and what it asks; `None` if the message is a client's command.
pub fn addressed(message: &Request) -> Result<Option<(String, Request)>> {
    let field = match message.body.get(PARTITION_FIELD) {
        ValueRef::Missing => return Ok(None),
        ValueRef::Document(field) => field,
        _ => return Err(malformed()),
    };
    let mut body = DocumentBuilder::with_capacity(message.body.as_bytes().len());
    for element in message.body.iter() {
        if element.name() != PARTITION_FIELD {
            body.append_element(element);
        }
    }
    let name = field.get("name").as_str().ok_or_else(malformed)?;
    let request = Request {
        body: body.finish(),
        sequences: message.sequences.clone(),
        routed: Some(Arc::new(read(field)?)),
    };
    Ok(Some((name.to_owned(), request)))
}

fn read(field: DocRef<'_>) -> Result<RoutedRequest> {
    let mut out = RoutedRequest::default();
    for element in field {
        match (element.name(), element.value()) {
            ("name", ValueRef::String(_)) => {}
            ("part", ValueRef::Document(part)) => {
                let (ValueRef::Bool(returns_states), ValueRef::DateTime(now_ms)) =
                    (part.get("states"), part.get("now"))
                else {
                    return Err(malformed());
                };
                let mut metadata = PartMetadata::default();
                let names = part.get("metadata").as_array().ok_or_else(malformed)?;
                for name in names.iter() {
                    let known = name.as_str().and_then(|name| metadata.add(name));
                    known.ok_or_else(malformed)?;
                }
                out.part = Some(PartRequest {
                    returns_states,
                    now_ms,
                    metadata,
                });
            }
            ("placement", ValueRef::Document(placement)) => {
                out.placement = Some(read_placement(placement)?);
            }
            ("statements", ValueRef::Array(numbers)) => {
                let number = |value: ValueRef<'_>| u32::try_from(value.as_exact_i64()?).ok();
                let numbers = numbers.iter().map(number).collect::<Option<_>>();
                out.statements = numbers.ok_or_else(malformed)?;
            }
            ("repeatsOnly", ValueRef::Bool(only)) => out.repeats_only = only,
            ("definitions", ValueRef::Document(definitions)) => {
                out.definitions = Some(definitions.to_document());
            }
            ("upserted", ValueRef::Document(document)) => {
                out.upserted = Some(document.to_document());
            }
            ("guardedKey", ValueRef::Document(guarded)) => {
                out.guarded_key = Some(read_guarded(guarded)?);
            }
            ("accepted", ValueRef::Document(accepted)) => {
                out.accepted = Some(read_accepted(accepted)?);
            }
            ("mergeNow", ValueRef::DateTime(now_ms)) => out.merge_now_ms = Some(now_ms),
            _ => return Err(malformed()),
        }
    }
    Ok(out)
}

/// Reads `{key, allowed}`.
fn read_guarded(guarded: DocRef<'_>) -> Result<GuardedKey> {
    let key = guarded.get("key").as_document().ok_or_else(malformed)?;
    let allowed = match guarded.get("allowed") {
        ValueRef::Missing => None,
        ValueRef::Document(values) => Some(values.to_document()),
        _ => return Err(malformed()),
    };
    Ok(GuardedKey {
        key: key.to_document(),
        allowed,
    })
}

/// Reads `{before, after, position}`.
fn read_accepted(accepted: DocRef<'_>) -> Result<AcceptedDocument> {
    let document = |name| accepted.get(name).as_document().ok_or_else(malformed);
    let position = match accepted.get("position") {
        ValueRef::Missing => None,
        position => {
            let position = position.as_exact_i64().ok_or_else(malformed)?;
            Some(usize::try_from(position).map_err(|_| malformed())?)
        }
    };
    Ok(AcceptedDocument {
        before: document("before")?.to_document(),
        after: document("after")?.to_document(),
        position,
    })
}

/// Reads `{ns, number}`.
pub(crate) fn read_placement(placement: DocRef<'_>) -> Result<PlacementVersion> {
    let namespace = placement.get("ns").as_str().ok_or_else(malformed)?;
    let number = placement.get("number").as_exact_i64();
    Ok(PlacementVersion {
        namespace: namespace.to_owned(),
        number: number.ok_or_else(malformed)?,
    })
}

fn malformed() -> Error {
    Error::bad_value(format!("the field {PARTITION_FIELD} is malformed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_router_asks_survives_a_message() {
        let body = doc! {"insert": "c", "$db": "test"};
        let full = RoutedRequest {
            part: Some(PartRequest {
                returns_states: true,
                now_ms: -5,
                metadata: PartMetadata {
                    distance: true,
                    point: false,
                    score: true,
                    is_near: true,
                },
            }),
            placement: Some(PlacementVersion {
                namespace: "test.c".to_owned(),
                number: 7,
            }),
            statements: vec![0, 3, u32::MAX],
            repeats_only: true,
            definitions: Some(doc! {"rollup": 1}),
            upserted: Some(doc! {"_id": 1}),
            guarded_key: Some(GuardedKey {
                key: doc! {"a": 1, "b": "hashed"},
                allowed: Some(doc! {"a": 1, "b": Value::Null}),
            }),
            accepted: Some(AcceptedDocument {
                before: doc! {"_id": 1},
                after: doc! {"_id": 1, "a": 2},
                position: Some(3),
            }),
            merge_now_ms: Some(-7),
            given: None,
        };
        for routed in [RoutedRequest::default(), full] {
            let mut request = Request::new(body.clone());
            request.routed = Some(Arc::new(routed.clone()));
            let message = Request::new(message_to("p0001", &request));
            let found = addressed(&message).expect("well-formed");
            let (name, arrived) = found.expect("a partition");
            assert_eq!(name, "p0001");
            assert_eq!(arrived.body, body);
            assert_eq!(arrived.routed.as_deref(), Some(&routed));
        }
        let of_client = addressed(&Request::new(body)).expect("well-formed");
        assert!(of_client.is_none());
    }

    #[test]
    fn malformed_fields_are_refused() {
        let fields = [
            Value::Int32(1),
            doc! {}.into(),
            doc! {"name": 1}.into(),
            doc! {"name": "p", "more": 1}.into(),
            doc! {"name": "p", "part": doc! {"states": 1}}.into(),
            doc! {"name": "p", "placement": doc! {"ns": "a.b"}}.into(),
            doc! {"name": "p", "statements": vec![Value::Int32(-1)]}.into(),
            doc! {"name": "p", "guardedKey": doc! {"allowed": doc! {}}}.into(),
            doc! {"name": "p", "accepted": doc! {"before": doc! {}}}.into(),
        ];
        for field in fields {
            let message = Request::new(doc! {"ping": 1, "$partition": field.clone()});
            assert!(addressed(&message).is_err(), "{field:?}");
        }
    }
}
