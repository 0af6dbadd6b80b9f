//! The sort order of an index scan.
//!
//! Keys come in the order of the parts. A part bounded to one value can be skipped, so `{a: 5}` sorted by `b` comes
//! from `{a: 1, b: 1}`; a backward scan reverses every direction. An index does not give the order
//!
//! * of strings under another collation,
//! * of a part with arrays (a document sorts by its least or greatest element, which the bounds must not exclude),
//!   unless it is the only part of the order and nothing multikey is bounded.

use nilometer_bson::key_string::COMPONENTS_MAX;

use crate::eval::sort_key::{SortBy, SortPattern};
use crate::query::planner::bounds::{IndexBounds, IndexShape, PartForm};

/// The order a bounded index scan gives, and the components it consists of.
pub struct Provided {
    /// The scan must run backward.
    pub backward: bool,
    /// For each part of the pattern the component that sorts by it; `None` if the part has one value.
    pub components: Vec<Option<usize>>,
}

/// Returns how an index gives `pattern`; `None` if it does not. `points` is true of a part whose keys count as one value
/// (a merge takes several values one by one).
pub fn provided(
    pattern: &SortPattern,
    shape: &IndexShape,
    bounds: &IndexBounds,
    is_point: &dyn Fn(usize) -> bool,
) -> Option<Provided> {
    let mut backward = None;
    let mut components = Vec::new();
    let mut at = 0;
    for part in pattern.parts() {
        let SortBy::Field(path) = &part.by else {
            return None;
        };
        let path = path.as_str();
        let fixed = shape.parts.iter().enumerate().any(|(number, own)| {
            &*own.path == path && is_point(number) && !own.multikey && own.form == PartForm::Ordered
        });
        if fixed {
            components.push(None);
            continue;
        }
        // Parts of one value in between do not matter.
        while at < COMPONENTS_MAX
            && shape.parts.get(at).is_some_and(|own| &*own.path != path)
            && is_point(at)
        {
            at += 1;
        }
        let own = shape.parts.get(at).filter(|own| &*own.path == path)?;
        if own.form != PartForm::Ordered || !shape.same_collation {
            return None;
        }
        if own.multikey && !may_sort_by_arrays(pattern, shape, bounds) {
            return None;
        }
        let turned = own.descending != part.descending;
        if *backward.get_or_insert(turned) != turned {
            return None;
        }
        components.push(Some(at));
        at += 1;
    }
    Some(Provided {
        backward: backward.unwrap_or(false),
        components,
    })
}

/// Every element of every array is in the scan, and the first one seen decides.
fn may_sort_by_arrays(pattern: &SortPattern, shape: &IndexShape, bounds: &IndexBounds) -> bool {
    let parts = shape.parts.iter().zip(&bounds.parts);
    pattern.parts().len() == 1
        && parts
            .into_iter()
            .all(|(part, b)| !part.multikey || b.is_all())
}
