//! Patterns of names: `*`, `?`, `[a-z]` and `[!a-z]`.

/// Whether the text is a pattern, and not just a name.
pub(crate) fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

/// Whether the whole name is what the pattern says.
///
/// A `[` that nothing closes stands for itself.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let (mut pattern, mut name) = (pattern, name);
    // Where to go on if what follows the last star turns out not to match: that star takes one more.
    let mut retry: Option<(&str, &str)> = None;
    loop {
        if let Some(after) = pattern.strip_prefix('*') {
            pattern = after;
            retry = Some((after, name));
            continue;
        }
        let mut letters = name.chars();
        let letter = letters.next();
        if letter.is_none() && pattern.is_empty() {
            return true;
        }
        if let Some(letter) = letter
            && let Some(after) = one(pattern, letter)
        {
            (pattern, name) = (after, letters.as_str());
            continue;
        }
        let Some((after_star, rest)) = retry else { return false };
        let mut rest = rest.chars();
        if rest.next().is_none() {
            return false;
        }
        (pattern, name) = (after_star, rest.as_str());
        retry = Some((after_star, name));
    }
}

/// What is left of the pattern, if its first element is this letter.
fn one(pattern: &str, letter: char) -> Option<&str> {
    let mut elements = pattern.chars();
    match elements.next()? {
        '?' => Some(elements.as_str()),
        '[' => match class(elements.as_str()) {
            Some((members, after)) => is_member(members, letter).then_some(after),
            None => (letter == '[').then_some(elements.as_str()),
        },
        itself => (itself == letter).then_some(elements.as_str()),
    }
}

/// What is in the brackets, and what follows them. A `]` that comes first is a member.
fn class(after_bracket: &str) -> Option<(&str, &str)> {
    let negation = usize::from(after_bracket.starts_with('!'));
    let end = after_bracket
        .char_indices()
        .position(|(at, letter)| letter == ']' && at > negation)
        .and_then(|nth| after_bracket.char_indices().nth(nth))?
        .0;
    Some((after_bracket.get(..end)?, after_bracket.get(end..)?.strip_prefix(']')?))
}

fn is_member(members: &str, letter: char) -> bool {
    let (negated, members) =
        members.strip_prefix('!').map_or((false, members), |members| (true, members));
    let mut rest = members.chars();
    let mut found = false;
    while let Some(from) = rest.next() {
        let mut range = rest.clone();
        if let (Some('-'), Some(to)) = (range.next(), range.next()) {
            found |= (from..=to).contains(&letter);
            rest = range;
        } else {
            found |= from == letter;
        }
    }
    found != negated
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn patterns_match_whole_names() {
        for (pattern, name) in [
            ("", ""),
            ("*", ""),
            ("*", "sched_switch"),
            ("sched_*", "sched_switch"),
            ("*_switch", "sched_switch"),
            ("s*_s*h", "sched_stat_switch"),
            ("sched_swi?ch", "sched_switch"),
            ("imc_[0-3]", "imc_2"),
            ("imc_[!0-1]", "imc_2"),
            ("[]x]", "]"),
            ("[!]x]", "y"),
            ("a[b", "a[b"),
            ("**a**", "bab"),
        ] {
            assert!(matches(pattern, name), "{pattern} {name}");
        }
        for (pattern, name) in [
            ("", "a"),
            ("?", ""),
            ("sched", "sched_switch"),
            ("*_swap", "sched_switch"),
            ("imc_[0-3]", "imc_4"),
            ("imc_[!0-3]", "imc_2"),
            ("a*b*c", "acb"),
        ] {
            assert!(!matches(pattern, name), "{pattern} {name}");
        }
    }

    proptest! {
        #[test]
        fn any_pattern_has_an_answer(pattern in "[-*?!\\[\\]abé]{0,12}", name in "[-!\\[\\]abé]{0,12}") {
            let _ = matches(&pattern, &name);
            let with_star = format!("*{name}*");
            // what has no brackets stands for itself
            prop_assert!(name.contains('[') || matches(&with_star, &name));
        }
    }
}
