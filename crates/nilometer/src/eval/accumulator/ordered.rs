//! `$firstN`, `$lastN` (by input order; null is kept, missing becomes null) and `$top`, `$bottom`,
//! `$topN`, `$bottomN` (by their own order; a missing output becomes null).

use std::collections::VecDeque;

use nilometer_bson::{Value, ValueRef, array};
use smallvec::SmallVec;

use super::or_null;
use crate::error::Result;
use crate::eval::sort_key::{SortKey, SortPattern};
use crate::eval::{EvalContext, memory_bytes};

/// The first values of the input.
#[derive(Clone, Debug)]
pub struct FirstN {
    n: usize,
    values: Vec<Value>,
    bytes: usize,
}

impl FirstN {
    pub(super) fn new(n: i64) -> Self {
        Self {
            n: usize::try_from(n).unwrap_or(usize::MAX),
            values: Vec::new(),
            bytes: 0,
        }
    }

    pub(super) fn add(&mut self, value: ValueRef<'_>) {
        if self.values.len() < self.n {
            let value = or_null(value.to_value());
            self.bytes += memory_bytes(&value);
            self.values.push(value);
        }
    }

    pub(super) fn merge(&mut self, later: Self) {
        for value in &later.values {
            self.add(value.as_ref());
        }
    }

    pub(super) fn finish(self) -> Value {
        self.values.into()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes + self.values.capacity() * size_of::<Value>()
    }
}

impl FirstN {
    pub(super) fn save(&self) -> Value {
        self.values.clone().into()
    }
}

/// The last values of the input.
#[derive(Clone, Debug)]
pub struct LastN {
    n: usize,
    values: VecDeque<Value>,
    bytes: usize,
}

impl LastN {
    pub(super) fn new(n: i64) -> Self {
        Self {
            n: usize::try_from(n).unwrap_or(usize::MAX),
            values: VecDeque::new(),
            bytes: 0,
        }
    }

    pub(super) fn add(&mut self, value: ValueRef<'_>) {
        if self.values.len() >= self.n
            && let Some(gone) = self.values.pop_front()
        {
            self.bytes -= memory_bytes(&gone);
        }
        let value = or_null(value.to_value());
        self.bytes += memory_bytes(&value);
        self.values.push_back(value);
    }

    pub(super) fn merge(&mut self, later: Self) {
        for value in &later.values {
            self.add(value.as_ref());
        }
    }

    pub(super) fn finish(self) -> Value {
        Value::from(Vec::from(self.values))
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.bytes + self.values.capacity() * size_of::<Value>()
    }
}

impl LastN {
    pub(super) fn save(&self) -> Value {
        Value::from(Vec::from(self.values.clone()))
    }
}

/// The `n` outputs with the first, or last, keys. Equal keys stay in input order.
#[derive(Clone, Debug)]
pub struct Ranked {
    n: usize,
    /// True to keep the last.
    last: bool,
    /// True to return one value instead of an array.
    single: bool,
    /// At most `2 * n + SLACK` entries; the first `sorted` are those kept so far, in order.
    entries: SmallVec<[(SortKey, Value); 1]>,
    sorted: usize,
    bytes: usize,
}

/// Bytes of entries that are sorted without a check for interrupts.
const SORTED_BYTES_DIRECTLY: usize = 256 << 10;

/// Entries collected beyond `n` before the last are dropped.
const SLACK: usize = 16;

/// Which documents a `$top` or `$bottom` keeps.
pub struct KeptRanks<'s> {
    /// Their order.
    pub sort: &'s SortPattern,
    /// Their number, at most.
    pub count: usize,
    /// True to keep the last.
    pub last: bool,
    /// The key that a further document must sort before, or behind unless it is equal if the last are kept; `None` if any is kept.
    pub edge: Option<&'s SortKey>,
}

impl Ranked {
    pub(super) fn new(n: i64, last: bool, single: bool) -> Self {
        Self {
            n: usize::try_from(n).unwrap_or(usize::MAX),
            last,
            single,
            entries: SmallVec::new(),
            sorted: 0,
            bytes: 0,
        }
    }

    /// True if `n` entries are kept.
    pub(super) fn is_full(&self) -> bool {
        self.sorted >= self.n
    }

    fn edge(&self) -> Option<&SortKey> {
        if !self.is_full() {
            return None;
        }
        let edge = if self.last {
            self.entries.first()
        } else {
            self.sorted
                .checked_sub(1)
                .and_then(|at| self.entries.get(at))
        };
        edge.map(|(key, _)| key)
    }

