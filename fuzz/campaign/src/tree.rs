//! Documents as trees that can be changed in place.

use nilometer_bson::{Array, DocRef, Document, DocumentBuilder, Value, ValueRef};

/// A value whose parts can be changed.
#[derive(Clone, Debug)]
pub enum Node {
    /// A value without parts.
    Leaf(Value),
    /// A document: names and values.
    Fields(Vec<(String, Node)>),
    /// An array.
    Items(Vec<Node>),
}

impl Node {
    /// Converts a document to a tree.
    pub fn of(document: DocRef<'_>) -> Self {
        let fields = document.iter();
        Self::Fields(
            fields
                .map(|e| (e.name().to_owned(), Self::of_value(e.value())))
                .collect(),
        )
    }

    /// Converts a value to a tree.
    pub fn of_value(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Document(document) => Self::of(document),
            ValueRef::Array(array) => Self::Items(array.iter().map(Self::of_value).collect()),
            other => Self::Leaf(other.to_value()),
        }
    }

    /// Converts the tree to a value.
    pub fn value(&self) -> Value {
        match self {
            Self::Leaf(value) => value.clone(),
            Self::Fields(fields) => Value::Document(document(fields)),
            Self::Items(items) => Value::Array(items.iter().map(Self::value).collect::<Array>()),
        }
    }

    /// Converts the tree to a document; an empty one if it is not a document.
    pub fn document(&self) -> Document {
        match self {
            Self::Fields(fields) => document(fields),
            _ => Document::new(),
        }
    }

    /// Returns the number of nodes.
    pub fn count(&self) -> usize {
        1 + match self {
            Self::Leaf(_) => 0,
            Self::Fields(fields) => fields.iter().map(|(_, node)| node.count()).sum(),
            Self::Items(items) => items.iter().map(Self::count).sum(),
        }
    }

    /// Returns the node with a number, counted from the root's 0, parents first.
    pub fn at(&mut self, number: usize) -> Option<&mut Self> {
        if number == 0 {
            return Some(self);
        }
        let mut left = number - 1;
        let parts: Box<dyn Iterator<Item = &mut Self>> = match self {
            Self::Leaf(_) => return None,
            Self::Fields(fields) => Box::new(fields.iter_mut().map(|(_, node)| node)),
            Self::Items(items) => Box::new(items.iter_mut()),
        };
        for part in parts {
            let count = part.count();
            if left < count {
                return part.at(left);
            }
            left -= count;
        }
        None
    }
}

fn document(fields: &[(String, Node)]) -> Document {
    let mut out = DocumentBuilder::new();
    for (name, node) in fields {
        // A name ends at its first zero byte.
        let name = name.replace('\0', "");
        out.append(&name, node.value());
    }
    out.finish()
}
