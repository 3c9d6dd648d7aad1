// One byte for each mini-batch of a job: fetched whole once, then only what has changed.
import { signal } from "@preact/signals";
import { useEffect, useMemo } from "preact/hooks";
import type { MiniBatchMap } from "./api";
import { get, wakes } from "./client";
import { Refused } from "./refused";

export type Colouring = "state" | "tries" | "duration";

export interface Cells { by: Colouring; bytes: Uint8Array; version: number }

const MIN_BETWEEN_MS = 1500;

function decoded(text: string): Uint8Array {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

class MapData {
  cells = signal<Cells | null>(null);
  error = signal<Refused | null>(null);
  #revision = "";
  #running = false;
  #again = false;
  #stopped = false;
  #timer = 0;

  constructor(readonly id: string, readonly by: Colouring) {}

  stop(): void {
    this.#stopped = true;
    clearTimeout(this.#timer);
  }

  async refresh(): Promise<void> {
    if (this.#running) {
      this.#again = true;
      return;
    }
    this.#running = true;
    const began = Date.now();
    try {
      const since = this.#revision ? `&since=${encodeURIComponent(this.#revision)}` : "";
      const answer = await get<MiniBatchMap>(`/jobs/${encodeURIComponent(this.id)}/map?by=${this.by}${since}`);
      this.#apply(answer);
      this.error.value = null;
    } catch (error) {
      this.error.value = error instanceof Refused ? error : new Refused(0, (error as Error).message);
    }
    const pause = Math.max(MIN_BETWEEN_MS, 4 * (Date.now() - began));
    this.#timer = window.setTimeout(() => {
      this.#running = false;
      if (this.#again && !this.#stopped) {
        this.#again = false;
        void this.refresh();
      }
    }, pause);
  }

  #apply(answer: MiniBatchMap): void {
    if (this.#stopped) return;
    this.#revision = answer.revision;
    const before = this.cells.peek();
    let bytes = before?.bytes ?? new Uint8Array(0);
    if (bytes.length !== answer.total) {
      const resized = new Uint8Array(answer.total);
      resized.set(bytes.subarray(0, answer.total));
      bytes = resized;
    }
    for (const chunk of answer.chunks) {
      const part = decoded(chunk.bytes);
      bytes.set(part.subarray(0, Math.max(0, bytes.length - chunk.first)), chunk.first);
    }
    this.cells.value = { by: this.by, bytes, version: (before?.version ?? 0) + 1 };
  }
}

/** Returns the cells of a job, kept up to date with its revision. */
export function useMap(id: string, by: Colouring, revision: string): { cells: Cells | null; error: Refused | null; refresh: () => void } {
  const data = useMemo(() => new MapData(id, by), [id, by]);
  useEffect(() => () => data.stop(), [data]);
  useEffect(() => void data.refresh(), [data, revision, wakes.value]);
  return { cells: data.cells.value, error: data.error.value, refresh: () => void data.refresh() };
}

/** Returns the seconds that a byte of the durations stands for. */
export function seconds(byte: number): number {
  return byte === 0 ? 0 : 0.001 * 2 ** ((byte - 1) / 8);
}

/** Returns the shortest and the longest duration among the cells. */
export function bounds(bytes: Uint8Array, first = 0, last = bytes.length - 1): { low: number; high: number } {
  let [low, high] = [255, 1];
  for (let at = first; at <= last; at += 1) {
    const byte = bytes[at] ?? 0;
    if (byte > high) high = byte;
    if (byte > 0 && byte < low) low = byte;
  }
  return { low: Math.min(low, high), high };
}

/** The scale of durations is logarithmic, and most lie in its middle: they stay quiet. */
export const SLOWNESS = 1.8;
