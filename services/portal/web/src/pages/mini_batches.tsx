// All mini-batches of a job: the map, and beside it a table that the server sorts and filters.
import type { Job, MiniBatches, Row } from "../api";
import { counted, duration } from "../format";
import { now, running, runningKey, useJobData } from "../live";
import { bounds, SLOWNESS, type Cells, type Colouring, seconds, useMap } from "../map_data";
import { defaultOrder, report } from "../report";
import { address, go, refine, route } from "../route";
import { heat, theme } from "../ui/theme";
import { Await, Choices, Empty, isForRow, MiniBatchBadge, Num, Panel, Problem, Scroll, Search, Waiting, When } from "../ui/parts";
import { isPlanning } from "./overview";
import { layout, MapCanvas, type Range, runsNow } from "./map";

const PER_PAGE = 100;
const COLOURINGS = [["state", "State"], ["tries", "Tries"], ["duration", "Duration"]] as const;
const STATES = [
  ["", "All"], ["failed", "Failed"], ["running", "Running"], ["retrying", "Retrying"], ["succeeded", "Succeeded"], ["partial", "With failed items"],
  ["pending", "Pending"],
] as const;

export function MiniBatchesPage({ job }: { job: Job }) {
  const { query } = route.value;
  const by = (query.get("by") ?? "state") as Colouring;
  const { data: cells, error, refresh } = useMap(job, COLOURINGS.some(([key]) => key === by) ? by : "state");
  const total = cells?.bytes.length ?? 0;
  const selected = selection(query, total);
  const zoomed = query.get("zoom") === "1" && selected !== null;
  const range = zoomed ? selected : { first: 0, last: total - 1 };
  const select = (range: Range | null) => refine({ first: range?.first, last: range?.last, offset: undefined, zoom: undefined });
  if (job.history === "none" && total === 0) {
    return <Panel><Empty title={job.result ? "Nothing was recorded of mini-batches." : "Nothing has been recorded of mini-batches yet."}>{job.result ? "The job ended before its first mini-batch." : isPlanning(job) ? "They appear here as soon as they are planned." : "They appear here as soon as a reducer serves the job."}</Empty></Panel>;
  }
  // Tiny cells get the whole width, so that a million of them fit on one screen.
  const isWide = layout(range.last - range.first + 1, 640, 520).cell < 4;
  return (
    <div class={isWide ? "stack" : "columns map-and-table"}>
      <Panel
        title={<>Map <span class="muted"><Num value={total} /> {total === 1 ? "mini-batch" : "mini-batches"}</span></>}
        end={<Choices label="Colour by" value={by} of={COLOURINGS} choose={(by) => refine({ by: by === "state" ? undefined : by })} />}
        footer={cells && <Legend cells={cells} job={job} />}
      >
        {error && <Problem error={error} again={refresh} />}
        {cells === null ? !error && <Waiting /> : total === 0 ? <Empty title={job.result ? "No mini-batch was planned." : "No mini-batch is planned yet."} /> : (
          <>
            <MapCanvas job={job.job_id} cells={cells} running={running.value} range={range} select={select} />
            {selected && (
              <p class="selected">
                <span>Selected: {selected.first} to {selected.last} ({counted(selected.last - selected.first + 1, "mini-batch")})</span>
                <button type="button" class="button small" onClick={() => refine({ zoom: zoomed ? undefined : 1 })}>{zoomed ? "Show all on the map" : "Zoom in"}</button>
                <button type="button" class="button small" onClick={() => select(null)}>Clear</button>
              </p>
            )}
          </>
        )}
      </Panel>
      <Table job={job} selected={selected} />
    </div>
  );
}

function selection(query: URLSearchParams, total: number): Range | null {
  const [first, last] = [Number(query.get("first") ?? NaN), Number(query.get("last") ?? NaN)];
  if (!Number.isInteger(first) || !Number.isInteger(last) || first < 0 || last < first || first >= total) return null;
  return { first, last: Math.min(last, total - 1) };
}

