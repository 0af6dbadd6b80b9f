//! The nearest few by a geographic index: circles that grow until enough is in one.
//!
//! ```text
//! circle ─ bounds on cells ─► IndexRead ─► GeoDistance ─► as many as wanted? ─ yes ─► nearest first
//!    ▲                                                          └─ no ─┐
//!    └──────────────────── four times as wide ◄───────────────────────┘
//! ```
//!
//! Whatever lies within a circle is found by it, so once it holds as many as are wanted, none outside is
//! nearer. A circle is read afresh, with what was in the one before: of sixteen times the area that is
//! little; where all lie close together and are too few, it is up to eight times as much. Without a limit there is nothing to grow for, and one circle of the largest distance is read.

use std::sync::Arc;
use std::vec::IntoIter;

use nilometer_bson::Document;

use super::index_fetch::{AccessStats, IndexRead};
use crate::error::Result;
use crate::eval::matcher::MatchExpression;
use crate::eval::sort_key::SortBy;
use crate::geo::{GeoTest, Metric};
use crate::query::batch::Batch;
use crate::query::exec::row::geo_near::GeoDistance;
use crate::query::exec::{BoxOperator, ExecContext, Operator, ROWS_PER_BATCH, next_filled};
use crate::query::pipeline::{GeoDistanceStage, Stage};
use crate::query::planner::access::{IndexAccess, KeyPlan};
use crate::query::planner::bounds::{Assigned, PartForm};
use crate::query::planner::{AccessPath, Input, LogicalPlan, RecordInput};
use crate::query::source::ScanCounters;

/// The first circle on the sphere, in metres.
const FIRST_METERS: f64 = 1000.0;
/// The first circle on the sphere, in radians: about as much.
const FIRST_RADIANS: f64 = 1.5e-4;
/// The first circle on the plane, in its units: the same on a map of degrees.
const FIRST_UNITS: f64 = 0.01;
/// How much wider the next one is.
const GROWTH: f64 = 4.0;
/// After so many, everything is read.
const CIRCLES_MAX: usize = 12;
/// Who wants more than this wants much of what there is: it is read once.
const WANTED_MAX: usize = 1000;

/// What can be read so.
#[derive(Clone)]
pub struct Nearest {
    input: RecordInput,
    access: IndexAccess,
    stage: GeoDistanceStage,
    wanted: usize,
}

