#!/bin/sh
# A --pipe handler in awk: it counts records by key and says what it has at the end. Splitting at quotes is right for
# the members before the headers, and for keys without quotes or backslashes; a key that is not UTF-8 is `key_b64`.
#   keylane pool -t orders -g kitchen --pipe -- scripts/examples/pipe-awk.sh
#
# An answer must not wait in a buffer: fflush() sends it. mawk would also wait for a full buffer of input.
case $(awk -W version 2>&1 </dev/null) in
mawk*) set -- -W interactive ;;
esac
exec awk "$@" -F '"' '
    {
        key = match($0, /"key":"[^"]*"/) ? substr($0, RSTART + 7, RLENGTH - 8) : "null"
        count[key]++
        print $4 " ok"
        fflush()
    }
    END {
        for (key in count) print key, count[key] | "cat >&2"
    }
'
