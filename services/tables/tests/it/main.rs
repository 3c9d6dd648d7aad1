//! Tests of the crate through its public interface, in one program that is linked once.

mod as_pandas;
mod blocks;
mod columns;
mod delimited;
mod jsonl;
mod parquet;
mod robustness;
mod streams;
mod support;
mod types;
