//! What is on the screen, of a run that is always the same.
//!
//! The pictures are in `tests/screens`. To make them anew: `PROFILER_GOLDEN=write cargo test -p profiler --lib top`; then look
//! at them.

use std::{fs, path::Path, sync::Arc, time::Duration};

use crossterm::event::{
    Event, KeyCode, KeyEvent, KeyModifiers, MouseButton, MouseEvent, MouseEventKind,
};
use profiler_profile::{
    address::Address,
    export::Row,
    frame::{Frame, Origin},
    ledger::Lost,
    live::{Span, Spawns, Vitals, Window},
    process::{Container, Metadata},
    sample::{Comm, Sample, Task},
    source::{Counts, Rate, Source},
    stack::{Location, Stack},
    stack_end::StackEnd,
    store::Store,
};
use ratatui_core::{backend::TestBackend, buffer::Buffer, style::Color};

use super::{
    app::{App, Crumb, Order, View, Wish},
    keys, machine,
    model::{Body, Model},
    prompt::Purpose,
    refusal,
    screen::draw,
    terminal::{Looks, Painter},
};

const PLAIN: Looks = Looks { colours: false };
const COLOURS: Looks = Looks { colours: true };

/// Half a stack, innermost first: names with their files.
fn stack(store: &mut Store, of: &[(&str, &str)]) -> Arc<Stack> {
    let location = |(at, (name, module)): (u64, &(&str, &str))| {
        let symbol = Some(Arc::from(*name)).filter(|_| !name.is_empty());
        let origin = if name.is_empty() { Origin::NoMap } else { Origin::Elf };
        let module = Some(Arc::from(*module)).filter(|_| !module.is_empty());
        let frame = Frame { symbol, module, origin, ..Frame::default() };
        Location { address: Address::sampled(at), frames: Arc::from([frame]) }
    };
    store.intern((1..).zip(of).map(location).collect())
}

fn source() -> Arc<Source> {
    let (name, rate) = ("cpu-clock".into(), Rate::Frequency(100));
    Arc::new(Source { slot: 0, name, counts: Counts::Clock, rate })
}

fn task(tgid: u32, tid: u32, names: [&str; 2], command: &str, unit: Option<&str>) -> Task {
    let [main, thread] = names;
    let metadata = Metadata {
        command_line: Some(command.into()),
        container: (main == "node").then(|| Container { id: "3f2a".repeat(16), runtime: None }),
        unit: unit.map(str::to_owned),
        ..Metadata::default()
    };
    let (comm, main_comm) = (Comm::of(thread), Comm::of(main));
    Task { tgid, tid, comm, main_comm, process: Some(Arc::new(metadata)), ..Task::default() }
}

