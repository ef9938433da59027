//! Whether an open file is the one that was mapped.
//!
//! The kernel tells a mapped file by its device, inode and generation. What `stat` says of an open file
//! may differ: overlays and btrfs subvolumes show another device, and many file systems keep the generation
//! to themselves. An inode number alone can be used again by the file that replaces another, so a file that
//! was found by its path needs the generation, or to be unchanged since it was mapped.

use std::{
    fs::{File, Metadata},
    os::{fd::AsRawFd as _, unix::fs::MetadataExt as _},
    time::{Duration, SystemTime},
};

use crate::{kernel, procfs::maps::MappedId};

/// `FS_IOC_GETVERSION`: <https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/fs.h>.
const GET_GENERATION: libc::Ioctl = 0x8008_7601_u32 as libc::Ioctl;

/// What is known of an open file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    /// Device, major and minor number.
    device: (u32, u32),
    inode: u64,
    /// `None` where the file system does not tell.
    generation: Option<u32>,
    /// When its contents or attributes last changed, since the epoch. Its name counts, too.
    changed: Duration,
    /// Whether mappings have another device than `stat` says.
    has_two_devices: bool,
}

/// How a file was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    /// By the process's own link to what it has mapped.
    ByLink,
    /// By its path. It was mapped at this time: CLOCK_MONOTONIC, in nanoseconds.
    ByPath { mapped_ns: u64 },
}

impl Identity {
    pub(super) fn of(file: &File, metadata: &Metadata) -> Self {
        let dev = metadata.dev();
        let seconds = u64::try_from(metadata.ctime()).unwrap_or(0);
        let nanoseconds = u64::try_from(metadata.ctime_nsec()).unwrap_or(0);
        Self {
            device: (libc::major(dev), libc::minor(dev)),
            inode: metadata.ino(),
            generation: generation(file),
            changed: Duration::from_secs(seconds) + Duration::from_nanos(nanoseconds),
            has_two_devices: has_two_devices(file),
        }
    }

    /// Device and inode, as `stat` says.
    pub(super) fn place(&self) -> ((u32, u32), u64) {
        (self.device, self.inode)
    }

    /// Whether the file is the one that was mapped.
    pub(super) fn is(&self, id: MappedId, found: Found) -> bool {
        let has_generation = match (self.generation, id.generation) {
            (Some(own), Some(mapped)) if own != mapped => return false,
            (own, mapped) => own.is_some() && mapped.is_some(),
        };
        if self.inode != id.inode {
            return false;
        }
        match found {
            // Another process may have the pid by now, but hardly the same file at the same addresses.
            Found::ByLink => true,
            Found::ByPath { .. } if self.is_on_device_of(id) && has_generation => true,
            Found::ByPath { mapped_ns } => {
                (self.is_on_device_of(id) || self.has_two_devices)
                    && self.changed <= on_the_wall(mapped_ns)
            }
        }
    }

    /// Whether the device is the one that mappings of the file have. Else its inode number may be that
    /// of another file, too.
    pub(super) fn is_on_device_of(&self, id: MappedId) -> bool {
        self.device == (id.major, id.minor)
    }
}

/// The generation of the file's inode, where its file system tells it (ext4, XFS, btrfs, F2FS).
fn generation(file: &File) -> Option<u32> {
    // The argument is said to be a `long`, but the kernel writes an `int`.
    let mut generation: libc::c_long = 0;
    // SAFETY: `generation` outlives the call, and has room for what the kernel writes at its begin.
    let result = unsafe { libc::ioctl(file.as_raw_fd(), GET_GENERATION, &raw mut generation) };
    let written = generation.to_ne_bytes();
    (result == 0).then(|| u32::from_ne_bytes([written[0], written[1], written[2], written[3]]))
}

fn has_two_devices(file: &File) -> bool {
    rustix::fs::fstatfs(file).is_ok_and(|filesystem| {
        [libc::OVERLAYFS_SUPER_MAGIC, libc::BTRFS_SUPER_MAGIC].contains(&filesystem.f_type)
    })
}

/// A time of CLOCK_MONOTONIC as the clock on the wall is set now, since the epoch.
fn on_the_wall(monotonic_ns: u64) -> Duration {
    let ago = Duration::from_nanos(kernel::monotonic_ns().saturating_sub(monotonic_ns));
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    now.saturating_sub(ago)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt as _, thread};

    const ID: MappedId = MappedId { major: 8, minor: 1, inode: 77, generation: Some(3) };

    /// One that was changed so long ago.
    fn identity(ago: Duration) -> Identity {
        let changed = on_the_wall(kernel::monotonic_ns()).saturating_sub(ago);
        Identity { device: (8, 1), inode: 77, generation: Some(3), changed, has_two_devices: false }
    }

    fn by_path(ago: Duration) -> Found {
        let ago = u64::try_from(ago.as_nanos()).unwrap();
        Found::ByPath { mapped_ns: kernel::monotonic_ns().saturating_sub(ago) }
    }

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn with_its_generation_a_file_is_known() {
        let file = identity(Duration::ZERO);
        assert!(file.is(ID, by_path(SECOND)), "whenever its attributes were changed");
        assert!(!file.is(MappedId { inode: 78, ..ID }, by_path(SECOND)));
        assert!(!file.is(MappedId { minor: 2, ..ID }, by_path(SECOND)));
        // The inode's number is used again.
        let other = MappedId { generation: Some(4), ..ID };
        assert!(!file.is(other, by_path(SECOND)) && !file.is(other, Found::ByLink));
    }

    #[test]
    fn without_its_generation_a_file_must_not_have_changed_since() {
        for (told, own) in [(None, Some(3)), (Some(3), None), (None, None)] {
            let id = MappedId { generation: told, ..ID };
            let file = |ago| Identity { generation: own, ..identity(ago) };
            assert!(file(2 * SECOND).is(id, by_path(SECOND)));
            assert!(!file(Duration::ZERO).is(id, by_path(SECOND)));
            assert!(file(Duration::ZERO).is(id, Found::ByLink));
        }
    }

    #[test]
    fn another_device_is_that_of_an_overlay_or_a_subvolume() {
        let id = MappedId { minor: 2, ..ID };
        let file = |ago, has_two_devices| Identity { has_two_devices, ..identity(ago) };
        assert!(file(2 * SECOND, true).is(id, by_path(SECOND)));
        assert!(!file(2 * SECOND, false).is(id, by_path(SECOND)));
        assert!(!file(Duration::ZERO, true).is(id, by_path(SECOND)));
        assert!(file(Duration::ZERO, false).is(id, Found::ByLink));
        assert!(!file(2 * SECOND, true).is_on_device_of(id));
    }

    #[test]
    fn a_file_that_changes_has_another_identity() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let of = || Identity::of(file.as_file(), &file.as_file().metadata().unwrap());
        let before = of();
        let mapped_ns = kernel::monotonic_ns();
        // Times of files may be those of the last tick.
        thread::sleep(Duration::from_millis(20));
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o600)).unwrap();
        let after = of();
        assert_eq!(before.place(), after.place());
        assert!(before.changed <= on_the_wall(mapped_ns) && after.changed > on_the_wall(mapped_ns));
    }
}
