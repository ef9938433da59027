//! The text of source files, for those who may read it.
//!
//! A program's debug info names any path it likes, and the agent may read all files. So a thread reads them with the rights
//! of the user who typed `sudo`, or of nobody, and with no capabilities. Of what may be something else than a file
//! nothing is opened, and whoever asks does not wait for a file system that does not answer.

use std::{
    fs::File,
    io::Read as _,
    path::Path,
    sync::mpsc::{self, Receiver, SyncSender},
    thread,
    time::{Duration, SystemTime},
};

use crate::{
    error::{Error, Result},
    hardening::capabilities,
    invoker::Invoker,
    regular_file::{self, Refusal},
};

/// No source file that people have written is longer, in bytes.
const MAX_BYTES: u64 = 4 << 20;
/// How long somebody waits for a file.
const WAIT: Duration = Duration::from_secs(2);
/// How many may wait.
const MAX_WAITING: usize = 8;

/// The text of a file, or why it can't be had.
pub(super) type Text = std::result::Result<Source, String>;

/// A source file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Source {
    pub(super) text: String,
    /// When it was last written to.
    pub(super) changed: Option<SystemTime>,
}

/// The thread, seen from those who ask.
#[derive(Debug)]
pub(super) struct Sources(SyncSender<(String, SyncSender<Text>)>);

impl Sources {
    /// Starts the thread, while it can still become what it is to be: somebody else, who may read less.
    ///
    /// # Errors
    ///
    /// There is no thread, or it keeps the rights of root.
    pub(super) fn start(invoker: Option<&Invoker>) -> Result<Self> {
        // Who is not root has no rights to give away.
        let user = rustix::process::geteuid()
            .is_root()
            .then(|| invoker.cloned().unwrap_or_else(Invoker::nobody));
        let (asks, asked) = mpsc::sync_channel(MAX_WAITING);
        let (tell, told) = mpsc::sync_channel(1);
        let run = move || {
            let done = user.map_or(Ok(()), |it| it.use_files_as_them());
            let done = done.and_then(|()| capabilities::give_up().map_err(Into::into));
            let may_read = done.is_ok();
            // Who starts it waits for this.
            let _ = tell.send(done);
            if may_read {
                answer(&asked);
            }
        };
        let failed =
            |error| Error::system("cannot start the thread that reads source files", error);
        thread::Builder::new().name("sources".into()).spawn(run).map_err(failed)?;
        told.recv().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into())).map_err(failed)?;
        Ok(Self(asks))
    }

    /// What stands in a file.
    pub(super) fn text(&self, path: &str) -> Text {
        let (tell, told) = mpsc::sync_channel(1);
        let late = || "its file system does not answer".to_owned();
        self.0.try_send((path.to_owned(), tell)).map_err(|_| late())?;
        told.recv_timeout(WAIT).unwrap_or_else(|_| Err(late()))
    }
}

fn answer(asked: &Receiver<(String, SyncSender<Text>)>) {
    for (path, tell) in asked {
        // Who has asked may have gone.
        let _ = tell.try_send(read(Path::new(&path)));
    }
}

fn read(path: &Path) -> Text {
    if !path.is_absolute() {
        return Err("its path is not whole".into());
    }
    let file = regular_file::open(path).map_err(|refusal| match refusal {
        Refusal::Special => "it is no regular file".to_owned(),
        Refusal::Leased => "another program holds a lease on it".to_owned(),
        Refusal::Failed(error) => error.to_string(),
    })?;
    text_of(&file).map_err(|error| error.to_string())?.ok_or_else(|| "it is no text".to_owned())
}

/// `None` where it is none. Files of `/proc`, which tell our own process what they tell nobody else, have no size.
fn text_of(file: &File) -> std::io::Result<Option<Source>> {
    let about = file.metadata()?;
    if !(1..=MAX_BYTES).contains(&about.len()) {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    file.take(about.len()).read_to_end(&mut bytes)?;
    let text = (!bytes.contains(&0)).then(|| String::from_utf8_lossy(&bytes).into_owned());
    Ok(text.map(|text| Source { text, changed: about.modified().ok() }))
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::PermissionsExt as _};

    use super::*;

    #[test]
    fn text_is_read_where_the_reader_may() {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        let path = dir.path().join("a.c");
        let shown = path.to_str().unwrap();
        fs::write(&path, "int main;\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let sources = Sources::start(None).unwrap();
        assert_eq!(sources.text(shown).unwrap().text, "int main;\n");

        fs::write(&path, b"\x7fELF\0").unwrap();
        assert_eq!(sources.text(shown), Err("it is no text".into()));
        assert_eq!(sources.text("/proc/self/maps"), Err("it is no text".into()));
        assert_eq!(sources.text("/dev/zero"), Err("it is no regular file".into()));
        assert_eq!(sources.text("a.c"), Err("its path is not whole".into()));
        assert!(sources.text(dir.path().join("b.c").to_str().unwrap()).is_err());
        let file = File::options().write(true).open(&path).unwrap();
        file.set_len(MAX_BYTES + 1).unwrap();
        assert_eq!(sources.text(shown), Err("it is no text".into()));

        // Root's thread is nobody's.
        fs::write(&path, "int main;\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
        assert_eq!(sources.text(shown).is_ok(), !rustix::process::geteuid().is_root());
    }
}
