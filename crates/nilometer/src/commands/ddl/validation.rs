//! The options `validator`, `validationLevel` and `validationAction` of `create` and `collMod`.

use nilometer_bson::{DocRef, DocumentBuilder, ValueRef};

use crate::args::Args;
use crate::catalog::Namespace;
use crate::error::{Error, ErrorCode, Result};
use crate::eval::matcher::MatchExpression;
use crate::eval::{Collation, ParseContext};

/// The names of the options.
pub(crate) const NAMES: &[&str] = &["validator", "validationLevel", "validationAction"];

/// Databases whose collections belong to the server.
const INTERNAL_DATABASES: &[&str] = &["admin", "config", "local"];

const LEVELS: &[&str] = &["off", "moderate", "strict"];
const ACTIONS: &[&str] = &["error", "warn"];

/// The checked options.
#[derive(Clone, Copy)]
pub(crate) struct ValidationOptions<'a> {
    validator: Option<DocRef<'a>>,
    level: Option<&'a str>,
    action: Option<&'a str>,
}

impl<'a> ValidationOptions<'a> {
    /// Parses the options for a collection of this name and collation.
    pub(crate) fn parse(
        args: &Args<'a>,
        namespace: &Namespace,
        collation: &Collation,
    ) -> Result<Self> {
        let given = Self {
            validator: args.document("validator")?,
            level: one_of(args, "validationLevel", LEVELS)?,
            action: one_of(args, "validationAction", ACTIONS)?,
        };
        if let Some(validator) = given.validator
            && !validator.is_empty()
        {
            check(validator, namespace, collation)?;
        }
        Ok(given)
    }

    /// True if none is set.
    pub(crate) fn is_empty(&self) -> bool {
        self.validator.is_none() && self.level.is_none() && self.action.is_none()
    }

    /// Adds the options changed by `collMod`: with any of them, level and action get their defaults.
    pub(crate) fn append_changed(&self, known: DocRef<'_>, out: &mut DocumentBuilder) {
        let or_default = |given: Option<&'a str>, name: &str, default: &'a str| {
            given.or(match known.get(name) {
                ValueRef::Missing => Some(default),
                _ => None,
            })
        };
        let changed = match self.is_empty() {
            true => *self,
            false => Self {
                level: or_default(self.level, "validationLevel", "strict"),
                action: or_default(self.action, "validationAction", "error"),
                ..*self
            },
        };
        changed.append_over(known, out);
    }

    /// Adds the options to those of a collection, replacing the ones in `known`. An empty validator removes
    /// it.
    pub(crate) fn append_over(&self, known: DocRef<'_>, out: &mut DocumentBuilder) {
        let validator = match self.validator {
            Some(given) => ValueRef::Document(given),
            None => known.get("validator"),
        };
        if !validator.as_document().is_some_and(DocRef::is_empty) {
            out.append_ref("validator", validator);
        }
        for (name, given) in [
            ("validationLevel", self.level),
            ("validationAction", self.action),
        ] {
            let value = given.map_or(known.get(name), ValueRef::String);
            out.append_ref(name, value);
        }
    }
}

fn one_of<'a>(args: &Args<'a>, name: &str, known: &[&str]) -> Result<Option<&'a str>> {
    match args.string(name)? {
        Some(value) if !known.contains(&value) => Err(Error::bad_value(format!(
            "Enumeration value '{value}' for field '{name}' is not a valid value."
        ))),
        value => Ok(value),
    }
}

/// Refuses a validator that no collection may have, or not this one.
fn check(validator: DocRef<'_>, namespace: &Namespace, collation: &Collation) -> Result<()> {
    let Namespace {
        database,
        collection,
    } = namespace;
    if collection.starts_with("system.") {
        return Err(Error::invalid_options(format!(
            "Document validators not allowed on system collection {namespace}"
        )));
    }
    if INTERNAL_DATABASES.contains(&database.as_str()) {
        return Err(Error::invalid_options(format!(
            "Document validators are not allowed on collection {namespace} in the {database} \
             internal database"
        )));
    }
    let expressions = ParseContext::new().with_collator(collation.shared());
    let refused = |operator: &str| {
        Error::new(
            ErrorCode::QueryFeatureNotAllowed,
            format!("{operator} is not allowed in this context"),
        )
    };
    if let Some(operator) = top_level_refused(validator) {
        return Err(refused(operator));
    }
    let parsed = MatchExpression::parse_with_near(validator, &expressions)?.simplify();
    match parsed.take_near()? {
        (None, _) => Ok(()),
        (Some(_), _) => Err(refused("$near")),
    }
}

/// True for `$text` or `$where` anywhere in the filter.
fn top_level_refused(filter: DocRef<'_>) -> Option<&'static str> {
    filter
        .iter()
        .find_map(|element| match (element.name(), element.value()) {
            ("$text", _) => Some("$text"),
            ("$where", _) => Some("$where"),
            ("$and" | "$or" | "$nor", ValueRef::Array(arms)) => {
                let mut arms = arms.iter().filter_map(ValueRef::as_document);
                arms.find_map(top_level_refused)
            }
            _ => None,
        })
}
