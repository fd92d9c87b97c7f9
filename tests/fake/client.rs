//! The smallest client: one connection, one request at a time. For the fake's own tests and for a test that wants to
//! play a second client beside keylane.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::{ApiKey, RequestHeader, RequestKind, ResponseHeader, ResponseKind};
use kafka_protocol::protocol::{Decodable, Encodable};

use super::Fake;
use super::state::text;

pub struct Client {
    stream: TcpStream,
    correlation: i32,
}

impl Client {
    pub fn connect(fake: &Fake, node: i32) -> Self {
        let stream = TcpStream::connect(("127.0.0.1", fake.port(node))).expect("the fake listens");
        stream.set_read_timeout(Some(Duration::from_secs(10))).expect("a socket option");
        Self { stream, correlation: 0 }
    }

    pub fn send(&mut self, api: ApiKey, version: i16, request: impl Into<RequestKind>) -> io::Result<()> {
        self.correlation += 1;
        let mut out = BytesMut::new();
        out.put_i32(0);
        RequestHeader::default()
            .with_request_api_key(api as i16)
            .with_request_api_version(version)
            .with_correlation_id(self.correlation)
            .with_client_id(Some(text("raw")))
            .encode(&mut out, api.request_header_version(version))
            .expect("a header");
        let request = request.into();
        request
            .encode(&mut out, version)
            .unwrap_or_else(|error| panic!("{api:?} v{version}: {error}: {request:?}"));
        let length = (out.len() - 4) as u32;
        out[..4].copy_from_slice(&length.to_be_bytes());
        self.stream.write_all(&out)
    }

    /// The bytes of the next frame, without the length.
    pub fn receive_raw(&mut self) -> io::Result<Vec<u8>> {
        let mut length = [0; 4];
        self.stream.read_exact(&mut length)?;
        let mut frame = vec![0; u32::from_be_bytes(length) as usize];
        self.stream.read_exact(&mut frame)?;
        Ok(frame)
    }

    pub fn receive(&mut self, api: ApiKey, version: i16) -> io::Result<ResponseKind> {
        let mut frame = Bytes::from(self.receive_raw()?);
        let header =
            ResponseHeader::decode(&mut frame, api.response_header_version(version)).expect("a header");
        assert_eq!(header.correlation_id, self.correlation);
        let response = ResponseKind::decode(api, &mut frame, version).expect("an answer that decodes");
        assert!(frame.is_empty(), "{} bytes behind {api:?} v{version}", frame.len());
        Ok(response)
    }

    /// # Panics
    /// When no answer comes.
    pub fn call(&mut self, api: ApiKey, version: i16, request: impl Into<RequestKind>) -> ResponseKind {
        self.send(api, version, request).expect("a connection");
        self.receive(api, version).unwrap_or_else(|error| panic!("{api:?} v{version}: {error}"))
    }
}

/// The variant of an enum of messages, or a panic that shows what it is instead.
#[macro_export]
macro_rules! expect {
    ($response:expr, $variant:ident) => {
        match $response {
            kafka_protocol::messages::ResponseKind::$variant(body) => body,
            other => panic!("not {}: {other:?}", stringify!($variant)),
        }
    };
}
