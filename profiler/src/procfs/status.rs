//! `/proc/PID/status`: fields by name.
//!
//! Format: `proc_pid_status(5)`.

use std::{fmt::Display, fs};

/// The text of the file, of a process or thread by its id, or of `self`; `None` if it is gone.
pub(crate) fn read(pid: impl Display) -> Option<String> {
    let text = fs::read(format!("/proc/{pid}/status")).ok()?;
    // The process's name need not be UTF-8.
    Some(String::from_utf8_lossy(&text).into_owned())
}

/// A number, the first one of a field.
pub(crate) fn number(text: &str, field: &str) -> Option<u64> {
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    let mut values = fields.filter(|(name, _)| *name == field).map(|(_, value)| value);
    values.next()?.split_ascii_whitespace().next()?.parse().ok()
}

/// The process that has a thread of this id.
pub(crate) fn process_of(tid: u32) -> Option<u32> {
    number(&read(tid)?, "Tgid")?.try_into().ok()
}

/// The real user id of a process. The owner of its folder in `/proc` is not always it: a process may have that be
/// root.
pub(crate) fn user_of(tgid: u32) -> Option<u32> {
    number(&read(tgid)?, "Uid")?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_tell_their_process() {
        assert_eq!(process_of(std::process::id()), Some(std::process::id()));
        let thread = rustix::thread::gettid().as_raw_nonzero().get().unsigned_abs();
        assert_eq!(process_of(thread), Some(std::process::id()));
        assert_eq!(process_of(u32::MAX), None);
    }

    #[test]
    fn a_process_has_a_user() {
        assert_eq!(user_of(std::process::id()), Some(rustix::process::getuid().as_raw()));
        assert_eq!(user_of(u32::MAX), None);
    }

    #[test]
    fn a_field_is_found_by_its_whole_name() {
        let text = "Name:\tTgid: 3\nNStgid:\t7\t8\nTgid:\t9\nRssAnon:\t  20 kB\nUid:\t-\n";
        assert_eq!(number(text, "Tgid"), Some(9));
        assert_eq!(number(text, "NStgid"), Some(7));
        assert_eq!(number(text, "RssAnon"), Some(20));
        assert_eq!((number(text, "Uid"), number(text, "Gid")), (None, None));
    }
}
