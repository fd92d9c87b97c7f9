//! The `keylane` binary.

fn main() {}
