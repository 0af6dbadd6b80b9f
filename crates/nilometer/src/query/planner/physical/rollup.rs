//! The input from a rollup: stored bins where they are up to date, the source elsewhere.

use std::sync::Arc;

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef};

use crate::error::Result;
use crate::eval::Collation;
use crate::eval::matcher::{CompareOp, MatchExpression};
use crate::query::pipeline::Stage;
use crate::query::planner::access::IndexAccess;
use crate::query::planner::access::bins::{self, BinHint};
use crate::query::source::RollupSource;
use crate::rollup::{PartSource, RollupDefinition};

/// The input from a rollup.
#[derive(Clone, Debug)]
pub struct RollupInput {
    /// The rollup.
    pub rollup: Arc<RollupSource>,
    /// The first instant, and the first after it, of the measurements in question.
    pub span: (i64, i64),
    /// The condition on documents of the rollup; it reads parts of the key only.
    pub key_filter: Option<MatchExpression>,
    /// The condition on measurements, for what is read from the source. It selects what `key_filter` selects, at least.
    pub series_filter: Option<MatchExpression>,
    /// What is returned.
    pub output: RollupOutput,
    /// The answer is that of the time series at the bottom: frozen bins, and parts of bins, are read there.
    pub of_series: bool,
    /// How stored bins are read; `None` for the order of their time. It leads to all bins that may pass, at least.
    pub index: Option<Arc<IndexAccess>>,
}

/// What a rollup returns.
#[derive(Clone, Debug)]
pub enum RollupOutput {
    /// Its documents.
    Documents,
    /// Its bins with their states.
    Bins,
    /// Groups of a coarser key with partial states, several for each.
    States(StateMapping),
    /// Groups of another key, each of one bin, with the results of the accumulators under these names.
    Groups(StateMapping, Arc<[Arc<str>]>),
}

impl RollupOutput {
    /// Returns the states that are read; `None` if all are.
    pub fn mapping(&self) -> Option<&StateMapping> {
        match self {
            Self::Documents | Self::Bins => None,
            Self::States(mapping) | Self::Groups(mapping, _) => Some(mapping),
        }
    }
}

/// How groups of a rollup become parts of groups of a coarser key.
#[derive(Clone, Debug)]
pub struct StateMapping {
    /// The parts of the key by name; one without a name is the key itself.
    pub parts: Vec<(Option<Arc<str>>, PartSource)>,
    /// The places of the accumulators.
    pub fields: Vec<usize>,
}

impl StateMapping {
    /// Returns the mapping of the rollup below to this one.
    pub fn of_parent(definition: &RollupDefinition) -> Option<Self> {
        let from_parent = definition.from_parent.as_ref()?;
        let parts = from_parent.parts.iter();
        Some(Self {
            parts: parts
                .map(|(name, source)| (Some(name.clone()), source.clone()))
                .collect(),
            fields: from_parent.places.clone(),
        })
    }

    /// Returns the mapping with some of its accumulators.
    #[must_use]
    pub fn only(self, selected: &[usize]) -> Self {
        let places = selected.iter();
        let fields = places.filter_map(|at| self.fields.get(*at).copied());
        Self {
            fields: fields.collect(),
            ..self
        }
    }

    /// Appends the key of the coarser group of a key of the rollup, as the field `field`.
    pub fn append_key(
        &self,
        out: &mut DocumentBuilder,
        field: &str,
        key: DocRef<'_>,
        time_name: &str,
    ) -> Result<()> {
        // As in `$group`, a key that is one value, or has one part, is null where that is missing.
        let or_null = |value| match value {
            ValueRef::Missing | ValueRef::Undefined => ValueRef::Null,
            value => value,
        };
        match self.parts.as_slice() {
            [(None, source)] => {
                let value = part_of_key(source, key, time_name)?;
                out.append_ref(field, or_null(value));
            }
            parts => {
                let is_single = parts.len() == 1;
                out.begin_document(field);
                for (name, source) in parts {
                    let value = part_of_key(source, key, time_name)?;
                    let value = if is_single { or_null(value) } else { value };
                    out.append_ref(name.as_deref().unwrap_or(""), value);
                }
                out.end();
            }
        }
        Ok(())
    }

