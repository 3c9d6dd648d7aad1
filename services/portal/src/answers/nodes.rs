//! Nodes and processes: their resource samples over time, and their events.

use std::collections::{BTreeMap, HashMap};

use axum::extract::Query;
use chrono::NaiveDateTime;
use engine::JobStore;
use protocol::{ProcessUsage, RunningMiniBatch, milliseconds_since_epoch};
use serde::{Deserialize, Serialize};

use super::job::Wait;
use super::logs::end_of;
use crate::document::Document;
use crate::error::Answer;
use crate::live::UsageSample;
use crate::watched::View;

const POINTS_DEFAULT: usize = 300;
/// Bytes of a file of samples that are read, from its end.
const SAMPLES_BYTES_MAX: u64 = 8 << 20;
const EVENTS_BYTES_MAX: u64 = 256 << 10;
const EVENTS_MAX: usize = 500;
/// Nodes whose samples are read; a job of more shows the first.
const NODES_MAX: usize = 200;
const EVENTS_PATH: &str = "sys/master_role.txt";
/// The times of its lines and of samples, in UTC.
const EVENT_TIME: &str = "%Y-%m-%dT%H:%M:%S%.f";
const SAMPLE_TIME: &str = "%Y-%m-%d %H:%M:%S%.f";

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub struct NodesQuery {
    points: Option<usize>,
}

#[derive(Debug, Serialize)]
pub struct Nodes {
    now: u64,
    nodes: Vec<Node>,
    events: Vec<Event>,
}

#[derive(Debug, Serialize)]
struct Node {
    node: String,
    stopped: Option<String>,
    processes: Vec<Process>,
    samples: Option<Samples>,
}

#[derive(Debug, Serialize)]
struct Process {
    process: String,
    pid: Option<u32>,
    attempts: u64,
    failed: u64,
    busy_seconds: f64,
    first_at: Option<u64>,
    last_at: Option<u64>,
    /// Its current phase.
    running: Option<Wait>,
    /// Its current usage: percent of a processor, and bytes.
    cpu_percent: Option<u32>,
    memory_bytes: Option<u64>,
    /// The current load of its GPUs, on average, and the memory in use on them.
    gpu_percent: Option<u32>,
    gpu_memory_bytes: Option<u64>,
    samples: Option<Samples>,
}

