//! Memory use of values, for stages that buffer values under a limit.

use nilometer_bson::Value;

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
