//! Requests that upload an object to S3, some parts of which S3 copies from other objects.
//!
//! A writer that finishes an object removes all other uploads of it: those of dead writers, which would cost money,
//! and those of slow writers, which would later replace it with an older state. A slow writer then gets
//! [`Error::Superseded`], and the finished object remains.

use std::ops::Range;

use aws_sdk_s3::Client;
use aws_sdk_s3::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_s3::primitives::ByteStream;
use aws_sdk_s3::types::{CompletedMultipartUpload, CompletedPart};
use bytes::Bytes;
use object_store::path::Path as ObjectPath;
use url::Url;

use super::Sending;
use crate::error::{EXPIRED, RequestFailure, Source, short_message};
use crate::{Error, Result};

/// An object on S3.
#[derive(Clone, Debug)]
pub(crate) struct S3Object {
    bucket: String,
    key: String,
}

#[derive(Debug)]
pub(super) struct S3Upload {
    pub client: Client,
    pub object: S3Object,
    /// Set once the first part is sent.
    pub upload_id: Option<String>,
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
    /// Returns the request that sends a part.
    pub async fn part(&mut self, name: &str, number: u64, body: Bytes) -> Result<Sending> {
        let (number, upload_id) = self.begin(name, number).await?;
        let request = self.client.upload_part().bucket(&self.object.bucket).key(&self.object.key);
        let request = request.upload_id(upload_id).part_number(number).body(ByteStream::from(body));
        let name = name.to_owned();
        Ok(Box::pin(async move {
            let sent =
                request.send().await.map_err(|error| failed(&name, "upload a part", error))?;
            Ok(Some(CompletedPart::builder().set_e_tag(sent.e_tag).part_number(number).build()))
        }))
    }

    /// Returns the request that copies a range of another object as a part.
    pub async fn copied_part(
        &mut self,
        name: &str,
        number: u64,
        from: &S3Object,
        range: Range<u64>,
    ) -> Result<Sending> {
        let (number, upload_id) = self.begin(name, number).await?;
        let request =
            self.client.upload_part_copy().bucket(&self.object.bucket).key(&self.object.key);
        let request = request.upload_id(upload_id).part_number(number);
        let bytes = format!("bytes={}-{}", range.start, range.end - 1);
        let request = request.copy_source(from.source()).copy_source_range(bytes);
        let (name, source) = (name.to_owned(), format!("s3://{}/{}", from.bucket, from.key));
        Ok(Box::pin(async move {
            let copied = request
                .send()
                .await
                .map_err(|error| failed(&name, &format!("copy {source}"), error))?;
            let etag = copied.copy_part_result.and_then(|result| result.e_tag);
            Ok(Some(CompletedPart::builder().set_e_tag(etag).part_number(number).build()))
        }))
    }

    /// Begins the upload, unless it has begun. Returns the number of a part as S3 counts, and the id of the upload.
    async fn begin(&mut self, name: &str, number: u64) -> Result<(i32, String)> {
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
                    .map_err(|error| failed(name, "begin the upload", error))?;
                self.upload_id.insert(begun.upload_id.unwrap_or_default()).clone()
            }
        };
        Ok((i32::try_from(number).unwrap_or(i32::MAX), upload_id))
    }

    /// Completes the object after its last part. Without parts, `whole` is its content.
    pub async fn complete(
        &mut self,
        name: &str,
        whole: Bytes,
        mut parts: Vec<CompletedPart>,
    ) -> Result<()> {
        if self.upload_id.is_none() {
            let request =
                self.client.put_object().bucket(&self.object.bucket).key(&self.object.key);
            let put = request.body(ByteStream::from(whole)).send().await;
            return put.map(drop).map_err(|error| failed(name, "upload", error));
        }
        parts.sort_by_key(|part| part.part_number);
        let parts = CompletedMultipartUpload::builder().set_parts(Some(parts)).build();
        let request = self
            .client
            .complete_multipart_upload()
            .bucket(&self.object.bucket)
            .key(&self.object.key);
        let request = request.set_upload_id(self.upload_id.clone()).multipart_upload(parts);
        request.send().await.map_err(|error| failed(name, "finish the upload", error))?;
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

    pub async fn abort(self) {
        if let Some(upload_id) = self.upload_id {
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
        (code, status) if matches!(status, Some(401 | 403)) || EXPIRED.contains(&code) => {
            Error::Denied { object, source }
        }
        _ => Error::Unavailable { object, source },
    }
}
