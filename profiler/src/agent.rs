//! A run from start to end: the one file that knows every stage.

mod end;
mod gathering;
mod reader;
mod report;
mod resident;
mod rounds;
mod setup;
mod sources;

use std::{
    future::pending,
    pin::pin,
    sync::{Arc, atomic::AtomicUsize},
    time::{Duration, Instant},
};

use aya_log::EbpfLogger;
use profiler_profile::ledger::{KernelSide, Ledger, PerCpuCount, watch::Watch};
use tokio::{
    sync::oneshot,
    time::{MissedTickBehavior, interval, sleep, sleep_until, timeout},
};

use self::{
    end::{last_samples, worker_died},
    gathering::Gathering,
    resident::ResidentMemory,
    rounds::Rounds,
    setup::{filter_system_calls, settle_limits, start_loader},
    sources::Sources,
};
use crate::{
    bpf::{counters::CounterMap, load::Program, runs::Runs},
    config::Config,
    error::{Error, Result},
    hardening::capabilities::{self, USER_PROBES},
    kernel,
    launch::Launch,
    monitoring::{self, Monitor, notify::Notifier},
    output::{Blocked, Sink},
    parser::Bars,
    perf::{
        deadline::Deadline,
        sideband::{self, Sideband},
        wakeup::Wakeup,
    },
    process::{
        self, executing, family::Family, interpreters::Interpreters, manager::Manager,
        table::Event, tracker::Tracker, watched::Watched,
    },
    queue::{self, Sender},
    realtime::{Priority, Role},
    ring::SampleRing,
    serve,
    shutdown::{self, Reports, Requests, Signals},
    stderr,
    top::{self, Screen},
    unwind::loader::Loader,
    windows::Schedule,
    worker::{Ended, Work, Worker, told::Told},
};

/// How often the ring is read even when the program sees no need to wake us. A sample is printed later
/// than that by what it waits for files, at most `process::tracker::DEADLINE`, and by what it takes to name and
/// write it.
const READ_INTERVAL: Duration = Duration::from_millis(50);
/// How often we look which CPUs have come and gone.
const HOTPLUG_INTERVAL: Duration = Duration::from_millis(250);
/// For how long the start waits until all that runs has been looked at, and how often it asks.
const FIRST_LOOK: Duration = Duration::from_secs(2);
const FIRST_LOOK_STEP: Duration = Duration::from_millis(10);
/// How often it is looked whether samples are lost.
const WATCH_INTERVAL: Duration = Duration::from_secs(1);

/// Who follows a run while it goes on.
#[derive(Default)]
pub struct Audience {
    /// Has the terminal.
    pub screen: Option<top::Prepared>,
    /// Browsers.
    pub page: Option<serve::Prepared>,
    /// Programs that watch over it.
    pub port: Option<monitoring::Prepared>,
    /// systemd.
    pub notifier: Option<Notifier>,
}

