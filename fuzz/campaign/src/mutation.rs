//! Changes that keep documents valid: replaces values by unusual ones, moves parts, exchanges names.

use nilometer_bson::fuzz::Numbers;
use nilometer_bson::{Value, doc};

use crate::scripts::Seeds;
use crate::tree::Node;

/// Maximum levels wrapped around a value at once.
const DEPTH_MAX: u64 = 220;

/// Characters of a long text.
const TEXT_MAX: u64 = 20_000;

/// Returns one of the items.
pub fn pick<'a, T>(numbers: &mut Numbers, of: &'a [T]) -> &'a T {
    &of[numbers.below(of.len() as u64) as usize]
}

/// Changes `node` in a few places.
pub fn mutate(numbers: &mut Numbers, seeds: &Seeds, node: &mut Node) {
    loop {
        change(numbers, seeds, node);
        if numbers.below(3) != 0 {
            return;
        }
    }
}

fn change(numbers: &mut Numbers, seeds: &Seeds, root: &mut Node) {
    let count = root.count() as u64;
    let number = numbers.below(count) as usize;
    let Some(node) = root.at(number) else { return };
    match numbers.below(20) {
        0..=4 => *node = Node::Leaf(odd(numbers, seeds)),
        5..=8 => *node = pick(numbers, &seeds.parts).clone(),
        9 => *node = Node::Items(vec![node.clone()]),
        10 => {
            let name = pick(numbers, &seeds.names).clone();
            *node = Node::Fields(vec![(name, node.clone())]);
        }
        11 if numbers.below(10) == 0 => {
            for _ in 0..numbers.below(DEPTH_MAX) {
                let name = pick(numbers, &seeds.names).clone();
                *node = match numbers.below(2) {
                    0 => Node::Items(vec![node.clone()]),
                    _ => Node::Fields(vec![(name, node.clone())]),
                };
            }
        }
        _ => within(numbers, seeds, node),
    }
}

/// Changes the value of a node.
fn within(numbers: &mut Numbers, seeds: &Seeds, node: &mut Node) {
    match node {
        Node::Leaf(value) => *value = near(numbers, seeds, value),
        Node::Fields(fields) => {
            let place = numbers.below(fields.len() as u64 + 1) as usize;
            let name = pick(numbers, &seeds.names).clone();
            match (numbers.below(5), fields.get_mut(place)) {
                (0, Some(_)) => drop(fields.remove(place)),
                (1 | 2, Some(field)) => field.0 = name,
                (3, Some(field)) => {
                    let again = field.clone();
                    fields.push(again);
                }
                _ => fields.insert(place, (name, pick(numbers, &seeds.parts).clone())),
            }
        }
        Node::Items(items) => {
            let place = numbers.below(items.len() as u64 + 1) as usize;
            match (numbers.below(4), items.get(place).cloned()) {
                (0, Some(_)) => drop(items.remove(place)),
                (1, Some(item)) => items.push(item),
                (2, Some(item)) if items.len() > 1 => {
                    items.remove(place);
                    items.insert(0, item);
                }
                _ => items.insert(place, pick(numbers, &seeds.parts).clone()),
            }
        }
    }
}

/// Returns a value similar to another one.
fn near(numbers: &mut Numbers, seeds: &Seeds, value: &Value) -> Value {
    let sign = if numbers.below(2) == 0 { 1 } else { -1 };
    match value {
        Value::Int32(n) => match numbers.below(3) {
            0 => Value::Int32(n.wrapping_add(sign)),
            1 => Value::Int64(i64::from(*n) << numbers.below(40)),
            _ => Value::Double(f64::from(*n) + 0.5),
        },
        Value::Int64(n) => Value::Int64(n.wrapping_mul(1 << numbers.below(50))),
        Value::Double(n) => {
            Value::Double(n * [-1.0, 1e-300, 1e300, 0.3][numbers.below(4) as usize])
        }
        Value::Bool(b) => Value::Bool(!b),
        Value::DateTime(ms) => {
            Value::DateTime(ms.wrapping_add(i64::from(sign) << numbers.below(63)))
        }
        Value::String(text) => {
            let mut text = text.to_string();
            match numbers.below(5) {
                0 => text.insert(0, '$'),
                1 => text.push_str(".0.a"),
                2 => text = text.repeat(1 + numbers.below(4) as usize),
                3 => {
                    text.pop();
                }
                _ => text.push_str(
                    ["é", "\u{1F600}", "%", "\\", "(", "\0", "*"][numbers.below(7) as usize],
                ),
            }
            Value::from(text)
        }
        _ => odd(numbers, seeds),
    }
}

/// Returns an unusual value.
pub fn odd(numbers: &mut Numbers, seeds: &Seeds) -> Value {
    match numbers.below(12) {
        0 => Value::from(
            [
                "", "$", "$$", "$$ROOT", "$$NOW", "$$REMOVE", "$a", "$.", "a..b", ".",
            ][numbers.below(10) as usize],
        ),
        1 => Value::Int64([i64::MIN, i64::MAX, -1, 0, 1 << 31, 1 << 53][numbers.below(6) as usize]),
        2 => Value::Int32([i32::MIN, i32::MAX, -1, 0, 1, 2][numbers.below(6) as usize]),
        3 => Value::Double(
            [f64::NAN, f64::INFINITY, -0.0, 1e308, 5e-324, -1.5][numbers.below(6) as usize],
        ),
        4 => Value::DateTime([i64::MIN, i64::MAX, -1, 0, 1 << 50][numbers.below(5) as usize]),
        5 if numbers.below(20) == 0 => Value::from("x".repeat(numbers.below(TEXT_MAX) as usize)),
        6 => Value::from(doc! {}),
        7 => Value::from(pick(numbers, &seeds.names).as_str()),
        8 => Value::from(format!("${}", pick(numbers, &seeds.names))),
        _ => match pick(numbers, &seeds.odd) {
            Value::Missing => Value::Null,
            other => other.clone(),
        },
    }
}
