//! Schedules and answers in, actions out.

use proptest::prelude::*;
use protocol::ScheduledJob;

use super::*;

/// Allocations, with what they have asked for.
struct Played {
    allocations: Allocations,
    now: Instant,
    schedule: Schedule,
}

impl Played {
    fn new() -> Self {
        let config = Config {
            node: "node".to_owned(),
            build: "0.1.0".to_owned(),
            offer: Offer::default(),
            process_count: None,
            notice_time: Duration::from_secs(60),
            idle_exit: None,
            entry_lasts: Duration::from_secs(45),
        };
        let now = Instant::now();
        Self { allocations: Allocations::new(config, now), now, schedule: Schedule::default() }
    }

    /// Returns a node that works on a job with two processes.
    fn at_work() -> Self {
        let mut played = Self::new();
        played.give(&[("job", 2, &[])]);
        played.begin(0);
        played
    }

    /// Returns what follows from an event, in one line.
    fn after(&mut self, event: Event) -> String {
        self.allocations.handle(event, self.now);
        let mut said = Vec::new();
        while let Some(action) = self.allocations.next_action() {
            match action {
                Action::Open { visit, job_id, queues } => {
                    said.push(format!("{}: open {job_id} {queues}", visit.0))
                }
                Action::Do { visit, step } => {
                    let step = match step {
                        Step::Provision(_) => "provision".to_owned(),
                        Step::Tell(reason) => format!("tell {reason}"),
                        step => format!("{step:?}"),
                    };
                    said.push(format!("{}: {step}", visit.0));
                }
                Action::Allocate { visit, allocation } => {
                    let AgentAllocation { processes, gpus, .. } = allocation;
                    let gpus =
                        if gpus.is_empty() { String::new() } else { format!(" with {gpus:?}") };
                    said.push(format!("{}: has {processes}{gpus}", visit.0));
                }
                Action::StopAgent { visit, stop } => {
                    said.push(format!("{}: stop {stop:?}", visit.0))
                }
                Action::Close(visit) => said.push(format!("{}: close", visit.0)),
                Action::Log { .. } => {}
            }
        }
        said.join(", ")
    }

    /// Gives the node these jobs, with processes and GPUs.
    fn give(&mut self, jobs: &[(&str, u32, &[u32])]) -> String {
        let number = self.schedule.number + 1;
        let allocation = |node: &str, (job_id, processes, gpus): (&str, u32, &[u32])| Allocation {
            node: node.to_owned(),
            job_id: job_id.to_owned(),
            processes,
            gpus: gpus.to_vec(),
        };
        let mut allocations: Vec<_> = jobs.iter().map(|job| allocation("node", *job)).collect();
        allocations.push(allocation("other", ("foreign", 1, &[0])));
        let job = |job_id: &str| ScheduledJob {
            job_id: job_id.to_owned(),
            admitted_in: Some(1),
            ..ScheduledJob::default()
        };
        let jobs = allocations.iter().map(|allocation| job(&allocation.job_id)).collect();
        self.schedule = Schedule { number, allocations, jobs, ..Schedule::default() };
        self.after(Event::Scheduled(Box::new(self.schedule.clone())))
    }

    fn tick(&mut self, time: Duration) -> String {
        self.now += time;
        self.after(Event::Tick { entry_age: Some(Duration::ZERO) })
    }

    fn looked_up(&mut self, visit: u64, found: Answer<JobLookup>) -> String {
        self.after(Event::LookedUp { visit: VisitId(visit), found })
    }

    fn found_open(&mut self, visit: u64) -> String {
        self.looked_up(visit, Ok(JobLookup::Open(Box::new(JobSpec::example()))))
    }

    fn opened(&mut self, visit: u64, opened: Option<()>) -> String {
        self.after(Event::Opened { visit: VisitId(visit), opened: Ok(opened) })
    }

