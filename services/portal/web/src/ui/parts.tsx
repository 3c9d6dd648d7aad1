// The pieces that every page is made of.
import type { ComponentChildren } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { signal } from "@preact/signals";
import type { Counts, MiniBatchState, State } from "../api";
import { Refused } from "../refused";
import { runs } from "../ansi";
import { ago, bytes, moment, percent } from "../format";
import { clockOffset, now } from "../live";
import { Icon, type IconName } from "./icons";

export type Tone = "good" | "bad" | "warn" | "busy" | "odd" | "idle";

const STATES: Record<State, [Tone, IconName]> = {
  Completed: ["good", "good"], Failed: ["bad", "bad"], Canceled: ["idle", "stop"], Interrupted: ["odd", "pause"],
  Running: ["busy", "busy"], Queued: ["idle", "pause"], Waiting: ["warn", "warn"], Canceling: ["warn", "stop"],
  Damaged: ["bad", "warn"],
};
const MINI_BATCH_STATES: Record<MiniBatchState, [Tone, IconName]> = {
  succeeded: ["good", "good"], failed: ["bad", "bad"], retrying: ["warn", "retry"], running: ["busy", "busy"], pending: ["idle", "idle"],
};

export function toneOf(state: State): Tone {
  return STATES[state]?.[0] ?? "idle";
}

export function StateBadge({ state }: { state: State }) {
  const [tone, icon] = STATES[state] ?? ["idle", "idle"];
  return <span class={`badge ${tone}`}><Icon name={icon} />{state}</span>;
}

export function MiniBatchBadge({ state, partial = false, small = false }: { state: MiniBatchState; partial?: boolean; small?: boolean }) {
  const [tone, icon] = partial ? (["odd", "good"] as const) : (MINI_BATCH_STATES[state] ?? ["idle", "idle"]);
  const words = { succeeded: partial ? "partly succeeded" : "succeeded", failed: "failed", retrying: "to be tried again", running: "running", pending: "pending" };
  return <span class={`badge ${tone} ${small ? "small" : ""}`}><Icon name={icon} />{words[state] ?? state}</span>;
}

/** A whole number, with its digits in groups. Its text is the plain number, as the command line prints it. */
export function Num({ value }: { value: number | null | undefined }) {
  if (value === null || value === undefined) return <span class="muted">–</span>;
  const digits = String(value);
  if (digits.length < 5 || !/^\d+$/.test(digits)) return <span class="num">{digits}</span>;
  const head = digits.length % 3 || 3;
  const groups = digits.slice(head).match(/\d{3}/g) ?? [];
  return <span class="num">{digits.slice(0, head)}{groups.map((group) => <i>{group}</i>)}</span>;
}

/** A moment: the local time, and on hover the same in ISO 8601. */
export function When({ at, relative = false }: { at: number | null | undefined; relative?: boolean }) {
  if (at === null || at === undefined) return <span class="muted">–</span>;
  const title = new Date(at).toISOString();
  // Ages follow the clock of the server.
  return <time dateTime={title} title={title} class="num">{relative ? ago(at, now.value) : moment(at, now.peek())}</time>;
}

/** The share of mini-batches that ended, failed ones apart. */
export function Progress({ counts, retrying = 0, thin = false }: { counts: Counts; retrying?: number; thin?: boolean }) {
  const { total, succeeded, failed } = counts;
  const width = (part: number) => ({ width: `${total > 0 ? Math.max((part / total) * 100, part > 0 ? 0.6 : 0) : 0}%` });
  const label = total > 0 ? `${percent(succeeded + failed, total)} ended` : "the number of mini-batches is not known yet";
  return (
    <div class={`bar ${thin ? "thin" : ""}`} role="img" aria-label={label} title={label}>
      <span class="bad" style={width(failed)} />
      <span class="warn" style={width(retrying)} />
      <span class="good" style={width(succeeded)} />
    </div>
  );
}