/// Samples until a signal comes, the time asked for has passed, or the output fails. Where sampling
/// has begun the ledger comes in every case, and beside it what ended the run before its time.
///
/// A command that was [launched](Launch) is executed when the events are enabled. A [screen](top) has the terminal from
/// then on until the run ends, which the user may tell it to. A [page](serve) is served as long.
pub async fn run(
    config: &Config,
    Requests { mut signals, mut reports }: Requests,
    mut sinks: Vec<Sink>,
    launch: Option<&mut Launch>,
    Audience { screen, page, port, notifier }: Audience,
) -> Result<(Ledger, Result<()>)> {
    settle_limits(config)?;
    let watched = Watched::open(&config.process.pids, &config.process.tids)?;
    let mut sources =
        capabilities::having(config.set_aside & USER_PROBES, || Sources::open(&config.perf))?;
    capabilities::lay_down(USER_PROBES);
    // After the others, whose rings must have their page of what the kernel allows to lock.
    let sideband = Sideband::open(&kernel::cpus("online")?, sideband::RING_BYTES)?;
    let (bars, interpreters) = (Arc::<Bars>::default(), Arc::<Interpreters>::default());
    let mut worker = Worker::start(&config.worker, Arc::clone(&bars), Arc::clone(&interpreters))?;
    let Program { slots, samples, counters, own, unwind, kernel_names, log, ebpf } =
        Program::load(&config.program, &sources.settings())?;
    bars.exclude_from(own);
    let loader = start_loader(config, unwind, &bars, interpreters)?;
    tell_notices([&config.notices, &sources.notices(), &sideband.notices]);
    let runs = slots.iter().map(|it| it.runs.try_clone()).collect::<Result<_>>()?;
    sources.attach(slots, config.perf.dither)?;
    // All is loaded, and nothing of others has been read.
    filter_system_calls(page.is_some() || port.is_some());

    // From here on an error gives the terminal back.
    let mut screen = screen.map(|it| it.start(sources.describe())).transpose()?;
    let page = page.map(|it| it.start(sources.describe())).transpose()?;

    sinks.iter_mut().try_for_each(Sink::begin)?;
    let blocked: Vec<Blocked> = sinks.iter().map(Sink::blocked).collect();

    let (delivered, behind) = (sources.count_by_cpu()?, sources.count_by_cpu()?);
    let stacks = Arc::<AtomicUsize>::default();
    let (sender, receiver) = queue::channel(Arc::clone(&behind), config.queue_bytes);
    let told = port.as_ref().map(|_| Arc::default());
    let monitor = start_port(port, told.clone(), config, &sources, &sender)?;
    let tracker = Tracker::new(config.process.metadata);
    let processes = observed(config.process.limit, loader.as_ref());
    worker.begin(Work {
        sources: sources.describe(),
        sinks,
        kernel_names,
        processes: processes.clone(),
        tracker: tracker.clone(),
        receiver,
        delivered: Arc::clone(&delivered),
        behind: Arc::clone(&behind),
        stacks: Arc::clone(&stacks),
        told,
    });

    let strangers = sources.count_by_cpu()?;
    let ring = SampleRing::register(samples)
        .map_err(|error| Error::system("cannot wait for the ring buffer with epoll", error))?;
    let sideband_filled = sideband.wakeup()?;
    let mut sampling = Sampling {
        config,
        sources,
        watched,
        family: family_of(&config.process),
        strangers,
        ring,
        sideband,
        sideband_filled,
        rounds: Rounds::new(config.queue_bytes / 2),
        tracker,
        processes,
        loader,
        happened: Vec::new(),
        last_read_ns: kernel::monotonic_ns(),
        dropped_records: 0,
        looked_for: (0, Instant::now()),
        counters,
        runs,
        log,
        sender,
        delivered: Arc::clone(&delivered),
        behind: Arc::clone(&behind),
        stacks,
        bars: Arc::clone(&bars),
        memory: ResidentMemory::open(),
        blocked: blocked.clone(),
        launch,
        monitor,
        notifier,
        priority: Priority::enter(Role::Reader),
        deadline: None,
    };
    // The sideband is on, so whatever is not there yet will be told.
    sampling.rounds.expect(sampling.tracker.find_all());
    let (started, early_end) =
        sampling.run(&mut signals, &mut reports, &mut worker, &mut screen).await?;
    let (kernel, sender, failed) = sampling.end(started);
    stderr::clear_status();
    drop((screen, page));
    drop(ebpf);

    let kernel = Arc::new(kernel);
    let result = match early_end {
        Some(result) => result,
        None => {
            sender.finish(Arc::clone(&kernel));
            last_samples(&mut worker.ended, &mut signals, blocked).await
        }
    };
    Ok(match result {
        Ok(ledger) => (ledger, failed.map_or(Ok(()), Err)),
        Err(error) => {
            let ledger = Ledger::settle(&kernel, &delivered, &behind);
            (Ledger { parsing: bars.account(), ..ledger }, Err(error))
        }
    })
}

/// Tells what the user should know before the run starts.
fn tell_notices(of_stages: [&[String]; 3]) {
    of_stages.into_iter().flatten().for_each(|it| stderr::notice(it));
}

