//! `$sample: {size}`: draws `size` documents at random without repetition.

use nilometer_bson::{DocumentBuilder, ValueRef, doc};

use super::needs::Needs;
use super::{PipelineContext, PipelineStage, Stage};
use crate::error::{Error, Result, location};

/// A parsed `$sample`.
#[derive(Debug)]
pub struct SampleStage {
    /// Number of documents to draw.
    pub size: u64,
}

impl PipelineStage for SampleStage {
    fn name(&self) -> &'static str {
        "$sample"
    }

    fn explain(&self, name: &str, out: &mut DocumentBuilder) {
        let size = i64::try_from(self.size).unwrap_or(i64::MAX);
        out.append(name, doc! {"size": size});
    }

    fn needs(&self, after: &Needs) -> Needs {
        after.clone()
    }
}

/// Parses `$sample`.
pub(super) fn parse(
    _: &PipelineContext,
    _: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let Some(document) = value.as_document() else {
        return Err(Error::location(
            location::SAMPLE_NOT_OBJECT,
            "the $sample stage specification must be an object",
        ));
    };
    let mut size = None;
    for element in document {
        if element.name() != "size" {
            return Err(Error::location(
                location::SAMPLE_OPTION_UNKNOWN,
                format!("unrecognized option to $sample: {}", element.name()),
            ));
        }
        let value = element.value();
        if !value.is_number() {
            return Err(Error::location(
                location::SAMPLE_SIZE_NOT_NUMBER,
                "size argument to $sample must be a number",
            ));
        }
        let number = crate::query::number::truncated_i64(value);
        size = Some(
            u64::try_from(number)
                .ok()
                .filter(|n| *n > 0)
                .ok_or_else(|| {
                    Error::location(
                        location::SAMPLE_SIZE_NOT_POSITIVE,
                        "size argument to $sample must be a positive integer",
                    )
                })?,
        );
    }
    let Some(size) = size else {
        return Err(Error::location(
            location::SAMPLE_SIZE_MISSING,
            "$sample stage must specify a size",
        ));
    };
    out.push(Stage::Sample(std::sync::Arc::new(SampleStage { size })));
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::testing::code;
    use nilometer_bson::{array, doc};

    #[test]
    fn arguments_are_checked() {
        assert_eq!(code(array![doc! {"$sample": doc! {"size": 3.0}}]), 0);
        assert_eq!(code(array![doc! {"$sample": 3}]), 28_745);
        assert_eq!(code(array![doc! {"$sample": doc! {"size": "3"}}]), 28_746);
        assert_eq!(code(array![doc! {"$sample": doc! {"size": -1}}]), 28_747);
        assert_eq!(code(array![doc! {"$sample": doc! {"x": -1}}]), 28_748);
        assert_eq!(code(array![doc! {"$sample": doc! {}}]), 28_749);
    }
}
