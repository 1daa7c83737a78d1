//! `highwater log copy`: a copy of a stopped log.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::bail;
use clap::Args;
use highwater_storage::inspect::{PartitionFiles, Target};
use highwater_storage::repair::copy_dir;
use serde_json::json;

use super::output::Output;
use super::progress::Progress;
use super::text::size;
use super::{ResultFormat, file_system, target};

/// Copy the directory of a stopped log, byte for byte and durably.
#[derive(Debug, Args)]
pub(crate) struct CopyArguments {
    /// A partition's directory. Nobody may have it open; nothing is written to it.
    #[arg(value_name = "SOURCE")]
    source: PathBuf,
    /// The copy, which must not be there.
    #[arg(value_name = "DESTINATION")]
    destination: PathBuf,
    /// How results look.
    #[arg(long, value_enum, default_value_t)]
    format: ResultFormat,
}

pub(crate) fn run(arguments: &CopyArguments) -> anyhow::Result<ExitCode> {
    let fs = file_system();
    let Target::Partition(source) = target(&*fs, &arguments.source)? else {
        bail!("{} is not a partition's directory", arguments.source.display());
    };
    let mut output = Output::new(arguments.format);
    let progress = Progress::new(PartitionFiles::list(&*fs, &source)?.log_bytes(), arguments.format);
    let (files, bytes) = copy_dir(&*fs, &source, &arguments.destination, &mut |bytes| progress.add(bytes))?;
    progress.finish();
    let destination = arguments.destination.display();
    output.line(&format!("{destination}: {files} files, {}", size(bytes)))?;
    let object =
        json!({ "type": "copy", "path": source, "copy": arguments.destination, "files": files, "bytes": bytes });
    output.object(&object)?;
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}