    /// True if each group has the measurements of one bin of the rollup.
    pub fn is_one_to_one(&self, definition: &RollupDefinition) -> bool {
        let mut sources = self.parts.iter().map(|(_, source)| source);
        let has_bins = sources.clone().any(|source| match source {
            PartSource::Bins(bins) => definition.bins.are(bins),
            _ => false,
        });
        let mut parts = definition.parts.iter();
        has_bins
            && parts.all(|part| {
                sources.any(|source| matches!(source, PartSource::Part(name) if *name == part.name))
            })
    }

    /// True if the states of a rollup with that many accumulators are those of the mapping, in order.
    pub fn is_all_of(&self, accumulators: usize) -> bool {
        self.fields.iter().copied().eq(0..accumulators)
    }
}

/// Returns a part of the coarser key.
fn part_of_key<'k>(
    source: &'k PartSource,
    key: DocRef<'k>,
    time_name: &str,
) -> Result<ValueRef<'k>> {
    Ok(match source {
        PartSource::Part(name) => key.get(name),
        PartSource::Constant(value) => value.as_ref(),
        PartSource::Bins(bins) => match key.get(time_name) {
            ValueRef::DateTime(start) => ValueRef::DateTime(bins.trunc(start)?),
            other => other,
        },
    })
}

impl RollupInput {
    /// Returns the input of a query on the rollup; `first` is the first stage, which stays where it is.
    pub fn documents(
        rollup: Arc<RollupSource>,
        first: Option<&Stage>,
        hint: &BinHint,
        collation: &Collation,
    ) -> Self {
        let mut input = Self {
            rollup,
            span: (i64::MIN, i64::MAX),
            key_filter: None,
            series_filter: None,
            output: RollupOutput::Documents,
            of_series: false,
            index: None,
        };
        let Some(Stage::Match(stage)) = first else {
            input.choose_index(&[], hint, collation);
            return input;
        };
        let conjuncts = stage.filter.clone().into_conjuncts();
        input.choose_index(&conjuncts, hint, collation);
        let definition = Arc::clone(&input.rollup.definition);
        input.span = bins_within(&stage.filter, &definition);
        let (of_key, _) = key_filter(&definition, stage.filter.clone());
        let conjuncts = of_key.clone().into_conjuncts();
        input.series_filter = of_series(&conjuncts, &definition);
        input.key_filter = Some(of_key).filter(|f| !matches!(f, MatchExpression::AlwaysTrue));
        input
    }

    /// Reads stored bins by the best index for conditions on documents of the rollup, if there is one.
    pub fn choose_index(
        &mut self,
        conjuncts: &[MatchExpression],
        hint: &BinHint,
        collation: &Collation,
    ) {
        let time_name = &self.rollup.definition.time_name;
        let stored = &self.rollup.stored;
        let chosen = bins::choose(stored, time_name, conjuncts, hint, collation);
        self.index = chosen.map(Arc::new);
    }

    /// Makes it return bins with their states that pass `filter`. False if it returns no documents, or if the filter reads more
    /// than the key.
    pub fn return_bins(&mut self, filter: Option<&MatchExpression>) -> bool {
        let rest = filter.map(|filter| key_filter(&self.rollup.definition, filter.clone()).1);
        let is_of_key = rest.is_none_or(|rest| matches!(rest, MatchExpression::AlwaysTrue));
        if !matches!(self.output, RollupOutput::Documents) || !is_of_key {
            return false;
        }
        self.output = RollupOutput::Bins;
        self.key_filter = filter.cloned();
        true
    }

