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
pub(crate) struct Arguments {
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

/// Runs what was asked for, and tells how the process is to exit.
pub(crate) fn run(arguments: Arguments) -> anyhow::Result<ExitCode> {
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

/// Sends logs to stderr: standard output carries results only. `RUST_LOG` overrides `default_filter`.
fn log_to_stderr(format: LogFormat, default_filter: &str) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(default_filter));
    let logs = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr);
    match format {
        LogFormat::Text => logs.with_ansi(std::io::IsTerminal::is_terminal(&std::io::stderr())).init(),
        LogFormat::Json => logs.json().init(),
    }
}
