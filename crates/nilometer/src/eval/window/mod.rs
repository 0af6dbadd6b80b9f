//! `$setWindowFields`: for each document of a partition, something computed over its neighbours.
//!
//! ```text
//! documents sorted by partition, then sortBy        (the executor's work)
//!        │ one partition at a time
//!        ▼
//! frames   for each document the range of positions its window covers; both ends only move on
//! columns  the function's argument for every document, evaluated once, or a column of a bucket as it lies there
//! slide    an answer for every frame, at amortised constant or logarithmic cost for each step
//!        ▼
//! documents with the new fields
//! ```
//!
//! **Sliding without taking out.** Sums of doubles, minima and deviations cannot be taken back
//! exactly. A window is kept as two stacks of partial states instead ([`sliding`]): leaving it is a
//! pop, entering it a merge, and no rounding error of a value that left stays behind.
//!
//! Results that are themselves as long as the window (`$push`, `$addToSet`, `$firstN` …) cost their
//! length for every document; nothing can be done about that.
//!
//! Not here: sorting, finding where partitions end ([`SetWindowFields::partition_key`] helps), and the
//! memory limit. Of a partition what functions read is in memory while it is worked on
//! ([`PartitionColumns`]), its documents need not be.

mod calculus;
mod fill;
mod frame;
mod numbers;
mod parse;
mod partition;
mod rank;
mod sliding;

#[cfg(test)]
mod tests;

use nilometer_bson::block::ColumnBlock;
use nilometer_bson::number::Number;
use nilometer_bson::{Document, Value};

pub use frame::{Bound, Bounds};
pub use parse::WINDOW_FUNCTION_NAMES;
use partition::{Argument, Partition};
pub use partition::{BlockColumns, PartitionColumns, PartitionResults};

use crate::error::{Error, Result};
use crate::eval::accumulator::AccumulatorSpec;
use crate::eval::date::Unit;
use crate::eval::projection::FieldWriter;
use crate::eval::sort_key::SortPattern;
use crate::eval::{Dependencies, EvalContext, Expression};

/// A parsed `$setWindowFields`.
#[derive(Clone, Debug)]
pub struct SetWindowFields {
    partition_by: Option<Expression>,
    sort_by: Option<SortPattern>,
    outputs: Vec<WindowOutput>,
    writer: FieldWriter,
    source: Document,
}

/// One output field.
#[derive(Clone, Debug)]
pub struct WindowOutput {
    /// Where the result goes.
    pub path: String,
    /// What is computed.
    pub function: WindowFunction,
    /// Over which neighbours.
    pub bounds: Bounds,
}

/// What a window function computes.
#[derive(Clone, Debug)]
pub enum WindowFunction {
    /// An accumulator over the window.
    Accumulator(AccumulatorSpec),
    /// `$covariancePop`, `$covarianceSamp`: of pairs.
    Covariance {
        /// Gives `[x, y]`.
        input: Expression,
        /// True for `$covarianceSamp`.
        sample: bool,
    },
    /// `$derivative`
    Derivative {
        /// What changes.
        input: Expression,
        /// The unit of the sort field's dates.
        unit: Option<Unit>,
    },
    /// `$integral`
    Integral {
        /// What is summed up.
        input: Expression,
        /// The unit of the sort field's dates.
        unit: Option<Unit>,
    },
    /// `$expMovingAvg`
    ExpMovingAvg {
        /// What is averaged.
        input: Expression,
        /// Weight of the newest value.
        alpha: Number,
    },
    /// `$shift`
    Shift {
        /// What the other document gives.
        output: Expression,
        /// How far away it is.
        by: i64,
        /// What there is instead of a document, or of its missing output.
        default: Value,
    },
    /// `$rank`
    Rank,
    /// `$denseRank`
    DenseRank,
    /// `$documentNumber`
    DocumentNumber,
    /// `$locf`
    LastCarriedForward(Expression),
    /// `$linearFill`
    LinearFill(Expression),
}

impl WindowFunction {
    /// The expression evaluated for each document, if there is one.
    pub fn argument(&self) -> Option<&Expression> {
        match self {
            Self::Accumulator(spec) => Some(spec.argument()),
            Self::Covariance { input, .. }
            | Self::Derivative { input, .. }
            | Self::Integral { input, .. }
            | Self::ExpMovingAvg { input, .. }
            | Self::LastCarriedForward(input)
            | Self::LinearFill(input) => Some(input),
            Self::Shift { output, .. } => Some(output),
            Self::Rank | Self::DenseRank | Self::DocumentNumber => None,
        }
    }
}

