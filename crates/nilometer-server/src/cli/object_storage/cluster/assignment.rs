//! Which node is to have which partition.
//!
//! All nodes compute the same from the same list of nodes, so no coordinator is needed. Loads differ by one at most, and a node that
//! comes or goes changes the place of few partitions besides its own: each partition has an order of nodes of its own, and goes to the
//! first that has room.

use std::collections::{BTreeMap, BTreeSet};

/// Partitions that one node has, at most: their memory is set aside. With too few nodes, some partitions have no process.
pub(super) const HOSTED_MAX: usize = 64;

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
    if fewest >= HOSTED_MAX {
        with_one_more = 0;
    }
    let fewest = fewest.min(HOSTED_MAX);
    let mut nodes: Vec<(&str, u32, usize)> = nodes
        .iter()
        .map(|node| (node.as_str(), crc32c::crc32c(node.as_bytes()), 0))
        .collect();
    for partition in partitions {
        let has_room = |load: usize| load < fewest || (load == fewest && with_one_more > 0);
        let with_room = nodes.iter_mut().filter(|(_, _, load)| has_room(*load));
        let of_partition = crc32c::crc32c(partition.as_bytes());
        let first = with_room.max_by_key(|(node, hash, _)| (rank(*hash, of_partition), *node));
        let Some((node, _, load)) = first else {
            continue;
        };
        if *load == fewest {
            with_one_more -= 1;
        }
        *load += 1;
        out.insert(partition.as_str(), *node);
    }
    out
}

/// Returns a number that depends on the hashes of a node and of a partition alone: the finalizer of SplitMix64. The order of nodes must
/// differ between partitions, and differences of checksums alone are the same for all.
fn rank(node: u32, partition: u32) -> u64 {
    let both = u64::from(node) << 32 | u64::from(partition);
    let once = (both ^ both >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let twice = (once ^ once >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
    twice ^ twice >> 31
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

    #[test]
    fn a_node_gets_no_more_than_it_has_memory_for() {
        let partitions: Vec<String> = (1..=2000).map(|n| format!("p{n:04}")).collect();
        let nodes = |count| (0..count).map(|n| format!("node{n}:27017")).collect();
        for count in [1_usize, 3, 31, 32, 1000] {
            let nodes: BTreeSet<String> = nodes(count);
            let found = assign(&partitions, &nodes);
            assert_eq!(found.len(), partitions.len().min(count * HOSTED_MAX));
            let mut loads = BTreeMap::<&str, usize>::new();
            for node in found.values() {
                *loads.entry(node).or_default() += 1;
            }
            assert!(loads.values().all(|load| *load <= HOSTED_MAX), "{count}");
        }
    }
}
