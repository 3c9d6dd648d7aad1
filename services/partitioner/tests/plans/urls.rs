//! Inputs on a minimal web server.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::path::Path;

use protocol::{BlockRange, ColumnType, Descriptor, InputKind, MiniBatchSize, TableFormat, Work};

use crate::fixtures::{
    descriptors, file_job, folder, group, input, refusal, schema, table_job, write,
};
use crate::tables::{ranges, write_parquet};

/// Serves `objects` by path until the test ends, and returns the address.
fn serve(objects: BTreeMap<&'static str, Vec<u8>>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = format!("http://{}", listener.local_addr().expect("bound"));
    std::thread::spawn(move || {
        for connection in listener.incoming() {
            let objects = objects.clone();
            std::thread::spawn(move || answer_all(connection.expect("a connection"), &objects));
        }
    });
    address
}

fn answer_all(mut connection: TcpStream, objects: &BTreeMap<&'static str, Vec<u8>>) {
    let mut requests = BufReader::new(connection.try_clone().expect("a second handle"))
        .lines()
        .map_while(Result::ok);
    while let Some(request) = requests.next() {
        let headers: Vec<String> = requests.by_ref().take_while(|line| !line.is_empty()).collect();
        let mut words = request.split(' ');
        let (method, path) = (words.next().expect("a method"), words.next().expect("a path"));
        let range = headers.iter().find_map(|header| {
            let (name, value) = header.split_once(": ")?;
            let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
            name.eq_ignore_ascii_case("range")
                .then(|| (first.parse().expect("a number"), last.parse().expect("a number")))
        });
        let mut answer = match (objects.get(path), range) {
            (None, _) => {
                "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n".to_owned().into_bytes()
            }
            (Some(object), None) => {
                let length = object.len();
                let mut answer = format!(
                    "HTTP/1.1 200 OK\r\nETag: \"v{length}\"\r\nContent-Length: {length}\r\n\r\n"
                )
                .into_bytes();
                answer.extend_from_slice(if method == "HEAD" { b"" } else { object });
                answer
            }
            (Some(object), Some((first, last))) => {
                let last: usize = last;
                let last = last.min(object.len() - 1);
                let (length, total) = (last + 1 - first, object.len());
                let mut answer = format!(
                    "HTTP/1.1 206 Partial Content\r\nETag: \"v{total}\"\r\nContent-Length: {length}\r\n\
                     Content-Range: bytes {first}-{last}/{total}\r\n\r\n"
                )
                .into_bytes();
                answer.extend_from_slice(&object[first..=last]);
                answer
            }
        };
        if connection.write_all(&std::mem::take(&mut answer)).is_err() {
            return;
        }
    }
}

fn parquet(groups: &[usize]) -> Vec<u8> {
    let root = folder();
    let path = root.path().join("table");
    write_parquet(&path, groups);
    std::fs::read(path).expect("just written")
}

#[test]
fn text_behind_a_url_is_split_like_a_file() {
    let text = "id,n\n".to_owned() + &"7,2.5\n".repeat(20);
    let address = serve(BTreeMap::from([
        ("/data/a%20b.csv", text.clone().into_bytes()),
        ("/data/empty.csv", Vec::new()),
    ]));
    let urls = ["/data/empty.csv", "/data/a%20b.csv"].map(|path| format!("{address}{path}"));
    let job = |size| table_job(TableFormat::Csv, size, &[Path::new(&urls[0]), Path::new(&urls[1])]);
    let by_bytes = job(MiniBatchSize::Bytes(100));
    let expected =
        [(0, 100), (101, 200)].map(|(first, last)| (0, BlockRange::Lines { first, last }));
    assert_eq!(ranges(&["data/a%20b.csv"], &by_bytes), expected);
    assert_eq!(schema(&by_bytes).columns[1].column_type, ColumnType::Float);
    assert_eq!(ranges(&["data/a%20b.csv"], &job(MiniBatchSize::Rows(8))).len(), 3);
}

