//! The bare copy: files read here, sent over a loopback connection, and written there.

use std::fs::File;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};

/// One read, one write. Larger ones were no faster: they leave the processor's cache.
const CHUNK_BYTES: usize = 256 << 10;

/// Copies files below a new directory, and says how long it took.
pub(super) fn copy(files: &[(PathBuf, u64)], to: &Path) -> anyhow::Result<Duration> {
    std::fs::create_dir(to).with_context(|| format!("cannot make {}", to.display()))?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
    let address = listener.local_addr()?;
    let since = Instant::now();
    let (sent, received) = std::thread::scope(|scope| {
        let sending = scope.spawn(|| send(TcpStream::connect(address)?, files));
        let receiving = scope.spawn(|| receive(listener.accept()?.0, files, to));
        (sending.join().expect("sending does not panic"), receiving.join().expect("receiving does not panic"))
    });
    let took = since.elapsed();
    sent.context("cannot send the bare copy")?;
    received.context("cannot receive the bare copy")?;
    for (number, (file, bytes)) in files.iter().enumerate() {
        let copied = to.join(number.to_string()).metadata()?.len();
        ensure!(copied == *bytes, "{}: {copied} bytes arrived", file.display());
    }
    Ok(took)
}

fn send(mut stream: TcpStream, files: &[(PathBuf, u64)]) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    for (path, bytes) in files {
        let mut file = File::open(path)?.take(*bytes);
        loop {
            let read = file.read(&mut chunk)?;
            if read == 0 {
                break;
            }
            stream.write_all(&chunk[..read])?;
        }
    }
    Ok(())
}

fn receive(mut stream: TcpStream, files: &[(PathBuf, u64)], to: &Path) -> io::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    for (number, (_, bytes)) in files.iter().enumerate() {
        let mut file = File::create_new(to.join(number.to_string()))?;
        let mut left = *bytes;
        while left > 0 {
            let most = CHUNK_BYTES.min(usize::try_from(left).unwrap_or(CHUNK_BYTES));
            let read = stream.read(&mut chunk[..most])?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            file.write_all(&chunk[..read])?;
            left -= read as u64;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_arrive_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let contents: Vec<Vec<u8>> = [0, 1, CHUNK_BYTES, CHUNK_BYTES + 1].map(|bytes| vec![bytes as u8; bytes]).into();
        let mut files = Vec::new();
        for (number, content) in contents.iter().enumerate() {
            let path = dir.path().join(format!("from-{number}"));
            std::fs::write(&path, content).unwrap();
            files.push((path, content.len() as u64));
        }
        let to = dir.path().join("to");
        copy(&files, &to).unwrap();
        for (number, content) in contents.iter().enumerate() {
            assert_eq!(&std::fs::read(to.join(number.to_string())).unwrap(), content);
        }
    }
}
