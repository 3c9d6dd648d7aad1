//! One limiter in virtual time, and the nodes of one machine. `tests/simulation` plays nodes that follow a schedule.

use std::time::{Duration, Instant};

use proptest::prelude::*;
use protocol::RateLimits;

use super::*;

const MINUTE: Duration = Duration::from_secs(60);

fn process(slot: usize) -> ProcessId {
    ProcessId { slot, number: slot as u32 }
}

fn ask(slot: usize, id: u64, tokens: u64) -> LimitRequest {
    LimitRequest { key: (process(slot), id), requests: 1, tokens, place: true }
}

fn limits(requests: u64, tokens: u64, places: u32) -> RateLimits {
    let some = |limit: u64| (limit > 0).then_some(limit);
    RateLimits {
        requests_per_minute: some(requests),
        tokens_per_minute: some(tokens),
        concurrent: (places > 0).then_some(places),
    }
}

/// Returns a limiter that has all of the limits.
fn alone(limits: RateLimits, now: Instant) -> Limiter {
    let mut limiter = Limiter::new(limits, 0, now);
    limiter.set_share(0, WHOLE_LIMIT, 0, now);
    limiter
}

/// Returns the most units of any minute.
fn most_in_a_minute(uses: &[(Instant, u64)]) -> u64 {
    let (mut first, mut sum, mut most) = (0, 0, 0);
    for (at, units) in uses {
        sum += units;
        while *at - uses[first].0 >= MINUTE {
            sum -= uses[first].1;
            first += 1;
        }
        most = most.max(sum);
    }
    most
}

/// Grants every 50 ms what an endless queue asks for.
fn run(
    limiter: &mut Limiter,
    start: Instant,
    seconds: u64,
    mut tokens: impl FnMut() -> u64,
) -> Vec<(Instant, u64)> {
    let (mut uses, mut sizes) = (Vec::new(), HashMap::new());
    // What an earlier queue has asked for is withdrawn.
    limiter.forget(process(0));
    for (id, tick) in (0..seconds * 20).enumerate() {
        let now = start + Duration::from_millis(tick * 50);
        while limiter.waiting.len() < 20 {
            let (id, size) = (id as u64 * 1000 + sizes.len() as u64, tokens());
            sizes.insert(id, size);
            limiter.ask(LimitRequest { place: false, ..ask(0, id, size) }, now);
        }
        uses.extend(limiter.grant(now).into_iter().map(|(_, id)| (now, sizes[&id])));
    }
    uses
}

#[test]
fn requests_are_spread_over_the_minute_and_none_of_the_rate_is_lost() {
    let start = Instant::now();
    let mut limiter = alone(limits(600, 0, 0), start);
    let uses: Vec<_> = run(&mut limiter, start, 300, || 1);
    assert!((2900..=3000).contains(&uses.len()), "{}", uses.len());
    assert!(most_in_a_minute(&uses) <= 620);
    let first_second = uses.iter().filter(|(at, _)| *at - start < Duration::from_secs(1)).count();
    assert!(first_second <= 10, "a job does not begin with a burst: {first_second}");
}

#[test]
fn small_limit_is_exact() {
    let start = Instant::now();
    let mut limiter = alone(limits(3, 0, 0), start);
    let uses = run(&mut limiter, start, 600, || 1);
    assert_eq!(most_in_a_minute(&uses), 3);
    assert!(uses.len() >= 28, "{}", uses.len());
}

#[test]
fn answers_follow_the_order_of_questions() {
    let start = Instant::now();
    let mut limiter = alone(limits(60, 0, 0), start);
    for id in 0..3 {
        limiter.ask(ask(id as usize, id, 0), start);
    }
    let ids: Vec<_> =
        (0..40).flat_map(|tick| limiter.grant(start + Duration::from_millis(tick * 100))).collect();
    assert_eq!(ids, [(process(0), 0), (process(1), 1), (process(2), 2)]);
}

#[test]
fn place_is_free_again_when_it_is_released_or_its_process_ends() {
    let now = Instant::now();
    let mut limiter = alone(limits(0, 0, 2), now);
    (0..5).for_each(|id| limiter.ask(ask(id as usize, id, 0), now));
    assert_eq!(limiter.grant(now), [(process(0), 0), (process(1), 1)]);
    assert!(limiter.grant(now).is_empty());
    limiter.release((process(0), 0));
    assert_eq!(limiter.grant(now), [(process(2), 2)]);
    limiter.forget(process(1));
    assert_eq!(limiter.grant(now), [(process(3), 3)]);
    limiter.release((process(4), 4));
    assert!(
        !limiter.is_waiting() && !limiter.waits(process(4)),
        "a wait that is withdrawn is over"
    );
    assert_eq!(limiter.need(now).held, WHOLE_LIMIT);
}

/// Holders of places may wait for tokens, behind those that wait for a place.
#[test]
fn wait_for_a_place_does_not_block_its_holders() {
    let start = Instant::now();
    let mut limiter = alone(limits(0, 600, 1), start);
    limiter.ask(ask(0, 0, 0), start);
    assert_eq!(limiter.grant(start).len(), 1);
    limiter.ask(ask(1, 1, 0), start);
    limiter.ask(LimitRequest { place: false, ..ask(0, 2, 10) }, start);
    assert_eq!(limiter.grant(start + Duration::from_secs(2)), [(process(0), 2)]);
}

