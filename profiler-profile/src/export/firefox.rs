//! The processed profile of the Firefox Profiler (<https://profiler.firefox.com>), gzipped: each thread on a
//! timeline. <https://github.com/firefox-devtools/profiler/blob/main/docs-developer/processed-profile-format.md>
//! describes it.
//!
//! A timeline has each sample by itself, so it takes memory for all of them, up to a limit. A sample counts as one,
//! whatever it stands for.

use std::{
    io::{self, BufWriter, IntoInnerError, Write},
    time::Duration,
};

use flate2::{Compression, GzBuilder};
use fxprof_processed_profile::{
    CategoryColor, CategoryHandle, CpuDelta, Frame as Label, FrameFlags, FrameInfo, ProcessHandle,
    Profile, ReferenceTimestamp, SamplingInterval, StackHandle, ThreadHandle, Timestamp,
};
use rustc_hash::FxHashMap;

use super::{
    Exporter, Row,
    about::About,
    folded::{name, task_name},
    format::{Export, Format, Options, Processes},
};
use crate::{
    frame::Frame,
    ledger::memory::{Cache, count},
    printable::printable,
    profile::BEYOND,
    sample::Comm,
    stack::{Stack, StackId},
};

/// The format, by name.
pub const FORMAT: Format = Format {
    name: "firefox",
    help: "Gzipped JSON, at the end, for the Firefox Profiler: threads on a timeline",
    extensions: &["json.gz", "firefox.json.gz"],
    processes: Processes::Never,
    is_binary: true,
    viewers: "profiler.firefox.com",
    has_ledger: false,
    export: Export::Timeline(|options| {
        let limits = limits(options.timeline_bytes);
        Box::new(Firefox::new(options, limits))
    }),
};

/// Samples on timelines; with more, the viewer gets slow, too.
const MAX_SAMPLES: usize = 4_000_000;
/// What is shown in the place of what there was no room for.
const BEYOND_SAMPLES: &str = "[samples beyond the timeline]";
/// What a sample takes.
const SAMPLE_BYTES: usize = 40;
/// What a stack of 30 frames takes of our table and of those of its thread, about.
const STACK_BYTES: usize = 4 << 10;

/// A profile as the Firefox Profiler has it, at the end.
struct Firefox {
    options: Options,
    profile: Profile,
    categories: Categories,
    processes: FxHashMap<u32, Process>,
    /// By source, process and thread.
    threads: FxHashMap<(usize, u32, u32), Thread>,
    /// Of a thread, by its two halves.
    stacks: FxHashMap<(ThreadHandle, StackId, StackId), Option<StackHandle>>,
    samples: usize,
    max_samples: usize,
    max_stacks: usize,
    beyond: u64,
}

struct Categories {
    user: CategoryHandle,
    kernel: CategoryHandle,
}

struct Process {
    handle: ProcessHandle,
    /// Whether its name is that of its main thread.
    has_name: bool,
}

struct Thread {
    handle: ThreadHandle,
    comm: Comm,
}

impl Firefox {
    /// Of so many samples and stacks of threads at most.
    fn new(options: Options, (max_samples, max_stacks): (usize, usize)) -> Self {
        let begun_ns = options.real_time_ahead_ns.saturating_add(options.begun_ns.into());
        let begun = Duration::from_nanos(u64::try_from(begun_ns).unwrap_or_default());
        let reference = ReferenceTimestamp::from_duration_since_unix_epoch(begun);
        let interval = SamplingInterval::from_millis(1);
        let mut profile = Profile::new(options.producer, reference, interval);
        profile.set_os_name("Linux");
        // Without this, the viewer would look for names of its own.
        profile.set_symbolicated(true);
        let categories = Categories {
            user: profile.add_category("User", CategoryColor::Yellow),
            kernel: profile.add_category("Kernel", CategoryColor::Orange),
        };
        Self {
            options,
            profile,
            categories,
            processes: FxHashMap::default(),
            threads: FxHashMap::default(),
            stacks: FxHashMap::default(),
            samples: 0,
            max_samples,
            max_stacks,
            beyond: 0,
        }
    }

