// A file of a log, as far as it has been fetched: whole lines with the bytes at which they begin.
import { batch, signal } from "@preact/signals";
import type { LogText } from "./api";
import { get, Refused } from "./client";

export interface Line { offset: number; text: string; number: number | null }

const CHUNK = 128 * 1024;
/** More lines than this are dropped at the other end. */
const LINES_MAX = 120_000;
const encoder = new TextEncoder();

export class LogLines {
  lines = signal<Line[]>([]);
  error = signal<Refused | null>(null);
  /** Bytes of the file that are shown: from `from` to `to`, of `size`. */
  from = signal(0);
  to = signal(0);
  size = signal(0);
  loaded = signal(false);
  /** How often the file was opened anew. */
  opened = signal(0);
  #busy = false;
  /** Counts openings: an answer of before is dropped. */
  #opening = 0;
  #stopped = false;

  constructor(readonly job: string, readonly path: string) {}

  stop(): void {
    this.#stopped = true;
  }

  /** Opens the file at its end, or around a byte. */
  async open(at: number | null): Promise<void> {
    this.#opening += 1;
    this.#busy = false;
    await this.#ask(at === null ? -CHUNK : Math.max(0, at - CHUNK / 4), CHUNK, (answer) => {
      this.from.value = answer.from;
      this.to.value = answer.to;
      this.lines.value = split(answer);
      this.loaded.value = true;
      this.opened.value += 1;
    });
  }

  /** Fetches what comes before; returns the number of lines that were added. */
  async before(): Promise<number> {
    const end = this.from.value;
    if (end === 0) return 0;
    const start = Math.max(0, end - CHUNK);
    let added = 0;
    await this.#ask(start, end - start, (answer) => {
      const known = this.lines.peek();
      // The answer may end before the bytes that are known, or begin within a line.
      const lines = split({ ...answer, text: answer.text }).filter((line) => line.offset < end);
      if (answer.to !== end && answer.to < end) return;
      added = lines.length;
      this.from.value = answer.from;
      this.lines.value = [...lines, ...known].slice(0, LINES_MAX);
      if (lines.length + known.length > LINES_MAX) this.to.value = this.lines.value.at(-1)?.offset ?? this.to.value;
    });
    return added;
  }

  /** Fetches what comes after, or what has been written since. */
  async after(): Promise<void> {
    const start = this.to.value;
    await this.#ask(start, CHUNK, (answer) => {
      if (answer.bytes < start) {
        // The file was replaced.
        void this.open(null);
        return;
      }
      if (answer.to <= start) return;
      const known = this.lines.peek();
      const last = known.at(-1);
      const added = split(answer, last && last.number !== null ? last.number + 1 : null);
      // The last line was not whole yet.
      if (last && this.#ended(last) !== start && added[0]) {
        const first = added.shift();
        added.unshift({ ...last, text: last.text + (first?.text ?? "") });
        known.pop();
      }
      const all = [...known, ...added];
      this.lines.value = all.slice(Math.max(0, all.length - LINES_MAX));
      this.from.value = this.lines.value[0]?.offset ?? answer.from;
      this.to.value = answer.to;
    });
  }

  #ended(line: Line): number {
    return line.offset + encoder.encode(line.text).length + 1;
  }

  async #ask(from: number, limit: number, then: (answer: LogText) => void): Promise<void> {
    if (this.#busy || this.#stopped) return;
    this.#busy = true;
    const opening = this.#opening;
    try {
      const query = new URLSearchParams({ path: this.path, from: String(from), limit: String(limit) });
      const answer = await get<LogText>(`/jobs/${encodeURIComponent(this.job)}/logs/text?${query}`);
      if (this.#stopped || opening !== this.#opening) return;
      this.#busy = false;
      batch(() => {
        this.size.value = answer.bytes;
        then(answer);
        this.error.value = null;
      });
    } catch (error) {
      if (opening !== this.#opening) return;
      this.#busy = false;
      this.error.value = error instanceof Refused ? error : new Refused(0, String(error));
      this.loaded.value = true;
    }
  }
}

function split(answer: LogText, number: number | null = answer.line): Line[] {
  if (answer.text === "") return [];
  let offset = answer.from;
  const texts = answer.text.replace(/\n$/, "").split("\n");
  return texts.map((text, at) => {
    const line = { offset, text, number: number === null ? null : number + at };
    offset += encoder.encode(text).length + 1;
    return line;
  });
}
