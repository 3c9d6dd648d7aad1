//! One Python interpreter as a child process: start, talk, look, kill. It knows nothing of queues or leases.
//!
//! The child is the leader of its own process group and session. Whatever way it ends, the whole group is killed
//! before the child is reaped, so nothing that user code forked outlives it, and no recycled process id is ever hit.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::IoSlice;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::time::Duration;

use anyhow::{Context, Result};
use bytes::Bytes;
use protocol::{FrameReader, ProcessEvent, SLOT_PHASES, STATUS_PAGE_BYTES, SlotPhase, status_offset};
use rustix::fs::MemfdFlags;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::process::{Pid, PidfdFlags, Signal};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;
use tokio::sync::mpsc;

use crate::capped_log;

/// Where the child finds its end of the socket. Part of the contract with the Python package.
const SOCKET_FD: RawFd = 3;
/// Where the child finds the status page.
const STATUS_FD: RawFd = 4;
/// Above every descriptor number the child expects something at.
const FD_FLOOR: RawFd = 10;
/// Files that may be passed with one `sendmsg`; the kernel's limit is 253.
const FILES_PER_SEND_MAX: usize = 64;
/// Bytes asked of the socket at once.
const READ_BYTES: usize = 256 * 1024;

/// How to start a process.
#[derive(Debug)]
pub struct Start {
    /// Interpreter.
    pub python: PathBuf,
    /// `bootstrap.py` of the Python package.
    pub bootstrap: PathBuf,
    /// Working directory.
    pub scratch: PathBuf,
    /// Added to the environment of the agent.
    pub environment: Vec<(OsString, OsString)>,
    /// Scheduling priority, 0 to 20.
    pub nice: u32,
    /// Where what the process and its children write to descriptors 1 and 2 goes.
    pub stdout_log: PathBuf,
    /// See `stdout_log`.
    pub stderr_log: PathBuf,
    /// Limit of each of the two files.
    pub log_bytes_max: u64,
}

/// What a process tells whoever started it.
#[derive(Debug)]
pub enum Report {
    /// Frames, in order, each with its payload.
    Events(Vec<(ProcessEvent, Bytes)>),
    /// It is gone, group and all: exit status, or minus the signal. Nothing follows.
    Exited(i32),
    /// It sent something that is no frame. It will be killed.
    Broken(String),
}

/// A frame on its way to the process, with the memory files that belong to it.
#[derive(Debug)]
pub struct Outgoing {
    /// Encoded frames.
    pub bytes: Vec<u8>,
    /// One for each table, in order.
    pub files: Vec<Arc<OwnedFd>>,
}

/// A running process. Dropping it kills the process group.
#[derive(Debug)]
pub struct PythonProcess {
    pid: Pid,
    outgoing: mpsc::UnboundedSender<Outgoing>,
    status: StatusPage,
    supervisor: tokio::task::JoinHandle<()>,
}

impl PythonProcess {
    /// Starts the interpreter. `report` is called from a task of its own for everything that happens.
    pub fn start(start: &Start, report: impl Fn(Report) + Send + Sync + 'static) -> Result<Self> {
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().context("make a socket pair")?;
        let status = StatusPage::new()?;
        let socket_fd = rustix::io::fcntl_dupfd_cloexec(&theirs, FD_FLOOR)?;
        let status_fd = rustix::io::fcntl_dupfd_cloexec(&status.file, FD_FLOOR)?;
        drop(theirs);
        let mut command = tokio::process::Command::new(&start.python);
        command
            .arg(&start.bootstrap)
            .current_dir(&start.scratch)
            .envs(start.environment.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let (socket, page, nice) = (socket_fd.as_raw_fd(), status_fd.as_raw_fd(), start.nice as libc::c_int);
        // SAFETY: between fork and exec only async-signal-safe calls are made, on descriptors that this function keeps
        // open until the child has been started.
        unsafe {
            command.pre_exec(move || {
                if libc::setsid() < 0 || libc::dup2(socket, SOCKET_FD) < 0 || libc::dup2(page, STATUS_FD) < 0 {
                    return Err(std::io::Error::last_os_error());
                }
                // Failing to lower the priority is no reason not to run.
                libc::setpriority(libc::PRIO_PROCESS, 0, nice);
                Ok(())
            });
        }
        let mut child = command
            .spawn()
            .with_context(|| format!("start {} in {}", start.python.display(), start.scratch.display()))?;
        drop((socket_fd, status_fd));
        let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32)).expect("a started child has a process id");
        let pidfd = rustix::process::pidfd_open(pid, PidfdFlags::empty()).context("watch the process")?;
        // SAFETY: an owned descriptor is the same descriptor for as long as it lives.
        let exit = unsafe { AsyncFd::register_with_interest(pidfd, Interest::READABLE) }
            .map_err(|error| error.into_parts().1)
            .context("watch the process")?;

