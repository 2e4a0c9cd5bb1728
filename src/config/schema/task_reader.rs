//! `ajet.task_reader`: where tasks come from.

use indexmap::IndexMap;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// `ajet.task_reader`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TaskReader {
    /// `jsonl_dataset_file`, `huggingface_dat_repo`, `command`, `random_dummy`, `arithmetic` or `reverse_text`.
    #[serde(rename = "type")]
    pub kind: String,
    /// Maximum number of tasks of each set, training and validation; reading stops there.
    #[schemars(range(min = 1, max = 10_000_000))]
    pub limit: Option<usize>,
    /// Expression over a row's columns, such as `level <= 3 and answer`; rows of which it is true are kept.
    pub filter: String,
    /// Templates over a row's columns. `main_query`, `task_id`, `env_type` and `init_messages` are the task's; any other
    /// name is a field of its `metadata`, which is the whole row where no such name is given.
    #[serde(skip_serializing_if = "IndexMap::is_empty")]
    pub columns: IndexMap<String, String>,
    /// For type `jsonl_dataset_file`.
    pub jsonl_dataset_file: JsonlDatasetFile,
    /// For type `huggingface_dat_repo`.
    pub huggingface_dat_repo: HuggingfaceDatRepo,
    /// For type `command`.
    pub command: TaskCommands,
    /// For type `random_dummy`.
    pub random_dummy: RandomDummy,
    /// For type `arithmetic`.
    pub arithmetic: Generated,
    /// For type `reverse_text`.
    pub reverse_text: Generated,
}

impl Default for TaskReader {
    fn default() -> Self {
        Self {
            kind: "jsonl_dataset_file".into(),
            limit: None,
            filter: String::new(),
            columns: IndexMap::new(),
            jsonl_dataset_file: JsonlDatasetFile::default(),
            huggingface_dat_repo: HuggingfaceDatRepo::default(),
            command: TaskCommands::default(),
            random_dummy: RandomDummy::default(),
            arithmetic: Generated::default(),
            reverse_text: Generated::default(),
        }
    }
}

/// `ajet.task_reader.jsonl_dataset_file`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default, deny_unknown_fields)]
pub struct JsonlDatasetFile {
    /// Tasks to train on.
    pub training: JsonlFile,
    /// Tasks to evaluate on.
    pub validation: JsonlFile,
}

/// A file of tasks, a JSON object a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema, Default)]
#[serde(default, deny_unknown_fields)]
pub struct JsonlFile {
    /// Path; relative to the working directory. May end in `.gz`, `.zst` or `.bz2`.
    pub file_path: String,
}

/// `ajet.task_reader.huggingface_dat_repo`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct HuggingfaceDatRepo {
    /// Directory or file of a data set, or a hub id such as `openai/gsm8k` or `openai/gsm8k@REVISION`.
    pub dataset_path: String,
    /// Configuration of the data set, such as `main`, or a directory in it. Default: the data set's own default.
    pub dataset_name: Option<String>,
    /// Split to train on, or a part of it, such as `train[:90%]`.
    pub training_split: String,
    /// Split to evaluate on, or a part of one, such as `train[90%:]`. Default: `validation`, where the data set has it.
    pub validation_split: Option<String>,
    /// Key of the list of rows, for JSON files whose top level is an object.
    pub field: Option<String>,
    /// Character between the values of CSV files. Default: `,`, for `.tsv` a tab.
    pub delimiter: Option<String>,
}

impl Default for HuggingfaceDatRepo {
    fn default() -> Self {
        Self {
            dataset_path: String::new(),
            dataset_name: None,
            training_split: "train".into(),
            validation_split: None,
            field: None,
            delimiter: None,
        }
    }
}

/// `ajet.task_reader.command`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct TaskCommands {
    /// Program and arguments; prints the training tasks, one JSON object per line.
    pub training: Vec<String>,
    /// Program and arguments; prints the evaluation tasks.
    pub validation: Vec<String>,
    /// Maximum run time of a program in seconds.
    #[schemars(range(min = 0.1, max = 86_400.0))]
    pub timeout: f64,
}

impl Default for TaskCommands {
    fn default() -> Self {
        Self {
            training: vec![],
            validation: vec![],
            timeout: 600.0,
        }
    }
}

/// `ajet.task_reader.random_dummy`: tasks with a random number and no question, for agents that bring their own.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct RandomDummy {
    /// Number of training tasks.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub tasks: usize,
    /// Number of evaluation tasks.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub validation_tasks: usize,
    /// Seed of the task set.
    #[schemars(range(min = 0, max = i64::MAX))]
    pub seed: u64,
}

impl Default for RandomDummy {
    fn default() -> Self {
        Self {
            tasks: 256,
            validation_tasks: 64,
            seed: 0,
        }
    }
}

/// A task set made from a seed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
pub struct Generated {
    /// Number of training tasks.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub tasks: usize,
    /// Number of evaluation tasks; they differ from the training tasks.
    #[schemars(range(min = 0, max = 1_000_000))]
    pub validation_tasks: usize,
    /// Seed of the task set.
    #[schemars(range(min = 0, max = i64::MAX))]
    pub seed: u64,
    /// Minimum number of letters (`reverse_text`) or digits (`arithmetic`).
    #[schemars(range(min = 0, max = 1000))]
    pub min_length: usize,
    /// Maximum number of letters or digits.
    #[schemars(range(min = 0, max = 1000))]
    pub max_length: usize,
}

impl Default for Generated {
    fn default() -> Self {
        Self {
            tasks: 256,
            validation_tasks: 64,
            seed: 0,
            min_length: 3,
            max_length: 5,
        }
    }
}
