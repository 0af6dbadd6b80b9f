//! The scope of an evaluation: the document, the context, and the bindings of `$let`, `$map`,
//! `$filter` and `$reduce`.
//!
//! Bindings are frames on the call stack, each with a pointer to the enclosing one; binding a
//! variable does not allocate.

use nilometer_bson::{DocRef, ValueRef};

use crate::eval::variables::EvalContext;

/// The inputs of an expression.
#[derive(Clone, Copy, Debug)]
pub struct Scope<'s> {
    /// `$$ROOT`.
    pub root: DocRef<'s>,
    /// Time, user variables, collation, randomness.
    pub context: &'s EvalContext<'s>,
    frames: Option<&'s Frame<'s>>,
}

/// One binding.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'s> {
    slot: usize,
    value: ValueRef<'s>,
    outer: Option<&'s Frame<'s>>,
}

impl<'s> Scope<'s> {
    /// Creates a scope without inner bindings.
    pub fn new(root: DocRef<'s>, context: &'s EvalContext<'s>) -> Self {
        Self {
            root,
            context,
            frames: None,
        }
    }

    /// Creates the frame that binds `slot` in this scope.
    pub fn bind(&self, slot: usize, value: ValueRef<'s>) -> Frame<'s> {
        Frame {
            slot,
            value,
            outer: self.frames,
        }
    }

    /// Returns this scope with `frame` as the innermost.
    pub fn within(&self, frame: &'s Frame<'s>) -> Scope<'s> {
        Scope {
            frames: Some(frame),
            ..*self
        }
    }

    /// Returns the value of a variable: an inner binding or one of the context; missing if neither.
    pub fn variable(&self, slot: usize) -> ValueRef<'s> {
        if let Some(value) = self.context.variables.get(slot) {
            return value.as_ref();
        }
        let mut frame = self.frames;
        while let Some(inner) = frame {
            if inner.slot == slot {
                return inner.value;
            }
            frame = inner.outer;
        }
        ValueRef::Missing
    }
}
