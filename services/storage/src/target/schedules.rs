//! The schedules of a target: which node works on which job, in `schedule/<number>`.
//!
//! Every reducer may compute the next schedule. It creates the object if it is absent, so each number has one schedule,
//! and a reducer that loses the race follows that of the winner. A reader requests the number after the last one that
//! it knows. A reader that has missed too many lists them.

use std::time::Duration;

use object_store::ObjectMeta;
use protocol::Schedule;
use tokio::time::Instant;

use super::TargetStore;
use crate::create::Commit;
use crate::error::optional;
use crate::{Error, Result, random_name};

/// The number of schedules that are kept. A slow reader still finds the next one, and a slow writer the schedule to
/// which it has lost.
const KEPT: u64 = 64;
/// The time without a new schedule after which a follower lists them, because the next one may have been removed.
const LIST_AFTER: Duration = Duration::from_secs(60);

impl TargetStore {
    /// Returns a schedule by its number; `None` if it does not exist yet, or has been removed.
    pub async fn schedule(&self, number: u64) -> Result<Option<Schedule>> {
        let name = schedule(number);
        match optional(self.objects.json::<Schedule>(&name).await)? {
            Some(read) if read.number != number => {
                let message = format!("it contains number {}", read.number);
                Err(Error::damaged(self.objects.name(&name), message))
            }
            read => Ok(read),
        }
    }

    /// Creates a schedule under its number, and removes an old one. Returns `Lost` if another process has created a
    /// schedule with this number.
    pub async fn create_schedule(&self, next: &Schedule) -> Result<Commit> {
        let body = serde_json::to_vec(next).expect("plain data always serialises");
        let commit = self.objects.create(&schedule(next.number), body).await?;
        if let Some(old) = next.number.checked_sub(KEPT).filter(|_| commit == Commit::Committed) {
            let _ = self.objects.delete(&schedule(old)).await;
        }
        Ok(commit)
    }

    /// Returns the last schedule, or `None` if it is damaged or the target has no schedule.
    pub async fn last_schedule(&self) -> Result<Option<Schedule>> {
        match self.last_schedule_number().await? {
            0 => Ok(None),
            last => match self.schedule(last).await {
                Err(Error::Damaged { .. }) => Ok(None),
                schedule => schedule,
            },
        }
    }

    async fn last_schedule_number(&self) -> Result<u64> {
        Ok(self.schedule_numbers().await?.into_iter().max().unwrap_or_default())
    }

    async fn schedule_numbers(&self) -> Result<Vec<u64>> {
        let number = |meta: ObjectMeta| meta.location.filename()?.parse::<u64>().ok();
        Ok(self.objects.list("schedule").await?.into_iter().filter_map(number).collect())
    }
}

/// A follower of the schedules of a target. [`look`](Self::look) sends one request, and one for each new schedule.
#[derive(Debug)]
pub struct ScheduleFollower {
    target: TargetStore,
    known: Schedule,
    /// The number of the last schedule that the caller knows.
    reported: u64,
    damage: Option<Error>,
    author: String,
    build: String,
    /// When it last found a schedule, or listed all of them; `None` before the first look.
    certain_at: Option<Instant>,
}

impl ScheduleFollower {
    /// Creates a follower that knows no schedule.
    pub fn new(target: TargetStore) -> Self {
        let (known, author, build) = (Schedule::default(), random_name(), String::new());
        Self { target, known, reported: 0, damage: None, author, build, certain_at: None }
    }

    /// Sets the build of this process, which its schedules name.
    pub fn of_build(self, build: String) -> Self {
        Self { build, ..self }
    }

    /// Returns the last schedule that it has found.
    pub fn known(&self) -> &Schedule {
        &self.known
    }

    /// Returns the error of the last schedule, if it is damaged. A damaged schedule counts as one without allocations,
    /// so that the next schedule can follow it.
    pub fn damage(&self) -> Option<&Error> {
        self.damage.as_ref()
    }

    /// Commits the schedule after the known one. If another process was faster, its schedule becomes the known one.
    pub async fn commit(&mut self, next: Schedule) -> Result<Commit> {
        let next = Schedule { author: self.author.clone(), build: self.build.clone(), ..next };
        let commit = self.target.create_schedule(&next).await?;
        match commit {
            Commit::Committed => {
                self.reported = next.number;
                self.found(next);
            }
            Commit::Lost => drop(self.look().await?),
        }
        Ok(commit)
    }

    /// Reads later schedules. Returns whether it has found one since the last call returned.
    pub async fn look(&mut self) -> Result<bool> {
        if self.certain_at.is_none_or(|at| at.elapsed() >= LIST_AFTER) {
            let last = self.target.last_schedule_number().await?;
            if last > self.known.number {
                self.read(last).await?;
            }
            self.certain_at = Some(Instant::now());
        }
        while self.read(self.known.number + 1).await? {}
        let before = std::mem::replace(&mut self.reported, self.known.number);
        Ok(self.known.number > before)
    }

