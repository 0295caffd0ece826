#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Clients with registered memory: the same bits as over HTTP, the same rules, and whatever they do to ring, regions and messages.
# clients_that_die.c has as many clients as DYING_CLIENTS says, hostile.c as many rounds as HOSTILE_ROUNDS.
. tests/integration/lib.sh
CTL=$(dirname "$ATTND")/attnctl
TOOLS=$(dirname "$ATTND")/registered
if [ ! -x "$TOOLS/talk" ]; then
    echo 'skip registered memory: its clients are not built here'
    exit 0
fi
talk() { "$TOOLS/talk" "$WORK/r"; } # what standard input says; tests/registered/talk.c
transport() { curl -s "$URL/stats" | jq -c .transport; }
is_transport() { [ "$(transport | jq -c "$1")" = "$2" ]; }
sequence() { curl -s --json "${1:-"{}"}" "$URL/v1/sequences" | jq .id; }
lengths() { curl -s "$URL/v1/sequences/$1" | jq -c .lengths; }
audit() { curl -s -X POST "$URL/v1/audit" | jq .ok; }
start() { # with a journal, which is checked when the daemon has ended: whatever clients did, their calls are in it
    rm -rf "$WORK/journal"
    mkdir "$WORK/journal"
    start_daemon --set "journal.path=$WORK/journal" "$@"
}
replays() { expect 'its journal is the same when it is run again' ok "$("$ATTND" --replay-check "$WORK/journal" | sed 's/^ok:.*/ok/')"; }
calls_in_journal() { "$ATTND" --journal-print "$WORK/journal" | jq -s '[.[] | select(.kind == "request" and (.what == "append" or .what == "attend"))] | length'; }

# ---- what does not start
# shellcheck disable=SC2069 # of what it says only what is wrong
fails() { "$ATTND" --config config/tiny.jsonc --set listen=127.0.0.1:0 "$@" 2>&1 >/dev/null | grep '^attnd: [^0-9]'; }
expect 'a TCP port' 'attnd: transport.listen: 127.0.0.1:0: wants unix:PATH or fd:N, without proxy_protocol' "$(fails --set transport.listen=127.0.0.1:0)"
expect 'a folder that is none' "attnd: cannot listen on unix:$WORK/none/r: no such file or directory (set transport.listen=...)" \
    "$(fails --set "transport.listen=unix:$WORK/none/r")"

# ---- the same bits as over HTTP: appends of a layer and of all, several sequences, with and without k and v, positions, float32 of lse
start --set "transport.listen={\"address\":\"unix:$WORK/r\",\"mode\":\"0660\"}" --set geometry.layers=2 --set pool.blocks=512
expect 'the socket has its mode' 660 "$(stat -c %a "$WORK/r")"
expect 'info says where it is' "{\"listen\":\"unix:$WORK/r\",\"version\":1,\"clients\":256,\"calls\":64,\"regions\":8,\"region_bytes\":67108864,\"gpu_bytes\":0,\"gpu_rows\":0}" \
    "$(curl -s "$URL/v1/info" | jq -c .transport)"
# random NAME ROWS HEADS - bf16 of either sign between 2^-15 and 4
random() { perl -e 'srand(shift); print pack "v*", map { int(rand(2)) << 15 | (112 + int(rand(17))) << 7 | int(rand(128)) } 1 .. shift' "$1" "$(($2 * $3 * 64))" >"$WORK/$1"; }
body() { # NAME DTYPE SHAPE FILE ... - safetensors
    perl -e '
        my ($at, $data, @parts) = (0, "");
        while (my ($name, $dtype, $shape, $file) = splice(@ARGV, 0, 4)) {
            local $/; open my $f, "<", $file or die; my $raw = <$f>;
            push @parts, sprintf("\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%d,%d]}", $name, $dtype, $shape, $at, $at + length $raw);
            $at += length $raw; $data .= $raw;
        }
        my $h = "{" . join(",", @parts) . "}"; $h .= " " x (-length($h) % 8);
        print pack("Q<", length $h), $h, $data;' "$@"
}
data() { perl -e 'local $/; $_ = <STDIN>; print substr($_, 8 + unpack("Q<", $_))'; } # of a safetensors answer
list() { perl -e 'print pack(shift . "*", @ARGV)' "$@"; }
random 1 74 2 # k of all layers: 37 rows, twice
random 2 74 2
random 3 3 8 # q
random 4 3 2 # k, v of three rows
random 5 3 2
for i in 1 2 3 4; do sequence >/dev/null; done
list q '<' >/dev/null
list 'q<' 1 2 >"$WORK/ids" && list 'q<' 0 30 37 >"$WORK/indptr"
body sequences I64 2 "$WORK/ids" indptr I64 3 "$WORK/indptr" k BF16 2,37,2,64 "$WORK/1" v BF16 2,37,2,64 "$WORK/2" | post /v1/append >/dev/null
list 'q<' 0 1 3 >"$WORK/indptr"
body sequences I64 2 "$WORK/ids" indptr I64 3 "$WORK/indptr" q BF16 3,8,64 "$WORK/3" k BF16 3,2,64 "$WORK/4" v BF16 3,2,64 "$WORK/5" |
    post '/v1/attend?layer=1&lse=1' | data >"$WORK/http"
