// One job: how it stands, its numbers, what fails, and what it was told to do.
import type { Failure, Gauge, Job, RejectGroup, Rejects, Series, Wait } from "../api";
import { counted, duration, hasWaited, rate } from "../format";
import { report } from "../report";
import { address } from "../route";
import { now, useJobData } from "../live";
import { RateChart } from "../ui/charts";
import { Icon } from "../ui/icons";
import { Await, Copyable, Empty, Num, Panel, Problem, Progress, StateBadge, Terminal, toneOf, When } from "../ui/parts";
import { Action, Clone } from "./actions";

export function Overview({ job }: { job: Job }) {
  return (
    <div class="stack">
      <p class={`sentence ${toneOf(job.state)}`} aria-live="polite">{job.sentence}</p>
      {job.waits.length > 0 && <Waits job={job} />}
      <div class="columns">
        <div class="stack">
          <Facts job={job} />
          <Rate job={job} />
          {(job.failures.length > 0 || job.mini_batches.failed > 0 || job.items.failed > 0) && <Causes job={job} />}
          <Notes title="Warnings" lines={job.warnings} />
        </div>
        <div class="stack">
          <Limits gauges={job.gauges} />
          <Settings job={job} />
          <Lineage job={job} />
          <Notes title="Notes" lines={job.notes} />
        </div>
      </div>
    </div>
  );
}

function Facts({ job }: { job: Job }) {
  const { mini_batches, items, retrying, result, progress } = job;
  const isOpen = result === null;
  const { total } = mini_batches;
  const copies = result?.copies ?? progress?.copies;
  return (
    <Panel title="Mini-batches" end={progress?.step && isOpen && <span class="muted">{progress.step}</span>}>
      <Progress counts={mini_batches} retrying={retrying} />
      <dl class="facts below">
        <Fact name="Succeeded"><Num value={mini_batches.succeeded} /> <small>{total > 0 ? <>of <Num value={total} /></> : isPlanning(job) && "planning"}</small></Fact>
        <Fact name="Failed" bad={mini_batches.failed > 0}><Num value={mini_batches.failed} /></Fact>
        {isOpen && progress && <Fact name="Running"><Num value={progress.running.length} /></Fact>}
        {(retrying > 0 || isOpen) && <Fact name={isOpen ? "To be tried again" : "Had tries left"}><Num value={retrying} /></Fact>}
        <Fact name="Items succeeded"><Num value={items.succeeded} />{!isOpen && items.total > 0 && <small> of <Num value={items.total} /></small>}</Fact>
        <Fact name="Items failed" bad={items.failed > 0}><Num value={items.failed} /></Fact>
        {copies && <Fact name="Speculative runs"><Num value={copies.started} /> <small>{copies.won} won</small></Fact>}
        <Fact name="Rate">{job.rate === null ? <span class="muted">–</span> : rate(job.rate)}</Fact>
        {isOpen && <Fact name="Time left">{job.eta_seconds === null ? <span class="muted">unknown</span> : duration(job.eta_seconds)}</Fact>}
        <Fact name={isOpen ? "Elapsed" : "Took"}>{job.elapsed_seconds === null ? "–" : duration(elapsedNow(job))}<Waited job={job} /></Fact>
        <Fact name={isOpen ? "Processes" : "Processes in all"}><Num value={isOpen && progress ? progress.processes : job.processes} /> <small>on {counted(isOpen && progress ? progress.nodes_at_work : job.nodes, "node")}</small></Fact>
      </dl>
    </Panel>
  );
}

/** The time of a job; while it has processes, it goes on between two answers. */
function elapsedNow({ elapsed_seconds, state, now: answered }: Job): number {
  const since = ["Running", "Waiting", "Canceling"].includes(state) ? Math.max(0, now.value - answered) / 1000 : 0;
  return (elapsed_seconds ?? 0) + Math.min(since, 5);
}

