// The logs of a job: the files, and one of them, which opens at its end and follows what is written; one of errors at its
// beginning.
import { useEffect, useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Job, LogFile, Logs, LogSearch } from "../api";
import { plain, runs } from "../ansi";
import { useData } from "../client";
import { bytes } from "../format";
import { isRemoved, useJobData } from "../live";
import { LogLines } from "../log_lines";
import { address, refine, route } from "../route";
import { Icon } from "../ui/icons";
import { Await, Empty, Num, Panel, Problem, Search, Waiting } from "../ui/parts";

const LINE = 19;
/** The longest part of a line that is drawn. */
const LINE_MAX = 8000;
/** Files of errors begin with the first one, which matters most. */
const OF_ERRORS = /(^|\/)(job_error|job_result|error)\.txt$|(^|\/)user\/error\//;
const FIRST = ["job_error.txt", "job_result.txt", "job_progress_overview.txt"];

export function LogsPage({ job }: { job: Job }) {
  const found = useJobData<Logs>(job, "logs");
  return (
    <Await of={found}>
      {(data) => data.files.length === 0 ? <Panel><Empty title="There are no logs yet.">They appear when the job's first process starts.</Empty></Panel> : <Viewer job={job} logs={data} />}
    </Await>
  );
}

function Viewer({ job, logs }: { job: Job; logs: Logs }) {
  const { query } = route.value;
  const known = logs.files.map(({ path }) => path);
  const chosen = query.get("path");
  const path = (chosen && (known.includes(chosen) ? chosen : known.find((path) => path.endsWith(chosen)) ?? chosen))
    || FIRST.map((name) => known.find((path) => path.endsWith(name))).find(Boolean) || known[0] || "";
  const text = query.get("q") ?? "";
  const first = logs.first_error;
  return (
    <div class="logs">
      <Panel title="Files" flush end={<span class="muted"><Num value={logs.files.length} /></span>}>
        <nav class="files" aria-label="Log files"><Tree files={logs.files} job={job.job_id} path={path} /></nav>
      </Panel>
      <div class="stack">
        <div class="filters flat">
          <Search label="Search all logs" value={text} change={(q) => refine({ q })} />
          {first && <a class="button" href={address(["jobs", job.job_id, "logs"], { path: first.path, at: first.offset ?? undefined })} title={plain(first.text)}><Icon name="warn" />First error</a>}
        </div>
        {text && <Found job={job.job_id} text={text} />}
        {path && <File key={path} job={job} path={path} />}
      </div>
    </div>
  );
}

interface Folder { folders: Map<string, Folder>; files: { name: string; file: LogFile }[] }

function Tree({ files, job, path }: { files: LogFile[]; job: string; path: string }) {
  const root = useMemo(() => {
    const root: Folder = { folders: new Map(), files: [] };
    for (const file of files) {
      const parts = file.path.split("/");
      const name = parts.pop() ?? "";
      let folder = root;
      for (const part of parts) {
        const next = folder.folders.get(part) ?? { folders: new Map(), files: [] };
        folder.folders.set(part, next);
        folder = next;
      }
      folder.files.push({ name, file });
    }
    return root;
  }, [files]);
  return <Branch folder={root} job={job} path={path} prefix="" />;
}

/** More files of one folder than this are shown on request. */
const SHOWN = 100;

function Branch({ folder, job, path, prefix }: { folder: Folder; job: string; path: string; prefix: string }) {
  const [all, setAll] = useState(false);
  const files = all ? folder.files : folder.files.filter(({ file }, at) => at < SHOWN || file.path === path);
  return (
    <ul>
      {[...folder.folders].map(([name, inner]) => {
        const below = `${prefix}${name}/`;
        return <li key={name}><details open={path.startsWith(below) || folder.folders.size + folder.files.length <= 12}><summary><Icon name="folder" />{name}</summary><Branch folder={inner} job={job} path={path} prefix={below} /></details></li>;
      })}
      {files.map(({ name, file }) => (
        <li key={file.path}>
          <a href={address(["jobs", job, "logs"], { path: file.path })} aria-current={file.path === path ? "true" : undefined}>
            <Icon name="file" /><span class="anywhere">{name}</span><span class="muted num">{bytes(file.bytes)}</span>
          </a>
        </li>
      ))}
      {files.length < folder.files.length && <li><button type="button" class="button small" onClick={() => setAll(true)}>{folder.files.length - files.length} more</button></li>}
    </ul>
  );
}

function Found({ job, text }: { job: string; text: string }) {
  const found = useData<LogSearch>(`/jobs/${encodeURIComponent(job)}/logs/search?${new URLSearchParams({ q: text })}`);
  return (
    <Panel
      flush title={found.data ? <>{found.data.matches.length}{found.data.truncated && "+"} matching lines</> : "Searching"}
      end={<button type="button" class="button small" onClick={() => refine({ q: undefined })}>Close</button>}
      footer={found.data?.truncated && `The search ended early, after ${bytes(found.data.searched_bytes)}. A longer text finds fewer lines.`}
    >
      <Await of={found}>
        {(data) => data.matches.length === 0 ? <Empty title="No line contains it.">{bytes(data.searched_bytes)} were searched.</Empty> : (
          <ol class="matches" tabIndex={0} aria-label="Matching lines">
            {data.matches.map((match) => (
              <li key={`${match.path}:${match.offset}`}>
                <a href={address(["jobs", job, "logs"], { path: match.path, at: match.offset, q: text })}><span class="mono muted">{match.path}:{match.line}</span></a>
                <span class="mono truncate">{plain(match.text.slice(0, 400))}</span>
              </li>
            ))}
          </ol>
        )}
      </Await>
    </Panel>
  );
}

function File({ job, path }: { job: Job; path: string }) {
  const at = Number(route.value.query.get("at") ?? NaN);
  const target = Number.isInteger(at) && at >= 0 ? at : OF_ERRORS.test(path) ? 0 : null;
  const log = useMemo(() => new LogLines(job.job_id, path), [job.job_id, path]);
  const box = useRef<HTMLDivElement>(null);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(600);
  const [follows, setFollows] = useState(target === null);
  /** The line whose link the keyboard reaches, by its byte; the one whose link gets the focus once it is drawn. */
  const [chosen, choose] = useState<number | null>(null);
  const awaited = useRef<number | null>(null);
  const lines = log.lines.value;
  const loaded = log.loaded.value;
  const isEnd = log.to.value >= log.size.value;

  useEffect(() => () => log.stop(), [log]);
  useEffect(() => {
    const shown = target !== null && log.from.peek() <= target && target < log.to.peek();
    if (!shown) void log.open(target);
    if (target !== null) setFollows(false);
  }, [log, target]);
  // What has been written since, while the job runs and for what its end still writes.
  useEffect(() => {
    if (isRemoved.value) return;
    const look = () => {
      if (!document.hidden && follows && isEnd) void log.after();
    };
    if (job.result) look();
    const timer = setInterval(look, job.result ? 3000 : 1200);
    return () => clearInterval(timer);
  }, [log, follows, isEnd, job.result === null, isRemoved.value]);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const resized = new ResizeObserver(() => setHeight(element.clientHeight));
    resized.observe(element);
    return () => resized.disconnect();
  }, [loaded]);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element || !loaded) return;
    if (target !== null && !follows) {
      const index = indexOf(lines, target);
      if (index >= 0) element.scrollTop = Math.max(0, (index - 6) * LINE);
    } else if (follows) element.scrollTop = element.scrollHeight;
  }, [loaded, log.opened.value, target, follows ? lines : null]);

  const onScroll = async () => {
    const element = box.current;
    if (!element) return;
    setTop(element.scrollTop);
    const fromEnd = element.scrollHeight - element.scrollTop - element.clientHeight;
    if (fromEnd > LINE * 2 && follows && element.scrollHeight > element.clientHeight) setFollows(false);
    else if (fromEnd < LINE && isEnd && !follows && target === null) setFollows(true);
    if (fromEnd < 400 && !isEnd) void log.after();
    if (element.scrollTop < 400 && log.from.value > 0) {
      const added = await log.before();
      // The lines that were shown stay where they were.
      requestAnimationFrame(() => (element.scrollTop += added * LINE));
    }
  };
  const [first, last] = [Math.max(0, Math.floor(top / LINE) - 20), Math.min(lines.length, Math.ceil((top + height) / LINE) + 20)];
  const marked = target !== null && target >= log.from.value && target < log.to.value ? indexOf(lines, target) : -1;
  const isRendered = (index: number) => index >= first && index < last;
  const chosenAt = chosen === null ? -1 : indexOf(lines, chosen);
  const firstWhole = Math.min(Math.ceil(top / LINE), lines.length - 1);
  const reached = isRendered(chosenAt) ? chosenAt : isRendered(marked) ? marked : firstWhole;
  useLayoutEffect(() => {
    if (awaited.current === null || awaited.current !== chosen || reached !== chosenAt) return;
    awaited.current = null;
    box.current?.querySelector<HTMLAnchorElement>(".log-line a[tabindex='0']")?.focus({ preventScroll: true });
  });
  // The arrow keys move from the link of one line to the next.
  const onKey = (event: KeyboardEvent) => {
    const element = box.current;
    if (!element || (awaited.current === null && !(event.target instanceof HTMLAnchorElement))) return;
    const page = Math.max(1, Math.floor(element.clientHeight / LINE) - 1);
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -lines.length, End: lines.length };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    const from = awaited.current === null ? reached : indexOf(lines, awaited.current);
    const index = Math.max(0, Math.min(lines.length - 1, from + step));
    awaited.current = lines[index]?.offset ?? null;
    choose(awaited.current);
    // The link that has the focus may scroll out of what is drawn before the next one is there.
    element.focus({ preventScroll: true });
    element.scrollTop = Math.min(Math.max(element.scrollTop, (index + 1) * LINE - element.clientHeight), index * LINE);
  };
  const raw = `/api/v1/jobs/${encodeURIComponent(job.job_id)}/logs/raw?${new URLSearchParams({ path })}`;
  const toEnd = () => {
    refine({ at: undefined });
    setFollows(true);
    if (!isEnd) void log.open(null);
  };
  return (
    <Panel
      flush title={<span class="mono anywhere">{path}</span>}
      end={
        <>
          <button type="button" class="button small" disabled={log.from.value === 0 && top === 0} onClick={() => { setFollows(false); if (log.from.value > 0) refine({ at: 0 }); else if (box.current) box.current.scrollTop = 0; }}>Beginning</button>
          <button type="button" class="button small" aria-pressed={follows} onClick={toEnd}>{job.result ? "End" : follows ? "Following" : "Follow"}</button>
          <a class="button small" href={raw} download><Icon name="down" />Download</a>
        </>
      }
      footer={<><span><Num value={log.size.value} /> bytes</span>{(log.from.value > 0 || !isEnd) && <span>bytes <Num value={log.from.value} /> to <Num value={log.to.value} /> are loaded; scroll for more</span>}{follows && !job.result && <span>New lines appear as they are written.</span>}</>}
    >
      {log.error.value && <Problem error={log.error.value} again={() => void log.open(target)} />}
      {!loaded ? <Waiting /> : lines.length === 0 ? !log.error.value && <Empty title="The file is empty.">{!job.result && "Lines appear as they are written."}</Empty> : (
        <div class="log" ref={box} tabIndex={0} role="group" aria-label={`Lines of ${path}`} onScroll={() => void onScroll()} onKeyDown={onKey}>
          <div class="log-inner" style={{ height: `${lines.length * LINE}px` }}>
            <div class="log-lines" style={{ transform: `translateY(${first * LINE}px)` }}>
              {lines.slice(first, last).map((line, at) => (
                <div key={line.offset} class={`log-line ${first + at === marked ? "marked" : ""}`}>
                  <a href={address(["jobs", job.job_id, "logs"], { path, at: line.offset })} aria-label={`Link to line ${line.number ?? `at byte ${line.offset}`}`} tabIndex={first + at === reached ? 0 : -1}>{line.number ?? "·"}</a>
                  <code>{runs(line.text.slice(0, LINE_MAX)).map((run) => (run.style ? <span class={run.style}>{run.text}</span> : run.text))}{line.text.length > LINE_MAX && <span class="muted"> … {line.text.length - LINE_MAX} more characters</span>}</code>
                </div>
              ))}
            </div>
          </div>
        </div>
      )}
    </Panel>
  );
}

/** Returns the line in which a byte lies. */
function indexOf(lines: { offset: number }[], at: number): number {
  let [low, high] = [0, lines.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if ((lines[middle]?.offset ?? 0) <= at) low = middle + 1;
    else high = middle;
  }
  return low - 1;
}
