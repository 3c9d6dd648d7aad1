// The address of what is shown: `#/jobs/ID/mini-batches/73?sort=duration`. The part after `#` never reaches a server, so
// the page works below any path, behind a proxy and from a file.
import { computed, signal } from "@preact/signals";

export interface Route {
  path: string[];
  query: URLSearchParams;
}

const hash = signal(location.hash);
addEventListener("hashchange", () => (hash.value = location.hash));

function parse(text: string): Route {
  const [path = "", query = ""] = text.replace(/^#/, "").split(/\?(.*)/s);
  return { path: path.split("/").filter(Boolean).map(decoded), query: new URLSearchParams(query) };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/** What is shown. */
export const route = computed(() => parse(hash.value));

/** Returns the address of a page. Empty values are left out of the query. */
export function address(path: (string | number)[], query: Record<string, string | number | undefined> = {}): string {
  const values = new URLSearchParams();
  for (const [key, value] of Object.entries(query)) if (value !== undefined && value !== "") values.set(key, String(value));
  const text = values.toString();
  return `#/${path.map((part) => encodeURIComponent(part)).join("/")}${text ? `?${text}` : ""}`;
}

export function go(to: string): void {
  location.hash = to;
}

/** Changes the query of the page. A choice is an entry of the history, typed text is none. */
export function refine(changes: Record<string, string | number | undefined>): void {
  const { path, query } = route.value;
  const next: Record<string, string | number | undefined> = Object.fromEntries(query);
  const to = address(path, { ...next, ...changes });
  if (to === location.hash) return;
  if ("q" in changes) history.replaceState(null, "", to);
  else history.pushState(null, "", to);
  hash.value = location.hash;
}
