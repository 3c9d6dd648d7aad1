// The final file: its first rows, its size, and how to read it.
import type { Job, Output } from "../api";
import { useJobData } from "../live";
import { report } from "../report";
import { Icon } from "../ui/icons";
import { Await, Copyable, Empty, Panel, Size } from "../ui/parts";
import { Sheet } from "./sheet";

/** Returns a reason as a sentence. */
function sentence(text: string): string {
  return `${text.charAt(0).toUpperCase()}${text.slice(1).replace(/\.$/, "")}.`;
}

export function OutputPage({ job }: { job: Job }) {
  const id = encodeURIComponent(job.job_id);
  const found = useJobData<Output>(job, "output", job.state);
  const download = !report && job.output.downloadable && <a class="button small" href={`/api/v1/jobs/${id}/output/raw`} download><Icon name="down" />Download</a>;
  return (
    <Await of={found}>
      {(data) => !data.available ? (
        <Panel title="Output" end={download}>
          <Empty title={job.result ? "There is no output." : "There is no output yet."}>{data.reason ? sentence(data.reason) : "The final file is written when every mini-batch has ended."}</Empty>
        </Panel>
      ) : (
        <div class="stack">
          {job.output_changed && <p class="sentence warn">This file has been changed or replaced since the job ended: it may hold the rows of another job.</p>}
          <Panel title="The final file" end={download}>
            <div class="stack">
              <dl class="pairs">
                <dt>path</dt><dd class="mono">{data.path}</dd>
                <dt>size</dt><dd><Size value={data.bytes} /></dd>
                <dt>format</dt><dd>{{ text: "text", csv: "CSV", jsonl: "JSON lines", parquet: "Parquet" }[data.format] ?? data.format}</dd>
              </dl>
              <div><h3>To read it</h3><Copyable text={data.how_to_read} label="the line of Python" /></div>
            </div>
          </Panel>
          <Panel title={data.truncated ? `The first ${data.cells.length} rows` : "All rows"} flush>
            {data.cells.length === 0 ? <Empty title="The file has no rows.">The script returned none.</Empty> : <Sheet columns={data.columns} cells={data.cells} label="Rows of the output" />}
          </Panel>
        </div>
      )}
    </Await>
  );
}
