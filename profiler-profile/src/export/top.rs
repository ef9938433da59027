//! The hottest functions: in how many samples each was running, and in how many it was on the stack. With
//! several events, a table for each.

use std::{
    collections::{HashMap, HashSet},
    fmt::Write as _,
    io::{self, Write},
    sync::Arc,
};

use profiler_common::build_id::BuildId;

use super::{about::About, folded::UNKNOWN};
use crate::{frame::Frame, printable::printable, profile::Profile};

#[derive(Default)]
struct Heat {
    own: u64,
    total: u64,
}

/// What a row stands for. Functions of the same name in two files are two functions.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Function {
    symbol: Option<Arc<str>>,
    module: Option<Arc<str>>,
    build_id: Option<BuildId>,
    /// The process, for code that is in no file.
    tgid: Option<u32>,
    is_kernel: bool,
}

impl Function {
    fn of(frame: &Frame, tgid: u32, is_kernel: bool) -> Self {
        let module = frame.module.clone().filter(|module| !module.is_empty());
        let is_shared = |module: &Arc<str>| {
            is_kernel || !module.starts_with('[') || matches!(&**module, "[vdso]" | "[vsyscall]")
        };
        let tgid = module.as_ref().is_some_and(|module| !is_shared(module)).then_some(tgid);
        let symbol = frame.symbol.clone().filter(|_| frame.name().is_some());
        Self { symbol, module, build_id: frame.build_id, tgid, is_kernel }
    }

    /// The function, and where it is. Files of the same path, as containers have them, differ by build id.
    fn text(&self) -> String {
        let mut text = printable(self.symbol.as_deref().unwrap_or(UNKNOWN)).into_owned();
        if let Some(module) = &self.module {
            text = format!("{text}  {}", printable(module));
        } else if self.is_kernel {
            text += "  [kernel]";
        }
        if let Some(tgid) = self.tgid {
            let _ = write!(text, " (pid {tgid})");
        }
        text
    }

    fn text_with_build_id(&self) -> String {
        match self.build_id {
            Some(id) => format!("{} (build id {id})", self.text()),
            None => format!("{} (no build id)", self.text()),
        }
    }
}

/// Writes so many functions of each source.
pub fn write(
    profile: &Profile,
    about: &About<'_>,
    functions: usize,
    to: &mut dyn Write,
) -> io::Result<()> {
    match about.sources.as_slice() {
        [] | [_] => table(profile, 0, functions, to),
        sources => sources.iter().enumerate().try_for_each(|(slot, source)| {
            let gap = if slot > 0 { "\n" } else { "" };
            writeln!(to, "{gap}{}:", source.event)?;
            table(profile, slot, functions, to)
        }),
    }
}

