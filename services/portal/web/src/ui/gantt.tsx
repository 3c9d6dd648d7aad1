// Attempts as bars, one row for each process; or, where they are too many, how busy each process was.
import { useRef, useState } from "preact/hooks";
import type { Timeline } from "../api";
import { counted, duration, moment } from "../format";
import { sized, useCanvas } from "./canvas";
import { colour, mixed } from "./theme";
import { hideTip, showTip } from "./tip";

interface GanttProps {
  timeline: Timeline;
  /** Positions in `timeline.processes` of the rows. */
  rows: number[];
  from: number;
  to: number;
  /** Room for the names at the left. */
  left: number;
  right?: number;
  rowHeight: number;
  label: string;
  open: (miniBatch: number) => void;
  zoom?: (from: number, to: number) => void;
}

const AXIS = 22;
const STATUS = ["succeeded", "failed a try", "failed", "timed out", "its process died", "running"];
const STATUS_COLOURS = ["good-fill", "warn-fill", "bad-fill", "bad-fill", "odd", "accent"];
export const RUNNING = 5;

export function Gantt(props: GanttProps) {
  const { timeline, rows, from, to, left, right = 8, rowHeight, zoom } = props;
  const { place, canvas, width, useDrawing, at: pointer } = useCanvas();
  const [drag, setDrag] = useState<{ start: number; end: number } | null>(null);
  const isPressed = useRef(false);
  const height = rows.length * rowHeight + AXIS;
  const span = Math.max(1, to - from);
  const room = Math.max(1, width - left - right);
  const timeAt = (x: number) => from + (Math.min(Math.max(x - left, 0), room) / room) * span;
  useDrawing((canvas) => draw(canvas, props, width, height), [timeline, height, from, to, rows.join()]);

  const pointed = (event: PointerEvent) => pointer(event) ?? { x: 0, y: 0 };
  const hit = (x: number, y: number): { process: number; bar: number | null; bin: number | null } | null => {
    const process = rows[Math.floor(y / rowHeight)];
    if (process === undefined || x < left) return null;
    const at = timeAt(x) - timeline.from;
    const { bars, bins } = timeline;
    if (bins) return { process, bar: null, bin: Math.floor(at / bins.step_ms) };
    let nearest: number | null = null;
    const slack = (2 / room) * span;
    for (let bar = 0; bar < (bars?.process.length ?? 0); bar += 1) {
      if (bars?.process[bar] === process && at >= (bars.start[bar] ?? 0) - slack && at <= (bars.end[bar] ?? 0) + slack) nearest = bar;
    }
    return { process, bar: nearest, bin: null };
  };
  const onMove = (event: PointerEvent) => {
    const { x, y } = pointed(event);
    if (drag) setDrag({ ...drag, end: x });
    const found = hit(x, y);
    if (!found) return hideTip();
    showTip(event.clientX, event.clientY, <Told {...found} timeline={timeline} at={timeAt(x)} />);
  };
  const onDown = (event: PointerEvent) => {
    isPressed.current = event.button === 0;
    if (event.button !== 0 || event.pointerType === "touch") return;
    const { x } = pointed(event);
    if (zoom && x >= left) {
      setDrag({ start: x, end: x });
      canvas.current?.setPointerCapture(event.pointerId);
    }
  };
  const onUp = (event: PointerEvent) => {
    const { x, y } = pointed(event);
    const dragged = drag;
    setDrag(null);
    if (!isPressed.current || event.button !== 0) return;
    isPressed.current = false;
    if (dragged && zoom && Math.abs(dragged.end - dragged.start) > 6) {
      zoom(timeAt(Math.min(dragged.start, dragged.end)), timeAt(Math.max(dragged.start, dragged.end)));
      return;
    }
    const found = hit(x, y);
    if (found?.bar !== null && found?.bar !== undefined) props.open(timeline.bars?.mini_batch[found.bar] ?? 0);
    else if (found && found.bin !== null && zoom) zoom(timeAt(x) - span / 10, timeAt(x) + span / 10);
  };
  // The browser scrolls instead, or the window lost the pointer.
  const onCancel = () => {
    isPressed.current = false;
    setDrag(null);
    hideTip();
  };
  const onKey = (event: KeyboardEvent) => {
    const moves: Record<string, [number, number]> = {
      ArrowLeft: [-0.2, -0.2], ArrowRight: [0.2, 0.2], "+": [0.25, -0.25], "=": [0.25, -0.25], "-": [-0.5, 0.5],
    };
    const move = moves[event.key];
    if (!move || !zoom) return;
    event.preventDefault();
    zoom(from + move[0] * span, to + move[1] * span);
  };
  return (
    <div class="gantt" ref={place}>
      <div tabIndex={zoom ? 0 : undefined} role={zoom ? "application" : "img"} aria-label={props.label} onKeyDown={onKey}>
        <canvas
          ref={canvas} style={{ width: `${width}px`, height: `${height}px` }}
          onPointerMove={onMove} onPointerDown={onDown} onPointerUp={onUp} onPointerCancel={onCancel} onPointerLeave={hideTip}
        />
        {drag && Math.abs(drag.end - drag.start) > 6 && <div class="map-shade" style={{ left: `${Math.min(drag.start, drag.end)}px`, width: `${Math.abs(drag.end - drag.start)}px`, top: "0px", height: `${height - AXIS}px` }} />}
      </div>
    </div>
  );
}

