//! A profile that was read, as one that was sampled: so that every format can be written of it.

use std::{collections::BTreeSet, sync::Arc};

use jiff::tz::TimeZone;
use profiler_common::build_id::BuildId;
use rustc_hash::FxHashMap;

use super::{Error, Filter, Frame, Imported, Label, LabelValue, Stack, UNKNOWN, ValueType};
use crate::{
    address::Address,
    export::{
        about::{About, Sampled},
        root::Root,
    },
    frame::{self, Origin},
    process::{Container, Metadata},
    profile::{Entry, Profile},
    sample::{Comm, Task},
    source::{Counts, Rate, Source},
    stack::{self, StackId},
};

/// Bytes that the stacks of a profile may take which is counted again.
const MAX_BYTES: usize = 4 << 30;

/// What the kernel's own code is in.
const KERNEL: &str = "[kernel.kallsyms]";

/// A profile that was read, as one that was sampled.
#[derive(Debug)]
pub struct Counted {
    /// Its stacks. Each value, or number of samples with what these stand for, is a source.
    pub profile: Profile,
    /// What it says of itself.
    pub about: About<'static>,
    /// Labels that have no place in it, by their keys.
    pub left_out: BTreeSet<Arc<str>>,
}

impl Counted {
    /// Takes the stacks that are wanted. `producer` is what writes, and the time of day is that of `zone`.
    ///
    /// # Errors
    ///
    /// It has negative values, as differences of profiles have, or too many stacks to be counted.
    pub fn of(
        imported: &Imported,
        filter: &Filter,
        producer: &'static str,
        zone: TimeZone,
    ) -> Result<Self, Error> {
        let columns = columns(&imported.value_types);
        let sources: Vec<Arc<Source>> =
            columns.iter().enumerate().map(|(slot, it)| Arc::new(it.source(slot))).collect();
        let mut stacks = Stacks::new(imported);
        let (mut profile, mut left_out) = (Profile::new(MAX_BYTES), BTreeSet::new());
        for stack in filter.stacks(imported) {
            if let Some(value) = stack.values.iter().find(|it| **it < 0) {
                return Err(Error::Negative { value: *value });
            }
            let task = task(&stack.labels, &mut left_out);
            let [kernel, user] = stacks.halves(stack);
            for (column, source) in columns.iter().zip(&sources) {
                let (count, value) = column.of(stack);
                if count > 0 || value > 0 {
                    let (kernel, user) = (Arc::clone(&kernel), Arc::clone(&user));
                    let (source, task) = (Arc::clone(source), task.clone());
                    profile.add_entry(Entry { source, task, kernel, user, count, value });
                }
            }
        }
        if profile.beyond_limit() > 0 {
            return Err(Error::Memory { limit: MAX_BYTES });
        }
        let about = about(imported, columns, producer, zone);
        Ok(Self { profile, about, left_out })
    }

    /// The entries in the order of the file, or of where their stacks come first in it.
    #[must_use]
    pub fn rows(&self) -> Vec<&Entry> {
        let mut rows: Vec<&Entry> = self.profile.entries().collect();
        rows.sort_by_key(|it| {
            let Task { tgid, tid, comm, .. } = it.task;
            (it.user.id().0, it.kernel.id().0, it.source.slot, tgid, tid, comm)
        });
        rows
    }
}

fn about(
    imported: &Imported,
    columns: Vec<Column>,
    producer: &'static str,
    zone: TimeZone,
) -> About<'static> {
    let events: Vec<&str> = columns.iter().map(|it| &*it.sampled.event).collect();
    let title = events.join(" and ");
    let period =
        |(what, period): &(ValueType, i64)| Some((what.clone(), (*period).try_into().ok()?));
    About {
        default_column: imported.default_value,
        title,
        comments: imported.comments.clone(),
        begun_ns: imported.begun_ns.map(i128::from),
        zone,
        duration_ns: imported.duration_ns.and_then(|it| it.try_into().ok()),
        period: imported.period.as_ref().and_then(period),
        producer,
        root: Root::default(),
        ledger: None,
        sources: columns.into_iter().map(|it| it.sampled).collect(),
    }
}

/// One or two values of each stack: what they are, and which.
struct Column {
    sampled: Sampled,
    /// Where the number of samples is; the value itself if there is none.
    count: Option<usize>,
    value: usize,
}

