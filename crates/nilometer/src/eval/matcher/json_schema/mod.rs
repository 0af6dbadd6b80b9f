//! `$jsonSchema`: tests whether a document has the shape described by a schema.
//!
//! JSON Schema draft 4 as supported by MongoDB: without `$ref`, `definitions`, `default`, `format`,
//! `id`, `$schema` and the type `integer`, with `bsonType` and `encrypt`.
//!
//! A keyword applies only to values of its type: `minimum` accepts every string, `properties` every
//! number, and a schema below `properties` accepts a missing field. Only `type`, `bsonType`,
//! `enum`, `encrypt` and the logical keywords apply to every value. Objects within `enum` and
//! `uniqueItems` are equal regardless of the order of their fields.

mod failure;
mod parse;

use nilometer_bson::number::Number;
use nilometer_bson::order::{canonical_type, compare};
use nilometer_bson::{ArrayRef, DocRef, Document, Element, Value, ValueRef};

use super::comparison::is_nan;
use super::regex::Pattern;
use super::value_tests::TypeSet;
use crate::error::Result;
use crate::eval::{EvalContext, FoldBudget, value_bytes};
use parse::SchemaPlace;

/// Binary subtype of encrypted values.
const ENCRYPTED_SUBTYPE: u8 = 6;
/// Offset of the original type in an encrypted value: after its kind and a 16-byte key id.
const ENCRYPTED_TYPE_AT: usize = 17;

/// A parsed schema with its source document.
#[derive(Clone, Debug)]
pub struct JsonSchema {
    source: Document,
    root: Schema,
}

impl JsonSchema {
    /// Parses the operand of `$jsonSchema`, alone in its command.
    pub fn parse(source: DocRef<'_>) -> Result<Self> {
        Self::parse_within(source, &FoldBudget::default())
    }

    /// Parses the operand of `$jsonSchema`, within the memory for all patterns of a command.
    pub(crate) fn parse_within(source: DocRef<'_>, budget: &FoldBudget) -> Result<Self> {
        Ok(Self {
            source: source.to_document(),
            root: parse::schema(source, SchemaPlace { depth: 0, budget })?,
        })
    }

    /// Returns the schema as written by the user.
    pub fn source(&self) -> &Document {
        &self.source
    }

    /// True when the document conforms.
    pub fn matches(&self, doc: DocRef<'_>, ctx: &EvalContext<'_>) -> Result<bool> {
        self.root.accepts(ValueRef::Document(doc), ctx)
    }
}

/// The rules of one (sub)schema; boxed, since nested schemas would otherwise exhaust the stack.
#[derive(Clone, Debug, Default)]
struct Schema(Box<Rules>);

#[derive(Clone, Debug, Default)]
struct Rules {
    types: Option<TypeSet>,
    /// `Some` if the value must be encrypted; the set, if not empty, holds the allowed original
    /// types.
    encrypt: Option<TypeSet>,
    allowed: Option<Vec<Value>>,
    all_of: Vec<Schema>,
    any_of: Vec<Schema>,
    one_of: Vec<Schema>,
    not: Option<Schema>,
    object: ObjectRules,
    array: ArrayRules,
    number: NumberRules,
    string: StringRules,
}

#[derive(Clone, Debug, Default)]
struct ObjectRules {
    properties: Vec<(String, Schema)>,
    pattern_properties: Vec<(Pattern, Schema)>,
    additional: AdditionalRule,
    required: Vec<String>,
    dependencies: Vec<(String, PropertyDependency)>,
    count_min: Option<i64>,
    count_max: Option<i64>,
}

#[derive(Clone, Debug, Default)]
struct ArrayRules {
    items: ItemsRule,
    additional: AdditionalRule,
    count_min: Option<i64>,
    count_max: Option<i64>,
    unique: bool,
}

#[derive(Clone, Debug, Default)]
struct NumberRules {
    minimum: Option<Number>,
    exclusive_minimum: bool,
    maximum: Option<Number>,
    exclusive_maximum: bool,
    multiple_of: Option<Number>,
}

#[derive(Clone, Debug, Default)]
struct StringRules {
    length_min: Option<i64>,
    length_max: Option<i64>,
    pattern: Option<Pattern>,
}

/// The rule for fields or elements that no other keyword covers.
#[derive(Clone, Debug, Default)]
enum AdditionalRule {
    #[default]
    Allowed,
    Forbidden,
    Conforming(Schema),
}

#[derive(Clone, Debug, Default)]
enum ItemsRule {
    #[default]
    Any,
    Each(Schema),
    ByPosition(Vec<Schema>),
}

