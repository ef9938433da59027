//! The cgroups that a user means: by path, or as that of a container or of a systemd unit.

use std::{
    collections::BTreeMap,
    fmt, fs,
    io::{BufReader, Read as _},
    path::{Path, PathBuf},
};

use serde::Deserialize;

use crate::{
    procfs::{cgroup, mounts},
    regular_file,
};

/// Folders that are looked at, at most: more than machines have.
const MAX_FOLDERS: usize = 1 << 18;
/// How many of those that there are an error names.
const SHOWN: usize = 8;
/// Digits of a container's id that are taken for one.
const MIN_ID: usize = 4;
/// Bytes of a file that tells a container's name, at most.
const MAX_FILE: u64 = 16 << 20;

/// How the names of units end that have cgroups.
const UNITS: [&str; 5] = [".service", ".scope", ".slice", ".socket", ".mount"];

/// Where Docker keeps what it knows of containers, a folder each.
const DOCKER: &str = "/var/lib/docker/containers";
/// Where Podman does, of all of root's.
const PODMAN: &str = "/var/lib/containers/storage/overlay-containers/containers.json";

/// What stands for one cgroup or several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CgroupName {
    /// A path, from the root of the hierarchy or of the file system.
    Path(PathBuf),
    /// A container, by its name or the beginning of its id.
    Container(String),
    /// A systemd unit.
    Unit(String),
}

impl fmt::Display for CgroupName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => write!(f, "--cgroup {}", path.display()),
            Self::Container(name) => write!(f, "--container {name}"),
            Self::Unit(name) => write!(f, "--unit {name}"),
        }
    }
}

impl CgroupName {
    /// The folders of these cgroups, of the hierarchy of version 2; else what is wrong, and what to try.
    pub fn find(&self) -> Result<Vec<PathBuf>, String> {
        let root = mounts::cgroup2().ok_or(
            "cgroups of version 2 are not mounted: mount -t cgroup2 cgroup2 /sys/fs/cgroup",
        )?;
        match self {
            Self::Path(path) => by_path(&root, path),
            Self::Container(name) => {
                by_container(&all(&root), name, &ids_by_name(Path::new(DOCKER), Path::new(PODMAN)))
            }
            Self::Unit(name) => by_unit(&all(&root), name),
        }
        .map(|paths| paths.into_iter().map(|it| root.join(it)).collect())
    }
}

fn by_path(root: &Path, path: &Path) -> Result<Vec<PathBuf>, String> {
    let below = path.strip_prefix(root).ok();
    let below = below.or_else(|| path.strip_prefix("/").ok()).unwrap_or(path);
    if root.join(below).join("cgroup.procs").is_file() {
        return Ok(vec![below.to_owned()]);
    }
    let is_version_1 = path.join("cgroup.procs").is_file();
    Err(if is_version_1 {
        format!("this cgroup is of version 1; those of version 2 are below {}", root.display())
    } else {
        format!(
            "there is no such cgroup below {}; systemd-cgls shows those there are",
            root.display()
        )
    })
}

/// The paths of all cgroups, from the root on, outer ones first.
fn all(root: &Path) -> Vec<PathBuf> {
    let mut found = vec![PathBuf::new()];
    let mut at = 0;
    while let Some(folder) = found.get(at).filter(|_| found.len() < MAX_FOLDERS).cloned() {
        let entries = fs::read_dir(root.join(&folder)).into_iter().flatten().flatten();
        let folders = entries.filter(|it| it.file_type().is_ok_and(|it| it.is_dir()));
        found.extend(folders.map(|it| folder.join(it.file_name())));
        at += 1;
    }
    found
}

/// Those of systemd's unit of this name; a service if it does not say what.
fn by_unit(all: &[PathBuf], name: &str) -> Result<Vec<PathBuf>, String> {
    let has_kind = UNITS.iter().any(|kind| name.ends_with(kind));
    let unit = if has_kind { name.to_owned() } else { format!("{name}.service") };
    let is_it = |path: &&PathBuf| path.file_name().is_some_and(|it| it == &*unit);
    let found: Vec<PathBuf> = all.iter().filter(is_it).cloned().collect();
    if found.is_empty() {
        let units = all.iter().filter_map(|path| cgroup::unit(path.to_str()?));
        let mut near: Vec<&str> = units.filter(|it| it.contains(name)).collect();
        near.sort_unstable();
        near.dedup();
        return Err(format!("no unit of this name is running{}", there_are(&near)));
    }
    Ok(found)
}

