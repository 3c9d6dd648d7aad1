//! Samples of the resource usage of the node and its processes, in `perf/<node>/`, to find out later why a job was
//! slow.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Result;
use chrono::{DateTime, Utc};
use sysinfo::{Disks, Networks, ProcessRefreshKind, ProcessesToUpdate, System};
use tokio_util::task::AbortOnDropHandle;

use crate::gpu::{GpuUsage, Gpus, VisibleGpus};
use crate::node_log::append_to;

/// Time before the first sample. The pauses between samples double until they are the interval, so that short jobs have some.
const FIRST_SAMPLE_AFTER: Duration = Duration::from_secs(2);
const MEGABYTE: f64 = 1024.0 * 1024.0;

const NODE_COLUMNS: &str = "Utc Time,Cpu Percent,Memory Total (MB),Memory Available (MB),Memory Used (MB),\
    Memory Used Percent,Disk Io Read Count,Disk Io Write Count,Disk Io Read (MB),Disk Io Write (MB),\
    Network Sent (MB),Network Recv (MB),# of TCP/UDP connections";
const PROCESS_COLUMNS: &str = "Utc Time,Pid,Parent Pid,Name,Cpu Percent,Memory Rss (MB),Memory Virtual (MB),\
    Io Read (MB),Io Write (MB),Status";
const GPU_COLUMNS: &str =
    "Utc Time,Gpu,Name,Gpu Percent,Memory Total (MB),Memory Used (MB),Memory Used Percent";
const DISK_COLUMNS: &str = "Utc Time,Mount Point,Total (MB),Used (MB),Available (MB),Used Percent";

/// Samples every `interval` until the guard is dropped. `None` for an interval of 0.
pub fn start(
    folder: PathBuf,
    interval: Duration,
    gpus: VisibleGpus,
) -> Option<AbortOnDropHandle<()>> {
    if interval.is_zero() {
        return None;
    }
    Some(AbortOnDropHandle::new(tokio::spawn(async move {
        let mut pauses = pauses(interval);
        let mut sampler = None;
        loop {
            tokio::time::sleep(pauses.next().expect("there is always a next one")).await;
            let (folder, gpus) = (folder.clone(), gpus.clone());
            let taken = tokio::task::spawn_blocking(move || {
                let mut sampler = sampler.map_or_else(|| Sampler::new(gpus), Ok)?;
                sampler.sample(&folder).map(|()| sampler)
            })
            .await;
            match taken {
                Ok(Ok(used)) => sampler = Some(used),
                Ok(Err(error)) => {
                    tracing::warn!("cannot sample the resource usage of the node: {error:#}");
                    sampler = None;
                }
                // The runtime shuts down.
                Err(_) => return,
            }
        }
    })))
}

/// Returns the pauses before the samples: each doubles the time since the start, until they are the interval.
fn pauses(interval: Duration) -> impl Iterator<Item = Duration> {
    let mut since_start = Duration::ZERO;
    std::iter::repeat_with(move || {
        let pause = since_start.max(FIRST_SAMPLE_AFTER).min(interval);
        since_start += pause;
        pause
    })
}

struct Sampler {
    system: System,
    gpus: Option<Gpus>,
}

impl Sampler {
    fn new(gpus: VisibleGpus) -> Result<Self> {
        // Processor usage is the difference between two readings; this is the first.
        let mut system = System::new()?;
        system.refresh_cpu_usage();
        Ok(Self { system, gpus: Gpus::found(gpus) })
    }

    fn sample(&mut self, folder: &Path) -> Result<()> {
        let now = Utc::now();
        sample(&mut self.system, now, folder)?;
        let usage = self.gpus.as_ref().map_or_else(Vec::new, Gpus::usage);
        write_gpus(folder, &time(now), &usage)
    }
}

fn time(now: DateTime<Utc>) -> String {
    now.format("%Y-%m-%d %H:%M:%S%.6f").to_string()
}

/// Writes a line for each GPU. A machine without GPUs has no such file.
fn write_gpus(folder: &Path, time: &str, usage: &[GpuUsage]) -> Result<()> {
    if usage.is_empty() {
        return Ok(());
    }
    let line =
        |GpuUsage { number, name, busy_percent, memory_bytes, memory_used_bytes }: &GpuUsage| {
            let name = name.replace([',', '"', '\n'], "_");
            let busy = busy_percent.map_or(String::new(), |percent| percent.to_string());
            let [total, used] =
                [*memory_bytes, *memory_used_bytes].map(|bytes| bytes as f64 / MEGABYTE);
            format!(
                "{time},{number},{name},{busy},{total:.1},{used:.1},{:.1}",
                100.0 * used / total.max(1.0)
            )
        };
    append(&folder.join("node_gpu_usage.csv"), GPU_COLUMNS, usage.iter().map(line))
}

