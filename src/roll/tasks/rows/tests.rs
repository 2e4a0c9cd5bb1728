//! Damaged, hostile and unusual files: the rows that are read, and the errors.

use std::io::Write;
use std::path::PathBuf;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde_json::json;

use super::*;

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/datasets")
}

/// The rows of a file with this name and content, or what is wrong with it.
fn rows_of(name: &str, content: &[u8], options: &Options) -> Result<Vec<Value>, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(name);
    std::fs::write(&path, content).unwrap();
    let format = Format::of_name(name).unwrap();
    let mut rows = vec![];
    let read = read(&path, format, options, &mut |row| {
        rows.push(Value::Object(row));
        Ok(ControlFlow::Continue(()))
    });
    let prefix = format!("{}/", dir.path().display());
    read.map(|()| rows)
        .map_err(|error| error.to_string().replace(&prefix, ""))
}

#[test]
fn texts_of_every_form_are_read() {
    let field = Options {
        field: Some("data".into()),
        ..Options::default()
    };
    let options = Options::default();
    for (name, content, options, expected) in [
        (
            "a.json",
            r#"[{"a": 1}, {"b": [2]}]"#,
            &options,
            json!([{"a": 1}, {"b": [2]}]),
        ),
        ("a.json", "\u{feff}[\n{\"a\": 1}]\n", &options, json!([{"a": 1}])),
        (
            "a.json",
            "{\"a\": 1}\n{\"a\":\n2}",
            &options,
            json!([{"a": 1}, {"a": 2}]),
        ),
        (
            "a.json",
            r#"{"x": [9], "data": [{"a": 1}], "y": 2}"#,
            &field,
            json!([{"a": 1}]),
        ),
        ("a.json", "", &options, json!([])),
        ("a.json", "[]", &options, json!([])),
        (
            "a.jsonl",
            "{\"a\": 1}\r\n\r\n{\"a\": 2}",
            &options,
            json!([{"a": 1}, {"a": 2}]),
        ),
        ("a.csv", "\u{feff}a,b\r\n1,x\r\n", &options, json!([{"a": 1, "b": "x"}])),
        (
            "a.csv",
            "a,a,\n1,2,3\n4\n",
            &options,
            json!([{"a": 1, "a.1": 2, "Unnamed: 2": 3}, {"a": 4, "a.1": null, "Unnamed: 2": null}]),
        ),
        ("a.csv", "a\n\"x\ny\"\n", &options, json!([{"a": "x\ny"}])),
        ("a.csv", "", &options, json!([])),
        ("a.tsv", "a\tb\n1,5\t2\n", &options, json!([{"a": "1,5", "b": 2}])),
    ] {
        let rows = rows_of(name, content.as_bytes(), options);
        assert_eq!(rows.map(Value::Array), Ok(expected), "{name} {content:?}");
    }
}

