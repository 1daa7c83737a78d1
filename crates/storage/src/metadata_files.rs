//! Two small text files that say whose data these are: `partition.metadata` in a partition's directory and
//! `meta.properties` in a data root.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use crate::TopicId;
use crate::checkpoint::{read_small_file, replace_file};
use crate::fs::Fs;
use crate::io::IoError;

/// The name of the file in a partition's directory that holds the topic's id.
pub const PARTITION_METADATA_FILE: &str = "partition.metadata";

/// The name of the file in a data root that says which broker of which cluster it belongs to.
pub const META_PROPERTIES_FILE: &str = "meta.properties";

/// Both files have some hundred bytes; more than this is no such file.
const METADATA_BYTES_MAX: u64 = 64 << 10;

/// Why one of these files could not be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MetadataFileError {
    /// The file system said no.
    #[error(transparent)]
    Io(#[from] IoError),
    /// The content is not what the file should hold.
    #[error("{} cannot be read: {what}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        what: String,
    },
}

/// Reads the topic id from `partition.metadata` in `partition_dir`; `None` if there is no such file (as in directories of
/// Kafka before 2.8). The zero id is refused, as by Kafka (`PartitionMetadataReadBuffer`).
///
/// # Errors
/// [`MetadataFileError::Malformed`] says what is wrong with the file; else it could not be read.
pub fn read_topic_id(fs: &dyn Fs, partition_dir: &Path) -> Result<Option<TopicId>, MetadataFileError> {
    let path = partition_dir.join(PARTITION_METADATA_FILE);
    let Some(text) = read_text(fs, &path)? else { return Ok(None) };
    let field = |line: Option<&str>, name: &str| -> Result<String, MetadataFileError> {
        let value = line.and_then(|line| line.split_once(':')).filter(|(key, _)| key.trim() == name);
        let (_, value) =
            value.ok_or_else(|| malformed(&path, format!("it has no line \"{name}: ...\" in its place")))?;
        Ok(value.trim().to_owned())
    };
    let mut lines = text.lines();
    let version = field(lines.next(), "version")?;
    if version.parse::<i32>().ok().is_none_or(|version| version < 0) {
        return Err(malformed(&path, format!("version {version:?} is none")));
    }
    let topic_id = field(lines.next(), "topic_id")?;
    let topic_id: TopicId = topic_id.parse().map_err(|_| malformed(&path, format!("{topic_id:?} is no topic id")))?;
    if topic_id == TopicId::ZERO {
        return Err(malformed(&path, "the topic id is zero".to_owned()));
    }
    Ok(Some(topic_id))
}

/// Writes `partition.metadata` durably, as Kafka does: two lines, no line end after the second.
///
/// # Errors
/// If the file cannot be written durably; it is as it was then.
pub fn write_topic_id(fs: &dyn Fs, partition_dir: &Path, topic_id: TopicId) -> Result<(), IoError> {
    let text = format!("version: 0\ntopic_id: {topic_id}");
    replace_file(fs, &partition_dir.join(PARTITION_METADATA_FILE), text.as_bytes())
}

/// What `meta.properties` says (Kafka `MetaProperties`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MetaProperties {
    /// 0 (written with ZooKeeper: `broker.id`, cluster optional) or 1 (`node.id`, cluster mandatory).
    pub version: i32,
    /// `node.id`, or `broker.id` in version 0.
    pub node_id: Option<i32>,
    /// `cluster.id`.
    pub cluster_id: Option<String>,
    /// `directory.id`: the identity of this root among the broker's roots.
    pub directory_id: Option<String>,
}

