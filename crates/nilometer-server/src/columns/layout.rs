//! The columns of documents: names, types, and where the fields of a document go.

#![cfg_attr(
    not(feature = "arrow"),
    allow(
        dead_code,
        reason = "CSV has the names of columns, and not their types"
    )
)]

use std::sync::Arc;

use nilometer::query::batch::{Batch, MeasurementBlock, ShownField};
use nilometer_bson::block::{BlockData, ColumnBlock};
use nilometer_bson::{DocRef, ValueRef};

use super::{COLUMNS_MAX, FLATTENED_LEVELS_MAX};

/// The type of a column; see [`super`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ColumnKind {
    /// 32-bit integers.
    Int32,
    /// 64-bit integers.
    Int64,
    /// Doubles.
    Double,
    /// Bools.
    Bool,
    /// Dates, in milliseconds since 1970.
    Date,
    /// Strings.
    Text,
    /// ObjectIds.
    ObjectId,
    /// Bytes of one subtype.
    Binary(u8),
    /// The digits of decimals.
    Decimal,
    /// Timestamps.
    Timestamp,
    /// Values of any type, as canonical extended JSON.
    Json,
}

impl ColumnKind {
    /// Names that a request may give a column.
    const NAMES: [(&'static str, Self); 11] = [
        ("int32", Self::Int32),
        ("int64", Self::Int64),
        ("double", Self::Double),
        ("boolean", Self::Bool),
        ("date", Self::Date),
        ("string", Self::Text),
        ("objectId", Self::ObjectId),
        ("binary", Self::Binary(0)),
        ("decimal", Self::Decimal),
        ("timestamp", Self::Timestamp),
        ("json", Self::Json),
    ];

    /// Returns the type of a column of this value; `None` for an empty one.
    pub(crate) fn of(value: ValueRef<'_>) -> Option<Self> {
        Some(match value {
            ValueRef::Missing | ValueRef::Null => return None,
            ValueRef::Int32(_) => Self::Int32,
            ValueRef::Int64(_) => Self::Int64,
            ValueRef::Double(_) => Self::Double,
            ValueRef::Bool(_) => Self::Bool,
            ValueRef::DateTime(_) => Self::Date,
            ValueRef::String(_) => Self::Text,
            ValueRef::ObjectId(_) => Self::ObjectId,
            ValueRef::Binary { subtype, .. } => Self::Binary(subtype),
            ValueRef::Decimal128(_) => Self::Decimal,
            ValueRef::Timestamp(_) => Self::Timestamp,
            _ => Self::Json,
        })
    }

    /// Returns a type that holds the values of both.
    fn with(self, other: Self) -> Self {
        match (self, other) {
            (a, b) if a == b => a,
            (Self::Int32, Self::Int64) | (Self::Int64, Self::Int32) => Self::Int64,
            // Not every long is a double.
            (Self::Int32, Self::Double) | (Self::Double, Self::Int32) => Self::Double,
            _ => Self::Json,
        }
    }

    /// Returns the name of the type for errors.
    pub(crate) fn name(self) -> &'static str {
        let known = Self::NAMES.iter().find(|(_, kind)| *kind == self);
        known.map_or("binary", |(name, _)| name)
    }
}

/// A column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    /// The names of the fields that lead to its values.
    pub(crate) path: Vec<Arc<str>>,
    /// The type.
    pub(crate) kind: ColumnKind,
    /// True for values of the metadata, of which many rows have the same.
    pub(crate) repeats: bool,
}

impl Column {
    /// Returns the name of the column.
    pub(crate) fn name(&self) -> String {
        self.path.join(".")
    }
}

/// Where the fields of a document go.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields(Vec<(Arc<str>, Place)>);

/// Where a field goes.
#[derive(Clone, Debug)]
pub(crate) enum Place {
    /// A column, by its number.
    Column(usize),
    /// The columns of its own fields.
    Inside(Fields),
}

impl Fields {
    /// Returns the place of a field. `expected` is where it is looked for first, and becomes that of the next field.
    pub(crate) fn find(&self, name: &str, expected: &mut usize) -> Option<&Place> {
        let at = match self.0.get(*expected) {
            Some((known, _)) if **known == *name => *expected,
            _ => self.0.iter().position(|(known, _)| **known == *name)?,
        };
        *expected = at + 1;
        self.0.get(at).map(|(_, place)| place)
    }

