//! More jobs than the node has places for.

use std::collections::{HashMap, HashSet};

use super::*;

/// A node of four processes, and so of sixteen places, four of them for newcomers.
fn node() -> Played {
    Played::new(config())
}

fn node_with_one_place() -> Played {
    Played::new(Config { places: 1, places_of_newcomers: 0, ..config() })
}

fn arrive(played: &mut Played, job_id: &str, priority: Priority) -> String {
    let begun = played.after(Event::Arrived(job_id.to_owned()));
    let follows = begun.strip_prefix(&format!("open {job_id}")).expect("a visit begins").trim_start_matches(", ");
    match follows {
        "LookUp" => played.looked_up(Ok(Found::Open(Box::new(JobSpec { priority, ..JobSpec::example() })))),
        // The node knows of it.
        _ => follows.to_owned(),
    }
}

/// Lets a job arrive that has a place. Returns its visit.
fn begin(played: &mut Played, job_id: &str) -> VisitId {
    assert_eq!(arrive(played, job_id, Priority::Normal), "provision", "{job_id}");
    let visit = played.visit();
    assert_eq!(played.provisioned(Ok(())), "work");
    visit
}

/// The node has held the messages of a job in line for long enough.
fn returned(played: &mut Played) -> String {
    let visit = played.visit();
    played.roster.tick_visit(visit, played.now);
    played.actions()
}

/// Lets a job arrive that has none.
fn turn_away(played: &mut Played, job_id: &str, priority: Priority) {
    assert_eq!(arrive(played, job_id, priority), "", "{job_id}");
    assert_eq!(returned(played), "GiveBack { delay: 0ns }", "{job_id}");
    assert_eq!(played.given_back(false), "close");
}

fn full() -> (Played, Vec<VisitId>) {
    let mut played = node();
    let visits = (0..16).map(|number| begin(&mut played, &format!("job {number}"))).collect();
    (played, visits)
}

/// The agent of a visit says what it has, and what follows.
fn has(played: &mut Played, visit: VisitId, processes: usize) -> String {
    let number = played.roster.visits[&visit].share.number;
    let in_use = InUse { number, processes, is_ready: processes > 0, has_ended_one: true, ..InUse::default() };
    played.after(Event::InUse { visit, in_use })
}

fn end(played: &mut Played, visit: VisitId) -> String {
    played.after(Event::Watched { visit, standing: Standing::Canceled, priority: None });
    played.after(Event::Worked { visit, held: Some(0) });
    played.after(Event::Done { visit, step: Step::CleanUp })
}

/// Every job has messages in the queue until it has run, and the node receives them in turns.
#[test]
fn three_hundred_jobs_begin_on_a_node_of_four_processes_a_few_at_a_time() {
    const JOBS: usize = 300;
    let mut played = node();
    let (mut at_work, mut begun) = (HashMap::new(), Vec::new());
    let (mut provisioned, mut rounds) = (HashSet::new(), 0);
    while begun.len() < JOBS || !at_work.is_empty() {
        rounds += 1;
        assert!(rounds < 10 * JOBS, "{} jobs have begun", begun.len());
        for number in 0..JOBS {
            let job_id = format!("job {number}");
            if provisioned.contains(&job_id) {
                continue;
            }
            let mut actions = played.after(Event::Arrived(job_id.clone()));
            if actions.ends_with("LookUp") {
                actions = played.looked_up(open(None));
            }
            if actions == "provision" {
                assert_eq!(played.provisioned(Ok(())), "work");
                at_work.insert(played.visit(), rounds);
                begun.push(number);
                provisioned.insert(job_id);
                continue;
            }
            if actions.starts_with("TellWait") {
                played.done(Step::TellWait);
            }
            assert_eq!(returned(&mut played), "GiveBack { delay: 0ns }");
            assert_eq!(played.given_back(false), "close");
        }
        assert!(at_work.len() <= 16, "{at_work:?}");
        played.now += 5 * SECOND;
        played.roster.handle(Event::Tick(Vec::new()), played.now);
        played.actions();
        // A job runs for 20 seconds.
        let ended: Vec<VisitId> =
            at_work.iter().filter(|(_, since)| rounds - **since >= 4).map(|(id, _)| *id).collect();
        for visit in ended {
            at_work.remove(&visit);
            assert!(end(&mut played, visit).starts_with("close"));
        }
    }
    assert_eq!(begun, (0..JOBS).collect::<Vec<_>>(), "in the order in which they came");
    assert!(rounds <= JOBS / 16 * 5 + 10, "no place is empty for long: {rounds} rounds");
}

