//! The hottest functions: in how many samples each was running, and in how many it was on the stack.

use std::collections::{HashMap, HashSet};

use super::{NamedSample, Output, Sink, folded, profile::Profile};
use crate::{error::Result, ledger::Ledger, printable::printable};

pub(super) struct Top {
    sink: Sink,
    profile: Profile,
    functions: usize,
}

#[derive(Default)]
struct Heat {
    own: u64,
    total: u64,
}

impl Top {
    pub(super) fn new(sink: Sink, max_stacks: usize, functions: usize) -> Self {
        Self { sink, profile: Profile::new(max_stacks), functions }
    }
}

impl Output for Top {
    fn sample(&mut self, sample: &NamedSample<'_>) -> Result<()> {
        self.profile.add(sample);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        Ok(())
    }

    fn is_written_at_end(&self) -> bool {
        true
    }

    fn finish(&mut self, _: &Ledger) -> Result<()> {
        let mut heat: HashMap<String, Heat> = HashMap::new();
        let mut samples = self.profile.beyond_limit;
        for entry in self.profile.entries() {
            samples += entry.count;
            let kernel = entry.kernel.frames().map(|(_, frame)| (frame, "[kernel]"));
            let user = entry.user.frames().map(|(_, frame)| (frame, ""));
            // A function that calls itself is on the stack once.
            let mut seen = HashSet::new();
            for (depth, (frame, kernel)) in kernel.chain(user).enumerate() {
                let module = frame.module.as_deref().unwrap_or(kernel);
                let name = match (&frame.symbol, module) {
                    (Some(symbol), "") => symbol.to_string(),
                    (Some(symbol), module) => format!("{symbol}  {module}"),
                    (None, _) => folded::name(frame),
                };
                let name = printable(&name).into_owned();
                let heat = heat.entry(name.clone()).or_default();
                heat.own += if depth == 0 { entry.count } else { 0 };
                heat.total += if seen.insert(name) { entry.count } else { 0 };
            }
        }
        let mut heat: Vec<_> = heat.into_iter().collect();
        heat.sort_by(|(name_a, a), (name_b, b)| {
            (b.own, b.total).cmp(&(a.own, a.total)).then_with(|| name_a.cmp(name_b))
        });
        let share = |count: u64| 100.0 * count as f64 / samples.max(1) as f64;
        self.sink
            .write(format!("{:>9} {:>6} {:>9} {:>6}  FUNCTION\n", "SELF", "%", "TOTAL", "%"))?;
        for (name, Heat { own, total }) in heat.iter().take(self.functions) {
            let (own_share, total_share) = (share(*own), share(*total));
            self.sink.write(format!(
                "{own:>9} {own_share:>5.1}% {total:>9} {total_share:>5.1}%  {name}\n"
            ))?;
        }
        if self.profile.beyond_limit > 0 {
            let beyond = self.profile.beyond_limit;
            self.sink.write(format!("{beyond:>9} samples had stacks beyond --max-stacks\n"))?;
        }
        self.sink.flush()
    }
}
