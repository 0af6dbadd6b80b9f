//! `$geoNear`: computes the distance of each document and drops those outside the limits.

use std::sync::Arc;
use std::vec::IntoIter;

use nilometer_bson::path::FieldPath;
use nilometer_bson::{Document, ValueRef};

use crate::error::Result;
use crate::eval::matcher::geo::near_distance;
use crate::eval::projection::MetaField;
use crate::query::batch::Batch;
use crate::query::exec::memory::MemoryGauge;
use crate::query::exec::row::unwind::with_value_at;
use crate::query::exec::{BoxOperator, ExecContext, Operator, RowBatch, next_filled};
use crate::query::pipeline::GeoDistanceStage;

/// Writes the distance into documents, or sorts them by it.
pub struct GeoDistance {
    input: BoxOperator,
    stage: GeoDistanceStage,
    /// The path that receives the distance.
    distance_path: Option<FieldPath>,
    /// The path that receives the location.
    place_path: Option<FieldPath>,
    /// If the operator sorts: the rows still to return, once the input has been read.
    ordered: Option<(IntoIter<Document>, MemoryGauge)>,
}

impl GeoDistance {
    /// Computes distances of the documents of `input`.
    pub fn new(input: BoxOperator, stage: GeoDistanceStage) -> Self {
        let path = |path: &Option<Arc<str>>| path.as_deref().map(FieldPath::parse_lenient);
        Self {
            input,
            distance_path: path(&stage.output.distance_field),
            place_path: path(&stage.output.include_locs),
            stage,
            ordered: None,
        }
    }

    /// Returns the distance and the output document; `None` if the document is dropped.
    fn measure(&self, row: Document) -> Result<Option<(f64, Document)>> {
        let root = ValueRef::Document(row.as_ref());
        let Some((distance, place)) = near_distance(&self.stage.path, &self.stage.query, root)?
        else {
            return Ok(None);
        };
        // An array on a path is replaced, as any value that is no object.
        let mut row = row;
        if let Some(path) = &self.distance_path {
            let shown = ValueRef::Double(distance * self.stage.output.multiplier);
            row = with_value_at(row.as_ref(), path, shown);
        }
        if let Some(path) = &self.place_path {
            row = with_value_at(row.as_ref(), path, place.as_ref());
        }
        for field in &self.stage.output.adds {
            let path = FieldPath::parse_lenient(field.carrier());
            let value = match field {
                MetaField::GeoNearDistance => {
                    ValueRef::Double(distance * self.stage.output.multiplier)
                }
                _ => place.as_ref(),
            };
            row = with_value_at(row.as_ref(), &path, value);
        }
        Ok(Some((distance, row)))
    }

    fn next_measured(&mut self, cx: &ExecContext<'_>) -> Result<Option<Vec<(f64, Document)>>> {
        let Some(batch) = next_filled(&mut self.input, cx)? else {
            return Ok(None);
        };
        let mut rows = Vec::new();
        for row in batch.into_rows()? {
            rows.extend(self.measure(row)?);
        }
        Ok(Some(rows))
    }

    fn in_order(&mut self, cx: &ExecContext<'_>) -> Result<(IntoIter<Document>, MemoryGauge)> {
        let mut memory = MemoryGauge::gather("$geoNear", cx);
        let mut all = Vec::new();
        while let Some(rows) = self.next_measured(cx)? {
            for row in rows {
                memory.add(row.1.as_bytes().len() + size_of_val(&row))?;
                all.push(row);
            }
        }
        all.sort_by(|a, b| a.0.total_cmp(&b.0));
        let documents: Vec<Document> = all.into_iter().map(|(_, document)| document).collect();
        Ok((documents.into_iter(), memory))
    }
}

