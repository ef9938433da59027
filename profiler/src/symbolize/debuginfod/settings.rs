//! What the user's environment says of debuginfod.

use std::{
    env, fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
    time::Duration,
};

use crate::error::{Error, Result};

/// For a name, for a connection, for an answer and for more of a body.
pub(super) const TIMEOUT: Duration = Duration::from_secs(30);
/// The largest debug file that is downloaded.
const LIMIT_BYTES: u64 = 1 << 30;
/// What is downloaded in a run at most: whoever runs programs chooses what is asked for, and a disk is
/// soon full.
const LIMIT_OF_RUN_BYTES: u64 = 8 << 30;

/// Where a run as root keeps files that it should not keep where the environment says.
const CACHE_OF_ROOT: &str = "/var/cache/debuginfod_client";

/// Who is asked, and where the answers are kept.
#[derive(Clone, Debug)]
pub struct Settings {
    /// URLs, asked in turn.
    pub(super) servers: Vec<String>,
    pub(super) cache: PathBuf,
    pub(super) timeout: Duration,
    pub(super) limit_bytes: u64,
    pub(super) limit_of_run_bytes: u64,
}

impl Settings {
    /// What the user's environment says; tells what is done otherwise.
    pub fn from_env(notices: &mut Vec<String>) -> Result<Self> {
        let (servers, named) = resolve(|name| env::var(name).ok().filter(|it| !it.is_empty()))?;
        let cache = if rustix::process::geteuid().is_root() {
            cache_of_root(&named)
        } else {
            named.clone()
        };
        if cache != named {
            let (named, cache) = (named.display(), cache.display());
            notices.push(format!(
                "debug files are kept in {cache}: {named} belongs to another user, and nothing is written \
                 there as root"
            ));
        }
        Ok(Self {
            servers,
            cache,
            timeout: TIMEOUT,
            limit_bytes: LIMIT_BYTES,
            limit_of_run_bytes: LIMIT_OF_RUN_BYTES,
        })
    }
}

/// Root's own cache, in place of one that is in a folder of another user, as with `sudo -E`: whoever owns a folder
/// can have any path below it lead elsewhere.
fn cache_of_root(named: &Path) -> PathBuf {
    let nearest = named.ancestors().find_map(|folder| fs::metadata(folder).ok());
    if nearest.is_none_or(|folder| folder.uid() == 0) {
        return named.into();
    }
    CACHE_OF_ROOT.into()
}

fn resolve(variable: impl Fn(&str) -> Option<String>) -> Result<(Vec<String>, PathBuf)> {
    let urls = variable("DEBUGINFOD_URLS").unwrap_or_default();
    // Other words are settings of elfutils' client.
    let is_url = |word: &&str| word.starts_with("http://") || word.starts_with("https://");
    let servers = urls.split_ascii_whitespace().filter(is_url);
    let servers: Vec<_> = servers.map(|url| url.trim_end_matches('/').to_owned()).collect();
    if servers.is_empty() {
        return Err(Error::Usage(
            "--debuginfod: DEBUGINFOD_URLS names no server, as https://debuginfod.elfutils.org; \
             under sudo, give it behind sudo"
                .into(),
        ));
    }
    let own = variable("DEBUGINFOD_CACHE_PATH").map(PathBuf::from);
    let in_folder = |folder: PathBuf| folder.join("debuginfod_client");
    let cache = own
        .or_else(|| variable("XDG_CACHE_HOME").map(|it| in_folder(it.into())))
        .or_else(|| variable("HOME").map(|it| in_folder(Path::new(&it).join(".cache"))));
    match cache {
        Some(cache) => Ok((servers, cache)),
        None => Err(Error::Usage(
            "--debuginfod: there is no HOME to keep files in; DEBUGINFOD_CACHE_PATH names a folder"
                .into(),
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_writes_nothing_into_folders_of_others() {
        let dir = tempfile::tempdir().unwrap();
        let cache = dir.path().join("not/there/yet");
        if !rustix::process::geteuid().is_root() {
            return assert_eq!(cache_of_root(&cache), Path::new(CACHE_OF_ROOT));
        }
        assert_eq!(cache_of_root(&cache), cache);
        std::os::unix::fs::chown(dir.path(), Some(65534), None).unwrap();
        assert_eq!(cache_of_root(&cache), Path::new(CACHE_OF_ROOT));
    }

    #[test]
    fn the_environment_says_who_and_where() {
        let resolve = |variables: &[(&str, &str)]| {
            let find = |name: &str| variables.iter().find(|(it, _)| *it == name);
            resolve(|name| find(name).map(|(_, value)| (*value).to_owned()))
        };
        let urls = ("DEBUGINFOD_URLS", "ima:enforcing https://a.example/  http://b.example:8002");
        let home = ("HOME", "/home/a");
        let (servers, cache) = resolve(&[urls, home]).unwrap();
        assert_eq!(servers, ["https://a.example", "http://b.example:8002"]);
        assert_eq!(cache, Path::new("/home/a/.cache/debuginfod_client"));
        let xdg = ("XDG_CACHE_HOME", "/var/cache");
        assert_eq!(
            resolve(&[urls, home, xdg]).unwrap().1,
            Path::new("/var/cache/debuginfod_client")
        );
        let own = ("DEBUGINFOD_CACHE_PATH", "/x");
        assert_eq!(resolve(&[urls, home, xdg, own]).unwrap().1, Path::new("/x"));
        for (variables, named) in [
            (&[home][..], "DEBUGINFOD_URLS"),
            (&[home, ("DEBUGINFOD_URLS", "a.example")], "DEBUGINFOD_URLS"),
            (&[urls], "DEBUGINFOD_CACHE_PATH"),
        ] {
            let error = resolve(variables).unwrap_err();
            let text = error.to_string();
            assert_eq!(error.exit_code(), 2);
            assert!(text.contains(named) && !text.contains('\n'), "{text}");
        }
    }
}