/// Those of the container of this name or id.
fn by_container(
    all: &[PathBuf],
    name: &str,
    ids: &BTreeMap<String, String>,
) -> Result<Vec<PathBuf>, String> {
    let mut by_id: BTreeMap<String, Vec<PathBuf>> = BTreeMap::new();
    let id_of = |path: &Path| {
        let path = Path::new("/").join(path);
        cgroup::container(path.to_str()?).map(|it| it.id)
    };
    for path in all {
        let id = id_of(path);
        // Only where it begins: what is below it has the same.
        if let Some(id) = id.filter(|id| path.parent().and_then(id_of).as_ref() != Some(id)) {
            by_id.entry(id).or_default().push(path.clone());
        }
    }
    let named = ids.get(name);
    let is_it = |id: &str| match named {
        Some(it) => it == id,
        None => name.len() >= MIN_ID && id.starts_with(name),
    };
    let found: Vec<&String> = by_id.keys().filter(|id| is_it(id)).collect();
    match *found {
        [id] => Ok(by_id.remove(&id.clone()).unwrap_or_default()),
        [] => {
            // LXC and systemd-nspawn give the cgroup the container's name.
            let machines = [
                format!("machine-{name}.scope"),
                format!("systemd-nspawn@{name}.service"),
                format!("lxc.payload.{name}"),
            ];
            let is_it = |path: &&PathBuf| {
                let file = path.file_name().unwrap_or_default();
                let in_lxc = path.parent().is_some_and(|it| it.ends_with("lxc"));
                machines.iter().any(|it| file == &**it) || in_lxc && file == name
            };
            let found: Vec<PathBuf> = all.iter().filter(is_it).cloned().collect();
            if !found.is_empty() {
                return Ok(found);
            }
            let known = ids.iter().map(|(name, id)| (id, name)).collect::<BTreeMap<_, _>>();
            let short = |id: &String| id.get(..12).unwrap_or(id).to_owned();
            let shown = by_id.keys().map(|id| match known.get(id) {
                Some(name) => format!("{name} ({})", short(id)),
                None => short(id),
            });
            let shown: Vec<String> = shown.collect();
            let shown: Vec<&str> = shown.iter().map(String::as_str).collect();
            Err(format!("no container of this name or id is running{}", there_are(&shown)))
        }
        _ => {
            let ids: Vec<&str> = found.iter().map(|it| it.get(..20).unwrap_or(it)).collect();
            Err(format!("several containers' ids begin so{}", there_are(&ids)))
        }
    }
}

/// `; there are A, B`.
fn there_are(names: &[&str]) -> String {
    let shown: Vec<&str> = names.iter().take(SHOWN).copied().collect();
    match names.len() {
        0 => String::new(),
        1..=SHOWN => format!("; there are {}", shown.join(", ")),
        count => format!("; there are {} and {} more", shown.join(", "), count - SHOWN),
    }
}

#[derive(Deserialize)]
struct OfDocker {
    #[serde(rename = "Name")]
    name: String,
}

#[derive(Deserialize)]
struct OfPodman {
    id: String,
    #[serde(default)]
    names: Vec<String>,
}

/// The ids of containers whose runtimes keep their names in files.
fn ids_by_name(docker: &Path, podman: &Path) -> BTreeMap<String, String> {
    let mut ids = BTreeMap::new();
    for folder in fs::read_dir(docker).into_iter().flatten().flatten() {
        let id = folder.file_name().to_string_lossy().into_owned();
        let of: Option<OfDocker> = json(&folder.path().join("config.v2.json"));
        // Docker's own names begin with a slash.
        ids.extend(of.map(|it| (it.name.trim_start_matches('/').to_owned(), id)));
    }
    for OfPodman { id, names } in json::<Vec<OfPodman>>(podman).unwrap_or_default() {
        ids.extend(names.into_iter().map(|name| (name, id.clone())));
    }
    ids
}

