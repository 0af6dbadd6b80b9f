//! The states of all groups of a table, in pages: a table that grows copies none of them.

use crate::eval::accumulator::AccumulatorState;

/// Groups of a page.
const PAGE_GROUPS: usize = if cfg!(test) { 4 } else { 1024 };

/// States by group and accumulator.
pub(super) struct States {
    /// Accumulators of a group.
    width: usize,
    pages: Vec<Vec<AccumulatorState>>,
}

impl States {
    /// Creates a list for groups of `width` accumulators.
    pub(super) fn new(width: usize) -> Self {
        Self {
            width,
            pages: Vec::new(),
        }
    }

    /// Adds the next state: those of a group follow one another.
    pub(super) fn push(&mut self, state: AccumulatorState) {
        let page_states = PAGE_GROUPS * self.width;
        if self
            .pages
            .last()
            .is_none_or(|last| last.len() == page_states)
        {
            // The first page grows, since most tables have few groups.
            let first = self.pages.is_empty();
            self.pages.push(match first {
                true => Vec::with_capacity(self.width),
                false => Vec::with_capacity(page_states),
            });
        }
        if let Some(last) = self.pages.last_mut() {
            last.push(state);
        }
    }

    /// Returns the state of accumulator `at` of a group.
    pub(super) fn get(&self, group: usize, at: usize) -> Option<&AccumulatorState> {
        let page = self.pages.get(group / PAGE_GROUPS)?;
        page.get(group % PAGE_GROUPS * self.width + at)
    }

    /// Returns the state of accumulator `at` of a group, to be changed.
    pub(super) fn get_mut(&mut self, group: usize, at: usize) -> Option<&mut AccumulatorState> {
        let page = self.pages.get_mut(group / PAGE_GROUPS)?;
        page.get_mut(group % PAGE_GROUPS * self.width + at)
    }

    /// Returns the states of a group, to be changed.
    pub(super) fn of_group(&mut self, group: usize) -> &mut [AccumulatorState] {
        let first = group % PAGE_GROUPS * self.width;
        let page = self.pages.get_mut(group / PAGE_GROUPS);
        let states = page.and_then(|page| page.get_mut(first..first + self.width));
        states.unwrap_or(&mut [])
    }

    /// Removes all states and returns them, group by group.
    pub(super) fn take(&mut self) -> impl Iterator<Item = AccumulatorState> + use<> {
        std::mem::take(&mut self.pages).into_iter().flatten()
    }

    /// Removes all states.
    pub(super) fn clear(&mut self) {
        self.pages = Vec::new();
    }
}