#[test]
fn job_in_line_is_not_overtaken_by_later_ones() {
    let (mut played, visits) = full();
    turn_away(&mut played, "waits", Priority::Normal);
    played.pass(5);
    turn_away(&mut played, "later", Priority::Normal);
    end(&mut played, visits[0]);
    turn_away(&mut played, "new", Priority::Normal);
    let again = played.after(Event::Arrived("later".into()));
    assert_eq!(again, "open later", "nothing needs to be looked up");
    assert_eq!(returned(&mut played), "GiveBack { delay: 0ns }");
    assert_eq!(played.given_back(true), "close", "the node asks for more, as it may have a place at any moment");
    assert_eq!(arrive(&mut played, "waits", Priority::Normal), "provision");
}

#[test]
fn messages_of_a_job_in_line_come_back_in_its_turn_where_jobs_have_turns() {
    let mut played = Played::new(Config { groups_take_turns: true, places: 1, places_of_newcomers: 0, ..config() });
    begin(&mut played, "job");
    assert_eq!(arrive(&mut played, "waits", Priority::Normal), "");
    assert_eq!(returned(&mut played), "GiveBack { delay: 0ns }", "a delay would cost its turn");
    assert_eq!(played.given_back(true), "pause 0 s, close", "for a moment");
}

/// A node with one place that holds the messages of jobs in line for eight seconds.
fn node_that_holds() -> Played {
    Played::new(Config { places: 1, places_of_newcomers: 0, periods: Periods::default(), ..config() })
}

#[test]
fn free_place_goes_to_the_longest_wait_whose_messages_are_held() {
    let mut played = node_that_holds();
    let first = begin(&mut played, "first");
    assert_eq!(arrive(&mut played, "waits", Priority::Normal), "");
    let waits = played.visit();
    played.pass(2);
    assert_eq!(arrive(&mut played, "later", Priority::Normal), "");
    played.pass(2);
    end(&mut played, first);
    assert_eq!(played.after(Event::Tick(Vec::new())), "LookUp", "one place, one look");
    let looked_up = Event::LookedUp { visit: waits, looked_at: played.now, found: open(None) };
    assert_eq!(played.after(looked_up), "provision");
    played.pass(5);
    assert!(played.roster.visits.values().any(|visit| visit.job_id == "later"), "held since two seconds later");
    assert_eq!(played.pass(1), "GiveBack { delay: 0ns }", "other nodes have waited for long enough");
    assert_eq!(played.given_back(true), "close");
}

#[test]
fn job_that_has_ended_while_it_was_held_leaves_the_place_to_the_next() {
    let mut played = node_that_holds();
    let first = begin(&mut played, "first");
    assert_eq!(arrive(&mut played, "gone", Priority::Normal), "");
    let gone = played.visit();
    assert_eq!(arrive(&mut played, "waits", Priority::Normal), "");
    end(&mut played, first);
    assert_eq!(played.after(Event::Tick(Vec::new())), "LookUp");
    let found = Ok(Found::Over("it has ended"));
    assert_eq!(played.after(Event::LookedUp { visit: gone, looked_at: played.now, found }), "drop");
    assert_eq!(played.after(Event::Tick(Vec::new())), "LookUp", "of the other one");
}

