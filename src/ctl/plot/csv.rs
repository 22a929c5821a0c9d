//! The last minutes as CSV: a line for each sample. Pure.

use crate::past::Past;
use gpuslice_wire::ids::GpuUuid;
use gpuslice_wire::waits::WaitCause;
use std::time::{Duration, UNIX_EPOCH};

/// A field as RFC 4180 writes it. A leading character that a spreadsheet takes for a formula is quoted away.
fn field(text: &str) -> String {
    let is_formula = text.starts_with(['=', '+', '-', '@']);
    let text = if is_formula { format!("'{text}") } else { text.to_owned() };
    match text.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text,
    }
}

/// All samples, by time and name. Times in seconds, parts 0..1, memory in bytes.
pub fn csv(past: &Past, index: impl Fn(GpuUuid) -> u32) -> String {
    let waits = WaitCause::ALL.map(|cause| format!("wait_{}_s", cause.name().replace('-', "_")));
    let mut all = format!(
        "time,container,name,gpu,gpu_uuid,interval_s,due,got_s,running_s,handover_s,limited_s,gang_s,idle_s,suspended_s,absent_s,{},memory_bytes\n",
        waits.join(",")
    );
    let rows = past.series.values().flat_map(|it| it.samples.iter().map(move |row| (it, row)));
    let mut rows: Vec<_> = rows.collect();
    rows.sort_by(|(a, x), (b, y)| (x.end_ns, &a.name).cmp(&(y.end_ns, &b.name)));
    let seconds = |us: u32| format!("{:.6}", f64::from(us) / 1e6);
    for (series, row) in rows {
        let time = UNIX_EPOCH + Duration::from_nanos(past.unix_of(row.end_ns));
        let fields = [
            humantime::format_rfc3339_millis(time).to_string(),
            field(&series.container),
            field(&series.name),
            index(series.gpu).to_string(),
            series.gpu.to_string(),
            seconds(row.length_us),
            format!("{:.6}", f64::from(row.due_ppm) / 1e6),
        ];
        let parts = [
            row.got_us,
            row.running_us,
            row.handover_us,
            row.limited_us,
            row.gang_us,
            row.idle_us,
            row.suspended_us,
            row.absent_us,
        ];
        let parts = parts.into_iter().chain(row.wait_us).map(seconds);
        let all_fields: Vec<String> =
            fields.into_iter().chain(parts).chain([row.memory.0.to_string()]).collect();
        all += &(all_fields.join(",") + "\n");
    }
    all
}
