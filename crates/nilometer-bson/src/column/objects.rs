//! Encoding of objects and arrays: an interleaved section with one stream per leaf.
//!
//! ```text
//! {a: 1, b: {c: "x"}}        reference        F1 ⟨reference⟩
//! {a: 2, b: {c: "x"}}        a ─► stream 0        pieces of both streams,
//! {a: 3}                     b.c ─► stream 1      in the order a decoder needs them
//!                                             00
//! ```
//!
//! A section first *collects* values and extends its reference by their fields, then *settles*:
//! writes the reference, appends the collected values, and from then on accepts only values that
//! fit. A value that does not fit ends the section.
//!
//! [`walk`] matches a value against the reference, [`merge`] builds a reference for both. An empty
//! sub-document is part of the shape: it can be neither absent nor added.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::element::{self, Element, Elements, tag};
use super::pieces::{self, Piece, Pieces, SECTION_ARRAYS, SECTION_OBJECTS};
use super::simple8b;
use super::stream::{RawRef, StreamEncoder};

/// The empty document, collected for a missing value.
const EMPTY: &[u8] = &[5, 0, 0, 0, 0];

/// An interleaved section being built.
#[derive(Debug, Clone)]
pub(crate) struct Section {
    /// Type of its values: object or array.
    root: u8,
    reference: Vec<u8>,
    state: SectionState,
}

#[derive(Debug, Clone)]
enum SectionState {
    /// Values collected so far, and their size.
    Collecting {
        collected: Vec<Vec<u8>>,
        bytes: usize,
    },
    /// One stream per leaf of the reference.
    Running(Vec<StreamEncoder>),
}

impl Section {
    /// Creates a section with its first value.
    pub(crate) fn new(root: u8, value: &[u8]) -> Self {
        Section {
            root,
            reference: value.to_vec(),
            state: SectionState::Collecting {
                collected: vec![value.to_vec()],
                bytes: value.len(),
            },
        }
    }

    /// Returns the type of its values.
    pub(crate) fn root(&self) -> u8 {
        self.root
    }

    /// Returns the approximate number of bytes still to be written.
    pub(crate) fn size_bytes(&self) -> usize {
        match &self.state {
            // Deltas and repeats take a fraction of the collected bytes.
            SectionState::Collecting { bytes, .. } => self.reference.len() + bytes / 8,
            SectionState::Running(streams) => streams.iter().map(StreamEncoder::size_bytes).sum(),
        }
    }

    /// Adds a value. False if it does not fit this section, which must then be closed.
    pub(crate) fn append(&mut self, value: &[u8], flat: &mut StreamEncoder) -> bool {
        if let SectionState::Collecting { collected, bytes } = &mut self.state {
            let mut leaves = 0_usize;
            if !walk(&self.reference, value, &mut |_| leaves += 1) {
                match merge(&self.reference, value) {
                    Some(merged) => self.reference = merged,
                    None => return false,
                }
            }
            if leaves * 2 >= collected.len() {
                *bytes += value.len();
                collected.push(value.to_vec());
                return true;
            }
            self.settle(flat);
        }
        let SectionState::Running(streams) = &mut self.state else {
            return false;
        };
        if !walk(&self.reference, value, &mut |_| ()) {
            return false;
        }
        append_leaves(streams, &self.reference, value);
        true
    }

    /// Adds a missing value. False if this requires the section to be closed.
    pub(crate) fn skip(&mut self) -> bool {
        if Elements::new(&self.reference).any(|element| holds_empty(&element)) {
            return false;
        }
        match &mut self.state {
            SectionState::Collecting { collected, .. } => collected.push(EMPTY.to_vec()),
            SectionState::Running(streams) => streams.iter_mut().for_each(StreamEncoder::skip),
        }
        true
    }

    /// Writes the reference and starts the streams with the collected values.
    fn settle(&mut self, flat: &mut StreamEncoder) {
        let SectionState::Collecting { collected, .. } = &mut self.state else {
            return;
        };
        let collected = std::mem::take(collected);
        let kind = if self.root == tag::ARRAY {
            SECTION_ARRAYS
        } else {
            SECTION_OBJECTS
        };
        flat.blocks.bytes.push(kind);
        flat.blocks.bytes.extend_from_slice(&self.reference);
        let mut streams = Vec::new();
        for_each_leaf(&self.reference, &mut |leaf| {
            streams.push(StreamEncoder::from_base(raw(&leaf)));
        });
        for value in &collected {
            append_leaves(&mut streams, &self.reference, value);
        }
        self.state = SectionState::Running(streams);
    }

    /// Ends the section: writes the pieces of all streams and the end byte.
    pub(crate) fn close(mut self, flat: &mut StreamEncoder) {
        self.settle(flat);
        let SectionState::Running(mut streams) = self.state else {
            return;
        };
        streams.iter_mut().for_each(StreamEncoder::flush);
        let mut readers: Vec<_> = streams
            .iter()
            .map(|stream| Pieces::new(&stream.blocks.bytes))
            .collect();
        let mut queue: BinaryHeap<_> = (0..readers.len())
            .map(|at| Reverse((0_usize, at)))
            .collect();
        while let Some(Reverse((count, at))) = queue.pop() {
            let Some(reader) = readers.get_mut(at) else {
                continue;
            };
            let from = reader.offset();
            let Ok(piece) = reader.next() else {
                continue; // This stream has no more pieces.
            };
            flat.blocks
                .bytes
                .extend_from_slice(reader.between(from, reader.offset()));
            queue.push(Reverse((count + value_count(&piece), at)));
        }
        flat.blocks.bytes.push(0);
        flat.restart();
    }
}

