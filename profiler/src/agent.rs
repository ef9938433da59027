//! A run from start to end: the one file that knows every stage.

use std::{
    os::fd::AsFd as _,
    pin::pin,
    sync::Arc,
    time::{Duration, Instant},
};

use aya::{
    maps::{MapData, PerCpuArray},
    programs::ProgramFd,
};
use aya_log::EbpfLogger;
use tokio::{
    sync::oneshot,
    time::{MissedTickBehavior, interval, sleep, timeout},
};

use crate::{
    bpf::{
        counters::PerCpuCounters,
        load::{CountersPod, Program},
    },
    config::Config,
    error::{Error, Result},
    kernel,
    ledger::{KernelSide, Ledger, PerCpuCount},
    output::Sink,
    perf::{
        record::{Record, Timed},
        set::EventSet,
        sideband::{self, Sideband},
        wakeup::Wakeup,
    },
    process::{
        table::Event,
        tracker::{self, Answer, Tracker},
    },
    queue::{self, Sender},
    ring::SampleRing,
    shutdown::{self, Signals},
    sigbus, stderr,
    symbolize::worker::{Ended, Work, Worker},
    unwind::loader::Loader,
};

/// How often the ring is read even when the program sees no need to wake us. A sample is printed later
/// than that by what it waits for files, at most `tracker::DEADLINE`, and by what it takes to name and
/// write it.
const READ_INTERVAL: Duration = Duration::from_millis(50);
/// For how long the sideband's records are gathered from the first on: what a program has mapped has to
/// be in the kernel soon, so that its first stacks can be walked, but each reading costs something.
const GATHERING: Duration = Duration::from_millis(1);
/// The least time between two such readings, for when many programs begin.
const GATHERING_PAUSE: Duration = Duration::from_millis(4);
/// How often we look which CPUs have come and gone.
const HOTPLUG_INTERVAL: Duration = Duration::from_millis(250);
/// After records were lost, all processes are looked for in `/proc`, at most this often.
const LOOK_INTERVAL: Duration = Duration::from_secs(2);
/// For how long the start waits until all that runs has been looked at, and how often it asks.
const FIRST_LOOK: Duration = Duration::from_secs(2);
const FIRST_LOOK_STEP: Duration = Duration::from_millis(10);
/// How much is read at once and sent on.
const BATCH_BYTES: usize = 64 << 10;

/// Samples until a signal comes, the time asked for has passed, or the output fails. Where sampling
/// has begun the ledger comes in every case, and beside it what ended the run before its time.
pub async fn run(config: &Config, mut sink: Sink) -> Result<(Ledger, Result<()>)> {
    let mut signals = Signals::listen()?;
    kernel::raise_open_files();
    kernel::fail_beyond_file_limit();
    sigbus::survive().map_err(|error| Error::system("cannot catch SIGBUS", error))?;
    // Rings count against it, too; where it can't be raised, loading says what that means.
    let _ = kernel::raise_memlock();
    let set = EventSet::open(config.event, config.rate, &config.cpus, config.cpus_named)?;
    // After the others, whose rings must have their page of what the kernel allows to lock.
    let sideband = Sideband::open(&kernel::cpus("online")?, sideband::RING_BYTES)?;
    // The kernel's symbols are read now: of what comes later the sideband tells.
    let mut worker = Worker::start(config)?;
    let Program { program, samples, counters, unwind, log, ebpf } = Program::load(config)?;
    let loader = unwind.zip(config.walk_memory);
    let loader = loader
        .map(|(maps, memory)| Loader::start(maps, config.max_processes, memory).map(Arc::new))
        .transpose()?;
    for notice in config.notices.iter().chain(&set.notices).chain(&sideband.notices) {
        stderr::say(notice);
    }
    set.attach(program.as_fd())?;

    sink.begin()?;

    let cpus = kernel::cpus("possible")?.iter().max().map_or(1, |last| last as usize + 1);
    let (delivered, behind) = (Arc::new(PerCpuCount::new(cpus)), Arc::new(PerCpuCount::new(cpus)));
    let (sender, receiver) = queue::channel(Arc::clone(&behind));
    let tracker = Tracker::new(config.metadata);
    worker.begin(Work {
        event: set.event.name,
        sink,
        tracker: tracker.clone(),
        receiver,
        delivered: Arc::clone(&delivered),
        behind: Arc::clone(&behind),
        loader: loader.as_ref().map(Arc::downgrade),
    });

    let ring = SampleRing::register(samples)
        .map_err(|error| Error::system("cannot wait for the ring buffer with epoll", error))?;
    let sideband_filled = sideband.wakeup()?;
    // The sideband is on, so whatever is not there yet will be told.
    let unanswered = vec![tracker.find_all()];
    let mut sampling = Sampling {
        config,
        set,
        program,
        ring,
        sideband,
        sideband_filled,
        tracker,
        loader,
        unanswered,
        happened: Vec::new(),
        last_read_ns: kernel::monotonic_ns(),
        untold: 0,
        looked_for: (0, Instant::now()),
        counters,
        log,
        sender,
    };
    let is_ready = tokio::select! {
        biased;
        () = signals.next() => false,
        // If the thread has ended, `ended` tells.
        _ = async { tokio::join!(&mut worker.ready, sampling.look_around()) } => true,
    };
    let started = Instant::now();
    let early_end = if is_ready {
        sampling.set.enable()?;
        sampling.read_until_end(&mut signals, &mut worker.ended).await
    } else {
        None
    };
    let (kernel, sender, failed) = sampling.end(started);
    drop(ebpf);

    let kernel = Arc::new(kernel);
    let result = match early_end {
        Some(result) => result,
        None => {
            sender.finish(Arc::clone(&kernel));
            tokio::select! {
                result = &mut worker.ended => result.unwrap_or(Err(worker_died())),
                () = signals.next() => Err(Error::Interrupted),
            }
        }
    };
    Ok(match result {
        Ok(ledger) => (ledger, failed.map_or(Ok(()), Err)),
        Err(error) => (Ledger::settle(&kernel, &delivered, &behind), Err(error)),
    })
}

