//! How bytes, sizes and tables are shown.

use serde_json::{Value, json};

/// Bytes as text, if they are UTF-8 without control characters, else escaped.
pub(crate) fn escaped(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut shown = String::with_capacity(bytes.len() + 2);
    for chunk in bytes.utf8_chunks() {
        for character in chunk.valid().chars() {
            match character {
                '\\' => shown.push_str("\\\\"),
                '\n' => shown.push_str("\\n"),
                '\r' => shown.push_str("\\r"),
                '\t' => shown.push_str("\\t"),
                character if character.is_control() => {
                    let _ = write!(shown, "\\u{{{:x}}}", u32::from(character));
                }
                character => shown.push(character),
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(shown, "\\x{byte:02x}");
        }
    }
    shown
}

/// Bytes for machines: null, a string, or `{"base64": …}` where they are no UTF-8.
pub(crate) fn json_bytes(bytes: Option<&[u8]>) -> Value {
    match bytes.map(|bytes| (bytes, std::str::from_utf8(bytes))) {
        None => Value::Null,
        Some((_, Ok(text))) => json!(text),
        Some((bytes, Err(_))) => json!({ "base64": base64(bytes) }),
    }
}

fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut encoded = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let [a, b, c] = [0, 1, 2].map(|at| u32::from(chunk.get(at).copied().unwrap_or(0)));
        let group = a << 16 | b << 8 | c;
        for digit in 0..4 {
            let six = (group >> (18 - 6 * digit)) & 63;
            encoded.push(if digit <= chunk.len() { char::from(ALPHABET[six as usize]) } else { '=' });
        }
    }
    encoded
}

/// A number of things, each with the word for one of them and for more.
pub(crate) fn counted(count: u64, one: &str, more: &str) -> String {
    format!("{count} {}", if count == 1 { one } else { more })
}

/// A size for people.
pub(crate) fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} {}", UNITS[0]) } else { format!("{value:.1} {}", UNITS[unit]) }
}

/// Columns padded to their widest cell; numbers to the right.
pub(crate) fn aligned(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let column = |index: usize| rows.iter().filter_map(move |row| row.get(index));
    let widths: Vec<usize> =
        (0..columns).map(|index| column(index).map(|cell| cell.chars().count()).max().unwrap_or(0)).collect();
    let is_number = |cell: &String| cell == "-" || cell.bytes().all(|byte| byte.is_ascii_digit());
    let numeric: Vec<bool> = (0..columns).map(|index| column(index).skip(1).all(is_number)).collect();
    let line = |row: &Vec<String>| {
        let cells = row.iter().zip(&widths).zip(&numeric).map(|((cell, &width), &numeric)| {
            if numeric { format!("{cell:>width$}") } else { format!("{cell:<width$}") }
        });
        cells.collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_shown_whatever_they_are() {
        assert_eq!(escaped("höh\\e".as_bytes()), "höh\\\\e");
        assert_eq!(escaped(b"a\n\x00\xff\xc3"), "a\\n\\u{0}\\xff\\xc3");
        assert_eq!(json_bytes(None), Value::Null);
        assert_eq!(json_bytes(Some(b"\x00a")), json!("\u{0}a"));
        for (bytes, encoded) in [(&b"\xff"[..], "/w=="), (b"\xff\xfe", "//4="), (b"\xff\xfe\xfd", "//79")] {
            assert_eq!(json_bytes(Some(bytes)), json!({ "base64": encoded }));
        }
    }

    #[test]
    fn sizes_and_tables_read_well() {
        assert_eq!((size(0), size(1023), size(1536)), ("0 bytes".into(), "1023 bytes".into(), "1.5 KiB".into()));
        let rows = [["A", "N"], ["long", "5"], ["b", "100"]].map(|row| row.map(str::to_owned).to_vec());
        assert_eq!(aligned(&rows), ["A       N", "long    5", "b     100"]);
    }
}