        if let Some(stdout) = child.stdout.take() {
            tokio::spawn(capped_log::copy(stdout, start.stdout_log.clone(), start.log_bytes_max));
        }
        if let Some(stderr) = child.stderr.take() {
            tokio::spawn(capped_log::copy(stderr, start.stderr_log.clone(), start.log_bytes_max));
        }

        ours.set_nonblocking(true).context("prepare the socket")?;
        let socket = Arc::new(UnixStream::from_std(ours).context("prepare the socket")?);
        let (outgoing, to_send) = mpsc::unbounded_channel();
        let writer = tokio::spawn(write_frames(socket.clone(), to_send));
        let supervisor = tokio::spawn(async move {
            if let Err(error) = read_frames(&socket, &report, &exit).await {
                report(Report::Broken(format!("{error:#}")));
                let _ = exit.readable().await;
            }
            writer.abort();
            kill_group(pid);
            let code = match child.wait().await {
                Ok(status) => status.code().unwrap_or_else(|| -status.signal().unwrap_or(0)),
                Err(_) => -1,
            };
            report(Report::Exited(code));
        });
        Ok(Self { pid, outgoing, status, supervisor })
    }

    /// Process id.
    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get() as u32
    }

    /// Queues frames. If the process is gone, its exit is reported and nothing else happens.
    pub fn send(&self, outgoing: Outgoing) {
        let _ = self.outgoing.send(outgoing);
    }

    /// What the process is doing, on which hand-over (0: none), and for how long.
    pub fn status(&self) -> (SlotPhase, u64, Duration) {
        self.status.read()
    }

    /// Takes back the hand-overs `first..end`. `false`: too late, the process has got as far as `first`; it answers for
    /// each of them whether it was begun.
    pub fn recall(&self, first: u64, end: u64) -> bool {
        self.status.recall(first, end)
    }

    /// Asks the interpreter to write all Python stacks into its stack file. Works while user code holds the
    /// interpreter, and would end one that has not got as
    /// far as registering the signal, so it must only be called in phases after `Starting`.
    pub fn dump_stacks(&self) {
        // SAFETY: `kill` with a valid process id; the child is not reaped while `self` is alive and unreported.
        unsafe { libc::kill(self.pid.as_raw_nonzero().get(), stack_signal()) };
    }

    /// Kills the whole process group. The exit is reported as usual.
    pub fn kill(&self) {
        kill_group(self.pid);
    }
}

impl Drop for PythonProcess {
    fn drop(&mut self) {
        if !self.supervisor.is_finished() {
            kill_group(self.pid);
        }
    }
}

/// The signal that makes a process dump its stacks. Part of the contract with the Python package.
fn stack_signal() -> libc::c_int {
    libc::SIGRTMAX() - 1
}

fn kill_group(leader: Pid) {
    let _ = rustix::process::kill_process_group(leader, Signal::KILL);
}

/// Reads until the process is gone: its exit is what counts, since a forked child may keep the socket open.
async fn read_frames(socket: &UnixStream, report: &impl Fn(Report), exit: &AsyncFd<OwnedFd>) -> Result<()> {
    let mut frames = FrameReader::default();
    loop {
        let exited = tokio::select! {
            biased;
            ready = socket.readable() => { ready?; false }
            gone = exit.readable() => { gone?.retain_ready(); true }
        };
        // After the exit, what is left in the socket still counts: results that were sent are results.
        loop {
            let buffer = frames.buffer();
            buffer.reserve(READ_BYTES);
            match socket.try_read_buf(buffer) {
                Ok(0) => {
                    exit.readable().await?.retain_ready();
                    return Ok(());
                }
                Ok(_) => report_frames(&mut frames, report)?,
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => {
                    exit.readable().await?.retain_ready();
                    return Ok(());
                }
                Err(error) => return Err(error).context("read from the process"),
            }
        }
        if exited {
            return Ok(());
        }
    }
}

