//! `gristmill portal`, and `run --portal`: serves the page that shows jobs in a browser.

use std::fs::OpenOptions;
use std::io::{IsTerminal, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use engine::targets::{LOCAL, Target};
use portal::{Access, DEFAULT_ADDRESS, Options, OwnJobs, Phrases, Portal, Token};
use tokio_util::sync::CancellationToken;

use crate::{Exit, Settings, TargetFlags, remedies, usage, watch_for_stop};

#[derive(Debug, clap::Args)]
pub struct PortalArguments {
    /// Address to serve the page at [default: 127.0.0.1:7780, or the next free port].
    #[arg(long, value_name = "ADDRESS:PORT")]
    listen: Option<SocketAddr>,
    /// Print the address without opening a browser.
    #[arg(long)]
    no_open: bool,
    /// Refuse everything that changes or starts a job (cancel, retry, running one mini-batch again), and doctor.
    #[arg(long)]
    read_only: bool,
    /// Answer requests that carry this header, which a proxy in front sets for users that it has authenticated. Without
    /// GRISTMILL_PORTAL_TOKEN no other request is answered.
    #[arg(long, value_name = "NAME")]
    trust_header: Option<String>,
    /// Another name by which browsers reach the portal. May be repeated.
    #[arg(long, value_name = "NAME")]
    host: Vec<String>,
    #[command(flatten)]
    target: TargetFlags,
}

pub const WORDS: Phrases = Phrases {
    hint: remedies::hint,
    error: remedies::message,
    remedy: remedies::text,
    flags: remedies::flags,
};

pub async fn portal(arguments: PortalArguments, settings: &Settings) -> Result<Exit> {
    let target = arguments.target.find(None, settings)?;
    let jobs = settings.engine.jobs_of(target.as_ref()).await?;
    let address =
        arguments.listen.unwrap_or(DEFAULT_ADDRESS.parse().context("the default address")?);
    let trusted = arguments.trust_header.as_deref().map(str::parse).transpose();
    let trusted_header =
        trusted.map_err(|error| usage(anyhow::anyhow!("--trust-header: {error}")))?;
    let chosen = settings.portal_token.clone().map(Token::chosen).transpose().map_err(usage)?;
    let is_chosen = chosen.is_some();
    let token = match chosen {
        None if trusted_header.is_none() => Some(Token::random()?),
        chosen => chosen,
    };
    let access = Access { token: token.clone(), trusted_header, hosts: arguments.host.clone() };
    access.check(address, is_chosen).map_err(usage)?;
    let listener = portal::listen(address, arguments.listen.is_some()).await;
    let listener = listener
        .with_context(|| format!("cannot listen at {address}: choose another with --listen"))?;
    let address = listener.local_addr().context("read the address of the listener")?;
    let mut targets = arguments.target.known(settings);
    targets.retain(|name| name != LOCAL);
    let options = Options {
        engine: settings.engine.clone(),
        jobs,
        target,
        targets,
        own_jobs: OwnJobs::default(),
        are_steps: false,
        is_read_only: arguments.read_only,
        access,
        words: WORDS,
    };
    // A token that the user chose is not printed, because logs keep printed lines.
    let shown = url(address, token.as_ref().filter(|_| !is_chosen));
    say!(out, "{shown}");
    if !arguments.no_open && std::io::stdout().is_terminal() {
        open(&shown, settings);
    }
    let _portal_file = (options.target.is_none())
        .then(|| PortalFile::write(settings.engine.home().portal_file(), &shown));
    let stop = CancellationToken::new();
    let _signals = watch_for_stop(stop.clone());
    Portal::new(options).serve(listener, stop).await?;
    Ok(Exit::Done)
}

/// Serves the page while this process runs one job, or the steps of a document, and prints the address. A separate
/// thread opens the store and answers, so that no request delays a job.
pub fn serve(
    target: Option<Target>,
    settings: &Settings,
    own_jobs: OwnJobs,
    are_steps: bool,
) -> Result<()> {
    let token = Token::random()?;
    let access = Access { token: Some(token.clone()), ..Access::default() };
    let engine = settings.engine.clone();
    let (sender, receiver) = std::sync::mpsc::channel();
    let serving = move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let served = runtime.map_err(anyhow::Error::from).and_then(|runtime| {
            runtime.block_on(async {
                let jobs = engine.jobs_of(target.as_ref()).await?;
                let address = DEFAULT_ADDRESS.parse().context("the default address")?;
                let listener = portal::listen(address, false)
                    .await
                    .context("find a free port for the portal")?;
                let _ =
                    sender.send(listener.local_addr().context("read the address of the listener")?);
                let (targets, is_read_only, words) = (Vec::new(), false, WORDS);
                let options = Options {
                    engine,
                    jobs,
                    target,
                    targets,
                    own_jobs,
                    are_steps,
                    is_read_only,
                    access,
                    words,
                };
                Portal::new(options).serve(listener, CancellationToken::new()).await
            })
        });
        if let Err(error) = served {
            tracing::warn!("the job has no page: {error:#}");
        }
    };
    std::thread::Builder::new()
        .name("portal".to_owned())
        .spawn(serving)
        .context("start the thread of the portal")?;
    if let Ok(address) = receiver.recv() {
        say!(note, "portal {}", url(address, Some(&token)));
    }
    Ok(())
}

/// The file with the address of the running portal, for other programs of this user: a card in a notebook links to it.
struct PortalFile {
    path: PathBuf,
    content: String,
}

impl PortalFile {
    /// Writes the file, which only its user may read, because the address may contain a token. If this fails, cards
    /// have no link.
    fn write(path: PathBuf, address: &str) -> Self {
        let content =
            serde_json::json!({ "address": address, "process": std::process::id() }).to_string();
        let _ = std::fs::remove_file(&path);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        if let Err(error) = file.and_then(|mut file| file.write_all(content.as_bytes())) {
            tracing::debug!("{} cannot be written: {error}", path.display());
        }
        Self { path, content }
    }
}

impl Drop for PortalFile {
    fn drop(&mut self) {
        // Another portal may have replaced it.
        if std::fs::read(&self.path).is_ok_and(|content| content == self.content.as_bytes()) {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn url(address: SocketAddr, token: Option<&Token>) -> String {
    match token {
        Some(token) => format!("http://{address}/?token={}", token.text()),
        None => format!("http://{address}/"),
    }
}

/// Opens a browser, if this machine has one.
fn open(url: &str, settings: &Settings) {
    let programs = &settings.engine.settings().search_path;
    let opener: Option<PathBuf> =
        programs.iter().map(|folder| folder.join("xdg-open")).find(|file| file.is_file());
    let Some(opener) = opener.filter(|_| settings.has_display) else { return };
    let command = Command::new(opener)
        .arg(url)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn();
    if let Ok(mut browser) = command {
        std::thread::spawn(move || browser.wait());
    }
}
