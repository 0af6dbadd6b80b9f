//! A bucket made of measurements of several buckets, or of one bucket in another order.
//!
//! ```text
//! buckets         A  t 1 3 5        B  t 2 4
//! entries         A0 B0 A1 B1 A2
//! merged bucket   t 1 2 3 4 5       v  gathered on first use, like the other columns
//! ```
//!
//! The measurements have one shape: the same visible metadata, and the same visible columns in compatible order
//! ([`common_columns`]).

use std::num::NonZeroU64;
use std::sync::{Arc, OnceLock};

use nilometer_bson::block::{ColumnBlock, ColumnBlockBuilder};
use nilometer_bson::order::compare;
use nilometer_bson::{ObjectId, ValueRef};

use crate::error::Result;
use crate::query::batch::{MeasurementBlock, MeasurementShape, Selection};
use crate::query::source::{Bucket, BucketHeader, place_of, shown_columns};

/// A measurement: index of the bucket, and row in it.
pub(crate) type RowLocation = (u32, u32);

/// A bucket gathered from other buckets.
struct MergedBucket {
    buckets: Vec<Arc<dyn Bucket>>,
    entries: Vec<RowLocation>,
    names: Vec<Arc<str>>,
    /// The gathered column of each name.
    columns: Vec<OnceLock<Arc<ColumnBlock>>>,
    is_sorted: bool,
}

/// Whose metadata a merged bucket may show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MergedMetas {
    /// That of all buckets, which is the same.
    Same,
    /// That of the first: the reader takes nothing from it in which the buckets differ.
    First,
}

/// Returns the measurements `entries` of `blocks` as one block; `None` if the blocks differ in shape.
/// `is_sorted` states that the entries ascend in time.
pub(crate) fn merged(
    blocks: &[&MeasurementBlock],
    entries: Vec<RowLocation>,
    is_sorted: bool,
    metas: MergedMetas,
) -> Option<MeasurementBlock> {
    let (first, rest) = blocks.split_first()?;
    let constants = first.constant_document();
    let mut others = rest.iter();
    let are_alike = others.all(|other| {
        let has_shape = Arc::ptr_eq(&first.shape, &other.shape) || first.shape == other.shape;
        let number = first.meta_id();
        let has_number = number.is_some() && number == other.meta_id();
        let has_meta =
            metas == MergedMetas::First || has_number || other.constant_document() == constants;
        has_shape && has_meta
    });
    if !are_alike {
        return None;
    }
    let names = common_columns(blocks, &first.shape)?;
    let count = u32::try_from(entries.len()).ok()?;
    let columns = names.iter().map(|_| OnceLock::new()).collect();
    let bucket = MergedBucket {
        buckets: blocks.iter().map(|b| Arc::clone(&b.bucket)).collect(),
        entries,
        names,
        columns,
        is_sorted,
    };
    Some(MeasurementBlock {
        bucket: Arc::new(bucket),
        selection: Selection::all(count),
        shape: Arc::clone(&first.shape),
    })
}

/// Returns the columns visible in blocks of one shape, in an order compatible with each block; `None` if no such order exists.
/// The
/// position of the time is ignored: the time is shown first.
fn common_columns(blocks: &[&MeasurementBlock], shape: &MeasurementShape) -> Option<Vec<Arc<str>>> {
    let shown = |block: &&MeasurementBlock| -> Vec<Arc<str>> {
        let names = shown_columns(&*block.bucket).map(|(_, name)| name);
        let names = names.filter(|name| **name != shape.time_field && shape.shows_column(name));
        names.cloned().collect()
    };
    let mut lists: Vec<Vec<Arc<str>>> = blocks.iter().map(shown).collect();
    lists.sort_by_key(|names| std::cmp::Reverse(names.len()));
    lists.dedup();
    let mut lists = lists.into_iter();
    let mut longest = lists.next()?;
    for names in lists {
        let mut rest = longest.iter();
        if !names.iter().all(|name| rest.any(|known| known == name)) {
            return None;
        }
    }
    longest.insert(0, Arc::clone(&shape.time_field));
    Some(longest)
}

impl MergedBucket {
    fn gather(&self, name: &str) -> Result<ColumnBlock> {
        let sources = self.buckets.iter().map(|bucket| bucket.column(name));
        let sources = sources.collect::<Result<Vec<_>>>()?;
        if let [source] = &*sources {
            let rows: Vec<u32> = self.entries.iter().map(|(_, row)| *row).collect();
            return Ok(match source {
                Some(column) => column.select(&rows),
                None => ColumnBlock::missing(rows.len()),
            });
        }
        let mut builder = ColumnBlockBuilder::new();
        for (source, row) in &self.entries {
            let column = sources.get(*source as usize).copied().flatten();
            builder.push(column.map_or(ValueRef::Missing, |column| column.value(*row as usize)));
        }
        Ok(builder.finish())
    }

    fn first(&self) -> Option<&Arc<dyn Bucket>> {
        self.buckets.first()
    }

    /// Returns a bound of a field: the time's from the buckets; null (unknown) for other fields.
    fn bound(&self, field: &str, greatest: bool) -> ValueRef<'_> {
        if place_of(&self.names, field).is_none() {
            return ValueRef::Missing;
        }
        if self.names.first().is_none_or(|time| **time != *field) {
            return ValueRef::Null;
        }
        let bounds = self.buckets.iter().map(|bucket| match greatest {
            true => bucket.max(field),
            false => bucket.min(field),
        });
        let outer = bounds.reduce(|a, b| match compare(a, b).is_gt() == greatest {
            true => a,
            false => b,
        });
        outer.unwrap_or(ValueRef::Null)
    }
}

impl BucketHeader for MergedBucket {
    fn id(&self) -> ObjectId {
        self.first().map_or(ObjectId([0; 12]), |bucket| bucket.id())
    }

    fn meta(&self) -> ValueRef<'_> {
        self.first()
            .map_or(ValueRef::Missing, |bucket| bucket.meta())
    }

    fn meta_id(&self) -> Option<NonZeroU64> {
        self.first().and_then(|bucket| bucket.meta_id())
    }

    fn min(&self, field: &str) -> ValueRef<'_> {
        self.bound(field, false)
    }

    fn max(&self, field: &str) -> ValueRef<'_> {
        self.bound(field, true)
    }

    fn count(&self) -> u32 {
        u32::try_from(self.entries.len()).unwrap_or(u32::MAX)
    }
}

impl Bucket for MergedBucket {
    fn version(&self) -> i32 {
        self.first().map_or(1, |bucket| bucket.version())
    }

    fn is_sorted(&self) -> bool {
        self.is_sorted
    }

    fn columns(&self) -> &[Arc<str>] {
        &self.names
    }

    fn column_at(&self, at: usize) -> Result<Option<&Arc<ColumnBlock>>> {
        let (Some(name), Some(place)) = (self.names.get(at), self.columns.get(at)) else {
            return Ok(None);
        };
        if let Some(column) = place.get() {
            return Ok(Some(column));
        }
        let column = self.gather(name)?;
        Ok(Some(place.get_or_init(|| Arc::new(column))))
    }

    fn has_column_at(&self, at: usize) -> bool {
        self.columns
            .get(at)
            .is_some_and(|place| place.get().is_some())
    }
}