body sequences I64 2 "$WORK/ids" indptr I64 3 "$WORK/indptr" q BF16 3,8,64 "$WORK/3" | post '/v1/attend?layer=0' | data >"$WORK/http0"
expect 'appends and attends' 'ok 0 28672
ok 0 1048576
ok 7
ok 8
ok 9' "$(talk <<END
open -
region 1048576
load 4096 $WORK/1
load 65536 $WORK/2
u64 0 3 4
u32 64 30 7
call kind=1 tag=7 layer=4294967295 sequence_count=2 rows=37 counts=64 k=4096 v=65536
go
load 4096 $WORK/3
load 65536 $WORK/4
load 131072 $WORK/5
u32 64 1 2
u32 128 30 7
call kind=2 tag=8 layer=1 sequence_count=2 rows=3 counts=64 positions=128 q=4096 k=65536 v=131072 o=262144 lse=266240
go
save 262144 3072 $WORK/o
save 266240 96 $WORK/lse
call kind=2 tag=9 layer=0 sequence_count=2 rows=3 counts=64 q=4096 o=262144
go
save 262144 3072 $WORK/o0
END
)"
expect 'o and lse are those of HTTP, bit for bit' '' "$(cat "$WORK/o" "$WORK/lse" | cmp - "$WORK/http" 2>&1)"
expect 'without k and v, too' '' "$(cmp "$WORK/o0" "$WORK/http0" 2>&1)"
expect 'cursors are where HTTP has them' "$(lengths 1) $(lengths 2)" "$(lengths 3) $(lengths 4)"
expect 'a retry changes nothing' 'ok' "$(talk <<END | tail -1 | cut -d' ' -f1
open -
region 262144
load 4096 $WORK/3
load 65536 $WORK/4
load 131072 $WORK/5
u64 0 3 4
u32 64 1 2 30 7
call kind=2 layer=1 sequence_count=2 rows=3 counts=64 positions=72 q=4096 k=65536 v=131072 o=200000
go
END
)"
eventually is_transport .clients 0
expect 'they are gone, and what they did is counted' '{"clients":0,"regions":0,"region_bytes":0,"gpu_bytes":0,"calls":4,"ended":0}' "$(transport)"

# ---- messages
expect 'messages that are none' '400 malformed a message has 256 bytes
400 malformed a message has 256 bytes
401 unauthorized the first message is HELLO (1), with the version and a key
422 invalid kind: wants 1 (HELLO), 2 (REGION), 3 (OWN_REGION), 4 (CLOSE_REGION), 6 (GPU_REGION), 7 (OWN_GPU_REGION) or 8 (IPC_REGION)
422 invalid version: this daemon speaks 1, and not 2
422 invalid key_bytes: wants 228 at most' "$(perl -e '
    use Socket; socket(my $s, AF_UNIX, SOCK_SEQPACKET, 0); connect($s, pack_sockaddr_un(shift)) or die;
    sub ask { send($s, shift, 0); recv($s, my $a, 4096, 0); my ($kind, $status, $r, $v, $b, $code, $detail) = unpack("VVVVQ<Z32Z264", $a);
              print "$status $code $detail\n" }
    ask("x" x 255); ask("x" x 4000); ask(pack("VVQ<x240", 2, 0, 4096)); ask(pack("VVQ<x240", 9, 0, 0)); ask(pack("VVQ<x240", 1, 2, 0));
    ask(pack("VVQ<VVx232", 1, 1, 0, 0, 229));' "$WORK/r")"
