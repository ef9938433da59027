//! The user who typed `sudo`.

use std::{
    ffi::{OsStr, OsString},
    io,
};

use rustix::{
    process::{Gid, Uid, geteuid},
    thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid},
};

/// Where groups and their members are listed, and users.
const GROUPS: &str = "/etc/group";
const USERS: &str = "/etc/passwd";
/// The user and the group that own nothing.
const NOBODY: u32 = 65534;
/// In the place of a user.
const AS_WE_ARE: &str = "-";
/// What `setresuid` and the like take for no change.
const NO_CHANGE: u32 = u32::MAX;

/// A user, with the groups that are theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invoker {
    uid: u32,
    gid: u32,
    groups: Vec<u32>,
}

impl Invoker {
    /// Who typed `sudo`, by what it leaves in the environment; `None` unless this process is root's.
    #[must_use]
    pub fn find() -> Option<Self> {
        if !geteuid().is_root() {
            return None;
        }
        let number = |name: &str| std::env::var(name).ok()?.parse().ok();
        let (uid, gid) = (number("SUDO_UID")?, number("SUDO_GID")?);
        let name = std::env::var("SUDO_USER").unwrap_or_default();
        let listed = std::fs::read_to_string(GROUPS).unwrap_or_default();
        let is_user = uid != 0 && uid != NO_CHANGE && gid != NO_CHANGE;
        is_user.then(|| Self { uid, gid, groups: groups_of(&name, gid, &listed) })
    }

    /// Whom a process of root's becomes that needs to be nobody else.
    pub(crate) fn nobody() -> Self {
        Self { uid: NOBODY, gid: NOBODY, groups: vec![NOBODY] }
    }

    /// Their number.
    pub(crate) fn uid(&self) -> u32 {
        self.uid
    }

    /// Whether it is that.
    pub(crate) fn is_nobody(&self) -> bool {
        self.uid == NOBODY
    }

    /// Gives them a file.
    pub fn own(&self, file: &std::fs::File) -> io::Result<()> {
        Ok(rustix::fs::fchown(file, Some(uid(self.uid)), Some(gid(self.gid)))?)
    }

    /// Has the calling thread use files as they could, with no capabilities: what it makes is theirs, where they may make
    /// it. It stays root's otherwise, so that they can neither signal nor trace it.
    pub(crate) fn use_files_as_them(&self) -> io::Result<()> {
        let groups: Vec<Gid> = self.groups.iter().map(|it| gid(*it)).collect();
        set_thread_groups(&groups)?;
        // SAFETY: these calls take and return numbers, and change nothing but ids of the calling thread. They tell what the
        // id was before, and nothing of a failure; -1, which no id is, only asks: setfsuid(2).
        let are_set = unsafe {
            libc::setfsgid(self.gid);
            libc::setfsuid(self.uid);
            let ids = (libc::setfsgid(NO_CHANGE), libc::setfsuid(NO_CHANGE));
            ids == (self.gid.cast_signed(), self.uid.cast_signed())
        };
        if are_set { Ok(()) } else { Err(io::ErrorKind::PermissionDenied.into()) }
    }

    /// Makes the calling thread theirs, for good. The process must have no other.
    fn become_them(&self) -> io::Result<()> {
        let groups: Vec<Gid> = self.groups.iter().map(|it| gid(*it)).collect();
        let (uid, gid) = (uid(self.uid), gid(self.gid));
        set_thread_groups(&groups)?;
        set_thread_res_gid(gid, gid, gid)?;
        Ok(set_thread_res_uid(uid, uid, uid)?)
    }

    /// What a login sets: sudo has put root's in its place. Nothing where the user is not listed.
    pub(crate) fn environment(&self) -> Vec<(&'static str, String)> {
        environment_of(self.uid, &std::fs::read_to_string(USERS).unwrap_or_default())
    }

    /// Whom a program of ours is to become that is executed with this argument: them, or nobody else.
    pub(crate) fn argument_of(user: Option<&Self>) -> OsString {
        user.map_or_else(|| AS_WE_ARE.into(), Self::to_argument)
    }

