//! Circles: files that need one another, so that none can be understood by itself.

use std::collections::{BTreeMap, BTreeSet};

/// The strongly connected components of more than one node (Tarjan 1972).
pub fn circles<'a, N: Ord>(edges: &BTreeMap<&'a N, BTreeSet<&'a N>>) -> Vec<Vec<&'a N>> {
    let mut search = Search {
        edges,
        order: BTreeMap::new(),
        lowest: BTreeMap::new(),
        open: vec![],
        found: vec![],
    };
    for node in edges.keys() {
        if !search.order.contains_key(node) {
            search.visit(node);
        }
    }
    search.found
}

struct Search<'e, 'a, N> {
    edges: &'e BTreeMap<&'a N, BTreeSet<&'a N>>,
    /// Node → when it was reached.
    order: BTreeMap<&'a N, usize>,
    /// Node → the earliest open node that it leads to.
    lowest: BTreeMap<&'a N, usize>,
    open: Vec<&'a N>,
    found: Vec<Vec<&'a N>>,
}

impl<'a, N: Ord> Search<'_, 'a, N> {
    fn visit(&mut self, node: &'a N) {
        let reached = self.order.len();
        self.order.insert(node, reached);
        self.lowest.insert(node, reached);
        self.open.push(node);
        for &next in self.edges.get(node).into_iter().flatten() {
            if !self.order.contains_key(next) {
                self.visit(next);
                self.lower(node, self.lowest[next]);
            } else if self.open.contains(&next) {
                self.lower(node, self.order[next]);
            }
        }
        if self.lowest[node] == reached {
            let start = self.open.iter().position(|open| *open == node).unwrap();
            let component = self.open.split_off(start);
            if component.len() > 1 {
                self.found.push(component);
            }
        }
    }

    fn lower(&mut self, node: &'a N, to: usize) {
        let lowest = self.lowest.get_mut(node).unwrap();
        *lowest = to.min(*lowest);
    }
}

#[test]
fn circles_are_found_and_chains_are_not() {
    let nodes: Vec<u8> = (0..7).collect();
    let edge = |from: usize, to: &[usize]| (&nodes[from], to.iter().map(|to| &nodes[*to]).collect());
    let edges = [
        edge(0, &[1]),
        edge(1, &[2, 3]),
        edge(2, &[0]),
        edge(3, &[4]),
        edge(4, &[5]),
        edge(5, &[4, 6]),
        edge(6, &[]),
    ];
    let mut found = circles(&edges.into_iter().collect());
    found.iter_mut().for_each(|circle| circle.sort());
    found.sort();
    assert_eq!(found, [vec![&0, &1, &2], vec![&4, &5]]);
}
