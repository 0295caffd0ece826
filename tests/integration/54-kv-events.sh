#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# KV events by ZeroMQ: what a subscriber sees of prompts, that a mirror is what the daemon has, past batches, who may subscribe and where, and
# one who does not read.
. tests/integration/lib.sh
. tests/integration/documents.sh
if ! /usr/bin/python3 -c 'import zmq, msgpack' 2>/dev/null; then
    lacks 'kv events: python3-zmq and python3-msgpack are not installed'
    finish
fi
rows() { jq -nc --argjson n "$1" '[range($n) | [[1,0,0,0,0,0,0,0]]]'; }
append() { curl -s -o /dev/null --json "{\"sequences\":[$1],\"indptr\":[0,$2],\"k\":$(rows "$2"),\"v\":$(rows "$2")${3:+,\"token_ids\":$3}}" "$URL/v1/append"; }
create() { curl -s -o /dev/null --json "{\"id\":$1,\"tokens\":$2${3:+,\"salt\":\"$3\"}}" "$URL/v1/sequences"; }
delete() { curl -s -o /dev/null -X DELETE "$URL/v1/sequences/$1"; }
events() { /usr/bin/python3 tests/kv_events.py "$@"; }
# follow FILE [KEYS] - a subscriber that keeps what it sees in FILE; its process is `follower`
follow() {
    : >"$1"
    exec_events follow "$PUB" "$REPLAY" "$@" &
    follower=$!
    has_begun() { grep -q '^{}$' "$1"; }
    eventually has_begun "$1"
}
exec_events() { exec /usr/bin/python3 tests/kv_events.py "$@"; }
end_follower() {
    kill "$1" 2>/dev/null
    wait "$1" 2>/dev/null
}
# What the daemon counts has come: what it told last is in FILE.
counted() { curl -s "$URL/stats" | jq -c "[.kv_events.batches, .kv_events.stored, .kv_events.removed]"; }
seen() { jq -nc '[inputs | select(.number > 0)] | [length, ([.[].events[] | select(.type == "BlockStored").block_hashes | length] | add // 0), ([.[].events[] | select(.type == "BlockRemoved").block_hashes | length] | add // 0)]' "$1"; }
has_all() { [ "$(counted)" = "$(seen "$1" 2>/dev/null)" ]; }
mirrored() { events mirror "$1" 2>"$WORK/broken" | awk '{print $1, split($2, t, ",")}' | sort; }
is_mirrored() { [ "$(mirrored "$1")" = "$(events prefixes "$URL" "${2:-}" | sort)" ]; }
# told FILE NUMBER - events from a batch on, with the places of hashes instead of these
told() {
    jq -nc --argjson from "$2" '[inputs | select(.number != null)] | [.[].events[] | (.block_hashes // [])[]] as $all
        | def name: . as $h | if . == null then null else ([$all[] | select(. == $h)] | length) as $n | $all | index($h) end;
        .[] | select(.number >= $from) | .events[]
        | if .type == "BlockStored" then "stored \([.block_hashes[] | name]) after \(.parent_block_hash | name): \(.token_ids)\(if .extra_keys | all(. == null) then "" else " \(.extra_keys)" end)"
          elif .type == "BlockRemoved" then "removed \([.block_hashes[] | name])" else .type end' -r "$1"
}

# ---- where it may be bound
# refused NAME WANT SETTING... - a start with these settings: its exit code, and the last line of what it says
refused() {
    local name=$1 want=$2 sets=() code
    shift 2
    for setting in "$@"; do sets+=(--set "$setting"); done
    "$ATTND" --config config/tiny.jsonc --set listen=127.0.0.1:0 "${sets[@]}" >/dev/null 2>"$WORK/said"
    code=$?
    expect "$name" "$want" "$code $(tail -1 "$WORK/said")"
    case $want in *'cannot bind'*) return ;; esac # --check-config binds nothing
    "$ATTND" --config config/tiny.jsonc --set listen=127.0.0.1:0 "${sets[@]}" --check-config >/dev/null 2>"$WORK/said"
    code=$?
    expect "--check-config: $name" "$want" "$code $(tail -1 "$WORK/said")"
}
away='events have the token ids of prompts: an address that is not loopback wants events.zmq.curve_file and events.zmq.token_ids on'
refused 'another machine' "78 attnd: --set events.zmq.endpoint=tcp://0.0.0.0:5557: events.zmq.endpoint: $away" events.zmq.endpoint=tcp://0.0.0.0:5557
refused 'another machine, with keys alone' "78 attnd: --set events.zmq.endpoint=tcp://[::]:1: events.zmq.endpoint: $away" "events.zmq.endpoint=tcp://[::]:1" events.zmq.curve_file=/dev/null
refused 'another machine, of past batches' "78 attnd: --set events.zmq.replay=tcp://192.0.2.1:1: events.zmq.replay: $away" \
    events.zmq.endpoint=ipc:///tmp/a events.zmq.replay=tcp://192.0.2.1:1 events.zmq.token_ids=on