/** Whether a process plans the job now. */
export function isPlanning({ state, progress }: Job): boolean {
  return ["Running", "Waiting"].includes(state) && progress !== null && !progress.planned;
}

/** How long the job worked and waited, if it waited for workers long enough to say so. */
function Waited({ job: { elapsed_seconds, worked_seconds } }: { job: Job }) {
  if (elapsed_seconds === null || worked_seconds === null || !hasWaited(elapsed_seconds, worked_seconds)) return null;
  return <small> worked {duration(worked_seconds)}, waited {duration(elapsed_seconds - worked_seconds)}</small>;
}

function Fact({ name, bad = false, children }: { name: string; bad?: boolean; children: preact.ComponentChildren }) {
  return <div class="fact"><dt>{name}</dt><dd class={bad ? "bad" : ""}>{children}</dd></div>;
}

function Rate({ job }: { job: Job }) {
  const series = useJobData<Series>(job, "series");
  return (
    <Panel title="Attempts that ended, by time" end={<><span class="key good">succeeded</span><span class="key bad">failed</span></>}>
      <Await of={series}>
        {(data) => data.succeeded.length === 0 ? <Empty title={job.result ? "No attempt ended." : "No attempt has ended yet."}>{job.result ? "" : "The first point appears with the first result."}</Empty> : <RateChart series={data} />}
      </Await>
    </Panel>
  );
}

function Waits({ job }: { job: Job }) {
  return (
    <Panel title="What it waits for now" flush>
      {job.waits.map((wait, at) => <WaitLine key={at} job={job} wait={wait} open={at === 0} />)}
    </Panel>
  );
}

export function WaitLine({ job, wait, open = false }: { job: Job; wait: Wait; open?: boolean }) {
  // The server's number is of its answer; the clock goes on.
  const seconds = wait.since === null ? wait.seconds : Math.max(wait.seconds, (now.value - wait.since) / 1000);
  return (
    <div class="item">
      <p>
        <strong>{wait.process ? `${wait.phase} for ${duration(seconds)}` : `${wait.detail} for ${duration(seconds)}`}</strong>
        <span class="muted">
          {wait.mini_batch !== null && <> · <a href={address(["jobs", job.job_id, "mini-batches", wait.mini_batch])}>mini-batch {wait.mini_batch}</a></>}
          {wait.process && ` · ${wait.process}`} · node {wait.node}{wait.process && wait.detail && ` · ${wait.detail}`}
        </span>
      </p>
      {wait.stack && <details open={open}><summary class="muted">Python stack</summary><Terminal text={wait.stack} label={`Python stack of ${wait.process}`} /></details>}
    </div>
  );
}

/** What failed for one reason: attempts, and items that a mini-batch succeeded without. */
interface Cause { failure?: Failure; rejected?: RejectGroup; items: number }

/** Joins failures and rejected items, the most frequent failures first. */
function causesOf(failures: Failure[], groups: RejectGroup[]): Cause[] {
  const causes = new Map<string, Cause>(failures.map((failure) => [failure.reason, { failure, items: 0 }]));
  for (const rejected of groups) {
    const cause = causes.get(rejected.reason) ?? { items: 0 };
    causes.set(rejected.reason, { ...cause, rejected: cause.rejected ?? rejected, items: cause.items + rejected.items });
  }
  return [...causes.values()];
}

