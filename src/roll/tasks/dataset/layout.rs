//! Which files of a data set belong to which split, inferred from their names as `datasets` does.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use indexmap::IndexMap;

use super::pattern::fits;
use crate::roll::tasks::rows::Format;

/// The split of files whose names say nothing.
pub const TRAIN: &str = "train";

/// Patterns of file names by split.
pub type Patterns = IndexMap<String, Vec<String>>;

/// Words in the names of files and directories by split.
const KEYWORDS: [(&str, &[&str]); 3] = [
    (TRAIN, &["train", "training"]),
    ("validation", &["validation", "valid", "dev", "val"]),
    ("test", &["test", "testing", "eval", "evaluation"]),
];

/// What may stand beside a keyword.
const SEPARATORS: &str = "[-._ 0-9]";

/// Files of a data set that hold no rows.
const NOT_DATA: [&str; 6] = [
    "README.md",
    "config.json",
    "dataset_info.json",
    "dataset_infos.json",
    "dummy_data.zip",
    "dataset_dict.json",
];

/// The files that fit a pattern, in the order of `files`.
pub fn resolve<'a>(files: &'a [String], pattern: &str) -> Vec<&'a String> {
    let names_it = |file: &str| pattern.rsplit('/').next() == file.rsplit('/').next();
    let is_data = |file: &str| file.rsplit('/').next().is_some_and(|name| !NOT_DATA.contains(&name)) || names_it(file);
    files
        .iter()
        .filter(|file| is_data(file) && fits(pattern, file))
        .collect()
}

/// The patterns of a data set that does not give any: shards below `data/`, else keywords in the names of directories,
/// else of files, else every file is for training.
pub fn default_patterns(files: &[String]) -> Patterns {
    const SHARD: &str = "-[0-9][0-9][0-9][0-9][0-9]-of-[0-9][0-9][0-9][0-9][0-9]*.*";
    let shards = resolve(files, &format!("data/*{SHARD}"));
    if !shards.is_empty() {
        let splits = shards
            .iter()
            .filter_map(|file| shard_split(file.strip_prefix("data/")?));
        let mut splits: Vec<&str> = splits.collect();
        splits.sort_unstable_by_key(|split| (rank(split), *split));
        splits.dedup();
        let of_split = |split: &str| (split.to_owned(), vec![format!("data/{split}{SHARD}")]);
        return splits.into_iter().map(of_split).collect();
    }
    for patterns_of in [in_directories, in_names] {
        let by_keyword = KEYWORDS.iter().map(|(split, words)| {
            let patterns = words.iter().flat_map(|word| patterns_of(word)).collect::<Vec<_>>();
            ((*split).to_owned(), patterns)
        });
        let is_there = |patterns: &[String]| patterns.iter().any(|pattern| !resolve(files, pattern).is_empty());
        let found: Patterns = by_keyword.filter(|(_, patterns)| is_there(patterns)).collect();
        if !found.is_empty() {
            return found;
        }
    }
    Patterns::from([(TRAIN.to_owned(), vec!["**".to_owned()])])
}

/// `train` of `train-00000-of-00002.parquet`.
fn shard_split(name: &str) -> Option<&str> {
    const SHARD: usize = "-00000-of-00000".len();
    let is_shard = |at: usize| {
        let shard = name.as_bytes().get(at..at + SHARD);
        shard.is_some_and(|shard| {
            let template = b"-00000-of-00000".iter().zip(shard);
            let mut template = template.map(|(known, byte)| known == byte || *known == b'0' && byte.is_ascii_digit());
            template.all(|fits| fits)
        })
    };
    let at = (1..name.len()).rev().find(|at| is_shard(*at))?;
    name.get(..at)
}

/// Training first, then validation, test, and others.
fn rank(split: &str) -> usize {
    let known = KEYWORDS.iter().position(|(known, _)| *known == split);
    known.unwrap_or(KEYWORDS.len())
}

fn in_directories(word: &str) -> Vec<String> {
    vec![
        format!("**/{word}/**"),
        format!("**/{word}{SEPARATORS}*/**"),
        format!("**/*{SEPARATORS}{word}/**"),
        format!("**/*{SEPARATORS}{word}{SEPARATORS}*/**"),
    ]
}

