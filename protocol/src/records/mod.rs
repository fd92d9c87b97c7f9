//! Kafka record batches: reading, writing, compression.
/// stub
#[derive(Clone, Debug, PartialEq)]
pub struct BatchError;
impl std::fmt::Display for BatchError {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        Ok(())
    }
}
