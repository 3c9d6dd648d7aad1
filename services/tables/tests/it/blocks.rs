//! Blocks and ranges of files.

use std::fmt::Write;

use proptest::prelude::*;
use protocol::{BlockRange, HeaderMode, TableOptions};
use tables::{RangeSize, RowWindow};

use crate::support::{ALL_LINES, Folder, Input, column, csv, decode, jsonl, values};

/// `id,name,val`, then `i,xxxxxxxxxxxxxxxxxxxx,i*1.5`.
fn rows_of_x(rows: u32) -> String {
    let mut text = "id,name,val\n".to_owned();
    for row in 0..rows {
        writeln!(text, "{row},{},{:?}", "x".repeat(20), f64::from(row) * 1.5)
            .expect("strings take all");
    }
    text
}

fn rows_of_blocks(text: &str, options: TableOptions, block_bytes: u64) -> Vec<u64> {
    Input::new(text, options).blocks(block_bytes).iter().map(|block| block.rows).collect()
}

#[test]
fn blocks_contain_the_same_rows_as_in_the_original() {
    let (small, middle, big) = (rows_of_x(5), rows_of_x(200), rows_of_x(2000));
    assert_eq!((small.len(), middle.len(), big.len()), (147, 6028, 64161));
    let four_long_rows =
        format!("a,bbbbb\n{}", format!("{},{}\n", "1".repeat(50), "2".repeat(51)).repeat(4));
    assert_eq!(four_long_rows.len(), 8 + 4 * 103);
    let mut objects = String::new();
    for id in 0..50 {
        writeln!(objects, "{{\"id\":{id},\"s\":\"xx\"}}").expect("strings take all");
    }
    assert_eq!(objects.len(), 940);
    // 75 lines of almost equal length, 84 032 bytes in total.
    let line = format!("{},{}\n", "5".repeat(9), "x".repeat(1109));
    let long = format!("{},{}\n{}", "5".repeat(9), "x".repeat(1141), line.repeat(74));
    assert_eq!(long.len(), 84_032);

    let vectors: [(&str, &str, u64, &[u64]); 9] = [
        ("middle", &middle, 1024, &[36, 35, 34, 33, 33, 29]),
        ("middle", &middle, 4096, &[138, 62]),
        (
            "big",
            &big,
            4096,
            &[138, 132, 132, 133, 132, 128, 128, 126, 124, 124, 125, 124, 124, 124, 124, 82],
        ),
        ("big", &big, 10240, &[336, 331, 320, 310, 311, 310, 82]),
        ("small", &small, 1_048_576, &[5]),
        ("middle", &middle, 1_048_576, &[200]),
        ("big", &big, 1_048_576, &[2000]),
        ("no line break at the end", "id,name\n1,a\n2,b\n3,c", 8, &[1, 2, 0]),
        ("four long rows", &four_long_rows, 40, &[1, 0, 1, 0, 0, 1, 0, 1, 0, 0, 0]),
    ];
    for (name, text, block_bytes, expected) in vectors {
        assert_eq!(rows_of_blocks(text, csv(), block_bytes), expected, "{name}, {block_bytes}");
    }
    assert_eq!(rows_of_blocks(&objects, jsonl(), 200), [12, 10, 11, 10, 7]);
    assert_eq!(rows_of_blocks(&long, csv(), 10_240), [9, 9, 9, 9, 9, 9, 9, 10, 1]);
    let hundred = rows_of_blocks(&long, csv(), 100);
    assert_eq!(hundred.len(), 841);
    assert_eq!(hundred.iter().filter(|&&rows| rows == 1).count(), 74);
    assert_eq!(hundred.iter().filter(|&&rows| rows == 0).count(), 767);
}

#[test]
fn empty_file_has_no_block_and_header_alone_an_empty_one() {
    assert_eq!(rows_of_blocks("", csv(), 10), [0; 0]);
    assert_eq!(rows_of_blocks("a,b\n", csv(), 10), [0]);
    assert_eq!(rows_of_blocks("a,b", csv(), 2), [0, 0]);
}

#[test]
fn block_may_have_one_byte() {
    assert_eq!(rows_of_blocks("a\n1\n2\n", csv(), 1), [0, 1, 0, 1, 0, 0]);
}

#[test]
fn ranges_have_the_requested_number_of_rows() {
    let text = "\n\na,b\r\n1,x\r\n\r\n2,y\n \n3,z\n4,w\n5,v";
    let input = Input::new(text, csv());
    for (rows, expected) in [(1, vec![1; 5]), (2, vec![2, 2, 1]), (5, vec![5]), (99, vec![5])] {
        let counts: Vec<u64> =
            input.parts(RangeSize::Rows(rows)).iter().map(|part| part.rows).collect();
        assert_eq!(counts, expected);
    }
    let no_header =
        Input { options: TableOptions { header: HeaderMode::NoHeader, ..csv() }, ..input };
    assert_eq!(no_header.ranges(RangeSize::Rows(2)).len(), 3);
    let empty = Folder::new().file("empty", "");
    let removed = tables::text_ranges(&empty, "empty", &csv(), RangeSize::Rows(2));
    assert!(removed.is_err(), "the folder was removed with its file");
}

