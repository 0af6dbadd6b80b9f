//! The nearest few records by a geographic index: circles that grow until one contains enough.
//!
//! ```text
//! circle ─ bounds on cells ─► IndexRead ─► GeoDistance ─► as many as wanted? ─ yes ─► nearest first
//!    ▲                                                          └─ no ─┐
//!    └──────────────────── four times as wide ◄───────────────────────┘
//! ```
//!
//! A read finds everything within its circle. So once the circle holds as many records as wanted, none outside is nearer. Each
//! circle is read completely, including the records of the preceding one. That costs little, as the area grows sixteenfold;
//! where all records lie close together and are too few, it costs up to eight times as much. Without a limit one circle of the
//! maximum distance is read.

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

/// The first radius on the sphere, in metres.
const FIRST_METERS: f64 = 1000.0;
/// The first radius on the sphere in radians: about the same.
const FIRST_RADIANS: f64 = 1.5e-4;
/// The first radius on the plane, in its units: the same on a map of degrees.
const FIRST_UNITS: f64 = 0.01;
/// Growth of the radius.
const GROWTH: f64 = 4.0;
/// Number of circles after which everything is read.
const CIRCLES_MAX: usize = 12;

/// Builds the read within a circle; of the whole query without a radius.
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
        // Of several tests on one part the narrowest sets the bounds, so the query's own wider test is dropped.
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
    Ok(Box::new(GeoDistance::new(Box::new(read), stage)))
}

/// Returns the nearest few records, nearest first.
pub struct NearestRead {
    nearest: Nearest,
    counters: Arc<ScanCounters>,
    stats: AccessStats,
    found: Option<IntoIter<Document>>,
}

impl NearestRead {
    /// Reads `nearest` and counts what it examines.
    pub fn new(nearest: Nearest, counters: Arc<ScanCounters>) -> Self {
        Self {
            stats: AccessStats::of(&nearest.access),
            nearest,
            counters,
            found: None,
        }
    }

    /// Returns the counters of its reads by index.
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
        // Rows arrive nearest first.
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
