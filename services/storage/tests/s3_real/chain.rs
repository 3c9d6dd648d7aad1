//! Tests of AWS settings from the usual sources. Each test changes the variables of its own process.

use std::fs;

use storage::{StoreOptions, Stores};

use crate::support::{Bucket, Proxy, endpoint};

/// Removes the keys that other tests use, and sets these variables.
fn set(variables: &[(&str, &str)]) {
    for name in [
        "AWS_ACCESS_KEY_ID",
        "AWS_SECRET_ACCESS_KEY",
        "AWS_SESSION_TOKEN",
        "AWS_REGION",
        "AWS_DEFAULT_REGION",
    ] {
        // SAFETY: the runner gives each test its own process, in which no other thread reads variables yet.
        unsafe { std::env::remove_var(name) };
    }
    for (name, value) in variables {
        // SAFETY: as above.
        unsafe { std::env::set_var(name, value) };
    }
}

fn read(url: &str, options: StoreOptions) -> Result<bytes::Bytes, storage::Error> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async { Stores::new(options).read(url, None, 0..2).await })
}

#[test]
fn profile_provides_keys_region_and_endpoint() {
    let (bucket, proxy) = (Bucket::new(), Proxy::counting());
    bucket.put("a", b"12");
    let folder = tempfile::tempdir().expect("temporary folder");
    let (config, credentials) = (folder.path().join("config"), folder.path().join("credentials"));
    let profile =
        format!("[profile mill]\nregion = eu-central-1\nendpoint_url = {}\n", proxy.endpoint);
    fs::write(&config, profile).expect("writable");
    fs::write(
        &credentials,
        "[mill]\naws_access_key_id = AKIAPROFILE\naws_secret_access_key = hidden\n",
    )
    .expect("writable");
    set(&[
        ("AWS_CONFIG_FILE", config.to_str().expect("text")),
        ("AWS_SHARED_CREDENTIALS_FILE", credentials.to_str().expect("text")),
        ("AWS_PROFILE", "mill"),
    ]);
    assert_eq!(read(&bucket.url("a"), StoreOptions::default()).expect("readable"), "12");
    let requests = proxy.requests();
    let authorization = requests[0].header("authorization").expect("signed");
    assert!(authorization.contains("Credential=AKIAPROFILE/"), "{authorization}");
    assert!(authorization.contains("/eu-central-1/s3/aws4_request"), "{authorization}");
}

#[test]
fn web_identity_is_exchanged_for_keys() {
    let (bucket, proxy) = (Bucket::new(), Proxy::counting());
    bucket.put("a", b"12");
    let folder = tempfile::tempdir().expect("temporary folder");
    let token = folder.path().join("token");
    fs::write(&token, "eyJhbGciOiJub25lIn0.eyJzdWIiOiJ3b3JrZXIifQ.").expect("writable");
    set(&[
        ("AWS_WEB_IDENTITY_TOKEN_FILE", token.to_str().expect("text")),
        ("AWS_ROLE_ARN", "arn:aws:iam::000000000000:role/worker"),
        ("AWS_REGION", "us-east-1"),
        ("AWS_ENDPOINT_URL", &endpoint()),
        ("AWS_ENDPOINT_URL_S3", &proxy.endpoint),
    ]);
    assert_eq!(read(&bucket.url("a"), StoreOptions::default()).expect("readable"), "12");
    let requests = proxy.requests();
    assert!(
        requests.iter().all(|request| request.method == "GET"),
        "S3 has an endpoint of its own"
    );
    assert!(
        requests[0].header("x-amz-security-token").is_some(),
        "keys that were exchanged come with a token"
    );
}

#[test]
fn error_without_keys_names_all_sources() {
    let options = StoreOptions { endpoint: Some(endpoint()), region: None };
    set(&[
        ("AWS_REGION", "us-east-1"),
        ("AWS_CONFIG_FILE", "/nonexistent"),
        ("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent"),
        ("AWS_EC2_METADATA_DISABLED", "true"),
    ]);
    let error =
        format!("{:#}", read("s3://bucket/a", options).expect_err("there are no credentials"));
    assert!(
        error.starts_with("s3://bucket/a: access denied; ")
            && error.contains(": no AWS credentials were found in environment, profile"),
        "{error}"
    );
    assert!(
        error.contains("set AWS_PROFILE, or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"),
        "{error}"
    );
}
