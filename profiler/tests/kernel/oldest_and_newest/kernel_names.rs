//! The kernel tells the same names one by one as in the list of all its symbols.

use std::{collections::BTreeMap, fs, sync::Arc};

use profiler::{
    bpf::load::{Program, SlotSettings},
    cli::SamplingArgs,
    config::{Config, Machine},
    sample::Addresses,
    stderr,
    symbolize::symbolizer::Symbolizer,
};
use profiler_profile::frame::Frame;

/// The names of the kernel's functions by their addresses. Those of its start are gone.
fn functions() -> BTreeMap<u64, Vec<String>> {
    let text = fs::read_to_string("/proc/kallsyms").unwrap();
    let symbols = text.lines().filter_map(|line| {
        let mut fields = line.split_ascii_whitespace();
        let address = u64::from_str_radix(fields.next()?, 16).ok()?;
        Some((address, fields.next()?, fields.next()?))
    });
    let symbols: Vec<(u64, &str, &str)> = symbols.collect();
    let place = |name: &str| symbols.iter().find(|(.., it)| *it == name).map(|(at, ..)| *at);
    let text = place("_stext").unwrap()..place("_etext").unwrap();
    let mut functions = BTreeMap::<u64, Vec<String>>::new();
    for (address, kind, name) in symbols {
        if matches!(kind, "t" | "T" | "w" | "W") && text.contains(&address) {
            functions.entry(address).or_default().push(name.into());
        }
    }
    functions
}

fn name(symbolizer: &mut Symbolizer, address: u64) -> Frame {
    let stack = symbolizer.kernel_stack(Addresses::new(&address.to_ne_bytes()));
    stack[0].frames[0].clone()
}

#[test]
#[ignore = "needs root: cargo xtask test"]
fn the_kernel_tells_what_it_lists() {
    let config =
        Config::resolve(&SamplingArgs::default(), Vec::new(), 0, &Machine::probe().unwrap())
            .unwrap();
    let program = Program::load(&config.program, &[SlotSettings::default()]).unwrap();
    let Some(names) = program.kernel_names else {
        stderr::say("skipped: bpf_snprintf came with Linux 5.13");
        return;
    };
    let mut read = Symbolizer::new(false, 0, None, Arc::default());
    let mut asked = Symbolizer::new(false, 0, None, Arc::default());
    asked.ask_kernel(names);
    let functions = functions();
    assert!(functions.len() > 10_000, "{}", functions.len());
    // All of them take a minute.
    let step = if std::env::var_os("PROFILER_TEST_EMULATED").is_some() { 61 } else { 7 };
    let mut differ = Vec::new();
    let ends = functions.keys().skip(1);
    for ((start, aliases), end) in functions.iter().zip(ends).step_by(step) {
        for address in [*start, start + 4, end - 1].into_iter().filter(|it| it < end) {
            let (told, mut listed) = (name(&mut asked, address), name(&mut read, address));
            // Which of several names is told of the same place is not laid down.
            let is_alias = |frame: &Frame| aliases.iter().any(|it| frame.name() == Some(it));
            if is_alias(&told) && is_alias(&listed) {
                listed.symbol.clone_from(&told.symbol);
            }
            if told != listed {
                differ.push(format!("{address:#x}: {told:?}, not {listed:?}"));
            }
        }
    }
    assert!(differ.is_empty(), "{} differ: {:#?}", differ.len(), &differ[..differ.len().min(9)]);
}
