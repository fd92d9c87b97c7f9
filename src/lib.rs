//! keylane: a Kafka topic worked through by many workers, each key in order.

pub mod driver;
pub mod pool;
