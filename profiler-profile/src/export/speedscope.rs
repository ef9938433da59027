//! The file of speedscope: <https://www.speedscope.app/file-format-schema.json>.
//!
//! Each thread is a profile of its own, the one with the most samples first; where there are very many, each source
//! is one. A profile has equal stacks once, in no order of time, so its views by weight are those to look at.

use std::{
    collections::{BTreeMap, BTreeSet},
    io::{self, BufWriter, Write},
};

use profiler_common::sample::COMM_LEN;
use rustc_hash::FxHashMap;
use serde::Serialize;

use super::{
    about::About,
    folded::{KERNEL, UNKNOWN, name, task_name},
    format::{Export, Format, Processes},
    json_text,
    numbered::{Numbered, Places},
};
use crate::{
    frame::Frame,
    printable::printable,
    profile::{Entry, Profile},
    sample::{Comm, Task},
};

/// The format, by name.
pub const FORMAT: Format = Format {
    name: "speedscope",
    help: "JSON, at the end, for speedscope (https://www.speedscope.app)",
    extensions: &["speedscope.json"],
    processes: Processes::Never,
    is_binary: false,
    viewers: "speedscope.app",
    has_ledger: false,
    export: Export::Whole(write),
};

/// More profiles would make a list that nobody goes through.
const MAX_PROFILES: usize = 200;

fn write(profile: &Profile, about: &About<'_>, to: &mut dyn Write) -> io::Result<()> {
    // JSON comes in pieces of a few bytes.
    let mut pieces = BufWriter::with_capacity(1 << 16, to);
    json_text::write(&mut pieces, &file(profile, about))?;
    pieces.write_all(b"\n")?;
    pieces.flush()
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(rename = "$schema")]
    schema: &'static str,
    exporter: &'static str,
    name: String,
    active_profile_index: u32,
    shared: Shared,
    profiles: Vec<Sampled>,
}

#[derive(Serialize)]
struct Shared {
    frames: Vec<FrameName>,
}

