//! Explanation of why a document does not pass a filter: the `errInfo` of code 121.
//!
//! ```text
//! {operatorName: "$and", clausesNotSatisfied: [{index, details}]}
//! {operatorName: "$lt", specifiedAs: {a: {$lt: 3}}, reason, consideredValue}
//! {operatorName: "$jsonSchema", schemaRulesNotSatisfied: […]}       in json_schema/failure.rs
//! ```
//!
//! The source of the filter is processed clause by clause, and each clause is evaluated separately.
//! This is slow but needs no second evaluator: the results are those of [`MatchExpression`]. Below
//! `$not` and `$nor` a clause fails by holding, so the explanation is inverted.
//!
//! The explanation is meant for people. It is left out if it would be too long.

use nilometer_bson::{DocRef, Document, DocumentBuilder, Value, ValueRef};

use super::path::{LeafArrays, MatchPath};
use super::{JsonSchema, MatchExpression, parse};
use crate::error::Result;
use crate::eval::expression::is_true;
use crate::eval::{EvalContext, ParseContext};

/// Maximum number of values shown for a path with many.
const VALUES_SHOWN_MAX: usize = 10;

/// Maximum size of an explanation in bytes; a longer one is left out.
const EXPLANATION_BYTES_MAX: usize = 1 << 20;

impl MatchExpression {
    /// Explains why `document` does not pass `filter`, which was parsed with `expressions`.
    pub fn explain_failure(
        filter: DocRef<'_>,
        document: DocRef<'_>,
        expressions: &ParseContext,
        eval: &EvalContext<'_>,
    ) -> Result<Document> {
        let explainer = FailureExplainer {
            document,
            expressions,
            eval,
        };
        let explanation = explainer.all(&clauses(filter), ExpectedOutcome::Should)?;
        if explanation.as_bytes().len() <= EXPLANATION_BYTES_MAX {
            return Ok(explanation);
        }
        let mut out = DocumentBuilder::new();
        out.append_ref("operatorName", explanation.get("operatorName"));
        out.append("reason", "the explanation is too long to be shown");
        Ok(out.finish())
    }
}

/// One condition of a filter, with the filter of that condition alone.
struct Clause<'f> {
    operator: &'f str,
    specified: Document,
    kind: ClauseKind<'f>,
}