export function Panel(props: { title?: ComponentChildren; end?: ComponentChildren; footer?: ComponentChildren; flush?: boolean; children: ComponentChildren }) {
  const { title, end, footer, flush = false, children } = props;
  return (
    <section class="panel">
      {title !== undefined && <header><h2>{title}</h2>{end && <div class="end">{end}</div>}</header>}
      {flush ? children : <div class="body">{children}</div>}
      {footer && <footer>{footer}</footer>}
    </section>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return <div class="empty"><strong>{title}</strong>{children}</div>;
}

export function Problem({ error, again }: { error: Refused | Error; again?: () => void }) {
  return (
    <div class="problem" role="alert">
      <span class="anywhere">{error.message}</span>
      {again && <button type="button" class="button small" onClick={again}>Try again</button>}
    </div>
  );
}

/** The state of data that is being fetched: nothing, an error, or the content. */
export function Await<T>(props: { of: { data: T | null; error: Refused | null; loading: boolean; refresh: () => void }; children: (data: T) => ComponentChildren }) {
  const { data, error, refresh } = props.of;
  if (data === null) return error ? <Problem error={error} again={refresh} /> : <Waiting />;
  return <>{error && <Problem error={error} again={refresh} />}{props.children(data)}</>;
}

/** Says that something is being fetched, unless it comes at once. */
export function Waiting() {
  const [late, setLate] = useState(false);
  useEffect(() => {
    const timer = setTimeout(() => setLate(true), 400);
    return () => clearTimeout(timer);
  }, []);
  return <div class="empty" role="status">{late ? "Loading …" : ""}</div>;
}

/** Text of a terminal, with its colours. */
export function Terminal({ text, label }: { text: string; label: string }) {
  const lines = text.replace(/\n$/, "").split("\n");
  return (
    <pre class="box" tabIndex={0} role="group" aria-label={label}>
      {lines.map((line) => <>{runs(line).map((run) => (run.style ? <span class={run.style}>{run.text}</span> : run.text))}{"\n"}</>)}
    </pre>
  );
}

/** Content that may be wider than its place. The keyboard reaches it if it is. */
export function Scroll({ label, limited = false, children }: { label: string; limited?: boolean; children: ComponentChildren }) {
  const ref = useRef<HTMLDivElement>(null);
  const [overflows, setOverflows] = useState(false);
  // After each render, because the content may have been replaced, and before the browser paints it.
  useLayoutEffect(() => {
    const element = ref.current;
    if (!element) return;
    const look = () => setOverflows(element.scrollWidth > element.clientWidth || element.scrollHeight > element.clientHeight);
    look();
    const resized = new ResizeObserver(look);
    resized.observe(element);
    if (element.firstElementChild) resized.observe(element.firstElementChild);
    return () => resized.disconnect();
  });
  return <div class={`scroll ${limited ? "limited" : ""}`} ref={ref} tabIndex={overflows ? 0 : undefined} role={overflows ? "group" : undefined} aria-label={overflows ? label : undefined}>{children}</div>;
}

export const toasts = signal<{ id: number; text: string; bad: boolean }[]>([]);
let toastId = 0;

export function toast(text: string, bad = false): void {
  const id = ++toastId;
  toasts.value = [...toasts.value.slice(-3), { id, text, bad }];
  setTimeout(() => (toasts.value = toasts.value.filter((other) => other.id !== id)), bad ? 12_000 : 4000);
}

export function Toasts() {
  return <div class="toasts" role="status" aria-live="polite">{toasts.value.map((one) => <div key={one.id} class={`toast ${one.bad ? "bad" : ""}`}>{one.text}</div>)}</div>;
}

export async function copy(text: string): Promise<void> {
  try {
    await navigator.clipboard.writeText(text);
    toast("Copied.");
  } catch {
    toast("The browser does not allow pages to copy. Select the text and copy it.", true);
  }
}

/** A command or a path with a button that copies it. */
export function Copyable({ text, label }: { text: string; label: string }) {
  return (
    <div class="copied">
      <code tabIndex={0}>{text}</code>
      <button type="button" class="button small plain" aria-label={`Copy ${label}`} title={`Copy ${label}`} onClick={() => void copy(text)}><Icon name="copy" /></button>
    </div>
  );
}

export function Choices<T extends string>(props: { label: string; value: T; of: readonly (readonly [T, string])[]; choose: (value: T) => void }) {
  return (
    <div class="choices" role="group" aria-label={props.label}>
      {props.of.map(([value, text]) => (
        <button type="button" key={value} aria-pressed={value === props.value} onClick={() => props.choose(value)}>{text}</button>
      ))}
    </div>
  );
}

/** Asks before something is done. It opens and closes together with what else is shown: while it is open, nothing else takes the focus. */
export function Dialog(props: { title: string; open: boolean; close: () => void; children: ComponentChildren }) {
  const ref = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    if (props.open) ref.current?.showModal();
    else ref.current?.close();
  }, [props.open]);
  // Escape: the state decides, so that the dialog is never closed while its state is still open.
  const onCancel = (event: Event) => {
    event.preventDefault();
    props.close();
  };
  return (
    <dialog ref={ref} onCancel={onCancel} onClose={() => !ref.current?.open && props.close()} aria-label={props.title}>
      {props.open && <div class="inside"><h2>{props.title}</h2>{props.children}</div>}
    </dialog>
  );
}

