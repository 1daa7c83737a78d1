//! Batches in words.

/// The bytes of a batch's header.
const HEADER_BYTES: usize = 61;

/// The batches in the debug form of bytes, one after the other: what of their headers both brokers have to say alike.
pub(crate) fn describe(text: &str, producer: &dyn Fn(i64) -> String) -> String {
    let Some(bytes) = unquote(text) else { return text.to_owned() };
    let mut rest = &bytes[..];
    let mut all = Vec::new();
    while !rest.is_empty() {
        // Kafka fills an answer up with the beginning of the batch that comes next; clients drop it.
        let Some((batch, behind)) = split(rest) else { break };
        all.push(describe_batch(batch, producer));
        rest = behind;
    }
    format!("[{}]", all.join("; "))
}

fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let length = u32::from_be_bytes(*bytes.get(8..)?.first_chunk()?);
    let length = usize::try_from(length).ok()? + 12;
    (length >= HEADER_BYTES).then(|| bytes.split_at_checked(length)).flatten()
}

fn describe_batch(batch: &[u8], producer: &dyn Fn(i64) -> String) -> String {
    let number =
        |at: usize, bytes: usize| batch[at..at + bytes].iter().fold(0i64, |all, byte| all << 8 | i64::from(*byte));
    let (attributes, last) = (number(21, 2), number(23, 4));
    // The time of the append is each broker's own: where the topic says so, and of the ends of transactions.
    let time =
        if attributes & 0x28 == 0 { format!("{} to {}", number(27, 8), number(35, 8)) } else { "stamped".to_owned() };
    let content =
        batch[HEADER_BYTES..].iter().fold(0u32, |all, byte| all.wrapping_mul(31).wrapping_add(u32::from(*byte)));
    format!(
        "{}+{last} epoch {} magic {} attributes {attributes} time {time} producer {} {} {} count {} content {content:x}",
        number(0, 8),
        number(12, 4),
        batch[16],
        producer(number(43, 8)),
        number(51, 2),
        number(53, 4),
        number(57, 4),
    )
}

/// The bytes that `b"…"` stands for.
fn unquote(text: &str) -> Option<Vec<u8>> {
    let mut characters = text.strip_prefix("b\"")?.strip_suffix('"')?.bytes();
    let mut bytes = Vec::new();
    while let Some(byte) = characters.next() {
        bytes.push(match byte {
            b'\\' => match characters.next()? {
                b'n' => b'\n',
                b'r' => b'\r',
                b't' => b'\t',
                b'0' => 0,
                b'x' => {
                    let digits = [characters.next()?, characters.next()?];
                    u8::from_str_radix(std::str::from_utf8(&digits).ok()?, 16).ok()?
                }
                other => other,
            },
            other => other,
        });
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use highwater_storage::{BatchBuilder, Codec, Record, TimestampMs};

    use super::*;

    #[test]
    fn batches_are_told_apart() {
        let all: Vec<u8> = (0..=255).collect();
        assert_eq!(unquote(&format!("{:?}", Bytes::from(all.clone()))), Some(all));
        let mut builder = BatchBuilder::new(Codec::None).producer(4711, 1, 7);
        builder.push(Record::new(TimestampMs(5), b"one")).push(Record::new(TimestampMs(9), b"two"));
        let mut bytes = builder.build();
        bytes.extend(bytes.clone());
        bytes.truncate(bytes.len() - 1);
        let text = describe(&format!("{:?}", Bytes::from(bytes)), &|id| format!("<{id}>"));
        assert!(text.starts_with("[0+1 epoch"), "{text}");
        assert!(text.contains("time 5 to 9 producer <4711> 1 7 count 2"), "{text}");
        assert_eq!(text.matches("count").count(), 1, "{text}");
        assert_eq!(describe("null", &|id| id.to_string()), "null");
    }
}
