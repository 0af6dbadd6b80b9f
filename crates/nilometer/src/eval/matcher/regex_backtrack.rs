//! Backtracking patterns: look-around, back references, atomic groups, conditions.
//!
//! ```text
//! pattern ──fancy-regex's parser──▶ tree ──compile──▶ program ──run at each position──▶ groups
//! ```
//!
//! The engine of `fancy-regex` cannot be interrupted, so only its parser is used. It accepts more than Perl's syntax; what is
//! not compiled here (calls of groups, absent operators) makes a pattern invalid.

mod run;

use std::collections::HashMap;
use std::sync::Arc;

use fancy_regex::{Assertion, Expr, LookAround};

use super::regex::{invalid, too_many_patterns};
use super::regex_search::Groups;
use crate::error::{Error, Result, location};
use crate::eval::{EvalContext, FoldBudget};
use run::{Run, STEPS_PER_CHARGE};

/// Maximum instructions of a program: those of the longest pattern.
const PROGRAM_MAX: usize = 1 << 17;

/// Maximum nesting of a tree. The parser allows 64 groups in each other, each of which may have a part, an alternative and a
/// repetition.
const DEPTH_MAX: usize = 300;

/// Limits of memory that sets of characters are compiled with.
const SET_BYTES: [usize; 4] = [4 << 10, 32 << 10, 256 << 10, 2 << 20];

/// Maximum characters that a look-behind may look back.
const BEHIND_MAX: usize = 255;

/// A compiled pattern.
#[derive(Debug)]
pub(super) struct BacktrackProgram {
    code: Vec<Instruction>,
    /// Groups, the whole match included.
    groups: usize,
    counters: usize,
}

/// A set of characters.
#[derive(Clone, Debug)]
struct CharSet {
    ascii: [bool; 128],
    others: regex::Regex,
}

impl CharSet {
    /// Compiles with the smallest limit of memory that suffices, which is counted.
    fn compile(inner: &str, casei: bool, budget: &FoldBudget) -> Result<Self> {
        let left = budget.pattern_bytes_left();
        for bytes in SET_BYTES.into_iter().filter(|bytes| *bytes <= left) {
            let others = regex::RegexBuilder::new(&format!(r"\A(?:{inner})\z"))
                .case_insensitive(casei)
                .dot_matches_new_line(true)
                .size_limit(bytes)
                .build();
            match others {
                Ok(others) => {
                    budget.count_pattern(bytes);
                    return Ok(Self::new(others));
                }
                Err(regex::Error::CompiledTooBig(_)) => {}
                Err(error) => return Err(invalid(&error.to_string())),
            }
        }
        Err(too_many_patterns())
    }

    fn new(others: regex::Regex) -> Self {
        let is_in = |c: char| others.is_match(c.encode_utf8(&mut [0; 4]));
        let mut ascii = [false; 128];
        for (slot, c) in ascii.iter_mut().zip('\0'..='\x7F') {
            *slot = is_in(c);
        }
        Self { ascii, others }
    }

    fn contains(&self, c: char) -> bool {
        match self.ascii.get(c as usize) {
            Some(is_in) => *is_in,
            None => self.others.is_match(c.encode_utf8(&mut [0; 4])),
        }
    }
}

/// One character that a pattern asks for.
#[derive(Clone, Debug)]
enum One {
    Any,
    AnyButNewline,
    Char(char),
    Set(Arc<CharSet>),
}

impl One {
    fn accepts(&self, c: char) -> bool {
        match self {
            Self::Any => true,
            Self::AnyButNewline => c != '\n',
            Self::Char(known) => *known == c,
            Self::Set(set) => set.contains(c),
        }
    }
}

