//! `go tool pprof` reads what the pprof format writes.

use std::{fs, process::Command, sync::Arc};

use jiff::tz::TimeZone;
use profiler_profile::{
    export::{format::Format, output::Output},
    import::{self, Counted, Filter, Frame, Imported, Limits, Stack, pprof},
    profile::Profile,
    sample::Sample,
    source::Source,
    store::Store,
};

use crate::run::{
    at_line, cpu_clock, export, export_within, function, inlined, kernel, options, page_faults,
    sample, stack, task, unmapped, unnamed,
};

/// What `go tool pprof` says of a profile; `None` if Go is not installed.
fn go_pprof(profile: &[u8], arguments: &[&str]) -> Option<String> {
    run(profile, arguments).map(|text| String::from_utf8(text).unwrap())
}

fn run(profile: &[u8], arguments: &[&str]) -> Option<Vec<u8>> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("profile.pb.gz");
    fs::write(&file, profile).unwrap();
    let output = Command::new("go")
        .args(["tool", "pprof"])
        .args(arguments)
        .arg(&file)
        .env("PPROF_TMPDIR", directory.path())
        .env("PPROF_BINARY_PATH", directory.path())
        .env("TZ", "UTC")
        .output();
    let Ok(output) = output else {
        eprintln!("skipped: go is not installed");
        return None;
    };
    let errors = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{errors}");
    // It complains of nothing.
    let is_complaint = |line: &&str| !line.starts_with("Generating report in ");
    assert_eq!(errors.lines().find(is_complaint), None);
    Some(output.stdout)
}

/// Two processes of one program, at the same places of it, and one of them in the kernel, too.
fn samples(store: &mut Store, clock: &Arc<Source>) -> Vec<Sample> {
    let (one, other) = (task(812, 840, "mysqld"), task(9, 9, "mysqld"));
    let main = || at_line(function("main", "/usr/sbin/mysqld", 0x40), "/src/main.cc", 12);
    let search = function("<Index<Row; 2> as Tree>::search", "/usr/sbin/mysqld", 0x120);
    let search = at_line(search, "/src/index.rs", 77);
    let compare = at_line(function("compare", "/usr/sbin/mysqld", 0x120), "/src/key.rs", 5);
    let empty = store.empty();
    let in_index = stack(store, &[&[inlined(compare), search], &[main()]]);
    let in_libc = stack(store, &[&[unnamed("/usr/lib/libc.so.6", 0x3a4f1)], &[main()]]);
    let nowhere = stack(store, &[&[unmapped()], &[main()]]);
    let read = stack(store, &[&[kernel("vfs_read")], &[kernel("entry_SYSCALL_64")]]);
    let on_main = stack(store, &[&[main()]]);
    vec![
        sample(clock, &one, 10_000_000, [&empty, &in_index]),
        sample(clock, &one, 10_000_000, [&empty, &in_index]),
        sample(clock, &other, 10_000_000, [&empty, &in_index]),
        sample(clock, &other, 10_000_000, [&empty, &in_libc]),
        sample(clock, &one, 25_000_000, [&read, &on_main]),
        sample(clock, &one, 10_000_000, [&empty, &nowhere]),
    ]
}

/// The text behind the line of columns.
fn rows(text: &str) -> Vec<&str> {
    let rows = text.lines().skip_while(|line| !line.trim_start().starts_with("flat  flat%"));
    rows.skip(1).map(str::trim).collect()
}

