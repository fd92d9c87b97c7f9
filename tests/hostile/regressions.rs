//! Inputs that once failed, each with its bytes.