#[derive(Clone, Debug)]
enum Instruction {
    One(One),
    /// Repeats one character from `lo` to `hi` times.
    Many {
        one: One,
        lo: usize,
        hi: usize,
        greedy: bool,
    },
    Assert(Assertion),
    /// Tries the next instruction, later the one at the place.
    Split(usize),
    Jump(usize),
    Save(usize),
    /// Matches what a group matched, in any case if the second value is true.
    Backref(usize, bool),
    /// True if a group has matched.
    GroupMatched(usize),
    /// Runs the condition behind it, once; continues at the first place if it matches, else at the second.
    Condition(usize, usize),
    /// Begins the match here.
    KeepOut,
    /// True where the search began.
    SearchStart,
    /// Sets a counter to 0.
    RepeatBegin(usize),
    /// Continues to the next instruction, which enters the body, or leaves for the place.
    RepeatNext {
        counter: usize,
        lo: usize,
        hi: usize,
        greedy: bool,
        exit: usize,
    },
    /// Counts a repetition.
    RepeatEnter(usize),
    /// Matches the instructions up to the place, once, and takes no branch of them again.
    Atomic(usize),
    /// Tests the instructions up to the place, ahead or ending here.
    Look {
        is_negative: bool,
        /// Fewest and most characters back; `None` ahead.
        behind: Option<(usize, usize)>,
        end: usize,
    },
    /// The end of a look-behind: true at the position it looks back from.
    BehindEnd,
    /// The end of the program, or of the instructions of an atomic group or a look-around.
    End,
}

/// Compiles a tree.
struct ProgramCompiler<'b> {
    code: Vec<Instruction>,
    groups: usize,
    counters: usize,
    sets: CharSets<'b>,
    /// The highest group that a back reference or a condition names.
    highest_named: usize,
}

impl BacktrackProgram {
    /// Compiles a pattern, within the memory for all patterns of a command.
    pub(super) fn compile(pattern: &str, budget: &FoldBudget) -> Result<Self> {
        let tree = Expr::parse_tree(pattern).map_err(|e| invalid(&e.to_string()))?;
        let mut compiler = ProgramCompiler {
            code: Vec::new(),
            groups: 1,
            counters: 0,
            sets: CharSets {
                known: HashMap::new(),
                budget,
            },
            highest_named: 0,
        };
        compiler.expression(&tree.expr, 0)?;
        compiler.push(Instruction::End)?;
        if compiler.highest_named >= compiler.groups {
            let name = compiler.highest_named;
            return Err(invalid(&format!("there is no group {name}")));
        }
        Ok(Self {
            code: compiler.code,
            groups: compiler.groups,
            counters: compiler.counters,
        })
    }

    /// Returns the bytes of the program without its sets, which are counted when they are compiled.
    pub(super) fn memory_bytes(&self) -> usize {
        self.code.capacity() * size_of::<Instruction>()
    }

    /// Returns the groups of the first match at or after `from`. Can be interrupted after every step.
    pub(super) fn captures(
        &self,
        text: &str,
        from: usize,
        context: &EvalContext<'_>,
    ) -> Result<Option<Groups>> {
        let mut run = Run::new(self, text, from, context);
        let found = run.search();
        context.release(run.mark);
        context.charge(run.steps % STEPS_PER_CHARGE)?;
        found
    }
}

