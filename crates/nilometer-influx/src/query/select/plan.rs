//! A `SELECT` for one measurement: its columns over the values that pipelines give.
//!
//! ```text
//! SELECT mean(a) * 2, derivative(max(b), 1s)      columns: leaf 0 * 2, leaf 1
//!                                                 leaves:  Aggregate(mean, a), Transform(derivative 1s, Aggregate(max, b))
//! ```

use std::collections::HashMap;

use super::super::cell::{Cell, arithmetic, scalar};
use super::super::condition::compile;
use super::super::transform::{TransformKind, WINDOW_MAX};
use crate::influxql::ast::{Cast, Operator, SelectField};
use crate::influxql::functions::{self, FunctionKind};
use crate::influxql::{Expr, Select};
use crate::line_protocol::FieldType;
use crate::schema::MeasurementSchema;

const NS_PER_SECOND: i64 = 1_000_000_000;

/// Points that `top` and `bottom` keep of a window.
const TOP_MAX: i64 = 100_000;

const MIXED: &str = "mixing aggregate and non-aggregate queries is not supported";

/// The plan of a measurement.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) columns: Vec<Column>,
    pub(super) leaves: Vec<Leaf>,
    pub(super) kind: PlanKind,
}

/// What kind of rows there are.
#[derive(Debug)]
pub(super) enum PlanKind {
    /// One for each document, or for each value of a function of those.
    Raw,
    /// One for each window.
    Aggregates,
    /// The document that this leaf selects from each window, which gives the other leaves.
    Selector(usize),
    /// Several of each window.
    Multiple(Multiple),
}

/// A function that gives several rows.
#[derive(Debug)]
pub(super) enum Multiple {
    /// The values of a field.
    Distinct(String),
    /// The documents with the largest or smallest values: the field, the tags of which each value counts once, the number, true for
    /// the largest.
    Top(String, Vec<String>, i64, bool),
}

/// A column of the answer.
#[derive(Debug)]
pub(super) struct Column {
    pub(super) name: String,
    pub(super) node: Node,
}

/// A value computed from leaves.
#[derive(Debug)]
pub(super) enum Node {
    Constant(Cell),
    Leaf(usize),
    Binary(Operator, Box<Node>, Box<Node>),
    Scalar(&'static str, Vec<Node>),
}

impl Node {
    /// Computes the value from those of the leaves.
    pub(super) fn evaluate(&self, leaves: &[Cell]) -> Cell {
        match self {
            Self::Constant(cell) => cell.clone(),
            Self::Leaf(at) => leaves.get(*at).cloned().unwrap_or_default(),
            Self::Binary(operator, left, right) => {
                arithmetic(*operator, &left.evaluate(leaves), &right.evaluate(leaves))
            }
            Self::Scalar(name, arguments) => {
                let arguments: Vec<Cell> =
                    arguments.iter().map(|one| one.evaluate(leaves)).collect();
                scalar(name, &arguments)
            }
        }
    }
}

/// A value that a pipeline gives, or a function of such values in order of time.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Leaf {
    /// The value at a path; true for a field.
    Value(String, bool),
    /// A name that the measurement does not have.
    Missing,
    /// A function of a field that the measurement does not have. Its values are null, and it counts as a function.
    MissingAggregate(AggregateFunction),
    /// A value for each window.
    Aggregate(Aggregate),
    /// A function of the values of a leaf.
    Transform(TransformKind, Box<Leaf>),
}

impl Leaf {
    /// Returns the aggregate of a leaf, also inside a transformation.
    pub(super) fn aggregate(&self) -> Option<&Aggregate> {
        match self {
            Self::Aggregate(aggregate) => Some(aggregate),
            Self::Transform(_, inner) => inner.aggregate(),
            _ => None,
        }
    }

    /// Returns the type of the values of a function of a field that the measurement does not have. `None` if it would be that of the
    /// field, and for other leaves.
    pub(super) fn type_without_field(&self) -> Option<FieldType> {
        match self {
            Self::MissingAggregate(function) => match function {
                AggregateFunction::Count | AggregateFunction::CountDistinct => {
                    Some(FieldType::Integer)
                }
                AggregateFunction::Mean | AggregateFunction::Median | AggregateFunction::StdDev => {
                    Some(FieldType::Float)
                }
                _ => None,
            },
            Self::Transform(kind, inner) if matches!(**inner, Self::MissingAggregate(_)) => {
                match kind.is_float() {
                    true => Some(FieldType::Float),
                    false => inner.type_without_field(),
                }
            }
            _ => None,
        }
    }

