//! Backtracking patterns (look-around, back references, atomic groups) on texts where a match may take long.
//!
//! ```text
//! pattern ──fancy-regex's parser──▶ tree ──compile──▶ program ──run at each position──▶ groups
//! ```
//!
//! The program is run by explicit backtracking: the stack holds the branches not yet taken and the values to set back.
//! Every step is counted, so that a search can be interrupted at any place, and a search has [`STEPS_MAX`] of them.
//! The engine of `fancy-regex` cannot be interrupted; it searches short texts, and patterns with parts that are not
//! compiled here. Both find the same matches.

use std::collections::HashMap;
use std::sync::Arc;

use fancy_regex::{Assertion, Expr, LookAround};

use super::regex_search::Groups;
use crate::error::{Error, Result, location};
use crate::eval::EvalContext;
use crate::eval::limits::MemoryMark;

/// Maximum steps of one search, as PCRE has it.
const STEPS_MAX: usize = 10_000_000;

/// Steps between two checks.
const STEPS_PER_CHARGE: usize = 256;

/// Maximum entries of the stack, as `fancy-regex` has it.
const STACK_MAX: usize = 1_000_000;

/// Maximum instructions of a program.
const PROGRAM_MAX: usize = 1 << 16;

/// Maximum nesting of a pattern.
const DEPTH_MAX: usize = 100;

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
    fn compile(inner: &str, casei: bool) -> Option<Self> {
        let others = regex::RegexBuilder::new(&format!(r"\A(?:{inner})\z"))
            .case_insensitive(casei)
            .dot_matches_new_line(true)
            .build()
            .ok()?;
        let mut ascii = [false; 128];
        for (code, is_in) in ascii.iter_mut().enumerate() {
            let c = char::from(u8::try_from(code).ok()?);
            *is_in = others.is_match(c.encode_utf8(&mut [0; 4]));
        }
        Some(Self { ascii, others })
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
    /// Matches what a group matched.
    Backref(usize),
    /// Sets a counter to 0.
    RepeatBegin(usize),
    /// Goes on to the next instruction, which enters the body, or leaves for the place.
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
struct ProgramCompiler {
    code: Vec<Instruction>,
    groups: usize,
    counters: usize,
    sets: CharSets,
}

impl BacktrackProgram {
    /// Compiles a pattern that `fancy-regex` accepts; `None` if it has a part that is not compiled here.
    pub(super) fn compile(pattern: &str) -> Option<Self> {
        let tree = Expr::parse_tree(pattern).ok()?;
        let mut compiler = ProgramCompiler {
            code: Vec::new(),
            groups: 1,
            counters: 0,
            sets: CharSets::default(),
        };
        compiler.expression(&tree.expr, 0)?;
        compiler.push(Instruction::End)?;
        Some(Self {
            code: compiler.code,
            groups: compiler.groups,
            counters: compiler.counters,
        })
    }

    /// Returns the groups of the first match at or after `from`.
    pub(super) fn captures(
        &self,
        text: &str,
        from: usize,
        context: &EvalContext<'_>,
    ) -> Result<Option<Groups>> {
        let mut run = Run {
            program: self,
            text,
            context,
            slots: vec![None; 2 * self.groups],
            counters: vec![(0, None); self.counters],
            stack: Vec::new(),
            behind_ends: Vec::new(),
            steps: 0,
            mark: context.mark(),
        };
        let found = run.search(from);
        context.release(run.mark);
        context.charge(run.steps % STEPS_PER_CHARGE)?;
        found
    }
}

impl Run<'_> {
    /// Returns the groups of the first match at or after `from`.
    fn search(&mut self, from: usize) -> Result<Option<Groups>> {
        let mut at = from;
        while at <= self.text.len() {
            if self.text.is_char_boundary(at)
                && let Some(end) = self.run(0, at)?
            {
                let groups = self.slots.chunks(2).map(|pair| match pair {
                    [Some(start), Some(end)] => Some(*start..*end),
                    _ => None,
                });
                let mut groups: Groups = groups.collect();
                if let Some(whole) = groups.first_mut() {
                    *whole = Some(at..end);
                }
                return Ok(Some(groups));
            }
            at += 1;
        }
        Ok(None)
    }
}