refused 'what is no address' '78 attnd: --set events.zmq.endpoint=udp://x: events.zmq.endpoint: wants ipc://PATH, tcp://HOST:PORT or tcp://[HOST]:PORT' events.zmq.endpoint=udp://x
printf '{"geometry": {"layers": 1},\n "events": {"zmq": {"endpoint": "tcp://*:5557"}}}' >"$WORK/wrong.jsonc"
"$ATTND" --config "$WORK/wrong.jsonc" --check-config >/dev/null 2>"$WORK/said"
expect 'the place in a file' "78 attnd: $WORK/wrong.jsonc:2:33: events.zmq.endpoint: the host of tcp:// is a numeric address, of IPv6 in brackets" "$? $(cat "$WORK/said")"
refused 'a folder that is not there' "69 attnd: events.zmq.endpoint: cannot bind ipc://$WORK/none/pub: No such file or directory" "events.zmq.endpoint=ipc://$WORK/none/pub"
mkdir "$WORK/lib"
: >"$WORK/lib/libzmq.so.5"
LD_LIBRARY_PATH=$WORK/lib refused 'no libzmq' "69 attnd: events.zmq.endpoint: $WORK/lib/libzmq.so.5: file too short (Debian has it in libzmq5)" "events.zmq.endpoint=ipc://$WORK/pub"

# ---- prompts
start_daemon --config config/tiny.jsonc --set history.epochs=64 --set "events.zmq.endpoint=ipc://$WORK/pub" --set 'events.zmq.replay=tcp://127.0.0.1:*'
PUB_IPC=ipc://$WORK/pub
PUB=$PUB_IPC REPLAY=$(sed -n 's/.*past ones on //p' "$WORK/log")
expect 'the socket is its owner'"'"'s' 'socket 600' "$(stat -c '%F %a' "$WORK/pub")"
refused 'a path that is in use' "69 attnd: events.zmq.endpoint: cannot bind ipc://$WORK/pub: Address already in use" "events.zmq.endpoint=ipc://$WORK/pub"
refused 'a port that is in use' "69 attnd: events.zmq.endpoint: cannot bind $REPLAY: Address already in use" "events.zmq.endpoint=$REPLAY"
follow "$WORK/seen"
create 7 '[1,2,3,4,5,70000,7,8,9]'
append 7 9
eventually has_all "$WORK/seen"
expect 'first nothing is cached, then two blocks are, with their tokens' 'AllBlocksCleared,stored [0,1] after null: [1,2,3,4,5,70000,7,8]' "$(told "$WORK/seen" 0 | paste -sd,)"
append 7 3 '[10,11,12]'
curl -s -o /dev/null --json '{"ids":[8]}' "$URL/v1/sequences/7/fork"
append 8 4 '[13,14,15,16]'
append 7 4 '[20,21,22,23]'
eventually has_all "$WORK/seen"
expect 'more of it, and its fork: each after what is before it' 'stored [2] after 1: [9,10,11,12],stored [3] after 2: [13,14,15,16],stored [4] after 2: [20,21,22,23]' "$(told "$WORK/seen" 2 | paste -sd,)"
before=$(wc -l <"$WORK/seen")
create 9 '[1,2,3,4,5,70000,7,8]'
append 9 1
curl -s -o /dev/null --json '{"id":10}' "$URL/v1/sequences"
append 10 8 # whose ids nobody knows
create 11 '[1,2,3,4,5,6,7,8]' pepper
append 11 8 # salted
delete 11
expect 'what is shared, unnamed or salted is not told' '2 6' "$(curl -s "$URL/v1/prefixes" | jq -r '[.items[] | select(.salted)][0].block_count') $(($(counted | jq '.[1]') + 1))"
delete 8
curl -s -o /dev/null -X POST "$URL/v1/trim"
eventually has_all "$WORK/seen"
expect 'the end of the fork goes' 'removed [3]' "$(tail -n +$((before + 1)) "$WORK/seen" | jq -c . >"$WORK/later"; cat <(head -n "$before" "$WORK/seen") "$WORK/later" >"$WORK/both"; told "$WORK/both" "$(head -n 1 "$WORK/later" | jq .number)" | paste -sd,)"
expect 'the mirror is what there is' '' "$(eventually is_mirrored "$WORK/seen" && cat "$WORK/broken")"

