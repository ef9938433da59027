//! `stat`: how often events happen.

mod output;
mod printer;

use std::{fmt::Write as _, os::fd::OwnedFd, process::ExitCode, time::Duration};

use profiler_events::{Attr, Machine};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tokio::runtime::Runtime;

use self::{
    output::{Format, Row, Summary},
    printer::Printer,
};
use crate::{
    cli::StatArgs,
    config::process_names,
    error::{Error, Result},
    filter::CgroupName,
    invoker::Invoker,
    kernel,
    launch::Launch,
    limits,
    perf::{cgroups, event::Event},
    process::watched::Watched,
    procfs::called,
    shutdown::Signals,
    stat::{
        count::Total,
        counters::{Counters, Reading},
        cpu_time::{self, CpuTime},
        hotplug::Followed,
        plan::{Plan, Target},
        ratios::ratio,
        repeat::Spread,
        run::{self, Block, End, Times, Watches},
    },
    stderr,
    units::ProcessSpec,
};

/// Counts until the end, prints, and gives the exit code of the command, if there is one.
pub(super) fn run(args: StatArgs) -> Result<ExitCode> {
    if !args.command.is_empty() && !kernel::has_proc() {
        let why = "a command can't be started without /proc: mount -t proc proc /proc";
        return Err(Error::Usage(why.into()));
    }
    let target = target(&args)?;
    let plan = Plan::resolve(&args.events, args.filter.as_deref(), &target, &Machine::here())?;
    let format = Format::of(&args)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::system("cannot set up epoll", error))?;
    let signals = {
        let _context = runtime.enter();
        Signals::listen()?
    };
    let (invoker, files) = (Invoker::find(), getrlimit(Resource::Nofile));
    // Before the command runs, which may take long.
    let mut printer = Printer::open(&args, invoker.as_ref())?;
    let job = Job { args, plan, target, format, invoker, files };
    let (code, left) = job.count(&runtime, signals, &mut printer)?;
    printer.finish()?;
    let code = left.map_or(Ok(code), wait)?;
    Ok(ExitCode::from(code))
}

/// The command's exit code. It may go on, and from here on signals end us, too.
fn wait(launch: Launch) -> Result<u8> {
    let heeded = Signals::end_again();
    let code = launch.wait();
    heeded.again();
    code
}

/// What is to be done.
struct Job {
    args: StatArgs,
    plan: Plan,
    target: Target,
    format: Format,
    invoker: Option<Invoker>,
    /// The limit of open files that we were started with, which is the command's.
    files: Rlimit,
}

/// What one run of the command has come to, or the only run without one.
struct Counted {
    events: Vec<Event>,
    /// Of all events; those of the last interval if there are intervals.
    readings: Vec<Reading>,
    end: End,
    /// Of the command, if it has ended.
    cpu_time: Option<CpuTime>,
    code: u8,
    /// The command, if it goes on.
    left: Option<Launch>,
}

impl Job {
    /// Counts as often as it was asked for; the exit code, and the command if it goes on.
    fn count(
        &self,
        runtime: &Runtime,
        mut signals: Signals,
        printer: &mut Printer,
    ) -> Result<(u8, Option<Launch>)> {
        let mut runs: Vec<Counted> = Vec::new();
        let (mut code, mut left) = (0, None);
        for _ in 0..self.args.repeat.unwrap_or(1) {
            let mut counted = self.count_once(runtime, &mut signals, printer, runs.is_empty())?;
            left = counted.left.take();
            let was_signaled = counted.end.was_signaled;
            code = if code == 0 { counted.code } else { code };
            // A part of a run is no run like the others.
            if runs.is_empty() || !was_signaled {
                runs.push(counted);
            }
            if was_signaled {
                break;
            }
        }
        let Some(last) = runs.last() else { return Ok((code, left)) };
        let summary = summary(&runs);
        if self.args.interval.is_none() {
            let combined: Vec<_> = (0..last.events.len()).map(|at| combined(&runs, at)).collect();
            let rows = rows(&last.events, &combined, summary.elapsed);
            printer.write(&self.format.rows(&rows, None))?;
        }
        printer.write(&self.format.summary(&summary))?;
        Ok((code, left))
    }

