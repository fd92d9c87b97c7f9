//! One connection to a broker: version negotiation, correlation, pipelining.
//!
//! A broker answers the requests of one connection in the order in which they came, so answers are matched in order
//! and by correlation id. Every request that was taken gets exactly one outcome: its answer, or the first error of
//! the connection, which fails all that is pending, once.
//!
//! Negotiation (KIP-35, KIP-511): the first request is ApiVersions. A broker that does not know our version answers
//! in the v0 layout with error 35 and, from Kafka 2.4 on, its own range; then we ask again on the same connection.
//! Requests that are sent before the versions are known wait here.

use std::collections::VecDeque;
use std::time::Duration;

use bytes::{Buf, Bytes, BytesMut};
use kafka_protocol::messages::{ApiVersionsRequest, ApiVersionsResponse};
use kafka_protocol::protocol::StrBytes;

use crate::api::{self, Api, Request, Response, Versions, text};
use crate::error::{Error, Fault, code};
use crate::frame::{BufferPool, FrameReader};

/// A request that was sent.
#[derive(Debug)]
struct Pending<T> {
    /// None for the connection's own ApiVersions.
    token: Option<T>,
    api: Api,
    version: i16,
    correlation: i32,
    /// How long the broker may be silent while this is the oldest request.
    silence_max: Duration,
}

#[derive(Debug)]
enum Phase<T> {
    /// ApiVersions is out; requests wait.
    Negotiating(VecDeque<(Request, T, Duration)>),
    Ready,
}

/// One connection. `T` names a request to its sender.
#[derive(Debug)]
pub struct Connection<T> {
    phase: Phase<T>,
    versions: Versions,
    client_id: StrBytes,
    correlation: i32,
    pending: VecDeque<Pending<T>>,
    /// Encoded and not yet written.
    out: BytesMut,
    reader: FrameReader,
    /// When the peer was last heard, or a request was sent into an idle connection.
    heard_at: Duration,
    silence_max: Duration,
}

/// What a connection has to say.
#[derive(Debug)]
pub enum Answer<T> {
    /// The versions are known; requests flow.
    Ready,
    /// The outcome of a request.
    Outcome(T, Result<Response, Error>),
}

const SOFTWARE_NAME: &str = "keylane";

impl<T> Connection<T> {
    /// A connection whose socket is just up. `silence_max` is how long the broker may be silent while an answer is due.
    pub fn new(client_id: &str, silence_max: Duration, pool: BufferPool, now: Duration) -> Self {
        let mut connection = Connection {
            phase: Phase::Negotiating(VecDeque::new()),
            versions: Versions::default(),
            client_id: text(client_id),
            correlation: 0,
            pending: VecDeque::new(),
            out: BytesMut::new(),
            reader: FrameReader::new(pool),
            heard_at: now,
            silence_max,
        };
        let (_, newest) = Api::ApiVersions.versions();
        connection.send_api_versions(newest);
        connection
    }

    fn send_api_versions(&mut self, version: i16) {
        let request = ApiVersionsRequest::default();
        let request = if version >= 3 {
            request
                .with_client_software_name(text(SOFTWARE_NAME))
                .with_client_software_version(text(env!("CARGO_PKG_VERSION")))
        } else {
            request
        };
        let sent = self.encode(request.into(), version, None, self.silence_max);
        assert!(sent.is_ok(), "ApiVersions can be encoded in all its versions");
    }

    /// Sends a request, or holds it until the versions are known. `wait` is how long the broker may hold the
    /// answer back by the request's own terms (long poll, rebalance); it is added to the silence that is borne.
    ///
    /// # Errors
    /// The broker has no version of this API in common with us.
    pub fn send(
        &mut self,
        request: Request,
        token: T,
        wait: Duration,
        now: Duration,
    ) -> Result<(), (T, Error)> {
        if self.pending.is_empty() {
            self.heard_at = now;
        }
        match &mut self.phase {
            Phase::Negotiating(waiting) => {
                waiting.push_back((request, token, wait));
                Ok(())
            }
            Phase::Ready => match self.versions.of(request.api()) {
                Ok(version) => self.encode(request, version, Some(token), self.silence_max + wait),
                Err(error) => Err((token, error)),
            },
        }
    }