    pub(super) fn ranks<'s>(&'s self, sort: &'s SortPattern) -> KeptRanks<'s> {
        KeptRanks {
            sort,
            count: self.n,
            last: self.last,
            edge: self.edge(),
        }
    }

    /// False if an entry with this key would be dropped, so that its output need not be computed.
    pub(super) fn would_keep(&self, key: &SortKey, sort: &SortPattern) -> bool {
        self.edge().is_none_or(|edge| {
            let order = sort.compare(key, edge);
            if self.last {
                order.is_ge()
            } else {
                order.is_lt()
            }
        })
    }

    pub(super) fn add(
        &mut self,
        key: SortKey,
        output: Value,
        sort: &SortPattern,
        ctx: &EvalContext<'_>,
    ) -> Result<()> {
        let output = or_null(output);
        if self.n == 1 {
            self.keep_one(key, output, sort);
            return Ok(());
        }
        self.bytes += entry_bytes(&key, &output);
        self.entries.push((key, output));
        if self.entries.len() >= self.n.saturating_mul(2).saturating_add(SLACK) {
            self.settle(sort, ctx)?;
        }
        Ok(())
    }

    /// [`Ranked::add`] for `n` = 1: of equal keys keeps the first, or the last.
    fn keep_one(&mut self, key: SortKey, output: Value, sort: &SortPattern) {
        if self.would_keep(&key, sort) {
            self.bytes = entry_bytes(&key, &output);
            self.entries.clear();
            self.entries.push((key, output));
            self.sorted = 1;
        }
    }

    fn settle(&mut self, sort: &SortPattern, ctx: &EvalContext<'_>) -> Result<()> {
        if self.sorted == self.entries.len() && self.sorted <= self.n {
            return Ok(());
        }
        let by_key = |(a, _): &(SortKey, Value), (b, _): &(SortKey, Value)| sort.compare(a, b);
        if self.bytes <= SORTED_BYTES_DIRECTLY {
            self.entries.sort_by(by_key);
        } else {
            let entries = std::mem::take(&mut self.entries).into_vec();
            let sorted = ctx.sort(entries, |(key, _)| key.memory_bytes(), by_key)?;
            self.entries = SmallVec::from_vec(sorted);
        }
        if self.last {
            let gone = self.entries.len().saturating_sub(self.n);
            self.entries.drain(..gone);
        } else {
            self.entries.truncate(self.n);
        }
        self.sorted = self.entries.len();
        self.bytes = self
            .entries
            .iter()
            .map(|(key, output)| entry_bytes(key, output))
            .sum();
        Ok(())
    }

    pub(super) fn merge(&mut self, later: Self, sort: &SortPattern) {
        // Without limits nothing fails.
        let ctx = EvalContext::default();
        for (key, output) in later.entries {
            let _ = self.add(key, output, sort, &ctx);
        }
    }

    pub(super) fn save(&self) -> Value {
        let entry = |(key, output): &(SortKey, Value)| -> Value {
            let key: Vec<Value> = key.values().iter().cloned().map(or_null).collect();
            array![key, output.clone()]
        };
        Value::from(self.entries.iter().map(entry).collect::<Vec<_>>())
    }

    pub(super) fn restore(&mut self, saved: ValueRef<'_>, sort: &SortPattern) -> Option<()> {
        for entry in saved.as_array()?.iter() {
            let entry = entry.as_array()?;
            let key = SortKey::from_values(entry.get(0).as_array()?.iter().map(ValueRef::to_value));
            let ctx = EvalContext::default();
            self.add(key, entry.get(1).to_value(), sort, &ctx).ok()?;
        }
        Some(())
    }

    pub(super) fn finish(mut self, sort: &SortPattern, ctx: &EvalContext<'_>) -> Result<Value> {
        self.settle(sort, ctx)?;
        let mut outputs = self.entries.into_iter().map(|(_, output)| output);
        Ok(if self.single {
            outputs.next().unwrap_or(Value::Null)
        } else {
            Value::from(outputs.collect::<Vec<_>>())
        })
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let beside = match self.entries.spilled() {
            true => self.entries.capacity() - self.entries.len(),
            false => 0,
        };
        self.bytes + beside * size_of::<(SortKey, Value)>()
    }
}

fn entry_bytes(key: &SortKey, output: &Value) -> usize {
    key.memory_bytes() + size_of::<Value>() + memory_bytes(output)
}
