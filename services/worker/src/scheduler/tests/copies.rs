//! Speculative runs of slow mini-batches.

use super::*;

/// Returns a node of a job that speculates.
fn speculating(processes: u32, mini_batches: u64) -> Node {
    let mut node =
        starting_with(processes, |config| Arc::make_mut(&mut config.spec).speculation = true);
    node.begin(processes, mini_batches);
    node
}

/// Returns a copy under another lease.
fn copy(mini_batch: u64, lease: LeaseId) -> LeasedDelivery {
    let descriptor = Descriptor { copy: true, ..descriptor(mini_batch, Work::Rank) };
    LeasedDelivery { lease, descriptor, ..delivered(mini_batch) }
}

#[test]
fn copy_goes_to_an_idle_process() {
    let mut node = speculating(2, 1);
    node.runs(0, 1);
    assert_eq!(node.after(Event::Received(vec![copy(0, 9)])), "1 gets 0");
    let won = node.outcome(done(1, 1));
    assert_eq!(
        (won.lease, won.attempt.copy, won.attempt.status),
        (9, true, AttemptStatus::Succeeded)
    );
    assert_eq!(
        node.tick(Duration::from_secs(1)),
        "",
        "the original run goes on until the success is committed"
    );
    assert_eq!(node.after(Event::Decided(vec![0])), "kill 0, drop 0");
    assert_eq!(node.after(exited(0, SlotPhase::Run, 1)), "forget 0, start 2", "nobody is to blame");
    assert_eq!(node.after(Event::Decided(vec![0])), "");
}

#[test]
fn copy_never_waits_behind_a_run() {
    let mut node = speculating(1, 1);
    // Its pipe could hold more.
    node.after(done(0, 1));
    node.after(Event::Received(vec![delivered(1)]));
    node.runs(0, 2);
    assert_eq!(node.after(Event::Received(vec![copy(1, 9)])), "");
    assert_eq!(node.tick(Duration::from_millis(900)), "");
    assert_eq!(
        node.tick(Duration::from_millis(200)),
        "return 1",
        "another node may have an idle process"
    );
    assert_eq!(node.after(Event::Received(vec![copy(1, 10)])), "");
    assert_eq!(node.after(done(0, 2)), "1 Succeeded, drop 10");
}

#[test]
fn copy_of_a_mini_batch_that_failed_on_a_gpu_gets_another() {
    let mut node = starting_with(2, |config| {
        config.gpus = 2;
        Arc::make_mut(&mut config.spec).speculation = true;
    });
    assert_eq!(node.begin(2, 2), "0 gets 0, 1 gets 1");
    let full = error("", "CUDA out of memory");
    assert_eq!(node.after(failed(0, 1, full)), "0 RunRaised, again");
    assert_eq!(node.after(Event::Received(vec![copy(0, 9)])), "", "process 0 has the same GPU");
    assert_eq!(node.after(done(1, 1)), "1 Succeeded, 1 gets 0");
}

#[test]
fn failure_of_a_copy_spends_no_try() {
    let mut node = speculating(2, 1);
    node.after(Event::Received(vec![copy(0, 9)]));
    let lost = node.outcome(raised(1, 1));
    assert_eq!((lost.lease, lost.attempt.copy, lost.next_try), (9, true, None));
    assert_eq!(
        node.after(raised(0, 1)),
        "0 RunRaised, again",
        "the original run has its own tries"
    );
}

/// Returns a node whose process 0 runs the first range of a mini-batch with a copy on process 1.
fn isolating_beside_a_copy() -> Node {
    let mut node = starting_with(2, |config| {
        let spec = Arc::make_mut(&mut config.spec);
        (spec.speculation, spec.isolate, spec.run_max_try) = (true, protocol::Isolate::Items, 1);
    });
    (0..2).for_each(|process| node.ready(process));
    let files = |copy| {
        let paths = vec!["/a".into(), "/b".into()];
        let work = Work::Files { input: 0, paths, versions: vec![], stamps: vec![], key: vec![] };
        Descriptor { copy, ..descriptor(0, work) }
    };
    let first = LeasedDelivery { descriptor: files(false), ..delivered(0) };
    assert_eq!(node.after(Event::Received(vec![first])), "0 gets 0");
    assert_eq!(
        node.after(Event::Received(vec![LeasedDelivery { descriptor: files(true), ..copy(0, 9) }])),
        "1 gets 0"
    );
    assert_eq!(node.after(raised(0, 1)), "0 gets 0[0..1]");
    node
}

