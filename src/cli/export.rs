//! `ajet-swarm export`: writes a checkpoint as a model for Python and others.

use crate::{note, say};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::config::schema::Dtype;
use crate::engine::storage::export::{Exported, Options, export};

/// Export a checkpoint as a model for Python's transformers and peft.
#[derive(Debug, clap::Args)]
#[command(after_help = "\
Prints the path of the export. A LoRA checkpoint is exported as an adapter with its tokenizer, or with --merge-lora as \
a complete model, which requires the base model to be at its original path.

Examples:
  ajet-swarm export --from saved_experiments/quickstart --to quickstart-model
  ajet-swarm export --from saved_experiments/mine/checkpoints/global_step_40 --to mine-40 --merge-lora --dtype bf16")]
pub struct Args {
    /// Checkpoint directory, or experiment directory for its newest checkpoint.
    #[arg(long, value_name = "CHECKPOINT")]
    from: PathBuf,
    /// Directory to write, which must be missing or empty.
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// Merge the LoRA adapter into its base model.
    #[arg(long)]
    merge_lora: bool,
    /// Type of the weights. Default: the checkpoint's, or the base model's after merging.
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

/// Exports and prints the target's path.
///
/// # Errors
/// Fails with the reason why the checkpoint cannot be exported.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let options = Options {
        from: args.from,
        to: args.to,
        merge_lora: args.merge_lora,
        dtype: args.dtype.map(Dtype::from),
    };
    let exported = export(&options, &mut |_, what| tracing::debug!("{what}"))?;
    if exported == Exported::Adapter {
        note!("exported a LoRA adapter; hint: --merge-lora exports a complete model");
    }
    say!("{}", options.to.display());
    Ok(ExitCode::SUCCESS)
}