    fn provisioned(&mut self, visit: u64, result: Result<(), ProvisioningFailure>) -> String {
        self.after(Event::Provisioned { visit: VisitId(visit), result })
    }

    /// Lets a visit come to its agent.
    fn begin(&mut self, visit: u64) -> String {
        self.found_open(visit);
        self.opened(visit, Some(()));
        self.provisioned(visit, Ok(()))
    }

    fn looked(&mut self, visit: u64, over: Option<JobEnd>) -> String {
        self.after(Event::Looked { visit: VisitId(visit), over })
    }

    fn uses(&mut self, visit: u64, processes: usize, gpus: &[u32]) -> String {
        let number = self.allocations.visits[&VisitId(visit)].agent_allocation.number;
        let gpus = gpus.iter().copied().collect();
        let in_use = AllocationReport { number, processes, gpus, ..AllocationReport::default() };
        self.after(Event::AllocationReport { visit: VisitId(visit), in_use })
    }

    fn worked(&mut self, visit: u64, worked: Result<usize, AgentFailed>) -> String {
        self.after(Event::Worked { visit: VisitId(visit), worked })
    }

    fn done(&mut self, visit: u64) -> String {
        self.after(Event::Done { visit: VisitId(visit) })
    }
}

#[test]
fn job_is_worked_on_while_the_schedule_says_so() {
    let mut played = Played::new();
    assert_eq!(played.give(&[]), "");
    assert_eq!(played.give(&[("job", 2, &[])]), "0: open job job.1, 0: LookUp");
    assert_eq!(played.tick(Duration::ZERO), "0: has 2");
    assert_eq!(played.found_open(0), "0: OpenQueues");
    assert_eq!(played.opened(0, None), "", "a reducer is about to create them");
    assert_eq!(played.tick(OPEN_AGAIN), "0: OpenQueues");
    assert_eq!(played.opened(0, Some(())), "0: provision");
    assert_eq!(played.provisioned(0, Ok(())), "0: Work");
    assert_eq!(played.allocations.state().schedule, 2);
    assert_eq!(played.allocations.state().jobs["job"].processes, 2);
    assert_eq!(played.give(&[("job", 1, &[])]), "0: has 1");
    assert_eq!(played.give(&[("job", 3, &[])]), "0: has 3");
    assert_eq!(played.give(&[]), "0: has 0, 0: IsOver");
    assert_eq!(played.tick(Duration::from_secs(3600)), "", "a run may take long");
    assert_eq!(played.uses(0, 0, &[]), "0: stop Finish");
    assert_eq!(played.worked(0, Ok(1)), "0: LetGo");
    assert_eq!(played.done(0), "0: CleanUp");
    assert_eq!(played.done(0), "0: close");
    assert_eq!(played.allocations.jobs(), 0);
}

#[test]
fn job_that_is_given_again_while_it_leaves_goes_on() {
    let mut played = Played::at_work();
    assert_eq!(played.give(&[]), "0: has 0, 0: IsOver");
    assert_eq!(played.give(&[("job", 1, &[])]), "0: has 1");
    assert_eq!(played.looked(0, None), "");
    played.give(&[]);
    played.uses(0, 0, &[]);
    assert_eq!(played.give(&[("job", 1, &[])]), "0: has 1", "its agent has been told to stop");
    assert_eq!(played.worked(0, Ok(0)), "0: CleanUp");
    assert_eq!(played.done(0), "0: close, 1: open job job.1, 1: LookUp");
}

#[test]
fn ended_job_is_finished_and_canceled_job_is_killed() {
    for (over, stop) in [(JobEnd::Ended, "0: stop Finish"), (JobEnd::Canceled, "0: stop Kill")] {
        let mut played = Played::at_work();
        played.give(&[]);
        assert_eq!(played.looked(0, Some(over)), stop);
    }
}

