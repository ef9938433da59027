//! A flame graph that any browser opens: the width of a frame is its share of the samples, and above it is what
//! it calls. With several events, one below the other.
//!
//! The look and the keys are those of Brendan Gregg's flame graphs, <https://www.brendangregg.com/flamegraphs.html>.
//! The file needs nothing beside it. Without its script, as in an `<img>`, it is a picture of the whole.

pub(super) mod colour;

use std::{
    fmt::{self, Write as _},
    io::{self, Write},
};

use self::colour::colour;
use super::{
    about::{About, Sampled},
    format::{Export, Format, Processes},
    root::Root,
    tree::{Builder, Function, Node, Tree},
};
use crate::{printable::printable, profile::Profile};

/// The format, by name.
pub const FORMAT: Format = Format {
    name: "svg",
    help: "A flame graph, at the end: search and zoom in any browser",
    extensions: &["svg"],
    processes: Processes::Never,
    is_binary: false,
    viewers: "any browser",
    has_ledger: false,
    export: Export::Whole(write),
};

const STYLE: &str = include_str!("svg/style.css");
const SCRIPT: &str = include_str!("svg/script.js");

/// The width of the picture, in pixels. The script has the margin, the character and the row, too.
const WIDTH: usize = 1200;
const MARGIN: usize = 10;
const ROW: usize = 16;
/// Heading above the frames, and the line that explains the one under the mouse below them.
const HEAD: usize = 64;
const FOOT: usize = 36;
/// What a character of a name takes, about.
const CHARACTER: f64 = 7.0;
/// Frames that are narrower are left out.
const NARROWEST: f64 = 0.1;

fn write(profile: &Profile, about: &About<'_>, to: &mut dyn Write) -> io::Result<()> {
    let (mut graphs, mut top) = (String::new(), 0);
    for (slot, source) in about.sources.iter().enumerate() {
        let title = match about.sources.len() {
            1 => "Flame Graph".into(),
            _ => format!("Flame Graph: {}", source.event),
        };
        let tree = tree(profile, slot, about.root);
        let subtitle = subtitle(source, about.duration_ns, tree.total());
        let look = |shown: &Shown<'_>| Look {
            facts: facts(shown.node.total, tree.total(), source.unit()),
            fill: colour(&shown.function.name, shown.function.kind),
        };
        top += graph(&mut graphs, top, [&title, &subtitle], &tree, look);
    }
    write_document(&graphs, top, to)
}

/// Writes a document with these graphs, which are so high together.
pub(super) fn write_document(graphs: &str, height: usize, to: &mut dyn Write) -> io::Result<()> {
    writeln!(
        to,
        "<?xml version=\"1.0\" encoding=\"UTF-8\" standalone=\"no\"?>\n\
         <svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         viewBox=\"0 0 {WIDTH} {height}\">\n\
         <style><![CDATA[\n{STYLE}]]></style>\n{graphs}\
         <script><![CDATA[\n{SCRIPT}]]></script>\n</svg>"
    )
}

/// How many there are, and their share of all.
pub(super) fn facts(count: u64, of: u64, unit: &str) -> String {
    let share = 100.0 * count as f64 / of.max(1) as f64;
    format!("{} {unit}, {share:.2}%", grouped(count))
}

/// The samples of the source in this slot.
fn tree(profile: &Profile, slot: usize, root: Root) -> Tree {
    let mut builder = Builder::new();
    for entry in profile.entries().filter(|it| it.source.slot == slot) {
        builder.add(entry, root);
    }
    builder.finish().0
}

/// What was sampled: `cpu-clock at 99 Hz · 10.00 s · 1,234 samples`. What was lost is said, too.
fn subtitle(source: &Sampled, duration_ns: Option<u64>, count: u64) -> String {
    let mut text = source.title.clone();
    if let Some(duration_ns) = duration_ns {
        let _ = write!(text, " · {:.2} s", duration_ns as f64 / 1e9);
    }
    let _ = write!(text, " · {} {}", grouped(count), source.unit());
    if source.lost > 0 {
        let _ = write!(text, " · {} lost", grouped(source.lost));
    }
    text
}

