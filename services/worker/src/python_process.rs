//! One Python interpreter as a child process: starts, messages, observes and kills it. Independent of queues and
//! leases.
//!
//! The child leads its own process group and session. However it ends, the agent kills the whole group before it reaps
//! the child, and then the descendants that have left the group (`orphans`). So no descendant outlives the child, and
//! no signal hits a recycled process id.

use std::collections::VecDeque;
use std::io::{ErrorKind, IoSlice};
use std::mem::MaybeUninit;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bytes::{Bytes, BytesMut};
use protocol::{
    FrameReader, ProcessEvent, SLOT_PHASES, STATUS_PAGE_BYTES, SlotPhase, ToProcess, encode_frame,
    status_offset,
};
use rustix::fs::SealFlags;
use rustix::io::Errno;
use rustix::mm::{MapFlags, ProtFlags};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags};
use rustix::pipe::PipeFlags;
use rustix::process::{Pid, PidfdFlags, Signal, WaitOptions};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::job_users::JobUser;
use crate::orphans::{self, Kind, PROCESS_VARIABLE};
use crate::printed::Pipes;
use crate::variables::Environment;
use crate::{capped_log, memory_files};

/// Descriptor of the child's end of the socket. Part of the contract with the Python package.
const SOCKET_FD: RawFd = 3;
/// Descriptor of the status page.
const STATUS_FD: RawFd = 4;
/// Lowest descriptor of the originals, above those that the child expects.
const FD_FLOOR: RawFd = 10;
/// Files that are passed with one `sendmsg`; the kernel's limit is 253.
const FILES_PER_SEND_MAX: usize = 64;
/// Longest wait for the end of the output, after the process and its children have ended.
const LAST_OUTPUT_TIME: Duration = Duration::from_millis(500);
const READ_BYTES: usize = 256 * 1024;
/// The agent reads from a process that has its next mini-batch already once in this time: reading,
/// scheduling and announcing many answers together costs little more than one.
const ANSWERS_TOGETHER: Duration = Duration::from_millis(1);
/// Most bytes of such answers: the socket must hold those of the next pause, too.
const ANSWERS_BYTES_MAX: usize = 64 * 1024;

/// The options for starting a process.
pub struct StartOptions {
    pub python: PathBuf,
    /// Folder of the Python package.
    pub package: PathBuf,
    /// Working directory.
    pub scratch: PathBuf,
    /// The whole environment, apart from `marker`.
    pub environment: Environment,
    /// Scheduling priority, 0 to 20.
    pub nice: u32,
    /// The user that runs the process; `None`: that of the agent.
    pub user: Option<Arc<JobUser>>,
    /// The file through which the process enters a control group.
    pub group: Option<std::fs::File>,
    /// Value that identifies the process on this machine. Its children inherit it.
    pub marker: String,
    /// Files for the output of the process and its children on descriptors 1 and 2, and the limit of each.
    pub logs: [PathBuf; 2],
    pub log_bytes_max: u64,
}

pub enum Report {
    /// Frames from the process, in order, each with its payload.
    Events(Vec<(ProcessEvent, Bytes)>),
    /// The process and its descendants have ended: exit status, or minus the signal. The last report.
    Exited(i32),
    /// The process sent an invalid frame.
    Broken(String),
}

/// Encoded frames for the process, and a memory file for each table, in order.
type Outgoing = (Vec<u8>, Vec<Arc<OwnedFd>>);

/// A running process. Dropping it kills the process group.
pub struct PythonProcess {
    pid: Pid,
    outgoing: mpsc::UnboundedSender<Outgoing>,
    pub page: StatusPage,
    incomplete: Arc<Incomplete>,
    /// The last hand-over.
    handed: Arc<AtomicU64>,
    /// The output of native code and child processes.
    pub pipes: Arc<Pipes>,
    /// Cancelled when the process and its descendants have ended.
    pub ended: CancellationToken,
    supervisor: tokio::task::JoinHandle<()>,
}

/// When the last bytes of an incomplete frame arrived.
type Incomplete = Mutex<Option<Instant>>;

impl PythonProcess {
    /// Starts the interpreter. Calls `report` from a task of its own.
    pub fn start(
        start: &StartOptions,
        kind: Kind,
        report: impl Fn(Report) + Send + Sync + 'static,
    ) -> Result<Self> {
        let (ours, theirs) = ends()?;
        let pid = spawn(start, kind, theirs).with_context(|| {
            format!("start {} in {}", start.python.display(), start.scratch.display())
        })?;
        Self::supervise(pid, ours, start, report)
    }

