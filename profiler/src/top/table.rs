//! Rows and columns.

use ratatui_core::{layout::Rect, style::Style};

use super::{canvas::Canvas, colours};

/// A column of a table.
#[derive(Clone, Copy, Debug)]
pub(super) struct Column {
    pub(super) title: &'static str,
    /// Cells that it takes; 0 is a share of what is left.
    pub(super) width: u16,
    /// What share of what is left.
    pub(super) share: u16,
    pub(super) is_number: bool,
    /// Whether rows are sorted by it.
    pub(super) is_order: bool,
}

impl Column {
    /// A column of numbers.
    pub(super) const fn number(title: &'static str, width: u16, is_order: bool) -> Self {
        Self { title, width, share: 0, is_number: true, is_order }
    }

    /// A column of names, which takes such a share of what is left.
    pub(super) const fn name(title: &'static str, share: u16, is_order: bool) -> Self {
        Self { title, width: 0, share, is_number: false, is_order }
    }
}

/// Where columns are, and how wide.
fn places(columns: &[Column], area: Rect) -> Vec<(u16, u16)> {
    let gaps = u16::try_from(columns.len().saturating_sub(1)).unwrap_or(0);
    let fixed: u16 = columns.iter().map(|it| it.width).sum();
    let shares: u16 = columns.iter().map(|it| it.share).sum::<u16>().max(1);
    let mut left = area.width.saturating_sub(fixed + gaps);
    let (all, mut open) = (left, shares);
    let mut x = area.x;
    let place = |column: &Column| {
        let width = if column.share == 0 {
            column.width
        } else {
            open = open.saturating_sub(column.share);
            let width = if open == 0 { left } else { all * column.share / shares };
            left -= width.min(left);
            width
        };
        let at = x;
        x += width + 1;
        (at, width)
    };
    columns.iter().map(place).collect()
}

/// Draws the titles, in one line.
pub(super) fn titles(canvas: &mut Canvas<'_>, area: Rect, columns: &[Column]) {
    let line = Rect { height: 1, ..area };
    canvas.style(line, colours::reversed());
    for (column, (x, width)) in columns.iter().zip(places(columns, area)) {
        let title =
            if column.is_order { format!("{}↓", column.title) } else { column.title.into() };
        let style = colours::reversed();
        if column.is_number {
            canvas.put_right(x, area.y, width, &title, style);
        } else {
            canvas.put(x, area.y, width, &title, style);
        }
    }
}

/// Draws a row: a text and its look for each column.
pub(super) fn row(
    canvas: &mut Canvas<'_>,
    area: Rect,
    columns: &[Column],
    cells: &[(String, Style)],
    is_chosen: bool,
) {
    for ((column, (x, width)), (text, style)) in
        columns.iter().zip(places(columns, area)).zip(cells)
    {
        if column.is_number {
            canvas.put_right(x, area.y, width, text, *style);
        } else {
            canvas.put(x, area.y, width, text, *style);
        }
    }
    if is_chosen {
        canvas.style(Rect { height: 1, ..area }, colours::reversed());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_share_what_numbers_leave() {
        let columns = [
            Column::number("a", 6, true),
            Column::name("b", 2, false),
            Column::name("c", 1, false),
        ];
        assert_eq!(places(&columns, Rect::new(1, 0, 38, 1)), [(1, 6), (8, 20), (29, 10)]);
        // Nowhere is less than nothing.
        assert_eq!(places(&columns, Rect::new(0, 0, 4, 1)), [(0, 6), (7, 0), (8, 0)]);
    }
}
