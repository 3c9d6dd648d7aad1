// The map: one cell for each mini-batch, in reading order.
import { useMemo, useRef, useState } from "preact/hooks";
import type { RunningMiniBatch } from "../api";
import { counted, duration } from "../format";
import { now } from "../live";
import { bounds, SLOWNESS, type Cells, type Colouring, seconds } from "../map_data";
import { address, go } from "../route";
import { useCanvas } from "../ui/canvas";
import { colour, heat, pixel } from "../ui/theme";
import { hideTip, showTip } from "../ui/tip";

export interface Range { first: number; last: number }

interface MapProps {
  job: string;
  cells: Cells;
  /** What runs, by number. */
  running: Map<number, RunningMiniBatch>;
  /** What is shown of it. */
  range: Range;
  /** Selects mini-batches; `null` selects none. */
  select: (range: Range | null) => void;
}

/** How the cells are laid out, in pixels of the screen. */
interface Layout { columns: number; cell: number; gap: number; rows: number; width: number; height: number }

const CELL_MAX = 18;
const WORDS = ["pending", "succeeded", "failed", "to be tried again", "succeeded, with failed items"];

/** Returns the largest cells with which all fit; the map grows higher once a cell is one pixel. */
export function layout(cells: number, width: number, height: number): Layout {
  let cell = Math.max(1, Math.min(CELL_MAX, Math.floor(Math.sqrt((width * height) / Math.max(1, cells)))));
  while (cell > 1 && Math.ceil(cells / Math.floor(width / cell)) * cell > height) cell -= 1;
  const columns = Math.max(1, Math.floor(width / cell));
  const rows = Math.max(1, Math.ceil(cells / columns));
  return { columns, cell, gap: cell >= 5 ? 1 : 0, rows, width: columns * cell, height: rows * cell };
}

/** Returns the colour of each byte as a pixel. */
function palette(by: Colouring, bytes: Uint8Array, { first, last }: Range): Uint32Array {
  const pixels = new Uint32Array(256);
  const idle = pixel(colour("idle-fill"));
  if (by === "state") {
    pixels.fill(idle);
    ["idle-fill", "cell-good", "bad-fill", "warn-fill", "odd"].forEach((name, at) => (pixels[at] = pixel(colour(name))));
    return pixels;
  }
  const { low, high } = bounds(bytes, first, last);
  for (let byte = 1; byte < 256; byte += 1) {
    const share = by === "tries" ? (byte - 1) / 3 : ((byte - low) / Math.max(1, high - low)) ** SLOWNESS;
    pixels[byte] = pixel(heat(share));
  }
  pixels[0] = idle;
  return pixels;
}

/** The pixels of the last map, used again: each takes megabytes, which a browser frees late. */
let drawn = new Uint32Array(0);

function draw(canvas: HTMLCanvasElement, cells: Cells, running: number[], range: Range, { columns, cell, gap, width, height }: Layout): void {
  canvas.width = width;
  canvas.height = height;
  const context = canvas.getContext("2d");
  if (!context) return;
  if (drawn.length !== width * height) drawn = new Uint32Array(width * height);
  const pixels = drawn.fill(0);
  const colours = palette(cells.by, cells.bytes, range);
  const filled = cell - gap;
  const rare: number[] = [];
  for (let number = range.first, index = 0; number <= range.last; number += 1, index += 1) {
    const byte = cells.bytes[number] ?? 0;
    const value = colours[byte] ?? 0;
    const start = Math.floor(index / columns) * cell * width + (index % columns) * cell;
    for (let y = 0; y < filled; y += 1) pixels.fill(value, start + y * width, start + y * width + filled);
    if (cell < 3 && cells.by === "state" && byte === 2) rare.push(start);
  }
  const enlarge = (start: number, value: number) => {
    const [x, y] = [start % width, Math.floor(start / width)];
    for (let down = Math.max(0, y - 1); down <= Math.min(height - 1, y + 1); down += 1) {
      pixels.fill(value, down * width + Math.max(0, x - 1), down * width + Math.min(width, x + 2));
    }
  };
  // Few cells among many tiny ones would be overlooked: they are drawn larger, over their neighbours.
  const isRare = (count: number) => count * 50 < range.last - range.first;
  const busy = pixel(colour("accent"));
  for (const number of cells.by === "state" ? running : []) {
    const index = number - range.first;
    const start = Math.floor(index / columns) * cell * width + (index % columns) * cell;
    for (let y = 0; y < filled; y += 1) pixels.fill(busy, start + y * width, start + y * width + filled);
    if (cell < 3 && isRare(running.length)) enlarge(start, busy);
  }
  if (isRare(rare.length)) for (const start of rare) enlarge(start, colours[2] ?? 0);
  context.putImageData(new ImageData(new Uint8ClampedArray(pixels.buffer), width, height), 0, 0);
}

