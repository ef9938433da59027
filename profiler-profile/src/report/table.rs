//! A table of what stacks have in common.

use std::{borrow::Cow, fmt::Write as _};

use rustc_hash::FxHashMap;

use super::{By, Selected, elided, places, share};
use crate::{
    import::{Frame, UNKNOWN},
    printable::printable,
};

/// What a row stands for: a name, and the file that the code is in.
type Row<'a> = (Cow<'a, str>, &'a str);

#[derive(Clone, Copy, Default)]
struct Heat {
    own: i128,
    total: i128,
    /// The last stack that it was counted for: one that calls itself is on a stack once.
    counted: usize,
}

/// Rows, each with a number.
#[derive(Default)]
struct Rows<'a> {
    numbers: FxHashMap<Row<'a>, usize>,
    heat: Vec<Heat>,
}

impl<'a> Rows<'a> {
    fn number(&mut self, row: Row<'a>) -> usize {
        let next = self.heat.len();
        let number = *self.numbers.entry(row).or_insert(next);
        if number == next {
            self.heat.push(Heat::default());
        }
        number
    }
}

/// Writes the hottest rows.
pub(super) fn write(selected: &Selected<'_>, text: &mut String) {
    let mut heat = rows(selected);
    heat.sort_by(|(row_a, a), (row_b, b)| {
        (b.own, b.total).cmp(&(a.own, a.total)).then_with(|| row_a.cmp(row_b))
    });
    let what = match selected.options.by {
        By::Function => "FUNCTION  MODULE",
        By::Module => "MODULE",
        By::Process => "PROCESS",
    };
    let _ = writeln!(text, "{:>9} {:>6} {:>9} {:>6}  {what}", "SELF", "%", "TOTAL", "%");
    let most = selected.options.rows.unwrap_or(usize::MAX);
    let width = selected.options.columns.map(|columns| columns.saturating_sub(36).max(20));
    for (row, Heat { own, total, .. }) in heat.iter().take(most) {
        let line = shown(row, width);
        let of = selected.total;
        let (own_share, total_share) = (share(*own, of), share(*total, of));
        let (own, total) = (selected.cell(*own), selected.cell(*total));
        let _ = writeln!(text, "{own:>9} {own_share:>6} {total:>9} {total_share:>6}  {line}");
    }
    if heat.len() > most {
        let _ = writeln!(text, "{:>33}  {} more", "", heat.len() - most);
    }
}

fn rows<'a>(selected: &Selected<'a>) -> Vec<(Row<'a>, Heat)> {
    let mut rows = Rows::default();
    let by = selected.options.by;
    let frames = &selected.profile.frames;
    let of_frame: Vec<usize> = match by {
        By::Process => Vec::new(),
        By::Function => {
            frames.iter().map(|it| rows.number((it.shown_name().into(), module(it)))).collect()
        }
        By::Module => frames.iter().map(|it| rows.number((module(it).into(), ""))).collect(),
    };
    for (count, (stack, value)) in (1..).zip(&selected.stacks) {
        if by == By::Process {
            let number = rows.number((selected.profile.process_of(stack), ""));
            if let Some(heat) = rows.heat.get_mut(number) {
                heat.own += value;
                heat.total += value;
            }
            continue;
        }
        for (depth, place) in places(stack).enumerate() {
            let Some(number) = of_frame.get(place) else { continue };
            let Some(heat) = rows.heat.get_mut(*number) else { continue };
            heat.own += if depth == 0 { *value } else { 0 };
            heat.total += if heat.counted == count { 0 } else { *value };
            heat.counted = count;
        }
    }
    let Rows { numbers, heat } = rows;
    let heat_of = |number: usize| heat.get(number).copied().unwrap_or_default();
    let all = numbers.into_iter().map(|(row, number)| (row, heat_of(number)));
    // Of what is not shown there is no row.
    all.filter(|(_, heat)| heat.total != 0 || heat.own != 0).collect()
}

fn shown((name, module): &Row<'_>, width: Option<usize>) -> String {
    if module.is_empty() {
        return elided(&printable(name), width);
    }
    let module = printable(module);
    let file = module.rsplit('/').next().unwrap_or(&module);
    let left = width.map(|it| it.saturating_sub(file.len() + 2).max(20));
    // Where there is room for it, the whole path.
    let file = if width.is_some() { file } else { &module };
    format!("{}  {file}", elided(&printable(name), left))
}

fn module(frame: &Frame) -> &str {
    let module = frame.module.as_deref().filter(|module| !module.is_empty());
    module.unwrap_or(if frame.is_kernel { "[kernel]" } else { UNKNOWN })
}