impl ProgramCompiler<'_> {
    fn push(&mut self, instruction: Instruction) -> Result<usize> {
        if self.code.len() >= PROGRAM_MAX {
            return Err(invalid("regular expression is too large"));
        }
        self.code.push(instruction);
        Ok(self.code.len() - 1)
    }

    /// Sets the place that an instruction refers to, to the next one.
    fn set_place(&mut self, at: usize) {
        let next = self.code.len();
        match self.code.get_mut(at) {
            Some(
                Instruction::Split(place)
                | Instruction::Jump(place)
                | Instruction::Atomic(place)
                | Instruction::Condition(_, place)
                | Instruction::RepeatNext { exit: place, .. }
                | Instruction::Look { end: place, .. },
            ) => *place = next,
            _ => unreachable!("the instruction has a place"),
        }
    }

    // long function: one arm for each part of a pattern
    fn expression(&mut self, expression: &Expr, depth: usize) -> Result<()> {
        if depth > DEPTH_MAX {
            return Err(invalid("regular expression is nested too deeply"));
        }
        if let Some(one) = self.sets.one(expression)? {
            self.push(Instruction::One(one))?;
            return Ok(());
        }
        match expression {
            Expr::Empty => {}
            Expr::Assertion(assertion) => {
                if !is_compiled(assertion) {
                    return Err(unsupported());
                }
                self.push(Instruction::Assert(*assertion))?;
            }
            Expr::Literal { val, casei } => {
                for c in val.chars() {
                    let one = self.sets.literal(c, *casei)?;
                    self.push(Instruction::One(one))?;
                }
            }
            Expr::LiteralBytes { bytes } => {
                for byte in bytes {
                    self.push(Instruction::One(One::Char(char::from(*byte))))?;
                }
            }
            Expr::Concat(parts) => {
                for part in parts {
                    self.expression(part, depth + 1)?;
                }
            }
            Expr::Alt(arms) => {
                let Some((last, others)) = arms.split_last() else {
                    return Ok(());
                };
                let mut ends = Vec::new();
                for arm in others {
                    let split = self.push(Instruction::Split(0))?;
                    self.expression(arm, depth + 1)?;
                    ends.push(self.push(Instruction::Jump(0))?);
                    self.set_place(split);
                }
                self.expression(last, depth + 1)?;
                for end in ends {
                    self.set_place(end);
                }
            }
            Expr::Group(inner) => {
                let group = self.groups;
                self.groups += 1;
                self.push(Instruction::Save(2 * group))?;
                self.expression(inner, depth + 1)?;
                self.push(Instruction::Save(2 * group + 1))?;
            }
            Expr::LookAround(inner, kind) => self.look(inner, kind, depth)?,
            Expr::Repeat {
                child,
                lo,
                hi,
                greedy,
            } => self.repeat(child, (*lo, *hi, *greedy), depth)?,
            Expr::Backref { group, casei } => {
                self.highest_named = self.highest_named.max(*group);
                self.push(Instruction::Backref(*group, *casei))?;
            }
            Expr::BackrefExistsCondition {
                group,
                relative_recursion_level: None,
            } => {
                self.highest_named = self.highest_named.max(*group);
                self.push(Instruction::GroupMatched(*group))?;
            }
            Expr::Conditional {
                condition,
                true_branch,
                false_branch,
            } => self.condition([condition, true_branch, false_branch], depth)?,
            Expr::KeepOut => {
                self.push(Instruction::KeepOut)?;
            }
            Expr::ContinueFromPreviousMatchEnd => {
                self.push(Instruction::SearchStart)?;
            }
            Expr::AtomicGroup(inner) => {
                let atomic = self.push(Instruction::Atomic(0))?;
                self.expression(inner, depth + 1)?;
                self.push(Instruction::End)?;
                self.set_place(atomic);
            }
            _ => return Err(unsupported()),
        }
        Ok(())
    }

    fn condition(&mut self, [condition, then, otherwise]: [&Expr; 3], depth: usize) -> Result<()> {
        let start = self.push(Instruction::Condition(0, 0))?;
        self.expression(condition, depth + 1)?;
        self.push(Instruction::End)?;
        let next = self.code.len();
        if let Some(Instruction::Condition(place, _)) = self.code.get_mut(start) {
            *place = next;
        }
        self.expression(then, depth + 1)?;
        let jump = self.push(Instruction::Jump(0))?;
        self.set_place(start);
        self.expression(otherwise, depth + 1)?;
        self.set_place(jump);
        Ok(())
    }

    fn look(&mut self, inner: &Expr, kind: &LookAround, depth: usize) -> Result<()> {
        let behind = match kind {
            LookAround::LookAhead | LookAround::LookAheadNeg => None,
            LookAround::LookBehind | LookAround::LookBehindNeg => {
                let widths = widths(inner, 0).filter(|(_, most)| *most <= BEHIND_MAX);
                Some(widths.ok_or_else(|| invalid("a lookbehind has no bounded length"))?)
            }
        };
        let look = self.push(Instruction::Look {
            is_negative: matches!(kind, LookAround::LookAheadNeg | LookAround::LookBehindNeg),
            behind,
            end: 0,
        })?;
        self.expression(inner, depth + 1)?;
        if behind.is_some() {
            self.push(Instruction::BehindEnd)?;
        }
        self.push(Instruction::End)?;
        self.set_place(look);
        Ok(())
    }

    fn repeat(
        &mut self,
        child: &Expr,
        (lo, hi, greedy): (usize, usize, bool),
        depth: usize,
    ) -> Result<()> {
        if let Some(one) = self.sets.one(child)? {
            self.push(Instruction::Many {
                one,
                lo,
                hi,
                greedy,
            })?;
            return Ok(());
        }
        let counter = self.counters;
        self.counters += 1;
        self.push(Instruction::RepeatBegin(counter))?;
        let next = self.push(Instruction::RepeatNext {
            counter,
            lo,
            hi,
            greedy,
            exit: 0,
        })?;
        self.push(Instruction::RepeatEnter(counter))?;
        self.expression(child, depth + 1)?;
        self.push(Instruction::Jump(next))?;
        self.set_place(next);
        Ok(())
    }
}

