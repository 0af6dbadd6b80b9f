//! `$top` and `$bottom` by time over a run of measurements: only one row of the run can matter.
//!
//! ```text
//! {$top: {sortBy: {"m.host": 1, t: -1}, …}}    in a block only t varies: the newest row, and of several
//!                                              the first, as in a stable sort
//! control.max.t older than the kept row        no row can matter, and no column is decoded
//! ```

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use nilometer_bson::{Array, Document, DocumentBuilder, Value, ValueRef};

use super::Table;
use super::vectorized::GroupRun;
use crate::error::Result;
use crate::eval::accumulator::AccumulatorSpec;
use crate::eval::sort_key::{SortBy, SortKey, SortPattern, null_if_missing};
use crate::eval::{Dependencies, Expression};
use crate::query::batch::{MeasurementBlock, MeasurementShape, Selection};
use crate::query::exec::ExecContext;
use crate::query::exec::vector::filter::narrowed;
use crate::query::planner::physical::TimeRank;
use crate::query::source::ColumnName;

/// Bytes reserved for a number and its name in a kept object.
const OBJECT_FIELD_BYTES: usize = 28;

/// The best row of a run.
struct Best {
    /// The row number within the bucket.
    row: u32,
    /// Its time, if read already.
    time: Option<i64>,
}

impl Best {
    fn value<'b>(&self, block: &'b MeasurementBlock, shown: &Shown) -> Result<ValueRef<'b>> {
        match (shown, self.time) {
            (Shown::Time(_), Some(at)) => Ok(ValueRef::DateTime(at)),
            _ => shown.value(block, self.row),
        }
    }

    /// Returns the values as an array; missing ones are null.
    fn array(&self, block: &MeasurementBlock, all: &[Shown]) -> Result<Value> {
        let mut out = DocumentBuilder::with_capacity(OBJECT_FIELD_BYTES * all.len());
        for (at, shown) in all.iter().enumerate() {
            let value = match self.value(block, shown)? {
                ValueRef::Undefined => ValueRef::Null,
                value => value,
            };
            out.append_indexed(at, value);
        }
        Ok(Value::Array(Array::from_document(out.finish())))
    }

    /// Returns the values as an object; missing ones are left out.
    fn object(&self, block: &MeasurementBlock, all: &[(Arc<str>, Shown)]) -> Result<Value> {
        let mut out = DocumentBuilder::with_capacity(OBJECT_FIELD_BYTES * all.len());
        for (name, shown) in all {
            out.append_ref(name, self.value(block, shown)?);
        }
        Ok(Value::Document(out.finish()))
    }
}

/// Accumulators of one stage that rank rows alike.
pub(crate) struct Ranking {
    rank: TimeRank,
    /// Their common order.
    sort: SortPattern,
    members: Vec<Member>,
    /// The fields they read.
    dependencies: Dependencies,
    /// The columns of these fields, unless whole documents are read.
    columns: Vec<ColumnName>,
}

/// One of the accumulators.
struct Member {
    /// Its index among the stage's accumulators.
    at: usize,
    output: Output,
}

/// What an accumulator keeps of a row.
enum Output {
    Field(Shown),
    /// Several fields as an array.
    Fields(Vec<Shown>),
    /// Several fields as an object.
    Object(Vec<(Arc<str>, Shown)>),
    /// The result of an expression.
    Computed,
}

/// A field of a measurement.
enum Shown {
    Meta,
    /// The time, which may be known before its column is decoded.
    Time(ColumnName),
    Column(ColumnName),
    Nothing,
}

impl Shown {
    fn of(name: &str, shape: &MeasurementShape) -> Self {
        let column = || ColumnName::new(name);
        match shape.fields.contains(name) {
            false => Self::Nothing,
            true if shape.meta_field.as_deref() == Some(name) => Self::Meta,
            true if *shape.time_field == *name => Self::Time(column()),
            true => Self::Column(column()),
        }
    }

    fn value<'b>(&self, block: &'b MeasurementBlock, row: u32) -> Result<ValueRef<'b>> {
        Ok(match self {
            Self::Meta => block.meta(),
            Self::Time(name) | Self::Column(name) => {
                let column = name.column_of(&*block.bucket)?;
                column.map_or(ValueRef::Missing, |column| column.value(row as usize))
            }
            Self::Nothing => ValueRef::Missing,
        })
    }
}

impl Output {
    fn of(spec: &AccumulatorSpec, shape: &MeasurementShape) -> Self {
        let field = |expression: &Expression| {
            let path = expression.as_field_path().filter(|path| path.len() == 1)?;
            Some(Shown::of(path.as_str(), shape))
        };
        match spec.argument() {
            Expression::Array(parts) => {
                let fields: Option<Vec<_>> = parts.iter().map(field).collect();
                fields.map_or(Self::Computed, Self::Fields)
            }
            Expression::Object(members) => {
                let member =
                    |(name, part): &(Arc<str>, Expression)| Some((name.clone(), field(part)?));
                let members: Option<Vec<_>> = members.iter().map(member).collect();
                members.map_or(Self::Computed, Self::Object)
            }
            single => field(single).map_or(Self::Computed, Self::Field),
        }
    }
}