/// A function. The line is left out: it is that of the sampled address, and speedscope would take each line of a
/// function for another one.
#[derive(PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
struct FrameName {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

#[derive(Serialize)]
#[serde(tag = "type", rename = "sampled", rename_all = "camelCase")]
struct Sampled {
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    /// Outermost first.
    samples: Vec<Vec<u32>>,
    weights: Vec<u64>,
}

/// What is one profile: a source, and there a thread under one name.
type Key = (usize, Option<(u32, u32, Comm)>);

/// The stacks of a profile, with what they stand for together.
type Stacks = FxHashMap<Vec<u32>, u64>;

fn file(profile: &Profile, about: &About<'_>) -> File {
    let thread = |task: &Task| (task.tgid, task.tid, task.comm);
    let key = |entry: &Entry| (entry.source.slot, Some(thread(&entry.task)));
    let threads: BTreeSet<Key> = profile.entries().map(key).collect();
    let by_thread = threads.len() <= MAX_PROFILES;
    let mut frames = Frames::default();
    let mut stacks: BTreeMap<Key, Stacks> = BTreeMap::new();
    let mut add = |key: Key, stack: Vec<u32>, value: u64| {
        let sum = stacks.entry(key).or_default().entry(stack).or_default();
        *sum = sum.saturating_add(value);
    };
    for entry in profile.entries() {
        let (slot, thread) = key(entry);
        let stack = frames.stack(entry, !by_thread);
        add((slot, thread.filter(|_| by_thread)), stack, entry.value);
    }
    // A file without a profile can't be opened.
    for slot in 0..about.sources.len() {
        if stacks.range((slot, None)..(slot.saturating_add(1), None)).next().is_none() {
            stacks.insert((slot, None), Stacks::default());
        }
    }
    let (frames, places) = frames.numbers.in_order(|frame, _| frame);
    let sampled = |(key, stacks)| (key, sampled(key, stacks, &places, about));
    let mut profiles: Vec<(Key, Sampled)> = stacks.into_iter().map(sampled).collect();
    profiles
        .sort_by(|(a, of_a), (b, of_b)| (a.0, of_b.end_value, a).cmp(&(b.0, of_a.end_value, b)));
    File {
        schema: "https://www.speedscope.app/file-format-schema.json",
        exporter: about.producer,
        name: printable(&about.title).into_owned(),
        active_profile_index: 0,
        shared: Shared { frames },
        profiles: profiles.into_iter().map(|(_, profile)| profile).collect(),
    }
}

fn sampled((slot, thread): Key, stacks: Stacks, places: &Places, about: &About<'_>) -> Sampled {
    let source = about.sources.get(slot);
    let event = source.map_or(UNKNOWN.into(), |it| printable(&it.event));
    let thread = thread.map(|(tgid, tid, comm)| match (tgid, tid, comm) {
        (0, 0, Comm(name)) if name == [0; COMM_LEN] => UNKNOWN.into(),
        _ => format!("{} (pid {tgid}, tid {tid})", title(comm)),
    });
    let name = match thread {
        Some(name) if about.sources.len() > 1 => format!("{event}: {name}"),
        Some(name) => name,
        None => event.into_owned(),
    };
    let mut stacks: Vec<(Vec<u32>, u64)> = stacks.into_iter().collect();
    for number in stacks.iter_mut().flat_map(|(stack, _)| stack) {
        *number = places.of(*number);
    }
    stacks.sort_unstable();
    let (samples, weights): (Vec<Vec<u32>>, Vec<u64>) = stacks.into_iter().unzip();
    let end_value = weights.iter().fold(0_u64, |sum, weight| sum.saturating_add(*weight));
    let unit = match source.map(|it| &*it.values.unit) {
        Some("nanoseconds") => "nanoseconds",
        Some("bytes") => "bytes",
        _ => "none",
    };
    Sampled { name, unit, start_value: 0, end_value, samples, weights }
}

/// What the thread is called.
fn title(comm: Comm) -> String {
    task_name(&comm.text())
}

/// The frames, by number while stacks come.
#[derive(Default)]
struct Frames {
    numbers: Numbered<FrameName>,
    /// Those of the frames that have come before, by where these are: the profile holds them.
    known: FxHashMap<(*const Frame, bool), u32>,
}

impl Frames {
    /// The stack, outermost first, on the name of its thread if that is wanted.
    fn stack(&mut self, entry: &Entry, with_comm: bool) -> Vec<u32> {
        let mut stack = Vec::new();
        if with_comm {
            let frame = FrameName { name: title(entry.task.comm), file: None };
            stack.push(self.numbers.number(frame));
        }
        for (half, is_kernel) in [(&entry.user, false), (&entry.kernel, true)] {
            for (_, frame) in half.frames().rev() {
                let numbers = &mut self.numbers;
                let known = self.known.entry((std::ptr::from_ref(frame), is_kernel));
                stack.push(
                    *known.or_insert_with(|| numbers.number(FrameName::of(frame, is_kernel))),
                );
            }
        }
        stack
    }
}

impl FrameName {
    /// The source file if it is known, or else the one that the code is in.
    fn of(frame: &Frame, is_kernel: bool) -> Self {
        let source = frame.source.as_ref().map(|(file, _)| &**file);
        let module = frame.module.as_deref().filter(|module| !module.is_empty());
        let file = source.or(module).or(is_kernel.then_some(KERNEL));
        Self {
            name: printable(&name(frame)).into_owned(),
            file: file.map(|file| printable(file).into_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample::Sample;
    use crate::{
        export::tests::{self, sample},
        source::{Counts, Source},
        store::Store,
    };
    use serde_json::{Value, json};
    use std::sync::Arc;

    fn written(samples: &[Sample], sources: &[Source], limit_bytes: usize) -> Value {
        let written = tests::written(write, samples, sources, limit_bytes);
        let file = serde_json::from_slice(&written).unwrap();
        assert_fits_the_schema(&file);
        file
    }

    /// What the schema asks for, of sampled profiles.
    fn assert_fits_the_schema(file: &Value) {
        assert_eq!(file["$schema"], "https://www.speedscope.app/file-format-schema.json");
        assert!(file["name"].is_string() && file["exporter"].is_string());
        let frames = file["shared"]["frames"].as_array().unwrap();
        for frame in frames {
            assert!(frame["name"].is_string());
            let fields = frame.as_object().unwrap().keys();
            assert!(fields.into_iter().all(|it| ["name", "file"].contains(&&**it)));
        }
        let profiles = file["profiles"].as_array().unwrap();
        assert!(file["activeProfileIndex"].as_u64().unwrap() < profiles.len() as u64);
        for profile in profiles {
            assert_eq!(profile["type"], "sampled");
            assert!(profile["name"].is_string());
            let units = ["bytes", "microseconds", "milliseconds", "nanoseconds", "none", "seconds"];
            assert!(units.contains(&profile["unit"].as_str().unwrap()));
            let samples = profile["samples"].as_array().unwrap();
            let weights = profile["weights"].as_array().unwrap();
            assert_eq!(samples.len(), weights.len());
            let places = samples.iter().flat_map(|stack| stack.as_array().unwrap());
            assert!(places.into_iter().all(|it| it.as_u64().unwrap() < frames.len() as u64));
            let sum: u64 = weights.iter().map(|it| it.as_u64().unwrap()).sum();
            assert_eq!((&profile["startValue"], &profile["endValue"]), (&json!(0), &json!(sum)));
        }
    }

    fn function(name: &str) -> Frame {
        Frame { symbol: Some(Arc::from(name)), ..Frame::default() }
    }

    #[test]
    fn a_thread_is_a_profile() {
        let mut store = Store::default();
        let main = Frame { module: Some(Arc::from("/bin/a")), ..function("main") };
        let at = |line| Some((Arc::from("a.rs"), Some(line)));
        let inner = |line| Frame { source: at(line), inlined: true, ..function("in\nner") };
        let kernel = store.intern(vec![tests::location(1, &[function("read")])]);
        let mut user = |address, line| {
            store.intern(vec![tests::location(address, &[inner(line), main.clone()])])
        };
        let (one, other) = (user(2, 7), user(3, 8));
        let of = sample();
        let source = Source { counts: Counts::Clock, ..(*of.source).clone() };
        let thread = Task { tid: 9, ..of.task.clone() };
        let samples = [
            Sample { user: Arc::clone(&one), value: 10, ..of.clone() },
            Sample { user: Arc::clone(&one), value: 20, task: thread.clone(), ..of.clone() },
            Sample { user: Arc::clone(&one), value: 5, task: thread.clone(), ..of.clone() },
            // Another line of the same function.
            Sample { user: other, value: 1, task: thread.clone(), ..of.clone() },
            Sample { user: one, kernel, value: 4, task: thread, ..of.clone() },
        ];
        let file = written(&samples, std::slice::from_ref(&source), 1 << 20);
        assert_eq!(
            file,
            json!({
                "$schema": "https://www.speedscope.app/file-format-schema.json",
                "exporter": "profiler 1",
                "name": "cycles at 99 Hz for 1.00 s on 1 CPUs",
                "activeProfileIndex": 0,
                "shared": { "frames": [
                    { "name": "in\\nner", "file": "a.rs" },
                    { "name": "main", "file": "/bin/a" },
                    { "name": "read", "file": "[kernel.kallsyms]" },
                ] },
                "profiles": [
                    {
                        "type": "sampled",
                        "name": "a (pid 4, tid 9)",
                        "unit": "nanoseconds",
                        "startValue": 0,
                        "endValue": 30,
                        "samples": [[1, 0], [1, 0, 2]],
                        "weights": [26, 4],
                    },
                    {
                        "type": "sampled",
                        "name": "a (pid 4, tid 5)",
                        "unit": "nanoseconds",
                        "startValue": 0,
                        "endValue": 10,
                        "samples": [[1, 0]],
                        "weights": [10],
                    },
                ],
            })
        );
        let mut reversed = samples.to_vec();
        reversed.reverse();
        assert_eq!(written(&reversed, &[source], 1 << 20), file);
    }

    #[test]
    fn sources_and_stacks_beyond_the_limit_are_profiles() {
        let mut store = Store::default();
        let one = sample();
        let source = Source { slot: 1, name: "faults".into(), ..(*one.source).clone() };
        let mut of_faults = |name| Sample {
            source: Arc::new(source.clone()),
            user: store.intern(vec![tests::location(name, &[function("f")])]),
            ..one.clone()
        };
        let samples = [one.clone(), of_faults(1), of_faults(2)];
        let room = tests::bytes_of(&samples[..2]);
        let file = written(&samples, &[(*one.source).clone(), source.clone()], room);
        let profiles = file["profiles"].as_array().unwrap();
        let names: Vec<_> = profiles.iter().map(|it| it["name"].as_str().unwrap()).collect();
        assert_eq!(
            names,
            ["cycles: a (pid 4, tid 5)", "faults: a (pid 4, tid 4)", "faults: a (pid 4, tid 5)"]
        );
        assert_eq!(file["profiles"][1]["weights"], json!([3]));
        let frames = file["shared"]["frames"].as_array().unwrap();
        assert!(frames.contains(&json!({ "name": "[stacks beyond --max-memory]" })), "{file}");
    }

    #[test]
    fn many_threads_are_one_profile_and_none_is_one_too() {
        let of = sample();
        let thread = |tid| Sample { task: Task { tid, ..of.task.clone() }, ..of.clone() };
        let sources = [(*of.source).clone()];
        let samples: Vec<Sample> = (0..=200).map(thread).collect();
        let file = written(&samples[..200], &sources, 1 << 20);
        assert_eq!(file["profiles"].as_array().unwrap().len(), 200);
        let file = written(&samples, &sources, 1 << 20);
        let [profile] = &file["profiles"].as_array().unwrap()[..] else { panic!("{file}") };
        assert_eq!((&profile["name"], &profile["weights"]), (&json!("cycles"), &json!([3 * 201])));
        assert_eq!(file["shared"]["frames"], json!([{ "name": "a" }]));

        let file = written(&[], &sources, 1 << 20);
        let [profile] = &file["profiles"].as_array().unwrap()[..] else { panic!("{file}") };
        assert_eq!((&profile["name"], &profile["weights"]), (&json!("cycles"), &json!([])));
    }
}
