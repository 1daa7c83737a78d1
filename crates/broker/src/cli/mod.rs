//! The command line: what each subcommand takes, and how logs are written.

mod attack;
mod bench;
mod log;
mod serve;
mod topics;

use std::process::ExitCode;

use clap::{Parser, Subcommand, ValueEnum};
use tracing_subscriber::EnvFilter;

/// A replicated commit log that speaks the Kafka protocol.
#[derive(Debug, Parser)]
#[command(name = "highwater", version, about, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a broker.
    Serve(serve::ServeArguments),
    /// Show leader, ISR and offsets of each partition.
    Topics(topics::TopicsArguments),
    /// Look into the files of logs.
    Log(log::LogArguments),
    /// Measure this machine.
    Bench(bench::BenchArguments),
    /// Watch three brokers replicate a file, lose their leader and lose nothing.
    Demo(crate::demo::DemoArguments),
    /// Attack a cluster, and check what its clients saw.
    Attack(attack::AttackArguments),
}

/// How log lines look.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum LogFormat {
    /// Lines for people.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// The `highwater` command: does what the arguments of this process say, and tells how it is to exit. Usage errors end it with
/// 2, before anything was touched.
///
/// A binary around it chooses the allocator.
pub fn command_line() -> ExitCode {
    match run(Arguments::parse()) {
        Ok(code) => code,
        Err(error) => {
            eprintln!("highwater: {}", in_one_line(&error));
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
    match arguments.command {
        Command::Serve(arguments) => serve::run(&arguments)?,
        Command::Topics(arguments) => topics::run(&arguments)?,
        Command::Demo(arguments) => crate::demo::run(&arguments)?,
        Command::Attack(arguments) => return attack::run(&arguments),
        Command::Bench(arguments) => return bench::run(&arguments),
        Command::Log(arguments) => return log::run(&arguments),
    }
    Ok(ExitCode::SUCCESS)
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

/// Sends logs to stderr: standard output carries results only. `RUST_LOG` overrides `default_filter`.
fn log_to_stderr(format: LogFormat, default_filter: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default_filter));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => logs.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => logs.json().init(),
    }
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