#[test]
fn job_that_is_canceled_while_no_reducer_runs_is_killed() {
    let mut played = Played::at_work();
    assert_eq!(played.tick(OVER_EVERY / 2), "");
    assert_eq!(played.tick(OVER_EVERY), "0: IsOver");
    assert_eq!(played.tick(OVER_EVERY), "", "the store has not answered yet");
    assert_eq!(played.looked(0, None), "0: IsOver");
    assert_eq!(played.looked(0, Some(JobEnd::Canceled)), "0: stop Kill");
    played.worked(0, Ok(0));
    assert_eq!(played.done(0), "0: close, 1: open job job.1, 1: LookUp");
    assert_eq!(played.looked_up(1, Ok(JobLookup::Over("it was canceled"))), "1: close");
    assert_eq!(played.tick(OVER_EVERY / 2), "");
    // A user may retry it.
    assert_eq!(played.tick(OVER_EVERY), "2: open job job.1, 2: LookUp");
}

#[test]
fn job_with_other_queues_is_visited_anew() {
    let mut played = Played::at_work();
    let mut schedule = played.schedule.clone();
    schedule.jobs.iter_mut().for_each(|job| job.admitted_in = Some(7));
    assert_eq!(played.after(Event::Scheduled(Box::new(schedule))), "0: has 0, 0: IsOver");
    played.uses(0, 0, &[]);
    played.worked(0, Err(AgentFailed::WithoutQueues));
    played.done(0);
    assert_eq!(played.tick(ASK_AGAIN), "1: open job job.7, 1: LookUp");
}

#[test]
fn gpu_belongs_to_one_job_at_a_time() {
    let mut played = Played::new();
    played.give(&[("one", 2, &[0, 1])]);
    assert_eq!(played.begin(0), "0: Work");
    played.give(&[("one", 1, &[0]), ("two", 1, &[1])]);
    assert_eq!(played.begin(1), "", "the first job may still use it");
    assert_eq!(played.uses(0, 2, &[0, 1]), "");
    assert_eq!(played.uses(0, 1, &[0]), "1: has 1 with [1], 1: Work");
    // All at once.
    assert_eq!(played.give(&[("one", 1, &[1]), ("two", 1, &[0])]), "0: has 0, 1: has 0");
    assert_eq!(played.uses(0, 0, &[]), "", "the second job still runs on the other one");
    assert_eq!(played.uses(1, 0, &[]), "0: has 1 with [1], 1: has 1 with [0]");
}

#[test]
fn job_that_gets_another_gpu_runs_no_more_processes_meanwhile() {
    let mut played = Played::new();
    played.give(&[("one", 2, &[0, 1])]);
    played.begin(0);
    played.uses(0, 2, &[0, 1]);
    assert_eq!(played.give(&[("one", 2, &[1, 2])]), "0: has 1 with [1]", "a run on GPU 0 goes on");
    assert_eq!(played.uses(0, 2, &[0, 1]), "");
    assert_eq!(played.uses(0, 1, &[1]), "0: has 2 with [1, 2]");
}

#[test]
fn job_that_has_not_begun_leaves_a_gpu_at_once() {
    let mut played = Played::new();
    played.give(&[("one", 2, &[0, 1])]);
    played.found_open(0);
    assert_eq!(
        played.give(&[("one", 1, &[0]), ("two", 1, &[1])]),
        "0: has 1 with [0], 1: open two two.1, 1: LookUp"
    );
    assert_eq!(played.tick(Duration::ZERO), "1: has 1 with [1]");
}

#[test]
fn job_without_a_working_gpu_says_which_of_them_fail() {
    let mut played = Played::new();
    played.give(&[("job", 1, &[0])]);
    played.begin(0);
    let number = played.allocations.visits[&VisitId(0)].agent_allocation.number;
    let in_use = AllocationReport { number, failing: [0].into(), ..AllocationReport::default() };
    assert_eq!(played.after(Event::AllocationReport { visit: VisitId(0), in_use }), "");
    let expected = Running { failing_gpus: [0].into(), ..Running::default() };
    assert_eq!(played.allocations.state().jobs["job"], expected);
}

