//! One column that is filled with values, or with whole blocks of them, and becomes an Arrow array.

use std::collections::HashMap;
use std::sync::Arc;

use arrow_array::ArrayRef;
use arrow_array::builder::{
    BinaryBuilder, BooleanBuilder, FixedSizeBinaryBuilder, Float64Builder, Int32Builder,
    Int64Builder, StringBuilder, StringDictionaryBuilder, TimestampMillisecondBuilder,
    UInt64Builder,
};
use arrow_array::types::Int32Type;
use arrow_schema::{DataType, Field, TimeUnit};
use nilometer::query::batch::Selection;
use nilometer_bson::block::{BlockData, ColumnBlock};
use nilometer_bson::extjson::value_to_canonical;
use nilometer_bson::{Value, ValueRef};

use super::layout::{Column, ColumnKind};

/// The metadata of a field that has the BSON type.
pub(crate) const BSON_TYPE: &str = "nilometer.bson";

/// The metadata of a field that has the names which lead to its values, where they cannot be read from its own: an array
/// in JSON.
pub(crate) const PATH: &str = "nilometer.path";

/// Bytes of an ObjectId.
pub(crate) const OBJECT_ID_BYTES: i32 = 12;

/// The largest number of distinct texts of a dictionary. A larger one is replaced by an empty one, because each batch copies it.
const DICTIONARY_VALUES_MAX: usize = 16_384;

/// The zone of dates.
const UTC: &str = "UTC";

/// Returns the Arrow field of a column.
pub(crate) fn field_of(column: &Column) -> Field {
    let mut metadata = HashMap::new();
    let mut of_type = |name: String| metadata.insert(BSON_TYPE.to_owned(), name);
    let data_type = match column.kind {
        ColumnKind::Int32 => DataType::Int32,
        ColumnKind::Int64 => DataType::Int64,
        ColumnKind::Double => DataType::Float64,
        ColumnKind::Bool => DataType::Boolean,
        ColumnKind::Date => DataType::Timestamp(TimeUnit::Millisecond, Some(UTC.into())),
        ColumnKind::Text if column.repeats => {
            DataType::Dictionary(Box::new(DataType::Int32), Box::new(DataType::Utf8))
        }
        ColumnKind::Text => DataType::Utf8,
        ColumnKind::ObjectId => {
            of_type("objectId".to_owned());
            DataType::FixedSizeBinary(OBJECT_ID_BYTES)
        }
        ColumnKind::Binary(0) => DataType::Binary,
        ColumnKind::Binary(subtype) => {
            of_type(subtype.to_string());
            DataType::Binary
        }
        ColumnKind::Decimal | ColumnKind::Json => {
            of_type(column.kind.name().to_owned());
            DataType::Utf8
        }
        ColumnKind::Timestamp => {
            of_type("timestamp".to_owned());
            DataType::UInt64
        }
    };
    if column.path.iter().any(|name| name.contains('.')) {
        let names = column.path.iter().map(|name| Value::from(&**name));
        let names = Value::from(names.collect::<Vec<Value>>());
        metadata.insert(PATH.to_owned(), value_to_canonical(names.as_ref()));
    }
    Field::new(column.name(), data_type, true).with_metadata(metadata)
}

/// A value that the column cannot hold.
#[derive(Debug)]
pub(crate) struct Misfit {
    /// The type of the value.
    pub(crate) of: &'static str,
}

/// The values of a column.
pub(crate) struct ColumnBuffer {
    kind: ColumnKind,
    /// Texts are numbers of a dictionary.
    repeats: bool,
    /// Values for which there is room at the beginning.
    rows: usize,
    length: usize,
    /// Bytes of texts.
    bytes: usize,
    values: Values,
}

enum Values {
    Int32(Int32Builder),
    Int64(Int64Builder),
    Double(Float64Builder),
    Bool(BooleanBuilder),
    Date(TimestampMillisecondBuilder),
    Text(StringBuilder),
    Repeated(StringDictionaryBuilder<Int32Type>),
    ObjectId(FixedSizeBinaryBuilder),
    Binary(u8, BinaryBuilder),
    Decimal(StringBuilder),
    Json(StringBuilder),
    Timestamp(UInt64Builder),
}

