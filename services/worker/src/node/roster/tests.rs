//! Decisions of a roster: events in, actions out.

mod gpus;
mod line;
mod parts;
mod seats;

use protocol::{JobSpec, Priority, Requirements};

use super::*;

const SECOND: Duration = Duration::from_secs(1);

/// A roster at a moment that the test moves. Answers are those to its last visit.
struct Played {
    roster: Roster,
    now: Instant,
}

pub(in crate::node) fn config() -> Config {
    let (delay_max, notice_time) = (900 * SECOND, 100 * SECOND);
    let capacity = Capacity { process_count: Some(4), process_count_default: 4, gpus: 0 };
    let offer = Offer { gpus: 1, ..Offer::default() };
    // Messages of a job in line return at the next tick. Some tests hold them for longer.
    let periods = Periods { hold: Duration::ZERO, ..Periods::default() };
    let (places, places_of_newcomers) = (capacity.places(), capacity.places_of_newcomers());
    let groups_take_turns = false;
    Config {
        node: "here".into(),
        offer,
        idle_wish: 4,
        capacity,
        places,
        places_of_newcomers,
        delay_max,
        groups_take_turns,
        notice_time,
        periods,
    }
}

fn open(node_count: Option<u32>) -> Answer<Found> {
    Ok(Found::Open(Box::new(JobSpec { node_count, ..JobSpec::example() })))
}

fn seat(epoch: u64, node: &str) -> Answer<Option<storage::Seat>> {
    Ok(Some(storage::Seat { epoch, node: node.into() }))
}

impl Played {
    fn new(config: Config) -> Self {
        let now = Instant::now();
        let mut played = Self { roster: Roster::new(config, now), now };
        played.actions();
        played
    }

    /// The node looks a job up.
    fn looking_up() -> Self {
        let mut played = Self::new(config());
        played.arrive();
        played
    }

    /// The agent of the first visit works.
    fn working(node_count: Option<u32>) -> Self {
        let mut played = Self::looking_up();
        played.looked_up(open(node_count));
        if node_count.is_some() {
            played.seat_read(Ok(None));
            played.claimed(Ok(Commit::Committed));
        }
        assert_eq!(played.provisioned(Ok(())), "work");
        played
    }

    fn visit(&self) -> VisitId {
        VisitId(self.roster.next_visit - 1)
    }

    fn actions(&mut self) -> String {
        let actions = std::iter::from_fn(|| self.roster.next_action());
        actions.filter_map(in_words).collect::<Vec<_>>().join(", ")
    }

    /// Reports an event, and returns the resulting actions.
    fn after(&mut self, event: Event) -> String {
        self.roster.handle(event, self.now);
        self.actions()
    }

    /// Lets time pass, while agents hold messages.
    fn pass(&mut self, seconds: u32) -> String {
        self.now += seconds * SECOND;
        self.after(Event::Tick(Vec::new()))
    }

    fn arrive(&mut self) -> String {
        self.after(Event::Arrived("job".into()))
    }

    fn looked_up(&mut self, found: Answer<Found>) -> String {
        self.after(Event::LookedUp { visit: self.visit(), looked_at: self.now, found })
    }

    fn seat_read(&mut self, seat: Answer<Option<storage::Seat>>) -> String {
        self.after(Event::SeatRead { visit: self.visit(), seat })
    }

    fn claimed(&mut self, commit: Answer<Commit>) -> String {
        self.after(Event::SeatClaimed { visit: self.visit(), asked_at: self.now, commit })
    }

    fn provisioned(&mut self, result: Result<(), Unprovisioned>) -> String {
        self.after(Event::Provisioned { visit: self.visit(), result })
    }

    fn watched(&mut self, standing: Standing) -> String {
        self.after(Event::Watched { visit: self.visit(), standing, priority: None })
    }

    fn worked(&mut self, held: usize) -> String {
        self.after(Event::Worked { visit: self.visit(), held: Some(held) })
    }

    fn held_checked(&mut self, is_over: bool) -> String {
        self.after(Event::HeldChecked { visit: self.visit(), is_over })
    }

    fn given_back(&mut self, is_quiet: bool) -> String {
        self.after(Event::GivenBack { visit: self.visit(), is_quiet })
    }

    fn done(&mut self, step: Step) -> String {
        self.after(Event::Done { visit: self.visit(), step })
    }
}

/// Returns the short form of an action, or `None` for actions that every test would have to repeat.
fn in_words(action: Action) -> Option<String> {
    Some(match action {
        Action::Wish(_) | Action::Log { .. } | Action::Share { .. } => return None,
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
        Action::Drain => "drain".into(),
    })
}