#[test]
fn errors_name_the_line() {
    let field = Options {
        field: Some("data".into()),
        ..Options::default()
    };
    let options = Options::default();
    for (name, content, options, told) in [
        (
            "a.json",
            &b"[{\"a\": 1},\n{\"a\": }]"[..],
            &options,
            "a.json, line 2: not JSON: expected value",
        ),
        ("a.json", b"[{}, 5]", &options, "a.json, line 1: not a JSON object: 5"),
        (
            "a.json",
            b"5",
            &options,
            "invalid type: integer `5`, expected a list of objects or an object",
        ),
        ("a.json", b"[{}", &options, "a.json, line 1: not JSON: EOF"),
        (
            "a.json",
            b"{\"rows\": []}",
            &field,
            "a.json has no field \"data\" with a list of rows",
        ),
        ("a.json", b"{\"data\": 5}", &field, "expected a list of objects"),
        (
            "a.json",
            b"[{}]",
            &field,
            "the document is a list, so it has no field \"data\"",
        ),
        (
            "a.csv",
            b"a,b\n1,2\n1,2,3\n",
            &options,
            "a.csv, line 3: the row has 3 values, but there are 2 columns",
        ),
        ("a.csv", b"a\nx\n\xff\n", &options, "a.csv, line 3: not UTF-8"),
        ("a.jsonl", b"{}\n\xff\n", &options, "a.jsonl, line 2: not UTF-8"),
        ("a.jsonl.gz", b"{}\n", &options, "a.jsonl.gz, line 1: "),
        ("a.jsonl.zst", b"{}\n", &options, "a.jsonl.zst, line 1: "),
        ("a.jsonl.xz", b"{}\n", &options, "a.jsonl.xz, line 1: "),
        (
            "a.jsonl.lz4",
            b"{}\n",
            &options,
            "compression .lz4 is not supported; .gz, .zst, .bz2 and .xz are",
        ),
        ("a.parquet", b"", &options, "a.parquet is damaged or not a Parquet file"),
        (
            "a.parquet",
            b"PAR1PAR1",
            &options,
            "a.parquet is damaged or not a Parquet file",
        ),
        (
            "a.parquet",
            b"not a parquet file at all",
            &options,
            "a.parquet is damaged or not a Parquet file",
        ),
    ] {
        let message = rows_of(name, content, options).unwrap_err();
        assert!(message.contains(told), "{name} {content:?}: {message}");
    }
}

/// Bytes that are written in hexadecimal digits.
fn bytes(hexadecimal: &str) -> Vec<u8> {
    let digits = hexadecimal.as_bytes().chunks(2);
    let byte = |pair: &[u8]| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap();
    digits.map(byte).collect()
}

/// Files of xz 5.4, since the crate is built without its encoder.
#[test]
fn xz_files_are_read_stream_by_stream_within_their_memory() {
    // Rows {"a": 1} and {"a": 2} in one stream, {"a": 3} in another.
    let two_streams = bytes(
        "fd377a585a000004e6d6b4460200210116000000742fe5a30100117b2261223a20317d0a7b2261223a20327d0a000000bd15517c1c3632e3\
         00012a124b0854bc1fb6f37d010000000004595afd377a585a000004e6d6b4460200210116000000742fe5a30100087b2261223a20337d0a\
         000000006a3eaa8e178e4e3e000121096c18c5d51fb6f37d010000000004595a",
    );
    let options = Options::default();
    assert_eq!(
        json!(rows_of("a.jsonl.xz", &two_streams, &options).unwrap()),
        json!([{"a": 1}, {"a": 2}, {"a": 3}])
    );
    let cut = rows_of("a.jsonl.xz", &two_streams[..60], &options).unwrap_err();
    assert!(cut.starts_with("a.jsonl.xz, line "), "{cut}");
    // One row, written with a dictionary of 1 GiB.
    let greedy = bytes(
        "fd377a585a000004e6d6b44602002101240000005e1fc7f90100087b2261223a20317d0a00000000fce57eac824c5940000121096c18c5d5\
         1fb6f37d010000000004595a",
    );
    let refused = rows_of("a.jsonl.xz", &greedy, &options).unwrap_err();
    assert!(refused.contains("memory"), "{refused}");
}

/// A row without an end would otherwise take all memory.
#[test]
fn rows_beyond_the_limit_are_refused() {
    let long = vec![b'x'; (ROW_BYTES + (1 << 20)) as usize];
    let options = Options::default();
    for (name, before) in [
        ("a.jsonl", &b"{\"a\": 1}\n{\"a\": \""[..]),
        ("a.json", b"[{\"a\": 1}, {\"a\": \""),
        ("a.csv", b"a\n1\n\""),
    ] {
        let message = rows_of(name, &[before, &long].concat(), &options).unwrap_err();
        assert!(message.contains("the row is longer than 1 MiB"), "{name}: {message}");
    }
    // A few KiB that unpack to a line of 2 MiB.
    let mut packed = flate2::write::GzEncoder::new(vec![], flate2::Compression::best());
    packed.write_all(&long).unwrap();
    let message = rows_of("a.jsonl.gz", &packed.finish().unwrap(), &options).unwrap_err();
    assert!(message.contains("line 1: the row is longer than 1 MiB"), "{message}");
}

