//! Updates that may change the shard key of a document.
//!
//! A document of an ordinary collection is in the partition of its key. What an update writes into the key is known from its
//! text, or only from the document:
//!
//! ```text
//! replacement, $set of a part    these values: conditions for the filter, if the key must stay as it is
//! other operators on a part      not known
//! stages of a pipeline           not known if they may write a part
//! ```

use nilometer_bson::path::FieldPath;
use nilometer_bson::path::keys::plain_value;
use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef};

use super::shard_key::{KeyPart, ShardKey};
use crate::error::{Error, ErrorCode, Result, location};

/// The path of the part that no update changes.
const ID: &str = "_id";

/// What an update writes into the shard key of a document.
#[derive(Debug, PartialEq)]
pub(crate) enum KeyChange {
    None,
    /// Values that a document has already which meets these conditions.
    To(Vec<Document>),
    /// The document decides.
    Unknown,
}

/// What MongoDB asks of an update that changes a shard key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyRule {
    /// It is a retryable write.
    pub(crate) is_numbered: bool,
    /// Its filter fixes the whole key.
    pub(crate) names_key: bool,
}

impl KeyRule {
    /// Returns the error of an update that changes a key and must not.
    pub(crate) fn refusal(self) -> Option<Error> {
        match (self.is_numbered, self.names_key) {
            (true, true) => None,
            (false, _) => Some(Error::new(
                ErrorCode::IllegalOperation,
                "Must run update to shard key field in a multi-statement transaction or with retryWrites: true.",
            )),
            (true, false) => Some(Error::location(
                location::KEY_UPDATE_WITHOUT_KEY,
                "Shard key update is not allowed without specifying the full shard key in the query",
            )),
        }
    }
}

impl ShardKey {
    /// Returns what `changes` write into the key of a document. Fails if `is_multi` is true, as for an update of many documents,
    /// and they may write something.
    pub(crate) fn change_by(&self, changes: ValueRef<'_>, is_multi: bool) -> Result<KeyChange> {
        let parts: Vec<&KeyPart> = self.parts().iter().collect();
        let parts = parts.into_iter().filter(|part| part.path.as_str() != ID);
        let parts: Vec<&KeyPart> = parts.collect();
        if self.is_timeseries() || parts.is_empty() {
            return Ok(KeyChange::None);
        }
        match changes {
            ValueRef::Document(changes) if is_replacement(changes) => {
                of_replacement(&parts, changes).map(KeyChange::To)
            }
            ValueRef::Document(changes) => of_operators(&parts, changes, is_multi),
            ValueRef::Array(stages) => {
                let mut stages = stages.iter().filter_map(ValueRef::as_document);
                let writes = |stage: DocRef<'_>| parts.iter().any(|part| may_write(stage, part));
                match stages.any(writes) {
                    true if is_multi => Err(changes_many()),
                    true => Ok(KeyChange::Unknown),
                    false => Ok(KeyChange::None),
                }
            }
            _ => Ok(KeyChange::None),
        }
    }
}

fn changes_many() -> Error {
    Error::invalid_options(
        "Multi-update operations are not allowed when updating the shard key field.",
    )
}

fn is_replacement(changes: DocRef<'_>) -> bool {
    let first = changes.iter().next();
    first.is_none_or(|first| !first.name().starts_with('$'))
}

fn of_replacement(parts: &[&KeyPart], new: DocRef<'_>) -> Result<Vec<Document>> {
    let condition = |part: &&KeyPart| {
        let value = plain_value(&part.path, new);
        let value = value.filter(|value| !matches!(value, ValueRef::Array(_)));
        let value = value.ok_or_else(|| super::shard_key::has_array(&part.path))?;
        Ok(equal_to(&part.path, value))
    };
    parts.iter().map(condition).collect()
}

fn equal_to(path: &FieldPath, value: ValueRef<'_>) -> Document {
    let value = match value {
        ValueRef::Missing | ValueRef::Undefined => ValueRef::Null,
        value => value,
    };
    let mut out = DocumentBuilder::new();
    out.begin_document(path.as_str());
    out.append_ref("$eq", value);
    out.end();
    out.finish()
}

fn of_operators(parts: &[&KeyPart], changes: DocRef<'_>, is_multi: bool) -> Result<KeyChange> {
    let mut conditions = Vec::new();
    let mut is_known = true;
    for operator in changes {
        if operator.name() == "$setOnInsert" {
            continue;
        }
        // What is no document is refused where the update runs.
        let Some(fields) = operator.value().as_document() else {
            continue;
        };
        for field in fields {
            // `$rename` names the other field in its value.
            let other = field.value().as_str();
            let other = other.filter(|_| operator.name() == "$rename");
            for part in parts {
                let path = part.path.as_str();
                if !meet(field.name(), path) && !other.is_some_and(|other| meet(other, path)) {
                    continue;
                }
                let is_whole = operator.name() == "$set" && field.name() == path;
                if is_multi {
                    return Err(changes_many());
                }
                is_known &= is_whole;
                conditions.push(equal_to(&part.path, field.value()));
            }
        }
    }
    Ok(match (is_known, conditions.is_empty()) {
        (_, true) => KeyChange::None,
        (true, false) => KeyChange::To(conditions),
        (false, false) => KeyChange::Unknown,
    })
}

