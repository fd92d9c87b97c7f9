//! Host names to addresses, on a thread of its own: the system's resolver blocks, the network thread never may.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

use keylane_protocol::client::net::LinkId;
use mio::Waker;

/// The addresses of a host that needs no resolver: a numeric address, or `localhost` (which a root without
/// `/etc/hosts` could not resolve).
pub(super) fn numeric(host: &str, port: u16) -> Option<Vec<SocketAddr>> {
    if host == "localhost" {
        let addresses = [IpAddr::V4(Ipv4Addr::LOCALHOST), IpAddr::V6(Ipv6Addr::LOCALHOST)];
        return Some(addresses.map(|address| SocketAddr::new(address, port)).to_vec());
    }
    let address: IpAddr = host.parse().ok()?;
    Some(vec![SocketAddr::new(address, port)])
}

/// A question's number. Only the answer to a link's newest question is wanted.
pub(super) type Question = u64;

pub(super) struct Resolved {
    pub(super) link: LinkId,
    pub(super) question: Question,
    pub(super) addresses: Result<Vec<SocketAddr>, String>,
}

/// Started with the first name.
pub(super) struct Resolver {
    waker: Arc<Waker>,
    questions: Option<Sender<(LinkId, Question, String, u16)>>,
    asked: Question,
    answers: Receiver<Resolved>,
    answer_to: Sender<Resolved>,
}

impl Resolver {
    pub(super) fn new(waker: Arc<Waker>) -> Self {
        let (answer_to, answers) = mpsc::channel();
        Resolver { waker, questions: None, asked: 0, answers, answer_to }
    }

    pub(super) fn ask(&mut self, link: LinkId, host: String, port: u16) -> Question {
        self.asked += 1;
        let question = self.asked;
        let questions = self.questions.get_or_insert_with(|| {
            let (questions, asked) = mpsc::channel();
            let (answer_to, waker) = (self.answer_to.clone(), self.waker.clone());
            // Without a thread the question is dropped with its receiver, and `send` below says so.
            let _ = thread::Builder::new()
                .name("resolver".to_owned())
                .spawn(move || resolve_all(&asked, &answer_to, &waker));
            questions
        });
        if questions.send((link, question, host, port)).is_err() {
            let addresses = Err("cannot start the thread that resolves names".to_owned());
            let _ = self.answer_to.send(Resolved { link, question, addresses });
            let _ = self.waker.wake();
        }
        question
    }

    pub(super) fn take(&mut self) -> Option<Resolved> {
        self.answers.try_recv().ok()
    }
}

fn resolve_all(
    asked: &Receiver<(LinkId, Question, String, u16)>,
    answer_to: &Sender<Resolved>,
    waker: &Waker,
) {
    while let Ok((link, question, host, port)) = asked.recv() {
        let addresses = (host.as_str(), port)
            .to_socket_addrs()
            .map(Iterator::collect)
            .map_err(|error| format!("cannot resolve \"{host}\": {error}"));
        if answer_to.send(Resolved { link, question, addresses }).is_err() {
            return;
        }
        let _ = waker.wake();
    }
}
