use std::{collections::BTreeSet, io::Write as _, sync::LazyLock};

use flate2::{Compression, write::GzEncoder};
use proptest::{prelude::*, sample::Index};

use super::*;
use crate::{
    export::{
        format::Export,
        pprof::FORMAT,
        tests::{self, location, sample},
    },
    frame,
    printable::printable,
    sample::{Sample, Task},
    source::Source,
    store::Store,
};

/// A profile of two sources as we write it, and the samples that are in it.
pub(in crate::import) fn written() -> (Vec<u8>, Vec<Sample>) {
    let mut store = Store::default();
    let named = |name: &str| frame::Frame {
        symbol: Some(Arc::from(name)),
        module: Some(Arc::from("/bin/a")),
        source: Some((Arc::from("a.rs"), Some(7))),
        ..frame::Frame::default()
    };
    let inlined = frame::Frame { inlined: true, ..named("inner") };
    let unnamed = frame::Frame { symbol: None, source: None, offset: 0x123, ..named("") };
    let kernel = frame::Frame { symbol: Some(Arc::from("read")), ..frame::Frame::default() };
    let kernel = store.intern(vec![location(1, &[kernel])]);
    let one =
        store.intern(vec![location(2, &[inlined, named("outer")]), location(3, &[named("main")])]);
    let other = store.intern(vec![location(4, &[unnamed])]);
    let of = sample();
    let faults = Source { slot: 1, name: "faults".into(), ..(*of.source).clone() };
    let (cycles, faults) = (Arc::clone(&of.source), Arc::new(faults));
    let mut samples = Vec::new();
    for (number, (source, user)) in [(&cycles, &one), (&faults, &one), (&cycles, &other)]
        .into_iter()
        .cycle()
        .take(20)
        .enumerate()
    {
        let tid = if number % 5 == 0 { 6 } else { 5 };
        let task = Task { tid, ..of.task.clone() };
        let kernel = if number % 2 == 0 { Arc::clone(&kernel) } else { store.empty() };
        let (source, user, value) = (Arc::clone(source), Arc::clone(user), 10 + number as u64);
        samples.push(Sample { source, value, task, kernel, user, ..of.clone() });
    }
    let faults = (*faults).clone();
    (export(&samples, &[(*cycles).clone(), faults]), samples)
}

/// What we write of samples of these sources.
fn export(samples: &[Sample], sources: &[Source]) -> Vec<u8> {
    let Export::Whole(write) = FORMAT.export else { panic!() };
    tests::written(write, samples, sources, 1 << 20)
}

fn decompressed_profile() -> Vec<u8> {
    decompressed(&written().0, usize::MAX).unwrap().into_owned()
}

fn gzipped(bytes: &[u8]) -> Vec<u8> {
    let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
    gzip.write_all(bytes).unwrap();
    gzip.finish().unwrap()
}

#[test]
fn what_was_written_reads_back() {
    let (bytes, samples) = written();
    let profile = read(&bytes, &Limits::default()).unwrap();
    let types: Vec<(&str, &str)> =
        profile.value_types.iter().map(|it| (&*it.name, &*it.unit)).collect();
    let expected = [
        ("cycles_samples", "count"),
        ("cycles", "count"),
        ("faults_samples", "count"),
        ("faults", "count"),
    ];
    assert_eq!((types, profile.default_value), (expected.to_vec(), 1));
    let of_slot = |slot| samples.iter().filter(move |it| it.source.slot == slot);
    let sums = [0, 1].map(|slot| {
        let (count, sum) = (of_slot(slot).count(), of_slot(slot).map(|it| it.value).sum::<u64>());
        [i128::try_from(count).unwrap(), i128::from(sum)]
    });
    assert_eq!(profile.totals(), sums.concat());
    assert_eq!(
        (profile.begun_ns, profile.duration_ns),
        (Some(1_700_000_001_000_000_000), Some(1_000_000_000))
    );
    let mean = sums[0][1] / sums[0][0];
    let (period, every) = profile.period.clone().unwrap();
    assert_eq!((&*period.name, i128::from(every)), ("cycles", mean));
    assert_eq!(profile.comments[0], "profiler 1");

    let text = |stack: &Stack| -> String {
        let frame = |it: &super::super::Frame| {
            let name = it.name.as_deref().unwrap();
            let marks = [(it.is_kernel, "k"), (it.inlined, "i")];
            let marks: String = marks.iter().filter(|it| it.0).map(|it| it.1).collect();
            format!("{name}{marks} {}:{}", it.file.as_deref().unwrap_or("?"), it.line.unwrap_or(0))
        };
        profile.frames_of(stack).map(frame).collect::<Vec<_>>().join(", ")
    };
    let whole = "readk ?:0, inneri a.rs:7, outer a.rs:7, main a.rs:7";
    assert!(profile.stacks.iter().any(|it| text(it) == whole));
    let labels = |tid| {
        let number = |key, number| (Arc::from(key), LabelValue::Number(number));
        let name = |key| (Arc::from(key), LabelValue::Text(Arc::from("a")));
        let of = [name("comm"), name("process"), number("pid", 4), number("tid", tid)];
        of.map(|(key, value)| Label { key, value })
    };
    assert_eq!(profile.stacks.first().unwrap().labels, labels(5));
    assert_eq!(profile.stacks.last().unwrap().labels, labels(6));
    // gzip is not needed.
    assert_eq!(read(&decompressed_profile(), &Limits::default()), Ok(profile));
}

