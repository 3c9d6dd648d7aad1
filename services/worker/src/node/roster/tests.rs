//! Decisions of a roster: events in, actions out.

use protocol::JobSpec;

use super::*;

const LAPSE: Duration = Duration::from_secs(60);
const SECOND: Duration = Duration::from_secs(1);

/// A roster at a moment that the test moves.
struct Played {
    roster: Roster,
    now: Instant,
}

fn config() -> Config {
    Config {
        node: "here".into(),
        idle_wish: 4,
        delay_max: Duration::from_secs(900),
        idle_exit: None,
        job_idle: 30 * SECOND,
        watch_period: 2 * SECOND,
        seat_period: 20 * SECOND,
        seat_lapse: LAPSE,
        rest: 60 * SECOND,
        notice_time: 100 * SECOND,
    }
}

fn spec(node_count: Option<u32>) -> Box<JobSpec> {
    Box::new(JobSpec { node_count, ..JobSpec::example() })
}

fn seat(epoch: u64, node: &str) -> Option<storage::Seat> {
    Some(storage::Seat { epoch, node: node.into() })
}

const VISIT: VisitId = VisitId(0);

impl Played {
    fn new(config: Config) -> Self {
        let now = Instant::now();
        let mut played = Self { roster: Roster::new(config, now), now };
        played.actions();
        played
    }

    fn actions(&mut self) -> Vec<String> {
        std::iter::from_fn(|| self.roster.next_action())
            .filter(|action| !matches!(action, Action::Log { .. } | Action::Wish(_)))
            .map(|action| in_words(&action))
            .collect()
    }

    fn handle(&mut self, event: Event) -> Vec<String> {
        self.roster.handle(event, self.now);
        self.actions()
    }

    /// Time passes, and an agent, if there is one, holds messages.
    fn pass(&mut self, time: Duration) -> Vec<String> {
        self.now += time;
        self.handle(Event::Tick(Vec::new()))
    }

    fn arrive(&mut self) -> Vec<String> {
        self.handle(Event::Arrived("job".into()))
    }

    fn look_up(&mut self, visit: VisitId, found: Result<Found, Unanswered>) -> Vec<String> {
        self.handle(Event::LookedUp { visit, looked_at: self.now, found })
    }

    fn claim(&mut self, visit: VisitId, commit: Result<Commit, Unanswered>) -> Vec<String> {
        self.handle(Event::SeatClaimed { visit, asked_at: self.now, commit })
    }

    /// The agent of the first visit works.
    fn working(node_count: Option<u32>) -> Self {
        let mut played = Self::new(config());
        played.arrive();
        played.look_up(VISIT, Ok(Found::Open(spec(node_count))));
        if node_count.is_some() {
            played.handle(Event::SeatRead { visit: VISIT, seat: Ok(None) });
            played.claim(VISIT, Ok(Commit::Committed));
        }
        assert_eq!(played.handle(Event::Provisioned { visit: VISIT, result: Ok(()) }), ["work"]);
        played
    }
}

fn in_words(action: &Action) -> String {
    match action {
        Action::Open { job_id, .. } => format!("open {job_id}"),
        Action::Run { errand: Errand::Drop { .. }, .. } => "drop".into(),
        Action::Run { errand, .. } => format!("{errand:?}"),
        Action::Provision { .. } => "provision".into(),
        Action::Work(_) => "work".into(),
        Action::StopAgent { stop, .. } => format!("stop agent: {stop:?}"),
        Action::LetGo { is_over: true, .. } => "drop held".into(),
        Action::LetGo { is_over: false, .. } => "return held".into(),
        Action::CleanUp(_) => "clean up".into(),
        Action::Close(_) => "close".into(),
        Action::Pause(time) => format!("pause {} s", time.as_secs()),
        Action::Wish(_) | Action::Log { .. } => unreachable!("left out"),
        Action::Drain => "drain".into(),
    }
}

fn done(visit: VisitId, step: Step) -> Event {
    Event::Done { visit, step }
}

