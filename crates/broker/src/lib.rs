//! broker
mod owner;
mod threads;
