// One mini-batch: its items, every attempt, the exception, what it printed, and the rows it returned.
import { useEffect } from "preact/hooks";
import type { Attempt, AttemptError, Frame, Job, MiniBatch, RejectedItems, TestCase } from "../api";
import { post } from "../client";
import { bytes, counted, duration } from "../format";
import { info, mayAct } from "../info";
import { keyOf, running, useJobData } from "../live";
import { report } from "../report";
import { address, go } from "../route";
import { Icon } from "../ui/icons";
import { AskingButton, Await, copy, Copyable, Empty, MiniBatchBadge, Num, Panel, Terminal, When } from "../ui/parts";
import { Action } from "./actions";
import { WaitLine } from "./overview";
import { Sheet } from "./sheet";

export function MiniBatchPage({ job, number }: { job: Job; number: number }) {
  const found = useJobData<MiniBatch>(job, `mini-batches/${number}`, `${job.revision} ${keyOf(running.value.get(number))}`);
  const to = (number: number) => address(["jobs", job.job_id, "mini-batches", number]);
  const total = job.mini_batches.total;
  const [previous, next] = [number > 0 ? number - 1 : null, total === 0 || number + 1 < total ? number + 1 : null];
  const data = found.data;
  useEffect(() => {
    const onKey = (event: KeyboardEvent) => {
      const inside = event.target as Element;
      if (inside.closest("input, textarea, select, pre, dialog") || scrolls(inside) || event.ctrlKey || event.metaKey || event.altKey) return;
      const target = event.key === "ArrowLeft" ? (event.shiftKey ? data?.previous_failed : previous)
        : event.key === "ArrowRight" ? (event.shiftKey ? data?.next_failed : next) : null;
      if (target !== null && target !== undefined) go(to(target));
    };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  });
  const step = (target: number | null | undefined, text: string, title: string, back: boolean) =>
    target === null || target === undefined ? null : <a class="button small" href={to(target)} title={title}>{back && <Icon name="left" />}{text}{!back && <Icon name="right" />}</a>;
  return (
    <>
      <div class="title">
        <div class="what"><div class="line">
          <h2 class="big">Mini-batch <span class="num">{number}</span></h2>
          {data && <MiniBatchBadge state={data.state} partial={data.state === "succeeded" && data.attempts.some((attempt) => attempt.counts && attempt.succeeded < attempt.items)} />}
          {data && <span class="muted">{counted(data.tries, "try")}{data.deliveries_lost > 0 && `, ${counted(data.deliveries_lost, "delivery")} lost`}</span>}
        </div></div>
        <div class="actions">
          {step(previous, "Previous", "Key ←", true)}{step(next, "Next", "Key →", false)}
          {data && step(data.previous_failed, "Previous failed", "Keys Shift ←", true)}{data && step(data.next_failed, "Next failed", "Keys Shift →", false)}
        </div>
      </div>
      <Await of={found}>{(data) => <Content job={job} data={data} />}</Await>
    </>
  );
}

/** Whether arrow keys scroll what has the focus. */
function scrolls(focused: Element): boolean {
  for (let element: Element | null = focused; element && element !== document.body; element = element.parentElement) {
    const { overflowX, overflowY } = getComputedStyle(element);
    const isScroller = /auto|scroll/.test(overflowX + overflowY);
    if (isScroller && (element.scrollWidth > element.clientWidth || element.scrollHeight > element.clientHeight)) return true;
  }
  return false;
}

function Content({ job, data }: { job: Job; data: MiniBatch }) {
  // The last attempt says most; those before it follow.
  const attempts = [...data.attempts].reverse();
  return (
    <div class="columns">
      <div class="stack">
        {data.wait && <Panel title="Now" flush><WaitLine job={job} wait={data.wait} open /></Panel>}
        {attempts.length === 0 && <Panel title="Attempts"><Empty title="No attempt has ended yet.">{job.result ? "The job ended before this mini-batch ran. A retry runs it." : data.state === "running" ? "It runs for the first time." : "It waits for a process."}</Empty></Panel>}
        {data.rejected.items > 0 && <RejectedPanel job={job} rejected={data.rejected} />}
        {data.speculative_run && <SpeculativeRun of={data.speculative_run} attempts={data.attempts} />}
        {attempts.map((attempt, at) => <AttemptPanel key={`${attempt.try_number}-${attempt.started_at}`} job={job} attempt={attempt} open={at === 0} />)}
        <RowsPanel data={data} />
      </div>
      <div class="stack">
        <Items data={data} />
        <Again job={job} data={data} />
      </div>
    </div>
  );
}