    /// Supervises a process that a template has forked for `start`.
    pub fn adopt(
        pid: u32,
        ours: ProcessChannels,
        start: &StartOptions,
        report: impl Fn(Report) + Send + Sync + 'static,
    ) -> Result<Self> {
        let pid = i32::try_from(pid)
            .ok()
            .and_then(Pid::from_raw)
            .context("the template names no process")?;
        orphans::register_forked(pid)?;
        Self::supervise(pid, ours, start, report)
    }

    fn supervise(
        pid: Pid,
        ours: ProcessChannels,
        start: &StartOptions,
        report: impl Fn(Report) + Send + Sync + 'static,
    ) -> Result<Self> {
        let ProcessChannels { socket: ours, page, outputs } = ours;
        let pidfd =
            rustix::process::pidfd_open(pid, PidfdFlags::empty()).context("watch the process")?;
        let exit = watch(pidfd, Interest::READABLE).context("watch the process")?;

        let mut pipes = Pipes::default();
        let mut copying = JoinSet::new();
        for (output, log) in outputs.into_iter().zip(start.logs.clone()) {
            let latest = pipes.add(output.as_fd());
            let output =
                pipe::Receiver::from_owned_fd(output).context("read the output of the process")?;
            copying.spawn(capped_log::copy(output, log, start.log_bytes_max, latest));
        }

        ours.set_nonblocking(true).context("prepare the socket")?;
        let to_write = ours.try_clone().context("prepare the socket")?;
        let to_write = watch(to_write, Interest::WRITABLE).context("prepare the socket")?;
        let (outgoing, to_send) = mpsc::unbounded_channel();
        let report = Arc::new(report);
        let reporting = report.clone();
        let writer = tokio::spawn(async move {
            if let Err(error) = write_frames(&to_write, to_send).await {
                reporting(Report::Broken(format!("write to the process: {error}")));
            }
        });
        let incomplete = Arc::new(Incomplete::default());
        let handed = Arc::new(AtomicU64::new(0));
        let (reading, last, marker) = (incomplete.clone(), handed.clone(), start.marker.clone());
        let ended = CancellationToken::new();
        let has_ended = ended.clone();
        let supervisor = tokio::spawn(async move {
            if let Err(error) = read_frames(&ours, &reading, &last, &*report, &exit).await {
                report(Report::Broken(format!("{error:#}")));
                let _ = exit.readable().await;
            }
            writer.abort();
            kill_group(pid);
            let code = match rustix::process::waitpid(Some(pid), WaitOptions::empty()) {
                Ok(Some((_, status))) => status
                    .exit_status()
                    .unwrap_or_else(|| -status.terminating_signal().unwrap_or(0)),
                _ => -1,
            };
            let _ = tokio::task::spawn_blocking(move || orphans::kill(pid, &marker)).await;
            // All writers have ended, so the pipes hold the rest of the output.
            let _ = tokio::time::timeout(LAST_OUTPUT_TIME, copying.join_all()).await;
            report(Report::Exited(code));
            has_ended.cancel();
        });
        Ok(Self {
            pid,
            outgoing,
            page,
            incomplete,
            handed,
            pipes: Arc::new(pipes),
            ended,
            supervisor,
        })
    }

    pub fn id(&self) -> u32 {
        self.pid.as_raw_nonzero().get() as u32
    }

    /// Queues a frame, with a memory file for each table, in order. It is dropped if the process has ended.
    pub fn send(&self, frame: &ToProcess, files: Vec<Arc<OwnedFd>>) {
        if let ToProcess::MiniBatches { mini_batches } = frame
            && let Some(last) = mini_batches.last()
        {
            self.handed.store(last.sequence, Ordering::Relaxed);
        }
        let mut bytes = Vec::new();
        encode_frame(frame, b"", &mut bytes);
        let _ = self.outgoing.send((bytes, files));
    }

    /// Returns the time since the last bytes of an incomplete frame.
    pub fn frame_incomplete_for(&self) -> Option<Duration> {
        self.incomplete.lock().expect("no holder panics").map(|since| since.elapsed())
    }

    /// Asks the interpreter to write all Python stacks to its stack file. Works while user code
    /// holds the interpreter. Call it only in phases after `Starting`: earlier, the signal would
    /// end the interpreter.
    pub fn dump_stacks(&self) {
        // SAFETY: `kill` with a valid process id; the child is not reaped while `self` is alive and unreported.
        unsafe { libc::kill(self.pid.as_raw_nonzero().get(), stack_signal()) };
    }

