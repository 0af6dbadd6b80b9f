//! Parsing of a schema document: one table of keywords, one function for each kind of operand.

use nilometer_bson::number::Number;
use nilometer_bson::{DocRef, Element, ValueRef, type_code as t};

use super::{AdditionalRule, ItemsRule, PropertyDependency, Rules, Schema};
use crate::error::{Error, Result};
use crate::eval::FoldBudget;
use crate::eval::matcher::parse::FILTER_DEPTH_MAX;
use crate::eval::matcher::regex::Pattern;
use crate::eval::matcher::value_tests::{TypeSet, exact_i64};

/// Keywords of JSON Schema that are known and rejected.
const UNSUPPORTED: &[&str] = &["$ref", "$schema", "default", "definitions", "format", "id"];

/// JSON Schema's names of types.
const JSON_TYPES: &[(&str, u8)] = &[
    ("object", t::DOCUMENT),
    ("array", t::ARRAY),
    ("boolean", t::BOOL),
    ("string", t::STRING),
    ("null", t::NULL),
];

/// The place of a schema in a filter.
#[derive(Clone, Copy)]
pub(super) struct SchemaPlace<'b> {
    /// The schemas around it.
    pub(super) depth: usize,
    /// The memory for the patterns of the command.
    pub(super) budget: &'b FoldBudget,
}

impl SchemaPlace<'_> {
    fn deeper(self) -> Self {
        Self {
            depth: self.depth + 1,
            ..self
        }
    }
}

/// Parses a schema document.
pub(super) fn schema(source: DocRef<'_>, place: SchemaPlace<'_>) -> Result<Schema> {
    if place.depth >= FILTER_DEPTH_MAX {
        return Err(Error::failed_to_parse(format!(
            "Maximum number of nested $jsonSchema exceeded: {FILTER_DEPTH_MAX}"
        )));
    }
    let mut schema = Schema::default();
    for element in source {
        keyword(&mut schema.0, element, place.deeper())?;
    }
    check_combinations(&schema.0, source)?;
    Ok(schema)
}

/// Parses one keyword of a schema.
// long function: the table of all keywords, one short arm each
fn keyword(schema: &mut Rules, element: Element<'_>, place: SchemaPlace<'_>) -> Result<()> {
    let name = element.name();
    let (object, array) = (&mut schema.object, &mut schema.array);
    match name {
        "type" => schema.types = Some(types(element, json_type)?),
        "bsonType" => schema.types = Some(types(element, bson_type)?),
        "encrypt" => schema.encrypt = Some(encrypt(element)?),
        "encryptMetadata" => {
            document(element)?;
        }
        "title" | "description" => {
            text(element)?;
        }
        "enum" => schema.allowed = Some(enum_values(element)?),
        "allOf" => schema.all_of = schemas(element, place)?,
        "anyOf" => schema.any_of = schemas(element, place)?,
        "oneOf" => schema.one_of = schemas(element, place)?,
        "not" => schema.not = Some(self::schema(document(element)?, place)?),

        "properties" => {
            for property in document(element)? {
                let inner = self::schema(document(property)?, place)?;
                object.properties.push((property.name().to_owned(), inner));
            }
        }
        "patternProperties" => {
            for property in document(element)? {
                let pattern = Pattern::parse_within(property.name(), "", place.budget)?;
                let inner = self::schema(document(property)?, place)?;
                object.pattern_properties.push((pattern, inner));
            }
        }
        "additionalProperties" => object.additional = additional(element, place)?,
        "required" => object.required = names(element)?,
        "dependencies" => {
            for dependency in document(element)? {
                let parsed = match dependency.value() {
                    ValueRef::Array(_) => PropertyDependency::Fields(names(dependency)?),
                    ValueRef::Document(inner) => {
                        PropertyDependency::Conforming(self::schema(inner, place)?)
                    }
                    _ => return Err(wrong_type(dependency, "an object or an array")),
                };
                object
                    .dependencies
                    .push((dependency.name().to_owned(), parsed));
            }
        }
        "minProperties" => object.count_min = Some(count(element)?),
        "maxProperties" => object.count_max = Some(count(element)?),

        "items" => {
            array.items = match element.value() {
                ValueRef::Document(inner) => ItemsRule::Each(self::schema(inner, place)?),
                ValueRef::Array(list) => ItemsRule::ByPosition(
                    list.iter()
                        .map(|inner| match inner {
                            ValueRef::Document(inner) => self::schema(inner, place),
                            _ => Err(wrong_type(element, "an array of objects")),
                        })
                        .collect::<Result<_>>()?,
                ),
                _ => return Err(wrong_type(element, "an object or an array")),
            }
        }
        "additionalItems" => array.additional = additional(element, place)?,
        "minItems" => array.count_min = Some(count(element)?),
        "maxItems" => array.count_max = Some(count(element)?),
        "uniqueItems" => array.unique = boolean(element)?,

        "minimum" => schema.number.minimum = Some(number(element)?),
        "maximum" => schema.number.maximum = Some(number(element)?),
        "exclusiveMinimum" => schema.number.exclusive_minimum = boolean(element)?,
        "exclusiveMaximum" => schema.number.exclusive_maximum = boolean(element)?,
        "multipleOf" => {
            let of = number(element)?;
            if of.is_nan() || !of.compare(Number::Int(0)).is_gt() {
                return Err(invalid(element, "must have a positive value"));
            }
            schema.number.multiple_of = Some(of);
        }

        "minLength" => schema.string.length_min = Some(count(element)?),
        "maxLength" => schema.string.length_max = Some(count(element)?),
        "pattern" => {
            schema.string.pattern = Some(Pattern::parse_within(text(element)?, "", place.budget)?)
        }

        _ if UNSUPPORTED.contains(&name) => {
            return Err(invalid(element, "is not currently supported"));
        }
        _ => {
            return Err(Error::failed_to_parse(format!(
                "Unknown $jsonSchema keyword: {name}"
            )));
        }
    }
    Ok(())
}