files() { find "/proc/$DAEMON/fd" -mindepth 1 | wc -l; }
eventually is_transport .clients 0
before=$(files)
expect 'more messages' 'ok 0 28672
422 invalid the client has said who it is
422 invalid bytes: wants 1..67108864 (limits.body_bytes)
422 invalid bytes: wants 1..67108864 (limits.body_bytes)
404 not_found region: there is no region 0
404 not_found region: there is no region 4000000000
422 invalid the descriptor is no memfd
422 invalid the memfd wants the seals F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL
422 invalid the memfd wants the seals F_SEAL_SHRINK, F_SEAL_GROW and F_SEAL_SEAL
422 invalid the memfd has a seal against writing, and outputs are written there
422 invalid the memfd has not the size that the message says
ok 0 4096
ok 0 4096' "$(talk <<END
open -
hello 1 0
region 0
region 67108865
close 0
close 4000000000
own 4096 f
own 4096
own 4096 gs
own 4096 gsSw
own 4096 gsS+
own 4096 gsS
close 0
END
)"
has_files() { [ "$(files)" -le "$before" ]; }
expect 'with descriptors that nobody asked for, or none' '422 invalid bytes: wants 1..67108864 (limits.body_bytes)
422 invalid no descriptor has come along: wants one, of a memfd
422 invalid the descriptor is no memfd' "$(talk <<END | sed 1d
open -
raw 2 0 16
raw 3 4096 0
raw 3 4096 16
END
)"
eventually has_files
expect 'they are closed' 0 $?
expect 'as many regions as there may be' '503 busy a client has 8 regions at most: close one
ok 3 4096
ok 3 8192' "$( (
    echo open -
    for i in 1 2 3 4 5 6 7 8 9; do echo region 4096; done
    echo close 3
    echo region 8192
) | talk | tail -3)"

# ---- calls that are wrong are answered, and change nothing
id=$(sequence)
while IFS='|' read -r want call; do
    expect "a call: $want" "$want" "$(talk <<END | tail -1
open -
region 65536
u64 0 $id 5000 0 9007199254740992 $id
u32 64 1 0 4294967295 2
f32 1024 nan 1
call sequence_count=1 rows=1 $call
go
END
)"
    [ "$(lengths "$id")" = '[0,0]' ] || expect "nothing is appended by: $call" '[0,0]' "$(lengths "$id")"
done <<'LIST'
422 invalid kind: wants 1 (append) or 2 (attend), has 0|kind=0
404 not_found region: there is no region 7 in host memory|kind=1 region=7 k=4096 v=8192
404 not_found region: there is no region 4294967295 in host memory|kind=1 region=4294967295 k=4096 v=8192
422 invalid layer: wants 0..1, or 4294967295 for k and v of all|kind=1 layer=2 k=4096 v=8192
422 invalid layer: wants 0..1|kind=2 layer=4294967295 q=4096 o=8192
422 invalid kernel: wants 0 (auto), 1 (paged_v1) or 2 (paged_v2)|kind=2 kernel=3 q=4096 o=8192
422 invalid kv_stored: wants 0 or 1|kind=1 kv_stored=2 k=4096 v=8192
422 invalid 0 rows of 1 sequence: wants a sequence at least, a row of each, and 16384 rows at most (limits.rows_per_call)|kind=1 rows=0 k=4096 v=8192
422 invalid 4294967295 rows of 4294967295 sequences: wants a sequence at least, a row of each, and 16384 rows at most (limits.rows_per_call)|kind=1 sequence_count=4294967295 rows=4294967295 k=4096 v=8192
422 invalid rows: without counts wants one of each sequence|kind=1 rows=2 k=4096 v=8192
422 invalid v: is missing: k and v come together|kind=1 k=4096
422 invalid k: is missing|kind=1
422 invalid tokens: wants an id for each of the first rows of k and v|kind=1 token_count=2 k=4096 v=8192
422 invalid k: has 256 bytes from 65281 on, and the region has 65536|kind=1 k=65281 v=4096
422 invalid k: has 256 bytes from 18446744073709551614 on, and the region has 65536|kind=1 k=18446744073709551614 v=4096
422 invalid sequences: has 8 bytes from 18446744073709551608 on, and the region has 65536|kind=1 sequences=18446744073709551608 k=4096 v=8192
422 invalid o: has 1024 bytes from 64513 on, and the region has 65536|kind=2 q=4096 o=64513
422 invalid sequences: entry 0: wants an id in 1..9007199254740991|kind=1 sequences=16 k=4096 v=8192
422 invalid sequences: entry 0: wants an id in 1..9007199254740991|kind=1 sequences=24 k=4096 v=8192
422 invalid counts: entry 0: wants 1 at least|kind=1 counts=68 k=4096 v=8192
422 invalid counts: come to 2 rows, and rows is 1|kind=1 counts=76 k=4096 v=8192
422 invalid positions: entry 0: wants a position in 0..2147483647|kind=1 positions=72 k=4096 v=8192
422 invalid v: row 0, head 0, element 1 is not finite|kind=1 k=4096 v=1024
422 invalid q: row 0, head 0, element 1 is not finite|kind=2 q=1024 o=4096
404 not_found there is no sequence 5000|kind=1 sequences=8 k=4096 v=8192
LIST
expect 'a sequence twice in a call' 422 "$(talk <<END | tail -1 | cut -d' ' -f1
open -
region 65536
u64 0 $id $id
call kind=1 sequence_count=2 rows=2 k=4096 v=8192
go
END
)"

