//! The rows of a rollup: what a query gets for a bin, which is stored or was computed.

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef};
use smallvec::SmallVec;

use crate::error::Result;
use crate::eval::EvalContext;
use crate::query::exec::group::output::{SAVED_KEY, SAVED_STATES};
use crate::query::planner::physical::{RollupInput, RollupOutput, StateMapping};
use crate::rollup::RollupDefinition;

/// States of a bin that need no allocation.
const STATES_INLINE: usize = 16;

/// States of one bin.
type BinStates<'s> = SmallVec<[ValueRef<'s>; STATES_INLINE]>;

/// Makes rows of the bins of a rollup.
pub(super) struct BinRows {
    input: RollupInput,
    /// All accumulators of the rollup are asked for, in order.
    is_all: bool,
}

impl BinRows {
    /// Makes the rows that `input` asks for.
    pub(super) fn new(input: RollupInput) -> Self {
        let fields = input.rollup.definition.fields.len();
        let is_all = |mapping: &StateMapping| mapping.is_all_of(fields);
        Self {
            is_all: input.output.mapping().is_some_and(is_all),
            input,
        }
    }

    /// Returns what is asked for.
    pub(super) fn input(&self) -> &RollupInput {
        &self.input
    }

    /// Returns the row of a group with partial states; `None` if it does not pass.
    pub(super) fn row(
        &self,
        group: DocRef<'_>,
        is_stored: bool,
        eval: &EvalContext<'_>,
    ) -> Result<Option<Document>> {
        let key = group.get(SAVED_KEY).as_document().unwrap_or(DocRef::EMPTY);
        let is_tested = is_stored || !self.input.of_series;
        if let Some(filter) = self.input.key_filter.as_ref().filter(|_| is_tested)
            && !filter.matches(document_of(key).as_ref(), eval)?
        {
            return Ok(None);
        }
        let definition = &self.input.rollup.definition;
        let states = group.get(SAVED_STATES);
        // A group that was computed has the states that are asked for, and no other.
        let is_chosen = !is_stored || self.is_all;
        match &self.input.output {
            RollupOutput::Bins => Ok(Some(group.to_document())),
            RollupOutput::Documents => bin_document(definition, group, eval).map(Some),
            RollupOutput::States(mapping) => {
                // A key may become longer: a part may be a constant.
                let mut out = DocumentBuilder::with_capacity(group.as_bytes().len() + 64);
                mapping.append_key(&mut out, SAVED_KEY, key, &definition.time_name)?;
                match is_chosen {
                    true => {
                        out.append_ref(SAVED_STATES, states);
                    }
                    false => append_states(&mut out, states, &mapping.fields),
                }
                Ok(Some(out.finish()))
            }
            RollupOutput::Groups(mapping, names) => {
                let mut out = DocumentBuilder::with_capacity(group.as_bytes().len() + 64);
                mapping.append_key(&mut out, "_id", key, &definition.time_name)?;
                let mut columns = names.iter().zip(&mapping.fields);
                let mut append = |state: ValueRef<'_>| -> Result<()> {
                    if let Some((name, at)) = columns.next()
                        && let Some((_, spec)) = definition.fields.get(*at)
                    {
                        spec.append_saved(&mut out, name, (key, state), eval)?;
                    }
                    Ok(())
                };
                match states.as_array() {
                    Some(states) if is_chosen => states.iter().try_for_each(&mut append)?,
                    _ => {
                        let mut states = chosen(states, &mapping.fields).into_iter();
                        states.try_for_each(&mut append)?;
                    }
                }
                Ok(Some(out.finish()))
            }
        }
    }
}

/// Returns the states at some places of an array.
fn chosen<'s>(states: ValueRef<'s>, places: &[usize]) -> BinStates<'s> {
    let all = states.as_array().into_iter();
    let all: BinStates<'_> = all.flat_map(|states| states.iter()).collect();
    let places = places.iter();
    places.filter_map(|at| all.get(*at).copied()).collect()
}

/// Returns a group with some of its states.
pub(super) fn with_states(group: DocRef<'_>, places: &[usize]) -> Document {
    let mut out = DocumentBuilder::with_capacity(group.as_bytes().len());
    out.append_ref(SAVED_KEY, group.get(SAVED_KEY));
    append_states(&mut out, group.get(SAVED_STATES), places);
    out.finish()
}

/// Appends the states at some places of an array.
fn append_states(out: &mut DocumentBuilder, states: ValueRef<'_>, places: &[usize]) {
    out.begin_array(SAVED_STATES);
    for (at, state) in chosen(states, places).into_iter().enumerate() {
        out.append_indexed(at, state);
    }
    out.end();
}

/// Returns a document of the rollup without its accumulators.
pub(super) fn document_of(key: DocRef<'_>) -> Document {
    let mut out = DocumentBuilder::new();
    out.append("_id", Value::Document(key.to_document()));
    out.append_all(key);
    out.finish()
}

/// Returns a group with partial states as a document of the rollup.
pub(crate) fn bin_document(
    definition: &RollupDefinition,
    group: DocRef<'_>,
    eval: &EvalContext<'_>,
) -> Result<Document> {
    let key = group.get(SAVED_KEY).as_document().unwrap_or(DocRef::EMPTY);
    let states = group.get(SAVED_STATES).as_array();
    let states = states.iter().flat_map(|states| states.iter());
    let mut out = DocumentBuilder::with_capacity(2 * group.as_bytes().len());
    out.append_ref("_id", ValueRef::Document(key));
    out.append_all(key);
    for ((name, spec), saved) in definition.fields.iter().zip(states) {
        spec.append_saved(&mut out, name, (key, saved), eval)?;
    }
    Ok(out.finish())
}