    fn thread(&mut self, row: Row<'_>, time: Timestamp) -> ThreadHandle {
        let (task, slot) = (row.task, row.source.slot);
        let is_main = task.tid == task.tgid;
        let profile = &mut self.profile;
        let process = self.processes.entry(task.tgid).or_insert_with(|| Process {
            handle: profile.add_process(&printable(&task.process_name()), task.tgid, time),
            has_name: is_main,
        });
        let event = self.options.names_events.then_some(&*row.source.name);
        let thread = self.threads.entry((slot, task.tgid, task.tid)).or_insert_with(|| {
            let handle = profile.add_thread(process.handle, task.tid, time, is_main);
            profile.set_thread_name(handle, &thread_title(task.comm, event));
            Thread { handle, comm: task.comm }
        });
        let is_renamed = thread.comm != task.comm;
        if is_renamed {
            thread.comm = task.comm;
            profile.set_thread_name(thread.handle, &thread_title(task.comm, event));
        }
        if is_main && (is_renamed || !process.has_name) {
            process.has_name = true;
            profile.set_process_name(process.handle, &title(task.comm));
        }
        thread.handle
    }

    fn stack(&mut self, thread: ThreadHandle, kernel: &Stack, user: &Stack) -> Option<StackHandle> {
        let key = (thread, kernel.id(), user.id());
        if let Some(known) = self.stacks.get(&key) {
            return *known;
        }
        if self.stacks.len() >= self.max_stacks {
            let beyond = label(&mut self.profile, BEYOND, CategoryHandle::OTHER);
            return self.profile.intern_stack_frames(thread, [beyond].into_iter());
        }
        let Categories { user: of_user, kernel: of_kernel } = self.categories;
        let profile = &mut self.profile;
        let mut frames = Vec::new();
        for (half, category) in [(user, of_user), (kernel, of_kernel)] {
            let of_half = half.frames().rev();
            frames.extend(of_half.map(|(_, frame)| label(profile, &shown(frame), category)));
        }
        let stack = profile.intern_stack_frames(thread, frames.into_iter());
        self.stacks.insert(key, stack);
        stack
    }

    /// How much time lies between two samples of the first source, if it is a clock.
    fn interval(about: &About<'_>) -> Option<SamplingInterval> {
        let source = about.ledger?.sources.first().filter(|it| it.counts.is_clock())?;
        let of_frequency = |hz: u64| 1_000_000_000_u64.checked_div(hz);
        let ns = source.frequency.and_then(of_frequency).or(source.period)?;
        Some(SamplingInterval::from_nanos(ns.max(1)))
    }
}

impl Exporter for Firefox {
    fn add(&mut self, row: Row<'_>, _: &mut dyn Write) -> io::Result<()> {
        if self.samples >= self.max_samples {
            self.beyond = self.beyond.saturating_add(row.count);
            return Ok(());
        }
        self.samples += 1;
        let time_ns = row.moment.map_or(0, |it| it.time_ns);
        let since = time_ns.saturating_sub(self.options.begun_ns);
        let time = Timestamp::from_nanos_since_reference(since);
        let thread = self.thread(row, time);
        let stack = self.stack(thread, row.kernel, row.user);
        // The CPU time since the thread's last sample, of which its graph is made.
        let is_clock = row.source.counts.is_clock();
        let cpu = CpuDelta::from_nanos(if is_clock { row.value } else { 0 });
        self.profile.add_sample(thread, time, stack, cpu, weight(row.count));
        Ok(())
    }

    fn finish(&mut self, about: &About<'_>, to: &mut dyn Write) -> io::Result<()> {
        if let Some(interval) = Self::interval(about) {
            self.profile.set_interval(interval);
        }
        if self.beyond > 0 {
            let end = Timestamp::from_nanos_since_reference(about.duration_ns.unwrap_or_default());
            let process = self.profile.add_process(BEYOND_SAMPLES, 0, end);
            let thread = self.profile.add_thread(process, 0, end, true);
            let beyond = label(&mut self.profile, BEYOND_SAMPLES, CategoryHandle::OTHER);
            let stack = self.profile.intern_stack_frames(thread, [beyond].into_iter());
            self.profile.add_sample(thread, end, stack, CpuDelta::ZERO, weight(self.beyond));
        }
        // Without a time and a name, so that the same profile gives the same bytes.
        let gzip = GzBuilder::new().write(to, Compression::default());
        // JSON comes in pieces of a few bytes.
        let mut pieces = BufWriter::with_capacity(1 << 16, gzip);
        serde_json::to_writer(&mut pieces, &self.profile)?;
        pieces.into_inner().map_err(IntoInnerError::into_error)?.finish()?;
        Ok(())
    }

