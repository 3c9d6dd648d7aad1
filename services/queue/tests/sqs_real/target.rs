//! The three queues of a target.

use std::time::Duration;

use queue::{Error, Message, Queue, Redrive, SqsTarget};

use crate::{Deleted, localstack, moto, open, options, receipts, receive, request, unused_name};

struct Target {
    tasks: Deleted,
    results: Deleted,
    dead_letters: Deleted,
}

async fn target(prefix: &str, endpoint: &str, create: bool) -> Result<Target, Error> {
    let SqsTarget { tasks, results, dead_letters } = SqsTarget::open(options(endpoint, prefix, create)).await?;
    Ok(Target { tasks: Deleted(tasks), results: Deleted(results), dead_letters: Deleted(dead_letters) })
}

#[tokio::test(flavor = "multi_thread")]
async fn target_has_three_queues_with_policies() {
    for endpoint in [localstack(), moto()] {
        let prefix = unused_name();
        let missing = target(&prefix, &endpoint, false).await.err();
        assert!(matches!(missing, Some(Error::Misconfigured { .. })), "{missing:?}");
        let made = target(&prefix, &endpoint, true).await.expect("creates");
        let dead_letters = made.dead_letters.attributes().await.expect("exists");
        assert!(dead_letters.arn.ends_with(&format!(":{prefix}-dead-letters")), "{dead_letters:?}");
        assert_eq!((dead_letters.redrive, dead_letters.retention), (None, Duration::from_secs(14 * 24 * 3600)));
        let redrive = Redrive { dead_letters_arn: dead_letters.arn, receive_count_max: 100 };
        for (queue, role) in [(&made.tasks, "tasks"), (&made.results, "results")] {
            let attributes = queue.attributes().await.expect("exists");
            assert!(attributes.arn.ends_with(&format!(":{prefix}-{role}")), "{attributes:?}");
            assert_eq!(attributes.redrive, Some(redrive.clone()));
            assert_eq!(attributes.retention, Duration::from_secs(14 * 24 * 3600));
        }
        // Opening them again, even concurrently, leaves them unchanged.
        made.tasks.send(vec![Message::new("a", "job")]).await.expect("sends");
        let (one, other) = tokio::join!(
            SqsTarget::open(options(&endpoint, &prefix, true)),
            SqsTarget::open(options(&endpoint, &prefix, false))
        );
        let (one, other) = (one.expect("opens"), other.expect("opens"));
        receive(&one.tasks, 1).await;
        assert_eq!(other.tasks.depth().await.expect("depth").in_flight, 1);
        assert_eq!(made.results.depth().await.expect("depth").total(), 0);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_creation_creates_each_queue_once() {
    let prefix = unused_name();
    let endpoint = localstack();
    let opened = futures::future::join_all((0..4).map(|_| SqsTarget::open(options(&endpoint, &prefix, true)))).await;
    let mut opened: Vec<SqsTarget> = opened.into_iter().map(|target| target.expect("opens")).collect();
    let SqsTarget { tasks, results, dead_letters } = opened.remove(0);
    let kept = [Deleted(tasks), Deleted(results), Deleted(dead_letters)];
    opened[0].results.send(vec![Message::new("a", "job")]).await.expect("sends");
    assert_eq!(kept[1].depth().await.expect("depth").total(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn unacknowledged_message_moves_to_the_dead_letters() {
    let made = target(&unused_name(), &localstack(), true).await.expect("creates");
    made.tasks.send(vec![Message::new("a", "job")]).await.expect("sends");
    for count in 1..=100 {
        let deliveries = receive(&made.tasks, 1).await;
        assert_eq!(deliveries[0].receive_count, count);
        made.tasks.release(&receipts(&deliveries)).await.expect("releases");
    }
    assert!(made.tasks.receive(request(1)).await.expect("receives").is_empty());
    let dead = receive(&made.dead_letters, 1).await;
    assert_eq!(dead.iter().map(|delivery| &delivery.body[..]).collect::<Vec<_>>(), [b"a"]);
    assert_eq!(made.results.depth().await.expect("depth").total(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn queue_can_be_opened_by_url() {
    for endpoint in [localstack(), moto()] {
        let name = unused_name();
        let queue = Deleted(open(&endpoint, &name, true).await.expect("creates"));
        queue.send(vec![Message::new("a", "job")]).await.expect("sends");
        let arn = queue.attributes().await.expect("exists").arn;
        let account = arn.split(':').nth(4).expect("an account");
        let by_url = open(&endpoint, &format!("{endpoint}/{account}/{name}"), false).await.expect("opens");
        receive(&by_url, 1).await;
    }
}
