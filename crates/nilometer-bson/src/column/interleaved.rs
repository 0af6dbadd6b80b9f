//! The reference document of an interleaved section: which streams exist, and how their values form
//! a document.
//!
//! ```text
//! reference {a: 1, b: {c: "x", e: {}}, d: [7]}
//!
//! F1, F2    streams  a   b.c   d.0          arrays are taken apart too
//! F0        streams  a   b.c   d            (legacy) an array is one value
//!
//! row       (5, missing, 8)   ─►   {a: 5, b: {e: {}}, d: [8]}
//! row       (missing …)       ─►   missing, if the reference holds no empty document
//! ```
//!
//! Names and nesting are taken from the reference, types and values from the streams.

use super::element::{self, Element, Elements, tag};
use super::error::ColumnError;
use super::pieces::{SECTION_ARRAYS, SECTION_LEGACY};
use super::reference_decoder::Budget;
use super::stream::RawRef;

/// Memory of one stream decoder, without its values.
const STREAM_BYTES: usize = 256;

/// One step in writing a document.
#[derive(Debug, Clone, Copy)]
enum WriteStep<'a> {
    /// Writes the next stream's value under this name.
    Leaf(Element<'a>),
    /// Starts a sub-document, which is dropped if it stays empty.
    Begin(Element<'a>),
    /// Writes a sub-document that is empty in the reference.
    Empty(Element<'a>),
    /// Ends the innermost sub-document.
    End,
}

/// Where the values of a path are in a section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PathPlace {
    /// In the stream with this number.
    Leaf(usize),
    /// No value has the field.
    Nowhere,
    /// In several streams, or behind an array: they must be found in whole values.
    InWhole,
}

/// The document shape of a section's values. See the module.
#[derive(Debug, Clone)]
pub(crate) struct Reference<'a> {
    root: u8,
    steps: Vec<WriteStep<'a>>,
}

impl<'a> Reference<'a> {
    /// Parses the validated reference document of a section of kind `kind` at `offset`. Charges the
    /// memory of its streams to `budget`.
    pub(crate) fn new(
        kind: u8,
        document: &'a [u8],
        offset: usize,
        budget: &mut Budget,
    ) -> Result<Self, ColumnError> {
        let mut steps = Vec::new();
        plan(document, kind == SECTION_LEGACY, &mut steps, budget)?;
        if !steps.iter().any(|step| matches!(step, WriteStep::Leaf(_))) {
            return Err(ColumnError::NoStreams { offset });
        }
        let root = if kind == SECTION_ARRAYS {
            tag::ARRAY
        } else {
            tag::OBJECT
        };
        Ok(Reference { root, steps })
    }

    /// Returns the type of the section's values.
    pub(crate) fn root(&self) -> u8 {
        self.root
    }

    /// Returns the values that the streams start from, in order.
    pub(crate) fn leaves(&self) -> impl Iterator<Item = RawRef<'a>> + '_ {
        self.steps.iter().filter_map(|step| match step {
            WriteStep::Leaf(element) => Some(RawRef {
                tag: element.tag,
                bytes: element.value,
            }),
            _ => None,
        })
    }

    /// Finds a dotted path below the section's values.
    pub(crate) fn find(&self, path: &str) -> PathPlace {
        if self.root != tag::OBJECT {
            return PathPlace::InWhole;
        }
        let names: Vec<&[u8]> = path.split('.').map(str::as_bytes).collect();
        let mut found = PathPlace::Nowhere;
        // The first parts of the path that are open, and the open documents beside the path.
        let (mut depth, mut beside, mut leaf) = (0, 0, 0);
        let mut known = vec![false; names.len()];
        for step in &self.steps {
            let (element, is_leaf) = match step {
                WriteStep::End => {
                    match beside {
                        0 => depth -= 1,
                        _ => beside -= 1,
                    }
                    continue;
                }
                WriteStep::Leaf(element) => (element, true),
                WriteStep::Begin(element) | WriteStep::Empty(element) => (element, false),
            };
            let at = leaf;
            leaf += usize::from(is_leaf);
            let is_on_path = beside == 0 && names.get(depth) == Some(&element.name);
            if !is_on_path {
                beside += usize::from(matches!(step, WriteStep::Begin(_)));
                continue;
            }
            // A second field of the same name would take the place of the first where that is missing.
            match known.get_mut(depth) {
                Some(known) if !*known => *known = true,
                _ => return PathPlace::InWhole,
            }
            let is_last = depth + 1 == names.len();
            match step {
                WriteStep::Leaf(_) if is_last => found = PathPlace::Leaf(at),
                WriteStep::Begin(element) if !is_last && element.tag == tag::OBJECT => depth += 1,
                // A stream may have values of other types than the reference: objects and arrays, too.
                _ => return PathPlace::InWhole,
            }
        }
        found
    }

    /// Builds the document of one row. `write` is called for each stream in order with the name of
    /// its leaf, and appends the element unless it is missing. `None` if the whole value is
    /// missing.
    pub(crate) fn assemble(&self, mut write: impl FnMut(&[u8], &mut Vec<u8>)) -> Option<Vec<u8>> {
        let mut out = vec![0; 4];
        // Offsets of element and content of each open sub-document.
        let mut open = Vec::new();
        for step in &self.steps {
            match step {
                WriteStep::Leaf(element) => write(element.name, &mut out),
                WriteStep::Begin(element) => {
                    let start = out.len();
                    push_header(element.tag, element.name, &mut out);
                    open.push((start, out.len()));
                    out.extend_from_slice(&[0; 4]);
                }
                WriteStep::Empty(element) => {
                    push_header(element.tag, element.name, &mut out);
                    out.extend_from_slice(element.value);
                }
                WriteStep::End => {
                    if let Some((start, content)) = open.pop() {
                        if out.len() == content + 4 {
                            out.truncate(start);
                        } else {
                            close(content, &mut out);
                        }
                    }
                }
            }
        }
        if out.len() == 4 {
            return None;
        }
        close(0, &mut out);
        Some(out)
    }
}

fn plan<'a>(
    document: &'a [u8],
    legacy: bool,
    steps: &mut Vec<WriteStep<'a>>,
    budget: &mut Budget,
) -> Result<(), ColumnError> {
    for element in Elements::new(document) {
        budget.take_bytes(STREAM_BYTES)?;
        let enter = element.tag == tag::OBJECT || (element.tag == tag::ARRAY && !legacy);
        if !enter {
            steps.push(WriteStep::Leaf(element));
        } else if element::is_empty_document(element.value) {
            steps.push(WriteStep::Empty(element));
        } else {
            steps.push(WriteStep::Begin(element));
            plan(element.value, legacy, steps, budget)?;
            steps.push(WriteStep::End);
        }
    }
    Ok(())
}

/// Appends the type and name of an element.
pub(crate) fn push_header(tag: u8, name: &[u8], out: &mut Vec<u8>) {
    out.push(tag);
    out.extend_from_slice(name);
    out.push(0);
}

/// Finishes the document that starts at `start`.
fn close(start: usize, out: &mut Vec<u8>) {
    out.push(0);
    let len = u32::try_from(out.len() - start).unwrap_or(u32::MAX);
    let length = out.get_mut(start..start + 4);
    let length = length.expect("an open document starts with its length");
    length.copy_from_slice(&len.to_le_bytes());
}
