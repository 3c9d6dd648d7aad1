// All jobs, newest first.
import { useEffect, useRef } from "preact/hooks";
import type { JobSummary, JobsPage as Answer } from "../api";
import { useData } from "../client";
import { duration, rate } from "../format";
import { jobsVersion, learnClock, watch } from "../live";
import { address, go, refine, route } from "../route";
import { Await, Choices, Empty, isForRow, Num, Panel, Progress, Scroll, Search, StateBadge, toneOf, When } from "../ui/parts";

const STATES = [
  ["", "All"], ["running,queued,waiting,canceling", "Open"], ["failed,damaged", "Failed"], ["interrupted", "Interrupted"],
  ["completed", "Completed"], ["canceled", "Canceled"],
] as const;
const PER_PAGE = 50;

export function JobsPage() {
  const { query } = route.value;
  const [name, state, after] = [query.get("name") ?? "", query.get("state") ?? "", query.get("after") ?? ""];
  useEffect(() => watch(null), []);
  const values = new URLSearchParams({ limit: String(PER_PAGE) });
  if (name) values.set("name", name);
  if (state) values.set("state", state);
  if (after) values.set("after", after);
  const found = useData<Answer>(`/jobs?${values}`, jobsVersion.value, { every: 5000, keep: true });
  useEffect(() => {
    if (found.data) learnClock(found.data.now);
  }, [found.data]);
  const isFiltered = name !== "" || state !== "";
  return (
    <>
      <div class="title">
        <div class="what">
          <h1>Jobs</h1>
          <div class="id">{found.data ? <span class="anywhere">{found.data.place}</span> : <span>&nbsp;</span>}</div>
        </div>
      </div>
      <div class="filters">
        <Search label="Search by name or id" value={name} change={(name) => refine({ name, after: undefined })} />
        <Choices label="State" value={state as (typeof STATES)[number][0]} of={STATES} choose={(state) => refine({ state, after: undefined })} />
      </div>
      <Await of={found}>
        {(data) =>
          data.jobs.length === 0 ? (
            <Panel>
              {data.next ? (
                // The server reads some thousands of jobs for one answer.
                <Empty title="No job matches so far.">Older jobs have not been looked at. <a href={address([], { name, state, after: data.next })}>Look further</a></Empty>
              ) : after ? (
                <Empty title={isFiltered ? "No older job matches." : "There are no older jobs."}><a href={address([], { name, state })}>Show the newest</a></Empty>
              ) : isFiltered ? (
                <Empty title="No job matches."><button type="button" class="button small" onClick={() => refine({ name: undefined, state: undefined, after: undefined })}>Show all jobs</button></Empty>
              ) : (
                <Empty title="There are no jobs yet.">Start one with <code>gristmill run job.yaml</code>. It appears here at once.</Empty>
              )}
            </Panel>
          ) : (
            <Panel
              flush
              footer={
                <>
                  <span>{state ? `${data.jobs.length} shown` : <><Num value={data.total} /> {data.total === 1 ? "job" : "jobs"}</>}</span>
                  {after && <a href={address([], { name, state })}>Newest</a>}
                  {data.next && <a href={address([], { name, state, after: data.next })}>Older jobs</a>}
                </>
              }
            >
              <Table jobs={data.jobs} />
            </Panel>
          )
        }
      </Await>
    </>
  );
}

function Table({ jobs }: { jobs: JobSummary[] }) {
  const body = useRef<HTMLTableSectionElement>(null);
  // The arrow keys move from job to job.
  const move = (event: KeyboardEvent) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    const links = [...(body.current?.querySelectorAll<HTMLAnchorElement>("a.name") ?? [])];
    const next = links[links.indexOf(document.activeElement as HTMLAnchorElement) + step];
    if (step === 0 || !next) return;
    event.preventDefault();
    next.focus();
  };
  return (
    <Scroll label="Jobs">
      <table class="table cards jobs">
        <thead>
          <tr><th>State</th><th>Job</th><th>Mini-batches</th><th class="right">Failed</th><th class="right">Rate</th><th>Started</th><th class="right">Took</th></tr>
        </thead>
        <tbody ref={body} onKeyDown={move}>{jobs.map((job) => <Line key={job.job_id} job={job} />)}</tbody>
      </table>
    </Scroll>
  );
}

function Line({ job }: { job: JobSummary }) {
  const to = address(["jobs", job.job_id]);
  const { succeeded, failed, total } = job.mini_batches;
  const ended = succeeded + failed;
  const seconds = job.elapsed_seconds;
  const cause = job.problem ?? job.cause;
  const isBad = ["bad", "warn"].includes(toneOf(job.state));
  return (
    <tr class="opens" onClick={(event) => isForRow(event) && go(to)}>
      <td><StateBadge state={job.state} /></td>
      <td class="wide job">
        <a class="name" href={to}>{job.name}</a> <span class="mono muted">{job.job_id.startsWith(`${job.name}-`) ? job.job_id.slice(job.name.length + 1) : job.job_id}</span>
        {job.waits_for && <div class="cause muted truncate" title={job.waits_for}>{job.waits_for}</div>}
        {cause && <div class={`cause truncate ${isBad ? "bad" : "muted"}`} title={cause}>{cause}</div>}
      </td>
      <td class="wide progress">
        <Progress counts={job.mini_batches} thin />
        <span class="num muted"><Num value={ended} />{total > 0 && <> of <Num value={total} /></>}</span>
      </td>
      <td class="right" data-label="failed">{failed > 0 ? <span class="bad"><Num value={failed} /></span> : <span class="muted">0</span>}</td>
      <td class="right num" data-label="rate">{job.rate === null ? <span class="muted">–</span> : rate(job.rate)}</td>
      <td><When at={job.started_at === null ? null : Date.parse(job.started_at)} relative /></td>
      <td class="right num" data-label="took">{seconds === null ? <span class="muted">–</span> : duration(seconds)}</td>
    </tr>
  );
}
