//! The order and the distances in time of a graph's nodes.
//!
//! On a real GPU independent nodes overlap, so a graph takes as long as its longest path. All of a
//! launch is in one stream, so it must become a sequence: nodes are put
//! in the order in which they would end, and each is given only the time that passes between the
//! end before it and its own. The sum is the longest path, and every effect comes after those of
//! the nodes it depends on.

#![forbid(unsafe_code)]

use crate::exec::cost::Nanos;

/// A node as the plan sees it; `after` are indices of other nodes.
#[derive(Clone, Debug, Default)]
pub struct Step {
    pub ns: Nanos,
    pub after: Vec<usize>,
}

/// The nodes' indices so that each comes after those it depends on, otherwise as they were added;
/// `None` where they depend on each other in a circle.
pub fn order(after: &[Vec<usize>]) -> Option<Vec<usize>> {
    let mut missing: Vec<usize> = after.iter().map(Vec::len).collect();
    let mut dependents = vec![Vec::new(); after.len()];
    for (node, before) in after.iter().enumerate() {
        for other in before {
            dependents[*other].push(node);
        }
    }
    let mut ready: std::collections::BTreeSet<usize> =
        (0..after.len()).filter(|node| missing[*node] == 0).collect();
    let mut order = Vec::with_capacity(after.len());
    while let Some(node) = ready.pop_first() {
        order.push(node);
        for dependent in &dependents[node] {
            missing[*dependent] -= 1;
            if missing[*dependent] == 0 {
                ready.insert(*dependent);
            }
        }
    }
    (order.len() == after.len()).then_some(order)
}

/// The sequence: each node's index and the time from the end before it to its own end.
pub fn sequence(steps: &[Step]) -> Option<Vec<(usize, Nanos)>> {
    let after: Vec<_> = steps.iter().map(|step| step.after.clone()).collect();
    let mut ends = vec![0; steps.len()];
    let mut sequence = order(&after)?;
    for node in &sequence {
        let start = steps[*node].after.iter().map(|other| ends[*other]).max().unwrap_or(0);
        ends[*node] = Nanos::saturating_add(start, steps[*node].ns);
    }
    // Stable: of nodes that end together the one another depends on stays before it.
    sequence.sort_by_key(|node| ends[*node]);
    let mut before = 0;
    let gaps = sequence.into_iter().map(|node| {
        let gap = ends[node] - before;
        before = ends[node];
        (node, gap)
    });
    Some(gaps.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn steps(nodes: &[(Nanos, &[usize])]) -> Vec<Step> {
        nodes.iter().map(|(ns, after)| Step { ns: *ns, after: after.to_vec() }).collect()
    }

    #[test]
    fn a_graph_takes_as_long_as_its_longest_path() {
        // A diamond with arms of 100 and 30, then a node without time.
        let diamond = steps(&[(10, &[]), (100, &[0]), (30, &[0]), (5, &[1, 2]), (0, &[3])]);
        let sequence = sequence(&diamond).expect("there is no circle");
        assert_eq!(sequence, [(0, 10), (2, 30), (1, 70), (3, 5), (4, 0)]);
        assert_eq!(sequence.iter().map(|(_, gap)| gap).sum::<Nanos>(), 115);
    }

    #[test]
    fn nodes_without_time_keep_their_order() {
        let chain = steps(&[(0, &[2]), (0, &[0]), (0, &[])]);
        let nodes: Vec<_> = sequence(&chain).into_iter().flatten().map(|(node, _)| node).collect();
        assert_eq!(nodes, [2, 0, 1]);
        assert_eq!(sequence(&[]), Some(vec![]));
    }

    #[test]
    fn a_circle_is_found() {
        assert_eq!(sequence(&steps(&[(1, &[1]), (1, &[0])])), None);
        assert_eq!(sequence(&steps(&[(1, &[]), (1, &[1])])), None);
    }
}
