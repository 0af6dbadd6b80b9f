//! Generated operator updates against a naive implementation on a tree of owned values: one path at a time,
//! no merging, no laziness.
//!
//! The oracle supports `$set`, `$unset`, `$inc` and `$push` on paths without `$`. The generator avoids
//! conflicting paths, so the order of the operators affects only the positions of new fields, which both
//! sides create in the order of names.

use super::Update;
use super::path::FieldName;
use crate::eval::{EvalContext, ParseContext};
use nilometer_bson::extjson::to_relaxed;
use nilometer_bson::{Array, Document, DocumentBuilder, Value, ValueRef, doc};

#[derive(Clone, Debug)]
enum Tree {
    Leaf(Value),
    Object(Vec<(String, Tree)>),
    Array(Vec<Tree>),
}

impl Tree {
    fn of(value: ValueRef<'_>) -> Self {
        match value {
            ValueRef::Document(doc) => {
                let fields = doc
                    .iter()
                    .map(|e| (e.name().to_owned(), Self::of(e.value())));
                Self::Object(fields.collect())
            }
            ValueRef::Array(array) => Self::Array(array.iter().map(Self::of).collect()),
            other => Self::Leaf(other.to_value()),
        }
    }

    fn to_value(&self) -> Value {
        match self {
            Self::Leaf(value) => value.clone(),
            Self::Object(fields) => {
                let mut out = DocumentBuilder::new();
                for (name, tree) in fields {
                    out.append(name, tree.to_value());
                }
                Value::Document(out.finish())
            }
            Self::Array(items) => Value::Array(items.iter().map(Self::to_value).collect::<Array>()),
        }
    }
}

/// Returns the effect of the operator on the value at its path; `Err` is the error code.
fn leaf(operator: &str, operand: i32, current: Option<Tree>) -> Result<Option<Tree>, i32> {
    match (operator, current) {
        ("$unset", _) => Ok(None),
        ("$set", _) => Ok(Some(Tree::Leaf(operand.into()))),
        ("$inc", None) => Ok(Some(Tree::Leaf(operand.into()))),
        ("$inc", Some(Tree::Leaf(Value::Int32(v)))) => Ok(Some(Tree::Leaf((v + operand).into()))),
        ("$inc", Some(_)) => Err(14),
        ("$push", None) => Ok(Some(Tree::Array(vec![Tree::Leaf(operand.into())]))),
        ("$push", Some(Tree::Array(mut items))) => {
            items.push(Tree::Leaf(operand.into()));
            Ok(Some(Tree::Array(items)))
        }
        ("$push", Some(_)) => Err(2),
        _ => unreachable!("the generator has no other"),
    }
}

/// Applies one operator at one path below `tree`; `None` if the path is missing and nothing is created.
fn naive(
    operator: &str,
    operand: i32,
    tree: Option<Tree>,
    path: &[&str],
) -> Result<Option<Tree>, i32> {
    let Some((name, rest)) = path.split_first() else {
        return leaf(operator, operand, tree);
    };
    match tree {
        None if operator == "$unset" => Ok(None),
        None => {
            let below = naive(operator, operand, None, rest)?;
            Ok(below.map(|below| Tree::Object(vec![((*name).to_owned(), below)])))
        }
        Some(Tree::Object(mut fields)) => {
            let at = fields.iter().position(|(known, _)| known == name);
            let old = at.map(|at| fields[at].1.clone());
            match (at, naive(operator, operand, old, rest)?) {
                (Some(at), Some(new)) => fields[at].1 = new,
                (Some(at), None) => drop(fields.remove(at)),
                (None, Some(new)) => fields.push(((*name).to_owned(), new)),
                (None, None) => {}
            }
            Ok(Some(Tree::Object(fields)))
        }
        Some(Tree::Array(mut items)) => {
            let Ok(index) = name.parse::<usize>() else {
                return if operator == "$unset" {
                    Ok(Some(Tree::Array(items)))
                } else {
                    Err(28)
                };
            };
            let old = items.get(index).cloned();
            let was_there = old.is_some();
            match naive(operator, operand, old, rest)? {
                Some(new) => {
                    while items.len() <= index {
                        items.push(Tree::Leaf(Value::Null));
                    }
                    items[index] = new;
                }
                None if was_there => items[index] = Tree::Leaf(Value::Null),
                None => {}
            }
            Ok(Some(Tree::Array(items)))
        }
        Some(leaf) if operator == "$unset" => Ok(Some(leaf)),
        Some(Tree::Leaf(_)) => Err(28),
    }
}

