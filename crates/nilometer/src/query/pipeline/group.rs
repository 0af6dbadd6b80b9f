//! `$group`: groups documents by a key and applies accumulators to each group.

use std::sync::Arc;

use nilometer_bson::{Document, DocumentBuilder, Value, ValueRef};

use super::needs::Needs;
use super::{PipelineContext, Stage};
use crate::error::{Error, Result, location};
use crate::eval::accumulator::AccumulatorSpec;
use crate::eval::{Dependencies, Expression, ParseContext};

/// A component of a key with its name.
pub type NamedPart = (Arc<str>, Expression);

/// An output field of a `$group` whose accumulators and fields do not correspond one to one.
#[derive(Clone, Debug)]
pub struct ShownField {
    /// Name of the output field.
    pub name: Arc<str>,
    /// Index of its accumulator.
    pub from: usize,
    /// True if the output is one field, of the same name, of the object that the accumulator returns, or null if it is
    /// missing; false if the output is the whole value. Such fields of one accumulator appear in the order of that
    /// object.
    pub is_part: bool,
}

/// A parsed `$group`.
#[derive(Clone, Debug)]
pub struct GroupStage {
    /// Computes the key.
    pub key: Expression,
    /// Output fields besides the key, in order.
    pub fields: Arc<[(Arc<str>, AccumulatorSpec)]>,
    /// The output fields, where a rule has merged several accumulators into one.
    pub shown: Option<Arc<[ShownField]>>,
    /// The argument as written.
    pub source: Document,
    /// The input is groups with partial states, where a rule reads a rollup.
    pub takes_states: bool,
}

impl GroupStage {
    /// Creates a stage without [`GroupStage::shown`].
    pub fn new(
        key: Expression,
        fields: Arc<[(Arc<str>, AccumulatorSpec)]>,
        source: Document,
    ) -> Self {
        Self {
            key,
            fields,
            shown: None,
            source,
            takes_states: false,
        }
    }

    /// Returns the components of the key, with their names if the key is an object.
    pub fn key_parts(&self) -> Vec<(Option<&str>, &Expression)> {
        match &self.key {
            Expression::Object(members) => {
                let parts = members.iter();
                parts.map(|(name, part)| (Some(&**name), part)).collect()
            }
            single => vec![(None, single)],
        }
    }

    /// Returns the argument of a `$group` with exactly these accumulators, in this order: where a rule has merged several
    /// into one, that returns an object.
    pub fn accumulator_source(&self) -> Document {
        let Some(shown) = &self.shown else {
            return self.source.clone();
        };
        let mut out = DocumentBuilder::new();
        out.append_ref("_id", self.source.get("_id"));
        for (at, (name, _)) in self.fields.iter().enumerate() {
            let parts: Vec<_> = shown.iter().filter(|field| field.from == at).collect();
            let own = self.source.get(name);
            if !parts.iter().any(|part| part.is_part) {
                out.append_ref(name, own);
                continue;
            }
            let output = |name: &str| {
                let spec = self.source.get(name).to_value();
                let operator = spec
                    .as_ref()
                    .as_document()
                    .and_then(|spec| spec.iter().next());
                let argument = operator.and_then(|operator| operator.value().as_document());
                argument.map_or(Value::Missing, |argument| argument.get("output").to_value())
            };
            let operator = own.as_document().and_then(|spec| spec.iter().next());
            let Some((operator, argument)) = operator
                .and_then(|operator| Some((operator.name(), operator.value().as_document()?)))
            else {
                continue;
            };
            out.begin_document(name);
            out.begin_document(operator);
            out.append_ref("sortBy", argument.get("sortBy"));
            out.begin_document("output");
            for part in parts {
                out.append(&part.name, output(&part.name));
            }
            out.end();
            out.end();
            out.end();
        }
        out.finish()
    }

    /// Returns the fields that the key and the accumulators read.
    pub fn needs(&self) -> Needs {
        let mut dependencies = Dependencies::default();
        self.key.dependencies(&mut dependencies);
        for (_, field) in self.fields.iter() {
            field.dependencies(&mut dependencies);
        }
        Needs::of(&dependencies)
    }
}

/// Parses `$group`.
pub(super) fn parse(
    cx: &PipelineContext,
    _: &'static str,
    value: ValueRef<'_>,
    out: &mut Vec<Stage>,
) -> Result<()> {
    let Some(spec) = value.as_document() else {
        return Err(Error::location(
            location::GROUP_NOT_OBJECT,
            "a group's fields must be specified in an object",
        ));
    };
    let mut key = None;
    let mut fields = Vec::new();
    for element in spec {
        if element.name() == "_id" {
            if key.is_some() {
                return Err(Error::location(
                    location::GROUP_ID_TWICE,
                    "a group's _id may only be specified once",
                ));
            }
            key = Some(Expression::parse(element.value(), &cx.expressions)?);
        } else {
            let field = parse_field(element.name(), element.value(), &cx.expressions)?;
            fields.push((Arc::from(element.name()), field));
        }
    }
    let Some(key) = key else {
        return Err(Error::location(
            location::GROUP_WITHOUT_ID,
            "a group specification must include an _id",
        ));
    };
    let group = GroupStage::new(key, fields.into(), spec.to_document());
    out.push(Stage::Group(group));
    Ok(())
}

/// Parses one output field.
pub(super) fn parse_field(
    name: &str,
    value: ValueRef<'_>,
    expressions: &ParseContext,
) -> Result<AccumulatorSpec> {
    AccumulatorSpec::parse_field(name, value, expressions)
}

#[cfg(test)]
mod tests {
    use super::super::testing::code;
    use nilometer_bson::{Value, array, doc};

    #[test]
    fn arguments_are_checked() {
        let group = |spec: nilometer_bson::Document| code(array![doc! {"$group": spec}]);
        assert_eq!(group(doc! {"_id": "$a", "n": doc! {"$sum": 1}}), 0);
        assert_eq!(code(array![doc! {"$group": 1}]), 15_947);
        assert_eq!(group(doc! {}), 15_955);
        assert_eq!(group(doc! {"_id": 1, "a": 1}), 40_234);
        assert_eq!(group(doc! {"_id": 1, "a.b": doc! {"$sum": 1}}), 40_235);
        assert_eq!(group(doc! {"_id": 1, "a": doc! {"$nope": 1}}), 15_952);
        assert_eq!(
            group(doc! {"_id": 1, "a": doc! {"$sum": 1, "$avg": 1}}),
            40_238
        );
        assert_eq!(group(doc! {"_id": Value::Null}), 0);
    }
}
