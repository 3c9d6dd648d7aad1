//! Seats of a job whose nodes are limited.

use super::*;

#[test]
fn job_without_a_free_seat_is_turned_away() {
    let mut played = Played::looking_up();
    assert_eq!(played.looked_up(open(Some(2))), "ReadSeat { number: 0, known: 0 }");
    assert_eq!(played.seat_read(seat(7, "there")), "ReadSeat { number: 1, known: 0 }");
    assert_eq!(played.seat_read(seat(3, "")), "ClaimSeat { number: 1, epoch: 4 }", "a seat that was left");
    assert_eq!(played.claimed(Ok(Commit::Lost)), "GiveBack { delay: 5s }");
}

#[test]
fn seat_is_taken_once_it_has_lapsed_by_the_clock_of_this_node() {
    let mut played = Played::new(config());
    for (time, expected) in [(0, "GiveBack { delay: 5s }"), (59, "GiveBack { delay: 5s }"), (1, "ClaimSeat")] {
        played.pass(time);
        played.arrive();
        played.looked_up(open(Some(1)));
        let actions = played.seat_read(seat(7, "there"));
        assert!(actions.starts_with(expected), "{actions}");
        played.given_back(true);
    }
}

#[test]
fn renewed_seat_is_kept_and_left_at_the_end() {
    let mut played = Played::working(Some(1));
    for epoch in 2..10 {
        assert!(played.pass(20).starts_with(&format!("ClaimSeat {{ number: 0, epoch: {epoch} }}")));
        assert_eq!(played.claimed(Ok(Commit::Committed)), "");
    }
    assert_eq!(played.worked(0), "clean up");
    assert_eq!(played.done(Step::CleanUp), "LeaveSeat { number: 0, epoch: 10 }");
    assert_eq!(played.done(Step::LeaveSeat), "close");
}

#[test]
fn lost_seat_drains_the_agent() {
    let mut played = Played::working(Some(1));
    played.pass(20);
    played.claimed(Ok(Commit::Lost));
    assert_eq!(played.pass(1), "stop agent: Drain");
}

#[test]
fn seat_counts_as_lost_before_others_may_take_it() {
    let mut played = Played::working(Some(1));
    // A claim was sent in time, but its answer takes too long.
    played.pass(20);
    assert!(!played.pass(24).contains("stop agent: Drain"));
    assert!(played.pass(1).contains("stop agent: Drain"), "45 of 60 seconds");
}

#[test]
fn seat_age_counts_while_the_machine_sleeps() {
    let slept = |seconds| Event::Slept(Duration::from_secs(seconds));
    let mut played = Played::working(Some(1));
    assert_eq!(played.after(slept(30)), "");
    assert!(!played.pass(14).contains("stop agent: Drain"));
    assert!(played.pass(1).contains("stop agent: Drain"), "45 of 60 seconds");

    let mut played = Played::working(Some(1));
    played.after(slept(0));
    assert!(played.pass(20).starts_with("ClaimSeat"), "the process was stopped, and the machine was awake");
    played.after(slept(5));
    assert!(played.pass(1).contains("stop agent: Drain"), "the claim under way may be an old one");
}

#[test]
fn seat_age_counts_from_the_claim_not_from_its_answer() {
    let mut played = Played::working(Some(1));
    played.pass(20);
    let asked_at = played.now;
    played.pass(20);
    played.after(Event::SeatClaimed { visit: played.visit(), asked_at, commit: Ok(Commit::Committed) });
    // The others have seen the claim 20 seconds before its answer arrived here.
    assert!(played.pass(25).contains("stop agent: Drain"));
}
