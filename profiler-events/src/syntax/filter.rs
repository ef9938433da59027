//! What was typed to filter the hits of tracepoints: the grammar of the kernel's own event filters,
//! <https://docs.kernel.org/trace/events.html#event-filtering>.
//!
//! `prev_comm == "make" && !(next_prio < 100 || prev_state & 1)`: fields are compared with numbers by `==`, `!=`, `<`,
//! `<=`, `>`, `>=` and `&`, and with text by `==`, `!=` and `~`, which takes a pattern. `&&` binds tighter than `||`.

use std::fmt;

use super::{
    cursor::Cursor,
    error::{Problem, SyntaxError},
    parser::digits,
};

/// How deep parentheses and `!` may be nested.
const MAX_DEPTH: usize = 32;

/// Which hits count.
///
/// [`Display`](fmt::Display) gives text that reads as the same tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Filter {
    /// A field is as wanted.
    Test(Test),
    /// What follows is not so.
    Not(Box<Filter>),
    /// All of these. There are at least two.
    All(Vec<Filter>),
    /// One of these. There are at least two.
    Any(Vec<Filter>),
}

/// One comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Test {
    /// The field's name.
    pub field: String,
    /// How it is compared.
    pub operator: Operator,
    /// With what.
    pub value: Value,
    /// Where the test stands in the text: the field's first character, counted from 1.
    pub column: usize,
}

/// How a field is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operator {
    /// `==`
    Equal,
    /// `!=`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    AtMost,
    /// `>`
    Greater,
    /// `>=`
    AtLeast,
    /// `&`: has some of these bits
    HasBits,
    /// `~`: matches this pattern
    Matches,
}

/// What a field is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    /// A number, of which negative ones are counted back from 2^64.
    Number {
        /// All of its bits.
        bits: u64,
        /// Whether it was typed with a minus.
        negative: bool,
    },
    /// Text, without quotes.
    Text(String),
}

/// From the longest on, so that none is taken for the beginning of another.
const OPERATORS: [(&str, Operator); 8] = [
    ("==", Operator::Equal),
    ("!=", Operator::NotEqual),
    ("<=", Operator::AtMost),
    (">=", Operator::AtLeast),
    ("<", Operator::Less),
    (">", Operator::Greater),
    ("&", Operator::HasBits),
    ("~", Operator::Matches),
];

/// Reads what `--filter` says, by grammar alone.
///
/// ```
/// let filter = profiler_events::parse_filter("pid==1||comm~\"ma*\"")?;
/// assert_eq!(filter.to_string(), "pid == 1 || comm ~ \"ma*\"");
///
/// let error = profiler_events::parse_filter("pid = 1").unwrap_err();
/// assert_eq!(error.to_string(), "column 5: expected one of == != < <= > >= & ~, found `=`");
/// # Ok::<(), profiler_events::SyntaxError>(())
/// ```
pub fn parse_filter(text: &str) -> Result<Filter, SyntaxError> {
    let mut cursor = Cursor::new(text);
    let filter = any(&mut cursor, 0)?;
    if cursor.rest().is_empty() {
        Ok(filter)
    } else {
        Err(cursor.expected("`&&`, `||` or the end"))
    }
}

fn any(cursor: &mut Cursor<'_>, depth: usize) -> Result<Filter, SyntaxError> {
    list(cursor, "||", Filter::Any, |cursor| list(cursor, "&&", Filter::All, |it| one(it, depth)))
}