impl Ranking {
    /// Adds the accumulator `at` to the ranking with its order; call [`Ranking::settle`] after the last one.
    pub(crate) fn add(
        rankings: &mut Vec<Self>,
        rank: TimeRank,
        (at, spec): (usize, &AccumulatorSpec),
        shape: &MeasurementShape,
    ) {
        let Some(sort) = spec.sort() else {
            return;
        };
        let alike = |other: &&mut Self| {
            other.rank == rank && other.sort.to_document() == sort.to_document()
        };
        let output = Output::of(spec, shape);
        let member = Member { at, output };
        if let Some(known) = rankings.iter_mut().find(alike) {
            known.push(member, spec);
            return;
        }
        let mut ranking = Self {
            rank,
            sort: sort.clone(),
            members: Vec::new(),
            dependencies: Dependencies::default(),
            columns: Vec::new(),
        };
        ranking.push(member, spec);
        rankings.push(ranking);
    }

    fn push(&mut self, member: Member, spec: &AccumulatorSpec) {
        self.members.push(member);
        spec.dependencies(&mut self.dependencies);
    }

    /// Completes the ranking after the last member was added.
    pub(crate) fn settle(&mut self, shape: &MeasurementShape) {
        let names = self.dependencies.top_level_fields().into_iter();
        let columns = names.filter(|name| shape.shows_column(name));
        self.columns = columns.map(ColumnName::new).collect();
    }

    /// Offers each run's best row to the members.
    pub(crate) fn accumulate<'s>(
        &'s self,
        fields: &'s [(Arc<str>, AccumulatorSpec)],
        block: &MeasurementBlock,
        runs: &[GroupRun],
        table: &mut Table,
        cx: &ExecContext<'_>,
    ) -> Result<()> {
        // Computed once a group already keeps a row.
        let mut bound: Option<Option<SortKey>> = None;
        let members = || {
            let spec = |member: &'s Member| fields.get(member.at).map(|(_, spec)| (member, spec));
            self.members.iter().filter_map(spec)
        };
        for run in runs {
            let mut may_matter = false;
            for (member, spec) in members() {
                let state = table.state(run.group, member.at);
                let Some(full) = state.filter(|state| spec.is_ranked_full(state)) else {
                    may_matter = true;
                    break;
                };
                let bound = match &mut bound {
                    Some(bound) => bound,
                    unknown => {
                        let best = self.rank.best_time(block);
                        let best = best.map(|best| self.key(block, best, cx));
                        unknown.insert(best.transpose()?)
                    }
                };
                let wants = |bound: &SortKey| spec.would_keep_ranked(full, bound);
                may_matter |= bound.as_ref().is_none_or(wants);
            }
            if !may_matter {
                continue;
            }
            let Some(best) = self.best_row(block, &run.rows)? else {
                continue;
            };
            let time = match (self.rank.newest, best.time) {
                (Some(_), Some(at)) => Value::DateTime(at),
                (Some(_), None) => block.value(&block.shape.time_field, best.row)?,
                (None, _) => Value::Missing,
            };
            let key = self.key(block, time, cx)?;
            let mut document = None;
            for (member, spec) in members() {
                table.change(run.group, member.at, spec, |state| {
                    spec.offer_ranked(state, &key, &cx.eval, || match &member.output {
                        Output::Field(shown) => Ok(best.value(block, shown)?.to_value()),
                        Output::Fields(all) => best.array(block, all),
                        Output::Object(all) => best.object(block, all),
                        Output::Computed => {
                            let document = match &mut document {
                                Some(document) => document,
                                none => none.insert(self.document(block, best.row)?),
                            };
                            spec.argument().evaluate(document.as_ref(), &cx.eval)
                        }
                    })
                })?;
            }
        }
        Ok(())
    }

    /// True if all columns read from the block are decoded.
    pub(crate) fn needs_no_decoding(&self, block: &MeasurementBlock) -> bool {
        let bucket = &*block.bucket;
        if self.dependencies.whole {
            return (0..bucket.columns().len()).all(|at| bucket.has_column_at(at));
        }
        let mut places = self.columns.iter().map(|name| name.place_in(bucket));
        places.all(|place| place.is_none_or(|at| bucket.has_column_at(at)))
    }

    /// Returns the best row of a run.
    fn best_row(&self, block: &MeasurementBlock, rows: &Range<usize>) -> Result<Option<Best>> {
        let Some((at, time)) = self.rank.place(block, rows)? else {
            return Ok(None);
        };
        let row = block.selection.get(at);
        Ok(row.map(|row| Best { row, time }))
    }

    /// Returns the sort key of a measurement at this time; the pattern reads only time and metadata.
    fn key(&self, block: &MeasurementBlock, time: Value, cx: &ExecContext<'_>) -> Result<SortKey> {
        let time_field = &block.shape.time_field;
        // Avoids building a document where each part of the pattern is a path without arrays.
        let plain = self.sort.key_from(|part| match &part.by {
            SortBy::Field(path) if path.as_str() == &**time_field => {
                matches!(time, Value::DateTime(_)).then(|| time.clone())
            }
            SortBy::Field(path) => block.plain_meta(path).map(null_if_missing),
            SortBy::Random | SortBy::TextScore(_) => None,
        });
        if let Some(key) = plain {
            return Ok(key);
        }
        let mut out = DocumentBuilder::new();
        out.append(time_field, time);
        if let Some(meta) = &block.shape.meta_field {
            out.append_ref(meta, block.meta());
        }
        self.sort.extract(out.finish().as_ref(), &cx.eval)
    }

    /// Returns the row with the fields the members read.
    fn document(&self, block: &MeasurementBlock, row: u32) -> Result<Document> {
        let block = if self.dependencies.whole {
            block.clone()
        } else {
            let fields = self.dependencies.top_level_fields().into_iter();
            narrowed(block, fields.map(Arc::from).collect::<BTreeSet<_>>())
        };
        let found = block.rows_of(&Selection::Range(row..row + 1))?;
        Ok(found.into_iter().next().unwrap_or_default())
    }
}
