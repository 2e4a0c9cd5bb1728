//! YAML to [`Node`]s.
//!
//! The parser is `granit-parser`: safe Rust (it forbids `unsafe`), maintained, fuzzed, run against YAML's test suite,
//! and lenient where PyYAML is. It gives events, so that scalars keep their text, and limits nesting itself. What a
//! document grows to by its aliases is limited here, since a short one can stand for gigabytes: `a: &a [x, x, …]`
//! followed by thousands of `*a`.

use std::collections::HashMap;

use granit_parser::{Event, Options, Parser, ScalarStyle, ScanError, Tag, options};
use indexmap::IndexMap;

use super::node::{Node, Scalar};

/// Maximum size of a document with its aliases written out: bytes of text, and [`NODE`] for each value.
const SIZE: usize = 8 * 1024 * 1024;
/// Size of a value besides its text, in bytes.
const NODE: usize = 16;
/// Maximum length of a key, in bytes.
const KEY: usize = 256;
/// Maximum nesting of lists and sections, aliases written out.
const DEPTH: usize = 64;

/// Parses a document; an empty one is null.
///
/// # Errors
/// Fails if the text is not YAML, has more than one document or a key twice, or exceeds a limit.
pub fn parse(yaml: &str) -> Result<Node, String> {
    let mut builder = Builder::default();
    let parser = Parser::new_from_str_with_options(yaml, parser_options());
    let mut documents = 0;
    for next in parser {
        let (event, span) = next.map_err(|error| describe(&error))?;
        let at_line = |message: String| format!("line {}: {message}", span.start.line());
        documents += usize::from(matches!(event, Event::DocumentStart(..)));
        if documents > 1 {
            return Err(at_line("a second document begins; there must be one".into()));
        }
        builder.event(event).map_err(at_line)?;
    }
    Ok(builder.root.map(|value| value.node).unwrap_or_default())
}

fn parser_options() -> Options {
    options! {
        flow_nesting_limit: DEPTH,
        block_nesting_limit: DEPTH,
        block_scalar_eof_without_line_feed: true,
    }
}

fn describe(error: &ScanError) -> String {
    let at = error.marker();
    format!("line {}, column {}: {}", at.line(), at.col() + 1, error.info())
}

/// A value with what it costs.
#[derive(Clone)]
struct Value {
    node: Node,
    /// Size with its aliases written out.
    size: usize,
    /// Levels of lists and sections.
    height: usize,
}

/// A list or section that is not complete.
struct Open {
    anchor: usize,
    size: usize,
    height: usize,
    content: Content,
}

enum Content {
    List(Vec<Node>),
    Section {
        entries: IndexMap<String, Node>,
        /// The key whose value comes next.
        key: Option<Scalar>,
        /// Values of `<<`, whose entries give what the section does not have itself.
        merged: Vec<Node>,
    },
}

/// Makes a document of a parser's events.
#[derive(Default)]
struct Builder {
    open: Vec<Open>,
    anchors: HashMap<usize, Value>,
    root: Option<Value>,
    size: usize,
}

impl Builder {
    fn event(&mut self, event: Event) -> Result<(), String> {
        match event {
            Event::Scalar(text, style, anchor, tag) => {
                let quoted = style != ScalarStyle::Plain || tag.is_some_and(|tag| is_text(&tag));
                let (size, text) = (NODE + text.len(), text.into_owned());
                self.grow(size)?;
                let node = Node::Scalar(Scalar { text, quoted });
                let value = Value { node, size, height: 0 };
                self.complete(value, anchor)
            }
            Event::SequenceStart(_, anchor, _) => self.start(anchor, Content::List(vec![])),
            Event::MappingStart(_, anchor, _) => {
                let (entries, key, merged) = Default::default();
                self.start(anchor, Content::Section { entries, key, merged })
            }
            Event::SequenceEnd | Event::MappingEnd => self.end(),
            Event::Alias(anchor) => {
                let value = self.anchors.get(&anchor).cloned();
                let value = value.ok_or("an alias stands inside the value that it refers to")?;
                self.grow(value.size)?;
                self.complete(value, 0)
            }
            _ => Ok(()),
        }
    }

    /// Counts bytes of the document.
    fn grow(&mut self, bytes: usize) -> Result<(), String> {
        self.size = self.size.saturating_add(bytes);
        match self.size > SIZE {
            true => Err(format!(
                "the document has more than {SIZE} bytes with its aliases written out"
            )),
            false => Ok(()),
        }
    }

    fn start(&mut self, anchor: usize, content: Content) -> Result<(), String> {
        self.grow(NODE)?;
        let (size, height) = (NODE, 1);
        self.open.push(Open {
            anchor,
            size,
            height,
            content,
        });
        Ok(())
    }