#[test]
fn node_without_an_entry_begins_nothing_and_ends_no_run() {
    let mut played = Played::at_work();
    let entry_age = Some(Duration::from_secs(45));
    assert_eq!(played.after(Event::Tick { entry_age }), "0: has 0, 0: IsOver");
    assert_eq!(played.give(&[("job", 2, &[]), ("other", 2, &[])]), "");
    assert_eq!(played.tick(Duration::ZERO), "0: has 2, 1: open other other.1, 1: LookUp");
}

#[test]
fn job_that_cannot_be_prepared_is_left_to_others() {
    let mut played = Played::new();
    played.give(&[("job", 2, &[])]);
    played.found_open(0);
    played.opened(0, Some(()));
    let failure = ProvisioningFailure {
        reason: "no disk".to_owned(),
        obstacle: ProvisioningObstacle::Lasting,
    };
    assert_eq!(played.provisioned(0, Err(failure)), "0: tell no disk");
    assert_eq!(played.done(0), "0: close");
    assert_eq!(played.allocations.state().unable["job"], "no disk");
    assert_eq!(played.tick(REST / 2), "");
    assert_eq!(played.give(&[]), "");
    assert!(
        played.allocations.state().unable.contains_key("job"),
        "the schedule must not give it again at once"
    );
    assert_eq!(played.tick(REST), "");
    assert!(played.allocations.state().unable.is_empty());
    assert_eq!(played.give(&[("job", 2, &[])]), "1: open job job.1, 1: LookUp");
}

#[test]
fn job_of_another_format_is_left_to_others() {
    let mut played = Played::new();
    played.give(&[("job", 2, &[])]);
    let found = Ok(JobLookup::Foreign("format 2".to_owned()));
    assert_eq!(played.looked_up(0, found), "0: tell format 2, 0: has 2");
    assert_eq!(played.done(0), "0: close");
    assert_eq!(played.allocations.state().unable["job"], "format 2");
}

#[test]
fn silent_store_is_asked_again_and_reported_after_three_failures() {
    let mut played = Played::new();
    played.give(&[("job", 2, &[])]);
    assert_eq!(played.looked_up(0, Err(NoAnswer)), "0: close");
    assert!(played.allocations.state().unable.is_empty(), "the store may be silent for all");
    for visit in 1..=FAILURES_MAX {
        let visit = u64::from(visit);
        assert!(played.tick(REST).contains(&format!("{visit}: LookUp")));
        played.found_open(visit);
        played.opened(visit, Some(()));
        let failure = ProvisioningFailure {
            reason: "silent".to_owned(),
            obstacle: ProvisioningObstacle::SilentStore,
        };
        assert_eq!(
            played.provisioned(visit, Err(failure)),
            if visit < 3 { format!("{visit}: close") } else { format!("{visit}: tell silent") }
        );
    }
}

#[test]
fn agent_that_gives_up_or_fails_is_not_started_again_at_once() {
    for (worked, rest) in [(Ok(0), REST), (Err(AgentFailed::Otherwise), FAILED_REST)] {
        let mut played = Played::at_work();
        assert_eq!(played.worked(0, worked), "0: CleanUp");
        assert_eq!(played.done(0), "0: close");
        assert!(played.allocations.state().unable.contains_key("job"));
        assert_eq!(played.tick(rest), "1: open job job.1, 1: LookUp");
    }
}

#[test]
fn job_that_is_over_is_rarely_asked_for() {
    let mut played = Played::new();
    played.give(&[("job", 2, &[])]);
    assert_eq!(played.looked_up(0, Ok(JobLookup::Over("it has ended"))), "0: close");
    assert_eq!(played.tick(OVER_EVERY / 2), "");
    played.give(&[]);
    assert_eq!(
        played.give(&[("job", 2, &[])]),
        "1: open job job.1, 1: LookUp",
        "it was opened again"
    );
}