# ---- the ring: full, and indices that jump
list 'q<' "$id" >"$WORK/ids"
body sequences I64 1 "$WORK/ids" k BF16 1,2,64 <(head -c 256 "$WORK/4") v BF16 1,2,64 <(head -c 256 "$WORK/5") | post '/v1/append?layer=0' >/dev/null
one="open -
region 65536
u64 0 $id
call kind=2 sequence_count=1 rows=1 q=4096 o=8192"
expect 'a full ring' 'full
64' "$( (
    echo "$one"
    for _ in $(seq 65); do echo put; done
    for _ in $(seq 64); do echo wait; done
) | talk | sed 1,2d | sort | uniq -c | awk '$2 == "full" { print "full" } $2 == "ok" { n += $1 } END { print n }')"
expect 'a region that is opened to append, where writing is at its end' '422 invalid o: the region cannot be written' "$(sed 's/^region.*/own 65536 gsSa/' <<<"$one
go" | talk | tail -1)"
for jump in 'tail 65|calls_tail is more than 64 calls ahead of those taken' 'tail -1|calls_tail is more than 64 calls ahead of those taken'; do
    expect "an index that jumps: ${jump%|*}" "422 invalid ${jump#*|}" "$( (
        echo "$one"
        echo go
        echo "${jump%|*}"
        echo end
    ) | talk | tail -1)"
done
expect 'completions that nobody wrote' '422 invalid done_head is no place of the latest 64 completions' "$( (
    echo "$one"
    echo 'head 1'
    echo put
    echo end
) | talk | tail -1)"
eventually is_transport .clients 0
expect 'three clients have ended for it' 3 "$(transport | jq .ended)"
expect 'the books balance' true "$(audit)"

# ---- two clients, and a client that goes while its call is under way
(
    echo "$one"
    for _ in $(seq 200); do echo go; done
) | talk >"$WORK/first" &
first=$!
expect 'two clients' 200 "$( (
    echo "$one"
    for _ in $(seq 200); do echo go; done
) | talk | sed 1,2d | grep -c '^ok')"
wait $first
expect 'the other one, too' 200 "$(sed 1,2d "$WORK/first" | grep -c '^ok')"
stop_daemon
expect 'it ends cleanly' 0 $?
replays
expect 'with their calls' yes "$([ "$(calls_in_journal)" -gt 464 ] && echo yes)"
expect 'and its socket goes' 1 "$([ -e "$WORK/r" ]; echo $?)"

# ---- k and v as they are stored, tokens of a prompt, a kernel, a deadline
start --config config/tiny.jsonc --set "transport.listen=unix:$WORK/r" --set geometry.dtype=bf16 --set geometry.kv_dtype=e4m3 \
    --set geometry.head_dim=32 --set geometry.block_size=8