/// A small random number generator: the same on every machine for the same seed.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }

    fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len())]
    }

    fn value(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 4 } else { 8 }) {
            0 | 1 => Value::Int32(self.below(5) as i32),
            2 => Value::Null,
            3 => "x".into(),
            4 | 5 => {
                let length = self.below(3);
                let items: Vec<Value> = (0..length).map(|_| self.value(depth - 1)).collect();
                items.into()
            }
            _ => self.object(depth - 1).into(),
        }
    }

    fn object(&mut self, depth: usize) -> Document {
        let mut out = DocumentBuilder::new();
        for name in ["b", "a", "0", "c", "1"] {
            if self.below(2) == 0 {
                out.append(name, self.value(depth));
            }
        }
        out.finish()
    }

    fn path(&mut self) -> String {
        let length = 1 + self.below(3);
        let names: Vec<&str> = (0..length)
            .map(|_| self.pick(&["a", "b", "c", "0", "1", "3"]))
            .collect();
        names.join(".")
    }
}

/// True if one path equals the other or lies within it.
fn overlap(a: &str, b: &str) -> bool {
    format!("{a}.").starts_with(&format!("{b}.")) || format!("{b}.").starts_with(&format!("{a}."))
}

const OPERATORS: [&str; 4] = ["$set", "$unset", "$inc", "$push"];

/// Operator, path, operand.
type Change = (&'static str, String, i32);

/// Builds the update document of the changes: each operator once.
fn update_of(changes: &[Change]) -> Document {
    let mut update = DocumentBuilder::new();
    for operator in OPERATORS {
        let of_it = || changes.iter().filter(|(known, ..)| *known == operator);
        if of_it().next().is_some() {
            update.begin_document(operator);
            for (_, path, operand) in of_it() {
                update.append(path, *operand);
            }
            update.end();
        }
    }
    update.finish()
}

#[test]
fn operators_agree_with_a_naive_tree() {
    for seed in 1..20_000 {
        check(seed);
    }
}

fn check(seed: u64) {
    let mut draw = Draw(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15));
    let document = draw.object(3);
    let mut changes: Vec<Change> = Vec::new();
    for _ in 0..1 + draw.below(3) {
        let path = draw.path();
        if !changes.iter().any(|(_, known, _)| overlap(known, &path)) {
            changes.push((draw.pick(&OPERATORS), path, draw.below(5) as i32));
        }
    }
    let update = update_of(&changes);
    let case = format!(
        "seed {seed}: {} on {}",
        to_relaxed(update.as_ref()),
        to_relaxed(document.as_ref())
    );
    let parsed = Update::parse(
        ValueRef::Document(update.as_ref()),
        None,
        &ParseContext::new(),
    );
    let found = parsed
        .unwrap()
        .apply(document.as_ref(), None, &EvalContext::default());

    let names = |path: &str| path.split('.').map(FieldName::new).collect::<Vec<_>>();
    changes.sort_by_key(|(_, path, _)| names(path));
    let mut tree = Some(Tree::of(ValueRef::Document(document.as_ref())));
    let mut codes = Vec::new();
    for (operator, path, operand) in &changes {
        let path: Vec<&str> = path.split('.').collect();
        match naive(operator, *operand, tree.clone(), &path) {
            Ok(next) => tree = next,
            Err(code) => codes.push(code),
        }
    }
    match found {
        Err(error) => assert!(codes.contains(&error.code.0), "{error}, {codes:?}, {case}"),
        Ok(found) => {
            assert!(codes.is_empty(), "{codes:?}, {case}");
            let found = found.unwrap_or_else(|| document.clone());
            let wanted = match tree.map(|tree| tree.to_value()) {
                Some(Value::Document(wanted)) => wanted,
                _ => doc! {},
            };
            let (found, wanted) = (to_relaxed(found.as_ref()), to_relaxed(wanted.as_ref()));
            assert_eq!(found, wanted, "{case}");
        }
    }
}
