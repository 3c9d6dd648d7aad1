//! Errors of the broker: one clear line each, without a password.

use lapin::options::{QueueDeclareOptions, QueueDeleteOptions};
use lapin::types::FieldTable;
use queue::{Error, Message, Queue, RabbitOptions, RabbitQueue};

use crate::broker::{Broker, Certificates};
use crate::{Deleted, PATIENCE, options, receive_one, request, send, shared_url, unused_name, unused_queue};

/// Opens a queue, and returns the error, which must be one that only a person can correct.
async fn misconfigured(options: RabbitOptions) -> String {
    match RabbitQueue::open(options).await {
        Err(error @ Error::Misconfigured { .. }) => format!("{error:#}"),
        other => panic!("{other:?}"),
    }
}

async fn channel() -> (lapin::Connection, lapin::Channel) {
    let connection = lapin::Connection::connect(&shared_url(), lapin::ConnectionProperties::default()).await;
    let connection = connection.expect("connects");
    let channel = connection.create_channel().await.expect("a channel");
    (connection, channel)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_of_another_kind_is_rejected() {
    let (options, _deleted) = unused_queue();
    let (_connection, channel) = channel().await;
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(options.name.as_str().into(), durable, FieldTable::default()).await.expect("declared");
    let error = misconfigured(options).await;
    assert!(error.contains("a different kind of queue has this name") && error.contains("x-queue-type"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queue_with_other_arguments_is_rejected() {
    let (options, _deleted) = unused_queue();
    let _queue = RabbitQueue::open(options.clone()).await.expect("opens");
    RabbitQueue::open(options.clone()).await.expect("the same again is no problem");
    let error = misconfigured(RabbitOptions { dead_letters: Some(options.name.clone()), ..options }).await;
    assert!(error.contains("a different kind of queue has this name") && error.contains("x-dead-letter"), "{error}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_user_or_address_is_named() {
    let with = |change: &dyn Fn(&mut url::Url)| {
        let mut url = url::Url::parse(&shared_url()).expect("a URL");
        change(&mut url);
        RabbitOptions::new(url, unused_name())
    };
    let error = misconfigured(with(&|url| url.set_password(Some("sesame")).expect("set"))).await;
    assert!(error.contains("rejects user guest or the password") && !error.contains("sesame"), "{error}");
    let error = misconfigured(with(&|url| url.set_path("/nowhere"))).await;
    assert!(error.contains("no virtual host nowhere"), "{error}");
    let error = misconfigured(with(&|url| url.set_path("/nowhere"))).await;
    assert!(!error.contains("guest:guest"), "{error}");
    let unreachable = with(&|url| url.set_port(Some(1)).expect("set"));
    match RabbitQueue::open(unreachable).await {
        Err(error @ Error::Unavailable { .. }) => {
            assert!(format!("{error:#}").contains("is RabbitMQ running?"), "{error:#}");
        }
        other => panic!("{other:?}"),
    }
    let no_host = with(&|url| url.set_host(Some("no-such-host.invalid")).expect("set"));
    assert!(matches!(RabbitQueue::open(no_host).await, Err(Error::Unavailable { .. })));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deleted_queue_is_not_recreated_silently() {
    let (options, _deleted) = unused_queue();
    let queue = RabbitQueue::open(options.clone()).await.expect("opens");
    send(&queue, ["lost".to_owned()]).await;
    receive_one(&queue).await;
    let (_connection, channel) = channel().await;
    channel.queue_delete(options.name.as_str().into(), QueueDeleteOptions::default()).await.expect("deleted");
    let error = queue.receive(request(1)).await.expect_err("it was deleted");
    assert!(
        matches!(error, Error::Misconfigured { .. }) && format!("{error:#}").contains("it was deleted"),
        "{error:#}"
    );
    let error = queue.send(vec![Message::new("more", "job")]).await.expect_err("it was deleted");
    assert!(matches!(error, Error::Misconfigured { .. }), "{error:#}");
    let queue = RabbitQueue::open(options.clone()).await.expect("opening creates it again");
    channel.queue_delete(options.name.as_str().into(), QueueDeleteOptions::default()).await.expect("deleted");
    let error = queue.send(vec![Message::new("more", "job")]).await.expect_err("there is no queue");
    assert!(
        matches!(error, Error::Misconfigured { .. }) && format!("{error:#}").contains("does not exist"),
        "{error:#}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_letter_queue_is_created_and_used() {
    let prefix = unused_name();
    let target = RabbitOptions::target(&shared_url(), &prefix);
    let [tasks, results, dead_letters] =
        target.map(|options| RabbitOptions { delivery_limit: 1, connect_wait_max: PATIENCE, ..options });
    let _deleted = [&tasks, &results, &dead_letters].map(|options| Deleted(options.name.clone()));
    assert_eq!(dead_letters.name, format!("{prefix}-dead-letters"));
    RabbitQueue::open(results).await.expect("opens");
    let dead_letters = RabbitQueue::open(dead_letters).await.expect("the same queue as before");
    let tasks = RabbitQueue::open(tasks).await.expect("opens");
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
    let queue = RabbitQueue::open(options(broker.url(), "tasks")).await.expect("opens");
    send(&queue, ["held".to_owned()]).await;
    let held = receive_one(&queue).await;
    let error = queue.send(vec![Message::new(vec![0; 2000], "job")]).await.expect_err("rejected");
    assert!(
        matches!(error, Error::Misconfigured { .. }) && format!("{error:#}").contains("max_message_size"),
        "{error:#}"
    );
    send(&queue, ["small".to_owned()]).await;
    assert_eq!(receive_one(&queue).await.body, "small");
    assert!(queue.acknowledge(&[held.receipt]).await.expect("acknowledge").is_empty(), "the rejection ended a lease");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn missing_permission_is_named() {
    let user = |name: &str| format!(r#"{{"name": "{name}", "password": "sesame", "tags": ""}}"#);
    let may = |name: &str, configure: &str, read: &str| {
        format!(r#"{{"user": "{name}", "vhost": "/", "configure": "{configure}", "write": ".*", "read": "{read}"}}"#)
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
    let user = |user: &str| options(format!("amqp://{user}:sesame@127.0.0.1:{}/", broker.port), "tasks");
    let error = misconfigured(user("guest")).await;
    assert!(error.contains("user guest may not use it") && !error.contains("sesame"), "{error}");
    let queue = RabbitQueue::open(user("deaf")).await.expect("it may create");
    send(&queue, ["a".to_owned()]).await;
    let error = queue.receive(request(1)).await.expect_err("it may not receive");
    assert!(matches!(error, Error::Misconfigured { .. }), "{error:#}");
    let error = format!("{error:#}");
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
    let error = misconfigured(options(url("localhost"), "tasks")).await;
    assert!(error.contains("certificate is not trusted") && error.contains("cacertfile"), "{error}");
    let missing = format!("{}?cacertfile=/no/such/file", url("localhost"));
    let error = misconfigured(options(missing, "tasks")).await;
    assert!(error.contains("/no/such/file"), "{error}");
    for host in ["localhost", "127.0.0.1"] {
        let trusted = format!("{}?cacertfile={}", url(host), certificates.path("ca.pem"));
        let queue = RabbitQueue::open(options(trusted, "tasks")).await.expect("opens");
        send(&queue, [host.to_owned()]).await;
        let delivery = receive_one(&queue).await;
        assert_eq!(delivery.body, host);
        queue.acknowledge(&[delivery.receipt]).await.expect("acknowledge");
    }
}
