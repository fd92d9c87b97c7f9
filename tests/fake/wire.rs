//! Frames: a length, a header, a body. Decoding and encoding are kafka-protocol's.

use std::io::{self, Read};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, RequestHeader, RequestKind, ResponseHeader, ResponseKind};
use kafka_protocol::protocol::{Decodable, Encodable};

/// A frame over this is a fault of the client.
const FRAME_BYTES_MAX: usize = 64 << 20;

/// A request as far as its header.
pub struct Frame {
    pub api_number: i16,
    pub version: i16,
    pub correlation: i32,
    pub raw: Bytes,
}

/// Reads one frame; `None` when the peer closed between frames.
pub fn read_frame(stream: &mut impl Read) -> io::Result<Option<Frame>> {
    let mut length = [0; 4];
    match stream.read_exact(&mut length) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        other => other?,
    }
    let length = u32::from_be_bytes(length) as usize;
    if !(8..=FRAME_BYTES_MAX).contains(&length) {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("a frame of {length} bytes")));
    }
    let mut raw = vec![0; length];
    stream.read_exact(&mut raw)?;
    let raw = Bytes::from(raw);
    let mut head = raw.clone();
    Ok(Some(Frame { api_number: head.get_i16(), version: head.get_i16(), correlation: head.get_i32(), raw }))
}

/// Header and body of a frame whose version is known to be spoken.
pub fn decode(api: ApiKey, frame: &Frame) -> Result<(String, RequestKind), String> {
    let mut bytes = frame.raw.clone();
    let header = RequestHeader::decode(&mut bytes, api.request_header_version(frame.version))
        .map_err(|error| format!("header of {api:?} v{}: {error}", frame.version))?;
    let kind = RequestKind::decode(api, &mut bytes, frame.version)
        .map_err(|error| format!("body of {api:?} v{}: {error}", frame.version))?;
    if !bytes.is_empty() {
        return Err(format!("{} bytes behind the body of {api:?} v{}", bytes.len(), frame.version));
    }
    Ok((header.client_id.as_deref().unwrap_or_default().to_owned(), kind))
}

/// A whole frame with this answer.
pub fn encode(
    api: ApiKey,
    version: i16,
    correlation: i32,
    response: &ResponseKind,
) -> Result<Vec<u8>, String> {
    let mut out = BytesMut::new();
    out.put_i32(0);
    ResponseHeader::default()
        .with_correlation_id(correlation)
        .encode(&mut out, api.response_header_version(version))
        .and_then(|()| response.encode(&mut out, version))
        .map_err(|error| format!("answer of {api:?} v{version} cannot be encoded: {error}"))?;
    let length = (out.len() - 4) as u32;
    out[..4].copy_from_slice(&length.to_be_bytes());
    Ok(out.to_vec())
}

/// A frame with the bytes behind a header of version 0.
pub fn frame(correlation: i32, body: &[u8]) -> Vec<u8> {
    let mut out = ((body.len() + 4) as u32).to_be_bytes().to_vec();
    out.extend(correlation.to_be_bytes());
    out.extend(body);
    out
}
