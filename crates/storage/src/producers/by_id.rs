//! Producers by id, in chunks that copies share: a copy of the whole costs nothing, and a change after it copies one chunk.
//!
//! A roll takes the state of all producers as it is then, and what writes the snapshot from it is not to be waited for.

use std::sync::{Arc, LazyLock};

use super::ProducerState;

/// Producers in a chunk at most: about 10 KB are copied where one of a shared chunk changes.
const CHUNK_MAX: usize = 64;

/// Chunks gone through at a time, where all are looked over.
const CHUNKS_LOOKED_AT: usize = 16;

type Chunk = Vec<(i64, ProducerState)>;

/// The states of producers by rising id.
#[derive(Clone, Debug)]
pub(super) struct ById {
    /// By rising ids, none of them empty. All ids of a chunk are at or above the number beside it, and below the next one's.
    chunks: Arc<Chunks>,
    len: usize,
}

type Chunks = Vec<(i64, Arc<Chunk>)>;

impl Default for ById {
    /// Most logs know of no producer, and share that.
    fn default() -> Self {
        static NONE: LazyLock<Arc<Chunks>> = LazyLock::new(Arc::default);
        Self { chunks: NONE.clone(), len: 0 }
    }
}

impl ById {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (i64, &ProducerState)> {
        self.chunks.iter().flat_map(|(_, chunk)| chunk.iter().map(|(id, state)| (*id, state)))
    }

    pub(super) fn get(&self, id: i64) -> Option<&ProducerState> {
        let (_, chunk) = self.chunks.get(self.chunk_of(id))?;
        let at = chunk.binary_search_by_key(&id, |(id, _)| *id).ok()?;
        chunk.get(at).map(|(_, state)| state)
    }

    /// Changes the state of a producer, which is `new` if there is none yet.
    pub(super) fn update<T>(
        &mut self,
        id: i64,
        new: impl FnOnce() -> ProducerState,
        change: impl FnOnce(&mut ProducerState) -> T,
    ) -> T {
        let at = self.chunk_of(id);
        let chunks = Arc::make_mut(&mut self.chunks);
        if let Some((_, chunk)) = chunks.get_mut(at)
            && let Ok(place) = chunk.binary_search_by_key(&id, |(id, _)| *id)
            && let Some((_, state)) = Arc::make_mut(chunk).get_mut(place)
        {
            return change(state);
        }
        let mut state = new();
        let changed = change(&mut state);
        self.len += 1;
        match chunks.get_mut(at) {
            None => chunks.push((id, Arc::new(vec![(id, state)]))),
            Some((from, chunk)) => {
                *from = (*from).min(id);
                let chunk = Arc::make_mut(chunk);
                let place = chunk.partition_point(|(other, _)| *other < id);
                chunk.insert(place, (id, state));
                if chunk.len() > CHUNK_MAX {
                    // Ids rise mostly: what is behind is left full then.
                    let rest = chunk.split_off(if place == CHUNK_MAX { place } else { CHUNK_MAX / 2 });
                    let from = rest.first().map_or(id, |(id, _)| *id);
                    chunks.insert(at + 1, (from, Arc::new(rest)));
                }
            }
        }
        changed
    }

    pub(super) fn remove(&mut self, id: i64) {
        let at = self.chunk_of(id);
        let chunks = Arc::make_mut(&mut self.chunks);
        let Some((_, chunk)) = chunks.get_mut(at) else { return };
        let Ok(place) = chunk.binary_search_by_key(&id, |(id, _)| *id) else { return };
        Arc::make_mut(chunk).remove(place);
        self.len -= 1;
        if chunk.is_empty() {
            chunks.remove(at);
        }
    }

