//! An upload to S3 in parts, some of which the store copies from other objects.
//!
//! All parts but the last have at least 5 MiB, so pieces are collected until they have, and the beginning of an object
//! that is to be copied may be fetched to fill up what stands before it.
//!
//! Whoever finishes an object removes all other uploads of it: those of dead writers, which would be paid for until
//! somebody notices, and those of slow ones, which would replace it by an older state some time later. A slow writer
//! then finds its upload gone ([`Error::Superseded`]), and the finished object in its place.

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

use super::{PART_BYTES, PARTS_AT_ONCE};
use crate::error::said;
use crate::{Error, Result};

/// The smallest part that S3 takes.
const PART_BYTES_MIN: u64 = 5 << 20;
/// S3 takes 10 000 parts. Each has at least this share of the whole; half of them may come out larger than that.
const PARTS_MAX: u64 = 4500;
/// What one request copies, unless the whole is so large that it must be more (and S3 allows 5 GiB).
const COPY_BYTES_MAX: u64 = 512 << 20;

/// An object on S3.
#[derive(Clone, Debug)]
pub(super) struct Place {
    bucket: String,
    key: String,
}

#[derive(Debug)]
pub(super) struct S3Upload {
    client: Client,
    place: Place,
    name: String,
    /// The smallest part of this upload.
    unit: u64,
    part_bytes: usize,
    /// Collected, and not yet sent.
    buffer: BytesMut,
    /// Once there was enough to send.
    upload_id: Option<String>,
    next_part: i32,
    sending: JoinSet<Result<CompletedPart>>,
    sent: Vec<CompletedPart>,
}

impl Place {
    /// Where a URL points, if that is to S3.
    pub fn of(url: &Url) -> Option<Self> {
        let key = ObjectPath::from_url_path(url.path()).ok()?;
        matches!(url.scheme(), "s3" | "s3a")
            .then(|| Some(Self { bucket: url.host_str()?.to_owned(), key: key.to_string() }))?
    }

    pub fn join(&self, name: &str) -> Self {
        let key =
            ObjectPath::from(self.key.as_str()).parts().chain(ObjectPath::from(name).parts()).collect::<ObjectPath>();
        Self { bucket: self.bucket.clone(), key: key.to_string() }
    }

    /// As a request names what is to be copied.
    fn source(&self) -> String {
        let mut source = String::new();
        for byte in format!("{}/{}", self.bucket, self.key).bytes() {
            match byte {
                b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => source.push(byte.into()),
                _ => source.push_str(&format!("%{byte:02X}")),
            }
        }
        source
    }
}

impl S3Upload {
    pub fn new(client: Client, place: Place, name: String, bytes_expected: u64) -> Self {
        let unit = PART_BYTES_MIN.max(bytes_expected / PARTS_MAX + 1);
        Self {
            client,
            place,
            name,
            unit,
            part_bytes: usize::try_from(PART_BYTES.max(unit)).expect("64-bit machine"),
            buffer: BytesMut::new(),
            upload_id: None,
            next_part: 1,
            sending: JoinSet::new(),
            sent: Vec::new(),
        }
    }