impl SetWindowFields {
    /// What separates the partitions, if anything does.
    pub fn partition_by(&self) -> Option<&Expression> {
        self.partition_by.as_ref()
    }

    /// The order within a partition.
    pub fn sort_by(&self) -> Option<&SortPattern> {
        self.sort_by.as_ref()
    }

    /// The output fields.
    pub fn outputs(&self) -> &[WindowOutput] {
        &self.outputs
    }

    /// The specification as the user wrote it.
    pub fn source(&self) -> &Document {
        &self.source
    }

    /// Adds what is read from documents.
    pub fn dependencies(&self, into: &mut Dependencies) {
        if let Some(partition_by) = &self.partition_by {
            partition_by.dependencies(into);
        }
        if let Some(sort_by) = &self.sort_by {
            sort_by.dependencies(into);
        }
        for output in &self.outputs {
            match &output.function {
                WindowFunction::Accumulator(spec) => spec.dependencies(into),
                function => {
                    if let Some(argument) = function.argument() {
                        argument.dependencies(into);
                    }
                }
            }
        }
    }

    /// The partition a document belongs to: null where the expression gives nothing.
    pub fn partition_key(&self, doc: &Document, ctx: &EvalContext<'_>) -> Result<Value> {
        let Some(partition_by) = &self.partition_by else {
            return Ok(Value::Null);
        };
        match partition_by.evaluate(doc.as_ref(), ctx)? {
            Value::Array(_) => Err(Error::type_mismatch(
                "An expression used to partition cannot evaluate to value of type array",
            )),
            Value::Missing => Ok(Value::Null),
            value => Ok(value),
        }
    }

    /// The results for the documents of one partition, which were taken in order.
    pub fn compute(
        &self,
        columns: PartitionColumns,
        ctx: &EvalContext<'_>,
    ) -> Result<PartitionResults> {
        let (partition, arguments) = columns.finish();
        let mut arguments = arguments.into_iter();
        let mut results = Vec::with_capacity(self.outputs.len());
        for output in &self.outputs {
            let own = arguments.next().unwrap_or_default();
            results.push(evaluate_output(output, &own, &partition, ctx)?);
        }
        Ok(PartitionResults(results))
    }

    /// The documents of one partition, in order, with the output fields.
    pub fn evaluate_partition(
        &self,
        docs: &[Document],
        ctx: &EvalContext<'_>,
    ) -> Result<Vec<Document>> {
        let mut columns = PartitionColumns::default();
        for doc in docs {
            columns.add(self, doc, ctx)?;
        }
        let results = self.compute(columns, ctx)?;
        docs.iter()
            .enumerate()
            .map(|(at, doc)| self.with_fields(doc, at, &results, ctx))
            .collect()
    }
}

/// One value for every document of the partition.
fn evaluate_output(
    output: &WindowOutput,
    argument: &Argument,
    partition: &Partition,
    ctx: &EvalContext<'_>,
) -> Result<ColumnBlock> {
    let places = &partition.sort_values;
    let column = &argument.values;
    let frames = || output.bounds.frames(partition.length, places);
    let values = match &output.function {
        WindowFunction::Accumulator(spec) => {
            return sliding::accumulate(spec, argument, &frames()?, ctx);
        }
        WindowFunction::Covariance { sample, .. } => {
            calculus::covariance(column, &frames()?, *sample)
        }
        WindowFunction::Derivative { unit, .. } => {
            calculus::derivative(column, places, &frames()?, *unit)?
        }
        WindowFunction::Integral { unit, .. } => {
            calculus::integral(column, places, &frames()?, *unit)?
        }
        WindowFunction::ExpMovingAvg { alpha, .. } => calculus::exp_moving_avg(column, *alpha),
        WindowFunction::Shift { by, default, .. } => return Ok(fill::shift(column, *by, default)),
        WindowFunction::LastCarriedForward(_) => return Ok(fill::last_carried_forward(column)),
        WindowFunction::LinearFill(_) => fill::linear(column, places)?,
        WindowFunction::Rank => rank::rank(&partition.ties),
        WindowFunction::DenseRank => rank::dense_rank(&partition.ties),
        WindowFunction::DocumentNumber => rank::document_number(partition.length),
    };
    Ok(ColumnBlock::from_values(&values))
}