perl -e 'srand(9); print pack "C*", map { int(rand(120)) } 1 .. 16 * 32' >"$WORK/8"
list 'q<' "$(sequence)" >"$WORK/ids"
other=$(sequence '{"tokens":[1,2,3,4,5,6,7,8,9]}')
list 'q<' 0 8 >"$WORK/indptr"
body sequences I64 1 "$WORK/ids" indptr I64 2 "$WORK/indptr" k F8_E4M3 8,1,32 <(head -c 256 "$WORK/8") v F8_E4M3 8,1,32 <(tail -c 256 "$WORK/8") | post /v1/append >/dev/null
body sequences I64 1 "$WORK/ids" q BF16 1,1,32 <(head -c 64 "$WORK/3") | post /v1/attend | data >"$WORK/http"
expect 'k and v as they are stored' "ok 1
ok 2
$(body sequences I64 1 "$WORK/ids" q BF16 1,1,32 <(head -c 64 "$WORK/3") | post '/v1/attend?kernel=paged_v2' | jq -r '"\(.status) \(.code) \(.detail)"')" "$(talk <<END | tail -3
open -
region 65536
u64 0 $other
u32 64 8 1 2 3 4 5 6 7 8
load 4096 $WORK/8
load 8192 $WORK/3
call kind=1 tag=1 sequence_count=1 rows=8 counts=64 kv_stored=1 token_count=8 tokens=68 k=4096 v=4352 timeout_ms=3600000
go
call kind=2 tag=2 sequence_count=1 rows=1 q=8192 o=16384
go
save 16384 64 $WORK/o
call kind=2 tag=2 sequence_count=1 rows=1 kernel=2 q=8192 o=16384
go
END
)"
expect 'the same bits' '' "$(cmp "$WORK/o" "$WORK/http" 2>&1)"
expect 'the prompt is known by its tokens' 8 "$(curl -s --json '{"tokens":[1,2,3,4,5,6,7,8,10]}' "$URL/v1/sequences" | jq .cached_tokens)"
stop_daemon
replays

# ---- with a window in which calls wait for company: what ends meanwhile
start --config config/tiny.jsonc --set "transport.listen=unix:$WORK/r" --set scheduler.batch_window_us=600000000
id=$(sequence)
append="open -
region 65536
u64 0 $id
f32 64 8*1 8*1
call kind=1 sequence_count=1 rows=1 k=64 v=96"
(
    echo "$append"
    echo put
    echo "sync $WORK/put"
    echo close 0
    echo wait
) | talk >"$WORK/closed" &
closing=$!
exists() { [ -e "$1" ]; }
eventually exists "$WORK/put"
eventually are_queued "[$id]"
rm "$WORK/put"
eventually is_transport '[.clients, .regions, .calls]' '[1,1,1]'
flush "$id"
wait $closing
expect 'a region is closed when its calls are done' 'ok 0 28672
ok 0 65536
ok 0 65536
ok 0' "$(cat "$WORK/closed")"
expect 'which it was' '[1]' "$(lengths "$id")"
eventually is_transport '[.clients, .regions]' '[0,0]'
printf '%s\nput\nsync %s\n' "$append" "$WORK/never" >"$WORK/script"
"$TOOLS/talk" "$WORK/r" <"$WORK/script" >/dev/null &
dying=$!
eventually are_queued "[$id]"
kill -9 $dying
wait $dying 2>/dev/null
eventually is_transport '[.clients, .regions]' '[0,0]'
flush "$id"
expect 'a client that dies takes its waiting call along' '[1]' "$(lengths "$id")"
(
    echo "$append"
    echo put
    echo wait
    echo end
) | talk >"$WORK/drained" &
draining=$!
eventually are_queued "[$id]"
exec 9<>"/dev/tcp/127.0.0.1/$PORT" # a call that is under way while it ends, and has the other one computed
printf 'POST /v1/sequences/%s/truncate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 21\r\nContent-Type: application/json\r\n\r\n{' "$id" >&9
caught_up
kill -TERM "$DAEMON"
eventually has_logged draining
printf '"length":4000000000}' >&9
wait "$DAEMON"
expect 'a daemon that ends' 0 $?
DAEMON=
replays
exec 9>&- 9<&-
wait $draining
expect 'answers what it has taken, and says so' 'ok 0 28672
ok 0 65536
ok 0
503 busy the daemon ends' "$(cat "$WORK/drained")"

