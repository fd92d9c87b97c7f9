#!/usr/bin/env python3
"""A --pipe handler in Python that works on several records at once; keylane keeps each key's order.

    keylane pool -t orders -g kitchen --pipe --pipe-depth 16 -- scripts/examples/pipe.py
"""

import base64
import concurrent.futures
import hashlib
import json
import sys
import threading

printing = threading.Lock()


def field(record, name):
    """A key or value as bytes, or None for null."""
    if name + "_b64" in record:
        return base64.b64decode(record[name + "_b64"])
    text = record[name]
    return None if text is None else text.encode()


def header(pair):
    """Name and value of a header; the value is text, {"b64": …} or null."""
    name, value = pair
    if isinstance(value, dict):
        return name, base64.b64decode(value["b64"])
    return name, None if value is None else value.encode()


def handle(record):
    """The work. Returns the answer: ok, retry, or reject and why."""
    value = field(record, "value")
    headers = [header(pair) for pair in record["headers"]]
    digest = "null" if value is None else hashlib.md5(value).hexdigest()
    print(record["partition"], record["offset"], field(record, "key"), digest, len(headers), file=sys.stderr)
    return "ok"


def answer(record):
    try:
        said = handle(record)
    except OSError as error:
        said = f"retry {error}"
    except Exception as error:
        # Line breaks would end the answer.
        said = "reject " + " ".join(str(error).split())
    with printing:
        print(record["id"], said, flush=True)


with concurrent.futures.ThreadPoolExecutor(max_workers=16) as pool:
    # A line is JSON in UTF-8 whatever the locale is. The loop ends when keylane closes stdin.
    for line in sys.stdin.buffer:
        pool.submit(answer, json.loads(line))
