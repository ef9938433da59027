//! What a browser shows of a run that goes on, served by the test.
#![allow(clippy::unwrap_used, clippy::indexing_slicing)]

mod plausible;
#[path = "live/run.rs"]
mod run;
#[path = "browser/webdriver.rs"]
mod webdriver;

use std::{
    thread,
    time::{Duration, Instant},
};

use jiff::tz::TimeZone;
use plausible::{Recorder, Stacks, export};
use profiler_profile::{
    diff::Measure,
    export::change::Comparison,
    import::{Counted, Filter, Limits, folded},
    source::Rate,
};
use profiler_testing::skipped;
use serde_json::{Value, json};

use crate::{
    run::Run,
    webdriver::{Browser, ENTER, ESCAPE, UP},
};

/// A condition that does not hold after this time never will.
const LONG: Duration = Duration::from_secs(60);
const LEFT: &str = "\u{e012}";
const SHIFT: &str = "\u{e008}";

fn browser() -> Option<Browser> {
    Browser::start(1440, 900).map_err(skipped).ok()
}

/// Samples, as many as are given of each stack of functions of `app`, by pid.
fn samples(all: &[(usize, u32, &[&str])]) -> String {
    let mut recorder = Recorder::new(0, "cpu-clock", Rate::Frequency(99));
    for (count, tgid, frames) in all {
        let frames: Vec<_> = frames.iter().map(|name| (*name, "/bin/app")).collect();
        for _ in 0..*count {
            recorder.add(&Stacks { comm: "app", tgid: *tgid, tid: *tgid, frames: frames.clone() });
        }
    }
    // The page has them in it as the live one asks for them.
    let page = export("html", &recorder.samples);
    let (_, data) = page.split_once("id=\"data\">").unwrap();
    data.split_once("</script>").unwrap().0.to_owned()
}

/// What has changed from some folded stacks to others, as the live page asks for it.
fn changes(before: &str, after: &str) -> String {
    let [before, after] = [before, after].map(|text| {
        let read = folded::read(text.as_bytes(), &Limits::default()).unwrap();
        Counted::of(&read, &Filter::default(), "profiler", TimeZone::UTC).unwrap()
    });
    let mut data = Vec::new();
    Comparison::new(&before, &after, Measure::Share).write_data(&mut data).unwrap();
    String::from_utf8(data).unwrap()
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONG, "waited in vain until {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// The names in the table, with the samples that ended there.
fn table(browser: &Browser) -> Vec<String> {
    let rows = browser.run(
        "return [...document.querySelectorAll('#sheet .row')].map((row) =>
           `${row.children[2].querySelector('b').textContent} ${row.children[0].querySelector('small').textContent}`)",
    );
    rows.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
}

/// Chooses from a list, which samples that come may change at any moment.
fn choose_process(browser: &Browser, pid: u32) {
    browser.run(&format!(
        "const list = document.getElementById('process');
         list.value = [...list.options].find((it) => it.textContent.includes('({pid})')).value;
         list.dispatchEvent(new Event('change'));"
    ));
}

/// Clicks on a row of the table, counted from 1.
fn click_row(browser: &Browser, row: usize) {
    let at = browser.run(&format!(
        "const at = document.querySelector('#sheet .row:nth-child({row})').getBoundingClientRect();
         return [at.left + 20, at.top + 10]"
    ));
    browser.mouse(at[0].as_f64().unwrap(), at[1].as_f64().unwrap(), true);
}

/// Where a slice of the timeline is in the window, and the top of it.
fn timeline(browser: &Browser) -> (impl Fn(f64) -> f64, f64) {
    let at = browser.run(
        "const at = document.getElementById('strips-canvas').getBoundingClientRect();
         return [at.left, at.top, at.width]",
    );
    let [left, top, width] = [0, 1, 2].map(|it| at[it].as_f64().unwrap());
    // Twenty slices beside the names.
    (move |it| left + 170.0 + it * (width - 170.0) / 20.0, top)
}

fn hash(browser: &Browser) -> String {
    browser.run("return decodeURIComponent(location.hash)").as_str().unwrap().to_owned()
}

fn first() -> String {
    samples(&[(60, 7, &["main", "work", "hot"]), (30, 8, &["main", "idle"])])
}

fn later() -> String {
    samples(&[(20, 7, &["main", "work", "hot"]), (40, 7, &["main", "work", "new"])])
}

