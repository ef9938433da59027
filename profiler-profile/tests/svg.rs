//! The SVG of a whole profile.
#![allow(clippy::unwrap_used)]

mod plausible;

use plausible::{export, samples};
use profiler_profile::source::Rate;
use roxmltree::Document;

#[test]
fn a_graph_for_each_source_in_a_well_formed_document() {
    let mut both = samples(0, "cpu-clock", Rate::Frequency(99), 2000);
    both.extend(samples(1, "page-faults", Rate::Period(100), 500));
    let svg = export("svg", &both);
    let document = Document::parse(&svg).unwrap();
    let texts = |class| {
        let of_class =
            document.descendants().filter(move |it| it.attribute("class") == Some(class));
        of_class.map(|it| it.text().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(texts("title"), ["Flame Graph: cpu-clock", "Flame Graph: page-faults"]);
    let subtitles = [
        "cpu-clock at 99 Hz · 10.00 s · 2,000 samples · 5 lost",
        "page-faults every 100 · 10.00 s · 500 samples · 5 lost",
    ];
    assert_eq!(texts("subtitle"), subtitles);
    // They lie below each other, and the file asks for nothing else.
    let graphs: Vec<_> =
        document.descendants().filter(|it| it.attribute("class") == Some("graph")).collect();
    let number =
        |place: usize, name| graphs[place].attribute(name).unwrap().parse::<u32>().unwrap();
    assert_eq!((number(0, "y"), number(1, "y")), (0, number(0, "height")));
    let height: u32 = document.root_element().attribute("height").unwrap().parse().unwrap();
    assert_eq!(height, number(1, "y") + number(1, "height"));
    assert!(!svg.contains("href") && svg.matches("http://").count() == 2, "only XML namespaces");
}

#[test]
fn the_same_samples_give_the_same_bytes() {
    let samples = samples(0, "cpu-clock", Rate::Frequency(99), 3000);
    let backwards: Vec<_> = samples.iter().rev().cloned().collect();
    assert_eq!(export("svg", &samples), export("svg", &backwards));
    assert_eq!(export("html", &samples), export("html", &backwards));
}
