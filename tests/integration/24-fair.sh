#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Time is shared between owners, not between calls: without keys the peers' addresses. One at 127.0.0.1 has eight connections of
# bulk attends, another at 127.0.0.2 has two: each has about half of what is answered. On one thread of a CPU, which is never idle.
. tests/integration/lib.sh

queries=100
start_daemon --config config/tiny.jsonc --set backend.name=cpu --set pool.blocks=1200 --set geometry.block_size=16 --set backend.threads=1 \
    --set scheduler.step_us_max=500 --set scheduler.step_us_shared=500 --set limits.connections=64
curl -s -X POST "$URL/v1/sequences" >/dev/null
for i in $(seq 16); do
    tensors sequences I64 1 1 indptr I64 2 0,1000 k F32 1000,1,8 '8000*0.5' v F32 1000,1,8 '8000*0.25' | post /v1/append >"$WORK/appended"
done
curl -s --json '{"count":9}' "$URL/v1/sequences/1/fork" >"$WORK/forks"
expect 'there are ten sequences of 16 000 tokens' '16000 9' "$(jq '.sequences[0].length' "$WORK/appended") $(jq '.sequences | length' "$WORK/forks")"

# client OWNER SEQUENCE - make calls from an address, one after the other on one connection, until told to stop; a line each,
# as it ends: what goes to stderr is not kept back.
client() {
    local body="$WORK/body.$2" again="$WORK/again.$2" i
    tensors sequences I64 1 "$2" indptr I64 2 0,$queries q F32 $queries,1,8 "$((8 * queries))*0.5" >"$body"
    for i in $(seq 20); do
        printf '%s\n' next "url=$URL/v1/attend" "interface=127.0.0.$1" "data-binary=@$body" \
            'header="Content-Type: application/x-safetensors"' output=/dev/null "write-out=\"%{stderr}$1 %{http_code}\\n\""
    done | sed 1d >"$again"
    while [ ! -e "$WORK/stop" ]; do
        curl -s -K "$again" 2>>"$WORK/answers.$2" || break
    done
}
answers() { cat "$WORK"/answers.* 2>/dev/null | grep -c "^$1 200"; }
clients=()
for i in $(seq 8); do
    client 1 "$i" &
    clients+=($!)
done
for i in 9 10; do
    client 2 "$i" &
    clients+=($!)
done

# Wait until all have begun, and then for so many answers more.
have_begun() { has_ended || [ "$(answers 1)" -ge 24 ] && [ "$(answers 2)" -ge 6 ]; }
eventually have_begun
first=$(answers 1) second=$(answers 2)
enough() { has_ended || [ $(($(answers 1) + $(answers 2))) -ge $((first + second + 120)) ]; }
eventually enough
first=$(($(answers 1) - first)) second=$(($(answers 2) - second))
touch "$WORK/stop"
for i in "${clients[@]}"; do
    wait "$i"
done
# By calls it would be one in five, by owners one in two.
expect "two connections have a third at least ($first and $second answers)" true "$([ $((3 * second)) -ge $((first + second)) ] && echo true)"
expect "and eight have a third at least" true "$([ $((3 * first)) -ge $((first + second)) ] && echo true)"
expect 'the books balance' true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"
stop_daemon
expect 'it ends cleanly' 0 $?
finish
