// What each node and process used over time, with the attempts below; starts, deaths and their reasons.
import type { Job, NodeInfo, NodeProcess, Nodes, Samples, Timeline, Wait } from "../api";
import { bytes, counted, duration } from "../format";
import { now, running, useJobData } from "../live";
import { address, go } from "../route";
import { NAMED, SampleChart } from "../ui/charts";
import { Gantt } from "../ui/gantt";
import { Await, Empty, Num, Panel, Scroll, When } from "../ui/parts";
import { WaitLine } from "./overview";

export function NodesPage({ job }: { job: Job }) {
  const found = useJobData<Nodes>(job, "nodes", job.revision, { every: job.result ? 0 : 2000 });
  const timeline = useJobData<Timeline>(job, "timeline", job.revision, { every: running.value.size > 0 ? 2000 : 0 });
  return (
    <Await of={found}>
      {(data) => data.nodes.length === 0 ? (
        <Panel><Empty title={job.result ? "No node worked on this job." : "No node has worked on this job yet."}>{job.hint ?? (job.result ? "" : "It appears here with its first sign of life.")}</Empty></Panel>
      ) : (
        <div class="stack">
          {data.nodes.map((node) => <NodePanel key={node.node} job={job} node={node} timeline={timeline.data} />)}
          <Events of={data} />
        </div>
      )}
    </Await>
  );
}

/** Charts of one unit each; a chart of memory available would hide what is used. */
function groups(samples: Samples): { unit: string; names: string[] }[] {
  const found = new Map<string, string[]>();
  for (const { name, unit, values } of samples.series) {
    if (values.every((value) => value === null)) continue;
    const group = name.startsWith("GPU") ? name.replace(/ \d+/, "") : unit === "MB/s" ? name.split(" ")[0] ?? name : unit === "percent" && !name.startsWith("CPU") ? name : unit;
    found.set(group, [...(found.get(group) ?? []), name]);
  }
  return [...found].map(([, names]) => ({ unit: samples.series.find(({ name }) => name === names[0])?.unit ?? "", names }));
}

function NodePanel({ job, node, timeline }: { job: Job; node: NodeInfo; timeline: Timeline | null }) {
  const rows = timeline ? timeline.processes.flatMap((process, at) => (process.node === node.node ? [at] : [])) : [];
  const times = [node.samples, ...node.processes.map(({ samples }) => samples)].flatMap((samples) => (samples && samples.at.length > 0 ? [samples.at[0] ?? 0, samples.at.at(-1) ?? 0] : []));
  const from = Math.min(timeline && timeline.attempts > 0 ? timeline.from : Infinity, ...times);
  const to = Math.max(timeline && timeline.attempts > 0 ? timeline.to : -Infinity, ...times, from + 1000);
  const failed = node.processes.reduce((sum, process) => sum + process.failed, 0);
  const hasGpu = node.processes.some((process) => process.gpu_memory_bytes !== null);
  const busiest = [...node.processes].sort((a, b) => b.busy_seconds - a.busy_seconds);
  return (
    <Panel
      title={<>Node <span class="mono">{node.node}</span></>}
      end={<span class="muted">{counted(node.processes.length, "process")}, {counted(node.processes.reduce((sum, process) => sum + process.attempts, 0), "attempt")}{failed > 0 && <span class="bad">, {failed} failed</span>}</span>}
    >
      <div class="stack">
        {node.stopped && <p class="bad anywhere">It gave up: {node.stopped}</p>}
        {job.waits.filter((wait) => wait.node === node.node && !wait.process).map((wait) => <WaitLine job={job} wait={wait} />)}
        {node.samples && Number.isFinite(from) ? groups(node.samples).map(({ unit, names }) => (
          <figure key={names.join()}>
            <figcaption class="keys">{names.length === 1 ? <h3>{names[0]}</h3> : names.map((name, at) => <span class={`key line-${at % NAMED.length}`}>{name}</span>)}</figcaption>
            <SampleChart samples={node.samples as Samples} names={names} unit={unit} from={from} to={to} />
          </figure>
        )) : <Empty title="No resources were sampled on this node.">The first samples are taken after 2, 4 and 8 seconds; the argument <code>--resource_monitor_interval</code> sets the longest time between two, and 0 takes none.</Empty>}
        {Number.isFinite(from) && <ProcessCharts processes={busiest} from={from} to={to} />}
        {timeline && rows.length > 0 && Number.isFinite(from) && (
          <figure>
            <figcaption><h3>Attempts</h3></figcaption>
            <Gantt timeline={timeline} rows={rows} from={from} to={to} left={58} rowHeight={rows.length <= 16 ? 14 : 6} label={`Attempts of node ${node.node}`} open={(number) => go(address(["jobs", job.job_id, "mini-batches", number]))} />
          </figure>
        )}
        {node.processes.length > 0 && <details open={node.processes.length <= 8}>
          <summary><h3 class="inline">Processes</h3></summary>
          <Scroll label="Processes">
            <table class="table dense">
              <thead><tr><th>Process</th><th class="right">pid</th><th class="right">Attempts</th><th class="right">Failed</th><th class="right">Busy</th><th class="right">Memory, most</th><th>First</th><th>Last</th>{!job.result && <><th class="right">CPU</th><th class="right">Memory</th>{hasGpu && <><th class="right">GPU</th><th class="right">GPU memory</th></>}<th>Now</th></>}</tr></thead>
              <tbody>{busiest.map((process) => {
                const memory = process.samples?.series.find(({ name }) => name === "Memory")?.values.reduce<number>((most, value) => Math.max(most, value ?? 0), 0);
                return (
                  <tr key={process.process}>
                    <td><a class="mono" href={address(["jobs", job.job_id, "mini-batches"], { node: node.node, process: process.process })}>{process.process}</a></td>
                    <td class="right num">{process.pid ?? "–"}</td><td class="right"><Num value={process.attempts} /></td>
                    <td class={`right ${process.failed > 0 ? "bad" : "muted"}`}><Num value={process.failed} /></td>
                    <td class="right num">{duration(process.busy_seconds)}</td><td class="right num">{memory ? `${Math.round(memory)} MB` : "–"}</td>
                    <td><When at={process.first_at} /></td><td><When at={process.last_at} /></td>
                    {!job.result && (
                      <>
                        <td class="right num">{process.cpu_percent === null ? "–" : `${process.cpu_percent}%`}</td>
                        <td class="right num">{process.memory_bytes === null ? "–" : bytes(process.memory_bytes)}</td>
                        {hasGpu && <><td class="right num">{process.gpu_percent === null ? "–" : `${process.gpu_percent}%`}</td><td class="right num">{process.gpu_memory_bytes === null ? "–" : bytes(process.gpu_memory_bytes)}</td></>}
                        <td>{process.running ? <Now job={job} running={process.running} /> : <span class="muted">–</span>}</td>
                      </>
                    )}
                  </tr>
                );
              })}</tbody>
            </table>
          </Scroll>
        </details>}
      </div>
    </Panel>
  );
}