/// Reads `meta.properties` of a data root; `None` if there is no such file.
///
/// # Errors
/// [`MetadataFileError::Malformed`] says what is wrong with the file; else it could not be read.
pub fn read_meta_properties(fs: &dyn Fs, root: &Path) -> Result<Option<MetaProperties>, MetadataFileError> {
    let path = root.join(META_PROPERTIES_FILE);
    let Some(text) = read_text(fs, &path)? else { return Ok(None) };
    let mut meta = MetaProperties { version: -1, node_id: None, cluster_id: None, directory_id: None };
    let mut node_id = None;
    let mut broker_id = None;
    for (key, value) in properties(&text) {
        let number = || value.parse::<i32>().map_err(|_| malformed(&path, format!("{key}={value:?} is no number")));
        match key.as_str() {
            "version" => meta.version = number()?,
            "node.id" => node_id = Some(number()?),
            "broker.id" => broker_id = Some(number()?),
            "cluster.id" => meta.cluster_id = Some(value),
            "directory.id" => meta.directory_id = Some(value),
            _ => {} // Kafka ignores what it does not know, too.
        }
    }
    match meta.version {
        0 => meta.node_id = broker_id,
        1 => {
            meta.node_id = Some(node_id.ok_or_else(|| malformed(&path, "it has no node.id".to_owned()))?);
            if meta.cluster_id.is_none() {
                return Err(malformed(&path, "it has no cluster.id".to_owned()));
            }
        }
        -1 => return Err(malformed(&path, "it has no version".to_owned())),
        version => return Err(malformed(&path, format!("version {version} is not known"))),
    }
    Ok(Some(meta))
}

/// Writes `meta.properties` of version 1 durably.
///
/// # Errors
/// If the file cannot be written durably; it is as it was then.
pub fn write_meta_properties(
    fs: &dyn Fs,
    root: &Path,
    node_id: i32,
    cluster_id: &str,
    directory_id: Option<&str>,
) -> Result<(), IoError> {
    let mut text = format!("version=1\nnode.id={node_id}\ncluster.id={}\n", escaped(cluster_id));
    if let Some(directory_id) = directory_id {
        let _ = writeln!(text, "directory.id={}", escaped(directory_id));
    }
    replace_file(fs, &root.join(META_PROPERTIES_FILE), text.as_bytes())
}

fn read_text(fs: &dyn Fs, path: &Path) -> Result<Option<String>, MetadataFileError> {
    let Some(bytes) = read_small_file(fs, path, METADATA_BYTES_MAX)? else { return Ok(None) };
    String::from_utf8(bytes).map(Some).map_err(|_| malformed(path, "it is not text".to_owned()))
}

fn malformed(path: &Path, what: String) -> MetadataFileError {
    MetadataFileError::Malformed { path: path.to_owned(), what }
}

/// The part of Java's properties format that `Properties.store` writes for such files: comments, `key=value`,
/// backslash before a character that would mean something else.
fn properties(text: &str) -> impl Iterator<Item = (String, String)> {
    text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with(['#', '!'])).map(|line| {
        let mut key = String::new();
        let mut value = String::new();
        let mut in_value = false;
        let mut characters = line.chars();
        while let Some(character) = characters.next() {
            let part = if in_value { &mut value } else { &mut key };
            match character {
                '\\' => part.extend(characters.next()),
                '=' | ':' if !in_value => in_value = true,
                _ => part.push(character),
            }
        }
        (key.trim_end().to_owned(), value.trim_start().to_owned())
    })
}

