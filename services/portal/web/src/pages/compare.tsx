// Two jobs side by side: how they ended, how long their phases took, their settings, and whether their scripts differ.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";
import type { Job, Percentiles, ScriptSource, Timeline } from "../api";
import { useData } from "../client";
import { counted, duration, rate } from "../format";
import { useJobData } from "../live";
import { address, refine, route } from "../route";
import { Await, Empty, Num, Panel, Scroll, StateBadge, When } from "../ui/parts";
import { PHASES } from "./timeline";

export function ComparePage({ job }: { job: Job }) {
  const { before, same } = job.lineage;
  const other = route.value.query.get("with") ?? before ?? same[0]?.job_id ?? null;
  const found = useData<Job>(other === null ? null : `/jobs/${encodeURIComponent(other)}`, job.revision, { keep: true });
  if (other === null) return <Panel><Empty title="There is no other job of this name.">The next run of it can be compared with this one.</Empty></Panel>;
  const known = [...new Set([...(before === null ? [] : [before]), ...same.map(({ job_id }) => job_id), other])];
  return (
    <div class="stack">
      <div class="tools">
        <label>Compare with <select value={other} onChange={(event) => refine({ with: event.currentTarget.value })}>
          {known.map((id) => <option value={id}>{id === before ? `the job before: ${id}` : id}</option>)}
        </select></label>
      </div>
      <Await of={found}>{(data) => <SideBySide job={job} other={data} />}</Await>
    </div>
  );
}

function SideBySide({ job, other }: { job: Job; other: Job }) {
  const [isAll, showAll] = useState(false);
  const values = (of: Job) => new Map(of.settings.map(({ key, value }) => [key, value]));
  const [own, others] = [values(job), values(other)];
  const keys = [...new Set([...own.keys(), ...others.keys()])];
  const shown = keys.filter((key) => isAll || own.get(key) !== others.get(key));
  const number = (of: (job: Job) => number) => [job, other].map((one) => <Num value={of(one)} />);
  const time = (of: (job: Job) => number | null) => [job, other].map((one) => { const value = of(one); return value === null ? "–" : duration(value); });
  return (
    <>
      <Pairs title="How they went" job={job} other={other} rows={[
        ["state", [job, other].map(({ state }) => <StateBadge state={state} />)],
        ["started", [job, other].map(({ started_at }) => <When at={started_at} />)],
        ["took", time(({ elapsed_seconds }) => elapsed_seconds)],
        ["worked for", time(({ worked_seconds }) => worked_seconds)],
        ["mini-batches", number(({ mini_batches }) => mini_batches.total)],
        ["of these succeeded", number(({ mini_batches }) => mini_batches.succeeded)],
        ["of these failed", number(({ mini_batches }) => mini_batches.failed)],
        ["items succeeded", number(({ items }) => items.succeeded)],
        ["items failed", number(({ items }) => items.failed)],
        ["rate", [job, other].map((one) => (one.rate === null ? "–" : rate(one.rate)))],
        ["processes in all", [job, other].map((one) => `${counted(one.processes, "process")} on ${counted(one.nodes, "node")}`)],
      ]} />
      <Phases job={job} other={other} />
      <Pairs
        title="Settings" job={job} other={other} empty="Their settings are equal."
        end={<label class="check"><input type="checkbox" checked={isAll} onChange={(event) => showAll(event.currentTarget.checked)} />Show equal settings</label>}
        rows={shown.map((key) => [key, [own, others].map((of) => <span class="mono anywhere">{of.get(key) ?? "–"}</span>)])}
      />
      <Scripts job={job} other={other} />
    </>
  );
}

/** A table of two jobs: a name and the two values in each row. Different values stand out. */
function Pairs({ title, job, other, rows, end, empty }: { title: string; job: Job; other: Job; rows: [string, ComponentChildren[]][]; end?: ComponentChildren; empty?: string }) {
  return (
    <Panel title={title} end={end} flush>
      {rows.length === 0 ? <Empty title={empty ?? ""} /> : (
        <Scroll label={title}>
          <table class="table dense pairs-of-jobs">
            <thead><tr><td /><th>{job.job_id}</th><th><a href={address(["jobs", other.job_id])}>{other.job_id}</a></th></tr></thead>
            <tbody>{rows.map(([name, [one, two]]) => <tr key={name}><th scope="row">{name}</th><td>{one}</td><td>{two}</td></tr>)}</tbody>
          </table>
        </Scroll>
      )}
    </Panel>
  );
}

function Phases({ job, other }: { job: Job; other: Job }) {
  const own = useJobData<Timeline>(job, "timeline");
  const others = useData<Timeline>(`/jobs/${encodeURIComponent(other.job_id)}/timeline`, other.revision);
  return (
    <Await of={own}>
      {(own) => (
        <Await of={others}>
          {(others) => {
            const of = (phase: string) => [own, others].map(({ percentiles }) => percentiles.find((row) => row.of === phase));
            const names = PHASES.filter(([phase]) => of(phase).some(Boolean));
            return <Pairs title="Durations of attempts: p50, p95" job={job} other={other} empty="No attempt has ended yet." rows={names.map(([phase, name]) => [name, of(phase).map(spread)])} />;
          }}
        </Await>
      )}
    </Await>
  );
}

function spread(row?: Percentiles): string {
  return row ? `${duration(row.p50)}, ${duration(row.p95)}` : "–";
}

function Scripts({ job, other }: { job: Job; other: Job }) {
  const found = useJobData<ScriptSource>(job, `source?${new URLSearchParams({ since: other.job_id })}`, other.job_id);
  return (
    <Panel title="Script">
      <Await of={found}>
        {({ absent, changes }) => {
          const why = absent ?? changes?.absent;
          if (why || !changes) return <p class="muted">{why}</p>;
          if (changes.files.length === 0) return <p>Their scripts are equal.</p>;
          return <p>{counted(changes.files.length, "file")} {changes.files.length === 1 ? "differs" : "differ"}. <a href={address(["jobs", job.job_id, "source"], { since: other.job_id })}>Show the changes</a></p>;
        }}
      </Await>
    </Panel>
  );
}
