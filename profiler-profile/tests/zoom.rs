//! What zooming costs the page's main thread, by the browser's own trace: `cargo test -p profiler-profile --test zoom --
//! --ignored --nocapture`.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::print_stdout)]

mod plausible;
#[path = "browser/webdriver.rs"]
mod webdriver;

use std::{
    fs,
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use plausible::{distinct, export};
use profiler_testing::skipped;
use serde_json::Value;

use crate::webdriver::Browser;

const STACKS: usize = 100_000;
/// The row of the flame graph, and how far to the right: into it, further, and back to the whole, twice.
const CLICKS: [(f64, f64); 6] =
    [(5.0, 0.5), (9.0, 0.5), (0.0, 0.5), (7.0, 0.2), (12.0, 0.5), (0.0, 0.5)];
/// What comes of tasks, of what happens in them, and of marks.
const CATEGORIES: &str = "toplevel,devtools.timeline,blink.user_timing";
/// A trace that does not come within this time never will.
const LONG: Duration = Duration::from_secs(60);

#[test]
#[ignore = "measures, and prints what"]
fn what_a_zoom_takes() {
    let Ok(browser) = Browser::start_traced(1440, 900, CATEGORIES).map_err(skipped) else { return };
    let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("zoom.html");
    fs::write(&path, export("html", &distinct(STACKS))).unwrap();
    browser.open(&path);
    browser.wait_for(
        "const wait = () => performance.getEntriesByName('shown').length ? done() : setTimeout(wait, 5); wait();",
    );
    for (zoom, (row, share)) in CLICKS.iter().enumerate() {
        // A timer that is set in a frame goes off when that has been drawn.
        browser.wait_for(&format!(
            "const canvas = document.getElementById('canvas');
             const at = canvas.getBoundingClientRect();
             const [x, y] = [at.left + 10 + {share} * (at.width - 20), at.bottom - 10 - ({row} + 0.5) * 20];
             setTimeout(() => {{
               performance.mark('zoom-{zoom}');
               canvas.dispatchEvent(new MouseEvent('click', {{ clientX: x, clientY: y }}));
               requestAnimationFrame(() => setTimeout(() => {{
                 performance.mark('shown-{zoom}');
                 done();
               }}));
             }});"
        ));
    }
    let last = format!("shown-{}", CLICKS.len() - 1);
    let (mut events, begun) = (Vec::new(), Instant::now());
    while !events.iter().any(|it: &Value| it["name"] == *last) {
        assert!(begun.elapsed() < LONG, "the trace did not come");
        thread::sleep(Duration::from_millis(100));
        events.extend(browser.trace());
    }
    println!(
        "ms of CPU of the main thread for a zoom of {STACKS} stacks: all, the click, its frame"
    );
    for zoom in 0..CLICKS.len() {
        let mark = |name: &str| {
            let name = format!("{name}-{zoom}");
            events.iter().find(|it| it["name"] == *name).unwrap()
        };
        let (begin, end) = (mark("zoom"), mark("shown"));
        let at = |it: &Value| it["ts"].as_f64().unwrap();
        let ends = |it: &Value| at(it) + it["dur"].as_f64().unwrap_or(0.0);
        let took = |it: &Value| it["tdur"].as_f64().unwrap_or(0.0) / 1e3;
        let tasks: Vec<&Value> = events
            .iter()
            .filter(|it| it["name"].as_str().is_some_and(|it| it.ends_with("::RunTask")))
            .filter(|it| (&it["pid"], &it["tid"]) == (&begin["pid"], &begin["tid"]))
            .filter(|it| ends(it) > at(begin) && at(it) < at(end))
            .collect();
        let with = |mark: &Value| {
            tasks
                .iter()
                .find(|it| at(it) <= at(mark) && ends(it) >= at(mark))
                .map_or(0.0, |it| took(it))
        };
        let frame = tasks.iter().filter(|it| at(it) > at(begin) && ends(it) < at(end));
        let frame = frame.map(|it| took(it)).fold(0.0, f64::max);
        let (click, last) = (with(begin), with(end));
        let all: f64 = tasks.iter().map(|it| took(it)).sum::<f64>() - last;
        println!("  {all:5.1} {click:5.1} {frame:5.1}");
        assert!(click > 0.0 && frame > 0.0, "{tasks:?}");
    }
}
