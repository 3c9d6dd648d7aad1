//! Tests of the partitioner through its public interface.

mod crashes;
mod files;
mod fixtures;
mod partition_keys;
mod power;
mod surveys;
mod tables;
mod urls;
