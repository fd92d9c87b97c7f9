#!/bin/sh
# A --pipe handler in plain sh. It has no JSON parser, so it reads only the members that come first, whose order is
# fixed and whose values hold no quote: id, topic, partition, offset. Who needs key or value takes jq, or uses --exec.
#   keylane pool -t orders -g kitchen --pipe -- scripts/examples/pipe.sh
while IFS= read -r line; do
    rest=${line#'{"id":"'} && id=${rest%%'"'*}
    rest=${rest#*'"topic":"'} && topic=${rest%%'"'*}
    rest=${rest#*'"partition":'} && partition=${rest%%,*}
    rest=${rest#*'"offset":'} && offset=${rest%%,*}
    # The work. stderr passes through to keylane's; stdout is for answers alone.
    if echo "$topic/$partition@$offset" >&2; then
        echo "$id ok"
    else
        echo "$id retry"
    fi
done