    /// Adds the numbers of all columns.
    pub(crate) fn numbers(&self, out: &mut Vec<usize>) {
        for (_, place) in &self.0 {
            match place {
                Place::Column(at) => out.push(*at),
                Place::Inside(fields) => fields.numbers(out),
            }
        }
    }

    fn add(&mut self, path: &[Arc<str>], number: usize) -> Result<(), String> {
        let Some((first, rest)) = path.split_first() else {
            return Ok(());
        };
        let at = match self.0.iter().position(|(known, _)| known == first) {
            Some(at) => at,
            None => {
                let place = match rest.is_empty() {
                    true => Place::Column(number),
                    false => Place::Inside(Self::default()),
                };
                self.0.push((Arc::clone(first), place));
                self.0.len() - 1
            }
        };
        match (self.0.get_mut(at), rest.is_empty()) {
            (Some((_, Place::Inside(fields))), false) => fields.add(rest, number),
            (Some((_, Place::Column(known))), true) if *known == number => Ok(()),
            _ => Err(format!(
                "the column '{}' is also one with fields, or there twice",
                path.join(".")
            )),
        }
    }
}

/// The columns of documents.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layout {
    /// The columns.
    pub(crate) columns: Vec<Column>,
    /// Where the fields of documents go.
    pub(crate) fields: Fields,
    /// True if the columns were named, so that other fields are left out.
    pub(crate) is_given: bool,
}

impl Layout {
    fn new(columns: Vec<Column>, is_given: bool) -> Result<Self, String> {
        if columns.len() > COLUMNS_MAX {
            return Err(format!(
                "there are {} columns; the most is {COLUMNS_MAX}: name some of them, or leave fields out",
                columns.len()
            ));
        }
        let mut fields = Fields::default();
        let mut names = std::collections::HashSet::new();
        for (number, column) in columns.iter().enumerate() {
            fields.add(&column.path, number)?;
            if !names.insert(column.name()) {
                return Err(format!("two columns have the name '{}'", column.name()));
            }
        }
        Ok(Self {
            columns,
            fields,
            is_given,
        })
    }
}

/// Columns that were named, with the types that were given.
#[derive(Clone, Debug, Default)]
pub(crate) struct NamedColumns(Vec<(Vec<Arc<str>>, Option<ColumnKind>)>);

impl NamedColumns {
    /// Parses names such as `time`, `tags.host` and `usage.double()`.
    pub(crate) fn parse<'a>(names: impl Iterator<Item = &'a str>) -> Result<Self, String> {
        let mut columns = Vec::new();
        for name in names {
            let typed = name
                .strip_suffix("()")
                .and_then(|typed| typed.rsplit_once('.'));
            let (path, kind) = match typed {
                None => (name, None),
                Some((path, "auto")) => (path, None),
                Some((path, kind)) => {
                    let known = ColumnKind::NAMES.iter().find(|(known, _)| *known == kind);
                    let known = known.ok_or_else(|| {
                        let names = ColumnKind::NAMES.map(|(name, _)| name).join(", ");
                        format!(
                            "the column '{name}' has the type '{kind}'; there are auto, {names}"
                        )
                    })?;
                    (path, Some(known.1))
                }
            };
            if path.split('.').any(str::is_empty) {
                return Err(format!("the column '{name}' has an empty name"));
            }
            columns.push((path.split('.').map(Arc::from).collect(), kind));
        }
        Ok(Self(columns))
    }

    /// True if no columns were named.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A field that was seen.
#[derive(Debug, Default)]
struct Seen {
    name: Arc<str>,
    kind: Option<ColumnKind>,
    /// The fields of its documents.
    inside: Vec<Seen>,
}

