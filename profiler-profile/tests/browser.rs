//! What a browser shows of the SVG and of the page.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::print_stdout)]

mod plausible;
#[path = "browser/webdriver.rs"]
mod webdriver;

use std::{fs, path::PathBuf};

use plausible::{Recorder, Stacks, distinct, export};
use profiler_profile::{sample::Sample, source::Rate};
use profiler_testing::skipped;
use serde_json::json;

use crate::webdriver::{Browser, ENTER, ESCAPE, F3, UP};

/// A row of the page's flame graph, and what is left free around all of them, in pixels.
const ROW: f64 = 20.0;
const EDGE: f64 = 10.0;

fn browser() -> Option<Browser> {
    Browser::start(1440, 900).map_err(skipped).ok()
}

/// A file with the samples in a format.
fn file(name: &str, format: &str, samples: &[Sample]) -> PathBuf {
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.{format}"));
    fs::write(&path, export(format, samples)).unwrap();
    path
}

/// A hundred samples: 70 of `work`, with 60 of `hot` and 10 of the kernel in them, and 30 of `idle`, which is
/// another process.
fn hundred() -> Vec<Sample> {
    let mut recorder = Recorder::new(0, "cpu-clock", Rate::Frequency(99));
    let (main, work) = (("main", "/bin/app"), ("work", "/bin/app"));
    let all = [
        (60, 7, vec![main, work, ("hot", "/lib/libhot.so")]),
        (10, 7, vec![main, work, ("vfs_read", "[kernel]")]),
        (30, 8, vec![main, ("idle", "/bin/app")]),
    ];
    for (count, tgid, frames) in all {
        for _ in 0..count {
            recorder.add(&Stacks { comm: "app", tgid, tid: tgid, frames: frames.clone() });
        }
    }
    recorder.samples
}

/// What the SVG has of a frame: left edge and width, and whether it is hidden, or marked.
fn svg_frame(browser: &Browser, name: &str) -> (f64, f64, String) {
    let frame = browser.run(&format!(
        "const frame = [...document.querySelectorAll('.f')].find((it) =>
           it.querySelector('title').textContent.startsWith('{name} ('));
         const rect = frame.querySelector('rect');
         return [rect.x.baseVal.value, rect.width.baseVal.value, frame.getAttribute('class')];"
    ));
    let number = |it: usize| frame[it].as_f64().unwrap().round();
    (number(0), number(1), frame[2].as_str().unwrap().trim().to_owned())
}

#[test]
fn the_svg_zooms_and_searches() {
    let Some(browser) = browser() else { return };
    browser.open(&file("hundred", "svg", &hundred()));
    assert_eq!(svg_frame(&browser, "work"), (364.0, 826.0, "f".into()));
    assert_eq!(svg_frame(&browser, "idle"), (10.0, 354.0, "f".into()));

    // The rows from the root up are all, app, main, and then idle beside work.
    let height =
        browser.run("return document.documentElement.height.baseVal.value").as_f64().unwrap();
    let work = height - 36.0 - 3.5 * 16.0;
    browser.mouse(700.0, work, false);
    assert_eq!(browser.text(".details"), "Function: work (70 samples, 70.00%)");
    browser.mouse(700.0, work, true);
    assert_eq!(svg_frame(&browser, "work"), (10.0, 1180.0, "f".into()));
    assert_eq!(svg_frame(&browser, "hot"), (10.0, 1011.0, "f".into()));
    assert_eq!(svg_frame(&browser, "main"), (10.0, 1180.0, "f caller".into()));
    assert_eq!(svg_frame(&browser, "idle").2, "f hidden");
    browser.click(".reset");
    assert_eq!(svg_frame(&browser, "work"), (364.0, 826.0, "f".into()));
    assert_eq!(svg_frame(&browser, "idle"), (10.0, 354.0, "f".into()));

    browser.click(".search");
    browser.answer("^(hot|work)$");
    // What matches within a match counts once.
    assert_eq!(browser.text(".matched"), "Matched: 70.0%");
    assert_eq!(svg_frame(&browser, "hot").2, "f match");
    assert_eq!(svg_frame(&browser, "idle").2, "f");
    assert_eq!(browser.text(".search"), "Reset Search");
    browser.click(".search");
    assert_eq!(
        (browser.text(".matched"), svg_frame(&browser, "hot").2),
        (String::new(), "f".into())
    );

    browser.keys(F3);
    browser.answer("(");
    assert!(browser.text(".matched").contains("nterminated"), "{}", browser.text(".matched"));
    assert!(browser.complaints().is_empty());
}

