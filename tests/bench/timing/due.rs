//! What tenants with pauses are due, and whether they got it.
//!
//! # Problem
//! A tenant that waits for its kernels cannot use all of a GPU. Beside it a neighbour may get more than its weight
//! says, and rightly so. A judgement by weights alone would blame the scheduler for the load.
//!
//! # Idea
//! What a tenant can use is known: by its load, kernels over kernels and pauses, and by what the same program gets
//! alone on this machine just before. The lower of the two counts, since a simulated GPU's driver and the wake-ups of
//! a busy machine cost time that no scheduler can give back.
//!
//! * All tenants can use more than their parts: they *compete*. Each must get its part of what they get together.
//! * Otherwise each must get what it can do in its part of the time, that is its part of what it gets alone; what
//!   remains may go to any of them.
//! * In both cases they must get together what their parts of the time alone would give: for equal loads, as much as
//!   one gets alone.

/// Of the division of a GPU among tenants; all times are parts of the device's.
#[derive(Clone, Debug, PartialEq)]
pub struct Division {
    /// Each one's part by weight or share; together 1.
    pub part: Vec<f64>,
    /// What its load can use at most: kernels over kernels and pauses.
    pub load: Vec<f64>,
    /// What it gets alone.
    pub alone: Vec<f64>,
    /// What it got beside the others.
    pub got: Vec<f64>,
}

/// A sum of products.
fn over(these: &[f64], those: &[f64]) -> f64 {
    these.iter().zip(those).map(|(one, other)| one * other).sum()
}

impl Division {
    /// Whether all can use more than their parts.
    pub fn competes(&self) -> bool {
        let usable = self.load.iter().zip(&self.alone).map(|(load, alone)| load.min(*alone));
        usable.zip(&self.part).all(|(usable, part)| usable > *part)
    }

    /// Whether the loads themselves could use more than the parts, where the machine's processors did not permit it.
    pub fn is_limited_by_processors(&self) -> bool {
        let could = self.load.iter().zip(&self.part).all(|(load, part)| load > part);
        could && !self.competes()
    }

    /// What they got together, in percent of what their parts of the time would give each alone.
    pub fn together(&self) -> f64 {
        100.0 * self.got.iter().sum::<f64>() / over(&self.part, &self.alone)
    }

    /// The largest deviation from what is due, percent of that: competing tenants' up or down, the others' down.
    pub fn off(&self) -> f64 {
        let all: f64 = self.got.iter().sum();
        let ratios = (0..self.got.len()).map(|at| match self.competes() {
            true => (self.got[at] / (self.part[at] * all) - 1.0).abs(),
            false => 1.0 - self.got[at] / (self.part[at] * self.alone[at]),
        });
        100.0 * ratios.fold(0.0, f64::max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(load: f64, alone: f64, got: [f64; 2]) -> Division {
        let [part, load, alone] = [[0.25, 0.75], [load; 2], [alone; 2]].map(Vec::from);
        Division { part, load, alone, got: got.into() }
    }

    #[test]
    fn tenants_compete_if_each_can_use_more_than_its_part() {
        let even = of(0.91, 0.9, [0.42, 0.42]);
        assert!(even.competes() && !even.is_limited_by_processors());
        assert!((even.off() - 100.0).abs() < 1e-9, "a quarter is due, and a half came");
        assert!((even.together() - 93.3).abs() < 0.1);
        let due = of(0.91, 0.9, [0.225, 0.675]);
        assert!(due.off() < 1e-9 && (due.together() - 100.0).abs() < 1e-9);
    }

    #[test]
    fn others_must_get_what_they_can_do_in_their_parts() {
        let slow = of(0.91, 0.4, [0.1, 0.3]);
        assert!(!slow.competes() && slow.is_limited_by_processors());
        assert!(slow.off() < 1e-9 && (slow.together() - 100.0).abs() < 1e-9);
        let better = of(0.4, 0.4, [0.3, 0.4]);
        assert!(!better.competes() && !better.is_limited_by_processors());
        assert!(better.off() < 1e-9 && better.together() > 150.0, "more is better");
        let starved = of(0.4, 0.4, [0.3, 0.15]);
        assert!((starved.off() - 50.0).abs() < 1e-9, "it could have had 0.3");
    }
}
