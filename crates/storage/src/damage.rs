//! The stretches of a segment that are known to be damaged.

use std::sync::{Mutex, OnceLock, PoisonError};

use crate::error::Damaged;

/// The damage known of one segment. While there is none, asking costs one atomic load.
#[derive(Debug, Default)]
pub(crate) struct KnownDamage {
    /// By rising position, without overlaps.
    stretches: OnceLock<Box<Mutex<Vec<Damaged>>>>,
}

impl KnownDamage {
    /// Whether there is any.
    pub(crate) fn is_some(&self) -> bool {
        self.stretches.get().is_some()
    }

    /// Notes a stretch, if `still_true` says so while a cut has to wait. What is already known of the same bytes is replaced.
    pub(crate) fn note(&self, damaged: Damaged, still_true: impl FnOnce() -> bool) {
        let stretches = self.stretches.get_or_init(Box::default);
        let mut stretches = stretches.lock().unwrap_or_else(PoisonError::into_inner);
        if !still_true() {
            return;
        }
        let from = stretches.partition_point(|known| end_of(known) <= damaged.position);
        let to = stretches.partition_point(|known| known.position < end_of(&damaged)).max(from);
        stretches.splice(from..to, [damaged]);
    }

    /// Forgets what lies behind a cut at `position`: other bytes take its place.
    pub(crate) fn cut(&self, position: u64) {
        if let Some(stretches) = self.stretches.get() {
            let mut stretches = stretches.lock().unwrap_or_else(PoisonError::into_inner);
            stretches.retain(|known| known.position < position);
            if let Some(last) = stretches.last_mut() {
                last.bytes = last.bytes.min(position - last.position);
            }
        }
    }

    /// Forgets a stretch: what belongs there is there again.
    pub(crate) fn healed(&self, damaged: &Damaged) {
        if let Some(stretches) = self.stretches.get() {
            stretches.lock().unwrap_or_else(PoisonError::into_inner).retain(|known| known != damaged);
        }
    }

    /// The first stretch that ends behind `position`.
    pub(crate) fn next_from(&self, position: u64) -> Option<Damaged> {
        let stretches = self.stretches.get()?.lock().unwrap_or_else(PoisonError::into_inner);
        stretches.get(stretches.partition_point(|known| end_of(known) <= position)).cloned()
    }

    /// All of it, by rising position.
    pub(crate) fn all(&self) -> Vec<Damaged> {
        let Some(stretches) = self.stretches.get() else { return Vec::new() };
        stretches.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

fn end_of(damaged: &Damaged) -> u64 {
    damaged.position.saturating_add(damaged.bytes)
}

#[cfg(test)]
mod tests;
