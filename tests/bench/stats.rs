//! Quantiles.

/// The quantile of `values` at this fraction: 0.5 for the median. Reorders `values`.
pub fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part).round() as usize]
}