#[test]
fn objects_are_surveyed_by_name_and_first_bytes() {
    let objects = [
        ("/a.csv", b"id;n\n1;2\n".to_vec()),
        ("/b.csv", parquet(&[1])),
        ("/c", parquet(&[1])),
        ("/d.csv", vec![]),
    ];
    let address = serve(BTreeMap::from(objects));
    let surveyed = |path: &str| {
        let mut job = table_job(
            TableFormat::Csv,
            MiniBatchSize::Bytes(100),
            &[Path::new(&format!("{address}{path}"))],
        );
        job.inputs[0].table.by_name = true;
        partitioner::survey(&job, &storage::StoreOptions::default())
            .remove(0)
            .map_err(|error| format!("{error:#}"))
    };
    let survey = surveyed("/a.csv").expect("text").expect("a table");
    assert_eq!((survey.format, survey.bytes, survey.notes.len()), (TableFormat::Csv, 9, 1));
    assert!(
        surveyed("/b.csv")
            .expect_err("Parquet")
            .contains("/b.csv is a Parquet file; set `format: parquet`")
    );
    assert_eq!(surveyed("/c").expect("Parquet").expect("a table").format, TableFormat::Parquet);
    assert!(surveyed("/d.csv").expect_err("empty").contains("all of its files are empty"));
}

#[test]
fn parquet_behind_a_url_needs_only_its_footer() {
    let address =
        serve(BTreeMap::from([("/a.parquet", parquet(&[5, 3])), ("/k/b.parquet", parquet(&[1]))]));
    let urls = ["/a.parquet", "/k/b.parquet"].map(|path| format!("{address}{path}"));
    let job = table_job(
        TableFormat::Parquet,
        MiniBatchSize::Bytes(1),
        &[Path::new(&urls[0]), Path::new(&urls[1])],
    );
    assert_eq!(
        ranges(&["a.parquet", "k/b.parquet"], &job),
        [(0, group(0, 0, 5)), (0, group(1, 0, 3)), (1, group(0, 0, 1))]
    );
}

#[test]
fn files_behind_urls_and_local_files_share_an_input() {
    let root = folder();
    write(root.path(), "here", "");
    let address = serve(BTreeMap::from([("/there.png", b"png".to_vec())]));
    let there = format!("{address}/there.png");
    let here = format!("file://{}", root.path().join("here").display());
    let job = file_job(5, &[Path::new(&there), Path::new(&here)]);
    let [Descriptor { work: Work::Files { paths, .. }, .. }] = &descriptors(&job)[..] else {
        panic!("one")
    };
    assert_eq!(paths[0].as_path(), Path::new(&there));
    assert_eq!(paths[1].as_path(), root.path().join("here"));
}

#[test]
fn missing_object_is_reported() {
    let address = serve(BTreeMap::new());
    let url = format!("{address}/none.csv");
    let refused =
        refusal(&table_job(TableFormat::Csv, MiniBatchSize::Bytes(1), &[Path::new(&url)]));
    assert_eq!(refused, format!("input 'sales': {url} does not exist; write {url}/ for a folder"));
    let mut job = file_job(1, &[]);
    job.inputs[0] = input("images", InputKind::File, &[Path::new("nowhere://a/b")]);
    let refused = refusal(&job);
    assert!(refused.starts_with("input 'images': nowhere://a/b cannot be read: "), "{refused}");
}

#[tokio::test]
async fn digest_contains_the_etag() {
    let address = serve(BTreeMap::from([("/a", b"1".to_vec()), ("/b", b"22".to_vec())]));
    let digest = async |name: &str| {
        let url = format!("{address}/{name}");
        partitioner::inputs_digest(&file_job(1, &[Path::new(&url)])).await.expect("listable")
    };
    assert_eq!(digest("a").await, digest("a").await);
    assert_ne!(digest("a").await, digest("b").await);
}