fn worker_died() -> Error {
    Error::system("the symbolizing thread ended", "this is a defect of the profiler")
}

/// What is at work while the events are enabled.
struct Sampling<'a> {
    config: &'a Config,
    set: EventSet,
    program: ProgramFd,
    ring: SampleRing,
    sideband: Sideband,
    sideband_filled: Wakeup,
    tracker: Tracker,
    /// Who puts what the walk of user stacks needs into the kernel.
    loader: Option<Arc<Loader>>,
    /// What the tracker was asked and has not told yet, as when a file system does not answer.
    unanswered: Vec<Answer>,
    /// What was read and is not told yet.
    happened: Vec<Event>,
    /// When the samples were read: those of the next read are from after.
    last_read_ns: u64,
    /// How much was untold or lost when all processes were last looked for, and when that was.
    looked_for: (u64, Instant),
    /// Records that one of the threads was too far behind to be told of.
    untold: u64,
    counters: PerCpuArray<MapData, CountersPod>,
    log: Option<EbpfLogger<&'static dyn log::Log>>,
    sender: Sender,
}

impl Sampling<'_> {
    /// Waits until the tracker has told what runs, and that is in the kernel, but not for ever.
    async fn look_around(&mut self) {
        let start = Instant::now();
        while self.collect() > 0 && start.elapsed() < FIRST_LOOK {
            sleep(FIRST_LOOK_STEP).await;
        }
        // Before all records, which may be of children of what was found.
        let found = std::mem::take(&mut self.happened);
        self.pass_on(found, Vec::new(), self.last_read_ns);
        if let Some(loader) = &self.loader {
            let left = FIRST_LOOK.saturating_sub(start.elapsed());
            // Else the first samples are walked by the agent, from copies of their stacks.
            let _ = timeout(left, loader.written()).await;
        }
    }

    /// Reads samples until the run is to end; gives the thread's result if that is why.
    async fn read_until_end(
        &mut self,
        signals: &mut Signals,
        ended: &mut oneshot::Receiver<Ended>,
    ) -> Option<Ended> {
        let mut time_over = pin!(shutdown::after(self.config.duration));
        let mut gathered = Instant::now();
        let mut tick = interval(READ_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut hotplug = interval(HOTPLUG_INTERVAL);
        hotplug.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = signals.next() => return None,
                () = &mut time_over => return None,
                result = &mut *ended => return Some(result.unwrap_or(Err(worker_died()))),
                _ = hotplug.tick() => {
                    let changes = self.set.look(self.program.as_fd());
                    changes.notices().for_each(|notice| stderr::say(&notice));
                    let changes = self.sideband.look();
                    for (cpu, why) in &changes.refused {
                        stderr::say(&format!("names may be missing: CPU {cpu}: {why}"));
                    }
                    // Nothing was told of what happened there before.
                    if !(changes.came.is_empty() && changes.revived.is_empty()) {
                        self.unanswered.push(self.tracker.find_all());
                    }
                }
                // Should epoll fail, the timer still reads.
                Ok(()) = self.ring.woken() => {}
                // A program that begins maps its files one soon after another.
                Ok(()) = self.sideband_filled.woken() => {
                    let pause = GATHERING_PAUSE.saturating_sub(gathered.elapsed());
                    self.sideband_filled.gather(GATHERING.max(pause)).await;
                    gathered = Instant::now();
                    self.sideband_filled.arm();
                }
                _ = tick.tick() => {}
            }
            self.read();
        }
    }

    /// Sends on what is in the ring, once around at most: under full load it never gets empty.
    fn read(&mut self) {
        let since_ns = std::mem::replace(&mut self.last_read_ns, kernel::monotonic_ns());
        let rounds = self.config.ring_bytes as usize / BATCH_BYTES + 1;
        let mut batches = Vec::new();
        for _ in 0..rounds {
            let mut samples = self.sender.buffer();
            let more = self.ring.read_into(&mut samples, BATCH_BYTES);
            if !samples.is_empty() {
                batches.push(samples);
            }
            if !more {
                break;
            }
        }
        // Read behind the samples, so that whatever these need is there, and sent before them.
        self.read_sideband(since_ns);
        for samples in batches {
            self.sender.offer(samples);
        }
        self.set.take_throttles();
        if let Some(log) = &mut self.log {
            log.flush();
        }
    }

    /// Reads what has happened to processes, and tells it in the order of time. What happens while
    /// the rings of the CPUs are read one after another may come from one and not yet from another,
    /// so it is kept for the next time: the samples read so far are from before.
    fn read_sideband(&mut self, samples_since_ns: u64) {
        let now_ns = kernel::monotonic_ns();
        let mut records = Vec::new();
        self.sideband.read(&mut records);
        let is_code = |timed: &mut Timed| matches!(timed.record, Record::Ksymbol { .. });
        let kernel_code =
            records.extract_if(.., is_code).map(|timed| timed.record).collect::<Vec<_>>();
        // At once: this opens the files. The samples wait for them, within limits; one that is
        // opened later is known from then on.
        let (events, mut files_opened) = self.tracker.tell(records);
        self.happened.extend(events);
        if !files_opened.wait(tracker::DEADLINE, &mut self.happened) {
            self.unanswered.push(files_opened);
        }
        self.collect();
        self.happened.sort_by_key(|event| event.time_ns);
        let behind = self.happened.partition_point(|event| event.time_ns < now_ns);
        let events: Vec<Event> = self.happened.drain(..behind).collect();
        self.pass_on(events, kernel_code, samples_since_ns);
        // What was missed may be about any process.
        let (missed_before, looked) = self.looked_for;
        let (lost, malformed) = (self.sideband.lost(), self.sideband.malformed());
        let missed = lost + malformed + self.untold + self.tracker.missed();
        if missed > missed_before && looked.elapsed() >= LOOK_INTERVAL {
            self.unanswered.push(self.tracker.find_all());
            self.looked_for = (missed, Instant::now());
        }
    }

    /// Tells the threads that have to know.
    fn pass_on(&mut self, events: Vec<Event>, kernel_code: Vec<Record>, samples_since_ns: u64) {
        let (count, code) = (events.len() as u64, kernel_code.len() as u64);
        if let Some(loader) = self.loader.as_ref().filter(|_| count > 0)
            && !loader.tell(events.clone())
        {
            self.untold += count;
        }
        if count + code > 0 && !self.sender.tell(events, kernel_code, samples_since_ns) {
            self.untold += count + code;
        }
    }

    /// Takes what the tracker has told by now; how much it still owes.
    fn collect(&mut self) -> usize {
        self.unanswered.retain_mut(|it| !it.wait(Duration::ZERO, &mut self.happened));
        self.unanswered.len()
    }

    /// Ends sampling: no event fires any more, the ring is empty, and all is counted. A failure on the
    /// way is told beside what could be counted.
    fn end(mut self, started: Instant) -> (KernelSide, Sender, Option<Error>) {
        let mut failed = self.set.disable().err();
        let duration = started.elapsed();
        self.read();
        let counters = PerCpuCounters::read(&self.counters).unwrap_or_else(|error| {
            failed.get_or_insert(error);
            PerCpuCounters::default()
        });
        let (events, unread) = self.set.account();
        let (event, rate, keep_idle) = (self.set.event, self.config.rate, self.config.idle);
        let sideband_lost = self.sideband.lost() + self.untold;
        let sideband_malformed = self.sideband.malformed();
        let unwinding = self.loader.as_ref().and_then(|loader| loader.account());
        let kernel = KernelSide {
            event,
            rate,
            duration,
            keep_idle,
            events,
            counters,
            sideband_lost,
            sideband_malformed,
            unwinding,
        };
        (kernel, self.sender, failed.or(unread))
    }
}
