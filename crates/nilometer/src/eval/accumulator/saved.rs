//! Conversion of accumulator states to values and back: groups that are spilled to disk, and the bins of rollups.
//!
//! A restored state behaves exactly like the original. Bins of rollups keep the values, so they are a stored format for the
//! accumulators that a rollup may have.

use nilometer_bson::{Binary, DocRef, DocumentBuilder, Value, ValueRef, array};

use super::{AccumulatorKind, AccumulatorSpec, AccumulatorState, Total, or_null};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::EvalContext;

impl AccumulatorSpec {
    /// Converts the state to a value.
    pub fn save(&self, state: AccumulatorState) -> Value {
        let count = |count: u64| i64::try_from(count).unwrap_or(i64::MAX);
        match state {
            AccumulatorState::Sum(total) => bytes(total.save()),
            AccumulatorState::Avg(total, numbers) => {
                let mut saved = total.save();
                saved.extend_from_slice(&numbers.to_le_bytes());
                bytes(saved)
            }
            AccumulatorState::Min(extreme) | AccumulatorState::Max(extreme) => {
                match extreme.value() {
                    ValueRef::Missing => array![],
                    value => array![value.to_value()],
                }
            }
            AccumulatorState::First(value) | AccumulatorState::Last(value) => match value {
                None => array![],
                Some(value) => array![or_null(value)],
            },
            AccumulatorState::Push(pushed) => pushed.finish(),
            AccumulatorState::AddToSet(set) => set.save(),
            AccumulatorState::Count(number) => count(number).into(),
            AccumulatorState::MergeObjects(merged) => merged.finish(),
            AccumulatorState::StdDevPop(deviation) | AccumulatorState::StdDevSamp(deviation) => {
                deviation.save()
            }
            AccumulatorState::FirstN(first) => first.save(),
            AccumulatorState::LastN(last) => last.save(),
            AccumulatorState::MinMaxN(bounded) => bounded.save(),
            AccumulatorState::Ranked(ranked) => ranked.save(),
            AccumulatorState::Percentile(percentile) => percentile.save(),
        }
    }

    /// Merges a later partial state saved as `saved`, of the group with the key `group`. Equivalent to
    /// [`AccumulatorSpec::restore`] followed by [`AccumulatorSpec::merge`], but neither makes a state nor copies large parts
    /// where that can be avoided.
    pub fn merge_saved(
        &self,
        state: &mut AccumulatorState,
        group: ValueRef<'_>,
        saved: ValueRef<'_>,
        ctx: &EvalContext<'_>,
    ) -> Result<()> {
        match state {
            AccumulatorState::Sum(total) => {
                let (other, _) = saved_total(saved).ok_or_else(not_saved)?;
                total.merge(&other);
                Ok(())
            }
            AccumulatorState::Avg(total, numbers) => {
                let (other, more) = saved_average(saved).ok_or_else(not_saved)?;
                total.merge(&other);
                *numbers += more;
                Ok(())
            }
            AccumulatorState::Count(count) => {
                *count += saved_count(saved).ok_or_else(not_saved)?;
                Ok(())
            }
            AccumulatorState::Push(_) | AccumulatorState::AddToSet(_) if self.takes_elements() => {
                self.add_value(state, saved)
            }
            AccumulatorState::Min(_)
            | AccumulatorState::Max(_)
            | AccumulatorState::Push(_)
            | AccumulatorState::AddToSet(_) => {
                let values = saved.as_array().ok_or_else(not_saved)?;
                let mut values = values.iter();
                values.try_for_each(|value| self.add_value(state, value))
            }
            _ => self.merge(state, self.restore(&group.to_value(), saved, ctx)?),
        }
    }

    /// Returns the result of a saved state of the group with the key `group`.
    pub fn finish_saved(
        &self,
        group: DocRef<'_>,
        saved: ValueRef<'_>,
        ctx: &EvalContext<'_>,
    ) -> Result<Value> {
        use AccumulatorKind as K;
        // Without a state between both.
        match self.kind() {
            K::Sum => return Ok(saved_total(saved).ok_or_else(not_saved)?.0.total().into()),
            K::Avg => {
                let (total, numbers) = saved_average(saved).ok_or_else(not_saved)?;
                return Ok(total.average(numbers).map_or(Value::Null, Value::from));
            }
            _ => {}
        }
        // Only a number of values can depend on the key.
        let group = match self.kind() {
            K::Count | K::Min | K::Max | K::First | K::Last => Value::Null,
            _ => Value::Document(group.to_document()),
        };
        self.finish(self.restore(&group, saved, ctx)?, ctx)
    }

