//! Bounds as bytes: decides whether a key is inside and, if not, which key to seek next.
//!
//! ```text
//! parts      a: [1, 1] [5, 5]      b: (3, inf]
//! keys       1|2   1|4   2|9   5|1   5|7
//!            seek  in    seek  seek  in       a key outside gives the position of the next seek
//! ```
//!
//! A scan therefore reads the keys inside and one key after each gap. Behind the last interval of a part the position is in the
//! next interval of the part before, if that one's is a single value. The combinations of intervals are not enumerated,
//! whatever their number. A component of a key and all bytes after it are compared with the intervals of its part: an
//! interval `[low, high)` of byte strings contains exactly the keys whose component is inside. The intervals of
//! descending parts are reversed.
//!
//! Backward scans read the same bounds from the other end.

use nilometer_bson::Value;
use nilometer_bson::key_string::{self, BoundSide, KeyBuilder, KeyOrder, KeyStringError};

use super::{IndexBounds, IndexShape, Interval, PartBounds};
use crate::index::KeyRange;
use crate::index::entry::END_OF_KEYS;

/// Most ranges that [`KeyBounds::ranges`] returns. Beyond it, ranges are merged.
const RANGES_MAX: usize = 1000;

/// The keys of one interval: `low <= key < high`. Without `high`, to the end of the index.
#[derive(Clone, Debug)]
struct Span {
    low: Vec<u8>,
    high: Option<Vec<u8>>,
    /// True if `low` is a whole component: the bounds of the next part apply to the bytes after it.
    low_is_value: bool,
}

/// The intervals of one part in key order.
#[derive(Clone, Debug)]
struct Spans {
    spans: Vec<Span>,
    order: KeyOrder,
}

impl Spans {
    /// Returns the number of the first span that does not end before `suffix`, which begins with a component of this part.
    fn span_at(&self, suffix: &[u8]) -> usize {
        let is_before = |span: &Span| span.high.as_deref().is_some_and(|high| high <= suffix);
        self.spans.partition_point(is_before)
    }
}

/// The bounds of an index as bytes.
#[derive(Clone, Debug)]
pub struct KeyBounds {
    /// The parts up to the last bounded one.
    parts: Vec<Spans>,
}

/// The position of a key relative to the bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Position {
    /// The key is inside.
    Inside,
    /// The key is outside. No key is inside before this position in the direction of the scan: the first key that may
    /// be inside (forward), or the exclusive upper end of the keys that may be inside (backward).
    Seek(Vec<u8>),
    /// The key is outside, and no later key is inside.
    Past,
}

impl KeyBounds {
    /// Encodes `bounds` for an index of this shape.
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

    /// Returns the least key that may be inside.
    pub fn start(&self) -> Vec<u8> {
        self.lowest(0, Vec::new())
    }

    /// Returns the exclusive upper end of the keys that may be inside; `None` if unbounded.
    pub fn end(&self) -> Option<Vec<u8>> {
        let mut prefix = Vec::new();
        for part in &self.parts {
            let last = part.spans.last()?;
            match &last.high {
                // A single value: the next part bounds the bytes after it.
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

    /// Extends `prefix`, which ends before part `from`, by the lowest bounds of the remaining parts.
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

    /// Returns the least key that may be inside with the components of `prefix` and, as part `number`, a value of `span`.
    fn lowest_of(&self, number: usize, prefix: &[u8], span: &Span) -> Vec<u8> {
        let target = [prefix, &span.low].concat();
        match span.low_is_value {
            true => self.lowest(number + 1, target),
            false => target,
        }
    }

    /// Returns the position of `key` for a forward scan.
    pub fn check_forward(&self, key: &[u8]) -> Result<Position, KeyStringError> {
        let mut at = 0;
        for (number, part) in self.parts.iter().enumerate() {
            let (prefix, suffix) = key.split_at_checked(at).unwrap_or((key, &[]));
            let Some(span) = part.spans.get(part.span_at(suffix)) else {
                return self.behind(key, number);
            };
            if suffix < span.low.as_slice() {
                return Ok(Position::Seek(self.lowest_of(number, prefix, span)));
            }
            at = key.len() - key_string::skip(suffix, part.order, 1)?.len();
        }
        Ok(Position::Inside)
    }

    /// Returns the position of `key`, of which the first `inside` components are inside and the next is behind all spans of its part.
    fn behind(&self, key: &[u8], inside: usize) -> Result<Position, KeyStringError> {
        let parts = self.parts.get(..inside).unwrap_or_default();
        let mut ends = Vec::with_capacity(inside);
        let mut rest = key;
        for part in parts {
            rest = key_string::skip(rest, part.order, 1)?;
            ends.push(key.len() - rest.len());
        }
        for (number, part) in parts.iter().enumerate().rev() {
            let start = number.checked_sub(1).map_or(0, |before| ends[before]);
            let (prefix, suffix) = key.split_at_checked(start).unwrap_or((key, &[]));
            let at = part.span_at(suffix);
            if !part.spans.get(at).is_some_and(is_value) {
                // The next value may be in the same span.
                let behind = key_string::prefix_end(key[..ends[number]].to_vec());
                return Ok(behind.map_or(Position::Past, Position::Seek));
            }
            if let Some(next) = part.spans.get(at + 1) {
                return Ok(Position::Seek(self.lowest_of(number, prefix, next)));
            }
        }
        Ok(Position::Past)
    }

    /// Returns how many spans of the first part with more than one lie before `key`, and how many it has. `None` if no part has
    /// more than one, or the parts before it are not single values, or the key cannot be read.
    pub fn progress(&self, key: &[u8]) -> Option<(usize, usize)> {
        let mut suffix = key;
        for part in &self.parts {
            if part.spans.len() > 1 {
                return Some((part.span_at(suffix), part.spans.len()));
            }
            if !part.spans.iter().all(is_value) {
                return None;
            }
            suffix = key_string::skip(suffix, part.order, 1).ok()?;
        }
        None
    }

    /// Returns the position of `key` for a backward scan.
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

    /// Returns ranges `start <= key < end`, in order, that contain every key inside. They are exact for the leading
    /// single values and the first wider part; bounds of later parts are ignored. Many ranges are merged into fewer,
    /// wider ones.
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

/// True if the span contains exactly the keys of one value.
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
        // Lead bytes are never all FF, so a greater byte string always exists.
        low: key_string::bound(low, side(low_inclusive)).unwrap_or_default(),
        high: key_string::bound(high, side(!high_inclusive)),
        low_is_value: low_inclusive,
    }
}
