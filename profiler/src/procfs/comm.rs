//! `/proc/PID/comm`: the name of a thread.
//!
//! Format: `proc_pid_comm(5)`.

use std::fs;

use profiler_profile::sample::Comm;

/// The name of a thread, or of the main thread of a process; `None` if it is gone.
pub(crate) fn read(pid: u32) -> Option<Comm> {
    let text = fs::read(format!("/proc/{pid}/comm")).ok()?;
    Some(parse(&text))
}

fn parse(text: &[u8]) -> Comm {
    let mut comm = Comm::default();
    // The kernel adds the line break.
    let name = text.strip_suffix(b"\n").unwrap_or(text);
    comm.0.iter_mut().zip(name).for_each(|(to, from)| *to = *from);
    comm
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_ends_before_the_line_break_that_the_kernel_adds() {
        assert_eq!(parse(b"a b\n\n").text(), "a b\n");
        assert_eq!(parse(b"").text(), "");
        // They have at most 15 bytes, but those of the kernel's workers.
        assert_eq!(parse(b"kworker/u8:1-events_unbound\n").text(), "kworker/u8:1-eve");
        assert!(!read(std::process::id()).unwrap().text().is_empty());
        assert_eq!(read(u32::MAX), None);
    }
}
