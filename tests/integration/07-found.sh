#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Bugs found by attacking the daemon, one test each.
. tests/integration/lib.sh
start_daemon --config config/tiny.jsonc --set pool.blocks=2000 --set limits.sequences=1100
raw() { # bytes -> statuses of the answers
    exec 3<>"/dev/tcp/127.0.0.1/$PORT"
    printf '%b' "$1" >&3
    timeout $HANG_S cat <&3 | tr -d '\r' | grep -a '^HTTP/1.1 ' | cut -d' ' -f2 | paste -sd' '
    exec 3<&- 3>&-
}
post() { curl -s --json "$2" "$URL$1"; }

# 20 pipelined requests with bodies of 30 KB filled the input buffer, and each but the first waited for a tick of half a second:
# 9.5 s, every time. Without that they take milliseconds; on a machine that was busy, the next time.
pad=$(head -c 30000 /dev/zero | tr '\0' ' ')
request="POST /v1/sequences HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 30002\r\n\r\n{}$pad"
all=
for _ in $(seq 19); do all+=$request; done
for _ in 1 2 3 4 5; do
    started=$EPOCHREALTIME
    answers=$(raw "$all${request/Host/Connection: close\\r\\nHost}")
    ticked=$(awk "BEGIN { print ($EPOCHREALTIME - $started < 9) ? \"no\" : \"yes\" }")
    [ "$ticked" = yes ] || break
done
expect 'twenty pipelined requests' 20 "$(wc -w <<<"$answers")"
expect 'without waiting for ticks' no "$ticked"

# A chunk extension without an end was read for ever.
expect 'an endless chunk extension' 413 \
    "$( (printf 'POST /v1/sequences HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n1;'; head -c 4000000 /dev/zero | tr '\0' a) |
        timeout $HANG_S bash -c "exec 3<>/dev/tcp/127.0.0.1/$PORT; cat <&3 & cat >&3 2>/dev/null; wait" | tr -d '\r' | sed -n 's/^HTTP.1.1 \([0-9]*\).*/\1/p')"

# A member name with a line end in it made a line of its own in the log; other bytes made the problem no UTF-8.
post /v1/sequences '{"a\nFAKE LOG LINE":1}' >/dev/null
eventually has_logged FAKE
expect 'nobody else writes the log' 0 "$(grep -c '^FAKE' "$WORK/log")"
expect 'a problem is always JSON' 403 "$(curl -s -H "$(printf 'Host: \xff\xfe')" "$URL/livez" | jq .status)"

# Forks whose answer did not fit were made and then reported as failed.
tokens() { jq -nc '[range(800) | [[0,0,0,0,0,0,0,0]]]'; }
post /v1/sequences '{"id":5000}' >/dev/null
for _ in 1 2 3; do
    echo "{\"sequences\":[5000],\"indptr\":[0,800],\"k\":$(tokens),\"v\":$(tokens)}" | curl -s --json @- "$URL/v1/append" >/dev/null
done
expect 'a sequence of 600 blocks' 600 "$(curl -s "$URL/v1/sequences/5000" | jq '.blocks | length')"
before=$(curl -s "$URL/stats?limit=1" | jq .sequences.count)
expect '1 000 forks of it list a part of their blocks each' '[1000,100]' \
    "$(post /v1/sequences/5000/fork '{"count":1000}' | jq -c '.sequences | [length, (.[0].blocks | length)]')"
expect 'and all are made' $((before + 1000)) "$(curl -s "$URL/stats?limit=1" | jq .sequences.count)"
expect 'a page is cut where the answer is full' true "$(curl -s "$URL/v1/sequences?limit=1000" | jq '(.items | length) > 100 and (.items | length) < 1000')"

# Clients that left with an audit under way, and SIGTERM: the loop looked at the engine after it had been freed.
for _ in $(seq 50); do
    exec 3<>"/dev/tcp/127.0.0.1/$PORT"
    printf 'POST /v1/audit HTTP/1.1\r\nHost: localhost\r\n\r\n' >&3
    exec 3>&-
done
stop_daemon
expect 'it ends cleanly with calls under way' 0 $?
finish
