//! `$facet`: the input is gathered once, on disk above the memory limit; each pipeline then reads it
//! from the start. In memory blocks stay blocks, and a column that several pipelines read is decoded once.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use nilometer_bson::order::{CanonicalType, canonical_type};
use nilometer_bson::{DocumentBuilder, ValueRef};

use crate::error::{Error, Result, location};
use crate::query::batch::{Batch, MeasurementBlock};
use crate::query::exec::build::Builder;
use crate::query::exec::memory::MemoryGauge;
use crate::query::exec::sort::spill::{RunWriter, SpilledRun};
use crate::query::exec::{BoxOperator, ExecContext, Operator, RowBatch, next_filled};
use crate::query::pipeline::Stage;
use crate::query::source::shown_columns;

/// The maximum size of the output document. It may be larger than one that a client can receive: a later stage may take it
/// apart.
const DOCUMENT_BYTES_MAX: usize = 100 * 1024 * 1024;

/// Bytes counted for a block in addition to its columns.
const BLOCK_OVERHEAD: usize = 1024;

/// Several pipelines over one input.
pub struct Facet {
    input: Option<BoxOperator>,
    gathered: Shared,
    facets: Vec<(Arc<str>, BoxOperator)>,
}

/// The input, shared by the pipelines, which read it one after the other.
type Shared = Arc<Mutex<FacetInput>>;

/// The whole input.
#[derive(Default)]
struct FacetInput {
    batches: Vec<Batch>,
    /// Counts the batches.
    memory: Option<MemoryGauge>,
    /// Number of batches read.
    at: usize,
    /// The whole input on disk, if it exceeded the memory limit.
    file: Option<SpilledRun>,
}

impl FacetInput {
    fn read(input: &mut BoxOperator, cx: &ExecContext<'_>) -> Result<Self> {
        let mut memory = MemoryGauge::gather("$facet", cx);
        let mut gathered = Self::default();
        let mut file: Option<RunWriter> = None;
        while let Some(batch) = next_filled(input, cx)? {
            if let Some(file) = &mut file {
                write(batch, file)?;
                continue;
            }
            let batch = kept(batch)?;
            let counted = memory.add(memory_bytes(&batch));
            gathered.batches.push(batch);
            match (counted, &cx.settings.spill) {
                (Ok(()), _) => {}
                (Err(exceeded), None) => return Err(exceeded),
                (Err(_), Some(folder)) => {
                    let mut writer = RunWriter::new(folder)?;
                    for batch in std::mem::take(&mut gathered.batches) {
                        cx.operation.check_interrupt()?;
                        write(batch, &mut writer)?;
                    }
                    memory.clear();
                    file = Some(writer);
                }
            }
        }
        gathered.file = file.map(RunWriter::finish).transpose()?;
        gathered.memory = Some(memory);
        Ok(gathered)
    }

    fn rewind(&mut self) -> Result<()> {
        self.at = 0;
        match &mut self.file {
            Some(file) => file.rewind(),
            None => Ok(()),
        }
    }

    /// Returns the next batch. Rows in memory are shared; rows on disk are read.
    fn take(&mut self) -> Result<Option<Batch>> {
        let Some(file) = &mut self.file else {
            let batch = self.batches.get(self.at).cloned();
            self.at += 1;
            return Ok(batch);
        };
        let mut rows = RowBatch::default();
        while !rows.is_full()
            && let Some(row) = file.next()?
        {
            rows.push(row);
        }
        Ok(rows.into_batch())
    }
}

fn write(batch: Batch, file: &mut RunWriter) -> Result<()> {
    let rows = batch.into_rows()?;
    rows.iter().try_for_each(|row| file.push(row))
}

/// Returns the batch as it is kept: a block only if all values it shows are of a fixed width.
fn kept(batch: Batch) -> Result<Batch> {
    match batch {
        Batch::Block(block) if !has_fixed_width(&block) => Ok(Batch::Rows(block.to_rows()?)),
        batch => Ok(batch),
    }
}