/// What stands between these operators.
fn list(
    cursor: &mut Cursor<'_>,
    operator: &str,
    combined: fn(Vec<Filter>) -> Filter,
    next: impl Fn(&mut Cursor<'_>) -> Result<Filter, SyntaxError>,
) -> Result<Filter, SyntaxError> {
    let first = next(cursor)?;
    let mut others = Vec::new();
    while cursor.eat(operator) {
        others.push(next(cursor)?);
    }
    if others.is_empty() {
        return Ok(first);
    }
    others.insert(0, first);
    Ok(combined(others))
}

fn one(cursor: &mut Cursor<'_>, depth: usize) -> Result<Filter, SyntaxError> {
    cursor.skip_space();
    if depth > MAX_DEPTH {
        return Err(cursor.error(Problem::TooDeep));
    }
    let found = if cursor.eat("!") {
        Filter::Not(Box::new(one(cursor, depth + 1)?))
    } else if cursor.eat("(") {
        let inner = any(cursor, depth + 1)?;
        if !cursor.eat(")") {
            return Err(cursor.expected("`&&`, `||` or `)`"));
        }
        inner
    } else {
        Filter::Test(test(cursor)?)
    };
    cursor.skip_space();
    Ok(found)
}

fn test(cursor: &mut Cursor<'_>) -> Result<Test, SyntaxError> {
    let start = *cursor;
    let field = cursor.take_while(|it| it.is_ascii_alphanumeric() || it == '_');
    if field.is_empty() || field.starts_with(|it: char| it.is_ascii_digit()) {
        return Err(start.expected("the name of a field"));
    }
    cursor.skip_space();
    // A single `&` compares, two combine.
    let combines = cursor.rest().starts_with("&&");
    let found = OPERATORS.iter().find(|(text, _)| !combines && cursor.eat(text));
    let Some(&(_, operator)) = found else {
        return Err(cursor.expected("one of == != < <= > >= & ~"));
    };
    cursor.skip_space();
    let before_value = *cursor;
    let value = value(cursor)?;
    let is_text = matches!(value, Value::Text(_));
    let compares_text =
        matches!(operator, Operator::Equal | Operator::NotEqual | Operator::Matches);
    if is_text && !compares_text {
        return Err(before_value.expected("a number, since text is compared by == != ~"));
    }
    if !is_text && operator == Operator::Matches {
        return Err(before_value.expected("a pattern in quotes, as in comm ~ \"ma*\""));
    }
    Ok(Test { field: field.to_owned(), operator, value, column: start.column() })
}

fn value(cursor: &mut Cursor<'_>) -> Result<Value, SyntaxError> {
    for quote in ["\"", "'"] {
        if cursor.eat(quote) {
            let text = cursor.take_while(|it| !quote.contains(it) && !it.is_control());
            let text = Value::Text(text.to_owned());
            return if cursor.eat(quote) {
                Ok(text)
            } else {
                Err(cursor.expected("the closing quote"))
            };
        }
    }
    let start = *cursor;
    let negative = cursor.eat("-");
    let word = cursor.take_while(|it| it.is_ascii_alphanumeric() || "_-.*?[]:/".contains(it));
    if let Some((digits, radix)) = digits(word) {
        let too_large =
            || start.error(Problem::TooLarge { what: word.to_owned(), largest: u64::MAX });
        let number = u64::from_str_radix(digits, radix).map_err(|_| too_large())?;
        if negative && number > 1 << 63 {
            return Err(too_large());
        }
        let bits = if negative { number.wrapping_neg() } else { number };
        return Ok(Value::Number { bits, negative });
    }
    // As the kernel has it, a word may stand without quotes.
    let is_word =
        !negative && word.starts_with(|it: char| it.is_ascii_alphabetic() || "_*?[/".contains(it));
    if is_word { Ok(Value::Text(word.to_owned())) } else { Err(start.expected("a number or text")) }
}

impl Operator {
    /// As it is typed.
    #[must_use]
    pub fn text(self) -> &'static str {
        OPERATORS.iter().find(|(_, it)| *it == self).map_or("", |(text, _)| text)
    }
}

impl Filter {
    /// All comparisons, in the order of the text.
    pub fn tests(&self) -> Vec<&Test> {
        match self {
            Self::Test(test) => vec![test],
            Self::Not(inner) => inner.tests(),
            Self::All(all) | Self::Any(all) => all.iter().flat_map(Self::tests).collect(),
        }
    }

    /// What binds less tightly than its surroundings needs parentheses.
    fn level(&self) -> u8 {
        match self {
            Self::Any(_) => 0,
            Self::All(_) => 1,
            Self::Not(_) | Self::Test(_) => 2,
        }
    }