/// The sets of a pattern, each compiled once.
struct CharSets<'b> {
    known: HashMap<(String, bool), Arc<CharSet>>,
    budget: &'b FoldBudget,
}

impl CharSets<'_> {
    fn of(&mut self, inner: &str, casei: bool) -> Result<One> {
        let key = (inner.to_owned(), casei);
        if let Some(set) = self.known.get(&key) {
            return Ok(One::Set(Arc::clone(set)));
        }
        let set = Arc::new(CharSet::compile(inner, casei, self.budget)?);
        self.known.insert(key, Arc::clone(&set));
        Ok(One::Set(set))
    }

    /// Returns a character, which may be in several cases.
    fn literal(&mut self, c: char, casei: bool) -> Result<One> {
        let has_cases = !(c.to_lowercase().eq([c]) && c.to_uppercase().eq([c]));
        match casei && has_cases {
            false => Ok(One::Char(c)),
            true => self.of(&regex::escape(c.encode_utf8(&mut [0; 4])), true),
        }
    }

    /// Returns the character of an expression that matches exactly one.
    fn one(&mut self, expression: &Expr) -> Result<Option<One>> {
        match expression {
            Expr::Any {
                newline,
                crlf: false,
            } => Ok(Some(match newline {
                true => One::Any,
                false => One::AnyButNewline,
            })),
            Expr::Any { .. } => Err(unsupported()),
            Expr::Literal { val, casei } => {
                let mut chars = val.chars();
                match (chars.next(), chars.next()) {
                    (Some(c), None) => self.literal(c, *casei).map(Some),
                    _ => Ok(None),
                }
            }
            Expr::Delegate { inner, casei } => self.of(inner, *casei).map(Some),
            _ => Ok(None),
        }
    }
}

fn unsupported() -> Error {
    invalid("a part of the regular expression is not supported")
}

fn is_compiled(assertion: &Assertion) -> bool {
    matches!(
        assertion,
        Assertion::StartText
            | Assertion::EndText
            | Assertion::StartLine { crlf: false }
            | Assertion::EndLine { crlf: false }
    )
}

/// Returns the fewest and most characters that an expression matches; `None` if that is not known.
fn widths(expression: &Expr, depth: usize) -> Option<(usize, usize)> {
    if depth > DEPTH_MAX {
        return None;
    }
    let deeper = depth + 1;
    match expression {
        Expr::Empty | Expr::Assertion(_) | Expr::LookAround(..) => Some((0, 0)),
        Expr::BackrefExistsCondition { .. } => Some((0, 0)),
        Expr::Any { .. } | Expr::Delegate { .. } => Some((1, 1)),
        Expr::Literal { val, .. } => {
            let length = val.chars().count();
            Some((length, length))
        }
        Expr::LiteralBytes { bytes } => Some((bytes.len(), bytes.len())),
        Expr::Concat(parts) => parts.iter().try_fold((0, 0), |(least, most), part| {
            let (less, more) = widths(part, deeper)?;
            Some((
                usize::checked_add(least, less)?,
                usize::checked_add(most, more)?,
            ))
        }),
        Expr::Alt(arms) => {
            let mut arms = arms.iter().map(|arm| widths(arm, deeper));
            let first = arms.next()??;
            arms.try_fold(first, |(least, most), arm| {
                let (less, more) = arm?;
                Some((least.min(less), most.max(more)))
            })
        }
        Expr::Group(inner) => widths(inner, deeper),
        Expr::AtomicGroup(inner) => widths(inner, deeper),
        Expr::Repeat { child, lo, hi, .. } => {
            let (less, more) = widths(child, deeper)?;
            Some((less.checked_mul(*lo)?, more.checked_mul(*hi)?))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests;
