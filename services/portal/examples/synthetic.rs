//! Writes an ended job of any size into a home, through the code that reducers and partitioners use: for `scripts/bench
//! portal` and for looking at the page. No script runs.
//!
//! ```text
//! synthetic HOME MINI_BATCHES FAILURES
//! ```

use std::path::Path;

use anyhow::{Context, Result};
use bytes::Bytes;
use protocol::{
    Attempt, AttemptStatus, Counts, ErrorReport, Input, InputKind, JobResult, JobSpec, JobState, Phases, PlanPosition,
    Planned, ResultEvent, Rows, encode_record,
};
use storage::{JobStore, PlanComplete};

const JOB: &str = "synthetic-20260101-000000-0000000000000000";
const BEGAN: u64 = 1_767_225_600_000;
const PROCESSES: u64 = 32;
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
        let numbers = PlanPosition::first_of(chunk)..PlanPosition::first_of(chunk + 1).min(mini_batches);
        let lines: String = numbers.map(descriptor).collect();
        store.create_plan_chunk(chunk, lines.into()).await?;
    }
    let (left_out, inputs_digest, items) = (Default::default(), String::new(), Some(mini_batches));
    store
        .put_plan_complete(&PlanComplete { mini_batches, items, files: mini_batches, inputs_digest, left_out })
        .await?;

    let every = mini_batches.checked_div(failures).unwrap_or(u64::MAX).max(1);
    let (mut segment, mut bytes, mut failed) = (0, Vec::with_capacity(SEGMENT_BYTES + 4096), 0);
    encode_record(&ResultEvent::Planned(Planned { mini_batches, items }), b"", &mut bytes);
    for number in 0..mini_batches {
        let fails = number % every == every / 2 && failed < failures;
        failed += u64::from(fails);
        for attempt in attempts(number, fails) {
            let rows = if attempt.rows == Rows::Inline { "0.123456\n" } else { "" };
            encode_record(&ResultEvent::Attempt(Box::new(attempt)), rows.as_bytes(), &mut bytes);
        }
        if bytes.len() >= SEGMENT_BYTES || number + 1 == mini_batches {
            store.commit_segment(segment, vec![Bytes::from(std::mem::take(&mut bytes))]).await?;
            segment += 1;
        }
    }
    let counts = Counts { total: mini_batches, succeeded: mini_batches - failed, failed };
    let result = JobResult {
        mini_batches: counts,
        items: counts,
        cause: Some(format!("The number of failed items is {failed}, which exceeds error threshold 999.")),
        elapsed_seconds: mini_batches as f64 / 100.0,
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
    JobSpec { job_id: JOB.to_owned(), name: "synthetic".to_owned(), inputs: vec![input], ..JobSpec::example() }
}

fn path(number: u64) -> String {
    format!("/data/images/{:04}/image-{number:08}.png", number / 1000)
}

fn descriptor(number: u64) -> String {
    let work = serde_json::json!({ "kind": "files", "input": 0, "paths": [path(number)] });
    format!("{}\n", serde_json::json!({ "job_id": JOB, "mini_batch": number, "work": work }))
}

fn attempts(number: u64, fails: bool) -> Vec<Attempt> {
    let mixed = (number + 1).wrapping_mul(MIX) >> 40;
    let seconds = 0.2 + f64::from(mixed as u32 % 1000) / 5000.0 + if mixed.is_multiple_of(1999) { 20.0 } else { 0.0 };
    let process = number % PROCESSES;
    let attempt = |try_number: u32, is_final: bool| Attempt {
        mini_batch: number,
        try_number,
        deliveries_lost: 0,
        node: format!("node-{}", process / 8).into(),
        process: format!("process{:03}", process % 8).into(),
        status: if fails { AttemptStatus::RunRaised } else { AttemptStatus::Succeeded },
        is_final,
        total: 1,
        succeeded: u64::from(!fails),
        rows: if fails { Rows::None } else { Rows::Inline },
        columns: None,
        started_at: BEGAN + number / PROCESSES * 320 + u64::from(try_number),
        elapsed_seconds: seconds,
        process_seconds: seconds * 0.8,
        run_seconds: seconds * 0.9,
        phases: Phases::new(seconds * 0.5, seconds * 0.05, seconds * 0.08),
        error: fails.then(|| {
            Box::new(ErrorReport {
                category: "ValueError".to_owned(),
                message: format!("cannot decode {}", path(number)),
                traceback: format!(
                    "Traceback (most recent call last):\n  File \"/src/entry.py\", line 12, in run\n    decode(path)\n\
                     ValueError: cannot decode {}",
                    path(number)
                ),
                log: "user/error/node-0/process000.txt".to_owned(),
                printed: String::new(),
            })
        }),
        warnings: vec![],
        warnings_total: 0,
        warning_kinds: vec![],
        rejected: vec![],
        unread: vec![],
        pieces: vec![],
        extra_runs: 0,
        items_kept: 0,
        waited: Default::default(),
        values: String::new(),
        copy: false,
        asked_limits: false,
        detail: path(number),
        traceparent: None,
    };
    match fails {
        true => vec![attempt(1, false), attempt(2, false), attempt(3, true)],
        false => vec![attempt(1, true)],
    }
}