# ---- past batches
last=$(jq -s '[.[].number // 0] | max' "$WORK/seen")
expect 'past batches from the first on' "$(seq -s' ' 0 "$last") end" "$(events replay "$REPLAY" 0)"
expect 'from a later one' "$(seq -s' ' "$((last - 1))" "$last") end" "$(events replay "$REPLAY" "$((last - 1))")"
expect 'from one that is to come' end "$(events replay "$REPLAY" 1000000)"
expect 'and what is published counts' 'true' "$(curl -s "$URL/metrics" | awk '/^attnd_kv_event_/{v[$1] = $2} END {print (v["attnd_kv_event_batches_total"] == '"$last"' && v["attnd_kv_event_replays_total"] >= 4 && v["attnd_kv_event_blocks_stored_total"] == 5 && v["attnd_kv_event_blocks_removed_total"] == 1 ? "true" : "false")}')"

# ---- all that there is, at once: more changes than the log has
append 10 52
curl -s -o /dev/null --json '{"count":300}' "$URL/v1/sequences/10/fork"
curl -s -o /dev/null --json "{\"ops\":$(curl -s "$URL/v1/sequences?limit=1000" | jq -c '[.items[] | select(.parent == 10) | {op: "delete", id}]')}" "$URL/v1/batch"
expect 'a log that has lost changes is no loss' 'true true' "$(curl -s "$URL/stats" | jq '.kv_events.rescans > 0') $(eventually is_mirrored "$WORK/seen" && echo true)"
for seed in 1 2 3; do events traffic "$URL" $seed 150; done
python3 tests/journal_traffic.py "$URL" 1 60 # several clients, workloads
expect 'after random traffic the mirror is what there is' true "$(eventually is_mirrored "$WORK/seen" && echo true)"
expect 'and it came whole' '' "$(mirrored "$WORK/seen" >/dev/null; cat "$WORK/broken")"
expect 'of which there was some' 'true' "$(counted | jq -c 'if .[1] > 100 and .[2] > 100 then true else . end')"
stop_daemon
expect 'the daemon ends with a subscriber' 0 $?
expect 'and its socket is gone' '' "$(ls "$WORK/pub" 2>/dev/null)"

# ---- another start, of whom the subscriber knows, and which tells salted ones; replays are at another path
end_follower "$follower"
REPLAY=ipc://$WORK/replay
salted=(--config config/tiny.jsonc --set "events.zmq.endpoint=$PUB" --set "events.zmq.replay=$REPLAY" --set events.zmq.salted=on --set events.zmq.topic=kv)
start_daemon "${salted[@]}"
follow "$WORK/seen"
create 1 '[1,2,3,4,5,6,7,8]' pepper
append 1 8
eventually has_all "$WORK/seen"
expect 'a salt is an extra key of the first block' 'stored [0,1] after null: [1,2,3,4,5,6,7,8] [["pepper"],null]' "$(told "$WORK/seen" 1)"
kill -9 "$DAEMON" # its sockets stay behind
wait "$DAEMON" 2>/dev/null
start_daemon "${salted[@]}"
create 2 '[1,2,3,4]'
append 2 4
begun_again() { [ "$(jq -r 'select(.number == 0).number' "$WORK/seen" | paste -sd' ')" = '0 0' ] && is_mirrored "$WORK/seen" salted; }
expect 'it notices another start, and forgets the one before' '' "$(eventually begun_again && cat "$WORK/broken")"
stop_daemon
end_follower "$follower"

# ---- a subscriber that does not read
start_daemon --config config/tiny.jsonc --set pool.blocks=2048 --set "events.zmq.endpoint=$PUB" --set "events.zmq.replay=$REPLAY" --set events.zmq.hwm=1
follow "$WORK/idle"
idle=$follower
follow "$WORK/seen"
kill -STOP "$idle"
events fill "$URL" 100 2048
expect 'the engine goes on without one who does not read' '' "$(eventually is_mirrored "$WORK/seen" && cat "$WORK/broken")"
expect 'nor do questions wait for it' 200 "$(curl -s -o /dev/null -w '%{http_code}' "$URL/v1/prefixes")"
kill -CONT "$idle"
expect 'who reads again finds what it has missed' '' "$(eventually is_mirrored "$WORK/idle" && cat "$WORK/broken")"
expect 'by asking' true "$(jq -s '[.[] | select(.source == "replay" and .number > 0)] | length > 0' "$WORK/idle")"
kill -STOP "$idle"
stop_daemon
expect 'the daemon ends with one who does not read' 0 $?
kill -CONT "$idle"
end_follower "$idle"
end_follower "$follower"

