//! The fake broker tested by itself.
mod fake;