    /// True if its values are those of windows.
    fn is_of_windows(&self) -> bool {
        match self {
            Self::Aggregate(_) | Self::MissingAggregate(_) => true,
            Self::Transform(_, inner) => inner.is_of_windows(),
            Self::Value(..) | Self::Missing => false,
        }
    }

    /// True if it selects a document of each window.
    fn is_selector(&self) -> bool {
        let function = match self {
            Self::Aggregate(aggregate) => aggregate.function,
            Self::MissingAggregate(function) => *function,
            _ => return false,
        };
        matches!(
            function,
            AggregateFunction::Min
                | AggregateFunction::Max
                | AggregateFunction::First
                | AggregateFunction::Last
        )
    }

    /// True if it has values in some documents of the measurement, and is no tag.
    fn reads_field(&self) -> bool {
        match self {
            Self::Value(_, is_field) => *is_field,
            Self::Aggregate(_) => true,
            Self::Transform(_, inner) => inner.reads_field(),
            Self::Missing | Self::MissingAggregate(_) => false,
        }
    }
}

/// An accumulator of a field.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Aggregate {
    pub(super) function: AggregateFunction,
    pub(super) path: String,
    /// The results are integers.
    pub(super) is_integer: bool,
}

/// What is computed of the values of a window.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum AggregateFunction {
    Count,
    CountDistinct,
    Sum,
    Mean,
    Min,
    Max,
    First,
    Last,
    Median,
    /// Of a hundred.
    Percentile(f64),
    Spread,
    StdDev,
}

/// True if a statement has a function that windows are for.
pub(super) fn has_aggregates(select: &Select) -> bool {
    let mut found = false;
    for field in &select.fields {
        field.expr.walk(&mut |one| {
            if let Expr::Call(name, _) = one {
                let kind = functions::find(name).map(|function| function.kind);
                found |= matches!(
                    kind,
                    Some(FunctionKind::Aggregate | FunctionKind::Selector | FunctionKind::Multiple)
                );
            }
        });
    }
    found
}

/// Plans a statement for a measurement. `tags` are those of `GROUP BY`. `None` if it has none of the fields.
pub(super) fn plan(
    select: &Select,
    schema: &MeasurementSchema,
    tags: &[String],
) -> Result<Option<Plan>, String> {
    let mut planner = Planner {
        schema,
        select,
        leaves: Vec::new(),
    };
    let fields = planner.expand(tags)?;
    if let Some(plan) = planner.multiple(&fields)? {
        return Ok(plan);
    }
    let mut columns = Vec::new();
    for (expr, name) in &fields {
        let node = planner.node(expr)?;
        columns.push(Column {
            name: name.clone(),
            node,
        });
    }
    let leaves = planner.leaves;
    let kind = kind(select, &leaves)?;
    let has_field = match kind {
        // The other columns are those of the document that it selects.
        PlanKind::Selector(at) => leaves[at].reads_field(),
        _ => leaves.iter().any(Leaf::reads_field),
    };
    Ok(has_field.then_some(Plan {
        columns,
        leaves,
        kind,
    }))
}

/// Returns what rows the leaves make, or why they make none. As in InfluxDB that depends on the statement alone, not on what fields
/// the measurement has.
fn kind(select: &Select, leaves: &[Leaf]) -> Result<PlanKind, String> {
    let is_value = |leaf: &&Leaf| matches!(leaf, Leaf::Value(..) | Leaf::Missing);
    let values = leaves.iter().filter(is_value).count();
    let calls = leaves.iter().filter(|leaf| leaf.is_of_windows()).count();
    let is_transform = |leaf: &&Leaf| matches!(leaf, Leaf::Transform(..));
    let transforms = leaves.iter().filter(is_transform);
    let nested = transforms.clone().any(Leaf::is_of_windows);
    let transformed = transforms.filter(|leaf| !leaf.is_of_windows()).count();
    if select.interval.is_some() && calls == 0 {
        return Err("GROUP BY requires at least one aggregate function".to_owned());
    }
    if calls == 0 {
        return match transformed > 0 && values > 0 {
            true => Err(MIXED.to_owned()),
            false => Ok(PlanKind::Raw),
        };
    }
    if nested && select.interval.is_none() {
        return Err(
            "a function of an aggregate in order of time requires a GROUP BY interval".to_owned(),
        );
    }
    match leaves.iter().position(Leaf::is_selector) {
        Some(at) if calls == 1 && transformed == 0 && (values > 0 || select.interval.is_none()) => {
            Ok(PlanKind::Selector(at))
        }
        _ if values > 0 || transformed > 0 => Err(MIXED.to_owned()),
        _ => Ok(PlanKind::Aggregates),
    }
}