    /// Kills the whole process group. A report of the exit follows.
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

/// The agent's ends of the connection to a process.
pub struct ProcessChannels {
    socket: UnixStream,
    page: StatusPage,
    /// Of descriptors 1 and 2.
    outputs: [OwnedFd; 2],
}

/// Creates the connection of the agent to a process: the agent's ends, and those for descriptors 3,
/// 4, 1 and 2 of the process.
pub fn ends() -> Result<(ProcessChannels, [OwnedFd; 4])> {
    let (socket, theirs) = UnixStream::pair().context("create a socket pair")?;
    let page = StatusPage::new()?;
    let pipe = || rustix::pipe::pipe_with(PipeFlags::CLOEXEC).context("create a pipe");
    let ((stdout, to_stdout), (stderr, to_stderr)) = (pipe()?, pipe()?);
    let status = page.file.try_clone().context("share the status page")?;
    Ok((
        ProcessChannels { socket, page, outputs: [stdout, stderr] },
        [theirs.into(), status, to_stdout, to_stderr],
    ))
}

/// Starts an interpreter in its own session.
fn spawn(
    start: &StartOptions,
    kind: Kind,
    [socket, status, stdout, stderr]: [OwnedFd; 4],
) -> Result<Pid> {
    let socket = rustix::io::fcntl_dupfd_cloexec(&socket, FD_FLOOR)?;
    let status = rustix::io::fcntl_dupfd_cloexec(&status, FD_FLOOR)?;
    let mut command = Command::new(&start.python);
    command
        .arg(start.package.join("gristmill/bootstrap.py"))
        .current_dir(&start.scratch)
        .env_clear()
        .envs(start.environment.iter().map(|(name, value)| (name, value)))
        .env(PROCESS_VARIABLE, &start.marker)
        .stdin(Stdio::null())
        .stdout(stdout)
        .stderr(stderr);
    let (socket_fd, status_fd, nice) =
        (socket.as_raw_fd(), status.as_raw_fd(), start.nice as libc::c_int);
    let group = start.group.as_ref().map(AsRawFd::as_raw_fd);
    let become_user = start.user.as_ref().map(|user| user.becoming());
    // SAFETY: between fork and exec the closure makes only async-signal-safe calls, on descriptors that this function keeps
    // open until the child has started.
    unsafe {
        command.pre_exec(move || {
            if group.is_some_and(|group| libc::write(group, c"0".as_ptr().cast(), 1) < 0) {
                return Err(std::io::Error::last_os_error());
            }
            if libc::setsid() < 0
                || libc::dup2(socket_fd, SOCKET_FD) < 0
                || libc::dup2(status_fd, STATUS_FD) < 0
            {
                return Err(std::io::Error::last_os_error());
            }
            // The process also runs with an unchanged priority.
            libc::setpriority(libc::PRIO_PROCESS, 0, nice);
            become_user.as_ref().map_or(Ok(()), |become_user| become_user())
        });
    }
    // The supervisor reaps it.
    Ok(Pid::from_child(&orphans::start(kind, || command.spawn(), Pid::from_child)?))
}

/// The signal that makes a process dump its stacks. Part of the contract with the Python package.
fn stack_signal() -> libc::c_int {
    libc::SIGRTMAX() - 1
}

fn kill_group(leader: Pid) {
    let _ = rustix::process::kill_process_group(leader, Signal::KILL);
}

/// Lets tasks wait for a descriptor.
fn watch<F: AsFd + AsRawFd>(descriptor: F, interest: Interest) -> std::io::Result<AsyncFd<F>> {
    // SAFETY: descriptors that are owned or borrowed stay the same for as long as they live.
    unsafe { AsyncFd::register_with_interest(descriptor, interest) }
        .map_err(|error| error.into_parts().1)
}

/// Reads frames until the process exits. The end of the stream is not enough, since a forked child may keep the socket
/// open.
async fn read_frames(
    socket: &UnixStream,
    incomplete: &Incomplete,
    handed: &AtomicU64,
    report: &impl Fn(Report),
    exit: &AsyncFd<OwnedFd>,
) -> Result<()> {
    let mut frames = FrameReader::default();
    let mut exited = false;
    loop {
        // The last hand-over that was answered, if nothing else has arrived.
        let mut answered = None;
        loop {
            match read_some(socket, frames.buffer()) {
                Ok(0) => {
                    exit.readable().await?.retain_ready();
                    return Ok(());
                }
                Ok(bytes) => {
                    answered =
                        report_frames(&mut frames, report)?.filter(|_| bytes <= ANSWERS_BYTES_MAX);
                    *incomplete.lock().expect("no holder panics") =
                        frames.is_in_a_frame().then(Instant::now);
                }
                Err(Errno::WOULDBLOCK) => break,
                Err(Errno::INTR) => {}
                Err(Errno::CONNRESET) => {
                    exit.readable().await?.retain_ready();
                    return Ok(());
                }
                Err(error) => return Err(error).context("read from the process"),
            }
        }
        // Results that the process sent before its exit count: it had exited before the last look.
        if exited {
            return Ok(());
        }
        if answered.is_some_and(|answered| answered < handed.load(Ordering::Relaxed)) {
            // The socket is not registered with epoll meanwhile: there, each answer would wake a thread.
            tokio::time::sleep(ANSWERS_TOGETHER).await;
        } else {
            let watched = watch(socket.as_fd(), Interest::READABLE).context("watch the socket")?;
            exited = tokio::select! {
                biased;
                ready = watched.readable() => { ready?.retain_ready(); false }
                exited = exit.readable() => { exited?.retain_ready(); true }
            };
        }
    }
}

/// Reads bytes that have arrived; 0: the end of the stream.
fn read_some(socket: &UnixStream, buffer: &mut BytesMut) -> rustix::io::Result<usize> {
    buffer.reserve(READ_BYTES);
    let (bytes, _) = rustix::io::read(socket, buffer.spare_capacity_mut())?;
    let count = bytes.len();
    // SAFETY: `read` has initialized them.
    unsafe { buffer.set_len(buffer.len() + count) };
    Ok(count)
}

/// Reports the frames that have arrived. Returns the last hand-over that was answered, if they are answers and whole.
fn report_frames(frames: &mut FrameReader, report: &impl Fn(Report)) -> Result<Option<u64>> {
    let mut events = Vec::new();
    let broken = loop {
        match frames.next_frame::<ProcessEvent>() {
            Ok(Some(frame)) => events.push(frame),
            Ok(None) => break None,
            Err(error) => break Some(error),
        }
    };
    let answered = events.iter().map(|(event, _): &(ProcessEvent, Bytes)| match event {
        ProcessEvent::Answered(ending) => Some(ending.sequence),
        _ => None,
    });
    let answered =
        answered.reduce(|all, next| all.and(next)).flatten().filter(|_| !frames.is_in_a_frame());
    if !events.is_empty() {
        report(Report::Events(events));
    }
    broken.map_or(Ok(answered), |error| Err(error.into()))
}

/// Writes frames until the process closes its end of the socket: either it has ended, which another
/// report says, or the Python package ends it. After another error the process would wait for a
/// frame that never comes.
async fn write_frames(
    socket: &AsyncFd<UnixStream>,
    mut to_send: mpsc::UnboundedReceiver<Outgoing>,
) -> std::io::Result<()> {
    while let Some(outgoing) = to_send.recv().await {
        match write_frame(socket, outgoing).await {
            Err(error)
                if matches!(error.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) =>
            {
                return Ok(());
            }
            written => written?,
        }
    }
    Ok(())
}

async fn write_frame(
    socket: &AsyncFd<UnixStream>,
    (bytes, files): Outgoing,
) -> std::io::Result<()> {
    let mut rest = &bytes[..];
    let mut files: VecDeque<_> = files.into();
    while !rest.is_empty() {
        let sending = files.len().min(FILES_PER_SEND_MAX);
        // All calls except the last send one byte, so that each batch of files travels with a byte and all files arrive
        // before the end of their frame.
        let bytes = if files.len() > sending { &rest[..1] } else { rest };
        let sent = socket
            .async_io(Interest::WRITABLE, |socket| {
                let borrowed: Vec<_> =
                    files.iter().take(sending).map(|file| file.as_fd()).collect();
                let mut space =
                    [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES_PER_SEND_MAX))];
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

/// Shared memory in which the process writes its phase.
pub struct StatusPage {
    file: OwnedFd,
    address: *mut std::ffi::c_void,
}

// SAFETY: the page is only ever used through atomics, and unmapped when its owner is dropped.
unsafe impl Send for StatusPage {}
// SAFETY: see above.
unsafe impl Sync for StatusPage {}

impl StatusPage {
    fn new() -> Result<Self> {
        let file = memory_files::create(
            "gristmill-status",
            STATUS_PAGE_BYTES as u64,
            SealFlags::SHRINK | SealFlags::GROW,
        )
        .context("create a status page")?;
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

    /// Recalls hand-overs. Returns `false` if the process has reached the first; then it answers each of them.
    pub fn recall(&self, sequences: Range<u64>) -> bool {
        // A process that has not reached the last of those recalled before must not start them: then all are one range, which
        // may include a hand-over between them. The process says that it has skipped it.
        if self.load(status_offset::STATE) >> 8
            >= self.load(status_offset::RECALL_END).saturating_sub(1)
        {
            self.field(status_offset::RECALL_FIRST).store(sequences.start, Ordering::Release);
        }
        self.field(status_offset::RECALL_END).store(sequences.end, Ordering::Release);
        fence(Ordering::SeqCst);
        self.load(status_offset::STATE) >> 8 < sequences.start
    }

    /// Returns the offsets in the user's files for stdout and stderr at which the output of a hand-over (0: of
    /// `init()`) begins; `None`: it has no output.
    pub fn printed_from(&self, sequence: u64) -> [Option<u64>; 2] {
        status_offset::PRINTED.map(|[attempt, offset]| {
            (self.load(attempt) == sequence + 1).then(|| self.load(offset))
        })
    }

    /// Returns the phase of the process, its hand-over (0: none), and the duration of the phase so far.
    pub fn read(&self) -> (SlotPhase, u64, Duration) {
        // Repeat until the phase has not changed in between, so that time and phase belong together.
        loop {
            let state = self.load(status_offset::STATE);
            let since = self.load(status_offset::SINCE);
            if state != self.load(status_offset::STATE) {
                continue;
            }
            let phase = phase_of(state);
            let elapsed =
                if since == 0 { 0 } else { monotonic_nanoseconds().saturating_sub(since) };
            return (phase, state >> 8, Duration::from_nanos(elapsed));
        }
    }

    /// Returns how long ago `run()` of the current hand-over began; `None`: it has not begun. Exact once the process has
    /// ended.
    pub fn ran(&self) -> Option<Duration> {
        let has_begun =
            matches!(phase_of(self.load(status_offset::STATE)), SlotPhase::Run | SlotPhase::Report);
        let since = self.load(status_offset::RUN_SINCE);
        has_begun.then(|| Duration::from_nanos(monotonic_nanoseconds().saturating_sub(since)))
    }
}

fn phase_of(state: u64) -> SlotPhase {
    SLOT_PHASES.get((state & 0xff) as usize).copied().unwrap_or(SlotPhase::Starting)
}

fn monotonic_nanoseconds() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

impl Drop for StatusPage {
    fn drop(&mut self) {
        // SAFETY: mapped by `new` with this size, and no reference into it is left.
        let _ = unsafe { rustix::mm::munmap(self.address, STATUS_PAGE_BYTES) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn second_recall_keeps_the_first_until_the_process_has_passed_it() {
        let page = StatusPage::new().expect("memory");
        let reach = |sequence: u64| {
            page.field(status_offset::STATE).store(sequence << 8, Ordering::Release)
        };
        let recalled =
            || page.load(status_offset::RECALL_FIRST)..page.load(status_offset::RECALL_END);
        reach(1);
        assert!(page.recall(2..5));
        assert_eq!(recalled(), 2..5);
        assert!(page.recall(5..7), "it still runs 1");
        assert_eq!(recalled(), 2..7);
        reach(3);
        assert!(page.recall(8..9), "7 runs next, and the process skips it if it was recalled");
        assert_eq!(recalled(), 2..9);
        reach(8);
        assert!(!page.recall(8..10));
        assert_eq!(recalled(), 8..10);
        reach(10);
        assert!(page.recall(12..13));
        assert_eq!(recalled(), 12..13, "the process runs 10 and 11");
    }

    #[test]
    fn script_cannot_take_the_status_page_from_under_the_agent() {
        let page = StatusPage::new().expect("memory");
        for bytes in [0, 2 * STATUS_PAGE_BYTES as u64] {
            assert_eq!(rustix::fs::ftruncate(&page.file, bytes), Err(Errno::PERM));
        }
        assert_eq!(page.read().0, SlotPhase::Starting);
    }

    #[tokio::test]
    async fn frame_that_cannot_be_written_is_an_error_unless_the_process_has_closed_the_socket() {
        let write = async |socket: UnixStream| {
            socket.set_nonblocking(true).expect("ours");
            let (outgoing, to_send) = mpsc::unbounded_channel();
            outgoing.send((vec![0; 10], vec![])).expect("the receiver is there");
            drop(outgoing);
            let socket = watch(socket, Interest::WRITABLE).expect("it can be watched");
            write_frames(&socket, to_send).await.map_err(|error| error.raw_os_error())
        };
        let (ours, theirs) = UnixStream::pair().expect("sockets");
        drop(theirs);
        assert_eq!(write(ours).await, Ok(()));
        let (_reader, pipe) = rustix::pipe::pipe().expect("pipe");
        assert_eq!(write(pipe.into()).await, Err(Some(Errno::NOTSOCK.raw_os_error())));
    }
}
