//! The answers of the API, one file each. Documents are plain data: names, logs and results stay texts, and the page makes
//! no HTML of them.

pub mod actions;
mod frames;
pub mod job;
pub mod jobs;
pub mod logs;
pub mod map;
pub mod mini_batch;
pub mod nodes;
pub mod output;
mod phases;
pub mod rejects;
mod sentence;
pub mod series;
mod settings;
pub mod source;
mod speculative_run;
pub mod table;
pub mod target;
mod test_case;
pub mod timeline;
mod words;
