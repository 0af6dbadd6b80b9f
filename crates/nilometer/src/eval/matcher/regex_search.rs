//! Searching large texts for linear patterns step by step, so that the search can be interrupted.
//!
//! ```text
//! text ──lazy DFA, forward──▶ end of the match ──lazy DFA, backward──▶ start ──backtracking, each
//!        state and position once──▶ groups
//! ```
//!
//! The matches are those of the `regex` crate: leftmost, and among those the first alternative. That engine cannot
//! be interrupted and searches small texts, where the number of states times the length bounds its time.

use std::ops::Range;

use regex_automata::hybrid::LazyStateID;
use regex_automata::hybrid::dfa::{Cache, DFA};
use regex_automata::nfa::thompson::{self, NFA, State, WhichCaptures};
use regex_automata::util::primitives::StateID;
use regex_automata::util::syntax;
use regex_automata::{Anchored, Input, MatchKind};

use crate::error::{Error, Result, location};
use crate::eval::EvalContext;

/// Memory of a lazy DFA before it is cleared, in bytes.
const DFA_BYTES_MAX: usize = 2 << 20;

/// States times bytes of text searched before steps are counted.
const STRIDE_WORK: usize = 1 << 16;

/// Steps counted for each stride.
const STRIDE_STEPS: usize = 1024;

/// Maximum memory for finding the groups of one match, in bytes.
const GROUPS_BYTES_MAX: usize = 64 << 20;

/// The groups of a match, the whole match first; `None` for groups that did not participate.
pub(super) type Groups = Vec<Option<Range<usize>>>;

/// Engines of one pattern that can be interrupted.
#[derive(Debug)]
pub(super) struct SteppedSearch {
    nfa: NFA,
    forward: DFA,
    backward: DFA,
}

/// One entry of the stack of the search for groups.
enum Frame {
    /// Continue in a state at a position.
    Explore(StateID, usize),
    /// Set a slot back.
    Restore(usize, Option<usize>),
}

impl SteppedSearch {
    /// Compiles a pattern that `regex` accepts; `None` if these engines do not.
    pub(super) fn compile(pattern: &str, config: syntax::Config, bytes_max: usize) -> Option<Self> {
        let hir = syntax::parse_with(pattern, &config).ok()?;
        let size = thompson::Config::new().nfa_size_limit(Some(bytes_max));
        let compile = |config: thompson::Config| {
            thompson::Compiler::new()
                .configure(config)
                .build_from_hir(&hir)
                .ok()
        };
        let nfa = compile(size.clone())?;
        let reverse = compile(size.reverse(true).which_captures(WhichCaptures::None))?;
        let config = DFA::config()
            .cache_capacity(DFA_BYTES_MAX)
            .skip_cache_capacity_check(true);
        let build = |config, nfa: &NFA| {
            DFA::builder()
                .configure(config)
                .build_from_nfa(nfa.clone())
                .ok()
        };
        Some(Self {
            forward: build(config.clone(), &nfa)?,
            backward: build(config.match_kind(MatchKind::All), &reverse)?,
            nfa,
        })
    }

    /// Returns the number of states, which bounds the time for each byte.
    pub(super) fn states(&self) -> usize {
        self.nfa.states().len()
    }

    /// Returns the bytes of the compiled engines.
    #[cfg(test)]
    pub(super) fn memory_bytes(&self) -> usize {
        self.nfa.memory_usage() + self.forward.memory_usage() + self.backward.memory_usage()
    }

    /// True if the pattern matches anywhere.
    pub(super) fn is_match(&self, text: &str, context: &EvalContext<'_>) -> Result<bool> {
        Ok(self.find_end(text, 0, true, context)?.is_some())
    }

    /// Returns the groups of the first match at or after `from`.
    pub(super) fn captures(
        &self,
        text: &str,
        from: usize,
        context: &EvalContext<'_>,
    ) -> Result<Option<Groups>> {
        let mut from = from;
        loop {
            let Some(end) = self.find_end(text, from, false, context)? else {
                return Ok(None);
            };
            let start = self.find_start(text, from..end, context)?;
            if text.is_char_boundary(start) && text.is_char_boundary(end) {
                return self.groups(text, start..end, context).map(Some);
            }
            // An empty match inside a character is none.
            from = text.ceil_char_boundary(end + 1);
            if from > text.len() {
                return Ok(None);
            }
        }
    }

