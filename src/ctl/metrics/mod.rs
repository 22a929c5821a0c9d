//! `gpuslice metrics`: Prometheus metrics of the node, printed once or served over HTTP.
//!
//! It asks the daemon at a scrape; scrapes within [`FRESH`] share one answer, also while it is on its way. As a
//! service it runs as a user of its own that may use the observers' socket, which answers lists only; root uses the
//! administrators' socket. The daemon has [`ANSWER_WITHIN`]: one that hangs is away, and the scrape says so in time.

mod compat;
mod exposition;
pub mod families;
mod node;
mod serve;
#[cfg(test)]
mod tests;

use crate::admin::{Admin, Forbidden};
use crate::clients::lock;
use crate::out;
use anyhow::{Context, Result};
use clap::ValueEnum;
use exposition::Scrape;
use gpuslice_host::layout::{ADMIN_SOCKET, OBSERVE_SOCKET};
use gpuslice_wire::admin::Command;
use gpuslice_wire::frame::FrameError;
use node::NodeView;
use serve::Format;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Age up to which an answer of the daemon serves another scrape.
const FRESH: Duration = Duration::from_secs(1);
/// Time limit for an answer of the daemon: within Prometheus' default for a scrape, 10 s.
const ANSWER_WITHIN: Duration = Duration::from_secs(4);
/// Time over which utilisation is measured where metrics are printed once.
const SAMPLE: Duration = Duration::from_millis(250);

/// Names of other exporters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Compat {
    /// Alibaba Cloud's exporters for cGPU: `nvidia_gpu_*` and `DCGM_CUSTOM_PROCESS_*`
    Ack,
}

/// Options of `gpuslice metrics`.
#[derive(clap::Args)]
pub struct Options {
    /// Serve the metrics at http://ADDRESS/metrics, e.g. 127.0.0.1:9877, instead of printing them
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
    /// Add series under the names of another exporter, for its dashboards
    #[arg(long, value_name = "NAMES")]
    compat: Option<Compat>,
    /// Runtime directory of the daemon [default: /run/gpuslice]
    #[arg(long, value_name = "DIR", default_value = "/run/gpuslice", hide_default_value = true)]
    runtime_dir: PathBuf,
}

/// Runs `gpuslice metrics`.
///
/// # Errors
/// The address is not available, standard output cannot be written, or this user may not ask the daemon. An absent
/// daemon is a metric.
pub fn main(options: &Options) -> Result<ExitCode> {
    let service = Service::new(options);
    let Some(address) = options.listen else {
        if options.compat.is_some() {
            service.refresh(&mut lock(&service.last))?;
            std::thread::sleep(SAMPLE);
        }
        service.refresh(&mut lock(&service.last))?;
        out::line(service.metrics(Format::Plain)?.trim_end())?;
        return Ok(ExitCode::SUCCESS);
    };
    let listener = TcpListener::bind(address)
        .with_context(|| format!("{address}; give another address with --listen"))?;
    let address = listener.local_addr()?;
    out::note(&format!("metrics at http://{address}/metrics"));
    // Without a service manager this does nothing.
    let _ = sd_notify::notify(false, &[sd_notify::NotifyState::Ready]);
    serve::serve(&listener, &|format| service.metrics(format))
}

/// Asks through the observers' socket if this user may use it, else through the administrators'. A daemon that was not
/// restarted since an upgrade may not know the rows of metrics; its list has the others.
fn node(runtime_dir: &Path) -> Result<NodeView> {
    let connect = || {
        Admin::connect_to(runtime_dir, OBSERVE_SOCKET)
            .or_else(|_| Admin::connect_to(runtime_dir, ADMIN_SOCKET))
    };
    let answer = match connect()?.rows_within(&Command::Observe {}, ANSWER_WITHIN) {
        Err(why) if why.is::<FrameError>() => connect()?.list()?,
        answer => answer?,
    };
    Ok(NodeView::of(answer))
}

/// What the threads of the clients share.
struct Service {
    runtime_dir: PathBuf,
    /// Name of this node, if names of other exporters are wanted.
    host: Option<String>,
    last: Mutex<Last>,
}

/// The last answer.
#[derive(Default)]
struct Last {
    /// When it came, and its text in OpenMetrics.
    answer: Option<(Instant, Arc<str>)>,
    /// What the next one's utilisation is measured against.
    earlier: Option<crate::table::View>,
}

impl Service {
    fn new(options: &Options) -> Service {
        let host = || nix::unistd::gethostname().unwrap_or_default();
        Service {
            runtime_dir: options.runtime_dir.clone(),
            host: options.compat.map(|_| host().to_string_lossy().into_owned()),
            last: Mutex::default(),
        }
    }

    /// The metrics, from an answer that is at most [`FRESH`] old.
    ///
    /// # Errors
    /// [`Forbidden`]: a daemon that this user may not ask is not counted as absent.
    fn metrics(&self, format: Format) -> Result<String> {
        let mut last = lock(&self.last);
        let fresh = last.answer.as_ref().filter(|(since, _)| since.elapsed() < FRESH);
        let text = match fresh {
            Some((_, text)) => Arc::clone(text),
            None => self.refresh(&mut last)?,
        };
        drop(last);
        Ok(match format {
            Format::OpenMetrics => text.to_string(),
            Format::Plain => exposition::plain(&text),
        })
    }

    /// Asks the daemon.
    fn refresh(&self, last: &mut Last) -> Result<Arc<str>> {
        let node = match node(&self.runtime_dir) {
            Err(why) if why.is::<Forbidden>() => return Err(why),
            node => node.ok(),
        };
        let earlier = last.earlier.take();
        last.earlier = node.as_ref().filter(|_| self.host.is_some()).map(|it| it.view.clone());
        let compat = self.host.clone().map(|host| compat::Base { earlier, host });
        let text: Arc<str> = exposition::open_metrics(Scrape { node, compat }).into();
        last.answer = Some((Instant::now(), Arc::clone(&text)));
        Ok(text)
    }
}
