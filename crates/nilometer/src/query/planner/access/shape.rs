//! The shape of an index, for bounds.

use crate::eval::Collation;
use crate::geo::PlaneGrid;
use crate::index::{Index, IndexPartKind};
use crate::query::planner::bounds::{IndexShape, PartForm, PartShape};

/// Returns the shape of an index for a query whose strings compare by `collation`; `None` for the kinds that are handled
/// elsewhere (wildcards, points of buckets).
pub fn shape_of(index: &Index, collation: &Collation) -> Option<IndexShape> {
    let multikey = index.stored.multikey();
    let is_simple = index.collation().collator().is_none();
    let mut parts = Vec::with_capacity(index.parts().len());
    for (at, part) in index.parts().iter().enumerate() {
        let form = match part.kind {
            IndexPartKind::Ascending | IndexPartKind::Descending => PartForm::Ordered,
            IndexPartKind::Hashed if is_simple => PartForm::Hashed,
            // Hashes of sort keys: look-ups cannot use them.
            IndexPartKind::Hashed => PartForm::Opaque,
            IndexPartKind::TwoDSphere => PartForm::Sphere,
            IndexPartKind::TwoD { bits, min, max } => {
                PartForm::Plane(PlaneGrid::new(bits, min, max).ok()?)
            }
            _ => return None,
        };
        parts.push(PartShape {
            path: part.name().into(),
            descending: part.kind == IndexPartKind::Descending,
            form,
            multikey: is_set(multikey, at),
        });
    }
    Some(IndexShape {
        parts,
        collation: index.collation().clone(),
        same_collation: same_collation(index.collation(), collation),
    })
}

pub(super) fn is_set(bits: u32, at: usize) -> bool {
    u32::try_from(at).is_ok_and(|at| at < u32::BITS && bits & (1 << at) != 0)
}

/// True if both order strings alike.
pub(super) fn same_collation(a: &Collation, b: &Collation) -> bool {
    a == b
}
