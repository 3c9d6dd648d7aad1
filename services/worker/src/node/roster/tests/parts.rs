//! What an owner may have in flight on this node.

use protocol::{OwnerQuota, Quotas};

use super::*;

fn parts(max_in_flight: u32, workers: &[&str]) -> Event {
    let each_owner = OwnerQuota { max_in_flight: Some(max_in_flight), ..OwnerQuota::default() };
    let workers: Vec<String> = workers.iter().map(|name| (*name).to_owned()).collect();
    Event::Parts(Arc::new(Parts::new(Quotas { each_owner, ..Quotas::default() }, &workers, "here")))
}

#[test]
fn owner_has_no_more_than_its_part_of_a_node() {
    let mut played = Played::looking_up();
    played.looked_up(open(None));
    let first = played.visit();
    shares(&mut played, Event::Provisioned { visit: first, result: Ok(()) });
    assert_eq!(shares(&mut played, parts(6, &["here", "there"])), [(0, 3)]);
    assert_eq!(shares(&mut played, parts(3, &["a", "here"])), [(0, 1)]);
    played.after(Event::Arrived("second".into()));
    assert!(played.looked_up(open(None)).starts_with("GiveBack"), "the owner has its part");
    assert_eq!(played.given_back(false), "close");
    played.pass(8);
    played.after(Event::Arrived("second".into()));
    let told = "its owner may have 1 of its 3 mini-batches in flight on this node (quota of the target)";
    assert_eq!(played.looked_up(open(None)), format!("TellWait {{ waited: 8s, detail: {told:?} }}"));
    assert_eq!(played.done(Step::TellWait), "GiveBack { delay: 5s }");
    assert_eq!(played.given_back(false), "close");
    assert_eq!(shares(&mut played, parts(1, &["here"])), []);
    played.pass(59);
    played.after(Event::Arrived("second".into()));
    assert!(played.looked_up(open(None)).starts_with("GiveBack"), "the reducer knows it");
    assert_eq!(played.given_back(false), "close");
    played.pass(1);
    played.after(Event::Arrived("second".into()));
    let told = "its owner has 1 of its 1 mini-batches in flight (quota of the target)";
    assert_eq!(played.looked_up(open(None)), format!("TellWait {{ waited: 68s, detail: {told:?} }}"));
    played.done(Step::TellWait);
    played.given_back(false);
    assert_eq!(shares(&mut played, parts(20, &["here"])), [(0, 4)]);
    played.after(Event::Arrived("second".into()));
    assert_eq!(played.looked_up(open(None)), "provision");
    let second = played.visit();
    assert_eq!(shares(&mut played, Event::Provisioned { visit: second, result: Ok(()) }), [(0, 2), (5, 2)]);
    assert_eq!(played.after(parts(1, &["here"])), "stop agent: Drain", "the last job is left to other nodes");
    assert_eq!(played.after(parts(1, &["a", "here"])), "stop agent: Drain", "nothing is left for the owner");
}

/// As long as runs of another job of the owner go on, a job has no more processes than the part leaves.
#[test]
fn jobs_of_an_owner_begin_no_more_than_its_part_before_runs_have_ended() {
    let mut played = Played::new(config());
    played.after(parts(3, &["here"]));
    let visits = ["first", "second"].map(|job_id| {
        played.after(Event::Arrived(job_id.into()));
        played.looked_up(open(None));
        played.visit()
    });
    let [first, second] = visits;
    let provisioned = |visit| Event::Provisioned { visit, result: Ok(()) };
    assert_eq!(shares(&mut played, provisioned(first)), [(0, 3)]);
    assert_eq!(shares(&mut played, provisioned(second)), [(0, 2)], "three runs of the first job may go on");
    let in_use = |number, processes| InUse { number, processes, is_ready: true, ..InUse::default() };
    assert_eq!(shares(&mut played, Event::InUse { visit: first, in_use: in_use(2, 3) }), []);
    assert_eq!(shares(&mut played, Event::InUse { visit: first, in_use: in_use(2, 2) }), [(1, 1)]);
    played.now += 20 * SECOND;
    let quiet = vec![(first, Some(played.now - 10 * SECOND)), (second, None)];
    assert_eq!(shares(&mut played, Event::Tick(quiet)), [(0, 1)]);
    assert_eq!(shares(&mut played, Event::InUse { visit: first, in_use: in_use(3, 1) }), [(1, 2)]);
}
