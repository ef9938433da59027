//! From text to the tree.

use super::{
    Access, Event, Events, Group, Item, Modifiers, Place, Problem, SyntaxError, Term, Value, What,
    cursor::Cursor,
};
use crate::{cache::CacheEvent, generic::Generic};

/// Reads what `-e` names, by grammar alone.
///
/// ```
/// let events = profiler_events::parse("cycles:u,cpu/event=0x3c,umask=1/k,sched:*")?;
/// assert_eq!(events.to_string(), "cycles:u,cpu/event=0x3c,umask=1/k,sched:*");
///
/// let error = profiler_events::parse("cycles,{instructions").unwrap_err();
/// assert_eq!(error.to_string(), "column 21: expected `,` or `}`, found the end");
/// # Ok::<(), profiler_events::SyntaxError>(())
/// ```
pub fn parse(text: &str) -> Result<Events, SyntaxError> {
    let mut cursor = Cursor::new(text);
    let mut items = Vec::new();
    loop {
        cursor.skip_space();
        items.push(item(&mut cursor)?);
        cursor.skip_space();
        if cursor.rest().is_empty() {
            return Ok(Events(items));
        }
        if !cursor.eat(",") {
            return Err(cursor.expected("`,` or the end"));
        }
    }
}

/// Reads terms as they are between slashes, and as sysfs has them for an event of a PMU.
pub(crate) fn parse_terms(text: &str) -> Result<Vec<Term>, SyntaxError> {
    let mut cursor = Cursor::new(text);
    let mut terms = Vec::new();
    loop {
        terms.push(term(&mut cursor)?);
        if cursor.rest().is_empty() {
            return Ok(terms);
        }
        if !cursor.eat(",") {
            return Err(cursor.expected("`,` or the end"));
        }
    }
}

/// The number in `r1a8` or `r0x1a8`; `None` for text of another form, and for what is too large.
pub(crate) fn raw(text: &str) -> Option<u64> {
    u64::from_str_radix(raw_digits(text)?, 16).ok()
}

fn raw_digits(text: &str) -> Option<&str> {
    let digits = text.strip_prefix('r')?;
    let digits = digits.strip_prefix("0x").unwrap_or(digits);
    is_number(digits, |it| it.is_ascii_hexdigit()).then_some(digits)
}

fn item(cursor: &mut Cursor<'_>) -> Result<Item, SyntaxError> {
    let mut ahead = *cursor;
    let name = ahead.take_while(is_name);
    if !ahead.eat("{") {
        return event(cursor).map(Item::Event);
    }
    *cursor = ahead;
    let name = (!name.is_empty()).then(|| name.to_owned());
    group(name, cursor).map(Item::Group)
}

/// What follows the opening brace.
fn group(name: Option<String>, cursor: &mut Cursor<'_>) -> Result<Group, SyntaxError> {
    let mut events = Vec::new();
    loop {
        cursor.skip_space();
        let start = *cursor;
        let next = event(cursor)?;
        if let Some(letter) = next.modifiers.leaders_letter().filter(|_| !events.is_empty()) {
            return Err(start.error(Problem::LeaderOnly { letter }));
        }
        events.push(next);
        cursor.skip_space();
        if cursor.eat("}") {
            break;
        }
        if !cursor.eat(",") {
            return Err(cursor.expected("`,` or `}`"));
        }
    }
    let start = *cursor;
    let modifiers = modifiers(cursor, false)?;
    if events.iter().any(|it| it.modifiers.and(modifiers).is_none()) {
        return Err(start.error(Problem::TooPrecise));
    }
    Ok(Group { name, events, modifiers })
}

fn event(cursor: &mut Cursor<'_>) -> Result<Event, SyntaxError> {
    let what = what(cursor)?;
    let has_terms = cursor.eat("/");
    let terms = if has_terms { terms(cursor)? } else { Vec::new() };
    let what = match what {
        What::Name(name) if has_terms => What::Pmu(name),
        other => other,
    };
    Ok(Event { what, terms, modifiers: modifiers(cursor, has_terms)? })
}

