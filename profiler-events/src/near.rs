//! What may have been meant by a name that there is not.

/// How alike two names have to be, from 0 to 1, for one to have been meant by the other.
const ALIKE: f64 = 0.8;

/// The three names most like this one, if any are like it.
#[must_use]
pub fn near(name: &str, known: impl IntoIterator<Item = String>) -> Vec<String> {
    let alike = known.into_iter().map(|known| (strsim::jaro_winkler(name, &known), known));
    let mut alike: Vec<_> = alike.filter(|(likeness, _)| *likeness > ALIKE).collect();
    alike.sort_by(|a, b| b.0.total_cmp(&a.0).then_with(|| a.1.cmp(&b.1)));
    alike.dedup_by(|a, b| a.1 == b.1);
    alike.into_iter().take(3).map(|(_, known)| known).collect()
}

/// The end of a message: a question, or nothing.
#[must_use]
pub fn did_you_mean(near: &[String]) -> String {
    if near.is_empty() { String::new() } else { format!("; did you mean {}?", any_of(near)) }
}

/// `a, b or c`.
pub(crate) fn any_of(names: &[String]) -> String {
    match names {
        [before @ .., last] if !before.is_empty() => format!("{} or {last}", before.join(", ")),
        other => other.concat(),
    }
}