fn sample(system: &mut System, now: DateTime<Utc>, folder: &Path) -> Result<()> {
    let time = time(now);
    system.refresh_cpu_usage();
    system.refresh_memory();
    system.refresh_processes_specifics(
        ProcessesToUpdate::All,
        true,
        ProcessRefreshKind::everything(),
    );

    let memory = [system.total_memory(), system.available_memory(), system.used_memory()];
    let [total, available, used] = memory.map(|bytes| bytes as f64 / MEGABYTE);
    let (reads, writes, read, written) = disk_io();
    let networks = Networks::new_with_refreshed_list()?;
    let (sent, received) = networks.values().fold((0, 0), |(sent, received), network| {
        (sent + network.total_transmitted(), received + network.total_received())
    });
    let line = format!(
        "{time},{:.1},{total:.1},{available:.1},{used:.1},{:.1},{reads},{writes},{read:.1},{written:.1},{:.1},{:.1},{}",
        system.global_cpu_usage(),
        100.0 * used / total.max(1.0),
        sent as f64 / MEGABYTE,
        received as f64 / MEGABYTE,
        connections(),
    );
    append(&folder.join("node_resource_usage.csv"), NODE_COLUMNS, [line])?;

    let ours = own_processes(system);
    append(
        &folder.join("processes_resource_usage.csv"),
        PROCESS_COLUMNS,
        ours.iter().map(|process| {
            let io = process.disk_usage();
            format!(
                "{time},{},{},{},{:.1},{:.1},{:.1},{:.1},{:.1},{}",
                process.pid(),
                process.parent().map_or(String::new(), |parent| parent.to_string()),
                process.name().to_string_lossy().replace([',', '"', '\n'], "_"),
                process.cpu_usage(),
                process.memory() as f64 / MEGABYTE,
                process.virtual_memory() as f64 / MEGABYTE,
                io.total_read_bytes as f64 / MEGABYTE,
                io.total_written_bytes as f64 / MEGABYTE,
                process.status(),
            )
        }),
    )?;

    let disks = Disks::new_with_refreshed_list()?;
    append(
        &folder.join("node_disk_usage.csv"),
        DISK_COLUMNS,
        disks.iter().map(|disk| {
            let (total, free) =
                (disk.total_space() as f64 / MEGABYTE, disk.available_space() as f64 / MEGABYTE);
            let mount = disk.mount_point().to_string_lossy().replace([',', '"', '\n'], "_");
            let used = total - free;
            format!(
                "{time},{mount},{total:.1},{used:.1},{free:.1},{:.1}",
                100.0 * used / total.max(1.0)
            )
        }),
    )?;

    let listing = folder.join("os").join(now.format("%Y%m%d%H").to_string());
    let listing = listing.join(format!("processes_{}", now.format("%M")));
    let mut processes: Vec<_> =
        system.processes().values().filter(|one| one.thread_kind().is_none()).collect();
    processes.sort_by_key(|process| process.pid());
    append(
        &listing,
        "PID PPID %CPU RSS(MB) STATUS COMMAND",
        processes.iter().map(|process| {
            let command: Vec<_> = process.cmd().iter().map(|word| word.to_string_lossy()).collect();
            format!(
                "{} {} {:.1} {:.1} {} {}",
                process.pid(),
                process.parent().map_or(0, sysinfo::Pid::as_u32),
                process.cpu_usage(),
                process.memory() as f64 / MEGABYTE,
                process.status(),
                if command.is_empty() {
                    process.name().to_string_lossy().into_owned()
                } else {
                    command.join(" ")
                },
            )
        }),
    )
}

