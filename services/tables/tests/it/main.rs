//! What the crate promises about files: one program, so that it is linked once.

mod blocks;
mod columns;
mod delimited;
mod jsonl;
mod parquet;
mod robustness;
mod support;
mod types;