# ---- keys, scopes, quotas
entries=()
key() {
    local made
    made=$("$CTL" --json key new "$1" "$2")
    jq -r .key <<<"$made" >"$WORK/$1"
    entries+=("$(jq -c ".entry + ${3:-"{}"}" <<<"$made")")
}
key ann infer
key bob infer
key eve read
key root admin
key few infer '{"quotas":{"sequences":3,"blocks":2,"calls":1,"staging_bytes":65536}}'
key slow infer '{"quotas":{"requests_per_s":2}}'
write_keys() {
    local IFS=,
    (umask 077; printf '{"keys": [%s]}\n' "${entries[*]}" >"$WORK/keys")
}
write_keys
start --config config/tiny.jsonc --set "transport.listen=unix:$WORK/r" --set "keys.file=$WORK/keys" --set transport.clients=3
as() { curl -s -H "Authorization: Bearer $(cat "$WORK/$1")" "${@:2}"; }
says() { echo "open ${1:--}" | talk; }
expect 'without a key' '401 unauthorized this needs a key' "$(says)"
expect 'a key that is none' '401 unauthorized there is no such key' "$(says attnd_x)"
expect 'one that lacks the scope' '403 forbidden the key "eve" lacks the scope infer' "$(says "$(cat "$WORK/eve")")"
expect 'one that has it' 'ok 0 28672' "$(says "$(cat "$WORK/ann")")"
id=$(as ann --json '{}' "$URL/v1/sequences" | jq .id)
nobody_is_left() { [ "$(as root "$URL/stats" | jq .transport.clients)" = 0 ]; }
append() { # KEY ROWS TIMES - once the client before has gone: what it had counts until then
    eventually nobody_is_left
    echo "open $(cat "$WORK/$1")"
    echo 'region 32768'
    echo "u64 0 $id"
    echo "u32 32 $2"
    echo "f32 64 $((16 * $2))*1"
    echo "call kind=1 sequence_count=1 rows=$2 counts=32 k=64 v=$((64 + 32 * $2))"
    for _ in $(seq "$3"); do echo go; done
}
expect 'of another key it does not exist' "404 not_found there is no sequence $id" "$(append bob 1 1 | talk | tail -1)"
expect 'of its own it does' 'ok 0' "$(append ann 1 1 | talk | tail -1)"
expect 'an admin sees it' 'ok 0' "$(append root 1 1 | talk | tail -1)"
id=$(as few --json '{}' "$URL/v1/sequences" | jq .id)
expect 'a quota of staging memory is one of regions' "ok 0 32768
429 quota_exceeded quotas.staging_bytes (65536) of the key \"few\" are used up" "$( (append few 1 0; echo region 32768) | talk | tail -2)"
expect 'more than the whole quota is never had' '422 invalid quotas.blocks of the key is 2, and the sequences take 3 with these rows' "$(append few 12 1 | talk | tail -1)"
expect 'a block of it' 'ok 0' "$(append few 4 1 | talk | tail -1)"
expect 'what the sequence has counts' '422 invalid quotas.blocks of the key is 2, and the sequences take 3 with these rows' "$(append few 8 1 | talk | tail -1)"
id=$(as few --json '{}' "$URL/v1/sequences" | jq .id)
expect 'a quota of blocks' '429 quota_exceeded quotas.blocks of the key is 2: its tables have 1, those promised included, and this takes 2 more' \
    "$(append few 8 1 | talk | tail -1)"
expect 'a region larger than all its staging memory' '422 invalid quotas.staging_bytes of the key "few" is 65536, and this takes 131072' \
    "$( (append few 1 0; echo region 131072) | talk | tail -1)"
id=$(as slow --json '{}' "$URL/v1/sequences" | jq .id)
expect 'a quota of requests a second' '429 quota_exceeded quotas.requests_per_s (2) of the key are used up' "$(append slow 1 3 | talk | tail -1)"
held=()
eventually nobody_is_left
for i in 1 2 3; do
    (
        echo "open $(cat "$WORK/bob")"
        echo "sync $WORK/sync$i"
        echo end
    ) | talk >"$WORK/held$i" &
    held[i]=$!
    eventually exists "$WORK/sync$i"