/** The items that the mini-batch succeeded without. */
function RejectedPanel({ job, rejected: { items, shown } }: { job: Job; rejected: RejectedItems }) {
  const told = shown.reduce((sum, one) => sum + one.items, 0);
  return (
    <Panel title="Rejected items" end={<><span class="muted"><Num value={items} /></span><Action job={job} name="retry" label="Run these again" small /></>} flush>
      {shown.map((one, at) => (
        <div class="item">
          <p><strong class="mono anywhere">{one.detail}</strong>{one.items > 1 && <span class="muted num"> {counted(one.items, "item")}</span>}{one.process && <span class="muted"> · {one.process}</span>}</p>
          {one.values && <p class="mono muted anywhere">{one.values}</p>}
          <ErrorOf error={one.error} open={at === 0} />
        </div>
      ))}
      {items > told && <p class="muted pad">The first {told} are shown.{job.result?.rejects && " The table of all is rejects.csv."}</p>}
    </Panel>
  );
}

const SPECULATIVE_RUNS = {
  won: ["Original run", "stopped", "The speculative run succeeded first, and its rows count."],
  stopped: ["Speculative run", "stopped", "It ran far longer than others, so it was run speculatively. The original run succeeded first."],
  open: ["Speculative run", "open", "It runs far longer than others, so it was run speculatively. The first success counts."],
  failed: ["Speculative run", "did not succeed", "It ran far longer than others, so it was run speculatively. Neither run succeeded."],
} as const;

/** The start of which no attempt is recorded. */
function SpeculativeRun({ of, attempts }: { of: NonNullable<MiniBatch["speculative_run"]>; attempts: Attempt[] }) {
  const second = attempts.find(({ copy }) => copy);
  // The original run may have failed.
  const both = second && attempts.some(({ copy, try_number }) => !copy && try_number === second.try_number);
  if (both || (second && of !== "won")) return null;
  const [title, state, text] = SPECULATIVE_RUNS[of];
  return <Panel title={title} end={<span class={`badge ${of === "open" ? "busy" : "idle"}`}>{state}</span>}><p class="muted">{text}</p></Panel>;
}

function AttemptPanel({ job, attempt, open }: { job: Job; attempt: Attempt; open: boolean }) {
  const good = attempt.status === "succeeded";
  return (
    <Panel
      title={<>Try {attempt.try_number}{attempt.copy && ", speculative run"}</>}
      end={
        <>
          {attempt.counts && <span class="pill">{good ? "its rows count" : "decided the failure"}</span>}
          <span class={`badge ${good ? "good" : "bad"}`}><Icon name={good ? "good" : "bad"} />{attempt.status_text}</span>
        </>
      }
    >
      <div class="stack">
        <dl class="facts small">
          <div><dt>Started</dt><dd><When at={attempt.started_at} /></dd></div>
          <div><dt>Took</dt><dd class="num">{duration(attempt.elapsed_seconds)}</dd></div>
          <div><dt>Processor time</dt><dd class="num">{duration(attempt.process_seconds)}</dd></div>
          <div><dt>Items</dt><dd><Num value={attempt.succeeded} /> <small class="muted">of <Num value={attempt.items} /> succeeded</small></dd></div>
          <div><dt>Process</dt><dd class="mono">{attempt.process || "none"} <small class="muted">on {attempt.node}</small></dd></div>
        </dl>
        <Phases attempt={attempt} />
        {attempt.error && <ErrorOf error={attempt.error} open={open} />}
        {attempt.printed.map((part) => <PrintedPart job={job} part={part} />)}
        {attempt.warnings.length > 0 && <ul class="notes">{attempt.warnings.map((text) => <li class="anywhere"><Icon name="warn" />{text}</li>)}</ul>}
        {!report && attempt.logs.length > 0 && (
          <p class="links"><span class="muted">Logs of its process:</span>
            {attempt.logs.map(({ path, from }) => <a class="mono anywhere" href={address(["jobs", job.job_id, "logs"], { path, at: from ?? undefined })}>{path}</a>)}
          </p>
        )}
      </div>
    </Panel>
  );
}