#[test]
fn what_is_chosen_stays_while_samples_come() {
    let Some(browser) = browser() else { return };
    let run = Run::start(first());
    browser.visit(&run.address);
    wait_until("samples are shown", || {
        table(&browser) == ["hot 60", "idle 30", "main 0", "work 0"]
    });
    assert_eq!(
        browser.text("#ledger"),
        "3 lost so far (ring full 3)·1.2% of a CPU for the profiler·45 MiB"
    );
    // Zoomed, searched, selected, filtered and in another order.
    choose_process(&browser, 7);
    browser.keys("/");
    browser.type_into("#search", "hot|new|work");
    click_row(&browser, 2);
    browser.click("#icicle");
    assert_eq!(browser.text("#sheet [aria-selected=true] .name b"), "work");
    run.go_on(later(), 21);
    wait_until("new samples are shown", || table(&browser).contains(&"new 40".to_owned()));
    assert_eq!(table(&browser), ["new 40", "hot 20", "work 0"]);
    assert_eq!(browser.text("#sheet [aria-selected=true] .name b"), "work");
    assert_eq!(browser.text("#process option:checked"), "app (7)   100.0%");
    // What has no samples any more is still what was chosen.
    run.go_on(samples(&[(30, 8, &["main", "idle"])]), 22);
    wait_until("nothing is left of it", || table(&browser).is_empty());
    assert_eq!(browser.text("#process option:checked"), "app (7)   0.0%");
    run.go_on(later(), 23);
    wait_until("it is there again", || table(&browser) == ["new 40", "hot 20", "work 0"]);
    assert_eq!(browser.text("#sheet [aria-selected=true] .name b"), "work");

    // What is downloaded is what is shown.
    browser.run("document.activeElement.blur()");
    browser.keys("d");
    let link = "const link = document.querySelector('#formats a');
        return [link.getAttribute('href'), link.textContent]";
    assert_eq!(browser.run(link), json!(["download/folded?first=0&end=23&pid=7", "folded"]));
    browser.keys(ESCAPE);

    // A link holds it.
    wait_until("the link says so", || hash(&browser).contains("hot|new|work"));
    let link = browser.run("return location.href");
    let other = Browser::start(1000, 700).unwrap();
    other.visit(link.as_str().unwrap());
    wait_until("the link shows the same", || table(&other) == ["new 40", "hot 20", "work 0"]);
    assert_eq!(other.text("#sheet [aria-selected=true] .name b"), "work");
    assert_eq!(other.text("#process option:checked"), "app (7)   100.0%");
    assert_eq!(
        other.run("return document.getElementById('icicle').getAttribute('aria-pressed')"),
        "true"
    );
    for browser in [&browser, &other] {
        assert_eq!(browser.complaints(), Vec::<String>::new());
    }
}

#[test]
fn a_function_is_shown_by_its_lines() {
    let Some(browser) = browser() else { return };
    let run = Run::start(first());
    browser.visit(&run.address);
    wait_until("samples are shown", || table(&browser).len() == 4);
    browser.keys("a");
    let asked = "/lines?first=0&end=20&function=hot&module=%2Fbin%2Fapp";
    wait_until("the hottest function is asked for", || run.has_asked(asked));
    wait_until("its lines are shown", || {
        browser.text("#lines-what").contains("10.0% without a line")
    });
    let rows = browser.run(
        "return [...document.querySelectorAll('#lines tr')].map((row) =>
           [...row.children].map((it) => it.textContent).join('|') + (row.className && ' ' + row.className))",
    );
    assert_eq!(
        rows,
        json!([
            "Self|Total|Line|",
            "||6|<script>x",
            "44.4%40|66.7%60|7|    hot(); hottest",
            "1.1%1|2.2%2|9|",
            "Self|Total|Line|",
            "1.1%1|1.1%1|?| hottest",
        ])
    );
    assert!(
        browser.text("#lines section:last-child h3").contains("/src/<b>No text: Permission denied")
    );
    wait_until("the link says so", || hash(&browser).contains("lines=1"));
    let link = browser.run("return location.href");
    // What comes later is asked for again; the time is another one.
    run.go_on(first(), 21);
    wait_until("later samples are asked for", || {
        run.has_asked("/lines?first=0&end=21&function=hot")
    });
    browser.keys(ESCAPE);
    wait_until("the link says that they are not shown", || !hash(&browser).contains("lines=1"));

    // A function that is marked comes first.
    click_row(&browser, 2);
    let marked = browser.text("#sheet [aria-selected=true] .name b");
    browser.click("#lines-button");
    wait_until("its lines are asked for", || run.has_asked(&format!("function={marked}&")));
    assert_eq!(browser.text("#lines-title"), marked);

    let other = Browser::start(1000, 700).unwrap();
    other.visit(link.as_str().unwrap());
    wait_until("the link shows them", || other.text("#lines-title") == "hot");
    for browser in [&browser, &other] {
        assert_eq!(browser.complaints(), Vec::<String>::new());
    }
}

