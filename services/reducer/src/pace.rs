//! Measures the throughput of a job in mini-batches, and estimates its remaining time. Pure: counts
//! and times in.
//!
//! The pace is that of the last minute in which a worker was alive, or of the last two rounds of
//! all processes if they take longer. Before every process has had time to end a mini-batch, it is
//! unknown.

use std::collections::VecDeque;
use std::time::Duration;

/// The time over which the pace is measured.
const SPAN: Duration = Duration::from_secs(60);
/// Time between two marks.
const STEP: Duration = Duration::from_secs(1);
/// Mini-batches that each process ends, in which the pace is measured if that takes longer.
const ROUNDS: u64 = 2;

/// The pace of a job since it was started or reopened.
#[derive(Clone, Debug, Default)]
pub(crate) struct Pace {
    /// How many mini-batches had ended after how much time with a worker, oldest first.
    marks: VecDeque<(Duration, u64)>,
    processes: u64,
    /// Mini-batches in a second, as the last reducer of the job knew it.
    before: Option<f64>,
}

impl Pace {
    /// Continues the work of another reducer, which knew this pace.
    pub fn after(before: Option<f64>) -> Self {
        Self { before, ..Self::default() }
    }

    /// Records that this many mini-batches have ended, after this much time with a worker.
    /// `is_at_work`: one runs now. The start of processes, before the first runs, is no part of the
    /// pace.
    pub fn note(&mut self, attended: Duration, ended: u64, processes: u64, is_at_work: bool) {
        self.processes = processes;
        if let [(began, known)] = self.marks.make_contiguous()
            && *known == ended
            && !is_at_work
        {
            *began = attended;
            return;
        }
        if self.marks.back().is_some_and(|(_, known)| ended < *known) {
            // The job was reopened, or has lost rows.
            *self = Self::default();
        }
        match self.marks.len() {
            0 | 1 => self.marks.push_back((attended, ended)),
            last if attended - self.marks[last - 2].0 < STEP => {
                self.marks[last - 1] = (attended, ended)
            }
            _ => self.marks.push_back((attended, ended)),
        }
        while let Some((began, before)) = self.marks.get(1)
            && attended - *began >= SPAN
            && ended - before >= ROUNDS * processes
        {
            self.marks.pop_front();
        }
    }

    /// Returns mini-batches in a second; `None`: unknown.
    pub fn rate(&self) -> Option<f64> {
        let ((began, before), (now, ended)) = (*self.marks.front()?, *self.marks.back()?);
        let (time, ended) = (now - began, ended - before);
        // A next reducer uses the old pace until it has measured its own.
        let (least_time, rounds) =
            if self.before.is_some() { (SPAN / 6, ROUNDS) } else { (STEP, 1) };
        let is_known = time >= least_time && ended >= rounds * self.processes.max(1);
        if is_known { Some(ended as f64 / time.as_secs_f64()) } else { self.before }
    }

    /// Returns how long this many mini-batches take; `None`: unknown.
    pub fn time_for(&self, left: u64) -> Option<Duration> {
        let rate = self.rate().filter(|rate| *rate > 0.0)?;
        Duration::try_from_secs_f64(left as f64 / rate).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Notes one mini-batch for each time, in seconds.
    fn noted(processes: u64, times: &[f64]) -> Pace {
        let mut pace = Pace::default();
        pace.note(Duration::ZERO, 0, processes, true);
        for (ended, time) in (1..).zip(times) {
            pace.note(Duration::from_secs_f64(*time), ended, processes, true);
        }
        pace
    }

    #[test]
    fn pace_is_unknown_before_every_process_could_end_a_mini_batch() {
        assert_eq!(noted(4, &[]).rate(), None);
        assert_eq!(noted(4, &[30.0, 30.1, 30.2]).rate(), None);
        assert_eq!(noted(4, &[30.0, 30.1, 30.2, 40.0]).rate(), Some(0.1));
        assert_eq!(noted(1, &[0.001, 0.002]).rate(), None, "a moment says nothing");
    }

    #[test]
    fn pace_is_that_of_the_last_minute() {
        // One in a second at first, then ten.
        let mut times: Vec<f64> = (1..=100).map(f64::from).collect();
        times.extend((1..=700).map(|tenth| 100.0 + f64::from(tenth) / 10.0));
        let pace = noted(2, &times);
        let rate = pace.rate().expect("known");
        assert!((9.9..=10.1).contains(&rate), "{rate}");
        assert!(pace.marks.len() < 70, "{}", pace.marks.len());
        let left = pace.time_for(100).expect("known").as_secs_f64();
        assert!((9.9..=10.1).contains(&left), "{left}");
    }

    #[test]
    fn slow_mini_batches_are_measured_over_two_rounds() {
        // Four processes, each with a mini-batch of ten minutes.
        let times: Vec<f64> = (1..=5).flat_map(|round| [f64::from(round) * 600.0; 4]).collect();
        let mut pace = noted(4, &times);
        for second in 0..500 {
            pace.note(Duration::from_secs(3000 + second), 20, 4, true);
            let rate = pace.rate().expect("known");
            assert!(
                (8.0 / 1700.0..=4.0 / 600.0 + 1e-9).contains(&rate),
                "after {second} s: {rate}"
            );
        }
    }

    #[test]
    fn reopened_job_begins_anew_and_the_next_reducer_continues() {
        let mut pace = noted(1, &[1.0, 2.0, 3.0]);
        assert_eq!(pace.rate(), Some(1.0));
        pace.note(Duration::from_secs(4), 1, 1, true);
        assert_eq!(pace.rate(), None, "two are to be run again");
        let mut next = Pace::after(Some(2.5));
        next.note(Duration::ZERO, 40, 1, true);
        assert_eq!(next.rate(), Some(2.5));
        next.note(Duration::from_secs(2), 50, 1, true);
        assert_eq!(next.rate(), Some(2.5), "two seconds tell little");
        next.note(Duration::from_secs(10), 90, 1, true);
        assert_eq!(next.rate(), Some(5.0));
    }

    #[test]
    fn start_of_processes_is_no_part_of_the_pace() {
        let mut pace = Pace::default();
        for second in 0..60 {
            pace.note(Duration::from_secs(second), 0, 2, false);
        }
        pace.note(Duration::from_secs(60), 0, 2, true);
        pace.note(Duration::from_secs(64), 20, 2, true);
        let rate = pace.rate().expect("known");
        assert!((4.0..=5.0).contains(&rate), "{rate}");
    }
}
