//! Runs the programs that create environments (pip, conda), and kills them with their children when the
//! environment is no longer needed. A node that was killed leaves the children of its program behind; the next process that
//! creates the same environment kills them, before it removes the folder to which they write.

use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use protocol::CONDA_TOOLS;
use rustix::process::{
    Pid, PidfdFlags, Signal, kill_process_group, pidfd_open, pidfd_send_signal,
    set_parent_process_death_signal,
};

use crate::job_users::{JobUser, take_back};
use crate::orphans::environment_has;
use crate::variables::Environment;

/// How many lines of a program that failed are quoted.
const LINES: usize = 15;

/// Environment variable of programs that create an environment, and so of their children: its folder.
const CREATES_VARIABLE: &str = "GRISTMILL_CREATES";
/// Checks for the end of killed processes, and the pause between two: only a process that hangs in
/// the kernel takes longer.
const LOOKS_MAX: u32 = 100;
const LOOK_PAUSE: Duration = Duration::from_millis(10);

/// The programs of one environment, which run one after the other, each in a process group of its own.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tools {
    state: Arc<Mutex<RunningTool>>,
    /// The environment variables of this process that they get.
    variables: Arc<Environment>,
    /// The user that runs them; `None`: that of this process.
    user: Option<Arc<JobUser>>,
}

#[derive(Debug, Default)]
struct RunningTool {
    running: Option<Pid>,
    is_stopped: bool,
}

/// Stops the programs when it is dropped.
pub(crate) struct StopOnDrop(Tools);

