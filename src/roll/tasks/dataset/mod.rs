//! Data sets as Python's `datasets` lays them out, in a directory, a file or a repository of the hub.

mod card;
mod directory;
mod layout;
mod pattern;
mod source;
mod split;

use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use super::rows::{self, Format, Options};
use super::select::{Collector, Selection};
use super::{Task, TaskError, TaskSets};
use crate::config::schema::HuggingfaceDatRepo;
use crate::config::small_file::{DOCUMENT_BYTES, read_text};
use card::Configuration;
use layout::{DataFile, Patterns, TRAIN};
use source::Source;
use split::Part;

const README: &str = "README.md";
/// The split to evaluate on where none is named and there is one of this name.
const VALIDATION: &str = "validation";

/// Reads the splits for training and validation.
///
/// # Errors
/// Fails if there is no such data set, configuration or split, or a file of it is damaged.
pub fn read(config: &HuggingfaceDatRepo, selection: &Selection) -> Result<TaskSets, TaskError> {
    let path = config.dataset_path.as_str();
    if path.is_empty() {
        return Err(TaskError::Missing {
            key: "ajet.task_reader.huggingface_dat_repo.dataset_path",
            what: "a directory or file of a data set, or a hub id such as openai/gsm8k",
        });
    }
    let mut options = options(config)?;
    options.needed = selection.needed_columns();
    let mut dataset = match Path::new(path).is_file() {
        true => Dataset::of_file(path, options)?,
        false => Dataset::open(Source::open(path)?, config, options)?,
    };
    let training = dataset.read("training_split", &config.training_split, selection)?;
    let validation = match config.validation_split.as_deref() {
        None if !dataset.splits.contains_key(VALIDATION) => vec![],
        split => dataset.read("validation_split", split.unwrap_or(VALIDATION), selection)?,
    };
    Ok(TaskSets {
        training,
        validation,
        warnings: dataset.warnings,
    })
}

/// What the job says of how files are read.
fn options(config: &HuggingfaceDatRepo) -> Result<Options, TaskError> {
    let delimiter = match config.delimiter.as_deref().map(str::as_bytes) {
        None => None,
        Some([byte]) if byte.is_ascii() => Some(*byte),
        Some(_) => {
            return Err(TaskError::Value {
                key: "ajet.task_reader.huggingface_dat_repo.delimiter",
                given: config.delimiter.clone().unwrap_or_default(),
                allowed: "one ASCII character",
            });
        }
    };
    Ok(Options {
        field: config.field.clone(),
        delimiter,
        ..Options::default()
    })
}

/// A configuration of a data set.
struct Dataset {
    path: String,
    /// Where its files are; `None` for a single file.
    source: Option<Source>,
    splits: Patterns,
    options: Options,
    warnings: Vec<String>,
}

impl Dataset {
    /// A file, which is its split `train`.
    fn of_file(path: &str, options: Options) -> Result<Self, TaskError> {
        Ok(Self {
            path: path.to_owned(),
            source: None,
            splits: Patterns::from([(TRAIN.to_owned(), vec![])]),
            options,
            warnings: vec![],
        })
    }

    fn open(source: Source, config: &HuggingfaceDatRepo, options: Options) -> Result<Self, TaskError> {
        let wrong = |reason: String| TaskError::Layout {
            path: source.path.clone(),
            reason,
        };
        let mut configurations = vec![];
        if source.files.iter().any(|file| file == README) {
            let readme = source.file(README)?;
            let text = read_text(&readme, DOCUMENT_BYTES).map_err(|reason| TaskError::File { path: readme, reason })?;
            configurations = card::configurations(&text).map_err(wrong)?;
        }
        let chosen = choose(&source, configurations, config.dataset_name.as_deref())?;
        let splits = match chosen.patterns {
            Some(patterns) => below(chosen.directory.as_deref(), patterns),
            None => {
                let files = files_below(&source.files, chosen.directory.as_deref());
                below(chosen.directory.as_deref(), layout::default_patterns(&files))
            }
        };
        let mut warnings = vec![];
        if !chosen.ignored.is_empty() {
            let ignored = chosen.ignored.join(", ");
            warnings.push(format!(
                "{}: parameters of the README's configs have no effect: {ignored}",
                source.path
            ));
        }
        Ok(Self {
            path: source.path.clone(),
            source: Some(source),
            splits,
            options: Options {
                field: options.field.or(chosen.options.field),
                delimiter: options.delimiter.or(chosen.options.delimiter),
                needed: options.needed,
                ..chosen.options
            },
            warnings,
        })
    }

    /// Reads the tasks of a split or of parts of splits, which `key` of the job names.
    fn read(&mut self, key: &'static str, split: &str, selection: &Selection) -> Result<Vec<Task>, TaskError> {
        let parts = split::parts(split).ok_or_else(|| TaskError::Value {
            key,
            given: split.to_owned(),
            allowed: "a split or parts of splits, such as train[:90%] or train+test",
        })?;
        let mut tasks = selection.begin();
        for part in parts {
            let Some(patterns) = self.splits.get(&part.split).cloned() else {
                return Err(TaskError::Split {
                    path: self.path.clone(),
                    key,
                    given: part.split,
                    known: self.splits.keys().cloned().collect(),
                });
            };
            let files = self.files(&patterns)?;
            self.read_part(&part, &files, &mut tasks)?;
        }
        tasks.finish(&format!("{}, split {split}", self.path))
    }

