//! A document during an update: bytes where nothing changed, lists where something did.
//!
//! A value is opened only if a path of the update leads through it; the others are copied when the document
//! is written.

use std::borrow::Cow;

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef};

/// A value of the document.
#[derive(Clone, Debug)]
pub(super) enum DocumentNode<'a> {
    /// Unchanged.
    Old(ValueRef<'a>),
    /// Set by a modifier.
    New(Value),
    /// An opened object.
    Object(Vec<(Cow<'a, str>, DocumentNode<'a>)>),
    /// An opened array.
    Array(Vec<DocumentNode<'a>>),
}

impl<'a> DocumentNode<'a> {
    /// Opens an object or array; other values stay.
    pub(super) fn open(&mut self) {
        if let Self::Old(value) = *self {
            match value {
                ValueRef::Document(doc) => {
                    let fields = doc
                        .iter()
                        .map(|e| (Cow::Borrowed(e.name()), Self::Old(e.value())));
                    *self = Self::Object(fields.collect());
                }
                ValueRef::Array(array) => {
                    *self = Self::Array(array.iter().map(Self::Old).collect())
                }
                _ => {}
            }
        }
    }

    /// Returns the value.
    pub(super) fn to_value(&self) -> Value {
        match self {
            Self::Old(value) => value.to_value(),
            Self::New(value) => value.clone(),
            Self::Object(_) => Value::Document(self.to_document()),
            Self::Array(items) => items.iter().map(Self::to_value).collect::<Vec<_>>().into(),
        }
    }

    /// Returns the document of an opened object.
    pub(super) fn to_document(&self) -> Document {
        let mut out = DocumentBuilder::with_capacity(256);
        if let Self::Object(fields) = self {
            for (name, value) in fields {
                value.write(name, &mut out);
            }
        }
        out.finish()
    }

    fn write(&self, name: &str, out: &mut DocumentBuilder) {
        match self {
            Self::Old(value) => {
                out.append_ref(name, *value);
            }
            Self::New(value) => {
                out.append_ref(name, value.as_ref());
            }
            Self::Object(fields) => {
                out.begin_document(name);
                for (name, value) in fields {
                    value.write(name, out);
                }
                out.end();
            }
            Self::Array(items) => {
                out.begin_array(name);
                for (at, item) in items.iter().enumerate() {
                    item.write(&at.to_string(), out);
                }
                out.end();
            }
        }
    }
}
