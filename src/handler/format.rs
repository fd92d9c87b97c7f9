//! `--print FORMAT|json`: a record as bytes on stdout.
//!
//! FORMAT is kcat's `-f`, parsed once when the command line is resolved. Rendering is pure and binary safe: what the
//! record holds is copied as it is, and nothing is added (no newline but the one that FORMAT asks for).

/// How a record is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Format {
    /// One JSON object and a newline.
    Json,
    /// Pieces in order.
    Pieces(Vec<Piece>),
}

/// A piece of a format.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Piece {
    /// These bytes.
    Text(Vec<u8>),
}
