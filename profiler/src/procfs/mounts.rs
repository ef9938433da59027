//! `/proc/PID/mountinfo`: which file system a path is on, without asking that file system.
//!
//! Format: `proc_pid_mountinfo(5)`.

use std::{fs, path::PathBuf};

/// The device of what is mounted where the path leads, by the process's own mounts, or by ours if it
/// is gone. Links on the way are not followed: the kernel tells paths without.
pub(crate) fn device(tgid: u32, path: &str) -> Option<String> {
    let text = fs::read(format!("/proc/{tgid}/mountinfo"));
    let text = text.or_else(|_| fs::read("/proc/self/mountinfo")).ok()?;
    device_in(&String::from_utf8_lossy(&text), path).map(str::to_owned)
}

/// The device of a path, by the text of such a file:
/// `36 35 98:0 /below /mnt\040point rw,noatime master:1 - ext3 /dev/root rw`
#[must_use]
pub fn device_in<'a>(mounts: &'a str, path: &str) -> Option<&'a str> {
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(2);
        let (device, point) = (fields.next()?, unescape(fields.nth(1)?));
        let rest = path.strip_prefix(point.trim_end_matches('/'))?;
        // What is no path is on no file system, whatever a damaged line says.
        let is_below = point.starts_with('/') && rest.starts_with('/');
        is_below.then_some((point.len(), device))
    });
    // Of two at the same point, the later one lies above.
    mounts.max_by_key(|(bytes, _)| *bytes).map(|(_, device)| device)
}

/// Where the hierarchy of cgroups of version 2 is mounted, whose root is ours.
pub(crate) fn cgroup2() -> Option<PathBuf> {
    point_of_type(&fs::read_to_string("/proc/self/mountinfo").ok()?, "cgroup2").map(PathBuf::from)
}

/// The first mount point of a type of file system, by the text of such a file.
fn point_of_type(mounts: &str, wanted: &str) -> Option<String> {
    mounts.lines().find_map(|line| {
        let (mount, of) = line.split_once(" - ")?;
        (of.split(' ').next()? == wanted).then(|| mount.split(' ').nth(4).map(unescape))?
    })
}

/// Blanks and backslashes are written as three octal digits.
fn unescape(field: &str) -> String {
    let mut parts = field.split('\\');
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let digits = part.get(..3).unwrap_or_default();
        match u8::from_str_radix(digits, 8) {
            Ok(byte) => {
                text.push(byte.into());
                text.push_str(part.get(3..).unwrap_or_default());
            }
            Err(_) => text.push_str(part),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MOUNTS: &str = "\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:25 / /mnt rw - nfs4 server:/ rw
31 30 0:26 / /mnt/a\\040b rw shared:1 - fuse none rw
32 30 0:27 / /mnt/a\\040b rw - tmpfs none rw
";

    #[test]
    fn the_longest_mount_point_has_the_path() {
        let device = |path| device_in(MOUNTS, path);
        assert_eq!(device("/usr/bin/a"), Some("254:0"));
        assert_eq!(device("/mnt/bin/a (deleted)"), Some("0:25"));
        assert_eq!(device("/mnt/a b/c"), Some("0:27"));
        assert_eq!(device("/mnt2/c"), Some("254:0"));
        assert_eq!(device("[vdso]"), None);
    }

    #[test]
    fn a_type_of_file_system_has_a_point() {
        let point = |wanted| point_of_type(MOUNTS, wanted);
        assert_eq!(point("fuse").as_deref(), Some("/mnt/a b"));
        assert_eq!((point("none"), point("cgroup2")), (None, None));
    }

    #[test]
    fn what_is_no_path_is_on_no_device() {
        assert_eq!(device_in("22 1 0:5 / anon rw", "anon/inode"), None);
        assert_eq!(device_in("22 1 0:5 /", "/a"), None);
        assert_eq!(device_in("22 1 0:5 /  rw", "/a"), None);
    }

    #[test]
    fn a_process_that_is_gone_has_our_mounts() {
        assert!(super::device(u32::MAX, "/").is_some());
    }

    proptest! {
        #[test]
        fn any_text_is_harmless(text in "[ /\\\\a-z0-9\n:]{0,200}", path in "/[a-z/]{0,20}") {
            let _ = device_in(&text, &path);
        }
    }
}
