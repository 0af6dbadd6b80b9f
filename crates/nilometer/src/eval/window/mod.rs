//! `$setWindowFields`: for each document of a partition, something computed over its neighbours.
//!
//! ```text
//! documents sorted by partition, then sortBy        (the executor's work)
//!        │ one partition at a time
//!        ▼
//! frames   for each document the range of positions its window covers; both ends only move on
//! columns  the function's argument for every document, evaluated once
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
//! memory limit; a partition is in memory while it is worked on.

mod calculus;
mod fill;
mod frame;
mod parse;
mod rank;
mod sliding;

#[cfg(test)]
mod tests;

use std::ops::Range;

use nilometer_bson::number::Number;
use nilometer_bson::path::FieldPath;
use nilometer_bson::{Document, Value};

pub use frame::{Bound, Bounds};
pub use parse::WINDOW_FUNCTION_NAMES;

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
    fn argument(&self) -> Option<&Expression> {
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

/// One partition, sorted.
struct Partition<'a> {
    docs: &'a [Document],
    sort_by: Option<&'a SortPattern>,
    ctx: &'a EvalContext<'a>,
}

impl Partition<'_> {
    /// The argument for every document.
    fn column(&self, argument: &Expression) -> Result<Vec<Value>> {
        self.docs
            .iter()
            .map(|doc| argument.evaluate(doc.as_ref(), self.ctx))
            .collect()
    }

    /// The value of the single sort field for every document; empty without such a field.
    fn sort_values(&self) -> Vec<Value> {
        let Some((path, _)) = self.sort_by.and_then(SortPattern::single_field) else {
            return Vec::new();
        };
        let path: &FieldPath = path;
        self.docs
            .iter()
            .map(|doc| path.get(doc.as_ref()).into_value())
            .collect()
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

    /// The documents of one partition, in order, with the output fields.
    pub fn evaluate_partition(
        &self,
        docs: &[Document],
        ctx: &EvalContext<'_>,
    ) -> Result<Vec<Document>> {
        let partition = Partition {
            docs,
            sort_by: self.sort_by.as_ref(),
            ctx,
        };
        let columns = self
            .outputs
            .iter()
            .map(|output| evaluate_output(output, &partition))
            .collect::<Result<Vec<_>>>()?;
        let mut row = vec![Value::Missing; columns.len()];
        docs.iter()
            .enumerate()
            .map(|(at, doc)| {
                for (slot, column) in row.iter_mut().zip(&columns) {
                    *slot = column.get(at).cloned().unwrap_or(Value::Null);
                }
                self.writer.apply(doc.as_ref(), &row, ctx)
            })
            .collect()
    }
}

/// One value for every document of the partition.
fn evaluate_output(output: &WindowOutput, partition: &Partition<'_>) -> Result<Vec<Value>> {
    let column = || -> Result<Vec<Value>> {
        match output.function.argument() {
            Some(argument) => partition.column(argument),
            None => Ok(Vec::new()),
        }
    };
    let frames = || -> Result<Vec<Range<usize>>> {
        let sort_values = if output.bounds.needs_sort_values() {
            partition.sort_values()
        } else {
            Vec::new()
        };
        output.bounds.frames(partition.docs.len(), &sort_values)
    };
    match &output.function {
        WindowFunction::Accumulator(spec) => sliding::accumulate(spec, partition, &frames()?),
        WindowFunction::Covariance { sample, .. } => {
            Ok(calculus::covariance(&column()?, &frames()?, *sample))
        }
        WindowFunction::Derivative { unit, .. } => {
            calculus::derivative(&column()?, &partition.sort_values(), &frames()?, *unit)
        }
        WindowFunction::Integral { unit, .. } => {
            calculus::integral(&column()?, &partition.sort_values(), &frames()?, *unit)
        }
        WindowFunction::ExpMovingAvg { alpha, .. } => {
            Ok(calculus::exp_moving_avg(&column()?, *alpha))
        }
        WindowFunction::Shift { by, default, .. } => Ok(fill::shift(&column()?, *by, default)),
        WindowFunction::LastCarriedForward(_) => Ok(fill::last_carried_forward(column()?)),
        WindowFunction::LinearFill(_) => fill::linear(&column()?, &partition.sort_values()),
        WindowFunction::Rank => rank::rank(partition),
        WindowFunction::DenseRank => rank::dense_rank(partition),
        WindowFunction::DocumentNumber => Ok(rank::document_number(partition.docs.len())),
    }
}