/// The process manager with all who observe it.
fn observed(limit: usize, loader: Option<&Arc<Loader>>) -> Manager {
    let processes = Manager::new(limit);
    if let Some(loader) = loader {
        processes.observe(loader);
    }
    processes
}

/// Answers on the HTTP port from here on, if there is one.
fn start_port(
    port: Option<monitoring::Prepared>,
    told: Option<Arc<Told>>,
    config: &Config,
    sources: &Sources,
    sender: &Sender,
) -> Result<Option<Monitor>> {
    let parted = config.worker.output.windows.as_ref();
    let run = |told| monitoring::Run {
        sources: sources.describe(),
        captures: parted.and_then(|it| it.captures.clone()),
        windows: parted.map(|it| Arc::clone(&it.to)),
        depth: sender.depth(),
        told,
    };
    port.zip(told).map(|(port, told)| port.start(run(told))).transpose()
}

/// Whose samples are kept, with `--children`.
fn family_of(config: &process::config::Config) -> Option<Family> {
    config.children.then(|| Family::new(&config.pids, config.limit))
}

/// What is at work while the events are enabled.
struct Sampling<'a> {
    config: &'a Config,
    sources: Sources,
    watched: Watched,
    /// Whose samples are kept, with `--children`.
    family: Option<Family>,
    /// Samples of others, which were dropped.
    strangers: Arc<PerCpuCount>,
    ring: SampleRing,
    sideband: Sideband,
    sideband_filled: Wakeup,
    tracker: Tracker,
    processes: Manager,
    /// Who puts what the walk of user stacks needs into the kernel.
    loader: Option<Arc<Loader>>,
    /// What was read and waits for its files.
    rounds: Rounds,
    /// What has happened after the samples were read, and is for the next round.
    happened: Vec<Event>,
    /// When the samples were read: those of the next read are from after.
    last_read_ns: u64,
    /// How much was dropped or lost when all processes were last looked for, and when that was.
    looked_for: (u64, Instant),
    /// Records of the kernel's code, and of what a screen shows, for which the naming thread had no room.
    dropped_records: u64,
    counters: CounterMap,
    /// What the kernel counts of the programs.
    runs: Vec<Runs>,
    log: Option<EbpfLogger<&'static dyn log::Log>>,
    sender: Sender,
    /// Samples that were written, and those for which the queue had no room.
    delivered: Arc<PerCpuCount>,
    behind: Arc<PerCpuCount>,
    /// How many distinct stacks the profile has.
    stacks: Arc<AtomicUsize>,
    /// Who knows the parser processes.
    bars: Arc<Bars>,
    memory: ResidentMemory,
    blocked: Vec<Blocked>,
    /// The command that is sampled, if it was started for that.
    launch: Option<&'a mut Launch>,
    /// Who is told how the run is.
    monitor: Option<Monitor>,
    notifier: Option<Notifier>,
    /// Of the thread that reads.
    priority: Priority,
    /// Who disables the events in time, if there is a time.
    deadline: Option<Deadline>,
}