    fn encode(
        &mut self,
        request: Request,
        version: i16,
        token: Option<T>,
        silence_max: Duration,
    ) -> Result<(), (T, Error)>
    where
        T: Sized,
    {
        self.correlation = self.correlation.wrapping_add(1);
        let api = request.api();
        match api::encode_request(request, version, self.correlation, &self.client_id, &mut self.out) {
            Ok(()) => {
                self.pending.push_back(Pending {
                    token,
                    api,
                    version,
                    correlation: self.correlation,
                    silence_max,
                });
                Ok(())
            }
            Err(error) => match token {
                Some(token) => Err((token, error)),
                None => unreachable!("our own ApiVersions always encodes"),
            },
        }
    }

    /// Sends a request that the broker never answers (Produce with acks=0).
    ///
    /// # Errors
    /// The versions are not known yet or have nothing in common; send it later.
    pub fn send_unanswered(&mut self, request: Request) -> Result<(), Error> {
        let version = self.versions.of(request.api())?;
        self.correlation = self.correlation.wrapping_add(1);
        api::encode_request(request, version, self.correlation, &self.client_id, &mut self.out)
    }

    /// Whether the versions are known.
    pub fn is_ready(&self) -> bool {
        matches!(self.phase, Phase::Ready)
    }

    /// Bytes to write.
    pub fn outgoing(&self) -> &[u8] {
        &self.out
    }

    /// `count` bytes of [`Connection::outgoing`] were written.
    pub fn written(&mut self, count: usize) {
        self.out.advance(count);
    }

    /// Where received bytes go.
    pub fn space(&mut self) -> &mut [u8] {
        self.reader.space()
    }

    /// `count` bytes were received into [`Connection::space`]. Answers are appended to `answers`.
    ///
    /// # Errors
    /// The peer broke the protocol; the connection must be closed with [`Connection::fail`].
    pub fn received(
        &mut self,
        count: usize,
        now: Duration,
        answers: &mut Vec<Answer<T>>,
    ) -> Result<(), Error> {
        self.heard_at = now;
        self.reader.received(count);
        while let Some(frame) = self.reader.next_frame()? {
            self.take_frame(frame, answers)?;
        }
        Ok(())
    }

    fn take_frame(&mut self, frame: Bytes, answers: &mut Vec<Answer<T>>) -> Result<(), Error> {
        let correlation =
            api::peek_correlation(&frame).ok_or_else(|| Error::peer("an answer without a correlation id"))?;
        let Some(pending) = self.pending.pop_front() else {
            return Err(Error::peer(format!("answer {correlation} to no request")));
        };
        if correlation != pending.correlation {
            let error = Error::peer(format!(
                "answer {correlation} where {} to {} is due",
                pending.correlation, pending.api
            ));
            self.pending.push_front(pending);
            return Err(error);
        }
        let Some(token) = pending.token else {
            return self.take_api_versions(pending.version, frame, answers);
        };
        // A body that does not decode fails this request alone, and then the connection: what follows it may be
        // sound, but a broker that breaks the protocol once is not trusted with the rest.
        match api::decode_response(pending.api, pending.version, frame) {
            Ok(response) => {
                answers.push(Answer::Outcome(token, Ok(response)));
                Ok(())
            }
            Err(error) => {
                answers.push(Answer::Outcome(token, Err(error.clone())));
                Err(error)
            }
        }
    }

