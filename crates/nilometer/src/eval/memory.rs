//! Memory use of values, for stages that buffer values under a limit.

use nilometer_bson::{Value, ValueRef};

/// Returns the bytes a value occupies on the heap; shared bytes count for each owner.
pub fn memory_bytes(value: &Value) -> usize {
    match value {
        Value::String(text) | Value::Code(text) | Value::Symbol(text) => text.len(),
        Value::Document(doc) => doc.as_bytes().len(),
        Value::Array(array) => array.as_ref().as_document().as_bytes().len(),
        Value::Binary(binary) => binary.bytes.len(),
        Value::Regex(regex) => regex.pattern.len() + regex.options.len(),
        Value::DbPointer(pointer) => pointer.namespace.len() + size_of_val(pointer.as_ref()),
        Value::CodeWithScope(code) => code.code.len() + code.scope.as_bytes().len(),
        _ => 0,
    }
}

/// Returns the bytes of a value outside its own size.
pub fn value_bytes(value: ValueRef<'_>) -> usize {
    match value {
        ValueRef::String(text) | ValueRef::Code(text) | ValueRef::Symbol(text) => text.len(),
        ValueRef::Document(doc) => doc.as_bytes().len(),
        ValueRef::Array(array) => array.as_document().as_bytes().len(),
        ValueRef::Binary { bytes, .. } => bytes.len(),
        ValueRef::Regex { pattern, .. } => pattern.len(),
        _ => 0,
    }
}