struct Planner<'a> {
    schema: &'a MeasurementSchema,
    select: &'a Select,
    leaves: Vec<Leaf>,
}

impl Planner<'_> {
    /// Replaces wildcards and patterns by names, and names all columns.
    fn expand(&self, tags: &[String]) -> Result<Vec<(Expr, String)>, String> {
        let mut out = Vec::new();
        for field in &self.select.fields {
            match &field.expr {
                Expr::Wildcard(cast) => {
                    let all = self.names(*cast, tags, &|_| true);
                    out.extend(all);
                }
                Expr::Regex(pattern) => {
                    let pattern = compile(pattern)?;
                    let matching = self.names(None, tags, &|name| pattern.is_match(name));
                    out.extend(matching);
                }
                // The time is the first column anyway.
                Expr::Name(name, None) if name.eq_ignore_ascii_case("time") => {}
                expr => self.expand_calls(expr, field, &mut out)?,
            }
        }
        let mut used: HashMap<String, usize> = HashMap::new();
        for (_, name) in &mut out {
            let base = name.clone();
            let count = used.entry(base.clone()).or_insert(0);
            if *count > 0 {
                *name = format!("{base}_{count}");
            }
            *count += 1;
        }
        Ok(out)
    }

    /// Returns fields and tags that a wildcard stands for.
    fn names(
        &self,
        cast: Option<Cast>,
        tags: &[String],
        matches: &dyn Fn(&str) -> bool,
    ) -> Vec<(Expr, String)> {
        let mut out = Vec::new();
        if cast != Some(Cast::Tag) {
            let fields = self.schema.fields.keys().filter(|name| matches(name));
            out.extend(fields.map(|name| (name.clone(), Cast::Field)));
        }
        if cast != Some(Cast::Field) {
            let tags = self
                .schema
                .tags
                .keys()
                .filter(|name| matches(name) && !tags.contains(name));
            out.extend(tags.map(|name| (name.clone(), Cast::Tag)));
        }
        out.sort_by(|a, b| a.0.cmp(&b.0));
        let named = |(name, cast): (String, Cast)| (Expr::Name(name.clone(), Some(cast)), name);
        out.into_iter().map(named).collect()
    }

    /// Adds an expression; if a function has a wildcard or a pattern as its argument, one for each field.
    fn expand_calls(
        &self,
        expr: &Expr,
        field: &SelectField,
        out: &mut Vec<(Expr, String)>,
    ) -> Result<(), String> {
        let mut wild = None;
        expr.walk(&mut |one| {
            if let Expr::Call(name, arguments) = one
                && let Some(first @ (Expr::Wildcard(_) | Expr::Regex(_))) = arguments.first()
            {
                wild = Some((name.clone(), first.clone()));
            }
        });
        let Some((function, argument)) = wild else {
            let name = field.alias.clone().unwrap_or_else(|| column_name(expr));
            out.push((expr.clone(), name));
            return Ok(());
        };
        let pattern = match &argument {
            Expr::Regex(pattern) => Some(compile(pattern)?),
            _ => None,
        };
        let any_type = functions::find(&function).is_some_and(|found| found.takes_any_type);
        for (name, kind) in &self.schema.fields {
            let is_number = matches!(kind, FieldType::Float | FieldType::Integer);
            let matches = pattern
                .as_ref()
                .is_none_or(|pattern| pattern.is_match(name));
            if matches && (is_number || any_type) {
                let outer = field.alias.clone().unwrap_or_else(|| column_name(expr));
                out.push((with_field(expr, name), format!("{outer}_{name}")));
            }
        }
        Ok(())
    }

    /// Plans `distinct`, `top` and `bottom`, which stand alone. `None` if there are none of them.
    #[allow(
        clippy::type_complexity,
        reason = "no plan of that kind, or a plan, or no such field"
    )]
    fn multiple(&mut self, fields: &[(Expr, String)]) -> Result<Option<Option<Plan>>, String> {
        let is_multiple = |expr: &Expr| match expr {
            Expr::Call(name, _) => {
                functions::find(name).is_some_and(|found| found.kind == FunctionKind::Multiple)
            }
            _ => false,
        };
        let Some(((Expr::Call(function, arguments), name), rest)) = fields.split_first() else {
            return Ok(None);
        };
        if !is_multiple(&Expr::Call(function.clone(), Vec::new())) {
            return match rest.iter().find(|(expr, _)| is_multiple(expr)) {
                None => Ok(None),
                Some((expr, _)) => Err(format!("{expr} must be the first column")),
            };
        }
        let mut columns = vec![Column {
            name: name.clone(),
            node: Node::Leaf(0),
        }];
        self.leaves.push(Leaf::Missing);
        let multiple = match function.as_str() {
            "distinct" if !rest.is_empty() => {
                return Err("aggregate function distinct() cannot be combined with other functions or fields".to_owned());
            }
            "distinct" => {
                let [field] = &arguments[..] else {
                    return Err("distinct takes one field".to_owned());
                };
                let Some((path, _)) = self.field("distinct", field)? else {
                    return Ok(Some(None));
                };
                Multiple::Distinct(path)
            }
            _ => {
                let Some(top) = self.top(function, arguments, &mut columns)? else {
                    return Ok(Some(None));
                };
                top
            }
        };
        for (expr, name) in rest {
            let Expr::Name(..) = expr else {
                return Err(MIXED.to_owned());
            };
            let node = self.node(expr)?;
            columns.push(Column {
                name: name.clone(),
                node,
            });
        }
        Ok(Some(Some(Plan {
            columns,
            leaves: std::mem::take(&mut self.leaves),
            kind: PlanKind::Multiple(multiple),
        })))
    }

    /// Plans `top(field, tags…, n)` and `bottom`; adds the columns of the tags.
    fn top(
        &mut self,
        function: &str,
        arguments: &[Expr],
        columns: &mut Vec<Column>,
    ) -> Result<Option<Multiple>, String> {
        let [field, tags @ .., Expr::Integer(count)] = arguments else {
            return Err(format!(
                "expected integer as last argument in {function}(), after a field and tags"
            ));
        };
        if !(1..=TOP_MAX).contains(count) {
            return Err(format!(
                "limit ({count}) in {function} function must be from 1 to {TOP_MAX}"
            ));
        }
        let mut paths = Vec::new();
        for tag in tags {
            let Expr::Name(name, _) = tag else {
                return Err(format!("{function}() takes names of tags, not {tag}"));
            };
            let leaf = match self.schema.tags.get(name) {
                Some(path) => {
                    paths.push(path.clone());
                    Leaf::Value(path.clone(), false)
                }
                None => Leaf::Missing,
            };
            let at = self.leaf(leaf);
            columns.push(Column {
                name: name.clone(),
                node: Node::Leaf(at),
            });
        }
        let Some((path, _)) = self.field(function, field)? else {
            return Ok(None);
        };
        Ok(Some(Multiple::Top(path, paths, *count, function == "top")))
    }

    /// Adds a leaf unless it is there. Returns its position.
    fn leaf(&mut self, leaf: Leaf) -> usize {
        // The first leaf of `top` is the function itself.
        let known = self.leaves.iter().position(|known| *known == leaf);
        match known {
            Some(at) if leaf != Leaf::Missing => at,
            _ => {
                self.leaves.push(leaf);
                self.leaves.len() - 1
            }
        }
    }

    /// Returns the value of an expression.
    fn node(&mut self, expr: &Expr) -> Result<Node, String> {
        Ok(match expr {
            Expr::Integer(value) | Expr::Duration(value) => Node::Constant(Cell::Integer(*value)),
            Expr::Number(value) => Node::Constant(Cell::Float(*value)),
            Expr::Name(name, cast) => {
                let leaf = self.value(name, *cast);
                Node::Leaf(self.leaf(leaf))
            }
            Expr::Binary(operator, left, right) if operator.is_arithmetic() => {
                let (left, right) = (self.node(left)?, self.node(right)?);
                Node::Binary(*operator, Box::new(left), Box::new(right))
            }
            Expr::Call(name, arguments) => {
                let Some(function) = functions::find(name) else {
                    return Err(format!("undefined function {name}()"));
                };
                if function.kind == FunctionKind::Scalar {
                    let takes_two = ["atan2", "log", "pow"].contains(&name.as_str());
                    let count = if takes_two { 2 } else { 1 };
                    check_count(name, arguments, count, count)?;
                    let arguments: Result<Vec<Node>, String> =
                        arguments.iter().map(|one| self.node(one)).collect();
                    return Ok(Node::Scalar(function.name, arguments?));
                }
                let leaf = self.call(name, arguments)?;
                Node::Leaf(self.leaf(leaf))
            }
            other => return Err(format!("{other} is no column")),
        })
    }

    fn value(&self, name: &str, cast: Option<Cast>) -> Leaf {
        let field = || {
            let known = self.schema.fields.contains_key(name);
            known.then(|| Leaf::Value(name.to_owned(), true))
        };
        let tag = || {
            let path = self.schema.tags.get(name);
            path.map(|path| Leaf::Value(path.clone(), false))
        };
        let found = match cast {
            Some(Cast::Tag) => tag(),
            None => field().or_else(tag),
            Some(_) => field(),
        };
        found.unwrap_or(Leaf::Missing)
    }

    /// Returns path and type of the field that a function takes, if the measurement has it.
    fn field(
        &self,
        function: &str,
        argument: &Expr,
    ) -> Result<Option<(String, FieldType)>, String> {
        let Expr::Name(name, _) = argument else {
            return Err(format!(
                "expected field argument in {function}(), not {argument}"
            ));
        };
        let Some(kind) = self.schema.fields.get(name) else {
            return Ok(None);
        };
        let any_type = functions::find(function).is_some_and(|found| found.takes_any_type);
        if !any_type && !matches!(kind, FieldType::Float | FieldType::Integer) {
            return Err(format!(
                "{function}() takes numbers, and the field \"{name}\" is of type {}",
                kind.name()
            ));
        }
        Ok(Some((name.clone(), *kind)))
    }

    /// Returns the leaf of an aggregate, a selector or a transformation.
    fn call(&mut self, name: &str, arguments: &[Expr]) -> Result<Leaf, String> {
        let Some(function) = functions::find(name) else {
            return Err(format!("undefined function {name}()"));
        };
        match function.kind {
            FunctionKind::Refused(why) => Err(format!("the function {name}(): {why}")),
            FunctionKind::Multiple => {
                Err(format!("{name}() must be a column of its own, the first"))
            }
            FunctionKind::Scalar => Err(format!("{name}() is no argument of a function")),
            FunctionKind::Transformation => self.transformation(name, arguments),
            FunctionKind::Aggregate | FunctionKind::Selector => self.aggregate(name, arguments),
        }
    }

    fn aggregate(&mut self, name: &str, arguments: &[Expr]) -> Result<Leaf, String> {
        let count = if name == "percentile" { 2 } else { 1 };
        check_count(name, arguments, count, count)?;
        let argument = arguments.first().unwrap_or(&Expr::Wildcard(None));
        let (argument, function) = match (name, argument) {
            ("count", Expr::Call(inner, of)) if inner == "distinct" && of.len() == 1 => (
                of.first().unwrap_or(argument),
                AggregateFunction::CountDistinct,
            ),
            ("count", _) => (argument, AggregateFunction::Count),
            ("sum", _) => (argument, AggregateFunction::Sum),
            ("mean", _) => (argument, AggregateFunction::Mean),
            ("min", _) => (argument, AggregateFunction::Min),
            ("max", _) => (argument, AggregateFunction::Max),
            ("first", _) => (argument, AggregateFunction::First),
            ("last", _) => (argument, AggregateFunction::Last),
            ("median", _) => (argument, AggregateFunction::Median),
            ("spread", _) => (argument, AggregateFunction::Spread),
            ("stddev", _) => (argument, AggregateFunction::StdDev),
            _ => {
                #[allow(clippy::cast_precision_loss, reason = "a percentage")]
                let percent = match arguments.get(1) {
                    Some(Expr::Integer(value)) => *value as f64,
                    Some(Expr::Number(value)) => *value,
                    _ => return Err(format!("expected float argument in {name}()")),
                };
                if !(0.0..=100.0).contains(&percent) {
                    return Err(format!("{name}() takes a number from 0 to 100"));
                }
                (argument, AggregateFunction::Percentile(percent))
            }
        };
        let Some((path, kind)) = self.field(name, argument)? else {
            return Ok(Leaf::MissingAggregate(function));
        };
        let is_integer = match function {
            AggregateFunction::Count | AggregateFunction::CountDistinct => true,
            AggregateFunction::Mean | AggregateFunction::Median | AggregateFunction::StdDev => {
                false
            }
            _ => kind == FieldType::Integer,
        };
        Ok(Leaf::Aggregate(Aggregate {
            function,
            path,
            is_integer,
        }))
    }

    fn transformation(&mut self, name: &str, arguments: &[Expr]) -> Result<Leaf, String> {
        let (least, most) = match name {
            "derivative" | "non_negative_derivative" => (1, 2),
            "moving_average" => (2, 2),
            _ => (1, 1),
        };
        check_count(name, arguments, least, most)?;
        let argument = arguments.first().unwrap_or(&Expr::Wildcard(None));
        let inner = match argument {
            Expr::Call(inner, of) => match self.call(inner, of)? {
                Leaf::Transform(..) => {
                    return Err(format!(
                        "{name}() takes a field or an aggregate, not {argument}"
                    ));
                }
                leaf => leaf,
            },
            field => match self.field(name, field)? {
                _ if self.select.interval.is_some() => {
                    return Err(format!(
                        "aggregate function required inside the call to {name}"
                    ));
                }
                Some((path, _)) => Leaf::Value(path, true),
                None => Leaf::Missing,
            },
        };
        let non_negative = name.starts_with("non_negative");
        let kind = match (name, arguments.get(1)) {
            ("derivative" | "non_negative_derivative", unit) => {
                let interval = self
                    .select
                    .interval
                    .as_ref()
                    .map(|interval| interval.length_ns);
                let unit_ns = match unit {
                    None => interval.unwrap_or(NS_PER_SECOND),
                    Some(Expr::Duration(unit)) if *unit > 0 => *unit,
                    Some(other) => {
                        return Err(format!(
                            "duration argument must be positive in {name}(), not {other}"
                        ));
                    }
                };
                TransformKind::Derivative {
                    unit_ns,
                    non_negative,
                }
            }
            ("moving_average", Some(Expr::Integer(count))) => match usize::try_from(*count) {
                Ok(count @ 2..=WINDOW_MAX) => TransformKind::MovingAverage(count),
                _ => {
                    return Err(format!(
                        "moving_average window must be from 2 to {WINDOW_MAX}"
                    ));
                }
            },
            ("moving_average", _) => {
                return Err("second argument for moving_average must be an integer".to_owned());
            }
            ("cumulative_sum", _) => TransformKind::CumulativeSum,
            _ => TransformKind::Difference { non_negative },
        };
        Ok(Leaf::Transform(kind, Box::new(inner)))
    }
}