    fn take_api_versions(
        &mut self,
        version: i16,
        frame: Bytes,
        answers: &mut Vec<Answer<T>>,
    ) -> Result<(), Error> {
        let unsupported = frame.len() >= 6 && frame[4..6] == code::UNSUPPORTED_VERSION.to_be_bytes();
        let layout = if unsupported { 0 } else { version };
        let response = match api::decode_response(Api::ApiVersions, layout, frame)? {
            Response::ApiVersions(response) => response,
            other => unreachable!("{} decoded as ApiVersions", other.api()),
        };
        if unsupported && version > 0 {
            self.send_api_versions(fallback_version(&response, version));
            return Ok(());
        }
        if response.error_code != code::NONE {
            return Err(Error::refused(Api::ApiVersions, response.error_code, None));
        }
        self.versions = Versions::negotiate(
            response.api_keys.iter().map(|range| (range.api_key, range.min_version, range.max_version)),
        );
        answers.push(Answer::Ready);
        if let Phase::Negotiating(waiting) = std::mem::replace(&mut self.phase, Phase::Ready) {
            for (request, token, wait) in waiting {
                let sent = match self.versions.of(request.api()) {
                    Ok(version) => self.encode(request, version, Some(token), self.silence_max + wait),
                    Err(error) => Err((token, error)),
                };
                if let Err((token, error)) = sent {
                    answers.push(Answer::Outcome(token, Err(error)));
                }
            }
        }
        Ok(())
    }

    /// When the silence becomes an error, while an answer is due.
    pub fn deadline(&self) -> Option<Duration> {
        self.pending.front().map(|oldest| self.heard_at + oldest.silence_max)
    }

    /// How long the broker has been allowed to be silent: the error to fail with at the deadline.
    pub fn silence(&self) -> Error {
        let oldest = self.pending.front();
        let error = Error::new(Fault::TimedOut(oldest.map_or(self.silence_max, |oldest| oldest.silence_max)));
        match oldest {
            Some(oldest) => error.at_api(oldest.api),
            None => error,
        }
    }

    /// Number of requests without an outcome.
    pub fn pending_count(&self) -> usize {
        let waiting = match &self.phase {
            Phase::Negotiating(waiting) => waiting.len(),
            Phase::Ready => 0,
        };
        self.pending.iter().filter(|pending| pending.token.is_some()).count() + waiting
    }

    /// Ends the connection: every request without an outcome gets `error`.
    pub fn fail(self, error: &Error, mut failed: impl FnMut(T, Error)) {
        for pending in self.pending {
            if let Some(token) = pending.token {
                failed(token, error.clone().at_api(pending.api));
            }
        }
        if let Phase::Negotiating(waiting) = self.phase {
            for (request, token, _) in waiting {
                failed(token, error.clone().at_api(request.api()));
            }
        }
    }
}

/// The version for the second ApiVersions: the newest that the broker lists and we know, else 0.
fn fallback_version(response: &ApiVersionsResponse, tried: i16) -> i16 {
    response
        .api_keys
        .iter()
        .find(|range| range.api_key == Api::ApiVersions.key())
        .map_or(0, |range| range.max_version.clamp(0, tried - 1))
}

#[cfg(test)]
mod tests {
    use kafka_protocol::messages::{HeartbeatRequest, ResponseHeader};
    use kafka_protocol::protocol::Encodable;

    use super::*;

    const NOW: Duration = Duration::ZERO;

    fn new_connection() -> Connection<u32> {
        Connection::new("test", Duration::from_secs(10), BufferPool::default(), NOW)
    }

    /// Takes the next request off the wire: api key, version, correlation.
    fn sent(connection: &mut Connection<u32>) -> Option<(i16, i16, i32)> {
        let out = connection.outgoing();
        let (head, _) = out.split_first_chunk::<12>()?;
        let length = i32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let key = i16::from_be_bytes([head[4], head[5]]);
        let version = i16::from_be_bytes([head[6], head[7]]);
        let correlation = i32::from_be_bytes([head[8], head[9], head[10], head[11]]);
        connection.written(4 + length);
        Some((key, version, correlation))
    }

