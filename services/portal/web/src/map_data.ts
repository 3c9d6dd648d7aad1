// One byte for each mini-batch of a job: fetched whole once, then only what has changed.
import type { Job, MiniBatchMap } from "./api";
import { get } from "./client";
import { useJobData } from "./live";

export type Colouring = "state" | "tries" | "duration";

/** Each answer gives new ones, which share their bytes. */
export interface Cells { by: Colouring; bytes: Uint8Array; revision: string }

function decoded(text: string): Uint8Array {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let at = 0; at < binary.length; at += 1) bytes[at] = binary.charCodeAt(at);
  return bytes;
}

/** Fetches what has changed since `before`, into the same bytes. */
async function ask(path: string, stop: AbortSignal, before: Cells | null): Promise<Cells> {
  const answer = await get<MiniBatchMap>(before ? `${path}&since=${encodeURIComponent(before.revision)}` : path, stop);
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
  return { by: answer.by as Colouring, bytes, revision: answer.revision };
}

/** Returns the cells of a job, kept up to date with its revision. */
export function useMap(job: Job, by: Colouring) {
  return useJobData<Cells>(job, `map?by=${by}`, job.revision, { ask });
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
