// The JSON API below /api/v1, as services/portal/openapi.json describes it.

export type State =
  | "Completed" | "Failed" | "Canceled" | "Interrupted" | "Running" | "Queued" | "Waiting" | "Canceling" | "Damaged";
export type MiniBatchState = "pending" | "running" | "succeeded" | "failed" | "retrying";

export interface Counts { total: number; succeeded: number; failed: number }

export interface Info {
  version: string; place: string; target: string | null; read_only: boolean; job: string | null; now: number;
}

/** `cause` and `problem` in one line; the fields from `waits_for` on are those of open jobs of a target. */
export interface JobSummary {
  owner: string | null; priority: "low" | "normal" | "high";
  job_id: string; state: State; started_at: string | null; elapsed_seconds: number | null; rate: number | null;
  mini_batches: Counts; items: Counts; problem?: string; name: string; cause: string | null;
  waits_for?: string | null; waited_seconds?: number | null; processes?: number; share?: number | null;
  remaining_seconds?: number | null;
}
export interface JobsPage { jobs: JobSummary[]; next: string | null; total: number; place: string; now: number }

export interface Gauge {
  key: string; label: string; value: number; limit: number | null;
  unit: "items" | "mini-batches" | "percent" | "equal failures" | "seconds" | "tries";
  fails_when: "above" | "reached";
}
export interface Wait {
  mini_batch: number | null; node: string; process: string; phase: string; since: number | null; seconds: number;
  detail: string; stack: string;
}
export interface Failure {
  reason: string; error: string; attempts: number; mini_batches: number[]; traceback: string; printed: string; log: string;
}
export interface Setting { key: string; value: string; group: string }
export interface Command { what: string; command: string }
/** Speculative runs of slow mini-batches; absent if there were none. */
export interface Copies { started: number; won: number }
export interface JobResult {
  copies?: Copies;
  rejects?: { items: number }; cause: string | null; output: string | null; warnings: number; reused: boolean; duplicates_dropped: number;
  failed_mini_batches: { mini_batch: number; detail: string; error: string; log: string }[];
}
export interface Progress {
  copies?: Copies;
  planned: boolean; retries: number; retrying: number; processes: number; nodes_at_work: number; silent_since?: number;
  step?: string; trouble?: { reason: string; since: number }; running: RunningMiniBatch[];
}
/** `since`: when the try began, by the clock of its node. */
export interface RunningMiniBatch { mini_batch: number; node: string; process: string; phase: string; since: number }
/** How often the result was reused instead of running the job again; the latest times. */
export interface Reuses { count: number; times: number[] }
export interface Job {
  owner: string | null; priority: "low" | "normal" | "high"; source_directory: string; output_changed: boolean; builds: string[];
  job_id: string; state: State; hint: string | null; result: JobResult | null; progress: Progress | null; logs: string;
  revision: string; now: number; name: string; description: string; sentence: string;
  started_at: number | null; ended_at: number | null; elapsed_seconds: number | null; worked_seconds: number | null;
  mini_batches: Counts; items: Counts; retrying: number; rate: number | null; eta_seconds: number | null;
  gauges: Gauge[]; waits: Wait[]; failures: Failure[]; first_failed: number | null; settings: Setting[];
  script: string; job_file: string | null;
  lineage: { rounds: { at: number | null; text: string }[]; before: string | null; same: { job_id: string; state: State }[]; reused: Reuses };
  commands: Command[]; can_cancel: boolean; can_retry: boolean; warnings: string[]; notes: string[];
  output: { path: string; action: string; format: string; exists: boolean; downloadable: boolean };
  history: "ledger" | "report" | "none"; nodes: number; processes: number;
}

export interface RejectGroup {
  reason: string; items: number; mini_batches: number; cause: string; exception: string; message: string;
  first: { mini_batch: number; detail: string; values: string; traceback: string; printed: string; log: string };
}
export interface SourceFile { path: string; bytes: number; text: string | null }
export interface ScriptChange { path: string; change: "changed" | "new" | "missing"; difference: string | null }
/** The script with which a job ran; `absent` says why it is not known. */
export interface ScriptSource {
  versions: number; version: number; files: SourceFile[]; absent: string | null; entry_script: string;
  changes: { files: ScriptChange[]; same: number; absent: string | null } | null;
}
export interface Rejects {
  job_id: string; items: number; mini_batches: number; groups: RejectGroup[];
  tables: { items: number; csv: string; parquet: string } | null;
}

export interface Series {
  revision: string; from: number; step_ms: number; succeeded: number[]; failed: number[]; items: number[];
}

export interface MiniBatchMap {
  revision: string; by: string; total: number; chunks: { first: number; bytes: string }[];
}

export interface Row {
  mini_batch: number; state: MiniBatchState; tries: number; copy: boolean; deliveries_lost: number; started_at: number | null;
  seconds: number | null; run_seconds: number | null; process_seconds: number | null;
  items: number | null; items_failed: number | null; node: string | null; process: string | null;
  detail: string | null; error: string | null;
}
export interface MiniBatches {
  revision: string; total: number; matching: number; offset: number; searched_all: boolean; rows: Row[];
}