#[test]
fn job_is_held_no_longer_if_the_store_is_silent() {
    let mut played = node_that_holds();
    let first = begin(&mut played, "first");
    assert_eq!(arrive(&mut played, "waits", Priority::Normal), "");
    end(&mut played, first);
    assert_eq!(played.after(Event::Tick(Vec::new())), "LookUp");
    assert_eq!(played.looked_up(Err(Unanswered)), "GiveBack { delay: 5s }");
}

#[test]
fn node_looks_soon_whether_a_quiet_job_has_ended_while_others_wait() {
    let mut played = node_that_holds();
    let first = begin(&mut played, "first");
    let quiet = |played: &mut Played| {
        let since = Some(played.now);
        played.after(Event::Tick(vec![(first, since)]))
    };
    assert_eq!(quiet(&mut played), "");
    played.now += SECOND;
    assert_eq!(quiet(&mut played), "", "nobody waits: the next look is after four seconds");
    assert_eq!(arrive(&mut played, "waits", Priority::Normal), "");
    assert_eq!(quiet(&mut played), "");
    played.now += SECOND;
    assert_eq!(quiet(&mut played), "Watch { with_result: true }");
}

#[test]
fn job_of_higher_priority_waits_for_a_shorter_time() {
    let (mut played, visits) = full();
    turn_away(&mut played, "normal", Priority::Normal);
    played.pass(8);
    turn_away(&mut played, "high", Priority::High);
    played.pass(2);
    end(&mut played, visits[0]);
    turn_away(&mut played, "high", Priority::High);
    played.pass(2);
    assert_eq!(arrive(&mut played, "high", Priority::High), "provision", "4 times 4 seconds are more than 12");
}

#[test]
fn job_that_is_not_heard_of_keeps_no_place() {
    let (mut played, visits) = full();
    turn_away(&mut played, "gone", Priority::Normal);
    played.pass(5);
    end(&mut played, visits[0]);
    turn_away(&mut played, "waits", Priority::Normal);
    played.pass(30);
    begin(&mut played, "waits");
    played.pass(600);
    assert!(played.roster.memories.is_empty());
}

#[test]
fn node_with_processes_to_spare_keeps_a_place_for_a_shorter_time() {
    let (mut played, visits) = full();
    turn_away(&mut played, "waits", Priority::Normal);
    let since = Some(played.now);
    end(&mut played, visits[0]);
    let quiet = |played: &mut Played| {
        let quiet = visits[1..].iter().map(|visit| (*visit, since)).collect();
        played.after(Event::Tick(quiet));
    };
    played.now += 9 * SECOND;
    quiet(&mut played);
    turn_away(&mut played, "new", Priority::Normal);
    played.now += SECOND;
    quiet(&mut played);
    begin(&mut played, "new");
}

/// As a job does whose messages are the first ones in the queue again.
#[test]
fn job_that_has_had_its_turn_does_not_get_its_place_back_at_once() {
    let mut played = node_with_one_place();
    let first = begin(&mut played, "first");
    has(&mut played, first, 1);
    played.pass(119);
    turn_away(&mut played, "waits", Priority::Normal);
    played.pass(1);
    assert_eq!(has(&mut played, first, 0), "stop agent: Finish");
    end(&mut played, first);
    turn_away(&mut played, "first", Priority::Normal);
    begin(&mut played, "waits");
}

#[test]
fn job_without_work_makes_room_at_once() {
    let (mut played, visits) = full();
    let since = Some(played.now);
    played.pass(10);
    let quiet = || Event::Tick(vec![(visits[3], since)]);
    assert_eq!(played.after(quiet()), "", "nobody waits");
    turn_away(&mut played, "waits", Priority::Normal);
    assert_eq!(played.after(quiet()), "stop agent: Finish");
    assert_eq!(played.after(quiet()), "", "one is enough");
    end(&mut played, visits[3]);
    begin(&mut played, "waits");
}