function Legend({ cells, job }: { cells: Cells; job: Job }) {
  if (cells.by === "state") {
    const { succeeded, failed, total } = job.mini_batches;
    const runs = [...running.value.keys()].filter((number) => runsNow(cells, running.value, number));
    const again = Math.max(0, job.retrying - runs.filter((number) => cells.bytes[number] === 3).length);
    const pending = Math.max(0, Math.max(total, cells.bytes.length) - succeeded - failed - again - runs.length);
    return (
      <>
        <span class="key cell">succeeded <Num value={succeeded} /></span><span class="key odd">with failed items</span>
        <span class="key bad">failed <Num value={failed} /></span><span class="key warn">to be tried again <Num value={again} /></span>
        {!job.result && <span class="key busy">running <Num value={runs.length} /></span>}<span class="key idle">pending <Num value={pending} /></span>
      </>
    );
  }
  const { low, high } = bounds(cells.bytes);
  const steps = Array.from({ length: 12 }, (_, at) => at / 11);
  const [from, to] = cells.by === "tries" ? ["1 attempt", "4 or more"] : [duration(seconds(low)), duration(seconds(high))];
  return (
    <>
      <span class="scale"><span>{from}</span><span class="steps" data-theme={theme.value}>{steps.map((share) => <i style={{ background: heat(cells.by === "duration" ? share ** SLOWNESS : share) }} />)}</span><span>{to}</span></span>
      <span class="key idle">no attempt has ended</span>
    </>
  );
}

const COLUMNS = [
  ["mini_batch", "Mini-batch", ""], ["state", "State", ""], ["", "First item, error", "detail"], ["tries", "Tries", "right"],
  ["duration", "Took", "right"], ["run", "run()", "right"], ["items", "Items", "right"], ["failed_items", "Failed", "right"],
  ["", "Process", ""], ["started", "Started", ""],
] as const;
/** Columns that a narrow table leaves out. */
const ROOMY = new Set<string>(["run()", "Process", "Started"]);

function Table({ job, selected }: { job: Job; selected: Range | null }) {
  const { query } = route.value;
  const [state, text] = [query.get("state") ?? "", query.get("q") ?? ""];
  const sort = query.get("sort") ?? (job.mini_batches.failed > 0 ? "state" : "mini_batch");
  const order = (query.get("order") ?? defaultOrder(sort)) as "asc" | "desc";
  const offset = Number(query.get("offset") ?? 0) || 0;
  const values = new URLSearchParams({ sort, order, limit: String(PER_PAGE), offset: String(offset) });
  if (state) values.set("state", state);
  if (text) values.set("q", text);
  if (selected) {
    values.set("first", String(selected.first));
    values.set("last", String(selected.last));
  }
  for (const key of ["node", "process", "error"]) if (query.get(key)) values.set(key, query.get(key) ?? "");
  const found = useJobData<MiniBatches>(job, `mini-batches?${values}`, `${job.revision} ${runningKey.value}`, { keep: true });
  const sortBy = (key: string) => {
    const turned = order === "asc" ? "desc" : "asc";
    refine({ sort: key, order: key === sort && turned !== defaultOrder(key) ? turned : undefined, offset: undefined });
  };
  const isFiltered = state !== "" || text !== "" || selected !== null || ["node", "process", "error"].some((key) => query.get(key));
  const clear = () => refine({ state: undefined, q: undefined, first: undefined, last: undefined, offset: undefined, zoom: undefined, node: undefined, process: undefined, error: undefined });
  return (
    <Panel
      flush title="Table"
      end={
        <>
          {found.loading && found.data && <span class="muted" role="status">Searching …</span>}
          {isFiltered && <button type="button" class="button small" onClick={clear}>Show all</button>}
        </>
      }
      footer={found.data && <Paging data={found.data} offset={offset} />}
    >
      <div class="filters inside">
        <Search label="Number, item or error" value={text} change={(q) => refine({ q, offset: undefined })} />
        <Choices label="State" value={state as (typeof STATES)[number][0]} of={STATES} choose={(state) => refine({ state, offset: undefined })} />
        {["node", "process", "error"].map((key) => query.get(key) && (
          <button type="button" class="button small" key={key} onClick={() => refine({ [key]: undefined, offset: undefined })}>{key}: {query.get(key)} ✕</button>
        ))}
      </div>
      <Await of={found}>
        {(data) => data.rows.length === 0 && data.matching > 0 ? (
          <Empty title="There are no more mini-batches."><button type="button" class="button small" onClick={() => refine({ offset: undefined })}>Show the first</button></Empty>
        ) : data.rows.length === 0 ? (
          <Empty title={isFiltered ? "No mini-batch matches." : job.result ? "There are no mini-batches." : "There are no mini-batches yet."}>{isFiltered && <button type="button" class="button small" onClick={clear}>Show all</button>}</Empty>
        ) : (
          <Scroll label="Mini-batches">
            <table class="table cards dense batches">
              <thead>
                <tr>
                  {COLUMNS.map(([key, text, side]) => (
                    <th key={text} class={`${side} ${ROOMY.has(text) ? "roomy" : ""}`} aria-sort={key && key === sort ? (order === "asc" ? "ascending" : "descending") : undefined}>
                      {key ? <button type="button" onClick={() => sortBy(key)}>{text}<span aria-hidden="true" class="arrow">{key === sort ? (order === "asc" ? "↑" : "↓") : ""}</span></button> : text}
                    </th>
                  ))}
                </tr>
              </thead>
              <tbody>{data.rows.map((row) => <Line key={row.mini_batch} job={job.job_id} row={row} />)}</tbody>
            </table>
          </Scroll>
        )}
      </Await>
    </Panel>
  );
}