fn value_count(piece: &Piece<'_>) -> usize {
    match piece {
        Piece::Block { words, .. } => pieces::words(words).map(simple8b::value_count).sum(),
        _ => 1,
    }
}

fn append_leaves(streams: &mut [StreamEncoder], reference: &[u8], value: &[u8]) {
    let mut streams = streams.iter_mut();
    walk(reference, value, &mut |leaf| {
        if let Some(stream) = streams.next() {
            match leaf {
                Some(leaf) => stream.append(leaf),
                None => stream.skip(),
            }
        }
    });
}

fn raw<'a>(element: &Element<'a>) -> RawRef<'a> {
    RawRef {
        tag: element.tag,
        bytes: element.value,
    }
}

/// Calls `visit` with every leaf of a document, in order.
fn for_each_leaf<'a>(document: &'a [u8], visit: &mut impl FnMut(Element<'a>)) {
    for element in Elements::new(document) {
        if element.is_nested() {
            for_each_leaf(element.value, visit);
        } else {
            visit(element);
        }
    }
}

/// True if an element is or contains an empty sub-document.
fn holds_empty(element: &Element<'_>) -> bool {
    element.is_nested()
        && (element.is_empty_nested() || element.children().any(|child| holds_empty(&child)))
}

/// True if a document contains a value that is not a document, at any depth.
pub(crate) fn holds_scalar(document: &[u8]) -> bool {
    Elements::new(document).any(|element| !element.is_nested() || holds_scalar(element.value))
}

/// Matches `value` against `reference` and calls `visit` once for each leaf of the reference, with
/// the value at that place, if any. Returns false at the first mismatch.
fn walk<'a>(reference: &[u8], value: &'a [u8], visit: &mut impl FnMut(Option<RawRef<'a>>)) -> bool {
    let mut rest = Elements::new(value).peekable();
    for expected in Elements::new(reference) {
        let found = rest.next_if(|found| found.name == expected.name);
        let fits = match found {
            Some(found) if expected.is_nested() => {
                found.tag == expected.tag
                    && found.is_empty_nested() == expected.is_empty_nested()
                    && walk(expected.value, found.value, visit)
            }
            Some(found) if found.is_nested() => false,
            Some(found) => {
                visit(Some(raw(&found)));
                true
            }
            None => walk_absent(&expected, visit),
        };
        if !fits {
            return false;
        }
    }
    rest.next().is_none()
}

/// Visits every leaf of an absent element. False if it contains an empty sub-document.
fn walk_absent<'a>(expected: &Element<'_>, visit: &mut impl FnMut(Option<RawRef<'a>>)) -> bool {
    if !expected.is_nested() {
        visit(None);
        return true;
    }
    !expected.is_empty_nested() && expected.children().all(|child| walk_absent(&child, visit))
}

/// Returns a reference that both documents fit, if there is one.
fn merge(reference: &[u8], value: &[u8]) -> Option<Vec<u8>> {
    let mut out = vec![0; 4];
    let mut names = Vec::new();
    let mut ours = Elements::new(reference).peekable();
    let mut theirs = Elements::new(value).peekable();
    loop {
        let one_sided = match (ours.peek(), theirs.peek()) {
            (None, None) => break,
            (Some(_), None) => ours.next(),
            (None, Some(_)) => theirs.next(),
            (Some(our), Some(their)) if our.name == their.name => {
                names.push(our.name);
                merge_element(our, their, &mut out)?;
                ours.next();
                theirs.next();
                None
            }
            (Some(our), Some(_)) => {
                if theirs.clone().any(|their| their.name == our.name) {
                    theirs.next()
                } else {
                    ours.next()
                }
            }
        };
        if let Some(element) = one_sided {
            if holds_empty(&element) {
                return None;
            }
            names.push(element.name);
            push_element(&element, element.value, &mut out);
        }
    }
    names.sort_unstable();
    if names.windows(2).any(|pair| pair.first() == pair.last()) {
        return None;
    }
    out.push(0);
    let len = u32::try_from(out.len()).ok()?;
    out.get_mut(..4)?.copy_from_slice(&len.to_le_bytes());
    Some(out)
}

fn merge_element(our: &Element<'_>, their: &Element<'_>, out: &mut Vec<u8>) -> Option<()> {
    if !our.is_nested() && !their.is_nested() {
        push_element(our, our.value, out);
        return Some(());
    }
    if our.tag != their.tag || our.is_empty_nested() != their.is_empty_nested() {
        return None;
    }
    let merged = merge(our.value, their.value)?;
    push_element(our, &merged, out);
    Some(())
}

fn push_element(element: &Element<'_>, value: &[u8], out: &mut Vec<u8>) {
    out.push(element.tag);
    out.extend_from_slice(element.name);
    out.push(0);
    out.extend_from_slice(value);
}

/// True if a value of this type and content starts or joins a section.
pub(crate) fn is_interleaved(value: RawRef<'_>) -> bool {
    element::is_nested(value.tag) && !element::is_empty_document(value.bytes)
}
