//! Any text is events that print as text of the same meaning, or an error at a place in it.
#![no_main]

use profiler_events::parse;

libfuzzer_sys::fuzz_target!(|text: &str| {
    match parse(text) {
        Ok(events) => assert_eq!(parse(&events.to_string()), Ok(events)),
        Err(error) => assert!((1..=text.chars().count() + 1).contains(&error.column)),
    }
});