/// A number of samples, and behind it what these stand for, are one source; any other value is one, too.
fn columns(types: &[ValueType]) -> Vec<Column> {
    let mut columns = Vec::new();
    let mut rest = types.iter().enumerate().peekable();
    while let Some((place, first)) = rest.next() {
        let of_it = |second: &ValueType| {
            let is_pair = &*first.name == "samples" && types.len() == 2;
            let is_named = first.name.strip_suffix("_samples") == Some(&*second.name);
            &*first.unit == "count" && (is_pair || is_named)
        };
        let second = rest.next_if(|(_, second)| of_it(second));
        let (count, (value, values)) = match second {
            Some(second) => (Some(place), second),
            None => (None, (place, first)),
        };
        let event = values.name.to_string();
        let counts = count.map(|_| first.clone());
        let sampled =
            Sampled { title: event.clone(), event, counts, values: values.clone(), lost: 0 };
        columns.push(Column { sampled, count, value });
    }
    columns
}

impl Column {
    fn source(&self, slot: usize) -> Source {
        let counts = if self.sampled.is_time() { Counts::Clock } else { Counts::Events };
        Source { slot, name: self.sampled.event.clone().into(), counts, rate: Rate::Period(1) }
    }

    /// How many samples of it a stack has, and what they stand for.
    fn of(&self, stack: &Stack) -> (u64, u64) {
        let at = |place: usize| {
            let value = stack.values.get(place).copied().unwrap_or_default();
            u64::try_from(value).unwrap_or_default()
        };
        (at(self.count.unwrap_or(self.value)), at(self.value))
    }
}

/// Whose a stack is.
fn task(labels: &[Label], left_out: &mut BTreeSet<Arc<str>>) -> Task {
    let mut task = Task::default();
    let mut process = Metadata::default();
    for label in labels {
        let known = match (&*label.key, &label.value) {
            ("pid", LabelValue::Number(id)) => set(&mut task.tgid, *id),
            ("tid", LabelValue::Number(id)) => set(&mut task.tid, *id),
            ("comm", LabelValue::Text(name)) => {
                task.comm = Comm::of(name);
                true
            }
            ("process", LabelValue::Text(name)) => {
                task.main_comm = Comm::of(name);
                true
            }
            ("cgroup", LabelValue::Text(path)) => {
                process.cgroup = Some(path.to_string());
                true
            }
            ("container", LabelValue::Text(id)) => {
                process.container = Some(Container { id: id.to_string(), runtime: None });
                true
            }
            ("service", LabelValue::Text(name)) => {
                process.service = Some(name.to_string());
                true
            }
            _ => false,
        };
        if !known && !left_out.contains(&label.key) {
            left_out.insert(Arc::clone(&label.key));
        }
    }
    task.process = Some(process).filter(|it| *it != Metadata::default()).map(Arc::new);
    task
}

/// Takes an id, if it is one.
fn set(to: &mut u32, id: i64) -> bool {
    let id = u32::try_from(id).ok();
    *to = id.unwrap_or(*to);
    id.is_some()
}

/// Halves of stacks, each made once.
struct Stacks<'a> {
    imported: &'a Imported,
    frames: Vec<frame::Frame>,
    locations: FxHashMap<&'a [u32], stack::Location>,
    halves: FxHashMap<&'a [u32], Arc<stack::Stack>>,
}

impl<'a> Stacks<'a> {
    fn new(imported: &'a Imported) -> Self {
        Self {
            imported,
            frames: imported.frames.iter().map(frame_of).collect(),
            locations: FxHashMap::default(),
            halves: FxHashMap::default(),
        }
    }

    /// The kernel's and the user's half. The kernel's is all code of the kernel that user code has called, so one
    /// that goes on to user code again has that in the user half.
    fn halves(&mut self, stack: &'a Stack) -> [Arc<stack::Stack>; 2] {
        let imported = self.imported;
        let frame = |place: &u32| imported.frames.get(usize::try_from(*place).ok()?);
        let is_inlined = |place: &u32| frame(place).is_some_and(|it| it.inlined);
        // What was inlined belongs to the frame behind it.
        let of_kernel = stack
            .frames
            .chunk_by(|inner, _| is_inlined(inner))
            .take_while(|location| location.last().and_then(frame).is_some_and(|it| it.is_kernel));
        let (kernel, user) = stack.frames.split_at(of_kernel.map(<[u32]>::len).sum());
        [kernel, user].map(|half| {
            if let Some(known) = self.halves.get(half) {
                return Arc::clone(known);
            }
            let locations = half.chunk_by(|inner, _| is_inlined(inner));
            let locations = locations.map(|it| self.location(it)).collect();
            // The empty half has none, as in every run.
            let id = if half.is_empty() { 0 } else { 1 + self.halves.len() as u64 };
            let stack = Arc::new(stack::Stack { id: StackId(id), locations });
            self.halves.insert(half, Arc::clone(&stack));
            stack
        })
    }

