// What changes while the page is open: server-sent events, and polling where a proxy holds them back.
import { computed, signal } from "@preact/signals";
import type { Job, RunningMiniBatch } from "./api";
import { connection, type DataOptions, get, heardAt, useData, wakes } from "./client";
import { Refused } from "./refused";
import { report } from "./report";

/** The job that is shown; `null` until it is known. */
export const job = signal<Job | null>(null);
/** Why the job, or with `null` the list of jobs, could not be read. */
export const jobError = signal<{ of: string | null; error: Refused } | null>(null);
/** Nothing more is asked for then. */
export const isRemoved = computed(() => jobError.value?.error.removed === true && jobError.value.of === job.value?.job_id);
/** The difference between the clock of the server and the clock of the browser. */
export const clockOffset = signal(0);
/** The time by the clock of the server, to a second. */
export const now = signal(Date.now());
/** Changes when the list of jobs should be fetched again. */
export const jobsVersion = signal(0);

/** The mini-batches that run, by number. Of a speculative run, the original stands for both. */
export const running = computed(() => {
  const all = isRemoved.value ? [] : (job.value?.progress?.running ?? []);
  return new Map([...all].reverse().map((one) => [one.mini_batch, one]));
});
/** What changes when a process does something else with a mini-batch. */
export const keyOf = (one?: RunningMiniBatch) => (one ? `${one.mini_batch} ${one.node} ${one.process} ${one.phase} ${one.since}` : "");
/** Changes with what runs. */
export const runningKey = computed(() => [...running.value.values()].map(keyOf).join());

/** Fetches what the server tells of a job below its address, like `useData`, as long as the job exists; `null`: nothing. */
export function useJobData<T>(of: Job | null, path: string, version: unknown = of?.revision, options: DataOptions<T> = {}) {
  return useData<T>(of && `/jobs/${encodeURIComponent(of.job_id)}/${path}`, version, { ...options, paused: isRemoved.value });
}

/** Without an event for this long, a proxy may hold the stream back. */
const SILENCE_MS = 15_000;
const POLL_MS = 2000;

let stream: EventSource | null = null;
let watched: string | null | undefined;
let heardEventAt = 0;
let streamWorks = false;
let lastPoll = 0;
/** Counts streams. What was asked for an earlier one is dropped, and keeps nothing from being asked again. */
let generation = 0;
/** The generation of the poll that is on its way. */
let polling: number | null = null;
/** How often the job was received. */
let received = 0;
let lastTick = Date.now();

export function learnClock(serverNow: number): void {
  if (report) return;
  clockOffset.value = serverNow - Date.now();
  now.value = serverNow;
}

/** Follows one job, or with `null` the list of jobs. */
export function watch(id: string | null): void {
  if (watched === id) return;
  watched = id;
  if (job.peek()?.job_id !== id) job.value = null;
  if (jobError.peek()?.of !== id) jobError.value = null;
  open();
}

function open(): void {
  close();
  generation += 1;
  if (watched === undefined) return;
  if (report) {
    void poll();
    return;
  }
  heardEventAt = Date.now();
  streamWorks = false;
  const query = watched === null ? "" : `?job=${encodeURIComponent(watched)}`;
  const source = new EventSource(`/api/v1/events${query}`);
  stream = source;
  const heard = (event: Event) => {
    heardEventAt = Date.now();
    streamWorks ||= event.type !== "open";
    heardAt.value = Date.now();
    if (connection.peek() === "lost") {
      connection.value = "ok";
      wakes.value += 1;
    }
  };
  source.addEventListener("open", heard);
  source.addEventListener("job", (event) => {
    heard(event);
    receive(JSON.parse(event.data) as Job);
  });
  source.addEventListener("trouble", (event) => {
    heard(event);
    fail(new Refused(503, (JSON.parse(event.data) as { error: string }).error));
    if (watched === null) jobsVersion.value += 1;
  });
  source.addEventListener("removed", (event) => {
    heard(event);
    fail(new Refused(404, "This job has been removed. The page shows what was known of it.", true));
  });
  source.addEventListener("jobs", (event) => {
    heard(event);
    learnClock((JSON.parse(event.data) as { now: number }).now);
    jobsVersion.value += 1;
  });
  // Either the browser connects again by itself, or the server refused the stream: then polling goes on.
  source.addEventListener("error", () => void poll());
  void poll();
}

function close(): void {
  stream?.close();
  stream = null;
}

function fail(error: Refused): void {
  if (watched === undefined) return;
  jobError.value = { of: watched, error };
  // A removed job does not come back; one that is unknown may be about to start.
  if (!error.removed || job.peek()?.job_id !== watched) return;
  close();
  watched = undefined;
  generation += 1;
}

function receive(next: Job): void {
  learnClock(next.now);
  if (next.job_id !== watched) return;
  received += 1;
  // The store answers again: what it did not answer is fetched again.
  if (jobError.peek()?.error.status === 503) wakes.value += 1;
  job.value = next;
  jobError.value = null;
}

async function poll(): Promise<void> {
  if (watched === undefined || polling === generation) return;
  const id = watched;
  lastPoll = Date.now();
  if (id === null) {
    jobsVersion.value += 1;
    return;
  }
  const [own, before] = [generation, received];
  polling = own;
  try {
    const next = await get<Job>(`/jobs/${encodeURIComponent(id)}`);
    // An event that came meanwhile is newer.
    if (own === generation && before === received) receive(next);
  } catch (error) {
    if (own === generation && error instanceof Refused && error.status !== 0) fail(error);
  }
  if (polling === own) polling = null;
}

/** Starts the clock. Called once. */
export function start(): void {
  if (report) {
    now.value = report.generated_at;
    return;
  }
  // The stream may be open again only later.
  wakes.subscribe(() => void poll());
  setInterval(() => {
    const at = Date.now();
    now.value = at + clockOffset.peek();
    const slept = at - lastTick > 10_000;
    lastTick = at;
    if (document.hidden) return;
    if (slept) {
      wakes.value += 1;
      open();
      return;
    }
    const [silence, sincePoll] = [at - heardEventAt, at - lastPoll];
    const isClosed = stream?.readyState === EventSource.CLOSED;
    if (isClosed && silence > SILENCE_MS) open();
    else if (isClosed ? sincePoll >= POLL_MS : silence > SILENCE_MS && sincePoll >= (streamWorks ? SILENCE_MS : POLL_MS)) void poll();
  }, 1000);
  // Browsers allow six connections to one host, so a tab in the background holds none.
  document.addEventListener("visibilitychange", () => {
    lastTick = Date.now();
    if (document.hidden) close();
    else {
      wakes.value += 1;
      open();
    }
  });
}
