//! The lanes of a queue: several queues of the broker hold its messages, so that groups do not wait for each other.
//!
//! A queue of RabbitMQ delivers first in, first out. So a publisher gives each group a lane, the one with the fewest
//! ready messages when it first sends for the group, and keeps to it. Where every lane has messages already, groups have
//! to share them. Then the first messages of a group go to the two last lanes, the *short* ones, and only the rest goes
//! to another lane. Behind any number of large groups, a small one therefore waits for the beginnings of groups, and never
//! for a whole large one.
//!
//! A consumer divides what it requests between the lanes, so that it holds as many messages of one lane as of another; a
//! short lane counts as several, by the number of groups whose messages it has. Nothing else depends on the lane of a
//! message: a message in the wrong lane is delivered all the same, only sooner or later.
//!
//! Messages carry the name of their group. A process that has received a message of a group from a lane that is not
//! short sends to the same lane.

use std::cmp::Ordering;
use std::collections::{BTreeMap, HashMap, VecDeque};
use std::ops::Range;
use std::sync::Mutex;

/// How many groups a process remembers.
const GROUPS_MAX: usize = 1024;
/// Which messages of a group each short lane takes, by how many of them a process has sent before.
const SHORT: [Range<usize>; 2] = [2..32, 0..2];
/// A short lane counts as this many lanes at most, so that the others always get their part.
const PARTS_MAX: usize = 8;

/// The names of the lanes, and the lanes of groups.
#[derive(Debug)]
pub(crate) struct Lanes {
    names: Vec<String>,
    assigned: Mutex<Assigned>,
}

#[derive(Debug, Default)]
struct Assigned {
    places: HashMap<String, GroupLane>,
    /// The oldest assignment is the first.
    order: VecDeque<String>,
}

impl Assigned {
    fn insert(&mut self, group: &str, place: GroupLane) {
        if self.places.insert(group.to_owned(), place).is_some() {
            return;
        }
        self.order.push_back(group.to_owned());
        if self.order.len() > GROUPS_MAX
            && let Some(oldest) = self.order.pop_front()
        {
            self.places.remove(&oldest);
        }
    }
}

/// Where a group is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct GroupLane {
    /// Its lane; `None`: so far only in short lanes.
    lane: Option<usize>,
    /// How many of its messages this process has sent before it had a lane.
    sent: usize,
}

/// Returns how many lanes of these are not short.
pub(crate) fn whole_lanes(lanes: usize) -> usize {
    lanes.saturating_sub(SHORT.len()).max(1)
}

impl Lanes {
    /// Names `count` lanes. The first has the name of the queue, so that a queue of an earlier build is its first lane.
    pub fn new(queue: &str, count: usize) -> Self {
        let others = (2..=count).map(|number| format!("{queue}-{number}"));
        Self { names: std::iter::once(queue.to_owned()).chain(others).collect(), assigned: Mutex::default() }
    }

    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub fn are_several(&self) -> bool {
        self.names.len() > 1
    }

    fn whole(&self) -> usize {
        whole_lanes(self.names.len())
    }

    /// Returns the short lane for the next message of a group, given how many were sent before.
    fn short(&self, sent: usize) -> Option<usize> {
        let short = (self.whole()..self.names.len()).zip(&SHORT);
        short.filter(|(_, takes)| takes.contains(&sent)).map(|(lane, _)| lane).next()
    }

    /// Returns as how many lanes one counts that has this many messages: a short one has several groups.
    pub fn parts(&self, lane: usize, messages: usize) -> usize {
        let takes = lane.checked_sub(self.whole()).and_then(|number| SHORT.get(number));
        takes.map_or(1, |takes| messages.div_ceil(takes.len()).clamp(1, PARTS_MAX))
    }

    /// Returns the lane of a group, if it has one.
    #[cfg(test)]
    pub fn of(&self, group: &str) -> Option<usize> {
        self.assigned.lock().expect("no holder panics").places.get(group).and_then(|place| place.lane)
    }

    /// Notes that a message of a group has arrived from this lane.
    pub fn arrived(&self, group: &str, lane: usize) {
        if lane >= self.whole() {
            return;
        }
        let mut assigned = self.assigned.lock().expect("no holder panics");
        let known = assigned.places.get(group).copied().unwrap_or_default();
        if known.lane.is_none() {
            assigned.insert(group, GroupLane { lane: Some(lane), ..known });
        }
    }

