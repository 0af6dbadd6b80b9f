//! `arrayFilters`: the elements that `$[x]` selects.
//!
//! Each filter is on one identifier: `{"x.grade": {$gte: 5}}` or `{x: {$gt: 3}}`. An element is tested as
//! the value of a field of that name, so that a filter has the same meaning as elsewhere.

use std::collections::{BTreeMap, BTreeSet};

use nilometer_bson::{ArrayRef, DocRef, DocumentBuilder, ValueRef};

use super::node::DocumentNode;
use crate::error::{Error, Result};
use crate::eval::matcher::MatchExpression;
use crate::eval::{EvalContext, ParseContext};

/// The parsed filters by identifier.
#[derive(Debug, Default)]
pub(super) struct ArrayFilters(BTreeMap<String, MatchExpression>);

impl ArrayFilters {
    /// Parses the option.
    pub(super) fn parse(filters: Option<ArrayRef<'_>>, ctx: &ParseContext) -> Result<Self> {
        let mut out = BTreeMap::new();
        for filter in filters.into_iter().flat_map(ArrayRef::iter) {
            let ValueRef::Document(filter) = filter else {
                return Err(Error::type_mismatch(format!(
                    "Each array filter must be an object, found {}",
                    filter.type_name()
                )));
            };
            let parsed = MatchExpression::parse(filter, ctx)
                .map_err(|error| error.context("Error parsing array filter"))?;
            let name = identifier(&parsed)?;
            if out.insert(name.clone(), parsed).is_some() {
                return Err(Error::failed_to_parse(format!(
                    "Found multiple array filters with the same top-level field name {name}"
                )));
            }
        }
        Ok(Self(out))
    }

    /// Fails on an identifier without a filter.
    pub(super) fn check_known(&self, identifier: &str, path: &str) -> Result<()> {
        if self.0.contains_key(identifier) {
            return Ok(());
        }
        Err(Error::bad_value(format!(
            "No array filter found for identifier '{identifier}' in path '{path}'"
        )))
    }

    /// Fails on a filter that no path uses.
    pub(super) fn check_used(&self, used: &BTreeSet<String>, update: DocRef<'_>) -> Result<()> {
        match self.0.keys().find(|name| !used.contains(*name)) {
            None => Ok(()),
            Some(name) => Err(Error::failed_to_parse(format!(
                "The array filter for identifier '{name}' was not used in the update {}",
                nilometer_bson::extjson::to_relaxed(update)
            ))),
        }
    }

    /// True if the filter of `identifier` matches the element.
    pub(super) fn matches(
        &self,
        identifier: &str,
        element: &DocumentNode<'_>,
        eval: &EvalContext<'_>,
    ) -> Result<bool> {
        let Some(filter) = self.0.get(identifier) else {
            return Ok(false);
        };
        let mut document = DocumentBuilder::new();
        match element {
            DocumentNode::Old(value) => document.append_ref(identifier, *value),
            other => document.append(identifier, other.to_value()),
        };
        filter.matches(document.finish().as_ref(), eval)
    }
}

/// Returns the first path component that all paths of the filter share.
fn identifier(filter: &MatchExpression) -> Result<String> {
    let dependencies = filter.dependencies();
    let names = dependencies.top_level_fields();
    let mut names = names.into_iter();
    let name = match (names.next(), names.next()) {
        (Some(name), None) if !dependencies.whole => name,
        (Some(first), Some(second)) => {
            return Err(Error::failed_to_parse(format!(
                "Error parsing array filter :: caused by :: Expected a single top-level field name, \
                 found '{first}' and '{second}'"
            )));
        }
        _ => {
            return Err(Error::failed_to_parse(
                "Cannot use an expression without a top-level field name in arrayFilters",
            ));
        }
    };
    let valid = name.starts_with(|c: char| c.is_ascii_lowercase())
        && name.bytes().all(|b| b.is_ascii_alphanumeric());
    if valid {
        Ok(name.to_owned())
    } else {
        Err(Error::bad_value(format!(
            "Error parsing array filter :: caused by :: The top-level field name must be an \
             alphanumeric string beginning with a lowercase letter, found '{name}'"
        )))
    }
}