#[test]
fn large_request_is_not_overtaken_for_ever() {
    let start = Instant::now();
    let mut limiter = alone(limits(0, 600, 0), start);
    limiter.ask(LimitRequest { place: false, ..ask(0, 0, 600) }, start);
    for tick in 1..1240 {
        let now = start + Duration::from_millis(tick * 50);
        limiter.ask(LimitRequest { place: false, ..ask(1, tick, 1) }, now);
        if limiter.grant(now).first() == Some(&(process(0), 0)) {
            return assert!(tick >= 1190, "not before the minute is over");
        }
    }
    panic!("the large request was never granted");
}

#[test]
fn share_ends_unless_it_is_renewed() {
    let start = Instant::now();
    let mut limiter = alone(limits(6000, 0, 0), start);
    limiter.renew(start + Duration::from_secs(5), start);
    let uses = run(&mut limiter, start, 30, || 1);
    assert!(uses.iter().all(|(at, _)| *at < start + Duration::from_secs(5)));
    assert!((480..=500).contains(&uses.len()), "{}", uses.len());
}

#[test]
fn share_that_lapsed_is_void_even_in_the_next_schedule() {
    let start = Instant::now();
    let mut limiter = alone(limits(6000, 0, 0), start);
    let LimitNeed { id, .. } = limiter.need(start);
    limiter.renew(start + Duration::from_secs(5), start);
    let later = start + Duration::from_secs(6);
    limiter.renew(later + Duration::from_secs(30), later);
    limiter.set_share(id, WHOLE_LIMIT, 0, later);
    assert!(run(&mut limiter, later, 5, || 1).is_empty(), "another node may have it");
    let LimitNeed { id: new, .. } = limiter.need(later);
    assert_ne!(new, id);
    let later = later + Duration::from_secs(5);
    limiter.set_share(new, WHOLE_LIMIT, 0, later);
    assert!(!run(&mut limiter, later, 5, || 1).is_empty());
}

#[tokio::test(start_paused = true)]
async fn nodes_of_one_machine_divide_the_limits_until_all_have_ended() {
    let both = limiters(limits(1200, 0, 0), 2);
    let [one, other] = [0, 1].map(|node: usize| both[node].clone().expect("there are limits"));
    drop(both);
    let parts = |limiter: &SharedLimiter| limiter.lock().expect("no holder panics").parts;
    assert_eq!((parts(&one), parts(&other)), (WHOLE_LIMIT / 2, WHOLE_LIMIT / 2));
    one.lock().expect("no holder panics").ask(ask(0, 0, 0), now());
    tokio::time::sleep(2 * DIVIDE_EVERY).await;
    assert_eq!((parts(&one), parts(&other)), (WHOLE_LIMIT, 0));
    other.lock().expect("no holder panics").ask(ask(0, 0, 0), now());
    tokio::time::sleep(2 * DIVIDE_EVERY).await;
    assert_eq!((parts(&one), parts(&other)), (WHOLE_LIMIT / 2, WHOLE_LIMIT / 2));
    assert_eq!(limiters(RateLimits::default(), 2).len(), 2);
}

#[tokio::test(start_paused = true)]
async fn nodes_of_one_machine_take_turns_at_a_small_limit() {
    let both: Vec<SharedLimiter> = limiters(limits(6, 0, 0), 2).into_iter().flatten().collect();
    for limiter in &both {
        limiter.lock().expect("no holder panics").ask(ask(0, 0, 0), now());
    }
    let mut held = vec![false; 2];
    for _ in 0..3 {
        tokio::time::sleep(TIME_SLICE).await;
        held.iter_mut().zip(&both).for_each(|(held, limiter)| {
            *held |= limiter.lock().expect("no holder panics").parts > 0
        });
    }
    assert_eq!(held, [true, true]);
}

#[test]
fn need_follows_the_demand() {
    let start = Instant::now();
    let mut limiter = alone(limits(600, 0, 0), start);
    assert_eq!(limiter.need(start).want, 0);
    assert_eq!(limiter.need(start).least, WHOLE_LIMIT.div_ceil(150), "four requests of 600");
    limiter.ask(LimitRequest { place: false, ..ask(0, 0, 0) }, start);
    assert_eq!(limiter.need(start).want, WHOLE_LIMIT, "it waits");
    let later = start + Duration::from_secs(6);
    assert_eq!(limiter.grant(later).len(), 1);
    assert_eq!(limiter.need(later).want, WHOLE_LIMIT / 20, "it has waited and waits no more");
    assert_eq!(limiter.need(later + Duration::from_secs(20)).want, 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    /// In every minute, at any sizes of requests and with shares that change.
    #[test]
    fn no_minute_exceeds_the_limit(
        limit in 100u64..100_000,
        sizes in prop::collection::vec(1u64..=100, 1..20),
        shares in prop::collection::vec(0u32..=WHOLE_LIMIT, 0..6),
    ) {
        let start = Instant::now();
        let mut limiter = alone(limits(0, limit, 0), start);
        let mut sizes = sizes.into_iter().cycle();
        let mut uses = run(&mut limiter, start, 90, || sizes.next().unwrap_or(1));
        for (step, parts) in shares.into_iter().enumerate() {
            let at = start + Duration::from_secs(90 + 20 * step as u64);
            limiter.set_share(0, parts, 1, at);
            uses.extend(run(&mut limiter, at, 20, || sizes.next().unwrap_or(1)));
        }
        prop_assert!(most_in_a_minute(&uses) as f64 <= limit as f64 * 1.05, "{}", most_in_a_minute(&uses));
    }
}
