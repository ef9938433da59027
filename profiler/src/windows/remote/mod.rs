//! A store that windows are sent to.
//!
//! Each window is written to the [spool](spool) first and sent from there, so that the end of the agent, however it comes, loses
//! none. Each is sent at least once: again where the store took it and its answer came too late or not at all, and all of its requests
//! again where the agent ended amid a window, or before it was removed.

mod answer;
mod backoff;
mod client;
mod header;
mod spool;
mod store;
mod url;

use std::time::{Duration, Instant};

use profiler_profile::export::{about::About, push::Sender};

use self::{
    answer::Verdict,
    backoff::Backoff,
    client::Client,
    spool::{Entry, Spool, Unread},
};
pub use self::{
    client::{Connection, MAX_TIMEOUT},
    header::Header,
    store::{OTLP, PARCA, PYROSCOPE, Store},
    url::Url,
};
use super::{Counts, Destination, Window, fates::add, is_due};
use crate::{error::Result, stderr};

/// A store that windows are sent to.
#[derive(Debug)]
pub struct Remote {
    store: &'static Store,
    name: String,
    sender: Sender,
    client: Client,
    spool: Spool,
    backoff: Backoff,
    /// What is being sent.
    current: Option<Current>,
    /// When it was last said that the store is away, and that it has refused.
    said: [Option<Instant>; 2],
}

/// The window that is sent next, with how far that has come.
#[derive(Debug)]
struct Current {
    entry: Entry,
    next: usize,
    /// Why a part was refused.
    refused: Option<String>,
}

impl Remote {
    /// The store at this address, which is not asked for anything yet.
    ///
    /// # Errors
    ///
    /// What the connection needs can't be read, or the spool can't be used.
    pub fn open(
        store: &'static Store,
        url: &Url,
        connection: &Connection,
        headers: &[Header],
        sender: Sender,
        (spool, spool_bytes): (&std::path::Path, u64),
    ) -> Result<Self> {
        let client = Client::new(store, url, connection, headers)?;
        let spool = Spool::open(&spool.join(store.name), spool_bytes)?;
        Ok(Self {
            store,
            name: format!("{} {}", store.name, client.url()),
            sender,
            client,
            spool,
            backoff: Backoff::default(),
            current: None,
            said: [None, None],
        })
    }

    /// Makes requests of a window, and has them wait.
    fn spool(&mut self, window: &Window, counts: &Counts) -> std::io::Result<()> {
        let about = About::of_run(&window.ledger, &window.options);
        let requests = (self.store.encode)(&window.profile, &about, &self.sender)?;
        if requests.is_empty() {
            // Nothing was sampled, and no store takes a profile of nothing.
            add(&counts.written, 1);
            return Ok(());
        }
        let put = self.spool.put(&Entry { requests });
        add(&counts.spool_full, put.dropped);
        if let Some(why) = put.not_on_disk {
            self.say(0, &format!("the spool takes no windows, and one is kept in memory: {why}"));
        } else if put.dropped > 0 {
            self.say(0, "the oldest windows in the spool were dropped, to make room");
        }
        Ok(())
    }

    fn say(&mut self, kind: usize, what: &str) {
        let Some(said) = self.said.get_mut(kind) else { return };
        if is_due(said) {
            stderr::say(&format!("{}: {what}", self.name));
        }
    }

    /// Sends the next request of the oldest window; whether more can be sent at once.
    fn send_one(&mut self, counts: &Counts, within: Option<Duration>) -> bool {
        if self.current.is_none() {
            match self.spool.first() {
                None => return false,
                Some(Ok(entry)) => self.current = Some(Current { entry, next: 0, refused: None }),
                Some(Err(Unread::Failed(error))) => {
                    self.wait(counts, &format!("cannot read the spool: {error}"), None);
                    return false;
                }
                Some(Err(Unread::Damaged(why))) => {
                    self.spool.remove_first();
                    add(&counts.spool_damaged, 1);
                    self.say(1, &format!("a window of the spool was dropped: {why}"));
                    return true;
                }
            }
        }
        let Some(current) = &mut self.current else { return false };
        if let Some(request) = current.entry.requests.get(current.next) {
            let verdict = match self.client.post(&request.body, within) {
                Ok(answer) => answer::judge(self.store, &answer),
                Err(why) => Verdict::Away { why, retry_after: None },
            };
            match verdict {
                Verdict::Taken { rejected, why } => {
                    current.next += 1;
                    self.backoff.succeed();
                    add(&counts.bytes, request.body.len() as u64);
                    add(&counts.rejected, rejected);
                    if rejected > 0 {
                        self.say(1, &format!("left out {rejected} profiles: {why}"));
                    }
                }
                Verdict::Refused(why) => {
                    current.next += 1;
                    self.backoff.succeed();
                    current.refused = Some(why);
                }
                Verdict::Away { why, retry_after } => {
                    self.wait(counts, &why, retry_after);
                    return false;
                }
            }
            if self.current.as_ref().is_some_and(|it| it.next < it.entry.requests.len()) {
                return true;
            }
        }
        self.settle(counts);
        true
    }

    /// Tries again later.
    fn wait(&mut self, counts: &Counts, why: &str, retry_after: Option<Duration>) {
        add(&counts.retries, 1);
        let delay = self.backoff.fail(Instant::now(), retry_after).as_secs_f64();
        self.say(0, &format!("{why}; windows wait, next attempt in {delay:.1} s"));
    }

    /// All requests of a window have their answers.
    fn settle(&mut self, counts: &Counts) {
        self.spool.remove_first();
        match self.current.take().and_then(|it| it.refused) {
            None => add(&counts.written, 1),
            Some(why) => {
                add(&counts.refused, 1);
                self.say(1, &format!("a window was refused: {why}"));
            }
        }
    }

    fn show(&self, counts: &Counts) {
        use std::sync::atomic::Ordering::Relaxed;
        counts.spooled.store(self.spool.len(), Relaxed);
        counts.spooled_bytes.store(self.spool.bytes(), Relaxed);
    }
}

impl Destination for Remote {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn take(&mut self, window: &Window, counts: &Counts) -> std::result::Result<(), String> {
        // The oldest may be dropped, and that is the one which is being sent.
        let first = self.spool.first_number();
        let spooled = self.spool(window, counts);
        if self.spool.first_number() != first {
            self.current = None;
        }
        self.show(counts);
        spooled.map_err(|error| format!("{}: {error}", self.name))
    }

    fn go_on(&mut self, counts: &Counts) -> Option<Instant> {
        if self.backoff.until().is_none_or(|it| it <= Instant::now()) {
            self.send_one(counts, None);
        }
        self.show(counts);
        let now = Instant::now();
        (self.spool.len() > 0).then(|| self.backoff.until().unwrap_or(now))
    }

    fn finish(&mut self, counts: &Counts, until: Instant) {
        let is_due = |it: &Self| it.backoff.until().is_none_or(|it| it <= Instant::now());
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() || !is_due(self) || !self.send_one(counts, Some(left)) {
                break;
            }
        }
        let in_memory = self.spool.only_in_memory();
        if in_memory > 0 {
            self.spool.forget_memory();
            add(&counts.spool_full, in_memory);
        }
        self.show(counts);
    }
}

#[cfg(test)]
mod tests;
