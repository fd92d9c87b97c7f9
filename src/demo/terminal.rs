//! The terminal: what it can show, and frames drawn over one another without flicker or scrolling.
//!
//! A frame is one write: home, each line cleared behind its end, the rest of the screen cleared. The cursor is hidden
//! meanwhile and comes back whatever ends the demo in order. What stood on the screen before is scrolled up, not lost.

use std::io::{self, IsTerminal};

use super::picture::Style;
use crate::cli::Colour;
use crate::report::to_stdout;

/// Columns and rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Size {
    pub(super) columns: usize,
    pub(super) rows: usize,
}

/// A screen of this many columns and rows is always there.
const SIZE_DEFAULT: Size = Size { columns: 80, rows: 24 };

/// Whether stdout can show a picture.
pub(super) fn can_draw() -> bool {
    io::stdout().is_terminal() && !is_dumb()
}

fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty())
}

/// Colours and characters that this terminal shows.
pub(super) fn style(colour: Colour) -> Style {
    let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    Style {
        colour: match colour {
            Colour::Auto => !no_colour,
            Colour::Always => true,
            Colour::Never => false,
        },
        unicode: speaks_utf8(|name| std::env::var(name).ok()),
    }
}

/// The first of these that is set decides, as in setlocale.
fn speaks_utf8(variable: impl Fn(&str) -> Option<String>) -> bool {
    let locale =
        ["LC_ALL", "LC_CTYPE", "LANG"].into_iter().filter_map(variable).find(|value| !value.is_empty());
    locale.is_some_and(|locale| {
        let locale = locale.to_ascii_lowercase();
        locale.contains("utf-8") || locale.contains("utf8")
    })
}

/// The size now: it is asked for again with every frame, so a change needs no signal.
pub(super) fn size() -> Size {
    let number = |name: &str| std::env::var(name).ok()?.parse().ok().filter(|number| *number > 0);
    let (columns, rows) = window_size().unwrap_or_else(|| {
        (number("COLUMNS").unwrap_or(SIZE_DEFAULT.columns), number("LINES").unwrap_or(SIZE_DEFAULT.rows))
    });
    Size { columns, rows }
}

/// What the kernel says of the terminal at stdout.
#[cfg(any(
    all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")),
    target_os = "macos"
))]
fn window_size() -> Option<(usize, usize)> {
    use std::ffi::{c_int, c_ulong};

    #[cfg(target_os = "linux")]
    const TIOCGWINSZ: c_ulong = 0x5413;
    #[cfg(target_os = "macos")]
    const TIOCGWINSZ: c_ulong = 0x4008_7468;

    /// `struct winsize`.
    #[repr(C)]
    struct WindowSize {
        rows: u16,
        columns: u16,
        width_pixels: u16,
        height_pixels: u16,
    }

    unsafe extern "C" {
        fn ioctl(descriptor: c_int, request: c_ulong, ...) -> c_int;
    }

    let mut size = WindowSize { rows: 0, columns: 0, width_pixels: 0, height_pixels: 0 };
    // SAFETY: this request writes one winsize to the address it is given and keeps nothing; std has no call for it.
    let answer = unsafe { ioctl(1, TIOCGWINSZ, &raw mut size) };
    (answer == 0 && size.rows > 0 && size.columns > 0)
        .then(|| (usize::from(size.columns), usize::from(size.rows)))
}

#[cfg(not(any(
    all(target_os = "linux", any(target_arch = "x86_64", target_arch = "aarch64")),
    target_os = "macos"
)))]
fn window_size() -> Option<(usize, usize)> {
    None
}

/// The picture on the terminal.
pub(super) struct Screen;

impl Screen {
    /// Makes room and hides the cursor.
    ///
    /// # Errors
    /// Writing to stdout failed.
    pub(super) fn open() -> io::Result<Self> {
        let room = "\n".repeat(size().rows.saturating_sub(1));
        to_stdout(format!("\x1b[?25l{room}\x1b[H").as_bytes())?;
        Ok(Screen)
    }

    /// Draws a frame. The cursor waits in the first line, where an Enter scrolls nothing.
    ///
    /// # Errors
    /// As [`Screen::open`].
    pub(super) fn draw(&mut self, lines: &[String]) -> io::Result<()> {
        to_stdout(frame(lines, "\x1b[H").as_bytes())
    }

    /// Draws the last frame, which stays, and leaves the cursor below it.
    ///
    /// # Errors
    /// As [`Screen::open`].
    pub(super) fn close(self, lines: &[String]) -> io::Result<()> {
        to_stdout(frame(lines, "\r\n").as_bytes())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        let _ = to_stdout(b"\x1b[0m\x1b[?25h");
    }
}

fn frame(lines: &[String], end: &str) -> String {
    let mut out = String::from("\x1b[H");
    for (index, line) in lines.iter().enumerate() {
        out.push_str(if index > 0 { "\r\n" } else { "" });
        out.push_str(line);
        // No line reaches the last column, where this would take its last character.
        out.push_str("\x1b[K");
    }
    out.push_str("\x1b[J");
    out.push_str(end);
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_locale_decides_on_blocks() {
        let of = |set: &'static [(&str, &str)]| {
            speaks_utf8(|name| {
                set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
            })
        };
        assert!(of(&[("LANG", "de_DE.UTF-8")]));
        assert!(of(&[("LC_ALL", ""), ("LC_CTYPE", "C.utf8"), ("LANG", "C")]));
        assert!(!of(&[("LC_ALL", "C"), ("LANG", "en_US.UTF-8")]));
        assert!(!of(&[]));
    }

    #[test]
    fn a_frame_is_drawn_over_the_last_one() {
        let lines = ["a".to_owned(), "b".to_owned()];
        assert_eq!(frame(&lines, "\x1b[H"), "\x1b[Ha\x1b[K\r\nb\x1b[K\x1b[J\x1b[H");
    }
}
