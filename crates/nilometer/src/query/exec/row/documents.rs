//! Documents that come from the query itself: `$documents`, and descriptions of the server.

use nilometer_bson::{DocRef, Document};

use crate::error::{Result, location};
use crate::eval::Expression;
use crate::query::batch::Batch;
use crate::query::exec::{ExecContext, Operator, RowBatch};
use crate::query::pipeline::documents_not_an_array;

/// Returns given documents.
pub struct GivenDocuments {
    documents: std::vec::IntoIter<Document>,
}

impl GivenDocuments {
    /// Returns `documents` in order.
    pub fn new(documents: Vec<Document>) -> Self {
        Self {
            documents: documents.into_iter(),
        }
    }
}

impl Operator for GivenDocuments {
    fn next(&mut self, _: &ExecContext<'_>) -> Result<Option<Batch>> {
        let mut rows = RowBatch::default();
        while !rows.is_full()
            && let Some(row) = self.documents.next()
        {
            rows.push(row);
        }
        Ok(rows.into_batch())
    }

    fn is_exhausted(&self) -> bool {
        self.documents.len() == 0
    }
}

/// `$documents`: returns the elements of the array an expression evaluates to.
pub struct ComputedDocuments {
    expression: Expression,
    computed: Option<GivenDocuments>,
}

impl ComputedDocuments {
    /// Returns the documents of the array `expression` evaluates to.
    pub fn new(expression: Expression) -> Self {
        Self {
            expression,
            computed: None,
        }
    }
}

impl Operator for ComputedDocuments {
    fn next(&mut self, cx: &ExecContext<'_>) -> Result<Option<Batch>> {
        if self.computed.is_none() {
            let value = self.expression.evaluate(DocRef::EMPTY, &cx.eval)?;
            let Some(array) = value.as_ref().as_array() else {
                return Err(documents_not_an_array(value.as_ref()));
            };
            let mut documents = Vec::new();
            for value in array.iter() {
                let Some(document) = value.as_document() else {
                    return Err(crate::Error::location(
                        location::NEW_ROOT_NOT_OBJECT,
                        format!(
                            "'replacement document' must evaluate to an object, but an element of $documents was: {}",
                            value.type_name()
                        ),
                    ));
                };
                documents.push(document.to_document());
            }
            self.computed = Some(GivenDocuments::new(documents));
        }
        match &mut self.computed {
            Some(documents) => documents.next(cx),
            None => Ok(None),
        }
    }
}
