//! `$sort`: a pattern of paths and directions, with a limit if one follows.

use nilometer_bson::{Document, DocumentBuilder, ValueRef};

use super::needs::Needs;
use super::{PipelineContext, Stage};
use crate::error::{Error, Result, location};
use crate::eval::Dependencies;
use crate::eval::sort_key::SortPattern;

/// A parsed `$sort`.
#[derive(Clone, Debug)]
pub struct SortStage {
    /// Paths and directions.
    pub pattern: SortPattern,
    /// Greatest number of documents needed.
    pub limit: Option<u64>,
}

impl SortStage {
    /// Returns a sort without a limit.
    pub fn new(pattern: SortPattern) -> Self {
        Self {
            pattern,
            limit: None,
        }
    }

    /// Returns the argument as explain shows it.
    pub fn explain(&self) -> Document {
        let mut out = DocumentBuilder::new();
        out.append("sortKey", self.pattern.to_document());
        if let Some(limit) = self.limit {
            out.append("limit", i64::try_from(limit).unwrap_or(i64::MAX));
        }
        out.finish()
    }

    /// True if the order is random.
    pub fn is_random(&self) -> bool {
        let mut dependencies = Dependencies::default();
        self.pattern.dependencies(&mut dependencies);
        dependencies.random
    }

    /// Returns the fields that the pattern reads.
    pub fn needs(&self) -> Needs {
        let mut dependencies = Dependencies::default();
        self.pattern.dependencies(&mut dependencies);
        Needs::of(&dependencies)
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
            location::SORT_NOT_OBJECT,
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
