//! Any bytes are a program and what belongs to it, given to the parser's requests as the agent gives them. No
//! answer may be one for which the agent would end the process.
#![no_main]

use std::{cell::RefCell, fs::File, os::unix::fs::FileExt as _};

use profiler::parser::in_process::InProcess;

/// How many places of a file are looked up. A file may have thousands of functions.
const PLACES: u64 = 64;

thread_local! {
    static FILE: RefCell<Option<File>> = const { RefCell::new(None) };
}

/// A file in memory with these bytes. There is one, with other bytes for each input.
fn file(bytes: &[u8]) -> File {
    FILE.with_borrow_mut(|known| {
        let file = known.get_or_insert_with(|| {
            rustix::fs::memfd_create("fuzz", rustix::fs::MemfdFlags::CLOEXEC).unwrap().into()
        });
        file.set_len(0).unwrap();
        file.write_all_at(bytes, 0).unwrap();
        file.try_clone().unwrap()
    })
}

libfuzzer_sys::fuzz_target!(|input: (bool, u8, u16, &[u8])| {
    let (lines, role, begin, bytes) = input;
    let file = file(bytes);
    let mut parser = InProcess::default();
    let _ = parser.table(&file).expect("a table or why there is none");
    parser.report(&file, Some(begin.into())).expect("a report or why there is none");
    let _ = parser.links(&file).expect("links");
    let companion = |of: u8| (role & of != 0).then_some(&file);
    let files = [Some(&file), companion(1), companion(2), companion(4)];
    let step = (bytes.len() as u64 / PLACES).max(1);
    let places: Vec<u64> = (0..PLACES).map(|number| u64::from(begin) + number * step).collect();
    parser.find(files, lines, companion(8), &places).expect("names or none");
});
