//! The tags of a template and the words in them, as Jinja2's lexer finds them.

use minijinja::{Error, ErrorKind};

/// A word of an expression, as it stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Token<'s> {
    Name(&'s str),
    Number(&'s str),
    /// A string with its quotes.
    Text(&'s str),
    Operator(&'s str),
}

impl<'s> Token<'s> {
    pub(super) fn text(&self) -> &'s str {
        match self {
            Self::Name(text) | Self::Number(text) | Self::Text(text) | Self::Operator(text) => text,
        }
    }
}

/// A tag at the beginning of a text, or a piece of text that is none.
pub(super) struct Tag<'s> {
    /// Bytes of it.
    pub(super) length: usize,
    /// `{%` or `{{` with the sign of its whitespace control, and its counterpart.
    pub(super) open: &'s str,
    pub(super) close: &'s str,
    pub(super) is_statement: bool,
    /// None where the text stays as it is: text, comments and raw blocks.
    pub(super) tokens: Option<Vec<Token<'s>>>,
}

impl Tag<'_> {
    fn verbatim(length: usize) -> Self {
        Self {
            length,
            open: "",
            close: "",
            is_statement: false,
            tokens: None,
        }
    }
}

/// The tag that the text begins with.
pub(super) fn tag(text: &str) -> Result<Tag<'_>, Error> {
    let is_statement = match text.as_bytes().get(1) {
        Some(b'%') => true,
        Some(b'{') => false,
        Some(b'#') => {
            let end = text[2..].find("#}").map(|end| end + 4);
            return end.map(Tag::verbatim).ok_or_else(|| syntax("a comment is not closed"));
        }
        _ => return Ok(Tag::verbatim(1)),
    };
    if let Some(length) = raw(text) {
        return Ok(Tag::verbatim(length));
    }
    let sign = usize::from(text[2..].starts_with(['-', '+']));
    let (tokens, inner, close) = tokens(&text[2 + sign..], if is_statement { "%}" } else { "}}" })?;
    Ok(Tag {
        length: 2 + sign + inner + close.len(),
        open: &text[..2 + sign],
        close,
        is_statement,
        tokens: Some(tokens),
    })
}

/// Bytes of a raw block at the beginning of the text.
fn raw(text: &str) -> Option<usize> {
    let statement = |text: &str, word: &str| {
        let inner = text.strip_prefix("{%")?.trim_start_matches(['-', '+']).trim_start();
        let rest = inner.strip_prefix(word)?.trim_start().trim_start_matches(['-', '+']);
        Some(text.len() - rest.strip_prefix("%}")?.len())
    };
    let mut at = statement(text, "raw")?;
    while let Some(start) = text[at..].find("{%") {
        at += start;
        match statement(&text[at..], "endraw") {
            Some(length) => return Some(at + length),
            None => at += 2,
        }
    }
    Some(text.len())
}

/// The words up to the end of the tag, the bytes before that end, and the end.
fn tokens<'s>(text: &'s str, close: &str) -> Result<(Vec<Token<'s>>, usize, &'s str), Error> {
    let mut tokens = Vec::new();
    let (mut at, mut open) = (0, 0_usize);
    while let Some(c) = text[at..].chars().next() {
        let rest = &text[at..];
        let sign = usize::from(rest.starts_with(['-', '+']));
        if open == 0 && rest[sign..].starts_with(close) {
            return Ok((tokens, at, &rest[..sign + close.len()]));
        }
        let token = match c {
            c if c.is_whitespace() => {
                at += c.len_utf8();
                continue;
            }
            c if c == '_' || c.is_alphabetic() => {
                let end = rest.find(|c: char| c != '_' && !c.is_alphanumeric());
                Token::Name(&rest[..end.unwrap_or(rest.len())])
            }
            '0'..='9' if tokens.last() == Some(&Token::Operator(".")) => {
                Token::Number(&rest[..digits(rest, 0, |c| c.is_ascii_digit())])
            }
            '0'..='9' => Token::Number(&rest[..number(rest)]),
            '\'' | '"' => Token::Text(&rest[..string(rest)?]),
            _ => Token::Operator(operator(rest)?),
        };
        match token {
            Token::Operator("(" | "[" | "{") => open += 1,
            Token::Operator(")" | "]" | "}") => open = open.saturating_sub(1),
            _ => {}
        }
        at += token.text().len();
        tokens.push(token);
    }
    Err(syntax("a tag or a bracket in it is not closed"))
}

/// Where digits end.
fn digits(text: &str, from: usize, is_digit: fn(char) -> bool) -> usize {
    let end = text[from..].find(|c: char| c != '_' && !is_digit(c));
    end.map_or(text.len(), |end| from + end)
}

/// Bytes of a number: digits, a fraction and an exponent.
fn number(text: &str) -> usize {
    if text.len() > 1 && text.starts_with('0') && text[1..].starts_with(['x', 'X', 'b', 'B', 'o', 'O']) {
        return digits(text, 2, |c| c.is_ascii_hexdigit());
    }
    let decimal = |from| digits(text, from, |c| c.is_ascii_digit());
    let starts_number = |at: usize| text[at..].starts_with(|c: char| c.is_ascii_digit());
    let mut end = decimal(0);
    if text[end..].starts_with('.') && starts_number(end + 1) {
        end = decimal(end + 1);
    }
    if text[end..].starts_with(['e', 'E']) {
        let sign = usize::from(text[end + 1..].starts_with(['+', '-']));
        if starts_number(end + 1 + sign) {
            end = decimal(end + 1 + sign);
        }
    }
    end
}

/// Bytes of a string with its quotes.
fn string(text: &str) -> Result<usize, Error> {
    let quote = text.as_bytes()[0];
    let mut bytes = text.bytes().enumerate().skip(1);
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'\\' => match bytes.next() {
                Some((_, b'N')) => return Err(syntax("characters by name, `\\N{…}`, are not supported")),
                _ => continue,
            },
            byte if byte == quote => return Ok(at + 1),
            _ => {}
        }
    }
    Err(syntax("a string is not closed"))
}

const OPERATORS: [&str; 25] = [
    "**", "//", "==", "!=", ">=", "<=", "+", "-", "/", "*", "%", "~", "[", "]", "(", ")", "{", "}", ">", "<", "=", ".",
    ":", "|", ",",
];

fn operator(text: &str) -> Result<&str, Error> {
    let found = OPERATORS.iter().find(|operator| text.starts_with(**operator));
    found.map(|operator| &text[..operator.len()]).ok_or_else(|| {
        let c = text.chars().next().unwrap_or_default();
        syntax(&format!("unexpected character `{}`", c.escape_debug()))
    })
}

fn syntax(message: &str) -> Error {
    Error::new(ErrorKind::SyntaxError, message.to_owned())
}
