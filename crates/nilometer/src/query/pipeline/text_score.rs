//! The score of a `$text`, for `{$meta: "textScore"}`: the stage that adds it to documents.
//!
//! No client writes the stage. It stands behind the `$match` whose `$text` it scores, where a later stage reads the score
//! ([`super::meta`]).

use std::sync::Arc;

use nilometer_bson::DocumentBuilder;

use super::needs::Needs;
use super::{PipelineStage, Stage};
use crate::eval::matcher::TextTest;
use crate::eval::projection::MetaField;

/// Adds the score of a document as the field that carries it.
#[derive(Clone, Debug)]
pub struct TextScoreStage {
    /// The `$text`.
    pub test: Arc<TextTest>,
}

impl TextScoreStage {
    /// Returns the stage that adds the score of this `$text`.
    pub fn of(test: Arc<TextTest>) -> Stage {
        Stage::TextScore(Arc::new(Self { test }))
    }
}

impl PipelineStage for TextScoreStage {
    fn name(&self) -> &'static str {
        "$addFields"
    }

    fn explain(&self, name: &str, out: &mut DocumentBuilder) {
        let field = MetaField::TextScore;
        out.begin_document(name);
        out.begin_document(field.carrier());
        out.append("$meta", field.operand());
        out.end();
        out.end();
    }

    fn needs(&self, _: &Needs) -> Needs {
        // Which strings have a score depends on the index.
        Needs::All
    }
}