fn what(cursor: &mut Cursor<'_>) -> Result<What, SyntaxError> {
    if cursor.eat("mem:") {
        return breakpoint(cursor);
    }
    for (prefix, returns) in [("kprobe:", false), ("kretprobe:", true)] {
        if cursor.eat(prefix) {
            return Ok(What::Kprobe { place: place(cursor, !returns)?, returns });
        }
    }
    for (prefix, returns) in [("uprobe:", false), ("uretprobe:", true)] {
        if cursor.eat(prefix) {
            let path = path(cursor)?;
            return Ok(What::Uprobe { path, place: place(cursor, true)?, returns });
        }
    }
    if cursor.peek().is_some_and(|it| it.is_ascii_digit()) {
        return numeric(cursor);
    }
    let start = *cursor;
    let word = cursor.take_while(is_name);
    if word.is_empty() {
        return Err(start.expected("an event"));
    }
    if let Some(event) = Generic::named(word) {
        return Ok(What::Generic(event));
    }
    if let Some(event) = CacheEvent::named(word) {
        return event.map(What::Cache).map_err(|problem| start.error(problem));
    }
    if let Some(tracepoint) = tracepoint(word, cursor)? {
        return Ok(tracepoint);
    }
    if let Some(digits) = raw_digits(word) {
        let config = u64::from_str_radix(digits, 16);
        return config.map(What::Raw).map_err(|_| start.error(too_large(word, u64::MAX)));
    }
    Ok(What::Name(word.to_owned()))
}

/// `SYSTEM:NAME`, if what follows the colon is not modifiers.
fn tracepoint(system: &str, cursor: &mut Cursor<'_>) -> Result<Option<What>, SyntaxError> {
    let mut ahead = *cursor;
    if !ahead.eat(":") {
        return Ok(None);
    }
    let name = ahead.take_while(is_name);
    if name.is_empty() {
        return Err(ahead.expected("a tracepoint's name or modifiers"));
    }
    if Modifiers::looks_like(name) && ahead.peek() != Some(':') {
        return Ok(None);
    }
    *cursor = ahead;
    Ok(Some(What::Tracepoint { system: system.to_owned(), name: name.to_owned() }))
}

/// `TYPE:CONFIG`.
fn numeric(cursor: &mut Cursor<'_>) -> Result<What, SyntaxError> {
    let start = *cursor;
    let kind = number(cursor)?;
    let Ok(kind) = u32::try_from(kind) else {
        return Err(start.error(too_large(&kind.to_string(), u32::MAX.into())));
    };
    if !cursor.eat(":") {
        return Err(cursor.expected("`:` and a number, as in `4:0x1a8`"));
    }
    Ok(What::Numeric { kind, config: number(cursor)? })
}

/// What follows `mem:`.
fn breakpoint(cursor: &mut Cursor<'_>) -> Result<What, SyntaxError> {
    let address = number(cursor)?;
    let mut ahead = *cursor;
    // A term does not start with a digit here, so that `mem:0/name=x/` has terms.
    let length = if ahead.eat("/") && ahead.peek().is_some_and(|it| it.is_ascii_digit()) {
        *cursor = ahead;
        let length = number(cursor)?;
        let fits = u8::try_from(length).ok().filter(|it| (1..=8).contains(it));
        Some(fits.ok_or_else(|| ahead.error(Problem::Length(length)))?)
    } else {
        None
    };
    let mut ahead = *cursor;
    let letters = if ahead.eat(":") { ahead.take_while(|it| it.is_ascii_alphabetic()) } else { "" };
    let mut access = Access::default();
    // Without access letters, these are modifiers.
    if letters.is_empty() || !letters.chars().all(|it| "rwx".contains(it)) {
        (access.read, access.write) = (true, true);
        return Ok(What::Breakpoint { address, length, access });
    }
    cursor.eat(":");
    while let Some(letter) = cursor.peek().filter(|it| "rwx".contains(*it)) {
        let flag = match letter {
            'r' => &mut access.read,
            'w' => &mut access.write,
            _ => &mut access.execute,
        };
        if std::mem::replace(flag, true) {
            return Err(cursor.error(Problem::RepeatedModifier { letter }));
        }
        cursor.eat(letter.encode_utf8(&mut [0; 4]));
    }
    Ok(What::Breakpoint { address, length, access })
}

/// The file of a probe, and the colon behind it.
fn path(cursor: &mut Cursor<'_>) -> Result<String, SyntaxError> {
    let path = match cursor.quoted()? {
        Some(path) => path,
        None => cursor.take_while(is_path),
    };
    if path.is_empty() {
        return Err(cursor.expected("the path of a file"));
    }
    if !cursor.eat(":") {
        return Err(cursor.expected("`:` and a function, as in `uprobe:/bin/sh:main`"));
    }
    Ok(path.to_owned())
}

