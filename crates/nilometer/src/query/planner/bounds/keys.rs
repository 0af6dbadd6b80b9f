//! Bounds as bytes: is this key inside, and if not, which key can be next?
//!
//! ```text
//! parts      a: [1, 1] [5, 5]      b: (3, inf]
//! keys       1|2   1|4   2|9   5|1   5|7
//!            seek  in    seek  seek  in       a key outside tells where to go on
//! ```
//!
//! So a scan touches the keys inside and, for each gap, one key behind it; nothing is multiplied out,
//! whatever the number of intervals. A component of a key is compared with the intervals of its part
//! as bytes, everything behind it included: an interval `[low, high)` of byte strings holds exactly the
//! keys whose component is inside. Parts that go down have their intervals turned.
//!
//! Scans backward read the same bounds from the other end.

use nilometer_bson::Value;
use nilometer_bson::key_string::{self, BoundSide, KeyBuilder, KeyOrder, KeyStringError};

use super::{IndexBounds, IndexShape, Interval, PartBounds};
use crate::index::KeyRange;
use crate::index::entry::END_OF_KEYS;

/// Most ranges [`KeyBounds::ranges`] gives; with more it gives fewer, wider ones.
const RANGES_MAX: usize = 1000;

/// The keys of one interval: `low <= key < high`; `high` none to the end.
#[derive(Clone, Debug)]
struct Span {
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    /// `low` is a whole component: the bounds of the next part hold right behind it.
    low_is_value: bool,
}

/// One part's intervals, in the order of its keys.
#[derive(Clone, Debug)]
struct Spans {
    spans: Vec<Span>,
    order: KeyOrder,
}

/// The bounds of an index as bytes.
#[derive(Clone, Debug)]
pub struct KeyBounds {
    /// Up to the last part that is bounded.
    parts: Vec<Spans>,
}

/// Where a key lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Position {
    /// Inside.
    Inside,
    /// Outside; in the direction of the scan nothing is inside before this: the first key that may be
    /// (forward), or the first that may not be any more (backward).
    Seek(Vec<u8>),
    /// Outside, and nothing follows.
    Past,
}

impl KeyBounds {
    /// The bytes of `bounds` in an index of this shape.
    pub fn new(bounds: &IndexBounds, shape: &IndexShape) -> Self {
        let bounded = bounds.parts.iter().rposition(|part| !part.is_all());
        let count = bounded.map_or(0, |last| last + 1);
        let parts = bounds.parts.iter().zip(&shape.parts).take(count);
        Self {
            parts: parts
                .map(|(part, of)| spans(part, of.descending, shape))
                .collect(),
        }
    }

    /// True if no key is inside.
    pub fn is_empty(&self) -> bool {
        self.parts.iter().any(|part| part.spans.is_empty())
    }

    /// The least key that may be inside.
    pub fn start(&self) -> Vec<u8> {
        self.lowest(0, Vec::new())
    }

    /// The least key above all that may be inside; none if there is no end.
    pub fn end(&self) -> Option<Vec<u8>> {
        let mut prefix = Vec::new();
        for part in &self.parts {
            let last = part.spans.last()?;
            match &last.high {
                // A single value: what follows it is bounded by the next part.
                Some(_) if is_value(last) => prefix.extend_from_slice(&last.low),
                Some(high) => {
                    prefix.extend_from_slice(high);
                    return Some(prefix);
                }
                None => break,
            }
        }
        key_string::prefix_end(prefix)
    }

    /// `prefix`, which ends in front of part `from`, and the lowest of the parts that follow.
    fn lowest(&self, from: usize, mut prefix: Vec<u8>) -> Vec<u8> {
        for part in self.parts.iter().skip(from) {
            let Some(first) = part.spans.first() else {
                break;
            };
            prefix.extend_from_slice(&first.low);
            if !first.low_is_value {
                break;
            }
        }
        prefix
    }

    /// Where `key` lies, for a scan upward.
    pub fn check_forward(&self, key: &[u8]) -> Result<Position, KeyStringError> {
        let mut at = 0;
        for (number, part) in self.parts.iter().enumerate() {
            let suffix = key.get(at..).unwrap_or_default();
            let next = part
                .spans
                .partition_point(|span| span.high.as_deref().is_some_and(|high| high <= suffix));
            let prefix = key.get(..at).unwrap_or_default();
            let Some(span) = part.spans.get(next) else {
                return Ok(match key_string::prefix_end(prefix.to_vec()) {
                    Some(behind) => Position::Seek(behind),
                    None => Position::Past,
                });
            };
            if suffix < span.low.as_slice() {
                let mut target = prefix.to_vec();
                target.extend_from_slice(&span.low);
                if span.low_is_value {
                    target = self.lowest(number + 1, target);
                }
                return Ok(Position::Seek(target));
            }
            at = key.len() - key_string::skip(suffix, part.order, 1)?.len();
        }
        Ok(Position::Inside)
    }

