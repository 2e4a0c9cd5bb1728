//! A template's source in the terms of our functions, so that operators, subscripts and assignments mean what they mean
//! in Python: `a % b` becomes `__operate(a, '%', b)`.
//!
//! Expressions are parsed with the precedence of Jinja2; how deep they nest is bounded here, before anything recurses
//! over them.

use minijinja::{Error, ErrorKind};

use super::error::TemplateError;
use super::lexer::{Tag, Token, tag};
use super::method_names::is_method;

/// Bytes of a template.
const MAX_SOURCE: usize = 1 << 20;
/// Operators, brackets and filters within one another, or one after another where each takes what came before.
const MAX_NESTING: usize = 100;

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

/// Filters whose result can be gone through once.
const ONCE: [&str; 10] = [
    "map",
    "select",
    "reject",
    "selectattr",
    "rejectattr",
    "unique",
    "batch",
    "slice",
    "reverse",
    "items",
];

type Result<T> = std::result::Result<T, Error>;

/// The source of a template as it is compiled.
///
/// # Errors
/// A syntax error, or something that Jinja2 has and this does not, with its line.
pub(super) fn rewritten(source: &str) -> std::result::Result<String, TemplateError> {
    if source.len() > MAX_SOURCE {
        return Err(TemplateError {
            message: format!("the template has {} bytes; allowed are {MAX_SOURCE}", source.len()),
            line: None,
        });
    }
    let mut out = String::with_capacity(source.len() * 2);
    let mut open = Open::default();
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
            Some(_) => statement(&mut out, text, &tag, &mut open).map_err(at_line)?,
        }
        line += text.matches('\n').count();
        rest = &rest[tag.length..];
    }
    out.push_str(rest);
    Ok(out)
}

fn syntax(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::SyntaxError, message.into())
}

/// What the tags so far have opened.
#[derive(Default)]
struct Open {
    macros: usize,
    macro_names: Vec<String>,
    /// The branches of each `if`.
    branches: Vec<usize>,
}

impl Open {
    fn branch(&mut self, name: &str) -> Result<()> {
        match self.branches.last_mut() {
            Some(branches) if name == "elif" => *branches += 1,
            _ => self.branches.push(1),
        }
        match self.branches.iter().sum::<usize>() > MAX_NESTING {
            true => Err(syntax(format!(
                "an `if` has more than {MAX_NESTING} branches within one another"
            ))),
            false => Ok(()),
        }
    }
}

/// Writes one tag, its line breaks before its end.
fn statement(out: &mut String, text: &str, tag: &Tag<'_>, open: &mut Open) -> Result<()> {
    let mut parser = Parser {
        tokens: tag.tokens.as_deref().unwrap_or_default(),
        at: 0,
        depth: 0,
        grows: false,
        in_macro: open.macros > 0,
    };
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
        return Err(syntax("attributes of macros are not supported"));
    }
    out.push_str(tag.open);
    out.push(' ');
    out.push_str(&inner);
    out.push(' ');
    out.extend(text.chars().filter(|c| *c == '\n'));
    out.push_str(tag.close);
    Ok(())
}

/// A piece of an expression and how deep it is.
struct Part {
    text: String,
    depth: usize,
}

impl Part {
    fn leaf(text: impl Into<String>) -> Self {
        Self {
            text: text.into(),
            depth: 1,
        }
    }

    fn above(text: String, depth: usize) -> Result<Self> {
        if depth >= MAX_NESTING {
            return Err(syntax(format!(
                "an expression has more than {MAX_NESTING} operators, brackets or filters within one another"
            )));
        }
        Ok(Self { text, depth: depth + 1 })
    }
}

struct Parser<'t> {
    tokens: &'t [Token<'t>],
    at: usize,
    depth: usize,
    /// Whether the expression makes containers, which may hold what a variable held before.
    grows: bool,
    in_macro: bool,
}

