//! Times that people type.

use std::time::Duration;

use jiff::{
    Timestamp, Zoned,
    civil::{DateTime, Time},
};

use crate::units;

/// A time as it was typed: what it means depends on the time that it is, and on the zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moment {
    /// So long ago; `now` is no time ago.
    Ago(Duration),
    /// A time of the last 24 hours.
    Today(Time),
    /// A date and a time of the machine's zone.
    Civil(DateTime),
    /// A time anywhere.
    At(Timestamp),
}

impl Moment {
    /// `now`, `10 min ago`, `14:30`, `2026-11-24 14:30`, or RFC 3339 with its zone.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text == "now" {
            return Ok(Self::Ago(Duration::ZERO));
        }
        if let Some(time) = text.strip_suffix("ago") {
            let time: String = time.split_whitespace().collect();
            return units::parse_duration(&time).map(Self::Ago);
        }
        // What has a date also reads as a time of day.
        let parsed = text.parse().map(Self::At).or_else(|_| text.parse().map(Self::Civil));
        parsed.or_else(|_| text.parse().map(Self::Today)).map_err(|_| {
            "not a time; try now, '10 min ago', 14:30, '2026-11-24 14:30' or RFC 3339".to_owned()
        })
    }

    /// When that is.
    pub(crate) fn at(self, now: &Zoned) -> Result<Timestamp, String> {
        let none = |error: jiff::Error| error.to_string();
        match self {
            Self::Ago(time) => now.timestamp().checked_sub(time).map_err(none),
            Self::At(at) => Ok(at),
            Self::Civil(at) => Ok(at.to_zoned(now.time_zone().clone()).map_err(none)?.timestamp()),
            Self::Today(time) => {
                let today = now.with().time(time).build().map_err(none)?;
                let is_ahead = today > *now;
                let day = if is_ahead { today.yesterday().map_err(none)? } else { today };
                Ok(day.timestamp())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_people_type_is_a_time() {
        let now: Zoned = "2026-11-24T10:30:00+01:00[Europe/Berlin]".parse().unwrap();
        let at = |text: &str| Moment::parse(text).unwrap().at(&now).unwrap().to_string();
        for (text, expected) in [
            ("now", "2026-11-24T09:30:00Z"),
            ("10 min ago", "2026-11-24T09:20:00Z"),
            ("90s ago", "2026-11-24T09:28:30Z"),
            ("2 d ago", "2026-11-22T09:30:00Z"),
            ("10:15", "2026-11-24T09:15:00Z"),
            ("10:15:30", "2026-11-24T09:15:30Z"),
            ("11:00", "2026-11-23T10:00:00Z"),
            ("2026-11-20 08:00", "2026-11-20T07:00:00Z"),
            ("2026-11-20T08:00:00Z", "2026-11-20T08:00:00Z"),
            ("2026-11-20T08:00:00-05:00", "2026-11-20T13:00:00Z"),
        ] {
            assert_eq!(at(text), expected, "{text}");
        }
        for wrong in ["", "ago", "ten min ago", "25:00", "yesterday", "10 parsecs ago"] {
            assert!(Moment::parse(wrong).is_err(), "{wrong}");
        }
    }
}
