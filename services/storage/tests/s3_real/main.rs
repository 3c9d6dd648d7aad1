//! Tests of stores with LocalStack's S3 at `GRISTMILL_TEST_AWS_ENDPOINT`.

mod support;

mod chain;
mod create;
mod objects;
mod upload;
mod versions;

use storage::{StoreOptions, Stores, TargetStore};
use support::{Bucket, Proxy};

fn options(endpoint: &str) -> StoreOptions {
    StoreOptions { endpoint: Some(endpoint.to_owned()), region: None }
}

fn stores(endpoint: &str) -> Stores {
    Stores::new(options(endpoint))
}

async fn target(bucket: &Bucket, endpoint: &str) -> TargetStore {
    TargetStore::open(&bucket.url("some/prefix"), options(endpoint))
        .await
        .expect("the bucket is there")
}

/// Opens a target behind a proxy that counts requests.
async fn counted(bucket: &Bucket) -> (TargetStore, Proxy) {
    let proxy = Proxy::counting();
    (target(bucket, &proxy.endpoint).await, proxy)
}