#[test]
fn reading_stops_where_the_sink_has_enough() {
    let broken_later = |name: &str, content: &[u8]| {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        let format = Format::of_name(name).unwrap();
        read(&path, format, &Options::default(), &mut |_| Ok(ControlFlow::Break(()))).unwrap();
    };
    broken_later("a.jsonl", b"{}\nbroken");
    broken_later("a.json", b"[{}, broken");
    broken_later("a.json", b"{} broken");
}

#[test]
fn columns_that_are_not_needed_are_not_read() {
    let options = Options {
        needed: Some(Needed {
            named: vec!["struct".into(), "i64".into()],
            optional: vec!["flag".into(), "none".into()],
        }),
        ..Options::default()
    };
    let whole = std::fs::read(fixtures().join("nested-zstd/train.parquet")).unwrap();
    let rows = rows_of("a.parquet", &whole, &options).unwrap();
    assert_eq!(rows.len(), 160);
    let names: Vec<_> = rows[1].as_object().unwrap().keys().collect();
    assert_eq!(names, ["flag", "i64", "struct"]);
    assert_eq!(rows[7]["i64"], 7);
    let none = Options {
        needed: Some(Needed {
            named: vec!["i64".into(), "none".into()],
            optional: vec![],
        }),
        ..Options::default()
    };
    assert_eq!(
        rows_of("a.parquet", &whole, &none).unwrap()[0]
            .as_object()
            .unwrap()
            .len(),
        24
    );
}

#[test]
fn a_cut_parquet_file_is_damaged() {
    let whole = std::fs::read(fixtures().join("gsm8k/main/train-00000-of-00001.parquet")).unwrap();
    for length in (0..whole.len()).step_by(7) {
        let message = rows_of("a.parquet", &whole[..length], &Options::default()).unwrap_err();
        assert!(
            message.contains("a.parquet is damaged or not a Parquet file"),
            "{message}"
        );
    }
}

/// Damaged files give an error or other rows; they do not end the process.
#[test]
fn damaged_files_do_no_harm() {
    let rounds = std::env::var("ROWS_ROUNDS").map_or(10, |rounds| rounds.parse().unwrap());
    let seed = std::env::var("ROWS_SEED").map_or(1, |seed| seed.parse().unwrap());
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    for file in [
        "nested-zstd/train.parquet",
        "nested-snappy/train.parquet",
        "nested-delta/train.parquet",
        "nested-none/train.parquet",
        "nested-lz4/train.parquet",
        "nested-brotli/train.parquet",
        "nested-gzip/train.parquet",
        "old-types/train.parquet",
        "json-field/rows.json",
        "compressed/train.jsonl.gz",
        "compressed/test.jsonl.zst",
        "compressed/val.jsonl.bz2",
        "csv/train.csv",
    ] {
        let whole = std::fs::read(fixtures().join(file)).unwrap();
        let name = file.rsplit('/').next().unwrap();
        for _ in 0..rounds {
            let mut damaged = whole.clone();
            for _ in 0..rng.random_range(1..8) {
                let at = rng.random_range(0..damaged.len());
                match rng.random_range(0..4) {
                    0 => damaged[at] ^= 1 << rng.random_range(0..8),
                    1 => damaged[at] = [0, 0xff, 0x7f, 0x80][rng.random_range(0..4)],
                    2 => {
                        let end = (at + rng.random_range(1..16)).min(damaged.len());
                        damaged[at..end].fill(0xff);
                    }
                    _ => damaged[at] = rng.random(),
                }
            }
            let read = rows_of(name, &damaged, &Options::default());
            if let Some(panic) = read.err().filter(|message| message.contains("the decoder failed")) {
                eprintln!("{file}: {panic}");
            }
        }
    }
}
