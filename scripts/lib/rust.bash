# shellcheck shell=bash
# A Rust toolchain that is new enough, for the scripts that build.
#
# Takes from its caller: $repo, say, die, bring. Changes: PATH, by rustup's folder at its end.
# shellcheck disable=SC2154 # the caller assigns these

PATH=$PATH:${CARGO_HOME:-$HOME/.cargo}/bin

# Is there a cargo whose compiler is as new as Cargo.toml wants it?
rust_is_there() {
  local wanted have
  wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$repo/Cargo.toml")
  have=$(cargo --version 2>/dev/null && rustc --version 2>/dev/null) || return 1
  have=$(sed -n 's/^rustc \([0-9.]*\).*/\1/p' <<<"$have")
  [ "$(printf '%s\n' "$wanted" "$have" | sort -V | head -n 1)" = "$wanted" ]
}

# Debian 12's own rustc is too old; the -web packages follow the browsers' needs and are new enough.
need_rust() {
  rust_is_there && return
  if command -v rustup >/dev/null; then
    say "installing the stable toolchain"
    rustup toolchain install stable --profile minimal -c clippy -c rustfmt >&2 && rustup default stable >&2
  else
    bring "Rust (https://rustup.rs brings it too)" cargo-web rust-web-clippy rustfmt-web gcc libc6-dev ca-certificates
  fi
  rust_is_there || die "no Rust that is new enough for Cargo.toml's rust-version; see https://rustup.rs"
}

# $1: fmt or clippy.
need_component() {
  cargo "$1" --version >/dev/null 2>&1 && return
  if command -v rustup >/dev/null; then
    rustup component add "$([ "$1" = fmt ] && echo rustfmt || echo "$1")" >&2
  else
    bring "cargo $1" "$([ "$1" = fmt ] && echo rustfmt-web || echo rust-web-clippy)"
  fi
}