/// True if one path is the other, or leads to it.
fn meet(a: &str, b: &str) -> bool {
    let leads = |short: &str, long: &str| {
        let rest = long.strip_prefix(short);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    };
    leads(a, b) || leads(b, a)
}

/// True if a stage of an update may write a part.
fn may_write(stage: DocRef<'_>, part: &KeyPart) -> bool {
    let Some(stage) = stage.iter().next() else {
        return false;
    };
    let meets = |name: &str| meet(name, part.path.as_str());
    match (stage.name(), stage.value()) {
        ("$set" | "$addFields", ValueRef::Document(fields)) => {
            fields.iter().any(|field| meets(field.name()))
        }
        ("$unset", ValueRef::String(name)) => meets(name),
        ("$unset", ValueRef::Array(names)) => names.iter().filter_map(ValueRef::as_str).any(meets),
        _ => true,
    }
}

/// Returns a statement whose filter, its field `name`, has further conditions.
pub(crate) fn narrowed(statement: DocRef<'_>, name: &str, conditions: &[Document]) -> Document {
    if conditions.is_empty() {
        return statement.to_document();
    }
    let filter = statement.get(name).as_document();
    let filter = filter.map(|filter| filter.to_document());
    let all = filter.into_iter().chain(conditions.iter().cloned());
    let mut narrow = DocumentBuilder::new();
    narrow.append("$and", all.map(Value::from).collect::<Vec<_>>());
    let mut out = DocumentBuilder::with_capacity(statement.as_bytes().len() + 64);
    let narrow = narrow.finish();
    let mut is_written = false;
    for element in statement {
        match element.name() == name {
            true => {
                is_written = true;
                out.append(name, narrow.clone());
            }
            false => {
                out.append_element(element);
            }
        }
    }
    if !is_written {
        out.append(name, narrow);
    }
    out.finish()
}

#[cfg(test)]
mod tests {
    use nilometer_bson::{array, doc};

    use super::*;

    fn change(key: Document, changes: Value, is_multi: bool) -> Result<KeyChange, i32> {
        let key = ShardKey::parse(key.as_ref(), None).expect("a shard key");
        let found = key.change_by(changes.as_ref(), is_multi);
        found.map_err(|error| error.code.0)
    }

    #[test]
    fn what_an_update_writes_into_the_key() {
        let key = || doc! {"a.b": 1, "_id": 1};
        let to = |value: Value| Ok(KeyChange::To(vec![doc! {"a.b": doc! {"$eq": value}}]));
        for (changes, expected) in [
            (doc! {"x": 1}.into(), to(Value::Null)),
            (doc! {"a": doc! {"b": 2}}.into(), to(2.into())),
            (doc! {"a": array![doc! {"b": 2}]}.into(), Err(61)),
            (doc! {"$set": doc! {"a.b": 3}}.into(), to(3.into())),
            (
                doc! {"$set": doc! {"a.c": 3, "ab": 1}}.into(),
                Ok(KeyChange::None),
            ),
            (
                doc! {"$setOnInsert": doc! {"a.b": 3}}.into(),
                Ok(KeyChange::None),
            ),
            (
                doc! {"$set": doc! {"a": doc! {"b": 3}}}.into(),
                Ok(KeyChange::Unknown),
            ),
            (
                doc! {"$set": doc! {"a.b.c": 3}}.into(),
                Ok(KeyChange::Unknown),
            ),
            (
                doc! {"$inc": doc! {"a.b": 3}}.into(),
                Ok(KeyChange::Unknown),
            ),
            (
                doc! {"$rename": doc! {"x": "a.b"}}.into(),
                Ok(KeyChange::Unknown),
            ),
            (
                array![doc! {"$set": doc! {"x": 1}}, doc! {"$unset": "c"}],
                Ok(KeyChange::None),
            ),
            (array![doc! {"$set": doc! {"a": 1}}], Ok(KeyChange::Unknown)),
            (
                array![doc! {"$unset": array!["x", "a"]}],
                Ok(KeyChange::Unknown),
            ),
            (array![doc! {"$replaceWith": "$x"}], Ok(KeyChange::Unknown)),
        ] {
            let text = format!("{changes:?}");
            assert_eq!(change(key(), changes, false), expected, "{text}");
        }
        let set: Value = doc! {"$set": doc! {"a.b": 3}}.into();
        assert_eq!(change(key(), set.clone(), true), Err(72));
        // An `_id` never changes.
        assert_eq!(
            change(doc! {"_id": "hashed"}, set, false),
            Ok(KeyChange::None)
        );
        let whole: Value = doc! {"x": 1}.into();
        assert_eq!(change(doc! {"_id": 1}, whole, false), Ok(KeyChange::None));
    }
}