    pub async fn write(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            let room = self.part_bytes - self.buffer.len();
            let (now, later) = bytes.split_at(room.min(bytes.len()));
            self.buffer.extend_from_slice(now);
            bytes = later;
            if self.buffer.len() == self.part_bytes {
                self.send().await?;
            }
        }
        Ok(())
    }

    /// How many bytes of an object of so many must be written before the rest can be copied; `None`: it is too small.
    pub fn bytes_before_copy(&self, bytes: u64) -> Option<u64> {
        let head = match self.buffer.len() as u64 {
            0 => 0,
            buffered => self.unit.saturating_sub(buffered),
        };
        (bytes >= head + self.unit).then_some(head)
    }

    /// Appends some of another object; [`bytes_before_copy`](Self::bytes_before_copy) says what of it.
    pub async fn copy(&mut self, from: &Place, range: Range<u64>) -> Result<()> {
        if !self.buffer.is_empty() {
            self.send().await?;
        }
        let bytes = range.end - range.start;
        let pieces = bytes.div_ceil(COPY_BYTES_MAX.max(2 * self.unit));
        for piece in 0..pieces {
            let start = range.start + bytes * piece / pieces;
            let last = range.start + bytes * (piece + 1) / pieces - 1;
            let (number, upload_id) = self.begin_part().await?;
            let request = self.client.upload_part_copy().bucket(&self.place.bucket).key(&self.place.key);
            let request = request.upload_id(upload_id).part_number(number);
            let request = request.copy_source(from.source()).copy_source_range(format!("bytes={start}-{last}"));
            let name = self.name.clone();
            let source = format!("s3://{}/{}", from.bucket, from.key);
            self.sending.spawn(async move {
                let copied = request.send().await.map_err(|error| failed(&name, &format!("copy {source}"), error))?;
                let etag = copied.copy_part_result.and_then(|result| result.e_tag);
                Ok(CompletedPart::builder().set_e_tag(etag).part_number(number).build())
            });
        }
        Ok(())
    }

    /// Sends what is collected.
    async fn send(&mut self) -> Result<()> {
        let body = self.buffer.split().freeze();
        self.buffer.reserve(self.part_bytes);
        let (number, upload_id) = self.begin_part().await?;
        let request = self.client.upload_part().bucket(&self.place.bucket).key(&self.place.key);
        let request = request.upload_id(upload_id).part_number(number).body(ByteStream::from(body));
        let name = self.name.clone();
        self.sending.spawn(async move {
            let sent = request.send().await.map_err(|error| failed(&name, "upload a part", error))?;
            Ok(CompletedPart::builder().set_e_tag(sent.e_tag).part_number(number).build())
        });
        Ok(())
    }

    /// Waits until another part may be sent, and gives its number and the upload.
    async fn begin_part(&mut self) -> Result<(i32, String)> {
        while self.sending.len() >= PARTS_AT_ONCE {
            self.wait().await?;
        }
        let upload_id = match &self.upload_id {
            Some(upload_id) => upload_id.clone(),
            None => {
                let request = self.client.create_multipart_upload().bucket(&self.place.bucket).key(&self.place.key);
                let begun = request.send().await.map_err(|error| failed(&self.name, "begin the upload", error))?;
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
            let request = self.client.put_object().bucket(&self.place.bucket).key(&self.place.key);
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
        let parts = CompletedMultipartUpload::builder().set_parts(Some(std::mem::take(&mut self.sent))).build();
        let request = self.client.complete_multipart_upload().bucket(&self.place.bucket).key(&self.place.key);
        let request = request.set_upload_id(self.upload_id.clone()).multipart_upload(parts);
        request.send().await.map_err(|error| failed(&self.name, "finish the upload", error))?;
        self.upload_id = None;
        self.remove_others().await;
        Ok(())
    }

    /// The object is whole: what others have of it is of no use. A store that does not let us is no reason to fail.
    async fn remove_others(&self) {
        let listed =
            self.client.list_multipart_uploads().bucket(&self.place.bucket).prefix(&self.place.key).send().await;
        let Ok(listed) = listed else { return };
        for other in listed.uploads().iter().filter(|other| other.key() == Some(&self.place.key)) {
            let request = self.client.abort_multipart_upload().bucket(&self.place.bucket).key(&self.place.key);
            let _ = request.set_upload_id(other.upload_id.clone()).send().await;
        }
    }

    pub async fn abort(mut self) {
        // A part that arrives after the upload has been removed would stay for ever.
        self.sending.shutdown().await;
        if let Some(upload_id) = self.upload_id.take() {
            let request = self.client.abort_multipart_upload().bucket(&self.place.bucket).key(&self.place.key);
            let _ = request.upload_id(upload_id).send().await;
        }
    }
}

fn failed<E, R>(object: &str, doing: &str, error: SdkError<E, R>) -> Error
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
    R: Debug + 'static,
{
    let (code, said) = match error.as_service_error() {
        Some(service) => {
            let code = service.code().unwrap_or("no code").to_owned();
            let message = format!("{} ({code})", service.message().unwrap_or("no message"));
            (code, message)
        }
        None => (String::new(), said(&error)),
    };
    let object = object.to_owned();
    let message = format!("{doing}: {said}");
    match code.as_str() {
        "NoSuchUpload" => Error::Superseded { object },
        "AccessDenied" | "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "ExpiredToken" => {
            Error::Denied { object, message }
        }
        _ => Error::Unavailable { object, message },
    }
}