/// Where the page has a frame: in this row from the root, so far from the left as a share of the width.
fn place(browser: &Browser, row: f64, share: f64) -> (f64, f64) {
    let at = browser.run(
        "const at = document.getElementById('canvas').getBoundingClientRect();
         return [at.left, at.bottom, at.width]",
    );
    let [left, bottom, width] = [0, 1, 2].map(|it| at[it].as_f64().unwrap());
    (left + EDGE + share * (width - 2.0 * EDGE), bottom - EDGE - (row + 0.5) * ROW)
}

fn click_frame(browser: &Browser, row: f64, share: f64) {
    let (x, y) = place(browser, row, share);
    browser.mouse(x, y, true);
}

/// The names in the table, with the samples that ended there and came through.
fn table(browser: &Browser) -> Vec<String> {
    let rows = browser.run(
        "return [...document.querySelectorAll('#sheet .row')].map((row) => {
           const [own, total, name] = row.children;
           return [name.querySelector('b'), own.querySelector('small'), total.querySelector('small')]
             .map((it) => it.textContent).join(' ');
         })",
    );
    rows.as_array().unwrap().iter().map(|it| it.as_str().unwrap().to_owned()).collect()
}

const ALL: [&str; 5] = ["hot 60 60", "idle 30 30", "vfs_read 10 10", "main 0 100", "work 0 70"];

