//! Produce 0 to 2, which are advertised for librdkafka's sake and refused: every partition gets error 35.
//!
//! The protocol crate knows these versions no more, so the names and numbers are read here, after the walk has found the
//! body to be well-formed.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::{Close, ErrorCode};

/// The body of the answer in `version` (0, 1 or 2). Nothing for acks=0, which has none: the connection is closed, as
/// Kafka does for any failure of such a request.
pub(crate) fn answer(mut body: Bytes, version: i16) -> Result<BytesMut, Close> {
    let malformed = |_| Close::because("a malformed Produce request");
    if body.try_get_i16().map_err(malformed)? == 0 {
        return Err(Close::because(format!("Produce version {version} is not supported")));
    }
    body.try_get_i32().map_err(malformed)?;
    let mut response = BytesMut::new();
    let topics = body.try_get_i32().map_err(malformed)?;
    response.put_i32(topics);
    for _ in 0..topics {
        let name_bytes = body.try_get_u16().map_err(malformed)?;
        response.put_u16(name_bytes);
        response.put_slice(&take(&mut body, usize::from(name_bytes))?);
        let partitions = body.try_get_i32().map_err(malformed)?;
        response.put_i32(partitions);
        for _ in 0..partitions {
            response.put_i32(body.try_get_i32().map_err(malformed)?);
            response.put_i16(ErrorCode::UnsupportedVersion.into());
            response.put_i64(-1);
            if version >= 2 {
                response.put_i64(-1);
            }
            let records = body.try_get_i32().map_err(malformed)?;
            take(&mut body, usize::try_from(records).unwrap_or(0))?;
        }
    }
    if version >= 1 {
        response.put_i32(0);
    }
    Ok(response)
}

fn take(body: &mut Bytes, bytes: usize) -> Result<Bytes, Close> {
    if bytes > body.len() { Err(Close::because("a malformed Produce request")) } else { Ok(body.split_to(bytes)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(acks: i16) -> Bytes {
        let mut body = BytesMut::new();
        body.put_i16(acks);
        body.put_i32(1000);
        body.put_i32(1);
        body.put_i16(5);
        body.put_slice(b"books");
        body.put_i32(2);
        for (partition, records) in [(7, &b"abc"[..]), (8, b"")] {
            body.put_i32(partition);
            body.put_i32(records.len() as i32);
            body.put_slice(records);
        }
        body.freeze()
    }

    #[test]
    fn each_partition_is_refused_in_the_version_asked() {
        for (version, partition_bytes, tail) in [(0, 14, 0), (1, 14, 4), (2, 22, 4)] {
            let response = answer(request(1), version).unwrap();
            assert_eq!(response.len(), 4 + 7 + 4 + 2 * partition_bytes + tail);
            assert_eq!(response[15..21], [0, 0, 0, 7, 0, 35]);
            assert_eq!(response[15 + partition_bytes..21 + partition_bytes], [0, 0, 0, 8, 0, 35]);
        }
    }

    #[test]
    fn nothing_is_answered_without_acks_and_nothing_is_trusted() {
        assert!(answer(request(0), 2).is_err());
        for end in 0..request(1).len() {
            assert!(answer(request(1).slice(..end), 2).is_err(), "{end}");
        }
    }
}
