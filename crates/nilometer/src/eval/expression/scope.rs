//! What one evaluation sees: the document, the context, and the bindings of `$let`, `$map` and kin.
//!
//! Bindings are frames on the machine's stack, each pointing at the one outside it; nothing is
//! allocated to bind a variable.

use nilometer_bson::{DocRef, ValueRef};

use crate::eval::variables::EvalContext;

/// Everything an expression may read.
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
    /// A scope without inner bindings.
    pub fn new(root: DocRef<'s>, context: &'s EvalContext<'s>) -> Self {
        Self {
            root,
            context,
            frames: None,
        }
    }

    /// The frame that binds `slot` on top of this scope.
    pub fn bind(&self, slot: usize, value: ValueRef<'s>) -> Frame<'s> {
        Frame {
            slot,
            value,
            outer: self.frames,
        }
    }

    /// This scope with `frame` innermost.
    pub fn within(&self, frame: &'s Frame<'s>) -> Scope<'s> {
        Scope {
            frames: Some(frame),
            ..*self
        }
    }

    /// The value of a variable: an inner binding, or one given by the caller; missing if neither.
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
