//! The outputs of a run: what each writes, the profile that they share, and how many samples were delivered.

pub mod captures;
pub mod config;
mod sink;

use std::{
    io,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use jiff::tz::TimeZone;
use profiler_profile::{
    export::{about::About, format::Options, output::Output},
    ledger::{Ledger, PerCpuCount, memory::Cache},
    live::{Feed, Live},
    profile::Profile,
    report::table,
    sample::Sample,
};

pub use self::sink::{Blocked, Sink};
use self::{
    captures::Captures,
    config::{Config, Report},
};
use crate::{
    error::{Error, Result},
    kernel, stderr,
    windows::{Window, Windows},
};

/// What writes, in each profile that says so.
pub(crate) const PRODUCER: &str = concat!("profiler ", env!("CARGO_PKG_VERSION"));

/// All that a run writes.
///
/// A sample is delivered when each output has it. An output that can't be written, or whose reader has gone, is left out
/// from then on, unless no other wants the samples themselves.
pub struct Outputs {
    all: Vec<Named>,
    options: Options,
    /// What is written at the end, of all outputs that are made from it.
    profile: Profile,
    needs_profile: bool,
    /// How many distinct stacks the profile has, for who shows how the run goes on.
    stacks: Arc<AtomicUsize>,
    /// Slot and CPU of each sample that has been given to the outputs, and is delivered with the next flush.
    given: Vec<(usize, u32)>,
    /// Of those that were delivered, the ones that are only in memory yet.
    kept: PerCpuCount,
    /// What the user calls the outputs that could not be written.
    unwritten: Vec<PathBuf>,
    windows: Option<Parts>,
    captures: Option<Arc<Captures>>,
}

/// The windows of a run.
struct Parts {
    to: Arc<Windows>,
    /// The account of the run when the last one ended.
    before: Option<Ledger>,
    /// Samples of those that have ended for whose stacks there was no room.
    beyond_memory: u64,
}

/// An output, and what the user calls the place that it writes to.
pub(crate) struct Named {
    pub(crate) output: Output<Box<dyn io::Write>>,
    pub(crate) path: PathBuf,
    /// Whether the run is for its sake: it is more than a word at the end.
    pub(crate) has_samples: bool,
}

impl Named {
    /// The output that the user asked for.
    pub(crate) fn new(
        report: Report,
        options: &Options,
        to: Box<dyn io::Write>,
        path: PathBuf,
    ) -> Self {
        let output = match report {
            Report::Samples(format) => Output::new(format.export, options.clone(), to),
            Report::Top(options) => Output::of_profile(
                move |profile, about, to| table::write(profile, about, options, to),
                to,
            ),
        };
        Self { output, path, has_samples: matches!(report, Report::Samples(_)) }
    }

    /// What a screen shows.
    fn live(live: Arc<Live>) -> Self {
        let output = Output::of_exporter(Box::new(Feed(live)), Box::new(io::sink()) as Box<_>);
        Self { output, path: PathBuf::from("the screen"), has_samples: true }
    }
}

impl Outputs {
    /// What the user asked for, a sink each, with a count of nothing for each source and CPU.
    pub(crate) fn new(
        config: &Config,
        sinks: Vec<Sink>,
        kept: PerCpuCount,
        stacks: Arc<AtomicUsize>,
    ) -> Self {
        let options = Options {
            kernel_stacks: config.kernel_stacks,
            user_stacks: config.user_stacks,
            names_events: config.names_events,
            begun_ns: kernel::monotonic_ns(),
            producer: PRODUCER,
            real_time_ahead_ns: kernel::real_time_ahead_ns(),
            zone: TimeZone::system(),
            rendered_bytes: config.rendered_bytes,
            timeline_bytes: config.profile_bytes,
            root: config.root,
        };
        let both = config.reports.iter().zip(sinks);
        let all = both.map(|(report, sink)| {
            let path = sink.path().to_owned();
            Named::new(*report, &options, Box::new(sink), path)
        });
        let all = all.chain(config.live.clone().map(Named::live));
        let windows =
            config.windows.clone().map(|it| Parts { to: it.to, before: None, beyond_memory: 0 });
        let outputs = Self::of(all.collect(), options.clone(), config.profile_bytes, kept);
        Self {
            stacks,
            needs_profile: outputs.needs_profile || windows.is_some(),
            windows,
            captures: config.windows.as_ref().and_then(|it| it.captures.clone()),
            ..outputs
        }
    }

    /// These outputs, with so many bytes for the profile.
    pub(crate) fn of(
        all: Vec<Named>,
        options: Options,
        profile_bytes: usize,
        kept: PerCpuCount,
    ) -> Self {
        let needs_profile = all.iter().any(|it| it.output.needs_profile());
        let profile = Profile::new(profile_bytes);
        let (given, stacks) = (Vec::new(), Arc::default());
        let (unwritten, windows, captures) = (Vec::new(), None, None);
        Self {
            all,
            options,
            profile,
            needs_profile,
            stacks,
            given,
            kept,
            unwritten,
            windows,
            captures,
        }
    }

    /// Gives samples to each.
    pub(crate) fn add(&mut self, samples: &[Sample]) -> Result<()> {
        each(&mut self.all, &mut self.unwritten, |output| output.add(samples))?;
        if self.needs_profile {
            self.profile.extend(samples);
            self.stacks.store(self.profile.distinct_stacks(), Ordering::Relaxed);
        }
        if let Some(captures) = &self.captures {
            captures.add(samples);
        }
        self.given.extend(samples.iter().map(|it| (it.source.slot, it.cpu)));
        Ok(())
    }

    /// Writes what was given, and counts it as delivered.
    pub(crate) fn flush(&mut self, delivered: &PerCpuCount) -> Result<()> {
        each(&mut self.all, &mut self.unwritten, Output::flush)?;
        let is_kept = self.all.iter().any(|it| it.output.is_at_end());
        for (slot, cpu) in self.given.drain(..) {
            delivered.add(slot, cpu);
            if is_kept {
                self.kept.add(slot, cpu);
            }
        }
        Ok(())
    }

    /// Ends a window: hands what was sampled since the last one to who takes it. The account is that of the run so far.
    pub(crate) fn end_window(&mut self, ledger: Ledger, end_ns: u64) {
        let Some(Parts { to, before, beyond_memory }) = &mut self.windows else { return };
        let next = Profile::new(self.profile.limit_bytes());
        let profile = std::mem::replace(&mut self.profile, next);
        let part = before.as_ref().map_or_else(|| ledger.clone(), |before| ledger.since(before));
        let part = Ledger { beyond_memory: profile.beyond_limit(), ..part };
        *beyond_memory = beyond_memory.saturating_add(profile.beyond_limit());
        *before = Some(ledger);
        to.hand_over(Window { profile, ledger: part, options: self.options.clone() });
        self.options.begun_ns = end_ns;
        self.options.real_time_ahead_ns = kernel::real_time_ahead_ns();
    }

    /// Writes the rest. What an output has kept until now and can't write has not been delivered after all.
    pub(crate) fn finish(&mut self, ledger: &Ledger, delivered: &PerCpuCount) -> Result<()> {
        if self.windows.is_some() {
            self.end_window(ledger.clone(), kernel::monotonic_ns());
        }
        let about = About::of_run(ledger, &self.options);
        let finish = |output: &mut Output<Box<dyn io::Write>>| output.finish(&self.profile, &about);
        let finished = each(&mut self.all, &mut self.unwritten, finish);
        if finished.is_err() {
            delivered.take_back(&self.kept);
        }
        finished
    }

    /// What the user calls the outputs that could not be written.
    pub(crate) fn unwritten(&self) -> &[PathBuf] {
        &self.unwritten
    }

    /// Samples for whose stacks the profile had no room, in all windows.
    pub(crate) fn beyond_memory(&self) -> u64 {
        let before = self.windows.as_ref().map_or(0, |it| it.beyond_memory);
        before.saturating_add(self.profile.beyond_limit())
    }

    /// What they keep in memory.
    pub(crate) fn account(&self) -> Vec<Cache> {
        let profile = self.needs_profile.then(|| self.profile.account());
        self.all.iter().flat_map(|it| it.output.account()).chain(profile).collect()
    }
}

/// Does something with each, and leaves out those that can't be written.
fn each(
    all: &mut Vec<Named>,
    unwritten: &mut Vec<PathBuf>,
    what: impl Fn(&mut Output<Box<dyn io::Write>>) -> io::Result<()>,
) -> Result<()> {
    let mut at = 0;
    while let Some(Named { output, path, .. }) = all.get_mut(at) {
        let Err(error) = what(output).map_err(|error| Error::write(path, &error)) else {
            at += 1;
            continue;
        };
        // Whether there is another that the run is for.
        let is_beside = |(other, it): (usize, &Named)| other != at && it.has_samples;
        if !all.iter().enumerate().any(is_beside) {
            return Err(error);
        }
        let path = all.remove(at).path;
        if matches!(error, Error::BrokenPipe) {
            let path = path.display();
            stderr::notice(&format!("nobody reads {path} any more: the run goes on"));
        } else {
            stderr::say(&format!("{error}; the other outputs are written"));
            unwritten.push(path);
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::{
        path::Path,
        sync::{Arc, Mutex},
    };

    use profiler_profile::{
        export::{format::Format, root::Root},
        ledger::{KernelSide, Scope, memory::Memory},
        sample::Task,
        source::{Counts, Rate, Source},
        stack_end::StackEnd,
        store::Store,
    };

    use super::*;

    /// What an output has written.
    #[derive(Clone, Default)]
    pub(crate) struct Written(pub(crate) Arc<Mutex<Vec<u8>>>);

    impl io::Write for Written {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// A full disk.
    struct Full;

    impl io::Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    pub(crate) fn samples() -> Vec<Sample> {
        let (name, rate) = ("cycles".into(), Rate::Frequency(99));
        let source = Arc::new(Source { slot: 0, name, counts: Counts::Events, rate });
        let empty = Store::default().empty();
        let sample = |tid| Sample {
            source: Arc::clone(&source),
            time_ns: 1,
            value: 1,
            cpu: 0,
            task: Task { tgid: 7, tid, ..Task::default() },
            kernel: Arc::clone(&empty),
            user: Arc::clone(&empty),
            user_end: StackEnd::NotCaptured,
            from_snapshot: false,
        };
        [7, 8, 7, 9].map(sample).into()
    }

    fn ledger() -> Ledger {
        let kernel = KernelSide {
            sources: Vec::new(),
            duration: std::time::Duration::from_secs(1),
            pids: Vec::new(),
            children: None,
            filters: Vec::new(),
            scope: Scope::default(),
            strangers: Arc::new(PerCpuCount::new(0, 0)),
            sideband_lost: 0,
            sideband_malformed: 0,
            unwinding: None,
            memory: Memory::default(),
        };
        Ledger::settle(&kernel, &PerCpuCount::new(0, 0), &PerCpuCount::new(0, 0))
    }

    fn options() -> Options {
        Options {
            kernel_stacks: true,
            user_stacks: true,
            names_events: false,
            begun_ns: 0,
            producer: "profiler",
            real_time_ahead_ns: 0,
            zone: TimeZone::UTC,
            rendered_bytes: 1 << 10,
            timeline_bytes: 1 << 20,
            root: Root::default(),
        }
    }

    /// Outputs of these formats, and what is written to each.
    fn outputs(formats: &[&str]) -> (Outputs, Vec<Written>) {
        let options = options();
        let written: Vec<Written> = formats.iter().map(|_| Written::default()).collect();
        let named = formats.iter().zip(&written).map(|(format, to)| {
            let report = Report::Samples(Format::find(format).unwrap());
            Named::new(report, &options, Box::new(to.clone()), PathBuf::from(format))
        });
        let kept = PerCpuCount::new(1, 1);
        (Outputs::of(named.collect(), options.clone(), 1 << 20, kept), written)
    }

    #[test]
    fn outputs_share_one_profile() {
        let delivered = PerCpuCount::new(1, 1);
        let (mut outputs, written) = outputs(&["folded", "svg", "pprof", "perf"]);
        outputs.add(&samples()).unwrap();
        outputs.flush(&delivered).unwrap();
        let profiles = outputs.account().into_iter().filter(|it| it.name == "aggregated stacks");
        assert_eq!(profiles.map(|it| it.entries).collect::<Vec<_>>(), [3]);
        outputs.finish(&ledger(), &delivered).unwrap();
        assert_eq!(delivered.sum(), 4);
        assert_eq!(*written[0].0.lock().unwrap(), b"[unknown] 4\n");
        assert!(written.iter().all(|it| !it.0.lock().unwrap().is_empty()));
        // A stream needs none.
        let (mut streams, _) = super::tests::outputs(&["text", "json"]);
        streams.add(&samples()).unwrap();
        assert!(streams.account().iter().all(|it| it.name != "aggregated stacks"));
    }

    #[test]
    fn what_windows_have_no_room_for_counts_in_all_of_them() {
        let kept = PerCpuCount::new(1, 1);
        let to = Arc::new(Windows::start(Vec::new(), || {}).unwrap());
        let mut outputs = Outputs::of(Vec::new(), options(), 0, kept);
        outputs.needs_profile = true;
        outputs.windows = Some(Parts { to, before: None, beyond_memory: 0 });
        outputs.add(&samples()).unwrap();
        assert_eq!(outputs.beyond_memory(), 4);
        outputs.end_window(ledger(), 1);
        assert_eq!(outputs.beyond_memory(), 4);
        outputs.add(&samples()).unwrap();
        assert_eq!(outputs.beyond_memory(), 8);
    }

    #[test]
    fn what_is_kept_until_the_end_is_lost_with_it() {
        for (format, left) in [("folded", 0), ("firefox", 0), ("text", 4)] {
            let delivered = PerCpuCount::new(1, 1);
            let (mut outputs, _) = outputs(&["text", format]);
            outputs.add(&samples()).unwrap();
            outputs.flush(&delivered).unwrap();
            // The run is for the last one.
            outputs.all.iter_mut().for_each(|it| it.has_samples = false);
            let full = Output::of_profile(|_, _, to| to.write_all(b"x"), Box::new(Full) as Box<_>);
            outputs.all.push(Named {
                output: full,
                path: PathBuf::from("full"),
                has_samples: true,
            });
            outputs.finish(&ledger(), &delivered).unwrap_err();
            assert_eq!(delivered.sum(), left, "{format}");
        }
    }

    #[test]
    fn what_can_not_be_written_costs_no_other_output() {
        let delivered = PerCpuCount::new(1, 1);
        let (mut outputs, written) = outputs(&["folded", "json"]);
        for (path, of_profile) in [("at once", false), ("at the end", true)] {
            let output = if of_profile {
                Output::of_profile(|_, _, to| to.write_all(b"x"), Box::new(Full) as Box<_>)
            } else {
                let json = Format::find("json").unwrap();
                Output::new(json.export, options(), Box::new(Full) as Box<_>)
            };
            outputs.all.insert(0, Named { output, path: path.into(), has_samples: true });
        }
        outputs.add(&samples()).unwrap();
        outputs.flush(&delivered).unwrap();
        assert_eq!(outputs.unwritten(), [Path::new("at once")]);
        outputs.finish(&ledger(), &delivered).unwrap();
        assert_eq!(outputs.unwritten(), ["at once", "at the end"].map(Path::new));
        assert_eq!(delivered.sum(), 4);
        assert_eq!(*written[0].0.lock().unwrap(), b"[unknown] 4\n");
    }

    /// What nobody reads any more from this call on.
    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Closed {
        Never,
        AtWrite,
        AtFlush,
    }

    impl io::Write for Closed {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let is_closed = *self == Self::AtWrite;
            if is_closed { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(bytes.len()) }
        }

        fn flush(&mut self) -> io::Result<()> {
            let is_closed = *self == Self::AtFlush;
            if is_closed { Err(io::ErrorKind::BrokenPipe.into()) } else { Ok(()) }
        }
    }

    /// How a run ends whose outputs are these, and how many of them are left; the run is for the first ones.
    fn run(outputs: &[(&str, Closed)], samples_for: usize) -> (Result<()>, usize) {
        let options = options();
        let named = outputs.iter().map(|(format, to)| {
            let report = Report::Samples(Format::find(format).unwrap());
            Named::new(report, &options, Box::new(*to), PathBuf::from(format))
        });
        let delivered = PerCpuCount::new(1, 1);
        let mut outputs =
            Outputs::of(named.collect(), options.clone(), 1 << 20, delivered.zeroed());
        outputs.all.iter_mut().skip(samples_for).for_each(|it| it.has_samples = false);
        let result = outputs
            .add(&samples())
            .and_then(|()| outputs.flush(&delivered))
            .and_then(|()| outputs.finish(&ledger(), &delivered));
        (result, outputs.all.len())
    }

    /// Closed when samples come, when they are flushed, and at the end.
    const CLOSED: [(&str, Closed); 3] =
        [("json", Closed::AtWrite), ("json", Closed::AtFlush), ("folded", Closed::AtWrite)];

    #[test]
    fn an_output_that_nobody_reads_ends_no_other() {
        for closed in CLOSED {
            let (result, left) = run(&[closed, ("folded", Closed::Never)], 2);
            assert!(result.is_ok() && left == 1, "{closed:?}");
        }
    }

    #[test]
    fn a_run_ends_when_nobody_reads_what_it_is_for() {
        for closed in CLOSED {
            // What comes last shows the hottest functions only.
            for outputs in [&[closed][..], &[closed, ("folded", Closed::Never)], &[closed, closed]]
            {
                let (result, _) = run(outputs, 1);
                assert!(matches!(result, Err(Error::BrokenPipe)), "{outputs:?}");
            }
        }
    }
}