/** What failed, by cause: from each to its first item, its mini-batches, its traceback, and what runs it again. */
function Causes({ job }: { job: Job }) {
  const { failed } = job.mini_batches;
  const hasItems = job.items.failed > 0;
  // While the job runs, each answer reads its whole ledger.
  const rejects = useJobData<Rejects>(hasItems ? job : null, "rejects", job.result ? job.revision : "", { every: job.result ? 0 : 30_000 });
  const table = `/api/v1/jobs/${encodeURIComponent(job.job_id)}/logs/raw?path=rejects.csv`;
  const of = (state: string) => address(["jobs", job.job_id, "mini-batches"], { state });
  const causes = causesOf(job.failures, rejects.data?.groups ?? []);
  const retry = job.can_retry ? undefined : job.commands.find(({ what }) => what === "retry");
  return (
    <Panel
      title="What failed, by cause" flush
      end={
        <>
          <Action job={job} name="retry" label="Run these again" small />
          {job.first_failed !== null && <a class="button small" href={address(["jobs", job.job_id, "mini-batches", job.first_failed])}>Open the first</a>}
          {failed > 0 && <a class="button small" href={of("failed")}>Failed mini-batches</a>}
          {hasItems && <a class="button small" href={of("failed,partial")}>Mini-batches with failed items</a>}
          {!report && job.result?.rejects && <a class="button small" href={table} download><Icon name="down" />Table of all items</a>}
        </>
      }
      footer={retry && !report && <span>Run these again with <Copyable text={retry.command} label="the command" /></span>}
    >
      {rejects.error && <Problem error={rejects.error} again={rejects.refresh} />}
      {causes.length === 0 && <Empty title="No cause has been recorded.">{hasItems && "run() returned no results for some items."}</Empty>}
      {causes.map((cause, at) => <CauseItem key={(cause.failure ?? cause.rejected)?.reason} job={job} cause={cause} open={at === 0} />)}
    </Panel>
  );
}

function CauseItem({ job, cause: { failure, rejected, items }, open }: { job: Job; cause: Cause; open: boolean }) {
  const first = rejected?.first;
  const error = failure?.error ?? (rejected?.message ? `${rejected.exception}: ${rejected.message}` : rejected?.exception);
  const { traceback, printed, log } = failure ?? first ?? { traceback: "", printed: "", log: "" };
  const numbers = failure?.mini_batches.length ? failure.mini_batches : first ? [first.mini_batch] : [];
  return (
    <details class="item" open={open}>
      <summary>
        <span class="error-line">
          <strong class="anywhere">{error}</strong>{" "}
          <span class="muted num">{[failure && failure.attempts > 0 && counted(failure.attempts, "failed attempt"), items > 0 && `${counted(items, "item")} rejected`].filter(Boolean).join(", ")}</span>
        </span>
      </summary>
      <div class="stack inner">
        {numbers.length > 0 && (
          <p class="muted">
            {numbers.length === 1 ? "Mini-batch " : "Mini-batches "}
            {numbers.map((number, at) => <>{at > 0 && ", "}<a href={address(["jobs", job.job_id, "mini-batches", number])}>{number}</a></>)}
            {(rejected?.mini_batches ?? 0) > numbers.length && " …"}
            {!report && log && <> · <a href={address(["jobs", job.job_id, "logs"], { path: log })}>log of the attempt</a></>}
          </p>
        )}
        {first && <p class="anywhere"><span class="muted">First item: </span>{first.detail}{first.values && <> <span class="mono muted">{first.values}</span></>}</p>}
        {traceback && <Terminal text={traceback} label="Traceback" />}
        {printed && <><h3>It printed</h3><Terminal text={printed} label="What it printed" /></>}
      </div>
    </details>
  );
}

/** A number of a gauge with its unit. */
function amount(value: number, unit: Gauge["unit"]): string {
  const shown = Number.isInteger(value) ? `${value}` : value.toFixed(1);
  switch (unit) {
    case "items": return counted(value, "item");
    case "mini-batches": return counted(value, "mini-batch");
    case "tries": return counted(value, "try");
    case "percent": return `${shown}%`;
    case "seconds": return `${shown} s`;
    default: return shown;
  }
}

function Limits({ gauges }: { gauges: Gauge[] }) {
  if (gauges.length === 0) return null;
  return (
    <Panel title="How near each limit is">
      <div class="stack gauges">{gauges.map((gauge) => <Limit key={gauge.key} gauge={gauge} />)}</div>
    </Panel>
  );
}