done
expect 'as many clients as may be' '503 busy transport.clients (3) are there' "$(says "$(cat "$WORK/bob")")"
rm "$WORK"/sync?
unset 'entries[1]'
write_keys
kill -HUP "$DAEMON"
wait "${held[@]}"
expect 'a key that is gone: its clients end' '401 unauthorized the key "bob" is no more' "$(sed 1d "$WORK/held1")"
has_none() { [ "$(as ann "$URL/stats" | jq -c '[.transport.clients, .transport.regions]')" = '[0,0]' ]; }
eventually has_none
expect 'the books balance' true "$(as root -X POST "$URL/v1/audit" | jq .ok)"
used() { as ann "$URL/metrics" | sed -n "s/^attnd_$1 //p"; }
expect 'problems are counted by code, of the ring too' yes "$(used 'problems_total{code="quota_exceeded"}' | awk '{print ($1 >= 2 ? "yes" : "no: " $1)}')"
expect 'all memory is given back' '0 0' "$(used staging_bytes_used) $(used transport_region_bytes)"
stop_daemon
expect 'it ends cleanly' 0 $?
replays
start --config config/tiny.jsonc --set "transport.listen=unix:$WORK/r" --set "keys.file=$WORK/keys" --set scheduler.batch_window_us=600000000
id=$(as few --json '{}' "$URL/v1/sequences" | jq .id)
(
    append few 1 0
    printf 'put\nput\nwait\n'
    echo "sync $WORK/put"
    echo wait
) | talk >"$WORK/calls" &
calling=$!
eventually exists "$WORK/put"
as root -o /dev/null --json '{"length":4000000000}' "$URL/v1/sequences/$id/truncate"
rm "$WORK/put"
wait $calling
expect 'a quota of calls' '429 quota_exceeded quotas.calls (1) of the key are used up
ok 0' "$(sed 1,2d "$WORK/calls")"
stop_daemon
replays

# ---- clients that die at every stage, and one that rewrites everything; another one sees nothing of it
start --set "transport.listen=unix:$WORK/r" --set "keys.file=$WORK/keys" --set transport.clients=32 --set limits.calls=8
id=$(as ann --json '{}' "$URL/v1/sequences" | jq .id) mine=$(as root --json '{}' "$URL/v1/sequences" | jq .id)
honest() { # KEY SEQUENCE - what ten attends at layer 1 give
    talk <<END
open $(cat "$WORK/$1")
region 65536
load 4096 $WORK/3
u64 0 $2
call kind=2 layer=1 sequence_count=1 rows=1 q=4096 o=8192 lse=16384
go
go
go
go
go
go
go
go
go
go
save 8192 1024 $WORK/o
save 16384 32 $WORK/lse
END
    cat "$WORK/o" "$WORK/lse" | cksum
}
for of in "ann $id" "root $mine"; do
    (
        echo "open $(cat "$WORK/${of% *}")"
        echo 'region 262144'
        echo "load 4096 $WORK/1"
        echo "load 65536 $WORK/2"
        echo "u64 0 ${of#* }"
        echo 'u32 64 9'
        echo 'call kind=1 layer=4294967295 sequence_count=1 rows=9 counts=64 k=4096 v=65536'
        echo go
    ) | talk >/dev/null
done
expected=$(honest root "$mine")
has_all() { [ "$(honest root "$mine")" = "$expected" ]; }
eventually has_none
in_use() { # maps, files, charges
    echo "$(grep -c memfd "/proc/$DAEMON/maps") $(files) $(used staging_bytes_used) $(used transport_region_bytes) $(used memory_bytes_used)"
}
before=$(in_use)
expect "clients that die at every stage" "${DYING_CLIENTS:-200} clients" "$("$TOOLS/dying" "$WORK/r" "$(cat "$WORK/ann")" "${DYING_CLIENTS:-200}" "$id")"
eventually has_none
is_as_before() { [ "$(in_use)" = "$before" ]; }
eventually is_as_before
expect 'no mapping, descriptor or byte is left' "$before" "$(in_use)"
expect 'the books balance' true "$(as root -X POST "$URL/v1/audit" | jq .ok)"
"$TOOLS/hostile" "$WORK/r" "$(cat "$WORK/ann")" "${HOSTILE_ROUNDS:-20000}" "$id" "${HOSTILE_SEED:-1}" >"$WORK/said" &
hostile=$!
right=yes
while kill -0 $hostile 2>/dev/null; do has_all || right=no; done
wait $hostile
expect "a hostile client comes to its end" 0 $?
expect 'another one had its bits all the time' yes $right
eventually has_none
eventually is_as_before
expect 'no mapping, descriptor or byte of it is left' "$before" "$(in_use)"
expect 'it was ended for it' yes "$([ "$(as root "$URL/stats" | jq .transport.ended)" -gt 10 ] && echo yes)"
expect 'the books balance' true "$(as root -X POST "$URL/v1/audit" | jq .ok)"
expect 'nor do others see anything' "$expected" "$(honest root "$mine")"
stop_daemon
expect 'it ends cleanly' 0 $?
replays

finish