enum ClauseKind<'f> {
    /// `$and`, `$or`, `$nor`.
    Logical(Vec<Vec<Clause<'f>>>),
    /// `$not`.
    Not(Vec<Clause<'f>>),
    Schema(DocRef<'f>),
    /// An operator on a path.
    OnPath(&'f str),
    /// `$expr` and other conditions on the whole document.
    OnDocument,
}

/// Returns the clauses of a filter, in order.
fn clauses(filter: DocRef<'_>) -> Vec<Clause<'_>> {
    let mut out = Vec::new();
    for element in filter {
        let (name, value) = (element.name(), element.value());
        let alone = || {
            let mut out = DocumentBuilder::new();
            out.append_ref(name, value);
            out.finish()
        };
        match (name, value) {
            ("$comment", _) => {}
            ("$and" | "$or" | "$nor", ValueRef::Array(arms)) => {
                let arms = arms.iter().filter_map(ValueRef::as_document);
                out.push(Clause {
                    operator: name,
                    specified: alone(),
                    kind: ClauseKind::Logical(arms.map(clauses).collect()),
                });
            }
            ("$jsonSchema", ValueRef::Document(schema)) => out.push(Clause {
                operator: name,
                specified: alone(),
                kind: ClauseKind::Schema(schema),
            }),
            _ if name.starts_with('$') => out.push(Clause {
                operator: name,
                specified: alone(),
                kind: ClauseKind::OnDocument,
            }),
            (_, ValueRef::Document(operators)) if parse::is_operator_document(operators) => {
                on_path(name, operators, &mut out);
            }
            (_, value) => out.push(Clause {
                operator: match value {
                    ValueRef::Regex { .. } => "$regex",
                    _ => "$eq",
                },
                specified: alone(),
                kind: ClauseKind::OnPath(name),
            }),
        }
    }
    out
}

/// Appends the clauses of `{path: {$op: …, $op: …}}`.
fn on_path<'f>(path: &'f str, operators: DocRef<'f>, out: &mut Vec<Clause<'f>>) {
    for element in operators {
        let operator = element.name();
        // Part of `$regex`.
        if operator == "$options" {
            continue;
        }
        let mut specified = DocumentBuilder::new();
        specified.begin_document(path);
        specified.append_element(element);
        if operator == "$regex" {
            specified.append_ref("$options", operators.get("$options"));
        }
        specified.end();
        let kind = match (operator, element.value()) {
            ("$not", ValueRef::Document(inner)) => {
                let mut negated = Vec::new();
                on_path(path, inner, &mut negated);
                ClauseKind::Not(negated)
            }
            _ => ClauseKind::OnPath(path),
        };
        out.push(Clause {
            operator,
            specified: specified.finish(),
            kind,
        });
    }
}

/// The required outcome of a clause.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ExpectedOutcome {
    Should,
    ShouldNot,
}

impl ExpectedOutcome {
    fn inverse(self) -> Self {
        match self {
            Self::Should => Self::ShouldNot,
            Self::ShouldNot => Self::Should,
        }
    }
}

/// The document and context for evaluating clauses.
struct FailureExplainer<'a> {
    document: DocRef<'a>,
    expressions: &'a ParseContext,
    eval: &'a EvalContext<'a>,
}

impl FailureExplainer<'_> {
    fn holds(&self, clause: &Clause<'_>) -> Result<bool> {
        MatchExpression::parse(clause.specified.as_ref(), self.expressions)?
            .matches(self.document, self.eval)
    }

    /// True if all clauses hold.
    fn all_hold(&self, clauses: &[Clause<'_>]) -> Result<bool> {
        for clause in clauses {
            if !self.holds(clause)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Explains clauses combined by and.
    fn all(&self, clauses: &[Clause<'_>], wanted: ExpectedOutcome) -> Result<Document> {
        if let [only] = clauses {
            return self.one(only, wanted);
        }
        let arms: Vec<&[Clause<'_>]> = clauses.iter().map(std::slice::from_ref).collect();
        self.joined("$and", &arms, wanted)
    }

    fn one(&self, clause: &Clause<'_>, wanted: ExpectedOutcome) -> Result<Document> {
        match &clause.kind {
            ClauseKind::Logical(arms) => {
                let arms: Vec<&[Clause<'_>]> = arms.iter().map(Vec::as_slice).collect();
                self.joined(clause.operator, &arms, wanted)
            }
            ClauseKind::Not(inner) => {
                let mut out = DocumentBuilder::new();
                out.append("operatorName", "$not");
                out.append("details", self.all(inner, wanted.inverse())?);
                Ok(out.finish())
            }
            ClauseKind::Schema(schema) => self.schema(clause, *schema, wanted),
            ClauseKind::OnDocument => self.on_document(clause, wanted),
            ClauseKind::OnPath(path) => self.on_path(clause, path, wanted),
        }
    }

    /// Explains the arms of `$and`, `$or` or `$nor`: those with the wrong outcome.
    fn joined(
        &self,
        name: &str,
        arms: &[&[Clause<'_>]],
        wanted: ExpectedOutcome,
    ) -> Result<Document> {
        let of_arms = if name == "$nor" {
            wanted.inverse()
        } else {
            wanted
        };
        let list = match of_arms {
            ExpectedOutcome::Should => "clausesNotSatisfied",
            ExpectedOutcome::ShouldNot => "clausesSatisfied",
        };
        let mut explanation = Vec::new();
        for (index, arm) in arms.iter().enumerate() {
            if self.all_hold(arm)? == (of_arms == ExpectedOutcome::Should) {
                continue;
            }
            let mut out = DocumentBuilder::new();
            out.append("index", i32::try_from(index).unwrap_or(i32::MAX));
            out.append("details", self.all(arm, of_arms)?);
            explanation.push(Value::Document(out.finish()));
        }
        let mut out = DocumentBuilder::new();
        out.append("operatorName", name);
        out.append(list, explanation);
        Ok(out.finish())
    }

    fn schema(
        &self,
        clause: &Clause<'_>,
        schema: DocRef<'_>,
        wanted: ExpectedOutcome,
    ) -> Result<Document> {
        let mut out = DocumentBuilder::new();
        out.append("operatorName", "$jsonSchema");
        match wanted {
            ExpectedOutcome::Should => {
                for name in ["title", "description"] {
                    out.append_ref(name, schema.get(name));
                }
                let rules = JsonSchema::rules_not_satisfied(schema, self.document, self.eval)?;
                let rules: Vec<Value> = rules.into_iter().map(Value::Document).collect();
                out.append("schemaRulesNotSatisfied", rules);
            }
            ExpectedOutcome::ShouldNot => {
                out.append("specifiedAs", clause.specified.clone());
                out.append("reason", "schema matched");
            }
        }
        Ok(out.finish())
    }

    fn on_document(&self, clause: &Clause<'_>, wanted: ExpectedOutcome) -> Result<Document> {
        let mut out = DocumentBuilder::new();
        out.append("operatorName", clause.operator);
        out.append("specifiedAs", clause.specified.clone());
        let failed = wanted == ExpectedOutcome::Should;
        let parsed = MatchExpression::parse(clause.specified.as_ref(), self.expressions)?;
        if let MatchExpression::Expr(test) = &parsed {
            let reason = match failed {
                true => "expression did not match",
                false => "expression did match",
            };
            out.append("reason", reason);
            let result = test.expression.evaluate(self.document, self.eval)?;
            out.append("expressionResult", result);
        } else {
            let reason = match failed {
                true => "expression always evaluates to false",
                false => "expression always evaluates to true",
            };
            out.append("reason", reason);
        }
        Ok(out.finish())
    }

    fn on_path(
        &self,
        clause: &Clause<'_>,
        path: &str,
        wanted: ExpectedOutcome,
    ) -> Result<Document> {
        let mut out = DocumentBuilder::new();
        out.append("operatorName", clause.operator);
        out.append("specifiedAs", clause.specified.clone());
        let is_about_presence = clause.operator == "$exists";
        let (failed, held) = match reasons(clause.operator) {
            (present, absent) if is_about_presence && requires_absence(clause, path) => {
                (absent, present)
            }
            said => said,
        };
        let arrays = match clause.operator {
            "$size" | "$elemMatch" | "$all" => LeafArrays::Whole,
            _ => LeafArrays::Expand,
        };
        let mut values = Vec::new();
        let root = ValueRef::Document(self.document);
        MatchPath::new(path).visit(root, arrays, &mut |value, _| {
            if !value.is_missing() {
                values.push(value);
            }
            Ok(false)
        })?;
        let reason = match wanted {
            ExpectedOutcome::Should if values.is_empty() && !is_about_presence => {
                "field was missing"
            }
            ExpectedOutcome::Should => failed,
            ExpectedOutcome::ShouldNot => held,
        };
        out.append("reason", reason);
        if !is_about_presence {
            append_considered(&mut out, &values, clause.operator == "$type");
        }
        Ok(out.finish())
    }
}

/// True for `$exists: false`.
fn requires_absence(clause: &Clause<'_>, path: &str) -> bool {
    let operators = clause.specified.get(path).as_document();
    operators.is_some_and(|operators| !is_true(operators.get("$exists")))
}

/// Appends the tested values, and their types for a test of types.
fn append_considered(out: &mut DocumentBuilder, values: &[ValueRef<'_>], with_types: bool) {
    let type_of = |value: &ValueRef<'_>| Value::from(value.type_name());
    match values {
        [] => {}
        [only] => {
            out.append_ref("consideredValue", *only);
            if with_types {
                out.append("consideredType", type_of(only));
            }
        }
        several => {
            let shown = several.iter().take(VALUES_SHOWN_MAX);
            let list: Vec<Value> = shown.clone().map(|value| value.to_value()).collect();
            out.append("consideredValues", list);
            if with_types {
                let types: Vec<Value> = shown.map(type_of).collect();
                out.append("consideredTypes", types);
            }
            if several.len() > VALUES_SHOWN_MAX {
                out.append("consideredValuesTruncated", true);
            }
        }
    }
}

/// Returns the reasons when an operator on a path does not hold, and when it does.
fn reasons(operator: &str) -> (&'static str, &'static str) {
    match operator {
        "$in" => (
            "no matching value found in array",
            "matching value found in array",
        ),
        "$nin" => (
            "matching value found in array",
            "no matching value found in array",
        ),
        "$ne" => ("comparison succeeded", "comparison failed"),
        "$exists" => ("path does not exist", "path does exist"),
        "$type" => ("type did not match", "type did match"),
        "$mod" => (
            "$mod did not evaluate to expected remainder",
            "$mod did evaluate to expected remainder",
        ),
        "$size" => (
            "array length was not equal to given size",
            "array length was equal to given size",
        ),
        "$regex" | "$not" => (
            "regular expression did not match",
            "regular expression did match",
        ),
        "$elemMatch" => (
            "array did not satisfy the child predicate",
            "array did satisfy the child predicate",
        ),
        "$all" => (
            "array did not contain all specified values",
            "array did contain all specified values",
        ),
        "$geoWithin" | "$within" => (
            "none of the considered geometries was contained within the expression's geometry",
            "at least one of considered geometries was contained within the expression's geometry",
        ),
        "$geoIntersects" => (
            "none of the considered geometries intersected the expression's geometry",
            "at least one of considered geometries intersected the expression's geometry",
        ),
        bits if bits.starts_with("$bits") => (
            "bitwise operator failed to match",
            "bitwise operator matched successfully",
        ),
        _ => ("comparison failed", "comparison succeeded"),
    }
}

#[cfg(test)]
mod tests;
