//! A recording of what the kernel sent, put through all that is behind the ring, and what comes out of each
//! format: with `PROFILER_BLESS` set, what comes out is written to `tests/recordings` in place of being compared.
//! `examples/record.rs` makes a recording.

use std::{env, fs, fs::File, io::Read as _, path::PathBuf, time::Duration};

use jiff::tz::TimeZone;
use profiler_common::counter::Counter;
use profiler_profile::{
    export::{
        format::{FORMATS, Options},
        root::Root,
    },
    frame::Missing,
    ledger::{
        CpuEvent, EventCount, KernelSide, Scope, SourceSide, counters::PerCpuCounters,
        memory::Memory,
    },
    report::table,
    source::{Counts, Rate},
};
use rustc_hash::FxHashMap;

use super::*;
use crate::{
    output::{Named, config::Report, tests::Written},
    perf::record::{self, Record, Timed},
    process::{
        file::MappedFile,
        headless::Headless,
        tracker::{event, take_before},
    },
    queue,
};

const CPUS: usize = 8;

fn folder() -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/recordings/chain"))
}

/// What was recorded.
#[derive(Default)]
struct Recording {
    /// Records of processes, and the samples that were read after them.
    rounds: Vec<(Vec<Timed>, Vec<u8>)>,
    /// Symbols of the kernel.
    kernel: Vec<Record>,
}

impl Recording {
    fn read() -> Self {
        let bytes = fs::read(folder().join("recording")).unwrap();
        let (mut recording, mut rest) = (Self::default(), bytes.as_slice());
        while let Some((kind, behind)) = rest.split_first() {
            let (length, behind) = behind.split_first_chunk::<4>().unwrap();
            let (part, behind) = behind.split_at(u32::from_le_bytes(*length) as usize);
            rest = behind;
            match kind {
                b'P' => {
                    let mut records: Vec<_> = record::parse(part).map(Result::unwrap).collect();
                    // As from many CPUs, of which the last is read first.
                    records.reverse();
                    recording.rounds.push((records, Vec::new()));
                }
                b'S' => recording.rounds.last_mut().unwrap().1 = part.to_owned(),
                b'K' => {
                    let number = |at: usize| u64::from_le_bytes(*part[at..].first_chunk().unwrap());
                    let (start, bytes) = (number(0), u32::try_from(number(8)).unwrap());
                    let name = part[16..].to_owned();
                    recording.kernel.push(Record::Ksymbol { start, bytes, name, registered: true });
                }
                _ => panic!("{kind}"),
            }
        }
        recording
    }

    /// What the kernel would have counted: each sample, and one that was missed on CPU 0.
    fn kernel_side(&self) -> KernelSide {
        let mut counters = vec![[0; Counter::COUNT]; CPUS];
        let samples = self.rounds.iter().flat_map(|(_, samples)| sample::each(samples));
        for sample in samples {
            let of_cpu = &mut counters[sample.cpu as usize];
            of_cpu[Counter::Fired as usize] += 1;
            of_cpu[Counter::PeriodSum as usize] += sample.period;
        }
        let events = (0..).zip(&counters).map(|(cpu, counters)| {
            let missed = if cpu == 0 { 11_000_000 } else { 0 };
            let count = counters[Counter::PeriodSum as usize] + missed;
            let count = EventCount { count, enabled_ns: count, running_ns: count };
            let (refused, idle) = (false, Duration::ZERO);
            CpuEvent { cpu, count, events: 1, whole: true, refused, throttled: 0, idle }
        });
        let side = SourceSide {
            source: source(),
            skipped: 0,
            dithered: false,
            lowered: None,
            events: events.collect(),
            counters: PerCpuCounters::from(counters),
        };
        KernelSide {
            sources: vec![side],
            duration: Duration::from_secs(1),
            pids: Vec::new(),
            children: None,
            filters: Vec::new(),
            scope: Scope::default(),
            strangers: Arc::new(count()),
            sideband_lost: 0,
            sideband_malformed: 0,
            unwinding: None,
            memory: Memory::default(),
        }
    }
}

fn source() -> Source {
    Source { slot: 0, name: "cpu-clock".into(), counts: Counts::Clock, rate: Rate::Frequency(99) }
}

/// A count of nothing.
fn count() -> PerCpuCount {
    PerCpuCount::new(1, CPUS)
}

