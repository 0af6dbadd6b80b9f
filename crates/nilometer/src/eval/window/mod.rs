//! `$setWindowFields`: computes values over the neighbours of each document in its partition.
//!
//! ```text
//! documents sorted by partition, then sortBy        (the executor's work)
//!        │ one partition at a time
//!        ▼
//! frames   for each document the range of positions its window covers; both ends only move forward
//! columns  the function's argument for every document, evaluated once, or a column of a bucket
//! slide    a result for every frame, at amortised constant or logarithmic cost per step
//!        ▼
//! documents with the new fields
//! ```
//!
//! **Sliding without subtraction.** Removing a value from a sum of doubles, a minimum or a
//! deviation is not exact. A window is kept as two stacks of partial states instead ([`sliding`]):
//! leaving it is a pop, entering it a merge, and no rounding error of a removed value remains.
//!
//! Results whose size is that of the window (`$push`, `$addToSet`, `$firstN` …) take time
//! proportional to it for every document.
//!
//! Not here: sorting, detecting the ends of partitions ([`SetWindowFields::partition_key`] helps),
//! and the memory limit. The inputs of functions are in memory for one partition at a time
//! ([`PartitionColumns`]); its documents need not be.

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
pub use partition::{BlockColumns, PartitionColumns, PartitionResults};
use partition::{FunctionInput, Partition};

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
    /// Path of the result.
    pub path: String,
    /// The function.
    pub function: WindowFunction,
    /// The window.
    pub bounds: Bounds,
}

/// What a window function computes.
#[derive(Clone, Debug)]
pub enum WindowFunction {
    /// An accumulator over the window.
    Accumulator(AccumulatorSpec),
    /// `$covariancePop`, `$covarianceSamp`.
    Covariance {
        /// Returns `[x, y]`.
        input: Expression,
        /// True for `$covarianceSamp`.
        sample: bool,
    },
    /// `$derivative`
    Derivative {
        /// The value to differentiate.
        input: Expression,
        /// The unit of the sort field's dates.
        unit: Option<Unit>,
    },
    /// `$integral`
    Integral {
        /// The value to integrate.
        input: Expression,
        /// The unit of the sort field's dates.
        unit: Option<Unit>,
    },
    /// `$expMovingAvg`
    ExpMovingAvg {
        /// The value to average.
        input: Expression,
        /// Weight of the newest value.
        alpha: Number,
    },
    /// `$shift`
    Shift {
        /// The value of the other document.
        output: Expression,
        /// Distance in positions.
        by: i64,
        /// Replaces a document beyond the partition or a missing output.
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
    /// Returns the expression evaluated for each document, if there is one.
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
    /// Returns the partition expression, if there is one.
    pub fn partition_by(&self) -> Option<&Expression> {
        self.partition_by.as_ref()
    }

    /// Returns the order within a partition.
    pub fn sort_by(&self) -> Option<&SortPattern> {
        self.sort_by.as_ref()
    }

    /// Returns the output fields.
    pub fn outputs(&self) -> &[WindowOutput] {
        &self.outputs
    }

    /// Returns the specification as written by the user.
    pub fn source(&self) -> &Document {
        &self.source
    }

    /// Adds the inputs read from documents.
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

    /// Returns the partition of a document: null if the expression returns missing.
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

    /// Computes the results for the documents of one partition, which were added in order.
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

    /// Returns the documents of one partition, in order, with the output fields.
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

/// Returns one value for every document of the partition.
fn evaluate_output(
    output: &WindowOutput,
    argument: &FunctionInput,
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