    /// Appends the result of a saved state, as [`AccumulatorSpec::finish_saved`] returns it, as the field `name`.
    pub fn append_saved(
        &self,
        out: &mut DocumentBuilder,
        name: &str,
        (group, saved): (DocRef<'_>, ValueRef<'_>),
        ctx: &EvalContext<'_>,
    ) -> Result<()> {
        // Most of what rollups keep: without a value between both.
        if self.kind() == AccumulatorKind::Avg
            && let Some(average) = as_bytes(saved).and_then(Total::simple_average)
        {
            out.append_ref(name, ValueRef::Double(average));
            return Ok(());
        }
        out.append(name, self.finish_saved(group, saved, ctx)?);
        Ok(())
    }

    /// Restores the state of the group with the key `group` from `saved`.
    pub fn restore(
        &self,
        group: &Value,
        saved: ValueRef<'_>,
        ctx: &EvalContext<'_>,
    ) -> Result<AccumulatorState> {
        let mut state = self.new_state(group, ctx)?;
        match self.fill(&mut state, saved) {
            Some(()) => Ok(state),
            None => Err(not_saved()),
        }
    }

    fn fill(&self, state: &mut AccumulatorState, saved: ValueRef<'_>) -> Option<()> {
        match state {
            AccumulatorState::Sum(total) => *total = saved_total(saved)?.0,
            AccumulatorState::Avg(total, numbers) => (*total, *numbers) = saved_average(saved)?,
            AccumulatorState::Count(count) => *count = saved_count(saved)?,
            AccumulatorState::StdDevPop(deviation) | AccumulatorState::StdDevSamp(deviation) => {
                *deviation = super::StdDev::restore(saved)?;
            }
            AccumulatorState::Ranked(ranked) => ranked.restore(saved, self.sort.as_ref()?)?,
            AccumulatorState::Percentile(percentile) => percentile.restore(saved)?,
            AccumulatorState::MergeObjects(_) => self.add_value(state, saved).ok()?,
            AccumulatorState::Push(_) | AccumulatorState::AddToSet(_) if self.takes_elements() => {
                self.add_value(state, saved).ok()?;
            }
            // Restored by adding the kept values again, in order.
            AccumulatorState::Min(_)
            | AccumulatorState::Max(_)
            | AccumulatorState::First(_)
            | AccumulatorState::Last(_)
            | AccumulatorState::Push(_)
            | AccumulatorState::AddToSet(_)
            | AccumulatorState::FirstN(_)
            | AccumulatorState::LastN(_)
            | AccumulatorState::MinMaxN(_) => {
                for value in saved.as_array()?.iter() {
                    self.add_value(state, value).ok()?;
                }
            }
        }
        Some(())
    }
}

/// Returns the error for a value that no state was saved as.
fn not_saved() -> Error {
    Error::new(
        ErrorCode::InternalError,
        "a saved state of an accumulator cannot be read",
    )
}

/// Returns a saved total, and the bytes after it.
fn saved_total(saved: ValueRef<'_>) -> Option<(Total, &[u8])> {
    Total::restore(as_bytes(saved)?)
}

/// Returns the total of a saved average, and the number of its values.
fn saved_average(saved: ValueRef<'_>) -> Option<(Total, u64)> {
    let (total, count) = saved_total(saved)?;
    Some((total, u64::from_le_bytes(count.try_into().ok()?)))
}

/// Returns a saved count.
fn saved_count(saved: ValueRef<'_>) -> Option<u64> {
    u64::try_from(saved.as_exact_i64()?).ok()
}

/// Converts bytes to a value.
pub(super) fn bytes(bytes: Vec<u8>) -> Value {
    Value::Binary(Binary {
        subtype: 0,
        bytes: bytes.into(),
    })
}

pub(super) fn as_bytes(value: ValueRef<'_>) -> Option<&[u8]> {
    match value {
        ValueRef::Binary { bytes, .. } => Some(bytes),
        _ => None,
    }
}

/// Converts doubles to a value, bit for bit.
pub(super) fn f64s(numbers: &[f64]) -> Value {
    bytes(numbers.iter().flat_map(|n| n.to_le_bytes()).collect())
}

pub(super) fn u64s(numbers: &[u64]) -> Value {
    bytes(numbers.iter().flat_map(|n| n.to_le_bytes()).collect())
}

pub(super) fn as_u64s(value: ValueRef<'_>) -> Option<Vec<u64>> {
    let (numbers, []) = as_bytes(value)?.as_chunks::<8>() else {
        return None;
    };
    Some(numbers.iter().map(|n| u64::from_le_bytes(*n)).collect())
}

