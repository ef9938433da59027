//! speedscope shows what the formats that it knows have: npm's `speedscope`, in Chromium without a window.

use std::{env, fs, path::PathBuf, process::Command};

use profiler_profile::store::Store;

use crate::run::{cpu_clock, export, function, inlined, kernel, sample, stack, task};

/// The page of speedscope, if it is installed.
fn page() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    let program =
        env::split_paths(&path).find_map(|it| it.join("speedscope").canonicalize().ok())?;
    let page = program.parent()?.parent()?.join("dist/release/index.html");
    page.exists().then_some(page)
}

/// All texts of the page that it shows for a file, tables of functions first. `None` if a program is not installed.
fn texts(name: &str, profile: &[u8]) -> Option<Vec<String>> {
    let Some(page) = page() else {
        eprintln!("skipped: speedscope is not installed");
        return None;
    };
    let directory = tempfile::tempdir().unwrap();
    let bytes: Vec<String> = profile.iter().map(|byte| format!("\\x{byte:02x}")).collect();
    let script = directory.path().join("profile.js");
    // As its own command line hands it over.
    let load = format!("speedscope.loadFileFromBase64('{name}', btoa('{}'));", bytes.concat());
    fs::write(&script, load).unwrap();
    let url =
        format!("file://{}#view=sandwich&localProfilePath={}", page.display(), script.display());
    let output = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--use-angle=swiftshader"])
        .args(["--enable-unsafe-swiftshader", "--virtual-time-budget=10000", "--dump-dom"])
        .arg(format!("--user-data-dir={}", directory.path().join("chromium").display()))
        .arg(url)
        .output();
    let Ok(output) = output else {
        eprintln!("skipped: chromium is not installed");
        return None;
    };
    let page = String::from_utf8(output.stdout).unwrap();
    let texts = page.split('<').filter_map(|part| part.split_once('>'));
    let texts = texts.map(|(_, text)| text.trim()).filter(|text| !text.is_empty());
    Some(texts.map(|text| text.replace("&lt;", "<").replace("&gt;", ">")).collect())
}

/// Three samples of 10 ms in two threads of a process, the main one in an inlined function and in the kernel.
fn profile(format: &str) -> Vec<u8> {
    let mut store = Store::default();
    let clock = cpu_clock();
    let empty = store.empty();
    let inner = inlined(function("inner", "/usr/lib/libb.so", 1));
    let run = function("<T as U>::run", "/usr/lib/libb.so", 7);
    let main = function("main", "/usr/sbin/mysqld", 0x40);
    let user = stack(&mut store, &[&[inner, run], &[main]]);
    let read = stack(&mut store, &[&[kernel("vfs_read")]]);
    let of = |tid, comm, kernel| sample(&clock, &task(9, tid, comm), 10_000_000, [kernel, &user]);
    let samples = [of(9, "mysqld", &read), of(9, "mysqld", &empty), of(10, "conn", &empty)];
    export(format, &[&clock], &samples)
}

fn assert_shows(texts: &[String], expected: &[&str]) {
    let is_there = texts.windows(expected.len()).any(|window| window == expected);
    assert!(is_there, "{expected:?} is not in {texts:#?}");
}

#[test]
fn it_shows_its_own_format() {
    let Some(texts) = texts("a.speedscope.json", &profile("speedscope")) else { return };
    assert_shows(&texts, &["cpu-clock at 100 Hz for 10.00 s on 1 CPUs - speedscope"]);
    assert_shows(&texts, &["mysqld (pid 9, tid 9)", "(1/2)"]);
    // Total, self and name.
    assert_shows(&texts, &["10.00ms (50%)", "10.00ms (50%)", "vfs_read"]);
    assert_shows(&texts, &["20.00ms (100%)", "10.00ms (50%)", "inner"]);
    assert_shows(&texts, &["20.00ms (100%)", "0.00ns (<0.01%)", "<T as U>::run"]);
    assert_shows(&texts, &["20.00ms (100%)", "0.00ns (<0.01%)", "main"]);
    // The list of profiles.
    assert_shows(&texts, &["1", "mysqld (pid 9, tid 9)", "20.00ms"]);
    assert_shows(&texts, &["2", "conn (pid 9, tid 10)", "10.00ms"]);
}

#[test]
fn it_shows_pprof_profiles() {
    let Some(texts) = texts("a.pb.gz", &profile("pprof")) else { return };
    // It takes of each address the outermost function only.
    assert_shows(&texts, &["30.00ms (100%)", "20.00ms (67%)", "<T as U>::run"]);
    assert_shows(&texts, &["10.00ms (33%)", "10.00ms (33%)", "vfs_read"]);
    assert_shows(&texts, &["30.00ms (100%)", "0.00ns (<0.01%)", "main"]);
}
