//! Records that come out of a decompressor: looked at, and copied, without ever being in memory as a whole.

use std::io::{self, BufRead, Write};

use super::offset_map::{KeyHash, KeyHasher};
use crate::record::{RecordFault, RecordView, WalkError, varint, varlong, write_varint, write_varlong};

/// What compaction looks at of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) offset_delta: i32,
    pub(crate) timestamp_delta: i64,
    pub(crate) key: Option<KeyHash>,
    pub(crate) has_value: bool,
}

/// See the module. Memory is the reader's buffer, however long a record is.
pub(crate) struct RecordReader<R> {
    reader: R,
}

impl<R: BufRead> RecordReader<R> {
    pub(crate) fn new(reader: R) -> Self {
        Self { reader }
    }

    /// Passes over the next record.
    pub(crate) fn look(&mut self) -> Result<Seen, WalkError> {
        let buffer = self.reader.fill_buf().map_err(WalkError::Read)?;
        let mut rest = buffer;
        match RecordView::parse(&mut rest) {
            Ok(record) => {
                let RecordView { offset_delta, timestamp_delta, key, value, .. } = record;
                let seen =
                    Seen { offset_delta, timestamp_delta, key: key.map(KeyHash::of), has_value: value.is_some() };
                let used = buffer.len() - rest.len();
                self.reader.consume(used);
                Ok(seen)
            }
            // It goes on past the buffer.
            Err(RecordFault::Short) => self.look_piecewise(),
            Err(fault) => Err(fault.into()),
        }
    }

    fn look_piecewise(&mut self) -> Result<Seen, WalkError> {
        let mut fields = self.fields()?;
        fields.byte()?;
        let timestamp_delta = varlong(|| fields.byte())?;
        let offset_delta = varint(|| fields.byte())?;
        let key = match fields.length()? {
            None => None,
            Some(length) => {
                let mut hasher = KeyHasher::default();
                fields.pass(length, |piece| {
                    hasher.write(piece);
                    Ok(())
                })?;
                Some(hasher.finish())
            }
        };
        let value = fields.length()?;
        fields.pass(value.unwrap_or(0), |_| Ok(()))?;
        // The headers are bytes to compaction.
        fields.pass(fields.left, |_| Ok(()))?;
        Ok(Seen { offset_delta, timestamp_delta, key, has_value: value.is_some() })
    }

    /// Passes over the next record without looking at it.
    pub(crate) fn skip(&mut self) -> Result<(), WalkError> {
        let mut fields = self.fields()?;
        fields.pass(fields.left, |_| Ok(()))
    }

    /// Writes the next record to `out`, its timestamp's distance to the batch's changed by `shift`. Returns what it was.
    pub(crate) fn copy(&mut self, shift: i64, out: &mut dyn Write) -> Result<i64, WalkError> {
        let mut fields = self.fields()?;
        let mut head = vec![fields.byte()?];
        let timestamp_delta = varlong(|| fields.byte())?;
        write_varlong(&mut head, timestamp_delta.wrapping_add(shift));
        let length = u64::try_from(head.len()).unwrap_or(0) + fields.left;
        let mut prefix = Vec::new();
        write_varint(&mut prefix, i32::try_from(length).map_err(|_| RecordFault::Length)?);
        out.write_all(&prefix).map_err(WalkError::Read)?;
        out.write_all(&head).map_err(WalkError::Read)?;
        fields.pass(fields.left, |piece| out.write_all(piece))?;
        Ok(timestamp_delta)
    }

    /// Whether all bytes were passed.
    pub(crate) fn at_end(&mut self) -> Result<bool, WalkError> {
        Ok(self.reader.fill_buf().map_err(WalkError::Read)?.is_empty())
    }

    /// The fields of the next record, behind its length.
    fn fields(&mut self) -> Result<Fields<'_, R>, WalkError> {
        let reader = &mut self.reader;
        let length = varint(|| next_byte(reader))?;
        let left = u64::try_from(length).map_err(|_| RecordFault::NegativeLength)?;
        Ok(Fields { reader, left })
    }
}

/// What is left of one record.
struct Fields<'r, R> {
    reader: &'r mut R,
    left: u64,
}