#[derive(Clone, Debug)]
enum PropertyDependency {
    Fields(Vec<String>),
    Conforming(Schema),
}

impl Schema {
    fn accepts(&self, value: ValueRef<'_>, ctx: &EvalContext<'_>) -> Result<bool> {
        self.0.accepts(value, ctx)
    }
}

impl Rules {
    fn accepts(&self, value: ValueRef<'_>, ctx: &EvalContext<'_>) -> Result<bool> {
        ctx.charge_value(value)?;
        if self.types.is_some_and(|types| !types.test(value))
            || self
                .encrypt
                .is_some_and(|types| !is_encrypted(value, types))
        {
            return Ok(false);
        }
        if let Some(allowed) = &self.allowed
            && !any_equal(allowed.iter().map(Value::as_ref), value, ctx)?
        {
            return Ok(false);
        }
        let by_type = match value {
            ValueRef::Document(doc) => self.object.accepts(doc, ctx)?,
            ValueRef::Array(array) => self.array.accepts(array, ctx)?,
            ValueRef::String(text) => self.string.accepts(text, ctx)?,
            number => Number::of(number).is_none_or(|number| self.number.accepts(number)),
        };
        Ok(by_type && self.accepts_logically(value, ctx)?)
    }

    fn accepts_logically(&self, value: ValueRef<'_>, ctx: &EvalContext<'_>) -> Result<bool> {
        for schema in &self.all_of {
            if !schema.accepts(value, ctx)? {
                return Ok(false);
            }
        }
        if !self.any_of.is_empty() && count_accepting(&self.any_of, value, ctx)? == 0 {
            return Ok(false);
        }
        if !self.one_of.is_empty() && count_accepting(&self.one_of, value, ctx)? != 1 {
            return Ok(false);
        }
        match &self.not {
            Some(schema) => Ok(!schema.accepts(value, ctx)?),
            None => Ok(true),
        }
    }
}

/// Returns how many of the schemas accept the value.
fn count_accepting(
    schemas: &[Schema],
    value: ValueRef<'_>,
    ctx: &EvalContext<'_>,
) -> Result<usize> {
    let mut count = 0;
    for schema in schemas {
        count += usize::from(schema.accepts(value, ctx)?);
    }
    Ok(count)
}

fn within(count: usize, min: Option<i64>, max: Option<i64>) -> bool {
    let count = i64::try_from(count).unwrap_or(i64::MAX);
    min.is_none_or(|min| count >= min) && max.is_none_or(|max| count <= max)
}

impl AdditionalRule {
    fn accepts(&self, value: ValueRef<'_>, ctx: &EvalContext<'_>) -> Result<bool> {
        match self {
            Self::Allowed => Ok(true),
            Self::Forbidden => Ok(false),
            Self::Conforming(schema) => schema.accepts(value, ctx),
        }
    }
}

