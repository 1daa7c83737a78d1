//! The simulated file system against the real one: equal calls get equal answers.
//!
//! A simulator that is kinder or stricter than the disk makes every crash test built on it worthless, so the two are held
//! to each other with lists of random calls.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use highwater_storage::fs::{File, FileKind, Fs, OpenMode, OsFs, SimFs};
use highwater_storage::io::FileExt;
use proptest::prelude::*;

/// Two directories with three names each are enough for every collision.
#[derive(Clone, Debug)]
enum Step {
    Open { path: usize, mode: OpenMode },
    Write { file: usize, position: u16, bytes: Vec<u8> },
    Read { file: usize, position: u16, len: u8 },
    SetLen { file: usize, len: u16 },
    Sync { file: usize },
    Inspect { file: usize },
    Rename { from: usize, to: usize },
    Link { from: usize, to: usize },
    Remove { path: usize },
    CreateDir { path: usize },
    RemoveDir { path: usize },
    ReadDir { path: usize },
    SyncDir { path: usize },
    Look { path: usize },
}

const PATHS: [&str; 8] = ["d", "e", "d/a", "d/b", "d/c", "e/a", "d/a/x", "missing/a"];

fn step() -> impl Strategy<Value = Step> {
    let path = || 0..PATHS.len();
    let file = || 0..4usize;
    let mode = prop_oneof![
        Just(OpenMode::Read),
        Just(OpenMode::ReadWrite),
        Just(OpenMode::CreateNew),
        Just(OpenMode::Truncate)
    ];
    let bytes = proptest::collection::vec(any::<u8>(), 0..40);
    prop_oneof![
        4 => (path(), mode).prop_map(|(path, mode)| Step::Open { path, mode }),
        4 => (file(), 0..600u16, bytes).prop_map(|(file, position, bytes)| Step::Write { file, position, bytes }),
        2 => (file(), 0..700u16, any::<u8>()).prop_map(|(file, position, len)| Step::Read { file, position, len }),
        1 => (file(), 0..700u16).prop_map(|(file, len)| Step::SetLen { file, len }),
        1 => file().prop_map(|file| Step::Sync { file }),
        1 => file().prop_map(|file| Step::Inspect { file }),
        3 => (path(), path()).prop_map(|(from, to)| Step::Rename { from, to }),
        1 => (path(), path()).prop_map(|(from, to)| Step::Link { from, to }),
        2 => path().prop_map(|path| Step::Remove { path }),
        2 => path().prop_map(|path| Step::CreateDir { path }),
        1 => path().prop_map(|path| Step::RemoveDir { path }),
        1 => path().prop_map(|path| Step::ReadDir { path }),
        1 => path().prop_map(|path| Step::SyncDir { path }),
        1 => path().prop_map(|path| Step::Look { path }),
    ]
}

/// One of the two, with its open files.
struct Side {
    fs: Arc<dyn Fs>,
    root: PathBuf,
    open: Vec<Arc<dyn File>>,
}

impl Side {
    fn path(&self, path: usize) -> PathBuf {
        self.root.join(PATHS[path])
    }

    fn file(&self, file: usize) -> Option<&Arc<dyn File>> {
        self.open.get(self.open.len().checked_sub(file + 1)?)
    }

    /// What the call answered, as text. Which error it was is not compared, except where programs ask for it.
    fn run(&mut self, step: &Step) -> String {
        let outcome = self.try_run(step);
        match outcome {
            Ok(answer) => answer,
            Err(error) if error.kind() == io::ErrorKind::NotFound => "not found".to_owned(),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => "exists".to_owned(),
            Err(_) => "refused".to_owned(),
        }
    }