#[derive(Debug, Default, PartialEq, Serialize)]
struct Samples {
    at: Vec<u64>,
    series: Vec<Series>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Series {
    name: String,
    unit: &'static str,
    values: Vec<Option<f64>>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Event {
    at: u64,
    node: Option<String>,
    text: String,
}

/// A column of a file of samples, and how it is shown.
struct Column {
    name: &'static str,
    unit: &'static str,
    title: &'static str,
    /// The column counts since the start of the machine; the series shows its growth per second.
    is_counter: bool,
}

const fn gauge(name: &'static str, unit: &'static str, title: &'static str) -> Column {
    Column { name, unit, title, is_counter: false }
}

const fn counter(name: &'static str, title: &'static str) -> Column {
    Column { name, unit: "MB/s", title, is_counter: true }
}

const NODE: [Column; 7] = [
    gauge("CPU", "percent", "Cpu Percent"),
    gauge("Memory", "percent", "Memory Used Percent"),
    gauge("Memory available", "MB", "Memory Available (MB)"),
    counter("Disk read", "Disk Io Read (MB)"),
    counter("Disk written", "Disk Io Write (MB)"),
    counter("Network sent", "Network Sent (MB)"),
    counter("Network received", "Network Recv (MB)"),
];
/// The files have no GPUs of processes; only live measurements have them.
const PROCESS: [Column; 3] = [
    gauge("CPU", "percent", "Cpu Percent"),
    gauge("Memory", "MB", "Memory Rss (MB)"),
    gauge("GPU", "percent", "Gpu Percent"),
];

pub async fn nodes(view: View, Query(query): Query<NodesQuery>) -> Answer<Document<Nodes>> {
    of(&view, &query).await.map(Document)
}

pub async fn of(view: &View, query: &NodesQuery) -> Answer<Nodes> {
    let points = query.points.unwrap_or(POINTS_DEFAULT).clamp(10, 2000);
    let mut nodes: BTreeMap<String, Node> = BTreeMap::new();
    let progress = view.snapshot.status.progress.as_ref();
    let usage = progress.map_or(&[][..], |progress| &progress.usage);
    let usage: HashMap<(&str, &str), &ProcessUsage> =
        usage.iter().map(|used| ((&*used.node, &*used.process), used)).collect();
    let running: HashMap<(&str, &str), &RunningMiniBatch> = view
        .running()
        .iter()
        .map(|running| ((&*running.node, &*running.process), running))
        .collect();
    {
        let history = view.history();
        let stopped = history.tally().nodes().stopped();
        // A node that prepares the job, or has given up, has no process.
        let waiting =
            progress.iter().flat_map(|progress| &progress.waiting).map(|waiting| &waiting.node);
        for name in history
            .processes()
            .iter()
            .map(|process| &process.name.node)
            .chain(stopped.keys())
            .chain(waiting)
        {
            nodes.entry(name.clone()).or_insert_with(|| Node {
                node: name.clone(),
                stopped: stopped.get(name).cloned(),
                processes: Vec::new(),
                samples: None,
            });
        }
        // A mini-batch without items succeeds without a process.
        for process in history.processes().iter().filter(|process| !process.name.process.is_empty())
        {
            let Some(known) = nodes.get_mut(&process.name.node) else { continue };
            let has_worked = process.attempts > 0;
            let used = usage.get(&(&*process.name.node, &*process.name.process));
            known.processes.push(Process {
                process: process.name.process.clone(),
                pid: process.pid,
                attempts: process.attempts,
                failed: process.failed,
                busy_seconds: process.busy_seconds,
                first_at: has_worked.then_some(process.first_at),
                last_at: has_worked.then_some(process.last_at),
                cpu_percent: used.map(|used| used.cpu_percent),
                memory_bytes: used.map(|used| used.memory_bytes),
                gpu_percent: used.and_then(|used| used.gpu_percent),
                gpu_memory_bytes: used.and_then(|used| used.gpu_memory_bytes),
                running: running
                    .get(&(&*process.name.node, &*process.name.process))
                    .map(|running| Wait::from(*running)),
                samples: None,
            });
        }
    }
    let store = &view.snapshot.store;
    let mut nodes: Vec<Node> = nodes.into_values().collect();
    for node in nodes.iter_mut().take(NODES_MAX) {
        node.processes.sort_by(|one, other| one.process.cmp(&other.process));
        read_samples(store, node, points).await;
        for process in &mut node.processes {
            add_live(&mut process.samples, &view.used(&node.node, &process.process), points);
        }
    }
    let events = end_of(store, EVENTS_PATH, EVENTS_BYTES_MAX).await;
    let names: Vec<&str> = nodes.iter().map(|node| &*node.node).collect();
    let events = events.map_or_else(Vec::new, |text| events_in(&text, &names));
    Ok(Nodes { now: milliseconds_since_epoch(), nodes, events })
}

async fn read_samples(store: &JobStore, node: &mut Node, points: usize) {
    let folder = format!("perf/{}", node.node);
    let read = async |name: &str| table(store, &format!("{folder}/{name}")).await;
    if let Some((header, rows)) = read("node_resource_usage.csv").await {
        node.samples = samples(&header, rows.iter().map(Vec::as_slice), &NODE, points);
    }
    if let Some((header, rows)) = read("processes_resource_usage.csv").await
        && let Some(pid_column) = header.iter().position(|title| title == "Pid")
    {
        for process in &mut node.processes {
            let Some(pid) = process.pid.map(|pid| pid.to_string()) else { continue };
            let own =
                rows.iter().filter(|row| row.get(pid_column) == Some(&pid)).map(Vec::as_slice);
            process.samples = samples(&header, own, &PROCESS, points);
        }
    }
    if let Some((header, rows)) = read("node_disk_usage.csv").await
        && let (Some(samples), Some(used)) =
            (&mut node.samples, header.iter().position(|title| title == "Used Percent"))
    {
        // The fullest disk at each time.
        let mut fullest: BTreeMap<u64, f64> = BTreeMap::new();
        for row in &rows {
            let value = row.get(used).and_then(|cell| cell.parse::<f64>().ok());
            if let (Some(at), Some(value)) = (row.first().and_then(|cell| time(cell)), value) {
                let known = fullest.entry(at).or_default();
                *known = known.max(value);
            }
        }
        let at_or_before = |at: &u64| fullest.range(..=at).next_back().map(|(_, value)| *value);
        let values = samples.at.iter().map(at_or_before).collect();
        samples.series.push(Series { name: "Disk used".to_owned(), unit: "percent", values });
    }
    if let Some((header, rows)) = read("node_gpu_usage.csv").await
        && let Some(samples) = &mut node.samples
    {
        samples.series.extend(gpus(&header, &rows, &samples.at));
    }
}

/// Adds the live usage of a process to its samples.
fn add_live(samples: &mut Option<Samples>, live: &[UsageSample], points: usize) {
    if live.is_empty() {
        return;
    }
    let series_of = |samples: &Samples, name: &str| {
        let found = samples.series.iter().find(|series| series.name == name);
        found.map_or_else(|| vec![None; samples.at.len()], |series| series.values.clone())
    };
    let written = samples.take().unwrap_or_default();
    let known =
        written.at.iter().zip(series_of(&written, "CPU")).zip(series_of(&written, "Memory"));
    let mut all: Vec<_> = known.map(|((at, cpu), memory)| (*at, [cpu, memory, None])).collect();
    let values = |used: &UsageSample| {
        [Some(used.cpu_percent), Some(used.memory_megabytes), used.gpu_percent]
    };
    all.extend(live.iter().map(|used| (used.at, values(used))));
    all.sort_by_key(|(at, _)| *at);
    let together = all.len().div_ceil(points);
    let largest = |some: &[(u64, [Option<f64>; 3])], at: usize| {
        some.iter().filter_map(|(_, values)| values[at]).reduce(f64::max)
    };
    let series = PROCESS.iter().enumerate().map(|(at, column)| Series {
        name: column.name.to_owned(),
        unit: column.unit,
        values: all.chunks(together).map(|some| largest(some, at)).collect(),
    });
    let series = series.filter(|series| series.values.iter().any(Option::is_some)).collect();
    *samples = Some(Samples { at: all.chunks(together).map(|some| some[0].0).collect(), series });
}

/// The columns of GPUs, and how they are shown.
const GPU: [(&str, &str); 2] = [("busy", "Gpu Percent"), ("memory", "Memory Used Percent")];

/// Returns the highest load of each GPU between each two of these times.
fn gpus(header: &[String], rows: &[Vec<String>], at: &[u64]) -> Vec<Series> {
    let position = |title: &str| header.iter().position(|other| other == title);
    let Some(number_column) = position("Gpu") else { return Vec::new() };
    let mut numbers: Vec<u32> =
        rows.iter().filter_map(|row| row[number_column].parse().ok()).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let columns = GPU.iter().filter_map(|(name, title)| Some((name, position(title)?)));
    let series = columns.flat_map(|(name, column)| {
        numbers.iter().map(move |number| {
            let own = rows.iter().filter(|row| row[number_column].parse() == Ok(*number));
            let values: BTreeMap<u64, f64> =
                own.filter_map(|row| Some((time(&row[0])?, row[column].parse().ok()?))).collect();
            let ends = at.iter().skip(1).copied().chain([u64::MAX]);
            let most = |(from, to): (&u64, u64)| {
                values.range(*from..to).map(|(_, value)| *value).reduce(f64::max)
            };
            let values = at.iter().zip(ends).map(most).collect();
            Series { name: format!("GPU {number} {name}"), unit: "percent", values }
        })
    });
    series.collect()
}

/// Returns the titles and the rows of a file of samples, whose cells hold no commas.
async fn table(store: &JobStore, path: &str) -> Option<(Vec<String>, Vec<Vec<String>>)> {
    let cells = |line: &str| line.split(',').map(str::to_owned).collect::<Vec<_>>();
    let header = store.log_range(path, 0..1024).await.ok()?;
    let header = String::from_utf8_lossy(&header).lines().next()?.to_owned();
    let text = end_of(store, path, SAMPLES_BYTES_MAX).await?;
    let header = cells(&header);
    let rows = text
        .lines()
        .map(cells)
        .filter(|row| row.len() == header.len() && time(&row[0]).is_some())
        .collect();
    Some((header, rows))
}

fn time(text: &str) -> Option<u64> {
    milliseconds(text, SAMPLE_TIME)
}

/// Returns milliseconds since 1970.
fn milliseconds(text: &str, format: &str) -> Option<u64> {
    let time = NaiveDateTime::parse_from_str(text, format).ok()?;
    u64::try_from(time.and_utc().timestamp_millis()).ok()
}

fn samples<'a>(
    header: &[String],
    rows: impl Iterator<Item = &'a [String]>,
    columns: &[Column],
    points: usize,
) -> Option<Samples> {
    let rows: Vec<(u64, &[String])> =
        rows.filter_map(|row| Some((time(row.first()?)?, row))).collect();
    if rows.is_empty() {
        return None;
    }
    let together = rows.len().div_ceil(points);
    let series = columns.iter().filter_map(|column| {
        let position = header.iter().position(|title| title == column.title)?;
        let number = |row: &[String]| row.get(position).and_then(|cell| cell.parse::<f64>().ok());
        let mut values: Vec<Option<f64>> = rows.iter().map(|(_, row)| number(row)).collect();
        if column.is_counter {
            let rate = |index: usize| {
                let before = index.checked_sub(1)?;
                let seconds = rows[index].0.saturating_sub(rows[before].0) as f64 / 1000.0;
                // A smaller count follows a restart of the machine.
                Some((values[index]? - values[before]?) / seconds)
                    .filter(|rate| rate.is_finite() && *rate >= 0.0)
            };
            values = (0..values.len()).map(rate).collect();
        }
        let largest = |some: &[Option<f64>]| some.iter().flatten().copied().reduce(f64::max);
        Some(Series {
            name: column.name.to_owned(),
            unit: column.unit,
            values: values.chunks(together).map(largest).collect(),
        })
    });
    let series = series.collect();
    Some(Samples { at: rows.chunks(together).map(|rows| rows[0].0).collect(), series })
}

/// Returns the events of nodes and processes, from the log of the reducer.
fn events_in(text: &str, nodes: &[&str]) -> Vec<Event> {
    let told = [
        " started with process id ",
        " exits with returncode ",
        " failed before its first mini batch",
        " stopped: ",
        "Waiting for ",
        "was reopened",
        " were lost;",
    ];
    let mut events: Vec<Event> = text
        .lines()
        .filter(|line| told.iter().any(|part| line.contains(part)))
        .filter_map(|line| {
            let (time, text) = line.split_once(' ')?;
            let names = |node: &&&str| {
                [" ", ","].iter().any(|end| text.contains(&format!("ode {node}{end}")))
            };
            let node = nodes.iter().find(names).map(|node| (*node).to_owned());
            Some(Event { at: milliseconds(time, EVENT_TIME)?, node, text: text.to_owned() })
        })
        .collect();
    let first = events.len().saturating_sub(EVENTS_MAX);
    events.drain(..first);
    events
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_become_rates_and_many_samples_their_maxima() {
        let header: Vec<String> =
            ["Utc Time", "Cpu Percent", "Disk Io Read (MB)"].map(str::to_owned).to_vec();
        let rows: Vec<Vec<String>> = (0..20)
            .map(|n| {
                vec![format!("2026-11-21 10:00:{n:02}.000000"), n.to_string(), (n * 2).to_string()]
            })
            .collect();
        let found = samples(&header, rows.iter().map(Vec::as_slice), &NODE, 10).expect("samples");
        assert_eq!((found.at.len(), found.series.len()), (10, 2));
        assert_eq!(found.series[0].values[..2], [Some(1.0), Some(3.0)]);
        assert!(found.series[1].values.iter().all(|rate| *rate == Some(2.0)));
        assert_eq!(samples(&header, std::iter::empty(), &NODE, 10), None);
    }

    #[tokio::test]
    async fn samples_of_gpus_and_processes_come_from_the_files_of_their_node() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let store = JobStore::local(folder.path()).expect("folder exists");
        let lines = |header: &str, rows: &[&str]| {
            let row = |(n, row): (usize, &&str)| {
                format!("2026-11-21 10:00:{:02}.000000,{row}\n", n / 2 * 5)
            };
            format!("Utc Time,{header}\n{}", rows.iter().enumerate().map(row).collect::<String>())
        };
        let files = [
            (
                "node_resource_usage.csv",
                lines("Cpu Percent,Memory Used Percent", &["10,1", "", "20,2"]),
            ),
            (
                "node_gpu_usage.csv",
                lines(
                    "Gpu,Name,Gpu Percent,Memory Total (MB),Memory Used (MB),Memory Used Percent",
                    &[
                        "0,H100,97,1,1,25.0",
                        "1,H100,,1,1,50.0",
                        "0,H100,3,1,1,26.0",
                        "1,H100,,1,1,51.0",
                        "damaged",
                    ],
                ),
            ),
            (
                "node_disk_usage.csv",
                lines(
                    "Mount Point,Total (MB),Used (MB),Available (MB),Used Percent",
                    &["/,1,1,1,40.0", "/data,1,1,1,70.0", "/,1,1,1,90.0", "/data,1,1,1,71.5"],
                ),
            ),
            (
                "processes_resource_usage.csv",
                lines(
                    "Pid,Cpu Percent,Memory Rss (MB)",
                    &["7,99.0,100.5", "8,1,1", "7,98.0,101.5", "8,1,1"],
                ),
            ),
        ];
        for (name, text) in files {
            store.put_log(&format!("perf/n/{name}"), text.into()).await.expect("writable");
        }
        let process = |pid| Process {
            process: format!("process{pid:03}"),
            pid: Some(pid),
            attempts: 0,
            failed: 0,
            busy_seconds: 0.0,
            first_at: None,
            last_at: None,
            running: None,
            cpu_percent: None,
            memory_bytes: None,
            gpu_percent: None,
            gpu_memory_bytes: None,
            samples: None,
        };
        let mut node = Node {
            node: "n".to_owned(),
            stopped: None,
            processes: vec![process(7)],
            samples: None,
        };
        read_samples(&store, &mut node, 300).await;
        let shown = |samples: Option<Samples>| -> Vec<_> {
            let series = samples.expect("samples").series;
            series
                .into_iter()
                .map(|series| (series.name, series.values))
                .filter(|(name, _)| name != "CPU")
                .collect()
        };
        let own = node.processes.remove(0).samples;
        assert_eq!(shown(own), [("Memory".to_owned(), vec![Some(100.5), Some(101.5)])]);
        let two = |name: &str, values: [Option<f64>; 2]| (name.to_owned(), values.to_vec());
        let expected = [
            two("Memory", [Some(1.0), Some(2.0)]),
            two("Disk used", [Some(70.0), Some(90.0)]),
            two("GPU 0 busy", [Some(97.0), Some(3.0)]),
            two("GPU 1 busy", [None; 2]),
            two("GPU 0 memory", [Some(25.0), Some(26.0)]),
            two("GPU 1 memory", [Some(50.0), Some(51.0)]),
        ];
        assert_eq!(shown(node.samples), expected);
    }

