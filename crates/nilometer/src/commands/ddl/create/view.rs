//! Views: a pipeline over a collection or another view of the same database.
//!
//! Views form a graph: the collections they are on, and those their pipelines join. It has no cycles, is at
//! most [`VIEW_DEPTH_MAX`] deep, and all views of a path have one collation. Creation and `collMod` check
//! this; a conflict between two concurrent commands is refused when the view is read.

use std::collections::HashMap;

use nilometer_bson::{ArrayRef, DocRef, Document, DocumentBuilder, ValueRef};

use super::Creation;
use super::options::collation;
use crate::catalog::{CatalogEntry, Namespace, View};
use crate::database::Database;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::{Collation, ParseContext};
use crate::query::pipeline::{PipelineContext, parse_pipeline_value};
use crate::query::planner::resolve::VIEW_DEPTH_MAX;

/// Options that views do not take.
const NOT_WITH_VIEW: &[&str] = &[
    "capped",
    "size",
    "max",
    "idIndex",
    "validator",
    "validationLevel",
    "validationAction",
    "clusteredIndex",
    "autoIndexId",
    "temp",
    "storageEngine",
    "indexOptionDefaults",
    "expireAfterSeconds",
    "changeStreamPreAndPostImages",
    "encryptedFields",
    "flags",
];

impl Creation<'_> {
    /// Creates a view.
    pub(super) fn create_view(&self, view_on: &str) -> Result<()> {
        if let Some(refused) = self.given(NOT_WITH_VIEW) {
            return Err(Error::invalid_options(format!(
                "'viewOn' is not allowed with '{refused}'"
            )));
        }
        let collation = collation(self.args)?;
        let mut options = DocumentBuilder::new();
        options.append("collation", collation.to_document());
        let view = View {
            namespace: self.namespace.clone(),
            view_on: view_on.to_owned(),
            pipeline: match self.args.array("pipeline")? {
                Some(stages) => parse_pipeline(stages, &collation)?,
                None => Vec::new(),
            },
            options: options.finish(),
            rollup: None,
        };
        match self.database.catalog().get(&self.namespace) {
            None => {
                check_graph(self.database, &view)?;
                self.database.catalog().create_view(view)
            }
            Some(CatalogEntry::View(known)) if *known == view => Ok(()),
            Some(_) => Err(self.exists()),
        }
    }
}

/// Checks the stages of a view by parsing them; they are stored unparsed.
pub(in crate::commands) fn parse_pipeline(
    stages: ArrayRef<'_>,
    collation: &Collation,
) -> Result<Vec<Document>> {
    let expressions = ParseContext::new().with_collator(collation.shared());
    let context = PipelineContext::view(expressions);
    parse_pipeline_value(&context, "'pipeline'", ValueRef::Array(stages))?;
    let documents = stages.iter().filter_map(ValueRef::as_document);
    Ok(documents.map(DocRef::to_document).collect())
}

/// Refuses a view that would be in a cycle, too deep, or over a view of another collation.
pub(in crate::commands) fn check_graph(database: &Database, view: &View) -> Result<()> {
    let mut graph = Graph {
        database,
        top: view,
        heights: HashMap::new(),
    };
    graph.height(view, 1).map(|_| ())
}

struct Graph<'a> {
    database: &'a Database,
    top: &'a View,
    /// Returns the depth of the views below and including these.
    heights: HashMap<Namespace, usize>,
}

impl Graph<'_> {
    fn height(&mut self, view: &View, depth: usize) -> Result<usize> {
        let mut below = 0;
        let mut names = vec![view.view_on.as_str()];
        let stages = view.pipeline.iter().map(Document::as_ref);
        joined(stages, &mut names);
        for name in names {
            let namespace = Namespace::new(&view.namespace.database, name)?;
            if namespace == self.top.namespace {
                return Err(Error::new(
                    ErrorCode::GraphContainsCycle,
                    format!("View cycle detected: the view {namespace} would stand on itself"),
                ));
            }
            let found = match self.database.catalog().get(&namespace) {
                Some(CatalogEntry::View(found)) if !found.is_timeseries() => found,
                _ => continue,
            };
            if found.options != self.top.options {
                return Err(Error::new(
                    ErrorCode::OptionNotSupportedOnView,
                    format!(
                        "View {} has conflicting collation with view {namespace}",
                        self.top.namespace
                    ),
                ));
            }
            let height = match self.heights.get(&namespace) {
                Some(height) => *height,
                None if depth < VIEW_DEPTH_MAX => self.height(&found, depth + 1)?,
                None => 1,
            };
            if depth + height > VIEW_DEPTH_MAX {
                return Err(Error::new(
                    ErrorCode::ViewDepthLimitExceeded,
                    format!("View depth limit exceeded; maximum depth is {VIEW_DEPTH_MAX}"),
                ));
            }
            self.heights.insert(namespace, height);
            below = below.max(height);
        }
        Ok(below + 1)
    }
}

/// Adds the collections that stages read beside their input.
fn joined<'a>(stages: impl Iterator<Item = DocRef<'a>>, names: &mut Vec<&'a str>) {
    for stage in stages {
        let Some(element) = stage.iter().next() else {
            continue;
        };
        match (element.name(), element.value()) {
            ("$unionWith", ValueRef::String(name)) => names.push(name),
            ("$lookup" | "$graphLookup" | "$unionWith", ValueRef::Document(options)) => {
                names.extend(
                    ["from", "coll"]
                        .iter()
                        .filter_map(|n| options.get(n).as_str()),
                );
                nested(options.get("pipeline"), names);
            }
            ("$facet", ValueRef::Document(facets)) => {
                facets.iter().for_each(|facet| nested(facet.value(), names));
            }
            _ => {}
        }
    }
}

fn nested<'a>(pipeline: ValueRef<'a>, names: &mut Vec<&'a str>) {
    if let ValueRef::Array(stages) = pipeline {
        joined(stages.iter().filter_map(ValueRef::as_document), names);
    }
}
