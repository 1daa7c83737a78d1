//! Values as Kafka's `ConfigDef` reads them: trimmed, booleans in any case, bounds included.

use std::fmt::Display;

use super::ListenAddress;

/// An integer in `[low, high]`, converted to the field's type.
pub(super) fn number<T: TryFrom<i64>>(text: &str, low: i64, high: i64) -> Result<T, String> {
    let text = text.trim();
    let value: i64 = text.parse().map_err(|_| format!("{text:?} is no whole number"))?;
    if value < low || value > high {
        return Err(format!("{value} is outside {low}..={high}"));
    }
    T::try_from(value).map_err(|_| format!("{value} is out of range"))
}

/// A number in `[low, high]` that may have a fraction.
pub(super) fn fraction(text: &str, low: f64, high: f64) -> Result<f64, String> {
    let text = text.trim();
    let value: f64 = text.parse().map_err(|_| format!("{text:?} is no number"))?;
    if value >= low && value <= high { Ok(value) } else { Err(format!("{value} is outside {low}..={high}")) }
}

/// `true` or `false` in any case.
pub(super) fn boolean(text: &str) -> Result<bool, String> {
    let text = text.trim();
    if text.eq_ignore_ascii_case("true") {
        Ok(true)
    } else if text.eq_ignore_ascii_case("false") {
        Ok(false)
    } else {
        Err(format!("{text:?} is neither true nor false"))
    }
}

/// One of a few words.
pub(super) fn one_of<'a>(text: &'a str, words: &[&str]) -> Result<&'a str, String> {
    let text = text.trim();
    if words.contains(&text) { Ok(text) } else { Err(format!("{text:?} is not one of {}", words.join(", "))) }
}

/// One entry of `listeners`: `PLAINTEXT://host:port`, also `host:port` as the command line takes it.
pub(super) fn listener(text: &str) -> Result<ListenAddress, String> {
    let text = text.trim();
    if text.contains(',') {
        return Err("more than one listener is not supported yet: give one PLAINTEXT listener".to_owned());
    }
    let address = match text.split_once("://") {
        None => text,
        Some((name, address)) if name.eq_ignore_ascii_case("PLAINTEXT") => address,
        Some((name, _)) => return Err(format!("listener {name:?} is not supported yet: use PLAINTEXT://HOST:PORT")),
    };
    let (host, port) = address.rsplit_once(':').ok_or_else(|| format!("{text:?} has no port: HOST:PORT"))?;
    let host = match host.strip_prefix('[') {
        Some(inner) => inner.strip_suffix(']').ok_or_else(|| format!("{text:?} lacks a closing bracket"))?,
        None if host.contains(':') => return Err(format!("{text:?}: write an IPv6 address as [ADDRESS]:PORT")),
        None => host,
    };
    let port = port.parse().map_err(|_| format!("{port:?} is no port: 0 to 65535"))?;
    Ok(ListenAddress { host: host.to_owned(), port })
}

/// A single directory. Kafka takes a list; one is what this broker serves so far.
pub(super) fn directory(text: &str) -> Result<std::path::PathBuf, String> {
    let text = text.trim();
    if text.is_empty() {
        Err("is empty: give a directory".to_owned())
    } else if text.contains(',') {
        Err("more than one data directory is not supported yet: give one".to_owned())
    } else {
        Ok(text.into())
    }
}

/// Prints a value the way [`listener`] reads it.
pub(super) fn show_listener(address: &ListenAddress) -> String {
    if address.host.contains(':') {
        format!("PLAINTEXT://[{}]:{}", address.host, address.port)
    } else {
        format!("PLAINTEXT://{}:{}", address.host, address.port)
    }
}

/// Prints a value by its `Display`.
pub(super) fn show(value: impl Display) -> String {
    value.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_bounds() {
        assert_eq!(number::<u32>(" 14 ", 14, 100), Ok(14));
        assert!(number::<u32>("13", 14, 100).unwrap_err().contains("13 is outside 14..=100"));
        assert!(number::<u32>("x", 0, 1).unwrap_err().contains("no whole number"));
        assert!(number::<u8>("300", 0, 1000).is_err());
        assert_eq!(fraction("0.5", 0.0, 1.0), Ok(0.5));
        assert!(fraction("NaN", 0.0, 1.0).is_err());
        assert_eq!(boolean("TRUE"), Ok(true));
        assert!(boolean("yes").is_err());
    }

    #[test]
    fn listeners_are_read_as_kafka_writes_them() {
        let address = |host: &str, port| Ok(ListenAddress { host: host.to_owned(), port });
        assert_eq!(listener("PLAINTEXT://127.0.0.1:9092"), address("127.0.0.1", 9092));
        assert_eq!(listener("PLAINTEXT://:9092"), address("", 9092));
        assert_eq!(listener("localhost:0"), address("localhost", 0));
        assert_eq!(listener("PLAINTEXT://[::1]:9092"), address("::1", 9092));
        for bad in ["SSL://a:1", "a", "a:b", "a:65536", "::1:9092", "[::1:9092", "PLAINTEXT://a:1,PLAINTEXT://b:2"] {
            assert!(listener(bad).is_err(), "{bad}");
        }
        for good in ["PLAINTEXT://[::1]:1", "PLAINTEXT://h:2", "PLAINTEXT://:3"] {
            assert_eq!(listener(good).map(|address| show_listener(&address)), Ok(good.to_owned()));
        }
    }
}