/// A value as `Properties.store` writes it.
fn escaped(value: &str) -> String {
    let mut escaped = String::with_capacity(value.len());
    for character in value.chars() {
        if matches!(character, '\\' | '=' | ':' | '#' | '!') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fs::{OpenMode, OsFs, SimFs};
    use crate::io::FileExt;

    fn sim(name: &str, content: &[u8]) -> SimFs {
        let fs = SimFs::new(1);
        let path = Path::new("/").join(name);
        fs.open(&path, OpenMode::CreateNew).unwrap().write_all_at(content, 0).unwrap();
        fs
    }

    fn recorded(name: &str) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
    }

    #[test]
    fn topic_ids_are_written_byte_for_byte_as_kafka_writes_them() {
        let partition = recorded("deleted-prefix-pending/log/delrec-pending-0");
        let kafka = std::fs::read(partition.join(PARTITION_METADATA_FILE)).unwrap();
        let topic_id = read_topic_id(&OsFs, &partition).unwrap().unwrap();
        let fs = SimFs::new(1);
        write_topic_id(&fs, Path::new("/"), topic_id).unwrap();
        assert_eq!(read_small_file(&fs, Path::new("/partition.metadata"), 1000).unwrap(), Some(kafka));
        assert_eq!(read_topic_id(&fs, Path::new("/")).unwrap(), Some(topic_id));
        assert_eq!(read_topic_id(&SimFs::new(1), Path::new("/")).unwrap(), None);
    }

    #[test]
    fn damaged_topic_ids_are_refused() {
        let id = "i5Pgc-vvT76fN57cRWnDqw";
        let read = |text: &[u8]| read_topic_id(&sim(PARTITION_METADATA_FILE, text), Path::new("/"));
        assert!(read(format!("version: 0\r\ntopic_id:   {id}\r\n").as_bytes()).unwrap().is_some());
        assert!(read(format!("version: 1\ntopic_id: {id}").as_bytes()).unwrap().is_some());
        for bad in [
            String::new(),
            "version: 0".into(),
            "version: 0\n".into(),
            format!("version: -1\ntopic_id: {id}"),
            format!("version: x\ntopic_id: {id}"),
            format!("topic_id: {id}\nversion: 0"),
            "version: 0\ntopic_id: AAAAAAAAAAAAAAAAAAAAAA".into(),
            "version: 0\ntopic_id: short".into(),
            "\0".repeat(48),
        ] {
            assert!(matches!(read(bad.as_bytes()), Err(MetadataFileError::Malformed { .. })), "{bad:?}");
        }
        assert!(read(b"\xff\xff").is_err());
        assert!(read(&vec![b' '; 70_000]).is_err());
    }

    #[test]
    fn meta_properties_of_real_brokers_are_read() {
        let meta = read_meta_properties(&OsFs, &recorded("deleted-prefix-pending/log")).unwrap().unwrap();
        assert_eq!((meta.version, meta.node_id), (1, Some(1)));
        assert_eq!(meta.cluster_id.as_deref(), Some("AAAAAAAAAAAAAAAAAAAAAQ"));
        assert_eq!(meta.directory_id.as_deref(), Some("prOBFwoNVNI2psQ11JfAtg"));
        let meta = read_meta_properties(&OsFs, &recorded("old-formats/log")).unwrap().unwrap();
        assert_eq!((meta.version, meta.node_id), (0, Some(1)));
        assert_eq!(meta.cluster_id.as_deref(), Some("S0_aPHJFQ36H4sXf7keMyQ"));
        assert_eq!(meta.directory_id, None);
    }

    #[test]
    fn meta_properties_round_trip_with_odd_cluster_ids() {
        for cluster_id in ["AAAAAAAAAAAAAAAAAAAAAQ", "a=b:c#d!e\\f", "inner space"] {
            for directory_id in [None, Some("prOBFwoNVNI2psQ11JfAtg")] {
                let fs = SimFs::new(1);
                write_meta_properties(&fs, Path::new("/"), 7, cluster_id, directory_id).unwrap();
                let meta = read_meta_properties(&fs, Path::new("/")).unwrap().unwrap();
                let expected = MetaProperties {
                    version: 1,
                    node_id: Some(7),
                    cluster_id: Some(cluster_id.into()),
                    directory_id: directory_id.map(str::to_owned),
                };
                assert_eq!(meta, expected);
            }
        }
        assert_eq!(read_meta_properties(&SimFs::new(1), Path::new("/")).unwrap(), None);
    }

    #[test]
    fn damaged_meta_properties_are_refused() {
        for bad in [
            "",
            "#only a comment\n",
            "node.id=1\ncluster.id=x\n",
            "version=1\ncluster.id=x\n",
            "version=1\nnode.id=1\n",
            "version=2\nnode.id=1\ncluster.id=x\n",
            "version=one\n",
            "version=1\nnode.id=99999999999\ncluster.id=x\n",
            "version=-1\n",
        ] {
            let read = read_meta_properties(&sim(META_PROPERTIES_FILE, bad.as_bytes()), Path::new("/"));
            assert!(matches!(read, Err(MetadataFileError::Malformed { .. })), "{bad:?}");
        }
        let bare = read_meta_properties(&sim(META_PROPERTIES_FILE, b"version=0\n"), Path::new("/")).unwrap().unwrap();
        assert_eq!((bare.node_id, bare.cluster_id), (None, None));
    }
}
