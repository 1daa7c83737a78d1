//! Scripted stories of three replicas on real logs, message by message.

mod cluster;
mod field_faults;
mod log_start;
mod textbook;
