//! What the coordinator reads of the consumers' own protocol: the topics a member is subscribed to.

use std::collections::BTreeSet;

use super::{Group, Phase};

/// What consumers call what they do.
const CONSUMER: &str = "consumer";

/// The topics of a consumer's subscription: version i16, count i32, texts after lengths of two bytes. What follows depends
/// on the version and is not looked at.
fn topics(metadata: &[u8]) -> Option<BTreeSet<String>> {
    let (_version, rest) = metadata.split_first_chunk::<2>()?;
    let (count, mut rest) = rest.split_first_chunk::<4>()?;
    let mut topics = BTreeSet::new();
    for _ in 0..u32::try_from(i32::from_be_bytes(*count)).ok()? {
        let (length, after) = rest.split_first_chunk::<2>()?;
        let length = usize::try_from(i16::from_be_bytes(*length)).ok()?;
        let (name, after) = after.split_at_checked(length)?;
        topics.insert(std::str::from_utf8(name).ok()?.to_owned());
        rest = after;
    }
    Some(topics)
}

/// Which topics a group reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Subscribed {
    /// Those, and no other.
    To(BTreeSet<String>),
    /// It cannot be told: not consumers, or some that say what cannot be read.
    Unknown,
}

impl Subscribed {
    pub(super) fn may_read(&self, topic: &str) -> bool {
        match self {
            Self::To(topics) => topics.contains(topic),
            Self::Unknown => true,
        }
    }
}

impl Group {
    /// Whether it has members of whose topics nothing can be known.
    pub(crate) fn has_others_than_consumers(&self) -> bool {
        self.phase != Phase::Empty && self.protocol_type.as_deref() != Some(CONSUMER)
    }

    /// The topics of its members as they are given out in this generation.
    pub(super) fn subscribed(&self) -> Subscribed {
        if self.members.is_empty() {
            return Subscribed::To(BTreeSet::new());
        }
        // From when its generation has begun, even if its partitions have yet to be given out.
        let has_agreed = matches!(self.phase, Phase::Completing { .. } | Phase::Stable);
        if self.protocol_type.as_deref() != Some(CONSUMER) || !has_agreed {
            return Subscribed::Unknown;
        }
        let protocol = self.protocol.as_deref().unwrap_or_default();
        let mut all = BTreeSet::new();
        for member in self.members.values() {
            match topics(&member.metadata(protocol)) {
                Some(topics) => all.extend(topics),
                None => return Subscribed::Unknown,
            }
        }
        Subscribed::To(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn topics_are_read_whatever_follows() {
        let named = |names: &[&str]| Some(names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>());
        assert_eq!(topics(b"\0\x03\0\0\0\x02\0\x01a\0\x02bc\xff\xff\xff\xffwhatever"), named(&["a", "bc"]));
        assert_eq!(topics(b"\0\0\0\0\0\0"), named(&[]));
        for odd in [&b""[..], b"\0\0", b"\0\0\xff\xff\xff\xff", b"\0\0\0\0\0\x01\0\x05a", b"\0\0\0\0\0\x01\0\x01\xff"] {
            assert_eq!(topics(odd), None, "{odd:?}");
        }
    }
}
