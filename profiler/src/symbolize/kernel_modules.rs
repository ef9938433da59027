//! Whether the kernel's symbols have to be read again: its modules come and go, and no record tells.
//!
//! Code of a module that came later would be taken for part of the function before it.

use std::{
    fs,
    time::{Duration, Instant},
};

use rustc_hash::FxHashSet;

use crate::{error::is_out_of_files, time_budget::TimeBudget};

/// The list is looked at this often. It takes a line a module.
const PAUSE: Duration = Duration::from_secs(1);

/// The modules whose symbols have been read.
#[derive(Debug)]
pub(super) struct KernelModules {
    /// Name and address of each, as they are written.
    read: FxHashSet<String>,
    look_again: Instant,
    /// For reading the symbols.
    time_budget: TimeBudget,
}

impl KernelModules {
    /// Those that are there now, whose symbols are read next.
    pub(super) fn now() -> Self {
        let now = Instant::now();
        let time_budget = TimeBudget::saving(Duration::ZERO, now);
        Self { read: loaded().unwrap_or_default(), look_again: now + PAUSE, time_budget }
    }

    /// Has the symbols read again if other modules are there now; whether they were.
    pub(super) fn follow(&mut self, read: impl FnOnce()) -> bool {
        let start = Instant::now();
        if start < self.look_again || !self.time_budget.is_left(start) {
            return false;
        }
        let have_changed = loaded().is_some_and(|loaded| self.take(loaded));
        if have_changed {
            read();
        }
        let end = Instant::now();
        self.look_again = end + PAUSE;
        self.time_budget.take(end, end.duration_since(start));
        have_changed
    }

    fn take(&mut self, loaded: FxHashSet<String>) -> bool {
        let have_changed = self.read != loaded;
        self.read = loaded;
        have_changed
    }
}

/// `None` where no file can be opened now: not even the symbols could be read then.
fn loaded() -> Option<FxHashSet<String>> {
    match fs::read_to_string("/proc/modules") {
        Err(error) if is_out_of_files(&error) => None,
        // Without it the kernel has no modules.
        text => Some(in_text(&text.unwrap_or_default())),
    }
}

/// `nf_tables 372736 12 nft_ct,nft_chain_nat, Live 0xffffffffc0a15000`, and what it taints. How often it
/// is used changes all the time.
fn in_text(modules: &str) -> FxHashSet<String> {
    let module = |line: &str| {
        let mut fields = line.split(' ');
        let (name, address) = (fields.next()?, fields.nth(4)?);
        Some(format!("{name} {address}"))
    };
    modules.lines().filter_map(module).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "nf_tables 372736 12 nft_ct, Live 0xffffffffc0a15000\n\
                          zram 40960 1 - Live 0xffffffffc0a00000 (OE)\n";

    fn is_other(after: &str) -> bool {
        let mut modules = KernelModules { read: in_text(BEFORE), ..KernelModules::now() };
        let is_other = modules.take(in_text(after));
        assert!(!modules.take(in_text(after)));
        is_other
    }

    #[test]
    fn one_that_comes_or_goes_or_moves_is_a_change() {
        assert!(is_other(&format!("{BEFORE}tcp_bbr 20480 2 - Live 0xffffffffc0a90000\n")));
        assert!(is_other(BEFORE.lines().next().unwrap()));
        assert!(is_other(&BEFORE.replace("c0a00000", "c0b00000")));
        assert!(is_other(""));
    }

    #[test]
    fn its_use_is_none() {
        assert!(!is_other(BEFORE));
        assert!(!is_other(&BEFORE.replace(" 12 nft_ct,", " 13 nft_ct,nft_nat,")));
    }

    #[test]
    fn the_symbols_are_read_again_once_and_not_too_often() {
        let mut modules = KernelModules::now();
        modules.read.insert("gone 0x1".into());
        let mut times = 0;
        assert!(!modules.follow(|| times += 1));
        modules.look_again = Instant::now();
        assert!(modules.follow(|| times += 1));
        assert!(!modules.follow(|| times += 1));
        modules.look_again = Instant::now();
        assert!(!modules.follow(|| times += 1));
        assert_eq!(times, 1);
    }
}
