//! The run of a program, by explicit backtracking: the stack holds the branches not yet taken and the values to set back.
//! Every step is counted, so that a search can be interrupted at any place, and a search has [`STEPS_MAX`] of them.

use super::*;
use crate::eval::limits::MemoryMark;

/// Maximum steps of one search, as PCRE has it.
const STEPS_MAX: usize = 10_000_000;

/// Steps between two checks.
pub(super) const STEPS_PER_CHARGE: usize = 256;

/// Maximum entries of the stack.
const STACK_MAX: usize = 1_000_000;

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
pub(super) struct Run<'r> {
    program: &'r BacktrackProgram,
    text: &'r str,
    /// Where the search begins.
    from: usize,
    context: &'r EvalContext<'r>,
    slots: Vec<Option<usize>>,
    /// Repetitions so far, and where the last one began.
    counters: Vec<(usize, Option<usize>)>,
    stack: Vec<Entry>,
    /// The positions that look-behinds look back from.
    behind_ends: Vec<usize>,
    pub(super) steps: usize,
    pub(super) mark: MemoryMark,
}

impl<'r> Run<'r> {
    pub(super) fn new(
        program: &'r BacktrackProgram,
        text: &'r str,
        from: usize,
        context: &'r EvalContext<'r>,
    ) -> Self {
        Self {
            program,
            text,
            from,
            context,
            slots: vec![None; 2 * program.groups],
            counters: vec![(0, None); program.counters],
            stack: Vec::new(),
            behind_ends: Vec::new(),
            steps: 0,
            mark: context.mark(),
        }
    }

    /// Returns the groups of the first match at or after the beginning of the search.
    pub(super) fn search(&mut self) -> Result<Option<Groups>> {
        let mut at = self.from;
        while at <= self.text.len() {
            if self.text.is_char_boundary(at)
                && let Some(end) = self.run(0, at)?
            {
                // A `\K` has set the beginning.
                let start = self.slots.first().copied().flatten().unwrap_or(at);
                let groups = self.slots.chunks(2).map(|pair| match pair {
                    [Some(start), Some(end)] => Some(*start..*end),
                    _ => None,
                });
                let mut groups: Groups = groups.collect();
                if let Some(whole) = groups.first_mut() {
                    *whole = Some(start.min(end)..end);
                }
                return Ok(Some(groups));
            }
            at += 1;
        }
        Ok(None)
    }

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

    /// Runs one instruction; returns where to continue, or `None` if it fails.
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
            Instruction::Backref(group, casei) => match self.repeats(*group, *casei, at)? {
                Some(end) => goes_on(end),
                None => Ok(None),
            },
            Instruction::GroupMatched(group) => match self.group(*group) {
                Some(_) => goes_on(at),
                None => Ok(None),
            },
            Instruction::Condition(then, otherwise) => match self.once(place + 1, at)? {
                Some(to) => Ok(Some((*then, to))),
                None => Ok(Some((*otherwise, at))),
            },
            Instruction::KeepOut => {
                self.set_slot(0, Some(at))?;
                goes_on(at)
            }
            Instruction::SearchStart => match at == self.from {
                true => goes_on(at),
                false => Ok(None),
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

    /// Returns what a group matched.
    fn group(&self, group: usize) -> Option<&'r str> {
        match (self.slots.get(2 * group), self.slots.get(2 * group + 1)) {
            (Some(Some(start)), Some(Some(end))) => self.text.get(*start..*end),
            _ => None,
        }
    }

    /// Returns the position behind a repetition of what a group matched. Texts that differ by case may differ in length.
    fn repeats(&mut self, group: usize, casei: bool, at: usize) -> Result<Option<usize>> {
        let Some(known) = self.group(group) else {
            return Ok(None);
        };
        if !casei {
            self.context.charge_bytes(known.len())?;
            let here = self.text.get(at..at + known.len());
            return Ok((here == Some(known)).then_some(at + known.len()));
        }
        let mut to = at;
        for expected in known.chars() {
            self.step()?;
            match self.char_at(to) {
                Some(c) if c == expected || fold_case(c) == fold_case(expected) => {
                    to += c.len_utf8();
                }
                _ => return Ok(None),
            }
        }
        Ok(Some(to))
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

/// Returns the same character for all cases of one: Unicode's simple case folding.
pub(super) fn fold_case(c: char) -> char {
    let single = |mut of: std::char::ToUppercase| match (of.next(), of.next()) {
        (Some(upper), None) => upper,
        _ => c,
    };
    // The dotless i is another letter than i, though both have the capital I.
    if c == '\u{131}' {
        return c;
    }
    let upper = single(c.to_uppercase());
    let mut lower = upper.to_lowercase();
    match (lower.next(), lower.next()) {
        (Some(lower), None) => lower,
        _ => upper,
    }
}