#[test]
fn node_with_short_memory_begins_no_second_job() {
    let mut played = Played::new();
    played.after(Event::MemoryIsShort(true));
    assert_eq!(played.give(&[("one", 1, &[])]), "0: open one one.1, 0: LookUp");
    assert_eq!(played.give(&[("one", 1, &[]), ("two", 1, &[])]), "0: has 1");
    assert!(played.allocations.state().unable.contains_key("two"));
    played.after(Event::MemoryIsShort(false));
    assert!(played.tick(REST).contains("1: open two"));
}

#[test]
fn stopping_node_leaves_everything() {
    let mut played = Played::new();
    played.give(&[("one", 1, &[]), ("two", 1, &[])]);
    played.begin(0);
    assert_eq!(played.after(Event::Stop(Stop::Drain)), "0: stop Drain, 1: close");
    assert!(!played.allocations.state().accepts_work);
    assert_eq!(played.worked(0, Ok(2)), "0: LetGo");
    played.done(0);
    assert_eq!(played.done(0), "0: close");
    assert!(played.allocations.is_over());
}

#[test]
fn idle_node_ends() {
    let mut played = Played::new();
    played.allocations.config.idle_exit = Some(Duration::from_secs(10));
    played.give(&[("job", 1, &[])]);
    played.tick(Duration::from_secs(60));
    assert!(!played.allocations.is_over());
    played.give(&[]);
    played.tick(Duration::from_secs(10));
    assert!(played.allocations.is_over());
    assert_eq!(played.allocations.ended(), Ended::Idle);
}

/// An event of a node: a schedule, or an answer to one of the open steps.
#[derive(Clone, Debug)]
enum Happens {
    Given(Vec<(usize, u32, Vec<u32>)>),
    Answer { which: usize, well: bool },
    Passes(u64),
}

fn happens() -> impl Strategy<Value = Happens> {
    let job = (0..4usize, 1..4u32, prop::collection::btree_set(0..4u32, 0..3));
    prop_oneof![
        2 => prop::collection::vec(job, 0..4).prop_map(|jobs| {
            Happens::Given(jobs.into_iter().map(|(job, processes, gpus)| (job, processes, gpus.into_iter().collect())).collect())
        }),
        6 => (0..8usize, prop::bool::weighted(0.8)).prop_map(|(which, well)| Happens::Answer { which, well }),
        1 => (0..70u64).prop_map(Happens::Passes),
    ]
}