/// A function or an address.
fn place(cursor: &mut Cursor<'_>, may_have_offset: bool) -> Result<Place, SyntaxError> {
    if cursor.peek().is_some_and(|it| it.is_ascii_digit()) {
        return number(cursor).map(Place::Address);
    }
    let name = match cursor.quoted()? {
        Some(name) => name,
        None => cursor.take_while(is_symbol),
    };
    if name.is_empty() || cursor.peek().is_some_and(|it| "*?[".contains(it)) {
        return Err(cursor.expected("one function (patterns are for tracepoints)"));
    }
    let offset = if may_have_offset && cursor.eat("+") { number(cursor)? } else { 0 };
    Ok(Place::Symbol { name: name.to_owned(), offset })
}

/// What follows the opening slash, and the closing one.
fn terms(cursor: &mut Cursor<'_>) -> Result<Vec<Term>, SyntaxError> {
    let mut terms = Vec::new();
    if cursor.eat("/") {
        return Ok(terms);
    }
    loop {
        cursor.skip_space();
        terms.push(term(cursor)?);
        cursor.skip_space();
        if cursor.eat("/") {
            return Ok(terms);
        }
        if !cursor.eat(",") {
            return Err(cursor.expected("`,` or the closing `/`"));
        }
    }
}

fn term(cursor: &mut Cursor<'_>) -> Result<Term, SyntaxError> {
    let name = cursor.take_while(is_name);
    if name.is_empty() {
        return Err(cursor.expected("a term, as in `event=0x3c`"));
    }
    let value = if cursor.eat("=") { Some(value(cursor)?) } else { None };
    Ok(Term { name: name.to_owned(), value })
}

fn value(cursor: &mut Cursor<'_>) -> Result<Value, SyntaxError> {
    if let Some(text) = cursor.quoted()? {
        return Ok(Value::Text(text.to_owned()));
    }
    let start = *cursor;
    let word = cursor.take_while(is_value);
    if word.is_empty() {
        return Err(start.expected("a value"));
    }
    let Some((digits, radix)) = digits(word) else {
        return Ok(Value::Text(word.to_owned()));
    };
    let number = u64::from_str_radix(digits, radix);
    let number = number.map_err(|_| start.error(too_large(word, u64::MAX)))?;
    Ok(if radix == 16 { Value::Hex(number) } else { Value::Decimal(number) })
}

/// A number in decimal, or in hexadecimal after `0x`.
fn number(cursor: &mut Cursor<'_>) -> Result<u64, SyntaxError> {
    let start = *cursor;
    let word = cursor.take_while(|it| it.is_ascii_alphanumeric());
    let (digits, radix) = digits(word).ok_or_else(|| start.expected("a number"))?;
    u64::from_str_radix(digits, radix).map_err(|_| start.error(too_large(word, u64::MAX)))
}

/// The digits of a number, and its radix; `None` if it is none.
pub(super) fn digits(word: &str) -> Option<(&str, u32)> {
    if let Some(digits) = word.strip_prefix("0x") {
        return is_number(digits, |it| it.is_ascii_hexdigit()).then_some((digits, 16));
    }
    is_number(word, |it| it.is_ascii_digit()).then_some((word, 10))
}

fn is_number(text: &str, is_digit: impl Fn(char) -> bool) -> bool {
    !text.is_empty() && text.chars().all(is_digit)
}

fn too_large(what: &str, largest: u64) -> Problem {
    Problem::TooLarge { what: what.to_owned(), largest }
}

/// After a colon; after terms, that may be left out.
fn modifiers(cursor: &mut Cursor<'_>, after_terms: bool) -> Result<Modifiers, SyntaxError> {
    let has_colon = cursor.eat(":");
    if has_colon && !cursor.peek().is_some_and(|it| it.is_ascii_alphabetic()) {
        return Err(cursor.expected("modifiers, as in `cycles:u`"));
    }
    if has_colon || after_terms { Modifiers::read(cursor) } else { Ok(Modifiers::default()) }
}

/// What names of events, PMUs, terms and groups are made of, with patterns.
fn is_name(letter: char) -> bool {
    letter.is_alphanumeric() || "_-.*?[]!".contains(letter)
}

/// What a value is made of without quotes.
pub(super) fn is_value(letter: char) -> bool {
    is_name(letter) || ":+@".contains(letter)
}

/// What a path is made of without quotes.
pub(super) fn is_path(letter: char) -> bool {
    !letter.is_whitespace() && !letter.is_control() && !",:{}'".contains(letter)
}

/// What a function's name is made of without quotes.
pub(super) fn is_symbol(letter: char) -> bool {
    letter.is_alphanumeric() || "_-.$@<>~".contains(letter)
}