impl ObjectRules {
    fn accepts(&self, doc: DocRef<'_>, ctx: &EvalContext<'_>) -> Result<bool> {
        let lookup = doc.as_bytes().len();
        for _ in &self.required {
            ctx.charge_lookup(lookup)?;
        }
        if !within(doc.iter().count(), self.count_min, self.count_max)
            || !self.required.iter().all(|name| doc.contains(name))
        {
            return Ok(false);
        }
        for element in doc {
            if !self.accepts_field(element.name(), element.value(), ctx)? {
                return Ok(false);
            }
        }
        for (name, dependency) in &self.dependencies {
            ctx.charge_lookup(lookup)?;
            if !doc.contains(name) {
                continue;
            }
            let holds = match dependency {
                PropertyDependency::Fields(names) => {
                    for _ in names {
                        ctx.charge_lookup(lookup)?;
                    }
                    names.iter().all(|name| doc.contains(name))
                }
                PropertyDependency::Conforming(schema) => {
                    schema.accepts(ValueRef::Document(doc), ctx)?
                }
            };
            if !holds {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn accepts_field(
        &self,
        name: &str,
        value: ValueRef<'_>,
        ctx: &EvalContext<'_>,
    ) -> Result<bool> {
        ctx.charge(1 + self.properties.len() / 16)?;
        let mut spoken_of = false;
        for (_, schema) in self.properties.iter().filter(|(known, _)| known == name) {
            spoken_of = true;
            if !schema.accepts(value, ctx)? {
                return Ok(false);
            }
        }
        for (pattern, schema) in &self.pattern_properties {
            if pattern.is_match(name, ctx)? {
                spoken_of = true;
                if !schema.accepts(value, ctx)? {
                    return Ok(false);
                }
            }
        }
        Ok(spoken_of || self.additional.accepts(value, ctx)?)
    }
}

impl ArrayRules {
    fn accepts(&self, array: ArrayRef<'_>, ctx: &EvalContext<'_>) -> Result<bool> {
        if !within(array.len(), self.count_min, self.count_max) {
            return Ok(false);
        }
        for (at, value) in array.iter().enumerate() {
            let accepted = match &self.items {
                ItemsRule::Any => true,
                ItemsRule::Each(schema) => schema.accepts(value, ctx)?,
                ItemsRule::ByPosition(schemas) => match schemas.get(at) {
                    Some(schema) => schema.accepts(value, ctx)?,
                    None => self.additional.accepts(value, ctx)?,
                },
            };
            if !accepted {
                return Ok(false);
            }
        }
        Ok(!self.unique || all_different(array, ctx)?)
    }
}

impl NumberRules {
    fn accepts(&self, number: Number) -> bool {
        let above = |bound: Number| {
            let order = number.compare(bound);
            !number.is_nan() && (order.is_gt() || (order.is_eq() && !self.exclusive_minimum))
        };
        let below = |bound: Number| {
            let order = number.compare(bound);
            !number.is_nan() && (order.is_lt() || (order.is_eq() && !self.exclusive_maximum))
        };
        let is_multiple = |of: Number| {
            number
                .modulo(of)
                .is_ok_and(|rest| !rest.is_truthy() && !rest.is_nan())
        };
        self.minimum.is_none_or(above)
            && self.maximum.is_none_or(below)
            && self.multiple_of.is_none_or(is_multiple)
    }
}

impl StringRules {
    fn accepts(&self, text: &str, ctx: &EvalContext<'_>) -> Result<bool> {
        if (self.length_min.is_some() || self.length_max.is_some())
            && !within(text.chars().count(), self.length_min, self.length_max)
        {
            return Ok(false);
        }
        match &self.pattern {
            Some(pattern) => pattern.is_match(text, ctx),
            None => Ok(true),
        }
    }
}

fn is_encrypted(value: ValueRef<'_>, types: TypeSet) -> bool {
    match value {
        ValueRef::Binary {
            subtype: ENCRYPTED_SUBTYPE,
            bytes,
        } => {
            types == TypeSet::EMPTY
                || bytes
                    .get(ENCRYPTED_TYPE_AT)
                    .is_some_and(|code| types.contains(*code))
        }
        _ => false,
    }
}

fn all_different(array: ArrayRef<'_>, ctx: &EvalContext<'_>) -> Result<bool> {
    let mark = ctx.mark();
    let values = ctx.elements(array)?;
    for (at, value) in values.iter().enumerate() {
        if any_equal(values.iter().take(at).copied(), *value, ctx)? {
            return Ok(false);
        }
    }
    ctx.release(mark);
    Ok(true)
}

/// True if one of the values equals `wanted`, ignoring the order of an object's fields.
fn any_equal<'v>(
    mut values: impl Iterator<Item = ValueRef<'v>>,
    wanted: ValueRef<'_>,
    ctx: &EvalContext<'_>,
) -> Result<bool> {
    values.try_fold(false, |found, value| {
        if found {
            return Ok(true);
        }
        ctx.charge_bytes(
            value_bytes(value)
                .min(value_bytes(wanted))
                .saturating_mul(8),
        )?;
        Ok(unordered_equal(value, wanted))
    })
}

/// True if equal, ignoring the order of an object's fields.
fn unordered_equal(a: ValueRef<'_>, b: ValueRef<'_>) -> bool {
    match (a, b) {
        (ValueRef::Document(a), ValueRef::Document(b)) => {
            let mut others: Vec<Element<'_>> = b.iter().collect();
            others.sort_by_key(Element::name_bytes);
            a.iter().count() == others.len()
                && a.iter().all(|field| {
                    let name = field.name_bytes();
                    let first = others.partition_point(|other| other.name_bytes() < name);
                    others
                        .iter()
                        .skip(first)
                        .take_while(|other| other.name_bytes() == name)
                        .any(|other| unordered_equal(field.value(), other.value()))
                })
        }
        (ValueRef::Array(a), ValueRef::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b.iter()).all(|(a, b)| unordered_equal(a, b))
        }
        _ => {
            canonical_type(a) == canonical_type(b)
                && is_nan(a) == is_nan(b)
                && compare(a, b).is_eq()
        }
    }
}

#[cfg(test)]
mod tests;
