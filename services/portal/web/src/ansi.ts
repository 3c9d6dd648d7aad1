// Text of a terminal, as runs of text with styles. Every other control sequence is dropped, and nothing is ever markup.

export interface Run {
  text: string;
  /** Classes of `ansi.css`. */
  style: string;
}

interface Style {
  colour: string;
  background: string;
  bold: boolean;
  dim: boolean;
  italic: boolean;
  underline: boolean;
  inverse: boolean;
}

const PLAIN: Style = {
  colour: "", background: "", bold: false, dim: false, italic: false, underline: false, inverse: false,
};
// Colours and cursor movements (CSI), titles and links (OSC and its relatives, up to their end), other escapes.
const SEQUENCE =
  /\x1b\[([0-9;:?<=>]*)[ -/]*([@-~])|\x1b[\]PX^_][^\x07\x1b\x9c]*(?:\x07|\x1b\\|\x9c|$)|\x1b[ -/]*[0-~]|\x9b[0-9;:?]*[@-~]/g;
// Control characters, and those that change the direction of the text around them.
const UNPRINTABLE = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]/g;

/** Splits one line into runs. A carriage return shows what was written last, as a progress bar does. */
export function runs(line: string): Run[] {
  const returned = line.replace(/\r+$/, "").lastIndexOf("\r");
  const shown = returned < 0 ? line : line.slice(returned + 1);
  const found: Run[] = [];
  let style = PLAIN;
  let at = 0;
  const add = (text: string) => {
    const printable = text.replace(UNPRINTABLE, (character) => (character === "\r" ? "" : "\ufffd"));
    if (printable) found.push({ text: printable, style: classes(style) });
  };
  for (const match of shown.matchAll(SEQUENCE)) {
    add(shown.slice(at, match.index));
    at = match.index + match[0].length;
    if (match[2] === "m") style = styled(style, match[1] ?? "");
  }
  add(shown.slice(at));
  return found;
}

/** Returns a text without control sequences. */
export function plain(text: string): string {
  return text.split("\n").map((line) => runs(line).map((run) => run.text).join("")).join("\n");
}

function styled(before: Style, parameters: string): Style {
  const style = { ...before };
  const codes = parameters.split(/[;:]/).slice(0, 32).map((code) => Number(code || "0"));
  for (let at = 0; at < codes.length; at += 1) {
    const code = codes[at] ?? 0;
    if (code === 0) Object.assign(style, PLAIN);
    else if (code === 1) style.bold = true;
    else if (code === 2) style.dim = true;
    else if (code === 3) style.italic = true;
    else if (code === 4) style.underline = true;
    else if (code === 7) style.inverse = true;
    else if (code === 22) style.bold = style.dim = false;
    else if (code === 23) style.italic = false;
    else if (code === 24) style.underline = false;
    else if (code === 27) style.inverse = false;
    else if (code >= 30 && code <= 37) style.colour = String(code - 30);
    else if (code >= 90 && code <= 97) style.colour = String(code - 90 + 8);
    else if (code === 39) style.colour = "";
    else if (code >= 40 && code <= 47) style.background = String(code - 40);
    else if (code >= 100 && code <= 107) style.background = String(code - 100 + 8);
    else if (code === 49) style.background = "";
    else if (code === 38 || code === 48) {
      const [nearest, taken] = extended(codes.slice(at + 1));
      if (code === 38) style.colour = nearest;
      else style.background = nearest;
      at += taken;
    }
  }
  return style;
}

/** Returns the nearest of the 16 colours, which alone are legible in both themes, and the number of codes it took. */
function extended(codes: number[]): [string, number] {
  if (codes[0] === 2) return [nearest(codes[1] ?? 0, codes[2] ?? 0, codes[3] ?? 0), 4];
  const index = codes[1] ?? 0;
  if (index < 16) return [String(index), 2];
  if (index >= 232) return [index < 244 ? "8" : "7", 2];
  const level = (value: number) => (value === 0 ? 0 : 55 + value * 40);
  const cube = index - 16;
  return [nearest(level(Math.floor(cube / 36)), level(Math.floor(cube / 6) % 6), level(cube % 6)), 2];
}

function nearest(red: number, green: number, blue: number): string {
  const bright = Math.max(red, green, blue);
  if (bright < 40) return "0";
  const on = (value: number) => (value > bright * 0.6 ? 1 : 0);
  return String(on(red) + 2 * on(green) + 4 * on(blue) + (bright > 200 ? 8 : 0));
}

function classes(style: Style): string {
  const names: string[] = [];
  if (style.colour) names.push(`a-f${style.colour}`);
  if (style.background) names.push(`a-g${style.background}`);
  if (style.bold) names.push("a-bold");
  if (style.dim) names.push("a-dim");
  if (style.italic) names.push("a-italic");
  if (style.underline) names.push("a-underline");
  if (style.inverse) names.push("a-inverse");
  return names.join(" ");
}
