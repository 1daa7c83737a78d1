//! The `highwater` command: the command line of the library, with the allocator that suits it.

use std::process::ExitCode;

#[cfg(all(feature = "jemalloc", not(system_allocator)))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    highwater_broker::command_line()
}
