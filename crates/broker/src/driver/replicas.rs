//! The files of a partition's replicas, compared.

use std::path::{Path, PathBuf};

use anyhow::{Context, ensure};
use highwater_storage::batches;

/// Compares the partition's files of all replicas, batch for batch, below `high_watermark`. Each batch must be the same
/// bytes, its leader epoch included. Returns how many batches were compared.
pub(crate) fn compare_logs(replicas: &[(String, PathBuf)], high_watermark: i64) -> anyhow::Result<usize> {
    let mut logs = Vec::new();
    for (name, dir) in replicas {
        logs.push((name, read_log(dir)?));
    }
    let Some((reference, rest)) = logs.split_first() else { return Ok(0) };
    let all: Vec<_> = batches(&reference.1).collect::<Result<_, _>>().context(reference.0.clone())?;
    let committed: Vec<_> = all.iter().take_while(|batch| batch.last_offset().0 < high_watermark).collect();
    for (name, log) in rest {
        let mut theirs = batches(log);
        for ours in &committed {
            let offset = ours.base_offset();
            let their = theirs.next().with_context(|| format!("offset {offset}: {name} ends there"))?;
            let their = their.with_context(|| format!("offset {offset}: {name}"))?;
            ensure!(ours.bytes() == their.bytes(), "offset {offset}: {name} differs from {}", reference.0);
        }
    }
    let end = committed.last().map_or(0, |batch| batch.last_offset().0 + 1);
    ensure!(end == high_watermark, "offset {end}: {} has no batch there, below the high watermark", reference.0);
    Ok(committed.len())
}

/// All data files of a partition, one after the other.
fn read_log(dir: &Path) -> anyhow::Result<Vec<u8>> {
    let cannot_read = || format!("cannot read {}", dir.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(dir).with_context(cannot_read)? {
        let path = entry.with_context(cannot_read)?.path();
        if path.extension().is_some_and(|extension| extension == "log") {
            files.push(path);
        }
    }
    files.sort();
    let mut log = Vec::new();
    for path in files {
        log.extend(std::fs::read(&path).with_context(|| format!("cannot read {}", path.display()))?);
    }
    Ok(log)
}