    /// Whether it is known where messages of these groups go, so that [`Self::place`] needs no numbers.
    pub fn are_placed<'a>(&self, groups: impl Iterator<Item = &'a str>) -> bool {
        if !self.are_several() {
            return true;
        }
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        groups.for_each(|group| *counts.entry(group).or_default() += 1);
        let assigned = self.assigned.lock().expect("no holder panics");
        counts.into_iter().all(|(group, count)| {
            let place = assigned.places.get(group);
            place.is_some_and(|place| place.lane.is_some() || self.short(place.sent + count - 1).is_some())
        })
    }

    /// Returns the lane of each of these messages, in their order. `ready`: the number of ready messages of each lane. A
    /// group gets the first lane of those with the fewest, which may be those of groups before it. So a lone group is in
    /// the first lane.
    pub fn place<'a>(&self, groups: impl Iterator<Item = &'a str>, mut ready: Vec<usize>) -> Vec<usize> {
        if !self.are_several() {
            return groups.map(|_| 0).collect();
        }
        let mut assigned = self.assigned.lock().expect("no holder panics");
        let mut place_of = |group: &str| {
            let known = assigned.places.get(group).copied();
            let mut place = known.unwrap_or_default();
            let fewest = (0..self.whole()).min_by_key(|lane| ready[*lane]).expect("one lane is not short");
            let is_free = known.is_none() && ready[fewest] == 0;
            let lane = match (place.lane, self.short(place.sent)) {
                (Some(lane), _) => lane,
                (None, Some(short)) if !is_free => short,
                (None, _) => *place.lane.insert(fewest),
            };
            place.sent += usize::from(place.lane.is_none());
            ready[lane] += 1;
            if known != Some(place) {
                assigned.insert(group, place);
            }
            lane
        };
        groups.map(&mut place_of).collect()
    }
}

/// What a consumer of all lanes knows about one.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Lane {
    /// Messages that the broker could send.
    pub ready: usize,
    /// Messages that arrived and are not settled.
    pub held: usize,
    /// How many more the broker sends without being asked.
    pub free: usize,
    /// The prefetch of its consumers: as messages are settled, the broker sends others up to this number.
    pub capacity: usize,
    /// As how many lanes it counts.
    pub parts: usize,
    /// Grows with each arrival: the lane with the smallest has waited longest for its turn.
    pub turn: u64,
}

impl Lane {
    /// Compares two lanes by the units that they have: the lesser one gets the next unit.
    fn compare(&self, has: usize, other: &Self, other_has: usize) -> Ordering {
        // (2 · has + 1) / parts, without fractions.
        let (one, two) = ((2 * has + 1) * other.parts, (2 * other_has + 1) * self.parts);
        one.cmp(&two).then(self.turn.cmp(&other.turn))
    }
}

/// How the consumers of a lane should change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    /// End its consumers first.
    pub cancel: bool,
    /// Request this many more messages.
    pub add: usize,
}

/// Divides a request between lanes. `missing`: how many messages should still arrive. `replace`: end all consumers
/// first.
///
/// Each message comes from the lane of which the connection holds the fewest, for each lane as which it counts. What no
/// lane has ready is spread over all lanes, and while nothing is ready at all each lane may send at least one message, so
/// that the next one arrives without another look. Consumers end in lanes that would send more than their part while
/// another lane waits, and in empty lanes that hold a part of the request. More than the request may be on its way from
/// a lane with messages; that is no reason to end its consumers.
pub(crate) fn divide(lanes: &[Lane], missing: usize, replace: bool) -> Vec<Change> {
    let ready = |lane: &Lane| lane.ready;
    let mut wanted = match lanes {
        [_] => vec![missing],
        lanes => fill(lanes, |lane| lane.held, ready, missing),
    };
    let left = missing - wanted.iter().sum::<usize>();
    let is_nothing_ready = left > 0 && left == missing;
    for (number, wanted) in wanted.iter_mut().enumerate() {
        let part = left / lanes.len() + usize::from(number < left % lanes.len());
        *wanted += if is_nothing_ready { part.max(1) } else { part };
    }
    let sent: usize = lanes.iter().zip(&wanted).map(|(lane, wanted)| lane.free.max(*wanted)).sum();
    let is_excess = missing > 0 && sent > missing + if is_nothing_ready { lanes.len() } else { 0 };
    let is_over = over_their_part(lanes, missing);
    lanes
        .iter()
        .zip(&wanted)
        .zip(is_over)
        .map(|((lane, wanted), is_over)| {
            let is_idle = is_excess && lane.ready == 0 && lane.free > *wanted;
            let cancel = lane.capacity > 0 && (replace || is_over || is_idle);
            Change { cancel, add: if cancel { *wanted } else { wanted.saturating_sub(lane.free) } }
        })
        .collect()
}