/// Returns the agent and its descendants, without threads.
fn own_processes(system: &System) -> Vec<&sysinfo::Process> {
    let us = sysinfo::Pid::from_u32(std::process::id());
    let below_us = |process: &sysinfo::Process| {
        let mut pid = Some(process.pid());
        while let Some(current) = pid {
            if current == us {
                return true;
            }
            pid = system.process(current).and_then(sysinfo::Process::parent);
        }
        false
    };
    let mut ours: Vec<_> = system.processes().values().collect();
    ours.retain(|process| process.thread_kind().is_none() && below_us(process));
    ours.sort_by_key(|process| process.pid());
    ours
}
/// Returns reads, writes and their megabytes since boot, over all whole disks.
fn disk_io() -> (u64, u64, f64, f64) {
    const SECTOR_BYTES: f64 = 512.0;
    let mut sums = (0, 0, 0.0, 0.0);
    for line in std::fs::read_to_string("/proc/diskstats").unwrap_or_default().lines() {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let number =
            |at: usize| fields.get(at).and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
        let is_whole_disk =
            fields.get(2).is_some_and(|name| Path::new("/sys/block").join(name).exists());
        if is_whole_disk {
            sums.0 += number(3);
            sums.1 += number(7);
            sums.2 += number(5) as f64 * SECTOR_BYTES / MEGABYTE;
            sums.3 += number(9) as f64 * SECTOR_BYTES / MEGABYTE;
        }
    }
    sums
}

fn connections() -> usize {
    let count = |table: &str| {
        let text = std::fs::read_to_string(Path::new("/proc/net").join(table)).unwrap_or_default();
        text.lines().count().saturating_sub(1)
    };
    ["tcp", "tcp6", "udp", "udp6"].into_iter().map(count).sum()
}

fn append(path: &Path, header: &str, lines: impl IntoIterator<Item = String>) -> Result<()> {
    let is_new = !path.exists();
    let mut file = std::io::BufWriter::new(append_to(path)?);
    if is_new {
        writeln!(file, "{header}")?;
    }
    for line in lines {
        writeln!(file, "{line}")?;
    }
    Ok(file.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_are_frequent_at_first() {
        let pauses = |interval| {
            pauses(Duration::from_secs(interval))
                .map(|pause| pause.as_secs())
                .take(7)
                .collect::<Vec<_>>()
        };
        assert_eq!(pauses(60), [2, 2, 4, 8, 16, 32, 60]);
        assert_eq!(pauses(600), [2, 2, 4, 8, 16, 32, 64]);
        assert_eq!(pauses(1), [1; 7]);
    }

    #[test]
    fn sample_adds_a_complete_row_to_every_file() {
        let folder = tempfile::tempdir().expect("temporary folder");
        Sampler::new(VisibleGpus::default())
            .and_then(|mut sampler| sampler.sample(folder.path()))
            .expect("readable");
        for name in
            ["node_resource_usage.csv", "processes_resource_usage.csv", "node_disk_usage.csv"]
        {
            let text = std::fs::read_to_string(folder.path().join(name)).expect("written");
            let widths: Vec<usize> = text.lines().map(|line| line.split(',').count()).collect();
            assert!(widths.iter().all(|width| *width == widths[0]), "{name}: {text}");
        }
        let node = std::fs::read_to_string(folder.path().join("node_resource_usage.csv"))
            .expect("written");
        assert_eq!(node.lines().count(), 2);
        let processes = std::fs::read_to_string(folder.path().join("processes_resource_usage.csv"))
            .expect("written");
        assert!(processes.contains(&format!(",{},", std::process::id())), "{processes}");
    }

    #[test]
    fn sample_has_a_row_for_each_gpu() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let usage = |number, busy_percent| GpuUsage {
            number,
            name: "NVIDIA H100, 80GB".to_owned(),
            busy_percent,
            memory_bytes: 80 << 30,
            memory_used_bytes: 20 << 30,
        };
        write_gpus(folder.path(), "2026-11-24 10:00:00.000000", &[]).expect("writable");
        assert!(!folder.path().join("node_gpu_usage.csv").exists(), "no GPU, no file");
        for time in ["2026-11-24 10:00:00.000000", "2026-11-24 10:00:05.000000"] {
            write_gpus(folder.path(), time, &[usage(0, Some(97)), usage(1, None)])
                .expect("writable");
        }
        let text =
            std::fs::read_to_string(folder.path().join("node_gpu_usage.csv")).expect("written");
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 5);
        assert_eq!(lines[0], GPU_COLUMNS);
        assert_eq!(
            lines[1],
            "2026-11-24 10:00:00.000000,0,NVIDIA H100_ 80GB,97,81920.0,20480.0,25.0"
        );
        assert_eq!(
            lines[4],
            "2026-11-24 10:00:05.000000,1,NVIDIA H100_ 80GB,,81920.0,20480.0,25.0"
        );
    }
}