# ---- CURVE
read -r -a keys <<<"$(/usr/bin/python3 -c 'import zmq; print(*[k.decode() for _ in range(3) for k in zmq.curve_keypair()])')" # server, one who may, one who may not
printf '# of the daemon\nsecret %s\nclient %s a router\n' "${keys[1]}" "${keys[2]}" >"$WORK/curve"
curve=(events.zmq.endpoint=tcp://0.0.0.0:0 events.zmq.replay=tcp://0.0.0.0:* "events.zmq.curve_file=$WORK/curve" events.zmq.token_ids=on)
chmod 640 "$WORK/curve"
refused 'no file of keys' "78 attnd: events.zmq.curve_file: $WORK/none: No such file or directory" "${curve[@]}" "events.zmq.curve_file=$WORK/none"
refused 'keys that others may read' "78 attnd: events.zmq.curve_file: $WORK/curve: wants a file of mode 0600" "${curve[@]}"
chmod 600 "$WORK/curve"
printf 'secret %s\n\nclient short\n' "${keys[1]}" >"$WORK/other"
chmod 600 "$WORK/other"
refused 'a key that is none' "78 attnd: events.zmq.curve_file: $WORK/other:3: wants one \`secret KEY\` and up to 64 \`client KEY\`, of 40 characters (Z85)" "${curve[@]}" "events.zmq.curve_file=$WORK/other"
printf 'secret %s\n' "${keys[1]}" >"$WORK/other"
refused 'a file without clients' "78 attnd: events.zmq.curve_file: $WORK/other: wants \`secret KEY\`, and \`client KEY\` for who may subscribe" "${curve[@]}" "events.zmq.curve_file=$WORK/other"
sets=()
for setting in "${curve[@]}"; do sets+=(--set "$setting"); done
start_daemon --config config/tiny.jsonc "${sets[@]}"
port() { sed -n "s/.*$1 on tcp:\/\/0.0.0.0:\([0-9]*\).*/\1/p" "$WORK/log"; }
PUB=tcp://127.0.0.1:$(port 'kv events') REPLAY=tcp://127.0.0.1:$(port 'past ones')
expect 'the log has the public key' "${keys[0]}" "$(sed -n 's/.*CURVE, public key \(.*\), 1 client$/\1/p' "$WORK/log")"
expect 'who has a key comes in' in "$(events knock "$PUB" "${keys[0]}" "${keys[2]}" "${keys[3]}")"
expect 'who has another does not' refused "$(events knock "$PUB" "${keys[0]}" "${keys[4]}" "${keys[5]}")"
expect 'nor who has none' refused "$(events knock "$PUB")"
expect 'nor there, where past batches are' refused "$(events knock "$REPLAY" "${keys[0]}" "${keys[4]}" "${keys[5]}")"
follow "$WORK/seen" "${keys[0]}" "${keys[2]}" "${keys[3]}"
create 1 '[1,2,3,4]'
append 1 4
expect 'the mirror of who has a key' true "$(eventually is_mirrored "$WORK/seen" && echo true)"
end_follower "$follower"
stop_daemon
expect 'the daemon ends cleanly' 0 $?

# ---- the document
PATH=/usr/bin:$PATH check_document docs/EVENTS.md docs/EVENTS.md 8
start_daemon --config config/tiny.jsonc --set "events.zmq.endpoint=$PUB_IPC"
/usr/bin/python3 "$WORK/tree/subscriber.py" "$PUB_IPC" >"$WORK/printed" &
printing=$!
next=0
has_printed() { # once it is connected
    next=$((next + 1))
    create "$next" "[$next,2,3,4]"
    append "$next" 4
    grep -q "BlockStored" "$WORK/printed"
}
eventually has_printed
expect 'the subscriber of the document prints batches' '' "$(grep -v "^[0-9]* \[[0-9.]*, \[{'type': 'BlockStored', " "$WORK/printed")"
kill "$printing"
stop_daemon
finish
