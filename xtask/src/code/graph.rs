//! Directed graphs of modules: cycles, levels, and the order with the fewest imports against it.
//!
//! Nodes are numbers; an edge `a → b` says that `a` imports `b`. Every answer is deterministic.

use std::collections::BTreeSet;

/// Edges of each node.
pub(crate) type Graph = Vec<BTreeSet<usize>>;

/// The strongly connected components, each in ascending order; a component comes after those it imports.
pub(crate) fn components(graph: &Graph) -> Vec<Vec<usize>> {
    let mut search = Tarjan {
        graph,
        index: vec![None; graph.len()],
        low: vec![0; graph.len()],
        on_stack: vec![false; graph.len()],
        stack: Vec::new(),
        next: 0,
        found: Vec::new(),
    };
    for node in 0..graph.len() {
        if search.index[node].is_none() {
            search.visit(node);
        }
    }
    search.found
}

/// Tarjan's algorithm.
struct Tarjan<'a> {
    graph: &'a Graph,
    index: Vec<Option<usize>>,
    low: Vec<usize>,
    on_stack: Vec<bool>,
    stack: Vec<usize>,
    next: usize,
    found: Vec<Vec<usize>>,
}

impl Tarjan<'_> {
    fn visit(&mut self, node: usize) {
        self.index[node] = Some(self.next);
        self.low[node] = self.next;
        self.next += 1;
        self.stack.push(node);
        self.on_stack[node] = true;
        for &other in &self.graph[node] {
            match self.index[other] {
                None => {
                    self.visit(other);
                    self.low[node] = self.low[node].min(self.low[other]);
                }
                Some(index) if self.on_stack[other] => {
                    self.low[node] = self.low[node].min(index);
                }
                Some(_) => {}
            }
        }
        if self.index[node] == Some(self.low[node]) {
            let mut component = Vec::new();
            while let Some(member) = self.stack.pop() {
                self.on_stack[member] = false;
                component.push(member);
                if member == node {
                    break;
                }
            }
            component.sort_unstable();
            self.found.push(component);
        }
    }
}

/// The level of each node in the condensation: 0 imports nothing outside its own component, others one more than
/// the highest they import.
pub(crate) fn levels(graph: &Graph, components: &[Vec<usize>]) -> Vec<usize> {
    let mut levels = vec![0; graph.len()];
    for component in components {
        let below = component
            .iter()
            .flat_map(|node| &graph[*node])
            .filter(|other| !component.contains(other))
            .map(|other| levels[*other] + 1)
            .max();
        for node in component {
            levels[*node] = below.unwrap_or(0);
        }
    }
    levels
}

/// Edges inside `component` that go against the best order found: a small feedback arc set.
///
/// An order lists importers first. The search starts with the heuristic of Eades, Lin and Smyth and with shuffled
/// orders, and improves each by moving single nodes until no move helps.
pub(crate) fn upward(graph: &Graph, component: &[usize]) -> Vec<(usize, usize)> {
    const SHUFFLES: u64 = 24;
    let first = initial_order(graph, component);
    let shuffled = (1..=SHUFFLES).map(|seed| shuffle(component, seed));
    std::iter::once(first)
        .chain(shuffled)
        .map(|order| against(graph, &improve(graph, order)))
        .min_by_key(Vec::len)
        .unwrap_or_default()
}

/// Moves each node to its best place until a round changes nothing.
fn improve(graph: &Graph, mut order: Vec<usize>) -> Vec<usize> {
    let nodes = order.clone();
    loop {
        let mut moved = false;
        for node in &nodes {
            let from = order.iter().position(|n| n == node).unwrap_or(0);
            order.remove(from);
            // Edges of `node` against the order when it stands before the first, the second, … of the others.
            let mut cost = order.iter().filter(|n| graph[**n].contains(node)).count();
            let mut costs = vec![cost];
            for other in &order {
                cost += usize::from(graph[*node].contains(other));
                cost -= usize::from(graph[*other].contains(node));
                costs.push(cost);
            }
            let best = (0..costs.len()).min_by_key(|at| costs[*at]).unwrap_or(from);
            let to = if costs[best] < costs[from] {
                best
            } else {
                from
            };
            moved |= to != from;
            order.insert(to, *node);
        }
        if !moved {
            return order;
        }
    }
}

/// `nodes` in an order that depends on `seed` alone.
fn shuffle(nodes: &[usize], seed: u64) -> Vec<usize> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut keyed: Vec<(u64, usize)> = nodes
        .iter()
        .map(|node| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33, *node)
        })
        .collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, node)| node).collect()
}

/// Takes sinks to the end and sources to the front; between them the node with the most imports left over.
fn initial_order(graph: &Graph, component: &[usize]) -> Vec<usize> {
    let mut left: BTreeSet<usize> = component.iter().copied().collect();
    let mut front = Vec::new();
    let mut back = Vec::new();
    while !left.is_empty() {
        let out = |node: usize| graph[node].iter().filter(|n| left.contains(n)).count();
        let into = |node: usize| left.iter().filter(|n| graph[**n].contains(&node)).count();
        let sink = left.iter().copied().find(|n| out(*n) == 0);
        let source = left.iter().copied().find(|n| into(*n) == 0);
        let node = if let Some(node) = sink {
            back.push(node);
            node
        } else {
            let surplus = |node: &usize| (out(*node) + graph.len()).saturating_sub(into(*node));
            let Some(node) = source.or_else(|| left.iter().copied().max_by_key(surplus)) else {
                break;
            };
            front.push(node);
            node
        };
        left.remove(&node);
    }
    front.extend(back.into_iter().rev());
    front
}

/// Edges between nodes of `order` from a later to an earlier one.
fn against(graph: &Graph, order: &[usize]) -> Vec<(usize, usize)> {
    let mut found = Vec::new();
    for (at, node) in order.iter().enumerate() {
        let earlier = order[..at].iter().filter(|n| graph[*node].contains(n));
        found.extend(earlier.map(|other| (*node, *other)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(nodes: usize, edges: &[(usize, usize)]) -> Graph {
        let mut graph = vec![BTreeSet::new(); nodes];
        for (from, to) in edges {
            graph[*from].insert(*to);
        }
        graph
    }

    #[test]
    fn components_and_levels_of_a_small_graph() {
        // 0 → 1 ⇄ 2 → 3, 4 alone
        let graph = graph(5, &[(0, 1), (1, 2), (2, 1), (2, 3)]);
        let components = components(&graph);
        assert_eq!(components, [vec![3], vec![1, 2], vec![0], vec![4]]);
        assert_eq!(levels(&graph, &components), [2, 1, 1, 0, 0]);
        assert_eq!(upward(&graph, &[1, 2]).len(), 1);
    }

    #[test]
    fn a_single_edge_that_closes_a_cycle_is_the_upward_one() {
        let graph = graph(4, &[(0, 1), (0, 2), (1, 2), (1, 3), (2, 3), (3, 0)]);
        assert_eq!(upward(&graph, &[0, 1, 2, 3]), [(3, 0)]);
    }
}
