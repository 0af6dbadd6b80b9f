//! What a set of documents consists of.

use nilometer_bson::Document;

use super::questions::Question;
use crate::target::Outcome;

/// How the collections of a set are created.
pub(crate) struct Layout {
    pub(crate) name: &'static str,
    pub(crate) collections: Vec<Collection>,
}

/// One collection of a layout.
pub(crate) struct Collection {
    pub(crate) name: &'static str,
    /// The option `timeseries`.
    pub(crate) timeseries: Option<Document>,
    /// Keys of indexes, created before loading.
    pub(crate) indexes: Vec<Document>,
}

impl Collection {
    /// Returns an ordinary collection without indexes.
    pub(crate) fn ordinary(name: &'static str) -> Self {
        Self {
            name,
            timeseries: None,
            indexes: Vec::new(),
        }
    }

    /// Adds an index.
    #[must_use]
    pub(crate) fn with_index(mut self, key: Document) -> Self {
        self.indexes.push(key);
        self
    }
}

/// Receives generated documents.
pub(crate) type Receiver<'r> = dyn FnMut(&Document) -> Outcome + 'r;

/// A generated data set with its questions.
pub(crate) trait DocumentSet {
    /// Returns the name, also that of the databases.
    fn name(&self) -> &'static str;

    /// Returns the layouts; the first one is the reference for the answers of the others.
    fn layouts(&self) -> Vec<Layout>;

    /// Generates the documents of a collection.
    fn generate(&self, layout: &Layout, collection: &str, receive: &mut Receiver<'_>) -> Outcome;

    /// Returns the questions, as a layout asks them.
    fn questions(&self, layout: &str) -> Outcome<Vec<Question>>;

    /// Computes the answer to a question from the generated values; none if the generator cannot.
    fn answer(&self, question: &str) -> Option<Vec<Document>>;
}
