//! Writes an ended job of any size into a home, through the code that reducers and partitioners use: for `scripts/bench
//! portal` and for looking at the page. No script runs.
//!
//! ```text
//! synthetic HOME MINI_BATCHES FAILURES
//! ```

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use anyhow::{Context, Result};
use bytes::Bytes;
use protocol::{
    Attempt, AttemptStatus, Counts, ErrorReport, Input, InputKind, JobResult, JobSpec, JobState,
    Phases, PlanPosition, Planned, ResultEvent, Rows, encode_record,
};
use storage::{JobStore, PlanComplete};

const JOB: &str = "synthetic-20260101-000000-0000000000000000";
const BEGAN: u64 = 1_767_225_600_000;
const PROCESSES: u64 = 32;
const PROCESSES_OF_NODE: u64 = 8;
/// Time between two samples of a node.
const SAMPLED_EVERY: u64 = 5000;
const SEGMENT_BYTES: usize = 8 << 20;
/// Cheap numbers without a pattern that the eye sees.
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [home, mini_batches, failures] = arguments.as_slice() else {
        anyhow::bail!("usage: synthetic HOME MINI_BATCHES FAILURES");
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(write(Path::new(home), mini_batches.parse()?, failures.parse()?))?;
    println!("{JOB}");
    Ok(())
}

async fn write(home: &Path, mini_batches: u64, failures: u64) -> Result<()> {
    let folder = home.join("jobs").join(JOB);
    std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
    let store = JobStore::local(&folder)?;
    store.put_spec(&spec()).await?;
    for chunk in 0..PlanPosition::chunks_for(mini_batches) {
        let numbers = PlanPosition::numbers_of(chunk, mini_batches);
        let lines: String = numbers.map(descriptor).collect();
        store.create_plan_chunk(chunk, lines.into()).await?;
    }
    let (left_out, inputs_digest, items) = (Default::default(), String::new(), Some(mini_batches));
    store
        .put_plan_complete(&PlanComplete {
            mini_batches,
            items,
            files: mini_batches,
            inputs_digest,
            left_out,
        })
        .await?;

    let output = write_output(&folder, mini_batches)?;
    let mut logs = Logs::create(&folder.join("logs"), mini_batches)?;
    let every = mini_batches.checked_div(failures).unwrap_or(u64::MAX).max(1);
    let (mut segment, mut bytes, mut failed) = (0, Vec::with_capacity(SEGMENT_BYTES + 4096), 0);
    encode_record(&ResultEvent::Planned(Planned { mini_batches, items }), b"", &mut bytes);
    for number in 0..mini_batches {
        let fails = number % every == every / 2 && failed < failures;
        failed += u64::from(fails);
        for attempt in attempts(number, fails) {
            logs.add(&attempt)?;
            let rows = if attempt.rows == Rows::Inline { "0.123456\n" } else { "" };
            encode_record(&ResultEvent::Attempt(Box::new(attempt)), rows.as_bytes(), &mut bytes);
        }
        if bytes.len() >= SEGMENT_BYTES || number + 1 == mini_batches {
            store.commit_segment(segment, vec![Bytes::from(std::mem::take(&mut bytes))]).await?;
            segment += 1;
        }
    }
    logs.finish()?;
    let counts = Counts { total: mini_batches, succeeded: mini_batches - failed, failed };
    let result = JobResult {
        mini_batches: counts,
        items: counts,
        cause: Some(format!(
            "The number of failed items is {failed}, which exceeds error threshold 999."
        )),
        elapsed_seconds: mini_batches as f64 / 100.0,
        output: Some(output),
        ..JobResult::new(JOB.to_owned(), JobState::Failed, store.shown("logs"))
    };
    store.create_result(&result).await?;
    Ok(())
}

fn spec() -> JobSpec {
    let input = Input {
        name: "images".to_owned(),
        kind: InputKind::File,
        paths: vec!["/data/images".into()],
        partition_format: None,
        table: Default::default(),
    };
    JobSpec {
        job_id: JOB.to_owned(),
        name: "synthetic".to_owned(),
        inputs: vec![input],
        ..JobSpec::example()
    }
}

/// Writes a row for each mini-batch.
fn write_output(folder: &Path, mini_batches: u64) -> Result<String> {
    let path = folder.join("predictions.txt");
    let mut file = BufWriter::new(File::create(&path)?);
    for number in 0..mini_batches {
        writeln!(file, "{},0.123456", path_of(number))?;
    }
    file.flush()?;
    Ok(path.display().to_string())
}

/// The log files that the pages read: what scripts print, errors, and samples of the nodes.
struct Logs {
    processes: Vec<ProcessLogs>,
}

struct ProcessLogs {
    stdout: BufWriter<File>,
    bytes: u64,
    places: BufWriter<File>,
    errors: BufWriter<File>,
}