#[test]
fn window_has_exactly_its_rows() {
    let text = "\n\na,b\r\n1,x\r\n\r\n2,y\n \n3,z\n4,w\n5,v";
    for options in [csv(), TableOptions { support_multi_line: true, ..csv() }] {
        let input = Input::new(text, options);
        let sizes =
            [1, 2, 99].map(RangeSize::Rows).into_iter().chain([1, 8, 99].map(RangeSize::Bytes));
        for (size, skip) in sizes.flat_map(|size| (0..7).map(move |skip| (size, skip))) {
            for take in [None, Some(1), Some(2), Some(4), Some(9)] {
                let window = RowWindow::of(&TableOptions { skip, take, ..csv() });
                let ranges = tables::text_ranges(&input.path, "data.txt", &input.options, size)
                    .expect("readable");
                let mut ranges = ranges.within(window);
                let mut found = Vec::new();
                for range in ranges.by_ref() {
                    let (range, rows) = range.expect("readable");
                    let part = input.decode(range).expect("readable");
                    assert_eq!(part.rows, rows, "{range:?}");
                    found.extend(column(&part, "a"));
                }
                let rows = (1..=5).skip(skip as usize).take(take.unwrap_or(9) as usize);
                let expected: Vec<String> = rows.map(|row: u64| row.to_string()).collect();
                assert_eq!(found, expected, "{size:?}, skip {skip}, take {take:?}");
                assert_eq!(ranges.window().is_over(), take == Some(expected.len() as u64));
            }
        }
    }
}

#[test]
fn header_of_the_first_file_alone_is_in_no_range() {
    let options = TableOptions { header: HeaderMode::FromFirstFile, ..csv() };
    for options in [options.clone(), TableOptions { support_multi_line: true, ..options }] {
        let input = Input::new("\na,b\n1,x\n2,y\n", options);
        for size in [RangeSize::Rows(1), RangeSize::Rows(9), RangeSize::Bytes(3)] {
            let ranges = tables::text_ranges(&input.path, "data.txt", &input.options, size)
                .expect("readable");
            let parts =
                ranges.without_header().map(|range| input.decode(range.expect("readable").0));
            let found: Vec<String> =
                parts.flat_map(|part| column(&part.expect("readable"), "a")).collect();
            assert_eq!(found, ["1", "2"], "{size:?}");
        }
        let other = input.folder.file("other", "3,z\n");
        let all = if input.options.support_multi_line { BlockRange::WholeText } else { ALL_LINES };
        let decoded = decode(&other, all, &input.options, input.schema.as_ref()).expect("readable");
        assert_eq!(
            (column(&decoded, "a"), decoded.warnings.first.len()),
            (vec!["3".to_owned()], 0)
        );
    }
}

proptest! {
    #[test]
    fn blocks_cover_the_file_and_rows_follow_the_formula(
        lines in prop::collection::vec("[a-z]{0,12}", 0..60),
        line_breaks in prop::collection::vec(prop::bool::ANY, 60),
        has_mark: bool,
        ends_with_line_break: bool,
        block_bytes in 1u64..80,
        rows_max in 1u64..9,
    ) {
        let mut text = if has_mark { "\u{FEFF}".to_owned() } else { String::new() };
        text.push_str("name\n");
        let mut expected: Vec<(u64, String)> = Vec::new();
        for (line, is_crlf) in lines.iter().zip(line_breaks) {
            if !line.is_empty() {
                expected.push(((text.len() as u64 - 1) / block_bytes, line.clone()));
            }
            text.push_str(line);
            text.push_str(if is_crlf { "\r\n" } else { "\n" });
        }
        if !ends_with_line_break {
            text.truncate(text.trim_end().len());
        }
        let input = Input::new(&text, TableOptions { infer_column_types: false, ..csv() });
        let mut found = Vec::new();
        for (k, block) in (0..).zip(input.blocks(block_bytes)) {
            found.extend(column(&block, "name").into_iter().map(|value| (k, value)));
        }
        prop_assert_eq!(&found, &expected);

        let mut rows = Vec::new();
        for part in input.parts(RangeSize::Rows(rows_max)) {
            let values = values(part.batch.column(0));
            prop_assert!(values.len() as u64 <= rows_max);
            rows.extend(values);
        }
        prop_assert_eq!(rows, expected.into_iter().map(|(_, value)| value).collect::<Vec<_>>());
    }
}