/// Returns the shares that follow from an event, as processes of visits in the order of their arrival.
fn shares(played: &mut Played, event: Event) -> Vec<(u64, u32)> {
    played.roster.handle(event, played.now);
    let actions = std::iter::from_fn(|| played.roster.next_action());
    let shares = actions.filter_map(|action| match action {
        Action::Share { visit: VisitId(visit), share } => Some((visit, share.processes)),
        _ => None,
    });
    shares.collect()
}

#[test]
fn jobs_with_work_divide_the_processes_of_the_node() {
    let mut played = Played::looking_up();
    played.looked_up(open(None));
    let [first, second] = [0, 1].map(VisitId);
    assert_eq!(shares(&mut played, Event::Provisioned { visit: first, result: Ok(()) }), [(0, 4)], "it is alone");
    played.after(Event::Arrived("second".into()));
    let spec = Box::new(JobSpec { priority: Priority::High, ..JobSpec::example() });
    played.looked_up(Ok(Found::Open(spec)));
    assert_eq!(shares(&mut played, Event::Provisioned { visit: second, result: Ok(()) }), [(0, 1), (1, 3)]);
    let quiet = |since| Event::Tick(vec![(first, None), (second, since)]);
    let since = Some(played.now);
    played.now += 9 * SECOND;
    assert!(shares(&mut played, quiet(since)).is_empty(), "its next messages may be on their way");
    played.now += SECOND;
    assert_eq!(shares(&mut played, quiet(since)), [(0, 4), (1, 1)], "it has no work");
    assert_eq!(shares(&mut played, quiet(None)), [(0, 1), (1, 3)]);
    let watched = |priority| Event::Watched { visit: second, standing: Standing::Open, priority };
    assert_eq!(shares(&mut played, watched(Some(Priority::Low))), [(0, 3), (1, 1)], "its priority has changed");
    assert_eq!(shares(&mut played, watched(None)), [], "it was not read");
    assert_eq!(shares(&mut played, watched(Some(Priority::High))), [(0, 1), (1, 3)]);
    let canceled = Event::Watched { visit: second, standing: Standing::Canceled, priority: None };
    assert_eq!(shares(&mut played, canceled), [(0, 4)], "it leaves");
}

#[test]
fn idle_jobs_leave_a_node_that_is_short_of_memory() {
    let mut played = Played::looking_up();
    for number in 0..3 {
        played.looked_up(open(None));
        assert_eq!(played.provisioned(Ok(())), "work");
        if number < 2 {
            played.after(Event::Arrived(format!("job {number}")));
        }
    }
    let (now, [busy, idle, longer]) = (played.now, [0, 1, 2].map(VisitId));
    played.after(Event::Tick(vec![(busy, None), (idle, Some(now + SECOND)), (longer, Some(now))]));
    assert_eq!(played.after(Event::MemoryIsShort(true)), "", "their next messages may be on their way");
    played.now += 20 * SECOND;
    played.roster.handle(Event::MemoryIsShort(true), played.now);
    let mut stopped = std::iter::from_fn(|| played.roster.next_action());
    let first = stopped.find_map(|action| match action {
        Action::StopAgent { visit, stop } => Some((visit, stop)),
        _ => None,
    });
    assert_eq!(first, Some((longer, Stop::Finish)), "the one without work for the longest time");
    assert_eq!(played.after(Event::MemoryIsShort(true)), "", "its processes are ending");
    assert_eq!(played.worked(0), "clean up");
    assert_eq!(played.done(Step::CleanUp), "close");
    assert_eq!(played.after(Event::MemoryIsShort(true)), "stop agent: Finish");
    assert_eq!(played.after(Event::MemoryIsShort(true)), "", "a job with work stays");
}

#[test]
fn agent_knows_its_share_before_it_starts() {
    let mut played = Played::looking_up();
    played.looked_up(open(None));
    played.roster.handle(Event::Provisioned { visit: played.visit(), result: Ok(()) }, played.now);
    assert!(matches!(played.roster.next_action(), Some(Action::Share { .. })));
    assert!(matches!(played.roster.next_action(), Some(Action::Work(_))));
}

#[test]
fn job_is_looked_up_provisioned_worked_on_and_left() {
    let mut played = Played::new(config());
    assert_eq!(played.arrive(), "open job, LookUp");
    assert_eq!(played.looked_up(open(None)), "provision");
    assert_eq!(played.provisioned(Ok(())), "work");
    assert_eq!(played.after(Event::Tick(vec![(played.visit(), Some(played.now))])), "");
    assert_eq!(played.pass(30), "Watch { with_result: true }", "an idle job may have ended");
    assert_eq!(played.watched(Standing::Open), "stop agent: Finish");
    assert_eq!(played.worked(0), "clean up");
    assert_eq!(played.done(Step::CleanUp), "close");
    assert_eq!(played.roster.jobs(), 0);
}