/** What a process does now. */
function Now({ job, running: { mini_batch, phase, since } }: { job: Job; running: Wait }) {
  return (
    <>
      <a href={address(["jobs", job.job_id, "mini-batches", mini_batch ?? 0])}>mini-batch {mini_batch}</a>
      <span class="muted"> {phase}, {duration(Math.max(0, now.value - (since ?? now.value)) / 1000)}</span>
    </>
  );
}

/** What is drawn of each process, and its unit. */
const USED = [["CPU", "percent"], ["Memory", "MB"], ["GPU", "percent"]] as const;

/** The CPU, the memory and the GPUs of each process, as many processes on one chart as there are colours. */
function ProcessCharts({ processes, from, to }: { processes: NodeProcess[]; from: number; to: number }) {
  const sampled = processes.filter(({ samples }) => samples !== null && samples.at.length > 0);
  const parts = Array.from({ length: Math.ceil(sampled.length / NAMED.length) }, (_, at) => sampled.slice(at * NAMED.length, (at + 1) * NAMED.length));
  return (
    <>
      {parts.map((part, at) => {
        const names = part.map(({ process }) => process);
        return (
          <details key={names.join()} open={at === 0}>
            <summary><h3 class="inline">{at === 0 ? "What processes use" : `More processes: ${names[0]} and others`}</h3></summary>
            <div class="keys">{names.map((name, at) => <span class={`key line-${at}`}>{name}</span>)}</div>
            {USED.filter(([what]) => part.some(({ samples }) => samples?.series.some(({ name }) => name === what))).map(([what, unit]) => (
              <figure key={what}>
                <figcaption class="muted">{what}</figcaption>
                <SampleChart samples={together(part, what, unit)} names={names} unit={unit} from={from} to={to} label={`${what} of ${names.join(", ")}`} spans />
              </figure>
            ))}
          </details>
        );
      })}
    </>
  );
}

/** Returns one kind of samples of several processes, at the times of all. */
function together(processes: NodeProcess[], name: string, unit: string): Samples {
  const known = processes.map(({ process, samples }) => {
    const values = samples?.series.find((series) => series.name === name)?.values ?? [];
    return { process, values: new Map(samples?.at.map((at, index) => [at, values[index] ?? null])) };
  });
  const at = [...new Set(known.flatMap(({ values }) => [...values.keys()]))].sort((a, b) => a - b);
  return { at, series: known.map(({ process, values }) => ({ name: process, unit, values: at.map((time) => values.get(time) ?? null) })) };
}

function Events({ of }: { of: Nodes }) {
  return (
    <Panel title="What happened" flush>
      {of.events.length === 0 ? <Empty title="Nothing has been recorded." /> : (
        <ol class="events" tabIndex={0} aria-label="Events">
          {[...of.events].reverse().map((event) => <li><When at={event.at} /><span class="mono muted">{event.node ?? ""}</span><span class="anywhere">{event.text}</span></li>)}
        </ol>
      )}
    </Panel>
  );
}
