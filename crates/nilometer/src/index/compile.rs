//! Compiles a stored definition into an [`Index`], once per definition.
//!
//! Errors have code 67. Commands validate before they store, so an error here means an index of another
//! version.

use std::sync::Arc;

use nilometer_bson::key_string::{COMPONENTS_MAX, KeyOrder};
use nilometer_bson::number::Number;
use nilometer_bson::path::FieldPath;
use nilometer_bson::{DocRef, Document, ValueRef};

use super::{Index, IndexPart, IndexPartKind};
use crate::catalog::{IndexSpec, StoredIndex};
use crate::error::{Error, ErrorCode, Result};
use crate::eval::matcher::MatchExpression;
use crate::eval::{Collation, ParseContext};
use crate::text::TextSpec;

/// Default bits per coordinate of a `2d` index.
const TWO_D_BITS: u32 = 26;
/// Default bounds of a `2d` index.
const TWO_D_LIMIT: f64 = 180.0;

/// The name of the terms in the key pattern of a text index.
pub const TEXT_TERMS: &str = "_fts";
/// The name of their scores.
pub const TEXT_SCORE: &str = "_ftsx";

/// A compiled definition.
#[derive(Debug)]
pub(super) struct CompiledIndex {
    pub(super) parts: Vec<IndexPart>,
    pub(super) components: usize,
    pub(super) order: KeyOrder,
    pub(super) collation: Collation,
    pub(super) partial_filter: Option<MatchExpression>,
    pub(super) wildcard_fields: WildcardFields,
    /// The strings of a text index.
    pub(super) text: Option<Arc<TextSpec>>,
    /// The paths of all parts but wildcards and text, in order.
    pub(super) paths: Vec<FieldPath>,
}

impl Index {
    /// Compiles the index `stored`.
    pub fn of(stored: &Arc<StoredIndex>) -> Result<Arc<Self>> {
        let compiled = stored.get_or_compile(|| CompiledIndex::new(&stored.spec))?;
        Ok(Arc::new(Self {
            stored: stored.clone(),
            compiled,
        }))
    }

    /// Fails if `spec` cannot be an index.
    pub fn check(spec: &IndexSpec) -> Result<()> {
        CompiledIndex::new(spec).map(drop)
    }

    pub(super) fn paths(&self) -> &[FieldPath] {
        &self.compiled.paths
    }
}

impl CompiledIndex {
    pub(super) fn new(spec: &IndexSpec) -> Result<Self> {
        let mut parts = Vec::new();
        let mut directions = Vec::new();
        for element in spec.key.iter() {
            if is_score(&parts, element.name()) {
                continue;
            }
            let part = parse_part(
                element.name(),
                element.value(),
                &spec.others,
                directions.len(),
            )?;
            match part.kind {
                IndexPartKind::Descending => directions.push(true),
                IndexPartKind::Wildcard { descending } => directions.extend([false, descending]),
                IndexPartKind::Text => directions.extend([false, false]),
                _ => directions.push(false),
            }
            parts.push(part);
        }
        if parts.is_empty() || directions.len() > COMPONENTS_MAX {
            return Err(refused("an index has 1 to 32 fields"));
        }
        let wildcards = parts
            .iter()
            .filter(|part| matches!(part.kind, IndexPartKind::Wildcard { .. }));
        if wildcards.count() > 1 {
            return Err(refused("an index has at most one wildcard field"));
        }
        let text = match parts.iter().any(|part| part.kind == IndexPartKind::Text) {
            true => Some(text_of(spec, &parts)?),
            false => None,
        };
        let collation = collation_of(spec)?;
        let partial_filter = match &spec.partial_filter {
            Some(filter) => {
                let context = ParseContext::new().with_collator(collation.shared());
                Some(MatchExpression::parse(filter.as_ref(), &context)?)
            }
            None => None,
        };
        Ok(Self {
            components: directions.len(),
            order: KeyOrder::new(directions),
            wildcard_fields: WildcardFields::parse(&spec.others, &parts)?,
            text,
            paths: ordinary_paths(&parts),
            parts,
            collation,
            partial_filter,
        })
    }
}

/// True for the component behind the terms of a text index: it belongs to the same part.
fn is_score(before: &[IndexPart], name: &str) -> bool {
    name == TEXT_SCORE
        && before
            .last()
            .is_some_and(|part| part.kind == IndexPartKind::Text)
}

/// Reads the fields of a text index.
fn text_of(spec: &IndexSpec, parts: &[IndexPart]) -> Result<Arc<TextSpec>> {
    let is_plain = |part: &IndexPart| part.is_ordered() || part.kind == IndexPartKind::Text;
    let texts = parts.iter().filter(|part| part.kind == IndexPartKind::Text);
    if texts.count() > 1 || !parts.iter().all(is_plain) {
        return Err(refused(
            "a text index has one list of terms, with ascending and descending fields beside it",
        ));
    }
    match TextSpec::of(spec.others.as_ref()) {
        Some(text) => Ok(Arc::new(text)),
        None => Err(refused("a text index has weights and languages")),
    }
}

fn ordinary_paths(parts: &[IndexPart]) -> Vec<FieldPath> {
    let ordinary = parts.iter().filter(|part| {
        !matches!(
            part.kind,
            IndexPartKind::Wildcard { .. } | IndexPartKind::Text
        )
    });
    ordinary.filter_map(|part| part.path.clone()).collect()
}

