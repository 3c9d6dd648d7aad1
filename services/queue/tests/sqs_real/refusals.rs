//! Permanent errors are one line each: the queue, the problem, the remedy.

use std::process::Command;
use std::time::Duration;

use queue::{Error, Message, Queue, SqsOptions, SqsQueue};

use crate::proxy::{Fate, Proxy, Request};
use crate::{
    Deleted, client, localstack, messages, moto, name_of, open, receipts, receive, request,
    unused_name, unused_queue, url_of,
};

/// Marks the child of a test.
const CHILD: &str = "GRISTMILL_TEST_SQS_CHILD";

/// Asserts that a call failed permanently, with an error of one line that contains these texts.
pub fn assert_error<T>(result: Result<T, Error>, expected: &[&str]) {
    let error = result.err().expect("fails");
    assert!(matches!(error, Error::Misconfigured { .. }), "{error:?}");
    let text = format!("{error:#}");
    assert_eq!(text.lines().count(), 1, "{text}");
    expected
        .iter()
        .for_each(|words| assert!(text.contains(words), "{words:?} is missing in: {text}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_queue_is_named() {
    for endpoint in [localstack(), moto()] {
        let name = unused_name();
        let expected = [&name[..], "does not exist in region us-east-1", "create it"];
        assert_error(open(&endpoint, &name, false).await, &expected);
        assert_error(
            open(&endpoint, &format!("{endpoint}/000000000000/{name}"), false).await,
            &expected,
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deleted_queue_is_named_by_every_call() {
    for endpoint in [localstack(), moto()] {
        let name = unused_name();
        let queue = open(&endpoint, &name, true).await.expect("creates");
        queue.send(messages(2)).await.expect("sends");
        let receipts = receipts(&receive(&queue, 2).await);
        queue.delete().await.expect("deletes");
        let expected = [&name[..], "does not exist", "create it"];
        assert_error(queue.send(messages(1)).await, &expected);
        assert_error(queue.receive(request(20)).await, &expected);
        assert_error(
            queue.extend(&[(receipts[0].clone(), Duration::from_secs(30))]).await,
            &expected,
        );
        assert_error(queue.release(&receipts).await, &expected);
        assert_error(queue.acknowledge(&receipts).await, &expected);
        assert_error(queue.depth().await, &expected);
        assert_error(queue.attributes().await, &expected);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deletion_of_the_queue_ends_a_waiting_receive() {
    let name = unused_name();
    let queue = open(&localstack(), &name, true).await.expect("creates");
    let waiting = queue::Receive { wait: Duration::from_secs(20), ..request(1) };
    let (received, ()) = tokio::join!(queue.receive(waiting), async {
        queue.depth().await.expect("exists");
        queue.delete().await.expect("deletes");
    });
    // The service may end the wait without an error; the next call reports it.
    assert!(received.is_err() || received.is_ok_and(|deliveries| deliveries.is_empty()));
    assert_error(queue.receive(request(1)).await, &[&name, "does not exist"]);
}

/// Answers of AWS to principals without access and to invalid credentials; the emulators allow everything.
#[tokio::test(flavor = "multi_thread")]
async fn denied_access_and_invalid_credentials_are_named() {
    const DENIED: &str = r#"{"__type":"com.amazon.coral.service#AccessDeniedException","message":"User: arn:aws:iam::1:user/ann is not authorized to perform: sqs:sendmessage on resource: arn:aws:sqs:us-east-1:1:q because no identity-based policy allows the sqs:sendmessage action"}"#;
    const UNKNOWN: &str = r#"{"__type":"com.amazon.coral.service#InvalidClientTokenId","message":"The security token included in the request is invalid."}"#;
    const UNSIGNED: &str = r#"{"__type":"com.amazon.coral.service#SignatureDoesNotMatch","message":"Canonical: x-amz-security-token:abc123"}"#;
    const EXPIRED: &str = r#"{"__type":"com.amazon.coral.service#ExpiredTokenException","message":"The security token included in the request is expired"}"#;
    let answers = |request: &Request| match request.action.as_str() {
        "SendMessageBatch" => Fate::Fail(403, DENIED),
        "ReceiveMessage" => Fate::Fail(403, UNKNOWN),
        "DeleteMessageBatch" => Fate::Fail(403, UNSIGNED),
        "DeleteQueue" => Fate::Fail(403, EXPIRED),
        _ => Fate::Pass,
    };
    let name = unused_name();
    let direct = Deleted(open(&localstack(), &name, true).await.expect("creates"));
    direct.send(messages(1)).await.expect("sends");
    let receipts = receipts(&receive(&direct, 1).await);
    let proxy = Proxy::start(&localstack(), answers);
    let queue = open(&proxy.endpoint, &name, false).await.expect("opens");
    assert_error(
        queue.send(messages(1)).await,
        &[&name, "access denied", "sqs:SendMessage", "user/ann"],
    );
    assert_error(
        queue.receive(request(1)).await,
        &[&name, "does not accept the credentials", "AWS_PROFILE"],
    );
    assert_error(queue.acknowledge(&receipts).await, &[&name, "SignatureDoesNotMatch"]);
    let error = queue.acknowledge(&receipts).await.expect_err("fails");
    assert!(!format!("{error:#} {error:?}").contains("abc123"));
    assert_error(queue.delete().await, &[&name, "expired", "sign in again"]);
    assert_eq!(proxy.count("SendMessageBatch"), 1, "a permanent error was retried");
}

#[tokio::test(flavor = "multi_thread")]
async fn fifo_queue_is_rejected() {
    assert_error(open(&localstack(), "some.fifo", true).await, &["some.fifo", "standard queue"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn rejected_entry_is_reported_and_others_are_sent() {
    let queue = unused_queue(&localstack()).await;
    let service = client(&localstack()).await;
    let name = name_of(&queue).await;
    let url = url_of(&service, &name).await;
    // An operator lowers the limit while the queue is open.
    let size = aws_sdk_sqs::types::QueueAttributeName::MaximumMessageSize;
    service
        .set_queue_attributes()
        .queue_url(&url)
        .attributes(size, "1024")
        .send()
        .await
        .expect("sets");
    let sizes = [10, 2000, 10];
    let sent = queue.send(sizes.map(|size| Message::new("x".repeat(size))).to_vec()).await;
    assert_error(sent, &[&name, "SQS rejected SendMessage"]);
    assert_eq!(queue.depth().await.expect("depth").visible, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn unreachable_service_is_unavailable() {
    let error = open("http://127.0.0.1:9", "some-queue", false).await.expect_err("nothing listens");
    assert!(matches!(error, Error::Unavailable { .. }), "{error:?}");
    let text = format!("{error:#}");
    assert!(
        text.contains("some-queue") && text.contains("cannot connect") && text.lines().count() == 1,
        "{text}"
    );
}

/// Runs a test in a child process with only these AWS settings, and returns the error that it prints.
fn error_in_child(test: &str, settings: &[(&str, &str)]) -> String {
    let mut child = Command::new(std::env::current_exe().expect("a test binary"));
    child.args(["--exact", test, "--nocapture"]).env_clear().env(CHILD, "1");
    child.env("AWS_CONFIG_FILE", "/dev/null").env("AWS_SHARED_CREDENTIALS_FILE", "/dev/null");
    child.env("AWS_EC2_METADATA_DISABLED", "true").envs(settings.iter().copied());
    let output = child.output().expect("starts");
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).expect("UTF-8")
}

/// Returns whether this process is the child. Then it has opened a queue and printed the error.
async fn is_child() -> bool {
    let is_child = std::env::var_os(CHILD).is_some();
    if is_child {
        let options = SqsOptions { queue: "some-queue".to_owned(), ..SqsOptions::default() };
        println!("error: {:#}", SqsQueue::open(options).await.expect_err("fails"));
    }
    is_child
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_credentials_are_named() {
    if is_child().await {
        return;
    }
    let endpoint = localstack();
    let settings = [("AWS_REGION", "us-east-1"), ("AWS_ENDPOINT_URL", &endpoint[..])];
    let error = error_in_child("refusals::missing_credentials_are_named", &settings);
    assert!(
        error.contains(
            "queue some-queue cannot be used: there are no AWS credentials; set AWS_PROFILE"
        ),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_region_is_named() {
    if is_child().await {
        return;
    }
    let keys = [("AWS_ACCESS_KEY_ID", "test"), ("AWS_SECRET_ACCESS_KEY", "test")];
    let error = error_in_child("refusals::missing_region_is_named", &keys);
    assert!(
        error.contains("queue some-queue cannot be used: there is no AWS region; set AWS_REGION"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn settings_of_a_profile_are_used() {
    if is_child().await {
        return;
    }
    let file = tempfile::NamedTempFile::new().expect("a file");
    let profile = "[profile fleet]\nregion = eu-west-3\naws_access_key_id = test\naws_secret_access_key = test\n";
    std::fs::write(&file, format!("{profile}endpoint_url = {}\n", localstack())).expect("writes");
    let path = file.path().to_str().expect("UTF-8");
    let settings = [("AWS_CONFIG_FILE", path), ("AWS_PROFILE", "fleet")];
    let error = error_in_child("refusals::settings_of_a_profile_are_used", &settings);
    assert!(
        error.contains("queue some-queue cannot be used: it does not exist in region eu-west-3"),
        "{error}"
    );
}
