//! The nearest few by a geographic index: circles that grow until enough is in one.
//!
//! ```text
//! circle ─ bounds on cells ─► IndexRead ─► GeoDistance ─► as many as wanted? ─ yes ─► nearest first
//!    ▲                                                          └─ no ─┐
//!    └──────────────────── four times as wide ◄───────────────────────┘
//! ```
//!
//! A circle finds everything within it. So once it holds as many records as are wanted, none outside is nearer. Each
//! circle is read completely, with the records of the one before: of sixteen times the area that is little; where all
//! records lie close together and are too few, it is up to eight times as much. Without a limit one circle of the
//! largest distance is read.

use std::sync::Arc;
use std::vec::IntoIter;

use nilometer_bson::Document;

use super::index_fetch::{AccessStats, IndexRead};
use crate::error::Result;
use crate::eval::matcher::MatchExpression;
use crate::geo::{GeoTest, Metric};
use crate::query::batch::Batch;
use crate::query::exec::row::geo_near::GeoDistance;
use crate::query::exec::{BoxOperator, ExecContext, Operator, ROWS_PER_BATCH, next_filled};
use crate::query::planner::access::KeyPlan;
use crate::query::planner::bounds::Assigned;
use crate::query::planner::physical::Nearest;
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

/// The read within a circle; everything asked for if there is no radius.
fn within(
    nearest: &Nearest,
    radius: Option<f64>,
    counters: &Arc<ScanCounters>,
    stats: &AccessStats,
) -> Result<BoxOperator> {
    let mut access = nearest.access.clone();
    let mut stage = nearest.stage.clone();
    stage.output.is_ordered = true;
    if let (Some(radius), KeyPlan::Scan(scan)) = (radius, &mut access.keys) {
        let narrowed = stage.query.with_max_distance(radius);
        let filter = nearest.input.filter.clone();
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
        access.residual.clone_from(&nearest.input.filter);
        stage.query = Arc::new(narrowed);
    }
    let read = IndexRead::new(
        nearest.input.clone(),
        access,
        Arc::clone(counters),
        stats.clone(),
    );
    Ok(Box::new(GeoDistance::new(Box::new(read), stage)?))
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
        let mut read = within(nearest, radius, &self.counters, &self.stats)?;
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
