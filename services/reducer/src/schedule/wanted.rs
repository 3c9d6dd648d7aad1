//! The number of processes that jobs could use, for each kind of node, by which a fleet scales.

use std::collections::{BTreeMap, HashMap, HashSet};

use protocol::{Demand, GpuDemand, Quotas, Schedule};
use telemetry::metrics::{ANY, GPU};

/// Returns how many processes the admitted jobs could use, by their requirements ([`ANY`] if they have none). The jobs
/// of an owner count with at most as many processes as the owner may have mini-batches in flight.
pub(crate) fn wanted(
    jobs: &[Demand],
    schedule: &Schedule,
    quotas: &Quotas,
) -> BTreeMap<String, u64> {
    let admitted = schedule.jobs.iter().filter(|job| job.admitted_in.is_some());
    let admitted: HashSet<&str> = admitted.map(|job| job.job_id.as_str()).collect();
    let mut left: HashMap<&str, u64> = HashMap::new();
    let mut wanted = BTreeMap::new();
    for job in jobs.iter().filter(|job| admitted.contains(job.job_id.as_str())) {
        let of_owner = quotas.of(&job.owner).max_in_flight.map_or(u64::MAX, u64::from);
        let left = left.entry(&job.owner).or_insert(of_owner);
        let of_nodes = match (job.node_count, job.process_count_per_node) {
            (Some(nodes), Some(processes)) => u64::from(nodes) * u64::from(processes),
            _ => u64::MAX,
        };
        let of_job = job.unfinished.min(of_nodes).min(*left);
        *left -= of_job;
        *wanted.entry(kind(job)).or_default() += of_job;
    }
    wanted
}

/// Returns the requirements of a job as text, for people and for scaling rules.
fn kind(job: &Demand) -> String {
    match (job.requires.is_empty(), job.gpus) {
        (false, _) => job.requires.to_string(),
        (true, GpuDemand::WherePresent) => ANY.to_owned(),
        (true, GpuDemand::Each(1) | GpuDemand::Shared(_)) => GPU.to_owned(),
        (true, GpuDemand::Each(gpus)) => format!("{gpus} GPUs"),
    }
}

#[cfg(test)]
mod tests {
    use protocol::{JobSpec, OwnerQuota, Priority, ScheduledJob};

    use super::*;

    fn job(job_id: &str, unfinished: u64, change: impl FnOnce(&mut JobSpec)) -> Demand {
        let example = JobSpec { process_count_per_node: None, ..JobSpec::example() };
        let mut spec = JobSpec { job_id: job_id.to_owned(), owner: "ana".to_owned(), ..example };
        change(&mut spec);
        Demand::of(&spec, Priority::Normal, 0, unfinished)
    }

    fn wanted_by(jobs: &[Demand], quotas: &Quotas) -> Vec<(String, u64)> {
        let admitted = |job: &Demand| ScheduledJob {
            job_id: job.job_id.clone(),
            admitted_in: (job.job_id != "waits").then_some(1),
            ..ScheduledJob::default()
        };
        let schedule =
            Schedule { jobs: jobs.iter().map(admitted).collect(), ..Schedule::default() };
        wanted(jobs, &schedule, quotas).into_iter().collect()
    }

    #[test]
    fn admitted_jobs_count_one_process_for_each_mini_batch_up_to_their_limits() {
        let jobs = [
            job("one", 10, |_| ()),
            job("two", 100, |spec| {
                (spec.node_count, spec.process_count_per_node) = (Some(3), Some(4))
            }),
            job("three", 7, |spec| spec.requires.gpus = 1),
            job("four", 5, |spec| spec.gpus_per_process = Some(1)),
            job("waits", 1000, |_| ()),
            job("ended", 0, |_| ()),
        ];
        let expected = [("1 GPU".to_owned(), 12), ("any".to_owned(), 22)];
        assert_eq!(wanted_by(&jobs, &Quotas::default()), expected);
        let each_owner = OwnerQuota { max_in_flight: Some(11), ..OwnerQuota::default() };
        let quotas = Quotas { each_owner, ..Quotas::default() };
        assert_eq!(wanted_by(&jobs, &quotas).iter().map(|(_, count)| count).sum::<u64>(), 11);
    }
}