fn report_frames(frames: &mut FrameReader, report: &impl Fn(Report)) -> Result<()> {
    let mut events = Vec::new();
    let broken = loop {
        match frames.next_frame::<ProcessEvent>() {
            Ok(Some(frame)) => events.push(frame),
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    if !events.is_empty() {
        report(Report::Events(events));
    }
    broken.map_or(Ok(()), |error| Err(error.into()))
}

async fn write_frames(socket: Arc<UnixStream>, mut to_send: mpsc::UnboundedReceiver<Outgoing>) {
    while let Some(outgoing) = to_send.recv().await {
        // A failed write means that the process is gone; its exit says so.
        if write_frame(&socket, outgoing).await.is_err() {
            return;
        }
    }
}

async fn write_frame(socket: &UnixStream, outgoing: Outgoing) -> std::io::Result<()> {
    let mut rest = &outgoing.bytes[..];
    let mut files: VecDeque<Arc<OwnedFd>> = outgoing.files.into();
    while !rest.is_empty() {
        let sending = files.len().min(FILES_PER_SEND_MAX);
        // While files remain, bytes go out one at a time but for the last batch, so that every file has a byte to
        // travel with, and all files arrive before the end of their frame.
        let bytes = if files.len() > sending { &rest[..1] } else { rest };
        let sent = socket
            .async_io(Interest::WRITABLE, || {
                let borrowed: Vec<_> = files.iter().take(sending).map(|file| file.as_fd()).collect();
                let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_PER_SEND_MAX))];
                let mut ancillary = SendAncillaryBuffer::new(&mut space);
                if !borrowed.is_empty() {
                    ancillary.push(SendAncillaryMessage::ScmRights(&borrowed));
                }
                let flags = SendFlags::NOSIGNAL;
                Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, flags)?)
            })
            .await?;
        files.drain(..sending);
        rest = &rest[sent..];
    }
    Ok(())
}

/// Shared memory in which the process says what it is doing.
#[derive(Debug)]
struct StatusPage {
    file: OwnedFd,
    address: *mut std::ffi::c_void,
}

// SAFETY: the page is only ever used through atomics, and unmapped when its owner is dropped.
unsafe impl Send for StatusPage {}
// SAFETY: see above.
unsafe impl Sync for StatusPage {}

impl StatusPage {
    fn new() -> Result<Self> {
        let file = rustix::fs::memfd_create("gristmill-status", MemfdFlags::CLOEXEC).context("make a status page")?;
        rustix::fs::ftruncate(&file, STATUS_PAGE_BYTES as u64).context("make a status page")?;
        // SAFETY: a fresh shared mapping of a file of this size, at an address of the kernel's choice.
        let address = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                STATUS_PAGE_BYTES,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )
        }
        .context("map the status page")?;
        Ok(Self { file, address })
    }

    fn field(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: the mapping lives as long as `self`, offsets are multiples of 8 inside the page.
        unsafe { &*self.address.cast::<u8>().add(offset).cast::<AtomicU64>() }
    }

    fn load(&self, offset: usize) -> u64 {
        self.field(offset).load(Ordering::Acquire)
    }

    fn recall(&self, first: u64, end: u64) -> bool {
        self.field(status_offset::RECALL_FIRST).store(first, Ordering::Release);
        self.field(status_offset::RECALL_END).store(end, Ordering::Release);
        fence(Ordering::SeqCst);
        self.load(status_offset::STATE) >> 8 < first
    }

    fn read(&self) -> (SlotPhase, u64, Duration) {
        // Read again until the phase did not change meanwhile, so that time and phase belong together.
        loop {
            let state = self.load(status_offset::STATE);
            let since = self.load(status_offset::SINCE);
            if state != self.load(status_offset::STATE) {
                continue;
            }
            let phase = SLOT_PHASES.get((state & 0xff) as usize).copied().unwrap_or(SlotPhase::Starting);
            let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
            let now = now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64;
            let elapsed = if since == 0 { 0 } else { now.saturating_sub(since) };
            return (phase, state >> 8, Duration::from_nanos(elapsed));
        }
    }
}

impl Drop for StatusPage {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this size, and nobody holds a reference into it any more.
        let _ = unsafe { rustix::mm::munmap(self.address, STATUS_PAGE_BYTES) };
    }
}

/// The bootstrap script of a Python package folder.
pub fn bootstrap_script(package: &Path) -> PathBuf {
    package.join("gristmill").join("bootstrap.py")
}
