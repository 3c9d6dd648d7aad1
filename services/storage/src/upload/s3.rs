//! An upload to S3 in parts, some of which S3 copies from other objects.
//!
//! All parts but the last have at least 5 MiB. So the upload collects small pieces, and may fetch the beginning of an
//! object that it copies, to complete the part before it.
//!
//! A writer that finishes an object removes all other uploads of it: those of dead writers, which would cost money,
//! and those of slow writers, which would later replace it with an older state. A slow writer then gets
//! [`Error::Superseded`], and the finished object remains.

use std::fmt::Debug;
use std::ops::Range;

use aws_sdk_s3::Client;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};
use bytes::{Bytes, BytesMut};
use object_store::path::Path as ObjectPath;
use tokio::task::JoinSet;
use url::Url;

use super::{PARTS_AT_ONCE, PARTS_EXPECTED, part_bytes};
use crate::error::{RequestFailure, Source, short_message};
use crate::{Error, Result};

/// The smallest part that S3 allows.
const PART_BYTES_MIN: u64 = 5 << 20;
/// The number of bytes that one request copies, unless the size of the object requires more (S3 allows 5 GiB).
const COPY_BYTES_MAX: u64 = 512 << 20;

/// An object on S3.
#[derive(Clone, Debug)]
pub(crate) struct S3Object {
    bucket: String,
    key: String,
}

#[derive(Debug)]
pub(crate) struct S3Upload {
    client: Client,
    object: S3Object,
    name: String,
    /// The smallest size of a part of this upload.
    part_bytes_min: u64,
    bytes_expected: u64,
    /// The bytes that are not yet sent.
    buffer: BytesMut,
    /// Set once the first part is sent.
    upload_id: Option<String>,
    next_part: i32,
    sending: JoinSet<Result<CompletedPart>>,
    sent: Vec<CompletedPart>,
}

impl S3Object {
    /// Returns the object of an S3 URL.
    pub fn of(url: &Url) -> Option<Self> {
        let key = ObjectPath::from_url_path(url.path()).ok()?;
        matches!(url.scheme(), "s3" | "s3a")
            .then(|| Some(Self { bucket: url.host_str()?.to_owned(), key: key.to_string() }))?
    }

    pub fn join(&self, name: &str) -> Self {
        let key = ObjectPath::from(self.key.as_str())
            .parts()
            .chain(ObjectPath::from(name).parts())
            .collect::<ObjectPath>();
        Self { bucket: self.bucket.clone(), key: key.to_string() }
    }

    /// Returns the name of the object as the source of a copy: `BUCKET/KEY`, percent-encoded.
    fn source(&self) -> String {
        let mut source = String::new();
        for byte in format!("{}/{}", self.bucket, self.key).bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
                    source.push(byte.into())
                }
                _ => source.push_str(&format!("%{byte:02X}")),
            }
        }
        source
    }
}