#[test]
fn the_hottest_functions() {
    let clock = cpu_clock();
    let profile = export("pprof", &[&clock], &samples(&mut Store::default(), &clock));
    let Some(text) = go_pprof(&profile, &["-top"]) else { return };
    assert_eq!(
        text.lines().take(9).collect::<Vec<_>>(),
        [
            "File: mysqld",
            "Build ID: ab10",
            "profiler 1.2.3",
            "cpu-clock at 100 Hz for 10.00 s on 1 CPUs",
            "9 samples expected, 6 delivered, 0 filtered, 3 lost (ring full 3)",
            "user stacks: 75.0 % complete; no unwind info 1",
            "Type: cpu",
            "Time: 2023-11-14 22:13:25 UTC",
            "Duration: 10s, Total samples = 75ms ( 0.75%)",
        ]
    );
    assert_eq!(
        rows(&text),
        [
            "30ms 40.00% 40.00%       30ms 40.00%  compare (inline)",
            "25ms 33.33% 73.33%       25ms 33.33%  vfs_read",
            "10ms 13.33% 86.67%       10ms 13.33%  [libc.so.6]",
            "10ms 13.33%   100%       10ms 13.33%  [unknown]",
            "0     0%   100%       30ms 40.00%  <Index<Row; 2> as Tree>::search",
            "0     0%   100%       25ms 33.33%  entry_SYSCALL_64",
            "0     0%   100%       75ms   100%  main",
        ]
    );
    let text = go_pprof(&profile, &["-top", "-sample_index=samples", "-lines"]).unwrap();
    assert_eq!(
        rows(&text),
        [
            "3 50.00% 50.00%          3 50.00%  compare /src/key.rs:5 (inline)",
            "1 16.67% 66.67%          1 16.67%  [libc.so.6]",
            "1 16.67% 83.33%          1 16.67%  [unknown]",
            "1 16.67%   100%          1 16.67%  vfs_read",
            "0     0%   100%          3 50.00%  <Index<Row; 2> as Tree>::search /src/index.rs:77",
            "0     0%   100%          1 16.67%  entry_SYSCALL_64",
            "0     0%   100%          6   100%  main /src/main.cc:12",
        ]
    );
}

#[test]
fn callers_and_callees() {
    let clock = cpu_clock();
    let profile = export("pprof", &[&clock], &samples(&mut Store::default(), &clock));
    let Some(text) = go_pprof(&profile, &["-tree"]) else { return };
    let parts: Vec<Vec<&str>> = text
        .split("----------------------------------------------------------+-------------\n")
        .map(|part| part.lines().map(str::trim).collect())
        .collect();
    for part in [
        &[
            "30ms   100% |   <Index<Row; 2> as Tree>::search (inline)",
            "30ms 40.00% 40.00%       30ms 40.00%                | compare",
        ][..],
        &[
            "25ms   100% |   main",
            "0     0%   100%       25ms 33.33%                | entry_SYSCALL_64",
            "25ms   100% |   vfs_read",
        ],
        &[
            "0     0%   100%       75ms   100%                | main",
            "30ms 40.00% |   <Index<Row; 2> as Tree>::search",
            "25ms 33.33% |   entry_SYSCALL_64",
            "10ms 13.33% |   [libc.so.6]",
            "10ms 13.33% |   [unknown]",
        ],
    ] {
        assert!(parts.iter().any(|it| it == part), "{part:#?} is not in {text}");
    }
}

#[test]
fn all_that_is_in_it() {
    let clock = cpu_clock();
    let mut samples = samples(&mut Store::default(), &clock);
    let profile = export("pprof", &[&clock], &samples);
    // The order in which samples come makes no difference.
    samples.reverse();
    assert!(profile == export("pprof", &[&clock], &samples));

    let Some(text) = go_pprof(&profile, &["-raw"]) else { return };
    let labels = |pid: u32, tid: u32| {
        let container = "c0ffee".repeat(10) + "c0ff";
        format!(
            "                cgroup:[/system.slice/mysqld.service] comm:[mysqld] container:[{container}] \
             process:[mysqld]\n\
             \x20               pid:[{pid}] tid:[{tid}]\n"
        )
    };
    let (one, other) = (labels(812, 840), labels(9, 9));
    let expected = format!(
        "PeriodType: cpu nanoseconds\n\
         Period: 10000000\n\
         Time: 2023-11-14 22:13:25 +0000 UTC\n\
         Duration: 10s\n\
         Samples:\n\
         samples/count cpu/nanoseconds[dflt]\n\
         \x20         1   10000000: 1 2 \n{other}\
         \x20         1   10000000: 3 2 \n{other}\
         \x20         2   20000000: 1 2 \n{one}\
         \x20         1   25000000: 5 4 2 \n{one}\
         \x20         1   10000000: 6 2 \n{one}\
         Locations\n\
         \x20    1: 0x0 M=1 compare /src/key.rs:5:0 s=0()\n\
         \x20            <Index<Row; 2> as Tree>::search /src/index.rs:77:0 s=0()\n\
         \x20    2: 0x0 M=1 main /src/main.cc:12:0 s=0()\n\
         \x20    3: 0x3a4f1 M=2 [libc.so.6] :0:0 s=0()\n\
         \x20    4: 0x0 M=3 entry_SYSCALL_64 :0:0 s=0()\n\
         \x20    5: 0x0 M=3 vfs_read :0:0 s=0()\n\
         \x20    6: 0x0 M=4 [unknown] :0:0 s=0()\n\
         Mappings\n\
         1: 0x0/0x0/0x0 /usr/sbin/mysqld ab10 [FN][FL][LN][IN]\n\
         2: 0x0/0x0/0x0 /usr/lib/libc.so.6 ab12 [FN]\n\
         3: 0x0/0x0/0x0 [kernel.kallsyms]  [FN]\n\
         4: 0x0/0x0/0x0 [unknown]  [FN]\n"
    );
    let without_comments: String = text
        .lines()
        .filter(|line| !line.starts_with("Comment: "))
        .flat_map(|it| [it, "\n"])
        .collect();
    assert_eq!(without_comments, expected);
}

