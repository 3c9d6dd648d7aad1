//! S3 of LocalStack at `GRISTMILL_TEST_AWS_ENDPOINT`: a bucket for every test, and a proxy that counts requests to a
//! service and fails chosen ones.

// Every test binary uses only some of these items.
#![allow(dead_code, missing_docs)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};

/// Returns the endpoint of LocalStack.
pub fn endpoint() -> String {
    for name in
        ["GRISTMILL_TEST_AWS_ENDPOINT", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION"]
    {
        assert!(
            std::env::var_os(name).is_some(),
            "{name} is not set; start LocalStack with scripts/up"
        );
    }
    std::env::var("GRISTMILL_TEST_AWS_ENDPOINT").expect("UTF-8")
}

/// Sends one request without the libraries under test.
pub fn http(
    endpoint: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> (u16, Vec<u8>) {
    let address = endpoint.trim_start_matches("http://").trim_end_matches('/');
    let mut stream = TcpStream::connect(address).unwrap_or_else(|error| {
        panic!("cannot connect to LocalStack at {endpoint} ({error}); start it with scripts/up")
    });
    let mut head = format!("{method} {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    for (name, value) in headers {
        head.push_str(&format!("{name}: {value}\r\n"));
    }
    head.push_str(&format!("content-length: {}\r\n\r\n", body.len()));
    stream.write_all(head.as_bytes()).and_then(|()| stream.write_all(body)).expect("sent");
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).expect("answered");
    let end = head_end(&answer).expect("a whole head");
    let status = std::str::from_utf8(&answer[9..12]).expect("a status").parse().expect("a number");
    (status, answer.split_off(end))
}

fn head_end(answer: &[u8]) -> Option<usize> {
    answer.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

/// The largest number of pages of a thousand keys that a test leaves behind.
const PAGES_MAX: usize = 10;

/// A bucket. Dropping it empties and deletes it.
pub struct Bucket {
    pub name: String,
    endpoint: String,
}

impl Bucket {
    pub fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let endpoint = endpoint();
        let now = std::time::UNIX_EPOCH.elapsed().expect("after 1970").as_micros();
        let name =
            format!("test-{}-{now}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let (status, answer) = http(&endpoint, "PUT", &format!("/{name}"), &[], b"");
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&answer));
        Self { name, endpoint }
    }

    /// Returns `s3://bucket/key`.
    pub fn url(&self, key: &str) -> String {
        format!("s3://{}/{key}", self.name)
    }

    pub fn put(&self, key: &str, body: &[u8]) {
        let (status, answer) =
            http(&self.endpoint, "PUT", &format!("/{}/{key}", self.name), &[], body);
        assert_eq!(status, 200, "{}", String::from_utf8_lossy(&answer));
    }

    pub fn get(&self, key: &str) -> Option<Vec<u8>> {
        let (status, body) =
            http(&self.endpoint, "GET", &format!("/{}/{key}", self.name), &[], b"");
        (status == 200).then_some(body)
    }

    pub fn delete(&self, key: &str) {
        http(&self.endpoint, "DELETE", &format!("/{}/{key}", self.name), &[], b"");
    }

    /// Returns up to 1000 keys.
    pub fn keys(&self) -> Vec<String> {
        self.elements("?list-type=2", "Key")
    }

    /// Returns the ids of uploads that are neither finished nor aborted.
    pub fn uploads(&self) -> Vec<String> {
        self.elements("?uploads", "UploadId")
    }

    fn elements(&self, query: &str, element: &str) -> Vec<String> {
        let (_, listing) = http(&self.endpoint, "GET", &format!("/{}{query}", self.name), &[], b"");
        let listing = String::from_utf8(listing).expect("XML");
        let tag = format!("<{element}>");
        let pieces = listing.split(&tag).skip(1);
        pieces
            .filter_map(|piece| piece.split_once('<'))
            .map(|(value, _)| value.to_owned())
            .collect()
    }
}

impl Drop for Bucket {
    fn drop(&mut self) {
        for _ in 0..PAGES_MAX {
            let keys = self.keys();
            if keys.is_empty() {
                break;
            }
            let objects = keys.iter().map(|key| format!("<Object><Key>{key}</Key></Object>"));
            let request =
                format!("<Delete><Quiet>true</Quiet>{}</Delete>", objects.collect::<String>());
            http(
                &self.endpoint,
                "POST",
                &format!("/{}?delete", self.name),
                &[],
                request.as_bytes(),
            );
        }
        http(&self.endpoint, "DELETE", &format!("/{}", self.name), &[], b"");
    }
}

/// Returns the body of an answer from that of the service.
pub type ChangeBody = Box<dyn Fn(&[u8]) -> Vec<u8>>;

