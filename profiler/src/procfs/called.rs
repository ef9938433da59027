//! What processes are called.
//!
//! A process has a name that the kernel shows, of at most 15 bytes, a file that it executes, and a first argument,
//! which is what was typed, or what it says it is.

use std::{
    fs::{self, File},
    io::Read as _,
};

use profiler_profile::sample::Comm;

use super::{comm, processes, stat::Stat};

/// The most that is read of a command line, in bytes.
const COMMAND_LINE_LIMIT: u64 = 4096;
/// What the kernel appends to the path of a file that was removed.
const DELETED: &str = " (deleted)";

/// A process, and what it is called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Called {
    /// Its id.
    pub pid: u32,
    /// That of the process that has started it; 0 if there is none.
    pub parent: u32,
    /// Its names; the first is the kernel's.
    pub names: Vec<String>,
    /// With its arguments, as far as they are known, a blank between two.
    pub command_line: String,
}

/// All processes that have not ended.
#[must_use]
pub fn all() -> Vec<Called> {
    processes().filter_map(read).collect()
}

/// `None` if it has ended.
fn read(pid: u32) -> Option<Called> {
    let stat = Stat::of(pid)?;
    if stat.has_ended() && stat.threads < 2 {
        return None;
    }
    let comm = comm::read(pid)?;
    // Of other users' processes only root is told.
    let program = fs::read_link(format!("/proc/{pid}/exe")).ok();
    let program = program.map(|it| it.to_string_lossy().into_owned());
    let mut arguments = Vec::new();
    if let Ok(file) = File::open(format!("/proc/{pid}/cmdline")) {
        // A process that ends meanwhile leaves what has been read.
        let _ = file.take(COMMAND_LINE_LIMIT).read_to_end(&mut arguments);
    }
    let arguments = String::from_utf8_lossy(&arguments).into_owned();
    Some(Called::new(pid, stat.parent, comm, program.as_deref(), &arguments))
}

impl Called {
    fn new(pid: u32, parent: u32, comm: Comm, program: Option<&str>, arguments: &str) -> Self {
        let comm = comm.text().into_owned();
        let program = program.map(|it| it.strip_suffix(DELETED).unwrap_or(it));
        let first = arguments.split('\0').next();
        let paths = [program, first].into_iter().flatten();
        let mut names = vec![comm];
        for name in paths.filter_map(|path| path.rsplit('/').next()) {
            if !name.is_empty() && !names.iter().any(|it| it == name) {
                names.push(name.to_owned());
            }
        }
        let command_line = arguments.trim_end_matches('\0').replace('\0', " ");
        Self { pid, parent, names, command_line }
    }

    /// Its command line, or its name where it has none, as the kernel's threads.
    #[must_use]
    pub fn shown(&self) -> String {
        match self.names.first() {
            Some(name) if self.command_line.is_empty() => format!("[{name}]"),
            _ => self.command_line.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    fn comm(name: &[u8]) -> Comm {
        let mut comm = Comm::default();
        comm.0[..name.len()].copy_from_slice(name);
        comm
    }

    #[test]
    fn a_process_has_up_to_three_names() {
        let named =
            |name: &[u8], program, arguments| Called::new(7, 1, comm(name), program, arguments);
        let nginx = named(b"nginx", Some("/usr/sbin/nginx (deleted)"), "nginx: worker\0\0\0");
        assert_eq!(nginx.names, ["nginx", "nginx: worker"]);
        assert_eq!(nginx.shown(), "nginx: worker");
        let script = named(b"a.py", Some("/usr/bin/python3.11"), "/usr/bin/python3\0./a.py\0");
        assert_eq!(script.names, ["a.py", "python3.11", "python3"]);
        assert_eq!(script.shown(), "/usr/bin/python3 ./a.py");
        let of_kernel = named(b"kthreadd", None, "");
        assert_eq!((of_kernel.names.len(), of_kernel.shown()), (1, "[kthreadd]".into()));
    }

    #[test]
    fn a_child_is_called_what_it_is() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        // Within exec it is still called what we are.
        let called = loop {
            let called = all().into_iter().find(|it| it.pid == child.id()).unwrap();
            if called.shown() == "sleep 60" {
                break called;
            }
        };
        child.kill().unwrap();
        // Not waited for, it has ended all the same.
        while all().iter().any(|it| it.pid == child.id()) {}
        child.wait().unwrap();
        assert!(called.names.contains(&"sleep".to_owned()), "{called:?}");
        assert_eq!(called.parent, std::process::id());
    }
}