    fn location(&mut self, places: &'a [u32]) -> stack::Location {
        let at = |place: &u32| usize::try_from(*place).ok();
        let make = || {
            let frame = |place| self.frames.get(at(place)?).cloned();
            let address = places.first().and_then(|it| self.imported.frames.get(at(it)?)?.address);
            stack::Location {
                address: Address::sampled(address.unwrap_or_default()),
                frames: places.iter().filter_map(frame).collect(),
            }
        };
        self.locations.entry(places).or_insert_with(make).clone()
    }
}

fn frame_of(frame: &Frame) -> frame::Frame {
    let symbol = frame.name.clone().filter(|_| !frame.is_unnamed());
    let stands_for_none = |module: &str| {
        module.is_empty() || module == UNKNOWN || (frame.is_kernel && module == KERNEL)
    };
    let module = frame.module.clone().filter(|it| !stands_for_none(it));
    let origin = match (&symbol, module.as_deref()) {
        // The names of such code are the process's own.
        (Some(_), Some("[JIT]")) => Origin::PerfMap,
        (Some(_), _) => Origin::Imported,
        (None, Some(_)) => Origin::NoSymbol,
        (None, None) => Origin::NotMapped,
    };
    frame::Frame {
        offset: frame.address.filter(|_| symbol.is_none()).unwrap_or_default(),
        source: frame.file.clone().map(|file| (file, frame.line)),
        inlined: frame.inlined,
        build_id: frame.build_id.as_deref().and_then(build_id),
        symbol,
        module,
        origin,
    }
}

