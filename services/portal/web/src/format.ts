// Numbers and times as the command line writes them (services/protocol/src/words.rs).

/** Returns seconds in suitable units: `4.2 ms`, `0.44 s`, `16 s`, `3 min 12 s`, `2 h 5 min`, `4 days 3 h`. */
export function duration(seconds: number): string {
  const whole = Math.floor(seconds);
  const two = (large: string, small: number, unit: string) => (small === 0 ? large : `${large} ${small} ${unit}`);
  // It would be "0.0 ms".
  if (seconds < 0.00005) return "0 s";
  if (seconds < 0.01) return `${(1000 * seconds).toFixed(1)} ms`;
  if (seconds < 0.1) return `${(1000 * seconds).toFixed(0)} ms`;
  if (whole < 10 && seconds > whole) return `${seconds.toFixed(2)} s`;
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return two(`${Math.floor(whole / 60)} min`, whole % 60, "s");
  if (whole < 86400) return two(`${Math.floor(whole / 3600)} h`, Math.floor(whole / 60) % 60, "min");
  return two(counted(Math.floor(whole / 86400), "day"), Math.floor(whole / 3600) % 24, "h");
}

/** Whether a job waited for workers long enough to say so. */
export function hasWaited(elapsed: number, worked: number): boolean {
  return elapsed - worked >= Math.max(5, 0.1 * elapsed);
}

/** Returns how long a job took, and how long it worked if it waited for workers. */
export function took(elapsed: number, worked: number | null): string {
  const text = duration(elapsed);
  return worked !== null && hasWaited(elapsed, worked) ? `${text}, of which it worked ${duration(worked)}` : text;
}

/** Returns a moment as a local time of the day, with the date unless it is of the last 12 hours. */
export function moment(at: number, now: number = Date.now()): string {
  const time = new Date(at);
  const two = (number: number) => String(number).padStart(2, "0");
  const clock = `${two(time.getHours())}:${two(time.getMinutes())}`;
  if (Math.abs(now - at) < 12 * 3600 * 1000) return `${clock}:${two(time.getSeconds())}`;
  return `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())} ${clock}`;
}

/** Returns a local time of the day, with milliseconds if they matter in `span` milliseconds. */
export function clock(at: number, span: number): string {
  const time = new Date(at);
  const two = (number: number) => String(number).padStart(2, "0");
  const text = `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;
  return span < 5000 ? `${text}.${String(time.getMilliseconds()).padStart(3, "0")}` : text;
}

/** Returns how long ago a moment was: `4 min ago`. */
export function ago(at: number, now: number = Date.now()): string {
  const seconds = Math.floor((now - at) / 1000);
  if (seconds < 10) return "seconds ago";
  if (seconds < 60) return `${seconds} s ago`;
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86400) return `${Math.floor(seconds / 3600)} h ago`;
  const days = Math.floor(seconds / 86400);
  return days === 1 ? "1 day ago" : `${days} days ago`;
}

/** Returns a number of bytes in a suitable unit, a power of 1024: `312 B`, `4.2 MB`. */
export function bytes(size: number): string {
  const units = ["B", "KB", "MB", "GB", "TB"];
  let value = size;
  let unit = 0;
  while (value >= 1023.95 && unit + 1 < units.length) {
    value /= 1024;
    unit += 1;
  }
  return unit === 0 ? `${size} B` : `${value.toFixed(1)} ${units[unit]}`;
}

/** Returns a rate: `1250/s`, `0.4/s`, `4.2/min`, `2.0/h`. */
export function rate(perSecond: number): string {
  if (perSecond <= 0) return "0/s";
  if (perSecond >= 100) return `${Math.round(perSecond)}/s`;
  if (perSecond >= 0.1) return `${perSecond.toFixed(1)}/s`;
  return perSecond < 0.0016 ? `${(3600 * perSecond).toFixed(1)}/h` : `${(60 * perSecond).toFixed(1)}/min`;
}

/** Returns a share of a whole, rounded down so that 100% means all. */
export function percent(part: number, whole: number): string {
  if (whole <= 0) return "0%";
  const share = (part / whole) * 100;
  if (part > 0 && share < 1) return "<1%";
  return `${Math.floor(Math.min(share, 100))}%`;
}

/** Returns `1 item`, `2 items`, `1 mini-batch`, `2 mini-batches`. */
export function counted(number: number, noun: string): string {
  if (number === 1) return `1 ${noun}`;
  const plural = /(s|x|ch|sh)$/.test(noun) ? `${noun}es` : noun.endsWith("y") ? `${noun.slice(0, -1)}ies` : `${noun}s`;
  return `${number} ${plural}`;
}
