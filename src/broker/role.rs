//! The role `broker`: listens, serves, says what it is and what it refuses.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use super::cluster::{Cluster, ClusterConfig};
use crate::cli;
use crate::driver::server::{Listeners, Server};
use crate::driver::signals::Source;
use crate::exit::Exit;
use crate::report::Report;

/// Runs until a signal.
///
/// # Errors
/// The system gives no epoll, signals or threads.
pub fn run(config: &cli::Broker, report: &Report) -> io::Result<Exit> {
    let listeners = match Listeners::bind(config.listen, config.nodes) {
        Ok(listeners) => listeners,
        Err((address, error)) => {
            report.error(format!(
                "cannot listen at {address}: {error}; --listen takes another, port 0 any free one"
            ));
            return Ok(Exit::Unavailable);
        }
    };
    let ports = listeners.ports();
    let mut server = Server::new(listeners, Cluster::new(cluster_config(config, &ports)))?;
    let signals = Source::Process.watch(server.waker())?;
    let brokers: Vec<String> =
        ports.iter().map(|port| format!("{}:{port}", bracketed(&config.advertise))).collect();
    let brokers = brokers.join(",");
    // A reader that is gone has seen the line, or does not want it.
    let _ = report.answer(
        "listening",
        format!("listening: {brokers}"),
        vec![("brokers", brokers.as_str().into())],
    );
    report.note("records are kept in memory and are gone when this ends; stop it with Ctrl+C");
    while signals.count() == 0 {
        server.turn()?;
        while let Some(notice) = server.cluster().next_notice() {
            report.warning(notice);
        }
    }
    let injected = server.cluster().faults_injected();
    for (fault, count) in injected {
        report.note(format!("fault {fault}: {count} times"));
    }
    Ok(Exit::Done)
}

/// What a cluster with these ports is made of.
pub fn cluster_config(config: &cli::Broker, ports: &[u16]) -> ClusterConfig {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    ClusterConfig {
        nodes: ports.iter().map(|port| (config.advertise.clone(), *port)).collect(),
        topics: config.topics.clone(),
        auto_create_partitions: config.auto_create,
        retain_bytes: config.retain_bytes,
        wall_ms_at_zero: i64::try_from(since_epoch.as_millis()).unwrap_or(i64::MAX),
        faults: config.faults.clone(),
        seed: config.seed,
        ..ClusterConfig::default()
    }
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}