impl Values {
    /// Returns no values, with room for `rows`.
    fn new(kind: ColumnKind, repeats: bool, rows: usize) -> Self {
        match kind {
            ColumnKind::Int32 => Self::Int32(Int32Builder::with_capacity(rows)),
            ColumnKind::Int64 => Self::Int64(Int64Builder::with_capacity(rows)),
            ColumnKind::Double => Self::Double(Float64Builder::with_capacity(rows)),
            ColumnKind::Bool => Self::Bool(BooleanBuilder::with_capacity(rows)),
            ColumnKind::Date => {
                let builder = TimestampMillisecondBuilder::with_capacity(rows);
                Self::Date(builder.with_timezone(UTC))
            }
            ColumnKind::Text if repeats => Self::Repeated(StringDictionaryBuilder::new()),
            ColumnKind::Text => Self::Text(StringBuilder::new()),
            ColumnKind::ObjectId => Self::ObjectId(FixedSizeBinaryBuilder::new(OBJECT_ID_BYTES)),
            ColumnKind::Binary(subtype) => Self::Binary(subtype, BinaryBuilder::new()),
            ColumnKind::Decimal => Self::Decimal(StringBuilder::new()),
            ColumnKind::Json => Self::Json(StringBuilder::new()),
            ColumnKind::Timestamp => Self::Timestamp(UInt64Builder::with_capacity(rows)),
        }
    }
}

/// Runs the same statement for the builder of any type.
macro_rules! for_any {
    ($values:expr, $builder:ident => $run:expr) => {
        match $values {
            Values::Int32($builder) => $run,
            Values::Int64($builder) => $run,
            Values::Double($builder) => $run,
            Values::Bool($builder) => $run,
            Values::Date($builder) => $run,
            Values::Text($builder) | Values::Decimal($builder) | Values::Json($builder) => $run,
            Values::Repeated($builder) => $run,
            Values::ObjectId($builder) => $run,
            Values::Binary(_, $builder) => $run,
            Values::Timestamp($builder) => $run,
        }
    };
}

impl ColumnBuffer {
    /// Returns an empty column for `rows` values.
    pub(crate) fn new(column: &Column, rows: usize) -> Self {
        Self {
            kind: column.kind,
            repeats: column.repeats,
            rows,
            length: 0,
            bytes: 0,
            values: Values::new(column.kind, column.repeats, rows),
        }
    }

    /// Returns the number of values, empty ones included.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Returns the bytes of its texts.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Adds empty values until there are `length`.
    pub(crate) fn pad_to(&mut self, length: usize) {
        let count = length.saturating_sub(self.length);
        if count > 0 {
            for_any!(&mut self.values, builder => builder.append_nulls(count));
            self.length = length;
        }
    }

    /// Adds a value.
    pub(crate) fn push(&mut self, value: ValueRef<'_>) -> Result<(), Misfit> {
        match (&mut self.values, value) {
            (_, ValueRef::Missing | ValueRef::Null) => {
                for_any!(&mut self.values, builder => builder.append_null());
            }
            (Values::Int32(builder), ValueRef::Int32(value)) => builder.append_value(value),
            (Values::Int64(builder), ValueRef::Int64(value)) => builder.append_value(value),
            (Values::Int64(builder), ValueRef::Int32(value)) => builder.append_value(value.into()),
            (Values::Double(builder), ValueRef::Double(value)) => builder.append_value(value),
            (Values::Double(builder), ValueRef::Int32(value)) => builder.append_value(value.into()),
            (Values::Bool(builder), ValueRef::Bool(value)) => builder.append_value(value),
            (Values::Date(builder), ValueRef::DateTime(value)) => builder.append_value(value),
            (Values::Text(builder), ValueRef::String(text)) => {
                self.bytes += text.len();
                builder.append_value(text);
            }
            (Values::Repeated(builder), ValueRef::String(text)) => builder.append_value(text),
            (Values::ObjectId(builder), ValueRef::ObjectId(id)) => {
                let of = value.type_name();
                builder.append_value(id.0).map_err(|_| Misfit { of })?;
            }
            (Values::Binary(known, builder), ValueRef::Binary { subtype, bytes })
                if *known == subtype =>
            {
                self.bytes += bytes.len();
                builder.append_value(bytes);
            }
            (Values::Decimal(builder), ValueRef::Decimal128(value)) => {
                builder.append_value(value.to_string());
            }
            (Values::Timestamp(builder), ValueRef::Timestamp(value)) => {
                builder.append_value(value.to_u64());
            }
            (Values::Json(builder), value) => {
                let text = value_to_canonical(value);
                self.bytes += text.len();
                builder.append_value(text);
            }
            (_, other) => {
                return Err(Misfit {
                    of: other.type_name(),
                });
            }
        }
        self.length += 1;
        Ok(())
    }