fn check_count(name: &str, arguments: &[Expr], least: usize, most: usize) -> Result<(), String> {
    match (least..=most).contains(&arguments.len()) {
        true => Ok(()),
        false => Err(format!(
            "invalid number of arguments for {name}, expected {least} to {most}, got {}",
            arguments.len()
        )),
    }
}

/// Returns the name of a column: those of its functions and fields, joined.
fn column_name(expr: &Expr) -> String {
    match expr {
        Expr::Name(name, _) | Expr::Call(name, _) => name.clone(),
        Expr::Binary(_, left, right) => {
            let names = [column_name(left), column_name(right)];
            let names: Vec<&str> = names
                .iter()
                .map(String::as_str)
                .filter(|n| !n.is_empty())
                .collect();
            names.join("_")
        }
        _ => String::new(),
    }
}

/// Returns the expression with a field in the place of wildcards and patterns.
fn with_field(expr: &Expr, field: &str) -> Expr {
    match expr {
        Expr::Wildcard(_) | Expr::Regex(_) => Expr::Name(field.to_owned(), Some(Cast::Field)),
        Expr::Call(name, arguments) => {
            let arguments = arguments.iter().map(|one| with_field(one, field));
            Expr::Call(name.clone(), arguments.collect())
        }
        Expr::Binary(operator, left, right) => Expr::Binary(
            *operator,
            Box::new(with_field(left, field)),
            Box::new(with_field(right, field)),
        ),
        other => other.clone(),
    }
}
