//! Tests of the queue crate through its public interface.

mod contract;
mod crash;
mod model;
mod sqlite;
