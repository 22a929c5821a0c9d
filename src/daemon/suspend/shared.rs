//! Processes that share GPU memory with others are not moved.
//!
//! A driver before release 610 does not move back what a process has exported to others or imported from them, or the
//! process ends (580 and 595: gpunap, `validation/FINDINGS.md`; [cuda-checkpoint] names the release). Nothing outside a
//! process shows that it shares memory, but its shim sees each export and import and counts them in the process's page.
//! The daemon looks there when the page tells the processes that their container is about to be suspended: from then on
//! such calls wait in the shim.
//!
//! The count is a claim. A process that hides an export loses its own memory, and one that invents one is not
//! suspended. A container whose shim does not count, as that of an older build, is not suspended either.
//!
//! [cuda-checkpoint]: https://github.com/NVIDIA/cuda-checkpoint/issues/56

/// Whether a process has ever shared GPU memory with another one; `None`: it does not tell.
pub type Shares = Option<bool>;

/// Says which of these processes, by pid, keeps its container on the GPU. `again`: a daemon has looked before it began
/// the move, and a process that the driver holds since then may be unable to connect. `name`: of a pid.
pub fn refusal(
    processes: &[(u32, Shares)],
    again: bool,
    name: impl Fn(u32) -> String,
) -> Option<String> {
    let first = |wanted| processes.iter().find(|(_, shares)| *shares == wanted);
    if let Some((pid, _)) = first(Some(true)) {
        let named = name(*pid);
        return Some(format!(
            "process {named} has shared GPU memory with another process, which the driver may not move back; end it first"
        ));
    }
    let (pid, _) = first(None).filter(|_| !again)?;
    let named = name(*pid);
    Some(format!(
        "process {named} does not tell whether it shares GPU memory: it is not connected, or its container has an \
         older library; try again, or start the container again"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_that_shares_is_named_before_one_that_does_not_tell() {
        let said = |processes: &[(u32, Shares)]| {
            refusal(processes, false, |pid| format!("{pid} (python3)"))
        };
        assert_eq!(said(&[]), None);
        assert_eq!(said(&[(7, Some(false)), (8, Some(false))]), None);
        let why = said(&[(7, None), (8, Some(true)), (9, Some(true))]).expect("a reason");
        assert!(
            why.starts_with("process 8 (python3) has shared") && why.contains("end it"),
            "{why}"
        );
        let untold = [(8, Some(false)), (7, None)];
        let why = said(&untold).expect("a reason");
        assert!(
            why.starts_with("process 7 (python3) does not tell") && why.contains("try again"),
            "{why}"
        );
        assert_eq!(refusal(&untold, true, |_| String::new()), None);
        assert!(refusal(&[(8, Some(true))], true, |_| String::new()).is_some());
    }
}
