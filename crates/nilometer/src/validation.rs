//! What a check of stored data found.

/// Problems described in one report; more are only counted.
const PROBLEMS_TOLD_MAX: usize = 100;

/// What was found.
#[derive(Clone, Debug, Default)]
pub struct Validation {
    /// Buckets or records looked at.
    pub checked: u64,
    /// How many of them are wrong.
    pub invalid: u64,
    /// Records that are sound and not as the validator wants them.
    pub non_compliant: u64,
    /// What is wrong, for the first of them.
    pub problems: Vec<String>,
    /// Each index with the number of its entries.
    pub keys_per_index: Vec<(String, u64)>,
}

impl Validation {
    /// Notes what is wrong with an entry of an index.
    pub(crate) fn add_about_entry(&mut self, problem: Option<String>) {
        self.invalid += u64::from(problem.is_some());
        if self.problems.len() < PROBLEMS_TOLD_MAX {
            self.problems.extend(problem);
        }
    }

    /// Notes what is wrong with one bucket or record.
    pub(crate) fn add(&mut self, problems: Vec<String>) {
        self.checked += 1;
        self.invalid += u64::from(!problems.is_empty());
        self.tell(problems);
    }

    /// Notes something that is wrong beside the buckets or records.
    pub(crate) fn note(&mut self, problem: String) {
        self.invalid += 1;
        self.tell(vec![problem]);
    }

    fn tell(&mut self, problems: Vec<String>) {
        let room = PROBLEMS_TOLD_MAX.saturating_sub(self.problems.len());
        self.problems.extend(problems.into_iter().take(room));
    }
}
