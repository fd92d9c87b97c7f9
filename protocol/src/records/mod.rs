//! Kafka record batches: reading, writing, compression.