    fn account(&self) -> Vec<Cache> {
        let cache = |name, entries: usize, bytes: usize, limit| Cache {
            name,
            entries: count(entries),
            bytes: count(entries.saturating_mul(bytes)),
            limit_bytes: None,
            limit_entries: Some(count(limit)),
            evicted: 0,
        };
        let stacks = (self.stacks.len(), self.max_stacks);
        vec![
            cache("samples on timelines", self.samples, SAMPLE_BYTES, self.max_samples),
            cache("stacks on timelines", stacks.0, STACK_BYTES, stacks.1),
        ]
    }
}

/// How many samples and stacks so many bytes have room for: half of them is for either.
fn limits(bytes: usize) -> (usize, usize) {
    ((bytes / 2 / SAMPLE_BYTES).min(MAX_SAMPLES), bytes / 2 / STACK_BYTES)
}

/// So many samples at once.
fn weight(samples: u64) -> i32 {
    i32::try_from(samples).unwrap_or(i32::MAX)
}

fn label(profile: &mut Profile, text: &str, category: CategoryHandle) -> FrameInfo {
    let frame = Label::Label(profile.intern_string(text));
    FrameInfo { frame, category_pair: category.into(), flags: FrameFlags::empty() }
}

fn shown(frame: &Frame) -> String {
    printable(&name(frame)).into_owned()
}

/// What a thread or a process is called.
fn title(comm: Comm) -> String {
    task_name(&comm.text())
}