    fn fmt_within(&self, f: &mut fmt::Formatter<'_>, level: u8) -> fmt::Result {
        if self.level() < level { write!(f, "({self})") } else { write!(f, "{self}") }
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (operator, all) = match self {
            Self::Test(test) => return write!(f, "{test}"),
            Self::Not(inner) => {
                f.write_str("!")?;
                return inner.fmt_within(f, 3);
            }
            Self::All(all) => (" && ", all),
            Self::Any(all) => (" || ", all),
        };
        for (nth, one) in all.iter().enumerate() {
            if nth > 0 {
                f.write_str(operator)?;
            }
            one.fmt_within(f, self.level() + 1)?;
        }
        Ok(())
    }
}

impl fmt::Display for Test {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { field, operator, value, .. } = self;
        write!(f, "{field} {} {value}", operator.text())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Number { bits, negative: true } => write!(f, "-{}", bits.wrapping_neg()),
            Self::Number { bits, .. } => write!(f, "{bits}"),
            Self::Text(text) if text.contains('"') => write!(f, "'{text}'"),
            Self::Text(text) => write!(f, "\"{text}\""),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_the_kernels_manual_shows_is_understood() {
        for (text, shown) in [
            ("common_preempt_count > 4", "common_preempt_count > 4"),
            (
                "((sig >= 10 && sig < 15) || sig == 17) && comm != bash",
                "(sig >= 10 && sig < 15 || sig == 17) && comm != \"bash\"",
            ),
            ("prev_comm ~ \"*sh\"", "prev_comm ~ \"*sh\""),
            ("target_cpu&0x10", "target_cpu & 16"),
            ("  pid==-1&&(a<1) ", "pid == -1 && a < 1"),
            ("!(a == 1) || !b != 'x\"'", "!(a == 1) || !(b != 'x\"')"),
            ("a ~ ma*", "a ~ \"ma*\""),
            ("(((a == 1)))", "a == 1"),
            ("a == 18446744073709551615", "a == 18446744073709551615"),
            ("a == -9223372036854775808", "a == -9223372036854775808"),
        ] {
            assert_eq!(parse_filter(text).map(|it| it.to_string()), Ok(shown.into()), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_is_said_with_its_place() {
        for (text, column, part) in [
            ("", 1, "name of a field"),
            ("a", 2, "one of =="),
            ("a = 1", 3, "one of =="),
            ("a && b", 3, "one of =="),
            ("a == ", 6, "a number or text"),
            ("a == \"x", 8, "closing quote"),
            ("a < \"x\"", 5, "a number"),
            ("a ~ 5", 5, "a pattern"),
            ("(a == 1", 8, "`)`"),
            ("a == 1)", 7, "the end"),
            ("a == 1 && ", 11, "name of a field"),
            ("a == 1 & b == 2", 8, "the end"),
            ("1 == a", 1, "name of a field"),
            ("a == 18446744073709551616", 6, "too large"),
            ("a == -9223372036854775809", 6, "too large"),
            ("a == --1", 6, "a number or text"),
        ] {
            let error = parse_filter(text).unwrap_err();
            assert_eq!(error.column, column, "{text}: {error}");
            assert!(error.to_string().contains(part), "{text}: {error}");
        }
        let deep = "(".repeat(100) + "a == 1";
        assert_eq!(parse_filter(&deep).unwrap_err().problem, Problem::TooDeep);
        let deep = "!".repeat(100_000) + "a == 1";
        assert_eq!(parse_filter(&deep).unwrap_err().problem, Problem::TooDeep);
    }

    proptest! {
        #[test]
        fn any_text_is_a_filter_or_an_error(text in "[ab1 =!<>&~|()\"'*-]{0,24}") {
            if let Ok(filter) = parse_filter(&text) {
                let shown = filter.to_string();
                let again = parse_filter(&shown).map(|it| it.to_string());
                prop_assert_eq!(again, Ok(shown));
            }
        }
    }
}