    fn stride(&self) -> usize {
        (STRIDE_WORK / self.states().max(1)).clamp(1, 4096)
    }

    /// Returns the end of the leftmost match; of any match if `earliest`.
    fn find_end(
        &self,
        text: &str,
        from: usize,
        earliest: bool,
        context: &EvalContext<'_>,
    ) -> Result<Option<usize>> {
        let bytes = text.as_bytes();
        let mut cache = self.forward.create_cache();
        let input = Input::new(text).range(from..);
        let start = self.forward.start_state_forward(&mut cache, &input);
        let mut state = start.map_err(|e| failed(&e))?;
        let counts = |at: usize| !earliest || text.is_char_boundary(at);
        let mut last = None;
        let mut at = from;
        while at < bytes.len() {
            context.charge(STRIDE_STEPS)?;
            let stop = bytes.len().min(at + self.stride());
            for byte in bytes.get(at..stop).unwrap_or_default() {
                state = step(&self.forward, &mut cache, state, *byte)?;
                if state.is_match() && counts(at) {
                    last = Some(at);
                    if earliest {
                        return Ok(last);
                    }
                } else if state.is_dead() {
                    return Ok(last);
                }
                at += 1;
            }
        }
        let state = self.forward.next_eoi_state(&mut cache, state);
        if state.map_err(|e| failed(&e))?.is_match() {
            last = Some(bytes.len());
        }
        Ok(last)
    }

    /// Returns the start of the match that ends at the end of `within`.
    fn find_start(
        &self,
        text: &str,
        within: Range<usize>,
        context: &EvalContext<'_>,
    ) -> Result<usize> {
        let bytes = text.as_bytes();
        let mut cache = self.backward.create_cache();
        let input = Input::new(text)
            .range(within.clone())
            .anchored(Anchored::Yes);
        let start = self.backward.start_state_reverse(&mut cache, &input);
        let mut state = start.map_err(|e| failed(&e))?;
        let mut first = within.end;
        for (count, at) in within.clone().rev().enumerate() {
            if count % self.stride() == 0 {
                context.charge(STRIDE_STEPS)?;
            }
            let byte = bytes.get(at).copied().unwrap_or_default();
            state = step(&self.backward, &mut cache, state, byte)?;
            if state.is_match() {
                first = at + 1;
            } else if state.is_dead() {
                return Ok(first);
            }
        }
        let before = within.start.checked_sub(1).and_then(|at| bytes.get(at));
        let state = match before {
            Some(byte) => step(&self.backward, &mut cache, state, *byte)?,
            None => self
                .backward
                .next_eoi_state(&mut cache, state)
                .map_err(|e| failed(&e))?,
        };
        Ok(if state.is_match() {
            within.start
        } else {
            first
        })
    }

    /// Returns the groups of the match that fills `span`: a depth-first search through the states that visits each with
    /// each position once.
    fn groups(&self, text: &str, span: Range<usize>, context: &EvalContext<'_>) -> Result<Groups> {
        let slots = self.nfa.group_info().slot_len();
        let mut found: Vec<Option<usize>> = vec![None; slots];
        if slots > 2 {
            let width = span.len() + 1;
            let bytes = self.states().saturating_mul(width).div_ceil(8);
            if bytes > GROUPS_BYTES_MAX {
                return Err(failed(
                    &"the match is too long for the groups of the pattern",
                ));
            }
            let mark = context.mark();
            context.hold(mark, bytes)?;
            self.explore(text, &span, &mut found, context)?;
            context.release(mark);
        }
        let mut groups: Groups = found
            .chunks(2)
            .map(|pair| match pair {
                [Some(start), Some(end)] => Some(*start..*end),
                _ => None,
            })
            .collect();
        match groups.first_mut() {
            Some(whole) => *whole = Some(span),
            None => groups.push(Some(span)),
        }
        Ok(groups)
    }

