//! From the tree to text that reads as the same tree.

use std::fmt::{Display, Formatter, Result};

use super::{Access, Event, Events, Group, Item, Modifiers, Place, Term, Value, What, parser};

impl Display for Events {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        list(&self.0, f)
    }
}

impl Display for Item {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Event(event) => event.fmt(f),
            Self::Group(group) => group.fmt(f),
        }
    }
}

impl Display for Group {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}{{", self.name.as_deref().unwrap_or_default())?;
        list(&self.events, f)?;
        f.write_str("}")?;
        after_colon(self.modifiers, f)
    }
}

impl Display for Event {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        self.what.fmt(f)?;
        if self.terms.is_empty() && !matches!(self.what, What::Pmu(_)) {
            return after_colon(self.modifiers, f);
        }
        f.write_str("/")?;
        list(&self.terms, f)?;
        write!(f, "/{}", self.modifiers)
    }
}

impl Display for What {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Generic(event) => f.write_str(event.name),
            Self::Cache(event) => event.fmt(f),
            Self::Raw(config) => write!(f, "r{config:x}"),
            Self::Numeric { kind, config } => write!(f, "{kind}:{config:#x}"),
            Self::Name(name) | Self::Pmu(name) => f.write_str(name),
            Self::Tracepoint { system, name } => write!(f, "{system}:{name}"),
            Self::Breakpoint { address, length, access } => {
                write!(f, "mem:{address:#x}")?;
                length.map_or(Ok(()), |length| write!(f, "/{length}"))?;
                write!(f, ":{access}")
            }
            Self::Kprobe { place, returns } => write!(f, "k{}:{place}", probe(*returns)),
            Self::Uprobe { path, place, returns } => {
                write!(f, "u{}:", probe(*returns))?;
                maybe_quoted(path, path.chars().all(parser::is_path), f)?;
                write!(f, ":{place}")
            }
        }
    }
}

impl Display for Access {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        let letters = [(self.read, "r"), (self.write, "w"), (self.execute, "x")];
        letters.iter().filter(|it| it.0).try_for_each(|(_, letter)| f.write_str(letter))
    }
}

impl Display for Place {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Address(address) => write!(f, "{address:#x}"),
            Self::Symbol { name, offset } => {
                let is_address = name.starts_with(|it: char| it.is_ascii_digit());
                maybe_quoted(name, !is_address && name.chars().all(parser::is_symbol), f)?;
                if *offset == 0 { Ok(()) } else { write!(f, "+{offset:#x}") }
            }
        }
    }
}

impl Display for Term {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.write_str(&self.name)?;
        self.value.as_ref().map_or(Ok(()), |value| write!(f, "={value}"))
    }
}

impl Display for Value {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match self {
            Self::Decimal(number) => number.fmt(f),
            Self::Hex(number) => write!(f, "{number:#x}"),
            Self::Text(text) => {
                let is_word = text.chars().all(parser::is_value);
                maybe_quoted(text, is_word && parser::digits(text).is_none(), f)
            }
        }
    }
}

fn probe(returns: bool) -> &'static str {
    if returns { "retprobe" } else { "probe" }
}

fn after_colon(modifiers: Modifiers, f: &mut Formatter<'_>) -> Result {
    if modifiers == Modifiers::default() { Ok(()) } else { write!(f, ":{modifiers}") }
}

fn maybe_quoted(text: &str, is_plain: bool, f: &mut Formatter<'_>) -> Result {
    if is_plain { f.write_str(text) } else { write!(f, "'{text}'") }
}

fn list(items: &[impl Display], f: &mut Formatter<'_>) -> Result {
    items.iter().enumerate().try_for_each(|(nth, item)| {
        f.write_str(if nth == 0 { "" } else { "," })?;
        item.fmt(f)
    })
}
