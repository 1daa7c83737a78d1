//! The last offset of each key, in memory of a fixed size.

use std::hash::{DefaultHasher, Hasher};

use super::options::MemoryShare;
use crate::Offset;

/// Bytes that one key takes, whatever its length.
pub(crate) const SLOT_BYTES: u64 = size_of::<Slot>() as u64;

/// Of ten slots nine are used: fuller, look-ups would go over many.
const LOAD_OF_TEN: usize = 9;

/// Stands for a key. Two keys with the same 128 bits would be taken for one: with a billion keys the chance of that is one
/// in 10^21.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct KeyHash(u64, u64);

impl KeyHash {
    pub(crate) fn of(key: &[u8]) -> Self {
        let mut hasher = KeyHasher::default();
        hasher.write(key);
        hasher.finish()
    }
}

/// Hashes a key that comes in pieces. Equal within one process, which is as long as a map lives.
#[derive(Debug)]
pub(crate) struct KeyHasher {
    // One 64-bit function over two streams that differ in their first byte is two functions.
    high: DefaultHasher,
    low: DefaultHasher,
}

impl Default for KeyHasher {
    fn default() -> Self {
        let (mut high, mut low) = (DefaultHasher::new(), DefaultHasher::new());
        high.write(&[0]);
        low.write(&[1]);
        Self { high, low }
    }
}

impl KeyHasher {
    pub(crate) fn write(&mut self, piece: &[u8]) {
        self.high.write(piece);
        self.low.write(piece);
    }

    pub(crate) fn finish(&self) -> KeyHash {
        KeyHash(self.high.finish(), self.low.finish())
    }
}

/// The two halves of the key's hash, then the offset and one; 0 there is a free slot. An array, for memory that is zero from
/// the start is taken as the system gives it and costs nothing until it is used.
type Slot = [u64; 3];

/// See the module.
#[derive(Debug)]
pub(crate) struct OffsetMap {
    slots: Vec<Slot>,
    len: usize,
    keys_max: usize,
    /// Everything below was looked at.
    end: Offset,
    _memory: Option<MemoryShare>,
}

impl OffsetMap {
    /// A map that knows nothing, for what begins at `start`.
    pub(crate) fn new(memory: MemoryShare, start: Offset) -> Self {
        let mut map = Self::with_slots(usize::try_from(memory.bytes() / SLOT_BYTES).unwrap_or(usize::MAX), start);
        map._memory = Some(memory);
        map
    }

    /// As [`OffsetMap::new`], where it is not known yet how much room it takes, if any: no key fits.
    pub(crate) fn without_room(start: Offset) -> Self {
        Self { slots: Vec::new(), len: 0, keys_max: 0, end: start, _memory: None }
    }

    fn with_slots(slots: usize, start: Offset) -> Self {
        // One slot stays free, where every search ends.
        let slots = slots.max(2);
        let keys_max = (slots / 10 * LOAD_OF_TEN + slots % 10 * LOAD_OF_TEN / 10).clamp(1, slots - 1);
        Self { slots: vec![[0; 3]; slots], len: 0, keys_max, end: start, _memory: None }
    }

    /// The memory in which `keys` keys fit.
    pub(crate) fn bytes_for(keys: u64) -> u64 {
        let slots = keys.saturating_mul(10).div_ceil(LOAD_OF_TEN as u64).saturating_add(2);
        slots.saturating_mul(SLOT_BYTES)
    }

    /// The offset after the last that was looked at: of what is at or above, nothing is superseded.
    pub(crate) fn end(&self) -> Offset {
        self.end
    }

    /// Everything below `end` was looked at.
    pub(crate) fn advance(&mut self, end: Offset) {
        self.end = self.end.max(end);
    }

    /// Notes that `key` was at `offset`, which is above all noted before. False if there is no room for another key.
    pub(crate) fn put(&mut self, key: KeyHash, offset: Offset) -> bool {
        let Ok(next) = u64::try_from(offset.next().0) else { return true };
        let is_full = self.len >= self.keys_max;
        let Some(slot) = self.find(key).and_then(|at| self.slots.get_mut(at)) else { return false };
        let [high, low, noted] = slot;
        if *noted == 0 {
            if is_full {
                return false;
            }
            (*high, *low) = (key.0, key.1);
            self.len += 1;
        }
        *noted = next.max(*noted);
        true
    }

    /// The last offset noted for a key.
    pub(crate) fn get(&self, key: KeyHash) -> Option<Offset> {
        let slot = self.slots.get(self.find(key)?)?;
        let [.., next] = slot;
        let next = i64::try_from(*next).ok().filter(|next| *next > 0)?;
        Some(Offset(next - 1))
    }

    /// The slot of a key, or the free one where it would go.
    fn find(&self, key: KeyHash) -> Option<usize> {
        let count = self.slots.len();
        let start = usize::try_from(key.1.checked_rem(count as u64)?).unwrap_or(0);
        (start..count).chain(0..start).find(|at| {
            let held = |[high, low, next]: &Slot| *next == 0 || (*high, *low) == (key.0, key.1);
            self.slots.get(*at).is_some_and(held)
        })
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::*;
    use crate::compaction::options::CompactionMemory;

    fn hash(number: u64) -> KeyHash {
        KeyHash::of(&number.to_be_bytes())
    }

    #[test]
    fn the_last_offset_of_each_key_is_found_until_the_map_is_full() {
        let mut map = OffsetMap::with_slots(1000, Offset(0));
        let mut model = HashMap::new();
        let mut refused = 0;
        for offset in 0..5000u64 {
            let key = offset * 7919 % 1009;
            let had = model.contains_key(&key);
            if map.put(hash(key), Offset(offset as i64)) {
                model.insert(key, offset as i64);
            } else {
                assert!(!had && model.len() == 900, "only a new key finds no room, and only behind nine of ten slots");
                refused += 1;
            }
        }
        assert_eq!(map.len, 900);
        assert!(refused > 0);
        for key in 0..1009 {
            assert_eq!(map.get(hash(key)), model.get(&key).map(|offset| Offset(*offset)), "key {key}");
        }
    }

    #[test]
    fn as_many_keys_fit_as_memory_was_asked_for() {
        for keys in [1, 2, 3, 9, 10, 11, 1000] {
            let memory = CompactionMemory::bounded(1 << 20).take(OffsetMap::bytes_for(keys)).unwrap();
            let mut map = OffsetMap::new(memory, Offset(7));
            assert_eq!(map.end(), Offset(7));
            for key in 0..keys {
                assert!(map.put(hash(key), Offset(key as i64)), "{key} of {keys}");
            }
        }
    }

    #[test]
    fn a_key_in_pieces_is_the_same_key() {
        let mut hasher = KeyHasher::default();
        for piece in [b"a".as_slice(), b"", b"bc", b"def"] {
            hasher.write(piece);
        }
        assert_eq!(hasher.finish(), KeyHash::of(b"abcdef"));
        assert_ne!(KeyHash::of(b""), KeyHash::of(b"\0"));
        assert_ne!(KeyHash::of(b"").0, KeyHash::of(b"").1);
    }
}
