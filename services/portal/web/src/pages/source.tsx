// The script of a job as it ran, and how it differs from that of another job.
import type { Job, ScriptChange, ScriptSource, SourceFile } from "../api";
import { counted } from "../format";
import { useJobData } from "../live";
import { refine, route } from "../route";
import { Await, Empty, Panel, Size } from "../ui/parts";

export function SourcePage({ job }: { job: Job }) {
  const { query } = route.value;
  const [version, since] = [query.get("version"), query.get("since")];
  const wanted = new URLSearchParams();
  if (version) wanted.set("version", version);
  if (since) wanted.set("since", since);
  const found = useJobData<ScriptSource>(job, `source?${wanted}`, job.lineage.rounds.length);
  return (
    <Await of={found}>
      {(source) => source.absent !== null ? (
        <Panel><Empty title="The script cannot be shown.">{source.absent}</Empty></Panel>
      ) : (
        <div class="stack">
          <Chosen job={job} source={source} since={since} />
          {source.changes ? <Changes of={source.changes} /> : <Files source={source} shown={query.get("file")} />}
        </div>
      )}
    </Await>
  );
}

function Chosen({ job, source, since }: { job: Job; source: ScriptSource; since: string | null }) {
  const { before, same } = job.lineage;
  const others = same.map(({ job_id }) => job_id).filter((id) => id !== before);
  const earlier = Array.from({ length: source.version }, (_, at) => at);
  return (
    <div class="tools">
      {source.versions > 1 && (
        <label>Script <select value={source.version} onChange={(event) => refine({ version: event.currentTarget.value, since: undefined })}>
          {Array.from({ length: source.versions }, (_, at) => <option value={at}>{at === 0 ? "at the start" : `of continuation ${at}`}</option>)}
        </select></label>
      )}
      <label>Compare with <select value={since ?? ""} onChange={(event) => refine({ since: event.currentTarget.value, file: undefined })}>
        <option value="">nothing</option>
        {earlier.map((at) => <option value={`${job.job_id}/${at}`}>{at === 0 ? "this job at the start" : `this job, continuation ${at}`}</option>)}
        {before !== null && <option value={before}>the job before: {before}</option>}
        {others.map((id) => <option value={id}>{id}</option>)}
        {since && ![before, ...others].includes(since) && !since.startsWith(`${job.job_id}/`) && <option value={since}>{since}</option>}
      </select></label>
    </div>
  );
}

function Files({ source, shown }: { source: ScriptSource; shown: string | null }) {
  const { files } = source;
  const file = files.find(({ path }) => path === shown) ?? files.find(({ path }) => path === "function.txt") ?? files.find(({ path }) => path === source.entry_script) ?? files[0];
  if (!file) return <Panel><Empty title="The folder of the script holds no file." /></Panel>;
  return (
    <Panel
      title={<span class="mono anywhere">{file.path}</span>}
      end={files.length > 1 && (
        <label>File <select value={file.path} onChange={(event) => refine({ file: event.currentTarget.value })}>
          {files.map(({ path }) => <option value={path}>{path}</option>)}
        </select></label>
      )}
      flush
    >
      <Text file={file} />
    </Panel>
  );
}

function Text({ file: { path, bytes, text } }: { file: SourceFile }) {
  if (text === null) return <Empty title="This file is not text, or is too long to show."><Size value={bytes} /></Empty>;
  const lines = text.replace(/\n$/, "").split("\n");
  return (
    <div class="code" tabIndex={0} role="group" aria-label={path}>
      <pre class="numbers" aria-hidden="true">{lines.map((_, at) => at + 1).join("\n")}</pre>
      <pre>{text}</pre>
    </div>
  );
}

const TONES: Record<string, string> = { "+": "added", "-": "removed", "@": "at" };
const WORDS = { changed: "changed", new: "new", missing: "removed" } as const;

function Changes({ of: { files, same, absent } }: { of: NonNullable<ScriptSource["changes"]> }) {
  if (absent !== null) return <Panel><Empty title="The scripts cannot be compared.">{absent}</Empty></Panel>;
  return (
    <>
      {files.length === 0 && <Panel><Empty title="The scripts are equal.">{counted(same, "file")}</Empty></Panel>}
      {files.map((file) => <Change key={file.path} of={file} />)}
      {files.length > 0 && same > 0 && <p class="muted">{counted(same, "other file")} {same === 1 ? "is" : "are"} equal.</p>}
    </>
  );
}

function Change({ of: { path, change, difference } }: { of: ScriptChange }) {
  return (
    <Panel title={<span class="mono anywhere">{path}</span>} end={<span class="muted">{WORDS[change]}</span>} flush>
      {difference === null ? <Empty title="This file is not text, or is too long to show." /> : (
        <div class="code" tabIndex={0} role="group" aria-label={`Changes of ${path}`}>
          <pre>{difference.replace(/\n$/, "").split("\n").map((line) => <span class={TONES[line[0] ?? ""] ?? ""}>{line}{"\n"}</span>)}</pre>
        </div>
      )}
    </Panel>
  );
}
