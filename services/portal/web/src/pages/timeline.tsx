// Processes as rows, attempts as bars; percentiles of their durations; the slowest mini-batches.
import type { Job, Row, Timeline } from "../api";
import { clock, counted, duration } from "../format";
import { running, useJobData } from "../live";
import { address, go, refine, route } from "../route";
import { Await, Empty, MiniBatchBadge, Num, Panel, Scroll } from "../ui/parts";
import { Gantt, RUNNING } from "../ui/gantt";
import { isPartial } from "./mini_batches";

/** The phases of an attempt, and their names. */
export const PHASES = [
  ["elapsed", "from hand-over to end"], ["waited", "waited"], ["prepared", "prepared"], ["loaded", "loaded"], ["run", "ran"], ["reported", "reported"],
  ["overhead", "before and after run()"], ["cpu", "processor time"],
] as const;
const NAMES = new Map<string, string>(PHASES);

export function TimelinePage({ job }: { job: Job }) {
  const { query } = route.value;
  const [from, to] = [Number(query.get("from") ?? NaN), Number(query.get("to") ?? NaN)];
  const zoomed = Number.isFinite(from) && Number.isFinite(to) && to > from;
  const found = useJobData<Timeline>(job, `timeline${zoomed ? `?from=${Math.floor(from)}&to=${Math.ceil(to)}` : ""}`, job.revision, { keep: true, every: running.value.size > 0 ? 2000 : 0 });
  const zoom = (from: number, to: number) => {
    if (to - from < 5) return;
    refine({ from: Math.floor(from), to: Math.ceil(to) });
  };
  return (
    <Await of={found}>
      {(data) => {
        const [shownFrom, shownTo] = zoomed ? [from, to] : [data.from, Math.max(data.to, data.from + 1)];
        const span = shownTo - shownFrom;
        const count = data.processes.length;
        return (
          <div class="stack">
            <Panel
              title={<>Attempts <span class="muted num">{data.attempts}{zoomed && " in this window"}</span></>}
              end={
                <>
                  <button type="button" class="button small" aria-label="Zoom in" onClick={() => zoom(shownFrom + span * 0.25, shownTo - span * 0.25)}>+</button>
                  <button type="button" class="button small" aria-label="Zoom out" disabled={!zoomed} onClick={() => zoom(shownFrom - span * 0.5, shownTo + span * 0.5)}>−</button>
                  <button type="button" class="button small" disabled={!zoomed} onClick={() => refine({ from: undefined, to: undefined })}>Whole job</button>
                </>
              }
              footer={count > 0 && (
                <>
                  {data.bars ? <><span class="key good">succeeded (solid: in run())</span><span class="key warn">failed a try</span><span class="key bad">failed or timed out</span><span class="key odd">process died</span>{data.bars.status.includes(RUNNING) && <span class="key running">running</span>}{data.bars.copy.includes(true) && <span class="key busy">speculative run</span>}</>
                    : <><span class="key good">busy</span><span class="key bad">failed attempts</span><span>Zoom in to see single attempts.</span></>}
                  <span>{clock(shownFrom, span)} to {clock(shownTo, span)}, {duration(span / 1000)}. Drag to zoom.</span>
                </>
              )}
            >
              {count === 0 ? <Empty title={job.result ? "No attempt ended." : "No attempt has ended yet."} /> : (
                <div class="tall">
                  <Gantt
                    timeline={data} rows={data.processes.map((_, at) => at)} from={shownFrom} to={shownTo} left={innerWidth < 640 ? 56 : 130}
                    rowHeight={count <= 40 ? 20 : count <= 100 ? 12 : 5} open={(number) => go(address(["jobs", job.job_id, "mini-batches", number]))} zoom={zoom}
                    label={`Timeline of ${counted(count, "process")}. Plus and minus zoom, arrow keys move.`}
                  />
                </div>
              )}
            </Panel>
            <div class="columns even">
              <Slowest job={job} rows={data.slowest} />
              <div class="stack">
                <PercentileTable of={data.percentiles} />
                <Processes job={job.job_id} of={data} />
              </div>
            </div>
          </div>
        );
      }}
    </Await>
  );
}

function PercentileTable({ of }: { of: Timeline["percentiles"] }) {
  if (of.length === 0) return null;
  return (
    <Panel title="Durations" flush>
      <Scroll label="Table">
        <table class="table dense">
          <thead><tr><th>Of</th><th class="right">mean</th><th class="right">p50</th><th class="right">p90</th><th class="right">p95</th><th class="right">p99</th><th class="right">max</th></tr></thead>
          <tbody>{of.map((row) => (
            <tr><td>{NAMES.get(row.of) ?? row.of}</td>{[row.mean, row.p50, row.p90, row.p95, row.p99, row.max].map((value) => <td class="right num">{duration(value)}</td>)}</tr>
          ))}</tbody>
        </table>
      </Scroll>
    </Panel>
  );
}

function Processes({ job, of }: { job: string; of: Timeline }) {
  const { processes } = of;
  if (processes.length === 0) return null;
  const most = Math.max(...processes.map(({ busy_seconds }) => busy_seconds), 0.001);
  return (
    <Panel title="Processes" flush>
      <Scroll limited label="Processes">
        <table class="table dense">
          <thead><tr><th>Process</th><th class="right">Attempts</th><th class="right">Failed</th><th>Busy</th></tr></thead>
          <tbody>{processes.map((row) => (
            <tr>
              <td>{row.process ? <a class="mono" href={address(["jobs", job, "mini-batches"], { node: row.node, process: row.process })}>{row.process}</a> : <span class="muted">without a process</span>} <span class="muted anywhere">{row.node}</span></td>
              <td class="right"><Num value={row.attempts} /></td><td class={`right ${row.failed > 0 ? "bad" : "muted"}`}><Num value={row.failed} /></td>
              <td class="busy"><span class="bar thin"><span class="busy" style={{ width: `${(row.busy_seconds / most) * 100}%` }} /></span><span class="num muted">{duration(row.busy_seconds)}</span></td>
            </tr>
          ))}</tbody>
        </table>
      </Scroll>
    </Panel>
  );
}

function Slowest({ job, rows }: { job: Job; rows: Row[] }) {
  const most = Math.max(...rows.map((row) => row.seconds ?? 0), 0.001);
  return (
    <Panel title={`The slowest ${rows.length || ""}`} flush>
      {rows.length === 0 ? <Empty title={job.result ? "No attempt ended." : "No attempt has ended yet."} /> : (
        <Scroll label="Table">
          <table class="table dense">
            <thead><tr><th>Mini-batch</th><th>Took</th><th class="right">run()</th><th>State</th><th>Process</th></tr></thead>
            <tbody>{rows.map((row) => (
              <tr>
                <td><a class="num" href={address(["jobs", job.job_id, "mini-batches", row.mini_batch])}>{row.mini_batch}</a></td>
                <td class="busy"><span class="bar thin"><span class="busy" style={{ width: `${((row.seconds ?? 0) / most) * 100}%` }} /></span><span class="num">{duration(row.seconds ?? 0)}</span></td>
                <td class="right num">{row.run_seconds === null ? "–" : duration(row.run_seconds)}</td>
                <td><MiniBatchBadge state={row.state} partial={isPartial(row)} small />{row.copy && <> <span class="pill">speculative run</span></>}</td>
                <td class="mono">{row.process} <span class="muted">{row.node}</span></td>
              </tr>
            ))}</tbody>
          </table>
        </Scroll>
      )}
    </Panel>
  );
}
