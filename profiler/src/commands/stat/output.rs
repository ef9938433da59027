//! What was counted, as a table, with separators, or as JSON.

use std::{fmt::Write as _, time::Duration};

use serde_json::{Value, json};

use crate::{
    cli::StatArgs,
    error::{Error, Result},
    perf::event::Event,
    stat::{counters::Reading, cpu_time::CpuTime, ratios},
};

/// The least width of the column of counts, and of that of ratios.
const COUNT_COLUMNS: usize = 18;
const RATIO_COLUMNS: usize = 10;
/// The width of the column of units.
const UNIT_COLUMNS: usize = 6;
/// From which share of the time on an event had a counter for all of it, as the table shows it.
const WHOLE: f64 = 0.9995;
const NS_PER_MS: f64 = 1e-6;

/// How to print.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Format {
    Table,
    /// With this between the fields.
    Separated(String),
    Json,
}

/// What an event has come to.
#[derive(Debug)]
pub(super) struct Row<'a> {
    pub(super) event: &'a Event,
    pub(super) reading: Reading,
    pub(super) ratio: Option<ratios::Ratio>,
    /// The standard deviation of the mean, in percent, where it is one.
    pub(super) deviation: Option<f64>,
}

/// What is known at the end beside the events.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Summary {
    /// How long it took, on average.
    pub(super) elapsed: Duration,
    /// The standard deviation of that mean, in percent.
    pub(super) deviation: Option<f64>,
    /// Of one run on average, of the command and of what it has waited for.
    pub(super) cpu_time: Option<CpuTime>,
    pub(super) runs: u32,
}

impl Format {
    /// What was asked for.
    pub(super) fn of(args: &StatArgs) -> Result<Self> {
        match args.field_separator.as_deref() {
            None if args.json => Ok(Self::Json),
            None => Ok(Self::Table),
            Some("\\t") => Ok(Self::Separated("\t".into())),
            Some(other) if other.is_empty() || other.contains(['"', '\n']) => {
                Err(Error::Usage("-x: it can't be empty, a quote or the end of a line".into()))
            }
            Some(other) => Ok(Self::Separated(other.into())),
        }
    }

    /// What stands at the top.
    pub(super) fn head(&self, title: &str) -> String {
        match self {
            Self::Table => format!("Counts of {title}:\n\n"),
            Self::Separated(_) | Self::Json => String::new(),
        }
    }

    /// The events; at the end of which interval, if there are intervals.
    pub(super) fn rows(&self, rows: &[Row<'_>], at: Option<Duration>) -> String {
        match self {
            Self::Table => table(rows, at),
            Self::Separated(separator) => {
                // All lines have the same fields.
                let has_deviation = rows.iter().any(|it| it.deviation.is_some());
                rows.iter().map(|row| separated(row, at, separator, has_deviation)).collect()
            }
            Self::Json => rows.iter().fold(String::new(), |mut text, row| {
                let _ = writeln!(text, "{}", object(row, at));
                text
            }),
        }
    }

    /// The end.
    pub(super) fn summary(&self, summary: &Summary) -> String {
        match self {
            Self::Table => summary_table(summary),
            Self::Separated(_) => String::new(),
            Self::Json => format!("{}\n", summary_object(summary)),
        }
    }
}

impl Row<'_> {
    /// The count in its unit, and that; as it is printed, with so many decimals where it is no whole number.
    fn quantity(&self, decimals: usize) -> (String, &str) {
        let unit = self.unit().unwrap_or_default();
        let text = match (self.reading, self.scale()) {
            (Reading::Counted(total), None) => total.count.to_string(),
            (Reading::Counted(total), Some(scale)) => {
                format!("{:.decimals$}", total.count as f64 * scale)
            }
            (Reading::NotCounted, _) => "<not counted>".into(),
            (Reading::NotSupported, _) => "<not supported>".into(),
            (Reading::Failed, _) => "<pinned: no counter>".into(),
        };
        (text, unit)
    }

    fn unit(&self) -> Option<&str> {
        let attr = self.event.attr();
        if ratios::is_clock(attr) { Some("msec") } else { attr.unit.as_deref() }
    }

    fn scale(&self) -> Option<f64> {
        let attr = self.event.attr();
        if ratios::is_clock(attr) { Some(NS_PER_MS) } else { attr.scale }
    }

    /// The share of the time for which it had a counter.
    fn share(&self) -> Option<f64> {
        match self.reading {
            Reading::Counted(total) => total.share(),
            _ => None,
        }
    }

    /// What stands behind the name in the table, the number and its unit, the latter padded.
    fn ratio_text(&self, columns: usize) -> String {
        match &self.ratio {
            Some(ratio) => {
                format!("  {:>RATIO_COLUMNS$.3} {:<columns$}", ratio.value, ratio.unit)
            }
            None => " ".repeat(2 + RATIO_COLUMNS + 1 + columns),
        }
    }
}

