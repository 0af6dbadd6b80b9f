//! Values as they are, or functions of them in order of time: documents flow through in the order of the answer.

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef, doc};

use super::super::Store;
use super::super::cell::Cell;
use super::super::output::Rows;
use super::super::times::NS_PER_MS;
use super::super::transform::Transform;
use super::plan::Leaf;
use super::{Query, Row, SeriesKey, check_points};

/// Executes a statement for a measurement.
pub(super) fn run(
    store: &dyn Store,
    query: &Query<'_>,
    output: &mut dyn Rows,
) -> Result<(), String> {
    let transforms = query
        .plan
        .leaves
        .iter()
        .any(|leaf| matches!(leaf, Leaf::Transform(..)));
    // Functions need ascending times; their results are turned round.
    let descends = query.select.descending && !transforms;
    let stages = stages(query, descends, transforms)?;
    let mut writer = Writer {
        query,
        output,
        key: None,
        series: 0,
        rows: 0,
        begun: false,
        transforms: Vec::new(),
        collected: Vec::new(),
        collects: query.select.descending && transforms,
    };
    query.aggregate(store, stages, &mut |document| writer.add(document))?;
    writer.end_series()
}

/// Returns the pipeline: documents in order of series and time.
fn stages(query: &Query<'_>, descends: bool, transforms: bool) -> Result<Vec<Document>, String> {
    let fields: Vec<&String> = query
        .plan
        .leaves
        .iter()
        .filter_map(|leaf| match leaf {
            Leaf::Value(path, true) => Some(path),
            Leaf::Transform(_, inner) => match &**inner {
                Leaf::Value(path, _) => Some(path),
                _ => None,
            },
            _ => None,
        })
        .collect();
    let limits = query.select.limits;
    let limit = limits.offset.saturating_add(limits.limit);
    // Every document must count if their number is limited.
    let is_limited = limits.limit > 0 && query.tags.is_empty() && !transforms;
    let with = match fields[..] {
        [field] => Some(field.as_str()),
        _ => None,
    };
    let mut stages: Vec<Document> = query.match_stage(query.range, with)?.into_iter().collect();
    if with.is_none() && is_limited {
        let any = fields.iter().map(|path| {
            let mut exists = DocumentBuilder::new();
            exists.append(path, doc! {"$ne": Value::Null});
            Value::from(exists.finish())
        });
        stages.push(doc! {"$match": doc! {"$or": Value::Array(any.collect())}});
    }
    let mut sort = DocumentBuilder::new();
    for path in query.tags.iter().filter_map(|(_, path)| path.as_ref()) {
        sort.append(path, 1);
    }
    sort.append(&query.schema.names.time, if descends { -1 } else { 1 });
    stages.push(doc! {"$sort": sort.finish()});
    if is_limited {
        stages.push(doc! {"$limit": i64::try_from(limit).unwrap_or(i64::MAX)});
    }
    let mut project = DocumentBuilder::new();
    project.append("_id", 0);
    project.append("t", format!("${}", query.schema.names.time));
    for (number, leaf) in query.plan.leaves.iter().enumerate() {
        let inner = match leaf {
            Leaf::Transform(_, inner) => inner,
            leaf => leaf,
        };
        if let Leaf::Value(path, _) = inner {
            project.append(&format!("v{number}"), format!("${path}"));
        }
    }
    for (number, (_, path)) in query.tags.iter().enumerate() {
        if let Some(path) = path {
            project.append(&format!("d{number}"), format!("${path}"));
        }
    }
    stages.push(doc! {"$project": project.finish()});
    Ok(stages)
}

/// Writes documents as rows of their series.
struct Writer<'q, 'o> {
    query: &'q Query<'q>,
    output: &'o mut dyn Rows,
    /// The series of the last document.
    key: Option<SeriesKey>,
    /// Series so far.
    series: u64,
    /// Rows of the series so far.
    rows: u64,
    /// The series has a row in the answer.
    begun: bool,
    transforms: Vec<Option<Transform>>,
    /// Rows that are turned round at the end of the series.
    collected: Vec<Row>,
    collects: bool,
}

impl Writer<'_, '_> {
    /// Adds a document. False if no further one is needed.
    fn add(&mut self, document: DocRef<'_>) -> Result<bool, String> {
        let ValueRef::DateTime(ms) = document.get("t") else {
            return Ok(true);
        };
        let tags = 0..self.query.tags.len();
        let key: SeriesKey = tags
            .map(|number| Cell::of(document.get(&format!("d{number}"))))
            .collect();
        if self.key.as_ref() != Some(&key) {
            self.end_series()?;
            self.begin_series(key);
        }
        let limits = self.query.select.limits;
        if limits.slimit > 0 && self.series > limits.soffset.saturating_add(limits.slimit) {
            return Ok(false);
        }
        let time = ms.saturating_mul(NS_PER_MS);
        let mut leaves = Vec::with_capacity(self.query.plan.leaves.len());
        let mut has_value = false;
        for (number, leaf) in self.query.plan.leaves.iter().enumerate() {
            let value = Cell::of(document.get(&format!("v{number}")));
            has_value |= !value.is_null() && !matches!(leaf, Leaf::Value(_, false));
            leaves.push(match self.transforms.get_mut(number) {
                Some(Some(transform)) => transform.push(time, &value),
                _ => value,
            });
        }
        if !has_value || self.series <= limits.soffset {
            return Ok(true);
        }
        let columns = self.query.plan.columns.iter();
        let cells: Vec<Cell> = columns
            .map(|column| column.node.evaluate(&leaves))
            .collect();
        let is_transformed = self.transforms.iter().any(Option::is_some);
        if is_transformed && cells.iter().all(Cell::is_null) {
            return Ok(true);
        }
        if self.collects {
            self.collected.push((time, cells));
            check_points(self.collected.len())?;
            return Ok(true);
        }
        self.write((time, cells))?;
        let is_full = limits.limit > 0 && self.rows >= limits.offset.saturating_add(limits.limit);
        Ok(!(is_full && self.query.tags.is_empty()))
    }

    fn begin_series(&mut self, key: SeriesKey) {
        self.key = Some(key);
        self.series += 1;
        self.rows = 0;
        self.begun = false;
        let leaves = self.query.plan.leaves.iter();
        self.transforms = leaves
            .map(|leaf| match leaf {
                Leaf::Transform(kind, _) => Some(Transform::new(kind.clone())),
                _ => None,
            })
            .collect();
    }

    fn end_series(&mut self) -> Result<(), String> {
        for row in std::mem::take(&mut self.collected).into_iter().rev() {
            self.write(row)?;
        }
        Ok(())
    }

    /// Writes a row if it is within the limits.
    fn write(&mut self, (time, mut cells): Row) -> Result<(), String> {
        let limits = self.query.select.limits;
        self.rows += 1;
        let is_over = limits.limit > 0 && self.rows > limits.offset.saturating_add(limits.limit);
        if self.rows <= limits.offset || is_over {
            return Ok(());
        }
        if !self.begun {
            let key = self.key.clone().unwrap_or_default();
            self.output.begin_series(self.query.head(&key))?;
            self.begun = true;
        }
        cells.insert(0, Cell::Time(time));
        self.output.row(&cells)
    }
}