fn in_names(word: &str) -> Vec<String> {
    vec![
        format!("**/{word}{SEPARATORS}*"),
        format!("**/*{SEPARATORS}{word}{SEPARATORS}*"),
    ]
}

/// A file of a split and how it is read.
pub type DataFile = (String, Format);

/// The data files that fit the patterns of a split, pattern by pattern. Where formats are mixed, as with notes beside
/// the data, the most frequent one counts.
///
/// # Errors
/// Fails if no file matches, a named file is missing, or none has a supported format.
pub fn data_files(files: &[String], patterns: &[String]) -> Result<Vec<DataFile>, String> {
    let mut found: Vec<&String> = vec![];
    let mut seen = HashSet::new();
    for pattern in patterns {
        let resolved = resolve(files, pattern);
        if resolved.is_empty() && !pattern.contains(['*', '?', '[']) {
            return Err(format!("there is no file {pattern:?}"));
        }
        found.extend(resolved.into_iter().filter(|file| seen.insert(*file)));
    }
    let formats = found
        .iter()
        .filter_map(|file| Some(((*file).clone(), Format::of_name(base_name(file))?)));
    let formats: Vec<DataFile> = formats.collect();
    let has_rows = formats.iter().any(|(file, _)| base_name(file) != "state.json");
    if let Some(arrow) = found.iter().find(|file| file.ends_with(".arrow") && !has_rows) {
        return Err(arrow_refusal(arrow));
    }
    let Some(most) = most_frequent(&formats) else {
        return Err(match found.first() {
            None => format!("no file fits {}", patterns.join(", ")),
            Some(first) => format!(
                "there are {} files, such as {first:?}, but none is .parquet, .jsonl, .json, .csv or .tsv",
                found.len()
            ),
        });
    };
    Ok(formats
        .into_iter()
        .filter(|(_, format)| family(*format) == family(most))
        .collect())
}

/// Why a file of Arrow is not read, which `save_to_disk` and the cache of Python's `datasets` write.
pub fn arrow_refusal(file: &str) -> String {
    format!(
        "{file:?} is an Arrow file, as `save_to_disk` writes them, and cannot be read\nhint: write Parquet in Python: \
         datasets.load_from_disk(DIRECTORY)[\"train\"].to_parquet(\"train.parquet\")"
    )
}

fn base_name(file: &str) -> &str {
    file.rsplit('/').next().unwrap_or(file)
}

/// The format that most files have; Parquet before JSON before CSV where as many have each.
fn most_frequent(files: &[DataFile]) -> Option<Format> {
    let mut counts: BTreeMap<u8, (usize, Format)> = BTreeMap::new();
    for (_, format) in files {
        counts.entry(family(*format)).or_insert((0, *format)).0 += 1;
    }
    let best = counts
        .into_iter()
        .max_by_key(|(family, (count, _))| (*count, std::cmp::Reverse(*family)));
    best.map(|(_, (_, format))| format)
}

/// Formats that may stand side by side in one split.
fn family(format: Format) -> u8 {
    match format {
        Format::Parquet => 0,
        Format::JsonLines | Format::Json => 1,
        Format::Csv | Format::Tsv => 2,
    }
}

