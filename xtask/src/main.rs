//! The project's checks as one command.
fn main() {}