impl<R: BufRead> Fields<'_, R> {
    fn byte(&mut self) -> Result<u8, WalkError> {
        self.left = self.left.checked_sub(1).ok_or(RecordFault::Length)?;
        next_byte(self.reader)
    }

    /// A length; none for null.
    fn length(&mut self) -> Result<Option<u64>, WalkError> {
        match varint(|| self.byte())? {
            -1 => Ok(None),
            length => Ok(Some(u64::try_from(length).map_err(|_| RecordFault::NegativeLength)?)),
        }
    }

    /// Hands over the next `count` bytes, piece by piece.
    fn pass(&mut self, count: u64, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> Result<(), WalkError> {
        self.left = self.left.checked_sub(count).ok_or(RecordFault::Length)?;
        let mut count = count;
        while count > 0 {
            let buffer = self.reader.fill_buf().map_err(WalkError::Read)?;
            let step = usize::try_from(count).unwrap_or(usize::MAX).min(buffer.len());
            let piece = buffer.get(..step).filter(|piece| !piece.is_empty()).ok_or(RecordFault::Short)?;
            take(piece).map_err(WalkError::Read)?;
            self.reader.consume(step);
            count -= step as u64;
        }
        Ok(())
    }
}

fn next_byte<R: BufRead>(reader: &mut R) -> Result<u8, WalkError> {
    let first = *reader.fill_buf().map_err(WalkError::Read)?.first().ok_or(RecordFault::Short)?;
    reader.consume(1);
    Ok(first)
}

#[cfg(test)]
mod tests {
    use std::io::BufReader;

    use super::*;
    use crate::batch::BatchView;
    use crate::builder::{BatchBuilder, Record};
    use crate::{Codec, TimestampMs};

    fn records() -> Vec<u8> {
        let mut builder = BatchBuilder::new(Codec::None);
        let headers = [("name", Some(b"value".as_slice())), ("", None)];
        let long = vec![7; 300];
        for (at, (key, value)) in [
            (Some(b"key".as_slice()), Some(b"value".as_slice())),
            (None, Some(&long)),
            (Some(&long), None),
            (Some(b""), Some(b"")),
        ]
        .into_iter()
        .enumerate()
        {
            let timestamp = TimestampMs(1000 - 300 * at as i64);
            builder.push(Record { timestamp, key, value, headers: &headers });
        }
        BatchView::parse(&builder.build()).unwrap().0.records_bytes().to_vec()
    }

    #[test]
    fn a_record_is_seen_the_same_whatever_the_buffer_and_copied_with_its_time_moved() {
        let bytes = records();
        let all = |capacity: usize| {
            let mut reader = RecordReader::new(BufReader::with_capacity(capacity, &*bytes));
            let seen: Vec<Seen> = (0..4).map(|_| reader.look().unwrap()).collect();
            assert!(reader.at_end().unwrap());
            seen
        };
        let seen = all(1 << 16);
        assert_eq!(seen.iter().map(|seen| seen.timestamp_delta).collect::<Vec<_>>(), [0, -300, -600, -900]);
        assert_eq!(seen.iter().map(|seen| seen.has_value).collect::<Vec<_>>(), [true, true, false, true]);
        assert_eq!(seen[0].key, Some(KeyHash::of(b"key")));
        assert_eq!((seen[1].key, seen[2].key), (None, Some(KeyHash::of(&[7; 300]))));
        for capacity in [1, 2, 3, 7, 100, 311] {
            assert_eq!(all(capacity), seen, "{capacity}");
            for shift in [0, 1, -1, 1 << 40] {
                let mut reader = RecordReader::new(BufReader::with_capacity(capacity, &*bytes));
                let mut out = Vec::new();
                reader.copy(shift, &mut out).unwrap();
                reader.skip().unwrap();
                reader.copy(shift, &mut out).unwrap();
                reader.copy(shift, &mut out).unwrap();
                assert!(reader.at_end().unwrap());
                let mut copied = RecordReader::new(&*out);
                for expected in [seen[0], seen[2], seen[3]] {
                    let shifted = Seen { timestamp_delta: expected.timestamp_delta + shift, ..expected };
                    assert_eq!(copied.look().unwrap(), shifted);
                }
                assert!(copied.at_end().unwrap());
            }
        }
    }

    #[test]
    fn bytes_that_are_no_records_are_refused_and_never_loop() {
        let bytes = records();
        for cut in 0..bytes.len() {
            let mut reader = RecordReader::new(BufReader::with_capacity(5, &bytes[..cut]));
            let mut looked = 0;
            while reader.look().is_ok() {
                looked += 1;
            }
            assert!(looked < 4, "{cut}");
            let mut reader = RecordReader::new(&bytes[..cut]);
            let mut copied = 0;
            while reader.copy(0, &mut Vec::new()).is_ok() {
                copied += 1;
            }
            assert_eq!(copied, looked, "{cut}");
        }
    }
}
