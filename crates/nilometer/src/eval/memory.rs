//! Memory use of values, for stages that buffer values under a limit.

use nilometer_bson::{ObjectId, Value, ValueRef};

/// Returns the bytes a value occupies on the heap; shared bytes count for each owner.
pub fn memory_bytes(value: &Value) -> usize {
    value_bytes(value.as_ref())
}

/// Returns the bytes of a value outside its own size.
pub fn value_bytes(value: ValueRef<'_>) -> usize {
    match value {
        ValueRef::String(text) | ValueRef::Code(text) | ValueRef::Symbol(text) => text.len(),
        ValueRef::Document(doc) => doc.as_bytes().len(),
        ValueRef::Array(array) => array.as_document().as_bytes().len(),
        ValueRef::Binary { bytes, .. } => bytes.len(),
        ValueRef::Regex { pattern, options } => pattern.len() + options.len(),
        ValueRef::DbPointer { namespace, .. } => namespace.len() + size_of::<ObjectId>(),
        ValueRef::CodeWithScope { code, scope } => code.len() + scope.as_bytes().len(),
        _ => 0,
    }
}
