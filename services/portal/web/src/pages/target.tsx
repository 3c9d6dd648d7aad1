// The compute target: its queues, dead letters, workers and reducers, and what `doctor` says.
import { useEffect, useState } from "preact/hooks";
import type { Disposed, Doctor, Offer, Target, Targets } from "../api";
import { plain } from "../ansi";
import { post, useData } from "../client";
import { ago, bytes, counted } from "../format";
import { mayAct } from "../info";
import { watch } from "../live";
import type { Refused } from "../refused";
import { address } from "../route";
import { AskingButton, Await, Copyable, Empty, Num, Panel, Problem, Scroll, Size, When } from "../ui/parts";
import { Icon } from "../ui/icons";

export function TargetPage() {
  useEffect(() => watch(null), []);
  const found = useData<Target>("/target", 0, { every: 4000 });
  const others = useData<Targets>("/targets");
  return (
    <Await of={found}>
      {(target) => (
        <>
          <div class="title">
            <div class="what">
              <h1>{target.name}</h1>
              <div class="id"><span class="anywhere">store {target.store}</span>{target.queue && <span class="anywhere">queue {target.queue}</span>}</div>
            </div>
          </div>
          <div class="columns">
            <div class="stack">
              <Queues target={target} />
              <DeadLetters target={target} />
              <Workers target={target} />
            </div>
            <div class="stack">
              <Checks />
              {others.data && others.data.targets.length > 1 && (
                <Panel title="Other targets"><ul class="same">{others.data.targets.filter(({ current }) => !current).map(({ name }) => <li><code class="anywhere">{name === "this machine" ? "gristmill portal" : `gristmill portal --target ${name}`}</code></li>)}</ul></Panel>
              )}
            </div>
          </div>
        </>
      )}
    </Await>
  );
}

function Queues({ target }: { target: Target }) {
  return (
    <Panel title="Queues" flush>
      {target.queues.length === 0 ? <Empty title="Jobs of this machine have queues of their own.">A portal of a compute target shows its queues: <code>gristmill portal --target NAME</code></Empty> : (
        <Scroll label="Table">
          <table class="table">
            <thead><tr><th>Queue</th><th class="right">Visible</th><th class="right">In flight</th><th class="right">Delayed</th></tr></thead>
            <tbody>{target.queues.map((queue) => (
              <tr>
                <td>{queue.name}{queue.problem && <div class="bad anywhere">{queue.problem}</div>}</td>
                <td class="right"><Num value={queue.visible} /></td><td class="right"><Num value={queue.in_flight} /></td><td class="right"><Num value={queue.delayed} /></td>
              </tr>
            ))}</tbody>
          </table>
        </Scroll>
      )}
    </Panel>
  );
}

function DeadLetters({ target }: { target: Target }) {
  if (target.queue === null) return null;
  const { dead_letters: letters } = target;
  return (
    <Panel title="Dead letters" flush end={letters.length > 0 && <><Dispose how="redrive" target={target} /><Dispose how="delete" target={target} /></>} footer={target.dead_letters_partial && "There may be more; `gristmill dead-letters` lists them."}>
      {target.dead_letters_problem && <div class="item bad anywhere">{target.dead_letters_problem}</div>}
      {letters.length === 0 && !target.dead_letters_problem && <Empty title="There are none.">Messages that no worker can read would come here.</Empty>}
      {letters.map((letter) => (
        <details class="item">
          <summary><strong class="anywhere">{letter.reason}</strong> <span class="muted">{letter.moved && `by ${letter.moved.node}, ${letter.moved.at} · `}<Size value={letter.bytes} /></span></summary>
          {letter.job_id && <p><a href={address(["jobs", letter.job_id])}>{letter.job_id}</a></p>}
          <pre class="box" tabIndex={0}>{plain(letter.body)}</pre>
        </details>
      ))}
    </Panel>
  );
}