#[test]
fn a_range_is_dragged_or_marked_by_keys() {
    let Some(browser) = browser() else { return };
    let run = Run::start(first());
    browser.visit(&run.address);
    wait_until("samples are shown", || table(&browser).len() == 4);
    wait_until("strips are asked for", || run.has_asked("/strips?by=cpu"));
    browser.click("#by option:nth-child(2)");
    wait_until("by process", || run.has_asked("/strips?by=process"));
    let (slice, top) = timeline(&browser);
    browser.drag((slice(5.5), top + 25.0), (slice(7.5), top + 25.0));
    wait_until("the range is asked for", || run.has_asked("/data?first=5&end=8"));
    wait_until("it is shown", || browser.text("#state").starts_with("Range · 1.5 s"));
    wait_until("the link says so", || hash(&browser).starts_with("#span=5-8"));
    // A click on a strip filters by its process.
    browser.mouse(slice(2.0), top + 18.0 + 9.0, true);
    assert_eq!(table(&browser), ["hot 60", "main 0", "work 0"]);
    assert!(browser.text("#process option:checked").starts_with("app (7)"));
    browser.mouse(slice(2.0), top + 18.0 + 9.0, true);
    assert_eq!(table(&browser).len(), 4);

    browser.keys("w");
    wait_until("it follows again", || browser.text("#state").starts_with("Live"));
    // The last two slices.
    browser.run("document.activeElement.blur()");
    browser.keys("g");
    let shift = |key: &str| browser.chord(SHIFT, key);
    shift(LEFT);
    assert!(
        browser.text("#strip-cursor").contains("from 1.0 s ago to 0.0 s ago"),
        "{}",
        browser.text("#strip-cursor")
    );
    browser.keys(ENTER);
    wait_until("the range is asked for", || run.has_asked("/data?first=18&end=20"));
    browser.keys(" ");
    assert_eq!(browser.text("#pause"), "Go on");
    run.go_on(later(), 30);
    browser.keys(" ");
    browser.keys("w");
    wait_until("it goes on", || table(&browser).contains(&"new 40".to_owned()));
    run.state.lock().unwrap().has_ended = true;
    wait_until("the end is told", || browser.text("#state").starts_with("The run has ended"));
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn two_ranges_are_compared() {
    let Some(browser) = browser() else { return };
    let run = Run::start(first());
    // The second has twice the samples, which is no change.
    run.state.lock().unwrap().changes = changes(
        "app;main;work;hot 6000\napp;main;idle 3000\napp;main;gone 1000\n",
        "app;main;work;hot 16000\napp;main;idle 1000\napp;main;new 3000\n",
    );
    browser.visit(&run.address);
    wait_until("samples are shown", || table(&browser).len() == 4);
    wait_until("strips are shown", || run.has_asked("/strips"));
    let is_on = |browser: &Browser, button: &str| {
        let state = format!(
            "const it = document.querySelector('{button}'); return [it.disabled, it.getAttribute('aria-pressed')]"
        );
        browser.run(&state) == json!([false, "true"])
    };
    let is_disabled = "return document.getElementById('span-compare').disabled";
    assert_eq!(browser.run(is_disabled), json!(true), "there is nothing to compare");
    let (slice, top) = timeline(&browser);
    let drag = |from, to| browser.drag((slice(from), top + 25.0), (slice(to), top + 25.0));
    drag(5.5, 7.5);
    wait_until("the range is shown", || browser.text("#state").starts_with("Range · 1.5 s"));
    browser.click("#span-compare");
    wait_until("it asks for another", || browser.text("#state").contains("mark another range"));
    drag(12.5, 15.5);
    let asked = "/data?first=12&end=16&before_first=5&before_end=8&source=0";
    wait_until("the comparison is asked for", || run.has_asked(asked));
    let changed =
        ["idle -83.3%", "hot +33.3%", "new new", "gone -100.0%", "work ±", "app ±", "main ±"];
    wait_until("changes are shown", || table(&browser) == changed);
    assert!(is_on(&browser, "#span-compare"));
    assert_eq!(browser.text("#state"), "Compare · before: 1.5 s, until 6.0 s ago · after: 2.0 s");
    assert!(
        browser.text("#about").contains("20,000 samples · 10,000 before · shares are compared")
    );
    let shown = "return [...document.querySelectorAll('.legend li')]
        .filter((it) => getComputedStyle(it).display !== 'none').map((it) => it.textContent)";
    assert_eq!(browser.run(shown), json!(["More", "Less", "Noise"]));

    // By keys alone: from the root to the hottest call, which says what it has grown by.
    browser.run("document.activeElement.blur()");
    browser.keys(&UP.repeat(5));
    assert_eq!(browser.text("#cursor"), "hot · 16,000 samples · 80.0% · +33.3%");
    browser.keys("d");
    let links =
        "return [...document.querySelectorAll('#formats a')].map((it) => it.getAttribute('href'))";
    let link = "download/svg?first=12&end=16&before_first=5&before_end=8";
    assert_eq!(browser.run(links), json!([link]));
    browser.keys(ESCAPE);

    // A link holds both ranges.
    wait_until("the link says so", || hash(&browser).starts_with("#span=12-16&before=5-8"));
    let link = browser.run("return location.href");
    let other = Browser::start(1000, 700).unwrap();
    // It names an event that this run does not have.
    other.visit(&format!("{}&event=3", link.as_str().unwrap()));
    wait_until("the link shows the same", || table(&other) == changed);
    assert!(is_on(&other, "#span-compare"));
    other.keys("s");
    wait_until("all of the run is shown", || table(&other).len() == 4);

    // Once more, and the range is there alone.
    browser.keys("v");
    wait_until("the range is asked for", || run.has_asked("/data?first=12&end=16"));
    wait_until("the range is shown", || table(&browser).len() == 4);
    assert_eq!(browser.run(shown), json!(["User", "Inlined", "Kernel"]));
    assert!(is_on(&browser, "#span-range"));
    browser.keys("v");
    browser.chord(SHIFT, LEFT);
    browser.keys(ENTER);
    wait_until("the marked range is compared", || {
        run.has_asked("/data?first=18&end=20&before_first=12&before_end=16&source=0")
    });
    browser.keys("w");
    wait_until("it follows again", || browser.text("#state").starts_with("Live"));
    assert_eq!(table(&browser).len(), 4);
    for browser in [&browser, &other] {
        assert_eq!(browser.complaints(), Vec::<String>::new());
    }
}

#[test]
fn a_page_that_is_left_open_does_not_grow() {
    let Some(browser) = browser() else { return };
    let run = Run::start(first());
    browser.visit(&run.address);
    let asked = || {
        let state = run.state.lock().unwrap();
        state.asked.iter().filter(|it| it.starts_with("/data")).count()
    };
    // Names come and go, as they do on a machine.
    let follow = |times: usize| {
        let mut seen = asked();
        let all = seen + times;
        while seen < all {
            let name = format!("function_{seen}_{}", "x".repeat(10_000));
            run.go_on(samples(&[(9, 7, &["main", &name])]), 20 + seen as u64);
            wait_until("it asks again", || asked() > seen);
            seen = asked();
        }
        browser.heap_bytes()
    };
    let before = follow(20);
    let after = follow(80);
    assert!(after < before + (256 << 10), "{before} bytes grew to {after}");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn no_name_is_markup_in_a_live_page_either() {
    let Some(browser) = browser() else { return };
    let names = [
        "</script><script>window.bad = 1</script>",
        "<img src=x onerror='window.bad = 1'>",
        "a&amp;\"b\";c",
    ];
    let run = Run::start(samples(&[(1, 7, &names)]));
    let link = "#span=window&search=%3Cimg%20src%3Dx%20onerror%3D%22window.bad%3D1%22%3E&zoom=[1,{\"a\":2}]&thread={}&process=[7,\"<b>\",true]";
    browser.visit(&format!("{}{link}", run.address));
    wait_until("samples are shown", || browser.text("#about").starts_with("1 samples"));
    browser.run("document.getElementById('search').value = ''; document.getElementById('search').dispatchEvent(new Event('input'))");
    let mut shown = table(&browser);
    shown.sort_unstable();
    let mut expected: Vec<String> =
        names.iter().enumerate().map(|(at, it)| format!("{it} {}", u8::from(at == 2))).collect();
    expected.sort_unstable();
    assert_eq!(shown, expected);
    let found = "return [String(window.bad), document.querySelectorAll('script').length, document.querySelectorAll('img, b b').length]";
    assert_eq!(browser.run(found), json!(["undefined", 2, 0]));
    // Its policy lets nothing else in.
    let injected = browser.wait_for(
        "const script = document.createElement('script'); script.textContent = 'window.bad = 2'; document.body.append(script);
         fetch('http://127.0.0.1:1/').then(() => done('sent'), () => done(String(window.bad)));",
    );
    assert_eq!(injected, Value::from("undefined"));
    let complaints = browser.complaints();
    assert!(
        complaints.len() >= 2 && complaints.iter().all(|it| it.contains("Content Security Policy")),
        "{complaints:?}"
    );
}