impl Operator for GeoDistance {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        if self.stage.output.is_ordered {
            let (mut rest, mut memory) = match self.ordered.take() {
                Some(rest) => rest,
                None => self.in_order(cx)?,
            };
            let mut rows = RowBatch::default();
            while !rows.is_full()
                && let Some(row) = rest.next()
            {
                memory.release(row.as_bytes().len());
                rows.push(row);
            }
            self.ordered = Some((rest, memory));
            return Ok(rows.into_batch());
        }
        let measured = self.next_measured(cx)?;
        let rows = measured.map(|rows| rows.into_iter().map(|(_, document)| document));
        Ok(rows.map(|rows| Batch::Rows(rows.collect())))
    }

    fn is_exhausted(&self) -> bool {
        match &self.ordered {
            Some((rest, _)) => rest.len() == 0,
            None => self.input.is_exhausted(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use nilometer_bson::{array, doc};

    use super::*;
    use crate::catalog::{IndexSpec, StoredIndex};
    use crate::eval::ParseContext;
    use crate::eval::matcher::MatchExpression;
    use crate::index::Index;
    use crate::query::exec::build::Builder;
    use crate::query::exec::testing::{MemoryCollections, MemoryRecords, operation, run, settings};
    use crate::query::exec::{ExecLimits, Executor};
    use crate::query::pipeline::GeoNearStage;
    use crate::query::planner::settings::PlanOptions;
    use crate::query::source::{
        Collections, RecordIter, RecordScanOptions, RecordSource, Resolved,
    };

    /// Documents, and an index without entries.
    struct Indexed(MemoryRecords, Arc<Index>);

    impl RecordSource for Indexed {
        fn scan(&self, scan: &RecordScanOptions) -> Result<RecordIter> {
            self.0.scan(scan)
        }

        fn count_estimate(&self) -> Result<u64> {
            self.0.count_estimate()
        }

        fn indexes(&self) -> Result<Vec<Arc<Index>>> {
            Ok(vec![Arc::clone(&self.1)])
        }

        /// Empty: the planner must not consider the index.
        fn all_indexes(&self) -> Result<Vec<Arc<Index>>> {
            Ok(Vec::new())
        }
    }

    fn collection(kind: &str) -> Arc<dyn Collections> {
        let points = [(1, 0.0), (2, 3.0), (3, 1.0), (4, 2.0)];
        let mut documents: Vec<Document> = points
            .map(|(id, lat)| doc! {"_id": id, "p": array![0, lat], "even": id % 2 == 0})
            .to_vec();
        documents.push(doc! {"_id": 5, "p": array![array![0, 50], array![0, -1.5]], "even": false});
        documents.push(doc! {"_id": 6, "even": true});
        let spec = IndexSpec {
            key: doc! {"p": kind},
            ..IndexSpec::default()
        };
        let index = Index::of(&Arc::new(StoredIndex::detached(spec))).unwrap();
        let source = Indexed(MemoryRecords(documents), index);
        MemoryCollections::of(Resolved::Ordinary(Arc::new(source)))
    }

    fn ids(documents: &[Document]) -> Vec<i64> {
        let id = |d: &Document| d.get("_id").as_exact_i64().unwrap();
        documents.iter().map(id).collect()
    }

    fn geo_near(kind: &str, spec: Document) -> Result<Vec<Document>> {
        let stages = array![doc! {"$geoNear": spec}];
        run(&collection(kind), &stages, PlanOptions::default())
    }

    /// Runs a `find` with a `$near`, sorted by distance if `is_ordered`.
    fn near(kind: &str, filter: Document, is_ordered: bool) -> Result<Vec<i64>> {
        let parsed = MatchExpression::parse_with_near(filter.as_ref(), &ParseContext::new())?;
        let (found, rest) = parsed.take_near()?;
        let (path, query) = found.unwrap();
        let stage = GeoNearStage::of_find(path, query, rest, is_ordered).into_stage();
        let settings = Arc::new(settings(PlanOptions::default(), ExecLimits::default()));
        let builder = Builder {
            collections: collection(kind),
            database: "test".into(),
            collection: Some("c".into()),
            settings: Arc::clone(&settings),
            depth: 0,
        };
        let root = builder.pipeline(Some("c"), vec![stage])?;
        Ok(ids(&Executor::new(root, settings).drain(&operation())?))
    }

    #[test]
    fn an_index_names_the_field() {
        let spec = doc! {"near": array![0, 0], "distanceField": "d", "includeLocs": "at"};
        let found = geo_near("2d", spec).unwrap();
        assert_eq!(ids(&found), [1, 3, 5, 4, 2]);
        assert_eq!(
            found[2],
            doc! {"_id": 5, "p": array![array![0, 50], array![0, -1.5]], "even": false,
            "d": 1.5, "at": array![0, -1.5]}
        );
        let sphere = doc! {"near": doc! {"type": "Point", "coordinates": array![0, 3]},
        "distanceField": "d", "query": doc! {"even": true}};
        assert_eq!(ids(&geo_near("2dsphere", sphere.clone()).unwrap()), [2, 4]);
        assert_eq!(geo_near("2d", sphere).unwrap_err().code.0, 27);
        let flat = doc! {"near": array![0, 0], "distanceField": "d", "key": "p"};
        assert_eq!(geo_near("2dsphere", flat).unwrap_err().code.0, 291);
    }

    #[test]
    fn near_orders_unless_another_order_is_asked() {
        let filter =
            || doc! {"p": doc! {"$near": array![0, 0], "$minDistance": 1, "$maxDistance": 2}};
        assert_eq!(near("2d", filter(), true).unwrap(), [3, 5, 4]);
        assert_eq!(near("2d", filter(), false).unwrap(), [3, 4, 5]);
        let both = doc! {"$and": array![filter(), doc! {"even": true}]};
        assert_eq!(near("2d", both, true).unwrap(), [4]);
        let metres = doc! {"p": doc! {"$near": doc! {"$maxDistance": 250_000,
        "$geometry": doc! {"type": "Point", "coordinates": array![0, 1]}}}};
        assert_eq!(near("2dsphere", metres, true).unwrap(), [3, 1, 4, 2]);
        assert_eq!(near("2dsphere", filter(), true).unwrap_err().code.0, 291);
        let elsewhere = doc! {"q": doc! {"$near": array![0, 0]}};
        assert_eq!(near("2d", elsewhere, true).unwrap_err().code.0, 291);
    }
}
