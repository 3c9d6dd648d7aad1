// Charts over time.
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import type { Samples, Series } from "../api";
import { duration, moment, rate } from "../format";
import { hideTip, showTip } from "./tip";
import { colour, theme } from "./theme";

export interface Line { label: string; values: (number | null)[]; colour: string; fill?: string; bars?: boolean; spans?: boolean }

interface ChartProps {
  /** Seconds since 1970. */
  at: number[];
  lines: Line[];
  height: number;
  label: string;
  shown: (value: number) => string;
  /** The range of time, if other charts share it. */
  from?: number;
  to?: number;
  max?: number;
  /** The steps of the axis, where the usual ones are odd in its unit. */
  incrs?: number[];
}

/** Draws lines or bars over time. Its numbers are also in the note beside the pointer. */
export function Chart(props: ChartProps) {
  const ref = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const kind = `${theme.value} ${props.height} ${props.lines.map((line) => line.label).join()}`;
  const data = [props.at, ...props.lines.map((line) => line.values)] as uPlot.AlignedData;
  useEffect(() => {
    const place = ref.current;
    if (!place) return;
    const created = new uPlot(options(place.clientWidth, latest), data, place);
    plot.current = created;
    const resized = new ResizeObserver(() => created.setSize({ width: place.clientWidth, height: props.height }));
    resized.observe(place);
    return () => {
      resized.disconnect();
      created.destroy();
      plot.current = null;
    };
  }, [kind]);
  useEffect(() => plot.current?.setData(data), [props.at, props.from, props.to]);
  return <div class="chart" ref={ref} role="img" aria-label={props.label} style={{ height: `${props.height}px` }} onMouseLeave={hideTip} />;
}

function options(width: number, latest: { current: ChartProps }): uPlot.Options {
  const { lines, height, max } = latest.current;
  const axis = { stroke: colour("muted"), font: "11px system-ui, sans-serif", grid: { stroke: colour("line"), width: 1 }, ticks: { show: false } };
  return {
    width, height,
    padding: [8, 8, 0, 0],
    legend: { show: false },
    cursor: { drag: { x: false, y: false }, points: { size: 6 }, y: false },
    scales: {
      x: { time: true, range: (_, from, to) => [latest.current.from ?? from, Math.max(latest.current.to ?? to, (latest.current.from ?? from) + 1)] },
      y: { range: (_, __, to) => [0, max ?? Math.max(to * 1.08, 0.001)] },
    },
    axes: [
      { ...axis, size: 26, values: (_, splits) => times(splits), space: 70 },
      { ...axis, size: 58, incrs: latest.current.incrs ?? undefined, values: (_, splits) => splits.map((value) => latest.current.shown(value)), space: 28 },
    ],
    series: [
      {},
      ...lines.map((line): uPlot.Series => ({
        label: line.label, stroke: line.bars ? "transparent" : line.colour, width: line.bars ? 0 : 1.5, points: { show: false }, spanGaps: line.spans ?? false,
        ...(line.bars ? { fill: line.colour, paths: bars } : line.fill ? { fill: line.fill } : {}),
      })),
    ],
    hooks: { setCursor: [(plot) => note(plot, latest.current)] },
  };
}

const bars = (plot: uPlot, ...rest: [number, number, number]) => uPlot.paths.bars?.({ size: [1, Infinity, 1], align: 1 })(plot, ...rest) ?? null;

function times(splits: number[]): string[] {
  const step = (splits[1] ?? 0) - (splits[0] ?? 0);
  return splits.map((at) => {
    const time = new Date(at * 1000);
    const two = (value: number) => String(value).padStart(2, "0");
    if (step >= 86_400) return `${two(time.getMonth() + 1)}-${two(time.getDate())}`;
    const clock = `${two(time.getHours())}:${two(time.getMinutes())}`;
    if (step >= 60) return clock;
    return step >= 1 ? `${clock}:${two(time.getSeconds())}` : `${two(time.getSeconds())}.${String(time.getMilliseconds()).padStart(3, "0").slice(0, 1)} s`;
  });
}

function note(plot: uPlot, { lines, shown, at }: ChartProps): void {
  const { idx, left, top } = plot.cursor;
  if (idx === null || idx === undefined || left === undefined || left < 0) return hideTip();
  const box = plot.over.getBoundingClientRect();
  showTip(box.left + left, box.top + (top ?? 0), (
    <>
      <strong>{moment((at[idx] ?? 0) * 1000)}</strong>
      {lines.map((line) => <div class="num">{line.label}: {line.values[idx] === null || line.values[idx] === undefined ? "–" : shown(line.values[idx] ?? 0)}</div>)}
    </>
  ));
}

/** Attempts that ended for each second, failed ones on top. */
export function RateChart({ series }: { series: Series }) {
  const seconds = series.step_ms / 1000;
  const at = series.succeeded.map((_, bin) => series.from / 1000 + bin * seconds);
  const failed = series.failed.map((value) => value / seconds);
  const succeeded = series.succeeded.map((value) => value / seconds);
  const both = succeeded.map((value, bin) => value + (failed[bin] ?? 0));
  const isAny = failed.some((value) => value > 0);
  const total = series.succeeded.reduce((sum, value) => sum + value, 0);
  const label = `${total} attempts succeeded in ${duration(series.succeeded.length * seconds)}`;
  const lines: Line[] = [
    ...(isAny ? [{ label: "all", values: both, colour: colour("bad-fill"), bars: true }] : []),
    { label: "succeeded", values: succeeded, colour: colour("good-fill"), bars: true },
  ];
  return <Chart at={at} lines={lines} height={190} label={label} shown={rate} from={series.from / 1000} to={series.from / 1000 + at.length * seconds} />;
}

const MEGABYTES = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072, 262144, 524288];
export const NAMED = ["accent", "odd", "warn-fill", "good-fill", "bad-fill", "muted"];

/** Samples of one unit, one line for each series. `spans`: the series were sampled at different times. */
export function SampleChart(props: { samples: Samples; names: string[]; unit: string; from: number; to: number; height?: number; label?: string; spans?: boolean }) {
  const { samples, names, unit, from, to, spans = false } = props;
  const chosen = samples.series.filter((series) => names.includes(series.name));
  const lines = chosen.map((series, index): Line => ({
    label: series.name, values: series.values, colour: colour(NAMED[index % NAMED.length] ?? "accent"), spans,
  }));
  const shown = (value: number) => unit === "percent" ? `${Math.round(value)}%` : unit === "MB" && value >= 1024 ? `${(value / 1024).toFixed(1)} GB` : `${value < 10 && value > 0 ? value.toFixed(1) : Math.round(value)}${unit === "count" ? "" : ` ${unit}`}`;
  return <Chart at={samples.at.map((at) => at / 1000)} lines={lines} height={props.height ?? 104} incrs={unit === "MB" ? MEGABYTES : undefined} label={`${props.label ?? names.join(", ")} over time`} shown={shown} from={from / 1000} to={to / 1000} />;
}
