//! Explanation of which rules of a schema a value breaks: the `errInfo` of code 121.
//!
//! Each keyword is evaluated as a schema of its own; the explanation depends on the keyword.
//! Keywords about other types than the value's always hold. Rules are listed in the order of
//! [`KEYWORDS`], not in that of the schema.

use nilometer_bson::{ArrayRef, DocRef, Document, DocumentBuilder, Value, ValueRef};

use super::{JsonSchema, SchemaPlace, any_equal, parse};
use crate::error::Result;
use crate::eval::matcher::regex::Pattern;
use crate::eval::{EvalContext, FoldBudget};

/// Keywords that can be broken, in the order in which they are reported.
const KEYWORDS: &[&str] = &[
    "allOf",
    "anyOf",
    "oneOf",
    "not",
    "enum",
    "maximum",
    "minimum",
    "maxLength",
    "minLength",
    "pattern",
    "multipleOf",
    "maxItems",
    "minItems",
    "uniqueItems",
    "items",
    "additionalItems",
    "encrypt",
    "properties",
    "patternProperties",
    "additionalProperties",
    "required",
    "minProperties",
    "maxProperties",
    "dependencies",
    "type",
    "bsonType",
];

impl JsonSchema {
    /// Returns the rules of `schema`, which must be valid, that `document` breaks.
    pub fn rules_not_satisfied(
        schema: DocRef<'_>,
        document: DocRef<'_>,
        ctx: &EvalContext<'_>,
    ) -> Result<Vec<Document>> {
        rules(schema, ValueRef::Document(document), ctx)
    }
}

/// Returns the rules a value breaks, each described.
fn rules(schema: DocRef<'_>, value: ValueRef<'_>, ctx: &EvalContext<'_>) -> Result<Vec<Document>> {
    ctx.charge_value(value)?;
    let mut out = Vec::new();
    for keyword in KEYWORDS {
        let operand = schema.get(keyword);
        if operand.is_missing() {
            continue;
        }
        let rule = Rule {
            keyword,
            operand,
            schema,
            value,
            ctx,
        };
        if rule.is_broken()? {
            out.push(rule.describe()?);
        }
    }
    Ok(out)
}

fn accepts(schema: DocRef<'_>, value: ValueRef<'_>, ctx: &EvalContext<'_>) -> Result<bool> {
    let budget = FoldBudget::default();
    let place = SchemaPlace {
        depth: 0,
        budget: &budget,
    };
    parse::schema(schema, place)?.accepts(value, ctx)
}

/// A keyword and the value it applies to.
struct Rule<'a> {
    keyword: &'static str,
    operand: ValueRef<'a>,
    /// The schema that contains the keyword.
    schema: DocRef<'a>,
    value: ValueRef<'a>,
    ctx: &'a EvalContext<'a>,
}

impl<'a> Rule<'a> {
    /// Returns a schema of the keyword and those it depends on.
    fn as_schema(&self) -> Document {
        let mut out = DocumentBuilder::new();
        out.append_ref(self.keyword, self.operand);
        for name in self.companions() {
            out.append_ref(name, self.schema.get(name));
        }
        out.finish()
    }

