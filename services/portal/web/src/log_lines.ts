// A file of a log, as far as it has been fetched: whole lines with the bytes at which they begin.
import { batch, signal } from "@preact/signals";
import type { LogText } from "./api";
import { get } from "./client";
import { Refused } from "./refused";

export interface Line { offset: number; text: string; number: number | null }

const CHUNK = 128 * 1024;
/** More lines than this are dropped at the other end. */
const LINES_MAX = 120_000;
/** No more characters of a line are kept. */
const LINE_KEPT = 1 << 20;

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
  /** Whether the last line has its line break. */
  #isWhole = true;
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
    await this.#ask({ from: at === null ? -CHUNK : Math.max(0, at - CHUNK / 4), limit: CHUNK }, (answer) => {
      this.from.value = answer.from;
      this.to.value = answer.to;
      this.lines.value = split(answer);
      this.#isWhole = answer.text.endsWith("\n");
      this.loaded.value = true;
      this.opened.value += 1;
    });
  }

  /** Fetches what comes before; returns the number of lines that were added. */
  async before(): Promise<number> {
    const end = this.from.value;
    if (end === 0) return 0;
    let added = 0;
    await this.#ask({ before: end, limit: CHUNK }, (answer) => {
      // The file was replaced by a shorter one.
      if (answer.to !== end) return void this.open(null);
      const known = this.lines.peek();
      const before = split(answer);
      const all = joined(before, known, answer.text.endsWith("\n"));
      added = all.length - known.length;
      const dropped = all[LINES_MAX];
      if (dropped) {
        this.to.value = dropped.offset;
        this.#isWhole = true;
      }
      this.from.value = answer.from;
      this.lines.value = numbered(all.slice(0, LINES_MAX));
    });
    return added;
  }

  /** Fetches what comes after, or what has been written since. */
  async after(): Promise<void> {
    const start = this.to.value;
    await this.#ask({ from: start, limit: CHUNK }, (answer) => {
      // The file was replaced.
      if (answer.bytes < start) return void this.open(null);
      if (answer.to <= start) return;
      // The last line was not whole yet: it comes again, or its continuation if it is very long.
      const known = this.lines.peek().filter(({ offset }) => offset < answer.from);
      const all = joined(known, split(answer), this.#isWhole || answer.from < start);
      this.lines.value = numbered(all).slice(Math.max(0, all.length - LINES_MAX));
      this.from.value = this.lines.value[0]?.offset ?? answer.from;
      this.to.value = answer.to;
      this.#isWhole = answer.text.endsWith("\n");
    });
  }

  async #ask(range: Record<string, number>, then: (answer: LogText) => void): Promise<void> {
    if (this.#busy || this.#stopped) return;
    this.#busy = true;
    const opening = this.#opening;
    try {
      const query = new URLSearchParams({ path: this.path });
      for (const [key, value] of Object.entries(range)) query.set(key, String(value));
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

function split(answer: LogText): Line[] {
  const texts = answer.text.replace(/\n$/, "").split("\n");
  return answer.starts.map((offset, at) => ({ offset, text: texts[at] ?? "", number: answer.line === null ? null : answer.line + at }));
}

/** Returns all lines. Unless `isWhole`, the last of `before` continues with the first of `after`. */
function joined(before: Line[], after: Line[], isWhole: boolean): Line[] {
  const [last, [first, ...rest]] = [before.at(-1), after];
  if (isWhole || !last || !first) return [...before, ...after];
  return [...before.slice(0, -1), { ...last, text: (last.text + first.text).slice(0, LINE_KEPT) }, ...rest];
}

/** Numbers the lines that follow one whose number is known. */
function numbered(lines: Line[]): Line[] {
  let number: number | null = null;
  return lines.map((line) => {
    number = line.number ?? (number === null ? null : number + 1);
    return number === line.number ? line : { ...line, number };
  });
}