#[test]
fn job_is_looked_up_provisioned_worked_on_and_left() {
    let mut played = Played::new(config());
    assert_eq!(played.arrive(), ["open job", "LookUp"]);
    assert_eq!(played.look_up(VISIT, Ok(Found::Open(spec(None)))), ["provision"]);
    assert_eq!(played.handle(Event::Provisioned { visit: VISIT, result: Ok(()) }), ["work"]);
    let quiet = Event::Tick(vec![(VISIT, Some(played.now))]);
    assert!(played.handle(quiet).is_empty());
    assert_eq!(played.pass(30 * SECOND), ["Watch { with_result: true }"], "an idle job may have ended");
    let open = Event::Watched { visit: VISIT, standing: Standing::Open };
    assert_eq!(played.handle(open), ["stop agent: Finish"]);
    assert_eq!(played.handle(Event::Worked { visit: VISIT, held: Some(0) }), ["clean up"]);
    assert_eq!(played.handle(done(VISIT, Step::CleanUp)), ["close"]);
    assert_eq!(played.roster.jobs(), 0);
}

#[test]
fn messages_of_a_job_that_is_over_are_dropped() {
    let mut played = Played::new(config());
    played.arrive();
    assert_eq!(played.look_up(VISIT, Ok(Found::Over("it has ended"))), ["drop"]);
    assert!(played.arrive().is_empty(), "one visit at a time");
    let next = ["close", "open job", "LookUp"];
    assert_eq!(played.handle(done(VISIT, Step::Drop)), next, "later messages may be those of a reopened job");
}

#[test]
fn silent_store_turns_a_job_away_and_drops_nothing() {
    let mut played = Played::new(config());
    played.arrive();
    assert_eq!(played.look_up(VISIT, Err(Unanswered)), ["GiveBack { delay: 5s }"]);
    let returned = Event::GivenBack { visit: VISIT, is_quiet: true };
    assert_eq!(played.handle(returned), ["pause 8 s", "close"], "others ask first");
}

#[test]
fn queue_without_delays_is_spared_by_holding_messages() {
    let mut played = Played::new(Config { delay_max: Duration::ZERO, ..config() });
    played.arrive();
    assert!(played.look_up(VISIT, Err(Unanswered)).is_empty());
    assert!(played.pass(SECOND).is_empty());
    assert_eq!(played.pass(SECOND), ["GiveBack { delay: 0ns }"]);
}

#[test]
fn job_without_a_free_seat_is_turned_away() {
    let mut played = Played::new(config());
    played.arrive();
    assert_eq!(played.look_up(VISIT, Ok(Found::Open(spec(Some(2))))), ["ReadSeat { number: 0, known: 0 }"]);
    let read = |seat| Event::SeatRead { visit: VISIT, seat: Ok(seat) };
    assert_eq!(played.handle(read(seat(7, "there"))), ["ReadSeat { number: 1, known: 0 }"]);
    assert_eq!(played.handle(read(seat(3, ""))), ["ClaimSeat { number: 1, epoch: 4 }"], "a seat that was left");
    assert_eq!(played.claim(VISIT, Ok(Commit::Lost)), ["GiveBack { delay: 5s }"]);
}

#[test]
fn seat_is_taken_once_it_has_lapsed_by_the_clock_of_this_node() {
    let mut played = Played::new(config());
    let mut visit = VISIT;
    for (time, expected) in [(0, "GiveBack { delay: 5s }"), (59, "GiveBack { delay: 5s }"), (1, "ClaimSeat")] {
        played.pass(time * SECOND);
        played.arrive();
        played.look_up(visit, Ok(Found::Open(spec(Some(1)))));
        let actions = played.handle(Event::SeatRead { visit, seat: Ok(seat(7, "there")) });
        assert!(actions[0].starts_with(expected), "{actions:?}");
        played.handle(Event::GivenBack { visit, is_quiet: true });
        visit = VisitId(visit.0 + 1);
    }
}

