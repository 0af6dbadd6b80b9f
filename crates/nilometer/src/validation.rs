//! The result of checking stored data.

/// Most problems described in one report; all are counted.
const PROBLEMS_LISTED_MAX: usize = 100;

/// The result of a check.
#[derive(Clone, Debug, Default)]
pub struct Validation {
    /// Buckets or records checked.
    pub checked: u64,
    /// Problems found.
    pub invalid: u64,
    /// Sound records that do not conform to the validator.
    pub non_compliant: u64,
    /// Descriptions of the first problems.
    pub problems: Vec<String>,
    /// Each index with the number of its entries.
    pub keys_per_index: Vec<(String, u64)>,
    /// How the counters of measurements differ from the buckets.
    pub miscount: Option<Miscount>,
}

/// A difference between the counters of a time series and its measurements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Miscount {
    /// What the counters say; `None` if they do not exist.
    pub counted: Option<i64>,
    /// The right value of the counter that only validation changes.
    pub base: i64,
    /// The measurements in the buckets.
    pub found: i64,
}

impl std::fmt::Display for Miscount {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { counted, found, .. } = self;
        match counted {
            None => write!(out, "measurements were not counted; there are {found}"),
            Some(counted) => write!(
                out,
                "{counted} measurements were counted; there are {found}"
            ),
        }
    }
}

impl Validation {
    /// Adds the problem of an index entry, if any.
    pub(crate) fn add_entry_problem(&mut self, problem: Option<String>) {
        self.invalid += u64::from(problem.is_some());
        if self.problems.len() < PROBLEMS_LISTED_MAX {
            self.problems.extend(problem);
        }
    }

    /// Adds the problems of one bucket or record.
    pub(crate) fn add(&mut self, problems: Vec<String>) {
        self.checked += 1;
        self.invalid += u64::from(!problems.is_empty());
        self.describe(problems);
    }

    /// Adds a problem that belongs to no bucket or record.
    pub(crate) fn note(&mut self, problem: String) {
        self.invalid += 1;
        self.describe(vec![problem]);
    }

    fn describe(&mut self, problems: Vec<String>) {
        let remaining = PROBLEMS_LISTED_MAX.saturating_sub(self.problems.len());
        self.problems.extend(problems.into_iter().take(remaining));
    }
}
