//! What things look like, with colours and without.

use profiler_profile::live::Kind;
use ratatui_core::style::{Color, Modifier, Style};

use super::terminal::Looks;

impl Looks {
    fn colour(self, colour: Color) -> Style {
        if self.colours { Style::new().fg(colour) } else { Style::new() }
    }

    /// Of a name, by what it is part of.
    pub(super) fn kind(self, kind: Kind) -> Style {
        match kind {
            Kind::Process => self.colour(Color::White),
            Kind::User => self.colour(Color::Yellow),
            Kind::Library => self.colour(Color::Green),
            Kind::Made => self.colour(Color::Magenta),
            Kind::Interpreted => self.colour(Color::Blue),
            Kind::Kernel => self.colour(Color::Cyan),
        }
    }

    /// Of what is less important.
    pub(super) fn faint(self) -> Style {
        if self.colours { self.colour(Color::DarkGray) } else { Style::new() }
    }

    /// Of what is wrong.
    pub(super) fn bad(self) -> Style {
        self.colour(Color::Red).add_modifier(Modifier::BOLD)
    }
}

/// A letter for what a function is part of, for whoever sees no colours.
pub(super) fn letter(kind: Kind) -> &'static str {
    match kind {
        Kind::Process => "p",
        Kind::User => "u",
        Kind::Library => "l",
        Kind::Made => "j",
        Kind::Interpreted => "i",
        Kind::Kernel => "k",
    }
}

/// Of a call in a flame graph: those beside each other differ. Without colours they are told apart by a line.
pub(super) fn flame(kind: Kind, is_odd: bool) -> Color {
    let (even, odd) = match kind {
        Kind::Process => (180, 187),
        Kind::User => (209, 215),
        Kind::Library => (114, 150),
        Kind::Made => (176, 182),
        Kind::Interpreted => (141, 147),
        Kind::Kernel => (110, 117),
    };
    Color::Indexed(if is_odd { odd } else { even })
}

/// Of what was found in a flame graph.
pub(super) fn found() -> Color {
    Color::Indexed(201)
}

/// Of titles and of what is more than usual.
pub(super) fn strong() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

/// Of the line that is chosen, and of bars.
pub(super) fn reversed() -> Style {
    Style::new().add_modifier(Modifier::REVERSED)
}
