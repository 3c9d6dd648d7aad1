//! Attempts and jobs for the tests of this crate.

use protocol::{
    Attempt, AttemptStatus, Environment, ErrorReport, ErrorThresholds, JobSpec, MiniBatchSize, Output, OutputAction,
    OutputFormat, Rows,
};

pub(crate) fn attempt(
    mini_batch: u64,
    try_number: u32,
    status: AttemptStatus,
    is_final: bool,
    total: u64,
    succeeded: u64,
) -> Attempt {
    let error = (status != AttemptStatus::Succeeded).then(|| ErrorReport {
        category: if status == AttemptStatus::RunTimedOut { "RunTimeout".into() } else { "ValueError".into() },
        message: "bad value".into(),
        traceback: "Traceback: bad value".into(),
        log: "user/error/0/process000.txt".into(),
    });
    Attempt {
        mini_batch,
        try_number,
        deliveries_lost: 0,
        node: "0".into(),
        process: "process000".into(),
        status,
        is_final,
        total,
        succeeded,
        rows: Rows::None,
        columns: None,
        started_at: 1_700_000_000_123,
        elapsed_seconds: 0.25,
        process_seconds: 0.125,
        run_seconds: 0.2,
        error,
        warnings: vec![],
        warnings_total: 0,
        detail: format!("/data/{mini_batch}.png"),
    }
}

pub(crate) fn succeeded(mini_batch: u64, try_number: u32, total: u64, succeeded: u64) -> Attempt {
    attempt(mini_batch, try_number, AttemptStatus::Succeeded, true, total, succeeded)
}

pub(crate) fn failed(mini_batch: u64, try_number: u32, is_final: bool, total: u64) -> Attempt {
    attempt(mini_batch, try_number, AttemptStatus::RunRaised, is_final, total, 0)
}

pub(crate) fn spec(output: &std::path::Path) -> JobSpec {
    JobSpec {
        job_id: "digits-20260101-000000-abcd".into(),
        name: "digits".into(),
        description: String::new(),
        entry_script: "digits.py".into(),
        source_directory: "/src".into(),
        inputs: vec![],
        side_inputs: Default::default(),
        mini_batch_size: MiniBatchSize::Files(1),
        partition_keys: vec![],
        rank_mini_batch_count: 0,
        thresholds: ErrorThresholds { error_threshold: -1, allowed_failed_count: -1, allowed_failed_percent: 100.0 },
        output: Output {
            action: OutputAction::AppendRow,
            folder: output.into(),
            file_name: "parallel_run_step.txt".into(),
            format: OutputFormat::Text,
            header: false,
            to_csv_arguments: Default::default(),
        },
        node_count: None,
        snapshots: Default::default(),
        process_count_per_node: Some(2),
        run_invocation_timeout_seconds: 60,
        task_overhead_timeout_seconds: 30,
        progress_update_timeout_seconds: 270,
        first_task_creation_timeout_seconds: 600,
        run_max_try: 3,
        lost_delivery_max: 10,
        logging_level: "INFO".into(),
        argv: vec![],
        environment: Environment::Interpreter { path: "/usr/bin/python3".into() },
        environment_variables: Default::default(),
        resource_monitor_interval_seconds: 0,
        profiling_module: String::new(),
        nice: 5,
        strict_results: false,
        hide_unassigned_gpus: false,
        fingerprint: "f".into(),
        snapshot_digest: String::new(),
        job_file: String::new(),
        allow_reuse: true,
    }
}
