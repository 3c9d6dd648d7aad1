//! Protects a task of ECS: while this node has work, scale-in and deployments stop other tasks.
//!
//! The agent of ECS grants protection at `$ECS_AGENT_URI/task-protection/v1/state`, for some
//! minutes at a time. Each visit with work owns a [`Hold`]. A background task asks for protection
//! while a hold exists, renews it in time, and ends it after the last hold. Nothing depends on it:
//! a task that ECS stops anyway drains, and costs no try.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

/// Below the address of the agent.
const PATH: &str = "/task-protection/v1/state";
/// How long work waits for an answer before it begins without one.
const REQUEST_TIME: Duration = Duration::from_secs(5);

/// Where a task asks for protection, and for how long.
#[derive(Clone, Debug)]
pub struct TaskProtection {
    client: reqwest::Client,
    url: String,
    /// Protection that is not renewed ends after this time.
    expires_minutes: u32,
    renew_period: Duration,
    retry_period: Duration,
}

impl TaskProtection {
    /// Asks the agent of ECS at `address` (`ECS_AGENT_URI`).
    pub fn new(address: &str) -> Result<Self> {
        // The agent is in the network of the task, where no proxy leads.
        let client = reqwest::Client::builder().no_proxy().timeout(REQUEST_TIME).build();
        let url = format!("{}{PATH}", address.trim_end_matches('/'));
        Ok(Self {
            client: client.context("create a client for the agent of ECS")?,
            url,
            expires_minutes: 30,
            renew_period: Duration::from_secs(600),
            retry_period: Duration::from_secs(60),
        })
    }

    async fn put(&self, is_wanted: bool) -> Result<()> {
        let body = match is_wanted {
            true => {
                serde_json::json!({ "ProtectionEnabled": true, "ExpiresInMinutes": self.expires_minutes })
            }
            false => serde_json::json!({ "ProtectionEnabled": false }),
        };
        let request = self
            .client
            .put(&self.url)
            .header("content-type", "application/json")
            .body(body.to_string());
        let answer = request.send().await.context("the agent of ECS does not answer")?;
        let (status, text) = (answer.status(), answer.text().await.unwrap_or_default());
        let answer: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        // A refusal by ECS itself is a successful answer that contains a failure.
        for (key, reason) in [("failure", "Reason"), ("error", "Code")] {
            if let Some(failure) = answer.get(key).filter(|failure| !failure.is_null()) {
                let text = |name: &str| {
                    failure.get(name).and_then(serde_json::Value::as_str).unwrap_or_default()
                };
                bail!("{} {} {}", text(reason), text("Detail"), text("Message"));
            }
        }
        ensure!(status.is_success(), "the agent of ECS answered {status}");
        let is_protected =
            answer.pointer("/protection/ProtectionEnabled").and_then(serde_json::Value::as_bool);
        ensure!(
            is_protected == Some(is_wanted),
            "the agent of ECS gave no protection, and no reason"
        );
        Ok(())
    }
}

/// The last known protection of this task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ProtectionState {
    /// ECS may stop the task.
    Unprotected,
    Protected,
    /// ECS grants no protection.
    Refused,
}

#[derive(Clone, Copy, Debug)]
struct State {
    holds: usize,
    known: ProtectionState,
}

/// Keeps the task of a node protected while a hold exists.
pub(super) struct Protection {
    state: Arc<watch::Sender<State>>,
    /// `None`: this node is not a task of ECS.
    _keeping: Option<AbortOnDropHandle<()>>,
}

/// A guard for work: the task stays protected until it is dropped.
pub(super) struct Hold(Arc<watch::Sender<State>>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.send_modify(|state| state.holds -= 1);
    }
}

impl Hold {
    /// Waits until ECS has granted or refused protection.
    pub(super) async fn settled(&self) {
        let _ =
            self.0.subscribe().wait_for(|state| state.known != ProtectionState::Unprotected).await;
    }
}

impl Protection {
    pub(super) fn start(protection: Option<TaskProtection>) -> Self {
        let known = if protection.is_some() {
            ProtectionState::Unprotected
        } else {
            ProtectionState::Refused
        };
        let state = Arc::new(watch::Sender::new(State { holds: 0, known }));
        let keeping = protection.map(|protection| {
            AbortOnDropHandle::new(tokio::spawn(keep(protection, state.clone())))
        });
        Self { state, _keeping: keeping }
    }

    /// Announces work.
    pub(super) fn hold(&self) -> Hold {
        self.state.send_modify(|state| state.holds += 1);
        Hold(self.state.clone())
    }
}

