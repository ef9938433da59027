//! Debug files in the cache, downloaded into it when they are not there.

use std::{
    fs::{self, DirBuilder, File, OpenOptions},
    io::{self, Read as _},
    os::unix::fs::DirBuilderExt as _,
    path::{Path, PathBuf},
};

use profiler_common::build_id::BuildId;
use ureq::Agent;

use super::settings::Settings;
use crate::regular_file;

/// A download takes at most so many times the timeout.
const DOWNLOAD_SHARE: u32 = 20;

/// The cache and the servers behind it.
pub(super) struct Downloads {
    settings: Settings,
    agent: Agent,
    /// What may still be downloaded.
    left_bytes: u64,
}

impl Downloads {
    pub(super) fn new(settings: Settings) -> Self {
        let timeout = Some(settings.timeout);
        let config = Agent::config_builder()
            .user_agent(concat!("profiler/", env!("CARGO_PKG_VERSION")))
            // Between two downloads a server may close what we would use again.
            .max_idle_connections(0)
            .timeout_resolve(timeout)
            .timeout_connect(timeout)
            .timeout_recv_response(timeout)
            .timeout_per_read(timeout)
            .timeout_global(Some(settings.timeout.saturating_mul(DOWNLOAD_SHARE)));
        let left_bytes = settings.limit_of_run_bytes;
        Self { agent: config.build().new_agent(), settings, left_bytes }
    }

    /// The debug file, from the cache or from the first server that has it.
    pub(super) fn get(&mut self, id: BuildId) -> Option<File> {
        let folder = self.settings.cache.join(id.to_string());
        if let Some(file) = kept(&folder, id) {
            return Some(file);
        }
        let servers = self.settings.servers.clone();
        servers.iter().find_map(|server| {
            if self.left_bytes == 0 {
                return None;
            }
            let downloaded = self.download(server, id, &folder);
            downloaded.inspect_err(|error| tracing::info!("{id} from {server}: {error}")).ok()
        })
    }

    fn download(&mut self, server: &str, id: BuildId, folder: &Path) -> io::Result<File> {
        let url = format!("{server}/buildid/{id}/debuginfo");
        let mut response = self.agent.get(url).call().map_err(io::Error::other)?;
        DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        let (part, mut file) = Part::create(folder)?;
        // One byte more, to tell a file that is too large from one that just is not.
        let limit = self.settings.limit_bytes.min(self.left_bytes);
        let mut body = response.body_mut().as_reader().take(limit.saturating_add(1));
        let copied = io::copy(&mut body, &mut file);
        // Also what came before an error.
        self.take(file.metadata()?.len());
        if copied? > limit {
            return Err(io::Error::other(format!("larger than {limit} bytes")));
        }
        if profiler_elf::build_id(&file) != Some(id) {
            return Err(io::Error::other("a file with another build id"));
        }
        fs::rename(&part.0, folder.join("debuginfo"))?;
        Ok(file)
    }

    /// Counts what was downloaded, and says it when that is all of a run.
    fn take(&mut self, bytes: u64) {
        self.left_bytes = self.left_bytes.saturating_sub(bytes);
        if self.left_bytes == 0 {
            let limit = self.settings.limit_of_run_bytes >> 20;
            tracing::warn!("--debuginfod has downloaded {limit} MiB: no more in this run");
        }
    }
}

/// The file in the cache; an empty one is elfutils' note that no server has it.
fn kept(folder: &Path, id: BuildId) -> Option<File> {
    let file = regular_file::open(&folder.join("debuginfo")).ok()?;
    (profiler_elf::build_id(&file) == Some(id)).then_some(file)
}

/// A file that is not whole yet: removed unless it gets its name.
struct Part(PathBuf);

