// The pages of one job: its head, the tabs, and the page that the address names.
import { useEffect, useRef, useState } from "preact/hooks";
import type { Job } from "../api";
import { post } from "../client";
import { counted, duration } from "../format";
import { info, mayAct } from "../info";
import { job as current, jobError, watch } from "../live";
import { report } from "../report";
import { address } from "../route";
import { Icon } from "../ui/icons";
import { copy, Copyable, Dialog, Empty, Problem, StateBadge, toast, Waiting, When } from "../ui/parts";
import { LogsPage } from "./logs";
import { MiniBatchPage } from "./mini_batch";
import { MiniBatchesPage } from "./mini_batches";
import { NodesPage } from "./nodes";
import { OutputPage } from "./output";
import { Overview } from "./overview";
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
    default: return <Empty title="There is no such page."><a href={address(["jobs", job.job_id])}>Show the job</a></Empty>;
  }
}

const TABS = [["", "Overview"], ["mini-batches", "Mini-batches"], ["timeline", "Timeline"], ["nodes", "Nodes"], ["logs", "Logs"], ["output", "Output"]] as const;

function Tabs({ job, tab }: { job: Job; tab: string }) {
  const { failed } = job.mini_batches;
  const tabs = report ? TABS.filter(([key]) => key !== "logs") : TABS;
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
          {job.elapsed_seconds !== null && <span>{job.ended_at === null ? "for" : "took"} {duration(job.elapsed_seconds)}</span>}
          {job.lineage.continued.length > 0 && <span>continued {counted(job.lineage.continued.length, "time")}</span>}
        </div>
        {described && job.description && <p class="muted description">{job.description}</p>}
      </div>
      <Actions job={job} />
    </div>
  );
}

type Action = "cancel" | "retry";
const ASKED: Record<Action, { title: string; does: string; text: string }> = {
  cancel: {
    title: "Cancel this job?", does: "Cancel the job",
    text: "Mini-batches that run now are stopped. What has succeeded is kept, and a retry continues from there.",
  },
  retry: {
    title: "Retry this job?", does: "Retry the job",
    text: "Mini-batches that have not succeeded run again. The rows of those that have succeeded are kept.",
  },
};

function Actions({ job }: { job: Job }) {
  const [asked, ask] = useState<Action | "commands" | null>(null);
  const [busy, setBusy] = useState(false);
  if (report) return null;
  const act = async (action: Action) => {
    setBusy(true);
    try {
      const { message } = await post<{ message: string }>(`/jobs/${encodeURIComponent(job.job_id)}/${action}`);
      toast(message);
    } catch (error) {
      toast((error as Error).message, true);
    }
    setBusy(false);
    ask(null);
  };
  const may = mayAct.value;
  const command = (what: string) => job.commands.find((command) => command.what === what)?.command;
  return (
    <div class="actions">
      {may && job.can_cancel && <button type="button" class="button danger" onClick={() => ask("cancel")}><Icon name="stop" />Cancel</button>}
      {may && job.can_retry && <button type="button" class="button" onClick={() => ask("retry")}><Icon name="retry" />Retry</button>}
      {job.output.downloadable && <a class="button" href={`/api/v1/jobs/${encodeURIComponent(job.job_id)}/output/raw`} download><Icon name="down" />Output</a>}
      {job.commands.length > 0 && <button type="button" class="button" onClick={() => ask("commands")}><Icon name="copy" />Commands</button>}
      {(["cancel", "retry"] as const).map((action) => (
        <Dialog key={action} title={ASKED[action].title} open={asked === action} close={() => ask(null)}>
          <p>{ASKED[action].text}</p>
          {command(action) && <><p class="muted">The command that does the same:</p><Copyable text={command(action) ?? ""} label="the command" /></>}
          <div class="actions">
            <button type="button" class="button" onClick={() => ask(null)}>Leave it</button>
            <button type="button" class={`button main`} disabled={busy} onClick={() => void act(action)}>{ASKED[action].does}</button>
          </div>
        </Dialog>
      ))}
      <Dialog title="Commands" open={asked === "commands"} close={() => ask(null)}>
        <p class="muted">What this page shows and does, on the command line{info.value?.target ? ` of the target ${info.value.target}` : ""}.</p>
        {job.commands.map(({ what, command }) => <div key={what}><h3>{what}</h3><Copyable text={command} label={`the command for ${what}`} /></div>)}
        <div class="actions"><button type="button" class="button" onClick={() => ask(null)}>Close</button></div>
      </Dialog>
    </div>
  );
}