/// What is to be seen of a frame beside its name.
pub(super) struct Look {
    /// What stands in brackets behind its name, without one that begins there.
    pub(super) facts: String,
    /// Its colour, as CSS writes it.
    pub(super) fill: String,
}

/// Adds a graph below `top`, and says how high it is.
pub(super) fn graph(
    svg: &mut String,
    top: usize,
    [title, subtitle]: [&str; 2],
    tree: &Tree,
    look: impl Fn(&Shown<'_>) -> Look,
) -> usize {
    let frames = frames(tree);
    let rows = frames.iter().map(|it| it.node.depth + 1).max().unwrap_or(1);
    let height = HEAD + rows * ROW + FOOT;
    let total = tree.total();
    let (middle, right) = (WIDTH / 2, WIDTH - MARGIN);
    let (title, subtitle) = (Escaped(title), Escaped(subtitle));
    let _ = writeln!(
        svg,
        "<svg class=\"graph\" y=\"{top}\" width=\"{WIDTH}\" height=\"{height}\" \
         data-total=\"{total}\" data-width=\"{WIDTH}\">\n\
         <linearGradient id=\"ground{top}\" y2=\"1\" x2=\"0\"><stop class=\"above\"/>\
         <stop class=\"below\" offset=\"1\"/></linearGradient>\n\
         <rect width=\"100%\" height=\"100%\" fill=\"url(#ground{top})\"/>\n\
         <text class=\"title\" x=\"{middle}\" y=\"26\">{title}</text>\n\
         <text class=\"subtitle\" x=\"{middle}\" y=\"46\">{subtitle}</text>\n\
         <text class=\"button reset hidden\" x=\"{MARGIN}\" y=\"26\" tabindex=\"0\" role=\"button\">\
         Reset Zoom</text>\n\
         <text class=\"button search\" x=\"{right}\" y=\"26\" tabindex=\"0\" role=\"button\">\
         Search</text>\n\
         <text class=\"details\" x=\"{MARGIN}\" y=\"{}\"> </text>\n\
         <text class=\"matched\" x=\"{right}\" y=\"{}\"> </text>",
        height - 12,
        height - 12,
    );
    for frame in &frames {
        frame.write(svg, tree, HEAD + (rows - 1) * ROW, &look(frame));
    }
    svg.push_str("</svg>\n");
    height
}

/// A node that is wide enough to be seen.
pub(super) struct Shown<'a> {
    /// The place of the node in the tree.
    pub(super) place: usize,
    pub(super) node: &'a Node,
    pub(super) function: &'a Function,
    /// How many samples are left of it.
    start: u64,
}

/// The frames that are drawn, each after its caller.
fn frames(tree: &Tree) -> Vec<Shown<'_>> {
    // Where the next callee of each node begins.
    let mut next: Vec<u64> = Vec::with_capacity(tree.nodes.len());
    let mut shown = Vec::new();
    for (place, node) in tree.nodes.iter().enumerate() {
        let start = match next.get_mut(node.parent) {
            Some(next) if place > 0 => {
                let start = *next;
                *next = start.saturating_add(node.total);
                start
            }
            _ => 0,
        };
        next.push(start);
        if let Some(function) = tree.functions.get(node.function)
            && (place == 0 || scale(node.total, tree) >= NARROWEST)
        {
            shown.push(Shown { place, node, function, start });
        }
    }
    shown
}

/// So many samples in pixels.
fn scale(samples: u64, tree: &Tree) -> f64 {
    samples as f64 / tree.total().max(1) as f64 * (WIDTH - 2 * MARGIN) as f64
}

