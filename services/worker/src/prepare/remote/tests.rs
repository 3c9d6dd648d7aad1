//! Tests with LocalStack: `GRISTMILL_TEST_AWS_ENDPOINT`.

#[path = "../../../../storage/tests/s3_real/support.rs"]
mod support;

use std::sync::Arc;

use arrow::array::{ArrayRef, Float64Array, Int64Array, RecordBatch};
use parquet::arrow::ArrowWriter;
use parquet::file::properties::WriterProperties;
use protocol::{TableFormat, TableOptions, TableSchema};
use storage::StoreOptions;
use tables::{DecodeRequest, Decoded, LocalBlock};

use super::*;
use support::{Bucket, Proxy, http};

/// An object, a local file with the same bytes, and a node that reads the object through a counting proxy.
struct Site {
    bucket: Bucket,
    proxy: Proxy,
    folder: tempfile::TempDir,
    remote: Remote,
    content: Vec<u8>,
    version: FileVersion,
}

impl Site {
    fn new(key: &str, content: Vec<u8>) -> Self {
        let (bucket, proxy) = (Bucket::new(), Proxy::counting());
        bucket.put(key, &content);
        let folder = tempfile::tempdir().expect("temporary folder");
        std::fs::write(folder.path().join("same"), &content).expect("writable");
        let stores =
            Stores::new(StoreOptions { endpoint: Some(proxy.endpoint.clone()), region: None });
        let remote = Remote::new(stores, folder.path().join("inputs"));
        let (_, listing) =
            http(&support::endpoint(), "GET", &format!("/{}?list-type=2", bucket.name), &[], b"");
        let listing = String::from_utf8(listing).expect("XML");
        let (_, rest) = listing.split_once("<ETag>").expect("listed");
        let etag = rest.split_once('<').expect("closed").0.replace("&quot;", "\"");
        let version = FileVersion { bytes: content.len() as u64, etag: Some(etag), modified: None };
        Self { bucket, proxy, folder, remote, content, version }
    }

    fn block(&self, key: &str, range: BlockRange) -> Block {
        let path = ItemPath::from(self.bucket.url(key).as_str());
        Block { path, version: Some(self.version.clone()), range, path_columns: vec![] }
    }

    /// Decodes a block from the store and from the disk.
    async fn both(
        &self,
        block: &Block,
        options: &TableOptions,
        schema: Option<&TableSchema>,
    ) -> (Decoded, Decoded) {
        let files =
            self.remote.tables(std::slice::from_ref(block), options).await.expect("readable");
        let path = files[0].path();
        let decode = |path, has_holes| {
            let blocks = [LocalBlock { block, path, has_holes }];
            tables::decode(&DecodeRequest { blocks: &blocks, options, schema, with_lines: false })
                .expect("decodable")
        };
        (decode(&path, files[0].has_holes()), decode(&self.folder.path().join("same"), false))
    }

    fn bytes_read(&self) -> usize {
        self.proxy.requests().iter().map(|request| request.answer_bytes).sum()
    }
}

#[tokio::test]
async fn real_text_block_reads_its_lines_and_little_more() {
    let mut text = "id,text\n".to_owned();
    for id in 0..40_000 {
        text.push_str(&format!("{id},some text of row {id}\n"));
        if id == 20_000 {
            // Longer than the tail that is read with a block.
            text.push_str(&format!("-1,{}\n", "long".repeat(100_000)));
        }
    }
    let site = Site::new("a.csv", text.into_bytes());
    let options = TableOptions { format: TableFormat::Csv, ..TableOptions::default() };
    let same = site.folder.path().join("same");
    let schema = tables::infer_schema([same.as_path()], &options, &[]).expect("readable");
    let block_bytes = 100_000;
    let mut rows = 0;
    for number in 0..tables::text_blocks(site.content.len() as u64, block_bytes) {
        let block = site.block("a.csv", tables::text_block_range(number, block_bytes));
        let before = (site.proxy.requests().len(), site.bytes_read());
        let (remote, local) = site.both(&block, &options, schema.as_ref()).await;
        assert!(remote.batch == local.batch, "block {number} differs");
        rows += remote.rows;
        if number == 3 {
            assert_eq!(
                site.proxy.requests().len() - before.0,
                1,
                "the head of the file is known by now"
            );
            assert!(
                site.bytes_read() - before.1 < 170_000,
                "{} bytes",
                site.bytes_read() - before.1
            );
        }
    }
    assert_eq!(rows, 40_001);
    assert!(
        site.proxy
            .requests()
            .iter()
            .all(|request| request.header("if-match") == site.version.etag.as_deref())
    );
}

