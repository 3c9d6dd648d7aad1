//! Tables of an input: delimited text, JSON lines and Parquet, cut into blocks, typed, and decoded to Arrow.
//!
//! The partitioner asks where a file is cut ([`text_block_range`], [`parquet_row_groups`], [`row_ranges`]) and what its
//! columns are ([`SchemaInference`]); the worker asks for the rows of a mini-batch ([`Decoder`]) in the form in which
//! they are handed over ([`IpcStream`]). Files are local: who has an object elsewhere fetches it first.
//!
//! The columns of a decoded batch are `Int64`, `Float64`, `Boolean`, `Timestamp(ns)` without a zone, `LargeUtf8` and
//! `Null`; those of a Parquet file are as they are there, text being `LargeUtf8` too.
//!
//! Where the options list columns, a batch has these and no others; the rest of a file is passed over: cells are found
//! and not parsed, JSON values are skipped, column chunks of Parquet stay unread. Then no warning is about it either.
//!
//! - `Int64` has no missing values. A block in which one is missing has the column as `Float64`.
//! - `Float64` has no null bitmap: a missing value is NaN.
//! - `Timestamp` has `i64::MIN` where its bitmap says null.
//!
//! A bad record never stops a mini-batch. It is kept as the original would have kept it, with a warning, or, if the
//! options say so, counted as failed; only a file that cannot be read at all is an [`Error`].

mod blocks;
mod column;
mod datetime;
mod decode;
mod delimited;
mod error;
mod infer;
mod ipc;
mod jsonl;
mod problems;
mod row_groups;
mod scalar;
mod source;
mod split;

pub use blocks::{row_ranges, split_row_group, text_block_range, text_blocks};
pub use decode::{DecodeRequest, Decoded, Decoder, LocalBlock, decode};
pub use error::{Error, Result};
pub use infer::{SchemaInference, WINDOW_ROWS, infer_schema};
pub use ipc::IpcStream;
pub use problems::WARNINGS_MAX;
pub use row_groups::{parquet_columns, parquet_row_groups, row_group_bytes};
pub use source::LINE_BYTES_MAX;