#[test]
fn copy_is_not_isolated() {
    let mut node = isolating_beside_a_copy();
    assert_eq!(node.after(raised(1, 1)), "0 RunRaised", "the original run is");
}

#[test]
fn isolated_success_drops_the_copy() {
    let mut node = isolating_beside_a_copy();
    assert_eq!(node.after(done(0, 2)), "0 gets 0[1..2]");
    assert_eq!(node.after(raised(0, 3)), "0 Succeeded, kill 1, drop 9");
}

#[test]
fn decided_mini_batch_is_isolated_no_further() {
    let mut node = isolating_beside_a_copy();
    assert_eq!(node.outcome(done(1, 1)).attempt.status, AttemptStatus::Succeeded);
    assert_eq!(node.after(Event::Decided(vec![0])), "kill 0, drop 0");
    assert_eq!(
        node.after(exited(0, SlotPhase::Run, 2)),
        "forget 0, start 2",
        "no range is to blame"
    );
}

#[test]
fn waiting_for_a_service_gives_a_copy_as_much_time_as_any_run() {
    let mut node = speculating(2, 1);
    node.after(Event::Received(vec![copy(0, 9)]));
    (0..2).for_each(|process| node.runs(process, 1));
    node.after(frame(1, ProcessEvent::RateLimited { sequence: 1, seconds: 60.0 }));
    assert_eq!(
        node.tick(LIMIT + Duration::from_secs(30)),
        "stacks of 0, stacks of 1",
        "both are slow"
    );
    assert_eq!(node.stacks(0, "File x"), "kill 0", "it does not wait");
    assert_eq!(node.stacks(1, "File x"), "1 is in run for 120 s", "not killed");
}

#[test]
fn first_success_drops_the_copy() {
    let mut node = speculating(2, 1);
    node.after(Event::Received(vec![copy(0, 9)]));
    assert_eq!(node.after(done(0, 1)), "0 Succeeded, kill 1, drop 9");
}

#[test]
fn copy_of_a_lost_delivery_is_not_run() {
    let mut node = speculating(2, 1);
    let again = LeasedDelivery { receive_count: 2, ..copy(0, 9) };
    let lost = node.outcome(Event::Received(vec![again]));
    assert_eq!((lost.attempt.copy, lost.attempt.deliveries_lost, lost.next_try), (true, 0, None));
}

#[test]
fn returned_copy_is_still_one_and_has_cost_nothing() {
    let mut node = speculating(1, 1);
    node.after(Event::Received(vec![copy(0, 9)]));
    node.scheduler.handle(Event::Stop(Stop::Drain), node.now);
    node.scheduler.schedule(node.now, false);
    let returned =
        std::iter::from_fn(|| node.scheduler.next_action()).find_map(|action| match action {
            Action::Announce(Announcement::Return { lease: 9, descriptor }) => Some(descriptor),
            _ => None,
        });
    let returned = returned.expect("a drained node keeps nothing");
    assert_eq!((returned.copy, returned.tries_spent, returned.deliveries_lost), (true, 0, 0));
}

#[test]
fn slower_start_does_not_keep_a_job_that_is_done() {
    let mut node = speculating(2, 1);
    node.runs(0, 1);
    assert_eq!(node.after(Event::Stop(Stop::Finish)), "stop receiving, kill 0, finish 1");
    let mut node = working(2, 1);
    node.runs(0, 1);
    assert_eq!(
        node.after(Event::Stop(Stop::Finish)),
        "stop receiving, finish 1",
        "without speculation nothing is slower"
    );
}

#[test]
fn decided_mini_batch_is_dropped_wherever_it_is() {
    let mut node = speculating(1, 2);
    node.runs(0, 1);
    assert_eq!(node.after(Event::Decided(vec![1])), "drop 1", "it was ready");
    assert!(!node.scheduler.has_long_run(node.now));
    node.pass(Duration::from_secs(2));
    assert!(node.scheduler.has_long_run(node.now));
    assert_eq!(node.after(Event::Decided(vec![7])), "");
}
