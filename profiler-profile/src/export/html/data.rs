//! The samples as the page reads them: tables in columns, which refer to each other by the number of the row.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use jiff::Timestamp;
use serde::Serialize;

use super::super::{
    about::{About, Sampled},
    root::Root,
    tree::{Builder, Tree, process_name, thread_name},
};
use crate::{
    diff::threshold,
    ledger::SourceAccount,
    printable::{printable, printable_lines},
    profile::{Entry, Profile},
};

/// All of it. The same samples give the same data, in whatever order they come.
#[derive(Serialize)]
pub(super) struct Data {
    /// Of this form; another has another number.
    version: u32,
    producer: &'static str,
    /// When the run began, for people.
    begun: Option<String>,
    duration_ns: Option<u64>,
    /// How many there are, if that is known.
    cpus: Option<usize>,
    sources: Vec<Source>,
    /// Whether the second source is what the first was before.
    #[serde(skip_serializing_if = "Option::is_none")]
    change: Option<Changed>,
    /// The whole ledger, for people; of a file that was read, what it says of itself.
    ledger: String,
    /// All text that the tables refer to.
    strings: Vec<String>,
    processes: Processes,
    threads: Threads,
    functions: Functions,
    nodes: Nodes,
    samples: Samples,
}

/// How two sources are compared.
#[derive(Serialize)]
struct Changed {
    /// What samples of the second are multiplied by.
    scale: f64,
    /// A change by no more standard deviations is noise.
    deviations: f64,
}

