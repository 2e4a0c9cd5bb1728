//! A checkpoint as a model for others: what Python's `transformers` and `peft` load, without the trainer's state.

use std::path::{Path, PathBuf};

use super::checkpoint::Checkpoint;
use super::durable;
use crate::config::schema::Dtype;
use crate::model::{ADDITIONAL_CHAT_TEMPLATES, ModelError, export, peft};

/// Files beside an adapter that it is used with.
const TOKENIZER_FILES: [&str; 3] = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];

/// What to export, and how.
#[derive(Clone, Debug)]
pub struct Options {
    /// A checkpoint, or an experiment's directory for its newest.
    pub from: PathBuf,
    /// The directory to write; not there yet, or empty.
    pub to: PathBuf,
    /// Merge a LoRA adapter into the model that it was trained on.
    pub merge_lora: bool,
    /// Type of the weights. Default: the checkpoint's; of a merged model the base's.
    pub dtype: Option<Dtype>,
}

/// What was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exported {
    /// A whole model.
    Model,
    /// A LoRA adapter with the tokenizer.
    Adapter,
}

/// Why nothing was exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// There is no checkpoint to export.
    #[error("{0}")]
    Checkpoint(String),
    /// The target is taken.
    #[error("{0} is there already and not empty\nhint: give --to a new directory")]
    Taken(PathBuf),
    /// Nothing to merge.
    #[error("{0} is a whole model, not a LoRA adapter\nhint: leave --merge-lora away")]
    NothingToMerge(PathBuf),
    /// The file system refused.
    #[error("{path}: {source}")]
    Io {
        /// Where.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Weights could not be read or written.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// Exports a checkpoint. The target appears when it is whole.
///
/// # Errors
/// No whole checkpoint there, a target that is taken, a base model that is gone, a disk that is full; the target is then
/// as it was.
pub fn export(options: &Options, progress: &mut dyn FnMut(f32, &str)) -> Result<Exported, ExportError> {
    let checkpoint = Checkpoint::find(&options.from).map_err(ExportError::Checkpoint)?;
    let to = std::path::absolute(&options.to).map_err(io(&options.to))?;
    if to.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(ExportError::Taken(to));
    }
    let parent = to.parent().unwrap_or(Path::new("/"));
    std::fs::create_dir_all(parent).map_err(io(parent))?;
    let unfinished = tempfile::Builder::new()
        .prefix(".export-")
        .tempdir_in(parent)
        .map_err(io(parent))?;
    let exported = write(&checkpoint, options, unfinished.path(), progress)?;
    durable::sync_tree(unfinished.path()).map_err(io(&to))?;
    publish(unfinished.path(), &to).map_err(io(&to))?;
    Ok(exported)
}

fn write(
    checkpoint: &Checkpoint,
    options: &Options,
    to: &Path,
    progress: &mut dyn FnMut(f32, &str),
) -> Result<Exported, ExportError> {
    let from = &checkpoint.dir;
    match (from.join(peft::CONFIG_FILE).exists(), options.merge_lora) {
        (true, true) => export::write_merged(&checkpoint.manifest.run.model, from, to, options.dtype, progress)?,
        (true, false) => {
            peft::copy_adapter(from, to, options.dtype)?;
            copy_tokenizer(from, to).map_err(io(to))?;
            return Ok(Exported::Adapter);
        }
        (false, true) => return Err(ExportError::NothingToMerge(from.clone())),
        (false, false) => export::copy_model(from, to, options.dtype, progress)?,
    }
    Ok(Exported::Model)
}

fn copy_tokenizer(from: &Path, to: &Path) -> std::io::Result<()> {
    for file in TOKENIZER_FILES.into_iter().filter(|file| from.join(file).exists()) {
        std::fs::copy(from.join(file), to.join(file))?;
    }
    let (from, to) = (from.join(ADDITIONAL_CHAT_TEMPLATES), to.join(ADDITIONAL_CHAT_TEMPLATES));
    if !from.is_dir() {
        return Ok(());
    }
    std::fs::create_dir(&to)?;
    for entry in from.read_dir()? {
        let entry = entry?;
        std::fs::copy(entry.path(), to.join(entry.file_name()))?;
    }
    Ok(())
}

/// Gives the finished directory its name, in place of an empty one. It was made for its owner only.
fn publish(unfinished: &Path, to: &Path) -> std::io::Result<()> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        std::fs::set_permissions(unfinished, std::fs::Permissions::from_mode(0o755))?;
    }
    std::fs::rename(unfinished, to)?;
    durable::sync_parent(to)
}

fn io(path: &Path) -> impl FnOnce(std::io::Error) -> ExportError {
    let path = path.to_owned();
    move |source| ExportError::Io { path, source }
}
