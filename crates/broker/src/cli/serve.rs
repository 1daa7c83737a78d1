//! `highwater serve`: one broker in the foreground.

use std::io::Write;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use highwater_storage::fs::raise_descriptor_limit;
use tokio::signal::unix::{SignalKind, signal};

use super::LogFormat;
use crate::Broker;
use crate::config::{BrokerConfig, Settings};

/// Run a broker.
#[derive(Debug, Args)]
pub(crate) struct ServeArguments {
    /// Kafka's server.properties.
    properties: Option<PathBuf>,
    /// Set a configuration key; wins over the file. May be given several times.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
    /// The data directory (log.dirs).
    #[arg(long, value_name = "DIR")]
    data_dir: Option<PathBuf>,
    /// Where to listen (listeners); port 0 takes a free one.
    #[arg(long, value_name = "HOST:PORT")]
    listen: Option<String>,
    /// This broker's number (node.id).
    #[arg(long, value_name = "N")]
    broker_id: Option<u32>,
    /// How log lines on stderr look.
    #[arg(long, value_enum, default_value_t)]
    log_format: LogFormat,
}

/// How long a clean stop may take, once others have taken over, before the process gives up on it.
const SHUTDOWN_LIMIT: Duration = Duration::from_secs(5);

/// Runs the broker until a signal stops it.
pub(crate) fn run(arguments: &ServeArguments) -> anyhow::Result<()> {
    super::log_to_stderr(arguments.log_format, "info");
    let config = configure(arguments)?;
    // The soft limit is small on most systems, for the sake of programs that use select(2).
    let _ = raise_descriptor_limit();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(config.network_threads)
        .thread_name("highwater-net")
        .thread_stack_size(512 << 10)
        .enable_all()
        .build()
        .context("cannot start the network threads")?;
    let stopped = runtime.block_on(serve(config));
    // What still runs after the limit must not keep the process: its logs are open again at the next start.
    runtime.shutdown_timeout(Duration::from_millis(100));
    stopped
}

/// The configuration from the file and the command line; ignored keys are named in the log.
fn configure(arguments: &ServeArguments) -> anyhow::Result<BrokerConfig> {
    let mut settings = Settings::new();
    if let Some(path) = &arguments.properties {
        settings.read_file(path)?;
    }
    if let Some(dir) = &arguments.data_dir {
        settings.set(&format!("log.dirs={}", dir.display()))?;
    }
    if let Some(address) = &arguments.listen {
        settings.set(&format!("listeners=PLAINTEXT://{address}"))?;
    }
    if let Some(id) = arguments.broker_id {
        settings.set(&format!("node.id={id}"))?;
    }
    for pair in &arguments.set {
        settings.set(pair)?;
    }
    let (config, ignored) = settings.build()?;
    for key in ignored {
        tracing::warn!(key = key.key, "this key of Kafka's has no effect here");
    }
    Ok(config)
}

async fn serve(config: BrokerConfig) -> anyhow::Result<()> {
    // Registered before the broker starts: a signal during recovery is not lost.
    let mut terminate = signal(SignalKind::terminate()).context("cannot listen for SIGTERM")?;
    let mut interrupt = signal(SignalKind::interrupt()).context("cannot listen for SIGINT")?;
    let data_dir = config.data_dir.display().to_string();
    let hand_over_ms =
        config.controlled_shutdown_retry_backoff_ms.saturating_mul(config.controlled_shutdown_retries_max.into());
    let limit = SHUTDOWN_LIMIT + Duration::from_millis(if config.controlled_shutdown { hand_over_ms } else { 0 });
    let broker = tokio::select! {
        started = Broker::start_configured(config) => started?,
        _ = terminate.recv() => return Ok(()),
        _ = interrupt.recv() => return Ok(()),
    };
    let ready = broker.ready();
    println!(
        "ready: listening on {}, data in {data_dir} ({} partitions, {} records recovered in {} ms)",
        broker.local_addr(),
        ready.partitions,
        ready.records,
        ready.elapsed_ms
    );
    std::io::stdout().flush().context("cannot write to standard output")?;
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: stopping"),
        _ = interrupt.recv() => tracing::info!("SIGINT: stopping"),
    }
    tokio::select! {
        stopped = tokio::time::timeout(limit, broker.shutdown()) => match stopped {
            Ok(stopped) => stopped.context("the stop was not clean: the next start will recover the logs"),
            Err(_) => anyhow::bail!("the stop took longer than {} s: the next start will recover the logs", limit.as_secs()),
        },
        _ = terminate.recv() => anyhow::bail!("stopped at the second signal: the next start will recover the logs"),
        _ = interrupt.recv() => anyhow::bail!("stopped at the second signal: the next start will recover the logs"),
    }
}
