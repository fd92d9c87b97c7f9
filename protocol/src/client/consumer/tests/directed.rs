//! Directed.