impl Sampling<'_> {
    /// Samples, as soon as all is ready; when it has begun, and the thread's result if that has ended it.
    async fn run(
        &mut self,
        signals: &mut Signals,
        reports: &mut Reports,
        worker: &mut Worker,
        screen: &mut Option<Screen>,
    ) -> Result<(Instant, Option<Ended>)> {
        let cancelled = tokio::select! {
            biased;
            signal = signals.next() => Some(signal),
            result = top::ended(screen) => match result {
                Ok(()) => Some(libc::SIGINT),
                Err(error) => return Ok((Instant::now(), Some(Err(error)))),
            },
            // If the thread has ended, `ended` tells.
            _ = async { tokio::join!(&mut worker.ready, self.look_around()) } => None,
        };
        let started = Instant::now();
        if let Some(signal) = cancelled {
            if let Some(launch) = &mut self.launch {
                launch.cancel(signal);
            }
            return Ok((started, None));
        }
        if let Some(duration) = self.config.duration {
            self.deadline =
                Some(Deadline::start(duration, self.sources.descriptors(), self.sources.gates())?);
        }
        self.sources.enable()?;
        if let Some(live) = &self.config.worker.output.live {
            live.begin_at(kernel::monotonic_ns());
        }
        if let Err(error) = self.launch.as_mut().map_or(Ok(()), |it| it.execute()) {
            return Ok((started, Some(Err(error))));
        }
        self.has_begun();
        let ended = self.read_until_end(started, signals, reports, &mut worker.ended, screen).await;
        Ok((started, ended))
    }

    /// Waits until the tracker has told what runs, and that is in the kernel, but not for ever.
    async fn look_around(&mut self) {
        let start = Instant::now();
        if let Some(family) = &mut self.family {
            family.look(kernel::monotonic_ns());
        }
        while self.rounds.collect() > 0 && start.elapsed() < FIRST_LOOK {
            sleep(FIRST_LOOK_STEP).await;
        }
        // Before all records, which may be of children of what was found.
        let found = self.rounds.take_told();
        self.pass_on(found, Vec::new(), self.last_read_ns);
        if let Some(loader) = &self.loader {
            let left = FIRST_LOOK.saturating_sub(start.elapsed());
            // Else the first samples are walked by the agent, from copies of their stacks.
            let ready = async {
                loader.written().await;
                loader.make_ready(self.executing()).await;
            };
            let _ = timeout(left, ready).await;
        }
    }

    /// The processes that samples will show first.
    fn executing(&self) -> Vec<u32> {
        let mut tgids = executing::now();
        let asked_for = &self.config.process.pids;
        let now_ns = kernel::monotonic_ns();
        tgids.retain(|tgid| match &self.family {
            Some(family) => family.has(*tgid, now_ns),
            None => asked_for.is_empty() || asked_for.contains(tgid),
        });
        tgids
    }

    /// Reads samples until the run is to end; gives the thread's result if that is why.
    async fn read_until_end(
        &mut self,
        started: Instant,
        signals: &mut Signals,
        reports: &mut Reports,
        ended: &mut oneshot::Receiver<Ended>,
        screen: &mut Option<Screen>,
    ) -> Option<Ended> {
        let mut time_over = pin!(shutdown::after(self.config.duration));
        let mut gathering = Gathering::new();
        let windows = self.config.worker.output.windows.as_ref();
        let mut windows = windows.map(|it| Schedule::new(it.length, started));
        let mut tick = interval(READ_INTERVAL);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut hotplug = interval(HOTPLUG_INTERVAL);
        hotplug.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut watch = Watch::new(started);
        let mut watching = interval(WATCH_INTERVAL);
        watching.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            self.went_round();
            tokio::select! {
                biased;
                signal = signals.next() => {
                    let launch = self.launch.as_deref_mut();
                    // A screen goes on when its command has ended, so a signal is for the run.
                    if !launch.is_some_and(|it| it.signal(signal)) || screen.is_some() {
                        return None;
                    }
                }
                () = &mut time_over => return None,
                result = &mut *ended => return Some(result.unwrap_or(Err(worker_died()))),
                result = top::ended(screen) => return result.err().map(Err),
                () = reports.next() => match self.report(started.elapsed()) {
                    Ok(table) => stderr::write(&table),
                    Err(error) => stderr::say(&error.to_string()),
                },
                _ = watching.tick() => {
                    self.notices(&mut watch).iter().for_each(|it| stderr::say(it));
                    if self.config.shows_status && stderr::has_foreground() {
                        stderr::status(&self.status(started));
                    }
                    if let Some(live) = &self.config.worker.output.live {
                        live.tell(self.vitals());
                    }
                }
                _ = hotplug.tick() => {
                    if self.have_all_ended() {
                        match &self.config.worker.output.live {
                            // What was sampled can still be looked at.
                            Some(live) if screen.is_some() => live.be_over(),
                            _ => return None,
                        }
                    }
                    let changes = self.sideband.look();
                    let notices = self.sources.follow_cpus(&changes.revived);
                    for notice in &notices {
                        stderr::notice(notice);
                    }
                    if let Some(deadline) = &self.deadline {
                        deadline.follow(self.sources.descriptors());
                    }
                    for (cpu, why) in &changes.refused {
                        stderr::notice(&format!("names may be missing: CPU {cpu}: {why}"));
                    }
                    // Nothing was told of what happened there before.
                    if !(changes.came.is_empty() && changes.revived.is_empty()) {
                        self.rounds.expect(self.tracker.find_all());
                    }
                }
                () = at(windows.as_ref().map(Schedule::next)) => {
                    if let Err(error) = self.end_window(started.elapsed()) {
                        stderr::say(&error.to_string());
                    }
                    if let Some(schedule) = &mut windows {
                        schedule.begin(Instant::now());
                    }
                    continue;
                }
                question = monitoring::asked(&mut self.monitor) => {
                    self.tell(question, started.elapsed());
                    continue;
                }
                // Should epoll fail, the timer still reads.
                Ok(()) = self.ring.woken() => {}
                // Nothing is read for these.
                Ok(()) = self.sideband_filled.woken() => {
                    gathering.begin();
                    continue;
                }
                () = self.tracker.answered() => {
                    self.pass_on_rounds();
                    continue;
                }
                () = at(self.rounds.look_at(Instant::now())) => {
                    self.pass_on_rounds();
                    continue;
                }
                () = at(gathering.until()) => {
                    gathering.end();
                    self.sideband_filled.arm();
                }
                _ = tick.tick() => {}
            }
            self.read();
        }
    }

    /// Tells those who watch over the run that it has begun.
    fn has_begun(&mut self) {
        if let Some(monitor) = &self.monitor {
            monitor.is_sampling();
        }
        if let Some(notifier) = &mut self.notifier {
            notifier.ready();
        }
    }

    /// Tells them that the reader has gone round.
    fn went_round(&mut self) {
        if let Some(monitor) = &self.monitor {
            monitor.went_round();
        }
        if let Some(notifier) = &mut self.notifier {
            notifier.went_round(Instant::now());
        }
    }

    /// Whether no process is left of those that were asked for, which is said.
    fn have_all_ended(&mut self) -> bool {
        if let Some(launch) = &mut self.launch {
            // Whatever it leaves behind.
            return launch.has_ended();
        }
        let ended = self.watched.take_ended();
        let is_news = !ended.is_empty();
        for id in &ended {
            stderr::notice(&format!("{id} has ended"));
        }
        let process::config::Config { pids, tids, .. } = &self.config.process;
        if !self.watched.is_empty() || pids.is_empty() && tids.is_empty() {
            return false;
        }
        if self.family.is_none() {
            return is_news;
        }
        // What they forked before they ended is told by now.
        self.read();
        let alive = self.family.as_ref().map_or(0, Family::children_alive);
        if is_news && alive > 0 {
            stderr::notice(&format!("{alive} of its children are left, and sampled"));
        }
        alive == 0
    }

    /// Ends sampling: no event fires any more, the ring is empty, and all is counted. A failure on the
    /// way is told beside what could be counted.
    fn end(mut self, started: Instant) -> (KernelSide, Sender, Option<Error>) {
        if let Some(notifier) = &mut self.notifier {
            notifier.stopping();
        }
        let passed = self.deadline.as_ref().and_then(Deadline::passed);
        let duration = passed.unwrap_or_else(Instant::now).duration_since(started);
        let failed = self.sources.disable().err();
        self.read();
        while self.rounds.wait() {
            self.pass_on_rounds();
        }
        let (sources, unread) = self.sources.account(&self.counters);
        let kernel = self.kernel_side(duration, sources);
        (kernel, self.sender, failed.or(unread))
    }
}

/// Waits until this time, or for ever.
async fn at(time: Option<Instant>) {
    match time {
        Some(time) => sleep_until(time.into()).await,
        None => pending().await,
    }
}