impl Seen {
    fn find<'s>(list: &'s mut Vec<Self>, name: &str, expected: &mut usize) -> &'s mut Self {
        let known = match list.get(*expected) {
            Some(known) if *known.name == *name => Some(*expected),
            _ => list.iter().position(|known| *known.name == *name),
        };
        let at = known.unwrap_or_else(|| {
            list.push(Self {
                name: name.into(),
                ..Self::default()
            });
            list.len() - 1
        });
        *expected = at + 1;
        &mut list[at]
    }

    fn see_kind(&mut self, kind: ColumnKind) {
        self.kind = Some(self.kind.map_or(kind, |known| known.with(kind)));
    }

    fn see(&mut self, value: ValueRef<'_>, level: usize) {
        match value {
            ValueRef::Document(document) if may_flatten(document, level) => {
                see_document(&mut self.inside, document, level + 1);
            }
            other => {
                if let Some(kind) = ColumnKind::of(other) {
                    self.see_kind(kind);
                }
            }
        }
    }

    /// Adds the columns of this field and the fields inside.
    fn columns(&self, path: &mut Vec<Arc<str>>, meta: Option<&str>, out: &mut Vec<Column>) {
        path.push(Arc::clone(&self.name));
        let repeats = path.first().map(|first| &**first) == meta;
        let kind = match (self.kind, self.inside.is_empty()) {
            // Documents and other values are in one column, as are nothing but empty values.
            (Some(_), false) => Some(ColumnKind::Json),
            (None, false) => None,
            (kind, true) => Some(kind.unwrap_or(ColumnKind::Json)),
        };
        match kind {
            Some(kind) => out.push(Column {
                path: path.clone(),
                kind,
                repeats,
            }),
            None => {
                for inside in &self.inside {
                    inside.columns(path, meta, out);
                }
            }
        }
        path.pop();
    }
}

/// True if the fields of a document become columns: it has some, and their names can be joined.
fn may_flatten(document: DocRef<'_>, level: usize) -> bool {
    level < FLATTENED_LEVELS_MAX
        && !document.is_empty()
        && document
            .iter()
            .all(|field| !field.name().is_empty() && !field.name().contains('.'))
}

fn see_document(list: &mut Vec<Seen>, document: DocRef<'_>, level: usize) {
    let mut expected = 0;
    for field in document {
        Seen::find(list, field.name(), &mut expected).see(field.value(), level);
    }
}

/// Infers a layout from documents.
#[derive(Debug, Default)]
pub(crate) struct LayoutBuilder {
    seen: Vec<Seen>,
    meta: Option<Arc<str>>,
}

impl LayoutBuilder {
    /// Sets the metadata field of the documents.
    pub(crate) fn set_meta(&mut self, name: &str) {
        self.meta = Some(name.into());
    }

    /// Looks at a document.
    pub(crate) fn observe_document(&mut self, document: DocRef<'_>) {
        see_document(&mut self.seen, document, 0);
    }

    /// Looks at all documents of a batch.
    pub(crate) fn observe(&mut self, batch: &Batch) -> nilometer::Result<()> {
        match batch {
            Batch::Rows(rows) => rows
                .iter()
                .for_each(|row| self.observe_document(row.as_ref())),
            Batch::Block(block) => self.observe_block(block)?,
        }
        Ok(())
    }