#[test]
fn messages_of_a_job_that_is_over_are_dropped() {
    let mut played = Played::looking_up();
    assert_eq!(played.looked_up(Ok(Found::Over("it has ended"))), "drop");
    assert_eq!(played.arrive(), "", "one visit at a time");
    let next = "close, open job, LookUp";
    assert_eq!(played.done(Step::Drop), next, "later messages may be those of a reopened job");
}

#[test]
fn silent_store_turns_a_job_away_and_drops_nothing() {
    let mut played = Played::looking_up();
    assert_eq!(played.looked_up(Err(Unanswered)), "GiveBack { delay: 5s }");
    assert_eq!(played.given_back(true), "pause 8 s, close", "others ask first");
}

#[test]
fn queue_without_delays_is_spared_by_holding_messages() {
    let mut played = Played::new(Config { delay_max: Duration::ZERO, ..config() });
    played.arrive();
    assert_eq!(played.looked_up(Err(Unanswered)), "");
    assert_eq!(played.pass(1), "");
    assert_eq!(played.pass(1), "GiveBack { delay: 0ns }");
}

#[test]
fn job_that_requires_more_than_the_node_has_is_turned_away() {
    let requiring = |gpus, zone: Option<&str>| {
        let labels = zone.map(|zone| ("zone".to_owned(), zone.to_owned()));
        let requires = Requirements { gpus, labels: labels.into_iter().collect(), ..Requirements::default() };
        Ok(Found::Open(Box::new(JobSpec { requires, node_count: Some(1), ..JobSpec::example() })))
    };
    let mut played = Played::new(config());
    for is_logged in [true, false] {
        played.arrive();
        let visit = played.visit();
        let (looked_at, found) = (played.now, requiring(1, Some("a")));
        played.roster.handle(Event::LookedUp { visit, looked_at, found }, played.now);
        let actions: Vec<Action> = std::iter::from_fn(|| played.roster.next_action()).collect();
        let logged = actions.iter().find_map(|action| match action {
            Action::Log { message, is_warning: false, .. } => Some(message.as_str()),
            _ => None,
        });
        let message = "this node leaves the job to others: it has no label zone, the job requires zone=a";
        assert_eq!(logged, is_logged.then_some(message), "once");
        let actions = actions.into_iter().filter_map(in_words).collect::<Vec<_>>();
        assert_eq!(actions, ["GiveBack { delay: 5s }"], "it takes no seat");
        assert_eq!(played.given_back(true), "pause 8 s, close", "the nodes that it fits ask first");
    }
    played.arrive();
    assert_eq!(played.looked_up(requiring(1, None)), "ReadSeat { number: 0, known: 0 }", "it may fit later");
}

#[test]
fn canceled_job_is_killed_and_its_mini_batches_are_dropped() {
    let mut played = Played::working(None);
    assert_eq!(played.pass(4), "Watch { with_result: false }");
    assert_eq!(played.watched(Standing::Canceled), "stop agent: Kill");
    assert_eq!(played.worked(3), "CheckHeld");
    assert_eq!(played.held_checked(true), "drop held");
    assert_eq!(played.done(Step::LetGo), "clean up");
}

#[test]
fn agent_without_processes_leaves_the_job_to_others_for_a_while() {
    let mut played = Played::working(None);
    played.worked(0);
    played.done(Step::CleanUp);
    played.arrive();
    assert_eq!(played.looked_up(open(None)), "GiveBack { delay: 5s }");
    played.given_back(false);
    played.pass(60);
    played.arrive();
    assert_eq!(played.looked_up(open(None)), "provision");
}

#[test]
fn job_whose_agent_failed_is_not_begun_again_at_once() {
    let mut played = Played::working(None);
    let visit = played.visit();
    assert_eq!(played.after(Event::Worked { visit, held: None }), "clean up");
    played.done(Step::CleanUp);
    played.arrive();
    assert_eq!(played.looked_up(open(None)), "GiveBack { delay: 5s }");
    played.given_back(false);
    played.pass(6);
    played.arrive();
    assert_eq!(played.looked_up(open(None)), "provision");
}

#[test]
fn provisioning_that_cannot_succeed_is_reported_to_the_job() {
    let mut played = Played::looking_up();
    played.looked_up(open(None));
    let failed = Err(Unprovisioned { reason: "no interpreter".into(), obstacle: Obstacle::Lasting });
    assert_eq!(played.provisioned(failed), "Tell { reason: \"no interpreter\" }");
    assert_eq!(played.done(Step::Tell), "GiveBack { delay: 5s }");
    played.given_back(true);
    played.arrive();
    assert_eq!(played.looked_up(open(None)), "GiveBack { delay: 5s }", "it rests");
}