    fn give(connection: &mut Connection<u32>, frame: &[u8]) -> Result<Vec<Answer<u32>>, Error> {
        let mut answers = Vec::new();
        let mut wire = (frame.len() as u32).to_be_bytes().to_vec();
        wire.extend(frame);
        for byte in wire {
            connection.space()[0] = byte;
            connection.received(1, NOW, &mut answers)?;
        }
        Ok(answers)
    }

    fn api_versions_v0(correlation: i32, code: i16, ranges: &[(i16, i16, i16)]) -> Vec<u8> {
        let mut frame = correlation.to_be_bytes().to_vec();
        frame.extend(code.to_be_bytes());
        frame.extend((ranges.len() as i32).to_be_bytes());
        for (key, low, high) in ranges {
            for field in [key, low, high] {
                frame.extend(field.to_be_bytes());
            }
        }
        frame
    }

    fn answer(correlation: i32, api: Api, version: i16, body: &impl Encodable) -> Vec<u8> {
        let mut frame = BytesMut::new();
        let header = if api == Api::ApiVersions { 0 } else { 1 };
        ResponseHeader::default().with_correlation_id(correlation).encode(&mut frame, header).unwrap();
        body.encode(&mut frame, version).unwrap();
        frame.to_vec()
    }

    #[test]
    fn an_older_broker_is_asked_again_in_its_own_version() {
        // CASES 18: error 35 in the v0 layout, with the broker's range or without one.
        for (ranges, second) in [(&[(18, 0, 2)][..], 2), (&[][..], 0)] {
            let mut connection = new_connection();
            assert_eq!(sent(&mut connection), Some((18, 3, 1)));
            assert!(give(&mut connection, &api_versions_v0(1, 35, ranges)).unwrap().is_empty());
            assert_eq!(sent(&mut connection), Some((18, second, 2)));
        }
    }

    #[test]
    fn requests_wait_for_the_versions_and_are_answered_in_order() {
        let mut connection = new_connection();
        sent(&mut connection);
        for token in [7, 8] {
            let request: Request = HeartbeatRequest::default().into();
            connection.send(request, token, Duration::ZERO, NOW).unwrap();
        }
        assert_eq!(sent(&mut connection), None);
        let body = kafka_protocol::messages::ApiVersionsResponse::default().with_api_keys(vec![
            kafka_protocol::messages::api_versions_response::ApiVersion::default()
                .with_api_key(12)
                .with_min_version(0)
                .with_max_version(9),
        ]);
        let answers = give(&mut connection, &answer(1, Api::ApiVersions, 3, &body)).unwrap();
        assert!(matches!(answers[..], [Answer::Ready]));
        assert_eq!(sent(&mut connection), Some((12, 4, 2)));
        assert_eq!(sent(&mut connection), Some((12, 4, 3)));
        let body = kafka_protocol::messages::HeartbeatResponse::default();
        let answers = give(&mut connection, &answer(2, Api::Heartbeat, 4, &body)).unwrap();
        assert!(matches!(answers[..], [Answer::Outcome(7, Ok(_))]));
        // A wrong correlation id ends the connection; what is pending fails once.
        let error = give(&mut connection, &answer(9, Api::Heartbeat, 4, &body)).expect_err("9 is not due");
        let mut failed = Vec::new();
        connection.fail(&error, |token, _| failed.push(token));
        assert_eq!(failed, [8]);
    }

    #[test]
    fn truncated_and_surplus_bodies_are_the_peers_fault() {
        for cut in [true, false] {
            let mut connection = new_connection();
            let mut frame = api_versions_v0(1, 0, &[(18, 0, 3)]);
            sent(&mut connection);
            if cut {
                frame.truncate(9);
            } else {
                frame.extend([0; 9]);
            }
            // The first ApiVersions was v3: the v0 layout without error 35 does not decode as v3 either way.
            let error = give(&mut connection, &frame).expect_err("does not decode");
            assert!(matches!(error.fault, Fault::Peer(_)), "{error}");
        }
    }
}
