//! Errors of the broker are one clear line each, without a password.

use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use queue::{Broker as _, CONTROL, Error, Message, RabbitBroker, RabbitOptions, TargetQueues};

use crate::broker::{Broker, Certificates};
use crate::{
    channel, connect, delete, open, options, receive_one, request, send, shared_url, unused_prefix,
    unused_queues,
};

/// Returns the text of an error that only a person can correct.
fn misconfigured<T>(result: Result<T, Error>) -> String {
    match result.err() {
        Some(error @ Error::Misconfigured { .. }) => format!("{error:#}"),
        other => panic!("{other:?}"),
    }
}

async fn target(options: &RabbitOptions) -> Result<TargetQueues, Error> {
    connect(options).await.target().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_of_another_kind_is_rejected() {
    let (options, _deleted) = unused_queues();
    let (_connection, channel) = channel().await;
    let declare = async |end: &str, arguments: FieldTable| {
        let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
        let name = format!("{}-{end}", options.prefix);
        channel.queue_declare(name.into(), durable, arguments).await.expect("declared");
    };
    declare(CONTROL, FieldTable::default()).await;
    let mut quorum = FieldTable::default();
    quorum.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    declare("job-tasks", quorum).await;
    let broker = connect(&options).await;
    let errors = [misconfigured(broker.target().await), misconfigured(broker.create("job").await)];
    for (error, property) in errors.iter().zip(["x-queue-type", "x-dead-letter"]) {
        assert!(
            error.contains("a different kind of queue has this name") && error.contains(property),
            "{error}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_user_or_address_is_named() {
    let with = |change: &dyn Fn(&mut url::Url)| {
        let mut url = url::Url::parse(&shared_url()).expect("a URL");
        change(&mut url);
        RabbitBroker::connect_with(RabbitOptions::new(url, unused_prefix()))
    };
    let error = misconfigured(with(&|url| url.set_password(Some("sesame")).expect("set")).await);
    assert!(
        error.contains("rejects user guest or the password") && !error.contains("sesame"),
        "{error}"
    );
    let error = misconfigured(with(&|url| url.set_path("/nowhere")).await);
    assert!(error.contains("no virtual host nowhere") && !error.contains("guest:guest"), "{error}");
    let unreachable = with(&|url| url.set_port(Some(1)).expect("set"));
    match unreachable.await {
        Err(error @ Error::Unavailable { .. }) => {
            assert!(format!("{error:#}").contains("is RabbitMQ running?"), "{error:#}");
        }
        other => panic!("{other:?}"),
    }
    let no_host = with(&|url| url.set_host(Some("no-such-host.invalid")).expect("set"));
    assert!(matches!(no_host.await, Err(Error::Unavailable { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_queue_is_not_recreated_silently() {
    let (options, _deleted) = unused_queues();
    let queue = target(&options).await.expect("creates").control;
    send(&queue, ["lost".to_owned()]).await;
    receive_one(&queue).await;
    let (_connection, channel) = channel().await;
    let name = format!("{}-{CONTROL}", options.prefix);
    delete(&channel, &name).await;
    let error = misconfigured(queue.receive(request(1)).await);
    assert!(error.contains("it was deleted"), "{error}");
    misconfigured(queue.send(vec![Message::new("more")]).await);
    let again = target(&options).await.expect("creates it again");
    assert!(again.are_new);
    delete(&channel, &name).await;
    let error = misconfigured(again.control.send(vec![Message::new("more")]).await);
    assert!(error.contains("does not exist"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_returned_too_often_moves_to_the_dead_letters() {
    let (options, _deleted) = unused_queues();
    let broker = connect(&RabbitOptions { delivery_limit: 1, ..options }).await;
    let tasks = broker.create("job").await.expect("creates").tasks;
    let dead_letters = broker.target().await.expect("opens").dead_letters;
    send(&tasks, ["poison".to_owned()]).await;
    for _ in 0..2 {
        let delivery = receive_one(&tasks).await;
        tasks.release(&[delivery.receipt]).await.expect("release");
    }
    assert_eq!(receive_one(&dead_letters).await.body, "poison");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn message_beyond_the_limit_of_the_broker_is_rejected() {
    let broker = Broker::start("max_message_size = 1000");
    let queue = open(&options(broker.url(), "demo")).await;
    send(&queue, ["held".to_owned()]).await;
    let held = receive_one(&queue).await;
    let error = queue.send(vec![Message::new(vec![0; 2000])]).await.expect_err("rejected");
    assert!(
        matches!(error, Error::Misconfigured { .. })
            && format!("{error:#}").contains("max_message_size"),
        "{error:#}"
    );
    send(&queue, ["small".to_owned()]).await;
    assert_eq!(receive_one(&queue).await.body, "small");
    assert!(
        queue.acknowledge(&[held.receipt]).await.expect("acknowledge").is_empty(),
        "the rejection ended a lease"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_permission_is_named() {
    let user = |name: &str| format!(r#"{{"name": "{name}", "password": "sesame", "tags": ""}}"#);
    let may = |name: &str, configure: &str, read: &str| {
        format!(
            r#"{{"user": "{name}", "vhost": "/", "configure": "{configure}", "write": ".*", "read": "{read}"}}"#
        )
    };
    let definitions = format!(
        r#"{{"vhosts": [{{"name": "/"}}], "users": [{}, {}], "permissions": [{}, {}]}}"#,
        user("deaf"),
        user("guest"),
        may("deaf", ".*", ""),
        may("guest", "", ".*"),
    );
    let file = tempfile::NamedTempFile::new().expect("a file");
    std::fs::write(file.path(), definitions).expect("written");
    let broker = Broker::start(&format!("load_definitions = {}", file.path().display()));
    let user =
        |user: &str| options(format!("amqp://{user}:sesame@127.0.0.1:{}/", broker.port), "demo");
    let error = misconfigured(target(&user("guest")).await);
    assert!(error.contains("user guest may not use it") && !error.contains("sesame"), "{error}");
    let queue = target(&user("deaf")).await.expect("it may create").control;
    send(&queue, ["a".to_owned()]).await;
    let error = misconfigured(queue.receive(request(1)).await);
    assert!(error.contains("user deaf may not use it") && !error.contains("sesame"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificate_is_checked() {
    let certificates = Certificates::new();
    let listener = format!(
        "listeners.tcp = none\nlisteners.ssl.1 = 127.0.0.1:PORT\nssl_options.cacertfile = {}\n\
         ssl_options.certfile = {}\nssl_options.keyfile = {}",
        certificates.path("ca.pem"),
        certificates.path("server.pem"),
        certificates.path("server.key"),
    );
    let broker = Broker::start(&listener);
    let url = |host: &str| format!("amqps://guest:guest@{host}:{}/%2f", broker.port);
    let error = misconfigured(RabbitBroker::connect_with(options(url("localhost"), "demo")).await);
    assert!(
        error.contains("certificate is not trusted") && error.contains("cacertfile"),
        "{error}"
    );
    let missing = format!("{}?cacertfile=/no/such/file", url("localhost"));
    let error = misconfigured(RabbitBroker::connect_with(options(missing, "demo")).await);
    assert!(error.contains("/no/such/file"), "{error}");
    for host in ["localhost", "127.0.0.1"] {
        let trusted = format!("{}?cacertfile={}", url(host), certificates.path("ca.pem"));
        let queue = open(&options(trusted, "demo")).await;
        send(&queue, [host.to_owned()]).await;
        let delivery = receive_one(&queue).await;
        assert_eq!(delivery.body, host);
        queue.acknowledge(&[delivery.receipt]).await.expect("acknowledge");
    }
}
