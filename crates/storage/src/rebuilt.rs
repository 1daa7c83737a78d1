//! Which segments have indexes in memory that their files should say and do not.
//!
//! Who finds an index file wrong builds it anew, on whatever thread; housekeeping writes it. It is told of the segments
//! here, and so goes through no list of them to find any.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::Offset;

/// Boxed, for most logs have none.
type Bases = Option<Box<VecDeque<Offset>>>;

/// The base offsets of such segments, each once or twice. Some may have left the log, or be written by now.
#[derive(Debug, Default)]
pub(crate) struct Rebuilt {
    bases: Mutex<Bases>,
}

impl Rebuilt {
    /// Adds one at the end, when its segment can tell what is to be written.
    pub(crate) fn add(&self, base: Offset) {
        self.lock().get_or_insert_default().push_back(base);
    }

    /// Takes the first one away. To be asked about after that: what is added meanwhile stays.
    pub(crate) fn take(&self) -> Option<Offset> {
        self.lock().as_mut()?.pop_front()
    }

    fn lock(&self) -> MutexGuard<'_, Bases> {
        self.bases.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
