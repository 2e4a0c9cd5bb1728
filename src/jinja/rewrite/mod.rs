//! A template's source in the terms of our functions, so that operators, subscripts and assignments mean what they mean
//! in Python: `a % b` becomes `__operate(a, '%', b)`.
//!
//! Expressions are parsed with the precedence of Jinja2; how deep they nest is bounded here, before anything recurses
//! over them.

mod expressions;
mod parser;
mod statements;

use minijinja::Error;

use super::error::TemplateError;
use super::lexer::{Tag, Token, tag};
use parser::{Parser, Result, syntax_error};
use statements::OpenTags;

/// Maximum number of bytes of a template.
const MAX_SOURCE: usize = 1 << 20;

/// The source of a template as it is compiled.
///
/// # Errors
/// Fails for a syntax error or an unsupported feature of Jinja2, with its line.
pub(super) fn rewritten(source: &str) -> std::result::Result<String, TemplateError> {
    if source.len() > MAX_SOURCE {
        let message = format!("the template has {} bytes; allowed are {MAX_SOURCE}", source.len());
        return Err(TemplateError::new(message, None));
    }
    let mut out = String::with_capacity(source.len() * 2);
    let mut open = OpenTags::default();
    let (mut rest, mut line) = (source, 1);
    while let Some(start) = rest.find('{') {
        out.push_str(&rest[..start]);
        line += rest[..start].matches('\n').count();
        rest = &rest[start..];
        let at_line = |error: Error| TemplateError {
            line: Some(line),
            ..error.into()
        };
        let tag = tag(rest).map_err(at_line)?;
        let text = &rest[..tag.length];
        match tag.tokens {
            None => out.push_str(text),
            Some(_) => write_tag(&mut out, text, &tag, &mut open).map_err(at_line)?,
        }
        line += text.matches('\n').count();
        rest = &rest[tag.length..];
    }
    out.push_str(rest);
    Ok(out)
}

/// Writes one tag, its line breaks before its end.
fn write_tag(out: &mut String, text: &str, tag: &Tag<'_>, open: &mut OpenTags) -> Result<()> {
    let mut parser = Parser::new(tag.tokens.as_deref().unwrap_or_default(), open.macros > 0);
    let inner = match tag.is_statement {
        true => parser.statement(open)?,
        false => parser.tuple(true)?.text,
    };
    if parser.at < parser.tokens.len() {
        return Err(parser.unexpected("the end of the tag"));
    }
    let of_macro = |words: &[Token<'_>]| match words {
        [Token::Name(of), Token::Operator("."), Token::Name(_)] => open.macro_names.iter().any(|name| name == of),
        _ => false,
    };
    if parser.tokens.windows(3).any(of_macro) {
        return Err(syntax_error("attributes of macros are not supported"));
    }
    out.push_str(tag.open);
    out.push(' ');
    out.push_str(&inner);
    out.push(' ');
    out.extend(text.chars().filter(|c| *c == '\n'));
    out.push_str(tag.close);
    Ok(())
}
