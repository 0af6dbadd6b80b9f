//! Walking the long keys of a range in order.
//!
//! A walk is in one level, below those of the pieces above it. A link leads into the level below. Behind the last key of a
//! level the walk continues in the level above it, after all links with the piece it came from. So the work is that of the
//! keys in the range, whatever else shares their pieces, and one scan is open at a time.

use std::sync::Arc;

use super::form::{self, Chain, ROOT, StoredEntry, end_of_prefix};
use crate::bytes::Bytes;
use crate::engine::{Direction, KeyspaceId, Scan, ScanEntries, Snapshot};
use crate::error::{Error, Result};

/// The long keys of a range, with their values.
pub(super) struct LongKeyWalk {
    snapshot: Arc<dyn Snapshot>,
    companion: KeyspaceId,
    piece_bytes: usize,
    direction: Direction,
    /// The first key of the range.
    lower: Vec<u8>,
    /// The end of the range, exclusive.
    upper: Option<Vec<u8>>,
    /// The levels from the first to the current one.
    levels: Vec<Level>,
    /// The pieces above the current level.
    above: Vec<u8>,
    /// The rest of the current level; `None` before it is opened.
    scan: Option<Scan>,
}

/// A level that a walk is in.
struct Level {
    chain: Chain,
    /// The pieces above the level are the first bytes of a bound, which continues in it.
    has_lower: bool,
    has_upper: bool,
}

impl LongKeyWalk {
    /// Walks the keys of the companion keyspace with `start <= key < end`.
    pub(super) fn new(
        snapshot: Arc<dyn Snapshot>,
        companion: KeyspaceId,
        piece_bytes: usize,
        (start, end): (&[u8], Option<&[u8]>),
        direction: Direction,
    ) -> Self {
        Self {
            snapshot,
            companion,
            piece_bytes,
            direction,
            lower: start.to_vec(),
            upper: end.map(<[u8]>::to_vec),
            levels: vec![Level {
                chain: ROOT,
                has_lower: true,
                has_upper: end.is_some(),
            }],
            above: Vec::new(),
            scan: None,
        }
    }

    /// Returns the bounds of the range in a level, without the pieces above it.
    fn bounds(&self, depth: usize) -> (&[u8], Option<&[u8]>) {
        let level = self.levels.get(depth);
        let skipped = depth * self.piece_bytes;
        let lower = level
            .filter(|level| level.has_lower)
            .and_then(|_| self.lower.get(skipped..));
        let upper = level
            .filter(|level| level.has_upper)
            .and_then(|_| self.upper.as_deref()?.get(skipped..));
        (lower.unwrap_or_default(), upper)
    }

    /// Opens the scan of the current level; behind all links with the piece `passed`, if there is one.
    fn open(&mut self, passed: Option<&[u8]>) -> Result<()> {
        let depth = self.levels.len() - 1;
        let chain = self.levels[depth].chain;
        let (lower, upper) = self.bounds(depth);
        let at = |bytes: &[u8]| [&chain, bytes].concat();
        // The leaf that is a piece alone is before the links with the piece.
        let links_of = |piece: &[u8]| [&chain, piece, &[0]].concat();
        let cut = |bound: &[u8]| bound.len() > self.piece_bytes;
        let mut start = match lower {
            lower if cut(lower) => links_of(&lower[..self.piece_bytes]),
            lower => at(lower),
        };
        let mut end = match upper {
            None => end_of_prefix(chain.to_vec()),
            Some(upper) if cut(upper) => end_of_prefix(at(&upper[..self.piece_bytes])),
            Some(upper) => Some(at(upper)),
        };
        match (passed, self.direction) {
            (None, _) => {}
            (Some(piece), Direction::Backward) => end = Some(links_of(piece)),
            (Some(piece), Direction::Forward) => match end_of_prefix(at(piece)) {
                Some(behind) => start = behind,
                None => end = Some(start.clone()),
            },
        }
        let scan = self
            .snapshot
            .scan(self.companion, &start, end.as_deref(), self.direction)?;
        self.scan = Some(scan);
        Ok(())
    }

    /// Enters the level below a piece.
    fn descend(&mut self, piece: &[u8]) -> Result<()> {
        let depth = self.levels.len() - 1;
        let (lower, upper) = self.bounds(depth);
        let continues = |bound: &[u8]| bound.len() > piece.len() && bound.starts_with(piece);
        let below = Level {
            chain: form::chain_below(&self.levels[depth].chain, piece),
            has_lower: continues(lower),
            has_upper: upper.is_some_and(continues),
        };
        self.levels.push(below);
        self.above.extend_from_slice(piece);
        self.open(None)
    }

    /// Continues in the level above the current one; from the first level to the end.
    fn ascend(&mut self) -> Result<()> {
        self.levels.pop();
        self.scan = None;
        let Some(depth) = self.levels.len().checked_sub(1) else {
            return Ok(());
        };
        let piece = self.above.split_off(depth * self.piece_bytes);
        self.open(Some(&piece))
    }

    /// Returns the next key; `None` at the end.
    fn advance(&mut self) -> Result<Option<(Bytes, Bytes)>> {
        if self.scan.is_none() {
            self.open(None)?;
        }
        loop {
            let Some((stored, value)) = self.scan.as_mut().and_then(Iterator::next).transpose()?
            else {
                self.ascend()?;
                if self.levels.is_empty() {
                    return Ok(None);
                }
                continue;
            };
            match form::parse(&stored, self.piece_bytes) {
                Some(StoredEntry::Link { piece }) => self.descend(piece)?,
                Some(StoredEntry::Leaf { rest }) => {
                    let key = [&self.above[..], rest].concat();
                    return Ok(Some((Bytes::from(key), value)));
                }
                None => {
                    return Err(Error::corruption(
                        "entry of long keys",
                        std::path::Path::new(""),
                        self.companion.0,
                        "a link or a leaf",
                        format!("a key of {} bytes", stored.len()),
                    ));
                }
            }
        }
    }
}

impl ScanEntries for LongKeyWalk {}

impl Iterator for LongKeyWalk {
    type Item = Result<(Bytes, Bytes)>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.levels.is_empty() {
            return None;
        }
        let next = self.advance();
        if next.is_err() {
            self.levels.clear();
        }
        next.transpose()
    }
}
