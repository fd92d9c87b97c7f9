# shellcheck shell=bash
# Debian packages that a script lacks.
#
# Takes from its caller: say, die.

# Brings Debian packages as root, else says what to install. $1: why; the rest: packages.
bring() {
  local why=$1
  shift
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing $* ($why)"
    { apt-get -qq update && DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install "$@"; } \
      >&2 </dev/null || die "could not install $*; please do it by hand"
  else
    die "$why is missing; install: $*"
  fi
}