#[test]
fn silent_store_while_provisioning_is_reported_after_three_failures() {
    let mut played = Played::new(config());
    for number in 0..3 {
        played.arrive();
        played.looked_up(open(None));
        let actions =
            played.provisioned(Err(Unprovisioned { reason: "no answer".into(), obstacle: Obstacle::SilentStore }));
        assert_eq!(actions.starts_with("Tell"), number == 2, "{actions}");
        played.given_back(true);
    }
}

#[test]
fn job_waits_for_room_on_a_full_disk_as_long_as_it_takes() {
    let mut played = Played::new(config());
    for number in 0..5 {
        played.arrive();
        played.looked_up(open(None));
        let full = Unprovisioned { reason: "no room".into(), obstacle: Obstacle::FullDisk };
        let told = format!("TellWait {{ waited: {}s, detail: \"no room\" }}", 60 * number);
        assert_eq!(played.provisioned(Err(full)).replace("0ns", "0s"), told);
        assert_eq!(played.done(Step::TellWait), "GiveBack { delay: 5s }");
        played.given_back(true);
        played.pass(60);
    }
    played.arrive();
    assert_eq!(played.looked_up(open(None)), "provision", "it has not given up");
}

#[test]
fn messages_return_to_the_queue_while_a_job_is_provisioned() {
    let mut played = Played::looking_up();
    played.looked_up(open(None));
    assert!(played.pass(10).contains("PassOn"));
    assert!(!played.pass(9).contains("PassOn"));
    assert_eq!(played.watched(Standing::Ended), "close", "the job is not needed any more");
}

#[test]
fn drained_node_leaves_every_job_and_begins_none() {
    let mut played = Played::new(config());
    played.after(Event::Arrived("other".into()));
    played.arrive();
    played.looked_up(open(None));
    played.provisioned(Ok(()));
    assert_eq!(played.after(Event::Stop(Stop::Drain)), "close, stop agent: Drain, drain");
    assert_eq!(played.after(Event::Arrived("third".into())), "");
    assert!(!played.roster.is_over(), "the agent still works");
    assert_eq!(played.after(Event::Stop(Stop::Finish)), "", "stops never get smaller");
    assert_eq!(played.worked(2), "CheckHeld");
    assert_eq!(played.held_checked(false), "return held");
    played.done(Step::LetGo);
    played.done(Step::CleanUp);
    assert_eq!((played.roster.is_over(), played.roster.ended()), (true, Ended::Stopped));
}

#[test]
fn spot_notice_drains_and_then_kills_before_the_machine_goes() {
    let mut played = Played::working(None);
    assert_eq!(played.after(Event::SpotNotice), "stop agent: Drain, drain");
    assert!(!played.pass(99).contains("stop agent: Kill"));
    assert!(played.pass(1).contains("stop agent: Kill"));
    assert_eq!(played.roster.ended(), Ended::SpotNotice);
}

#[test]
fn idle_node_ends_but_not_before_a_slow_store_has_answered_for_its_first_job() {
    let periods = Periods { idle_exit: Some(10 * SECOND), ..Periods::default() };
    let mut played = Played::new(Config { periods, ..config() });
    played.arrive();
    assert_eq!(played.pass(600), "");
    played.looked_up(Err(Unanswered));
    played.given_back(true);
    played.arrive();
    assert_eq!(played.pass(9), "");
    assert_eq!(played.pass(1), "close, drain", "a later job that cannot be looked up is no reason to stay");
    assert_eq!((played.roster.is_over(), played.roster.ended()), (true, Ended::Idle));
}

#[test]
fn idle_node_stays_while_the_holder_of_a_seat_may_be_dead() {
    for (epochs, stays) in [(&[7][..], true), (&[7, 8], false)] {
        let periods = Periods { idle_exit: Some(10 * SECOND), ..Periods::default() };
        let mut played = Played::new(Config { periods, ..config() });
        for &epoch in epochs {
            played.arrive();
            played.looked_up(open(Some(1)));
            played.seat_read(seat(epoch, "there"));
            played.given_back(true);
        }
        assert_eq!(played.pass(59), if stays { "" } else { "drain" });
        if stays {
            assert_eq!((played.pass(10), played.pass(1)), (String::new(), "drain".into()), "the seat has lapsed");
        }
    }
}

#[test]
fn answer_for_an_ended_visit_changes_nothing() {
    let mut played = Played::looking_up();
    let visit = played.visit();
    played.looked_up(Err(Unanswered));
    played.given_back(true);
    played.arrive();
    let late = Event::LookedUp { visit, looked_at: played.now, found: open(None) };
    assert_eq!(played.after(late), "");
    assert_eq!(played.after(Event::Worked { visit, held: Some(1) }), "");
    assert_eq!(played.roster.jobs(), 1);
}