fn has_fixed_width(block: &MeasurementBlock) -> bool {
    let bucket = &block.bucket;
    shown_columns(&**bucket).all(|(_, name)| {
        // Values between two numbers are numbers.
        let kind = |bound| canonical_type(bound);
        let (min, max) = (kind(bucket.min(name)), kind(bucket.max(name)));
        !block.shape.shows_column(name)
            || (min == max && matches!(min, CanonicalType::Number | CanonicalType::Date))
    })
}

/// Returns the bytes counted for a batch: for a block those of the columns it shows, decoded.
fn memory_bytes(batch: &Batch) -> usize {
    match batch {
        Batch::Rows(rows) => rows.iter().map(|row| row.as_bytes().len()).sum(),
        Batch::Block(block) => BLOCK_OVERHEAD + block.decoded_bytes(),
    }
}

fn lock(gathered: &Shared) -> MutexGuard<'_, FacetInput> {
    gathered.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Facet {
    /// Builds the operators of `facets` over `input`.
    pub fn build(
        input: BoxOperator,
        facets: &[(Arc<str>, Vec<Stage>)],
        builder: &Builder,
    ) -> Result<BoxOperator> {
        let gathered = Shared::default();
        let mut built = Vec::new();
        for (name, stages) in facets {
            let reader = Box::new(SharedInput(Arc::clone(&gathered)));
            let operator = builder.over(reader, stages.clone())?;
            built.push((Arc::clone(name), operator));
        }
        Ok(Box::new(Self {
            input: Some(input),
            gathered,
            facets: built,
        }))
    }
}

/// Operator that reads the gathered input from its current position.
struct SharedInput(Shared);

impl Operator for SharedInput {
    fn next(&mut self, _: &ExecContext<'_>) -> Result<Option<Batch>> {
        lock(&self.0).take()
    }
}

impl Operator for Facet {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        let Some(mut input) = self.input.take() else {
            return Ok(None);
        };
        *lock(&self.gathered) = FacetInput::read(&mut input, cx)?;
        drop(input);
        let mut out = DocumentBuilder::new();
        let mut memory = MemoryGauge::of_results("$facet", cx);
        for (name, pipeline) in &mut self.facets {
            lock(&self.gathered).rewind()?;
            out.begin_array(name);
            let mut at = 0;
            while let Some(batch) = next_filled(pipeline, cx)? {
                for row in batch.into_rows()? {
                    out.append_indexed(at, ValueRef::Document(row.as_ref()));
                    at += 1;
                    if out.len() > DOCUMENT_BYTES_MAX {
                        return Err(Error::location(
                            location::FACET_TOO_LARGE,
                            format!(
                                "document constructed by $facet is {} bytes, which exceeds the limit of {DOCUMENT_BYTES_MAX} bytes",
                                out.len()
                            ),
                        ));
                    }
                    memory.set(out.capacity())?;
                }
            }
            out.end();
        }
        *lock(&self.gathered) = FacetInput::default();
        Ok(Some(Batch::Rows(vec![out.finish()])))
    }

    fn is_exhausted(&self) -> bool {
        self.input.is_none()
    }
}

#[cfg(test)]
mod tests {
    use crate::query::exec::testing::run_stages;
    use nilometer_bson::{array, doc};

    #[test]
    fn every_pipeline_sees_all_documents() {
        let facets = doc! {
            "few": array![doc! {"$limit": 1}],
            "sum": array![doc! {"$group": doc! {"_id": nilometer_bson::Value::Null, "n": doc! {"$sum": "$a"}}}],
            "all": array![],
        };
        let documents = vec![doc! {"a": 1}, doc! {"a": 2}];
        let rows = run_stages(array![doc! {"$facet": facets}], documents.clone()).unwrap();
        assert_eq!(
            rows,
            [doc! {
                "few": array![doc! {"a": 1}],
                "sum": array![doc! {"_id": nilometer_bson::Value::Null, "n": 3}],
                "all": array![documents[0].clone(), documents[1].clone()],
            }]
        );
        let empty = run_stages(array![doc! {"$facet": doc! {"x": array![]}}], vec![]).unwrap();
        assert_eq!(empty, [doc! {"x": array![]}]);
    }
}