function Told({ timeline, process, bar, bin, at }: { timeline: Timeline; process: number; bar: number | null; bin: number | null; at: number }) {
  const row = timeline.processes[process];
  const { bars, bins } = timeline;
  if (bar !== null && bars) {
    const [start, end, run, copy] = [bars.start[bar] ?? 0, bars.end[bar] ?? 0, bars.run[bar] ?? 0, bars.copy[bar]];
    const place = <div class="muted">{row?.process} on {row?.node}, from {moment(timeline.from + start)}</div>;
    if (bars.status[bar] === RUNNING) return <><strong>Mini-batch {bars.mini_batch[bar]}</strong>running for {duration((end - start) / 1000)}{place}</>;
    return <><strong>Mini-batch {bars.mini_batch[bar]}{copy && ", speculative run"}</strong>{STATUS[bars.status[bar] ?? 0]} after {duration((end - start) / 1000)}, {duration(run)} in run(){place}</>;
  }
  if (bin !== null && bins) {
    const [busy, failed] = [bins.busy[process]?.[bin] ?? 0, bins.failed[process]?.[bin] ?? 0];
    return <><strong>{row?.process} on {row?.node}</strong>{Math.round(busy * 100)}% busy{failed > 0 && `, ${counted(failed, "failed attempt")}`}<div class="muted">{moment(at)}; click to zoom in</div></>;
  }
  return <><strong>{row?.process} on {row?.node}</strong>idle<div class="muted">{moment(at)}</div></>;
}

function draw(canvas: HTMLCanvasElement, props: GanttProps, width: number, height: number): void {
  const { timeline, rows, from, to, left, right = 8, rowHeight } = props;
  const context = sized(canvas, width, height);
  if (!context) return;
  const room = Math.max(1, width - left - right);
  const x = (at: number) => left + ((at - from) / Math.max(1, to - from)) * room;
  const bottom = rows.length * rowHeight;
  axis(context, { from, to, left, room, bottom });
  const rowOf = new Map(rows.map((process, row) => [process, row]));
  const gap = rowHeight >= 10 ? 2 : 0.5;
  context.save();
  context.beginPath();
  context.rect(left, 0, room, bottom);
  context.clip();
  context.fillStyle = colour("sunken");
  for (let row = 0; row < rows.length; row += 1) context.fillRect(left, row * rowHeight + gap, room, rowHeight - 2 * gap);
  if (timeline.bars) drawBars(context, props, x, rowOf, gap);
  else if (timeline.bins) drawBins(context, props, x, rowOf, gap);
  context.restore();
  if (rowHeight < 10) return;
  context.fillStyle = colour("muted");
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "middle";
  context.textAlign = "right";
  const manyNodes = new Set(timeline.processes.map(({ node }) => node)).size > 1;
  rows.forEach((process, row) => {
    const { node = "", process: name = "" } = timeline.processes[process] ?? {};
    const text = left < 100 ? name.replace("process", "p") : manyNodes ? `${node} ${name.replace("process", "p")}` : name;
    context.fillText(text, left - 8, row * rowHeight + rowHeight / 2, left - 12);
  });
}

