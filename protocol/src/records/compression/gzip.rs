//! gzip, one or several members (RFC 1952), by `flate2`.

use super::{BatchErrorKind, Output};
use flate2::Compression;
use flate2::bufread::MultiGzDecoder;
use flate2::write::GzEncoder;
use std::io::{Read, Write};

/// Unpacks all members; their checksums are verified.
pub(super) fn decompress(packed: &[u8], out: &mut Output) -> Result<(), BatchErrorKind> {
    let mut decoder = MultiGzDecoder::new(packed);
    let read =
        |room: &mut [u8]| decoder.read(room).map_err(|_| BatchErrorKind::Damaged("gzip data or checksum"));
    out.read_all(read, packed.len().saturating_mul(2))
}

/// Appends `payload` as one member, at zlib's default level as the Java client does.
pub(super) fn compress(payload: &[u8], out: &mut Vec<u8>) {
    let mut encoder = GzEncoder::new(out, Compression::default());
    let written = encoder.write_all(payload).and_then(|()| encoder.finish().map(drop));
    written.expect("writing to memory does not fail");
}
