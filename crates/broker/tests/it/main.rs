//! Running brokers in this process: over real sockets, on real directories.

mod api;
mod cluster;
mod lifecycle;
mod support;
