//! Sparklines: a part of each interval as a block of one cell. Pure.

/// Blocks of one to eight eighths.
const STEPS: [char; 8] = [
    '\u{2581}', '\u{2582}', '\u{2583}', '\u{2584}', '\u{2585}', '\u{2586}', '\u{2587}', '\u{2588}',
];

/// Blocks of parts, 0..=1. Nothing is known of `None`, which is a space.
pub fn sparkline(parts: &[Option<f64>]) -> String {
    let step = |part: &Option<f64>| match part {
        Some(part) => STEPS[((part * 8.0) as usize).min(7)],
        None => ' ',
    };
    parts.iter().map(step).collect()
}

/// The means of the last `seconds` parts, one a second, in as many cells. What is older than the parts is unknown.
pub fn resampled(parts: &[f64], cells: usize, seconds: usize) -> Vec<Option<f64>> {
    let parts = &parts[parts.len().saturating_sub(seconds)..];
    let missing = seconds - parts.len();
    let mean = |cell: usize| {
        let from = cell * seconds / cells;
        let to = ((cell + 1) * seconds / cells).max(from + 1);
        let some = &parts[from.saturating_sub(missing)..to.saturating_sub(missing)];
        (!some.is_empty()).then(|| some.iter().sum::<f64>() / some.len() as f64)
    };
    (0..cells).map(mean).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_eighth_has_its_block() {
        let parts: Vec<Option<f64>> = (0..=8).map(|n| Some(f64::from(n) / 8.0)).collect();
        assert_eq!(
            sparkline(&parts),
            "\u{2581}\u{2582}\u{2583}\u{2584}\u{2585}\u{2586}\u{2587}\u{2588}\u{2588}"
        );
        assert_eq!(sparkline(&[None, Some(2.0), Some(-1.0)]), " \u{2588}\u{2581}");
    }

    #[test]
    fn cells_have_means_of_equal_stretches() {
        assert_eq!(resampled(&[0.0, 1.0, 0.5, 0.5], 2, 4), [Some(0.5), Some(0.5)]);
        assert_eq!(resampled(&[0.25], 3, 3), [None, None, Some(0.25)]);
        assert_eq!(resampled(&[0.0, 1.0], 4, 2), [0.0, 0.0, 1.0, 1.0].map(Some));
        let all = resampled(&(0..600).map(f64::from).collect::<Vec<_>>(), 60, 600);
        assert_eq!((all[0], all[59]), (Some(4.5), Some(594.5)));
        let some = resampled(&[1.0; 50], 20, 120);
        assert_eq!(some.iter().filter(|it| it.is_some()).count(), 9, "six seconds each");
        assert_eq!(resampled(&[0.5; 900], 2, 600), [Some(0.5); 2]);
    }
}