    #[test]
    fn live_points_stand_between_the_samples_of_the_node() {
        let series = |name: &str, unit, values: [f64; 2]| Series {
            name: name.to_owned(),
            unit,
            values: values.map(Some).to_vec(),
        };
        let written =
            vec![series("CPU", "percent", [10.0, 50.0]), series("Memory", "MB", [1.0, 5.0])];
        let mut samples = Some(Samples { at: vec![1000, 5000], series: written });
        let live = |at, cpu_percent| UsageSample {
            at,
            cpu_percent,
            memory_megabytes: 3.0,
            gpu_percent: None,
        };
        add_live(&mut samples, &[live(2000, 20.0), live(3000, 30.0)], 300);
        let merged = samples.expect("samples");
        assert_eq!(merged.at, [1000, 2000, 3000, 5000]);
        assert_eq!(merged.series[0].values, [10.0, 20.0, 30.0, 50.0].map(Some));
        let mut none = None;
        add_live(&mut none, &[], 300);
        assert_eq!(none, None);
        add_live(&mut none, &[live(2000, 20.0)], 300);
        assert_eq!(none.expect("a point").at, [2000]);
    }

    #[test]
    fn events_have_time_and_node() {
        let text = "2026-11-21T10:00:00.644812 process000 on node a started with process id 7.\nnothing\n\
                    2026-11-21T10:00:01.000000 Node b stopped: <b>no Python</b>\n";
        let events = events_in(text, &["a", "b"]);
        assert_eq!(
            events.iter().map(|event| event.at).collect::<Vec<_>>(),
            [1_795_255_200_644, 1_795_255_201_000]
        );
        assert_eq!((events[0].node.as_deref(), events[1].node.as_deref()), (Some("a"), Some("b")));
        assert_eq!(events[1].text, "Node b stopped: <b>no Python</b>");
    }
}