/// The bytes of hex digits.
fn build_id(hex: &str) -> Option<BuildId> {
    let digits: Option<Vec<u8>> =
        hex.chars().map(|it| u8::try_from(it.to_digit(16)?).ok()).collect();
    let digits = digits.filter(|it| it.len() % 2 == 0)?;
    let bytes: Vec<u8> = digits
        .chunks_exact(2)
        .map(|it| it.iter().fold(0, |byte, digit| byte << 4 | digit))
        .collect();
    BuildId::from_slice(&bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        export::{
            format::{Export, FORMATS, Format, Options},
            output::Output,
            tests::options,
        },
        import::{Limits, folded, pprof, pprof::tests::written},
    };

    const FOLDED: &[u8] =
        b"web;main;serve;copy_[i];read_[k];copy_to_iter_[i] 30\nweb;main 2\na name of 20 letters;f 5\n";

    fn counted(imported: &Imported) -> Counted {
        Counted::of(imported, &Filter::default(), "profiler 1", TimeZone::UTC).unwrap()
    }

    fn exported(imported: &Imported, format: &str) -> Vec<u8> {
        let Counted { profile, about, .. } = &counted(imported);
        let options = Options { names_events: about.sources.len() > 1, ..options() };
        let mut bytes = Vec::new();
        let mut output = Output::new(Format::find(format).unwrap().export, options, &mut bytes);
        output.add(counted(imported).rows()).unwrap();
        output.finish(profile, about).unwrap();
        drop(output);
        bytes
    }

    /// Stacks with their labels and values, in an order.
    fn contents(imported: &Imported) -> Vec<String> {
        let stack = |it: &Stack| {
            let frames: Vec<&Frame> = imported.frames_of(it).collect();
            format!("{frames:?} {:?} {:?}", it.labels, it.values)
        };
        let mut stacks: Vec<String> = imported.stacks.iter().map(stack).collect();
        stacks.sort_unstable();
        stacks
    }

    #[test]
    fn pprof_stays_what_it_was() {
        let (bytes, _) = written();
        let before = pprof::read(&bytes, &Limits::default()).unwrap();
        let after = pprof::read(&exported(&before, "pprof"), &Limits::default()).unwrap();
        assert_eq!(contents(&after), contents(&before));
        assert!(contents(&before).iter().any(|it| it.contains("address: Some(291)")));
        let head = |it: &Imported| {
            let Imported { value_types, default_value, begun_ns, duration_ns, .. } = it.clone();
            (
                value_types,
                default_value,
                begun_ns,
                duration_ns,
                it.period.clone(),
                it.comments.clone(),
            )
        };
        assert_eq!(head(&after), head(&before));
        assert_eq!(counted(&before).left_out, BTreeSet::new());
    }

    #[test]
    fn folded_stays_what_it_was() {
        let before = folded::read(FOLDED, &Limits::default()).unwrap();
        let mut lines: Vec<&str> = std::str::from_utf8(FOLDED).unwrap().lines().collect();
        lines.sort_unstable();
        assert_eq!(exported(&before, "folded"), (lines.join("\n") + "\n").as_bytes());
        let pprof = pprof::read(&exported(&before, "pprof"), &Limits::default()).unwrap();
        assert_eq!((pprof.totals(), pprof.default_value), (vec![37], 0));
    }

    #[test]
    fn streams_say_how_many_samples_a_stack_has() {
        let before = folded::read(FOLDED, &Limits::default()).unwrap();
        let text = |format| String::from_utf8(exported(&before, format)).unwrap();
        assert!(text("text").contains("COMM: [unknown] (pid=0 tid=0) x 30\nKernel:\n"));
        assert!(text("perf").starts_with("[unknown] 0/0 [000] 0.000000: 30 samples: \n"));
        for format in ["json", "json-compact"] {
            let text = text(format);
            let lines =
                text.lines().map(|it| serde_json::from_str::<serde_json::Value>(it).unwrap());
            let samples: Vec<_> = lines.filter(|it| it["type"] == "sample").collect();
            let counts: Vec<_> = samples.iter().map(|it| it["count"].as_u64().unwrap()).collect();
            assert_eq!(counts, [30, 2, 5], "{format}");
            assert!(samples.iter().all(|it| it["time_ns"].is_null() && it["cpu"].is_null()));
            assert!(text.lines().last().unwrap().starts_with("{\"type\":\"profile\""), "{text}");
        }
    }

    #[test]
    fn every_other_value_is_a_source() {
        let value_type =
            |(name, unit): (&str, &str)| ValueType { name: name.into(), unit: unit.into() };
        let names = |types: &[(&str, &str)]| {
            let types: Vec<ValueType> = types.iter().copied().map(value_type).collect();
            let columns = columns(&types);
            let both: Vec<&ValueType> =
                columns.iter().flat_map(|it| it.sampled.columns()).collect();
            assert_eq!(both, types.iter().collect::<Vec<_>>());
            columns
                .iter()
                .map(|it| (it.sampled.event.clone(), it.sampled.unit().to_owned()))
                .collect::<Vec<_>>()
        };
        let named = |all: &[(&str, &str)]| -> Vec<(String, String)> {
            all.iter().map(|(event, unit)| ((*event).to_owned(), (*unit).to_owned())).collect()
        };
        let heap = [("inuse_objects", "count"), ("inuse_space", "bytes")];
        assert_eq!(
            names(&heap),
            named(&[("inuse_objects", "inuse_objects"), ("inuse_space", "bytes")])
        );
        assert_eq!(
            names(&[("samples", "count"), ("cpu", "nanoseconds")]),
            named(&[("cpu", "samples")])
        );
        let two =
            [("a_samples", "count"), ("a", "count"), ("b_samples", "count"), ("b", "nanoseconds")];
        assert_eq!(names(&two), named(&[("a", "samples"), ("b", "samples")]));
        assert_eq!(names(&[("samples", "count")]), named(&[("samples", "samples")]));
    }

    #[test]
    fn differences_are_refused_and_unknown_labels_told() {
        let mut read = folded::read(FOLDED, &Limits::default()).unwrap();
        let label = |key: &str, value| Label { key: key.into(), value };
        read.stacks[0].labels =
            vec![label("bytes", LabelValue::Number(7)), label("pid", LabelValue::Number(-1))];
        let left_out = counted(&read).left_out;
        assert_eq!(left_out.iter().map(|it| &**it).collect::<Vec<_>>(), ["bytes", "pid"]);
        read.stacks[1].values = vec![-3];
        let error = Counted::of(&read, &Filter::default(), "", TimeZone::UTC).unwrap_err();
        assert_eq!(error, Error::Negative { value: -3 });
    }

    #[test]
    fn every_format_has_all_samples() {
        let (bytes, samples) = written();
        let read = pprof::read(&bytes, &Limits::default()).unwrap();
        let profile = counted(&read);
        let count: u64 = profile.profile.entries().map(|it| it.count).sum();
        let value: u64 = profile.profile.entries().map(|it| it.value).sum();
        assert_eq!(count, samples.len() as u64);
        assert_eq!(value, samples.iter().map(|it| it.value).sum::<u64>());
        for format in FORMATS.iter().filter(|it| !matches!(it.export, Export::Timeline(_))) {
            assert!(!exported(&read, format.name).is_empty(), "{}", format.name);
        }
    }
}
