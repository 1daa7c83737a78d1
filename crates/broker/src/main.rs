//! The `highwater` command: a broker, a look at a cluster's topics, a demonstration, and an attack.

mod cli;
mod demo;
mod driver;

use std::process::ExitCode;

use clap::Parser;

#[cfg(all(feature = "jemalloc", not(system_allocator)))]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    // Usage errors exit with 2 here, before anything was touched.
    let arguments = cli::Arguments::parse();
    match cli::run(arguments) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("highwater: {}", in_one_line(&error));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes, each said once: many errors name their cause in their own text.
fn in_one_line(error: &anyhow::Error) -> String {
    let mut said = String::new();
    for cause in error.chain().map(ToString::to_string) {
        if !said.contains(&cause) {
            said.push_str(if said.is_empty() { "" } else { ": " });
            said.push_str(&cause);
        }
    }
    said
}

#[cfg(test)]
mod tests {
    use super::in_one_line;

    #[test]
    fn a_cause_is_said_once() {
        let error = anyhow::anyhow!("disk full").context("cannot write /a: disk full").context("cannot start");
        assert_eq!(in_one_line(&error), "cannot start: cannot write /a: disk full");
    }
}
