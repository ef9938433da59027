//! Who a process is: its command line, its parent, and what it belongs to.

use std::{
    fs::{self, File, OpenOptions},
    io::Read as _,
    os::{fd::AsRawFd as _, unix::fs::OpenOptionsExt as _},
};

use profiler_profile::process::Metadata;

use crate::procfs::{cgroup, environment, stat::Stat, status};

/// The most of a command line that is kept, in bytes.
const COMMAND_LINE_LIMIT: usize = 4096;
/// The most that is read of the other files, which are short unless someone makes them long.
const FILE_LIMIT: u64 = 64 << 10;
/// The same of an environment, which may be longer: exec takes 2 MiB by default.
const ENVIRONMENT_LIMIT: u64 = 256 << 10;
/// The service of the kernel's own threads.
const KERNEL: &str = "kernel";

/// Asks `/proc`. Of a process that is gone, nothing is known.
#[must_use]
pub fn read(tgid: u32) -> Metadata {
    // An open folder stays that of this process, also when its pid is given to another.
    let mut options = OpenOptions::new();
    let options = options.read(true).custom_flags(libc::O_PATH | libc::O_DIRECTORY);
    let Ok(folder) = options.open(format!("/proc/{tgid}")) else {
        return Metadata::default();
    };
    let cgroup = text(&folder, "cgroup", FILE_LIMIT).unwrap_or_default();
    let stat = text(&folder, "stat", FILE_LIMIT).unwrap_or_default();
    let stat = Stat::parse(stat.as_bytes());
    let path = cgroup::path(&cgroup);
    let mut metadata = Metadata {
        command_line: text(&folder, "cmdline", COMMAND_LINE_LIMIT as u64)
            .and_then(|arguments| command_line(&arguments)),
        parent: stat.map(|stat| stat.parent).filter(|it| *it != 0),
        cgroup: path.map(str::to_owned),
        container: path.and_then(cgroup::container),
        pod: path.and_then(cgroup::pod),
        unit: path.and_then(cgroup::unit).map(str::to_owned),
        uid: text(&folder, "status", FILE_LIMIT)
            .and_then(|it| status::number(&it, "Uid")?.try_into().ok()),
        service: None,
    };
    metadata.service = if stat.is_some_and(|stat| stat.is_kernel_thread) {
        Some(KERNEL.to_owned())
    } else {
        let told = text(&folder, "environ", ENVIRONMENT_LIMIT);
        let told = told.and_then(|it| environment::service(&it));
        told.or_else(|| metadata.unit_service().map(str::to_owned)).or_else(|| executable(&folder))
    };
    metadata
}

/// The name of the file that it runs.
fn executable(folder: &File) -> Option<String> {
    let path = fs::read_link(format!("/proc/self/fd/{}/exe", folder.as_raw_fd())).ok()?;
    let name = path.file_name()?.to_string_lossy();
    let name = name.strip_suffix(" (deleted)").unwrap_or(&name);
    (!name.is_empty()).then(|| name.to_owned())
}

fn text(folder: &File, name: &str, limit: u64) -> Option<String> {
    let mut bytes = Vec::new();
    let file = File::open(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd())).ok()?;
    // A process that ends meanwhile leaves what has been read.
    let _ = file.take(limit).read_to_end(&mut bytes);
    Some(String::from_utf8_lossy(&bytes).into_owned())
}

/// `None` if there are no arguments.
fn command_line(arguments: &str) -> Option<String> {
    let arguments = arguments.trim_end_matches('\0');
    let mut line = arguments.replace('\0', " ");
    // Bytes that are no UTF-8 have become longer.
    let end = (0..=COMMAND_LINE_LIMIT).rev().find(|&end| line.is_char_boundary(end));
    line.truncate(end.unwrap_or_default());
    (!line.is_empty()).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::process::{Child, Command, Stdio};

    /// A process that has these arguments behind its own, and ends with its input. `spawn` returns
    /// while it is within exec, when it has no command line yet; a line from it says that it has.
    fn child(arguments: &[&str]) -> Child {
        let mut command = Command::new("sh");
        command.args(["-c", "echo; read -r _"]).args(arguments);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        child
    }

    #[test]
    fn knows_a_child() {
        let mut child = child(&["a b", "c"]);
        let known = read(child.id());
        child.wait().unwrap();
        assert_eq!(known.command_line.as_deref(), Some("sh -c echo; read -r _ a b c"));
        assert_eq!(known.parent, Some(std::process::id()));
        // It has been put where we are.
        let own = read(std::process::id());
        assert!(own.cgroup.is_some());
        assert_eq!((known.cgroup, known.unit), (own.cgroup, own.unit));
        assert_eq!(known.uid, Some(rustix::process::getuid().as_raw()));
    }

    #[test]
    fn a_service_is_what_the_environment_says_or_the_program() {
        let of = |told: Option<&str>| {
            let mut command = Command::new("sh");
            command.args(["-c", "echo; read -r _"]).stdin(Stdio::piped()).stdout(Stdio::piped());
            command.env_clear().envs(told.map(|it| ("OTEL_SERVICE_NAME", it)));
            let mut child = command.env("PATH", "/bin:/usr/bin").spawn().unwrap();
            child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
            let known = read(child.id());
            child.wait().unwrap();
            known
        };
        assert_eq!(of(Some("shop")).service.as_deref(), Some("shop"));
        let untold = of(None);
        let shell = fs::canonicalize("/bin/sh").unwrap();
        let name = shell.file_name().unwrap().to_str().unwrap();
        assert_eq!(untold.service.as_deref(), Some(untold.unit_service().unwrap_or(name)));
    }

    #[test]
    fn nothing_is_known_of_a_process_that_is_gone() {
        assert_eq!(read(u32::MAX), Metadata::default());
    }

    #[test]
    fn one_that_has_ended_has_a_parent_still() {
        let mut child = Command::new("true").stdout(Stdio::piped()).spawn().unwrap();
        // Its end of the pipe is closed when it ends.
        child.stdout.as_mut().unwrap().read_to_end(&mut Vec::new()).unwrap();
        let known = read(child.id());
        child.wait().unwrap();
        assert_eq!(known.parent, Some(std::process::id()));
    }

    #[test]
    fn a_command_line_is_kept_as_it_is() {
        assert_eq!(command_line("a\0b c\0\0"), Some("a b c".into()));
        assert_eq!(command_line("a\x1b[2J\nb\0"), Some("a\x1b[2J\nb".into()));
        assert_eq!(command_line("\0\0"), None);
        assert_eq!(command_line(""), None);
    }

    #[test]
    fn a_long_command_line_is_cut() {
        let mut child = child(&[&"0".repeat(8000)]);
        let known = read(child.id()).command_line.unwrap();
        child.wait().unwrap();
        assert_eq!(known.len(), COMMAND_LINE_LIMIT);
        assert!(known.starts_with("sh -c echo; read -r _ 0000"));
    }

    #[test]
    fn the_first_process_has_no_parent() {
        assert_eq!(read(1).parent, None);
    }

    proptest! {
        #[test]
        fn any_arguments_are_harmless(bytes in prop::collection::vec(any::<u8>(), 0..6000)) {
            let text = String::from_utf8_lossy(&bytes);
            if let Some(line) = command_line(&text) {
                prop_assert!(line.len() <= COMMAND_LINE_LIMIT);
            }
        }
    }
}