fn parse_part(
    name: &str,
    value: ValueRef<'_>,
    options: &Document,
    component: usize,
) -> Result<IndexPart> {
    let number = Number::of(value).map(Number::to_f64);
    let wildcard = match name.strip_suffix("$**") {
        Some("") => Some(None),
        Some(prefix) => prefix
            .strip_suffix('.')
            .map(|root| Some(FieldPath::parse_lenient(root))),
        None => None,
    };
    if let Some(root) = wildcard {
        let descending = match number {
            Some(direction) if direction != 0.0 => direction < 0.0,
            _ => return Err(refused("a wildcard field is indexed by 1 or -1")),
        };
        return Ok(IndexPart {
            path: root,
            kind: IndexPartKind::Wildcard { descending },
            component,
        });
    }
    let kind = match (number, value) {
        (Some(direction), _) if direction > 0.0 => IndexPartKind::Ascending,
        (Some(direction), _) if direction < 0.0 => IndexPartKind::Descending,
        (_, ValueRef::String("hashed")) => IndexPartKind::Hashed,
        (_, ValueRef::String("2d")) => two_d(options),
        (_, ValueRef::String("2dsphere")) => IndexPartKind::TwoDSphere,
        (_, ValueRef::String("2dsphere_bucket")) => IndexPartKind::TwoDSphereBucket,
        (_, ValueRef::String("text")) if name == TEXT_TERMS => IndexPartKind::Text,
        _ => {
            return Err(refused(&format!(
                "the field '{name}' cannot be indexed that way"
            )));
        }
    };
    Ok(IndexPart {
        path: Some(FieldPath::parse_lenient(name)),
        kind,
        component,
    })
}

fn two_d(options: &Document) -> IndexPartKind {
    let number = |name: &str| Number::of(options.get(name)).map(Number::to_f64);
    let bits = options.get("bits").as_exact_i64();
    IndexPartKind::TwoD {
        bits: bits
            .and_then(|bits| u32::try_from(bits).ok())
            .unwrap_or(TWO_D_BITS),
        min: number("min").unwrap_or(-TWO_D_LIMIT),
        max: number("max").unwrap_or(TWO_D_LIMIT),
    }
}

/// Returns how the strings of an index compare.
fn collation_of(spec: &IndexSpec) -> Result<Collation> {
    match &spec.collation {
        None => Ok(Collation::SIMPLE),
        Some(given) => Collation::parse(given.as_ref(), "collation"),
    }
}

fn refused(reason: &str) -> Error {
    Error::new(ErrorCode::CannotCreateIndex, reason)
}

/// The fields below its root that a wildcard covers.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum WildcardFields {
    /// All fields.
    #[default]
    All,
    /// These fields and those below them.
    Only(Vec<FieldPath>),
    /// All but these fields and those below them.
    AllBut(Vec<FieldPath>),
}

impl WildcardFields {
    /// `$**` leaves out `_id` unless the projection names it.
    fn parse(options: &Document, parts: &[IndexPart]) -> Result<Self> {
        let whole = parts
            .iter()
            .any(|part| part.path.is_none() && matches!(part.kind, IndexPartKind::Wildcard { .. }));
        if !whole {
            return Ok(Self::All);
        }
        let mut included = Vec::new();
        let mut excluded = Vec::new();
        let mut id = None;
        if let ValueRef::Document(projection) = options.get("wildcardProjection") {
            collect(projection, None, &mut |path, wanted| {
                if path.as_str() == "_id" {
                    id = Some(wanted);
                } else if wanted {
                    included.push(path);
                } else {
                    excluded.push(path);
                }
            })?;
        }
        if !included.is_empty() && !excluded.is_empty() {
            return Err(Error::failed_to_parse(
                "a wildcardProjection includes fields or excludes them, not both",
            ));
        }
        let own_id = FieldPath::parse_lenient("_id");
        Ok(match (included.is_empty(), excluded.is_empty(), id) {
            (false, _, Some(true)) => Self::Only([included, vec![own_id]].concat()),
            (false, ..) => Self::Only(included),
            (true, true, Some(true)) => Self::Only(vec![own_id]),
            (true, _, Some(true)) => Self::AllBut(excluded),
            (true, ..) => Self::AllBut([excluded, vec![own_id]].concat()),
        })
    }

    /// True if the values at `path` are covered.
    pub fn covers(&self, path: &FieldPath) -> bool {
        match self {
            Self::All => true,
            Self::Only(fields) => fields.iter().any(|field| path.starts_with(field)),
            Self::AllBut(fields) => !fields.iter().any(|field| path.starts_with(field)),
        }
    }

    /// True if a field below `path` may be covered although `path` itself is not.
    pub(super) fn leads_to(&self, path: &FieldPath) -> bool {
        match self {
            Self::Only(fields) => fields.iter().any(|field| field.starts_with(path)),
            _ => false,
        }
    }
}

/// Visits the fields of a projection, including those of nested documents.
fn collect(
    projection: DocRef<'_>,
    above: Option<&FieldPath>,
    field: &mut dyn FnMut(FieldPath, bool),
) -> Result<()> {
    for element in projection {
        let path = match above {
            Some(above) => above.join(element.name()),
            None => FieldPath::parse_lenient(element.name()),
        };
        match element.value() {
            ValueRef::Document(below) => collect(below, Some(&path), field)?,
            ValueRef::Bool(wanted) => field(path, wanted),
            value => match Number::of(value) {
                Some(number) => field(path, number.to_f64() != 0.0),
                None => {
                    return Err(Error::failed_to_parse(format!(
                        "the field '{}' of a wildcardProjection is neither 0 nor 1",
                        path.as_str()
                    )));
                }
            },
        }
    }
    Ok(())
}