    fn read_part(&self, part: &Part, files: &[DataFile], tasks: &mut Collector) -> Result<(), TaskError> {
        let mut count = 0;
        if part.needs_count() {
            for (file, format) in files {
                count += rows::count(&self.path_of(file)?, *format, &self.options)?;
            }
        } else {
            count = u64::MAX;
        }
        let wanted = part.rows(count);
        let mut index = 0;
        for (file, format) in files {
            let mut is_enough = false;
            rows::read(&self.path_of(file)?, *format, &self.options, &mut |row| {
                let flow = match index {
                    index if index >= wanted.end => ControlFlow::Break(()),
                    index if index < wanted.start => {
                        tasks.skip();
                        ControlFlow::Continue(())
                    }
                    _ => tasks.take(row)?,
                };
                index += 1;
                is_enough = flow.is_break();
                Ok(flow)
            })?;
            if is_enough {
                break;
            }
        }
        Ok(())
    }

    /// A data file on this machine.
    fn path_of(&self, file: &str) -> Result<PathBuf, TaskError> {
        match &self.source {
            Some(source) => source.file(file),
            None => Ok(file.into()),
        }
    }

    /// The files of a split.
    fn files(&mut self, patterns: &[String]) -> Result<Vec<DataFile>, TaskError> {
        let wrong = |reason: String| TaskError::Layout {
            path: self.path.clone(),
            reason,
        };
        let Some(source) = &self.source else {
            let name = Path::new(&self.path).file_name().unwrap_or_default().to_string_lossy();
            let format = Format::of_name(&name).ok_or_else(|| match name.ends_with(".arrow") {
                true => wrong(layout::arrow_refusal(&name)),
                false => wrong("its name does not end in .parquet, .jsonl, .json, .csv or .tsv".into()),
            })?;
            return Ok(vec![(self.path.clone(), format)]);
        };
        let not_cached = |what: String| {
            wrong(format!(
                "the hub's cache does not have all of it: {what}\n\
                 hint: run this once with the network, without HF_HUB_OFFLINE"
            ))
        };
        let is_partial = source.is_partial();
        let files = layout::data_files(&source.files, patterns).map_err(|reason| match is_partial {
            true => not_cached(reason),
            false => wrong(reason),
        })?;
        if let Some(first) = layout::missing_shards(&files, patterns).first() {
            if is_partial {
                return Err(not_cached(format!("{first} is missing")));
            }
            self.warnings.push(format!(
                "{}: {first} is missing; only the shards that are there are read",
                self.path
            ));
        }
        Ok(files)
    }
}

/// The configuration of that name, or the default one. A directory of the name will do where the README has none.
fn choose(
    source: &Source,
    mut configurations: Vec<Configuration>,
    name: Option<&str>,
) -> Result<Configuration, TaskError> {
    let known = || {
        configurations
            .iter()
            .map(|known| known.name.clone())
            .collect::<Vec<_>>()
    };
    let Some(name) = name else {
        return match configurations.len() {
            0 => Ok(Configuration::default()),
            1 => Ok(configurations.swap_remove(0)),
            _ => match configurations
                .iter()
                .position(|known| known.is_default || known.name == "default")
            {
                Some(index) => Ok(configurations.swap_remove(index)),
                None => Err(TaskError::NoConfig {
                    path: source.path.clone(),
                    known: known(),
                }),
            },
        };
    };
    if let Some(index) = configurations.iter().position(|known| known.name == name) {
        return Ok(configurations.swap_remove(index));
    }
    if !files_below(&source.files, Some(name)).is_empty() {
        return Ok(Configuration {
            directory: Some(name.to_owned()),
            ..Configuration::default()
        });
    }
    let mut known = known();
    if known.is_empty() {
        let directories = source
            .files
            .iter()
            .filter_map(|file| Some(file.split_once('/')?.0.to_owned()));
        known = directories.collect();
        known.dedup();
    }
    Err(TaskError::Config {
        path: source.path.clone(),
        given: name.to_owned(),
        known,
    })
}

/// The files in a directory of the data set, relative to it.
fn files_below(files: &[String], directory: Option<&str>) -> Vec<String> {
    let Some(directory) = directory else {
        return files.to_vec();
    };
    let prefix = prefix(directory);
    files
        .iter()
        .filter_map(|file| Some(file.strip_prefix(&prefix)?.to_owned()))
        .collect()
}

/// Patterns of files in a directory, as patterns of the data set.
fn below(directory: Option<&str>, patterns: Patterns) -> Patterns {
    let prefix = directory.map(prefix).unwrap_or_default();
    let within = |patterns: Vec<String>| patterns.iter().map(|pattern| format!("{prefix}{pattern}")).collect();
    patterns
        .into_iter()
        .map(|(split, patterns)| (split, within(patterns)))
        .collect()
}

fn prefix(directory: &str) -> String {
    match directory.trim_start_matches("./").trim_matches('/') {
        "" => String::new(),
        directory => format!("{directory}/"),
    }
}

#[cfg(test)]
mod tests;