    /// Adds a value several times.
    pub(crate) fn push_repeated(
        &mut self,
        value: ValueRef<'_>,
        count: usize,
    ) -> Result<(), Misfit> {
        match (&mut self.values, value) {
            (_, ValueRef::Missing | ValueRef::Null) => {
                for_any!(&mut self.values, builder => builder.append_nulls(count));
            }
            (Values::Int32(builder), ValueRef::Int32(value)) => {
                builder.append_value_n(value, count)
            }
            (Values::Int64(builder), ValueRef::Int64(value)) => {
                builder.append_value_n(value, count)
            }
            (Values::Double(builder), ValueRef::Double(value)) => {
                builder.append_value_n(value, count);
            }
            (Values::Date(builder), ValueRef::DateTime(value)) => {
                builder.append_value_n(value, count);
            }
            (Values::Repeated(builder), ValueRef::String(text)) => {
                builder.append_values(text, count);
            }
            (Values::Json(builder), value) => {
                let text = value_to_canonical(value);
                self.bytes += text.len() * count;
                builder.append_value_n(text, count);
            }
            _ => {
                for _ in 0..count {
                    self.push(value)?;
                }
                return Ok(());
            }
        }
        self.length += count;
        Ok(())
    }

    /// Adds the selected values of a block.
    pub(crate) fn push_block(
        &mut self,
        block: &ColumnBlock,
        selection: &Selection,
    ) -> Result<(), Misfit> {
        let count = selection.len();
        match block.data() {
            BlockData::Missing => {
                self.pad_to(self.length + count);
                return Ok(());
            }
            BlockData::Constant(value) if block.is_all_present() => {
                return self.push_repeated(value.as_ref(), count);
            }
            _ => {}
        }
        if let Selection::Range(range) = selection {
            let range = range.start as usize..range.end as usize;
            let is_valid = presence_of(block, range.clone());
            macro_rules! copy {
                ($builder:expr, $values:expr) => {{
                    let part = $values.get(range).unwrap_or_default();
                    match is_valid {
                        None => $builder.append_slice(part),
                        Some(is_valid) => $builder.append_values(part, &is_valid),
                    }
                    self.length += count;
                    return Ok(());
                }};
            }
            match (&mut self.values, block.data()) {
                (Values::Double(builder), BlockData::Double(values)) => copy!(builder, values),
                (Values::Int32(builder), BlockData::Int32(values)) => copy!(builder, values),
                (Values::Int64(builder), BlockData::Int64(values)) => copy!(builder, values),
                (Values::Date(builder), BlockData::DateTime(values)) => copy!(builder, values),
                _ => {}
            }
        }
        let mut outcome = Ok(());
        selection.for_each(|row| {
            if outcome.is_ok() {
                outcome = self.push(block.value(row as usize));
            }
        });
        outcome
    }

    /// Returns the values as an array and begins again.
    pub(crate) fn finish(&mut self) -> ArrayRef {
        self.length = 0;
        self.bytes = 0;
        if let Values::Repeated(builder) = &mut self.values {
            // The numbers of texts stay, so that a dictionary is sent again only if it has grown.
            let array = builder.finish_preserve_values();
            if array.values().len() > DICTIONARY_VALUES_MAX {
                *builder = StringDictionaryBuilder::new();
            }
            return Arc::new(array);
        }
        // A finished builder has no room, and would copy its values each time it doubles.
        let empty = Values::new(self.kind, self.repeats, self.rows);
        let mut full = std::mem::replace(&mut self.values, empty);
        for_any!(&mut full, builder => Arc::new(builder.finish()))
    }
}

/// Returns which values of a range are present; `None` if all are.
fn presence_of(block: &ColumnBlock, range: std::ops::Range<usize>) -> Option<Vec<bool>> {
    let presence = block.presence()?;
    Some(range.map(|row| presence.get(row)).collect())
}

/// Returns an array of names in JSON as names.
pub(crate) fn path_of(text: &str) -> Option<Vec<String>> {
    let wrapped = format!("{{\"v\": {text}}}");
    let document = nilometer_bson::extjson::parse_document(&wrapped).ok()?;
    let names = document.get("v").as_array()?;
    names
        .iter()
        .map(|name| name.as_str().map(str::to_owned))
        .collect()
}