#[test]
fn job_makes_room_after_its_turn_once_its_runs_have_ended() {
    let (mut played, visits) = full();
    has(&mut played, visits[5], 1);
    played.pass(119);
    turn_away(&mut played, "waits", Priority::Normal);
    let told = shares(&mut played, Event::Tick(Vec::new()));
    assert_eq!(told, [], "its turn is two minutes");
    played.now += SECOND;
    let told = shares(&mut played, Event::Tick(Vec::new()));
    assert_eq!(told, [(5, 0)], "those of the others begin with a process that is ready");
    assert_eq!(has(&mut played, visits[5], 1), "", "a run goes on");
    assert_eq!(has(&mut played, visits[5], 0), "stop agent: Finish");
    end(&mut played, visits[5]);
    turn_away(&mut played, "job 5", Priority::Normal);
    begin(&mut played, "waits");
}

/// The node has worked on every large job, and more of them than it has places wait in line.
#[test]
fn newcomer_begins_at_once_while_large_jobs_take_turns() {
    let (mut played, visits) = full();
    visits.iter().for_each(|visit| drop(has(&mut played, *visit, 1)));
    turn_away(&mut played, "large", Priority::Normal);
    played.now += 9 * SECOND;
    assert_eq!(shares(&mut played, Event::Tick(Vec::new())), [], "a first turn is ten seconds");
    played.now += SECOND;
    let told = shares(&mut played, Event::Tick(Vec::new()));
    assert_eq!(told, [(12, 0), (13, 0), (14, 0), (15, 0)], "lasting places go to others after two minutes only");
    for visit in &visits[12..] {
        assert_eq!(has(&mut played, *visit, 0), "stop agent: Finish");
        end(&mut played, *visit);
    }
    turn_away(&mut played, "job 12", Priority::Normal);
    let large = begin(&mut played, "large");
    has(&mut played, large, 1);
    for job_id in ["job 13", "job 14", "job 15"] {
        turn_away(&mut played, job_id, Priority::High);
    }
    for number in 0..3 {
        begin(&mut played, &format!("small {number}"));
    }
    turn_away(&mut played, "one more", Priority::Normal);
    played.now += 10 * SECOND;
    assert_eq!(shares(&mut played, Event::Tick(Vec::new())), [(18, 0)], "its runs go on");
    has(&mut played, large, 0);
    end(&mut played, large);
    begin(&mut played, "one more");
}

#[test]
fn job_is_a_newcomer_once() {
    let (mut played, visits) = full();
    has(&mut played, visits[15], 1);
    played.pass(10);
    assert_eq!(has(&mut played, visits[15], 0), "stop agent: Finish");
    end(&mut played, visits[15]);
    turn_away(&mut played, "job 15", Priority::High);
    let small = begin(&mut played, "small");
    end(&mut played, small);
    for _ in 0..70 {
        played.pass(10);
        if arrive(&mut played, "job 15", Priority::High).starts_with("TellWait") {
            assert_eq!(played.done(Step::TellWait), "");
        }
        assert_eq!(returned(&mut played), "GiveBack { delay: 0ns }");
        assert_eq!(played.given_back(false), "close");
    }
    let small = begin(&mut played, "small");
    end(&mut played, small);
    played.pass(600);
    begin(&mut played, "small");
    end(&mut played, visits[0]);
    begin(&mut played, "job 15");
}

#[test]
fn newcomer_keeps_its_processes_where_another_place_is_free() {
    let (mut played, visits) = full();
    has(&mut played, visits[13], 1);
    end(&mut played, visits[0]);
    end(&mut played, visits[1]);
    assert_eq!(shares(&mut played, Event::Tick(Vec::new())), []);
    played.now += 60 * SECOND;
    assert_eq!(shares(&mut played, Event::Tick(Vec::new())), [], "jobs 12 and 13 have the two places");
    begin(&mut played, "one");
    begin(&mut played, "two");
    turn_away(&mut played, "three", Priority::Normal);
}