    /// Reads a schedule. Returns whether it exists.
    async fn read(&mut self, number: u64) -> Result<bool> {
        match self.target.schedule(number).await {
            Ok(Some(schedule)) => self.found(schedule),
            Ok(None) => return Ok(false),
            Err(error @ Error::Damaged { .. }) => {
                self.found(Schedule { number, ..Schedule::default() });
                self.damage = Some(error);
            }
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    fn found(&mut self, schedule: Schedule) {
        (self.known, self.damage, self.certain_at) = (schedule, None, Some(Instant::now()));
    }
}

fn schedule(number: u64) -> String {
    format!("schedule/{number}")
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use object_store::memory::InMemory;
    use object_store::path::Path as ObjectPath;
    use protocol::Allocation;

    use super::super::tests::targets;
    use super::*;

    fn numbered(number: u64, node: &str) -> Schedule {
        let allocation = Allocation {
            node: node.to_owned(),
            job_id: "job".to_owned(),
            processes: 1,
            gpus: vec![],
        };
        Schedule { number, allocations: vec![allocation], ..Schedule::default() }
    }

    #[tokio::test]
    async fn one_of_two_writers_wins_and_the_other_finds_its_schedule() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for target in targets(folder.path()).await {
            let mut follower = ScheduleFollower::new(target.clone());
            assert!(!follower.look().await.expect("readable"), "no schedule exists yet");
            assert_eq!(follower.known(), &Schedule::default());
            assert_eq!(target.schedule(1).await.expect("readable"), None);
            assert_eq!(
                target.create_schedule(&numbered(1, "a")).await.expect("writable"),
                Commit::Committed
            );
            assert_eq!(
                target.create_schedule(&numbered(1, "b")).await.expect("writable"),
                Commit::Lost
            );
            assert_eq!(target.schedule(1).await.expect("readable"), Some(numbered(1, "a")));
            assert!(follower.look().await.expect("readable"));
            assert_eq!(follower.known(), &numbered(1, "a"));
        }
    }

    /// The author makes the schedules differ: a store takes an equal write for a retry, so that both would win.
    #[tokio::test]
    async fn one_of_two_processes_commits_equal_schedules() {
        let folder = tempfile::tempdir().expect("temporary folder");
        for target in targets(folder.path()).await {
            let [mut one, mut other] = [(); 2].map(|()| ScheduleFollower::new(target.clone()));
            assert_eq!(one.commit(numbered(1, "a")).await.expect("writable"), Commit::Committed);
            assert_eq!(other.commit(numbered(1, "a")).await.expect("writable"), Commit::Lost);
            assert_eq!(one.known(), other.known());
        }
    }

    #[tokio::test]
    async fn old_schedules_are_removed_and_the_last_ones_kept() {
        let target = TargetStore::new(Arc::new(InMemory::new()), ObjectPath::default());
        for number in 1..=KEPT + 3 {
            target.create_schedule(&numbered(number, "a")).await.expect("writable");
        }
        let mut numbers = target.schedule_numbers().await.expect("readable");
        numbers.sort_unstable();
        assert_eq!(numbers, (4..=KEPT + 3).collect::<Vec<_>>());
    }

    #[tokio::test(start_paused = true)]
    async fn follower_finds_the_last_schedule_even_after_a_long_absence() {
        let target = TargetStore::new(Arc::new(InMemory::new()), ObjectPath::default());
        let mut follower = ScheduleFollower::new(target.clone());
        assert!(!follower.look().await.expect("readable"), "no schedule exists yet");
        for number in 1..=3 {
            target.create_schedule(&numbered(number, "a")).await.expect("writable");
        }
        assert!(follower.look().await.expect("readable"));
        assert_eq!(follower.known(), &numbered(3, "a"));
        assert!(!follower.look().await.expect("readable"), "it knows the last one");
        for number in 4..=4 + 2 * KEPT {
            target.create_schedule(&numbered(number, "b")).await.expect("writable");
        }
        assert!(!follower.look().await.expect("readable"), "the next one was removed meanwhile");
        tokio::time::sleep(LIST_AFTER).await;
        assert!(follower.look().await.expect("readable"));
        assert_eq!(follower.known(), &numbered(4 + 2 * KEPT, "b"));
    }

    #[cfg(unix)]
    #[tokio::test]
    async fn schedule_before_an_unreadable_one_is_still_reported() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let [target, _] = targets(folder.path()).await;
        let mut follower = ScheduleFollower::new(target.clone());
        assert!(!follower.look().await.expect("readable"), "no schedule exists yet");
        target.create_schedule(&numbered(1, "a")).await.expect("writable");
        let next = folder.path().join("schedule/2");
        std::os::unix::fs::symlink(&next, &next).expect("writable");
        follower.look().await.expect_err("a link to itself");
        std::fs::remove_file(&next).expect("writable");
        assert!(follower.look().await.expect("readable"), "the first one is new to the caller");
        assert_eq!(follower.known(), &numbered(1, "a"));
    }
}
