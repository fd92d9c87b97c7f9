#!/usr/bin/env -S jq -r --unbuffered -f
# A --pipe handler in jq: it takes orders, JSON objects with an amount, and rejects all else for good.
#   keylane pool -t orders -g kitchen --on-fail skip --pipe -- jq -r --unbuffered -f scripts/examples/pipe.jq
.id + " "
+ if .value == null then
    # Not UTF-8, so no JSON; or null, by which a compacted topic deletes a key: nothing to be done.
    if has("value_b64") then "reject the value is not text" else "ok" end
  else
    (.value | try fromjson catch null) as $order
    | if ($order | type) != "object" then "reject the value is no JSON object"
      elif ($order.amount | type) != "number" then "reject no amount"
      elif $order.amount < 0 then "reject amount \($order.amount)"
      else "ok" end
  end
