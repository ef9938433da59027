//! Text at places of a screen: never beyond them, however wide its characters are.

use ratatui_core::{buffer::Buffer, layout::Rect, style::Style, text::Span};

use super::terminal::Looks;

/// A screen to draw on.
pub(super) struct Canvas<'a> {
    pub(super) buffer: &'a mut Buffer,
    pub(super) looks: Looks,
}

impl Canvas<'_> {
    /// The whole of it.
    pub(super) fn area(&self) -> Rect {
        self.buffer.area
    }

    /// Writes text in so many cells at most; the cell behind it. What does not fit ends in `…`.
    pub(super) fn put(&mut self, x: u16, y: u16, cells: u16, text: &str, style: Style) -> u16 {
        let area = self.buffer.area;
        if y >= area.bottom() || x >= area.right() {
            return x;
        }
        let cells = cells.min(area.right() - x);
        let width = width(text);
        if width <= usize::from(cells) {
            return self.buffer.set_stringn(x, y, text, usize::from(cells), style).0;
        }
        let Some(left) = cells.checked_sub(1) else { return x };
        let (end, _) = self.buffer.set_stringn(x, y, text, usize::from(left), style);
        self.buffer.set_stringn(end, y, "…", 1, style).0
    }

    /// The same at the right end of the cells.
    pub(super) fn put_right(&mut self, x: u16, y: u16, cells: u16, text: &str, style: Style) {
        let width = u16::try_from(width(text)).unwrap_or(u16::MAX).min(cells);
        self.put(x + (cells - width), y, width, text, style);
    }

    /// Gives cells a look, whatever is in them.
    pub(super) fn style(&mut self, area: Rect, style: Style) {
        self.buffer.set_style(area, style);
    }
}

/// How many cells a text takes.
pub(super) fn width(text: &str) -> usize {
    Span::raw(text).width()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_does_not_fit_ends_in_dots() {
        let mut buffer = Buffer::empty(Rect::new(0, 0, 12, 1));
        let mut canvas = Canvas { buffer: &mut buffer, looks: Looks { colours: false } };
        let style = Style::new();
        assert_eq!(canvas.put(0, 0, 4, "abcdef", style), 4);
        assert_eq!(canvas.put(4, 0, 4, "数数数", style), 7);
        canvas.put_right(8, 0, 4, "xy", style);
        assert_eq!(buffer, Buffer::with_lines(["abc…数…   xy"]));
    }

    proptest! {
        #[test]
        fn nothing_is_drawn_beyond_its_cells(text in any::<String>(), x in 0_u16..9, cells in 0_u16..9) {
            let mut buffer = Buffer::empty(Rect::new(0, 0, 8, 1));
            let empty = buffer.clone();
            let mut canvas = Canvas { buffer: &mut buffer, looks: Looks { colours: false } };
            prop_assert!(canvas.put(x, 0, cells, &text, Style::new()) <= x + cells);
            for at in (0..8).filter(|at| *at < x || *at >= x + cells) {
                prop_assert_eq!(&buffer[(at, 0)], &empty[(at, 0)]);
            }
        }
    }
}
