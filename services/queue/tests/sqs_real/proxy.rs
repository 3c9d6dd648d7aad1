//! A proxy between a queue and its service. It counts requests, fails chosen ones before they arrive, and holds
//! back chosen entries of batches.

use std::sync::{Arc, Mutex};

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio_util::task::AbortOnDropHandle;

/// The fate of a request.
pub enum Fate {
    /// The request and its answer arrive.
    Pass,
    /// The request does not arrive. The proxy answers with this status and body, or closes the connection.
    Fail(Option<(u16, &'static str)>),
    /// The request does not arrive, and gets no answer.
    Stall,
    /// The request arrives, but its answer is lost.
    LoseAnswer,
    /// The request arrives without these entries of its batch, which the proxy reports as failed with this code.
    HoldBack(Vec<String>, &'static str),
}

/// A request.
#[derive(Clone, Debug)]
pub struct Request {
    /// The action, such as `SendMessageBatch`.
    pub action: String,
    pub body: Value,
}

impl Request {
    /// Returns the entries of a batch.
    pub fn entries(&self) -> &[Value] {
        self.body["Entries"].as_array().map_or(&[], Vec::as_slice)
    }
}

type Decide = dyn Fn(&Request) -> Fate + Send + Sync;

/// A proxy that accepts connections until it is dropped.
pub struct Proxy {
    pub endpoint: String,
    requests: Arc<Mutex<Vec<Request>>>,
    _task: AbortOnDropHandle<()>,
}

impl Proxy {
    /// Starts a proxy to `http://HOST:PORT` that calls `decide` for every request.
    pub async fn start(
        upstream: &str,
        decide: impl Fn(&Request) -> Fate + Send + Sync + 'static,
    ) -> Self {
        let upstream = upstream.trim_start_matches("http://").trim_end_matches('/').to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("binds");
        let endpoint = format!("http://{}", listener.local_addr().expect("is bound"));
        let requests: Arc<Mutex<Vec<Request>>> = Arc::default();
        let (seen, decide): (_, Arc<Decide>) = (requests.clone(), Arc::new(decide));
        let accept = async move {
            loop {
                let (stream, _) = listener.accept().await.expect("accepts");
                let (upstream, seen, decide) = (upstream.clone(), seen.clone(), decide.clone());
                tokio::spawn(async move {
                    // A queue that gives up on a request closes its connection.
                    let _ = serve(stream, &upstream, &seen, &*decide).await;
                });
            }
        };
        Self { endpoint, requests, _task: AbortOnDropHandle::new(tokio::spawn(accept)) }
    }

    /// Returns the requests so far.
    pub fn requests(&self) -> Vec<Request> {
        self.requests.lock().expect("no holder panics").clone()
    }

    /// Returns the number of requests with this action.
    pub fn count(&self, action: &str) -> usize {
        self.requests().iter().filter(|request| request.action == action).count()
    }
}

/// The head and body of an HTTP/1.1 message.
struct Http {
    head: Vec<String>,
    body: Vec<u8>,
}

impl Http {
    async fn read(reader: &mut (impl AsyncBufReadExt + Unpin)) -> std::io::Result<Option<Self>> {
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).await? == 0 {
                return Ok(None);
            }
            match line.trim_end() {
                "" => break,
                line => head.push(line.to_owned()),
            }
        }
        let mut http = Self { head, body: Vec::new() };
        match http.header("content-length") {
            Some(length) => {
                http.body.resize(length.parse().expect("a length"), 0);
                reader.read_exact(&mut http.body).await?;
            }
            None if http.header("transfer-encoding").is_some() => loop {
                let mut size = String::new();
                reader.read_line(&mut size).await?;
                let size = usize::from_str_radix(size.trim(), 16).expect("a size");
                let mut chunk = vec![0; size + 2];
                reader.read_exact(&mut chunk).await?;
                http.body.extend(&chunk[..size]);
                if size == 0 {
                    break;
                }
            },
            None => {}
        }
        Ok(Some(http))
    }

    fn header(&self, name: &str) -> Option<&str> {
        let headers = self.head.iter().filter_map(|line| line.split_once(':'));
        let mut found = headers.filter(|(key, _)| key.eq_ignore_ascii_case(name));
        found.next().map(|(_, value)| value.trim())
    }

    /// Writes the message with the current length of its body.
    async fn write(&self, stream: &mut (impl AsyncWriteExt + Unpin)) -> std::io::Result<()> {
        let framing = ["content-length", "transfer-encoding", "connection"];
        let is_framing = |line: &&String| {
            let name = line.split(':').next().unwrap_or_default();
            framing.iter().any(|header| name.eq_ignore_ascii_case(header))
        };
        let mut bytes = Vec::new();
        for line in self.head.iter().filter(|line| !is_framing(line)) {
            bytes.extend(line.as_bytes());
            bytes.extend(b"\r\n");
        }
        bytes.extend(format!("content-length: {}\r\n\r\n", self.body.len()).as_bytes());
        bytes.extend(&self.body);
        stream.write_all(&bytes).await?;
        stream.flush().await
    }
}

async fn serve(
    stream: TcpStream,
    upstream: &str,
    seen: &Mutex<Vec<Request>>,
    decide: &Decide,
) -> std::io::Result<()> {
    let mut near = BufReader::new(stream);
    while let Some(mut http) = Http::read(&mut near).await? {
        let action = http
            .header("x-amz-target")
            .unwrap_or_default()
            .rsplit('.')
            .next()
            .unwrap_or_default()
            .to_owned();
        let request =
            Request { action, body: serde_json::from_slice(&http.body).unwrap_or_default() };
        seen.lock().expect("no holder panics").push(request.clone());
        let mut loses_answer = false;
        let held_back = match decide(&request) {
            Fate::Pass => None,
            Fate::Stall => return std::future::pending().await,
            Fate::LoseAnswer => {
                loses_answer = true;
                None
            }
            Fate::Fail(None) => return Ok(()),
            Fate::Fail(Some((status, body))) => {
                let head = vec![
                    format!("HTTP/1.1 {status} Fault"),
                    "content-type: application/x-amz-json-1.0".to_owned(),
                ];
                Http { head, body: body.as_bytes().to_vec() }.write(&mut near).await?;
                continue;
            }
            Fate::HoldBack(ids, code) => {
                let is_held = |entry: &Value| ids.iter().any(|id| entry["Id"] == **id);
                let left: Vec<&Value> =
                    request.entries().iter().filter(|entry| !is_held(entry)).collect();
                let mut body = request.body.clone();
                body["Entries"] = json!(left);
                http.body = body.to_string().into_bytes();
                Some((ids, code))
            }
        };
        // Some services close connections silently, so each request gets a new one.
        let mut far = BufReader::new(TcpStream::connect(upstream).await?);
        http.write(&mut far).await?;
        let Some(mut answer) = Http::read(&mut far).await? else { return Ok(()) };
        if loses_answer {
            return Ok(());
        }
        if let Some((ids, code)) = held_back {
            let mut body: Value = serde_json::from_slice(&answer.body).expect("JSON");
            let failed = ids.iter().map(
                |id| json!({"Id": id, "Code": code, "SenderFault": false, "Message": "held back"}),
            );
            body["Failed"] = failed.collect();
            answer.body = body.to_string().into_bytes();
        }
        answer.write(&mut near).await?;
    }
    Ok(())
}
