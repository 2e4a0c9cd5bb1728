//! Exports a checkpoint as a model for `transformers` and `peft`, without the trainer's state.

use std::path::{Path, PathBuf};

use super::checkpoint::Checkpoint;
use super::durable;
use crate::config::schema::Dtype;
use crate::model::{ADDITIONAL_CHAT_TEMPLATES, ModelError, export, peft};

/// Tokenizer files exported next to an adapter.
const TOKENIZER_FILES: [&str; 3] = ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];

/// What to export.
#[derive(Clone, Debug)]
pub struct Options {
    /// A checkpoint, or an experiment directory for its newest checkpoint.
    pub from: PathBuf,
    /// Target directory; must be missing or empty.
    pub to: PathBuf,
    /// Whether to merge a LoRA adapter into its base model.
    pub merge_lora: bool,
    /// Type of the weights. Default: the checkpoint's, or the base model's after merging.
    pub dtype: Option<Dtype>,
}

/// Kind of the export.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exported {
    /// A complete model.
    Model,
    /// A LoRA adapter with the tokenizer.
    Adapter,
}

/// Reasons why nothing was exported.
#[derive(Debug, thiserror::Error)]
pub enum ExportError {
    /// No usable checkpoint.
    #[error("{0}")]
    Checkpoint(String),
    /// The target is not empty.
    #[error("{0} already exists and is not empty\nhint: set --to to a new directory")]
    TargetNotEmpty(PathBuf),
    /// The checkpoint is not an adapter.
    #[error("{0} is a complete model, not a LoRA adapter\nhint: omit --merge-lora")]
    NothingToMerge(PathBuf),
    /// The file system failed.
    #[error("{path}: {source}")]
    Io {
        /// Path.
        path: PathBuf,
        /// Error of the system.
        source: std::io::Error,
    },
    /// Weights cannot be read or written.
    #[error(transparent)]
    Model(#[from] ModelError),
}

/// Exports a checkpoint. The target appears only when it is complete.
///
/// # Errors
/// Fails if there is no intact checkpoint, the target is not empty, the base model is missing, or the disk is full; the
/// target is then unchanged.
pub fn export(options: &Options, progress: &mut dyn FnMut(f32, &str)) -> Result<Exported, ExportError> {
    let checkpoint = Checkpoint::find(&options.from).map_err(ExportError::Checkpoint)?;
    let to = std::path::absolute(&options.to).map_err(io(&options.to))?;
    if to.read_dir().is_ok_and(|mut entries| entries.next().is_some()) {
        return Err(ExportError::TargetNotEmpty(to));
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

/// Renames the finished directory to its final name, replacing an empty one, and removes the restriction to its owner.
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
