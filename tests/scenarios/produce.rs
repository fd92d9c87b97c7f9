//! Records as a test wants them, byte for byte: what `keylane seed` does not write.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use kafka_protocol::messages::produce_request::{PartitionProduceData, TopicProduceData};
use kafka_protocol::messages::{
    ApiKey, ProduceRequest, ProduceResponse, RequestHeader, ResponseHeader, TopicName,
};
use kafka_protocol::protocol::{Decodable, Encodable, StrBytes};
use keylane_protocol::records::{BatchBuilder, Codec, Header, ProducerStamp};

/// The last version without flexible fields.
const VERSION: i16 = 8;

/// One record.
#[derive(Clone, Copy, Debug, Default)]
pub struct Given<'a> {
    pub key: Option<&'a [u8]>,
    pub value: Option<&'a [u8]>,
    pub headers: &'a [Header<'a>],
}

impl<'a> Given<'a> {
    pub fn of(key: &'a str, value: &'a [u8]) -> Self {
        Given { key: Some(key.as_bytes()), value: Some(value), headers: &[] }
    }
}

/// Appends records to a partition of a cluster of one broker, in one batch.
pub fn produce(brokers: &str, topic: &str, partition: i32, records: &[Given<'_>]) {
    let mut builder = BatchBuilder::new();
    for record in records {
        builder.append(record.key, record.value, record.headers, 1_700_000_000_000).unwrap();
    }
    let batch = builder.finish(Codec::None, &ProducerStamp::NONE).unwrap();
    let data = PartitionProduceData::default().with_index(partition).with_records(Some(batch));
    let topic = TopicName(StrBytes::from_string(topic.to_owned()));
    let topic = TopicProduceData::default().with_name(topic).with_partition_data(vec![data]);
    let request =
        ProduceRequest::default().with_acks(-1).with_timeout_ms(10_000).with_topic_data(vec![topic]);

    let mut out = BytesMut::new();
    out.put_i32(0);
    RequestHeader::default()
        .with_request_api_key(ApiKey::Produce as i16)
        .with_request_api_version(VERSION)
        .with_correlation_id(1)
        .encode(&mut out, ApiKey::Produce.request_header_version(VERSION))
        .unwrap();
    request.encode(&mut out, VERSION).unwrap();
    let length = (out.len() - 4) as u32;
    out[..4].copy_from_slice(&length.to_be_bytes());

    let mut stream = TcpStream::connect(brokers).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(&out).unwrap();
    let mut length = [0; 4];
    stream.read_exact(&mut length).unwrap();
    let mut frame = vec![0; u32::from_be_bytes(length) as usize];
    stream.read_exact(&mut frame).unwrap();
    let mut frame = Bytes::from(frame);
    ResponseHeader::decode(&mut frame, ApiKey::Produce.response_header_version(VERSION)).unwrap();
    let answer = ProduceResponse::decode(&mut frame, VERSION).unwrap();
    let code = answer.responses[0].partition_responses[0].error_code;
    assert_eq!(code, 0, "produced");
}
