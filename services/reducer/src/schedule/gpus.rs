//! Assigns the GPUs of nodes to jobs. A job keeps the GPUs that it has. A GPU that keeps failing for a job goes to
//! another job.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use protocol::{Allocation, Demand, NodeState, Schedule};

use super::{Bounds, Processes};

/// Returns the allocations for these processes. A job gets fewer processes if too few GPUs remain that work for it.
pub(super) fn assigned(
    demands: &[&Demand],
    nodes: &[NodeState],
    shares: &[Processes],
    previous: &Schedule,
) -> Vec<Allocation> {
    let mut of_node: BTreeMap<usize, Vec<(usize, u32)>> = BTreeMap::new();
    for (job, share) in shares.iter().enumerate() {
        share.iter().for_each(|(node, processes)| {
            of_node.entry(*node).or_default().push((job, *processes))
        });
    }
    let with_gpus = previous.allocations.iter().filter(|before| !before.gpus.is_empty());
    let before: HashMap<(&str, &str), &[u32]> =
        with_gpus.map(|before| ((&*before.node, &*before.job_id), &*before.gpus)).collect();
    let mut allocations = Vec::new();
    for (at, jobs) in of_node {
        let node = &nodes[at];
        let none = BTreeSet::new();
        let failing = |job: usize| {
            node.jobs.get(&demands[job].job_id).map_or(&none, |running| &running.failing_gpus)
        };
        let had = |job: usize| {
            let key = (node.name.as_str(), demands[job].job_id.as_str());
            before.get(&key).copied().unwrap_or_default()
        };
        let mut owner: BTreeMap<u32, usize> = BTreeMap::new();
        for (job, _) in &jobs {
            owner.extend(had(*job).iter().map(|gpu| (*gpu, *job)));
        }
        let mut free: BTreeSet<u32> = (0..node.offer.gpus).collect();
        let mut jobs = jobs;
        // A job for which GPUs fail chooses first, because it has the smallest choice.
        jobs.sort_by_key(|(job, _)| std::cmp::Reverse(failing(*job).len()));
        for (job, mut processes) in jobs {
            let Some(bounds) = Bounds::of(demands[job], node) else { continue };
            let mut choice: Vec<u32> = free.difference(failing(job)).copied().collect();
            choice.sort_by_key(|gpu| match owner.get(gpu) {
                Some(owner) if *owner == job => 0,
                None => 1,
                Some(_) => 2,
            });
            while bounds.gpus(processes) as usize > choice.len() {
                processes -= 1;
            }
            choice.truncate(bounds.gpus(processes) as usize);
            choice.sort_unstable();
            free.retain(|gpu| !choice.contains(gpu));
            if processes > 0 {
                let (node, job_id) = (node.name.clone(), demands[job].job_id.clone());
                allocations.push(Allocation { node, job_id, processes, gpus: choice });
            }
        }
    }
    allocations
}
