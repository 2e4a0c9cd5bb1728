//! How much a YAML document amounts to once its aliases are written out, measured before anything is made of it.
//!
//! A short document can stand for gigabytes: `a: &a [x, x, …]` followed by thousands of `*a`.

use std::cell::Cell;
use std::fmt;

use serde::de::{
    DeserializeSeed, Deserializer, EnumAccess, Error as _, IgnoredAny, MapAccess, SeqAccess, VariantAccess, Visitor,
};

/// Maximum size of a document with its aliases written out: bytes of text, and [`NODE`] for each value.
const SIZE: usize = 8 * 1024 * 1024;
/// What a value counts besides its text, in bytes.
const NODE: usize = 16;
/// Maximum length of a key, in bytes.
const KEY: usize = 256;

/// Maximum number of lists and sections in brackets; the parser's time grows with the square of their nesting.
const BRACKETS: usize = 20_000;
/// Maximum number of directives (`%TAG`); the parser compares each with every other.
const DIRECTIVES: usize = 16;

/// Checks the size of a document and the length of its keys.
///
/// # Errors
///
/// The text is not YAML, or exceeds a limit.
pub(super) fn check(yaml: &str) -> Result<(), serde_yaml::Error> {
    let brackets = yaml.bytes().filter(|byte| b"[{".contains(byte)).count();
    let directives = yaml.lines().filter(|line| line.starts_with('%')).count();
    for (count, limit, what) in [
        (brackets, BRACKETS, "lists and sections in brackets"),
        (directives, DIRECTIVES, "directives"),
    ] {
        if count > limit {
            return Err(serde_yaml::Error::custom(format_args!(
                "it has {count} {what}, the limit is {limit}"
            )));
        }
    }
    let left = Cell::new(SIZE);
    let whole = Measure {
        left: &left,
        longest: SIZE,
    };
    whole.deserialize(serde_yaml::Deserializer::from_str(yaml))
}

/// Takes a value's size off what is left.
#[derive(Clone, Copy)]
struct Measure<'a> {
    left: &'a Cell<usize>,
    /// Maximum length of a scalar.
    longest: usize,
}

impl Measure<'_> {
    fn take<E: serde::de::Error>(self, text: usize) -> Result<(), E> {
        if text > self.longest {
            return Err(E::custom(format_args!("a key has {text} bytes, the limit is {KEY}")));
        }
        let left = self.left.get().checked_sub(NODE + text);
        self.left.set(left.ok_or_else(|| {
            E::custom(format_args!(
                "with its aliases written out it has more than {SIZE} bytes"
            ))
        })?);
        Ok(())
    }

    fn key(self) -> Self {
        Self { longest: KEY, ..self }
    }

    fn value(self) -> Self {
        Self { longest: SIZE, ..self }
    }
}

impl<'de> DeserializeSeed<'de> for Measure<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Measure<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_bool<E: serde::de::Error>(self, _: bool) -> Result<(), E> {
        self.take(0)
    }

    fn visit_i64<E: serde::de::Error>(self, _: i64) -> Result<(), E> {
        self.take(0)
    }

    fn visit_u64<E: serde::de::Error>(self, _: u64) -> Result<(), E> {
        self.take(0)
    }

    fn visit_i128<E: serde::de::Error>(self, _: i128) -> Result<(), E> {
        self.take(0)
    }

    fn visit_u128<E: serde::de::Error>(self, _: u128) -> Result<(), E> {
        self.take(0)
    }

    fn visit_f64<E: serde::de::Error>(self, _: f64) -> Result<(), E> {
        self.take(0)
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<(), E> {
        self.take(0)
    }

    fn visit_none<E: serde::de::Error>(self) -> Result<(), E> {
        self.take(0)
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<(), E> {
        self.take(text.len())
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        self.deserialize(deserializer)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        self.take(0)?;
        while seq.next_element_seed(self.value())?.is_some() {}
        Ok(())
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        self.take(0)?;
        while map.next_key_seed(self.key())?.is_some() {
            map.next_value_seed(self.value())?;
        }
        Ok(())
    }

    /// A value with a tag.
    fn visit_enum<A: EnumAccess<'de>>(self, tagged: A) -> Result<(), A::Error> {
        let (IgnoredAny, value) = tagged.variant()?;
        value.newtype_variant_seed(self.value()).map_err(A::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(yaml: &str) -> String {
        check(yaml).unwrap_err().to_string()
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
            assert!(
                refused.contains("aliases written out") || refused.contains("repetition limit"),
                "{refused}"
            );
        }
        for fine in [
            times("[1, 2.5, null, true]", 100),
            times(&long, 10),
            "!tag {a: !other 1}".into(),
            String::new(),
        ] {
            assert_eq!(
                check(&fine).map_err(|error| error.to_string()),
                Ok(()),
                "{}",
                &fine[..fine.len().min(60)]
            );
        }
        check(include_str!("../../tests/fixtures/config/python_dump.yaml")).unwrap();
    }

    #[test]
    fn long_keys_and_deep_nesting_are_refused_and_long_values_taken() {
        let long = "k".repeat(KEY + 1);
        assert!(refusal(&format!("a: {{{long}: 1}}")).contains("a key has 257 bytes, the limit is 256"));
        assert!(refusal(&"[".repeat(1_000)).contains("recursion limit"));
        assert!(refusal(&format!("{}1", "a: !t {".repeat(1_000))).contains("recursion limit"));
        check(&format!("a: {long}")).unwrap();
    }

    // Seen with 20,000 `%TAG` directives (72 s in a debug build) and with brackets nested 100,000 deep (13 s).
    #[test]
    fn what_the_parser_is_slow_at_is_limited() {
        let tags = |count| (0..count).map(|i| format!("%TAG !a{i}! x\n")).collect::<String>() + "---\na: 1\n";
        check(&tags(DIRECTIVES)).unwrap();
        assert!(refusal(&tags(DIRECTIVES + 1)).contains("17 directives, the limit is 16"));
        for nested in ["[", "{a: ", "[\"]\", "] {
            assert!(refusal(&nested.repeat(BRACKETS + 1)).contains("in brackets, the limit is 20000"));
        }
    }
}
