//! A `--pipe` child that answers at once: the fastest there can be, so that what is measured beside it is keylane.
//!
//! `keylane pool … --pipe -- target/release/examples/pipe_ok`

use std::io::{self, Read, Write};

/// What each line begins with; the id is a number and follows at once.
const BEFORE_ID: usize = "{\"id\":\"".len();

fn main() -> io::Result<()> {
    let (mut stdin, mut stdout) = (io::stdin().lock(), io::stdout());
    let mut buffer = vec![0; 256 << 10];
    let mut held = 0;
    let mut answers = Vec::new();
    loop {
        if held == buffer.len() {
            buffer.resize(2 * held, 0);
        }
        let bytes = stdin.read(&mut buffer[held..])?;
        if bytes == 0 {
            return Ok(());
        }
        let end = held + bytes;
        let mut line = 0;
        while let Some(length) = buffer[line..end].iter().position(|byte| *byte == b'\n') {
            let id = buffer[line..line + length].get(BEFORE_ID..).unwrap_or_default();
            answers.extend(id.iter().take_while(|byte| byte.is_ascii_digit()));
            answers.extend(b" ok\n");
            line += length + 1;
        }
        buffer.copy_within(line..end, 0);
        held = end - line;
        stdout.write_all(&answers)?;
        stdout.flush()?;
        answers.clear();
    }
}
