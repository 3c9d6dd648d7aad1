//! GPUs that fail, and the mini-batches that failed on them.

use super::*;

/// Returns a node with two processes, each with a GPU and a mini-batch.
fn with_gpus() -> Node {
    let mut node = starting_with(2, |config| config.gpus = 2);
    assert_eq!(node.begin(2, 2), "0 gets 0, 1 gets 1");
    node
}

/// Returns a node with one process, which has a mini-batch, and with these GPUs.
fn alone(gpus: u32) -> Node {
    let mut node = starting_with(1, |config| config.gpus = gpus);
    node.begin(1, 1);
    node
}

/// Returns a node with processes of a job that asks for this many GPUs for each process, or processes for each GPU. The
/// starts are its first actions.
fn asking(processes: u32, gpus: u32, gpus_per_process: u32, process_count_per_gpu: u32) -> Node {
    let (gpus_per_process, process_count_per_gpu) =
        (Some(gpus_per_process), Some(process_count_per_gpu));
    let spec = JobSpec { gpus_per_process, process_count_per_gpu, ..JobSpec::example() };
    starting_with(processes, |config| (config.spec, config.gpus) = (spec.into(), gpus))
}

fn failed(process: u32, sequence: u64, message: &str) -> Event {
    super::failed(process, sequence, error("RuntimeError", message))
}

const GONE: &str = "CUDA error: no CUDA-capable device is detected";
const FULL: &str = "CUDA out of memory. Tried to allocate 2.00 GiB";

#[test]
fn process_that_lost_its_gpu_is_replaced_with_the_same_gpu() {
    let mut node = with_gpus();
    assert_eq!(node.after(failed(1, 1, GONE)), "1 RunRaised, again, finish 1");
    assert_eq!(node.after(exited(1, SlotPhase::Idle, 0)), "forget 1, start 2 with GPU 1");
}

#[test]
fn full_memory_replaces_a_process_the_second_time() {
    let mut node = with_gpus();
    assert_eq!(node.after(failed(0, 1, FULL)), "0 RunRaised, again");
    node.after(Event::Received(vec![delivered(10)]));
    assert_eq!(node.after(failed(0, 2, FULL)), "10 RunRaised, again, finish 0");
}

#[test]
fn other_failures_have_nothing_to_do_with_the_gpu() {
    let mut node = with_gpus();
    assert_eq!(node.after(failed(0, 1, "three is bad")), "0 RunRaised, again");
    assert_eq!(node.after(Event::Received(vec![delivered(0)])), "0 gets 0");
}

#[test]
fn process_with_another_gpu_gets_the_next_try() {
    let mut node = with_gpus();
    node.after(failed(0, 1, FULL));
    assert_eq!(node.after(Event::Received(vec![delivered(0), delivered(10)])), "0 gets 10");
    assert_eq!(node.after(done(1, 1)), "1 Succeeded, 1 gets 0");
}

#[test]
fn mini_batch_of_a_dead_process_goes_to_another_gpu() {
    let mut node = with_gpus();
    node.runs(0, 1);
    node.after(exited(0, SlotPhase::Run, 1));
    assert_eq!(node.after(examined(0)), "0 ProcessDied, again, forget 0, start 2 with GPU 0");
    node.ready(2);
    assert_eq!(node.after(Event::Received(vec![delivered(0)])), "");
    assert_eq!(node.after(done(1, 1)), "1 Succeeded, 1 gets 0");
}

#[test]
fn mini_batch_without_another_gpu_goes_to_another_node_first() {
    let again = || {
        let delivered = delivered(0);
        let descriptor =
            Descriptor { tries_spent: 1, failed_on: vec!["0".into()], ..delivered.descriptor };
        Event::Received(vec![LeasedDelivery { descriptor, ..delivered }])
    };
    let members =
        || protocol::Members { working: [("1".to_owned(), 0)].into(), ..Default::default() };
    let mut node = alone(1);
    node.after(failed(0, 1, FULL));
    node.after(Event::Members(members()));
    assert_eq!(node.after(again()), "");
    assert_eq!(node.tick(Duration::from_millis(1100)), "return 0");
    let mut node = with_gpus();
    node.after(failed(0, 1, FULL));
    node.after(Event::Members(members()));
    assert_eq!(node.after(again()), "", "this node has another GPU");
    assert_eq!(node.after(done(1, 1)), "1 Succeeded, 1 gets 0");
}

/// Lets the process in the first slot get a mini-batch (other than the first one, which it has), fail on it and end.
/// Returns the actions.
fn fail_first(node: &mut Node, number: u32, mini_batch: u64) -> String {
    if number > 0 {
        node.after(in_first_slot(frame(number, started())));
        let actions = node.after(Event::Received(vec![delivered(mini_batch)]));
        assert_eq!(actions, format!("{number} gets {mini_batch}"));
    }
    let actions = node.after(in_first_slot(failed(number, 1, GONE)));
    assert_eq!(actions, format!("{mini_batch} RunRaised, again, finish {number}"));
    node.after(in_first_slot(exited(number, SlotPhase::Idle, 0)))
}

