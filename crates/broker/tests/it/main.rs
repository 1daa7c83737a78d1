//! Running brokers in this process: over real sockets, on real directories.

mod api;
mod catch_up;
mod cluster;
mod delete_records;
mod fetch_sessions;
mod groups;
mod handing_over;
mod heal;
mod lifecycle;
mod support;
mod transactions;