fn json<T: for<'a> Deserialize<'a>>(path: &Path) -> Option<T> {
    let file = regular_file::open(path).ok()?;
    // What is longer is cut, and so no JSON.
    serde_json::from_reader(BufReader::new(file.take(MAX_FILE))).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: &str = "4b5c9e2f1a3d4b5c9e2f1a3d4b5c9e2f1a3d4b5c9e2f1a3d4b5c9e2f1a3d0123";
    const DB: &str = "4b5c000000000000000000000000000000000000000000000000000000000000";

    /// A hierarchy with these cgroups.
    fn hierarchy(paths: &[String]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for path in paths {
            fs::create_dir_all(root.path().join(path)).unwrap();
        }
        for path in all(root.path()) {
            fs::write(root.path().join(path).join("cgroup.procs"), "").unwrap();
        }
        root
    }

    #[test]
    fn a_path_is_from_either_root() {
        let root = hierarchy(&["a.slice/b".into()]);
        for path in ["a.slice/b", "/a.slice/b", &format!("{}/a.slice/b", root.path().display())] {
            assert_eq!(
                by_path(root.path(), Path::new(path)).unwrap(),
                [PathBuf::from("a.slice/b")]
            );
        }
        assert_eq!(by_path(root.path(), Path::new("/")).unwrap(), [PathBuf::new()]);
        let other = hierarchy(&["c".into()]);
        let error = |path: &Path| by_path(root.path(), path).unwrap_err();
        assert!(error(&other.path().join("c")).contains("version 1"));
        assert!(error(Path::new("none")).contains("no such cgroup"));
    }

    #[test]
    fn a_unit_is_found_wherever_it_is() {
        let paths = [
            "system.slice/nginx.service/sub",
            "system.slice/nginx-extra.service",
            "user.slice/user-7.slice/user@7.service/app.slice/nginx.service",
            "system.slice/web.scope",
        ];
        let root = hierarchy(&paths.map(str::to_owned));
        let all = all(root.path());
        let mut found = by_unit(&all, "nginx").unwrap();
        found.sort();
        let expected = ["system.slice/nginx.service", paths[2]].map(PathBuf::from);
        assert_eq!(found, expected);
        assert_eq!(by_unit(&all, "web.scope").unwrap(), [PathBuf::from("system.slice/web.scope")]);
        assert_eq!(by_unit(&all, "system.slice").unwrap(), [PathBuf::from("system.slice")]);
        let error = by_unit(&all, "ngin").unwrap_err();
        assert!(error.ends_with("there are nginx-extra.service, nginx.service"), "{error}");
    }

    #[test]
    fn a_container_is_found_by_id_and_by_name() {
        let root = hierarchy(&[
            format!("system.slice/docker-{WEB}.scope/init"),
            format!("machine.slice/libpod-{DB}.scope/container"),
            "machine.slice/machine-old.scope".into(),
            "lxc/older".into(),
        ]);
        let state = tempfile::tempdir().unwrap();
        let (docker, podman) = (state.path().join("docker"), state.path().join("podman.json"));
        fs::create_dir_all(docker.join(WEB)).unwrap();
        fs::write(docker.join(WEB).join("config.v2.json"), r#"{"ID":"x","Name":"/web"}"#).unwrap();
        fs::create_dir_all(docker.join("damaged")).unwrap();
        fs::write(docker.join("damaged/config.v2.json"), "{").unwrap();
        fs::write(&podman, format!(r#"[{{"id":"{DB}","names":["db"]}},{{"id":"0"}}]"#)).unwrap();
        let ids = ids_by_name(&docker, &podman);
        let all = all(root.path());
        let find = |name: &str| by_container(&all, name, &ids);
        let web = [PathBuf::from(format!("system.slice/docker-{WEB}.scope"))];
        for name in ["web", WEB, &WEB[..12]] {
            assert_eq!(find(name).unwrap(), web, "{name}");
        }
        assert_eq!(
            find("db").unwrap(),
            [PathBuf::from(format!("machine.slice/libpod-{DB}.scope"))]
        );
        assert_eq!(find("old").unwrap(), [PathBuf::from("machine.slice/machine-old.scope")]);
        assert_eq!(find("older").unwrap(), [PathBuf::from("lxc/older")]);
        assert!(find("4b5c").unwrap_err().contains("several"));
        let error = find("wen").unwrap_err();
        assert!(
            error.contains("web (4b5c9e2f1a3d)") && error.contains("db (4b5c00000000)"),
            "{error}"
        );
    }
}
