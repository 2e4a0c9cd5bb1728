//! JSON of older Python clients, which contains the literals `NaN`, `Infinity` and `-Infinity`.

use std::borrow::Cow;

const LITERALS: [&[u8]; 3] = [b"-Infinity", b"Infinity", b"NaN"];

/// Quotes the three literals outside of strings, so that a JSON parser reads them as strings and the check of a number
/// can report them. Other bytes are unchanged.
pub fn quote_non_finite(json: &[u8]) -> Cow<'_, [u8]> {
    let mut out: Option<Vec<u8>> = None;
    let (mut at, mut in_string) = (0, false);
    while at < json.len() {
        let rest = &json[at..];
        let literal = LITERALS.iter().find(|literal| !in_string && rest.starts_with(literal));
        let step = match (literal, rest[0]) {
            (Some(literal), _) => literal.len(),
            (None, b'\\') if in_string => 2.min(rest.len()),
            (None, byte) => {
                in_string ^= byte == b'"';
                1
            }
        };
        if literal.is_some() {
            let out = out.get_or_insert_with(|| json[..at].to_vec());
            out.push(b'"');
            out.extend(&rest[..step]);
            out.push(b'"');
        } else if let Some(out) = &mut out {
            out.extend(&rest[..step]);
        }
        at += step;
    }
    out.map_or(Cow::Borrowed(json), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn literals_outside_strings_are_quoted() {
        for (given, expected) in [
            (r#"{"r":NaN}"#, r#"{"r":"NaN"}"#),
            (r#"[-Infinity, Infinity,1]"#, r#"["-Infinity", "Infinity",1]"#),
            (
                r#"{"NaN":"a \"NaN\" \\","b":NaN}"#,
                r#"{"NaN":"a \"NaN\" \\","b":"NaN"}"#,
            ),
        ] {
            assert_eq!(quote_non_finite(given.as_bytes()), expected.as_bytes());
        }
        assert!(matches!(quote_non_finite(br#"{"a":"NaN"}"#), Cow::Borrowed(_)));
    }

    proptest! {
        #[test]
        fn json_without_the_literals_is_untouched(text in any::<String>(), number in any::<i64>()) {
            let json = serde_json::json!({ text.clone(): [text, number] }).to_string();
            prop_assert_eq!(quote_non_finite(json.as_bytes()), json.as_bytes());
        }

        #[test]
        fn any_bytes_are_survived(bytes in any::<Vec<u8>>()) {
            quote_non_finite(&bytes);
        }
    }
}
