//! `/proc/PID/cgroup`: which container, pod and unit a process belongs to.
//!
//! The format is that of `cgroups(7)`: a line `ID:CONTROLLERS:PATH` a hierarchy, with `0::PATH` for
//! version 2. What stands in a path is what its makers agreed on:
//!
//! | path | by |
//! |---|---|
//! | `/system.slice/nginx.service`, `/user.slice/…/session-3.scope` | systemd |
//! | `…/docker-ID.scope`, `/docker/ID` | Docker, with systemd and without |
//! | `…/cri-containerd-ID.scope`, `…:cri-containerd:ID`, `…/nerdctl-ID.scope` | containerd |
//! | `…/crio-ID.scope`, `…/crio-ID` | CRI-O |
//! | `…/libpod-ID.scope`, `…/libpod-payload-ID` | Podman |
//! | `/kubepods.slice/…/kubepods-burstable-podUID.slice/…` | the kubelet, with systemd |
//! | `/kubepods/burstable/podUID/ID` | the kubelet, without |

use profiler_profile::process::Container;

/// The length of a container's id, in hex digits.
const CONTAINER_ID_LEN: usize = 64;

/// The path of the process's cgroup; `None` if there is no line that has one. Version 2 is asked
/// first, then systemd's own hierarchy, then the others: where several are mounted, a process may
/// be in the root of one and in its true place in another.
#[must_use]
pub fn path(text: &str) -> Option<&str> {
    let lines = text.lines().filter_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let path = path.strip_suffix(" (deleted)").unwrap_or(path);
        let preference = match (id, controllers) {
            ("0", "") => 0,
            (_, "name=systemd") => 1,
            _ => 2,
        };
        path.starts_with('/').then_some((path == "/", preference, path))
    });
    lines.min_by_key(|&(is_root, preference, _)| (is_root, preference)).map(|(.., path)| path)
}

/// The innermost container.
#[must_use]
pub fn container(path: &str) -> Option<Container> {
    let mut outer = path;
    // `docker` is told from the name of the folder, so the rest of the path is kept at hand.
    while let Some((rest, name)) = outer.rsplit_once(['/', ':']) {
        if let Some(container) = container_in(rest, name) {
            return Some(container);
        }
        outer = rest;
    }
    None
}

fn container_in(outer: &str, name: &str) -> Option<Container> {
    let name = name.strip_suffix(".scope").unwrap_or(name);
    let (prefix, id) = name.split_at_checked(name.len().checked_sub(CONTAINER_ID_LEN)?)?;
    if !id.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
        return None;
    }
    let by = match prefix.strip_suffix('-') {
        Some(by) => by,
        None if prefix.is_empty() => outer.rsplit(['/', ':']).next().unwrap_or_default(),
        None => return None,
    };
    let runtime = match by {
        "docker" => Some("docker"),
        "cri-containerd" | "nerdctl" => Some("containerd"),
        "crio" => Some("cri-o"),
        "libpod" | "libpod-payload" => Some("podman"),
        // These watch a container from outside.
        "crio-conmon" | "libpod-conmon" => return None,
        _ => None,
    };
    Some(Container { id: id.to_owned(), runtime })
}

/// The uid of the innermost Kubernetes pod: a UUID, or 32 hex digits for a pod that the kubelet
/// reads from a file.
#[must_use]
pub fn pod(path: &str) -> Option<String> {
    let (mut outer, mut pod) = (path, None);
    while let Some((rest, name)) = outer.rsplit_once(['/', ':']) {
        pod = pod.or_else(|| pod_in(name));
        // Others have names that begin with "pod", too.
        if pod.is_some() && name.contains("kubepods") {
            return pod;
        }
        outer = rest;
    }
    None
}

fn pod_in(name: &str) -> Option<String> {
    let name = name.strip_suffix(".slice").unwrap_or(name);
    let (before, uid) = name.rsplit_once("pod")?;
    if !before.is_empty() && !before.ends_with('-') {
        return None;
    }
    // A dash would make one slice part of another, so systemd's names have underscores.
    let uid = uid.replace('_', "-");
    let groups: Vec<usize> = uid.split('-').map(str::len).collect();
    let is_hex = uid.bytes().all(|byte| byte == b'-' || byte.is_ascii_hexdigit());
    (is_hex && matches!(*groups, [32] | [8, 4, 4, 4, 12])).then_some(uid)
}