/// The fate of a request.
pub enum Fate {
    /// The request and its answer arrive.
    Pass,
    /// The request does not arrive, and the proxy answers with this status and body.
    Fail(u16, &'static str),
    /// The request does not arrive, and the proxy closes its connection.
    Close,
    /// The request does not arrive, and gets no answer.
    Stall,
    /// The request arrives, but its answer is lost.
    LoseAnswer,
    /// The request arrives without this header.
    Strip(&'static str),
    /// The request arrives with this body, and its answer with the body that the function makes of its own.
    Change(Vec<u8>, ChangeBody),
}

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    pub method: String,
    /// The path with the query.
    pub path: String,
    /// The headers, with names in lower case.
    pub headers: Vec<(String, String)>,
    pub body: Arc<Vec<u8>>,
    /// The size of the answer's body.
    pub answer_bytes: usize,
}

impl Request {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Returns whether the request lists keys.
    pub fn is_list(&self) -> bool {
        self.method == "GET" && self.path.contains("list-type=2")
    }
}

type Decide = dyn Fn(&Request, usize) -> Fate + Send + Sync;

/// A proxy in front of a service.
pub struct Proxy {
    pub endpoint: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Proxy {
    /// Starts a proxy to LocalStack. `decide` gets every request, and the number of requests before it.
    pub fn start(decide: impl Fn(&Request, usize) -> Fate + Send + Sync + 'static) -> Self {
        Self::start_to(&endpoint(), decide)
    }

    /// Starts a proxy to `http://HOST:PORT`.
    pub fn start_to(
        upstream: &str,
        decide: impl Fn(&Request, usize) -> Fate + Send + Sync + 'static,
    ) -> Self {
        let upstream = upstream.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let endpoint = format!("http://{}", listener.local_addr().expect("bound"));
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (seen, decide): (_, Arc<Decide>) = (Arc::clone(&requests), Arc::new(decide));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (upstream, seen, decide) =
                    (upstream.clone(), Arc::clone(&seen), Arc::clone(&decide));
                // A client that gives up on a request closes the connection.
                std::thread::spawn(move || serve(&stream?, &upstream, &seen, &*decide));
            }
        });
        Self { endpoint, requests }
    }

    /// Starts a proxy that passes every request.
    pub fn counting() -> Self {
        Self::start(|_, _| Fate::Pass)
    }

    /// Returns the requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("no holder panics").clone()
    }

    pub fn count(&self, wanted: impl Fn(&Request) -> bool) -> usize {
        self.requests().iter().filter(|request| wanted(request)).count()
    }
}

/// Serves one request of a connection, and then closes it, which marks the end of the answer.
fn serve(
    near: &TcpStream,
    upstream: &str,
    seen: &Mutex<Vec<Request>>,
    decide: &Decide,
) -> std::io::Result<()> {
    let mut reader = BufReader::new(near);
    let mut lines = Vec::new();
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line)? == 0 {
            return Ok(());
        }
        match line.trim_end() {
            "" => break,
            line => lines.push(line.to_owned()),
        }
    }
    let mut words = lines[0].split(' ').map(str::to_owned);
    let (method, path) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let headers: Vec<(String, String)> = lines[1..]
        .iter()
        .filter_map(|line| line.split_once(':'))
        .map(|(name, value)| (name.to_ascii_lowercase(), value.trim().to_owned()))
        .collect();
    let mut request = Request { method, path, headers, body: Arc::default(), answer_bytes: 0 };
    if request.header("expect").is_some() {
        (&*near).write_all(b"HTTP/1.1 100 Continue\r\n\r\n")?;
    }
    let mut body =
        vec![
            0;
            request.header("content-length").map_or(0, |length| length.parse().expect("a length"))
        ];
    reader.read_exact(&mut body)?;
    request.body = Arc::new(body);

    let (fate, position) = {
        let mut seen = seen.lock().expect("no holder panics");
        let fate = decide(&request, seen.len());
        seen.push(request.clone());
        (fate, seen.len() - 1)
    };
    match fate {
        Fate::Fail(status, answer) => return tell(near, &status.to_string(), answer.as_bytes()),
        Fate::Close => return Ok(()),
        Fate::Stall => loop {
            std::thread::park();
        },
        _ => {}
    }
    let body = if let Fate::Change(body, _) = &fate { body } else { &*request.body };
    let length = body.len().to_string();
    let mut head = format!("{}\r\n", lines[0]);
    for (name, value) in &request.headers {
        let value = if name == "content-length" { &length } else { value };
        let dropped = matches!(name.as_str(), "connection" | "expect")
            || matches!(fate, Fate::Strip(header) if name == header);
        if !dropped {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
    }
    head.push_str("connection: close\r\n\r\n");
    let mut far = TcpStream::connect(upstream)?;
    far.write_all(head.as_bytes())?;
    far.write_all(body)?;
    let mut answer = Vec::new();
    far.read_to_end(&mut answer)?;
    let body_bytes = answer.len() - head_end(&answer).unwrap_or(answer.len());
    seen.lock().expect("no holder panics")[position].answer_bytes = body_bytes;
    match fate {
        Fate::LoseAnswer => Ok(()),
        Fate::Change(_, change) => {
            let status = String::from_utf8_lossy(&answer[9..12]).into_owned();
            tell(near, &status, &change(&body_of(&answer)))
        }
        _ => (&*near).write_all(&answer),
    }
}

/// Answers with this status and body.
fn tell(mut near: &TcpStream, status: &str, body: &[u8]) -> std::io::Result<()> {
    let length = body.len();
    let head =
        format!("HTTP/1.1 {status} Told\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n");
    near.write_all(head.as_bytes())?;
    near.write_all(body)
}

/// Returns the body of an answer, which may come in chunks.
fn body_of(answer: &[u8]) -> Vec<u8> {
    let (head, mut body) = answer.split_at(head_end(answer).expect("a whole head"));
    if !String::from_utf8_lossy(head).to_ascii_lowercase().contains("transfer-encoding: chunked") {
        return body.to_vec();
    }
    let mut whole = Vec::new();
    loop {
        let mut line = String::new();
        body.read_line(&mut line).expect("a size");
        let size = usize::from_str_radix(line.trim(), 16).expect("a size");
        if size == 0 {
            return whole;
        }
        whole.extend(&body[..size]);
        body = &body[size + 2..];
    }
}
