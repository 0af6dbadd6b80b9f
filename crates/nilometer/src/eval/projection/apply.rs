//! Application of a projection: iterates over document and tree of names in parallel and writes the
//! new document.

use nilometer_bson::{ArrayRef, DocRef, DocumentBuilder, Element, Value, ValueRef};

use super::tree::{Child, FieldAction, ProjectionNode};
use super::{ProjectionInput, array_operators};
use crate::error::Result;
use crate::eval::EvalContext;
use crate::eval::limits::MemoryMark;

/// What happens to fields that are not in the tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Include,
    Exclude,
    Add,
}

/// State shared by the whole application to one document.
#[derive(Clone, Copy)]
pub(super) struct ApplyContext<'a> {
    pub(super) mode: Mode,
    /// The input document, which expressions read.
    pub(super) root: DocRef<'a>,
    pub(super) ctx: &'a EvalContext<'a>,
    pub(super) input: &'a ProjectionInput<'a>,
    /// Values of the slots in the tree.
    pub(super) slots: &'a [Value],
    /// True inside an array that is an element of an array, where `$slice` does not apply.
    pub(super) in_nested_array: bool,
    /// The live memory before the first computed field.
    pub(super) mark: MemoryMark,
}

/// Children already written: a bitmap, as specifications rarely have more than 64 names on a level.
#[derive(Default)]
struct WrittenSet {
    first: u64,
    rest: Vec<u64>,
}

impl WrittenSet {
    fn set(&mut self, at: usize) {
        if at < 64 {
            self.first |= 1 << at;
        } else {
            let word = at / 64 - 1;
            if self.rest.len() <= word {
                self.rest.resize(word + 1, 0);
            }
            self.rest[word] |= 1 << (at % 64);
        }
    }

    fn has(&self, at: usize) -> bool {
        if at < 64 {
            self.first >> at & 1 == 1
        } else {
            let word = self.rest.get(at / 64 - 1).copied().unwrap_or(0);
            word >> (at % 64) & 1 == 1
        }
    }
}

/// Writes the fields of `doc` according to `node`, then the computed fields that did not exist.
pub(super) fn write_fields(
    node: &ProjectionNode,
    env: &ApplyContext<'_>,
    doc: DocRef<'_>,
    out: &mut DocumentBuilder,
) -> Result<()> {
    let mut written = WrittenSet::default();
    for element in doc {
        let Some((at, child)) = node.find(element.name_bytes()) else {
            if env.mode != Mode::Include {
                out.append_element(element);
            }
            continue;
        };
        match &child.item {
            FieldAction::Keep => {
                out.append_element(element);
            }
            FieldAction::Drop => {}
            FieldAction::Slice(_) if env.in_nested_array => {
                out.append_element(element);
            }
            FieldAction::Slice(slice) => slice.write(element, out),
            FieldAction::Nested(inner) => {
                if write_nested(inner, env, element, out)? {
                    written.set(at);
                }
            }
            // In an inclusion computed fields follow the kept ones.
            FieldAction::Computed(_)
            | FieldAction::ElemMatch(_)
            | FieldAction::Meta(_)
            | FieldAction::Slot(_) => {
                if env.mode != Mode::Include && !written.has(at) {
                    written.set(at);
                    write_computed(child, env, out)?;
                }
            }
        }
    }
    if node.computes {
        for (at, child) in node.children.iter().enumerate() {
            if !written.has(at) {
                write_computed(child, env, out)?;
            }
        }
    }
    Ok(())
}

/// Writes a field that has names below it; returns false if it was left out.
fn write_nested(
    node: &ProjectionNode,
    env: &ApplyContext<'_>,
    element: Element<'_>,
    out: &mut DocumentBuilder,
) -> Result<bool> {
    match element.value() {
        ValueRef::Document(doc) => {
            out.begin_document(element.name());
            write_fields(node, env, doc, out)?;
            out.end();
        }
        ValueRef::Array(array) => {
            out.begin_array(element.name());
            write_elements(node, env, array, out)?;
            out.end();
        }
        _ => match env.mode {
            Mode::Include => return Ok(false),
            Mode::Exclude => {
                out.append_element(element);
            }
            Mode::Add => write_new(element.name(), node, env, out)?,
        },
    }
    Ok(true)
}

/// Writes the elements of an array for which the tree has names below.
fn write_elements(
    node: &ProjectionNode,
    env: &ApplyContext<'_>,
    array: ArrayRef<'_>,
    out: &mut DocumentBuilder,
) -> Result<()> {
    let mut count = 0;
    for value in array.iter() {
        match value {
            ValueRef::Document(doc) => {
                out.begin_document(&count.to_string());
                write_fields(node, env, doc, out)?;
                out.end();
            }
            ValueRef::Array(inner) => {
                let nested = ApplyContext {
                    in_nested_array: true,
                    ..*env
                };
                out.begin_array(&count.to_string());
                write_elements(node, &nested, inner, out)?;
                out.end();
            }
            scalar => match env.mode {
                Mode::Include => continue,
                Mode::Exclude => {
                    out.append_indexed(count, scalar);
                }
                Mode::Add => write_new(&count.to_string(), node, env, out)?,
            },
        }
        count += 1;
    }
    Ok(())
}

/// Writes an object that holds only computed fields.
fn write_new(
    name: &str,
    node: &ProjectionNode,
    env: &ApplyContext<'_>,
    out: &mut DocumentBuilder,
) -> Result<()> {
    out.begin_document(name);
    for child in &node.children {
        write_computed(child, env, out)?;
    }
    out.end();
    Ok(())
}

/// Writes a computed field; nothing for other items.
fn write_computed(child: &Child, env: &ApplyContext<'_>, out: &mut DocumentBuilder) -> Result<()> {
    let name = &child.name;
    match &child.item {
        FieldAction::Computed(expression) => {
            let value = expression.evaluate_ref(env.root, env.ctx)?;
            out.append_ref(name, value.as_ref());
            env.ctx.hold(env.mark, out.len())?;
        }
        FieldAction::Slot(at) => {
            let value = env.slots.get(*at).map_or(ValueRef::Missing, Value::as_ref);
            out.append_ref(name, value);
        }
        FieldAction::Nested(node) if node.computes => write_new(name, node, env, out)?,
        FieldAction::Meta(meta) => {
            out.append_ref(name, env.input.meta(*meta, env.root)?);
        }
        FieldAction::ElemMatch(filter) => {
            array_operators::write_elem_match(name, filter, env.root, env.ctx, out)?;
        }
        _ => {}
    }
    Ok(())
}