function Limit({ gauge }: { gauge: Gauge }) {
  const { value, limit, unit } = gauge;
  const share = limit === null ? 0 : limit === 0 ? (value > 0 ? 1 : 0) : Math.min(value / limit, 1);
  const reached = limit !== null && (gauge.fails_when === "above" ? value > limit : value >= limit && limit > 0);
  // A job may use all its tries without any harm.
  const tone = unit === "tries" ? "busy" : reached ? "bad" : share >= 0.7 ? "warn" : "good";
  const text = `${amount(value, unit)}, ${limit === null ? "no limit" : `limit ${limit}`}`;
  return (
    <div class="gauge" title={gauge.key}>
      <div class="names"><span class="anywhere">{gauge.label}</span><span class={`num ${reached && tone === "bad" ? "bad" : "muted"}`}>{text}</span></div>
      {limit !== null && <div class="bar thin" role="img" aria-label={`${gauge.label}: ${text}`}><span class={tone} style={{ width: `${share * 100}%` }} /></div>}
    </div>
  );
}

function Settings({ job }: { job: Job }) {
  const groups = new Map<string, { key: string; value: string }[]>();
  for (const setting of job.settings) groups.set(setting.group, [...(groups.get(setting.group) ?? []), setting]);
  return (
    <Panel title="Settings" end={<Clone job={job} />}>
      <div class="stack">
        <dl class="pairs">
          <dt>script</dt><dd class="mono">{job.script}</dd>
          {job.job_file && <><dt>job file</dt><dd class="mono">{job.job_file}</dd></>}
          <dt>logs</dt><dd class="mono">{job.logs}</dd>
        </dl>
        {[...groups].map(([group, settings]) => (
          <details key={group} open={group === "inputs" || group === "mini-batches"}>
            <summary><h3 class="inline">{group}</h3></summary>
            <dl class="pairs">{settings.map(({ key, value }) => <><dt class="mono">{key}</dt><dd class="mono">{value}</dd></>)}</dl>
          </details>
        ))}
      </div>
    </Panel>
  );
}

function Lineage({ job }: { job: Job }) {
  const { rounds, same, reused } = job.lineage;
  const command = job.commands.find(({ what }) => what === (job.can_retry ? "retry" : "status"));
  return (
    <Panel title="History">
      <div class="stack">
        <dl class="pairs">
          <dt>started</dt><dd><When at={job.started_at} /></dd>
          {rounds.map(({ at, text }, number) => <><dt>round {number + 1}</dt><dd>{at !== null && <><When at={at} />: </>}{text}</dd></>)}
          {job.ended_at !== null && <><dt>ended</dt><dd><When at={job.ended_at} /></dd></>}
          {reused.count > 0 && <><dt>reused by</dt><dd>{counted(reused.count, "run")} with the same inputs, script and settings, last <When at={reused.times.at(-1)} /></dd></>}
          {job.result?.reused && <><dt>result</dt><dd>of an earlier job with the same inputs and script</dd></>}
        </dl>
        {same.length > 0 && (
          <div><h3>Other jobs of this name</h3>
            <ul class="same">{same.map((other) => <li key={other.job_id}><StateBadge state={other.state} /> <a class="mono anywhere" href={address(["jobs", other.job_id])}>{other.job_id}</a></li>)}</ul>
          </div>
        )}
        {command && <div><h3>{command.what === "retry" ? "To continue it" : "On the command line"}</h3><Copyable text={command.command} label="the command" /></div>}
      </div>
    </Panel>
  );
}

function Notes({ title, lines }: { title: string; lines: string[] }) {
  if (lines.length === 0) return null;
  return <Panel title={title}><ul class="notes">{lines.map((line) => <li class="anywhere"><Icon name="warn" />{line}</li>)}</ul></Panel>;
}
