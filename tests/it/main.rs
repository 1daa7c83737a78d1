//! Tests of the whole, one module per concern. `workspace` needs nothing built; the others run the real binary.

mod command_line;
mod durability;
mod hostile;
mod log_commands;
mod open_files;
mod signals;
mod wire;
mod workspace;