async fn keep(protection: TaskProtection, state: Arc<watch::Sender<State>>) {
    let mut changes = state.subscribe();
    let mut has_complained = false;
    loop {
        let _ = changes.wait_for(|state| state.holds > 0).await;
        loop {
            let period = match protection.put(true).await {
                Ok(()) => {
                    has_complained = false;
                    state.send_modify(|state| state.known = ProtectionState::Protected);
                    protection.renew_period
                }
                Err(error) => {
                    complain(&mut has_complained, &error);
                    state.send_modify(|state| state.known = ProtectionState::Refused);
                    protection.retry_period
                }
            };
            tokio::select! {
                () = sleep(period) => {}
                _ = changes.wait_for(|state| state.holds == 0) => {}
            }
            // In one step: a later hold waits for a new answer.
            let is_over = state.send_if_modified(|state| {
                let is_over = state.holds == 0;
                if is_over {
                    state.known = ProtectionState::Unprotected;
                }
                is_over
            });
            if is_over {
                break;
            }
        }
        if let Err(error) = protection.put(false).await {
            // It expires by itself.
            complain(&mut has_complained, &error);
        }
    }
}

fn complain(has_complained: &mut bool, error: &anyhow::Error) {
    if !std::mem::replace(has_complained, true) {
        tracing::warn!(
            "this task of ECS cannot be protected from being stopped while it has work: {error:#}"
        );
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tokio::sync::mpsc;

    use super::*;
    use crate::node::tests::{serve, unused_address};

    const PROTECTED: &str =
        r#"{"protection": {"ProtectionEnabled": true, "TaskArn": "arn:aws:ecs:::task/t"}}"#;
    const UNPROTECTED: &str =
        r#"{"protection": {"ProtectionEnabled": false, "TaskArn": "arn:aws:ecs:::task/t"}}"#;

    /// Stands in for the agent of ECS: reports each request, and returns this answer, or that of ECS.
    pub(crate) async fn agent(
        answer: Option<&'static str>,
    ) -> (TaskProtection, mpsc::UnboundedReceiver<String>) {
        let (sender, asked) = mpsc::unbounded_channel();
        let address = serve(move |request| {
            // The body is the last line, and may come later than the head.
            let body = request.rsplit("\r\n").next().filter(|body| body.ends_with('}'))?;
            assert!(request.starts_with("PUT /api/t/task-protection/v1/state "), "{request}");
            let known = if body.contains("true") { PROTECTED } else { UNPROTECTED };
            let _ = sender.send(body.to_owned());
            Some(("200 OK", answer.unwrap_or(known)))
        })
        .await;
        let address = format!("{address}/api/t");
        (TaskProtection::new(&address).expect("a client"), asked)
    }

    const ON: &str = r#"{"ExpiresInMinutes":30,"ProtectionEnabled":true}"#;
    const OFF: &str = r#"{"ProtectionEnabled":false}"#;

    #[tokio::test]
    async fn protection_is_requested_before_work_renewed_and_ended_after_the_last_hold() {
        let (agent, mut asked) = agent(None).await;
        let protection = Protection::start(Some(TaskProtection {
            renew_period: Duration::from_millis(20),
            ..agent
        }));
        let (one, other) = (protection.hold(), protection.hold());
        one.settled().await;
        assert_eq!(asked.try_recv().expect("asked before it is settled"), ON);
        other.settled().await;
        drop(one);
        for _ in 0..3 {
            assert_eq!(asked.recv().await.expect("renewed"), ON);
        }
        drop(other);
        while asked.recv().await.expect("ended") == ON {}
        let again = protection.hold();
        again.settled().await;
        assert_eq!(asked.recv().await.expect("asked again"), ON);
    }

    #[tokio::test]
    async fn refused_protection_delays_no_work_and_is_requested_again() {
        let refusal = r#"{"requestID": "1", "failure": {"Arn": "arn", "Reason": "TASK_NOT_VALID", "Detail": null}}"#;
        let (agent, mut asked) = agent(Some(refusal)).await;
        let error = agent.put(true).await.expect_err("refused").to_string();
        assert!(error.contains("TASK_NOT_VALID"), "{error}");
        let protection = Protection::start(Some(TaskProtection {
            retry_period: Duration::from_millis(20),
            ..agent
        }));
        let hold = protection.hold();
        hold.settled().await;
        for _ in 0..3 {
            assert_eq!(asked.recv().await.expect("asked"), ON);
        }
        drop(hold);
        while asked.recv().await.expect("ended, in case it was granted after all") != OFF {}
    }

    #[tokio::test]
    async fn without_an_ecs_agent_work_begins_at_once() {
        Protection::start(None).hold().settled().await;
        let protection = Protection::start(Some(
            TaskProtection::new(&unused_address().await).expect("a client"),
        ));
        protection.hold().settled().await;
    }
}
