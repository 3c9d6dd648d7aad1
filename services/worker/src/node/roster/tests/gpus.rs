//! Jobs that find no GPU on the node.

use super::*;

/// A node with this many GPUs.
fn node(gpus: u32) -> Played {
    let capacity = Capacity { process_count: None, process_count_default: 1, gpus };
    Played::new(Config { capacity, ..config() })
}

/// Lets a job arrive and be provisioned. Returns its visit, and what follows.
fn arrive(played: &mut Played, job_id: &str, priority: Priority) -> (VisitId, String) {
    played.after(Event::Arrived(job_id.to_owned()));
    let process_count_per_node = Some(2);
    let spec = JobSpec { priority, process_count_per_node, ..JobSpec::example() };
    assert_eq!(played.looked_up(Ok(Found::Open(Box::new(spec)))), "provision");
    let visit = played.visit();
    (visit, told(played, Event::Provisioned { visit, result: Ok(()) }))
}

/// Returns what agents are told, and whether they begin or end.
fn told(played: &mut Played, event: Event) -> String {
    played.roster.handle(event, played.now);
    let actions = std::iter::from_fn(|| played.roster.next_action());
    let told = actions.filter_map(|action| match action {
        Action::Share { visit: VisitId(visit), share } => {
            Some(format!("{visit} has {} with {:?}", share.processes, share.gpus))
        }
        Action::Work(VisitId(visit)) => Some(format!("{visit} begins")),
        Action::StopAgent { visit: VisitId(visit), stop } => Some(format!("{visit} stops: {stop:?}")),
        Action::Log { message, .. } if message.starts_with("the job waits") => Some(message),
        Action::Run { errand: errand @ (Errand::TellWait { .. } | Errand::TellEnd), .. } => Some(format!("{errand:?}")),
        Action::Close(VisitId(visit)) => Some(format!("{visit} closes")),
        _ => None,
    });
    told.collect::<Vec<_>>().join(", ")
}

/// The agent of a visit, which knows its last share, says which GPUs its processes use.
fn uses(played: &mut Played, visit: VisitId, gpus: &[u32]) -> String {
    let number = played.roster.visits[&visit].share.number;
    let gpus = gpus.iter().copied().collect();
    let in_use = InUse { number, gpus, is_ready: true, has_ended_one: true, ..InUse::default() };
    told(played, Event::InUse { visit, in_use })
}

fn tick(played: &mut Played, seconds: u32) -> String {
    played.now += seconds * SECOND;
    told(played, Event::Tick(Vec::new()))
}

#[test]
fn gpu_goes_to_another_job_once_no_process_uses_it() {
    let mut played = node(2);
    let (first, began) = arrive(&mut played, "job", Priority::Normal);
    assert_eq!(began, "0 has 2 with [0, 1], 0 begins");
    let (second, waits) = arrive(&mut played, "second", Priority::Normal);
    assert_eq!(waits, "0 has 1 with [0], the job waits: other jobs use the 2 GPUs of this node");
    let stale = InUse { number: 1, gpus: BTreeSet::from([0]), ..InUse::default() };
    assert_eq!(told(&mut played, Event::InUse { visit: first, in_use: stale }), "", "it does not know its share yet");
    assert_eq!(uses(&mut played, first, &[0, 1]), "", "a run goes on");
    assert_eq!(uses(&mut played, first, &[0]), "1 has 1 with [1], 1 begins");
    let canceled = Event::Watched { visit: second, standing: Standing::Canceled, priority: None };
    assert_eq!(told(&mut played, canceled), "1 stops: Kill", "its processes may still use the GPU");
    assert_eq!(told(&mut played, Event::Worked { visit: second, held: None }), "0 has 2 with [0, 1]");
}

