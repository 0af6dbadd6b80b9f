//! `$mergeObjects`: one object with the fields of all inputs. Later values replace earlier ones; a
//! field keeps the position of its first appearance. Null and missing are skipped, other values are
//! error 40400.

use std::collections::HashMap;
use std::sync::Arc;

use nilometer_bson::{DocRef, DocumentBuilder, Value, ValueRef};

use crate::error::{Error, Result, location};
use crate::eval::matcher::value_tests::format_value;
use crate::eval::memory_bytes;

/// An object under construction.
#[derive(Clone, Debug, Default)]
pub struct MergeObjectsState {
    fields: Vec<(Arc<str>, Value)>,
    positions: HashMap<Arc<str>, usize>,
    bytes: usize,
}

impl MergeObjectsState {
    pub(super) fn add(&mut self, value: ValueRef<'_>) -> Result<()> {
        match value {
            ValueRef::Document(doc) => {
                self.add_fields(doc);
                Ok(())
            }
            nullish if nullish.is_nullish() => Ok(()),
            other => Err(Error::location(
                location::MERGE_OBJECTS_NOT_OBJECT,
                format!(
                    "$mergeObjects requires object inputs, but input {} is of type {}",
                    format_value(other),
                    other.type_name()
                ),
            )),
        }
    }

    fn add_fields(&mut self, doc: DocRef<'_>) {
        for element in doc {
            let value = element.value().to_value();
            self.set(element.name(), value);
        }
    }

    fn set(&mut self, name: &str, value: Value) {
        self.bytes += memory_bytes(&value);
        match self.positions.get(name) {
            Some(&at) => {
                let (_, old) = &mut self.fields[at];
                self.bytes -= memory_bytes(old);
                *old = value;
            }
            None => {
                let name: Arc<str> = name.into();
                self.bytes += name.len() + size_of::<(Arc<str>, Value)>();
                self.positions.insert(Arc::clone(&name), self.fields.len());
                self.fields.push((name, value));
            }
        }
    }

    pub(super) fn merge(&mut self, later: Self) {
        for (name, value) in later.fields {
            self.set(&name, value);
        }
    }

    pub(super) fn finish(self) -> Value {
        let mut out = DocumentBuilder::new();
        for (name, value) in &self.fields {
            out.append_ref(name, value.as_ref());
        }
        Value::Document(out.finish())
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes
    }
}