/// A line an event, in columns.
fn table(rows: &[Row<'_>], at: Option<Duration>) -> String {
    let shown: Vec<_> = rows
        .iter()
        .map(|row| {
            let (count, unit) = row.quantity(2);
            (with_commas(&count), unit.to_owned(), row.event.to_string())
        })
        .collect();
    let width = |of: &mut dyn Iterator<Item = usize>| of.max().unwrap_or_default();
    let chars = |text: &str| text.chars().count();
    let counts = width(&mut shown.iter().map(|it| chars(&it.0))).max(COUNT_COLUMNS);
    let units = width(&mut shown.iter().map(|it| chars(&it.1))).max(UNIT_COLUMNS);
    let names = width(&mut shown.iter().map(|it| chars(&it.2)));
    let ratios = rows.iter().filter_map(|it| it.ratio.as_ref());
    let ratios = width(&mut ratios.map(|it| chars(&it.unit)));
    let mut text = String::new();
    for (row, (count, unit, name)) in rows.iter().zip(&shown) {
        let mut line = at.map_or_else(String::new, |at| format!("{:>12.6}", at.as_secs_f64()));
        let _ = write!(line, "{count:>counts$} {unit:<units$} {name:<names$}");
        line += &row.ratio_text(ratios);
        if let Some(share) = row.share().filter(|share| *share < WHOLE) {
            let _ = write!(line, "  ({:.1} % of the time)", 100.0 * share);
        }
        if let Some(deviation) = row.deviation {
            let _ = write!(line, "  +- {deviation:.2} %");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text + "\n"
}

fn summary_table(summary: &Summary) -> String {
    let mut text = String::new();
    let line = |time: Duration| format!("{:>COUNT_COLUMNS$.6} s     ", time.as_secs_f64());
    let deviation = summary.deviation.map(|it| format!("  +- {it:.2} %"));
    let _ = writeln!(text, "{} elapsed{}", line(summary.elapsed), deviation.unwrap_or_default());
    if let Some(CpuTime { user, system }) = summary.cpu_time {
        let _ = writeln!(text, "{} user\n{} system", line(user), line(system));
    }
    text
}

/// The fields of `perf stat -x`.
fn separated(row: &Row<'_>, at: Option<Duration>, separator: &str, has_deviation: bool) -> String {
    let (count, unit) = row.quantity(6);
    let running_ns = match row.reading {
        Reading::Counted(total) => total.running_ns,
        _ => 0,
    };
    let percent = 100.0 * row.share().unwrap_or_default();
    let (ratio, ratio_unit) = match &row.ratio {
        Some(ratio) => (format!("{:.3}", ratio.value), &*ratio.unit),
        None => (String::new(), ""),
    };
    let mut fields: Vec<String> =
        at.map(|at| format!("{:.9}", at.as_secs_f64())).into_iter().collect();
    fields.extend([count, unit.to_owned(), row.event.to_string()]);
    let deviation = row.deviation.map_or_else(String::new, |it| format!("{it:.2}%"));
    fields.extend(has_deviation.then_some(deviation));
    fields.extend([running_ns.to_string(), format!("{percent:.2}"), ratio, ratio_unit.to_owned()]);
    let fields: Vec<String> = fields.into_iter().map(|it| quoted(it, separator)).collect();
    fields.join(separator) + "\n"
}

/// A field in which the separator may stand.
fn quoted(field: String, separator: &str) -> String {
    if field.contains(separator) || field.contains('"') {
        format!("\"{}\"", field.replace('"', "\"\""))
    } else {
        field
    }
}

fn object(row: &Row<'_>, at: Option<Duration>) -> Value {
    let (state, total) = match row.reading {
        Reading::Counted(total) => ("counted", Some(total)),
        Reading::NotCounted => ("not_counted", None),
        Reading::NotSupported => ("not_supported", None),
        Reading::Failed => ("pinned_without_counter", None),
    };
    let value = total.map(|it| it.count as f64 * row.scale().unwrap_or(1.0));
    let mut object = json!({
        "type": "event",
        "event": row.event.to_string(),
        "state": state,
        "count": total.map(|it| it.count),
        "value": if row.scale().is_some() { json!(value) } else { json!(total.map(|it| it.count)) },
        "unit": row.unit(),
        "enabled_ns": total.map(|it| it.enabled_ns),
        "running_ns": total.map(|it| it.running_ns),
        "running_share": row.share(),
        "ratio": row.ratio.as_ref().map(|it| it.value),
        "ratio_unit": row.ratio.as_ref().map(|it| &*it.unit),
    });
    if let Some(fields) = object.as_object_mut() {
        fields.extend(at.map(|at| ("time_s".into(), json!(at.as_secs_f64()))));
        fields.extend(row.deviation.map(|it| ("deviation_percent".into(), json!(it))));
    }
    object
}

fn summary_object(summary: &Summary) -> Value {
    let cpu_time = |of: fn(CpuTime) -> Duration| summary.cpu_time.map(|it| of(it).as_secs_f64());
    json!({
        "type": "summary",
        "runs": summary.runs,
        "elapsed_s": summary.elapsed.as_secs_f64(),
        "elapsed_deviation_percent": summary.deviation,
        "user_s": cpu_time(|it| it.user),
        "system_s": cpu_time(|it| it.system),
    })
}

/// A number with its thousands apart; what begins with no digit is left as it is.
fn with_commas(number: &str) -> String {
    let digits = number.find(|it: char| !it.is_ascii_digit()).unwrap_or(number.len());
    let (whole, rest) = number.split_at(digits);
    let mut text = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stat::{count::Total, ratios::Ratio};
    use profiler_events::Attr;
    use std::borrow::Cow;

    fn named(name: &str, kind: u32, config: u64) -> Event {
        Event::new(Attr { name: name.into(), ..Attr::new(kind, config) })
    }

    fn counted(count: u64, enabled_ns: u64, running_ns: u64) -> Reading {
        Reading::Counted(Total { count, enabled_ns, running_ns })
    }

    fn ratio(value: f64, unit: &'static str) -> Ratio {
        Ratio { value, unit: Cow::Borrowed(unit) }
    }

    #[test]
    fn the_table_is_in_columns() {
        let events = [
            named("task-clock", 1, 1),
            named("cycles", 0, 0),
            named("branches", 0, 4),
            named("dummy", 1, 9),
        ];
        let row = |at: usize, reading, ratio| {
            let deviation = (at < 2).then_some(0.534);
            Row { event: &events[at], reading, ratio, deviation }
        };
        let rows = [
            row(0, counted(1_234_567_890, 10, 10), Some(ratio(0.98765, "CPUs used"))),
            row(1, counted(3_456_789_012, 100, 50), Some(ratio(2.8, "GHz"))),
            row(2, Reading::NotSupported, None),
            row(3, Reading::NotCounted, None),
        ];
        let summary =
            Summary { elapsed: Duration::from_millis(1250), runs: 1, ..Summary::default() };
        let text = Format::Table.head("`true`")
            + &Format::Table.rows(&rows, None)
            + &Format::Table.summary(&summary);
        let expected = "\
Counts of `true`:

          1,234.57 msec   task-clock       0.988 CPUs used  +- 0.53 %
     3,456,789,012        cycles           2.800 GHz        (50.0 % of the time)  +- 0.53 %
   <not supported>        branches
     <not counted>        dummy

          1.250000 s      elapsed
";
        assert_eq!(text, expected);
    }

    #[test]
    fn separated_fields_are_in_perfs_order() {
        let format = Format::Separated(",".into());
        let event = named("cpu/a=1,b=2/", 4, 1);
        let row = |deviation| Row {
            event: &event,
            reading: counted(1500, 2000, 1500),
            ratio: Some(ratio(1.5, "M/sec")),
            deviation,
        };
        let expected = "1500,,\"cpu/a=1,b=2/\",1500,75.00,1.500,M/sec\n";
        assert_eq!(format.rows(&[row(None)], None), expected);
        let with_all = format.rows(&[row(Some(0.5))], Some(Duration::from_millis(1500)));
        let expected = "1.500000000,1500,,\"cpu/a=1,b=2/\",0.50%,1500,75.00,1.500,M/sec\n";
        assert_eq!(with_all, expected);
        let clock = named("task-clock", 1, 1);
        let row = Row { event: &clock, reading: Reading::NotCounted, ratio: None, deviation: None };
        let expected = "<not counted>;msec;task-clock;0;0.00;;\n";
        assert_eq!(Format::Separated(";".into()).rows(&[row], None), expected);
    }

    #[test]
    fn json_says_what_is_not_known() {
        let clock = named("task-clock", 1, 1);
        let row = Row {
            event: &clock,
            reading: counted(2_500_000, 3, 3),
            ratio: Some(ratio(0.5, "CPUs used")),
            deviation: None,
        };
        let line = Format::Json.rows(&[row], Some(Duration::from_secs(1)));
        let object: Value = serde_json::from_str(&line).unwrap();
        assert_eq!((&object["count"], &object["value"]), (&json!(2_500_000), &json!(2.5)));
        assert_eq!((&object["unit"], &object["time_s"]), (&json!("msec"), &json!(1.0)));
        assert_eq!((&object["state"], &object["running_share"]), (&json!("counted"), &json!(1.0)));
        let row = Row { event: &clock, reading: Reading::Failed, ratio: None, deviation: None };
        let object: Value = serde_json::from_str(&Format::Json.rows(&[row], None)).unwrap();
        assert_eq!(object["state"], "pinned_without_counter");
        for key in ["count", "value", "running_ns", "ratio", "ratio_unit"] {
            assert!(object.as_object().unwrap()[key].is_null(), "{key}");
        }
        assert!(object.get("time_s").is_none());
    }

    #[test]
    fn thousands_are_apart() {
        for (number, expected) in [
            ("0", "0"),
            ("999", "999"),
            ("1000", "1,000"),
            ("1234567.89", "1,234,567.89"),
            ("<not counted>", "<not counted>"),
            ("", ""),
        ] {
            assert_eq!(with_commas(number), expected);
        }
    }
}
