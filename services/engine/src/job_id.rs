//! Ids of jobs: `<name>-<yyyymmdd>-<hhmmss>-<milliseconds and 52 random bits>`. An id holds the name and the start time of
//! its job.

use chrono::{DateTime, NaiveDateTime, Utc};

/// Maximum length of the name of a job.
const NAME_BYTES_MAX: usize = 32;

/// Sorts ids by their time, and removes names that are not ids.
pub fn newest_first(ids: Vec<String>) -> Vec<String> {
    // Thousands of ids are compared, so the time of each is read once, as a number.
    let number = |time: &str| {
        time.bytes()
            .filter(u8::is_ascii_digit)
            .fold(0, |number, digit| 10 * number + u64::from(digit - b'0'))
    };
    let timed = ids.into_iter().filter_map(|id| Some((number(started(&id)?), id)));
    let mut timed: Vec<(u64, String)> = timed.collect();
    // Ids of the same second sort by the milliseconds after their last hyphen.
    let end = |id: &String| id.rfind('-').unwrap_or_default();
    timed.sort_unstable_by(|(time, id), (other_time, other)| {
        (other_time, &other[end(other)..], other).cmp(&(time, &id[end(id)..], id))
    });
    timed.into_iter().map(|(_, id)| id).collect()
}

/// Returns the name of the job with this id.
pub fn name_of(id: &str) -> &str {
    name_and_time(id).map_or(id, |(name, _)| name)
}

/// Returns the time at which the job with this id was created.
pub fn started_at(id: &str) -> Option<DateTime<Utc>> {
    NaiveDateTime::parse_from_str(started(id)?, "%Y%m%d-%H%M%S").ok().map(|time| time.and_utc())
}

pub(crate) fn is_named(id: &str, name: &str) -> bool {
    started(id).is_some() && name_of(id) == name
}

/// Returns an id for a job that starts now: its name, the time, and 52 random bits.
pub fn new_job_id(name: &str) -> String {
    let (now, random) = (Utc::now(), storage::random_name());
    let milliseconds = now.timestamp_subsec_millis();
    format!("{name}-{}-{milliseconds:03x}{}", now.format("%Y%m%d-%H%M%S"), &random[..13])
}

/// Returns the name of a job that follows from another one: the beginning of its name, and this end.
pub(crate) fn name_with(name: &str, suffix: &str) -> String {
    let bytes = name.floor_char_boundary(NAME_BYTES_MAX.saturating_sub(suffix.len()));
    format!("{}{suffix}", &name[..bytes])
}

/// Returns the time in an id, by which ids sort.
pub(crate) fn started(id: &str) -> Option<&str> {
    name_and_time(id).map(|(_, time)| time)
}

/// Splits an id.
fn name_and_time(id: &str) -> Option<(&str, &str)> {
    let (front, random) = id.rsplit_once('-')?;
    let (name, time) =
        front.split_at_checked(front.len().checked_sub("-20261121-100203".len())?)?;
    let time = time.strip_prefix('-')?;
    let is_time =
        time.bytes().enumerate().all(|(at, byte)| byte.is_ascii_digit() || at == "20261121".len());
    let is_random = !random.is_empty() && random.bytes().all(|byte| byte.is_ascii_hexdigit());
    (is_time && is_random).then_some((name, time))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_that_follows_from_another_has_its_end() {
        assert_eq!(name_with("score", "-7"), "score-7");
        let name = name_with(&"a".repeat(NAME_BYTES_MAX), "-replay");
        assert_eq!((name.len(), name.ends_with("a-replay")), (NAME_BYTES_MAX, true));
    }

    #[test]
    fn ids_sort_by_their_time_whatever_their_names() {
        let ids = [
            "z-20251231-235959-ab12",
            "lost+found",
            "a-20260101-000000-ab12",
            "b-20260101-000000-ab12",
            "a-20260101-000000-ab13",
        ];
        let sorted = newest_first(ids.map(str::to_owned).to_vec());
        assert_eq!(sorted, [ids[4], ids[3], ids[2], ids[0]]);
    }

    #[test]
    fn ids_of_one_second_sort_by_their_milliseconds() {
        let mut ids = Vec::new();
        for _ in 0..20 {
            ids.push(new_job_id("a"));
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
        let sorted = newest_first(ids.clone());
        ids.reverse();
        assert_eq!(sorted, ids);
    }

    #[test]
    fn id_holds_name_and_time() {
        let id = new_job_id("a-job");
        assert!(started(&id).is_some(), "{id}");
        assert_eq!(started("a-20261121-100203-ab12"), Some("20261121-100203"));
        assert_eq!((name_of(&id), is_named(&id, "a-job")), ("a-job", true));
        assert_eq!(name_of("a-b-20261121-100203-ab12"), "a-b");
        assert_eq!(
            (started("lost+found"), started("20261121-100203-ab12"), started("é-ab12")),
            (None, None, None)
        );
        assert_ne!(new_job_id("a"), new_job_id("a"));
    }
}