#[test]
fn the_page_zooms_and_searches() {
    let Some(browser) = browser() else { return };
    browser.open(&file("hundred", "html", &hundred()));
    assert_eq!(browser.text("#title"), "cpu-clock at 99 Hz");
    let about = "100 samples · 10.00 s · 1 CPU · 2025-06-15 15:06:40 UTC";
    assert_eq!(browser.text("#about"), about);
    let ledger =
        "100 delivered·58 filtered (idle 51, self 7)·5 lost (missed by the kernel 2, ring full 3)";
    assert_eq!(browser.text("#ledger"), ledger);
    assert_eq!(browser.text("#zoomed"), "All · 100 samples");
    assert_eq!(table(&browser), ALL);

    let (x, y) = place(&browser, 3.0, 0.65);
    browser.mouse(x, y, false);
    assert_eq!(browser.text("#tip"), "workUser · /bin/appTotal70.0%70Self0.0%0");
    browser.mouse(x, y, true);
    assert_eq!(browser.text("#zoomed"), "work · 70 samples · 70.0%");
    // Now work is as wide as its callers, and has hot and vfs_read above it.
    click_frame(&browser, 4.0, 0.95);
    assert_eq!(browser.text("#zoomed"), "vfs_read · 10 samples · 10.0%");
    browser.keys(ESCAPE);
    assert_eq!(browser.text("#zoomed"), "work · 70 samples · 70.0%");
    browser.click("#reset");
    assert_eq!(browser.text("#zoomed"), "All · 100 samples");

    browser.keys("/");
    browser.type_into("#search", "^(hot|work)$");
    assert_eq!(browser.text("#matched"), "Matched: 70.0% · 70 samples");
    assert_eq!(table(&browser), ["hot 60 60", "work 0 70"]);
    // Who types a capital letter means it.
    browser.type_into("#search", "^Hot$");
    assert_eq!(browser.text("#matched"), "Matched: 0.0% · 0 samples");
    let any_case = "return ['hot', String.raw`\\S`, 'Hot', String.raw`\\\\S`].map(hasCapital)";
    assert_eq!(browser.run(any_case), json!([false, false, true, true]));
    browser.type_into("#search", "(");
    let is_invalid = "return document.getElementById('search').getAttribute('aria-invalid')";
    assert_eq!(browser.run(is_invalid), "true");
    browser.keys(ESCAPE);
    assert_eq!((browser.text("#matched"), table(&browser).len()), (String::new(), 5));

    // From the keys alone: main, and work, which is wider than idle.
    for (key, cursor) in [(UP, "all"), (UP, "app"), (UP, "main"), (UP, "work"), (UP, "hot")] {
        browser.keys(key);
        let said = browser.text("#cursor");
        assert!(said.starts_with(&format!("{cursor} · ")), "{said}");
    }
    browser.keys(ENTER);
    assert_eq!(browser.text("#zoomed"), "hot · 60 samples · 60.0%");
    browser.keys("0");
    assert_eq!(browser.text("#zoomed"), "All · 100 samples");

    browser.keys("?");
    assert_eq!(browser.run("return document.getElementById('help').open"), true);
    browser.keys(ESCAPE);
    assert_eq!(browser.run("return document.getElementById('help').open"), false);
    browser.keys("l");
    let table = browser.text("#ledger-table");
    assert!(table.starts_with("cpu-clock at 99 Hz for 10.00 s on 1 CPUs\n"), "{table}");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn the_page_filters_reverses_and_sorts() {
    let Some(browser) = browser() else { return };
    browser.open(&file("filters", "html", &hundred()));
    browser.click("#process option:nth-child(3)");
    assert_eq!(browser.text("#process option:checked"), "app (8)   30.0%");
    assert_eq!(browser.text("#command"), "/usr/bin/app --verbose");
    assert_eq!(browser.text("#zoomed"), "All · 30 samples");
    assert_eq!(table(&browser), ["idle 30 30", "main 0 30"]);
    browser.click("#clear");
    browser.click("#thread option:nth-child(2)");
    assert_eq!(table(&browser), ["hot 60 60", "vfs_read 10 10", "main 0 70", "work 0 70"]);
    // Keys belong to the list until it is left.
    browser.keys(ESCAPE);
    browser.keys("c");
    let binary = browser
        .run("return [...document.querySelectorAll('#module option')].map((it) => it.textContent)");
    let binaries = ["All", "app   100.0%", "libhot.so   60.0%", "[kernel]   10.0%"];
    assert_eq!(binary, json!(binaries));
    browser.click("#module option:nth-child(4)");
    assert_eq!(table(&browser), ["vfs_read 10 10", "main 0 10", "work 0 10"]);
    browser.click("#clear");
    assert_eq!(table(&browser), ALL);

    // What ran, and who called it.
    browser.click("#bottom-up");
    click_frame(&browser, 1.0, 0.3);
    assert_eq!(browser.text("#zoomed"), "hot · 60 samples · 60.0%");
    click_frame(&browser, 2.0, 0.3);
    assert_eq!(browser.text("#zoomed"), "work · 60 samples · 60.0%");
    browser.click("#top-down");
    assert_eq!(browser.text("#zoomed"), "All · 100 samples");
    browser.click("#icicle");
    let down = browser.run(
        "const at = document.getElementById('canvas').getBoundingClientRect();
         return [at.left + 0.9 * at.width, at.top]",
    );
    let [x, top] = [0, 1].map(|it| down[it].as_f64().unwrap());
    browser.mouse(x, top + EDGE + 3.5 * ROW, true);
    assert_eq!(browser.text("#zoomed"), "work · 70 samples · 70.0%");
    browser.keys(ESCAPE);

    browser.click("#by-total");
    let by_total = ["main 0 100", "work 0 70", "hot 60 60", "idle 30 30", "vfs_read 10 10"];
    assert_eq!(table(&browser), by_total);
    browser.click("#by-total");
    assert_eq!(table(&browser).first().unwrap(), "vfs_read 10 10");
    browser.click("#by-name");
    assert_eq!(table(&browser).first().unwrap(), "hot 60 60");
    browser.click("#sheet .row:nth-child(2)");
    assert_eq!(browser.text("#sheet [aria-selected=true] .name b"), "idle");
    browser.keys("t");
    let shown = "return document.getElementById('functions').checkVisibility()";
    assert_eq!(browser.run(shown), false);
    assert_eq!(browser.complaints(), Vec::<String>::new());
}

#[test]
fn a_deep_frame_is_in_view_when_it_is_zoomed_to() {
    let Some(browser) = browser() else { return };
    let names: Vec<String> = (0..200).map(|it| format!("f{it}")).collect();
    let frames = names.iter().map(|name| (name.as_str(), "/bin/deep")).collect();
    let mut recorder = Recorder::new(0, "cpu-clock", Rate::Frequency(99));
    recorder.add(&Stacks { comm: "deep", tgid: 1, tid: 1, frames });
    browser.open(&file("deep", "html", &recorder.samples));
    let scroller = "const scroller = document.getElementById('scroller');";
    // From where the root is, to the other end.
    let full = browser.run(&format!("{scroller} return scroller.scrollTop")).as_f64().unwrap();
    assert!(full > 1000.0, "{full}");
    browser.run(&format!("{scroller} scroller.scrollTop = 0"));
    let canvas = "return document.getElementById('canvas').getBoundingClientRect().top";
    let top = browser.run(canvas).as_f64().unwrap();
    let (x, _) = place(&browser, 0.0, 0.5);
    browser.mouse(x, top + EDGE + 0.5 * ROW, true);
    assert_eq!(browser.text("#zoomed"), "f199 · 1 samples · 100.0%");
    let scrolled = browser.run(&format!("{scroller} return scroller.scrollTop")).as_f64().unwrap();
    assert!(scrolled < 100.0, "{scrolled}");
    browser.keys("0");
    let scrolled = browser.run(&format!("{scroller} return scroller.scrollTop")).as_f64().unwrap();
    assert!((scrolled - full).abs() < 1.0, "{scrolled}");
}

#[test]
fn no_name_is_markup() {
    let Some(browser) = browser() else { return };
    let names = [
        "</script><script>window.bad = 1</script>",
        "<img src=x onerror='window.bad = 1'>",
        "]]><script>window.bad = 1</script>",
        "a&amp;\"b\";\n\u{202e}c",
    ];
    let mut recorder = Recorder::new(0, "cpu-clock", Rate::Frequency(99));
    let frames: Vec<_> = names.iter().map(|name| (*name, "</title>")).collect();
    recorder.add(&Stacks { comm: "<b>&\"'", tgid: 1, tid: 1, frames });
    for format in ["svg", "html"] {
        browser.open(&file("markup", format, &recorder.samples));
        let found = "return [String(window.bad), document.querySelectorAll('script').length,
                             document.querySelectorAll('img').length]";
        let scripts = if format == "html" { 2 } else { 1 };
        assert_eq!(browser.run(found), json!(["undefined", scripts, 0]));
        assert_eq!(browser.complaints(), Vec::<String>::new());
    }
    let mut expected =
        names.map(|it| format!("{} 0 1", it.replace('\n', "\\n").replace('\u{202e}', "\\u{202e}")));
    expected[3] = expected[3].replace(" 0 1", " 1 1");
    expected.sort_unstable();
    let mut shown = table(&browser);
    shown.sort_unstable();
    assert_eq!(shown, expected);
}

