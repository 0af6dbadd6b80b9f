//! Which node is to have which partition.
//!
//! All nodes compute the same from the same list of nodes, so no coordinator is needed. Loads differ by one at most, and a node that
//! comes or goes changes the place of few partitions besides its own: each partition has an order of nodes of its own, and goes to the
//! first that has room.

use std::collections::{BTreeMap, BTreeSet};

/// Returns the node for each partition; empty without nodes.
pub(super) fn assign<'a>(
    partitions: &'a [String],
    nodes: &'a BTreeSet<String>,
) -> BTreeMap<&'a str, &'a str> {
    let mut out = BTreeMap::new();
    let Some(fewest) = partitions.len().checked_div(nodes.len()) else {
        return out;
    };
    let mut with_one_more = partitions.len() % nodes.len();
    let mut loads: BTreeMap<&str, usize> = BTreeMap::new();
    for partition in partitions {
        let mut ranked: Vec<&str> = nodes.iter().map(String::as_str).collect();
        ranked.sort_by_key(|node| std::cmp::Reverse((rank(node, partition), *node)));
        let load_of = |node: &str| loads.get(node).copied().unwrap_or(0);
        let has_room = |node: &&&str| {
            let load = load_of(node);
            load < fewest || (load == fewest && with_one_more > 0)
        };
        let Some(node) = ranked.iter().find(has_room).copied() else {
            continue;
        };
        let load = loads.entry(node).or_default();
        if *load == fewest {
            with_one_more -= 1;
        }
        *load += 1;
        out.insert(partition.as_str(), node);
    }
    out
}

/// Returns a number that depends on both names alone.
fn rank(node: &str, partition: &str) -> u32 {
    let first = crc32c::crc32c(node.as_bytes());
    // Without the multiplication the order of nodes would be nearly the same for all partitions.
    let mixed = u64::from(first).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 7;
    crc32c::crc32c_append(mixed as u32, partition.as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_are_even_and_few_partitions_move() {
        let partitions: Vec<String> = (1..=64).map(|n| format!("p{n:04}")).collect();
        let mut nodes = BTreeSet::new();
        assert!(assign(&partitions, &nodes).is_empty());
        let mut before: BTreeMap<String, String> = BTreeMap::new();
        for count in 1..=20 {
            nodes.insert(format!("node{count}.example:27017"));
            let found = assign(&partitions, &nodes);
            assert_eq!(found.len(), partitions.len());
            let mut loads = BTreeMap::<&str, usize>::new();
            for node in found.values() {
                *loads.entry(node).or_default() += 1;
            }
            assert_eq!(loads.len(), count);
            let (least, most) = (loads.values().min(), loads.values().max());
            assert!(most.unwrap() - least.unwrap() <= 1, "{loads:?}");
            let moved = found.iter().filter(|(partition, node)| {
                before.get(**partition).is_some_and(|other| other != *node)
            });
            let moved = moved.count();
            assert!(
                moved <= 3 * partitions.len().div_ceil(count),
                "{count} nodes: {moved} moved"
            );
            before = found
                .into_iter()
                .map(|(partition, node)| (partition.to_owned(), node.to_owned()))
                .collect();
        }
    }
}
