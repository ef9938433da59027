//! The environment that the user has logged in with, of which sudo leaves most out.

use std::{
    fs::File,
    io::Read as _,
    os::unix::{ffi::OsStringExt as _, process::parent_id},
};

use crate::procfs::stat::Stat;

/// How far up a shell is looked for: `sudo`, `script` and the like come between.
const ANCESTORS: usize = 16;
/// More than this no shell has.
const ENVIRONMENT_BYTES: u64 = 1 << 20;

/// A variable of ours, or else of the nearest process above whose environment we may read: as an ordinary user,
/// those of that user.
pub(super) fn variable(name: &str) -> Option<String> {
    let own = std::env::var(name).ok();
    let above = || {
        let ancestors = std::iter::successors(Some(parent_id()), |pid| {
            Stat::of(*pid).map(|it| it.parent).filter(|pid| *pid > 1)
        });
        ancestors.take(ANCESTORS).find_map(|pid| in_environment(&environment(pid)?, name))
    };
    own.filter(|it| !it.is_empty()).or_else(above)
}

/// `/proc/PID/environ`, or what the process had there when it began: `proc_pid_environ(5)`.
fn environment(pid: u32) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let file = File::open(format!("/proc/{pid}/environ")).ok()?;
    file.take(ENVIRONMENT_BYTES).read_to_end(&mut bytes).ok()?;
    Some(bytes)
}

/// The value of a variable that is set and not empty.
fn in_environment(bytes: &[u8], name: &str) -> Option<String> {
    let value = |entry: &[u8]| {
        let value = entry.strip_prefix(name.as_bytes())?.strip_prefix(b"=")?;
        let value = std::ffi::OsString::from_vec(value.to_vec()).into_string().ok()?;
        (!value.is_empty()).then_some(value)
    };
    bytes.split(|byte| *byte == 0).find_map(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_variable_is_found_by_its_whole_name() {
        let bytes = b"XDISPLAY=1\0DISPLAY_2=2\0EMPTY=\0DISPLAY=:0\0BAD=\xff\0";
        assert_eq!(in_environment(bytes, "DISPLAY").as_deref(), Some(":0"));
        for name in ["EMPTY", "BAD", "NONE", ""] {
            assert_eq!(in_environment(bytes, name), None, "{name}");
        }
    }

    #[test]
    fn what_is_not_here_is_looked_for_above() {
        // What cargo sets for tests is ours alone.
        assert_eq!(variable("CARGO_PKG_NAME").as_deref(), Some("profiler"));
        let pid = std::process::id();
        let own = environment(pid).unwrap();
        assert_eq!(in_environment(&own, "PATH"), std::env::var("PATH").ok());
        assert_eq!(variable("PROFILER_NO_SUCH_VARIABLE"), None);
    }
}