/** Returns the last part of a path: the folders before it are mostly the same for all. */
function shortened(item: string | null): string | null {
  const last = item?.replace(/[/\\]+$/, "").split("/").at(-1);
  return item && last && last.length < item.length ? `…/${last}` : item;
}

export function isPartial(row: { state: string; items_failed: number | null }): boolean {
  return row.state === "succeeded" && (row.items_failed ?? 0) > 0;
}

function Line({ job, row }: { job: string; row: Row }) {
  const to = address(["jobs", job, "mini-batches", row.mini_batch]);
  const time = (value: number | null) => (value === null ? <span class="muted">–</span> : duration(value));
  return (
    <tr class="opens" onClick={(event) => isForRow(event) && go(to)}>
      <td><a class="num" href={to}>{row.mini_batch}</a></td>
      <td><MiniBatchBadge state={row.state} partial={isPartial(row)} small /></td>
      <td class="wide detail">
        <div class="truncate" title={row.detail ?? ""}>{shortened(row.detail)}</div>
        {row.error && <div class={`truncate ${row.state === "succeeded" ? "muted" : "bad"}`} title={row.error}>{row.error}</div>}
      </td>
      <td class="right" data-label="tries"><Num value={row.tries} />{row.deliveries_lost > 0 && <span class="muted" title={`${counted(row.deliveries_lost, "delivery")} lost`}> +{row.deliveries_lost}</span>}</td>
      <td class="right num" data-label="took">{row.state === "running" && row.started_at !== null ? <span class="muted">{duration(Math.max(0, now.value - row.started_at) / 1000)} so far</span> : time(row.seconds)}</td>
      <td class="right num roomy" data-label="run()">{time(row.run_seconds)}</td>
      <td class="right" data-label="items"><Num value={row.items} /></td>
      <td class="right" data-label="failed">{row.items_failed ? <span class="bad"><Num value={row.items_failed} /></span> : <span class="muted">{row.items_failed === null ? "–" : "0"}</span>}</td>
      <td class="mono roomy"><span class="muted">{row.node}</span>{row.process && ` ${row.process}`}</td>
      <td class="roomy"><When at={row.started_at} /></td>
    </tr>
  );
}

function Paging({ data, offset }: { data: MiniBatches; offset: number }) {
  const last = offset + data.rows.length;
  const to = (offset: number) => refine({ offset: offset || undefined });
  const note = report && !data.searched_all ? "This report holds the rows that failed first or took longest."
    : data.searched_all ? "" : "The text was searched in the first 20000 mini-batches of the selection. Select a range on the map to search elsewhere.";
  return (
    <>
      <span>{data.rows.length > 0 && <><Num value={offset + 1} /> to <Num value={last} /> of </>}<Num value={data.matching} />{data.matching !== data.total && <> of <Num value={data.total} /> in all</>}</span>
      <span class="pager">
        <button type="button" class="button small" disabled={offset === 0} onClick={() => to(Math.max(0, Math.min(offset, data.matching) - PER_PAGE))}>Previous</button>
        <button type="button" class="button small" disabled={last >= data.matching} onClick={() => to(offset + PER_PAGE)}>Next</button>
      </span>
      {note && <span>{note}</span>}
    </>
  );
}
