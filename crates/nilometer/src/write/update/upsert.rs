//! The initial document of an upsert: the equalities of the filter.
//!
//! `{a: 1, "b.c": 2, d: {$gt: 3}}` gives `{a: 1, b: {c: 2}}`. Equalities count at the top level of the
//! filter, in `$and`, in an `$or` of one arm, and as an `$in` of one value; a path named twice, or within another, is error 54. A
//! replacement takes only `_id` from the filter.

use nilometer_bson::{Document, DocumentBuilder, Value};

use super::{Update, UpdateKind};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::matcher::{CompareOp, MatchExpression};

/// A tree of the paths of the equalities.
enum EqualityTree {
    Value(Value),
    Object(Vec<(String, EqualityTree)>),
}

/// Returns the document [`Update::apply_to_new`] starts from.
pub fn document_of_filter(filter: &MatchExpression, update: &Update) -> Result<Document> {
    let mut found = Vec::new();
    collect(filter, &mut found);
    if matches!(update.kind, UpdateKind::Replacement(_)) {
        found.retain(|(path, _)| path == "_id" || path.starts_with("_id."));
        if let Some((path, _)) = found.iter().find(|(path, _)| path != "_id") {
            return Err(Error::new(
                ErrorCode::NotExactValueField,
                format!(
                    "field at '_id' must be exactly specified, field at sub-path '{path}' found"
                ),
            ));
        }
    }
    let mut root = Vec::new();
    for (path, value) in found {
        let names: Vec<&str> = path.split('.').collect();
        insert(&mut root, &names, value, &path)?;
    }
    let mut out = DocumentBuilder::new();
    write(&root, &mut out);
    Ok(out.finish())
}

fn collect(filter: &MatchExpression, out: &mut Vec<(String, Value)>) {
    match filter {
        MatchExpression::And(arms) => arms.iter().for_each(|arm| collect(arm, out)),
        MatchExpression::Or(arms) => {
            if let [arm] = &**arms {
                collect(arm, out);
            }
        }
        MatchExpression::Compare(comparison) if comparison.op == CompareOp::Eq => {
            out.push((
                comparison.path.as_str().to_owned(),
                comparison.value.clone(),
            ));
        }
        MatchExpression::In(list) if list.patterns().is_empty() => {
            if let [value] = list.values() {
                out.push((list.path.as_str().to_owned(), value.clone()));
            }
        }
        _ => {}
    }
}

fn insert(
    fields: &mut Vec<(String, EqualityTree)>,
    names: &[&str],
    value: Value,
    path: &str,
) -> Result<()> {
    let Some((name, rest)) = names.split_first() else {
        return Ok(());
    };
    let at = fields.iter().position(|(known, _)| known == name);
    let known = at.and_then(|at| fields.get_mut(at)).map(|(_, tree)| tree);
    match (known, rest.is_empty()) {
        (None, true) => {
            fields.push(((*name).to_owned(), EqualityTree::Value(value)));
            Ok(())
        }
        (None, false) => {
            let mut below = Vec::new();
            insert(&mut below, rest, value, path)?;
            fields.push(((*name).to_owned(), EqualityTree::Object(below)));
            Ok(())
        }
        (Some(EqualityTree::Object(below)), false) => insert(below, rest, value, path),
        (Some(EqualityTree::Value(_)), true) => {
            Err(twice(format!("path '{path}' is matched twice")))
        }
        (Some(_), _) => Err(twice(format!(
            "both a path and one within it are matched at '{path}'"
        ))),
    }
}

fn twice(text: String) -> Error {
    Error::new(
        ErrorCode::NotSingleValueField,
        format!("cannot infer query fields to set, {text}"),
    )
}

fn write(fields: &[(String, EqualityTree)], out: &mut DocumentBuilder) {
    for (name, tree) in fields {
        match tree {
            EqualityTree::Value(value) => {
                out.append(name, value.clone());
            }
            EqualityTree::Object(below) => {
                out.begin_document(name);
                write(below, out);
                out.end();
            }
        }
    }
}
