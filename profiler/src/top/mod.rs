//! The screen of `top`: a run that is looked at while it goes on.
//!
//! The screen has a thread of its own. At most ten times a second it draws what has changed, and twice a second it takes
//! what was sampled by then from the [window](profiler_profile::live), of which it makes what is shown and no more.
//! [`App`](app::App) is what the user has chosen, [`Model`](model::Model) what there is to show, and drawing a function
//! of both.

mod app;
mod canvas;
mod colours;
mod flame;
mod foot;
mod head;
mod help;
mod keys;
mod machine;
mod model;
mod neighbours;
mod numbers;
mod prompt;
mod saver;
mod screen;
mod table;
mod tables;
mod terminal;
#[cfg(test)]
mod tests;

use std::{
    io::{self, IsTerminal as _},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use profiler_profile::{live::Live, source::Source};
use tokio::sync::oneshot;

pub(crate) use self::saver::Saver;
use self::{saver::SaverThread, terminal::Looks};
use crate::error::{Error, Result};

/// How long the end of a run waits for a terminal that takes nothing.
const LEFT_WITHIN: Duration = Duration::from_secs(2);
const LEFT_STEP: Duration = Duration::from_millis(5);

/// A screen that can be shown.
pub struct Prepared {
    live: Arc<Live>,
    saver: (Saver, SaverThread),
    looks: Looks,
}

impl Prepared {
    /// Refuses where there is no terminal that could show it.
    pub(crate) fn check() -> Result<()> {
        let term = std::env::var("TERM").unwrap_or_default();
        let is_terminal = io::stdin().is_terminal() && io::stdout().is_terminal();
        refusal(is_terminal, &term).map_or(Ok(()), |why| Err(Error::Usage(why)))
    }

    /// A screen of this window.
    pub(crate) fn new(live: Arc<Live>, saver: (Saver, SaverThread)) -> Self {
        Self { live, saver, looks: Looks::of_environment() }
    }

    /// Takes the terminal, and shows what is sampled of these sources, by slot.
    pub(crate) fn start(self, sources: Vec<Arc<Source>>) -> Result<Screen> {
        let (done, ended) = oneshot::channel();
        let is_over = Arc::<AtomicBool>::default();
        let seen = Arc::clone(&is_over);
        let Self { live, saver: (saver, saver_thread), looks } = self;
        let run = move || {
            let _ = done.send(screen::run(&live, &sources, &saver, looks, &seen));
        };
        let thread = thread::Builder::new().name("screen".into()).spawn(run);
        let thread = thread.map_err(|error| Error::system("cannot start a thread", error))?;
        Ok(Screen { ended, is_over, thread: Some(thread), saver: Some(saver_thread) })
    }
}

/// Why this can't be shown where we are.
fn refusal(is_terminal: bool, term: &str) -> Option<String> {
    let instead = "`profiler record` writes a profile, and `profiler report` shows it";
    if !is_terminal {
        return Some(format!("top: standard input and output are not a terminal; {instead}"));
    }
    (term == "dumb").then(|| format!("top: TERM=dumb can't place text on a screen; {instead}"))
}

/// A screen that is shown. When it is dropped, the terminal is as it was.
pub struct Screen {
    ended: oneshot::Receiver<Result<()>>,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
    saver: Option<SaverThread>,
}

/// Waits until the user has ended the run, or the screen can't be shown any more; for ever if there is none.
pub(crate) async fn ended(screen: &mut Option<Screen>) -> Result<()> {
    match screen {
        Some(screen) if !screen.ended.is_terminated() => {
            let died =
                || Error::system("the screen's thread ended", "this is a defect of the profiler");
            (&mut screen.ended).await.unwrap_or_else(|_| Err(died()))
        }
        _ => std::future::pending().await,
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return };
        let start = Instant::now();
        // One that nobody reads from may never take what restores it.
        while !thread.is_finished() && start.elapsed() < LEFT_WITHIN {
            thread::sleep(LEFT_STEP);
        }
        if thread.is_finished() {
            let _ = thread.join();
        } else {
            terminal::abandon();
        }
        crate::stderr::release();
        // What it has to say comes where it is seen.
        drop(self.saver.take());
    }
}
