//! What takes no memory before it is first used.

use std::ops::{Deref, DerefMut};
use std::sync::OnceLock;

/// A value on the heap that is made when it is first used.
#[derive(Debug, Default)]
pub(crate) struct OnDemand<T>(OnceLock<Box<T>>);

impl<T: Default> Deref for OnDemand<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.0.get_or_init(Box::default)
    }
}

impl<T: Default> DerefMut for OnDemand<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.0.get_or_init(Box::default);
        let Some(value) = self.0.get_mut() else { unreachable!("it was made if it was not there") };
        value
    }
}
