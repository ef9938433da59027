//! Any text is events, or a filter, that print as text of the same meaning, or an error at a place in it.
#![no_main]

use profiler_events::{parse, parse_filter};

libfuzzer_sys::fuzz_target!(|text: &str| {
    let is_in_text = |column| (1..=text.chars().count() + 1).contains(&column);
    match parse(text) {
        Ok(events) => assert_eq!(parse(&events.to_string()), Ok(events)),
        Err(error) => assert!(is_in_text(error.column)),
    }
    match parse_filter(text) {
        Ok(filter) => {
            let shown = filter.to_string();
            assert_eq!(parse_filter(&shown).map(|it| it.to_string()), Ok(shown));
        }
        Err(error) => assert!(is_in_text(error.column)),
    }
});
