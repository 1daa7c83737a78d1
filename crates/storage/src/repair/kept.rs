//! What a file was before it is made anew stays under another name.

use std::io;
use std::path::{Path, PathBuf};

use crate::checkpoint::{parent_of, sync_parent, temporary_path};
use crate::fs::{File, Fs, OpenMode};
use crate::io::{FileExt, IoContext, IoError};
use crate::names::ReplacedFileName;

use super::data::{CHUNK_BYTES, append};

/// Copies a file to a name of its own beside it, durably, and returns that name. `None` if there is no such file. An
/// interrupted repair may have kept it already; it is kept once.
pub(super) fn keep(fs: &dyn Fs, path: &Path) -> Result<Option<PathBuf>, IoError> {
    let file = match fs.open(path, OpenMode::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        opened => opened.context("open", path)?,
    };
    let len = file.metadata().context("read metadata of", path)?.len;
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    for again in 0u32.. {
        let aside = parent_of(path).join(ReplacedFileName { name, again }.to_string());
        match fs.open(&aside, OpenMode::Read) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => {
                let kept = opened.context("open", &aside)?;
                if is_same(&*file, &*kept, len).context("read", &aside)? {
                    return Ok(Some(aside));
                }
                continue;
            }
        }
        // Of a name that the next opening removes, and a later repair overwrites.
        let temporary = temporary_path(path);
        let written = write(fs, &*file, len, &temporary);
        if let Err(error) = written {
            // On a full disk it would take the room that is missing. The first error is the one to tell.
            let _ = fs.remove_file(&temporary);
            return Err(error);
        }
        fs.rename(&temporary, &aside).context("rename to its final name", &temporary)?;
        sync_parent(fs, path)?;
        return Ok(Some(aside));
    }
    unreachable!("no directory holds 2^32 files")
}

fn write(fs: &dyn Fs, file: &dyn File, len: u64, to: &Path) -> Result<(), IoError> {
    let copy = fs.open(to, OpenMode::Truncate).context("create", to)?;
    append(file, 0..len, &*copy, 0).context("write", to)?;
    copy.sync_data().context("sync", to)
}

fn is_same(one: &dyn File, other: &dyn File, len: u64) -> io::Result<bool> {
    if other.metadata()?.len != len {
        return Ok(false);
    }
    let (mut here, mut there) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
    let mut at = 0;
    while at < len {
        let read = one.read_full_at(&mut here, at)?;
        if read == 0 || other.read_full_at(&mut there, at)? != read || here.get(..read) != there.get(..read) {
            return Ok(false);
        }
        at += read as u64;
    }
    Ok(true)
}