proptest! {
    /// Whatever happens, a job has one visit, each visit one open step beside `IsOver`, and no GPU two jobs; and a node that
    /// stops leaves everything once its steps are answered.
    #[test]
    fn visits_and_gpus_stay_apart(all in prop::collection::vec(happens(), 1..60)) {
        let mut played = Played::new();
        let mut open: Vec<(VisitId, Step)> = Vec::new();
        // The GPUs that each agent may use: an agent leaves GPUs only when it reports so.
        let mut told: BTreeMap<VisitId, (u64, BTreeSet<u32>)> = BTreeMap::new();
        let mut stopping = false;
        let events = all.into_iter().map(Some).chain(std::iter::repeat_n(None, 200));
        for happens in events {
            let event = match happens {
                Some(Happens::Given(jobs)) => {
                    let mut taken = BTreeSet::new();
                    let number = played.schedule.number + 1;
                    let mut allocations = Vec::new();
                    for (job, processes, gpus) in jobs {
                        let gpus: Vec<u32> = gpus.into_iter().filter(|gpu| taken.insert(*gpu)).collect();
                        let job_id = format!("job-{job}");
                        if !allocations.iter().any(|known: &Allocation| known.job_id == job_id) {
                            allocations.push(Allocation { node: "node".to_owned(), job_id, processes, gpus });
                        }
                    }
                    let jobs = allocations.iter().map(|allocation| ScheduledJob {
                        job_id: allocation.job_id.clone(),
                        admitted_in: Some(1),
                        ..ScheduledJob::default()
                    });
                    played.schedule = Schedule { number, jobs: jobs.collect(), allocations, ..Schedule::default() };
                    Event::Scheduled(Box::new(played.schedule.clone()))
                }
                Some(Happens::Passes(seconds)) => {
                    played.now += Duration::from_secs(seconds);
                    Event::Tick { entry_age: Some(Duration::ZERO) }
                }
                answer => {
                    let (which, well) = match answer {
                        Some(Happens::Answer { which, well }) => (which, well),
                        _ if !stopping => {
                            stopping = true;
                            played.allocations.handle(Event::Stop(Stop::Drain), played.now);
                            (0, true)
                        }
                        _ => (0, true),
                    };
                    if open.is_empty() {
                        continue;
                    }
                    let (visit, step) = open.remove(which % open.len());
                    match step {
                        Step::LookUp if well => {
                            Event::LookedUp { visit, found: Ok(JobLookup::Open(Box::new(JobSpec::example()))) }
                        }
                        Step::LookUp => Event::LookedUp { visit, found: Err(NoAnswer) },
                        Step::OpenQueues => Event::Opened { visit, opened: if well { Ok(Some(())) } else { Err(NoAnswer) } },
                        Step::Provision(_) => {
                            let failed = ProvisioningFailure { reason: "bad".to_owned(), obstacle: ProvisioningObstacle::Lasting };
                            Event::Provisioned { visit, result: if well { Ok(()) } else { Err(failed) } }
                        }
                        Step::Work if !stopping && well => {
                            // The agent continues, and has applied its allocation.
                            open.push((visit, Step::Work));
                            let (number, gpus) = told[&visit].clone();
                            let processes = played.allocations.visits[&visit].agent_allocation.processes as usize;
                            Event::AllocationReport { visit, in_use: AllocationReport { number, processes, gpus, ..AllocationReport::default() } }
                        }
                        Step::Work => {
                            told.remove(&visit);
                            Event::Worked { visit, worked: Ok(1) }
                        }
                        Step::IsOver => Event::Looked { visit, over: None },
                        Step::Tell(_) | Step::LetGo | Step::CleanUp => Event::Done { visit },
                    }
                }
            };
            played.allocations.handle(event, played.now);
            while let Some(action) = played.allocations.next_action() {
                match action {
                    Action::Do { visit, step } => {
                        if step == Step::Work {
                            let agent_allocation = &played.allocations.visits[&visit].agent_allocation;
                            told.insert(visit, (agent_allocation.number, agent_allocation.gpus.iter().copied().collect()));
                        }
                        open.push((visit, step));
                    }
                    Action::Allocate { visit, allocation } => {
                        if let Some((number, gpus)) = told.get_mut(&visit) {
                            *number = allocation.number;
                            *gpus = allocation.gpus.iter().copied().collect();
                        }
                    }
                    Action::Close(visit) => {
                        open.retain(|(other, _)| *other != visit);
                        told.remove(&visit);
                    }
                    _ => {}
                }
            }
            let jobs: Vec<&str> = played.allocations.visits.values().map(|visit| visit.job_id.as_str()).collect();
            prop_assert_eq!(jobs.iter().collect::<BTreeSet<_>>().len(), jobs.len());
            for visit in played.allocations.visits.keys() {
                let steps = open.iter().filter(|(other, step)| other == visit && *step != Step::IsOver).count();
                prop_assert!(steps <= 1, "{:?}", open);
            }
            let mut owners: BTreeMap<u32, VisitId> = BTreeMap::new();
            for (visit, (_, gpus)) in &told {
                for gpu in gpus {
                    let other = owners.insert(*gpu, *visit);
                    prop_assert!(other.is_none(), "GPU {gpu} has two jobs");
                }
            }
        }
        prop_assert!(played.allocations.is_over(), "{:?}", open);
    }
}
