//! One number for many.

/// The value that this part of all is below: 0.5 for the median. The order of `values` is not kept.
pub fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    values[((values.len() - 1) as f64 * part).round() as usize]
}