#[test]
fn what_go_writes_reads_back() {
    let clock = cpu_clock();
    let ours = export("pprof", &[&clock], &samples(&mut Store::default(), &clock));
    let Some(theirs) = run(&ours, &["-proto", "-output=/dev/stdout"]) else { return };
    let [ours, theirs] = [ours, theirs].map(|it| pprof::read(&it, &Limits::default()).unwrap());
    assert_eq!(theirs.totals(), [6, 75_000_000]);
    // Their table of locations and the order of labels are others.
    let stacks = |profile: &Imported| {
        let stack = |stack: &Stack| {
            let mut labels: Vec<String> =
                stack.labels.iter().map(|it| format!("{} {:?}", it.key, it.value)).collect();
            labels.sort_unstable();
            let frames: Vec<Frame> = profile.frames_of(stack).cloned().collect();
            (frames, labels, stack.values.clone())
        };
        profile.stacks.iter().map(stack).collect::<Vec<_>>()
    };
    assert_eq!(stacks(&ours), stacks(&theirs));
    assert_eq!((ours.value_types, ours.period), (theirs.value_types, theirs.period));
    assert_eq!((ours.begun_ns, ours.comments), (theirs.begun_ns, theirs.comments));
}

#[test]
fn two_sources_are_two_pairs_of_values() {
    let mut store = Store::default();
    let (clock, faults) = (cpu_clock(), page_faults(1));
    let (empty, task) = (store.empty(), task(1, 2, "a b"));
    let mut run = |name| stack(&mut store, &[&[function(name, "/bin/a", 1)]]);
    let (one, other) = (run("one"), run("other"));
    let samples = [
        sample(&clock, &task, 10_000_000, [&empty, &one]),
        sample(&faults, &task, 3, [&empty, &one]),
        sample(&faults, &task, 4, [&empty, &one]),
        sample(&faults, &task, 1, [&empty, &other]),
    ];
    let profile = export("pprof", &[&clock, &faults], &samples);
    let Some(text) = go_pprof(&profile, &["-raw"]) else { return };
    let types = "cpu-clock_samples/count cpu-clock/nanoseconds[dflt] page-faults_samples/count page-faults/count";
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let at = lines.iter().position(|line| *line == types).unwrap();
    assert_eq!(
        (lines[at + 1], lines[at + 4]),
        ("1   10000000          2          7: 1", "0          0          1          1: 2")
    );
    let text = go_pprof(&profile, &["-top", "-sample_index=page-faults"]).unwrap();
    let hot =
        ["7 87.50% 87.50%          7 87.50%  one", "1 12.50%   100%          1 12.50%  other"];
    assert_eq!(rows(&text), hot);
}

#[test]
fn what_there_is_no_room_for_is_one_frame() {
    let mut store = Store::default();
    let (clock, empty, task) = (cpu_clock(), store.empty(), task(1, 2, "a"));
    let mut of = |name| {
        let user = stack(&mut store, &[&[function(name, "/bin/a", name.as_bytes()[0].into())]]);
        sample(&clock, &task, 10_000_000, [&empty, &user])
    };
    let samples = [of("a"), of("b"), of("a"), of("c")];
    let mut room = Profile::new(1 << 20);
    room.add(&samples[0]);
    let limit_bytes = room.account().bytes.try_into().unwrap();
    let profile = export_within(limit_bytes, "pprof", &[&clock], &samples);
    let Some(text) = go_pprof(&profile, &["-top"]) else { return };
    assert_eq!(
        rows(&text),
        [
            "20ms 50.00% 50.00%       20ms 50.00%  [stacks beyond --max-memory]",
            "20ms 50.00%   100%       20ms 50.00%  a",
        ]
    );
}

