//! Tests of the queue crate through its public interface.

mod backends;
mod contract;
mod crash;
mod demultiplexer;
mod model;
mod sqlite;
