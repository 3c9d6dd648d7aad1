// Colours for canvases, from the variables of `base.css`.
import { signal } from "@preact/signals";

const dark = matchMedia("(prefers-color-scheme: dark)");

/** Changes with the theme: what is drawn on a canvas is drawn again. */
export const theme = signal(dark.matches ? "dark" : "light");
dark.addEventListener("change", () => (theme.value = dark.matches ? "dark" : "light"));

export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Returns a colour as a pixel of an `ImageData`, read as one number of 32 bits. */
export function pixel(text: string): number {
  const [red, green, blue] = channels(text);
  return (255 << 24) | (blue << 16) | (green << 8) | red;
}

export function channels(text: string): [number, number, number] {
  const hex = text.replace("#", "");
  const at = (from: number) => parseInt(hex.slice(from, from + 2), 16) || 0;
  return [at(0), at(2), at(4)];
}

/** Mixes two colours; `share` of the second. */
export function mixed(from: string, to: string, share: number): string {
  const [a, b] = [channels(from), channels(to)];
  const two = (value: number) => Math.round(value).toString(16).padStart(2, "0");
  return `#${[0, 1, 2].map((at) => two((a[at] ?? 0) + ((b[at] ?? 0) - (a[at] ?? 0)) * share)).join("")}`;
}

/** Returns the colour of a value between 0 and 1: from quiet to conspicuous, in either theme. */
export function heat(share: number): string {
  const stops = [colour("accent-soft"), colour("accent"), colour("odd"), colour("bad-fill")];
  const at = Math.min(Math.max(share, 0), 1) * (stops.length - 1);
  const low = Math.min(Math.floor(at), stops.length - 2);
  return mixed(stops[low] ?? "", stops[low + 1] ?? "", at - low);
}