impl S3Upload {
    pub fn new(client: Client, object: S3Object, name: String, bytes_expected: u64) -> Self {
        let part_bytes_min = PART_BYTES_MIN.max(bytes_expected / PARTS_EXPECTED + 1);
        Self {
            client,
            object,
            name,
            part_bytes_min,
            bytes_expected,
            buffer: BytesMut::new(),
            upload_id: None,
            next_part: 1,
            sending: JoinSet::new(),
            sent: Vec::new(),
        }
    }

    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let part_bytes = self.part_bytes();
            let room = part_bytes - self.buffer.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() == part_bytes {
                self.send().await?;
            }
        }
        Ok(())
    }

    fn part_bytes(&self) -> usize {
        let number = u64::try_from(self.next_part).unwrap_or_default();
        usize::try_from(part_bytes(self.bytes_expected, number)).expect("64-bit machine")
    }

    /// Returns how many bytes at the beginning of an object of this size must be written before S3 can copy the rest;
    /// `None` if the object is too small to be copied.
    pub fn bytes_before_copy(&self, bytes: u64) -> Option<u64> {
        let head = match self.buffer.len() as u64 {
            0 => 0,
            buffered => self.part_bytes_min.saturating_sub(buffered),
        };
        (bytes >= head + self.part_bytes_min).then_some(head)
    }

    /// Appends a range of another object, whose start [`bytes_before_copy`](Self::bytes_before_copy) has returned.
    pub async fn copy(&mut self, from: &S3Object, range: Range<u64>) -> Result<()> {
        if !self.buffer.is_empty() {
            self.send().await?;
        }
        let bytes = range.end - range.start;
        let pieces = bytes.div_ceil(COPY_BYTES_MAX.max(2 * self.part_bytes_min));
        for piece in 0..pieces {
            let start = range.start + bytes * piece / pieces;
            let last = range.start + bytes * (piece + 1) / pieces - 1;
            let (number, upload_id) = self.begin_part().await?;
            let request =
                self.client.upload_part_copy().bucket(&self.object.bucket).key(&self.object.key);
            let request = request.upload_id(upload_id).part_number(number);
            let request = request
                .copy_source(from.source())
                .copy_source_range(format!("bytes={start}-{last}"));
            let name = self.name.clone();
            let source = format!("s3://{}/{}", from.bucket, from.key);
            self.sending.spawn(async move {
                let copied = request
                    .send()
                    .await
                    .map_err(|error| failed(&name, &format!("copy {source}"), error))?;
                let etag = copied.copy_part_result.and_then(|result| result.e_tag);
                Ok(CompletedPart::builder().set_e_tag(etag).part_number(number).build())
            });
        }
        Ok(())
    }

    /// Sends the buffer as a part.
    async fn send(&mut self) -> Result<()> {
        let body = self.buffer.split().freeze();
        let (number, upload_id) = self.begin_part().await?;
        let request = self.client.upload_part().bucket(&self.object.bucket).key(&self.object.key);
        let request = request.upload_id(upload_id).part_number(number).body(ByteStream::from(body));
        let name = self.name.clone();
        self.sending.spawn(async move {
            let sent =
                request.send().await.map_err(|error| failed(&name, "upload a part", error))?;
            Ok(CompletedPart::builder().set_e_tag(sent.e_tag).part_number(number).build())
        });
        Ok(())
    }

    /// Waits until another part may be sent. Returns its number and the id of the upload.
    async fn begin_part(&mut self) -> Result<(i32, String)> {
        while self.sending.len() >= PARTS_AT_ONCE {
            self.wait().await?;
        }
        let upload_id = match &self.upload_id {
            Some(upload_id) => upload_id.clone(),
            None => {
                let request = self
                    .client
                    .create_multipart_upload()
                    .bucket(&self.object.bucket)
                    .key(&self.object.key);
                let begun = request
                    .send()
                    .await
                    .map_err(|error| failed(&self.name, "begin the upload", error))?;
                let upload_id = begun.upload_id.unwrap_or_default();
                self.upload_id.insert(upload_id).clone()
            }
        };
        let number = self.next_part;
        self.next_part += 1;
        Ok((number, upload_id))
    }

    async fn wait(&mut self) -> Result<()> {
        if let Some(sent) = self.sending.join_next().await {
            self.sent.push(sent.map_err(|error| Error::unavailable(&self.name, error))??);
        }
        Ok(())
    }

    pub async fn finish(mut self) -> Result<()> {
        let finished = self.try_finish().await;
        if finished.is_err() {
            self.abort().await;
        }
        finished
    }

    async fn try_finish(&mut self) -> Result<()> {
        if self.upload_id.is_none() {
            let body: Bytes = self.buffer.split().freeze();
            let request =
                self.client.put_object().bucket(&self.object.bucket).key(&self.object.key);
            let put = request.body(ByteStream::from(body)).send().await;
            return put.map(drop).map_err(|error| failed(&self.name, "upload", error));
        }
        if !self.buffer.is_empty() {
            self.send().await?;
        }
        while !self.sending.is_empty() {
            self.wait().await?;
        }
        self.sent.sort_by_key(|part| part.part_number);
        let parts = CompletedMultipartUpload::builder()
            .set_parts(Some(std::mem::take(&mut self.sent)))
            .build();
        let request = self
            .client
            .complete_multipart_upload()
            .bucket(&self.object.bucket)
            .key(&self.object.key);
        let request = request.set_upload_id(self.upload_id.clone()).multipart_upload(parts);
        request.send().await.map_err(|error| failed(&self.name, "finish the upload", error))?;
        self.upload_id = None;
        self.remove_others().await;
        Ok(())
    }

    /// Removes other uploads of the finished object. Ignores errors.
    async fn remove_others(&self) {
        let listed = self
            .client
            .list_multipart_uploads()
            .bucket(&self.object.bucket)
            .prefix(&self.object.key)
            .send()
            .await;
        let Ok(listed) = listed else { return };
        for other in listed.uploads().iter().filter(|other| other.key() == Some(&self.object.key)) {
            let request = self
                .client
                .abort_multipart_upload()
                .bucket(&self.object.bucket)
                .key(&self.object.key);
            let _ = request.set_upload_id(other.upload_id.clone()).send().await;
        }
    }

    pub async fn abort(mut self) {
        // A part that arrives after the removal of the upload would remain forever.
        self.sending.shutdown().await;
        if let Some(upload_id) = self.upload_id.take() {
            let request = self
                .client
                .abort_multipart_upload()
                .bucket(&self.object.bucket)
                .key(&self.object.key);
            let _ = request.upload_id(upload_id).send().await;
        }
    }
}

fn failed<E>(object: &str, doing: &str, error: SdkError<E>) -> Error
where
    E: ProvideErrorMetadata + std::error::Error + Send + Sync + 'static,
{
    let (code, message) = match error.as_service_error() {
        Some(service) => {
            let code = service.code().unwrap_or("no code").to_owned();
            let message = format!("{} ({code})", service.message().unwrap_or("no message"));
            (code, message)
        }
        None => (String::new(), short_message(&error)),
    };
    let object = object.to_owned();
    let status = error.raw_response().map(|response| response.status().as_u16());
    // S3 answers with status 400 if the request did not arrive in time.
    let may_pass = code == "RequestTimeout"
        || status.is_none_or(|status| status >= 500 || [408, 409, 429].contains(&status));
    let source: Source = Box::new(RequestFailure {
        words: format!("{doing}: {message}"),
        may_pass,
        error: Box::new(error),
    });
    match (code.as_str(), status) {
        ("NoSuchUpload", _) => Error::Superseded { object },
        (_, Some(401 | 403)) | ("ExpiredToken", _) => Error::Denied { object, source },
        _ => Error::Unavailable { object, source },
    }
}
