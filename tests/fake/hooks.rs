//! How a test changes an answer.

use std::time::Duration;

use kafka_protocol::messages::{ApiKey, ResponseKind};

use super::requests::Request;
use super::state::State;

/// What a hook does with a request.
pub enum Reaction {
    /// What the fake would do anyway.
    Default,
    /// Nothing is done; the answer carries this code wherever the API has room for one.
    Error(i16),
    /// Nothing is done; this is the answer.
    Respond(ResponseKind),
    /// The request is done as always and its answer changed before it goes out.
    Edit(Box<dyn FnOnce(&mut ResponseKind) + Send>),
    /// Nothing is done; these bytes go out as they are, length and header included.
    RawBytes(Vec<u8>),
    /// Nothing is done; a right length and response header (version 0: no tags), then these bytes.
    RawBody(Vec<u8>),
    /// This later; the requests behind it on the connection wait, as at a broker.
    Delay(Duration, Box<Reaction>),
    /// Nothing is done and no answer goes out.
    Drop,
    /// The connection ends, nothing is done.
    Close,
    /// The request is done, then the connection ends after so many bytes of the answer's frame.
    CloseAfterBytes(usize),
}

impl Reaction {
    pub fn delay_ms(ms: u64) -> Self {
        Reaction::Delay(Duration::from_millis(ms), Box::new(Reaction::Default))
    }

    pub fn edit(change: impl FnOnce(&mut ResponseKind) + Send + 'static) -> Self {
        Reaction::Edit(Box::new(change))
    }
}

type Function = Box<dyn FnMut(&Request, &mut State) -> Reaction + Send>;

/// The hooks in force; the newest that does not say `Default` decides.
#[derive(Default)]
pub struct Hooks {
    all: Vec<(ApiKey, Function)>,
}

impl Hooks {
    pub fn add(&mut self, api: ApiKey, hook: Function) {
        self.all.push((api, hook));
    }

    pub fn clear(&mut self) {
        self.all.clear();
    }

    pub fn decide(&mut self, request: &Request, state: &mut State) -> Reaction {
        for (_, hook) in self.all.iter_mut().rev().filter(|(api, _)| *api == request.api) {
            match hook(request, state) {
                Reaction::Default => {}
                other => return other,
            }
        }
        Reaction::Default
    }
}
