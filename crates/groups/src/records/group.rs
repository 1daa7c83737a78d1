//! The members of a group.

use bytes::{BufMut, Bytes, BytesMut};

use super::{Reader, RecordError, put_bytes, put_nullable_text, put_text};

/// The value of a group's record, versions 0 to 4.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupValue {
    /// What its members do: `consumer`, `connect`, or of their own.
    pub protocol_type: String,
    /// Counts its rebalances.
    pub generation: i32,
    /// How partitions are given out, as its members agreed.
    pub protocol: Option<String>,
    /// The member that gives them out.
    pub leader: Option<String>,
    /// Since when it is as it is, or -1.
    pub state_timestamp_ms: i64,
    /// Its members, none if the group is empty.
    pub members: Vec<GroupMember>,
}

/// A member in a group's record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct GroupMember {
    /// Its id, which the coordinator made up.
    pub member_id: String,
    /// Its id across restarts, if it is static.
    pub group_instance_id: Option<String>,
    /// What it calls itself.
    pub client_id: String,
    /// Where it came from.
    pub client_host: String,
    /// How long it may take to join again; in version 0 as the session.
    pub rebalance_timeout_ms: i32,
    /// How long it may be silent.
    pub session_timeout_ms: i32,
    /// What it said of itself for the group's protocol. Opaque.
    pub subscription: Bytes,
    /// What the leader gave it. Opaque.
    pub assignment: Bytes,
}

impl GroupValue {
    /// Reads the value of a record.
    ///
    /// # Errors
    /// If the bytes are no such value.
    pub fn decode(bytes: &[u8]) -> Result<Self, RecordError> {
        let mut read = Reader::new(bytes);
        let version = read.i16("the group's version")?;
        if !(0..=4).contains(&version) {
            return Err(RecordError::Version { of: "a group", version });
        }
        let flexible = version >= 4;
        let protocol_type = read.text("the group's protocol type", flexible)?;
        let generation = read.i32("the group's generation")?;
        let protocol = read.nullable_text("the group's protocol", flexible)?;
        let leader = read.nullable_text("the group's leader", flexible)?;
        let state_timestamp_ms = if version >= 2 { read.i64("the group's time")? } else { -1 };
        let mut members = Vec::new();
        for _ in 0..read.count("the group's members", flexible)?.unwrap_or(0) {
            members.push(GroupMember::decode(&mut read, version)?);
        }
        if flexible {
            read.no_tags_known("the group's tags")?;
        }
        Ok(Self { protocol_type, generation, protocol, leader, state_timestamp_ms, members })
    }

    /// The value in version 3, which every Kafka since 2.3 reads.
    pub fn encode(&self) -> Bytes {
        let mut bytes = BytesMut::new();
        bytes.put_i16(3);
        put_text(&mut bytes, &self.protocol_type);
        bytes.put_i32(self.generation);
        put_nullable_text(&mut bytes, self.protocol.as_deref());
        put_nullable_text(&mut bytes, self.leader.as_deref());
        bytes.put_i64(self.state_timestamp_ms);
        bytes.put_i32(i32::try_from(self.members.len()).unwrap_or(i32::MAX));
        for member in &self.members {
            put_text(&mut bytes, &member.member_id);
            put_nullable_text(&mut bytes, member.group_instance_id.as_deref());
            put_text(&mut bytes, &member.client_id);
            put_text(&mut bytes, &member.client_host);
            bytes.put_i32(member.rebalance_timeout_ms);
            bytes.put_i32(member.session_timeout_ms);
            put_bytes(&mut bytes, &member.subscription);
            put_bytes(&mut bytes, &member.assignment);
        }
        bytes.freeze()
    }
}

impl GroupMember {
    fn decode(read: &mut Reader<'_>, version: i16) -> Result<Self, RecordError> {
        let flexible = version >= 4;
        let member_id = read.text("a member's id", flexible)?;
        let group_instance_id =
            if version >= 3 { read.nullable_text("a member's instance id", flexible)? } else { None };
        let client_id = read.text("a member's client id", flexible)?;
        let client_host = read.text("a member's host", flexible)?;
        let rebalance_timeout_ms = if version >= 1 { Some(read.i32("a member's rebalance time-out")?) } else { None };
        let session_timeout_ms = read.i32("a member's session time-out")?;
        let subscription = read.bytes("a member's subscription", flexible)?;
        let assignment = read.bytes("a member's assignment", flexible)?;
        if flexible {
            read.no_tags_known("a member's tags")?;
        }
        Ok(Self {
            member_id,
            group_instance_id,
            client_id,
            client_host,
            rebalance_timeout_ms: rebalance_timeout_ms.unwrap_or(session_timeout_ms),
            session_timeout_ms,
            subscription,
            assignment,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group() -> GroupValue {
        let member = |id: &str, instance: Option<&str>| GroupMember {
            member_id: id.into(),
            group_instance_id: instance.map(Into::into),
            client_id: "c".into(),
            client_host: "/127.0.0.1".into(),
            rebalance_timeout_ms: 300_000,
            session_timeout_ms: 45_000,
            subscription: Bytes::from_static(b"sub"),
            assignment: Bytes::from_static(b""),
        };
        GroupValue {
            protocol_type: "consumer".into(),
            generation: 3,
            protocol: Some("range".into()),
            leader: Some("c-1".into()),
            state_timestamp_ms: 17,
            members: vec![member("c-1", None), member("c-2", Some("two"))],
        }
    }

    #[test]
    fn a_group_comes_back_as_it_was_written() {
        let bytes = group().encode();
        assert_eq!(bytes[..12], *b"\0\x03\0\x08consumer");
        assert_eq!(GroupValue::decode(&bytes).unwrap(), group());
        for length in 0..bytes.len() {
            assert!(GroupValue::decode(&bytes[..length]).is_err(), "cut at {length}");
        }
    }

    #[test]
    fn older_versions_lack_what_came_later() {
        let tail = b"\0\0\0\x01\0\x01m\0\x01c\0\x01h";
        let zero = [&b"\0\0\0\x01t\0\0\0\x05\xff\xff\xff\xff"[..], tail, b"\0\0\0\x09\0\0\0\0\0\0\0\0"].concat();
        let value = GroupValue::decode(&zero).unwrap();
        assert_eq!((value.generation, value.protocol, value.leader, value.state_timestamp_ms), (5, None, None, -1));
        assert_eq!((value.members[0].rebalance_timeout_ms, value.members[0].session_timeout_ms), (9, 9));
        let one =
            [&b"\0\x01\0\x01t\0\0\0\x05\xff\xff\xff\xff"[..], tail, b"\0\0\0\x07\0\0\0\x09\0\0\0\0\0\0\0\0"].concat();
        assert_eq!(GroupValue::decode(&one).unwrap().members[0].rebalance_timeout_ms, 7);
    }

    #[test]
    fn a_count_that_the_bytes_cannot_hold_reserves_nothing() {
        let bytes = b"\0\x03\0\x01t\0\0\0\x05\xff\xff\xff\xff\0\0\0\0\0\0\0\0\x7f\xff\xff\xff";
        assert_eq!(GroupValue::decode(bytes), Err(RecordError::CutOff("the group's members")));
    }
}
