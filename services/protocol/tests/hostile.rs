//! Input from outside is either read or rejected: no bytes end the process or make it allocate more memory than their
//! own length.

use bytes::Bytes;
use proptest::prelude::*;
use protocol::{
    Attempt, AttemptStatus, Block, BlockRange, DeadLetter, Descriptor, ErrorReport,
    FRAME_LENGTH_MAX, FileVersion, FrameError, FrameReader, ItemPath, JobResult, JobSpec, Phases,
    ProcessEvent, Progress, ResultEvent, Rows, ToProcess, Work, begin_message, decode_records,
    encode_frame, encode_record, job_of_message,
};

const JOB: &str = "a-20261121-100203-ab12";

fn attempt() -> Attempt {
    Attempt {
        mini_batch: 7,
        try_number: 1,
        node: "node-1".into(),
        process: "process000".into(),
        status: AttemptStatus::RunRaised,
        total: 3,
        succeeded: 2,
        rows: Rows::Part { name: "0000000007-1-0-node-1-17".into(), bytes: 17 },
        columns: Some(vec!["a".into()]),
        started_at: 1_700_000_000_000,
        elapsed_seconds: 0.5,
        process_seconds: 0.25,
        run_seconds: 0.5,
        phases: Phases::new(0.5, 0.0, 0.25),
        error: Some(Box::new(ErrorReport {
            category: "ValueError".into(),
            message: "bad".into(),
            ..ErrorReport::default()
        })),
        detail: "/data/7.png".into(),
        ..Attempt::default()
    }
}

/// Messages of correct writers.
fn samples() -> Vec<Vec<u8>> {
    let json = |work: Work| serde_json::to_vec(&Descriptor::new(JOB, 7, work)).expect("plain data");
    let version = FileVersion { bytes: 3, etag: Some("\"e\"".into()), modified: Some(4) };
    let range = BlockRange::RowGroup { row_group: 1, offset: 2, rows: 3 };
    let block = Block {
        path: "s3://b/c".into(),
        version: Some(version.clone()),
        range,
        path_columns: vec![],
    };
    let mut message = begin_message(JOB);
    encode_record(&ResultEvent::Attempt(Box::new(attempt())), b"rows\n", &mut message);
    encode_record(&ResultEvent::CutShort, b"", &mut message);
    let mut frame = Vec::new();
    encode_frame(&ToProcess::Finish, b"payload", &mut frame);
    let spec = serde_json::to_vec(&JobSpec::example()).expect("plain data");
    vec![
        json(Work::Files {
            input: 0,
            paths: vec![ItemPath::from(b"/data/\xff".to_vec())],
            versions: vec![version],
            stamps: vec![7],
            key: vec![("a".into(), "b".into())],
        }),
        json(Work::Rows { input: 0, blocks: vec![block], rows_before: None, key: vec![] }),
        json(Work::Planned { chunk: 1, line: 2 }),
        message,
        frame,
        spec,
        DeadLetter::message("no JSON", "node-1", "job", "tasks", b"\xff\xfe", 1000),
    ]
}

/// Calls every decoder of the crate. They return nothing larger than their input.
fn decode(bytes: &[u8]) {
    if let Ok(descriptor) = Descriptor::of_message(bytes) {
        assert!(descriptor.detail().len() <= 8 * bytes.len() + 200);
        let _ = descriptor.key();
    }
    let body = Bytes::copy_from_slice(bytes);
    let _ = job_of_message(&body);
    for record in decode_records(&body).flatten() {
        assert!(record.rows.end <= bytes.len());
        if let ResultEvent::Attempt(attempt) = record.event {
            assert!(attempt.failed() <= attempt.total);
        }
    }
    let mut reader = FrameReader::default();
    reader.buffer().extend_from_slice(bytes);
    while let Ok(Some((_, payload))) = reader.next_frame::<ProcessEvent>() {
        assert!(payload.len() <= bytes.len());
    }
    if let Ok(spec) = serde_json::from_slice::<JobSpec>(bytes) {
        let _ = spec.check_names();
    }
    if let Ok(letter) = serde_json::from_slice::<DeadLetter>(bytes) {
        assert!(letter.body().len() <= bytes.len());
    }
    let _ = serde_json::from_slice::<Progress>(bytes);
    let _ = serde_json::from_slice::<JobResult>(bytes);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_changed_message_is_read_or_rejected(
        sample in any::<prop::sample::Index>(),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>(), 0..4u8), 1..12),
    ) {
        let mut bytes = samples().swap_remove(sample.index(samples().len()));
        for (index, byte, kind) in changes {
            if bytes.is_empty() {
                break;
            }
            let at = index.index(bytes.len());
            match kind {
                0 => bytes[at] = byte,
                1 => bytes.insert(at, byte),
                2 => bytes.truncate(at),
                // Changes a number, or makes a length huge.
                _ => drop(bytes.splice(at..at, *b"99999999")),
            }
        }
        decode(&bytes);
    }

    #[test]
    fn any_bytes_are_read_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        decode(&bytes);
    }
}

#[test]
fn valid_messages_are_read() {
    samples().iter().for_each(|sample| decode(sample));
    assert_eq!(samples().iter().filter(|sample| Descriptor::of_message(sample).is_ok()).count(), 3);
    assert_eq!(
        samples()
            .iter()
            .filter(|sample| job_of_message(&Bytes::copy_from_slice(sample)).is_ok())
            .count(),
        1
    );
}

#[test]
fn endless_json_does_not_exhaust_the_stack() {
    for open in ["[", "{\"a\":", "{\"job_id\":[", "{\"work\":{\"kind\":"] {
        let deep = open.repeat(1_000_000);
        decode(deep.as_bytes());
        let mut record = u32::try_from(deep.len()).expect("small").to_le_bytes().to_vec();
        record.extend([0; 4]);
        record.extend(deep.as_bytes());
        assert!(decode_records(&Bytes::from(record)).all(|record| record.is_err()));
    }
}

#[test]
fn announced_length_is_checked_before_its_bytes_arrive() {
    let huge = Bytes::from_static(b"\xff\xff\xff\xff\xff\xff\xff\xff{}");
    assert!(decode_records(&huge).all(|record| record.is_err()));
    let mut reader = FrameReader::default();
    reader.buffer().extend_from_slice(&huge);
    let refused = reader.next_frame::<ProcessEvent>().expect_err("longer than any");
    assert!(matches!(refused, FrameError::TooLong { length } if length > FRAME_LENGTH_MAX));
}

#[test]
fn message_with_invalid_job_id_is_rejected() {
    for job_id in ["../..", "a/b", "", "a\nb", "\u{1b}[2J", &"a".repeat(1000)] {
        let task = serde_json::to_vec(&Descriptor::new(job_id, 0, Work::Rank)).expect("plain data");
        assert!(
            Descriptor::of_message(&task)
                .expect_err(job_id)
                .to_string()
                .ends_with("is not a valid job id")
        );
        let result = Bytes::from(begin_message(job_id));
        assert!(
            job_of_message(&result)
                .expect_err(job_id)
                .to_string()
                .ends_with("is not a valid job id")
        );
    }
}