function drawBars(context: CanvasRenderingContext2D, { timeline, rowHeight }: GanttProps, x: (at: number) => number, rowOf: Map<number, number>, gap: number): void {
  const { bars, from } = timeline;
  if (!bars) return;
  const solid = STATUS_COLOURS.map(colour);
  const second = colour("accent");
  // Light: loaded, reported. Solid: in run().
  const light = solid.map((full) => mixed(full, colour("panel"), 0.55));
  // Failures last: they stay visible among their neighbours.
  for (const failed of [false, true]) {
    for (let bar = 0; bar < bars.process.length; bar += 1) {
      const status = bars.status[bar] ?? 0;
      const row = rowOf.get(bars.process[bar] ?? -1);
      if (row === undefined || status > 0 !== failed) continue;
      const [start, end] = [x(from + (bars.start[bar] ?? 0)), x(from + (bars.end[bar] ?? 0))];
      const y = row * rowHeight + gap;
      const width = Math.max(end - start - (end - start > 4 ? 1 : 0), failed ? 2 : 0.75);
      context.fillStyle = light[status] ?? "";
      context.fillRect(start, y, width, rowHeight - 2 * gap);
      const part = (seconds = 0) => Math.min(1, (seconds * 1000) / Math.max(1, (bars.end[bar] ?? 0) - (bars.start[bar] ?? 0)));
      const [loaded, run] = [part(bars.loaded[bar]), part(bars.run[bar])];
      context.fillStyle = solid[status] ?? "";
      context.fillRect(start + width * Math.min(loaded, 1 - run), y, Math.max(width * run, 0.75), rowHeight - 2 * gap);
      if (bars.copy[bar]) {
        context.fillStyle = second;
        context.fillRect(start, y, width, Math.max(2, (rowHeight - 2 * gap) / 4));
      }
    }
  }
}

function drawBins(context: CanvasRenderingContext2D, { timeline, rowHeight }: GanttProps, x: (at: number) => number, rowOf: Map<number, number>, gap: number): void {
  const { bins, from } = timeline;
  if (!bins) return;
  const [none, full, bad] = [colour("sunken"), colour("good-fill"), colour("bad-fill")];
  for (const [process, row] of rowOf) {
    bins.busy[process]?.forEach((busy, bin) => {
      const [start, end] = [x(from + bin * bins.step_ms), x(from + (bin + 1) * bins.step_ms)];
      const y = row * rowHeight + gap;
      if (busy > 0) {
        context.fillStyle = mixed(none, full, 0.15 + 0.85 * Math.min(busy, 1));
        context.fillRect(start, y, end - start + 0.5, rowHeight - 2 * gap);
      }
      if ((bins.failed[process]?.[bin] ?? 0) > 0) {
        context.fillStyle = bad;
        context.fillRect(start, y + (rowHeight - 2 * gap) * 0.6, Math.max(end - start, 2), (rowHeight - 2 * gap) * 0.4);
      }
    });
  }
}

function axis(context: CanvasRenderingContext2D, at: { from: number; to: number; left: number; room: number; bottom: number }): void {
  const { from, to, left, room, bottom } = at;
  const steps = [1, 2, 5, 10, 20, 50, 100, 200, 500, 1e3, 2e3, 5e3, 1e4, 15e3, 3e4, 6e4, 12e4, 3e5, 6e5, 9e5, 18e5, 36e5, 72e5, 216e5, 432e5, 864e5, 1728e5];
  const wanted = Math.max(2, Math.floor(room / 100));
  const step = steps.find((step) => (to - from) / step <= wanted) ?? 864e5 * Math.ceil((to - from) / 864e5 / wanted);
  context.font = "11px system-ui, sans-serif";
  context.textBaseline = "alphabetic";
  context.textAlign = "center";
  // Midnight of the browser's zone is a multiple of every step.
  const zone = new Date(from).getTimezoneOffset() * 60_000;
  for (let time = Math.ceil((from - zone) / step) * step + zone; time <= to; time += step) {
    const x = left + ((time - from) / Math.max(1, to - from)) * room;
    context.fillStyle = colour("line");
    context.fillRect(x, 0, 1, bottom + 4);
    context.fillStyle = colour("muted");
    const text = label(time, step);
    const half = context.measureText(text).width / 2;
    context.fillText(text, Math.min(Math.max(x, left + half), left + room - half), bottom + 16);
  }
}

function label(at: number, step: number): string {
  const time = new Date(at);
  const two = (value: number) => String(value).padStart(2, "0");
  if (step >= 864e5) return `${two(time.getMonth() + 1)}-${two(time.getDate())}`;
  const clock = `${two(time.getHours())}:${two(time.getMinutes())}`;
  if (step >= 6e4) return clock;
  const seconds = `${clock}:${two(time.getSeconds())}`;
  return step >= 1000 ? seconds : `${two(time.getSeconds())}.${String(time.getMilliseconds()).padStart(3, "0")}`;
}
