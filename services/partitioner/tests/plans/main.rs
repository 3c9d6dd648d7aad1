//! What is planned and published, seen from outside.

mod crashes;
mod files;
mod fixtures;
mod partition_keys;
mod power;
mod tables;
mod urls;