impl Shown<'_> {
    /// `bottom` is where the lowest row begins.
    fn write(&self, svg: &mut String, tree: &Tree, bottom: usize, look: &Look) {
        let Self { node: Node { depth, total, .. }, function, start, .. } = self;
        let name = &function.name;
        let x = MARGIN as f64 + scale(*start, tree);
        // A graph without samples shows its root alone.
        let width =
            if *depth == 0 { scale(1, tree).max(scale(*total, tree)) } else { scale(*total, tree) };
        let y = bottom - depth * ROW;
        let _ = write!(
            svg,
            "<g class=\"f\" data-x=\"{start}\" data-n=\"{total}\"><title>{} ({})</title>\
             <rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"{}\" fill=\"{}\"/>",
            Escaped(name),
            Escaped(&look.facts),
            ROW - 1,
            look.fill,
        );
        let fitting = fitting(name, width);
        if !fitting.is_empty() {
            let (x, y) = (x + 3.0, y + 12);
            let _ = write!(svg, "<text x=\"{x:.1}\" y=\"{y}\">{}</text>", Escaped(&fitting));
        }
        svg.push_str("</g>\n");
    }
}

/// As much of a name as is seen in a frame of this width; nothing if that is next to nothing.
fn fitting(name: &str, width: f64) -> String {
    // A wide character, as of Chinese, takes two places.
    let places = |it: char| if it.is_ascii() { 1.0 } else { 2.0 };
    let room = (width - 6.0) / CHARACTER;
    if name.chars().map(places).sum::<f64>() <= room {
        return name.to_owned();
    }
    let (mut fitting, mut taken) = (String::new(), 2.0);
    for it in name.chars() {
        taken += places(it);
        if taken > room {
            break;
        }
        fitting.push(it);
    }
    if fitting.is_empty() { fitting } else { fitting + ".." }
}

/// A number with commas: `1,234,567`.
pub(super) fn grouped(number: u64) -> String {
    grouped_digits(&number.to_string())
}

/// The same of its digits.
pub(super) fn grouped_digits(digits: &str) -> String {
    let mut text = String::new();
    for (left, digit) in (0..digits.len()).rev().zip(digits.chars()) {
        text.push(digit);
        if left > 0 && left % 3 == 0 {
            text.push(',');
        }
    }
    text
}

/// Text that is no markup, with nothing that XML 1.0 has no place for.
struct Escaped<'a>(&'a str);

impl fmt::Display for Escaped<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for it in printable(self.0).chars() {
            match it {
                '&' => f.write_str("&amp;")?,
                '<' => f.write_str("&lt;")?,
                '>' => f.write_str("&gt;")?,
                '"' => f.write_str("&quot;")?,
                '\'' => f.write_str("&#39;")?,
                '\u{fffe}' | '\u{ffff}' => write!(f, "{}", it.escape_unicode())?,
                _ => f.write_char(it)?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use roxmltree::{Document, Node as Element};

    use super::*;
    use crate::{
        export::tests::{location, sample},
        frame::Frame,
        profile::Entry,
        sample::Comm,
        store::Store,
    };

    fn entry(comm: Comm, symbols: &[&str], count: u64) -> Entry {
        let frame = |symbol: &&str| Frame { symbol: Some(Arc::from(*symbol)), ..Frame::default() };
        let locations = symbols.iter().map(|symbol| location(0, &[frame(symbol)]));
        let user = Store::default().intern(locations.collect());
        let of = sample();
        let task = crate::sample::Task { comm, ..of.task };
        Entry { source: of.source, task, kernel: of.kernel, user, count, value: count }
    }

    fn drawn(entries: &[Entry]) -> String {
        let mut builder = Builder::new();
        for entry in entries {
            builder.add(entry, Root::Process);
        }
        let mut svg = String::new();
        let tree = builder.finish().0;
        let look = |it: &Shown<'_>| Look {
            facts: facts(it.node.total, tree.total(), "samples"),
            fill: colour(&it.function.name, it.function.kind),
        };
        graph(&mut svg, 0, ["Flame Graph", "cycles"], &tree, look);
        svg
    }