/// Samples of a web server with two threads, of a runtime that tells no names, and of a program whose names would
/// break a terminal.
fn samples() -> Vec<Sample> {
    let store = &mut Store::default();
    let (web, libc) = ("/usr/sbin/web", "/usr/lib/x86_64-linux-gnu/libc.so.6");
    let read = [("copy_to_user", ""), ("vfs_read", ""), ("entry_SYSCALL_64", "")];
    let odd = "一二三<\u{1b}[2J\u{202e}>\n";
    let one = task(812, 812, ["web", "web"], "/usr/sbin/web --port 80", Some("web.service"));
    let two = task(812, 815, ["web", "worker"], "/usr/sbin/web --port 80", Some("web.service"));
    let node = task(99, 99, ["node", "node"], "/usr/bin/node server.js", None);
    let bad = task(7, 7, [odd, odd], &format!("./{odd}"), Some("user@1000.service"));
    let of = |task: &Task, cpu, count, user: Arc<Stack>, kernel: Arc<Stack>, user_end| {
        let (source, task) = (source(), task.clone());
        let one = Sample {
            source,
            time_ns: 1_000_000_000,
            value: 10_000_000,
            cpu,
            task,
            kernel,
            user,
            user_end,
            from_snapshot: false,
        };
        std::iter::repeat_n(one, count)
    };
    let none = || Store::default().empty();
    let whole = StackEnd::Complete;
    let parse = stack(store, &[("parse(std::string const&)", web), ("handle", web), ("main", web)]);
    let copy = stack(store, &[("memcpy", libc), ("handle", web), ("main", web)]);
    let reads = stack(store, &[("read", libc), ("handle", web), ("main", web)]);
    let in_kernel = stack(store, &read);
    let made = stack(store, &[("", ""), ("run", "/usr/bin/node")]);
    let strange = stack(store, &[(odd, odd), ("main", "/bin/odd")]);
    [
        of(&one, 0, 40, Arc::clone(&parse), none(), whole),
        of(&two, 1, 20, parse, none(), whole),
        of(&two, 1, 10, copy, none(), whole),
        of(&one, 0, 10, reads, in_kernel, whole),
        of(&node, 1, 15, made, none(), StackEnd::NoFramePointer),
        of(&bad, 0, 5, strange, none(), whole),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn window() -> Window {
    let mut window = Window::new(Duration::from_secs(10), 1 << 20, 0);
    for it in &samples() {
        window.add(&Row::from(it));
    }
    window
}

/// A model on a machine with so many CPUs.
fn model(cpus: u64) -> Model {
    let mut model = Model::new(vec![source()]);
    for look in 0..6_u64 {
        let line = |cpu: u64| {
            let busy = look * look * (cpu % 4);
            format!("cpu{cpu} {busy} 0 {look} {} 0 0 0 0\n", 40 * look)
        };
        let lines: String = (0..cpus).map(line).collect();
        model.machine.take(&format!(
            "cpu {} 0 {} {} 0 0 0 0\n{lines}",
            look * 60,
            look * 15,
            look * 25
        ));
    }
    model.vitals = Vitals {
        lost: Lost { ring_full: 3, ..Lost::default() },
        cpu: Duration::from_secs(1),
        memory_bytes: 45 << 20,
        is_behind: false,
    };
    model.own_cpu = Some(0.012);
    model.take(window().snapshot(Span::Window, 2_000_000_000));
    let mut spawns = spawns();
    model.spawn_rate = spawns.rate(2_000_000_000);
    model.begun = spawns.snapshot(Span::Window, 2_000_000_000);
    model
}

/// A script that starts a process for each sum, and a server that forks.
fn spawns() -> Spawns {
    let mut spawns = Spawns::new(Duration::from_secs(10), 0);
    let of = |unit: &str| Metadata { unit: Some(unit.into()), ..Metadata::default() };
    let (cron, web) = (of("cron.service"), of("web.service"));
    for at in 0..314_u32 {
        let (tgid, began_ns) = (10_000 + at, u64::from(at) * 6_000_000);
        spawns.forked((tgid, 77), Comm::of("storm.sh"), Some(&cron), began_ns);
        spawns.executed(tgid, Comm::of("expr"));
        if at == 300 {
            let command_line = Some("expr 17 + 4".into());
            spawns.described(tgid, &Metadata { command_line, ..cron.clone() });
        }
        spawns.ended(tgid, began_ns + 4_100_000);
    }
    spawns.forked((812, 800), Comm::of("web"), Some(&web), 1_500_000_000);
    spawns.forked((20_000, 1), Comm::of("systemd"), None, 1_600_000_000);
    spawns.executed(20_000, Comm::of("<\u{1b}[2J>"));
    spawns
}

/// What is on a screen of this size.
fn picture(app: &mut App, model: &mut Model, looks: Looks, size: (u16, u16)) -> Buffer {
    let mut painter = Painter::new(TestBackend::new(size.0, size.1));
    let told = ["profiler: no hardware PMU; sampling cpu-clock in place of cycles".to_owned()];
    model.choose(app);
    painter.paint(|buffer| draw(buffer, app, model, looks, &told)).unwrap();
    painter.backend().buffer().clone()
}

/// Its text, without what is blank at the ends of lines.
fn text(buffer: &Buffer) -> String {
    let mut text = String::new();
    for line in buffer.content.chunks(usize::from(buffer.area.width.max(1))) {
        let mut left = 0;
        let mut shown = String::new();
        for cell in line {
            // What is behind a wide character is no blank.
            if left == 0 {
                shown += cell.symbol();
                left = super::canvas::width(cell.symbol()).max(1);
            }
            left -= 1;
        }
        text += shown.trim_end();
        text.push('\n');
    }
    text
}

/// Compares a picture with the one that is kept.
fn check(name: &str, text: &str) {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/screens").join(name);
    if std::env::var_os("PROFILER_GOLDEN").is_some() {
        fs::write(&golden, text).unwrap();
    }
    let kept = fs::read_to_string(&golden).unwrap();
    assert!(text == kept, "{name} has changed:\n{text}\nit was:\n{kept}");
}

fn key(code: KeyCode) -> Event {
    Event::Key(KeyEvent::new(code, KeyModifiers::NONE))
}

/// Types keys, one after another; `\n` is Enter, and `\x1b` Esc.
fn type_keys(app: &mut App, model: &mut Model, keys: &str) {
    for it in keys.chars() {
        let code = match it {
            '\n' => KeyCode::Enter,
            '\x1b' => KeyCode::Esc,
            '↓' => KeyCode::Down,
            '→' => KeyCode::Right,
            other => KeyCode::Char(other),
        };
        model.choose(app);
        keys::handle(&key(code), app, model);
    }
    model.choose(app);
}

#[test]
fn every_view_is_as_it_was_looked_at() {
    for (view, name) in [
        (View::Functions, "functions"),
        (View::Processes, "processes"),
        (View::Callers, "callers"),
        (View::Flame, "flame"),
        (View::Threads, "threads"),
        (View::Spawns, "spawns"),
    ] {
        for size in [(80, 24), (120, 40), (200, 60)] {
            let (mut app, mut model) = (App { view, ..App::default() }, model(2));
            let shown = text(&picture(&mut app, &mut model, PLAIN, size));
            assert!(!shown.chars().any(|it| it.is_control() && it != '\n'), "{shown:?}");
            check(&format!("{name}-{}x{}.txt", size.0, size.1), &shown);
        }
    }
}

#[test]
fn many_cpus_are_one_line() {
    for (cpus, name) in [(16, "cpus-16.txt"), (17, "cpus-17.txt"), (400, "cpus-400.txt")] {
        let (mut app, mut model) = (App::default(), model(cpus));
        check(name, &text(&picture(&mut app, &mut model, PLAIN, (80, 24))));
    }
}

#[test]
fn help_and_notices_take_the_place_of_a_view() {
    for (keys, name) in [("?", "help-80x24.txt"), ("L", "log-80x24.txt")] {
        let (mut app, mut model) = (App::default(), model(2));
        type_keys(&mut app, &mut model, keys);
        check(name, &text(&picture(&mut app, &mut model, PLAIN, (80, 24))));
        type_keys(&mut app, &mut model, "x");
        assert!(!app.shows_help && !app.shows_log && app.wish.is_none());
    }
}

#[test]
fn a_screen_that_is_too_small_says_so_and_comes_back() {
    let (mut app, mut model) = (App::default(), model(2));
    for size in [(59, 24), (80, 11), (10, 1), (1, 1), (0, 0)] {
        let shown = text(&picture(&mut app, &mut model, PLAIN, size));
        assert!(!shown.contains("FUNCTION"), "{shown}");
        assert!(size.0 < 30 || shown.contains("needs at least 60×12"), "{shown}");
    }
    let shown = text(&picture(&mut app, &mut model, PLAIN, (60, 12)));
    assert!(shown.contains("FUNCTION") && shown.contains("parse"), "{shown}");
}

#[test]
fn without_colours_there_are_none_and_with_them_kinds_differ() {
    for view in View::ALL {
        let (mut app, mut model) = (App { view, ..App::default() }, model(2));
        let plain = picture(&mut app, &mut model, PLAIN, (80, 24));
        let is_plain = |it: Color| it == Color::Reset;
        assert!(plain.content.iter().all(|it| is_plain(it.fg) && is_plain(it.bg)), "{view:?}");
        let coloured = picture(&mut app, &mut model, COLOURS, (80, 24));
        assert!(!coloured.content.iter().all(|it| is_plain(it.fg) && is_plain(it.bg)), "{view:?}");
    }
    // What a function is part of is told by a letter, too.
    let (mut app, mut model) = (App::default(), model(2));
    let shown = text(&picture(&mut app, &mut model, PLAIN, (80, 24)));
    for line in ["u parse(std::string const&)", "l memcpy", "k copy_to_user", "j "] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
}

#[test]
fn choices_combine_and_are_taken_back() {
    let (mut app, mut model) = (App::default(), model(2));
    assert_eq!(
        (model.total, {
            model.choose(&mut app);
            model.total
        }),
        (0, 100)
    );
    // The second process by CPU is node; the first is web.
    type_keys(&mut app, &mut model, "2\n");
    assert_eq!((app.view, model.total), (View::Functions, 80));
    // The hottest function of it, by whom it is called.
    type_keys(&mut app, &mut model, "\n");
    assert_eq!((app.view, model.total), (View::Callers, 60));
    let Body::Callers(_, found) = &model.body else { panic!() };
    let named: Vec<&str> = found.callers.iter().map(|it| &*model.name(it.0).name).collect();
    assert_eq!((named, found.own), (vec!["handle"], 60));
    type_keys(&mut app, &mut model, "fcpu 1\n");
    assert_eq!(model.total, 20);
    let shown = text(&picture(&mut app, &mut model, PLAIN, (80, 24)));
    let crumbs = "all › web (pid 812) › parse(std::string const&) › CPU 1   20.0% of 100";
    assert!(shown.contains(crumbs), "{shown}");
    for left in [60, 80, 100, 100] {
        type_keys(&mut app, &mut model, "\x1b");
        assert_eq!(model.total, left);
    }
    type_keys(&mut app, &mut model, "fin web\n");
    assert_eq!((model.total, app.crumbs.len()), (80, 1));
    type_keys(&mut app, &mut model, "fin user@1000.service\n5");
    assert_eq!((model.total, model.rows()), (5, 1));
    type_keys(&mut app, &mut model, "fin nowhere\n");
    let prompt = app.prompt.as_ref().unwrap();
    assert!(prompt.wrong.as_ref().unwrap().contains("nothing that was sampled"), "{prompt:?}");
    type_keys(&mut app, &mut model, "\x1b\x1b2↓");
    let shown = text(&picture(&mut app, &mut model, PLAIN, (120, 24)));
    let hint = "restart with --perf-basic-prof --interpreted-frames-native-stack";
    assert!(shown.lines().last().unwrap().contains(hint), "{shown}");
    type_keys(&mut app, &mut model, "\n");
    assert_eq!(app.crumbs, [Crumb::Process(99, "node".into())]);
}

#[test]
fn what_is_chosen_stays_while_rows_move() {
    let (mut app, mut model) = (App::default(), model(2));
    type_keys(&mut app, &mut model, "↓");
    let chosen = model.row(app.place().row).unwrap();
    type_keys(&mut app, &mut model, ">>");
    assert_eq!(model.row(app.place().row), Some(chosen));
    assert_ne!(app.place().row, 1);
    // Who is at the top stays there.
    type_keys(&mut app, &mut model, "g<<");
    assert_eq!(app.place().row, 0);
}

#[test]
fn a_search_finds_with_its_share_or_says_what_is_wrong() {
    let (mut app, mut model) = (App::default(), model(2));
    type_keys(&mut app, &mut model, "/MEMC");
    assert!(app.search.is_none());
    type_keys(&mut app, &mut model, "\n");
    assert_eq!(model.rows(), 0);
    type_keys(&mut app, &mut model, "\x1b/memc|^parse\n");
    assert_eq!(model.rows(), 2);
    type_keys(&mut app, &mut model, "4");
    let shown = text(&picture(&mut app, &mut model, PLAIN, (80, 24)));
    assert!(shown.contains("found 70.0%"), "{shown}");
    type_keys(&mut app, &mut model, "\x1b/a(b\n");
    let prompt = app.prompt.as_ref().unwrap();
    assert!(prompt.wrong.as_ref().unwrap().starts_with("column 2"), "{prompt:?}");
    // It is still being typed.
    type_keys(&mut app, &mut model, "q");
    assert_eq!((app.prompt.as_ref().unwrap().text.as_str(), &app.wish), ("a(bq", &None));
}

#[test]
fn the_next_of_what_was_found_is_chosen() {
    let (mut app, mut model) = (App { view: View::Flame, ..App::default() }, model(2));
    let names = |app: &App| app.call.iter().map(|it| it.name.clone()).collect::<Vec<_>>().join(" ");
    type_keys(&mut app, &mut model, "n");
    assert_eq!(names(&app), "", "nothing is looked for");
    type_keys(&mut app, &mut model, "/^(memcpy|read|run)$\n");
    let found = ["node run", "web main handle memcpy", "web main handle read"];
    for expected in found.iter().chain(&found[..1]) {
        type_keys(&mut app, &mut model, "n");
        assert_eq!(names(&app), *expected);
    }
    for expected in found[1..].iter().rev() {
        type_keys(&mut app, &mut model, "N");
        assert_eq!(names(&app), *expected);
    }
    // Only of what fills the graph.
    type_keys(&mut app, &mut model, "k\n");
    for expected in [found[1], found[2], found[1]] {
        type_keys(&mut app, &mut model, "n");
        assert_eq!(names(&app), expected);
    }
    // Tables have only what was found.
    type_keys(&mut app, &mut model, "1n");
    assert_eq!((model.rows(), app.place().row), (3, 1));
    type_keys(&mut app, &mut model, "N");
    assert_eq!(app.place().row, 0);
}

#[test]
fn keys_of_htop_do_what_they_do_there() {
    let (mut app, mut model) = (App::default(), model(2));
    for (code, purpose, text) in [
        (KeyCode::F(3), Purpose::Search, ""),
        (KeyCode::F(4), Purpose::Filter, ""),
        (KeyCode::Char('\\'), Purpose::Filter, ""),
        (KeyCode::Char('u'), Purpose::Filter, "user "),
    ] {
        keys::handle(&key(code), &mut app, &model);
        let prompt = app.prompt.take().unwrap();
        assert_eq!((prompt.purpose, prompt.text.as_str()), (purpose, text), "{code:?}");
    }
    keys::handle(&key(KeyCode::F(6)), &mut app, &model);
    picture(&mut app, &mut model, PLAIN, (80, 24));
    assert_eq!(app.order(), Order::Total);
    keys::handle(&key(KeyCode::F(10)), &mut app, &model);
    assert_eq!(app.wish, Some(Wish::Quit));
}

#[test]
fn a_flame_graph_is_zoomed_and_left() {
    let (mut app, mut model) = (App { view: View::Flame, ..App::default() }, model(2));
    type_keys(&mut app, &mut model, "↓↓↓\n");
    let names: Vec<&str> = app.zoom.iter().map(|it| &*it.name).collect();
    assert_eq!(names, ["web", "main", "handle"]);
    check("flame-zoomed.txt", &text(&picture(&mut app, &mut model, PLAIN, (80, 24))));
    // Esc leads to where it was before, not to the caller.
    type_keys(&mut app, &mut model, "↓\n");
    assert_eq!(app.zoom.len(), 4);
    let mut depths = Vec::new();
    for _ in 0..3 {
        type_keys(&mut app, &mut model, "\x1b");
        depths.push(app.zoom.len());
    }
    assert_eq!(depths, [3, 0, 0]);
    type_keys(&mut app, &mut model, "k");
    // To the callers of the call that is chosen.
    type_keys(&mut app, &mut model, "c");
    assert!(matches!(&app.crumbs[..], [Crumb::Function(it)] if it.name == "handle"));
    assert_eq!(app.view, View::Callers);
}

#[test]
fn a_deep_flame_graph_shows_what_is_chosen_and_what_it_calls() {
    let store = &mut Store::default();
    let names: Vec<String> = (0..40).map(|it| format!("f{it}")).collect();
    let frames: Vec<(&str, &str)> = names.iter().map(|it| (it.as_str(), "/bin/deep")).collect();
    let one = samples().remove(0);
    let mut window = Window::new(Duration::from_secs(10), 1 << 20, 0);
    window.add(&Row::from(&Sample { user: stack(store, &frames), ..one }));
    let mut model = Model::new(vec![source()]);
    let mut app = App { view: View::Flame, ..App::default() };
    model.take(window.snapshot(Span::Window, 2_000_000_000));
    // The innermost is first: this one is 24 calls below the process.
    type_keys(&mut app, &mut model, &"↓".repeat(25));
    let shown = text(&picture(&mut app, &mut model, PLAIN, (80, 24)));
    assert!(shown.contains("▸f16") && shown.contains(" ⋮ ") && !shown.contains("f36"), "{shown}");
    type_keys(&mut app, &mut model, "\n");
    let shown = text(&picture(&mut app, &mut model, PLAIN, (80, 24)));
    for part in ["▏all", " ⋮ ", "▏f18", "▏f17", "▸f16", "▏f15", "▏f9"] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
}

#[test]
fn a_storm_of_processes_is_seen_and_gone_into() {
    let (mut app, mut model) = (App::default(), model(2));
    let shown = text(&picture(&mut app, &mut model, PLAIN, (80, 24)));
    assert!(shown.contains("spawns 158/s"), "{shown}");
    type_keys(&mut app, &mut model, "6");
    let shown = text(&picture(&mut app, &mut model, PLAIN, (120, 24)));
    let row = shown.lines().find(|it| it.contains("expr")).unwrap();
    for part in ["157/s", "314", "4.1 ms", "expr ← storm.sh ← cron.service", "expr 17 + 4"] {
        assert!(row.contains(part), "{part}: {shown}");
    }
    assert!(shown.contains("web (fork) ← web ← web.service"), "{shown}");
    // By CPU: only the web server was sampled.
    type_keys(&mut app, &mut model, ">");
    let Body::Spawns(rows) = &model.body else { panic!() };
    assert_eq!((rows[0].kind.name, rows[0].count), (Comm::of("web"), 80));
    type_keys(&mut app, &mut model, "/STORM\n");
    assert_eq!(model.rows(), 0);
    type_keys(&mut app, &mut model, "\x1b/storm\n");
    assert_eq!(model.rows(), 1);
    type_keys(&mut app, &mut model, "\x1bfin web\n");
    assert_eq!(model.rows(), 1);
    // All processes of a name.
    type_keys(&mut app, &mut model, "\n");
    assert_eq!(
        (app.view, model.total, &app.crumbs[1]),
        (View::Functions, 80, &Crumb::Name(Comm::of("web")))
    );
    type_keys(&mut app, &mut model, "\x1b\x1bf77\n6");
    assert_eq!(model.rows(), 1);
}

#[test]
fn a_key_makes_rows_anew_only_where_they_change() {
    let (mut app, mut model) = (App::default(), model(2));
    model.choose(&mut app);
    let rows = |model: &Model| match &model.body {
        Body::Functions(rows) => rows.as_ptr(),
        _ => std::ptr::null(),
    };
    let before = rows(&model);
    type_keys(&mut app, &mut model, "↓↓?xL x");
    assert_eq!(rows(&model), before);
    type_keys(&mut app, &mut model, ">");
    assert!(
        matches!(&model.body, Body::Functions(rows) if rows.is_sorted_by_key(|it| std::cmp::Reverse(it.total)))
    );
    type_keys(&mut app, &mut model, "f99\n");
    assert_eq!(model.total, 15);
}

#[test]
fn what_does_not_fit_in_the_head_has_a_line_of_its_own() {
    let (mut app, mut model) = (App::default(), model(2));
    model.snapshot.behind = Duration::from_secs(5);
    model.snapshot.short_of = Duration::from_secs(3);
    for width in [60, 80, 200] {
        let shown = text(&picture(&mut app, &mut model, PLAIN, (width, 24)));
        for part in [
            "lost 3 (ring full 3)",
            "cut 15.0% (no frame pointer)",
            "names 5.0 s behind",
            "3.0 s less",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }
}

#[test]
fn widths_of_a_flame_graph_add_up() {
    let (mut app, mut model) = (App { view: View::Flame, ..App::default() }, model(2));
    let shown = picture(&mut app, &mut model, COLOURS, (100, 24));
    let root = app.hits.calls.iter().find(|(_, call)| call.is_empty()).unwrap().0;
    assert_eq!(root.width, 100);
    for (area, call) in &app.hits.calls {
        assert!(area.right() <= 100);
        let expected = match call.iter().map(|it| &*it.name).collect::<Vec<_>>()[..] {
            ["web"] => 80,
            ["node"] => 15,
            ["web", "main", "handle", "parse(std::string const&)"] => 60,
            _ => continue,
        };
        assert!(area.width.abs_diff(expected) <= 1, "{call:?}: {area:?}");
    }
    assert!(app.hits.calls.len() > 9, "{}", text(&shown));
}

#[test]
fn the_mouse_does_what_keys_do() {
    let (mut app, mut model) = (App::default(), model(2));
    picture(&mut app, &mut model, PLAIN, (80, 24));
    let click = |app: &mut App, model: &mut Model, column, row| {
        let kind = MouseEventKind::Down(MouseButton::Left);
        let event = Event::Mouse(MouseEvent { kind, column, row, modifiers: KeyModifiers::NONE });
        keys::handle(&event, app, model);
        picture(app, model, PLAIN, (80, 24));
    };
    let rows = app.hits.rows;
    click(&mut app, &mut model, 5, rows.y + 2);
    assert_eq!(app.place().row, 2);
    click(&mut app, &mut model, 5, rows.y + 2);
    assert_eq!(app.view, View::Callers);
    let (tab, _) = *app.hits.tabs.iter().find(|(_, view)| *view == View::Processes).unwrap();
    click(&mut app, &mut model, tab.x + 1, tab.y);
    assert_eq!(app.view, View::Processes);
    // Where there is nothing.
    click(&mut app, &mut model, 79, 20);
    assert_eq!(app.view, View::Processes);
}

#[test]
fn keys_end_suspend_and_save() {
    let (mut app, mut model) = (App::default(), model(2));
    let control = |letter| Event::Key(KeyEvent::new(KeyCode::Char(letter), KeyModifiers::CONTROL));
    for (event, wish) in [
        (key(KeyCode::Char('q')), Wish::Quit),
        (control('c'), Wish::Quit),
        (control('z'), Wish::Suspend),
        (control('l'), Wish::Redraw),
        (Event::Resize(1, 1), Wish::Redraw),
    ] {
        keys::handle(&event, &mut app, &model);
        assert_eq!(app.wish.take(), Some(wish), "{event:?}");
    }
    type_keys(&mut app, &mut model, "s\n");
    assert_eq!(app.wish.take(), Some(Wish::Save("profile.html".into())));
    type_keys(&mut app, &mut model, " w");
    assert!(app.is_paused && app.span == Span::Start);
    // What is shown is what was taken before.
    let shown = text(&picture(&mut app, &mut model, PLAIN, (80, 24)));
    assert!(shown.contains("PAUSED") && shown.contains("last 2.0 s"), "{shown}");
    model.span = Span::Start;
    let shown = text(&picture(&mut app, &mut model, PLAIN, (80, 24)));
    assert!(shown.contains("since start"), "{shown}");
}

#[test]
fn what_is_no_terminal_is_told_what_else_there_is() {
    assert_eq!(refusal(true, "xterm"), None);
    for (is_terminal, term, part) in
        [(false, "xterm", "not a terminal"), (true, "dumb", "TERM=dumb")]
    {
        let why = refusal(is_terminal, term).unwrap();
        assert!(why.contains(part) && why.contains("profiler record"), "{why}");
    }
}

#[test]
fn a_machine_without_times_is_drawn() {
    let (mut app, mut model) = (App::default(), Model::new(Vec::new()));
    model.machine = machine::Machine::default();
    for view in View::ALL {
        app.view = view;
        let shown = text(&picture(&mut app, &mut model, COLOURS, (80, 24)));
        assert!(shown.contains("was") || shown.contains("no process"), "{shown}");
    }
}
