//! A table of what stacks have in common: of a profile that was sampled or of one that was read.

use std::{
    fmt::Write as _,
    io::{self, Write},
};

use rustc_hash::FxHashMap;

use super::{
    row::{Code, Row, Who},
    share,
};
use crate::{export::about::About, printable::printable, profile::Profile};

/// What the rows of a table stand for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum By {
    /// Functions, those of one name in two files apart.
    #[default]
    Function,
    /// Lines of source files.
    Line,
    /// The files that the code is in.
    Module,
    /// Processes, by name.
    Process,
    /// Threads.
    Thread,
    /// Containers.
    Container,
    /// Services.
    Service,
}

/// What is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Options {
    /// What the rows stand for.
    pub by: By,
    /// How many rows at most; all if `None`.
    pub rows: Option<usize>,
    /// How wide a line may be; names are elided in the middle.
    pub columns: Option<usize>,
}

/// Writes a table of the samples of each source.
pub fn write(
    profile: &Profile,
    about: &About<'_>,
    options: Options,
    to: &mut dyn Write,
) -> io::Result<()> {
    for slot in 0..about.sources.len().max(1) {
        if let (Some(source), 2..) = (about.sources.get(slot), about.sources.len()) {
            let gap = if slot > 0 { "\n" } else { "" };
            writeln!(to, "{gap}{}:", printable(&source.event))?;
        }
        let mut table = Table::new(options.by);
        for entry in profile.entries().filter(|it| it.source.slot == slot) {
            let kernel = entry.kernel.frames().map(|(_, frame)| Code::of_frame(frame, true));
            let user = entry.user.frames().map(|(_, frame)| Code::of_frame(frame, false));
            table.add(&Who::of_entry(entry), kernel.chain(user), entry.count.into());
        }
        to.write_all(table.text(options, |count| count.to_string()).as_bytes())?;
    }
    Ok(())
}

#[derive(Clone, Copy, Default)]
struct Heat {
    own: i128,
    total: i128,
    /// Of the total, what ended in the kernel.
    kernel: i128,
    /// The last stack that it was counted for: one that calls itself is on a stack once.
    counted: usize,
}

/// Takes stacks, and sums them up by row.
pub(super) struct Table {
    by: By,
    numbers: FxHashMap<Row, usize>,
    /// The rows of code that was seen before.
    known: FxHashMap<(usize, Option<u32>), usize>,
    heat: Vec<Heat>,
    stacks: usize,
    total: i128,
    has_kernel: bool,
}

impl Table {
    pub(super) fn new(by: By) -> Self {
        let (numbers, known) = (FxHashMap::default(), FxHashMap::default());
        Self { by, numbers, known, heat: Vec::new(), stacks: 0, total: 0, has_kernel: false }
    }

    /// Adds a stack, innermost first.
    pub(super) fn add<'a>(
        &mut self,
        who: &Who<'_>,
        stack: impl Iterator<Item = Code<'a>>,
        value: i128,
    ) {
        self.stacks += 1;
        self.total += value;
        let mut stack = stack.peekable();
        let in_kernel = stack.peek().is_some_and(|it| it.is_kernel);
        self.has_kernel |= in_kernel;
        if let Some(row) = who.row(self.by) {
            let number = self.number(row);
            return self.count(number, true, in_kernel, value);
        }
        for (depth, code) in stack.enumerate() {
            let pid = who.pid.filter(|_| code.is_private());
            let number = match self.known.get(&(code.at, pid)) {
                Some(number) => *number,
                None => {
                    let number = self.number(code.row(self.by, pid));
                    self.known.insert((code.at, pid), number);
                    number
                }
            };
            self.count(number, depth == 0, in_kernel, value);
        }
    }

    fn number(&mut self, row: Row) -> usize {
        let next = self.heat.len();
        let number = *self.numbers.entry(row).or_insert(next);
        if number == next {
            self.heat.push(Heat::default());
        }
        number
    }

    fn count(&mut self, number: usize, is_own: bool, in_kernel: bool, value: i128) {
        let Some(heat) = self.heat.get_mut(number) else { return };
        heat.own += if is_own { value } else { 0 };
        if heat.counted != self.stacks {
            heat.counted = self.stacks;
            heat.total += value;
            heat.kernel += if in_kernel { value } else { 0 };
        }
    }

    /// The hottest rows, with values as `cell` shows them. If some stacks are in the kernel, a column says how much of
    /// a row's total is.
    pub(super) fn text(&self, options: Options, cell: impl Fn(i128) -> String) -> String {
        let heat_of = |number: usize| self.heat.get(number).copied().unwrap_or_default();
        let rows = self.numbers.iter().map(|(row, number)| (row, heat_of(*number)));
        let mut rows: Vec<(&Row, Heat)> = rows.filter(|(_, heat)| heat.is_shown()).collect();
        rows.sort_unstable_by(|(row_a, a), (row_b, b)| {
            (b.own, b.total).cmp(&(a.own, a.total)).then_with(|| row_a.cmp(row_b))
        });
        let mut same: FxHashMap<(&str, &str, Option<u32>), u32> = FxHashMap::default();
        for (row, _) in &rows {
            *same.entry((&row.name, &row.place, row.pid)).or_default() += 1;
        }
        let what = match options.by {
            By::Function => "FUNCTION  MODULE",
            By::Line => "FUNCTION  LINE",
            By::Module => "MODULE",
            By::Process => "PROCESS",
            By::Thread => "THREAD  PROCESS",
            By::Container => "CONTAINER",
            By::Service => "SERVICE",
        };
        let kernel = |text: &str| {
            if self.has_kernel { format!(" {text:>7}") } else { String::new() }
        };
        let mut text = format!(
            "{:>9} {:>6} {:>9} {:>6}{}  {what}\n",
            "SELF",
            "%",
            "TOTAL",
            "%",
            kernel("KERNEL")
        );
        let before = text.len() - what.len() - 1;
        let width = options.columns.map(|columns| columns.saturating_sub(before).max(20));
        let most = options.rows.unwrap_or(usize::MAX);
        for (row, Heat { own, total, kernel: of_kernel, .. }) in rows.iter().take(most) {
            let is_one = same.get(&(&row.name, &row.place, row.pid)) == Some(&1);
            let _ = writeln!(
                text,
                "{:>9} {:>6} {:>9} {:>6}{}  {}",
                cell(*own),
                share(*own, self.total),
                cell(*total),
                share(*total, self.total),
                kernel(&share(*of_kernel, *total)),
                row.shown(width, !is_one)
            );
        }
        text
    }

    /// How many rows are left out.
    pub(super) fn left_out(&self, options: Options) -> usize {
        self.heat
            .iter()
            .filter(|it| it.is_shown())
            .count()
            .saturating_sub(options.rows.unwrap_or(usize::MAX))
    }
}

