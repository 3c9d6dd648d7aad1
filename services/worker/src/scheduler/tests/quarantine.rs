//! Mini-batches that may kill their node.

use super::*;
use crate::node_lock::Access;

/// Returns a delivery of a mini-batch of which this many were lost, and with which alone the node has died so often.
fn lost(mini_batch: u64, lost: u32, deaths: u32) -> LeasedDelivery {
    LeasedDelivery { receive_count: lost + 1, deaths, ..delivered(mini_batch) }
}

fn receive(node: &mut Node, delivered: &[LeasedDelivery]) -> String {
    node.after(Event::Received(delivered.to_vec()))
}

/// Lets the job do this on the node from now on, and returns what it does.
fn access(node: &mut Node, access: Access) -> String {
    node.scheduler.access(access);
    node.after(Event::Tick(vec![]))
}

/// Returns a node with two ready processes.
fn idle() -> Node {
    let mut node = starting(2);
    (0..2).for_each(|process| node.ready(process));
    node
}

#[test]
fn quarantined_mini_batch_runs_once_nothing_else_is_held() {
    let mut node = idle();
    receive(&mut node, &[delivered(0)]);
    assert_eq!(
        receive(&mut node, &[delivered(1), lost(2, 3, 0), delivered(3), lost(4, 4, 0)]),
        "return 4, return 1, return 3"
    );
    assert!(node.scheduler.wants_to_be_alone() && node.scheduler.holds_any());
    let requested = node.requested.len();
    assert_eq!(access(&mut node, Access::Exclusive), "", "mini-batch 0 still runs");
    assert_eq!(node.tick(Duration::from_secs(5)), "", "it waits for as long as that takes");
    assert_eq!(access(&mut node, Access::Shared), "", "another job holds mini-batches");
    assert_eq!(node.after(done(0, 1)), "0 Succeeded");
    assert_eq!(access(&mut node, Access::Exclusive), "2 begins alone, 0 gets 2");
    assert_eq!(node.requested.len(), requested, "it asks for nothing meanwhile");
    assert_eq!(node.after(done(0, 2)), "2 Succeeded, 2 ends alone");
    assert!(!node.scheduler.wants_to_be_alone());
    assert_eq!(receive(&mut node, &[delivered(5)]), "0 gets 5");
}

#[test]
fn job_makes_room_for_the_quarantined_mini_batch_of_another() {
    let mut node = idle();
    receive(&mut node, &(0..6).map(delivered).collect::<Vec<_>>());
    assert_eq!(access(&mut node, Access::Denied), "return 2, return 3, return 4, return 5");
    assert_eq!(node.after(done(0, 1)), "0 Succeeded");
    assert_eq!(
        receive(&mut node, &[delivered(6), lost(7, 3, 0)]),
        "return 6, return 7",
        "it came too late"
    );
    assert!(!node.scheduler.wants_to_be_alone());
    access(&mut node, Access::Shared);
    assert_eq!(receive(&mut node, &[delivered(8)]), "0 gets 8");
}

#[test]
fn quarantined_mini_batch_waits_for_other_jobs_after_each_death_of_the_node() {
    let mut node = idle();
    assert_eq!(receive(&mut node, &[lost(2, 4, 1)]), "");
    assert!(!node.scheduler.wants_to_be_alone());
    assert_eq!(node.tick(Duration::from_millis(1100)), "return 2");
    node.tick(Duration::from_secs(9));
    receive(&mut node, &[lost(2, 4, 1)]);
    assert_eq!(access(&mut node, Access::Exclusive), "2 begins alone, 0 gets 2");
}

#[test]
fn mini_batch_that_has_killed_the_node_alone_twice_fails() {
    let mut node = idle();
    let attempt = node.attempt(Event::Received(vec![lost(2, 5, 2)]));
    assert_eq!(
        (attempt.status, attempt.is_final, attempt.deliveries_lost),
        (AttemptStatus::LostTooOften, true, 5)
    );
    let message = "mini-batch 2 was lost with its node 5 times, and the last 2 times nothing else ran there: does it crash \
                   the machine, for lack of memory?";
    assert_eq!(attempt.error.expect("it failed").message, message);
    assert_eq!(receive(&mut node, &[lost(3, 11, 0)]), "3 LostTooOften", "no disk remembers");
    assert_eq!(
        receive(&mut node, &[lost(4, 2, 2)]),
        "0 gets 4",
        "that was in an earlier run of the job"
    );
}

#[test]
fn node_that_ends_forgets_what_ran_alone() {
    let mut node = idle();
    receive(&mut node, &[lost(2, 3, 0)]);
    access(&mut node, Access::Exclusive);
    node.scheduler.close();
    assert!(node.actions().contains("2 ends alone"));
}
