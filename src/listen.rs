//! A small HTTP server for a few pages: `--listen`.
//!
//! It has threads of its own and blocks on its sockets, so nothing that a client does is felt elsewhere. Bounded: so
//! many clients at once, so many bytes of a request, so long for a client in all. One request a connection.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Clients served at once; more are turned away.
const CLIENTS_MAX: usize = 8;
/// Bytes of a request's head.
const HEAD_BYTES_MAX: usize = 8 << 10;
/// For a request and its answer.
const CLIENT_TIMEOUT: Duration = Duration::from_secs(5);
/// Between two attempts where the system gives no more descriptors.
const ACCEPT_AGAIN: Duration = Duration::from_millis(200);
const STACK_BYTES: usize = 256 << 10;

/// What is answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// HTTP's status code.
    pub status: u16,
    /// MIME type of the body.
    pub content_type: &'static str,
    /// The body.
    pub body: String,
}

impl Answer {
    /// Plain text.
    pub fn text(status: u16, body: impl Into<String>) -> Self {
        Answer { status, content_type: "text/plain; charset=utf-8", body: body.into() }
    }
}

/// The pages that there are.
pub trait Pages: Send + Sync {
    /// The page at this path; none where there is no such page.
    fn page(&self, path: &str) -> Option<Answer>;
}

/// A bound address, before anything is served.
#[derive(Debug)]
pub struct Listener(TcpListener);

impl Listener {
    /// Takes the address.
    ///
    /// # Errors
    /// What the system says, as that it is in use.
    pub fn bind(address: SocketAddr) -> io::Result<Self> {
        TcpListener::bind(address).map(Listener)
    }

    /// Where it listens: with port 0 the one that was given.
    ///
    /// # Errors
    /// What the system says.
    pub fn address(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }

    /// Serves until the process ends.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn serve(self, pages: Arc<dyn Pages>) -> io::Result<()> {
        thread::Builder::new()
            .name("listen".to_owned())
            .stack_size(STACK_BYTES)
            .spawn(move || accept(&self.0, &pages))?;
        Ok(())
    }
}

fn accept(listener: &TcpListener, pages: &Arc<dyn Pages>) {
    let clients = Arc::new(AtomicUsize::new(0));
    loop {
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(_) => {
                thread::sleep(ACCEPT_AGAIN);
                continue;
            }
        };
        if clients.load(Ordering::Acquire) >= CLIENTS_MAX {
            continue;
        }
        clients.fetch_add(1, Ordering::AcqRel);
        let (pages, served) = (pages.clone(), clients.clone());
        let thread =
            thread::Builder::new().name("client".to_owned()).stack_size(STACK_BYTES).spawn(move || {
                // A client that went away or was too slow is told nothing more.
                let _ = serve(stream, &*pages);
                served.fetch_sub(1, Ordering::AcqRel);
            });
        if thread.is_err() {
            clients.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

fn serve(mut stream: TcpStream, pages: &dyn Pages) -> io::Result<()> {
    let until = Instant::now() + CLIENT_TIMEOUT;
    let mut head = Vec::new();
    let (answer, with_body) = match read_head(&mut stream, &mut head, until)? {
        Some(line) => answer(&line, pages),
        None => (Answer::text(431, "a request's head has at most 8 KiB\n"), true),
    };
    let mut out = format!(
        "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        answer.status,
        reason(answer.status),
        answer.content_type,
        answer.body.len()
    )
    .into_bytes();
    if with_body {
        out.extend(answer.body.as_bytes());
    }
    let mut rest = &out[..];
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(until)?))?;
        match stream.write(rest)? {
            0 => return Err(io::ErrorKind::WriteZero.into()),
            count => rest = &rest[count..],
        }
    }
    // What the client may still send would turn the close into a reset, which can destroy the answer on its way.
    stream.shutdown(Shutdown::Write)?;
    let mut sink = [0; 1024];
    for _ in 0..HEAD_BYTES_MAX / sink.len() {
        stream.set_read_timeout(Some(left(until)?))?;
        if stream.read(&mut sink)? == 0 {
            break;
        }
    }
    Ok(())
}