    fn try_run(&mut self, step: &Step) -> io::Result<String> {
        let nothing = || Ok("no file".to_owned());
        let done = |result: io::Result<()>| result.map(|()| "done".to_owned());
        match step {
            Step::Open { path, mode } => {
                let file = self.fs.open(&self.path(*path), *mode)?;
                self.open.push(file);
                Ok("opened".to_owned())
            }
            Step::Write { file, position, bytes } => {
                let Some(file) = self.file(*file) else { return nothing() };
                done(file.write_all_at(bytes, u64::from(*position)))
            }
            Step::Read { file, position, len } => {
                let Some(file) = self.file(*file) else { return nothing() };
                let mut buffer = vec![0; usize::from(*len)];
                let count = file.read_full_at(&mut buffer, u64::from(*position))?;
                Ok(format!("{:?}", &buffer[..count]))
            }
            Step::SetLen { file, len } => {
                let Some(file) = self.file(*file) else { return nothing() };
                done(file.set_len(u64::from(*len)))
            }
            Step::Sync { file } => {
                let Some(file) = self.file(*file) else { return nothing() };
                done(file.sync_data())
            }
            Step::Inspect { file } => {
                let Some(file) = self.file(*file) else { return nothing() };
                let metadata = file.metadata()?;
                Ok(format!("{:?} {} {}", metadata.kind, metadata.len, metadata.links))
            }
            Step::Rename { from, to } => done(self.fs.rename(&self.path(*from), &self.path(*to))),
            Step::Link { from, to } => done(self.fs.hard_link(&self.path(*from), &self.path(*to))),
            Step::Remove { path } => done(self.fs.remove_file(&self.path(*path))),
            Step::CreateDir { path } => done(self.fs.create_dir(&self.path(*path))),
            Step::RemoveDir { path } => done(self.fs.remove_dir(&self.path(*path))),
            Step::ReadDir { path } => {
                let mut entries = self.fs.read_dir(&self.path(*path))?;
                entries.sort_by(|one, other| one.name.cmp(&other.name));
                Ok(format!("{entries:?}"))
            }
            Step::SyncDir { path } => done(self.fs.sync_dir(&self.path(*path))),
            Step::Look { path } => {
                let metadata = self.fs.metadata(&self.path(*path))?;
                // Directories have lengths and link counts of their own on each file system.
                let file = (metadata.kind == FileKind::File).then_some((metadata.len, metadata.links));
                Ok(format!("{:?} {file:?}", metadata.kind))
            }
        }
    }
}

/// Renames between directories are outside of the simulator's model, which refuses them.
fn is_modelled(step: &Step) -> bool {
    match step {
        Step::Rename { from, to } => Path::new(PATHS[*from]).parent() == Path::new(PATHS[*to]).parent(),
        _ => true,
    }
}

/// Every file's content by path.
fn tree(fs: &dyn Fs, directory: &Path, below: &Path, into: &mut BTreeMap<PathBuf, Vec<u8>>) {
    for entry in fs.read_dir(directory).unwrap() {
        let (path, name) = (directory.join(&entry.name), below.join(&entry.name));
        if entry.kind == FileKind::Directory {
            into.insert(name.clone(), b"directory".to_vec());
            tree(fs, &path, &name, into);
        } else {
            let file = fs.open(&path, OpenMode::Read).unwrap();
            let mut bytes = vec![0; file.metadata().unwrap().len as usize];
            file.read_exact_at(&mut bytes, 0).unwrap();
            into.insert(name, bytes);
        }
    }
}

fn content(side: &Side) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut content = BTreeMap::new();
    tree(&*side.fs, &side.root, Path::new(""), &mut content);
    content
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 150, ..ProptestConfig::default() })]

    #[test]
    fn equal_calls_get_equal_answers(steps in proptest::collection::vec(step(), 1..60), seed: u64) {
        let directory = tempfile::tempdir().unwrap();
        let sim = SimFs::new(seed);
        sim.shorten(4);
        let mut real = Side { fs: OsFs::shared(), root: directory.path().to_owned(), open: Vec::new() };
        let mut simulated = Side { fs: Arc::new(sim.clone()), root: PathBuf::from("/"), open: Vec::new() };
        for side in [&mut real, &mut simulated] {
            side.run(&Step::CreateDir { path: 0 });
            side.run(&Step::CreateDir { path: 1 });
        }
        for step in steps.iter().filter(|step| is_modelled(step)) {
            prop_assert_eq!(simulated.run(step), real.run(step), "{:?}", step);
        }
        prop_assert_eq!(content(&simulated), content(&real));

        // What a crash of the process leaves is what was there, and after a sync of everything no power cut changes it.
        let before = content(&simulated);
        let image = |fs: SimFs| content(&Side { fs: Arc::new(fs), root: PathBuf::from("/"), open: Vec::new() });
        prop_assert_eq!(image(sim.process_crash_image()), before.clone());
        let images = sim.images(12, seed);
        prop_assert!(images.len() <= 12);
        for one in images {
            let found = image(one.clone());
            prop_assert_eq!(image(one.images(5, seed).remove(0)), found, "an image has nothing pending");
        }
        sim.sync_everything();
        prop_assert_eq!(image(sim.images(12, seed).remove(0)), before);
    }
}
