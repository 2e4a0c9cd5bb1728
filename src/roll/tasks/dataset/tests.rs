//! Data sets of every layout, against the rows that Python's `datasets` loads from them.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Deserialize;
use serde_json::Value;

use super::*;
use crate::config::schema::TaskReader;
use crate::roll::job::test_section;

/// Rows of a split, as tests/reference/make_datasets.py has them from `datasets`.
#[derive(Deserialize)]
struct Case {
    path: String,
    name: Option<String>,
    split: String,
    rows: Vec<Value>,
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/datasets")
}

fn config(path: &Path) -> HuggingfaceDatRepo {
    HuggingfaceDatRepo {
        dataset_path: path.display().to_string(),
        ..HuggingfaceDatRepo::default()
    }
}

fn selection() -> Selection {
    Selection::new(&TaskReader::default()).unwrap()
}

fn error_of(config: &HuggingfaceDatRepo) -> String {
    read(config, &selection()).unwrap_err().to_string()
}

/// Compares every data set below `root` with the rows that are stored there.
fn compare(root: &Path) {
    let cases: Vec<Case> = serde_json::from_str(&std::fs::read_to_string(root.join("rows.json")).unwrap()).unwrap();
    assert!(cases.len() > 25, "{} cases", cases.len());
    for case in cases {
        let config = HuggingfaceDatRepo {
            dataset_name: case.name.clone(),
            training_split: case.split.clone(),
            ..config(&root.join(&case.path))
        };
        let what = format!("{} {:?} {}", case.path, case.name, case.split);
        let sets = read(&config, &selection()).unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(sets.training.len(), case.rows.len(), "{what}");
        for (row, (task, expected)) in sets.training.iter().zip(&case.rows).enumerate() {
            assert!(
                same(&task.metadata, expected),
                "{what} row {row}\nread     {}\nexpected {expected}",
                task.metadata
            );
            if let Some(question) = expected["question"].as_str() {
                assert_eq!(task.main_query, question, "{what} row {row}");
            }
        }
    }
}

/// Equal values; numbers may be written in different ways, as 1e-07 and 1e-7.
fn same(read: &Value, expected: &Value) -> bool {
    match (read, expected) {
        (Value::Number(read), Value::Number(expected)) => {
            let integers = |text: String| text.bytes().all(|byte| byte == b'-' || byte.is_ascii_digit());
            match integers(read.to_string()) && integers(expected.to_string()) {
                true => read.to_string() == expected.to_string(),
                false => read.as_f64() == expected.as_f64(),
            }
        }
        (Value::Array(read), Value::Array(expected)) => {
            read.len() == expected.len() && read.iter().zip(expected).all(|(read, expected)| same(read, expected))
        }
        (Value::Object(read), Value::Object(expected)) => {
            let equal = |(name, value): (&String, &Value)| expected.get(name).is_some_and(|known| same(value, known));
            read.len() == expected.len() && read.iter().all(equal)
        }
        (read, expected) => read == expected,
    }
}

#[test]
fn every_layout_gives_the_rows_of_datasets() {
    compare(&fixtures());
}

#[test]
fn rows_are_those_of_the_installed_datasets() {
    let Ok(python) = std::env::var("DATASETS_PYTHON") else {
        eprintln!("skipped: set DATASETS_PYTHON to a Python that has `datasets` and `zstandard`");
        return;
    };
    let out = tempfile::tempdir().unwrap();
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/make_datasets.py");
    let made = Command::new(python).arg(script).arg(out.path()).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    compare(out.path());
}

#[test]
fn validation_is_read_where_there_is_such_a_split() {
    let sets = read(&config(&fixtures().join("shards")), &selection()).unwrap();
    assert_eq!((sets.training.len(), sets.validation.len()), (5, 2));
    let none = read(&config(&fixtures().join("gsm8k/main")), &selection()).unwrap();
    assert_eq!((none.training.len(), none.validation.len()), (7, 0));
    let test = HuggingfaceDatRepo {
        validation_split: Some("test".into()),
        ..config(&fixtures().join("gsm8k/main"))
    };
    assert_eq!(read(&test, &selection()).unwrap().validation.len(), 3);
}

#[test]
fn parts_of_splits_are_read() {
    let parts = |training: &str, validation: &str| HuggingfaceDatRepo {
        training_split: training.into(),
        validation_split: Some(validation.into()),
        ..config(&fixtures().join("shards"))
    };
    let ids = |tasks: &[Task]| tasks.iter().map(|task| task.task_id.clone()).collect::<Vec<_>>();
    let sets = read(&parts("train[:80%]", "train[80%:]"), &selection()).unwrap();
    assert_eq!(ids(&sets.training), ["task_0", "task_1", "task_2", "task_3"]);
    assert_eq!(ids(&sets.validation), ["task_4"]);
    let sets = read(&parts("train[1:4]", "validation+extra"), &selection()).unwrap();
    assert_eq!(ids(&sets.training), ["task_1", "task_2", "task_3"]);
    assert_eq!(ids(&sets.validation), ["task_0", "task_1", "task_2"]);
    assert!(error_of(&parts("train[5:]", "train")).contains("split train[5:] contains no task"));
    assert!(error_of(&parts("train[5", "train")).contains("training_split: \"train[5\" is not a split or parts"));
    let jsonl = HuggingfaceDatRepo {
        training_split: "train[-1:]".into(),
        ..config(&fixtures().join("json-lines/train.jsonl"))
    };
    assert_eq!(ids(&read(&jsonl, &selection()).unwrap().training), ["task_3"]);
}