#[test]
fn newcomer_without_work_makes_room() {
    let (mut played, visits) = full();
    let since = Some(played.now);
    has(&mut played, visits[14], 1);
    played.now += 10 * SECOND;
    assert!(played.after(Event::Tick(vec![(visits[14], since)])).ends_with("stop agent: Finish"));
}

#[test]
fn newcomers_wait_for_a_gpu_like_everybody_else() {
    let capacity = Capacity { gpus: 4, ..config().capacity };
    assert_eq!((capacity.places(), capacity.places_of_newcomers()), (16, 0));
}

#[test]
fn turn_lasts_until_an_attempt_has_ended() {
    let mut played = node_with_one_place();
    let visit = begin(&mut played, "slow");
    let in_use = |has_ended_one| InUse { number: 1, processes: 1, is_ready: true, has_ended_one, ..InUse::default() };
    played.after(Event::InUse { visit, in_use: in_use(false) });
    played.pass(590);
    turn_away(&mut played, "waits", Priority::Normal);
    assert_eq!(shares(&mut played, Event::Tick(Vec::new())), [], "it would begin anew in its next turn");
    played.after(Event::InUse { visit, in_use: in_use(true) });
    assert_eq!(shares(&mut played, Event::Tick(Vec::new())), [(0, 0)]);
}

#[test]
fn no_job_begins_while_memory_is_short_unless_the_node_has_none() {
    let mut played = node();
    played.after(Event::MemoryIsShort(true));
    let first = begin(&mut played, "first");
    turn_away(&mut played, "second", Priority::Normal);
    played.pass(11);
    let detail = "this node works on another job, and its memory is short";
    let told = arrive(&mut played, "second", Priority::Normal);
    assert_eq!(told, format!("TellWait {{ waited: 11s, detail: {detail:?} }}"), "its reducer knows");
    assert_eq!(played.done(Step::TellWait), "");
    assert_eq!(returned(&mut played), "GiveBack { delay: 0ns }");
    played.given_back(false);
    has(&mut played, first, 1);
    played.pass(30);
    turn_away(&mut played, "second", Priority::Normal);
    played.pass(89);
    assert!(arrive(&mut played, "second", Priority::Normal).starts_with("TellWait"), "every minute");
    played.done(Step::TellWait);
    returned(&mut played);
    played.given_back(false);
    let told = shares(&mut played, Event::Tick(Vec::new()));
    assert_eq!(told, [], "jobs take turns");
    played.pass(1);
    assert_eq!(has(&mut played, first, 0), "stop agent: Finish");
    end(&mut played, first);
    begin(&mut played, "second");
    turn_away(&mut played, "third", Priority::Normal);
    played.after(Event::MemoryIsShort(false));
    begin(&mut played, "third");
}

#[test]
fn jobs_that_take_seats_at_the_same_time_have_a_place_each() {
    let mut played = node_with_one_place();
    played.after(Event::Arrived("first".into()));
    assert!(played.looked_up(open(Some(1))).starts_with("ReadSeat"));
    played.after(Event::Arrived("second".into()));
    assert_eq!(played.looked_up(open(Some(1))), "");
    assert_eq!(returned(&mut played), "GiveBack { delay: 0ns }");
}

#[test]
fn job_whose_seats_are_taken_loses_its_place_in_line() {
    let (mut played, visits) = full();
    let seated = || open(Some(1));
    played.after(Event::Arrived("seated".into()));
    assert_eq!(played.looked_up(seated()), "");
    assert_eq!(returned(&mut played), "GiveBack { delay: 0ns }");
    played.given_back(false);
    played.pass(5);
    turn_away(&mut played, "waits", Priority::Normal);
    end(&mut played, visits[0]);
    played.pass(10);
    played.after(Event::Arrived("seated".into()));
    assert!(played.looked_up(seated()).starts_with("ReadSeat"));
    assert!(played.seat_read(seat(7, "there")).starts_with("GiveBack"));
    played.given_back(false);
    begin(&mut played, "waits");
}
