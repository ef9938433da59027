//! What has changed from one profile to another, as a flame graph: the widths are those of the second profile, and
//! the colours say what has grown and what has shrunk beyond what chance explains.

use std::{
    io::{self, Write},
    sync::Arc,
};

use super::{
    about::{About, Sampled},
    html,
    root::Root,
    svg::{self, Look, Shown, colour},
    tree::{Builder, Tree},
};
use crate::{
    diff::{Change, Measure, threshold},
    import::Counted,
    profile::{Entry, Profile},
    source::Source,
};

/// The slots of the second profile and of the first.
const AFTER: usize = 0;
const BEFORE: usize = 1;

/// Two profiles, side by side.
pub struct Comparison {
    /// The samples of both, as of two sources.
    profile: Profile,
    about: About<'static>,
    /// What the first one's samples are multiplied by.
    scale: f64,
    is_scaled: bool,
}

impl Comparison {
    /// Compares samples of what each of them shows first.
    #[must_use]
    pub fn new(before: &Counted, after: &Counted, measure: Measure) -> Self {
        let mut profile = Profile::new(usize::MAX);
        let mut totals = [0.0; 2];
        for (slot, counted) in [(AFTER, after), (BEFORE, before)] {
            let shown = shown_slot(&counted.about);
            for entry in counted.profile.entries().filter(|it| it.source.slot == shown) {
                let source = Arc::new(Source { slot, ..(*entry.source).clone() });
                if let Some(total) = totals.get_mut(slot) {
                    *total += entry.count as f64;
                }
                profile.add_entry(Entry { source, ..entry.clone() });
            }
        }
        let [of_after, of_before] = totals;
        let is_scaled = measure == Measure::Share && of_before > 0.0 && of_after > 0.0;
        let sampled = |of: &Counted, when: &str| {
            let sampled = of.about.sources.get(shown_slot(&of.about)).cloned();
            sampled.map(|it| Sampled { title: format!("{} {when}", it.title), ..it })
        };
        let sources = [sampled(after, "after"), sampled(before, "before")];
        let sources = sources.into_iter().flatten().collect();
        let scale = if is_scaled { of_after / of_before } else { 1.0 };
        Self { profile, about: About { sources, ..after.about.clone() }, scale, is_scaled }
    }

    /// Writes a flame graph that any browser opens.
    pub fn write_svg(&self, to: &mut dyn Write) -> io::Result<()> {
        let (tree, before) = self.tree();
        let unit = self.about.sources.first().map_or("", |it| it.unit());
        let deviations = threshold(tree.nodes.len());
        let change = |place: usize, after: u64| {
            Change::of_counts(before.get(place).copied().unwrap_or_default(), after, self.scale)
        };
        let look = |shown: &Shown<'_>| {
            let change = change(shown.place, shown.node.total);
            let is_noise = !change.is_beyond(deviations);
            let after = svg::facts(shown.node.total, tree.total(), unit);
            let (before, growth) = (rounded(change.before), shown_growth(&change, is_noise));
            let facts = format!("{after}; before {before}: {growth}");
            Look { facts, fill: colour::change((!is_noise).then(|| change.relative())) }
        };
        let whole = change(0, tree.total());
        let normalized = if self.is_scaled { ", scaled to the same sum" } else { "" };
        let subtitle = format!(
            "{} {unit}, before {}{normalized}: {} · red is more, blue is less, grey is noise",
            svg::grouped(tree.total()),
            rounded(whole.before),
            shown_growth(&whole, !whole.is_beyond(deviations)),
        );
        let mut graph = String::new();
        let title = "Differential Flame Graph";
        let height = svg::graph(&mut graph, 0, [title, &subtitle], &tree, look);
        svg::write_document(&graph, height, to)
    }

    /// Writes a page with a flame graph and a table.
    pub fn write_html(&self, to: &mut dyn Write) -> io::Result<()> {
        html::write_changes(&self.profile, &self.about, self.scale, to)
    }

    /// Writes the samples of that page alone, as it reads them: JSON.
    pub fn write_data(&self, to: &mut dyn Write) -> io::Result<()> {
        html::write_changes_data(&self.profile, &self.about, self.scale, to)
    }

    /// The stacks of both, with the samples of the second, and beside them those of the first by node.
    fn tree(&self) -> (Tree, Vec<u64>) {
        let mut builder = Builder::new();
        let ended = self
            .profile
            .entries()
            .map(|it| (it.source.slot, builder.add(it, Root::Process), it.count));
        let ended: Vec<_> = ended.collect();
        let (mut tree, ends) = builder.finish();
        let of_before = ended.iter().filter(|(slot, ..)| *slot == BEFORE);
        let before = tree.totals(of_before.map(|(_, end, count)| (ends.of(*end), *count)));
        for (node, before) in tree.nodes.iter_mut().zip(&before) {
            node.total = node.total.saturating_sub(*before);
        }
        (tree, before)
    }
}

/// The source that a profile shows first.
fn shown_slot(about: &About<'_>) -> usize {
    let mut columns = 0;
    let has_default = |it: &Sampled| {
        columns += it.columns().count();
        columns > about.default_column
    };
    about.sources.iter().position(has_default).unwrap_or_default()
}

/// A number of samples, which is none if these were multiplied.
fn rounded(count: f64) -> String {
    svg::grouped_digits(&format!("{count:.0}"))
}

