//! Tests of the queue crate through its public interface.

mod brokers;
mod contract;
mod crash;
mod model;
mod sqlite;
