// Requests to the server, or to the answers that a report holds.
import { effect, signal } from "@preact/signals";
import { useEffect, useMemo, useRef } from "preact/hooks";
import { Refused } from "./refused";
import { report, reported } from "./report";

/** Whether the server answers. */
export const connection = signal<"ok" | "lost" | "refused">("ok");
/** When the server last answered, by the clock of the browser. */
export const heardAt = signal(Date.now());
/** Changes when everything that is shown should be fetched again: the connection is back, the machine woke up. */
export const wakes = signal(0);

const UNREACHABLE = "The portal does not answer. Check that `gristmill portal` still runs.";
const LIMIT_MS = 65_000;

export async function get<T>(path: string, stop?: AbortSignal): Promise<T> {
  if (report) return reported(path) as T;
  return ask<T>(path, { signal: stop ? AbortSignal.any([stop, AbortSignal.timeout(LIMIT_MS)]) : AbortSignal.timeout(LIMIT_MS) });
}

export async function post<T>(path: string): Promise<T> {
  return ask<T>(path, {
    method: "POST", body: "{}", headers: { "content-type": "application/json" }, signal: AbortSignal.timeout(180_000),
  });
}

async function ask<T>(path: string, options: RequestInit): Promise<T> {
  let answer: Response;
  let body: { error?: string; removed?: boolean } = {};
  try {
    answer = await fetch(`/api/v1${path}`, { credentials: "same-origin", cache: "no-store", ...options });
    body = await answer.json().catch((error: unknown) => {
      // An answer that is cut off is none. A refusal may be a proxy's, in words of its own.
      if (answer.ok || options.signal?.aborted) throw error;
      return {};
    });
  } catch (error) {
    if (options.signal?.aborted && (options.signal.reason as Error)?.name !== "TimeoutError") throw error;
    connection.value = "lost";
    throw new Refused(0, UNREACHABLE);
  }
  heardAt.value = Date.now();
  if (connection.value !== "ok" && answer.status !== 401) wakes.value += 1;
  connection.value = answer.status === 401 ? "refused" : "ok";
  if (answer.ok) return body as T;
  throw new Refused(answer.status, body.error ?? `The portal answered with status ${answer.status}.`, body.removed ?? false);
}

/** What is known of one address. */
export interface Known<T> {
  data: T | null;
  error: Refused | null;
  /** A request is on its way, and `data` is of an earlier one or missing. */
  loading: boolean;
}

/** Requests the data of a path. `before` is what is shown: of the same path, unless it was kept. */
type Ask<T> = (path: string, stop: AbortSignal, before: T | null) => Promise<T>;

export interface DataOptions<T> {
  every?: number;
  keep?: boolean;
  paused?: boolean;
  ask?: Ask<T>;
}

const MIN_BETWEEN_MS = 1500;

/**
 * Fetches `path`, again whenever `version` changes, and every `every` milliseconds. Requests never overlap, and the pause
 * after one is a multiple of the time it took, so that a slow answer does not keep the server busy. The data of another
 * path stays while the next is fetched if `keep`. Nothing is asked for while `paused`.
 * `ask`, of the first call, requests the data.
 */
export function useData<T>(path: string | null, version: unknown = 0, options: DataOptions<T> = {}) {
  const store = useMemo(() => new Fetcher<T>(options.ask ?? get), []);
  const { every = 0, keep = false, paused = false } = options;
  useEffect(() => store.show(path, keep), [path]);
  const first = useRef(version);
  useEffect(() => {
    if (first.current !== version && !paused) store.refresh();
    first.current = version;
  }, [version]);
  useEffect(() => {
    if (paused) return store.settle();
    const known = wakes.peek();
    const stopEffect = effect(() => {
      if (wakes.value !== known) store.refresh(true);
    });
    const timer = every > 0 && !report ? setInterval(() => document.hidden || store.refresh(), every) : 0;
    return () => {
      stopEffect();
      clearInterval(timer);
    };
  }, [every, paused]);
  useEffect(() => () => store.stop(), []);
  const { data, error, loading } = store.known.value;
  // The first render after a change of the path comes before its effect.
  return store.path === path || keep ? { data, error, loading, refresh: store.again } : { data: null, error: null, loading: true, refresh: store.again };
}

class Fetcher<T> {
  known = signal<Known<T>>({ data: null, error: null, loading: true });
  path: string | null = null;
  #running: AbortController | null = null;
  #again = false;
  #timer = 0;
  #notBefore = 0;

  constructor(readonly ask: Ask<T>) {}

  show(path: string | null, keep: boolean): void {
    if (path === this.path) return;
    this.stop();
    this.path = path;
    const { data } = this.known.peek();
    this.known.value = { data: keep ? data : null, error: null, loading: path !== null };
    if (path !== null) void this.#fetch();
  }

  again = (): void => this.refresh(true);

  refresh(now = false): void {
    if (this.path === null) return;
    if (this.#running) {
      this.#again = true;
      return;
    }
    clearTimeout(this.#timer);
    this.#timer = window.setTimeout(() => void this.#fetch(), now ? 0 : Math.max(0, this.#notBefore - Date.now()));
  }

  /** Lets the request that is on its way be the last. */
  settle(): void {
    clearTimeout(this.#timer);
    this.#again = false;
  }

  stop(): void {
    this.settle();
    this.#running?.abort();
    this.#running = null;
  }

  async #fetch(): Promise<void> {
    const path = this.path;
    if (path === null || this.#running) return;
    const running = new AbortController();
    this.#running = running;
    const began = Date.now();
    try {
      const data = await this.ask(path, running.signal, this.known.peek().data);
      if (this.#running === running) this.known.value = { data, error: null, loading: false };
    } catch (error) {
      if (this.#running === running) {
        const refused = error instanceof Refused ? error : new Refused(0, String(error));
        this.known.value = { data: this.known.peek().data, error: refused, loading: false };
        // The store does not answer: what is shown stays, and is asked for again.
        if (refused.status === 503 || refused.status === 0) this.#retryLater();
      }
    }
    if (this.#running !== running) return;
    this.#running = null;
    const took = Date.now() - began;
    this.#notBefore = Date.now() + Math.max(MIN_BETWEEN_MS, 4 * took);
    if (this.#again) {
      this.#again = false;
      this.refresh();
    }
  }

  #retryLater(): void {
    clearTimeout(this.#timer);
    this.#timer = window.setTimeout(() => void this.#fetch(), 4000);
  }
}