/// Replays the recording into these outputs, all at once, and gives the ledger.
fn replay(outputs: Outputs) -> Ledger {
    let recording = Recording::read();
    let (delivered, behind) = (count(), Arc::new(count()));
    let (sender, receiver) = queue::channel(Arc::clone(&behind), 8 << 20);
    let (mut headless, mut known) = (Headless::new(), FxHashMap::default());
    let mut file_of = |id, place: crate::process::file::MappedAt| {
        let open = || {
            let is_program = place.name.ends_with("/chain");
            let file = is_program.then(|| File::open(folder().join("chain")).unwrap());
            let file = file.map_or_else(|| MappedFile::new(Missing::Gone), MappedFile::of);
            Arc::new(file)
        };
        Arc::clone(known.entry(id).or_insert_with(open))
    };
    let kernel = Arc::new(recording.kernel_side());
    let processes = Manager::new(100);
    assert!(sender.tell(Vec::new(), recording.kernel, 0));
    for (records, samples) in recording.rounds {
        let events = records.into_iter().filter_map(|it| event(it, &mut headless, &mut file_of));
        let mut events: Vec<_> = events.collect();
        processes.apply(take_before(&mut events, u64::MAX), 0);
        sender.offer(samples);
    }
    sender.finish(kernel);
    let bars = Arc::<Bars>::default();
    let mut thread = Thread {
        told: None,
        merger: None,
        appended: 0,
        priority: Priority::enter(Role::Naming),
        symbolizer: Symbolizer::new(false, 8 << 20, None, Arc::clone(&bars)),
        bars,
        walker: None,
        processes,
        missed: Cache::new(MAX_MISSED),
        finding: Finding::new(Tracker::new(false)),
        stacks: Stacks::new(1 << 20),
        store: Store::default(),
        sources: vec![Arc::new(source())],
        naming: Naming::default(),
        spawning: None,
        shows_names: false,
        outputs,
    };
    thread.run(receiver, &delivered, &behind).unwrap()
}

/// Compares with what is in the folder, or writes it there.
fn assert_golden(name: &str, text: &str) {
    let path = folder().join(name).with_extension("out");
    if env::var_os("PROFILER_BLESS").is_some() {
        fs::write(&path, text).unwrap();
        return;
    }
    let golden = fs::read_to_string(&path).unwrap_or_default();
    let first = text.lines().zip(golden.lines()).position(|(is, was)| is != was);
    let first = first.map(|line| (line + 1, text.lines().nth(line), golden.lines().nth(line)));
    assert!(text == golden, "{name} differs: line, what it is, what it was: {first:?}");
}

/// What was written, as text: unpacked, and with other bytes than characters escaped.
fn readable(written: &[u8]) -> String {
    const GZIP: &[u8] = &[0x1f, 0x8b];
    let mut unpacked = Vec::new();
    if written.starts_with(GZIP) {
        flate2::read::GzDecoder::new(written).read_to_end(&mut unpacked).unwrap();
    } else {
        unpacked.extend_from_slice(written);
    }
    String::from_utf8(unpacked).unwrap_or_else(|error| {
        let escaped = error.as_bytes().escape_ascii().to_string();
        let lines = escaped.as_bytes().chunks(100).map(String::from_utf8_lossy);
        lines.flat_map(|line| [line, "\n".into()]).collect()
    })
}

#[test]
fn a_recording_gives_what_it_gave() {
    let options = Options {
        kernel_stacks: true,
        user_stacks: true,
        names_events: false,
        // Of the time of day only the digits behind the second are those of the recording.
        begun_ns: 0,
        producer: "profiler",
        real_time_ahead_ns: 0,
        zone: TimeZone::UTC,
        rendered_bytes: 1 << 20,
        timeline_bytes: 1 << 20,
        root: Root::default(),
    };
    let top = table::Options { rows: Some(20), ..table::Options::default() };
    let reports = FORMATS.iter().map(|format| (format.name, Report::Samples(format)));
    let (mut written, mut outputs): (Vec<_>, Vec<_>) = Default::default();
    for (name, report) in std::iter::once(("top", Report::Top(top))).chain(reports) {
        let to = Written::default();
        outputs.push(Named::new(report, &options, Box::new(to.clone()), PathBuf::new()));
        written.push((name, to));
    }
    let mut ledger = replay(Outputs::of(outputs, options, 1 << 20, count()));
    // What caches take depends on the machine.
    ledger.memory = Memory::default();
    assert_golden("ledger", &ledger.table(true));
    for (name, written) in written {
        let text = readable(&written.0.lock().unwrap());
        // Of a page what is in it, and not what shows it.
        let data =
            text.split_once("application/json").and_then(|(_, it)| it.split_once("</script>"));
        let text = data.map_or(&*text, |(data, _)| data);
        // The last line of both forms of JSON is the ledger, with the caches.
        let lines = text.lines().filter(|line| !line.starts_with("{\"type\":\"summary\""));
        let text: String = lines.flat_map(|line| [line, "\n"]).collect();
        assert_golden(name, &text);
    }
    let samples = Recording::read().rounds;
    let samples: usize = samples.iter().map(|(_, samples)| sample::each(samples).count()).sum();
    assert_eq!((ledger.total.delivered, ledger.total.lost.missed), (samples as u64, 1));
    assert_eq!(ledger.total.expected, samples as u64 + 1);
}