    /// The elements of a class.
    fn of_class<'a>(document: &'a Document<'_>, class: &str) -> Vec<Element<'a, 'a>> {
        let has = |it: &Element<'_, '_>| it.attribute("class") == Some(class);
        document.descendants().filter(has).collect()
    }

    #[test]
    fn widths_are_shares_and_callees_lie_above() {
        let a = Comm(*b"a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        let svg = drawn(&[entry(a, &["g", "f"], 3), entry(a, &["f"], 1), entry(a, &["h"], 4)]);
        let document = Document::parse(&svg).unwrap();
        let frames: Vec<_> = of_class(&document, "f")
            .into_iter()
            .map(|group| {
                let rect = group.children().find(|it| it.has_tag_name("rect")).unwrap();
                let title = group.children().find_map(|it| it.text()).unwrap();
                let at = ["x", "y", "width", "height"].map(|it| rect.attribute(it).unwrap());
                (title.to_owned(), at.join(" "))
            })
            .collect();
        let expected = [
            ("all (8 samples, 100.00%)", "10.0 112 1180.0 15"),
            ("a (8 samples, 100.00%)", "10.0 96 1180.0 15"),
            ("f (4 samples, 50.00%)", "10.0 80 590.0 15"),
            ("g (3 samples, 37.50%)", "10.0 64 442.5 15"),
            ("h (4 samples, 50.00%)", "600.0 80 590.0 15"),
        ];
        assert_eq!(frames, expected.map(|(title, at)| (title.to_owned(), at.to_owned())));
    }

    #[test]
    fn no_name_is_markup() {
        let names = [
            "<script>alert(1)</script>",
            "]]><x>",
            "a&amp;b",
            "\"quoted\" 'twice'",
            "a;b",
            "line\nbreak\u{2028}",
            "\u{202e}esrever\u{0}\u{ffff}\u{fffe}",
            "C++ <T>::operator()",
        ];
        let comm = Comm(*b"<&\xff\n>\0\0\0\0\0\0\0\0\0\0\0");
        let svg = drawn(&names.map(|name| entry(comm, &[name], 1)));
        let document = Document::parse(&svg).unwrap();
        let title = |it: &Element<'_, '_>| {
            let title = it.first_element_child().unwrap().text().unwrap();
            title.rsplit_once(" (").unwrap().0.to_owned()
        };
        let mut titles: Vec<_> = of_class(&document, "f").iter().map(title).collect();
        titles.sort_unstable();
        let mut expected = vec![
            "all",
            "<&\u{fffd}\\n>",
            "<script>alert(1)</script>",
            "]]><x>",
            "a&amp;b",
            "\"quoted\" 'twice'",
            "a;b",
            "line\\nbreak\\u{2028}",
            "\\u{202e}esrever\\x00\\u{ffff}\\u{fffe}",
            "C++ <T>::operator()",
        ];
        expected.sort_unstable();
        assert_eq!(titles, expected);
        let tags =
            document.descendants().filter(Element::is_element).map(|it| it.tag_name().name());
        for tag in tags {
            let known = ["svg", "g", "rect", "text", "title", "linearGradient", "stop"];
            assert!(known.contains(&tag), "{tag}");
        }
    }

    #[test]
    fn names_are_cut_to_their_frames() {
        assert_eq!(fitting("main", 6.0 + 4.0 * CHARACTER), "main");
        assert_eq!(fitting("main_loop", 6.0 + 4.0 * CHARACTER), "ma..");
        assert_eq!(fitting("数数数数", 6.0 + 6.0 * CHARACTER), "数数..");
        assert_eq!(fitting("main", 6.0 + 2.0 * CHARACTER), "");
        assert_eq!(fitting("main", 0.0), "");
    }

    #[test]
    fn a_frame_that_nobody_could_see_is_left_out() {
        let a = Comm(*b"a\0\0\0\0\0\0\0\0\0\0\0\0\0\0\0");
        let svg =
            drawn(&[entry(a, &["hot"], 11_799), entry(a, &["seen"], 2), entry(a, &["cold"], 1)]);
        assert!(svg.contains("<title>seen (2 samples, 0.02%)") && !svg.contains("cold"), "{svg}");
    }

    #[test]
    fn without_samples_the_root_is_drawn() {
        let svg = drawn(&[]);
        assert!(svg.contains("<title>all (0 samples, 0.00%)"), "{svg}");
        Document::parse(&svg).unwrap();
    }

    #[test]
    fn numbers_are_grouped() {
        let all = [0, 12, 123, 1_234, 123_456, 1_234_567].map(grouped);
        assert_eq!(all, ["0", "12", "123", "1,234", "123,456", "1,234,567"]);
    }
}