#[test]
fn gpu_that_keeps_failing_is_out_of_use() {
    let mut node = with_gpus();
    assert_eq!(fail_first(&mut node, 0, 0), "forget 0, start 2 with GPU 0");
    assert_eq!(fail_first(&mut node, 2, 20), "forget 2, start 3 with GPU 0");
    assert_eq!(fail_first(&mut node, 3, 30), "forget 3", "the other process continues alone");
    assert_eq!(node.after(done(1, 1)), "1 Succeeded");
}

#[test]
fn node_without_a_gpu_left_gives_up_and_names_the_failure() {
    let mut node = alone(1);
    fail_first(&mut node, 0, 0);
    fail_first(&mut node, 1, 10);
    let actions = fail_first(&mut node, 2, 20);
    assert_eq!(
        actions,
        format!("forget 2, stopped: no GPU is left on this node: GPU 0: RuntimeError: {GONE}")
    );
}

#[test]
fn free_gpu_replaces_one_that_is_out_of_use() {
    let mut node = alone(2);
    assert_eq!(fail_first(&mut node, 0, 0), "forget 0, start 1 with GPU 0");
    assert_eq!(fail_first(&mut node, 1, 10), "forget 1, start 2 with GPU 0");
    assert_eq!(fail_first(&mut node, 2, 20), "forget 2, start 3 with GPU 1");
}

#[test]
fn end_of_the_process_tells_which_gpu_is_out_of_use() {
    let mut node = starting_with(1, |config| config.gpus = 1);
    let mut notices = Vec::new();
    for number in 0..3 {
        let (error, chance) = (error("RuntimeError", GONE), RestartChance::Likely);
        node.after(in_first_slot(frame(number, ProcessEvent::InitFailed { error, chance })));
        let notice = |action| match action {
            Action::Announce(Announcement::Event(ResultEvent::ProcessEnded {
                notice,
                wear,
                ..
            })) => Some((notice, wear)),
            _ => None,
        };
        let ended = node.handled(in_first_slot(exited(number, SlotPhase::Init, 0)));
        notices.extend(ended.into_iter().filter_map(notice));
        node.tick(Duration::from_secs(5));
    }
    let expected =
        format!("GPU 0 of node 0 is out of use after 3 failures in a row: RuntimeError: {GONE}");
    assert_eq!(notices, [(String::new(), None), (String::new(), None), (expected, None)]);
}

#[test]
fn process_with_several_gpus_is_replaced_with_the_same_ones() {
    let mut node = asking(2, 5, 2, 1);
    assert_eq!(node.actions(), "start 0 with GPUs 0 and 1, start 1 with GPUs 2 and 3");
    node.begin(2, 2);
    assert_eq!(node.after(failed(1, 1, GONE)), "1 RunRaised, again, finish 1");
    assert_eq!(node.after(exited(1, SlotPhase::Idle, 0)), "forget 1, start 2 with GPUs 2 and 3");
    node.ready(2);
    assert_eq!(node.after(Event::Received(vec![delivered(1)])), "", "it waits for the other GPUs");
    assert_eq!(node.after(done(0, 1)), "0 Succeeded, 0 gets 1");
}

#[test]
fn several_gpus_of_a_process_are_out_of_use_together() {
    let mut node = asking(1, 3, 2, 1);
    assert_eq!(node.actions(), "start 0 with GPUs 0 and 1");
    node.begin(1, 1);
    assert_eq!(fail_first(&mut node, 0, 0), "forget 0, start 1 with GPUs 0 and 1");
    fail_first(&mut node, 1, 10);
    let cause =
        format!("fewer than 2 GPUs are left on this node: GPUs 0 and 1: RuntimeError: {GONE}");
    assert_eq!(fail_first(&mut node, 2, 20), format!("forget 2, stopped: {cause}"));
}

#[test]
fn processes_beyond_the_places_on_gpus_have_none() {
    let mut node = asking(5, 2, 1, 2);
    let starts =
        "start 0 with GPU 0, start 1 with GPU 1, start 2 with GPU 0, start 3 with GPU 1, start 4";
    assert_eq!(node.actions(), starts);
}

#[test]
fn processes_that_share_a_gpu_out_of_use_end_after_their_runs() {
    let mut node = asking(2, 1, 1, 2);
    assert_eq!(node.actions(), "start 0 with GPU 0, start 1 with GPU 0");
    assert_eq!(node.begin(2, 2), "0 gets 0, 1 gets 1");
    assert_eq!(fail_first(&mut node, 0, 0), "forget 0, start 2 with GPU 0");
    assert_eq!(fail_first(&mut node, 2, 20), "forget 2, start 3 with GPU 0");
    assert_eq!(fail_first(&mut node, 3, 30), "forget 3");
    assert_eq!(node.after(done(1, 1)), "1 Succeeded, finish 1");
    let cause = format!("no GPU is left on this node: GPU 0: RuntimeError: {GONE}");
    assert_eq!(node.after(exited(1, SlotPhase::Idle, 0)), format!("forget 1, stopped: {cause}"));
}