    fn companions(&self) -> &'static [&'static str] {
        match self.keyword {
            "minimum" => &["exclusiveMinimum"],
            "maximum" => &["exclusiveMaximum"],
            _ => &[],
        }
    }

    fn is_broken(&self) -> Result<bool> {
        match self.keyword {
            "additionalProperties" => Ok(self.additional_property()?.is_some()),
            "additionalItems" => Ok(self.additional_item()?.is_some()),
            _ => Ok(!accepts(self.as_schema().as_ref(), self.value, self.ctx)?),
        }
    }

    /// Describes the violation.
    // long function: one arm for each kind of keyword
    fn describe(&self) -> Result<Document> {
        let mut out = DocumentBuilder::new();
        out.append("operatorName", self.keyword);
        match self.keyword {
            "allOf" | "anyOf" => {
                out.append("schemasNotSatisfied", self.schemas_not_satisfied()?);
            }
            "oneOf" => {
                let matching = self.matching_schemas()?;
                if matching.is_empty() {
                    out.append("schemasNotSatisfied", self.schemas_not_satisfied()?);
                } else {
                    out.append("reason", "more than one subschema matched");
                    out.append("matchingSchemaIndexes", matching);
                }
            }
            "not" => {
                out.append("reason", "child expression matched");
            }
            "properties" => {
                out.append("propertiesNotSatisfied", self.properties()?);
            }
            "patternProperties" => {
                out.append("details", self.pattern_properties()?);
            }
            "additionalProperties" => self.additional_properties(&mut out)?,
            "items" => self.items(&mut out)?,
            "additionalItems" => self.additional_items(&mut out)?,
            "required" => {
                out.append("specifiedAs", self.as_schema());
                out.append("missingProperties", self.missing(self.operand));
            }
            "dependencies" => {
                out.append("failingDependencies", self.dependencies()?);
            }
            _ => {
                out.append("specifiedAs", self.as_schema());
                out.append("reason", self.reason());
                out.append_ref("consideredValue", self.value);
                self.append_figures(&mut out)?;
            }
        }
        Ok(out.finish())
    }

    /// Returns the reason for a keyword about a value as a whole.
    fn reason(&self) -> &'static str {
        match self.keyword {
            "type" | "bsonType" => "type did not match",
            "enum" => "value was not found in enum",
            "minLength" | "maxLength" => "specified string length was not satisfied",
            "pattern" => "regular expression did not match",
            "multipleOf" => "considered value is not a multiple of the specified value",
            "minItems" | "maxItems" => "array did not match specified length",
            "uniqueItems" => "found a duplicate item",
            "minProperties" | "maxProperties" => "specified number of properties was not satisfied",
            "encrypt" => "value was not encrypted as specified",
            _ => "comparison failed",
        }
    }

    /// Appends further facts about the value.
    fn append_figures(&self, out: &mut DocumentBuilder) -> Result<()> {
        match (self.keyword, self.value) {
            ("type" | "bsonType", value) => {
                out.append("consideredType", value.type_name());
            }
            ("minProperties" | "maxProperties", ValueRef::Document(object)) => {
                let count = i32::try_from(object.iter().count()).unwrap_or(i32::MAX);
                out.append("numberOfProperties", count);
            }
            ("uniqueItems", ValueRef::Array(array)) => {
                if let Some(twice) = duplicate(array, self.ctx)? {
                    out.append_ref("duplicatedValue", twice);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn schemas(&self) -> Vec<DocRef<'a>> {
        let list = self.operand.as_array();
        let schemas = list.into_iter().flat_map(ArrayRef::iter);
        schemas.filter_map(ValueRef::as_document).collect()
    }

    fn schemas_not_satisfied(&self) -> Result<Vec<Value>> {
        let mut out = Vec::new();
        for (index, schema) in self.schemas().into_iter().enumerate() {
            let details = rules(schema, self.value, self.ctx)?;
            if !details.is_empty() {
                let index = Value::from(position(index));
                out.push(described("index", index, schema, details));
            }
        }
        Ok(out)
    }

    fn matching_schemas(&self) -> Result<Vec<Value>> {
        let mut out = Vec::new();
        for (index, schema) in self.schemas().into_iter().enumerate() {
            if accepts(schema, self.value, self.ctx)? {
                out.push(Value::from(position(index)));
            }
        }
        Ok(out)
    }

    fn object(&self) -> DocRef<'a> {
        self.value.as_document().unwrap_or(DocRef::EMPTY)
    }

    fn properties(&self) -> Result<Vec<Value>> {
        let mut out = Vec::new();
        let properties = self.operand.as_document().unwrap_or(DocRef::EMPTY);
        for property in properties {
            let value = self.object().get(property.name());
            let (false, Some(schema)) = (value.is_missing(), property.value().as_document()) else {
                continue;
            };
            let details = rules(schema, value, self.ctx)?;
            if !details.is_empty() {
                let name = Value::from(property.name());
                out.push(described("propertyName", name, schema, details));
            }
        }
        Ok(out)
    }

    fn pattern_properties(&self) -> Result<Vec<Value>> {
        let mut out = Vec::new();
        for pattern in self.operand.as_document().unwrap_or(DocRef::EMPTY) {
            let Some(schema) = pattern.value().as_document() else {
                continue;
            };
            let regex = Pattern::parse(pattern.name(), "")?;
            for field in self.object() {
                if !regex.is_match(field.name(), self.ctx)? {
                    continue;
                }
                let details = rules(schema, field.value(), self.ctx)?;
                if details.is_empty() {
                    continue;
                }
                let mut entry = DocumentBuilder::new();
                entry.append("propertyName", field.name());
                append_texts(&mut entry, schema);
                entry.append("regexMatched", pattern.name());
                entry.append("details", documents(details));
                out.push(Value::Document(entry.finish()));
            }
        }
        Ok(out)
    }

    /// Returns the names not covered by other keywords of the schema.
    fn additional_names(&self) -> Result<Vec<&'a str>> {
        let of = |name| self.schema.get(name).as_document().unwrap_or(DocRef::EMPTY);
        let mut patterns = Vec::new();
        for pattern in of("patternProperties") {
            patterns.push(Pattern::parse(pattern.name(), "")?);
        }
        let mut out = Vec::new();
        for field in self.object() {
            let mut is_known = of("properties").contains(field.name());
            for pattern in &patterns {
                is_known = is_known || pattern.is_match(field.name(), self.ctx)?;
            }
            if !is_known {
                out.push(field.name());
            }
        }
        Ok(out)
    }

    /// Returns the first additional property that breaks the rule.
    fn additional_property(&self) -> Result<Option<&'a str>> {
        let names = self.additional_names()?;
        match self.operand {
            ValueRef::Bool(false) => Ok(names.first().copied()),
            ValueRef::Document(schema) => {
                for name in names {
                    if !accepts(schema, self.object().get(name), self.ctx)? {
                        return Ok(Some(name));
                    }
                }
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    fn additional_properties(&self, out: &mut DocumentBuilder) -> Result<()> {
        match self.operand {
            ValueRef::Document(schema) => {
                let name = self.additional_property()?.unwrap_or_default();
                let reason = "at least one additional property did not match the subschema";
                out.append("reason", reason);
                out.append("failingProperty", name);
                let details = rules(schema, self.object().get(name), self.ctx)?;
                out.append("details", documents(details));
            }
            _ => {
                out.append("specifiedAs", self.as_schema());
                let names = self.additional_names()?;
                let names: Vec<Value> = names.into_iter().map(Value::from).collect();
                out.append("additionalProperties", names);
            }
        }
        Ok(())
    }

    fn elements(&self) -> Vec<ValueRef<'a>> {
        let array = self.value.as_array();
        array.into_iter().flat_map(ArrayRef::iter).collect()
    }

    fn items(&self, out: &mut DocumentBuilder) -> Result<()> {
        out.append("reason", "At least one item did not match the sub-schema");
        let by_position = self.schemas();
        for (at, element) in self.elements().into_iter().enumerate() {
            let schema = match self.operand {
                ValueRef::Document(each) => Some(each),
                _ => by_position.get(at).copied(),
            };
            let Some(schema) = schema else { break };
            let details = rules(schema, element, self.ctx)?;
            if !details.is_empty() {
                out.append("itemIndex", position(at));
                append_texts(out, schema);
                out.append("details", documents(details));
                break;
            }
        }
        Ok(())
    }

    /// Returns the elements after those the schema covers one by one.
    fn additional_elements(&self) -> Vec<(usize, ValueRef<'a>)> {
        let known = match self.schema.get("items") {
            ValueRef::Array(schemas) => schemas.len(),
            _ => return Vec::new(),
        };
        self.elements()
            .into_iter()
            .enumerate()
            .skip(known)
            .collect()
    }

    /// Returns the first additional element that breaks the rule.
    fn additional_item(&self) -> Result<Option<(usize, ValueRef<'a>)>> {
        let elements = self.additional_elements();
        match self.operand {
            ValueRef::Bool(false) => Ok(elements.first().copied()),
            ValueRef::Document(schema) => {
                for (at, element) in elements {
                    if !accepts(schema, element, self.ctx)? {
                        return Ok(Some((at, element)));
                    }
                }
                Ok(None)
            }
            _ => Ok(None),
        }
    }

    fn additional_items(&self, out: &mut DocumentBuilder) -> Result<()> {
        match (self.operand, self.additional_item()?) {
            (ValueRef::Document(schema), Some((at, element))) => {
                let reason = "At least one additional item did not match the sub-schema";
                out.append("reason", reason);
                out.append("itemIndex", position(at));
                out.append("details", documents(rules(schema, element, self.ctx)?));
            }
            _ => {
                out.append("specifiedAs", self.as_schema());
                out.append("reason", "found additional items");
                let elements = self.additional_elements().into_iter();
                let elements: Vec<Value> = elements.map(|(_, value)| value.to_value()).collect();
                out.append("additionalItems", elements);
            }
        }
        Ok(())
    }

    /// Returns the names of a list that the object lacks.
    fn missing(&self, names: ValueRef<'_>) -> Vec<Value> {
        let names = names.as_array().into_iter().flat_map(ArrayRef::iter);
        names
            .filter_map(ValueRef::as_str)
            .filter(|name| !self.object().contains(name))
            .map(Value::from)
            .collect()
    }

    fn dependencies(&self) -> Result<Vec<Value>> {
        let mut out = Vec::new();
        for dependency in self.operand.as_document().unwrap_or(DocRef::EMPTY) {
            let name = dependency.name();
            if !self.object().contains(name) {
                continue;
            }
            match dependency.value() {
                ValueRef::Document(schema) => {
                    let details = rules(schema, self.value, self.ctx)?;
                    if !details.is_empty() {
                        let name = Value::from(name);
                        out.push(described("conditionalProperty", name, schema, details));
                    }
                }
                names => {
                    let missing = self.missing(names);
                    if !missing.is_empty() {
                        let mut entry = DocumentBuilder::new();
                        entry.append("conditionalProperty", name);
                        entry.append("missingProperties", missing);
                        out.push(Value::Document(entry.finish()));
                    }
                }
            }
        }
        Ok(out)
    }
}

fn position(index: usize) -> i32 {
    i32::try_from(index).unwrap_or(i32::MAX)
}

fn documents(list: Vec<Document>) -> Vec<Value> {
    list.into_iter().map(Value::Document).collect()
}

fn append_texts(out: &mut DocumentBuilder, schema: DocRef<'_>) {
    for name in ["title", "description"] {
        out.append_ref(name, schema.get(name));
    }
}

/// Returns `{name: value, title?, description?, details}` for a nested schema.
fn described(name: &str, value: Value, schema: DocRef<'_>, details: Vec<Document>) -> Value {
    let mut out = DocumentBuilder::new();
    out.append(name, value);
    append_texts(&mut out, schema);
    out.append("details", documents(details));
    Value::Document(out.finish())
}

/// Returns a value that occurs twice in an array.
fn duplicate<'v>(array: ArrayRef<'v>, ctx: &EvalContext<'_>) -> Result<Option<ValueRef<'v>>> {
    let values = ctx.elements(array)?;
    for (at, value) in values.iter().enumerate() {
        if any_equal(values.iter().take(at).copied(), *value, ctx)? {
            return Ok(Some(*value));
        }
    }
    Ok(None)
}