impl ProgramCompiler {
    fn push(&mut self, instruction: Instruction) -> Option<usize> {
        self.code.push(instruction);
        (self.code.len() <= PROGRAM_MAX).then(|| self.code.len() - 1)
    }

    /// Sets the place that an instruction refers to, to the next one.
    fn set_place(&mut self, at: usize) {
        let next = self.code.len();
        match self.code.get_mut(at) {
            Some(
                Instruction::Split(place)
                | Instruction::Jump(place)
                | Instruction::Atomic(place)
                | Instruction::RepeatNext { exit: place, .. }
                | Instruction::Look { end: place, .. },
            ) => *place = next,
            _ => unreachable!("the instruction has a place"),
        }
    }

    fn expression(&mut self, expression: &Expr, depth: usize) -> Option<()> {
        if depth > DEPTH_MAX {
            return None;
        }
        if let Some(one) = one(expression, &mut self.sets) {
            self.push(Instruction::One(one?))?;
            return Some(());
        }
        match expression {
            Expr::Empty => {}
            Expr::Assertion(assertion) => {
                is_compiled(assertion).then_some(())?;
                self.push(Instruction::Assert(*assertion))?;
            }
            Expr::Literal { val, casei } => {
                for c in val.chars() {
                    let one = self.sets.literal(c, *casei)?;
                    self.push(Instruction::One(one))?;
                }
            }
            Expr::Concat(parts) => {
                for part in parts {
                    self.expression(part, depth + 1)?;
                }
            }
            Expr::Alt(arms) => {
                let (last, others) = arms.split_last()?;
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
            // Texts that differ by case may differ in length.
            Expr::Backref {
                group,
                casei: false,
            } => {
                self.push(Instruction::Backref(*group))?;
            }
            Expr::AtomicGroup(inner) => {
                let atomic = self.push(Instruction::Atomic(0))?;
                self.expression(inner, depth + 1)?;
                self.push(Instruction::End)?;
                self.set_place(atomic);
            }
            _ => return None,
        }
        Some(())
    }

    fn look(&mut self, inner: &Expr, kind: &LookAround, depth: usize) -> Option<()> {
        let behind = match kind {
            LookAround::LookAhead | LookAround::LookAheadNeg => None,
            LookAround::LookBehind | LookAround::LookBehindNeg => {
                Some(widths(inner, 0).filter(|(_, most)| *most <= BEHIND_MAX)?)
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
        Some(())
    }

    fn repeat(
        &mut self,
        child: &Expr,
        (lo, hi, greedy): (usize, usize, bool),
        depth: usize,
    ) -> Option<()> {
        if let Some(one) = one(child, &mut self.sets) {
            let one = one?;
            self.push(Instruction::Many {
                one,
                lo,
                hi,
                greedy,
            })?;
            return Some(());
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
        Some(())
    }
}

/// The sets of a pattern, each compiled once.
#[derive(Default)]
struct CharSets(HashMap<(String, bool), Option<Arc<CharSet>>>);

impl CharSets {
    fn of(&mut self, inner: &str, casei: bool) -> Option<One> {
        let known = self.0.entry((inner.to_owned(), casei));
        let set = known.or_insert_with(|| CharSet::compile(inner, casei).map(Arc::new));
        set.clone().map(One::Set)
    }

    /// Returns a character, which may be in several cases.
    fn literal(&mut self, c: char, casei: bool) -> Option<One> {
        let has_cases = !(c.to_lowercase().eq([c]) && c.to_uppercase().eq([c]));
        match casei && has_cases {
            false => Some(One::Char(c)),
            true => self.of(&regex::escape(c.encode_utf8(&mut [0; 4])), true),
        }
    }
}

/// Returns the character of an expression that matches exactly one, or `Some(None)` if it cannot be compiled.
fn one(expression: &Expr, sets: &mut CharSets) -> Option<Option<One>> {
    match expression {
        Expr::Any {
            newline,
            crlf: false,
        } => Some(Some(match newline {
            true => One::Any,
            false => One::AnyButNewline,
        })),
        Expr::Any { .. } => Some(None),
        Expr::Literal { val, casei } => {
            let mut chars = val.chars();
            match (chars.next(), chars.next()) {
                (Some(c), None) => Some(sets.literal(c, *casei)),
                _ => None,
            }
        }
        Expr::Delegate { inner, casei } => Some(sets.of(inner, *casei)),
        _ => None,
    }
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
        Expr::Any { .. } | Expr::Delegate { .. } => Some((1, 1)),
        Expr::Literal { val, .. } => {
            let length = val.chars().count();
            Some((length, length))
        }
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

/// An entry of the stack.
enum Entry {
    /// Go on at an instruction and a position.
    Branch(usize, usize),
    /// Give back one character of a repetition: the instruction behind it, the earliest position, the current one.
    GiveBack(usize, usize, usize),
    /// Take one more character of a lazy repetition at an instruction: the position, how many more at most.
    TakeMore(usize, usize, usize),
    RestoreSlot(usize, Option<usize>),
    RestoreCounter(usize, (usize, Option<usize>)),
}

/// One search.
struct Run<'r> {
    program: &'r BacktrackProgram,
    text: &'r str,
    context: &'r EvalContext<'r>,
    slots: Vec<Option<usize>>,
    /// Repetitions so far, and where the last one began.
    counters: Vec<(usize, Option<usize>)>,
    stack: Vec<Entry>,
    /// The positions that look-behinds look back from.
    behind_ends: Vec<usize>,
    steps: usize,
    mark: MemoryMark,
}

impl Run<'_> {
    fn step(&mut self) -> Result<()> {
        self.steps += 1;
        if self.steps.is_multiple_of(STEPS_PER_CHARGE) {
            self.context.charge(STEPS_PER_CHARGE)?;
            if self.steps > STEPS_MAX {
                return Err(failed("the pattern needs too many steps"));
            }
        }
        Ok(())
    }

    fn push(&mut self, entry: Entry) -> Result<()> {
        if self.stack.len() >= STACK_MAX {
            return Err(failed("the pattern needs too much memory"));
        }
        if self.stack.len() == self.stack.capacity() {
            let bytes = 2 * self.stack.capacity() * size_of::<Entry>();
            self.context.hold(self.mark, bytes)?;
        }
        self.stack.push(entry);
        Ok(())
    }

    fn set_slot(&mut self, slot: usize, value: Option<usize>) -> Result<()> {
        if let Some(known) = self.slots.get(slot).copied() {
            self.push(Entry::RestoreSlot(slot, known))?;
            self.slots[slot] = value;
        }
        Ok(())
    }

    fn set_counter(&mut self, counter: usize, value: (usize, Option<usize>)) -> Result<()> {
        let known = self.counters[counter];
        self.push(Entry::RestoreCounter(counter, known))?;
        self.counters[counter] = value;
        Ok(())
    }

    fn char_at(&self, at: usize) -> Option<char> {
        self.text.get(at..)?.chars().next()
    }

    fn char_before(&self, at: usize) -> Option<char> {
        self.text.get(..at)?.chars().next_back()
    }

    /// Runs from an instruction to an `End`; returns the position there, or `None` after setting everything back.
    fn run(&mut self, start: usize, at: usize) -> Result<Option<usize>> {
        let base = self.stack.len();
        let mut next = Some((start, at));
        loop {
            let (place, at) = match next {
                Some(next) => next,
                None => match self.backtrack(base)? {
                    Some(next) => next,
                    None => return Ok(None),
                },
            };
            self.step()?;
            let program = self.program;
            if matches!(program.code[place], Instruction::End) {
                return Ok(Some(at));
            }
            next = self.execute(&program.code[place], place, at)?;
        }
    }

    /// Takes the latest branch above `base`.
    fn backtrack(&mut self, base: usize) -> Result<Option<(usize, usize)>> {
        while self.stack.len() > base {
            match self.stack.pop() {
                None => break,
                Some(Entry::RestoreSlot(slot, value)) => self.slots[slot] = value,
                Some(Entry::RestoreCounter(counter, value)) => self.counters[counter] = value,
                Some(Entry::Branch(place, at)) => return Ok(Some((place, at))),
                Some(Entry::GiveBack(place, least, at)) => {
                    let before = self.char_before(at).map_or(0, char::len_utf8);
                    let at = at - before;
                    if at > least {
                        self.push(Entry::GiveBack(place, least, at))?;
                    }
                    return Ok(Some((place, at)));
                }
                Some(Entry::TakeMore(place, at, more)) => {
                    let program = self.program;
                    if let Instruction::Many { one, .. } = &program.code[place]
                        && let Some(c) = self.char_at(at).filter(|c| one.accepts(*c))
                    {
                        let at = at + c.len_utf8();
                        if more > 1 {
                            self.push(Entry::TakeMore(place, at, more - 1))?;
                        }
                        return Ok(Some((place + 1, at)));
                    }
                }
            }
        }
        Ok(None)
    }

    /// Runs one instruction; returns where to go on, or `None` if it fails.
    // long function: one arm for each instruction
    fn execute(
        &mut self,
        instruction: &Instruction,
        place: usize,
        at: usize,
    ) -> Result<Option<(usize, usize)>> {
        let goes_on = |to: usize| Ok(Some((place + 1, to)));
        match instruction {
            Instruction::One(one) => match self.char_at(at) {
                Some(c) if one.accepts(c) => goes_on(at + c.len_utf8()),
                _ => Ok(None),
            },
            Instruction::Many {
                one,
                lo,
                hi,
                greedy,
            } => self.many((one, *lo, *hi, *greedy), place, at),
            Instruction::Assert(assertion) => match self.holds(assertion, at) {
                true => goes_on(at),
                false => Ok(None),
            },
            Instruction::Split(later) => {
                self.push(Entry::Branch(*later, at))?;
                goes_on(at)
            }
            Instruction::Jump(to) => Ok(Some((*to, at))),
            Instruction::Save(slot) => {
                self.set_slot(*slot, Some(at))?;
                goes_on(at)
            }
            Instruction::Backref(group) => match self.repeats(*group, at)? {
                Some(end) => goes_on(end),
                None => Ok(None),
            },
            Instruction::RepeatBegin(counter) => {
                self.set_counter(*counter, (0, None))?;
                goes_on(at)
            }
            Instruction::RepeatNext {
                counter,
                lo,
                hi,
                greedy,
                exit,
            } => {
                let (count, began) = self.counters[*counter];
                if count < *lo {
                    return goes_on(at);
                }
                // After an empty repetition all others would be empty.
                let was_empty = began == Some(at);
                if count >= *hi || was_empty {
                    return Ok(Some((*exit, at)));
                }
                let (first, later) = match greedy {
                    true => (place + 1, *exit),
                    false => (*exit, place + 1),
                };
                self.push(Entry::Branch(later, at))?;
                Ok(Some((first, at)))
            }
            Instruction::RepeatEnter(counter) => {
                let (count, _) = self.counters[*counter];
                self.set_counter(*counter, (count + 1, Some(at)))?;
                goes_on(at)
            }
            Instruction::Atomic(end) => match self.once(place + 1, at)? {
                Some(to) => Ok(Some((*end, to))),
                None => Ok(None),
            },
            Instruction::Look {
                is_negative,
                behind,
                end,
            } => {
                let found = self.looks(place + 1, *behind, at, *is_negative)?;
                Ok((found != *is_negative).then_some((*end, at)))
            }
            Instruction::BehindEnd => match self.behind_ends.last() == Some(&at) {
                true => goes_on(at),
                false => Ok(None),
            },
            Instruction::End => Ok(None),
        }
    }

    /// Repeats one character, as often as possible or as seldom.
    fn many(
        &mut self,
        (one, lo, hi, greedy): (&One, usize, usize, bool),
        place: usize,
        at: usize,
    ) -> Result<Option<(usize, usize)>> {
        let mut to = at;
        let mut count = 0;
        let wanted = if greedy { hi } else { lo };
        let mut least = (lo == 0).then_some(at);
        while count < wanted
            && let Some(c) = self.char_at(to).filter(|c| one.accepts(*c))
        {
            self.step()?;
            to += c.len_utf8();
            count += 1;
            if count == lo {
                least = Some(to);
            }
        }
        let Some(least) = least else {
            return Ok(None);
        };
        if greedy && to > least {
            self.push(Entry::GiveBack(place + 1, least, to))?;
        }
        if !greedy && hi > lo {
            self.push(Entry::TakeMore(place, to, hi - lo))?;
        }
        Ok(Some((place + 1, to)))
    }

    /// Runs instructions and drops the branches they left, but not what has to be set back.
    fn once(&mut self, start: usize, at: usize) -> Result<Option<usize>> {
        let base = self.stack.len();
        let end = self.run(start, at)?;
        let restores =
            |entry: &Entry| matches!(entry, Entry::RestoreSlot(..) | Entry::RestoreCounter(..));
        if end.is_some() {
            let left = self.stack.split_off(base);
            self.stack.extend(left.into_iter().filter(restores));
        }
        Ok(end)
    }

    /// True if the instructions match ahead or behind. Groups stay set if `is_negative` is false.
    fn looks(
        &mut self,
        start: usize,
        behind: Option<(usize, usize)>,
        at: usize,
        is_negative: bool,
    ) -> Result<bool> {
        let base = self.stack.len();
        let found = match behind {
            None => self.once(start, at)?.is_some(),
            Some((least, most)) => {
                self.behind_ends.push(at);
                let found = self.behind(start, (least, most), at);
                self.behind_ends.pop();
                found?
            }
        };
        if found && is_negative {
            // Sets everything back.
            self.backtrack(base)?;
        }
        Ok(found)
    }

    fn behind(&mut self, start: usize, (least, most): (usize, usize), at: usize) -> Result<bool> {
        let mut from = at;
        for back in 0..=most {
            self.step()?;
            if back >= least && self.once(start, from)?.is_some() {
                return Ok(true);
            }
            match self.char_before(from) {
                Some(c) => from -= c.len_utf8(),
                None => break,
            }
        }
        Ok(false)
    }

    /// Returns the position behind a repetition of what a group matched.
    fn repeats(&mut self, group: usize, at: usize) -> Result<Option<usize>> {
        let slots = (self.slots.get(2 * group), self.slots.get(2 * group + 1));
        let (Some(Some(start)), Some(Some(end))) = slots else {
            return Ok(None);
        };
        let known = self.text.get(*start..*end).unwrap_or_default();
        self.context.charge_bytes(known.len())?;
        let Some(here) = self.text.get(at..at + known.len()) else {
            return Ok(None);
        };
        Ok((known == here).then_some(at + known.len()))
    }

    fn holds(&self, assertion: &Assertion, at: usize) -> bool {
        let (before, after) = (self.char_before(at), self.char_at(at));
        match assertion {
            Assertion::StartText => at == 0,
            Assertion::EndText => at == self.text.len(),
            Assertion::StartLine { .. } => before.is_none_or(|c| c == '\n'),
            Assertion::EndLine { .. } => after.is_none_or(|c| c == '\n'),
            _ => false,
        }
    }
}

fn failed(reason: &str) -> Error {
    Error::location(
        location::REGEX_MATCH_FAILED,
        format!("Error occurred while matching regular expression: {reason}"),
    )
}

#[cfg(test)]
mod tests;
