// What a person can do with a job from its page; each action shows the command that does the same.
import { useState } from "preact/hooks";
import type { Job } from "../api";
import { post } from "../client";
import { info, mayAct } from "../info";
import { report } from "../report";
import { Icon, type IconName } from "../ui/icons";
import { AskingButton, Copyable, Dialog } from "../ui/parts";

type Name = "cancel" | "retry";
const ACTIONS: Record<Name, { button: string; icon: IconName; may: (job: Job) => boolean; title: string; does: string; text: string }> = {
  cancel: {
    button: "Cancel", icon: "stop", may: (job) => job.can_cancel, title: "Cancel this job?", does: "Cancel the job",
    text: "Mini-batches that run now are stopped. What has succeeded is kept, and a retry continues from there.",
  },
  retry: {
    button: "Retry", icon: "retry", may: (job) => job.can_retry, title: "Retry this job?", does: "Retry the job",
    text: "Mini-batches that have not succeeded and rejected items run again, with the script as it is now. All other rows stay.",
  },
};

/** Cancels or retries a job. Renders nothing if that is impossible now. */
export function Action({ job, name, label, small = false }: { job: Job; name: Name; label?: string; small?: boolean }) {
  const { button, icon, may, title, does, text } = ACTIONS[name];
  if (report || !mayAct.value || !may(job)) return null;
  const act = async () => (await post<{ message: string }>(`/jobs/${encodeURIComponent(job.job_id)}/${name}`)).message;
  const command = job.commands.find(({ what }) => what === name)?.command;
  return (
    <AskingButton button={label ?? button} icon={icon} small={small} danger={name === "cancel"} title={title} does={does} act={act}>
      <p>{text}</p>
      {command && <><p class="muted">The command that does the same:</p><Copyable text={command} label="the command" /></>}
    </AskingButton>
  );
}

/** The commands for this job. */
export function Commands({ job }: { job: Job }) {
  const [shown, show] = useState(false);
  if (report || job.commands.length === 0) return null;
  return (
    <>
      <button type="button" class="button" onClick={() => show(true)}><Icon name="copy" />Commands</button>
      <Dialog title="Commands" open={shown} close={() => show(false)}>
        <p class="muted">What this page shows and does, on the command line{info.value?.target ? ` of the target ${info.value.target}` : ""}.</p>
        {job.commands.map(({ what, command }) => <div key={what}><h3>{what}</h3><Copyable text={command} label={`the command for ${what}`} /></div>)}
        <div class="actions"><button type="button" class="button" onClick={() => show(false)}>Close</button></div>
      </Dialog>
    </>
  );
}

/** Settings that `--set` does not accept under these names; some are options in `arguments`. */
const NOT_SET = [
  "input", "side_input", "environment_variables", "arguments", "output", "output_format", "task_overhead_timeout", "progress_update_timeout",
  "first_task_creation_timeout",
];

/** The command that runs the same job with other settings. */
export function Clone({ job }: { job: Job }) {
  const [shown, show] = useState(false);
  const [changes, change] = useState<Record<string, string>>({});
  const run = job.commands.find(({ what }) => what === "run")?.command;
  if (report || !run) return null;
  const settings = job.settings.filter(({ key }) => !NOT_SET.includes(key));
  const words = Object.entries(changes).filter(([, value]) => value !== "").map(([key, value]) => ` --set ${quoted(`${key}=${value}`)}`);
  return (
    <>
      <button type="button" class="button small" onClick={() => show(true)}><Icon name="copy" />Run with other settings</button>
      <Dialog title="Run with other settings" open={shown} close={() => show(false)}>
        <p class="muted">Enter new values. The command starts a new job; all other settings come from the current job file.</p>
        <Copyable text={`${run}${words.join("")} --fresh`} label="the command" />
        <div class="clone">
          {settings.map(({ key, value }) => (
            <label key={key}><span class="mono">{key}</span><input type="text" placeholder={`now ${value}`} value={changes[key] ?? ""} onInput={(event) => change({ ...changes, [key]: event.currentTarget.value })} /></label>
          ))}
        </div>
        <div class="actions"><button type="button" class="button" onClick={() => show(false)}>Close</button></div>
      </Dialog>
    </>
  );
}

/** Returns a text as one word of a shell. */
function quoted(text: string): string {
  return /^[\w./+=:@%-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`;
}