#[test]
fn a_hundred_thousand_stacks_open_and_zoom() {
    let Some(browser) = browser() else { return };
    let path = file("many", "html", &distinct(100_000));
    let shown = "const wait = () => {
        const [mark] = performance.getEntriesByName('shown');
        if (mark) done(mark.startTime); else setTimeout(wait, 5);
      };
      wait();";
    let opened = (0..3).map(|_| {
        browser.open(&path);
        browser.wait_for(shown).as_f64().unwrap()
    });
    let opened: Vec<f64> = opened.collect();
    let distinct =
        "return new Set(JSON.parse(document.getElementById('data').textContent).samples.node).size";
    assert_eq!(browser.run(distinct), 100_000);
    // From the click to the picture.
    let timed = |action: &str| {
        let script = format!(
            "const begun = performance.now();
             {action}
             requestAnimationFrame(() => setTimeout(() => done(performance.now() - begun)));"
        );
        browser.wait_for(&script).as_f64().unwrap()
    };
    let click = |row: f64, share: f64| {
        timed(&format!(
            "const canvas = document.getElementById('canvas');
             const at = canvas.getBoundingClientRect();
             canvas.dispatchEvent(new MouseEvent('click', {{
               clientX: at.left + {EDGE} + {share} * (at.width - 2 * {EDGE}),
               clientY: at.bottom - {EDGE} - ({row} + 0.5) * {ROW},
             }}));"
        ))
    };
    // Into it, further, and back to the whole.
    let mut zooms = Vec::new();
    let mut shown = vec![browser.text("#zoomed")];
    for (row, share) in [(5.0, 0.5), (9.0, 0.5), (0.0, 0.5), (7.0, 0.2), (0.0, 0.5)] {
        zooms.push(click(row, share));
        let now = browser.text("#zoomed");
        assert_ne!(shown.last(), Some(&now));
        shown.push(now);
    }
    let press = |id: &str| timed(&format!("document.getElementById('{id}').click();"));
    let (reversed, back) = (press("bottom-up"), click(1.0, 0.01));
    let found = timed(
        "const search = document.getElementById('search');
         search.value = 'Type1.*7$';
         search.dispatchEvent(new Event('input'));",
    );
    let bytes = fs::metadata(&path).unwrap().len();
    println!("{bytes} bytes, opened in {opened:.0?} ms, zoomed in {zooms:.1?} ms");
    println!("reversed in {reversed:.1} ms, zoomed there in {back:.1} ms, found in {found:.1} ms");
    assert_eq!(browser.complaints(), Vec::<String>::new());
}
