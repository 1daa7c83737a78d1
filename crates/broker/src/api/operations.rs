//! What clients may do, as bit fields of `AclOperation` codes. Without an authorizer that is everything.

/// The answer where the client did not ask.
pub(super) const NOT_ASKED: i32 = i32::MIN;

/// `AclEntry.supportedOperations(TOPIC)`: read 3, write 4, create 5, delete 6, alter 7, describe 8, describe and alter
/// configs 10 and 11.
pub(super) const TOPIC: i32 = bits(&[3, 4, 5, 6, 7, 8, 10, 11]);

/// `AclEntry.supportedOperations(GROUP)`: read 3, delete 6, describe 8, describe and alter configs 10 and 11.
pub(super) const GROUP: i32 = bits(&[3, 6, 8, 10, 11]);

/// `AclEntry.supportedOperations(CLUSTER)`: create 5, alter 7, describe 8, cluster action 9, configs 10 and 11,
/// idempotent write 12.
pub(super) const CLUSTER: i32 = bits(&[5, 7, 8, 9, 10, 11, 12]);

const fn bits(codes: &[u32]) -> i32 {
    let (mut field, mut at) = (0, 0);
    while at < codes.len() {
        field |= 1 << codes[at];
        at += 1;
    }
    field
}
