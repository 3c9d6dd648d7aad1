// A report: the page in one file, with the answers of the server instead of the server.
import type { MiniBatches, MiniBatchState, Report, Row } from "./api";
import { Refused } from "./refused";

function embedded(): Report | null {
  const text = document.getElementById("report")?.textContent;
  return text ? (JSON.parse(text) as Report) : null;
}

/** The report in this file; `null` if a server answers. */
export const report = embedded();

/** Returns what the server would have answered. */
export function reported(path: string): unknown {
  if (!report) throw new Error("this page is no report");
  const answers = report.answers;
  const [bare = "", query = ""] = path.split("?");
  const wanted = new URLSearchParams(query);
  if (bare.endsWith("/mini-batches")) return selected(bare, wanted);
  const by = wanted.get("by");
  const answer = answers[path] ?? answers[by ? `${bare}?by=${by}` : bare];
  if (answer === undefined) throw new Refused(404, "This report does not hold that. Open the job in the portal.");
  return answer;
}

const ORDER: MiniBatchState[] = ["failed", "running", "retrying", "succeeded", "pending"];

/** Answers the table of mini-batches from the rows in the report. */
function selected(bare: string, wanted: URLSearchParams): MiniBatches {
  const lists = ["state", "duration"].map((sort) => report?.answers[`${bare}?sort=${sort}`] as MiniBatches | undefined);
  const rows = new Map<number, Row>();
  for (const list of lists) for (const row of list?.rows ?? []) rows.set(row.mini_batch, row);
  const states = wanted.get("state")?.split(",");
  const [text, error] = ["q", "error"].map((name) => wanted.get(name)?.trim().toLowerCase());
  const [node, process] = [wanted.get("node"), wanted.get("process")];
  const [first, last] = [Number(wanted.get("first") ?? 0), Number(wanted.get("last") ?? Infinity)];
  const kept = [...rows.values()].filter(
    (row) =>
      (!states || states.includes(row.state) || (states.includes("partial") && row.state === "succeeded" && (row.items_failed ?? 0) > 0)) &&
      row.mini_batch >= first &&
      row.mini_batch <= last &&
      (!node || row.node === node) &&
      (!process || row.process === process) &&
      (!error || (row.error ?? "").toLowerCase().includes(error)) &&
      (!text || `${row.mini_batch} ${row.detail ?? ""} ${row.error ?? ""}`.toLowerCase().includes(text)),
  );
  const sort = wanted.get("sort") ?? "mini_batch";
  const direction = (wanted.get("order") ?? defaultOrder(sort)) === "asc" ? 1 : -1;
  kept.sort((a, b) => direction * (rank(a, sort) - rank(b, sort)) || a.mini_batch - b.mini_batch);
  const [offset, limit] = [Number(wanted.get("offset") ?? 0), Number(wanted.get("limit") ?? 100)];
  const total = lists[0]?.total ?? kept.length;
  return {
    revision: "report", total, matching: kept.length, offset,
    searched_all: rows.size >= total, rows: kept.slice(offset, offset + limit),
  };
}

/** Returns the order in which the server sorts by a column. */
export function defaultOrder(sort: string): "asc" | "desc" {
  return ["mini_batch", "state", "started"].includes(sort) ? "asc" : "desc";
}

function rank(row: Row, sort: string): number {
  switch (sort) {
    case "state": return ORDER.indexOf(row.state);
    case "duration": return row.seconds ?? -1;
    case "run": return row.run_seconds ?? -1;
    case "tries": return row.tries;
    case "started": return row.started_at ?? Infinity;
    case "items": return row.items ?? -1;
    case "failed_items": return row.items_failed ?? -1;
    default: return row.mini_batch;
  }
}