function Phases({ attempt }: { attempt: Attempt }) {
  const phases = attempt.phases.filter(({ seconds }) => seconds > 0);
  const total = phases.reduce((sum, { seconds }) => sum + seconds, 0);
  if (total <= 0) return null;
  const tone = (name: string) => /^\w+/.exec(name)?.[0] ?? "";
  return (
    <div>
      <div class="bar phases" role="img" aria-label={phases.map(({ name, seconds }) => `${name} ${duration(seconds)}`).join(", ")}>
        {phases.map(({ name, seconds }) => <span class={tone(name)} style={{ width: `${(seconds / total) * 100}%` }} title={`${name}: ${duration(seconds)}`} />)}
      </div>
      <div class="keys">{phases.map(({ name, seconds }) => <span class={`key ${tone(name)}`}>{name} <span class="num">{duration(seconds)}</span></span>)}</div>
    </div>
  );
}

function ErrorOf({ error, open }: { error: AttemptError; open: boolean }) {
  const own = error.frames.filter((frame) => frame.user);
  const frames = own.length > 0 ? own : error.frames;
  return (
    <details open={open}>
      <summary><strong class="bad anywhere">{headline(error)}</strong></summary>
      <div class="stack inner">
        {/* The innermost frame of the user's code is where to look. */}
        {frames.length > 0 && <ol class="frames" aria-label="Where it was raised, innermost first">{[...frames].reverse().map((frame, at) => <FrameLine frame={frame} first={at === 0} />)}</ol>}
        {error.traceback && <details open={frames.length === 0}><summary class="muted">Whole traceback{error.frames.length > own.length && own.length > 0 && `, with ${counted(error.frames.length - own.length, "frame")} of libraries`}</summary><Terminal text={error.traceback} label="Traceback" /></details>}
        {error.printed && <div><h3>It printed, at the end</h3><Terminal text={error.printed} label="The last lines that the attempt printed" /></div>}
      </div>
    </details>
  );
}

/** What the attempt wrote to one stream. */
function PrintedPart({ job, part }: { job: Job; part: Attempt["printed"][number] }) {
  const stream = part.path.startsWith("user/stderr/") ? "standard error" : "standard output";
  const more = part.truncated ? `The end of ${bytes(part.to - part.from)}.` : "";
  return (
    <div>
      <h3>It printed to {stream}</h3>
      <Terminal text={part.text} label={`What the attempt printed to ${stream}`} />
      {!report && <p class="links muted">{more} <a href={address(["jobs", job.job_id, "logs"], { path: part.path, at: part.from })}>Show it in the log</a></p>}
    </div>
  );
}

/** The last line of the traceback names the type of the exception, too. */
function headline({ message, traceback }: AttemptError): string {
  const first = message.split("\n")[0] ?? "";
  const named = traceback.split("\n").findLast((line) => /^\S/.test(line) && first !== "" && line.endsWith(first));
  return named ? named + message.slice(first.length) : message;
}

function FrameLine({ frame, first }: { frame: Frame; first: boolean }) {
  return (
    <li class={first ? "first" : ""}>
      <div><span class="mono anywhere">{frame.file}:{frame.line}</span> <span class="muted">in {frame.function}</span></div>
      {frame.code && <pre class="mono">{frame.code}</pre>}
    </li>
  );
}

function Items({ data }: { data: MiniBatch }) {
  const { total, shown, kind } = data.items;
  const count = total ?? shown.length;
  return (
    <Panel title="Items" end={<span class="muted"><Num value={count} /> {kind !== "unknown" && kind}</span>} flush>
      {data.key.length > 0 && <dl class="pairs pad">{data.key.map(([name, value]) => <><dt class="mono">{name}</dt><dd class="mono">{value}</dd></>)}</dl>}
      {shown.length === 0 ? <Empty title="The items are not recorded." /> : (
        <ol class="items" tabIndex={0} aria-label="Items">{shown.map(({ path, range }) => <li class="mono anywhere">{path}{range && <span class="muted"> {range}</span>}</li>)}</ol>
      )}
      {count > shown.length && <p class="muted pad">The first {shown.length} are shown.</p>}
    </Panel>
  );
}