    fn end(&mut self) -> Result<(), String> {
        // The parser balances starts and ends.
        let Some(Open {
            anchor,
            size,
            height,
            content,
        }) = self.open.pop()
        else {
            return Ok(());
        };
        let node = match content {
            Content::List(items) => Node::List(items),
            Content::Section { entries, merged, .. } => merge(entries, merged)?,
        };
        self.complete(Value { node, size, height }, anchor)
    }

    /// Puts a complete value where it belongs.
    fn complete(&mut self, value: Value, anchor: usize) -> Result<(), String> {
        if self.open.len() + value.height > DEPTH {
            return Err(format!("values are nested more than {DEPTH} deep"));
        }
        if anchor > 0 {
            self.grow(value.size)?;
            self.anchors.insert(anchor, value.clone());
        }
        let Some(parent) = self.open.last_mut() else {
            self.root = Some(value);
            return Ok(());
        };
        parent.size = parent.size.saturating_add(value.size);
        parent.height = parent.height.max(value.height + 1);
        match &mut parent.content {
            Content::List(items) => items.push(value.node),
            Content::Section { entries, key, merged } => match key.take() {
                None => *key = Some(as_key(value.node)?),
                Some(key) if key.text == "<<" && !key.quoted => merged.push(value.node),
                Some(key) => {
                    if entries.contains_key(&key.text) {
                        return Err(format!("the key {:?} occurs twice", key.text));
                    }
                    entries.insert(key.text, value.node);
                }
            },
        }
        Ok(())
    }
}

fn is_text(tag: &Tag) -> bool {
    tag.is_yaml_core_schema_tag("str")
}

fn as_key(node: Node) -> Result<Scalar, String> {
    match node {
        Node::Scalar(key) if key.text.len() > KEY => {
            Err(format!("a key has {} bytes, the limit is {KEY}", key.text.len()))
        }
        Node::Scalar(key) => Ok(key),
        _ => Err("a list or a section stands where a key is expected".into()),
    }
}

