//! How long a large profile takes.

use std::{
    collections::HashMap,
    env, fs,
    io::{self, BufWriter, Write},
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Instant,
};

use inferno::collapse::{Collapse as _, perf::Folder};
use profiler_profile::{
    address::Address,
    export::{
        about::About,
        format::{FORMATS, Format},
        output::Output,
    },
    frame::Frame,
    profile::Profile,
    sample::Sample,
    source::Source,
    stack::{Location, Stack},
    store::Store,
};

use crate::run::{cpu_clock, function, kernel, ledger, options, sample, task};

const STACKS: usize = 100_000;
const SAMPLES: usize = 1_000_000;
/// What makes a flame graph of the text that `perf script` would have printed of the same samples.
const PEER: &str = "inferno";

/// Numbers that look random and are always the same.
struct Random(u64);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

/// Distinct stacks of 10 to 49 functions out of 20,000 in 40 files, called from four places each.
fn stacks(store: &mut Store, random: &mut Random) -> Vec<Arc<Stack>> {
    let mut known: HashMap<(u64, u64), Arc<[Frame]>> = HashMap::new();
    let mut stack = |number: usize| {
        let depth = 10 + random.below(40);
        let location = |level: u64| {
            // Near the root all stacks are similar.
            let spread = (20_000 / (level + 1)).max(3);
            let (of, place) = (random.below(spread), random.below(4));
            let frames = known.entry((of, place)).or_insert_with(|| {
                let name = format!("<module_{}::Type<T> as Trait>::function_number_{of}", of % 500);
                Arc::from([function(&name, &format!("/usr/lib/lib{}.so", of % 40), place)])
            });
            let value = 0x7f00_0000_0000 + 0x100 * of + place;
            Location { address: Address::returned_to(value), frames: Arc::clone(frames) }
        };
        let mut locations: Vec<Location> = (0..depth).map(location).collect();
        // None is there twice.
        locations[0].address = Address::sampled(number as u64);
        store.intern(locations)
    };
    (0..STACKS).map(&mut stack).collect()
}

/// Each distinct stack comes at least once, some often.
fn samples(store: &mut Store, clock: &Arc<Source>) -> Vec<Sample> {
    let mut random = Random(1);
    let stacks = stacks(store, &mut random);
    let tasks: Vec<_> = (0..50).map(|tid| task(100 + tid / 5, 100 + tid, "worker")).collect();
    let empty = store.empty();
    let read: Arc<[Frame]> = Arc::from([kernel("vfs_read")]);
    let address = Address::sampled(0xffff_ffff_8100_0000);
    let read = store.intern(vec![Location { address, frames: read }]);
    let mut one = |number: usize| {
        let mut any = || usize::try_from(random.below(STACKS as u64)).unwrap();
        let stack = if number < STACKS { number } else { any() };
        let kernel = if stack % 4 == 0 { &read } else { &empty };
        sample(clock, &tasks[stack % 50], 10_101_010, [kernel, &stacks[stack]])
    };
    (0..SAMPLES).map(&mut one).collect()
}

/// The most memory that was in use so far, in MiB.
fn peak_mib() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: u64 = peak.trim().trim_end_matches(" kB").parse().unwrap();
    kib >> 10
}

/// Counts bytes.
#[derive(Clone, Default)]
struct Counted(Arc<AtomicUsize>);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.fetch_add(bytes.len(), Ordering::Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
#[ignore = "it measures: run it with --release and --nocapture"]
fn a_million_samples() {
    match env::var("FORMAT").as_deref() {
        Ok(PEER) => return measure_peer(),
        Ok(format) => return measure(Format::find(format).unwrap()),
        Err(_) => {}
    }
    println!("{SAMPLES} samples with {STACKS} distinct stacks");
    println!(
        "{:<14} {:>8} {:>8} {:>10} {:>9}",
        "format", "add s", "write s", "MiB peak", "MB file"
    );
    for name in FORMATS.iter().map(|it| it.name).chain([PEER]) {
        // A process each, so that none has the memory that another has left.
        let itself = Command::new(env::current_exe().unwrap())
            .args(["--exact", "--ignored", "--nocapture", "million::a_million_samples"])
            .env("FORMAT", name)
            .output()
            .unwrap();
        let text = String::from_utf8(itself.stdout).unwrap();
        println!("{}", text.lines().find(|line| line.starts_with(name)).unwrap());
    }
}

fn measure(format: &Format) {
    let counted = Counted::default();
    let (added, written, peak) = write(format, counted.clone());
    let megabytes = counted.0.load(Ordering::Relaxed) as f64 / 1e6;
    println!("\n{:<14} {added:>8.2} {written:>8.2} {peak:>10} {megabytes:>9.1}", format.name);
}

/// From the text, which is a file here, to stacks, and from these to a picture.
fn measure_peer() {
    let text = tempfile::NamedTempFile::new().unwrap();
    write(Format::find("perf").unwrap(), text.reopen().unwrap());
    let before = peak_mib();
    let begun = Instant::now();
    let (mut folded, counted) = (Vec::new(), Counted::default());
    Folder::default().collapse_file(Some(text.path()), &mut folded).unwrap();
    let added = begun.elapsed().as_secs_f64();
    let mut options = inferno::flamegraph::Options::default();
    inferno::flamegraph::from_reader(&mut options, &*folded, counted.clone()).unwrap();
    let written = begun.elapsed().as_secs_f64() - added;
    let (peak, megabytes) = (peak_mib() - before, counted.0.load(Ordering::Relaxed) as f64 / 1e6);
    println!("\n{PEER:<14} {added:>8.2} {written:>8.2} {peak:>10} {megabytes:>9.1}");
}

/// Writes all samples; how many seconds it took to add them and to write the rest, and MiB at the peak.
fn write(format: &Format, to: impl Write + 'static) -> (f64, f64, u64) {
    let mut store = Store::default();
    let clock = cpu_clock();
    let samples = samples(&mut store, &clock);
    let ledger = ledger(&[&clock], &samples);
    let before = peak_mib();
    let begun = Instant::now();
    let to = BufWriter::new(to);
    let options = options(&[&clock]);
    let mut output = Output::new(format.export, options.clone(), to);
    let mut profile = Profile::new(1 << 30);
    for batch in samples.chunks(1000) {
        output.add(batch).unwrap();
        if output.needs_profile() {
            profile.extend(batch);
        }
    }
    let added = begun.elapsed().as_secs_f64();
    output.finish(&profile, &About::of_run(&ledger, &options)).unwrap();
    let written = begun.elapsed().as_secs_f64() - added;
    drop(output);
    (added, written, peak_mib() - before)
}
