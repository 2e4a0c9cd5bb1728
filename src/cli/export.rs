//! `ajet-swarm export`: a checkpoint as a model for Python and others.

use crate::{note, say};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::config::schema::Dtype;
use crate::engine::storage::export::{Exported, Options, export};

/// Write a checkpoint as a model that Python's transformers and peft load.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
The path of what was written is printed. A LoRA checkpoint becomes an adapter with its tokenizer, or with --merge-lora \
a whole model, for which the model that it was trained on must still be where the job found it.

Examples:
  ajet-swarm export --from saved_experiments/quickstart --to quickstart-model
  ajet-swarm export --from saved_experiments/mine/checkpoints/global_step_40 --to mine-40 --merge-lora --dtype bf16")]
pub struct Args {
    /// A checkpoint, or an experiment's directory for its newest.
    #[arg(long, value_name = "CHECKPOINT")]
    from: PathBuf,
    /// The directory to write: a new or an empty one.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Merge the LoRA adapter into its model.
    #[arg(long)]
    merge_lora: bool,
    /// Type of the weights. Default: the checkpoint's; of a merged model the base's.
    #[arg(long, value_name = "TYPE")]
    dtype: Option<FileType>,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
enum FileType {
    F32,
    Bf16,
}

impl From<FileType> for Dtype {
    fn from(given: FileType) -> Self {
        match given {
            FileType::F32 => Self::F32,
            FileType::Bf16 => Self::Bf16,
        }
    }
}

/// Exports, and prints where to.
///
/// # Errors
/// What keeps the checkpoint from being exported, as a sentence.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let options = Options {
        from: args.from,
        to: args.to,
        merge_lora: args.merge_lora,
        dtype: args.dtype.map(Dtype::from),
    };
    let exported = export(&options, &mut |_, what| tracing::debug!("{what}"))?;
    if exported == Exported::Adapter {
        note!("a LoRA adapter; with --merge-lora it becomes a whole model");
    }
    say!("{}", options.to.display());
    Ok(ExitCode::SUCCESS)
}