impl Part {
    fn create(folder: &Path) -> io::Result<(Self, File)> {
        let path = folder.join(format!("debuginfo.{}", std::process::id()));
        // Left by one that was killed and had our id.
        let _ = fs::remove_file(&path);
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        Ok((Self(path), file))
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::symbolize::debuginfod::settings::TIMEOUT;
    use profiler_testing::elf::with_build_id;
    use std::{
        io::{BufRead as _, BufReader, Write as _},
        net::{TcpListener, TcpStream},
        sync::{
            Arc,
            atomic::{AtomicUsize, Ordering},
        },
        thread,
        time::Duration,
    };
    use tempfile::TempDir;

    pub(crate) const ID: [u8; 4] = [0xab, 0xcd, 0xef, 0x01];
    const LIMIT: u64 = 64 << 10;

    pub(crate) fn id() -> BuildId {
        BuildId::from_slice(&ID).unwrap()
    }

    /// A server that treats each connection alike, once it has read the request.
    pub(crate) struct Server {
        url: String,
        calls: Arc<AtomicUsize>,
    }

    impl Server {
        pub(crate) fn start(answer: impl Fn(&str, &mut TcpStream) + Send + 'static) -> Self {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("http://{}", listener.local_addr().unwrap());
            let calls = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&calls);
            thread::spawn(move || {
                for connection in listener.incoming() {
                    let mut connection = connection.unwrap();
                    let mut lines = BufReader::new(connection.try_clone().unwrap()).lines();
                    let request = lines.next().unwrap().unwrap();
                    while lines.next().is_some_and(|line| !line.unwrap().is_empty()) {}
                    counted.fetch_add(1, Ordering::Relaxed);
                    answer(&request, &mut connection);
                }
            });
            Self { url, calls }
        }

        /// One that has this file under the id.
        pub(crate) fn with(file: Vec<u8>) -> Self {
            Self::start(move |request, to| {
                let (status, body) = match request {
                    "GET /buildid/abcdef01/debuginfo HTTP/1.1" => ("200 OK", &*file),
                    _ => ("404 Not Found", &b""[..]),
                };
                let length = body.len();
                let head = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n");
                let _ = to.write_all(head.as_bytes()).and_then(|()| to.write_all(body));
            })
        }

        pub(crate) fn calls(&self) -> usize {
            self.calls.load(Ordering::Relaxed)
        }
    }

    pub(crate) fn settings(cache: &TempDir, servers: &[&Server], timeout: Duration) -> Settings {
        let servers = servers.iter().map(|it| it.url.clone()).collect();
        let cache = cache.path().join("client");
        Settings { servers, cache, timeout, limit_bytes: LIMIT, limit_of_run_bytes: 10 * LIMIT }
    }

    fn downloads(cache: &TempDir, servers: &[&Server]) -> Downloads {
        Downloads::new(settings(cache, servers, TIMEOUT))
    }