impl<'t> Parser<'t> {
    fn peek(&self) -> Option<Token<'t>> {
        self.tokens.get(self.at).copied()
    }

    fn is(&self, token: Token<'_>) -> bool {
        self.peek() == Some(token)
    }

    fn skip(&mut self, token: Token<'_>) -> bool {
        let found = self.is(token);
        self.at += usize::from(found);
        found
    }

    fn expect(&mut self, operator: &str) -> Result<()> {
        match self.skip(Token::Operator(operator)) {
            true => Ok(()),
            false => Err(self.unexpected(&format!("`{operator}`"))),
        }
    }

    fn name(&mut self) -> Result<&'t str> {
        match self.peek() {
            Some(Token::Name(name)) => {
                self.at += 1;
                Ok(name)
            }
            _ => Err(self.unexpected("a name")),
        }
    }

    fn unexpected(&self, expected: &str) -> Error {
        match self.peek() {
            Some(token) => syntax(format!("unexpected `{}`, expected {expected}", token.text())),
            None => syntax(format!("unexpected end of the tag, expected {expected}")),
        }
    }

    fn statement(&mut self, open: &mut Open) -> Result<String> {
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
            _ => return Err(syntax(format!("unknown tag `{name}`"))),
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
                    return Err(syntax(format!(
                        "the default of the parameter `{name}` names the parameter `{earlier}`, which is not supported"
                    )));
                }
            }
            names.push(name);
            texts.push(text);
        }
        Ok(format!("({})", texts.join(", ")))
    }

    /// An expression whose value a name will hold: bounded where it makes containers.
    fn kept(&mut self, parse: impl FnOnce(&mut Self) -> Result<Part>) -> Result<String> {
        let outer = std::mem::take(&mut self.grows);
        let text = parse(self)?.text;
        let grows = std::mem::replace(&mut self.grows, outer);
        self.grows |= grows;
        Ok(if grows { format!("__kept({text})") } else { text })
    }

    /// Expressions between commas, a tuple where there is a comma.
    fn tuple(&mut self, with_conditions: bool) -> Result<Part> {
        let one = |parser: &mut Self| match with_conditions {
            true => parser.expression(),
            false => parser.or(),
        };
        let first = one(self)?;
        if !self.is(Token::Operator(",")) {
            return Ok(first);
        }
        self.grows = true;
        let (mut items, mut depth) = (vec![first.text], first.depth);
        while self.skip(Token::Operator(",")) {
            let ends = [
                Token::Operator(")"),
                Token::Operator("="),
                Token::Name("recursive"),
                Token::Name("if"),
            ];
            if self.peek().is_none_or(|token| ends.contains(&token)) {
                break;
            }
            let item = one(self)?;
            depth = depth.max(item.depth);
            items.push(item.text);
        }
        let comma = if items.len() == 1 { "," } else { "" };
        Part::above(format!("({}{comma})", items.join(", ")), depth)
    }

    /// Guards what recurses here.
    fn nested<T>(&mut self, parse: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        Part::above(String::new(), self.depth)?;
        self.depth += 1;
        let parsed = parse(self);
        self.depth -= 1;
        parsed
    }

    fn expression(&mut self) -> Result<Part> {
        self.nested(|parser| {
            let mut part = parser.or()?;
            while parser.skip(Token::Name("if")) {
                let test = parser.or()?;
                let mut text = format!("{} if {}", part.text, test.text);
                let mut depth = part.depth.max(test.depth);
                if parser.skip(Token::Name("else")) {
                    let other = parser.expression()?;
                    text = format!("{text} else {}", other.text);
                    depth = depth.max(other.depth);
                }
                part = Part::above(text, depth)?;
            }
            Ok(part)
        })
    }

    fn or(&mut self) -> Result<Part> {
        self.chain("or", |parser| parser.chain("and", Self::not))
    }

    fn chain(&mut self, word: &str, next: impl Fn(&mut Self) -> Result<Part>) -> Result<Part> {
        let mut left = next(self)?;
        while self.skip(Token::Name(word)) {
            let right = next(self)?;
            let depth = left.depth.max(right.depth);
            left = Part::above(format!("{} {word} {}", left.text, right.text), depth)?;
        }
        Ok(left)
    }

    fn not(&mut self) -> Result<Part> {
        if !self.skip(Token::Name("not")) {
            return self.comparison();
        }
        let part = self.nested(Self::not)?;
        Part::above(format!("not {}", part.text), part.depth)
    }

    fn comparison(&mut self) -> Result<Part> {
        let operator = |parser: &mut Self| match parser.peek()? {
            Token::Operator(operator @ ("==" | "!=" | "<" | "<=" | ">" | ">=")) => {
                parser.at += 1;
                Some(operator)
            }
            Token::Name("in") => {
                parser.at += 1;
                Some("in")
            }
            Token::Name("not") if parser.tokens.get(parser.at + 1) == Some(&Token::Name("in")) => {
                parser.at += 2;
                Some("not in")
            }
            _ => None,
        };
        self.operation("__compare", operator, Self::sum)
    }

    fn sum(&mut self) -> Result<Part> {
        self.operation("__operate", |parser| parser.one_of(&["+", "-"]), Self::concatenation)
    }

    fn concatenation(&mut self) -> Result<Part> {
        self.operation("__operate", |parser| parser.one_of(&["~"]), Self::product)
    }

    fn product(&mut self) -> Result<Part> {
        self.operation("__operate", |parser| parser.one_of(&["*", "/", "//", "%"]), Self::power)
    }

    fn power(&mut self) -> Result<Part> {
        self.operation(
            "__operate",
            |parser| parser.one_of(&["**"]),
            |parser| parser.unary(true),
        )
    }

    fn one_of(&mut self, operators: &[&'static str]) -> Option<&'t str> {
        match self.peek()? {
            Token::Operator(operator) if operators.contains(&operator) => {
                self.at += 1;
                Some(operator)
            }
            _ => None,
        }
    }

    /// Operands and operators in turns, which one function takes from left to right.
    fn operation(
        &mut self,
        function: &str,
        operator: impl Fn(&mut Self) -> Option<&'t str>,
        operand: impl Fn(&mut Self) -> Result<Part>,
    ) -> Result<Part> {
        let first = operand(self)?;
        let Some(mut next) = operator(self) else {
            return Ok(first);
        };
        let (mut text, mut depth) = (format!("{function}({}", first.text), first.depth);
        loop {
            let right = operand(self)?;
            text += &format!(", '{next}', {}", right.text);
            depth = depth.max(right.depth);
            match operator(self) {
                Some(operator) => next = operator,
                None => return Part::above(text + ")", depth),
            }
        }
    }

    fn unary(&mut self, with_filters: bool) -> Result<Part> {
        let sign = self.one_of(&["-", "+"]);
        let part = match sign {
            None => self.primary()?,
            Some(sign) => {
                let operand = self.nested(|parser| parser.unary(false))?;
                Part::above(format!("__signed('{sign}', {})", operand.text), operand.depth)?
            }
        };
        let part = self.postfix(part)?;
        match with_filters {
            true => self.filters(part),
            false => Ok(part),
        }
    }

    fn primary(&mut self) -> Result<Part> {
        let token = self.peek().ok_or_else(|| self.unexpected("an expression"))?;
        self.at += 1;
        match token {
            Token::Number(number) => Ok(Part::leaf(number)),
            Token::Text(text) => {
                let mut text = text.to_owned();
                while let Some(Token::Text(more)) = self.peek() {
                    self.at += 1;
                    text = text + " " + more;
                }
                Ok(Part::leaf(text))
            }
            Token::Name("self") if !self.is(Token::Operator(".")) => Err(syntax("`self` as a value is not supported")),
            Token::Name(name @ ("varargs" | "kwargs")) if self.in_macro => {
                Err(syntax(format!("`{name}` of macros is not supported")))
            }
            Token::Name(name) => Ok(Part::leaf(name)),
            Token::Operator("(") => self.nested(|parser| {
                if parser.skip(Token::Operator(")")) {
                    return Ok(Part::leaf("()"));
                }
                let inner = parser.tuple(true)?;
                parser.expect(")")?;
                Part::above(format!("({})", inner.text), inner.depth)
            }),
            Token::Operator("[") => self.bracketed("[", "]", Self::expression),
            Token::Operator("{") => self.bracketed("{", "}", |parser| {
                let key = parser.expression()?;
                parser.expect(":")?;
                let value = parser.expression()?;
                Part::above(format!("{}: {}", key.text, value.text), key.depth.max(value.depth))
            }),
            _ => {
                self.at -= 1;
                Err(self.unexpected("an expression"))
            }
        }
    }

    fn bracketed(&mut self, open: &str, close: &str, item: impl Fn(&mut Self) -> Result<Part>) -> Result<Part> {
        self.grows = true;
        self.nested(|parser| {
            let (mut items, mut depth) = (Vec::new(), 0);
            while !parser.skip(Token::Operator(close)) {
                if !items.is_empty() {
                    parser.expect(",")?;
                    if parser.skip(Token::Operator(close)) {
                        break;
                    }
                }
                let item = item(parser)?;
                depth = depth.max(item.depth);
                items.push(item.text);
            }
            Part::above(format!("{open}{}{close}", items.join(", ")), depth)
        })
    }

    fn postfix(&mut self, mut part: Part) -> Result<Part> {
        loop {
            let text = if self.skip(Token::Operator(".")) {
                self.attribute(&part.text)?
            } else if self.skip(Token::Operator("[")) {
                self.nested(|parser| parser.subscript(&part.text))?
            } else if self.is(Token::Operator("(")) {
                self.grows = true;
                format!("{}{}", part.text, self.arguments()?)
            } else {
                return Ok(part);
            };
            part = Part::above(text, part.depth)?;
        }
    }

    fn attribute(&mut self, of: &str) -> Result<String> {
        let of_number = of.starts_with(|c: char| c.is_ascii_digit());
        let of = if of_number { format!("({of})") } else { of.to_owned() };
        if let Some(Token::Number(number)) = self.peek() {
            self.at += 1;
            return Ok(format!("__item({of}, {number})"));
        }
        let name = self.name()?;
        let is_called = self.is(Token::Operator("("));
        Ok(match is_method(name) && !is_called {
            true => format!("__attribute({of}, '{name}')"),
            false => format!("{of}.{name}"),
        })
    }

    fn subscript(&mut self, of: &str) -> Result<String> {
        let mut parts: Vec<String> = Vec::new();
        let mut colons = 0;
        let mut current = None;
        loop {
            if self.skip(Token::Operator(":")) {
                parts.push(current.take().unwrap_or_else(|| "none".into()));
                colons += 1;
            } else if self.skip(Token::Operator("]")) {
                break;
            } else if current.is_none() {
                current = Some(self.expression()?.text);
            } else {
                return Err(self.unexpected("`]`"));
            }
        }
        match (colons, current) {
            (0, Some(key)) => Ok(format!("__item({of}, {key})")),
            (1 | 2, last) => {
                parts.push(last.unwrap_or_else(|| "none".into()));
                Ok(format!("__part({of}, {})", parts.join(", ")))
            }
            _ => Err(syntax("a subscript is empty or has too many parts")),
        }
    }

    /// The arguments of a call, with their brackets.
    fn arguments(&mut self) -> Result<String> {
        self.nested(|parser| {
            parser.expect("(")?;
            let mut arguments = Vec::new();
            while !parser.skip(Token::Operator(")")) {
                if !arguments.is_empty() {
                    parser.expect(",")?;
                    if parser.skip(Token::Operator(")")) {
                        break;
                    }
                }
                let keyword = parser.tokens.get(parser.at + 1) == Some(&Token::Operator("="));
                let prefix = if keyword {
                    let name = parser.name()?;
                    parser.at += 1;
                    format!("{name}=")
                } else {
                    parser.one_of(&["*", "**"]).unwrap_or_default().to_owned()
                };
                arguments.push(prefix + &parser.kept(Self::expression)?);
            }
            Ok(format!("({})", arguments.join(", ")))
        })
    }

    /// Filters and tests after an expression.
    fn filters(&mut self, mut part: Part) -> Result<Part> {
        loop {
            let text = if self.skip(Token::Operator("|")) {
                format!("{} | {}", part.text, self.filter()?)
            } else if self.skip(Token::Name("is")) {
                self.test(&part.text)?
            } else if self.is(Token::Operator("(")) {
                format!("({}){}", part.text, self.arguments()?)
            } else {
                return Ok(part);
            };
            part = Part::above(text, part.depth)?;
        }
    }

    fn dotted(&mut self) -> Result<String> {
        let mut name = self.name()?.to_owned();
        while self.skip(Token::Operator(".")) {
            name = name + "." + self.name()?;
        }
        Ok(name)
    }

    fn filter(&mut self) -> Result<String> {
        self.grows = true;
        let name = self.dotted()?;
        let once = if ONCE.contains(&name.as_str()) { " | __once" } else { "" };
        let arguments = match self.is(Token::Operator("(")) {
            true => self.arguments()?,
            false => String::new(),
        };
        Ok(name + &arguments + once)
    }

    fn test(&mut self, of: &str) -> Result<String> {
        let not = if self.skip(Token::Name("not")) { "not " } else { "" };
        let name = self.dotted()?;
        let argument = match self.peek() {
            Some(Token::Operator("(")) => self.arguments()?,
            Some(Token::Name("else" | "or" | "and" | "is" | "if" | "recursive")) | None => String::new(),
            Some(Token::Name(_) | Token::Text(_) | Token::Number(_) | Token::Operator("[" | "{")) => {
                let primary = self.nested(Self::primary)?;
                format!("({})", self.postfix(primary)?.text)
            }
            Some(Token::Operator(_)) => String::new(),
        };
        Ok(format!("{of} is {not}{name}{argument}"))
    }
}