/// Adds what `<<` gives to the entries that are there. Of several, the first one that has a key gives it.
fn merge(mut entries: IndexMap<String, Node>, merged: Vec<Node>) -> Result<Node, String> {
    for value in merged {
        let sections = match value {
            Node::List(items) => items,
            section => vec![section],
        };
        for section in sections {
            let Node::Section(section) = section else {
                return Err(format!(
                    "`<<` takes a section or a list of sections, not {}",
                    section.show_quoted()
                ));
            };
            for (key, value) in section {
                entries.entry(key).or_insert(value);
            }
        }
    }
    Ok(Node::Section(entries))
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    fn refusal(yaml: &str) -> String {
        parse(yaml).unwrap_err()
    }

    fn json(yaml: &str) -> String {
        parse(yaml).unwrap().to_json().to_string()
    }

    #[test]
    fn documents_are_read() {
        for (yaml, want) in [
            ("", "null"),
            ("# nothing\n", "null"),
            ("\u{feff}a: 1\n", r#"{"a":1}"#),
            ("---\na: 1\n...\n", r#"{"a":1}"#),
            ("%YAML 1.1\n---\na: 1\n", r#"{"a":1}"#),
            ("a:\n- b\n- c: |\n    x\n    y\n", r#"{"a":["b",{"c":"x\ny\n"}]}"#),
            ("!tag {a: !other 1, b: !!str 1}", r#"{"a":1,"b":"1"}"#),
            ("{1: a, ~: b, '<<': c}", r#"{"1":"a","~":"b","<<":"c"}"#),
            (
                "a: &a {x: 1, y: 2}\nb: {<<: *a, y: 3}",
                r#"{"a":{"x":1,"y":2},"b":{"y":3,"x":1}}"#,
            ),
            ("{<<: [{x: 1}, {x: 2, y: 2}], z: 3}", r#"{"z":3,"x":1,"y":2}"#),
            ("a: &a 1\nb: &a 2\nc: *a", r#"{"a":1,"b":2,"c":2}"#),
        ] {
            assert_eq!(json(yaml), want, "{yaml}");
        }
        parse(include_str!("../../tests/fixtures/config/python_dump.yaml")).unwrap();
    }

    #[test]
    fn what_is_not_a_document_is_refused_with_its_line() {
        for (yaml, want) in [
            ("a: [1", "line 1"),
            ("a: 1\n b: 2", "line 2"),
            ("a: 1\na: 2", "line 2: the key \"a\" occurs twice"),
            ("a: 1\n---\nb: 2", "line 2: a second document begins"),
            ("[a]: 1", "line 1: a list or a section stands where a key is expected"),
            ("{<<: 1}", "`<<` takes a section or a list of sections, not 1"),
            ("a: *b", "line 1"),
            (
                "a: &a [*a]",
                "line 1: an alias stands inside the value that it refers to",
            ),
        ] {
            let refused = refusal(yaml);
            assert!(refused.contains(want), "{yaml}: {refused}");
        }
    }

    /// Nine levels of nine aliases each.
    fn laughs() -> String {
        let mut yaml = "a0: &a0 [x, x, x, x, x, x, x, x, x]\n".to_owned();
        for level in 1..9 {
            let below = vec![format!("*a{}", level - 1); 9].join(", ");
            yaml += &format!("a{level}: &a{level} [{below}]\n");
        }
        yaml
    }

    #[test]
    fn documents_are_measured_with_their_aliases_written_out() {
        let times = |anchor: &str, count: usize| format!("a: &a {anchor}\nb: [{}]\n", vec!["*a"; count].join(", "));
        let long = format!("[{}]", vec!["x"; 20_000].join(", "));
        let merged = format!(
            "a: &a {{{}}}\n",
            (0..5_000).map(|i| format!("k{i}: 1")).collect::<Vec<_>>().join(", ")
        ) + &(0..200).map(|i| format!("m{i}: {{<<: *a}}\n")).collect::<String>();
        let text = format!("\"{}\"", "x".repeat(200_000));
        for bomb in [laughs(), times(&long, 20_000), times(&text, 1_000), merged] {
            let refused = refusal(&bomb);
            assert!(refused.contains("aliases written out"), "{refused}");
        }
        for fine in [times("[1, 2.5, null, true]", 100), times(&long, 10)] {
            parse(&fine).unwrap();
        }
    }

    #[test]
    fn long_keys_and_deep_nesting_are_refused_and_long_values_taken() {
        let long = "k".repeat(KEY + 1);
        assert!(refusal(&format!("a: {{{long}: 1}}")).contains("a key has 257 bytes, the limit is 256"));
        parse(&format!("a: {long}")).unwrap();
        let blocks = (0..1_000)
            .map(|depth| format!("{}a:\n", " ".repeat(depth)))
            .collect::<String>();
        // Each level refers to the one before, so that only their aliases nest.
        let aliases = (1..1_000).fold("a0: &a0 [x]\n".to_owned(), |yaml, level| {
            yaml + &format!("a{level}: &a{level} [*a{}]\n", level - 1)
        });
        for deep in [
            "[".repeat(1_000),
            "a: !t {".repeat(1_000),
            "- ".repeat(1_000) + "x",
            blocks,
            aliases,
        ] {
            let refused = refusal(&deep);
            assert!(
                refused.contains("recursion limit") || refused.contains("nested more than 64 deep"),
                "{refused}"
            );
        }
        parse(&("[".repeat(DEPTH) + &"]".repeat(DEPTH))).unwrap();
    }

    /// Documents that make parsers slow: with cost that grows with the square of their size, one of them takes minutes.
    #[test]
    fn hostile_documents_cost_little() {
        const BYTES: usize = 200_000;
        let fill = |unit: &str| unit.repeat(BYTES / unit.len());
        let documents = [
            (0..20_000).map(|i| format!("%TAG !a{i}! x\n")).collect::<String>() + "---\na: 1\n",
            fill("["),
            fill("{a: "),
            fill("[\"]\", "),
            fill("[],"),
            format!("[{}]", fill("{a: b},")),
            format!("[{}]", fill("a: b,")),
            fill("- "),
            fill("? "),
            fill("? a\n"),
            fill("&a "),
            fill("!a "),
            fill("a: "),
            fill("- a\n"),
            fill("#\n"),
            fill("\n"),
            fill(" "),
            fill("\t"),
            fill("a\n\n"),
            fill("'"),
            format!("\"{}\"", fill("\\x41")),
            format!("'{}'", fill("a\n\n")),
            format!("a: |\n{}", fill(" \n")),
            format!("a: >\n  b\n{}", fill("  a\n\n")),
            (0..20_000).map(|i| format!("k{i}: {i}\n")).collect(),
            (0..20_000).map(|i| format!("&a{i} k{i}: *a{i}\n")).collect(),
        ];
        for yaml in &documents {
            let start = Instant::now();
            let _ = parse(yaml);
            let took = start.elapsed();
            assert!(
                took < Duration::from_secs(20),
                "{}…: {took:?}",
                &yaml[..yaml.len().min(20)]
            );
        }
    }
}
