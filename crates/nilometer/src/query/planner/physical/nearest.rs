//! Search for the nearest few records with a geographic index, in growing circles.

use super::{AccessPath, Input, PhysicalPlan, PhysicalSort, PhysicalStage, RecordInput};
use crate::eval::sort_key::SortBy;
use crate::query::pipeline::GeoDistanceStage;
use crate::query::planner::access::IndexAccess;
use crate::query::planner::bounds::PartForm;

/// Above this number of records the index is read once, without circles.
const WANTED_MAX: usize = 1000;

/// A search for the nearest few records with a geographic index.
#[derive(Clone)]
pub struct Nearest {
    /// The collection.
    pub input: RecordInput,
    /// The geographic index.
    pub access: IndexAccess,
    /// The distance to measure.
    pub stage: GeoDistanceStage,
    /// The number of records.
    pub wanted: usize,
}

impl Nearest {
    /// Returns the search if the front of a plan needs the nearest few records and one scan of a geographic index finds
    /// them.
    pub fn of(plan: &PhysicalPlan) -> Option<Self> {
        let Input::Records(input) = &plan.input else {
            return None;
        };
        let AccessPath::Index(access) = &input.access else {
            return None;
        };
        let stage = plan.stages.first()?.as_geo_distance()?;
        let wanted = usize::try_from(wanted(stage, plan.stages.get(1..)?)?).ok()?;
        let scan = access.keys.only()?;
        let plain = access.covering.is_none() && access.distinct.is_none() && !access.adds_keys;
        // A circle on the globe does not bound planar geohashes.
        let is_bounded = match scan.shape.part(stage.path.as_str())?.form {
            PartForm::Sphere => stage.query.is_spherical(),
            PartForm::Plane(_) => !stage.query.is_spherical(),
            _ => false,
        };
        if !plain || !is_bounded || wanted > WANTED_MAX {
            return None;
        }
        Some(Self {
            input: (**input).clone(),
            access: (**access).clone(),
            stage: stage.clone(),
            wanted,
        })
    }
}

/// Returns the number of documents needed after the stage, nearest first; `None` if all, or in another order.
fn wanted(stage: &GeoDistanceStage, after: &[PhysicalStage]) -> Option<u64> {
    match after {
        [PhysicalStage::Sort(PhysicalSort { stage: sort, .. }), ..]
            if !stage.output.is_ordered && stage.output.multiplier > 0.0 =>
        {
            let [by] = sort.pattern.parts() else {
                return None;
            };
            let SortBy::Field(path) = &by.by else {
                return None;
            };
            let is_distance = stage.output.distance_field.as_deref() == Some(path.as_str());
            sort.limit.filter(|_| is_distance && !by.descending)
        }
        [PhysicalStage::Limit(limit), ..] if stage.output.is_ordered => Some(*limit),
        [PhysicalStage::Skip(skip), PhysicalStage::Limit(limit), ..] if stage.output.is_ordered => {
            skip.checked_add(*limit)
        }
        _ => None,
    }
}
