//! The `highwater` command: a broker, a look at a cluster's topics, and a demonstration.

mod cli;
mod demo;

use std::process::ExitCode;

use clap::Parser;

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // Usage errors exit with 2 here, before anything was touched.
    let arguments = cli::Arguments::parse();
    match cli::run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("highwater: {error:#}");
            ExitCode::FAILURE
        }
    }
}