/** A button that asks before it acts, and tells what came of it. `act` returns what to tell. */
export function AskingButton(props: {
  button: string; icon: IconName; small?: boolean; danger?: boolean; title: string; does: string; leave?: string; act: () => Promise<string>; children: ComponentChildren;
}) {
  const [asked, ask] = useState(false);
  const [busy, setBusy] = useState(false);
  const act = async () => {
    setBusy(true);
    try {
      toast(await props.act());
    } catch (error) {
      toast((error as Error).message, true);
    }
    setBusy(false);
    ask(false);
  };
  return (
    <>
      <button type="button" class={`button ${props.small ? "small" : ""} ${props.danger ? "danger" : ""}`} onClick={() => ask(true)}><Icon name={props.icon} />{props.button}</button>
      <Dialog title={props.title} open={asked} close={() => ask(false)}>
        {props.children}
        <div class="actions">
          <button type="button" class="button" onClick={() => ask(false)}>{props.leave ?? "Leave it"}</button>
          <button type="button" class="button main" disabled={busy} onClick={() => void act()}>{props.does}</button>
        </div>
      </Dialog>
    </>
  );
}

/** An input that tells its value after a pause in typing. */
export function Search(props: { label: string; value: string; change: (value: string) => void; placeholder?: string }) {
  const [text, setText] = useState(props.value);
  const timer = useRef(0);
  useEffect(() => setText(props.value), [props.value]);
  // What was typed on one page must not change the address of the next.
  useEffect(() => () => clearTimeout(timer.current), []);
  return (
    <input
      class="field" type="search" value={text} aria-label={props.label} placeholder={props.placeholder ?? props.label} spellcheck={false} autocomplete="off"
      onInput={(event) => {
        const value = event.currentTarget.value;
        setText(value);
        clearTimeout(timer.current);
        timer.current = window.setTimeout(() => props.change(value), 250);
      }}
    />
  );
}

export function Size({ value }: { value: number }) {
  return <span class="num" title={`${value} bytes`}>{bytes(value)}</span>;
}

/** The clock of the browser when it differs from the server's by more than a minute. */
export function ClockNote() {
  const minutes = Math.round(Math.abs(clockOffset.value) / 60_000);
  if (minutes < 2) return null;
  return <div class="notice">The clock of this computer differs from the portal's by {minutes} min. Ages follow the portal's clock.</div>;
}

/** Whether a click is meant for something inside a row, such as a link, or selects text. */
export function isForRow(event: MouseEvent): boolean {
  const inside = (event.target as Element).closest("a, button, input, summary");
  return !inside && String(getSelection() ?? "") === "";
}