/// The innermost systemd service or scope.
#[must_use]
pub fn unit(path: &str) -> Option<&str> {
    path.rsplit('/').find(|name| {
        let stem = name.strip_suffix(".service").or_else(|| name.strip_suffix(".scope"));
        stem.is_some_and(|stem| !stem.is_empty())
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: &str = "4b5c9e2f1a3d4b5c9e2f1a3d4b5c9e2f1a3d4b5c9e2f1a3d4b5c9e2f1a3d0123";
    const UID: &str = "2f1d6a1c-5a5b-4d0e-9a77-0c3f5f1f2b6e";

    #[test]
    fn takes_the_path_that_says_most() {
        assert_eq!(path("0::/system.slice/a.service\n"), Some("/system.slice/a.service"));
        assert_eq!(path("0::/a:b/c (deleted)\n"), Some("/a:b/c"));
        let hybrid = "12:cpu,cpuacct:/\n1:name=systemd:/user.slice/x.scope\n0::/\n";
        assert_eq!(path(hybrid), Some("/user.slice/x.scope"));
        let old = "3:memory:/docker/1\n2:cpu:/\n1:name=systemd:/docker/2\n";
        assert_eq!(path(old), Some("/docker/2"));
        assert_eq!(path("4:memory:/lxc/a\n1:name=systemd:/\n"), Some("/lxc/a"));
        assert_eq!(path("2:cpu:/\n0::/\n"), Some("/"));
        assert_eq!(path(""), None);
        assert_eq!(path("0:/\n0::x\n"), None);
    }

    #[test]
    fn knows_the_runtimes() {
        for (path, runtime) in [
            ("/system.slice/docker-ID.scope", Some("docker")),
            ("/docker/ID", Some("docker")),
            ("/docker/ID/system.slice/cron.service", Some("docker")),
            ("/kubepods.slice/cri-containerd-ID.scope", Some("containerd")),
            ("/system.slice/kubepods-podx.slice:cri-containerd:ID", Some("containerd")),
            ("/system.slice/nerdctl-ID.scope", Some("containerd")),
            ("/kubepods/besteffort/pod1/ID", None),
            ("/kubepods.slice/crio-ID.scope/container", Some("cri-o")),
            ("/machine.slice/libpod-ID.scope", Some("podman")),
            ("/user.slice/web.service/libpod-payload-ID", Some("podman")),
            ("/ecs/task/ID", None),
        ] {
            let expected = Container { id: ID.into(), runtime };
            assert_eq!(container(&path.replace("ID", ID)), Some(expected), "{path}");
        }
    }

    #[test]
    fn the_innermost_container_counts() {
        let path = format!("/docker/{}/kubepods/pod1/cri-containerd-{ID}.scope", "0".repeat(64));
        assert_eq!(container(&path).unwrap().id, ID);
    }

    #[test]
    fn not_everything_long_is_a_container() {
        for path in [
            "/",
            "/machine.slice/libpod-conmon-ID.scope",
            "/user.slice/ID-1f.service",
            "/system.slice/dockerID.scope",
            "/system.slice/docker-0ID.scope",
            "ID",
        ] {
            assert_eq!(container(&path.replace("ID", ID)), None, "{path}");
        }
        assert_eq!(container(&format!("/docker/{}", ID.to_uppercase())), None);
    }

    #[test]
    fn knows_pods() {
        let with_underscores = UID.replace('-', "_");
        for path in [
            format!("/kubepods.slice/kubepods-burstable-pod{with_underscores}.slice/x.scope"),
            format!("/kubepods.slice/kubepods-pod{with_underscores}.slice"),
            format!("/kubepods/burstable/pod{UID}/{ID}"),
            format!("/kubepods/pod{UID}"),
            format!("/system.slice/kubepods-besteffort-pod{with_underscores}.slice:x:{ID}"),
            format!("/kubelet.slice/kubelet-kubepods-pod{with_underscores}.slice/x.scope"),
        ] {
            assert_eq!(pod(&path).as_deref(), Some(UID), "{path}");
        }
        let of_a_file = "/kubepods/burstable/pod0123456789abcdef0123456789abcdef/x";
        assert_eq!(pod(of_a_file).as_deref(), Some("0123456789abcdef0123456789abcdef"));
        assert_eq!(pod(&format!("/machine.slice/pod{UID}")), None);
        assert_eq!(pod("/kubepods/burstable/podman"), None);
        assert_eq!(pod(&format!("/kubepods/tripod{UID}")), None);
    }

    #[test]
    fn the_innermost_unit_counts() {
        assert_eq!(unit("/system.slice/nginx.service"), Some("nginx.service"));
        let user = "/user.slice/user-1000.slice/user@1000.service";
        assert_eq!(unit(user), Some("user@1000.service"));
        assert_eq!(unit(&format!("{user}/app.slice/a.service/sub")), Some("a.service"));
        assert_eq!(unit("/user.slice/user-0.slice/session-3.scope"), Some("session-3.scope"));
        assert_eq!(unit("/system.slice/.service"), None);
        assert_eq!(unit("/"), None);
    }

    proptest! {
        #[test]
        fn any_text_is_fine(text in "\\PC{0,200}") {
            let path = path(&text).unwrap_or(&text);
            let _ = (container(path), pod(path), unit(path));
        }

        #[test]
        fn nearly_right_paths_too(path in "([/:](kubepods|pod|docker|libpod-)?[-_.0-9a-fé]{0,70}(\\.scope|\\.slice|\\.service)?){0,5}") {
            if let Some(container) = container(&path) {
                prop_assert_eq!(container.id.len(), CONTAINER_ID_LEN);
            }
            let _ = (pod(&path), unit(&path));
        }
    }
}