/// Checks keywords that exclude or require each other.
fn check_combinations(schema: &Rules, source: DocRef<'_>) -> Result<()> {
    if source.contains("type") && source.contains("bsonType") {
        return Err(Error::failed_to_parse(
            "Cannot specify both $jsonSchema keywords 'type' and 'bsonType'",
        ));
    }
    if schema.encrypt.is_some() && schema.types.is_some() {
        return Err(Error::failed_to_parse(
            "$jsonSchema keyword 'encrypt' cannot be used in conjunction with 'type' or 'bsonType'",
        ));
    }
    for (exclusive, bound) in [
        ("exclusiveMinimum", "minimum"),
        ("exclusiveMaximum", "maximum"),
    ] {
        if source.contains(exclusive) && !source.contains(bound) {
            return Err(Error::failed_to_parse(format!(
                "$jsonSchema keyword '{bound}' must be a present if {exclusive} is present"
            )));
        }
    }
    Ok(())
}

fn wrong_type(element: Element<'_>, wanted: &str) -> Error {
    Error::type_mismatch(format!(
        "$jsonSchema keyword '{}' must be {wanted}, but found {}",
        element.name(),
        element.value().type_name()
    ))
}

fn invalid(element: Element<'_>, what: &str) -> Error {
    Error::failed_to_parse(format!("$jsonSchema keyword '{}' {what}", element.name()))
}

fn document<'a>(element: Element<'a>) -> Result<DocRef<'a>> {
    element
        .value()
        .as_document()
        .ok_or_else(|| wrong_type(element, "an object"))
}

fn text<'a>(element: Element<'a>) -> Result<&'a str> {
    element
        .value()
        .as_str()
        .ok_or_else(|| wrong_type(element, "a string"))
}

fn boolean(element: Element<'_>) -> Result<bool> {
    match element.value() {
        ValueRef::Bool(value) => Ok(value),
        _ => Err(wrong_type(element, "a boolean")),
    }
}

fn number(element: Element<'_>) -> Result<Number> {
    Number::of(element.value()).ok_or_else(|| wrong_type(element, "a number"))
}

/// Parses a non-negative integer.
fn count(element: Element<'_>) -> Result<i64> {
    number(element)?;
    match exact_i64(element.value()) {
        Some(count) if count >= 0 => Ok(count),
        Some(_) => Err(invalid(element, "must be a non-negative number")),
        None => Err(invalid(element, "must be an integer")),
    }
}

