//! A place in a text that is being read.

use super::error::{Problem, SyntaxError};

/// What has been read of a text, and what has not.
#[derive(Clone, Copy)]
pub(super) struct Cursor<'a> {
    text: &'a str,
    rest: &'a str,
}

impl<'a> Cursor<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        Self { text, rest: text }
    }

    pub(super) fn rest(&self) -> &'a str {
        self.rest
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    pub(super) fn eat(&mut self, text: &str) -> bool {
        let after = self.rest.strip_prefix(text);
        self.rest = after.unwrap_or(self.rest);
        after.is_some()
    }

    pub(super) fn take_while(&mut self, wanted: impl Fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|it| !wanted(it)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }

    pub(super) fn skip_space(&mut self) {
        self.rest = self.rest.trim_start();
    }

    /// What comes next, by its place in the text: characters, counted from 1.
    pub(super) fn column(&self) -> usize {
        let read = self.text.len() - self.rest.len();
        self.text.get(..read).unwrap_or_default().chars().count() + 1
    }

    /// That something is wrong with what comes next.
    pub(super) fn error(&self, problem: impl Into<Problem>) -> SyntaxError {
        SyntaxError { column: self.column(), problem: problem.into() }
    }

    pub(super) fn expected(&self, what: &'static str) -> SyntaxError {
        self.error(Problem::Expected { what, found: self.peek() })
    }

    /// A text in single quotes, without them.
    pub(super) fn quoted(&mut self) -> Result<Option<&'a str>, SyntaxError> {
        if !self.eat("'") {
            return Ok(None);
        }
        let text = self.take_while(|it| it != '\'' && !it.is_control());
        if text.is_empty() {
            return Err(self.expected("text in the quotes"));
        }
        if !self.eat("'") {
            return Err(self.expected("the closing quote"));
        }
        Ok(Some(text))
    }
}