#[test]
fn numbers_may_stand_alone_or_together() {
    // Other writers pack the comments or do not.
    let texts = [0x0a, 0, 0x32, 0, 0x32, 1, b'a', 0x32, 1, b'b'];
    for comments in [&[0x68, 1, 0x68, 2][..], &[0x6a, 2, 1, 2]] {
        let profile = read(&[comments, &texts].concat(), &Limits::default()).unwrap();
        assert_eq!(profile.comments, ["a", "b"]);
    }
}

#[test]
fn what_is_wrong_has_its_place() {
    let texts = [0x32, 0];
    let of_type = [0x0a, 0];
    for (parts, message) in [
        (
            &[&[0x32, 1, b'a'][..]][..],
            "byte 0 of the decompressed profile: the first text is not empty",
        ),
        (
            &[&texts, &[0x0a, 2, 8, 9]],
            "byte 2 of the decompressed profile: there is no text 9: there are 1",
        ),
        (
            &[&texts, &of_type, &[0x12, 4, 0x10, 1, 0x10, 2]],
            "byte 4 of the decompressed profile: the sample has 2 values of 1 types",
        ),
        (
            &[&texts, &[0x12, 0]],
            "byte 4 of the decompressed profile: the profile ends without saying what its values are",
        ),
        (
            &[&texts, &of_type, &[0x12, 4, 8, 3, 0x10, 1]],
            "byte 4 of the decompressed profile: there is no location 3",
        ),
        (
            &[&texts, &[0x22, 2, 8, 1, 0x22, 2, 8, 1]],
            "byte 6 of the decompressed profile: the location 1 is there twice",
        ),
        (
            &[&texts, &[0x22, 4, 8, 1, 0x10, 5]],
            "byte 2 of the decompressed profile: there is no mapping 5",
        ),
        (
            &[&texts, &[0x22, 6, 8, 1, 0x22, 2, 8, 5]],
            "byte 2 of the decompressed profile: there is no function 5",
        ),
        (
            &[&texts, &[0x2a, 0]],
            "byte 2 of the decompressed profile: the function has the id 0, which means none",
        ),
        (&[&texts, &[0x12, 4, 1]], "byte 2 of the decompressed profile: the field is cut short"),
    ] {
        let error = read(&parts.concat(), &Limits::default()).unwrap_err();
        assert_eq!(error.to_string(), message);
    }
    let error =
        read(&[0x0a, 0, 0x32, 0, 0x12, 2, 8, 0x80], &Limits::default()).unwrap_err().to_string();
    assert!(error.starts_with("byte 4 of the decompressed profile: sample: "), "{error}");
}