#[derive(Serialize)]
struct Source {
    event: String,
    /// The event, and how often it was sampled.
    title: String,
    /// What is counted, as people say it.
    unit: String,
    /// Only where there is a ledger.
    delivered: Option<u64>,
    /// Why, and how many; only those of which there are any.
    filtered: Vec<(&'static str, u64)>,
    lost: Vec<(&'static str, u64)>,
}

#[derive(Serialize, Default)]
struct Processes {
    /// None where nothing says whose the samples are.
    pid: Vec<Option<u32>>,
    name: Vec<usize>,
    /// The command line, where it is known.
    command: Vec<Option<usize>>,
}

/// A thread has a row for each name that it had.
#[derive(Serialize, Default)]
struct Threads {
    process: Vec<usize>,
    tid: Vec<Option<u32>>,
    name: Vec<usize>,
}

/// Sorted by name.
#[derive(Serialize, Default)]
struct Functions {
    name: Vec<usize>,
    module: Vec<usize>,
    /// 0 is the root, 1 a process, 2 user code, 3 such that was inlined, 4 the kernel, 5 such that was inlined.
    kind: Vec<u8>,
}

/// The tree of stacks, each before those that it calls.
#[derive(Serialize, Default)]
struct Nodes {
    /// The caller of a node is the last one before it whose depth is less by one.
    depth: Vec<usize>,
    function: Vec<usize>,
}

/// How many samples of a source and a thread have ended at a node.
#[derive(Serialize, Default)]
struct Samples {
    source: Vec<usize>,
    thread: Vec<usize>,
    node: Vec<usize>,
    count: Vec<u64>,
}

/// A thread under one of its names; by process, then by thread.
type Thread = (Option<u32>, Option<u32>, String);

impl Data {
    pub(super) fn of(profile: &Profile, about: &About<'_>) -> Self {
        let mut builder = Builder::new();
        let mut ended = Vec::new();
        let mut commands: BTreeMap<Option<u32>, BTreeSet<&str>> = BTreeMap::new();
        let mut called: BTreeMap<Option<u32>, BTreeMap<String, u64>> = BTreeMap::new();
        for entry in profile.entries() {
            let (task, thread) = (&entry.task, thread(entry));
            let thread_pid = thread.0;
            let names = called.entry(thread_pid).or_default();
            add(names.entry(process_name(entry)).or_default(), entry.count);
            ended.push((entry.source.slot, thread, builder.add(entry, Root::Process), entry.count));
            let command = task.process.as_ref().and_then(|it| it.command_line.as_deref());
            commands.entry(thread_pid).or_default().extend(command);
        }
        let (tree, ends) = builder.finish();

        let mut strings = Strings::default();
        let mut by_thread: BTreeMap<Thread, u64> = BTreeMap::new();
        for (_, thread, _, count) in &ended {
            add(by_thread.entry(thread.clone()).or_default(), *count);
        }
        let (processes, threads) = tasks(&by_thread, &called, &commands, &mut strings);
        let rows: HashMap<&Thread, usize> = by_thread.keys().zip(0..).collect();
        let mut counts: BTreeMap<(usize, usize, usize), u64> = BTreeMap::new();
        for (slot, thread, end, count) in &ended {
            let thread = rows.get(thread).copied().unwrap_or_default();
            add(counts.entry((*slot, thread, ends.of(*end))).or_default(), *count);
        }
        let mut samples = Samples::default();
        for ((source, thread, node), count) in counts {
            samples.source.push(source);
            samples.thread.push(thread);
            samples.node.push(node);
            samples.count.push(count);
        }
        let (functions, nodes) = columns(&tree, &mut strings);
        Self {
            version: 1,
            producer: about.producer,
            begun: begun(about),
            duration_ns: about.duration_ns,
            cpus: about.ledger.map(|it| it.per_cpu.len()),
            sources: sources(about),
            change: None,
            ledger: match about.ledger {
                Some(ledger) => ledger.table(false).trim_matches('\n').to_owned(),
                None => printable_lines(&about.comments.join("\n")).into_owned(),
            },
            strings: strings.list,
            processes,
            threads,
            functions,
            nodes,
            samples,
        }
    }
}

impl Data {
    /// The same as a comparison of the first source with the second, whose samples count `scale` each.
    pub(super) fn compared(self, scale: f64) -> Self {
        let deviations = threshold(self.nodes.depth.len());
        Self { change: Some(Changed { scale, deviations }), ..self }
    }
}

fn sources(about: &About<'_>) -> Vec<Source> {
    let account = |slot: usize| about.ledger.and_then(|it| it.sources.get(slot));
    about.sources.iter().enumerate().map(|(slot, it)| Source::of(it, account(slot))).collect()
}

impl Source {
    fn of(sampled: &Sampled, account: Option<&SourceAccount>) -> Self {
        let some = |reasons: Option<&[(&'static str, u64)]>| {
            let reasons = reasons.into_iter().flatten().copied();
            reasons.filter(|(_, count)| *count > 0).collect()
        };
        let total = account.map(|it| &it.total);
        Self {
            event: sampled.event.clone(),
            title: sampled.title.clone(),
            unit: sampled.unit().to_owned(),
            delivered: total.map(|it| it.delivered),
            filtered: some(total.map(|it| it.filtered.reasons()).as_ref().map(|it| &it[..])),
            lost: some(total.map(|it| it.lost.reasons()).as_ref().map(|it| &it[..])),
        }
    }
}

/// The thread of an entry.
fn thread(entry: &Entry) -> Thread {
    let known = Some(&entry.task).filter(|it| !it.is_unknown());
    (known.map(|it| it.tgid), known.map(|it| it.tid), thread_name(entry))
}

/// Text, each once.
#[derive(Default)]
struct Strings {
    list: Vec<String>,
    rows: HashMap<String, usize>,
}

impl Strings {
    fn row(&mut self, text: &str) -> usize {
        if let Some(row) = self.rows.get(text) {
            return *row;
        }
        let row = self.list.len();
        self.list.push(text.to_owned());
        self.rows.insert(text.to_owned(), row);
        row
    }
}

/// The tables of processes and threads.
fn tasks(
    by_thread: &BTreeMap<Thread, u64>,
    called: &BTreeMap<Option<u32>, BTreeMap<String, u64>>,
    commands: &BTreeMap<Option<u32>, BTreeSet<&str>>,
    strings: &mut Strings,
) -> (Processes, Threads) {
    let (mut processes, mut threads) = (Processes::default(), Threads::default());
    for (pid, names) in called {
        // One that has had several is called as it was for longest.
        let name = names.iter().max_by_key(|(_, count)| **count).map(|(name, _)| name.as_str());
        processes.pid.push(*pid);
        processes.name.push(strings.row(name.unwrap_or_default()));
        let command = commands.get(pid).and_then(BTreeSet::first);
        processes.command.push(command.map(|it| strings.row(&printable(it))));
    }
    let rows: BTreeMap<Option<u32>, usize> = called.keys().copied().zip(0..).collect();
    for (pid, tid, name) in by_thread.keys() {
        threads.process.push(rows.get(pid).copied().unwrap_or_default());
        threads.tid.push(*tid);
        threads.name.push(strings.row(name));
    }
    (processes, threads)
}

/// The tables of functions and nodes.
fn columns(tree: &Tree, strings: &mut Strings) -> (Functions, Nodes) {
    let (mut functions, mut nodes) = (Functions::default(), Nodes::default());
    for function in &tree.functions {
        functions.name.push(strings.row(&function.name));
        functions.module.push(strings.row(&function.module));
        functions.kind.push(function.kind as u8);
    }
    for node in &tree.nodes {
        nodes.depth.push(node.depth);
        nodes.function.push(node.function);
    }
    (functions, nodes)
}

/// When the run began, in the user's zone.
fn begun(about: &About<'_>) -> Option<String> {
    let begun = Timestamp::from_nanosecond(about.begun_ns?).ok()?;
    Some(begun.to_zoned(about.zone.clone()).strftime("%Y-%m-%d %H:%M:%S %Z").to_string())
}

/// Sums may be of numbers from a file.
fn add(sum: &mut u64, count: u64) {
    *sum = sum.saturating_add(count);
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use serde_json::{Value, json};

    use super::*;
    use crate::{
        export::{
            format::Options,
            tests::{location, options, sample},
        },
        frame::Frame,
        ledger::tests::ledger_of,
        process::Metadata,
        sample::{Comm, Sample, Task},
        store::Store,
    };

    /// A sample of a thread with these functions, innermost first.
    fn of(store: &mut Store, tgid: u32, tid: u32, name: &[u8], symbols: &[&str]) -> Sample {
        let mut comm = Comm::default();
        comm.0[..name.len()].copy_from_slice(name);
        let frame = |symbol: &&str| Frame {
            symbol: Some(Arc::from(*symbol)),
            module: Some(Arc::from("/bin/a")),
            ..Frame::default()
        };
        let locations = symbols.iter().map(|symbol| location(0, &[frame(symbol)]));
        let user = store.intern(locations.collect());
        let process = Metadata { command_line: Some("a\u{1b} b".into()), ..Metadata::default() };
        let process = (tgid == 7).then(|| Arc::new(process));
        let task = Task { tgid, tid, comm, process, ..sample().task };
        Sample { task, user, ..sample() }
    }

    fn data(samples: &[Sample]) -> Value {
        let mut profile = Profile::new(1 << 20);
        for sample in samples {
            profile.add(sample);
        }
        let ledger = ledger_of([(Duration::from_secs(1), true)]);
        let options = Options {
            begun_ns: 5_000_000_000,
            real_time_ahead_ns: 1_750_000_000_000_000_000,
            ..options()
        };
        serde_json::to_value(Data::of(&profile, &About::of_run(&ledger, &options))).unwrap()
    }

    #[test]
    fn tables_refer_to_each_other() {
        let store = &mut Store::default();
        let samples = [
            of(store, 7, 7, b"web", &["f", "main"]),
            of(store, 7, 7, b"web", &["f", "main"]),
            of(store, 7, 8, b"io", &["main"]),
            of(store, 9, 10, b"<cc\n>", &["main"]),
            Sample { task: Task::default(), ..of(store, 1, 1, b"", &["main"]) },
        ];
        let json = data(&samples);
        let strings = ["web", "a\\x1b b", "<cc\\n>", "[unknown]"];
        for text in strings {
            assert!(json["strings"].as_array().unwrap().contains(&json!(text)), "{json}");
        }
        let text =
            |row: &Value| json["strings"][usize::try_from(row.as_u64().unwrap()).unwrap()].clone();
        let texts = |rows: &Value| rows.as_array().unwrap().iter().map(text).collect::<Vec<_>>();
        // The process is called as its first thread, not as the one with a lesser name.
        assert_eq!(json["processes"]["pid"], json!([null, 7, 9]));
        assert_eq!(texts(&json["processes"]["name"]), [strings[3], "web", strings[2]]);
        assert_eq!(json["processes"]["command"].as_array().unwrap().len(), 3);
        assert_eq!(text(&json["processes"]["command"][1]), strings[1]);
        assert_eq!(
            (&json["threads"]["tid"], &json["threads"]["process"]),
            (&json!([null, 7, 8, 10]), &json!([0, 1, 1, 2]))
        );
        let functions = ["<cc\\n>", "all", "f", "io", "main", "web"];
        assert_eq!(texts(&json["functions"]["name"]), functions);
        assert_eq!(json["functions"]["kind"], json!([1, 0, 2, 1, 2, 1]));
        assert_eq!(json["nodes"]["depth"], json!([0, 1, 2, 1, 2, 1, 1, 2, 3]));
        assert_eq!(json["nodes"]["function"], json!([1, 0, 4, 3, 4, 4, 5, 4, 2]));
        let samples = json!({
            "source": [0, 0, 0, 0], "thread": [0, 1, 2, 3], "node": [5, 8, 4, 2], "count": [1, 2, 1, 1],
        });
        assert_eq!(json["samples"], samples);
        assert_eq!(json["begun"], "2025-06-15 15:06:45 UTC");
        assert_eq!(json["sources"][0]["title"], "cycles at 99 Hz");
    }

    #[test]
    fn a_process_whose_first_thread_was_not_seen_is_called_as_what_was_seen_most() {
        let store = &mut Store::default();
        let samples = [
            of(store, 7, 8, b"a", &[]),
            of(store, 7, 9, b"b", &["f"]),
            of(store, 7, 9, b"b", &["f"]),
        ];
        let json = data(&samples);
        let name = json["processes"]["name"][0].as_u64().unwrap();
        assert_eq!(json["strings"][usize::try_from(name).unwrap()], "b");
    }

    #[test]
    fn the_order_of_samples_does_not_matter() {
        let store = &mut Store::default();
        let mut samples: Vec<Sample> = (0..50)
            .map(|it| of(store, it % 3, it % 7, b"a", &["f", ["g", "h"][it as usize % 2]]))
            .collect();
        let json = data(&samples);
        samples.reverse();
        assert_eq!(data(&samples), json);
    }
}
