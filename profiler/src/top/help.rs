//! What is shown in the place of a view: the keys, and what the run has told.

use ratatui_core::{layout::Rect, style::Style};

use super::{canvas::Canvas, colours};

/// The keys, and what they do.
pub(super) const KEYS: &[(&str, &str)] = &[
    ("1 2 3 4 5 6, Tab", "functions, processes, callers, flame, threads, spawns"),
    ("Up Down j k", "choose; in the flame graph caller and largest call"),
    ("PgUp PgDn Home End g G", "far up and down"),
    ("Left Right", "in the flame graph the call beside"),
    ("Enter", "go into it: callers of a function, a process, a call"),
    ("Esc Backspace", "take back a zoom, a search, the last choice"),
    ("c", "callers of the call that is chosen in the flame graph"),
    ("/ F3, n N", "search by a regex; the next match, the one before"),
    ("f F4 \\, u", "filter: pid 812, cpu 3, user ann, in nginx.service"),
    ("< > o F6", "sort by another column"),
    ("w", "the window, or all since the start"),
    ("e", "the next event"),
    ("Space p", "pause: what is shown stays, sampling goes on"),
    ("s", "save what is shown: .html .pb.gz .svg .folded"),
    ("L", "what the run has told"),
    ("q F10 Ctrl-C", "quit; Ctrl-Z suspends"),
    ("", "u program, l library, j JIT, i interpreted, k kernel"),
];

/// Draws the keys.
pub(super) fn keys(canvas: &mut Canvas<'_>, area: Rect) {
    for (y, (keys, what)) in (area.y..area.bottom()).zip(KEYS) {
        let x = canvas.put(area.x + 1, y, 24, keys, colours::strong());
        let x = x.max(area.x + 26);
        canvas.put(x, y, area.right().saturating_sub(x), what, Style::new());
    }
}

/// Draws the last lines that were told.
pub(super) fn log(canvas: &mut Canvas<'_>, area: Rect, lines: &[String]) {
    let first = lines.len().saturating_sub(usize::from(area.height));
    if lines.is_empty() {
        canvas.put(area.x, area.y, area.width, "no messages yet", canvas.looks.faint());
    }
    for (y, line) in (area.y..area.bottom()).zip(lines.iter().skip(first)) {
        canvas.put(area.x, y, area.width, line, Style::new());
    }
}