#[test]
fn job_waits_for_the_turn_of_another_to_end_and_the_reducer_knows() {
    let mut played = node(1);
    let (first, began) = arrive(&mut played, "job", Priority::Normal);
    assert_eq!(began, "0 has 2 with [0], 0 begins", "processes of one job share its GPU");
    let (_, waits) = arrive(&mut played, "second", Priority::Normal);
    assert_eq!(waits, "the job waits: other jobs use the GPU of this node");
    assert_eq!(uses(&mut played, first, &[0]), "", "its turn begins");
    assert_eq!(tick(&mut played, 7), "");
    let detail = "other jobs use the GPU of this node";
    assert_eq!(tick(&mut played, 1), format!("TellWait {{ waited: 8s, detail: {detail:?} }}"));
    for _ in 0..4 {
        told(&mut played, Event::Arrived("second".into()));
        tick(&mut played, 25);
    }
    told(&mut played, Event::Arrived("second".into()));
    assert_eq!(tick(&mut played, 12), "0 has 0 with []", "two minutes");
    assert_eq!(uses(&mut played, first, &[0]), "");
    assert_eq!(uses(&mut played, first, &[]), "0 stops: Finish, 1 has 2 with [0], 1 begins");
}

#[test]
fn messages_of_a_job_that_waits_are_not_in_the_way_of_others() {
    let mut played = node(1);
    arrive(&mut played, "job", Priority::Normal);
    arrive(&mut played, "second", Priority::Normal);
    assert!(played.pass(1).contains("GiveBack { delay: 5s }"));
    assert!(!played.pass(1).contains("GiveBack"));
    assert!(played.pass(1).contains("GiveBack { delay: 5s }"));
    assert_eq!(played.given_back(true), "", "it still waits");
}

#[test]
fn idle_job_leaves_its_gpu_to_one_that_waits() {
    let mut played = node(1);
    let (first, _) = arrive(&mut played, "job", Priority::High);
    let since = Some(played.now);
    played.now += 20 * SECOND;
    assert_eq!(told(&mut played, Event::Tick(vec![(first, since)])), "", "no other job wants it");
    let (_, waits) = arrive(&mut played, "second", Priority::Low);
    assert_eq!(waits, "0 has 0 with [], the job waits: other jobs use the GPU of this node");
    assert_eq!(uses(&mut played, first, &[]), "0 stops: Finish, 1 has 2 with [0], 1 begins");
}

#[test]
fn job_does_not_wait_without_messages_nor_with_the_seat_of_another_node() {
    let mut played = node(1);
    arrive(&mut played, "job", Priority::Normal);
    arrive(&mut played, "second", Priority::Normal);
    tick(&mut played, 29);
    assert_eq!(
        tick(&mut played, 1),
        "the job waits no longer on this node: no message of it has arrived for a while, TellEnd"
    );
    let visit = played.visit();
    assert_eq!(told(&mut played, Event::Done { visit, step: Step::TellEnd }), "1 closes");
    played.after(Event::Arrived("seated".into()));
    played.looked_up(open(Some(1)));
    played.seat_read(Ok(None));
    played.claimed(Ok(Commit::Committed));
    played.provisioned(Ok(()));
    tick(&mut played, 19);
    assert_eq!(played.pass(1), "GiveBack { delay: 5s }", "another node may have a GPU");
    assert!(played.given_back(false).starts_with("LeaveSeat"));
}

#[test]
fn job_whose_gpu_keeps_failing_gets_another() {
    let mut played = node(2);
    played.after(Event::Arrived("job".into()));
    played.looked_up(open(None));
    let visit = played.visit();
    assert_eq!(told(&mut played, Event::Provisioned { visit, result: Ok(()) }), "0 has 1 with [0], 0 begins");
    let (gpus, failing) = (BTreeSet::from([0]), BTreeSet::from([0]));
    let failed = InUse { number: 1, gpus, failing, ..InUse::default() };
    assert_eq!(told(&mut played, Event::InUse { visit, in_use: failed }), "0 has 1 with [1]");
}
