//! The tokens of one tag as they are consumed, and pieces of rewritten source with the depth of their expression.

use minijinja::{Error, ErrorKind};

use crate::jinja::lexer::Token;

/// Maximum depth of operators, brackets and filters within one another, or one after another where each takes what came
/// before.
pub(super) const MAX_NESTING: usize = 100;

pub(super) type Result<T> = std::result::Result<T, Error>;

pub(super) fn syntax_error(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::SyntaxError, message.into())
}

/// Rewritten source of an expression, with its depth.
pub(super) struct Part {
    pub text: String,
    pub depth: usize,
}

impl Part {
    pub(super) fn leaf(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            depth: 1,
        }
    }

    pub(super) fn above(text: String, depth: usize) -> Result<Self> {
        if depth >= MAX_NESTING {
            return Err(syntax_error(format!(
                "an expression has more than {MAX_NESTING} operators, brackets or filters within one another"
            )));
        }
        Ok(Self { text, depth: depth + 1 })
    }
}

/// Reads the tokens of a tag from left to right.
pub(super) struct Parser<'t> {
    pub tokens: &'t [Token<'t>],
    pub at: usize,
    depth: usize,
    /// Whether the expression makes containers, which may hold what a variable held before.
    pub grows: bool,
    pub in_macro: bool,
}

impl<'t> Parser<'t> {
    pub(super) fn new(tokens: &'t [Token<'t>], in_macro: bool) -> Self {
        Self {
            tokens,
            at: 0,
            depth: 0,
            grows: false,
            in_macro,
        }
    }

    pub(super) fn peek(&self) -> Option<Token<'t>> {
        self.tokens.get(self.at).copied()
    }

    pub(super) fn is(&self, token: Token<'_>) -> bool {
        self.peek() == Some(token)
    }

    pub(super) fn skip(&mut self, token: Token<'_>) -> bool {
        let found = self.is(token);
        self.at += usize::from(found);
        found
    }

    pub(super) fn expect(&mut self, operator: &str) -> Result<()> {
        match self.skip(Token::Operator(operator)) {
            true => Ok(()),
            false => Err(self.unexpected(&format!("`{operator}`"))),
        }
    }

    pub(super) fn name(&mut self) -> Result<&'t str> {
        match self.peek() {
            Some(Token::Name(name)) => {
                self.at += 1;
                Ok(name)
            }
            _ => Err(self.unexpected("a name")),
        }
    }

    pub(super) fn unexpected(&self, expected: &str) -> Error {
        match self.peek() {
            Some(token) => syntax_error(format!("unexpected `{}`, expected {expected}", token.text())),
            None => syntax_error(format!("unexpected end of the tag, expected {expected}")),
        }
    }

    pub(super) fn one_of(&mut self, operators: &[&'static str]) -> Option<&'t str> {
        match self.peek()? {
            Token::Operator(operator) if operators.contains(&operator) => {
                self.at += 1;
                Some(operator)
            }
            _ => None,
        }
    }

    /// Parses with the depth of recursion bounded.
    pub(super) fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        Part::above(String::new(), self.depth)?;
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    /// An expression whose value a name will hold: bounded where it makes containers.
    pub(super) fn kept(&mut self, parse: impl FnOnce(&mut Self) -> Result<Part>) -> Result<String> {
        let outer = std::mem::take(&mut self.grows);
        let text = parse(self)?.text;
        let grows = std::mem::replace(&mut self.grows, outer);
        self.grows |= grows;
        Ok(if grows { format!("__kept({text})") } else { text })
    }
}
