//! Pictures of the SVG and of the page, for the eye to judge: `cargo run --example pictures -- DIRECTORY`.
//! Without a directory, they go where it was started.
#![allow(clippy::unwrap_used)]

#[path = "../tests/plausible/mod.rs"]
mod plausible;
#[path = "../tests/browser/webdriver.rs"]
mod webdriver;

use std::{env, fs, path::PathBuf};

use plausible::{export, samples};
use profiler_profile::{sample::Sample, source::Rate};
use webdriver::{Browser, ESCAPE};

fn main() {
    let directory = env::args_os().nth(1).map(PathBuf::from);
    let directory = directory.unwrap_or_else(|| ".".into());
    let directory = directory.canonicalize().unwrap();
    let browser = Browser::start(1440, 940).unwrap();
    let picture = |name: &str| {
        fs::write(directory.join(name).with_extension("png"), browser.picture()).unwrap();
    };
    let open = |format: &str, samples: &[Sample]| {
        let path = directory.join("pictures").with_extension(format);
        fs::write(&path, export(format, samples)).unwrap();
        browser.open(&path);
        fs::remove_file(path).unwrap();
    };
    let mut busy = samples(0, "cpu-clock", Rate::Frequency(99), 20_000);
    open("svg", &busy);
    picture("svg");
    open("html", &busy);
    picture("html");
    browser.mouse(260.0, 560.0, true);
    browser.mouse(420.0, 440.0, false);
    picture("html-zoomed");
    browser.keys("0");
    browser.mouse(1.0, 1.0, false);
    browser.type_into("#search", "tcp_|malloc");
    picture("html-search");
    browser.keys(ESCAPE);
    browser.keys("bi");
    picture("html-callers");
    browser.keys("bi?");
    picture("html-help");
    browser.keys(ESCAPE);
    browser.keys("l");
    picture("html-ledger");
    browser.prefer_dark();
    busy.extend(samples(1, "page-faults", Rate::Period(100), 5000));
    open("html", &busy);
    picture("html-dark");
    open("svg", &busy);
    picture("svg-two-events");
}
