#!/bin/sh
# An --exec handler: it posts the value to $URL with curl's own exit codes (--retry-exit 7,22,28 waits for a server that
# is down), and names the record so that the server can tell a repetition.
#   URL=http://127.0.0.1:8080/ keylane pool -t orders -g kitchen --retry-exit 7,22,28,75 -- scripts/examples/exec.sh
if [ "${KEYLANE_VALUE_NULL-}" = 1 ]; then
    exec curl -fsS -X DELETE "$URL${KEYLANE_KEY-}"
fi
exec curl -fsS --data-binary @- -H "Idempotency-Key: $KEYLANE_TOPIC/$KEYLANE_PARTITION@$KEYLANE_OFFSET" "$URL"