/// A change in percent.
fn shown_growth(change: &Change, is_noise: bool) -> String {
    let growth = change.growth();
    let noise = if is_noise { ", noise" } else { "" };
    if growth.is_finite() {
        format!("{:+.1}%{noise}", 100.0 * growth)
    } else {
        format!("new{noise}")
    }
}

#[cfg(test)]
mod tests {
    use jiff::tz::TimeZone;
    use roxmltree::Document;

    use super::*;
    use crate::import::{Filter, Limits, folded};

    fn compared(before: &str, after: &str, measure: Measure) -> Comparison {
        let [before, after] = [before, after].map(|text| {
            let read = folded::read(text.as_bytes(), &Limits::default()).unwrap();
            Counted::of(&read, &Filter::default(), "profiler", TimeZone::UTC).unwrap()
        });
        Comparison::new(&before, &after, measure)
    }

    /// The title and the colour of each frame.
    fn frames(comparison: &Comparison) -> Vec<(String, String)> {
        let mut svg = Vec::new();
        comparison.write_svg(&mut svg).unwrap();
        let svg = String::from_utf8(svg).unwrap();
        let document = Document::parse(&svg).unwrap();
        let groups = document.descendants().filter(|it| it.attribute("class") == Some("f"));
        let frame = |it: roxmltree::Node<'_, '_>| {
            let title = it.first_element_child().unwrap().text().unwrap().to_owned();
            let rect = it.children().find(|it| it.has_tag_name("rect")).unwrap();
            (title, rect.attribute("fill").unwrap().to_owned())
        };
        groups.map(frame).collect()
    }

    fn kind(fill: &str) -> &'static str {
        let parts: Vec<i32> =
            fill[4..fill.len() - 1].split(',').map(|it| it.parse().unwrap()).collect();
        match parts[0] - parts[2] {
            ..-10 => "blue",
            11.. => "red",
            _ => "grey",
        }
    }

    const BEFORE: &str =
        "a;main;parse 10000\na;main;write 4000\na;main;gone 3000\na;main;less 4000\n";
    const AFTER: &str = "a;main;parse 14000\na;main;write 4030\na;main;new 500\na;main;less 2000\n";

    #[test]
    fn widths_are_those_after_and_colours_are_the_changes() {
        let frames = frames(&compared(BEFORE, AFTER, Measure::Absolute));
        let shown: Vec<(&str, &str)> =
            frames.iter().map(|(title, fill)| (title.as_str(), kind(fill))).collect();
        assert_eq!(
            shown,
            [
                ("all (20,530 samples, 100.00%; before 21,000: -2.2%, noise)", "grey"),
                ("a (20,530 samples, 100.00%; before 21,000: -2.2%, noise)", "grey"),
                ("main (20,530 samples, 100.00%; before 21,000: -2.2%, noise)", "grey"),
                ("less (2,000 samples, 9.74%; before 4,000: -50.0%)", "blue"),
                ("new (500 samples, 2.44%; before 0: new)", "red"),
                ("parse (14,000 samples, 68.19%; before 10,000: +40.0%)", "red"),
                ("write (4,030 samples, 19.63%; before 4,000: +0.8%, noise)", "grey"),
            ]
        );
    }

    #[test]
    fn larger_changes_have_stronger_colours() {
        let fill = |growth| {
            let fill = colour::change(Some(growth));
            let parts: Vec<f64> =
                fill[4..fill.len() - 1].split(',').map(|it| it.parse().unwrap()).collect();
            (parts[0] - parts[2]).abs()
        };
        assert!(fill(0.05) < fill(0.3) && fill(0.3) < fill(1.0));
        assert!(fill(-0.05) < fill(-0.3) && fill(-0.3) < fill(-1.0));
    }

    #[test]
    fn shares_are_compared_where_runs_differ_in_length() {
        let twice = "a;main;parse 20000\na;main;write 8000\n";
        let once = "a;main;parse 10000\na;main;write 4000\n";
        let all_noise = |it: &Comparison| frames(it).iter().all(|(_, fill)| kind(fill) == "grey");
        assert!(!all_noise(&compared(twice, once, Measure::Absolute)));
        assert!(all_noise(&compared(twice, once, Measure::Share)));
    }

    #[test]
    fn nothing_can_be_compared_too() {
        for (before, after) in [("", ""), ("a;b 10\n", ""), ("", "a;b 10\n")] {
            assert!(!frames(&compared(before, after, Measure::Share)).is_empty());
        }
    }

    #[test]
    fn the_page_has_both() {
        let mut page = Vec::new();
        compared(BEFORE, AFTER, Measure::Absolute).write_html(&mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
        let (_, data) = page.split_once("id=\"data\">").unwrap();
        let data: serde_json::Value =
            serde_json::from_str(data.split_once('<').unwrap().0).unwrap();
        let samples = |key: &str| data["samples"][key].as_array().unwrap().clone();
        let of = |slot: u64| -> u64 {
            let both = samples("source").into_iter().zip(samples("count"));
            both.filter(|(source, _)| *source == slot).map(|(_, it)| it.as_u64().unwrap()).sum()
        };
        assert_eq!((of(0), of(1)), (20_530, 21_000));
        assert_eq!(data["change"]["scale"], 1.0);
        assert!(data["change"]["deviations"].as_f64().unwrap() > 2.5);
    }
}
