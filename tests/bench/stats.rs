//! Quantiles, and how often something is measured.

/// The variable that has the most rounds of a measurement: for a run that shows only whether a bench works.
pub const ROUNDS: &str = "BENCH_ROUNDS";

/// How often something is measured: so often, or as often as [`ROUNDS`] says if that is less.
pub fn rounds(whole: usize) -> usize {
    let most = std::env::var(ROUNDS).ok().and_then(|text| text.parse().ok());
    most.map_or(whole, |most: usize| whole.min(most.max(1)))
}

/// The quantile of `values` at this fraction: 0.5 for the median. Reorders `values`.
pub fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part).round() as usize]
}