impl Drop for StopOnDrop {
    fn drop(&mut self) {
        let mut state = self.0.state.lock().expect("no holder panics");
        state.is_stopped = true;
        if let Some(leader) = state.running {
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

impl Tools {
    /// `variables`: the environment of the programs. `user`: the user that runs them, if it is not
    /// that of this process.
    pub(crate) fn new(variables: Environment, user: Option<Arc<JobUser>>) -> Self {
        Self { variables: variables.into(), user, ..Self::default() }
    }

    /// Makes folders to which the programs write.
    pub(crate) fn own(&self, folders: &[&Path]) -> Result<()> {
        for folder in folders {
            let made = match &self.user {
                Some(user) => user.own_all(folder),
                None => std::fs::create_dir_all(folder),
            };
            made.with_context(|| format!("create {}", folder.display()))?;
        }
        Ok(())
    }

    /// Takes a folder from the programs, which have ended.
    pub(crate) fn give_up(&self, folder: &Path) -> Result<()> {
        let Some(user) = &self.user else { return Ok(()) };
        user.kill_all();
        take_back(folder).with_context(|| format!("take over {}", folder.display()))
    }

    pub(crate) fn stop_on_drop(&self) -> StopOnDrop {
        StopOnDrop(self.clone())
    }

    /// Fails once the programs have been stopped.
    pub(crate) fn check_not_stopped(&self) -> Result<()> {
        match self.state.lock().expect("no holder panics").is_stopped {
            true => bail!("the environment is no longer needed"),
            false => Ok(()),
        }
    }

    /// Runs a program that creates the environment in this folder, as [`run`](Self::run) does. `scratch`: a folder for other
    /// files of a job user, who has no home.
    pub(crate) fn create(
        &self,
        command: &mut Command,
        folder: &Path,
        scratch: &Path,
    ) -> Result<String> {
        if self.user.is_some() {
            command.env("HOME", scratch).env("TMPDIR", scratch);
        }
        self.run(command.env(CREATES_VARIABLE, folder))
    }

    /// Runs a program to its end and returns what it wrote to standard output. Blocks. If the program fails, the error quotes
    /// its last lines, below the one that says most.
    pub(crate) fn run(&self, command: &mut Command) -> Result<String> {
        let program = command.get_program().to_string_lossy().into_owned();
        let own: Environment = command
            .get_envs()
            .filter_map(|(name, value)| Some((name.to_owned(), value?.to_owned())))
            .collect();
        command.env_clear().envs(self.variables.iter().cloned()).envs(own);
        command.process_group(0).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        if let Some(user) = &self.user {
            // SAFETY: `becoming` makes only async-signal-safe calls.
            unsafe { command.pre_exec(user.becoming()) };
        }
        // The program of a killed node dies too, but its children do not (see `kill_creators`). The
        // waiting thread lives as long as the program. SAFETY: `prctl` is async-signal-safe.
        unsafe {
            command.pre_exec(move || Ok(set_parent_process_death_signal(Some(Signal::KILL))?))
        };
        let child = {
            let mut state = self.state.lock().expect("no holder panics");
            if state.is_stopped {
                bail!("{program} was not started, because the environment is no longer needed");
            }
            let child = command.spawn().with_context(|| format!("start {program}"))?;
            state.running = Some(Pid::from_child(&child));
            child
        };
        let output = child.wait_with_output();
        self.state.lock().expect("no holder panics").running = None;
        let output = output.with_context(|| format!("wait for {program}"))?;
        if output.status.success() {
            return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
        }
        let text = [output.stdout, output.stderr].concat();
        bail!("{program} ended with {}: {}", output.status, said(&String::from_utf8_lossy(&text)))
    }

    /// Returns the version of an interpreter, and where it is installed.
    pub(crate) fn version(&self, python: &Path) -> Result<String> {
        self.run(
            Command::new(python).args(["-c", "import sys; print(sys.version, sys.base_prefix)"]),
        )
        .with_context(|| format!("ask {} for its version", python.display()))
    }

    pub(crate) fn has_conda(&self) -> bool {
        CONDA_TOOLS.iter().any(|tool| self.find(tool).is_some())
    }

    /// Returns a program if it is installed.
    pub(crate) fn find(&self, program: &str) -> Option<PathBuf> {
        self.run(Command::new(program).arg("--version")).ok().map(|_| PathBuf::from(program))
    }
}

/// Kills the programs that still create the environment in this folder for a killed node. The
/// caller holds the lock of the entry, so no other node creates it.
pub(crate) fn kill_creators(folder: &Path) {
    let variable = [CREATES_VARIABLE.as_bytes(), b"=", folder.as_os_str().as_bytes()].concat();
    for _ in 0..LOOKS_MAX {
        let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let all = all.filter_map(|entry| Pid::from_raw(entry.file_name().to_str()?.parse().ok()?));
        let creators: Vec<Pid> =
            all.filter(|pid| environment_has(*pid, &variable) == Some(true)).collect();
        if creators.is_empty() {
            return;
        }
        for pid in creators {
            // Another process may have got the id before the descriptor was opened, but not after
            // it.
            if let Ok(process) = pidfd_open(pid, PidfdFlags::empty())
                && environment_has(pid, &variable) == Some(true)
            {
                let _ = pidfd_send_signal(process, Signal::KILL);
            }
        }
        std::thread::sleep(LOOK_PAUSE);
    }
}

/// Returns the message of a program that failed: its last error, or else its last line, followed by
/// the last lines.
fn said(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let is_error = |line: &&&str| line.trim_start().to_ascii_lowercase().starts_with("error");
    let Some(first) = lines.iter().rfind(is_error).or(lines.last()) else {
        return "it said nothing".to_owned();
    };
    let last = &lines[lines.len().saturating_sub(LINES)..];
    format!("{}\nits last lines:\n  {}", first.trim(), last.join("\n  "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_of_a_program_is_in_the_first_line() {
        let pip = "Collecting foo\nERROR: Could not find a version\nERROR: No matching distribution found for foo\n\nhint\n";
        assert!(said(pip).starts_with(
            "ERROR: No matching distribution found for foo\nits last lines:\n  Collecting foo\n"
        ));
        assert!(said("one\ntwo\n").starts_with("two\nits last lines:\n  one\n  two"));
        assert_eq!(said(" \n"), "it said nothing");
    }

    #[test]
    fn programs_of_a_killed_node_are_killed() {
        let (one, other) = (Path::new("/cache/one"), Path::new("/cache/other"));
        let start = |folder: &Path| {
            let mut command = Command::new("sh");
            command.args(["-c", "sleep 1000 & wait"]).env(CREATES_VARIABLE, folder);
            command.spawn().expect("sh is installed")
        };
        let (mut created, mut creating) = (start(one), start(other));
        kill_creators(one);
        assert!(!created.wait().expect("it has ended").success());
        assert!(creating.try_wait().expect("a child").is_none(), "that of another environment");
        kill_creators(other);
        assert!(!creating.wait().expect("it has ended").success());
    }

    #[test]
    fn stop_kills_the_children_of_a_program_too() {
        let tools = Tools::new(std::env::vars_os().collect(), None);
        let stop = tools.stop_on_drop();
        let (sender, pipe) = std::sync::mpsc::channel();
        // The program ends only when its child has closed the pipe.
        let (reader, writer) = std::io::pipe().expect("a pipe");
        let running = tools.clone();
        std::thread::spawn(move || {
            let mut command = Command::new("sh");
            command.args(["-c", "sleep 1000 & echo started >&3; wait"]);
            let fd = std::os::fd::AsRawFd::as_raw_fd(&writer);
            // SAFETY: `dup2` is async-signal-safe.
            unsafe {
                command.pre_exec(move || {
                    if libc::dup2(fd, 3) < 0 {
                        Err(std::io::Error::last_os_error())
                    } else {
                        Ok(())
                    }
                })
            };
            let ended = running.run(&mut command);
            drop(writer);
            sender.send(ended.map_err(|error| format!("{error:#}"))).expect("somebody waits");
        });
        let mut lines = std::io::BufRead::lines(std::io::BufReader::new(reader));
        assert_eq!(lines.next().expect("a line").expect("readable"), "started");
        drop(stop);
        let error = pipe
            .recv_timeout(Duration::from_secs(60))
            .expect("the program has ended")
            .expect_err("killed");
        assert!(error.contains("signal: 9"), "{error}");
        assert!(lines.next().is_none(), "the child holds the pipe as long as it lives");
        let error = tools.run(&mut Command::new("true")).expect_err("stopped");
        assert!(format!("{error:#}").contains("was not started"), "{error:#}");
        assert!(tools.check_not_stopped().is_err());
    }
}