#[test]
fn renewed_seat_is_kept_and_left_at_the_end() {
    let mut played = Played::working(Some(1));
    for epoch in 2..10 {
        let actions = played.pass(20 * SECOND);
        assert_eq!(actions[0], format!("ClaimSeat {{ number: 0, epoch: {epoch} }}"));
        assert!(played.claim(VISIT, Ok(Commit::Committed)).is_empty());
    }
    assert_eq!(played.handle(Event::Worked { visit: VISIT, held: Some(0) }), ["clean up"]);
    assert_eq!(played.handle(done(VISIT, Step::CleanUp)), ["LeaveSeat { number: 0, epoch: 10 }"]);
    assert_eq!(played.handle(done(VISIT, Step::LeaveSeat)), ["close"]);
}

#[test]
fn lost_seat_drains_the_agent() {
    let mut played = Played::working(Some(1));
    played.pass(20 * SECOND);
    played.claim(VISIT, Ok(Commit::Lost));
    assert_eq!(played.pass(SECOND), ["stop agent: Drain"]);
}

#[test]
fn seat_counts_as_lost_before_others_may_take_it() {
    let mut played = Played::working(Some(1));
    // A claim was sent in time, but its answer takes too long.
    played.pass(20 * SECOND);
    assert!(!played.pass(24 * SECOND).contains(&"stop agent: Drain".to_owned()));
    assert!(played.pass(SECOND).contains(&"stop agent: Drain".to_owned()), "45 of 60 seconds");
}

#[test]
fn seat_age_counts_from_the_claim_not_from_its_answer() {
    let mut played = Played::working(Some(1));
    played.pass(20 * SECOND);
    let asked_at = played.now;
    played.pass(20 * SECOND);
    played.handle(Event::SeatClaimed { visit: VISIT, asked_at, commit: Ok(Commit::Committed) });
    // The others have seen the claim 20 seconds before its answer arrived here.
    assert!(played.pass(25 * SECOND).contains(&"stop agent: Drain".to_owned()));
}

#[test]
fn canceled_job_is_killed_and_its_mini_batches_are_dropped() {
    let mut played = Played::working(None);
    assert_eq!(played.pass(2 * SECOND), ["Watch { with_result: false }"]);
    let canceled = Event::Watched { visit: VISIT, standing: Standing::Canceled };
    assert_eq!(played.handle(canceled), ["stop agent: Kill"]);
    assert_eq!(played.handle(Event::Worked { visit: VISIT, held: Some(3) }), ["CheckHeld"]);
    assert_eq!(played.handle(Event::HeldChecked { visit: VISIT, is_over: true }), ["drop held"]);
    assert_eq!(played.handle(done(VISIT, Step::LetGo)), ["clean up"]);
}

#[test]
fn agent_without_processes_leaves_the_job_to_others_for_a_while() {
    let mut played = Played::working(None);
    played.handle(Event::Worked { visit: VISIT, held: Some(0) });
    played.handle(done(VISIT, Step::CleanUp));
    let visit = VisitId(1);
    played.arrive();
    assert_eq!(played.look_up(visit, Ok(Found::Open(spec(None)))), ["GiveBack { delay: 5s }"]);
    played.handle(Event::GivenBack { visit, is_quiet: false });
    played.pass(60 * SECOND);
    played.arrive();
    assert_eq!(played.look_up(VisitId(2), Ok(Found::Open(spec(None)))), ["provision"]);
}

#[test]
fn provisioning_that_cannot_succeed_is_reported_to_the_job() {
    let mut played = Played::new(config());
    played.arrive();
    played.look_up(VISIT, Ok(Found::Open(spec(None))));
    let failed = |may_pass| Err(Unprovisioned { reason: "no interpreter".into(), may_pass });
    let event = Event::Provisioned { visit: VISIT, result: failed(false) };
    assert_eq!(played.handle(event), ["Tell { reason: \"no interpreter\" }"]);
    assert_eq!(played.handle(done(VISIT, Step::Tell)), ["GiveBack { delay: 5s }"]);
    played.handle(Event::GivenBack { visit: VISIT, is_quiet: true });
    let visit = VisitId(1);
    played.arrive();
    assert_eq!(played.look_up(visit, Ok(Found::Open(spec(None)))), ["GiveBack { delay: 5s }"], "it rests");
}

