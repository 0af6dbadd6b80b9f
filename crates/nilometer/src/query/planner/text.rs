//! Resolution of `$text`, once the source is known.
//!
//! The text index of the collection decides which strings are searched, and in which language. A document is tested by its
//! own strings; the plan must read an index all the same, as in MongoDB ([`super::access::choose`]).

use std::sync::Arc;

use super::logical::LogicalSource;
use crate::error::{Error, Result};
use crate::eval::matcher::MatchExpression;
use crate::eval::matcher::text::index_required;
use crate::query::pipeline::{MatchStage, Stage, TextScoreStage, text_not_first};
use crate::query::source::RecordSource;
use crate::text::TextSpec;

/// Puts the `$text` of the first stage in the words of the collection's text index.
pub fn settle(source: &LogicalSource, mut stages: Vec<Stage>) -> Result<Vec<Stage>> {
    let has_text =
        |stage: &Stage| matches!(stage, Stage::Match(stage) if stage.filter.text().is_some());
    match stages.iter().rposition(has_text) {
        None => return Ok(stages),
        Some(0) => {}
        // Also behind the stages of a view, one of which may be a `$text` itself.
        Some(_) => return Err(text_not_first()),
    }
    let spec = match source {
        LogicalSource::Records(records) => {
            let is_hinted = records.forced.is_some() || records.is_natural;
            check_options(is_hinted, records.is_tail)?;
            text_index(&*records.source)?
        }
        LogicalSource::Measurements(_) | LogicalSource::Rollup(_) => return Err(text_not_first()),
        // The partitions have the index: the cut leaves it to them.
        LogicalSource::Partitions(_) => return Ok(stages),
        LogicalSource::Nothing | LogicalSource::FirstStage => return Err(index_required()),
    };
    for stage in stages.iter_mut().take(2) {
        match stage {
            Stage::Match(stage) => {
                let filter = std::mem::take(&mut stage.filter).with_text_index(&spec);
                *stage = MatchStage {
                    filter,
                    source: std::mem::take(&mut stage.source),
                };
            }
            Stage::TextScore(score) => {
                let bare = MatchExpression::Text(Arc::clone(&score.test));
                if let Some(test) = bare.with_text_index(&spec).text() {
                    *stage = TextScoreStage::of(Arc::clone(test));
                }
            }
            _ => {}
        }
    }
    Ok(stages)
}

/// Puts the `$text` of a statement's filter in the words of the collection's text index.
pub fn settle_filter(
    filter: MatchExpression,
    source: Option<&dyn RecordSource>,
    is_hinted: bool,
) -> Result<MatchExpression> {
    if filter.text().is_none() {
        return Ok(filter);
    }
    check_options(is_hinted, false)?;
    let spec = text_index(source.ok_or_else(index_required)?)?;
    Ok(filter.with_text_index(&spec))
}

fn check_options(is_hinted: bool, is_tail: bool) -> Result<()> {
    if is_tail {
        return Err(Error::bad_value(
            "text and tailable cursor not allowed in same query",
        ));
    }
    if is_hinted {
        return Err(Error::bad_value("text and hint not allowed in same query"));
    }
    Ok(())
}

/// Returns the strings that the text index of a collection covers.
fn text_index(source: &dyn RecordSource) -> Result<Arc<TextSpec>> {
    let indexes = source.indexes()?;
    let mut specs = indexes.iter().filter_map(|index| index.text());
    specs.next().map(Arc::clone).ok_or_else(index_required)
}