export function MapCanvas({ job, cells, running, range, select }: MapProps) {
  const { place, canvas, width, scale, useDrawing, at } = useCanvas();
  const [cursor, setCursor] = useState<number | null>(null);
  const [dragged, setDragged] = useState<Range | null>(null);
  const anchor = useRef<number | null>(null);
  const shown = range.last - range.first + 1;
  const sizes = useMemo(() => layout(shown, Math.floor(width * scale), Math.floor(Math.max(240, innerHeight * 0.62) * scale)), [shown, width]);
  const runs = useMemo(() => [...running.keys()].filter((number) => runsNow(cells, running, number) && number >= range.first && number <= range.last), [running, cells, range.first, range.last]);
  useDrawing((canvas) => draw(canvas, cells, runs, range, sizes), [cells, runs.join(), range.first, range.last, sizes]);

  const numberAt = (event: PointerEvent): number | null => {
    const point = at(event);
    if (!point) return null;
    const column = Math.floor((point.x * scale) / sizes.cell);
    const row = Math.floor((point.y * scale) / sizes.cell);
    const number = range.first + row * sizes.columns + column;
    const isInside = column >= 0 && column < sizes.columns && row >= 0 && number <= range.last;
    return isInside ? number : null;
  };
  // A failure among cells of a few pixels is hard to hit: the pointer finds the one beside it.
  const near = (number: number): number => {
    if (sizes.cell >= 4 || cells.by !== "state" || cells.bytes[number] === 2) return number;
    for (const down of [0, -1, 1, -2, 2]) {
      for (const right of [0, -1, 1, -2, 2]) {
        const other = number + down * sizes.columns + right;
        if (cells.bytes[other] === 2 && other >= range.first && other <= range.last) return other;
      }
    }
    return number;
  };
  const open = (number: number) => go(address(["jobs", job, "mini-batches", number]));
  const between = (a: number, b: number): Range => ({ first: Math.min(a, b), last: Math.max(a, b) });

  const onMove = (event: PointerEvent) => {
    const number = numberAt(event);
    if (number === null) return hideTip();
    if (anchor.current !== null && number !== anchor.current) setDragged(between(anchor.current, number));
    const selected = anchor.current !== null && number !== anchor.current ? between(anchor.current, number) : null;
    showTip(event.clientX, event.clientY, selected
      ? <><strong>{counted(selected.last - selected.first + 1, "mini-batch")}</strong>{selected.first} to {selected.last}</>
      : <><strong>Mini-batch {near(number)}</strong>{described(cells, running, near(number))}</>);
  };
  const onDown = (event: PointerEvent) => {
    if (event.button !== 0) return;
    anchor.current = numberAt(event);
    // A finger scrolls; only a mouse or a pen selects.
    if (event.pointerType !== "touch") canvas.current?.setPointerCapture(event.pointerId);
  };
  const onUp = (event: PointerEvent) => {
    const [from, number] = [anchor.current, numberAt(event)];
    anchor.current = null;
    setDragged(null);
    hideTip();
    if (from === null || number === null) return;
    if (from === number) open(near(number));
    else select(between(from, number));
  };
  // The browser scrolls instead.
  const onCancel = () => {
    anchor.current = null;
    setDragged(null);
    hideTip();
  };
  const onKey = (event: KeyboardEvent) => {
    const at = cursor ?? range.first;
    const steps: Record<string, number> = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: sizes.columns, ArrowUp: -sizes.columns };
    let next: number | null = null;
    if (event.key in steps) next = at + (steps[event.key] ?? 0);
    else if (event.key === "Home") next = range.first;
    else if (event.key === "End") next = range.last;
    else if (event.key === "n" || event.key === "p") next = failedFrom(cells, at, event.key === "n" ? 1 : -1, range) ?? at;
    else if (event.key === "Enter") return open(at);
    else if (event.key === "Escape") return select(null);
    if (next === null || next < range.first || next > range.last) return;
    event.preventDefault();
    if (event.shiftKey) {
      anchor.current ??= at;
      select(between(anchor.current, next));
    } else anchor.current = null;
    setCursor(next);
  };
  const marked = (number: number) => {
    const index = number - range.first;
    const [x, y] = [(index % sizes.columns) * sizes.cell, Math.floor(index / sizes.columns) * sizes.cell];
    return { left: `${x / scale - 3}px`, top: `${y / scale - 3}px`, width: `${sizes.cell / scale + 6}px`, height: `${sizes.cell / scale + 6}px` };
  };
  return (
    <div class="map" ref={place}>
      <div
        class="map-keys" tabIndex={0} role="application"
        aria-label={`Map of ${counted(shown, "mini-batch")}. Arrow keys move, Enter opens, Shift and arrow keys select, n and p go to the next and previous failed one.`}
        onKeyDown={onKey} onFocus={() => cursor === null && setCursor(range.first)} onBlur={() => setCursor(null)}
      >
        <canvas
          ref={canvas} style={{ width: `${sizes.width / scale}px`, height: `${sizes.height / scale}px` }}
          onPointerMove={onMove} onPointerDown={onDown} onPointerUp={onUp} onPointerCancel={onCancel} onPointerLeave={hideTip}
        />
        {cursor !== null && cursor >= range.first && cursor <= range.last && <div class="map-cursor" style={marked(cursor)} />}
        <Shade dragged={dragged} range={range} sizes={sizes} scale={scale} />
      </div>
      <p class="map-told" aria-live="polite">{cursor === null ? " " : <>Mini-batch {cursor}: {described(cells, running, cursor)}</>}</p>
    </div>
  );
}