    /// All files in the cache, below the folder of the id.
    fn in_cache(cache: &TempDir) -> Vec<String> {
        let entries = fs::read_dir(cache.path().join("client/abcdef01")).into_iter().flatten();
        entries.map(|it| it.unwrap().file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn what_a_server_has_is_downloaded_and_kept() {
        let cache = TempDir::new().unwrap();
        let empty = Server::with(Vec::new());
        let server = Server::with(with_build_id(&ID));
        let file = downloads(&cache, &[&empty, &server]).get(id()).unwrap();
        assert_eq!(profiler_elf::build_id(&file), Some(id()));
        assert_eq!(in_cache(&cache), ["debuginfo"]);
        assert!(downloads(&cache, &[]).get(id()).is_some());
        assert_eq!((empty.calls(), server.calls()), (1, 1));
    }

    #[test]
    fn what_no_server_has_is_none() {
        let cache = TempDir::new().unwrap();
        let server = Server::with(with_build_id(&ID));
        let other = BuildId::from_slice(&[1, 2]).unwrap();
        assert!(downloads(&cache, &[&server, &server]).get(other).is_none());
        assert_eq!(server.calls(), 2);
    }

    #[test]
    fn a_file_of_another_build_is_not_taken() {
        let cache = TempDir::new().unwrap();
        let server = Server::with(with_build_id(&[1, 2, 3, 4]));
        assert!(downloads(&cache, &[&server]).get(id()).is_none());
        assert!(in_cache(&cache).is_empty());
        // Nor one that is in the cache, which a right one replaces.
        fs::write(cache.path().join("client/abcdef01/debuginfo"), b"").unwrap();
        let server = Server::with(with_build_id(&ID));
        assert!(downloads(&cache, &[&server]).get(id()).is_some());
        assert!(downloads(&cache, &[]).get(id()).is_some());
    }

    #[test]
    fn a_body_without_end_is_cut_off() {
        let cache = TempDir::new().unwrap();
        let server = Server::start(|_, to| {
            let head = b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n";
            to.write_all(head).unwrap();
            to.write_all(&with_build_id(&ID)).unwrap();
            while to.write_all(&[0; 4096]).is_ok() {}
        });
        assert!(downloads(&cache, &[&server]).get(id()).is_none());
        assert!(in_cache(&cache).is_empty());
    }

    #[test]
    fn a_file_may_be_as_large_as_the_limit() {
        for (bytes, is_taken) in [(LIMIT, true), (LIMIT + 1, false)] {
            let cache = TempDir::new().unwrap();
            let mut file = with_build_id(&ID);
            file.resize(usize::try_from(bytes).unwrap(), 0);
            let server = Server::with(file);
            assert_eq!(downloads(&cache, &[&server]).get(id()).is_some(), is_taken);
        }
    }

    #[test]
    fn a_run_downloads_so_much_at_most() {
        let cache = TempDir::new().unwrap();
        let mut file = with_build_id(&ID);
        file.resize(usize::try_from(LIMIT).unwrap(), 0);
        let server = Server::with(file);
        let settings = settings(&cache, &[&server], TIMEOUT);
        let mut downloads =
            Downloads::new(Settings { limit_of_run_bytes: 2 * LIMIT - 1, ..settings });
        let in_cache = cache.path().join("client/abcdef01/debuginfo");
        assert!(downloads.get(id()).is_some());
        fs::remove_file(&in_cache).unwrap();
        // What is left does not do for the second, and is spent on it.
        assert!(downloads.get(id()).is_none());
        assert!(downloads.get(id()).is_none());
        assert_eq!(server.calls(), 2);
        fs::write(&in_cache, with_build_id(&ID)).unwrap();
        assert!(downloads.get(id()).is_some());
    }

    #[test]
    fn a_server_that_does_not_answer_is_left() {
        let cache = TempDir::new().unwrap();
        let held = std::sync::Mutex::new(Vec::new());
        let silent = Server::start(move |_, to| held.lock().unwrap().push(to.try_clone().unwrap()));
        let stuck = Server::start(|_, to| {
            to.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 900\r\n\r\n\x7fELF").unwrap();
            // Until the other side has enough.
            let _ = to.read(&mut [0]);
        });
        let server = Server::with(with_build_id(&ID));
        let short = Duration::from_millis(100);
        let mut no_help = Downloads::new(settings(&cache, &[&silent, &stuck], short));
        assert!(no_help.get(id()).is_none());
        assert!(in_cache(&cache).is_empty());
        assert!(downloads(&cache, &[&server]).get(id()).is_some());
    }

    #[test]
    fn a_file_that_is_not_whole_is_not_taken() {
        let cache = TempDir::new().unwrap();
        let server = Server::start(|_, to| {
            to.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n").unwrap();
            to.write_all(&with_build_id(&ID)).unwrap();
            to.shutdown(std::net::Shutdown::Both).unwrap();
        });
        assert!(downloads(&cache, &[&server]).get(id()).is_none());
        assert!(in_cache(&cache).is_empty());
    }

    #[test]
    fn one_that_has_gone_is_left() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        drop(listener);
        let cache = TempDir::new().unwrap();
        let gone = Server { url, calls: Arc::default() };
        assert!(downloads(&cache, &[&gone]).get(id()).is_none());
    }
}