    /// Keeps those of which it says so, in the chunks from the one on that an id belongs to, a thousand producers or so.
    /// Returns the id to go on from, if there are more. What stays whole stays shared.
    pub(super) fn retain_from(&mut self, id: i64, keep: impl Fn(&ProducerState) -> bool) -> Option<i64> {
        let first = self.chunk_of(id);
        let end = (first + CHUNKS_LOOKED_AT).min(self.chunks.len());
        let next = self.chunks.get(end).map(|(from, _)| *from);
        let is_whole = |chunk: &Chunk| chunk.iter().all(|(_, state)| keep(state));
        let looked_at = self.chunks.get(first..end).unwrap_or_default();
        if looked_at.iter().all(|(_, chunk)| is_whole(chunk)) {
            return next;
        }
        let mut kept = looked_at.to_vec();
        for (_, chunk) in kept.iter_mut().filter(|(_, chunk)| !is_whole(chunk)) {
            let before = chunk.len();
            Arc::make_mut(chunk).retain(|(_, state)| keep(state));
            self.len -= before - chunk.len();
        }
        kept.retain(|(_, chunk)| !chunk.is_empty());
        Arc::make_mut(&mut self.chunks).splice(first..end, kept);
        next
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Which chunk a producer is in, if it is there.
    fn chunk_of(&self, id: i64) -> usize {
        self.chunks.partition_point(|(from, _)| *from <= id).saturating_sub(1)
    }
}

impl PartialEq for ById {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

impl Eq for ById {}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// A generator of the kind xorshift.
    fn draw(state: &mut u64, below: u64) -> u64 {
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        *state % below
    }

    fn check(map: &ById, model: &BTreeMap<i64, i16>) {
        assert_eq!(map.len(), model.len());
        assert_eq!(map.is_empty(), model.is_empty());
        assert!(map.iter().map(|(id, state)| (id, state.epoch)).eq(model.iter().map(|(id, epoch)| (*id, *epoch))));
        assert!(map.chunks.iter().all(|(_, chunk)| (1..=CHUNK_MAX).contains(&chunk.len())));
        for id in -5..700 {
            assert_eq!(map.get(id).map(|state| state.epoch), model.get(&id).copied(), "{id}");
        }
    }

    #[test]
    fn it_is_a_map_and_a_copy_stays_as_it_was() {
        for seed in 1..9 {
            let mut random = seed;
            let (mut map, mut model) = (ById::default(), BTreeMap::new());
            let mut copies = Vec::new();
            for step in 0..4000 {
                let rising = seed % 2 == 0 && draw(&mut random, 3) > 0;
                let id = if rising { step / 7 } else { draw(&mut random, 690) as i64 };
                match draw(&mut random, 1000) {
                    0..700 => {
                        let before = map.update(
                            id,
                            || ProducerState::new(0),
                            |state| {
                                state.epoch += 1;
                                state.epoch - 1
                            },
                        );
                        let epoch = model.entry(id).or_insert(0);
                        assert_eq!(before, *epoch);
                        *epoch += 1;
                    }
                    700..980 => {
                        map.remove(id);
                        model.remove(&id);
                    }
                    980 => {
                        let least = draw(&mut random, 2) as i16;
                        let mut next = Some(i64::MIN);
                        while let Some(from) = next {
                            next = map.retain_from(from, |state| state.epoch > least);
                        }
                        model.retain(|_, epoch| *epoch > least);
                    }
                    981 if seed == 3 => {
                        map.clear();
                        model.clear();
                    }
                    _ => copies.push((map.clone(), model.clone())),
                }
            }
            check(&map, &model);
            copies.iter().for_each(|(map, model)| check(map, model));
            assert!(copies.len() > 10 && copies.iter().any(|(map, _)| map.chunks.len() > 5));
            let (copy, _) = &copies[0];
            assert_eq!(*copy, copy.clone());
        }
    }

    #[test]
    fn a_change_after_a_copy_copies_one_chunk() {
        let mut map = ById::default();
        for id in 0..1000 {
            map.update(id, || ProducerState::new(0), |_| ());
        }
        assert!(map.chunks.len() <= 1000 / CHUNK_MAX + 1, "rising ids fill their chunks");
        let copy = map.clone();
        map.update(500, || ProducerState::new(0), |state| state.epoch = 7);
        let shared = copy.chunks.iter().zip(map.chunks.iter()).filter(|((_, one), (_, other))| Arc::ptr_eq(one, other));
        assert_eq!(shared.count(), map.chunks.len() - 1);
        assert_eq!((copy.get(500).unwrap().epoch, map.get(500).unwrap().epoch), (0, 7));
    }
}