const DISPOSALS = {
  redrive: { button: "Send again", icon: "retry", title: "Send the dead letters again?", does: "Send them", text: "Each goes to the queue of its job from which it came, such as after an update of all roles to one build. Those of jobs without queues stay." },
  delete: { button: "Delete", icon: "stop", title: "Delete the dead letters?", does: "Delete them", text: "The mini-batches of open jobs that they carry are not lost: `gristmill retry JOB --republish` publishes them again." },
} as const;

/** Sends all dead letters again, or deletes them. */
function Dispose({ how, target }: { how: keyof typeof DISPOSALS; target: Target }) {
  const { text, ...words } = DISPOSALS[how];
  if (!mayAct.value) return null;
  const act = async () => (await post<Disposed>(`/target/dead-letters/${how}`)).message;
  return (
    <AskingButton {...words} small danger={how === "delete"} leave="Leave them" act={act}>
      <p>{text}</p>
      <p class="muted">The command that does the same:</p>
      <Copyable text={`gristmill dead-letters --${how} --target ${target.name}`} label="the command" />
    </AskingButton>
  );
}

function Workers({ target }: { target: Target }) {
  const { workers, reducers, workers_problem: problem } = target;
  return (
    <Panel title="Workers and reducers" flush>
      {problem && <div class="item bad anywhere">{problem}</div>}
      {workers.length + reducers.length === 0 ? !problem && <Empty title="No worker and no reducer has been seen.">Workers appear when they start, reducers with the first job that they serve.</Empty> : (
        <Scroll label="Table">
          <table class="table dense">
            <thead><tr><th>Role</th><th>Job</th><th>Last sign</th></tr></thead>
            <tbody>
              {workers.map((worker) => (
                <tr>
                  <td>worker <span class="mono anywhere">{worker.node}</span><div class="muted anywhere">{offered(worker.offer)}</div></td>
                  <td>{worker.job_id === null ? <span class="muted">–</span> : <a class="anywhere" href={address(["jobs", worker.job_id])}>{worker.job_id}</a>}</td>
                  <td><When at={worker.last_at} relative /></td>
                </tr>
              ))}
              {reducers.map((reducer) => <tr><td>reducer</td><td><a class="anywhere" href={address(["jobs", reducer.job_id])}>{reducer.job_id}</a></td><td>{reducer.silent ? <span class="bad">silent since {ago(reducer.last_at, target.now)}</span> : <When at={reducer.last_at} relative />}</td></tr>)}
            </tbody>
          </table>
        </Scroll>
      )}
    </Panel>
  );
}

function offered({ gpus, memory, processors, labels }: Offer): string {
  const parts = [gpus > 0 && counted(gpus, "GPU"), processors > 0 && counted(processors, "processor"), memory > 0 && `${bytes(memory)} of memory`];
  return [...parts.filter(Boolean), ...Object.entries(labels).map(([name, value]) => `${name}=${value}`)].join(", ");
}

const CHECKED = { ok: ["good", "good"], warning: ["warn", "warn"], failed: ["bad", "bad"], not_checked: ["idle", "idle"] } as const;

function Checks() {
  const [state, setState] = useState<{ busy: boolean; answer: Doctor | null; error: Refused | null }>({ busy: false, answer: null, error: null });
  const check = async () => {
    setState({ ...state, busy: true });
    try {
      setState({ busy: false, answer: await post<Doctor>("/doctor"), error: null });
    } catch (error) {
      setState({ busy: false, answer: null, error: error as Refused });
    }
  };
  const { busy, answer, error } = state;
  return (
    <Panel title="Doctor" flush end={mayAct.value && <button type="button" class="button small" disabled={busy} onClick={() => void check()}>{busy ? "Checking …" : answer ? "Check again" : "Check"}</button>}>
      {error && <Problem error={error} />}
      {!answer && !error && <Empty title={busy ? "This takes up to a minute." : "Checks whether jobs can run here."}>{!mayAct.value && <code>gristmill doctor</code>}</Empty>}
      {answer?.checks.map(({ check, state, message }) => {
        const [tone, icon] = CHECKED[state] ?? CHECKED.not_checked;
        return <div class="item check"><span class={`badge small ${tone}`}><Icon name={icon} />{check}</span><p class="muted anywhere">{message}</p></div>;
      })}
    </Panel>
  );
}
