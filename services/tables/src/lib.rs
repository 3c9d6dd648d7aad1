//! Tables of an input: delimited text, JSON lines and Parquet, split into blocks, typed, and decoded to Arrow.
//!
//! The partitioner needs the blocks of a file ([`text_block_range`], [`parquet_row_groups`], [`text_ranges`]) and its
//! columns ([`SchemaInference`]); the worker needs the rows of a mini-batch ([`Decoder`]) in the form in which
//! it hands them over ([`IpcStream`]). Files are local: callers fetch remote objects first.
//!
//! The columns of a decoded batch are `Int64`, `UInt64`, `Float64`, `Boolean`, `Timestamp(ns)` without a zone or in
//! UTC, `LargeUtf8` and `Null`; those of a Parquet file keep their types, except that text is `LargeUtf8`, too.
//!
//! If the options list columns, a batch has only these. The decoder skips all others: it finds cells but does not parse
//! them, skips JSON values, and leaves column chunks of Parquet unread. Warnings do not mention them.
//!
//! A missing value is null. Its slot holds NaN in `Float64` and `i64::MIN` in `Timestamp`, as in pandas. The metadata
//! of a field tells pandas more about its column, see [`protocol::fields`].
//!
//! A bad record never stops a mini-batch. It counts as failed or, if the options say so, is kept as the original keeps
//! it, with a warning. Only an unreadable file is an [`Error`].
//!
//! Planning and decoding must agree on where a block begins. So partitioner and worker, which do not depend on each
//! other, both call this crate.

mod blocks;
mod builder;
mod cast;
mod charset;
mod column;
mod datetime;
mod decode;
mod delimited;
pub mod detect;
mod error;
pub mod first_rows;
mod for_pandas;
mod header_names;
mod headers;
mod infer;
mod ipc;
mod jsonl;
mod line_ends;
mod missing;
mod peek;
mod problem;
mod problems;
mod row_groups;
mod row_lines;
mod row_texts;
mod scalar;
mod sketch;
mod source;
mod split;
mod stream;
mod texts;
mod times;
mod wide;
mod write;

pub use blocks::{
    RangeSize, RowWindow, TextRanges, split_row_group, text_block_range, text_blocks, text_ranges,
};
pub use charset::encoding_for;
pub use decode::{AsItems, DecodeRequest, Decoded, Decoder, LocalBlock, decode};
pub use error::{Error, Result};
pub use header_names::{doubtful_names, header_cells};
pub use infer::{PLACES_MAX, SchemaInference, infer_schema};
pub use ipc::IpcStream;
pub use peek::{Peek, peek, shown as delimiter_shown};
pub use problems::{WARNINGS_MAX, Warnings};
pub use row_groups::{
    footer_start, parquet_columns, parquet_row_groups, parquet_shape, row_group_bytes,
};
pub use row_texts::row_texts;
pub use sketch::{
    Sketch, from_path, parquet_sketches, path_column, schema_sketches, text_sketches,
};
pub use source::{LINE_BYTES_MAX, is_read_from_front, must_be_read};
pub use write::write_parquet;

/// Bytes of a remote Parquet file that are read first, from its end: most footers fit.
pub const FOOTER_BYTES_GUESS: u64 = 256 * 1024;

/// Number of data rows that determine the types of columns, counted over the files of an input in order.
pub const WINDOW_ROWS: usize = 200;