impl Logs {
    fn create(logs: &Path, mini_batches: u64) -> Result<Self> {
        let create = |name: String| -> Result<BufWriter<File>> {
            let path = logs.join(name);
            std::fs::create_dir_all(path.parent().expect("in a folder"))?;
            Ok(BufWriter::new(File::create(path)?))
        };
        let mut processes = Vec::new();
        for number in 0..PROCESSES {
            let (node, process) = place(number);
            processes.push(ProcessLogs {
                stdout: create(format!("user/stdout/{node}/{process}.stdout.txt"))?,
                bytes: 0,
                places: create(format!("sys/printed/{node}/{process}.txt"))?,
                errors: create(format!("user/error/{node}/{process}.txt"))?,
            });
        }
        for number in (0..PROCESSES).step_by(PROCESSES_OF_NODE as usize) {
            let (node, _) = place(number);
            let mut samples = create(format!("perf/{node}/node_resource_usage.csv"))?;
            writeln!(samples, "Utc Time,Cpu Percent,Memory Total (MB),Memory Available (MB)")?;
            for at in
                (BEGAN..BEGAN + mini_batches / PROCESSES * 320).step_by(SAMPLED_EVERY as usize)
            {
                let mixed = at.wrapping_mul(MIX) >> 40;
                writeln!(samples, "{},{},32000,{}", time(at), mixed % 100, 8000 + mixed % 9000)?;
            }
            samples.flush()?;
        }
        Ok(Self { processes })
    }

    fn add(&mut self, attempt: &Attempt) -> Result<()> {
        let logs = &mut self.processes[(attempt.mini_batch % PROCESSES) as usize];
        let line = format!("decoding {}\n", attempt.detail);
        logs.stdout.write_all(line.as_bytes())?;
        let (from, to) = (logs.bytes, logs.bytes + line.len() as u64);
        logs.bytes = to;
        let ended = attempt.started_at + (attempt.elapsed_seconds * 1000.0) as u64;
        writeln!(
            logs.places,
            "{ended} {} {} {from} {to} 0 0",
            attempt.mini_batch, attempt.try_number
        )?;
        if let Some(error) = &attempt.error {
            writeln!(
                logs.errors,
                "{} run() of mini-batch {}: {}",
                time(ended),
                attempt.mini_batch,
                error.message
            )?;
            writeln!(logs.errors, "{}", error.traceback)?;
        }
        Ok(())
    }

    fn finish(self) -> Result<()> {
        for ProcessLogs { mut stdout, mut places, mut errors, .. } in self.processes {
            stdout.flush()?;
            places.flush()?;
            errors.flush()?;
        }
        Ok(())
    }
}

fn time(milliseconds: u64) -> String {
    let time = chrono::DateTime::from_timestamp_millis(milliseconds as i64).expect("in range");
    time.format("%Y-%m-%d %H:%M:%S%.6f").to_string()
}

/// Returns node and process of a mini-batch.
fn place(number: u64) -> (String, String) {
    let process = number % PROCESSES;
    (
        format!("node-{}", process / PROCESSES_OF_NODE),
        format!("process{:03}", process % PROCESSES_OF_NODE),
    )
}

fn path_of(number: u64) -> String {
    format!("/data/images/{:04}/image-{number:08}.png", number / 1000)
}

fn descriptor(number: u64) -> String {
    let work = serde_json::json!({ "kind": "files", "input": 0, "paths": [path_of(number)] });
    format!("{}\n", serde_json::json!({ "job_id": JOB, "mini_batch": number, "work": work }))
}

fn attempts(number: u64, fails: bool) -> Vec<Attempt> {
    let mixed = (number + 1).wrapping_mul(MIX) >> 40;
    let seconds = 0.2
        + f64::from(mixed as u32 % 1000) / 5000.0
        + if mixed.is_multiple_of(1999) { 20.0 } else { 0.0 };
    let (node, process) = place(number);
    let attempt = |try_number: u32, is_final: bool| {
        Attempt {
        mini_batch: number,
        try_number,
        node: node.as_str().into(),
        process: process.as_str().into(),
        status: if fails { AttemptStatus::RunRaised } else { AttemptStatus::Succeeded },
        is_final,
        total: 1,
        succeeded: u64::from(!fails),
        rows: if fails { Rows::None } else { Rows::Inline },
        started_at: BEGAN + number / PROCESSES * 320 + u64::from(try_number),
        elapsed_seconds: seconds,
        process_seconds: seconds * 0.8,
        run_seconds: seconds * 0.9,
        phases: Phases::new(seconds * 0.5, seconds * 0.05, seconds * 0.08),
        error: fails.then(|| {
            Box::new(ErrorReport {
                category: "ValueError".to_owned(),
                message: format!("cannot decode {}", path_of(number)),
                traceback: format!(
                    "Traceback (most recent call last):\n  File \"/src/entry.py\", line 12, in run\n    decode(path)\n\
                     ValueError: cannot decode {}",
                    path_of(number)
                ),
                log: format!("user/error/{node}/{process}.txt"),
                printed: String::new(),
            })
        }),
        detail: path_of(number),
        ..Attempt::default()
    }
    };
    match fails {
        true => vec![attempt(1, false), attempt(2, false), attempt(3, true)],
        false => vec![attempt(1, true)],
    }
}
