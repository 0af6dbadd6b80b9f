//! `$sort`: a pattern of paths and directions, and, once a rule has found one, a limit.

use nilometer_bson::{DocumentBuilder, ValueRef};

use super::{PipelineContext, Stage};
use crate::error::{Error, Result};
use crate::eval::Dependencies;
use crate::eval::sort_key::SortPattern;
use crate::query::planner::needs::Needs;

/// `$sort`, parsed.
#[derive(Clone, Debug)]
pub struct SortStage {
    /// By what.
    pub pattern: SortPattern,
    /// Only so many are asked for.
    pub limit: Option<u64>,
}

impl SortStage {
    /// A sort of everything.
    pub fn new(pattern: SortPattern) -> Self {
        Self {
            pattern,
            limit: None,
        }
    }

    /// True if the order is drawn anew each time.
    pub fn is_random(&self) -> bool {
        let mut dependencies = Dependencies::default();
        self.pattern.dependencies(&mut dependencies);
        dependencies.random
    }

    /// The fields the pattern reads.
    pub fn needs(&self) -> Needs {
        let mut dependencies = Dependencies::default();
        self.pattern.dependencies(&mut dependencies);
        Needs::of(&dependencies)
    }

    /// Writes the stage as explain shows it.
    pub fn explain(&self, out: &mut DocumentBuilder) {
        out.begin_document("$sort");
        out.append("sortKey", self.pattern.to_document());
        if let Some(limit) = self.limit {
            out.append("limit", i64::try_from(limit).unwrap_or(i64::MAX));
        }
        out.end();
    }
}

/// Parses `$sort`.
pub(super) fn parse(
    cx: &PipelineContext,
    _: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let Some(document) = value.as_document() else {
        return Err(Error::location(
            15_973,
            "the $sort key specification must be an object",
        ));
    };
    let pattern = SortPattern::parse(document, &cx.expressions)?;
    out.push(Stage::Sort(SortStage::new(pattern)));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::code;
    use nilometer_bson::{array, doc};

    #[test]
    fn arguments_are_checked() {
        assert_eq!(code(array![doc! {"$sort": doc! {"a": 1, "b.c": -1}}]), 0);
        assert_eq!(code(array![doc! {"$sort": 1}]), 15_973);
        assert_eq!(code(array![doc! {"$sort": doc! {}}]), 15_976);
        assert_eq!(code(array![doc! {"$sort": doc! {"a": 2}}]), 15_975);
        assert_eq!(code(array![doc! {"$sort": doc! {"a": "x"}}]), 15_974);
    }
}
