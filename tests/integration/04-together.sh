#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Many clients at once: calls share steps, nobody's result depends on it, and nothing is lost when clients vanish.
. tests/integration/lib.sh
start_daemon --set geometry.layers=1 --set geometry.query_heads=2 --set geometry.kv_heads=1 --set geometry.head_dim=8 \
    --set geometry.block_size=4 --set pool.blocks=4096 --set limits.calls=64

CLIENTS=8 TURNS=12
post() { curl -s --json "$2" "$URL$1"; }

# One client: a sequence of its own, grown token by token with attention each time; prints every output.
client() {
    local id=$1 turn
    post /v1/sequences "{\"id\":$id}" >/dev/null
    for turn in $(seq $TURNS); do
        jq -nc --argjson id "$id" --argjson t "$turn" \
            '{sequences:[$id], k:[[[range(8) | (. + $t + $id) % 5 - 2]]], v:[[[range(8) | . * $t + $id]]],
              q:[[[range(8) | . - $t % 3], [range(8) | 1]]], lse:true}' >"$WORK/body.$id"
        post /v1/attend "@$WORK/body.$id" | jq -c '[.o, .lse]'
    done
}

# Together, and then the same ones alone.
for n in $(seq $CLIENTS); do client $((100 + n)) >"$WORK/together.$n" & pids[n]=$!; done
wait "${pids[@]}"
expect 'every call was answered' $((CLIENTS * TURNS)) "$(cat "$WORK"/together.* | grep -c '^\[\[')"
for n in $(seq $CLIENTS); do curl -s -X DELETE "$URL/v1/sequences/$((100 + n))"; done
for n in $(seq $CLIENTS); do client $((100 + n)) >"$WORK/alone.$n"; done
same=0
for n in $(seq $CLIENTS); do cmp -s "$WORK/together.$n" "$WORK/alone.$n" && same=$((same + 1)); done
expect 'together and alone: the same bits' $CLIENTS $same

# Clients that vanish in the middle of a request or right after it.
for _ in $(seq 20); do
    exec 3<>"/dev/tcp/127.0.0.1/$PORT"
    printf 'POST /v1/attend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' \
        "$(wc -c <"$WORK/body.101")" "$(cat "$WORK/body.101")" >&3
    exec 3>&-
    exec 3<>"/dev/tcp/127.0.0.1/$PORT"
    printf 'POST /v1/attend HTTP/1.1\r\nHost: localhost\r\nContent-Len' >&3
    exec 3>&-
done
expect 'it still answers' 200 "$(curl -s -o /dev/null -w '%{http_code}' "$URL/readyz")"
expect 'the books balance' true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"
for n in $(seq $CLIENTS); do curl -s -X DELETE "$URL/v1/sequences/$((100 + n))"; done
expect 'every block is back' 4096 "$(curl -s "$URL/stats" | jq .pool.free)"

# More calls than limits.calls at a time are told to come back; here they all fit, so none is.
expect 'nobody was refused' 0 "$(grep -c ' 503 ' "$WORK/log")"
stop_daemon
expect 'it ends cleanly' 0 $?

# As many as limits.calls wait for company: others are told to come back, and managers are served.
start_daemon --config config/tiny.jsonc --set limits.calls=2 --set scheduler.batch_window_us=600000000 --set "management.listen=unix:$WORK/m"
for id in 1 2; do post /v1/sequences "{\"id\":$id}" >/dev/null; done
for id in 1 2; do
    command curl -s -m $HANG_S --retry 1000 -H 'Content-Type: application/json' "$URL/v1/append" -d "{\"sequences\":[$id],\"k\":[[[1,1,1,1,1,1,1,1]]],\"v\":[[[1,1,1,1,1,1,1,1]]]}" >/dev/null &
    pids[id]=$!
done
is_full() { [ "$(post /v1/sequences '{}' | jq -r '"\(.status) \(.detail)"')" = '503 limits.calls are under way' ]; }
expect 'limits.calls are refused beyond' yes "$(eventually is_full && echo yes)"
expect 'a manager is not' true "$(curl -s --unix-socket "$WORK/m" -X POST http://localhost/v1/audit | jq .ok)"
{ kill -9 "$DAEMON" "${pids[1]}" "${pids[2]}" && wait "$DAEMON"; } 2>/dev/null # they would wait for ten minutes
DAEMON=
finish