#[test]
fn a_bomb_is_not_decompressed() {
    // A hundred times smaller than what comes out of it.
    let bomb = gzipped(&vec![0; 8 << 20]);
    assert!(bomb.len() < 1 << 17, "{}", bomb.len());
    let limits = Limits { bytes: 1 << 20, ..Limits::default() };
    let error = read(&bomb, &limits).unwrap_err();
    assert_eq!(error, Error::TooLarge { limit: 1 << 20 });
    assert_eq!(error.to_string(), "it has more than 1048576 bytes, decompressed");
    // A location with many lines, and a sample that has it many times.
    let mut profile = vec![0x32, 0, 0x0a, 0, 0x22, 0xd2, 0x0f, 8, 1];
    profile.extend([0x22, 0].repeat(1000));
    profile.extend([0x12, 0xd2, 0x0f, 0x10, 1]);
    profile.extend([8, 1].repeat(1000));
    let frames = read(&profile, &Limits::default()).map(|it| it.stacks[0].frames.len());
    assert_eq!(frames, Ok(1_000_000));
    let limits = Limits { things: 100_000, ..Limits::default() };
    assert_eq!(read(&profile, &limits), Err(Error::TooMany { limit: 100_000 }));
    // A list whose numbers take a byte each, and eight when they are read.
    let mut profile = vec![0x32, 0, 0x0a, 0, 0x12, 0xc5, 0x9a, 0x0c, 0x0a, 0xc1, 0x9a, 0x0c];
    profile.extend(vec![1; 200_001]);
    assert_eq!(read(&profile, &limits), Err(Error::TooMany { limit: 100_000 }));
    let limits = Limits { things: 1_000_000, ..limits };
    assert_eq!(
        read(&profile, &limits).unwrap_err().to_string(),
        "byte 4 of the decompressed profile: the sample has 0 values of 1 types"
    );
}

#[test]
fn a_truncated_file_says_where() {
    let bytes = written().0;
    for length in 2..bytes.len() {
        let error = read(&bytes[..length], &Limits::default()).unwrap_err();
        assert!(matches!(error, Error::Gzip { .. }), "{length}: {error}");
    }
    let profile = decompressed_profile();
    for length in 0..profile.len() {
        match read(&profile[..length], &Limits::default()).unwrap_err() {
            Error::Byte { at, .. } => assert!(at <= length),
            error => panic!("{error}"),
        }
    }
}

proptest! {
    #[test]
    fn mutated_files_are_read_or_refused(
        changes in prop::collection::vec((any::<Index>(), any::<u8>()), 1..8),
        in_gzip in any::<bool>(),
    ) {
        static FILES: LazyLock<[Vec<u8>; 2]> =
            LazyLock::new(|| [decompressed_profile(), written().0]);
        let mut bytes = FILES[usize::from(in_gzip)].clone();
        for (place, byte) in changes {
            let place = place.index(bytes.len());
            bytes[place] = byte;
        }
        let limits = Limits { bytes: 1 << 20, things: 1 << 16 };
        if let Ok(profile) = read(&bytes, &limits) {
            for stack in &profile.stacks {
                prop_assert_eq!(profile.frames_of(stack).count(), stack.frames.len());
                prop_assert_eq!(stack.values.len(), profile.value_types.len());
            }
        }
    }

    #[test]
    fn whatever_functions_are_called(
        calls in prop::collection::vec((any::<String>(), any::<u32>(), 0_u32..3), 0..20),
    ) {
        let mut store = Store::default();
        let of = sample();
        let function = |name: &str| frame::Frame {
            symbol: Some(Arc::from(name)),
            ..frame::Frame::default()
        };
        let mut one = |(at, (name, value, tid)): (u64, &(String, u32, u32))| Sample {
            value: (*value).into(),
            user: store.intern(vec![location(at, &[function(name)])]),
            task: Task { tid: *tid, ..of.task.clone() },
            ..of.clone()
        };
        let samples: Vec<Sample> = (1..).zip(&calls).map(&mut one).collect();
        let bytes = export(&samples, &[(*of.source).clone()]);
        let profile = read(&bytes, &Limits::default()).unwrap();
        let sum: i128 = calls.iter().map(|(_, value, _)| i128::from(*value)).sum();
        prop_assert_eq!(profile.totals(), [i128::try_from(calls.len()).unwrap(), sum]);
        let name = |name: &String| match name.trim() {
            "" => "[unknown]".to_owned(),
            _ => printable(name).into_owned(),
        };
        let expected: BTreeSet<String> = calls.iter().map(|(it, _, _)| name(it)).collect();
        let names = profile.frames.iter().map(|it| it.name.as_deref().unwrap().to_owned());
        prop_assert_eq!(names.collect::<BTreeSet<String>>(), expected);
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in any::<Vec<u8>>()) {
        let _ = read(&bytes, &Limits::default());
    }
}
