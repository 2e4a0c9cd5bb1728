//! Tags that are statements: loops, assignments, macros and the rest.

use super::parser::{MAX_NESTING, Parser, Part, Result, syntax_error};
use crate::jinja::lexer::Token;

/// Statements that have no expression, or none that is rewritten.
const PLAIN_STATEMENTS: [&str; 19] = [
    "else",
    "endfor",
    "endset",
    "endmacro",
    "endcall",
    "endfilter",
    "endwith",
    "endautoescape",
    "endblock",
    "break",
    "continue",
    "block",
    "include",
    "import",
    "from",
    "extends",
    "raw",
    "endraw",
    "autoescape",
];

/// Blocks that the tags so far have opened.
#[derive(Default)]
pub(super) struct OpenTags {
    pub macros: usize,
    pub macro_names: Vec<String>,
    /// The branches of each `if`.
    branches: Vec<usize>,
}

impl OpenTags {
    fn branch(&mut self, name: &str) -> Result<()> {
        match self.branches.last_mut() {
            Some(branches) if name == "elif" => *branches += 1,
            _ => self.branches.push(1),
        }
        match self.branches.iter().sum::<usize>() > MAX_NESTING {
            true => Err(syntax_error(format!(
                "an `if` has more than {MAX_NESTING} branches within one another"
            ))),
            false => Ok(()),
        }
    }
}

impl<'t> Parser<'t> {
    pub(super) fn statement(&mut self, open: &mut OpenTags) -> Result<String> {
        let name = self.name()?;
        Ok(match name {
            "if" | "elif" => {
                open.branch(name)?;
                format!("{name} {}", self.tuple(false)?.text)
            }
            "for" => self.for_loop()?,
            "set" => self.set()?,
            "with" => self.with()?,
            "macro" => {
                open.macros += 1;
                let name = self.name()?;
                open.macro_names.push(name.to_owned());
                format!("macro {name}{}", self.parameters()?)
            }
            "call" => {
                open.macros += 1;
                let parameters = match self.is(Token::Operator("(")) {
                    true => self.parameters()?,
                    false => String::new(),
                };
                format!("call{parameters} {}", self.expression()?.text)
            }
            "filter" => {
                let first = self.filter()?;
                format!("filter {}", self.filters(Part::leaf(first))?.text)
            }
            "generation" => "with".into(),
            "endgeneration" => "endwith".into(),
            "endmacro" | "endcall" => {
                open.macros = open.macros.saturating_sub(1);
                self.rest(name)
            }
            "endif" => {
                open.branches.pop();
                self.rest(name)
            }
            _ if PLAIN_STATEMENTS.contains(&name) => self.rest(name),
            _ => return Err(syntax_error(format!("unknown tag `{name}`"))),
        })
    }

    fn rest(&mut self, name: &str) -> String {
        let tokens = &self.tokens[self.at..];
        self.at = self.tokens.len();
        tokens
            .iter()
            .fold(name.to_owned(), |text, token| text + " " + token.text())
    }

    /// What is assigned to, up to one of these tokens.
    fn target(&mut self, ends: &[Token<'_>]) -> String {
        let from = self.at;
        while self.peek().is_some_and(|token| !ends.contains(&token)) {
            self.at += 1;
        }
        let target: Vec<_> = self.tokens[from..self.at].iter().map(Token::text).collect();
        target.join(" ").replace(" . ", ".")
    }

    fn for_loop(&mut self) -> Result<String> {
        let target = self.target(&[Token::Name("in")]);
        if !self.skip(Token::Name("in")) {
            return Err(self.unexpected("`in`"));
        }
        if target.ends_with(',') {
            return Err(self.unexpected("a name after the comma"));
        }
        let items = self.tuple(false)?.text;
        let mut text = format!("for {target} in __each({items})");
        if self.skip(Token::Name("if")) {
            text = format!("{text} if {}", self.expression()?.text);
        }
        if self.skip(Token::Name("recursive")) {
            text += " recursive";
        }
        Ok(text)
    }

    fn set(&mut self) -> Result<String> {
        let target = self.target(&[Token::Operator("="), Token::Operator("|")]);
        if self.skip(Token::Operator("=")) {
            // A namespace could hold the loop that holds what it held before.
            let may_hold_loop = target.contains('.') && self.tokens.contains(&Token::Name("loop"));
            let value = self.kept(|parser| {
                parser.grows |= may_hold_loop;
                parser.tuple(true)
            })?;
            return Ok(format!("set {target} = {value}"));
        }
        Ok(format!("set {}", self.filters(Part::leaf(target))?.text))
    }

    fn with(&mut self) -> Result<String> {
        let mut text = String::from("with");
        while let Some(Token::Name(name)) = self.peek() {
            self.at += 1;
            self.expect("=")?;
            text += &format!(" {name} = {}", self.kept(Self::expression)?);
            if !self.skip(Token::Operator(",")) {
                break;
            }
            text.push(',');
        }
        Ok(text)
    }

    /// The parameters of a macro.
    fn parameters(&mut self) -> Result<String> {
        self.expect("(")?;
        let mut names: Vec<&str> = Vec::new();
        let mut texts = Vec::new();
        while !self.skip(Token::Operator(")")) {
            if !names.is_empty() {
                self.expect(",")?;
            }
            let name = self.name()?;
            let mut text = name.to_owned();
            if self.skip(Token::Operator("=")) {
                let from = self.at;
                text = format!("{name}={}", self.kept(Self::expression)?);
                let default = &self.tokens[from..self.at];
                if let Some(earlier) = names.iter().find(|name| default.contains(&Token::Name(name))) {
                    return Err(syntax_error(format!(
                        "the default of the parameter `{name}` names the parameter `{earlier}`, which is not supported"
                    )));
                }
            }
            names.push(name);
            texts.push(text);
        }
        Ok(format!("({})", texts.join(", ")))
    }
}