/** The selection while it is dragged: up to three rectangles, as of a selection of text. */
function Shade({ dragged, range, sizes, scale }: { dragged: Range | null; range: Range; sizes: Layout; scale: number }) {
  if (!dragged) return null;
  const [first, last] = [dragged.first - range.first, dragged.last - range.first];
  const [top, bottom] = [Math.floor(first / sizes.columns), Math.floor(last / sizes.columns)];
  const [left, right] = [first % sizes.columns, (last % sizes.columns) + 1];
  const parts = top === bottom ? [[top, left, 1, right - left]] : [
    [top, left, 1, sizes.columns - left], [top + 1, 0, bottom - top - 1, sizes.columns], [bottom, 0, 1, right],
  ];
  const px = (cells: number) => `${(cells * sizes.cell) / scale}px`;
  return <>{parts.map(([row = 0, column = 0, rows = 0, columns = 0]) => <div class="map-shade" style={{ top: px(row), left: px(column), height: px(rows), width: px(columns) }} />)}</>;
}

/** Whether a mini-batch runs that has not ended. */
export function runsNow(cells: Cells, running: Map<number, RunningMiniBatch>, number: number): boolean {
  return running.has(number) && (cells.by !== "state" || [0, 3].includes(cells.bytes[number] ?? 0));
}

function described(cells: Cells, running: Map<number, RunningMiniBatch>, number: number): string {
  const byte = cells.bytes[number] ?? 0;
  const one = running.get(number);
  if (one && runsNow(cells, running, number)) return `running for ${duration(Math.max(0, now.value - one.since) / 1000)}, ${one.process} on node ${one.node}`;
  if (cells.by === "state") return WORDS[byte] ?? "unknown";
  if (byte === 0) return "no attempt has ended";
  return cells.by === "tries" ? counted(byte, "attempt") : `took about ${duration(seconds(byte))}`;
}

/** Returns the next mini-batch of the same kind as failures: failed, tried more than once, or among the slowest. */
function failedFrom(cells: Cells, from: number, step: number, range: Range): number | null {
  const limit = cells.by === "state" ? 2 : cells.by === "tries" ? 2 : bounds(cells.bytes).high - 4;
  for (let at = from + step; at >= range.first && at <= range.last; at += step) {
    const byte = cells.bytes[at] ?? 0;
    if (cells.by === "state" ? byte === 2 : byte >= limit) return at;
  }
  return null;
}