#[test]
fn a_single_file_is_its_training_split() {
    for file in ["gsm8k/main/test-00000-of-00001.parquet", "compressed/test.jsonl.zst"] {
        assert_eq!(
            read(&config(&fixtures().join(file)), &selection())
                .unwrap()
                .training
                .len(),
            3,
            "{file}"
        );
    }
}

#[test]
fn what_is_not_there_is_named_with_what_is() {
    let gsm8k = config(&fixtures().join("gsm8k"));
    let named = |name: &str, split: &str| HuggingfaceDatRepo {
        dataset_name: Some(name.into()),
        training_split: split.into(),
        ..gsm8k.clone()
    };
    for (config, told) in [
        (gsm8k.clone(), "dataset_name to one of main, socratic"),
        (
            named("mian", "train"),
            "no configuration \"mian\"\nhint: set ajet.task_reader.huggingface_dat_repo.dataset_name to one of main, \
             socratic",
        ),
        (
            named("main", "dev"),
            "no split \"dev\"\nhint: set ajet.task_reader.huggingface_dat_repo.training_split to one of train, test",
        ),
        (config(&fixtures().join("none")), "no file or directory"),
        (
            config(&fixtures().join("configs/hard/notes.txt")),
            "its name does not end in",
        ),
        (config(Path::new("")), "dataset_path is missing"),
        (
            HuggingfaceDatRepo {
                delimiter: Some("ab".into()),
                ..gsm8k.clone()
            },
            "delimiter: \"ab\" is not one ASCII character",
        ),
    ] {
        let message = error_of(&config);
        assert!(message.contains(told), "{message}");
    }
}

#[test]
fn what_save_to_disk_writes_is_refused_with_what_to_do() {
    let root = tempfile::tempdir().unwrap();
    std::fs::create_dir(root.path().join("train")).unwrap();
    for file in [
        "dataset_dict.json",
        "train/state.json",
        "train/dataset_info.json",
        "train/data-00000-of-00001.arrow",
    ] {
        std::fs::write(root.path().join(file), "{}").unwrap();
    }
    for path in ["", "train", "train/data-00000-of-00001.arrow"] {
        let message = error_of(&config(&root.path().join(path)));
        assert!(
            message.contains("is an Arrow file") && message.contains("to_parquet("),
            "{message}"
        );
    }
}

#[test]
fn a_missing_shard_is_reported() {
    let root = tempfile::tempdir().unwrap();
    let shard = fixtures().join("shards/data/train-00001-of-00002.parquet");
    std::fs::copy(shard, root.path().join("train-00001-of-00002.parquet")).unwrap();
    let sets = read(&config(root.path()), &selection()).unwrap();
    assert_eq!(sets.training.len(), 2);
    assert!(
        sets.warnings[0].contains("train-00000-of-00002.parquet is missing"),
        "{:?}",
        sets.warnings
    );
}

#[test]
fn ten_thousand_files_are_one_split() {
    let root = tempfile::tempdir().unwrap();
    for file in 0..10_000 {
        std::fs::write(
            root.path().join(format!("part-{file:05}.jsonl")),
            "{\"main_query\": \"x\"}\n",
        )
        .unwrap();
    }
    let sets = read(&config(root.path()), &selection()).unwrap();
    assert_eq!(sets.training.len(), 10_000);
    assert_eq!(sets.training[9_999].task_id, "task_9999");
}

#[test]
fn limit_filter_and_columns_choose_and_name() {
    let reader = |yaml: &str| test_section::<TaskReader>("ajet.task_reader", yaml);
    let gsm8k = config(&fixtures().join("gsm8k/main"));
    let read_with = |yaml: &str| {
        let selection = Selection::new(&reader(yaml)).unwrap();
        read(&gsm8k, &selection).map_err(|error| error.to_string())
    };
    let sets = read_with(
        "{limit: 2, filter: \"'9' not in question\", columns: {main_query: 'Q: {{ question }}', \
         answer: \"{{ answer.split('#### ')[1] }}\", words: \"{{ question.split() }}\"}}",
    )
    .unwrap();
    assert_eq!(sets.training.len(), 2);
    let task = &sets.training[0];
    assert_eq!(task.main_query, "Q: How many pens are left of 7, if 2 are lost?");
    assert_eq!(task.metadata["answer"], "5");
    assert_eq!(task.metadata["words"][1], "many");
    assert_eq!(task.metadata.as_object().unwrap().len(), 2);
    // Its number is that of the row, whatever the filter keeps.
    assert_eq!(sets.training[1].task_id, "task_2");
    let none = read_with("{filter: '{{ 1 > 2 }}'}").unwrap_err();
    assert!(none.contains("filter keeps none of 7 rows"), "{none}");
    for (yaml, told) in [
        (
            "{columns: {main_query: '{{ qestion }}'}}",
            "row 1: ajet.task_reader.columns.main_query",
        ),
        (
            "{columns: {answer: '{{ anwser }}'}}",
            "hint: the fields here are question, answer",
        ),
        ("{filter: 'levle > 3'}", "row 1: ajet.task_reader.filter"),
        (
            "{columns: {task_id: '{{ question[:0] }}'}}",
            "task_id is \"\", but it must be text that is not empty",
        ),
    ] {
        let message = read_with(yaml).unwrap_err();
        assert!(message.contains(told), "{message}");
    }
    let syntax = Selection::new(&reader("{filter: 'a >'}")).unwrap_err().to_string();
    assert!(syntax.contains("ajet.task_reader.filter"), "{syntax}");
}
