// The page: a bar at the top, and below it what the address names.
import "./ui/text";
import { render } from "preact";
import { useEffect } from "preact/hooks";
import type { Info } from "./api";
import { connection, heardAt, useData } from "./client";
import { moment } from "./format";
import { job, start } from "./live";
import { JobPages } from "./pages/job";
import { JobsPage } from "./pages/jobs";
import { TargetPage } from "./pages/target";
import { report } from "./report";
import { address, go, route } from "./route";
import { Mark } from "./ui/icons";
import { ClockNote, Empty, Toasts, When } from "./ui/parts";
import { Tip } from "./ui/tip";
import { info } from "./info";

function Page() {
  const { path } = route.value;
  if (path.length === 0 || (path.length === 1 && path[0] === "jobs")) return <JobsPage />;
  if (path[0] === "jobs" && path[1]) return <JobPages id={path[1]} path={path.slice(2)} />;
  if (path[0] === "target") return <TargetPage />;
  return <Empty title="There is no such page."><a href="#/">All jobs</a></Empty>;
}

function Live() {
  if (report) return <span class="live still">Report of <When at={report.generated_at} /></span>;
  if (connection.value === "ok") return <span class="live">Live</span>;
  return <span class="live lost">Connection lost</span>;
}

function Lost() {
  if (report || connection.value === "ok") return null;
  const known = moment(heardAt.value);
  const text = connection.value === "refused"
    ? "The portal does not accept this page any more, perhaps because it was started again. Open the address that it printed."
    : `The portal does not answer since ${known}. The page shows what it knew then, and continues as soon as the portal answers.`;
  return <div class="notice" role="alert">{text}</div>;
}

function App() {
  const found = useData<Info>("/info");
  if (found.data) info.value = found.data;
  const section = route.value.path[0] ?? "jobs";
  useEffect(() => {
    const first = found.data?.job;
    if (first && route.value.path.length === 0) go(address(["jobs", first]));
  }, [found.data?.job]);
  const { path } = route.value;
  useEffect(() => {
    const [kind, id, tab, number] = path;
    const name = kind === "jobs" && id ? (job.value?.job_id === id ? job.value.name : id) : kind === "target" ? "Target" : "Jobs";
    document.title = [tab === "mini-batches" && number ? `mini-batch ${number}` : tab, name, "Gristmill"].filter(Boolean).join(" · ");
  }, [path.join("/"), job.value?.name]);
  return (
    <>
      <a class="skip" href="#content" onClick={(event) => { event.preventDefault(); document.getElementById("content")?.focus(); }}>Skip to the content</a>
      <header class="head">
        <div class="top">
        <a class="brand" href={report ? address(["jobs", report.job_id]) : "#/"} aria-label="Gristmill"><Mark /><span>Gristmill</span></a>
        {!report && (
          <nav aria-label="Portal">
            <a href="#/" aria-current={section === "jobs" ? "page" : undefined}>Jobs</a>
            <a href="#/target" aria-current={section === "target" ? "page" : undefined}>Target</a>
          </nav>
        )}
        <div class="end">
          {info.value && <span class="place truncate" title={info.value.place}>{info.value.target ?? info.value.place}</span>}
          <Live />
        </div>
        </div>
        <Lost />
        <ClockNote />
      </header>
      <main id="content" tabIndex={-1}><Page /></main>
      <Toasts />
      <Tip />
    </>
  );
}

start();
if (report && route.value.path.length === 0) go(address(["jobs", report.job_id]));
const root = document.getElementById("app");
if (root) render(<App />, root);
