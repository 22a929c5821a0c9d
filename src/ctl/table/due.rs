//! The part of its GPU's time that a slice is due among the slices with work ([`gpuslice_wire::due`]): from a snapshot,
//! where a slice that has work now counts as one that always has, or from two, by how long each had work between them.

use super::{Row, View};
use gpuslice_wire::due::{Claimant, due};
use gpuslice_wire::policy::ClassCaps;

impl View {
    /// The part of its GPU, 0..=1, that a slice is due among the slices with work now.
    pub fn due(&self, row: &Row) -> f64 {
        self.due_since(None, row)
    }

    /// The same of the stretch since `before`: a slice that had work for a part of it counts with that part. One that
    /// has begun since then, or whose figures have begun anew, counts as it is now.
    pub fn due_since(&self, before: Option<&View>, row: &Row) -> f64 {
        let active = |peer: &Row| {
            let old = before.and_then(|view| Some((view.now_ns, view.row(peer)?.runnable_ns)));
            let grown = old.and_then(|(at, old)| Some((at, peer.runnable_ns.checked_sub(old)?)));
            match grown.filter(|(at, _)| *at < self.now_ns) {
                Some((at, grown)) => (grown as f64 / (self.now_ns - at) as f64).min(1.0),
                None if peer.runnable != 0 => 1.0,
                None => 0.0,
            }
        };
        let peers = self.rows.iter().filter(|peer| peer.gpu == row.gpu);
        let at = peers.clone().position(|peer| peer.container == row.container);
        let claimant = |peer: &Row| Claimant {
            class: peer.class,
            share: peer.share,
            weight: peer.weight,
            cap_ppm: peer.cap_ppm,
            active: active(peer),
        };
        let all: Vec<Claimant> = peers.map(claimant).collect();
        let caps = self.daemon.map_or(ClassCaps::ALL, |daemon| daemon.class_caps);
        at.map_or(0.0, |at| due(self.policy(row.gpu), caps, &all, at))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::tests::{gpu, slice};
    use crate::table::{DaemonState, Gpu};
    use gpuslice_wire::policy::{Class, Policy};
    use gpuslice_wire::units::Percent;

    /// The due share of each, in whole percent.
    fn due(policy: Policy, rows: Vec<Row>) -> Vec<f64> {
        let gpus = vec![Gpu { policy, ..gpu(1, 0) }];
        let view = View { gpus, rows, ..View::default() };
        let rows = view.rows.iter();
        rows.map(|row| (view.due(row) * 100.0).round()).collect()
    }

    #[test]
    fn due_shares_go_by_weight_up_to_each_limit() {
        let rows = vec![
            slice("a", 1, None, true, 0),
            slice("b", 3, None, true, 0),
            slice("c", 4, Some(20), true, 0),
            slice("idle", 6, None, false, 0),
        ];
        // The last one is idle: the share it would get if it had work now.
        assert_eq!(due(Policy::Soft, rows.clone()), [20.0, 60.0, 20.0, 48.0]);
        assert_eq!(due(Policy::Preemptive, rows), [40.0, 40.0, 20.0, 27.0]);
    }

    #[test]
    fn a_higher_class_goes_first_and_limits_leave_time_unused() {
        let high = Row { class: Class::High, ..slice("high", 1, Some(30), true, 0) };
        let low = Row { class: Class::BestEffort, ..slice("low", 9, None, true, 0) };
        let normal = slice("normal", 1, Some(50), true, 0);
        let rows = vec![low, normal.clone(), high];
        assert_eq!(due(Policy::Soft, rows), [20.0, 50.0, 30.0]);
        assert_eq!(due(Policy::Fixed, vec![normal]), [50.0]);
    }

    /// A slice of a higher class works for a tenth of the time: at the instant of the second view it has work, and at
    /// most instants it has not.
    #[test]
    fn a_stretch_counts_work_by_its_part_of_the_time() {
        let view = |now_ns, worked: u64| {
            let high =
                Row { class: Class::High, runnable_ns: worked, ..slice("a", 1, None, true, 0) };
            let normal = Row { runnable_ns: now_ns, ..slice("b", 1, None, true, 0) };
            View { now_ns, gpus: vec![gpu(1, 0)], rows: vec![high, normal], ..View::default() }
        };
        let (before, now) = (view(1_000, 100), view(2_000, 200));
        let of = |due: f64| (100.0 * due).round();
        assert_eq!(
            (of(now.due(&now.rows[1])), of(now.due_since(Some(&before), &now.rows[1]))),
            (0.0, 90.0)
        );
        assert_eq!(
            of(now.due_since(Some(&before), &now.rows[0])),
            100.0,
            "as if it had work all the time"
        );
        let column = crate::columns::ALL.into_iter().find(|it| it.head == "DUE");
        let shown = crate::columns::lines(&before, &now, &[column.expect("a column")]);
        assert_eq!(shown[2].split_whitespace().next(), Some("90.0%"), "{shown:?}");
        assert_eq!(crate::table::json(&now)["slices"][1]["share_due"], 0.0);
        let finding = crate::why::decide(Some(&before), &now, &now.rows[1]);
        assert_eq!(of(finding.due), 90.0);
        // its figures have begun anew
        let anew = view(2_000, 50);
        assert_eq!(of(anew.due_since(Some(&before), &anew.rows[1])), 0.0);
    }

    /// With the node's `high_cap` and `normal_cap`.
    #[test]
    fn a_lower_class_is_due_what_the_node_keeps_for_it() {
        let of = |class| Row { class, ..slice("a", 1, None, true, 0) };
        let rows = vec![of(Class::High), of(Class::Normal), of(Class::BestEffort)];
        let [high, normal] = [95, 99].map(|it| Percent::new(it).expect("a percentage"));
        let class_caps = ClassCaps { high, normal };
        let daemon = DaemonState { started_ns: 0, absent_until_ns: 0, absent_ns: 0, class_caps };
        let rows = rows.into_iter().zip(["a", "b", "c"]);
        let rows = rows.map(|(row, id)| Row { container: id.into(), ..row }).collect();
        let view = View { gpus: vec![gpu(1, 0)], rows, daemon: Some(daemon), ..View::default() };
        let due = view.rows.iter().map(|row| (view.due(row) * 100.0).round());
        assert_eq!(due.collect::<Vec<_>>(), [94.0, 5.0, 1.0]);
    }

    #[test]
    fn a_share_comes_first_and_weights_divide_the_rest() {
        let none = |row: Row| Row { share_limit: None, cap_ppm: 1_000_000, ..row };
        let half = none(slice("half", 1, Some(50), true, 0));
        let (one, three) = (slice("one", 1, None, true, 0), slice("three", 3, None, true, 0));
        let with = |first: &Row| vec![first.clone(), one.clone(), three.clone()];
        assert_eq!(due(Policy::Soft, with(&half)), [50.0, 13.0, 38.0]);
        let more = Row { weight: Some(1), ..half.clone() };
        assert_eq!(due(Policy::Soft, with(&more)), [60.0, 10.0, 30.0]);
        let limited = Row { cap_ppm: 520_000, ..more };
        assert_eq!(due(Policy::Soft, with(&limited)), [52.0, 12.0, 36.0]);
        let idle = none(slice("fifth", 1, Some(20), true, 0));
        assert_eq!(due(Policy::Soft, vec![half.clone(), idle]), [71.0, 29.0]);
        assert_eq!(due(Policy::Soft, vec![half]), [100.0]);
    }
}
