//! Saving what is shown, on a thread of its own: a file system may take its time, and the screen goes on meanwhile.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{self, Receiver, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use profiler_profile::{
    export::about::About,
    live::Line,
    profile::{Entry, Profile},
    source::Source,
};

use crate::{
    error::{Error, Result},
    output::PRODUCER,
    stderr,
};

/// Writes a profile to a file that the user has named; what it is for.
pub(crate) type Save = Box<dyn Fn(&Path, &Profile, &About<'_>) -> Result<String> + Send>;

/// How long the end of a run waits for a file that is being written.
const WRITTEN_WITHIN: Duration = Duration::from_secs(10);
const STEP: Duration = Duration::from_millis(5);

/// What is to be saved.
#[derive(Debug)]
pub(super) struct Shown {
    pub(super) path: PathBuf,
    pub(super) lines: Vec<Line>,
    pub(super) source: Option<Source>,
    /// When it begins, by the time of day in nanoseconds, and how long it is.
    pub(super) begun_ns: i128,
    pub(super) time: Duration,
    /// What of the run it is, for people.
    pub(super) what: String,
}

/// The thread, as the screen has it.
#[derive(Debug)]
pub(crate) struct Saver {
    jobs: Sender<Shown>,
    told: Receiver<String>,
    writing: Writing,
}

/// The file that is being written.
type Writing = Arc<Mutex<Option<PathBuf>>>;

/// The thread. When it is dropped, it has written what it was given, unless that takes too long.
#[derive(Debug)]
pub(crate) struct SaverThread {
    writing: Writing,
    thread: Option<JoinHandle<()>>,
}

impl Saver {
    /// Starts the thread, which first does what makes it the one that may write the user's files.
    pub(crate) fn start(
        prepare: impl FnOnce() + Send + 'static,
        save: Save,
    ) -> Result<(Self, SaverThread)> {
        let (jobs, given) = mpsc::channel::<Shown>();
        let (tell, told) = mpsc::channel();
        let (is_ready, ready) = mpsc::channel::<()>();
        let writing = Writing::default();
        let seen = Arc::clone(&writing);
        let run = move || {
            prepare();
            drop(is_ready);
            for shown in given {
                let said = write(shown, &save);
                // Who has left the screen is told by a line.
                if let Err(mpsc::SendError(said)) = tell.send(said) {
                    stderr::notice(&said);
                }
                *seen.lock().unwrap_or_else(PoisonError::into_inner) = None;
            }
        };
        let thread = thread::Builder::new().name("save".into()).spawn(run);
        let thread = thread.map_err(|error| Error::system("cannot start a thread", error))?;
        // Nobody sends: this is the end of what it does first.
        let _ = ready.recv();
        let thread = SaverThread { writing: Arc::clone(&writing), thread: Some(thread) };
        Ok((Self { jobs, told, writing }, thread))
    }

    /// Has it save that; what is to be told meanwhile.
    pub(super) fn save(&self, shown: Shown) -> String {
        let mut writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(path) = &*writing {
            return format!("{} is still being written", path.display());
        }
        let path = shown.path.clone();
        let said = format!("writing {} …", path.display());
        if self.jobs.send(shown).is_err() {
            return "the thread that saves has ended: this is a defect of the profiler".into();
        }
        *writing = Some(path);
        said
    }

    /// What has become of it, once.
    pub(super) fn told(&self) -> Option<String> {
        self.told.try_recv().ok()
    }
}

impl Drop for SaverThread {
    fn drop(&mut self) {
        let path = || self.writing.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let Some(thread) = self.thread.take() else { return };
        let start = Instant::now();
        while let Some(path) = path().filter(|_| !thread.is_finished()) {
            if start.elapsed() >= WRITTEN_WITHIN {
                let seconds = WRITTEN_WITHIN.as_secs();
                stderr::say(&format!("{}: not written within {seconds} s", path.display()));
                return;
            }
            thread::sleep(STEP);
        }
    }
}

/// Writes it; what is to be told of that.
fn write(shown: Shown, save: &Save) -> String {
    let Shown { path, lines, source, begun_ns, time, what } = shown;
    let mut profile = Profile::new(usize::MAX);
    // A profile of one event has no others.
    let source = source.map(|it| Source { slot: 0, ..it });
    let shared = source.clone().map(Arc::new);
    for line in lines {
        let entry = line.to_entry();
        let source = shared.clone().unwrap_or_else(|| Arc::clone(&entry.source));
        profile.add_entry(Entry { source, ..entry });
    }
    let about = About::of_moment(source.as_slice(), begun_ns, time, &what, PRODUCER);
    save(&path, &profile, &about).unwrap_or_else(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(path: &str) -> Shown {
        let (lines, source) = (Vec::new(), None);
        let (path, what) = (path.into(), "the last second".into());
        Shown { path, lines, source, begun_ns: 0, time: Duration::from_secs(1), what }
    }

    #[test]
    fn the_screen_goes_on_while_a_file_is_written() {
        let (go, may_go) = mpsc::channel::<()>();
        let (is_prepared, prepared) = mpsc::channel();
        let save: Save = Box::new(move |path, profile, about| {
            let _ = may_go.recv();
            assert_eq!((profile.distinct_stacks(), &*about.title), (0, ", the last second"));
            Ok(format!("wrote {}", path.display()))
        });
        let (saver, thread) = Saver::start(move || is_prepared.send(7).unwrap(), save).unwrap();
        assert_eq!(prepared.try_recv(), Ok(7));
        assert_eq!(saver.save(shown("a")), "writing a …");
        assert_eq!(saver.save(shown("b")), "a is still being written");
        assert_eq!(saver.told(), None);
        go.send(()).unwrap();
        let told = || loop {
            if let Some(said) = saver.told() {
                return said;
            }
            thread::sleep(STEP);
        };
        assert_eq!(told(), "wrote a");
        while saver.writing.lock().unwrap().is_some() {
            thread::sleep(STEP);
        }
        // Who leaves at once finds it written.
        saver.save(shown("b"));
        go.send(()).unwrap();
        drop(saver);
        drop(thread);
        assert!(go.send(()).is_err());
    }

    #[test]
    fn what_fails_is_told() {
        let save: Save = Box::new(|_, _, _| Err(Error::Usage("no room".into())));
        let (saver, thread) = Saver::start(|| (), save).unwrap();
        saver.save(shown("a"));
        drop(thread);
        assert!(saver.told().unwrap().contains("no room"));
    }
}