pub(super) fn as_f64s(value: ValueRef<'_>) -> Option<Vec<f64>> {
    let (numbers, []) = as_bytes(value)?.as_chunks::<8>() else {
        return None;
    };
    Some(numbers.iter().map(|n| f64::from_le_bytes(*n)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::ParseContext;
    use nilometer_bson::testing::awkward_values;
    use nilometer_bson::{Document, doc};

    /// Returns every accumulator, applied to the field `a`.
    fn specs() -> Vec<AccumulatorSpec> {
        let n = |name: &str| (name.to_owned(), Value::from(doc! {"input": "$a", "n": 3}));
        let plain = |name: &str| (name.to_owned(), Value::from("$a"));
        let sorted = doc! {"sortBy": doc! {"k": -1, "a": 1}, "output": "$a"};
        let sorted_n = doc! {"sortBy": doc! {"k": 1}, "output": "$a", "n": 2};
        let percentile = doc! {"input": "$a", "p": array![0.1, 0.9], "method": "approximate"};
        let median = doc! {"input": "$a", "method": "approximate"};
        let mut all: Vec<(String, Value)> = [
            "$sum",
            "$avg",
            "$min",
            "$max",
            "$first",
            "$last",
            "$push",
            "$addToSet",
            "$stdDevPop",
            "$stdDevSamp",
        ]
        .map(plain)
        .to_vec();
        all.extend(["$firstN", "$lastN", "$minN", "$maxN"].map(n));
        for name in ["$concatArrays", "$setUnion"] {
            let lists = array![array!["$a"], array!["$k"]];
            all.push((name.into(), doc! {"$concatArrays": lists}.into()));
        }
        all.push(("$count".into(), doc! {}.into()));
        all.push(("$mergeObjects".into(), "$o".into()));
        all.push(("$top".into(), sorted.clone().into()));
        all.push(("$bottom".into(), sorted.into()));
        all.push(("$topN".into(), sorted_n.clone().into()));
        all.push(("$bottomN".into(), sorted_n.into()));
        all.push(("$percentile".into(), percentile.into()));
        all.push(("$median".into(), median.into()));
        let known = super::super::ACCUMULATORS
            .iter()
            .filter(|row| row.kind.is_some());
        assert_eq!(all.len(), known.count());
        let cx = ParseContext::new();
        let parse = |(name, argument): &(String, Value)| {
            AccumulatorSpec::parse(name, argument.as_ref(), &cx).unwrap()
        };
        all.iter().map(parse).collect()
    }

    #[test]
    fn saved_states_continue_unchanged() {
        let mut values: Vec<Value> = awkward_values().into_iter().map(|(_, v)| v).collect();
        values.extend([0.1, 0.2, 1e16, -1e16, 3.0].map(Value::Double));
        values.extend([
            Value::Int64(i64::MAX),
            Value::Int64(i64::MAX),
            Value::Missing,
        ]);
        let documents: Vec<Document> = values
            .iter()
            .enumerate()
            .map(|(at, value)| {
                let at = at as i32;
                doc! {"k": at * 7 % 5, "a": value.clone(), "o": doc! {"x": at, "y": value.clone()}}
            })
            .collect();
        let ctx = EvalContext::default();
        for spec in specs() {
            for cut in [0, 1, 5, documents.len()] {
                let mut stayed = spec.new_state(&Value::Null, &ctx).unwrap();
                let mut away = stayed.clone();
                for (at, document) in documents.iter().enumerate() {
                    if at == cut {
                        let saved = spec.save(away);
                        away = spec.restore(&Value::Null, saved.as_ref(), &ctx).unwrap();
                    }
                    spec.add(&mut stayed, document.as_ref(), &ctx).unwrap();
                    spec.add(&mut away, document.as_ref(), &ctx).unwrap();
                }
                let saved = spec.save(away);
                let mut appended = DocumentBuilder::new();
                let group = (DocRef::EMPTY, saved.as_ref());
                spec.append_saved(&mut appended, "v", group, &ctx).unwrap();
                let finished = spec.finish_saved(group.0, group.1, &ctx).unwrap();
                assert_eq!(appended.finish(), doc! {"v": finished});
                let mut away = spec.new_state(&Value::Null, &ctx).unwrap();
                spec.merge_saved(&mut away, ValueRef::Null, saved.as_ref(), &ctx)
                    .unwrap();
                let (stayed, away) = (
                    spec.finish(stayed, &ctx).unwrap(),
                    spec.finish(away, &ctx).unwrap(),
                );
                assert_eq!(
                    doc! {"v": stayed},
                    doc! {"v": away},
                    "{} {cut}",
                    spec.name()
                );
            }
        }
    }
}
