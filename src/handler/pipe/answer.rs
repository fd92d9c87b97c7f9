//! A line that a `--pipe` child prints: `ID ok`, `ID retry [REASON]` or `ID reject [REASON]`.
//!
//! Anything else is `None`: a child that says something that cannot be read has lost the thread, and what it says next
//! is not to be trusted with acknowledging records.

/// What a child says about a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Answer<'a> {
    /// It is handled.
    Ok,
    /// It can be later. The reason may be empty.
    Retry(&'a [u8]),
    /// It can never be. The reason may be empty.
    Reject(&'a [u8]),
}

/// Reads a line without its newline.
pub(super) fn parse(line: &[u8]) -> Option<(u64, Answer<'_>)> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let mut id: u64 = 0;
    for digit in &line[..digits] {
        id = id.checked_mul(10)?.checked_add(u64::from(digit - b'0'))?;
    }
    let rest = line[digits..].trim_ascii_end();
    if digits == 0 || rest.first() != Some(&b' ') {
        return None;
    }
    let rest = rest.trim_ascii_start();
    let end = rest.iter().position(|byte| *byte == b' ').unwrap_or(rest.len());
    let (word, reason) = (&rest[..end], rest[end..].trim_ascii_start());
    let answer = match word {
        b"ok" if reason.is_empty() => Answer::Ok,
        b"retry" => Answer::Retry(reason),
        b"reject" => Answer::Reject(reason),
        _ => return None,
    };
    Some((id, answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_three_answers() {
        assert_eq!(parse(b"7 ok"), Some((7, Answer::Ok)));
        assert_eq!(parse(b"7 ok \r"), Some((7, Answer::Ok)));
        assert_eq!(parse(b"18446744073709551615 retry"), Some((u64::MAX, Answer::Retry(b""))));
        assert_eq!(parse(b"7 retry  not now"), Some((7, Answer::Retry(b"not now"))));
        assert_eq!(parse(b"8 reject"), Some((8, Answer::Reject(b""))));
        assert_eq!(parse(b"8 reject no \xff price\r"), Some((8, Answer::Reject(b"no \xff price"))));
    }

    #[test]
    fn all_else_is_garbage() {
        let lines: [&[u8]; 14] = [
            b"",
            b" ",
            b"7",
            b"7 ",
            b"ok",
            b" 7 ok",
            b"7ok",
            b"7\tok",
            b"7 OK",
            b"7 ok then",
            b"7 okay",
            b"-7 ok",
            b"\"7\" ok",
            b"18446744073709551616 ok",
        ];
        for line in lines {
            assert_eq!(parse(line), None, "{}", line.escape_ascii());
        }
    }

    proptest::proptest! {
        #[test]
        fn a_cut_answer_never_names_another_record(id: u64, cut in 0usize..40, reason in "[ -~]{0,9}") {
            let line = format!("{id} reject {reason}");
            let cut = &line.as_bytes()[..cut.min(line.len())];
            if let Some((read, _)) = parse(cut) {
                proptest::prop_assert_eq!(read, id);
            }
        }
    }
}