export interface Frame { file: string; line: number; function: string; code: string; user: boolean }
export interface AttemptError {
  category: string; message: string; traceback: string; frames: Frame[]; log: string; printed: string;
}
export interface Attempt {
  try_number: number; copy: boolean; status: string; status_text: string; counts: boolean; is_final: boolean;
  node: string; process: string; started_at: number; ended_at: number;
  phases: { name: string; seconds: number }[];
  elapsed_seconds: number; run_seconds: number; process_seconds: number; items: number; succeeded: number;
  error: AttemptError | null;
  printed: { path: string; from: number; to: number; text: string; truncated: boolean }[];
  logs: { path: string; from: number | null }[]; warnings: string[];
}
export interface ResultRows {
  available: boolean; reason: string | null; columns: string[] | null; cells: (string | null)[][]; text: string | null;
  truncated: boolean; bytes: number;
}
export interface MiniBatch {
  revision: string; mini_batch: number; state: MiniBatchState; tries: number; deliveries_lost: number;
  items: { total: number | null; shown: { path: string; range: string | null }[]; kind: string };
  key: [string, string][]; attempts: Attempt[]; speculative_run: "won" | "stopped" | "open" | "failed" | null;
  wait: Wait | null; rejected: RejectedItems; rows: ResultRows;
  previous_failed: number | null; next_failed: number | null;
  can_run_again: boolean; test_case: TestCase | null;
}

/** The items that were rejected although their mini-batch succeeded; the first ones are shown. */
export interface RejectedItems {
  items: number; shown: { items: number; detail: string; values: string; process: string; error: AttemptError }[];
}

/** How to run just the items of a mini-batch outside the portal. */
export interface TestCase {
  command: string; rows: string | null; job_file: { name: string; text: string; command: string } | null;
}

export interface TimelineProcess {
  node: string; process: string; attempts: number; failed: number; busy_seconds: number;
}
export interface Bars {
  process: number[]; mini_batch: number[]; start: number[]; end: number[]; loaded: number[]; run: number[];
  status: number[]; copy: boolean[];
}
export interface Bins { step_ms: number; busy: number[][]; failed: number[][] }
export interface Percentiles {
  of: string; p50: number; p90: number; p95: number; p99: number; max: number; mean: number;
}
export interface Timeline {
  revision: string; from: number; to: number; now: number; processes: TimelineProcess[];
  bars: Bars | null; bins: Bins | null; attempts: number; percentiles: Percentiles[]; slowest: Row[];
}

export interface Samples {
  at: number[]; series: { name: string; unit: string; values: (number | null)[] }[];
}
export interface NodeProcess {
  process: string; pid: number | null; attempts: number; failed: number; busy_seconds: number;
  first_at: number | null; last_at: number | null; running: Wait | null;
  cpu_percent: number | null; memory_bytes: number | null; gpu_percent: number | null; gpu_memory_bytes: number | null; samples: Samples | null;
}
export interface NodeInfo { node: string; stopped: string | null; processes: NodeProcess[]; samples: Samples | null }
export interface Nodes { now: number; nodes: NodeInfo[]; events: { at: number; node: string | null; text: string }[] }

export interface LogFile { path: string; bytes: number }
export interface Logs {
  files: LogFile[]; first_error: { path: string; offset: number | null; time: string; text: string } | null;
}
export interface LogText {
  path: string; bytes: number; from: number; to: number; text: string; starts: number[]; line: number | null;
}
export interface LogSearch {
  matches: { path: string; line: number; offset: number; text: string }[]; truncated: boolean; searched_bytes: number;
}

export interface Output {
  available: boolean; reason: string | null; path: string; bytes: number; format: string;
  columns: string[] | null; cells: (string | null)[][]; truncated: boolean; how_to_read: string;
}

/** What a worker offers to jobs; `memory` in bytes. */
export interface Offer { gpus: number; memory: number; processors: number; labels: Record<string, string> }
export interface Target {
  name: string; store: string; queue: string | null;
  queues: {
    name: string; visible: number | null; in_flight: number | null; delayed: number | null; problem: string | null;
  }[];
  dead_letters: {
    job_id: string | null; reason: string; moved: null | { queue: string; node: string; at: string }; bytes: number;
    body: string;
  }[];
  dead_letters_partial: boolean; dead_letters_problem: string | null;
  workers: { node: string; job_id: string | null; last_at: number; offer: Offer }[];
  workers_problem: string | null;
  reducers: { job_id: string; last_at: number; silent: boolean }[]; now: number;
}
export interface Targets { targets: { name: string; current: boolean }[] }
export interface Disposed { done: number; left: number; message: string }

export interface Doctor {
  ok: boolean; checks: { check: string; state: "ok" | "warning" | "failed" | "not_checked"; message: string }[];
}

export interface Report { report: 1; generated_at: number; job_id: string; answers: Record<string, unknown> }