    /// Becomes whom the argument names; `None` if that is who we are.
    pub(crate) fn become_named(argument: &OsStr) -> io::Result<Option<Self>> {
        if argument == AS_WE_ARE {
            return Ok(None);
        }
        let user = argument.to_str().and_then(Self::from_argument);
        let user = user.ok_or(io::ErrorKind::InvalidInput)?;
        user.become_them()?;
        Ok(Some(user))
    }

    /// As [`from_argument`](Self::from_argument) reads it: `UID:GID:GROUP,…`.
    fn to_argument(&self) -> OsString {
        let groups: Vec<_> = self.groups.iter().map(ToString::to_string).collect();
        format!("{}:{}:{}", self.uid, self.gid, groups.join(",")).into()
    }

    fn from_argument(text: &str) -> Option<Self> {
        let mut parts = text.split(':');
        let (uid, gid) = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
        let groups = parts.next()?.split(',').map(str::parse);
        let it = Self { uid, gid, groups: groups.collect::<Result<_, _>>().ok()? };
        let all = [it.uid, it.gid].into_iter().chain(it.groups.iter().copied());
        Some(it.clone()).filter(|_| it.uid != 0 && !all.into_iter().any(|id| id == NO_CHANGE))
    }
}

fn uid(number: u32) -> Uid {
    Uid::from_raw(number)
}

fn gid(number: u32) -> Gid {
    Gid::from_raw(number)
}

/// A user's name, home and shell: passwd(5).
fn environment_of(uid: u32, listed: &str) -> Vec<(&'static str, String)> {
    let user = |line: &str| {
        let fields: Vec<&str> = line.split(':').collect();
        let [name, _, number, _, _, home, shell] = fields.as_slice() else { return None };
        let all = [("USER", name), ("LOGNAME", name), ("HOME", home), ("SHELL", shell)];
        let all = all.map(|(variable, value)| (variable, (*value).to_owned()));
        (number.parse() == Ok(uid)).then_some(all)
    };
    let found = listed.lines().find_map(user);
    found.into_iter().flatten().filter(|(_, value)| !value.is_empty()).collect()
}

/// A user's own group, and those that list them: group(5).
fn groups_of(name: &str, own: u32, listed: &str) -> Vec<u32> {
    let group = |line: &str| {
        let mut fields = line.split(':').skip(2);
        let number: u32 = fields.next()?.parse().ok()?;
        fields.next()?.split(',').any(|member| member.trim() == name).then_some(number)
    };
    let mut groups = vec![own];
    if !name.is_empty() {
        groups.extend(listed.lines().filter_map(group));
    }
    groups.dedup();
    groups
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn their_groups_are_their_own_and_those_that_list_them() {
        let listed =
            "root:x:0:\nadm:x:4:syslog,ann\nsudo:x:27:anna\nann:x:1000:\nbad\ndocker:x:99:ann\n";
        assert_eq!(groups_of("ann", 1000, listed), [1000, 4, 99]);
        assert_eq!(groups_of("", 5, listed), [5]);
    }

    #[test]
    fn their_environment_is_that_of_a_login() {
        let listed = "root:x:0:0::/root:/bin/sh\nann:x:1000:1000:Ann:/home/ann:\n";
        let expected = [("USER", "ann"), ("LOGNAME", "ann"), ("HOME", "/home/ann")];
        let expected = expected.map(|(variable, value)| (variable, value.to_owned()));
        assert_eq!(environment_of(1000, listed), expected);
        assert!(environment_of(7, listed).is_empty());
    }

    #[test]
    fn they_are_passed_on_as_they_are() {
        let ann = Invoker { uid: 1000, gid: 1001, groups: vec![1001, 4] };
        assert_eq!(Invoker::from_argument(ann.to_argument().to_str().unwrap()), Some(ann));
        for bad in ["", "-", "1", "1:2", "1:2:x", "-1:2:3", "0:1:1", "4294967295:1:1"] {
            assert_eq!(Invoker::from_argument(bad), None, "{bad}");
        }
    }
}
