//! The requests among the bytes of a connection, as far as the answers need them.

use std::collections::VecDeque;

use bytes::{Buf, Bytes};

/// A request, as its header says.
pub(super) struct Asked {
    pub(super) api: i16,
    pub(super) version: i16,
    pub(super) correlation_id: i32,
    /// What is behind the correlation id.
    rest: Bytes,
}

impl Asked {
    /// The most partitions that a topic is to have. Read by hand: the decoder reserves what spoilt counts say.
    pub(super) fn partitions(&self) -> u32 {
        let flexible = match self.api {
            19 => self.version >= 5,
            37 => self.version >= 2,
            _ => return 0,
        };
        let mut reader = Reader { bytes: self.rest.clone(), flexible, most: 0 };
        // Where it does not go on, the broker refuses all of it.
        let whole = reader.topics(self.api == 19);
        whole.map_or(0, |()| reader.most)
    }
}

/// The whole frames among these bytes.
pub(super) fn requests(mut sent: &[u8]) -> VecDeque<Asked> {
    let mut asked = VecDeque::new();
    while let Some((length, rest)) = sent.split_first_chunk::<4>() {
        let length = usize::try_from(i32::from_be_bytes(*length)).unwrap_or(usize::MAX);
        let Some((frame, behind)) = rest.split_at_checked(length) else { break };
        let mut rest = Bytes::copy_from_slice(frame);
        let (Ok(api), Ok(version), Ok(correlation_id)) = (rest.try_get_i16(), rest.try_get_i16(), rest.try_get_i32())
        else {
            break;
        };
        asked.push_back(Asked { api, version, correlation_id, rest });
        sent = behind;
    }
    asked
}

struct Reader {
    bytes: Bytes,
    flexible: bool,
    most: u32,
}

impl Reader {
    fn topics(&mut self, with_configs: bool) -> Option<()> {
        let client_id = self.bytes.try_get_i16().ok()?;
        self.skip(usize::try_from(client_id).unwrap_or(0))?;
        self.tags()?;
        for _ in 0..self.count(4)? {
            self.text()?;
            let partitions = self.bytes.try_get_i32().ok()?;
            self.most = self.most.max(u32::try_from(partitions).unwrap_or(0));
            if with_configs {
                self.skip(2)?;
            }
            for _ in 0..self.count(4)? {
                if with_configs {
                    self.skip(4)?;
                }
                let brokers = self.count(4)?;
                self.skip(brokers.checked_mul(4)?)?;
                self.tags()?;
            }
            if with_configs {
                for _ in 0..self.count(4)? {
                    self.text()?;
                    self.text()?;
                    self.tags()?;
                }
            }
            self.tags()?;
        }
        Some(())
    }

    fn text(&mut self) -> Option<()> {
        let length = self.count(2)?;
        self.skip(length)
    }

    /// How many there are, 0 for null. `bytes` is the size of the number in versions that are not flexible.
    fn count(&mut self, bytes: usize) -> Option<usize> {
        if self.flexible {
            return Some(self.varint()?.saturating_sub(1));
        }
        let number = self.bytes.try_get_int(bytes).ok()?;
        Some(usize::try_from(number).unwrap_or(0))
    }

    fn tags(&mut self) -> Option<()> {
        if self.flexible {
            for _ in 0..self.varint()? {
                self.varint()?;
                let size = self.varint()?;
                self.skip(size)?;
            }
        }
        Some(())
    }

    fn varint(&mut self) -> Option<usize> {
        let mut number = 0;
        for shift in (0..35).step_by(7) {
            let byte = self.bytes.try_get_u8().ok()?;
            number |= usize::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn skip(&mut self, bytes: usize) -> Option<()> {
        (bytes <= self.bytes.len()).then(|| self.bytes.advance(bytes))
    }
}