#[test]
fn silent_store_while_provisioning_is_reported_after_three_failures() {
    let mut played = Played::new(config());
    for number in 0..3 {
        let visit = VisitId(number);
        played.arrive();
        played.look_up(visit, Ok(Found::Open(spec(None))));
        let result = Err(Unprovisioned { reason: "no answer".into(), may_pass: true });
        let actions = played.handle(Event::Provisioned { visit, result });
        assert_eq!(actions[0].starts_with("Tell"), number == 2, "{actions:?}");
        played.handle(Event::GivenBack { visit, is_quiet: true });
    }
}

#[test]
fn messages_return_to_the_queue_while_a_job_is_provisioned() {
    let mut played = Played::new(config());
    played.arrive();
    played.look_up(VISIT, Ok(Found::Open(spec(None))));
    assert!(played.pass(10 * SECOND).contains(&"PassOn".to_owned()));
    assert!(!played.pass(9 * SECOND).contains(&"PassOn".to_owned()));
    let ended = Event::Watched { visit: VISIT, standing: Standing::Ended };
    assert_eq!(played.handle(ended), ["close"], "the job is not needed any more");
}

#[test]
fn drained_node_leaves_every_job_and_begins_none() {
    let mut played = Played::working(None);
    played.handle(Event::Arrived("other".into()));
    let stopped = played.handle(Event::Stop(Stop::Drain));
    assert_eq!(stopped, ["stop agent: Drain", "close", "drain"]);
    assert!(played.handle(Event::Arrived("third".into())).is_empty());
    assert!(!played.roster.is_over(), "the agent still works");
    assert_eq!(played.handle(Event::Stop(Stop::Finish)), [""; 0], "stops never get smaller");
    assert_eq!(played.handle(Event::Worked { visit: VISIT, held: Some(2) }), ["CheckHeld"]);
    assert_eq!(played.handle(Event::HeldChecked { visit: VISIT, is_over: false }), ["return held"]);
    played.handle(done(VISIT, Step::LetGo));
    played.handle(done(VISIT, Step::CleanUp));
    assert!(played.roster.is_over());
    assert_eq!(played.roster.ended(), Ended::Stopped);
}

#[test]
fn spot_notice_drains_and_then_kills_before_the_machine_goes() {
    let mut played = Played::working(None);
    assert_eq!(played.handle(Event::SpotNotice), ["stop agent: Drain", "drain"]);
    assert!(!played.pass(99 * SECOND).contains(&"stop agent: Kill".to_owned()));
    assert!(played.pass(SECOND).contains(&"stop agent: Kill".to_owned()));
    assert_eq!(played.roster.ended(), Ended::SpotNotice);
}

#[test]
fn idle_node_ends_but_not_before_a_slow_store_has_answered_for_its_first_job() {
    let mut played = Played::new(Config { idle_exit: Some(10 * SECOND), ..config() });
    played.arrive();
    assert!(played.pass(600 * SECOND).is_empty());
    played.look_up(VISIT, Err(Unanswered));
    played.handle(Event::GivenBack { visit: VISIT, is_quiet: true });
    played.arrive();
    assert_eq!(played.pass(9 * SECOND), [""; 0]);
    assert_eq!(played.pass(SECOND), ["close", "drain"], "a later job that cannot be looked up is no reason to stay");
    assert_eq!((played.roster.is_over(), played.roster.ended()), (true, Ended::Idle));
}

#[test]
fn answer_for_an_ended_visit_changes_nothing() {
    let mut played = Played::new(config());
    played.arrive();
    played.look_up(VISIT, Err(Unanswered));
    played.handle(Event::GivenBack { visit: VISIT, is_quiet: true });
    played.arrive();
    assert!(played.look_up(VISIT, Ok(Found::Open(spec(None)))).is_empty());
    assert!(played.handle(Event::Worked { visit: VISIT, held: Some(1) }).is_empty());
    assert_eq!(played.roster.jobs(), 1);
}