    fn count_once(
        &self,
        runtime: &Runtime,
        signals: &mut Signals,
        printer: &mut Printer,
        is_first: bool,
    ) -> Result<Counted> {
        let _context = runtime.enter();
        let watched = match &self.target {
            Target::Tasks { pids, tids } => Some(Watched::open(pids, tids)?),
            _ => None,
        };
        let mut launch = self.launch()?;
        limits::open_files();
        let before = CpuTime::of_children();
        let command = launch.as_ref().map(Launch::pid);
        let mut counters = Counters::open(&self.plan, &self.target, command)?;
        if is_first && self.plan.is_named {
            counters.refusals().for_each(|why| stderr::notice(&why));
        }
        let events = counters.events();
        if is_first {
            printer.write(&self.format.head(&title(&self.args)))?;
        }
        let times = Times {
            duration: self.args.duration,
            interval: self.args.interval.map(Duration::from_millis),
        };
        let mut readings = Vec::new();
        let each = |block: Block| {
            if times.interval.is_some() {
                let all: Vec<_> = block.readings.iter().map(|it| (*it, None)).collect();
                let rows = rows(&events, &all, block.length);
                printer.write(&self.format.rows(&rows, Some(block.at)))?;
            }
            readings = block.readings;
            Ok(())
        };
        // What ours has used, which the command goes on from.
        let own = command.map(cpu_time::so_far).unwrap_or_default();
        let cpus = Followed::of(&self.target, self.args.cpus.as_ref())?;
        let watches = Watches { tasks: watched, cpus };
        let counting = run::count(&mut counters, launch.as_mut(), watches, times, signals, each);
        let end = runtime.block_on(counting)?;
        drop(counters);
        let has_ended = launch.is_some() && end.has_ended;
        // What was counted is printed before one is waited for that goes on.
        let left = if has_ended { None } else { launch.take() };
        let code = launch.map_or(Ok(0), wait)?;
        let cpu_time = if has_ended { CpuTime::of_children().since(before) } else { None };
        let cpu_time = cpu_time.map(|it| it.without(own));
        Ok(Counted { events, readings, end, cpu_time, code, left })
    }

    /// Starts what will be the command, if there is one.
    fn launch(&self) -> Result<Option<Launch>> {
        if self.args.command.is_empty() {
            return Ok(None);
        }
        // It may be the second one, and limits are raised for the first.
        let _ = setrlimit(Resource::Nofile, self.files);
        let user = self.invoker.as_ref().filter(|_| !self.args.as_root);
        Launch::prepare(&self.args.command, user).map(Some)
    }
}

/// Each event with what it says beside the others that were counted in this time.
fn rows<'a>(
    events: &'a [Event],
    readings: &[(Reading, Option<f64>)],
    elapsed: Duration,
) -> Vec<Row<'a>> {
    let count = |reading: &Reading| match reading {
        Reading::Counted(total) => Some(total.count),
        _ => None,
    };
    let counts: Vec<(&Attr, u64)> = events
        .iter()
        .zip(readings)
        .filter_map(|(event, (reading, _))| Some((event.attr(), count(reading)?)))
        .collect();
    let row = |(event, &(reading, deviation)): (&'a Event, &(Reading, Option<f64>))| {
        let ratio = count(&reading).and_then(|it| ratio(event.attr(), it, &counts, elapsed));
        Row { event, reading, ratio, deviation }
    };
    events.iter().zip(readings).map(row).collect()
}

/// The mean of what an event has come to in all runs, and the standard deviation of that mean in percent.
fn combined(runs: &[Counted], at: usize) -> (Reading, Option<f64>) {
    let readings = runs.iter().filter_map(|run| run.readings.get(at));
    let last = readings.clone().next_back().copied().unwrap_or(Reading::NotCounted);
    let (mut all, mut spread) = (Total::default(), Spread::default());
    for reading in readings {
        if let Reading::Counted(total) = reading {
            all.add(*total);
            spread.add(total.count);
        }
    }
    match spread.mean() {
        Some(count) => (Reading::Counted(Total { count, ..all }), spread.deviation_percent()),
        None => (last, None),
    }
}

fn summary(runs: &[Counted]) -> Summary {
    let ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let mean = |of: &Spread| Duration::from_nanos(of.mean().unwrap_or_default());
    let elapsed: Spread = runs.iter().map(|run| ns(run.end.elapsed)).collect();
    let times: Option<Vec<CpuTime>> = runs.iter().map(|run| run.cpu_time).collect();
    let mean_of = |times: &[CpuTime], of: fn(&CpuTime) -> Duration| {
        mean(&times.iter().map(|it| ns(of(it))).collect())
    };
    Summary {
        elapsed: mean(&elapsed),
        deviation: elapsed.deviation_percent(),
        cpu_time: times.map(|it| CpuTime {
            user: mean_of(&it, |it| it.user),
            system: mean_of(&it, |it| it.system),
        }),
        runs: u32::try_from(runs.len()).unwrap_or(u32::MAX),
    }
}

/// Whose events are counted.
fn target(args: &StatArgs) -> Result<Target> {
    if !args.pids.is_empty() || !args.tids.is_empty() {
        if !kernel::has_proc() {
            let why = "-p, -t: threads are looked for in /proc: mount -t proc proc /proc";
            return Err(Error::Usage(why.into()));
        }
        let pid = |it: &ProcessSpec| match it {
            ProcessSpec::Pid(pid) => Ok(*pid),
            ProcessSpec::Name(name) => process_names::find(name, &called::all(), false),
        };
        let pids = args.pids.iter().map(pid).collect::<Result<_>>()?;
        return Ok(Target::Tasks { pids, tids: args.tids.clone() });
    }
    if let Some(path) = &args.cgroup {
        let cpus = cpus(args)?;
        let folder = cgroup(&CgroupName::Path(path.clone()), cpus.iter().next())?;
        return Ok(Target::Cgroup { folder, cpus });
    }
    if args.command.is_empty() || args.all_cpus || args.cpus.is_some() {
        return Ok(Target::Cpus(cpus(args)?));
    }
    Ok(Target::Command)
}