impl Heat {
    /// Of what is not on any stack that is shown there is no row.
    fn is_shown(&self) -> bool {
        self.total != 0 || self.own != 0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use profiler_common::build_id::BuildId;

    use super::*;
    use crate::{
        export::tests::{ledger, location, options, sample},
        frame::Frame,
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
        write(&profile, &About::of_run(&ledger, &options()), Options::default(), &mut text)
            .unwrap();
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

    #[test]
    fn rows_may_stand_for_threads_lines_and_containers() {
        let mut store = Store::default();
        let read = Frame { symbol: Some(Arc::from("read")), ..Frame::default() };
        let kernel = store.intern(vec![location(1, &[read])]);
        let at = |line| Frame {
            source: Some((Arc::from("/src/a.c"), Some(line))),
            ..frame(Some("main"), "/bin/a")
        };
        let mut user = |line| store.intern(vec![location(u64::from(line), &[at(line)])]);
        let container = crate::process::Container { id: "c0ffee".into(), runtime: None };
        let process = crate::process::Metadata {
            container: Some(container),
            service: Some("shop".into()),
            ..Default::default()
        };
        let (of, process) = (sample(), Some(Arc::new(process)));
        let other =
            Task { tid: 6, comm: crate::sample::Comm::of("io"), process, ..of.task.clone() };
        let samples = [
            Sample { user: user(7), ..of.clone() },
            Sample { user: user(7), ..of.clone() },
            Sample { user: user(8), kernel, task: other, ..of.clone() },
        ];
        let mut profile = Profile::new(1 << 20);
        profile.extend(&samples);
        let ledger = ledger(&[(*of.source).clone()]);
        let lines = |by| {
            let (mut text, options) = (Vec::new(), Options { by, ..Options::default() });
            write(&profile, &About::of_run(&ledger, &super::tests::options()), options, &mut text)
                .unwrap();
            let text = String::from_utf8(text).unwrap();
            let words = |it: &str| it.split_whitespace().collect::<Vec<_>>().join(" ");
            text.lines().map(words).collect::<Vec<_>>()
        };
        let head = "SELF % TOTAL % KERNEL";
        assert_eq!(
            lines(By::Function),
            [
                &format!("{head} FUNCTION MODULE"),
                "2 66.7% 3 100.0% 33.3% main /bin/a",
                "1 33.3% 1 33.3% 100.0% read [kernel]",
            ]
        );
        assert_eq!(
            lines(By::Line),
            [
                &format!("{head} FUNCTION LINE"),
                "2 66.7% 2 66.7% 0.0% main /src/a.c:7",
                "1 33.3% 1 33.3% 100.0% read [kernel]",
                "0 0.0% 1 33.3% 100.0% main /src/a.c:8",
            ]
        );
        assert_eq!(
            lines(By::Thread)[1..],
            [
                "2 66.7% 2 66.7% 0.0% a (tid 5) a (pid 4)",
                "1 33.3% 1 33.3% 100.0% io (tid 6) io (pid 4)"
            ]
        );
        assert_eq!(
            lines(By::Container)[1..],
            ["2 66.7% 2 66.7% 0.0% [no container]", "1 33.3% 1 33.3% 100.0% c0ffee"]
        );
        assert_eq!(
            lines(By::Service)[1..],
            ["2 66.7% 2 66.7% 0.0% [no service]", "1 33.3% 1 33.3% 100.0% shop"]
        );
        assert_eq!(
            lines(By::Module)[1..],
            ["2 66.7% 3 100.0% 33.3% /bin/a", "1 33.3% 1 33.3% 100.0% [kernel]"]
        );
        assert_eq!(lines(By::Process)[0], format!("{head} PROCESS"));
    }
}
