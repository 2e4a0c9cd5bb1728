//! Expressions, with the precedence of Jinja2.

use super::parser::{Parser, Part, Result, syntax_error};
use crate::jinja::lexer::Token;
use crate::jinja::method_names::is_method;

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

impl<'t> Parser<'t> {
    /// Expressions between commas, a tuple where there is a comma.
    pub(super) fn tuple(&mut self, with_conditions: bool) -> Result<Part> {
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

    pub(super) fn expression(&mut self) -> Result<Part> {
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

    pub(super) fn or(&mut self) -> Result<Part> {
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
            Token::Name("self") if !self.is(Token::Operator(".")) => {
                Err(syntax_error("`self` as a value is not supported"))
            }
            Token::Name(name @ ("varargs" | "kwargs")) if self.in_macro => {
                Err(syntax_error(format!("`{name}` of macros is not supported")))
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
            _ => Err(syntax_error("a subscript is empty or has too many parts")),
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
    pub(super) fn filters(&mut self, mut part: Part) -> Result<Part> {
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

    pub(super) fn filter(&mut self) -> Result<String> {
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
