//! Entries that are not what a server writes: `applyOps` refuses or applies them, and what is stored stays valid.

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, array, doc};

use super::histories::{Draw, START_MS, create_series};
use super::{entries, replica_set};
use crate::support::show;

/// A value that does not belong where it is put.
fn other(draw: &mut Draw) -> Value {
    match draw.below(10) {
        0 => Value::Int32(-1),
        1 => Value::Int64(i64::MAX),
        2 => Value::Double(f64::NAN),
        3 => "$x.y".into(),
        4 => Value::Null,
        5 => doc! {}.into(),
        6 => array![1, doc! {"a": 1}],
        7 => Value::DateTime(i64::MIN),
        8 => Value::Bool(true),
        _ => doc! {"0": 1, "9999999": 2, "x": array![]}.into(),
    }
}

/// Replaces, renames or leaves out about one field of twelve.
fn changed(document: DocRef<'_>, draw: &mut Draw) -> Document {
    let mut out = DocumentBuilder::new();
    for field in document {
        let name = field.name();
        match draw.below(36) {
            0 => {
                out.append(name, other(draw));
            }
            1 => {
                let names = ["", "sx", "i", "u", "9", "_id", "a.b"];
                let other = names[draw.below(7) as usize];
                out.append_renamed(other, field);
            }
            2 => {}
            _ => match field.value() {
                ValueRef::Document(inner) => {
                    out.append(name, changed(inner, draw));
                }
                _ => {
                    out.append_element(field);
                }
            },
        }
    }
    out.finish()
}

#[test]
fn changed_entries_are_refused_or_applied_and_contents_stay_valid() {
    let mut source = replica_set();
    create_series(&mut source);
    for n in 0..12 {
        let t = Value::DateTime(START_MS + i64::from(n) * 1000);
        let one = doc! {"t": t, "m": n % 2, "_id": n, "v": n, "s": "text"};
        source.run(doc! {"insert": "ts", "documents": array![one]});
        let inner = doc! {"x": n, "y": array![n, doc! {"z": 1}]};
        source.run(doc! {"insert": "c", "documents": array![doc! {"_id": n, "a": inner}]});
        let set = doc! {"$set": doc! {"a.x": -n, "a.y.1.z": n, "b": n}};
        let statement = doc! {"q": doc! {"_id": n}, "u": set};
        source.run(doc! {"update": "c", "updates": array![statement]});
    }
    let delete = doc! {"q": doc! {"_id": 3}, "limit": 0};
    source.run(doc! {"delete": "ts", "deletes": array![delete]});
    source.run(doc! {"create": "v", "viewOn": "c", "pipeline": array![]});
    let index = doc! {"key": doc! {"b": 1}, "name": "b"};
    source.run(doc! {"createIndexes": "c", "indexes": array![index]});
    let entries = entries(&mut source);
    for seed in 0..25 {
        let mut draw = Draw(seed);
        let mut target = replica_set();
        let (mut applied, mut refused) = (0, 0);
        for entry in &entries {
            for _ in 0..3 {
                let sent = changed(entry.as_ref(), &mut draw);
                let reply = target.reply_on("admin", doc! {"applyOps": array![sent]});
                match reply.get("ok").as_exact_i64() {
                    Some(1) => applied += 1,
                    _ => refused += 1,
                }
            }
            target.reply_on("admin", doc! {"applyOps": array![entry.clone()]});
        }
        assert!(applied > 0 && refused > 0, "{applied} {refused}");
        // A bucket that is inserted is stored as it is, also with bounds that are wrong.
        for (name, is_checked) in [("c", true), ("ts", false)] {
            let reply = target.reply(doc! {"validate": name, "full": true});
            let is_valid = matches!(reply.get("valid"), ValueRef::Bool(true));
            let is_gone = reply.get("code").as_exact_i64() == Some(26);
            let is_answered = reply.get("code").is_missing() && !is_checked;
            assert!(
                is_valid || is_gone || is_answered,
                "seed {seed}: {}",
                show(&reply)
            );
            let found = target.reply(doc! {"find": name});
            assert_eq!(found.get("ok").as_exact_i64(), Some(1), "{}", show(&found));
        }
    }
}