/// Parses a non-empty array of schemas.
fn schemas(element: Element<'_>, place: SchemaPlace<'_>) -> Result<Vec<Schema>> {
    let array = element
        .value()
        .as_array()
        .ok_or_else(|| wrong_type(element, "an array"))?;
    let parsed = array
        .iter()
        .map(|inner| match inner {
            ValueRef::Document(inner) => schema(inner, place),
            _ => Err(wrong_type(element, "an array of objects")),
        })
        .collect::<Result<Vec<_>>>()?;
    if parsed.is_empty() {
        return Err(Error::bad_value(format!(
            "$jsonSchema keyword '{}' must be a nonempty array",
            element.name()
        )));
    }
    Ok(parsed)
}

/// Parses a non-empty array of distinct strings.
fn names(element: Element<'_>) -> Result<Vec<String>> {
    let array = element
        .value()
        .as_array()
        .ok_or_else(|| wrong_type(element, "an array"))?;
    let mut names: Vec<String> = Vec::new();
    for name in array.iter() {
        let name = name
            .as_str()
            .ok_or_else(|| wrong_type(element, "an array of strings"))?;
        if names.iter().any(|known| known == name) {
            return Err(invalid(element, "array cannot contain duplicate values"));
        }
        names.push(name.to_owned());
    }
    if names.is_empty() {
        return Err(invalid(element, "cannot be an empty array"));
    }
    Ok(names)
}

fn enum_values(element: Element<'_>) -> Result<Vec<nilometer_bson::Value>> {
    let array = element
        .value()
        .as_array()
        .ok_or_else(|| wrong_type(element, "an array"))?;
    if array.is_empty() {
        return Err(invalid(element, "cannot be an empty array"));
    }
    let values: Vec<ValueRef<'_>> = array.iter().collect();
    for (at, value) in values.iter().enumerate() {
        let earlier = values.get(..at).unwrap_or_default();
        if earlier
            .iter()
            .any(|known| super::unordered_equal(*known, *value))
        {
            return Err(invalid(element, "array cannot contain duplicate values"));
        }
    }
    Ok(values.into_iter().map(ValueRef::to_value).collect())
}

fn additional(element: Element<'_>, place: SchemaPlace<'_>) -> Result<AdditionalRule> {
    match element.value() {
        ValueRef::Bool(true) => Ok(AdditionalRule::Allowed),
        ValueRef::Bool(false) => Ok(AdditionalRule::Forbidden),
        ValueRef::Document(inner) => Ok(AdditionalRule::Conforming(schema(inner, place)?)),
        _ => Err(wrong_type(element, "an object or a boolean")),
    }
}

/// Parses one type name or an array of distinct ones.
fn types(element: Element<'_>, insert: fn(&mut TypeSet, &str) -> Result<()>) -> Result<TypeSet> {
    let mut set = TypeSet::EMPTY;
    match element.value() {
        ValueRef::String(name) => insert(&mut set, name)?,
        ValueRef::Array(_) => {
            for name in names(element)? {
                insert(&mut set, &name)?;
            }
        }
        _ => return Err(wrong_type(element, "a string or an array of strings")),
    }
    Ok(set)
}

fn bson_type(set: &mut TypeSet, name: &str) -> Result<()> {
    set.insert_name(name)
}

fn json_type(set: &mut TypeSet, name: &str) -> Result<()> {
    if name == "number" {
        set.insert_number();
        return Ok(());
    }
    if name == "integer" {
        return Err(Error::failed_to_parse(
            "$jsonSchema type 'integer' is not currently supported.",
        ));
    }
    match JSON_TYPES.iter().find(|(known, _)| *known == name) {
        Some((_, code)) => {
            set.insert(*code);
            Ok(())
        }
        None => Err(Error::bad_value(format!("Unknown type name alias: {name}"))),
    }
}

/// Parses `{bsonType?, keyId?, algorithm?}`: the types allowed before encryption.
fn encrypt(element: Element<'_>) -> Result<TypeSet> {
    let mut set = TypeSet::EMPTY;
    for option in document(element)? {
        match option.name() {
            "bsonType" => set = types(option, bson_type)?,
            // Used by the driver for encryption; a validator cannot check them.
            "keyId" | "algorithm" => {}
            name => {
                return Err(Error::unknown_field(format_args!(
                    "$jsonSchema.encrypt.{name}"
                )));
            }
        }
    }
    Ok(set)
}
