//! The letters at the end of an event.

use std::fmt;

use super::{
    cursor::Cursor,
    error::{Problem, SyntaxError},
};

/// What [`Modifiers::read`] understands, for messages.
pub(super) const KNOWN: &str = "u (user), k (kernel), h (hypervisor), I (not idle), G (guests), H (host), p, pp, ppp and P (precise), \
     D (pinned) and e (exclusive)";

/// When an event counts, and how exactly.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modifiers {
    /// `u`: in user mode. With none of `u`, `k` and `h`, in all three.
    pub user: bool,
    /// `k`: in the kernel.
    pub kernel: bool,
    /// `h`: in the hypervisor.
    pub hypervisor: bool,
    /// `I`: not while idle.
    pub not_idle: bool,
    /// `G`: in guests. With neither `G` nor `H`, in both.
    pub guest: bool,
    /// `H`: in the host.
    pub host: bool,
    /// `p` to `ppp`, and `P`.
    pub precise: Precise,
    /// `D`: always on the PMU, or in error.
    pub pinned: bool,
    /// `e`: alone on the PMU.
    pub exclusive: bool,
}

/// How near the instruction that is sampled has to be to the one that made the event fire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precise {
    /// `perf_event_attr.precise_ip`, 0 to 3.
    Level(u8),
    /// The most that the event can: from 3 on down, the first with which it opens.
    Most,
}

impl Precise {
    /// The largest `precise_ip`.
    pub const MAX: u8 = 3;

    /// Both together; `None` if that is too much.
    fn and(self, other: Self) -> Option<Self> {
        match (self, other) {
            (Self::Level(0), level) | (level, Self::Level(0)) => Some(level),
            (Self::Level(one), Self::Level(other)) => {
                one.checked_add(other).filter(|it| *it <= Self::MAX).map(Self::Level)
            }
            (Self::Most, Self::Most) => Some(Self::Most),
            (Self::Most, Self::Level(_)) | (Self::Level(_), Self::Most) => None,
        }
    }
}

impl Default for Precise {
    fn default() -> Self {
        Self::Level(0)
    }
}

impl Modifiers {
    /// Those of an event, with those of its group; `None` if that is too precise.
    pub(crate) fn and(self, group: Self) -> Option<Self> {
        Some(Self {
            user: self.user || group.user,
            kernel: self.kernel || group.kernel,
            hypervisor: self.hypervisor || group.hypervisor,
            not_idle: self.not_idle || group.not_idle,
            guest: self.guest || group.guest,
            host: self.host || group.host,
            precise: self.precise.and(group.precise)?,
            pinned: self.pinned || group.pinned,
            exclusive: self.exclusive || group.exclusive,
        })
    }

    /// Without those that only the first event of a group can have.
    pub(crate) fn of_follower(self) -> Self {
        Self { pinned: false, exclusive: false, ..self }
    }

    /// Reads a run of letters, which may be empty.
    pub(super) fn read(cursor: &mut Cursor<'_>) -> Result<Self, SyntaxError> {
        let mut read = Self::default();
        while let Some(letter) = cursor.peek().filter(char::is_ascii_alphabetic) {
            read.add(letter).map_err(|problem| cursor.error(problem))?;
            cursor.eat(letter.encode_utf8(&mut [0; 4]));
        }
        Ok(read)
    }

    fn add(&mut self, letter: char) -> Result<(), Problem> {
        let flag = match letter {
            'u' => &mut self.user,
            'k' => &mut self.kernel,
            'h' => &mut self.hypervisor,
            'I' => &mut self.not_idle,
            'G' => &mut self.guest,
            'H' => &mut self.host,
            'D' => &mut self.pinned,
            'e' => &mut self.exclusive,
            'p' | 'P' => {
                let more = if letter == 'p' { Precise::Level(1) } else { Precise::Most };
                self.precise = self.precise.and(more).ok_or(Problem::TooPrecise)?;
                return Ok(());
            }
            _ => {
                return Err(refusal(letter).map_or(Problem::UnknownModifier { letter }, |why| {
                    Problem::RefusedModifier { letter, why }
                }));
            }
        };
        if std::mem::replace(flag, true) {
            return Err(Problem::RepeatedModifier { letter });
        }
        Ok(())
    }

    /// Whether the text can be nothing but modifiers, ours or those of `perf` that we refuse.
    pub(super) fn looks_like(text: &str) -> bool {
        let is_modifier = |it| "ukhIGHpPDe".contains(it) || refusal(it).is_some();
        !text.is_empty() && text.chars().all(is_modifier)
    }

    /// The letter of one that only a group's first event may have.
    pub(super) fn leaders_letter(self) -> Option<char> {
        match self {
            Self { pinned: true, .. } => Some('D'),
            Self { exclusive: true, .. } => Some('e'),
            _ => None,
        }
    }
}

/// Why we don't do what this letter of `perf`'s asks for; `None` for other letters.
fn refusal(letter: char) -> Option<&'static str> {
    Some(match letter {
        'S' => "each event takes its own samples, and carries no counts of its group's others",
        'W' => "a group that does not fit the PMU is an error; leave out the braces",
        'b' => "there are no counts by eBPF programs; leave it out",
        'R' => "there is no latency of retirement",
        'X' => "groups are as they were typed; leave it out",
        _ => return None,
    })
}

impl fmt::Display for Modifiers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = [
            (self.user, "u"),
            (self.kernel, "k"),
            (self.hypervisor, "h"),
            (self.not_idle, "I"),
            (self.guest, "G"),
            (self.host, "H"),
            (self.pinned, "D"),
            (self.exclusive, "e"),
        ];
        for (_, letter) in flags.iter().filter(|it| it.0) {
            f.write_str(letter)?;
        }
        match self.precise {
            Precise::Level(level) => (0..level).try_for_each(|_| f.write_str("p")),
            Precise::Most => f.write_str("P"),
        }
    }
}