/// The CPUs that were named, or those that are online.
fn cpus(args: &StatArgs) -> Result<profiler_profile::cpus::CpuList> {
    let online = kernel::cpus("online")?;
    let Some(cpus) = &args.cpus else { return Ok(online) };
    let offline = cpus.without(&online);
    if offline.is_empty() {
        return Ok(cpus.clone());
    }
    let why = format!("-C {cpus}: CPU {offline} is not online; online are {online}");
    Err(Error::Usage(why))
}

/// The folder of a cgroup, of which events can be counted, as on this CPU.
fn cgroup(name: &CgroupName, cpu: Option<u32>) -> Result<OwnedFd> {
    let found = name.find().map_err(|why| Error::Usage(format!("{name}: {why}")))?;
    let folder = found.first().ok_or_else(|| Error::Usage(format!("{name}: there is none")))?;
    let opened = std::fs::File::open(folder).map(OwnedFd::from);
    let opened = opened
        .map_err(|error| Error::system(format!("cannot open {}", folder.display()), error))?;
    cpu.map_or(Ok(()), |cpu| cgroups::check(folder, &opened, cpu))?;
    Ok(opened)
}

/// Whose counts they are, for people.
fn title(args: &StatArgs) -> String {
    let listed = |all: Vec<String>| all.join(", ");
    let pids = args.pids.iter().map(|it| match it {
        ProcessSpec::Pid(pid) => format!("process {pid}"),
        ProcessSpec::Name(name) => format!("process {name}"),
    });
    let tasks: Vec<String> =
        pids.chain(args.tids.iter().map(|tid| format!("thread {tid}"))).collect();
    let on_cpus = args.cpus.as_ref().map(|cpus| format!("CPU {cpus}"));
    let mut title = match (&args.cgroup, on_cpus) {
        _ if !tasks.is_empty() => listed(tasks),
        (Some(path), None) => format!("cgroup {}", path.display()),
        (Some(path), Some(cpus)) => format!("cgroup {} on {cpus}", path.display()),
        (None, Some(cpus)) => cpus,
        (None, None) if args.command.is_empty() || args.all_cpus => "all CPUs".into(),
        (None, None) => String::new(),
    };
    if !args.command.is_empty() {
        let words = args.command.iter().map(|it| it.to_string_lossy().into_owned());
        let command = format!("`{}`", words.collect::<Vec<_>>().join(" "));
        title = if title.is_empty() { command } else { format!("{title} during {command}") };
    }
    if let Some(runs) = args.repeat.filter(|it| *it > 1) {
        let _ = write!(title, ", means of {runs} runs");
    }
    title
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counted(count: u64) -> Counted {
        let total = Total { count, enabled_ns: 10, running_ns: 10 };
        let end =
            End { elapsed: Duration::from_nanos(count), was_signaled: false, has_ended: true };
        let readings = vec![Reading::Counted(total), Reading::NotSupported];
        Counted { events: Vec::new(), readings, end, cpu_time: None, code: 0, left: None }
    }

    #[test]
    fn several_runs_have_a_mean() {
        let runs = [counted(90), counted(100), counted(110)];
        let (reading, deviation) = combined(&runs, 0);
        let expected = Total { count: 100, enabled_ns: 30, running_ns: 30 };
        assert_eq!(reading, Reading::Counted(expected));
        assert!(deviation.is_some_and(|it| (it - 5.77).abs() < 0.01));
        assert_eq!(combined(&runs, 1), (Reading::NotSupported, None));
        let of_all = summary(&runs);
        assert_eq!((of_all.elapsed, of_all.runs), (Duration::from_nanos(100), 3));
        assert_eq!(combined(&runs[..1], 0).1, None);
    }

    #[test]
    fn the_title_says_whose_counts_they_are() {
        let args = |command: &[&str]| StatArgs {
            command: command.iter().map(Into::into).collect(),
            ..StatArgs::default()
        };
        assert_eq!(title(&args(&[])), "all CPUs");
        assert_eq!(title(&args(&["make", "-j"])), "`make -j`");
        let one = StatArgs { cpus: Some("0".parse().unwrap()), ..args(&[]) };
        assert_eq!(title(&one), "CPU 0");
        let ten = StatArgs { repeat: Some(10), ..args(&["x"]) };
        assert_eq!(title(&ten), "`x`, means of 10 runs");
        let all = StatArgs { all_cpus: true, ..args(&["x"]) };
        assert_eq!(title(&all), "all CPUs during `x`");
        let tasks = StatArgs {
            pids: vec![ProcessSpec::Pid(812), ProcessSpec::Name("nginx".into())],
            tids: vec![7],
            ..StatArgs::default()
        };
        assert_eq!(title(&tasks), "process 812, process nginx, thread 7");
    }
}