function Again({ job, data }: { job: Job; data: MiniBatch }) {
  const test = data.test_case;
  const retry = data.state === "failed" && job.can_retry ? job.commands.find(({ what }) => what === "retry") : undefined;
  const alone = mayAct.value && data.can_run_again;
  if (!test && !retry && !alone) return null;
  return (
    <Panel title="Run it again">
      <div class="stack">
        {alone && <Alone job={job} data={data} />}
        {job.can_retry && data.state === "failed" && <div class="actions"><Action job={job} name="retry" label="Run failed mini-batches again" /></div>}
        {retry && <div><h3>With the other failed mini-batches of this job</h3><Copyable text={retry.command} label="the command" /></div>}
        {test && <TestCaseOf test={test} isTable={data.items.kind === "rows"} />}
      </div>
    </Panel>
  );
}

/** How to run the script on just these items from a terminal, for example after a change. */
function TestCaseOf({ test: { command, rows, job_file }, isTable }: { test: TestCase; isTable: boolean }) {
  return (
    <div class="stack">
      <div>
        <h3>As a test case</h3>
        <p class="muted">
          This command runs the script on just these {isTable ? "rows" : "items"}, in a job of its own.
          Add <code>--source-directory DIR</code> to run a changed copy of the script.
          {isTable && " It reads the rows from the table, which must be as it was planned."}
        </p>
      </div>
      <Copyable text={command} label="the command" />
      {rows && (
        <div class="stack">
          <p class="muted">This one writes the rows, with their types, to a file that can be the input of another job.</p>
          <Copyable text={rows} label="the command for the rows" />
        </div>
      )}
      {job_file && (
        <div class="stack">
          <p class="muted">Or save a job file of just these items as <code>{job_file.name}</code>, and run that.</p>
          <div class="actions"><button type="button" class="button small" onClick={() => void copy(job_file.text)}><Icon name="copy" />Copy the job file</button></div>
          <details><summary class="muted">{job_file.name}</summary><pre class="box" tabIndex={0}>{job_file.text}</pre></details>
          <Copyable text={job_file.command} label="the command" />
        </div>
      )}
    </div>
  );
}

/** Starts a job of just this mini-batch, and shows it. */
function Alone({ job, data }: { job: Job; data: MiniBatch }) {
  const run = async () => {
    const { message, job_id } = await post<{ message: string; job_id: string }>(`/jobs/${encodeURIComponent(job.job_id)}/mini-batches/${data.mini_batch}/run`);
    go(address(["jobs", job_id]));
    return message;
  };
  const script = info.value?.target ? "the script as it was sent with this job" : "the script as it is now";
  const items = data.items.kind === "rows" ? "The table must be as it was planned." : "The files are read as they are now.";
  return (
    <div class="stack">
      <p class="muted">A new job runs just these items with the settings of this job, one try and an output of its own. This job does not change.</p>
      <div class="actions">
        <AskingButton button="Run it again" icon="retry" small title={`Run mini-batch ${data.mini_batch} again?`} does="Start the job" act={run}>
          <p>A new job runs {script}. {items}</p>
          <p>Its output and the folders named in <code>outputs</code> are new ones. What the script writes elsewhere, it writes again.</p>
        </AskingButton>
      </div>
    </div>
  );
}

function RowsPanel({ data }: { data: MiniBatch }) {
  const { rows } = data;
  const count = rows.text === null ? rows.cells.length : null;
  return (
    <Panel title="Rows it returned" flush end={rows.available && <span class="muted">{rows.truncated && `the first ${count ?? 100} of `}{bytes(rows.bytes)}</span>}>
      {!rows.available ? <Empty title="There are no rows to show.">{rows.reason}</Empty>
        : rows.text !== null ? <pre class="box square" tabIndex={0} aria-label="Rows">{rows.text}</pre>
        : rows.cells.length === 0 ? <Empty title="It returned no rows." /> : <Sheet columns={rows.columns} cells={rows.cells} label="Rows" />}
    </Panel>
  );
}