/// The request line, once the whole head was read; none if that is too long.
fn read_head(stream: &mut TcpStream, head: &mut Vec<u8>, until: Instant) -> io::Result<Option<String>> {
    let mut part = [0; 1024];
    loop {
        if head.windows(4).any(|window| window == b"\r\n\r\n")
            || head.windows(2).any(|window| window == b"\n\n")
        {
            let line = head.split(|byte| matches!(byte, b'\r' | b'\n')).next().unwrap_or_default();
            return Ok(Some(String::from_utf8_lossy(line).into_owned()));
        }
        if head.len() >= HEAD_BYTES_MAX {
            return Ok(None);
        }
        stream.set_read_timeout(Some(left(until)?))?;
        match stream.read(&mut part)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            count => head.extend(&part[..count]),
        }
    }
}

/// A client that sends a byte now and then gets no more time than others.
fn left(until: Instant) -> io::Result<Duration> {
    let left = until.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(io::ErrorKind::TimedOut.into()) } else { Ok(left) }
}

/// The answer to a request line, and whether its body is wanted.
fn answer(line: &str, pages: &dyn Pages) -> (Answer, bool) {
    let mut words = line.split(' ');
    let (Some(method), Some(target), Some(version)) = (words.next(), words.next(), words.next()) else {
        return (Answer::text(400, "not a request\n"), true);
    };
    if !version.starts_with("HTTP/1.") {
        return (Answer::text(400, "not a request of HTTP/1\n"), true);
    }
    if method != "GET" && method != "HEAD" {
        return (Answer::text(405, "only GET and HEAD are answered\n"), true);
    }
    let path = target.split(['?', '#']).next().unwrap_or_default();
    let answer =
        pages.page(path).unwrap_or_else(|| Answer::text(404, "no such page; / lists those that there are\n"));
    (answer, method == "GET")
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        404 => "Not Found",
        405 => "Method Not Allowed",
        431 => "Request Header Fields Too Large",
        503 => "Service Unavailable",
        _ => "Error",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct One;

    impl Pages for One {
        fn page(&self, path: &str) -> Option<Answer> {
            (path == "/one").then(|| Answer::text(200, "1\n"))
        }
    }

    fn server() -> SocketAddr {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.address().unwrap();
        listener.serve(Arc::new(One)).unwrap();
        address
    }

    fn ask(address: SocketAddr, request: &[u8]) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    #[test]
    fn requests_and_their_answers() {
        let address = server();
        let answer = ask(address, b"GET /one?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n1\n"), "{answer}");
        assert!(answer.contains("Content-Length: 2\r\n"), "{answer}");
        let answer = ask(address, b"HEAD /one HTTP/1.0\n\n");
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\n"), "{answer}");
        for (request, status) in [
            (&b"GET / HTTP/1.1\r\n\r\n"[..], "404"),
            (b"POST /one HTTP/1.1\r\n\r\n", "405"),
            (b"\r\n\r\n", "400"),
            (b"GET /one HTTP/2\r\n\r\n", "400"),
            (&[b'x'; HEAD_BYTES_MAX], "431"),
        ] {
            let answer = ask(address, request);
            assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
        }
    }

    #[test]
    fn slow_clients_do_not_keep_others_waiting() {
        let address = server();
        let mut slow: Vec<TcpStream> =
            (1..CLIENTS_MAX).map(|_| TcpStream::connect(address).unwrap()).collect();
        slow.iter_mut().for_each(|stream| stream.write_all(b"GET").unwrap());
        let began = Instant::now();
        assert!(ask(address, b"GET /one HTTP/1.1\r\n\r\n").contains(" 200 "));
        assert!(began.elapsed() < CLIENT_TIMEOUT / 2, "{:?}", began.elapsed());
    }
}