/// The shards that a complete split would have and that are not there, as after an interrupted download.
pub fn missing_shards(files: &[DataFile], patterns: &[String]) -> Vec<String> {
    let names: HashSet<&str> = files.iter().map(|(file, _)| file.as_str()).collect();
    let sets = files.iter().filter_map(|(file, _)| {
        let split = shard_split(file)?;
        // `-00000-of-00002`, and what follows.
        Some((
            split,
            file.get(split.len() + 10..split.len() + 15)?,
            file.get(split.len() + 15..)?,
        ))
    });
    let sets: BTreeSet<(&str, &str, &str)> = sets.collect();
    let expected = sets.into_iter().flat_map(|(split, count, rest)| {
        let shards = 0..count.parse::<usize>().unwrap_or_default();
        shards.map(move |shard| format!("{split}-{shard:05}-of-{count}{rest}"))
    });
    let is_wanted = |shard: &str| patterns.iter().any(|pattern| fits(pattern, shard));
    expected
        .filter(|shard| !names.contains(shard.as_str()) && is_wanted(shard))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owned(files: &[&str]) -> Vec<String> {
        files.iter().map(|file| (*file).to_owned()).collect()
    }

    /// The splits and their files.
    fn splits(files: &[&str]) -> String {
        let files = owned(files);
        let patterns = default_patterns(&files);
        let splits = patterns.iter().map(|(split, patterns)| {
            let found =
                data_files(&files, patterns).map(|files| files.into_iter().map(|(file, _)| file).collect::<Vec<_>>());
            format!("{split}: {}", found.unwrap_or_else(|error| vec![error]).join(" "))
        });
        splits.collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn splits_are_inferred_from_names() {
        for (files, expected) in [
            (
                vec![
                    "README.md",
                    "data/random-00000-of-00001.parquet",
                    "data/test-00000-of-00001.parquet",
                    "data/train-00000-of-00002.parquet",
                    "data/train-00001-of-00002.parquet",
                ],
                "train: data/train-00000-of-00002.parquet data/train-00001-of-00002.parquet; \
                 test: data/test-00000-of-00001.parquet; random: data/random-00000-of-00001.parquet",
            ),
            (
                vec!["test.jsonl", "train.jsonl"],
                "train: train.jsonl; test: test.jsonl",
            ),
            (
                vec!["dev.csv", "training_1.csv", "training_2.csv"],
                "train: training_1.csv training_2.csv; validation: dev.csv",
            ),
            (
                vec!["test/a.json", "train/a.json", "val/a.json"],
                "train: train/a.json; validation: val/a.json; test: test/a.json",
            ),
            (
                vec!["main/test-00000-of-00001.parquet", "main/train-00000-of-00001.parquet"],
                "train: main/train-00000-of-00001.parquet; test: main/test-00000-of-00001.parquet",
            ),
            (vec!["README.md", "a.parquet", "notes.txt"], "train: a.parquet"),
            (
                vec!["train.jsonl.gz", "my_evaluation.jsonl.zst"],
                "train: train.jsonl.gz; test: my_evaluation.jsonl.zst",
            ),
            (
                vec!["pretraining.csv", "attestation.csv"],
                "train: pretraining.csv attestation.csv",
            ),
            (
                vec!["a.txt"],
                "train: there are 1 files, such as \"a.txt\", but none is .parquet, .jsonl, .json, .csv or .tsv",
            ),
            (vec!["config.json"], "train: no file fits **"),
            (
                vec!["train-validation.csv"],
                "train: train-validation.csv; validation: train-validation.csv",
            ),
        ] {
            assert_eq!(splits(&files), expected);
        }
    }

    #[test]
    fn named_files_have_to_be_there() {
        let files = owned(&["a.csv", "config.json"]);
        assert_eq!(
            data_files(&files, &owned(&["b.csv"])),
            Err("there is no file \"b.csv\"".into())
        );
        assert_eq!(data_files(&files, &owned(&["b/*"])), Err("no file fits b/*".into()));
        assert_eq!(
            data_files(&files, &owned(&["config.json"])),
            Ok(vec![("config.json".into(), Format::Json)])
        );
    }

    #[test]
    fn missing_shards_are_named() {
        let file = |name: &str| (name.to_owned(), Format::Parquet);
        let missing = |files: &[DataFile], pattern: &str| missing_shards(files, &owned(&[pattern]));
        let files = [file("data/train-00001-of-00003.parquet"), file("x.parquet")];
        assert_eq!(
            missing(&files, "data/*"),
            ["data/train-00000-of-00003.parquet", "data/train-00002-of-00003.parquet"]
        );
        assert_eq!(missing(&files, "data/train-00001*").len(), 0);
        assert_eq!(missing(&[file("train-00000-of-00001.parquet")], "**").len(), 0);
        let many: Vec<_> = (0..2000)
            .map(|shard| file(&format!("train-{shard:05}-of-99999.x")))
            .collect();
        assert_eq!(missing(&many, "**").len(), 97_999);
    }
}
