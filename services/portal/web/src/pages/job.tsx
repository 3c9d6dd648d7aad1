// The pages of one job: its head, the tabs, and the page that the address names.
import { useEffect, useRef } from "preact/hooks";
import type { Job } from "../api";
import { counted, took } from "../format";
import { job as current, jobError, watch } from "../live";
import { report } from "../report";
import { address } from "../route";
import { Icon } from "../ui/icons";
import { copy, Empty, Problem, StateBadge, Waiting, When } from "../ui/parts";
import { Action, Commands } from "./actions";
import { ComparePage } from "./compare";
import { LogsPage } from "./logs";
import { MiniBatchPage } from "./mini_batch";
import { MiniBatchesPage } from "./mini_batches";
import { NodesPage } from "./nodes";
import { OutputPage } from "./output";
import { Overview } from "./overview";
import { SourcePage } from "./source";
import { TimelinePage } from "./timeline";

export function JobPages({ id, path }: { id: string; path: string[] }) {
  useEffect(() => watch(id), [id]);
  const job = current.value;
  const error = jobError.value?.of === id ? jobError.value.error : null;
  if (job?.job_id !== id) {
    if (!error) return <Waiting />;
    if (error.status === 404) return <Empty title={`There is no job ${id}.`}>It may have been removed. <a href="#/">Show all jobs</a></Empty>;
    return <Problem error={error} again={() => location.reload()} />;
  }
  const [tab = "", number] = path;
  const isOne = tab === "mini-batches" && number !== undefined;
  return (
    <>
      <Head job={job} described={tab === ""} />
      {error && <div class="stack notice-gap"><Problem error={error} /></div>}
      <Tabs job={job} tab={tab} />
      {isOne ? <MiniBatchPage job={job} number={Number(number)} /> : <Tab job={job} tab={tab} />}
    </>
  );
}

function Tab({ job, tab }: { job: Job; tab: string }) {
  switch (tab) {
    case "": return <Overview job={job} />;
    case "mini-batches": return <MiniBatchesPage job={job} />;
    case "timeline": return <TimelinePage job={job} />;
    case "nodes": return <NodesPage job={job} />;
    case "logs": return <LogsPage job={job} />;
    case "output": return <OutputPage job={job} />;
    case "source": return <SourcePage job={job} />;
    case "compare": return <ComparePage job={job} />;
    default: return <Empty title="There is no such page."><a href={address(["jobs", job.job_id])}>Show the job</a></Empty>;
  }
}

const TABS = [["", "Overview"], ["mini-batches", "Mini-batches"], ["timeline", "Timeline"], ["nodes", "Nodes"], ["logs", "Logs"], ["output", "Output"], ["source", "Source"], ["compare", "Compare"]] as const;
/** The tabs that a report does not hold. */
const OF_SERVER = ["logs", "source", "compare"];

function Tabs({ job, tab }: { job: Job; tab: string }) {
  const { failed } = job.mini_batches;
  const tabs = report ? TABS.filter(([key]) => !OF_SERVER.includes(key)) : TABS;
  const nav = useRef<HTMLElement>(null);
  // On a narrow screen it may be beside it.
  useEffect(() => nav.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }), [tab]);
  return (
    <nav class="tabs" aria-label="Job" ref={nav}>
      {tabs.map(([key, text]) => (
        <a key={key} href={address(["jobs", job.job_id, ...(key ? [key] : [])])} aria-current={key === tab ? "page" : undefined}>
          {text}
          {key === "mini-batches" && failed > 0 && <span class="pill bad">{failed} failed</span>}
        </a>
      ))}
    </nav>
  );
}

function Head({ job, described }: { job: Job; described: boolean }) {
  return (
    <div class="title">
      <div class="what">
        {!report && <nav class="crumbs" aria-label="Path"><a href="#/">Jobs</a><span aria-hidden="true">/</span><span class="truncate">{job.name}</span></nav>}
        <div class="line"><h1>{job.name}</h1><StateBadge state={job.state} /></div>
        <div class="id">
          <button type="button" class="mono button plain small id-copy" title="Copy the id" onClick={() => void copy(job.job_id)}>{job.job_id} <Icon name="copy" /></button>
          {job.started_at !== null && <span>started <When at={job.started_at} /></span>}
          {job.elapsed_seconds !== null && <span>{job.ended_at === null ? "for" : "took"} {took(job.elapsed_seconds, job.worked_seconds)}</span>}
          {job.lineage.rounds.length > 1 && <span>{counted(job.lineage.rounds.length, "round")}</span>}
        </div>
        {described && job.description && <p class="muted description">{job.description}</p>}
      </div>
      <div class="actions">
        <Action job={job} name="cancel" />
        <Action job={job} name="retry" />
        {job.output.downloadable && !report && <a class="button" href={`/api/v1/jobs/${encodeURIComponent(job.job_id)}/output/raw`} download><Icon name="down" />Output</a>}
        <Commands job={job} />
      </div>
    </div>
  );
}
