//! A document while it is changed: bytes where nothing changed, lists where something does.
//!
//! A value is opened only when the way of an update leads through it; all others are copied as they
//! are when the document is written again.

use std::borrow::Cow;

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef};

/// A value of the document.
#[derive(Clone, Debug)]
pub(super) enum Node<'a> {
    /// As it was.
    Old(ValueRef<'a>),
    /// Set by a modifier.
    New(Value),
    /// An object the way leads through.
    Object(Vec<(Cow<'a, str>, Node<'a>)>),
    /// An array the way leads through.
    Array(Vec<Node<'a>>),
}

impl<'a> Node<'a> {
    /// Opens an object or array; anything else stays.
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

    /// The value.
    pub(super) fn to_value(&self) -> Value {
        match self {
            Self::Old(value) => value.to_value(),
            Self::New(value) => value.clone(),
            Self::Object(_) => Value::Document(self.to_document()),
            Self::Array(items) => items.iter().map(Self::to_value).collect::<Vec<_>>().into(),
        }
    }

    /// The document an opened object is.
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