/// Writes the table of a source.
fn table(profile: &Profile, slot: usize, functions: usize, to: &mut dyn Write) -> io::Result<()> {
    let mut heat: HashMap<Function, Heat> = HashMap::new();
    let mut samples = 0;
    for entry in profile.entries().filter(|it| it.source.slot == slot) {
        samples += entry.count;
        let kernel = entry.kernel.frames().map(|(_, frame)| (frame, true));
        let user = entry.user.frames().map(|(_, frame)| (frame, false));
        // A function that calls itself is on the stack once.
        let mut seen = HashSet::new();
        for (depth, (frame, is_kernel)) in kernel.chain(user).enumerate() {
            let function = Function::of(frame, entry.task.tgid, is_kernel);
            let heat = heat.entry(function.clone()).or_default();
            heat.own += if depth == 0 { entry.count } else { 0 };
            heat.total += if seen.insert(function) { entry.count } else { 0 };
        }
    }
    let mut of_text: HashMap<String, u32> = HashMap::new();
    for function in heat.keys() {
        *of_text.entry(function.text()).or_default() += 1;
    }
    let text = |function: &Function| match function.text() {
        text if of_text.get(&text) == Some(&1) => text,
        _ => function.text_with_build_id(),
    };
    let mut heat: Vec<_> = heat.iter().map(|(function, heat)| (text(function), heat)).collect();
    heat.sort_by(|(name_a, a), (name_b, b)| {
        (b.own, b.total).cmp(&(a.own, a.total)).then_with(|| name_a.cmp(name_b))
    });
    let share = |count: u64| 100.0 * count as f64 / samples.max(1) as f64;
    writeln!(to, "{:>9} {:>6} {:>9} {:>6}  FUNCTION  MODULE", "SELF", "%", "TOTAL", "%")?;
    for (name, Heat { own, total }) in heat.iter().take(functions) {
        let (own_share, total_share) = (share(*own), share(*total));
        writeln!(to, "{own:>9} {own_share:>5.1}% {total:>9} {total_share:>5.1}%  {name}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        export::tests::{ledger, location, options, sample},
        sample::{Sample, Task},
        store::Store,
    };

    fn frame(symbol: Option<&str>, module: &str) -> Frame {
        let (symbol, module) = (symbol.map(Arc::from), Some(Arc::from(module)));
        Frame { symbol, module, ..Frame::default() }
    }

    /// The rows for samples, each of a process with these frames, innermost first.
    fn rows(samples: &[(u32, &[Frame])]) -> Vec<String> {
        let (mut store, mut profile) = (Store::default(), Profile::new(1 << 20));
        for (tgid, frames) in samples {
            let locations = frames.iter().map(|frame| location(0, std::slice::from_ref(frame)));
            let user = store.intern(locations.collect());
            let of = sample();
            let task = Task { tgid: *tgid, ..of.task.clone() };
            profile.add(&Sample { task, user, ..of });
        }
        let (ledger, mut text) = (ledger(&[(*sample().source).clone()]), Vec::new());
        write(&profile, &About::of_run(&ledger, &options()), 100, &mut text).unwrap();
        let text = String::from_utf8(text).unwrap();
        text.lines().skip(1).map(|line| line.rsplit_once("%  ").unwrap().1.to_owned()).collect()
    }

    #[test]
    fn functions_of_different_files_are_different_rows() {
        let id = |byte| BuildId::from_slice(&[byte; 4]);
        let with_id = |byte| Frame { build_id: id(byte), ..frame(Some("run"), "/bin/c") };
        let recursive = [frame(Some("main"), "/bin/a"), frame(Some("main"), "/bin/a")];
        assert_eq!(rows(&[(1, &recursive)]).len(), 1);

        let mut rows = rows(&[
            (1, &[frame(Some("main"), "/bin/a")]),
            (2, &[frame(Some("main"), "/bin/b")]),
            // Another process with the same file is not another row.
            (3, &[frame(Some("main"), "/bin/b")]),
            // The same path in two containers.
            (4, &[with_id(1)]),
            (5, &[with_id(2)]),
            (6, &[frame(Some("run"), "[JIT]")]),
            (7, &[frame(Some("run"), "[JIT]")]),
            (8, &[frame(None, "/opt/a/lib.so")]),
            (9, &[frame(None, "/opt/b/lib.so")]),
            (10, &[frame(Some(""), "/opt/b/lib.so")]),
            (11, &[frame(Some("clock_gettime"), "[vdso]")]),
            (12, &[frame(Some("clock_gettime"), "[vdso]")]),
        ]);
        rows.sort_unstable();
        assert_eq!(
            rows,
            [
                "[unknown]  /opt/a/lib.so",
                "[unknown]  /opt/b/lib.so",
                "clock_gettime  [vdso]",
                "main  /bin/a",
                "main  /bin/b",
                "run  /bin/c (build id 01010101)",
                "run  /bin/c (build id 02020202)",
                "run  [JIT] (pid 6)",
                "run  [JIT] (pid 7)",
            ]
        );
    }
}