    fn explore(
        &self,
        text: &str,
        span: &Range<usize>,
        slots: &mut [Option<usize>],
        context: &EvalContext<'_>,
    ) -> Result<()> {
        let width = span.len() + 1;
        let mut visited = vec![0u64; self.states().saturating_mul(width).div_ceil(64)];
        let mut stack = vec![Frame::Explore(self.nfa.start_anchored(), span.start)];
        while let Some(frame) = stack.pop() {
            context.charge(1)?;
            let (id, at) = match frame {
                Frame::Restore(slot, before) => {
                    slots[slot] = before;
                    continue;
                }
                Frame::Explore(id, at) => (id, at),
            };
            let bit = id.as_usize() * width + (at - span.start);
            let (word, mask) = (bit / 64, 1 << (bit % 64));
            if visited[word] & mask != 0 {
                continue;
            }
            visited[word] |= mask;
            let byte = text.as_bytes().get(at).copied().filter(|_| at < span.end);
            let next = match self.nfa.state(id) {
                State::ByteRange { trans } => {
                    byte.filter(|b| trans.matches_byte(*b)).map(|_| trans.next)
                }
                State::Sparse(transitions) => byte.and_then(|b| transitions.matches_byte(b)),
                State::Dense(transitions) => byte.and_then(|b| transitions.matches_byte(b)),
                State::Look { look, next } => {
                    if self.nfa.look_matcher().matches(*look, text.as_bytes(), at) {
                        stack.push(Frame::Explore(*next, at));
                    }
                    continue;
                }
                State::Union { alternates } => {
                    stack.extend(
                        alternates
                            .iter()
                            .rev()
                            .map(|next| Frame::Explore(*next, at)),
                    );
                    continue;
                }
                State::BinaryUnion { alt1, alt2 } => {
                    stack.extend([Frame::Explore(*alt2, at), Frame::Explore(*alt1, at)]);
                    continue;
                }
                State::Capture { next, slot, .. } => {
                    let slot = slot.as_usize();
                    if let Some(value) = slots.get_mut(slot) {
                        stack.push(Frame::Restore(slot, *value));
                        *value = Some(at);
                    }
                    stack.push(Frame::Explore(*next, at));
                    continue;
                }
                State::Fail => None,
                State::Match { .. } => return Ok(()),
            };
            stack.extend(next.map(|next| Frame::Explore(next, at + 1)));
        }
        Ok(())
    }
}

fn step(dfa: &DFA, cache: &mut Cache, state: LazyStateID, byte: u8) -> Result<LazyStateID> {
    dfa.next_state(cache, state, byte).map_err(|e| failed(&e))
}

fn failed(reason: &dyn std::fmt::Display) -> Error {
    Error::location(
        location::REGEX_MATCH_FAILED,
        format!("Error occurred while matching regular expression: {reason}"),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stepped(pattern: &str) -> SteppedSearch {
        SteppedSearch::compile(pattern, syntax::Config::new(), 1 << 20).expect("a pattern")
    }

    #[test]
    fn the_matches_are_those_of_the_other_engine() {
        let patterns = [
            "a",
            "a*b|a",
            "(a*)b|(a)",
            "(a|ab)(c|bcd)?",
            "(?:(a)|b)*",
            "^a",
            "a$",
            "(?m)^b$",
            "",
            "x*",
            "(x*)(é?)",
            r"(?-u:\b)a",
            "é+|(b)",
            "(a+?)(a*)",
            "((a)(b)?)+",
            "(?i)AB",
            "[^a]",
            "(?s).(.)",
            "b{2,3}?(a|$)",
            "()|a",
            "(?:)*(b)",
        ];
        let texts = [
            "",
            "a",
            "aab",
            "abcd",
            "éaé",
            "a\nb\nab",
            "bbbb",
            "aaaa",
            "xéxab ba",
            "ab\n",
        ];
        let context = EvalContext::default();
        for pattern in patterns {
            let (stepped, direct) = (stepped(pattern), regex::Regex::new(pattern).expect(pattern));
            for text in texts {
                assert_eq!(
                    stepped.is_match(text, &context).unwrap(),
                    direct.is_match(text),
                    "{pattern} {text:?}"
                );
                for from in (0..=text.len()).filter(|at| text.is_char_boundary(*at)) {
                    let expected: Option<Groups> = direct.captures_at(text, from).map(|groups| {
                        groups
                            .iter()
                            .map(|group| group.map(|g| g.range()))
                            .collect()
                    });
                    let found = stepped.captures(text, from, &context).unwrap();
                    assert_eq!(found, expected, "{pattern} in {text:?} from {from}");
                }
            }
        }
    }
}