impl Nearest {
    /// What the front of a plan asks for, if it is the nearest few and a walk through one geographic
    /// index finds them.
    pub fn of(plan: &LogicalPlan) -> Option<Self> {
        let Input::Records(input) = &plan.input else {
            return None;
        };
        let AccessPath::Index(access) = &input.access else {
            return None;
        };
        let stage = plan.stages.first()?.as_geo_distance()?;
        let wanted = usize::try_from(wanted(stage, plan.stages.get(1..)?)?).ok()?;
        let scan = access.keys.only()?;
        let plain = access.covering.is_none() && access.distinct.is_none() && !access.gives_keys;
        // A circle on the globe does not bound hashes of the plane.
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

    /// The read within a circle; everything asked for if there is no radius.
    fn within(
        &self,
        radius: Option<f64>,
        counters: &Arc<ScanCounters>,
        stats: &AccessStats,
    ) -> Result<BoxOperator> {
        let mut access = self.access.clone();
        let mut stage = self.stage.clone();
        stage.output.is_ordered = true;
        if let (Some(radius), KeyPlan::Scan(scan)) = (radius, &mut access.keys) {
            let narrowed = stage.query.with_max_distance(radius);
            let filter = self.input.filter.clone();
            let mut conjuncts = filter.map_or_else(Vec::new, MatchExpression::into_conjuncts);
            conjuncts.push(MatchExpression::Geo {
                path: stage.path.clone(),
                test: Arc::new(GeoTest::reach(&narrowed)),
            });
            // The narrowest of several on one part bounds it; of one that tells nothing of it is asked.
            let wide = GeoTest::reach(&stage.query);
            conjuncts.retain(|test| match test {
                MatchExpression::Geo { path, test } => {
                    *path != stage.path
                        || test.operand() != wide.operand()
                        || test.name() != wide.name()
                }
                _ => true,
            });
            scan.bounds = Assigned::of(&conjuncts, &scan.shape).bounds;
            access.residual.clone_from(&self.input.filter);
            stage.query = Arc::new(narrowed);
        }
        let read = IndexRead::new(
            self.input.clone(),
            access,
            Arc::clone(counters),
            stats.clone(),
        );
        Ok(Box::new(GeoDistance::new(Box::new(read), stage)?))
    }
}

/// How many are wanted of what the stage gives, nearest first; `None` if all, or in another order.
fn wanted(stage: &GeoDistanceStage, after: &[Stage]) -> Option<u64> {
    match after {
        [Stage::Sort(sort), ..] if !stage.output.is_ordered && stage.output.multiplier > 0.0 => {
            let [by] = sort.pattern.parts() else {
                return None;
            };
            let SortBy::Field(path) = &by.by else {
                return None;
            };
            let is_distance = stage.output.distance_field.as_deref() == Some(path.as_str());
            sort.limit.filter(|_| is_distance && !by.descending)
        }
        [Stage::Limit(limit), ..] if stage.output.is_ordered => Some(*limit),
        [Stage::Skip(skip), Stage::Limit(limit), ..] if stage.output.is_ordered => {
            skip.checked_add(*limit)
        }
        _ => None,
    }
}

/// Gives the nearest few, nearest first.
pub struct NearestRead {
    nearest: Nearest,
    counters: Arc<ScanCounters>,
    stats: AccessStats,
    found: Option<IntoIter<Document>>,
}

impl NearestRead {
    /// Reads what `nearest` says and counts what it touches.
    pub fn new(nearest: Nearest, counters: Arc<ScanCounters>) -> Self {
        Self {
            stats: AccessStats::of(&nearest.access),
            nearest,
            counters,
            found: None,
        }
    }

    /// What its reads by index do.
    pub fn stats(&self) -> &AccessStats {
        &self.stats
    }

    fn find(&self, cx: &ExecContext<'_>) -> Result<IntoIter<Document>> {
        let query = &self.nearest.stage.query;
        let first = match query.metric() {
            Metric::Meters => FIRST_METERS,
            Metric::Radians => FIRST_RADIANS,
            Metric::Plane => FIRST_UNITS,
        };
        let mut radius = first.max(2.0 * query.min);
        for _ in 0..CIRCLES_MAX {
            if radius >= query.max {
                break;
            }
            let found = self.read(Some(radius), cx)?;
            if found.len() >= self.nearest.wanted {
                return Ok(found.into_iter());
            }
            radius *= GROWTH;
        }
        Ok(self.read(None, cx)?.into_iter())
    }

    fn read(&self, radius: Option<f64>, cx: &ExecContext<'_>) -> Result<Vec<Document>> {
        let nearest = &self.nearest;
        let mut read = nearest.within(radius, &self.counters, &self.stats)?;
        let mut found = Vec::new();
        // What is read comes nearest first.
        while found.len() < nearest.wanted
            && let Some(batch) = next_filled(&mut read, cx)?
        {
            found.extend(batch.into_rows()?);
        }
        Ok(found)
    }
}

impl Operator for NearestRead {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        let mut found = match self.found.take() {
            Some(found) => found,
            None => self.find(cx)?,
        };
        let rows: Vec<Document> = found.by_ref().take(ROWS_PER_BATCH).collect();
        self.found = Some(found);
        Ok((!rows.is_empty()).then_some(Batch::Rows(rows)))
    }

    fn is_exhausted(&self) -> bool {
        self.found.as_ref().is_some_and(|found| found.len() == 0)
    }
}
