//! The last two lines: the views by their keys, and what is typed or to be told.

use ratatui_core::{layout::Rect, style::Style};

use super::{
    app::{App, View},
    canvas::{Canvas, width},
    colours,
};

/// How many lines it takes.
pub(super) const LINES: u16 = 2;

/// Draws it.
pub(super) fn draw(canvas: &mut Canvas<'_>, app: &mut App, last_line: Option<&str>) {
    let (area, looks) = (canvas.area(), canvas.looks);
    let y = area.bottom().saturating_sub(LINES);
    let line = Rect { y, height: 1, ..area };
    canvas.style(line, Style::new());
    app.hits.tabs.clear();
    let mut x = area.x;
    for (number, view) in View::ALL.into_iter().enumerate() {
        let text = format!(" {} {} ", number + 1, view.name());
        let style = if view == app.view {
            colours::strong().patch(colours::reversed())
        } else {
            Style::new()
        };
        let end = canvas.put(x, y, area.right().saturating_sub(x), &text, style);
        app.hits.tabs.push((Rect { x, y, width: end - x, height: 1 }, view));
        x = end;
    }
    let left = area.right().saturating_sub(x);
    let fits = |it: &&&str| width(it) < usize::from(left);
    if let Some(keys) = ["? keys  q quit", "? keys"].iter().find(fits) {
        canvas.put_right(x, y, left, keys, looks.faint());
    }
    let y = y + 1;
    if let Some(prompt) = &app.prompt {
        let typed = profiler_profile::printable::printable(&prompt.text).into_owned();
        let x = canvas.put(area.x, y, area.width, prompt.label(), colours::strong());
        // Of a long line the end is seen.
        let room = usize::from(area.right().saturating_sub(x)).saturating_sub(1).max(1);
        let skip = typed.chars().count().saturating_sub(room);
        let shown: String = typed.chars().skip(skip).collect();
        let x = canvas.put(x, y, area.right().saturating_sub(x), &shown, Style::new());
        let x = canvas.put(x, y, 1, " ", colours::reversed());
        if let Some(wrong) = &prompt.wrong {
            let wrong = profiler_profile::printable::printable(wrong).into_owned();
            canvas.put(x, y, area.right().saturating_sub(x), &format!("  {wrong}"), looks.bad());
        }
    } else if let Some(said) = &app.said {
        let said = profiler_profile::printable::printable(said).into_owned();
        canvas.put(area.x, y, area.width, &said, colours::strong());
    } else if let Some(line) = last_line {
        canvas.put(area.x, y, area.width, line, looks.faint());
    }
}