    /// Makes it return states, if it returns groups; false if it returns neither.
    pub fn return_states(&mut self) -> bool {
        if let RollupOutput::Groups(mapping, _) = &self.output {
            self.output = RollupOutput::States(mapping.clone());
        }
        matches!(self.output, RollupOutput::States(_))
    }

    /// Returns the stage for explain.
    pub fn explain(&self) -> Document {
        let mut out = DocumentBuilder::new();
        out.append("stage", "ROLLUP");
        out.append("rollup", self.rollup.namespace.as_str());
        if self.span.0 != i64::MIN {
            out.append("from", Value::DateTime(self.span.0));
        }
        if self.span.1 != i64::MAX {
            out.append("to", Value::DateTime(self.span.1));
        }
        let filter = self.key_filter.as_ref().map(MatchExpression::to_document);
        out.append("filter", filter);
        out.finish()
    }
}

/// Divides a filter of documents of a rollup: conditions on the key, and the others.
pub(crate) fn key_filter(
    definition: &RollupDefinition,
    filter: MatchExpression,
) -> (MatchExpression, MatchExpression) {
    filter.split(|path| {
        let first = path.split('.').next().unwrap_or_default();
        let mut parts = definition.parts.iter();
        first == "_id" || first == &*definition.time_name || parts.any(|part| *part.name == *first)
    })
}

/// Returns a range that holds the times of all documents that pass the filter.
fn bins_within(filter: &MatchExpression, definition: &RollupDefinition) -> (i64, i64) {
    let in_id = format!("_id.{}", definition.time_name);
    let (mut from, mut to) = (i64::MIN, i64::MAX);
    for conjunct in filter.clone().into_conjuncts() {
        let MatchExpression::Compare(comparison) = conjunct else {
            continue;
        };
        let path = comparison.path.as_str();
        let Value::DateTime(at) = comparison.value else {
            continue;
        };
        if path != &*definition.time_name && path != in_id {
            continue;
        }
        let (low, high) = span_of(comparison.op, at);
        from = from.max(low);
        to = to.min(high);
    }
    // Bins are read as a whole: the condition is tested on documents.
    let to = match to {
        i64::MAX => to,
        to => definition.bins.ceil(to),
    };
    (
        definition.bins.floor(from),
        to.max(definition.bins.floor(from)),
    )
}

/// Returns the instants that pass a comparison: the first, and the first after the last.
pub(crate) fn span_of(op: CompareOp, at: i64) -> (i64, i64) {
    let after = at.saturating_add(1);
    match op {
        CompareOp::Eq => (at, after),
        CompareOp::Gt => (after, i64::MAX),
        CompareOp::Gte => (at, i64::MAX),
        CompareOp::Lt => (i64::MIN, at),
        CompareOp::Lte => (i64::MIN, after),
    }
}

/// Returns equalities of parts of the key as conditions on measurements.
///
/// Where a path leads through an array, the part is an array of what is found there, and a condition on the metadata matches
/// at least when one on the part does.
fn of_series(
    conjuncts: &[MatchExpression],
    definition: &RollupDefinition,
) -> Option<MatchExpression> {
    let mut found = Vec::new();
    for conjunct in conjuncts {
        let MatchExpression::Compare(comparison) = conjunct else {
            continue;
        };
        let is_plain = matches!(
            comparison.value,
            Value::String(_)
                | Value::Int32(_)
                | Value::Int64(_)
                | Value::Double(_)
                | Value::Bool(_)
                | Value::ObjectId(_)
        );
        if comparison.op != CompareOp::Eq || !is_plain {
            continue;
        }
        let path = comparison.path.as_str();
        let part = definition
            .parts
            .iter()
            .find(|part| *part.name == *path.strip_prefix("_id.").unwrap_or(path));
        let field = part.and_then(|part| part.expression.as_field_path());
        if let Some(field) = field {
            found.extend(conjunct.renamed(path, field.as_str()));
        }
    }
    match found.is_empty() {
        true => None,
        false => Some(MatchExpression::and(found)),
    }
}