    /// Where `key` lies, for a scan downward.
    pub fn check_backward(&self, key: &[u8]) -> Result<Position, KeyStringError> {
        let mut at = 0;
        for part in &self.parts {
            let suffix = key.get(at..).unwrap_or_default();
            let prefix = key.get(..at).unwrap_or_default();
            let below = part
                .spans
                .partition_point(|span| span.low.as_slice() <= suffix);
            let Some(span) = below.checked_sub(1).and_then(|n| part.spans.get(n)) else {
                return Ok(if prefix.is_empty() {
                    Position::Past
                } else {
                    Position::Seek(prefix.to_vec())
                });
            };
            if let Some(high) = &span.high
                && high.as_slice() <= suffix
            {
                return Ok(Position::Seek([prefix, high.as_slice()].concat()));
            }
            at = key.len() - key_string::skip(suffix, part.order, 1)?.len();
        }
        Ok(Position::Inside)
    }

    /// Ranges `start <= key < end` that hold every key inside, in order: exactly those of the leading
    /// single values and the first wider part; what later parts say is left out. Many ranges become
    /// fewer and wider.
    pub fn ranges(&self) -> Vec<KeyRange> {
        let ranges = self.open_ranges().into_iter();
        ranges
            .map(|(start, end)| (start, end.unwrap_or_else(|| vec![END_OF_KEYS])))
            .collect()
    }

    fn open_ranges(&self) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        if self.is_empty() {
            return Vec::new();
        }
        let mut prefixes: Vec<Vec<u8>> = vec![Vec::new()];
        for part in &self.parts {
            let points = part.spans.iter().all(is_value);
            if prefixes.len().saturating_mul(part.spans.len()) > RANGES_MAX {
                break;
            }
            if !points {
                let mut out = Vec::new();
                for prefix in &prefixes {
                    for span in &part.spans {
                        let start = [prefix.as_slice(), &span.low].concat();
                        let end = match &span.high {
                            Some(high) => Some([prefix.as_slice(), high].concat()),
                            None => key_string::prefix_end(prefix.clone()),
                        };
                        out.push((start, end));
                    }
                }
                return out;
            }
            prefixes = prefixes
                .iter()
                .flat_map(|prefix| {
                    let values = part.spans.iter();
                    values.map(move |span| [prefix.as_slice(), &span.low].concat())
                })
                .collect();
        }
        if let [only] = &*prefixes
            && only.is_empty()
        {
            return vec![(self.start(), self.end())];
        }
        let ranges = prefixes.into_iter();
        ranges
            .map(|prefix| {
                let end = key_string::prefix_end(prefix.clone());
                (prefix, end)
            })
            .collect()
    }
}

/// True if the span is all keys of one value.
fn is_value(span: &Span) -> bool {
    span.low_is_value && span.high == key_string::prefix_end(span.low.clone())
}

fn spans(bounds: &PartBounds, descending: bool, shape: &IndexShape) -> Spans {
    let order = KeyOrder::new([descending]);
    let mut spans: Vec<Span> = bounds
        .intervals
        .iter()
        .map(|interval| span(interval, order, descending, shape))
        .collect();
    if descending {
        spans.reverse();
    }
    Spans { spans, order }
}

fn span(interval: &Interval, order: KeyOrder, descending: bool, shape: &IndexShape) -> Span {
    let encode = |value: &Value| {
        let mut builder = KeyBuilder::with_collator(order, shape.collator());
        builder.push(value.as_ref());
        builder.finish().0
    };
    let (low, low_inclusive, high, high_inclusive) = if descending {
        (
            encode(&interval.high),
            interval.high_inclusive,
            encode(&interval.low),
            interval.low_inclusive,
        )
    } else {
        (
            encode(&interval.low),
            interval.low_inclusive,
            encode(&interval.high),
            interval.high_inclusive,
        )
    };
    let side = |inside: bool| {
        if inside {
            BoundSide::Before
        } else {
            BoundSide::After
        }
    };
    Span {
        // Lead bytes are never FF throughout, so there always is something above.
        low: key_string::bound(low, side(low_inclusive)).unwrap_or_default(),
        high: key_string::bound(high, side(!high_inclusive)),
        low_is_value: low_inclusive,
    }
}