#[tokio::test]
async fn real_row_group_reads_its_columns_and_the_footer_once() {
    let count = 60_000;
    let ids: ArrayRef = Arc::new(Int64Array::from_iter_values(0..count * 3));
    let noise = (0..count * 3).map(|id| (id as f64 * 0.618_033_988_7).fract().sqrt());
    let values: ArrayRef = Arc::new(Float64Array::from_iter_values(noise));
    let batch =
        RecordBatch::try_from_iter([("id", ids), ("value", values)]).expect("equal lengths");
    let properties = WriterProperties::builder()
        .set_dictionary_enabled(false)
        .set_max_row_group_row_count(Some(count as usize))
        .build();
    let mut content = Vec::new();
    let mut writer =
        ArrowWriter::try_new(&mut content, batch.schema(), Some(properties)).expect("in memory");
    writer.write(&batch).expect("in memory");
    writer.close().expect("in memory");
    let site = Site::new("a.parquet", content);
    let options = TableOptions { format: TableFormat::Parquet, ..TableOptions::default() };
    for row_group in [0, 1, 2] {
        let range = BlockRange::RowGroup { row_group, offset: 10, rows: count as u64 - 20 };
        let (remote, local) = site.both(&site.block("a.parquet", range), &options, None).await;
        assert!(remote.batch == local.batch, "row group {row_group} differs");
        assert_eq!(remote.rows, count as u64 - 20);
    }
    assert_eq!(site.proxy.requests().len(), 1 + 3, "the footer, and each row group");
    assert!(
        site.bytes_read() < site.content.len() + 300_000,
        "{} of {}",
        site.bytes_read(),
        site.content.len()
    );
}

#[tokio::test]
async fn real_changed_file_fails_and_is_named() {
    let site = Site::new("d/a.txt", b"one\n".to_vec());
    let url = site.bucket.url("d/a.txt");
    let paths = [ItemPath::from("/local"), ItemPath::from(url.as_str())];
    let versions = [FileVersion { bytes: 0, etag: None, modified: None }, site.version.clone()];
    let (local, downloads) = site.remote.files(&paths, &versions).await.expect("unchanged");
    assert_eq!(local[0], paths[0]);
    assert_eq!(local[1].as_path().file_name().expect("a file"), "a.txt");
    assert_eq!(std::fs::read(local[1].as_path()).expect("there"), b"one\n");
    drop(downloads);
    // Removed with its mini-batch, by a thread of its own.
    while local[1].as_path().exists() {
        tokio::task::yield_now().await;
    }

    site.bucket.put("d/a.txt", b"two\n");
    let etag = site.version.etag.as_deref().expect("S3 has them");
    let planned = format!(
        "input changed since the job was planned: {url} (planned as ETag {etag}, 4 bytes; now "
    );
    let block = site.block("d/a.txt", BlockRange::WholeText);
    let failed = async || {
        let files = site.remote.files(&paths, &versions).await.map(drop);
        let tables = site
            .remote
            .tables(std::slice::from_ref(&block), &TableOptions::default())
            .await
            .map(drop);
        [files, tables].map(|result| format!("{:#}", result.expect_err("not as planned")))
    };
    for said in failed().await {
        assert!(said.starts_with(&format!("{planned}ETag ")), "{said}");
        assert!(said.contains("retry the job, or start a new job"), "{said}");
    }
    site.bucket.delete("d/a.txt");
    let [_, said] = failed().await;
    assert!(said.starts_with(&format!("{planned}it does not exist)")), "{said}");
    let left = std::fs::read_dir(site.folder.path().join("inputs")).expect("there");
    assert_eq!(left.count(), 0, "failed downloads leave no files");
}