/// Returns for each lane whether its consumers take more than its part, while another lane waits for its own.
fn over_their_part(lanes: &[Lane], missing: usize) -> Vec<bool> {
    let occupied = |lane: &Lane| lane.held + lane.free;
    let capacity = lanes.iter().map(|lane| lane.capacity).sum::<usize>();
    let total = capacity.max(lanes.iter().map(|lane| lane.held).sum::<usize>() + missing);
    let parts = match lanes {
        [_] => return vec![false],
        lanes => fill(lanes, |_| 0, |lane| lane.held.saturating_add(lane.ready), total),
    };
    // A quarter less is no reason to end consumers.
    let waits = |(lane, part): (&Lane, &usize)| lane.ready > 0 && occupied(lane) * 4 < part * 3;
    let one_waits = lanes.iter().zip(&parts).any(waits);
    lanes.iter().zip(&parts).map(|(lane, part)| one_waits && lane.capacity > *part).collect()
}

/// Gives out `total` units, each to the lane that has the fewest by its parts, up to the limit of each lane.
fn fill(lanes: &[Lane], has: impl Fn(&Lane) -> usize, limit: impl Fn(&Lane) -> usize, total: usize) -> Vec<usize> {
    let mut given = vec![0; lanes.len()];
    for _ in 0..total {
        let open = lanes.iter().enumerate().filter(|(number, lane)| given[*number] < limit(lane));
        let with_units = open.map(|(number, lane)| (number, lane, has(lane) + given[number]));
        let next = with_units.min_by(|(_, one, has), (_, other, other_has)| one.compare(*has, other, *other_has));
        let Some((number, ..)) = next else { break };
        given[number] += 1;
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lane(ready: usize, held: usize, free: usize, capacity: usize) -> Lane {
        Lane { ready, held, free, capacity, parts: 1, turn: 0 }
    }

    fn adds(lanes: &[Lane], missing: usize) -> Vec<usize> {
        divide(lanes, missing, false).iter().map(|change| change.add).collect()
    }

    fn placed(lanes: &Lanes, group: &str, count: usize, ready: &[usize]) -> Vec<usize> {
        lanes.place(std::iter::repeat_n(group, count), ready.to_vec())
    }

    #[test]
    fn group_keeps_its_lane_and_the_oldest_is_forgotten() {
        let lanes = Lanes::new("tasks", 5);
        assert_eq!(lanes.names(), ["tasks", "tasks-2", "tasks-3", "tasks-4", "tasks-5"]);
        lanes.arrived("a", 1);
        lanes.arrived("a", 2);
        assert_eq!((lanes.of("a"), lanes.of("b")), (Some(1), None));
        assert_eq!(placed(&lanes, "a", 2, &[0, 9, 0, 0, 0]), [1, 1]);
        (0..GROUPS_MAX).for_each(|number| lanes.arrived(&number.to_string(), 0));
        assert_eq!((lanes.of("a"), lanes.of("0")), (None, Some(0)));
        let only = Lanes::new("results", 1);
        assert!(only.are_placed(["b"].into_iter()));
        assert_eq!(placed(&only, "b", 2, &[]), [0, 0]);
    }

    #[test]
    fn group_gets_a_lane_without_messages() {
        let lanes = Lanes::new("tasks", 6);
        assert_eq!(placed(&lanes, "lone", 40, &[0; 6]), [0; 40]);
        assert_eq!(lanes.place(["a", "b", "a"].into_iter(), vec![40, 0, 7, 9, 0, 0]), [1, 5, 1]);
    }

    #[test]
    fn short_lanes_take_the_first_messages_of_a_group_only() {
        let lanes = Lanes::new("tasks", 4);
        let full = [50, 40, 0, 0];
        assert_eq!(placed(&lanes, "small", 5, &full), [3, 3, 2, 2, 2]);
        assert!(lanes.are_placed(std::iter::repeat_n("small", 32 - 5)));
        assert!(!lanes.are_placed(std::iter::repeat_n("small", 32 - 4)));
        let large = placed(&lanes, "large", 100, &full);
        assert_eq!((&large[..2], &large[2..32]), (&[3; 2][..], &[2; 30][..]), "it begins at once");
        assert!(large[32..].iter().all(|lane| *lane == 1), "the rest waits elsewhere");
        assert_eq!(placed(&lanes, "large", 1, &[0; 4]), [1], "and keeps to that lane");
        lanes.arrived("returned", 3);
        assert_eq!(placed(&lanes, "returned", 1, &full), [3]);
        lanes.arrived("returned", 0);
        assert_eq!(placed(&lanes, "returned", 1, &full), [0], "what a node returns goes to the lane of the rest");
    }

    #[test]
    fn short_lane_counts_as_many_lanes_as_it_has_groups() {
        let lanes = Lanes::new("tasks", 8);
        assert_eq!([0, 5, 6, 7].map(|lane| lanes.parts(lane, 0)), [1; 4]);
        assert_eq!([0, 5, 6, 7].map(|lane| lanes.parts(lane, 10)), [1, 1, 1, 5]);
        assert_eq!([0, 5, 6, 7].map(|lane| lanes.parts(lane, 91)), [1, 1, 4, PARTS_MAX], "the others get their part");
        let [large, first] = [lane(1000, 0, 0, 0), Lane { parts: 3, ..lane(6, 0, 0, 0) }];
        assert_eq!(adds(&[large, first], 4), [1, 3]);
        assert_eq!(adds(&[Lane { held: 1, ..large }, Lane { held: 3, ..first }], 4), [1, 3]);
    }

    #[test]
    fn request_is_divided_between_lanes_with_messages() {
        let [many, few, none] = [lane(1000, 0, 0, 0), lane(3, 0, 0, 0), lane(0, 0, 0, 0)];
        assert_eq!(adds(&[many, few, none], 12), [9, 3, 0]);
        assert_eq!(adds(&[many, many, many], 12), [4, 4, 4]);
        assert_eq!(adds(&[lane(1000, 10, 0, 10), many], 12), [1, 11]);
    }

    #[test]
    fn single_message_comes_from_the_lane_that_waited_longest() {
        let waited = |turn| Lane { turn, ..lane(5, 0, 0, 0) };
        assert_eq!(adds(&[waited(3), waited(1), waited(2)], 1), [0, 1, 0]);
    }

    #[test]
    fn empty_lanes_listen() {
        let empty = [lane(0, 0, 0, 0); 4];
        assert_eq!(adds(&empty, 1), [1, 1, 1, 1]);
        assert_eq!(adds(&empty, 10), [3, 3, 2, 2]);
        let listening = [lane(0, 0, 1, 1); 4];
        assert!(divide(&listening, 1, false).iter().all(|change| *change == Change::default()));
    }

    #[test]
    fn request_ends_where_no_message_comes() {
        // The second lane has been emptied, and holds what the request could have.
        let lanes = [lane(1000, 8, 0, 8), lane(0, 0, 8, 8)];
        assert_eq!(divide(&lanes, 8, false), [Change { cancel: false, add: 8 }, Change { cancel: true, add: 0 }]);
    }

    #[test]
    fn messages_on_their_way_are_awaited() {
        // Most of an earlier request has not arrived yet.
        let lanes = [lane(3000, 46, 469, 515), lane(0, 0, 0, 0)];
        assert_eq!(divide(&lanes, 25, false), [Change::default(); 2]);
    }

    #[test]
    fn lane_beyond_its_part_gets_no_more_of_itself() {
        // Another group has begun to send.
        let lanes = [lane(1000, 16, 0, 16), lane(10, 0, 0, 0)];
        assert_eq!(divide(&lanes, 0, false), [Change { cancel: true, add: 0 }, Change::default()]);
        assert_eq!(divide(&lanes, 1, false), [Change { cancel: true, add: 0 }, Change { cancel: false, add: 1 }]);
        let fair = [lane(1000, 8, 0, 8), lane(1000, 8, 0, 8)];
        assert!(divide(&fair, 0, false).iter().all(|change| *change == Change::default()));
    }

    #[test]
    fn only_lane_gets_the_whole_request() {
        let one = lane(usize::MAX, 5, 2, 7);
        assert_eq!(divide(&[one], 6, false), [Change { cancel: false, add: 4 }]);
        assert_eq!(divide(&[one], 6, true), [Change { cancel: true, add: 6 }]);
    }
}