    fn observe_block(&mut self, block: &MeasurementBlock) -> nilometer::Result<()> {
        if block.selection.is_empty() {
            return Ok(());
        }
        let mut expected = 0;
        for (name, field) in block.shown_fields()? {
            match field {
                ShownField::Meta => {
                    self.meta = Some(Arc::clone(&name));
                    let meta = block.meta();
                    if !meta.is_missing() {
                        Seen::find(&mut self.seen, &name, &mut expected).see(meta, 0);
                    }
                }
                ShownField::Column(column) => {
                    if has_values(&column, block) {
                        let seen = Seen::find(&mut self.seen, &name, &mut expected);
                        see_column(seen, &column, block);
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns the layout: the named columns, or all.
    pub(crate) fn finish(&self, named: &NamedColumns) -> Result<Layout, String> {
        let meta = self.meta.as_deref();
        if named.is_empty() {
            let mut columns = Vec::new();
            for seen in &self.seen {
                seen.columns(&mut Vec::new(), meta, &mut columns);
            }
            return Layout::new(columns, false);
        }
        let columns = named.0.iter().map(|(path, kind)| Column {
            path: path.clone(),
            kind: kind
                .or_else(|| self.kind_at(path))
                .unwrap_or(ColumnKind::Json),
            repeats: path.first().map(|first| &**first) == meta,
        });
        Layout::new(columns.collect(), true)
    }

    /// Returns the type of the values at a path.
    fn kind_at(&self, path: &[Arc<str>]) -> Option<ColumnKind> {
        let mut list = &self.seen;
        let mut found = None;
        for name in path {
            let seen = list.iter().find(|seen| seen.name == *name)?;
            list = &seen.inside;
            found = match list.is_empty() {
                true => seen.kind,
                false => Some(ColumnKind::Json),
            };
        }
        found
    }
}

/// True if a selected measurement has a value in the column.
fn has_values(column: &ColumnBlock, block: &MeasurementBlock) -> bool {
    if column.is_all_present() {
        return true;
    }
    let mut any = false;
    block
        .selection
        .for_each(|row| any |= !column.is_missing(row as usize));
    any
}

fn see_column(seen: &mut Seen, column: &ColumnBlock, block: &MeasurementBlock) {
    match column.data() {
        BlockData::Missing => {}
        BlockData::Constant(value) => seen.see(value.as_ref(), 0),
        BlockData::Int32(_) => seen.see_kind(ColumnKind::Int32),
        BlockData::Int64(_) | BlockData::ShortInt64(_) => seen.see_kind(ColumnKind::Int64),
        BlockData::Double(_) => seen.see_kind(ColumnKind::Double),
        BlockData::DateTime(_) => seen.see_kind(ColumnKind::Date),
        BlockData::Bool(_) => seen.see_kind(ColumnKind::Bool),
        BlockData::Timestamp(_) => seen.see_kind(ColumnKind::Timestamp),
        BlockData::ObjectId(_) => seen.see_kind(ColumnKind::ObjectId),
        BlockData::Dictionary { codes, values } => {
            let mut used = vec![false; values.len()];
            block.selection.for_each(|row| {
                let code = codes
                    .get(row as usize)
                    .filter(|_| !column.is_missing(row as usize));
                if let Some(used) = code.and_then(|code| used.get_mut(*code as usize)) {
                    *used = true;
                }
            });
            let values = values.iter().zip(used).filter(|(_, used)| *used);
            values.for_each(|(value, _)| seen.see(value, 0));
        }
        BlockData::Mixed(_) => block
            .selection
            .for_each(|row| seen.see(column.value(row as usize), 0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nilometer_bson::{Document, array, doc};

    fn columns(documents: &[Document]) -> Vec<String> {
        let mut builder = LayoutBuilder::default();
        builder.set_meta("m");
        for document in documents {
            builder.observe_document(document.as_ref());
        }
        let layout = builder.finish(&NamedColumns::default()).unwrap();
        let shown = layout.columns.iter().map(|column| {
            let repeats = if column.repeats { "*" } else { "" };
            format!("{}{repeats} {}", column.name(), column.kind.name())
        });
        shown.collect()
    }

    #[test]
    fn types_are_those_that_hold_all_values() {
        let first =
            doc! {"a": 1, "b": 1, "c": 1i64, "d": 1, "m": doc! {"h": "x", "n": doc! {"k": 1}}};
        let second = doc! {"a": 2, "b": 2i64, "c": 2.5, "d": 2.5, "e": nilometer_bson::Value::Null, "m": doc! {"r": true}};
        assert_eq!(
            columns(&[first, second]),
            [
                "a int32",
                "b int64",
                "c json",
                "d double",
                "m.h* string",
                "m.n.k* int32",
                "m.r* boolean",
                "e json"
            ]
        );
    }

    #[test]
    fn documents_beside_other_values_are_json() {
        let documents = [
            doc! {"a": doc! {"x": 1}, "b": doc! {"x.y": 1}, "c": array![1]},
            doc! {"a": 5, "d": doc! {}},
        ];
        assert_eq!(
            columns(&documents),
            ["a json", "b json", "c json", "d json"]
        );
    }

    #[test]
    fn named_columns_have_their_types() {
        let mut builder = LayoutBuilder::default();
        builder.observe_document(doc! {"a": 1, "b": doc! {"c": "x"}}.as_ref());
        let layout = |names: &[&str]| builder.finish(&NamedColumns::parse(names.iter().copied())?);
        let kinds = |names: &[&str]| -> Vec<ColumnKind> {
            layout(names)
                .unwrap()
                .columns
                .iter()
                .map(|column| column.kind)
                .collect()
        };
        use ColumnKind as K;
        assert_eq!(
            kinds(&["b.c", "a.double()", "z", "b2.auto()"]),
            [K::Text, K::Double, K::Json, K::Json]
        );
        for wrong in [&["a.no()"][..], &["a..b"], &["a", "a"], &["a", "a.b"]] {
            assert!(layout(wrong).is_err(), "{wrong:?}");
        }
    }
}