#[test]
fn little_is_enough() {
    let mut store = Store::default();
    let (clock, empty, task) = (cpu_clock(), store.empty(), task(1, 2, "a"));
    let Some(text) = go_pprof(&export("pprof", &[&clock], &[]), &["-top"]) else { return };
    assert!(text.contains("\nDuration: 10s, Total samples = 0"), "{text}");
    // Without a single mapping, or a frame.
    let nowhere = stack(&mut store, &[&[unmapped()]]);
    let samples = [
        sample(&clock, &task, 10_000_000, [&empty, &nowhere]),
        sample(&clock, &task, 10_000_000, [&empty, &empty]),
    ];
    let text = go_pprof(&export("pprof", &[&clock], &samples), &["-top"]).unwrap();
    assert!(text.contains("Total samples = 20ms"), "{text}");
    assert_eq!(rows(&text), ["10ms 50.00% 50.00%       10ms 50.00%  [unknown]"]);
}

#[test]
fn names_that_anybody_chose() {
    let mut store = Store::default();
    let (clock, empty) = (cpu_clock(), store.empty());
    let names = ["a;b", "c\nd", "<T as \"U\">::e&", "\x1b]0;f\x07", "\u{202e}g"];
    let samples = names.map(|name| {
        let user = stack(&mut store, &[&[function(name, "/bin/\x1b[2J", 1)]]);
        sample(&clock, &task(1, 2, "h\ni"), 10_000_000, [&empty, &user])
    });
    let profile = export("pprof", &[&clock], &samples);
    let Some(text) = go_pprof(&profile, &["-top"]) else { return };
    let names = rows(&text).into_iter().map(|row| row.rsplit_once("%  ").unwrap().1);
    assert_eq!(
        names.collect::<Vec<_>>(),
        ["<T as \"U\">::e&", "\\u{202e}g", "\\x1b]0;f\\x07", "a;b", "c\\nd"]
    );
    let text = go_pprof(&profile, &["-raw"]).unwrap();
    assert!(text.contains(" comm:[h\\ni]"), "{text}");
    assert!(text.contains("\n1: 0x0/0x0/0x0 /bin/\\x1b[2J ab"), "{text}");
}

#[test]
fn a_converted_profile_shows_the_same() {
    let clock = cpu_clock();
    let before = export("pprof", &[&clock], &samples(&mut Store::default(), &clock));
    let read = pprof::read(&before, &Limits::default()).unwrap();
    let counted = Counted::of(&read, &Filter::default(), "profiler", TimeZone::UTC).unwrap();
    let mut after = Vec::new();
    let export = Format::find("pprof").unwrap().export;
    let mut output = Output::new(export, options(&[&clock]), &mut after);
    output.finish(&counted.profile, &counted.about).unwrap();
    drop(output);
    let again = pprof::read(&after, &Limits::default()).unwrap();
    assert_eq!(again.totals(), read.totals());
    for view in ["-top", "-tree", "-tags"] {
        let Some(shown) = go_pprof(&before, &[view]) else { return };
        assert_eq!(go_pprof(&after, &[view]).unwrap(), shown, "{view}");
    }
    let folded =
        import::folded::read(b"web;main;work 3\nweb;main 1\n", &Limits::default()).unwrap();
    let counted = Counted::of(&folded, &Filter::default(), "profiler", TimeZone::UTC).unwrap();
    let mut written = Vec::new();
    let mut output = Output::new(export, options(&[&clock]), &mut written);
    output.finish(&counted.profile, &counted.about).unwrap();
    drop(output);
    let text = go_pprof(&written, &["-top"]).unwrap();
    assert_eq!(
        rows(&text),
        [
            "3 75.00% 75.00%          3 75.00%  work",
            "1 25.00%   100%          4   100%  main",
            "0     0%   100%          4   100%  web",
        ]
    );
}