/// The same with the event, where there are several.
fn thread_title(comm: Comm, event: Option<&str>) -> String {
    match event {
        Some(event) => format!("{} ({})", title(comm), printable(event)),
        None => title(comm),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        export::tests::{self, ledger, options, sample},
        sample::{Sample, Task},
        source::{Counts, Source},
        store::Store,
    };
    use flate2::read::GzDecoder;
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn written(samples: &[Sample], sources: &[Source], max: (usize, usize)) -> Value {
        let options = Options { names_events: sources.len() > 1, ..options() };
        let (mut written, ledger) = (Vec::new(), ledger(sources));
        let mut firefox = Firefox::new(options.clone(), max);
        for sample in samples {
            firefox.add(sample.into(), &mut written).unwrap();
        }
        assert!(written.is_empty());
        firefox.finish(&About::of_run(&ledger, &options), &mut written).unwrap();
        serde_json::from_reader(GzDecoder::new(&written[..])).unwrap()
    }

    /// The stack of each sample of a thread, outermost first: category and name of its frames.
    fn stacks(file: &Value, thread: &Value) -> Vec<Vec<String>> {
        let index = |place: &Value| usize::try_from(place.as_u64().unwrap()).unwrap();
        let at = |table: &str, column: &str, place: &Value| &thread[table][column][index(place)];
        let stack = |stack: &Value| {
            let (mut frames, mut next) = (Vec::new(), stack);
            while !next.is_null() {
                let frame = at("stackTable", "frame", next);
                let name = at("funcTable", "name", at("frameTable", "func", frame));
                let category = index(at("frameTable", "category", frame));
                let category = file["meta"]["categories"][category]["name"].as_str().unwrap();
                let name = thread["stringArray"][index(name)].as_str().unwrap();
                frames.insert(0, format!("{category}: {name}"));
                next = at("stackTable", "prefix", next);
            }
            frames
        };
        thread["samples"]["stack"].as_array().unwrap().iter().map(stack).collect()
    }

    fn function(name: &str) -> Frame {
        Frame { symbol: Some(Arc::from(name)), ..Frame::default() }
    }

    fn comm(text: &str) -> Comm {
        let mut comm = Comm::default();
        comm.0.iter_mut().zip(text.bytes()).for_each(|(to, byte)| *to = byte);
        comm
    }

    const ENOUGH: (usize, usize) = (100, 100);

    #[test]
    fn threads_are_on_timelines() {
        let mut store = Store::default();
        let kernel = store.intern(vec![tests::location(1, &[function("read")])]);
        let user = store.intern(vec![tests::location(2, &[function("in\nner"), function("main")])]);
        let of = sample();
        let source = Source { counts: Counts::Clock, ..(*of.source).clone() };
        let of = Sample { source: Arc::new(source.clone()), value: 10_000_000, ..of };
        let at = |ms: u64, tid, name| Sample {
            time_ns: 1_000_000_000 + 1_000_000 * ms,
            task: Task { tid, comm: comm(name), ..of.task.clone() },
            ..of.clone()
        };
        let samples = [
            Sample { user: Arc::clone(&user), ..at(5, 5, "worker") },
            Sample { user: Arc::clone(&user), kernel, ..at(15, 4, "sh") },
            Sample { user, ..at(25, 4, "mysqld") },
            at(35, 5, "worker"),
        ];
        let file = written(&samples, std::slice::from_ref(&source), ENOUGH);
        let meta = &file["meta"];
        // The version that the crate's documentation has.
        assert_eq!(meta["preprocessedProfileVersion"], 55);
        assert_eq!((&meta["product"], &meta["symbolicated"]), (&json!("profiler 1"), &json!(true)));
        assert_eq!(meta["startTime"], json!(1_700_000_001_000.0));
        let interval = meta["interval"].as_f64().unwrap();
        assert!((interval - 1000.0 / 99.0).abs() < 1e-3, "{interval}");

        let [main, worker] = &file["threads"].as_array().unwrap()[..] else { panic!("{file}") };
        let who = |it: &Value| ["processName", "name", "pid", "tid"].map(|key| it[key].clone());
        assert_eq!(who(main), ["mysqld", "mysqld", "4", "4"].map(Value::from));
        assert_eq!(who(worker), ["mysqld", "worker", "4", "5"].map(Value::from));
        assert_eq!(
            stacks(&file, main),
            [
                &["User: main", "User: in\\nner", "Kernel: read"][..],
                &["User: main", "User: in\\nner"]
            ]
        );
        let empty: &[&str] = &[];
        assert_eq!(stacks(&file, worker), [&["User: main", "User: in\\nner"][..], empty]);
        // Each from the one before.
        assert_eq!(worker["samples"]["timeDeltas"], json!([5.0, 30.0]));
        assert_eq!(worker["samples"]["weightType"], "samples");
        assert_eq!(worker["samples"]["threadCPUDelta"], json!([10_000, 10_000]));
    }

    #[test]
    fn each_source_has_threads_of_its_own() {
        let one = sample();
        let source = Source { slot: 1, name: "faults".into(), ..(*one.source).clone() };
        let other = Sample { source: Arc::new(source.clone()), ..one.clone() };
        let file = written(&[one.clone(), other], &[(*one.source).clone(), source], ENOUGH);
        let threads = file["threads"].as_array().unwrap();
        let names: Vec<_> = threads.iter().map(|it| it["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["a (cycles)", "a (faults)"]);
        assert_eq!(threads[0]["pid"], threads[1]["pid"]);
    }

    #[test]
    fn what_there_is_no_room_for_is_seen() {
        let mut store = Store::default();
        let of = sample();
        let mut one = |address, name| {
            let user = store.intern(vec![tests::location(address, &[function(name)])]);
            Sample { user, ..of.clone() }
        };
        let samples = [one(1, "a"), one(2, "b"), one(1, "a"), one(3, "c"), one(1, "a")];
        let file = written(&samples, &[(*of.source).clone()], (3, 1));
        let [thread, beyond] = &file["threads"].as_array().unwrap()[..] else { panic!("{file}") };
        let stack = ["User: a", "Other: [stacks beyond --max-memory]", "User: a"];
        assert_eq!(stacks(&file, thread).concat(), stack);
        assert_eq!(beyond["processName"], "[samples beyond the timeline]");
        assert_eq!(stacks(&file, beyond).concat(), ["Other: [samples beyond the timeline]"]);
        assert_eq!(beyond["samples"]["weight"], json!([2]));
    }

    #[test]
    fn the_same_samples_give_the_same_bytes() {
        let of = sample();
        let samples: Vec<Sample> = (0..50)
            .map(|tid| Sample { task: Task { tid, ..of.task.clone() }, ..of.clone() })
            .collect();
        let [one, other] = [(); 2].map(|()| written(&samples, &[(*of.source).clone()], ENOUGH));
        assert_eq!(one.to_string(), other.to_string());
        assert_eq!(one["threads"].as_array().unwrap().len(), 50);
    }
}
