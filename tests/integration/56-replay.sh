#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# attnctl replay FILE: the requests of a journal, sent to other daemons: nothing is other that is not explained, outputs have the same bits with
# other batches and threads, a smaller pool is found at the first answer that it changes, calls that wait for each other do not hold it up.
# attnctl diff A B: the first record that differs. That the scheduler decides the same is 53-journal.sh's.
. tests/integration/lib.sh
CTL=$(dirname "$ATTND")/attnctl
J=$WORK/journal
A='' B='' # URLs of other daemons
# target NAME [ARG...] - one more, to which a journal is sent.
target() { another "$1" --config config/tiny.jsonc --backend cpu --set limits.sequences=400 "${@:2}"; }
# record SEED CALLS CLIENTS [ARG...] - a journal in $J.
record() {
    local seed=$1 calls=$2 clients=$3
    shift 3
    rm -rf "$J"
    mkdir "$J"
    start_daemon --config config/tiny.jsonc --backend cpu --set limits.sequences=400 --set "journal.path=$J" "$@"
    python3 tests/journal_traffic.py "$URL" "$seed" "$calls" "$clients"
    stop_daemon
}
# replay URL [ARG...] - what it says is in $WORK/said; its exit code is the result. An answer is waited for as long as a test is.
replay() { "$CTL" --url "$1" replay "$J" --patience $HANG_S "${@:2}" >"$WORK/said" 2>&1; }
ctl() { "$CTL" --url "$URL" "$@" >>"$WORK/session" 2>&1 || expect "attnctl $*" 0 "$? $(tail -n 1 "$WORK/session")"; }
says() { sed -n "s/^  $1  *//p" "$WORK/said"; }

# ---- one client: all is the same
record 1 120 1 --set pool.blocks=1000
target A --set pool.blocks=1000
replay "$A" --all
expect 'replayed, a journal of one client is the same' '0 ok' "$? $(tail -n 1 "$WORK/said")"
expect 'nothing is other, and nothing needs a reason' '0 0' "$(says differences) $(says explained)"
sent=$(says requests)
expect 'all of it was sent' "${sent%%,*}" "$(sed 's/.*of which \([0-9]*\) .*/\1/' <<<"$sent")"
counted=$(says 'counts of blocks')
expect 'blocks are counted after every answer, but while a workload runs' 'true , 0 times not' "$([ "${counted%% *}" -gt 60 ] && echo true) ${counted#*compared}"
replay "$A"
expect 'a daemon that is not fresh is told from one that is' 1 "$(grep -c 'note: .* sequences already' "$WORK/said")"
stop_others

# ---- two daemons
target A --set pool.blocks=1000
target B --set pool.blocks=1000 --set scheduler.step_rows_max=64 --set scheduler.batch_window_us=200 --set backend.threads=1
replay "$A" --beside "$B" --all
expect 'two daemons that batch otherwise: the same' '0 ok' "$? $(tail -n 1 "$WORK/said")"
expect 'their outputs have the same bits' true "$([ "$(says outputs | sed 's/ .*//')" -gt 20 ] && echo true)"
isa=$(curl -s "$A/v1/info" | jq -r .backend.isa)
stop_others
if [ "$isa" = portable ]; then
    echo 'skip another instruction set: this processor has no other'
else
    target A --set pool.blocks=1000
    target B --set pool.blocks=1000 --set backend.isa=portable
    replay "$A" --beside "$B" --tolerance 1e-4
    expect 'another instruction set: within the tolerance' '0 ok' "$? $(tail -n 1 "$WORK/said")"
    stop_others
    target A --set pool.blocks=1000
    target B --set pool.blocks=1000 --set backend.isa=portable
    replay "$A" --beside "$B"
    expect 'bit by bit, the first difference is named with both values' '1 1' "$? $(grep -c '^first one that differs: record [0-9]* (request [0-9]*, .*): outputs: o, element [0-9]*: .* beside ' "$WORK/said")"
    expect 'and why that may be' 1 "$(grep -c "note: they compute by cpu $isa and cpu portable" "$WORK/said")"
    stop_others
fi

# ---- other daemons
target A --set pool.blocks=12
replay "$A"
expect 'a smaller pool is found' '1 differs' "$? $(tail -n 1 "$WORK/said")"
expect 'at the first answer that it changes' 1 "$(grep -c '^first one that differs: record [0-9]* (request [0-9]*, .*): status: recorded ok, found blocks_exhausted (' "$WORK/said")"
expect 'which was to be expected' 1 "$(grep -c 'note: .* has 12 blocks, the journal.s daemon had 1000' "$WORK/said")"
target B --set geometry.block_size=8 --set pool.blocks=1000
replay "$B"
expect 'another geometry is refused' "1 attnctl: replay: the geometry differs: the journal has 1 layers, 1 query heads, 1 KV heads of 8, blocks of 4 tokens, f32, KV f32; $B has 1 layers, 1 query heads, 1 KV heads of 8, blocks of 8 tokens, f32, KV f32" \
    "$? $(cat "$WORK/said")"
stop_others
replay "$A"
expect 'a daemon that is not there' '69 1' "$? $(grep -c '^attnctl: .*connect' "$WORK/said")"

# ---- several clients, too few blocks, swapping: what was decided by order or time is explained
for seed in 2 3; do
    record $seed 120 4 --set pool.blocks=40 --set pool.host_blocks=30
    target A --set pool.blocks=40 --set pool.host_blocks=30
    replay "$A" --all
    expect "nothing is other that is not explained ($seed)" '0 ok' "$? $(grep '^differs: ' "$WORK/said")$(tail -n 1 "$WORK/said")"
    sent=$(says requests)
    left=$(sed -n 's/^ *\([0-9]*\)  not sent: .*/\1/p' "$WORK/said" | paste -sd+)
    expect "each request was sent, or its reason counted ($seed)" "${sent%%,*}" "$(($(sed 's/.*of which \([0-9]*\) .*/\1/' <<<"$sent") + ${left:-0}))"
    expect "it is sound ($seed)" true "$(curl -s -X POST "$A/v1/audit" | jq .ok)"
    stop_others
done

# ---- what is shared depends on who was swapped out (bug: a difference, of held blocks)
rm -rf "$J"
mkdir "$J"
start_daemon --config config/tiny.jsonc --backend cpu --set limits.sequences=400 --set "journal.path=$J" --set pool.blocks=8 --set pool.host_blocks=8
for id in 1 2 3; do ctl seq new $id; done
ctl append 1 --count 9 --tokens 1,2,3,4,5,6,7,8,9
ctl append 2 --count 20
ctl append 3 --count 4
expect 'a sequence is swapped out' 1 "$(curl -s "$URL/stats" | jq .scheduler.swapped)"
ctl seq delete 2
ctl seq new 4 --tokens 1,2,3,4,5,6,7,8,9
ctl attend 1
expect 'its blocks are two beside those that another has found in the cache' '6 0' "$(curl -s "$URL/stats" | jq -r '"\(.pool.held) \(.pool.shared)"')"
stop_daemon
target A --set pool.blocks=1000 --set pool.host_blocks=8
replay "$A"
expect 'in a larger pool it shares them' '0 ok 4 2' "$? $(tail -n 1 "$WORK/said") $(curl -s "$A/stats" | jq -r '"\(.pool.held) \(.pool.shared)"')"
stop_others

# ---- a call that waits for a later one
mkdir "$WORK/waits" "$WORK/goes"
ask() { curl -s -o /dev/null --json "$1" "$URL/v1/$2"; }
row='[[[1,0,0,0,0,0,0,0]]]'
waiting=(--set scheduler.batch_window_us=600000000)
for what in waits goes; do
    window=()
    [ $what = goes ] || window=("${waiting[@]}")
    start_daemon --config config/tiny.jsonc --backend cpu --set limits.sequences=400 --set "journal.path=$WORK/$what" ${window[@]+"${window[@]}"}
    ask '{"id":7}' sequences
    ask "{\"sequences\":[7],\"k\":$row,\"v\":$row}" append &
    call=$!
    if [ $what = waits ]; then
        eventually are_queued '[7]'
        flush 7
    fi
    wait $call
    stop_daemon
done
J=$WORK/waits
target A "${waiting[@]}"
replay "$A"
expect 'a call that waited for a later one waits for it here' '0 ok' "$? $(tail -n 1 "$WORK/said")"
J=$WORK/goes
target B "${waiting[@]}"
"$CTL" --url "$B" replay "$J" --patience 1 >"$WORK/said" 2>&1
expect 'one that is not answered is a difference' '1 1' "$? $(grep -c '^first one that differs: .* append of sequence 7): recorded ok, before what comes next; here it still waits after 1 s' "$WORK/said")"
stop_others
target A "${waiting[@]}"
URL=$A
"$CTL" --url "$A" replay "$J" --patience $HANG_S >"$WORK/said" 2>&1 &
replaying=$!
eventually are_queued '[7]'
kill -INT $replaying
wait $replaying
expect 'Ctrl-C shows what there is' '130 interrupted 2, of which 2 were sent' "$? $(tail -n 1 "$WORK/said") $(says requests)"
stop_others

# ---- every kind of request, by layers, in a geometry with groups of heads and fp8
wide=(--set geometry.layers=2 --set geometry.query_heads=4 --set geometry.kv_heads=2 --set geometry.head_dim=16 --set geometry.dtype=bf16
    --set geometry.kv_dtype=e4m3 --set geometry.sinks=0 --set pool.blocks=2000)
J=$WORK/wide
mkdir "$J"
start_daemon --config config/tiny.jsonc --backend cpu --set limits.sequences=400 --set "journal.path=$J" "${wide[@]}"
echo '{"sinks":[[0.5,0.25,0,1],[1,2,3,0.125]],"k_scale":[[1,0.5],[2,1]]}' >"$WORK/parameters.json"
ctl parameters "$WORK/parameters.json"
ctl seq new 7 --salt a
ctl append 7 --count 11 --tokens 1,2,3,4,5,6,7,8,9,10,11 --seed 3
ctl attend 7 --layer 1 --count 2
ctl seq fork 7 2
ctl seq truncate 7 5
ctl append 7 --count 6 --seed 9
ctl export 7 "$WORK/kv"
ctl seq new 99
ctl import "$WORK/kv" 99
ctl attend 99 --layer 0
ctl seq list
ctl blocks
ctl prefixes
ctl audit
ctl selftest
ctl run --shape azure-conv --count 5 --length-scale 0.01 --time-scale 0.001 --verify 4
echo '{"sequences":[{"count":3,"prompt":20,"decode":5,"prefix":{"id":4,"length":8},"fork":{"at":22,"count":2},"priority":3}],"prefill":"attend"}' >"$WORK/workload.json"
ctl run "$WORK/workload.json"
ones=$(jq -nc '[range(4) | [range(16) | 1]] | [[.], [.]]')
ask "{\"o\":$ones,\"lse\":[[[0,0,0,0]],[[1,1,1,1]]]}" merge
ask '{"moved_to":"http://elsewhere/","length":11}' sequences/99/moved
ctl trim
stop_daemon
target A "${wide[@]}"
target B "${wide[@]}" --set scheduler.step_rows_max=32
replay "$A" --beside "$B" --all
expect 'every kind of request is sent, and answered with the same bits' '0 ok' "$? $(tail -n 1 "$WORK/said")"
expect 'attends, an export, a merge and workloads have outputs' '6 compared bit by bit, 0 not' "$(says outputs)"
sent=$(says requests)
expect 'and nothing is left out' "${sent%%,*}" "$(sed 's/.*of which \([0-9]*\) .*/\1/' <<<"$sent")"
stop_others

# ---- keys
J=$WORK/goes
"$CTL" --json key new one infer admin keep >"$WORK/made"
(umask 077 && jq -r .key "$WORK/made" >"$WORK/key")
(umask 077; jq '{keys: [.entry]}' "$WORK/made" >"$WORK/keys")
target A --set "keys.file=$WORK/keys"
target B
replay "$A"
expect 'a daemon with keys wants one' '1 1' "$? $(grep -c '^attnctl: 401 unauthorized' "$WORK/said")"
replay "$B" --beside "$A" --beside-key-file "$WORK/key"
expect 'each daemon gets its key' '0 ok' "$? $(tail -n 1 "$WORK/said")"
stop_others
target A --set "keys.file=$WORK/keys"
replay "$A" --key-file "$WORK/key"
expect 'as other commands have it' '0 ok' "$? $(tail -n 1 "$WORK/said")"
stop_others

# Bug: what a key had been refused of another's was a difference, since all is sent with one key.
"$CTL" --json key new two infer >"$WORK/made2"
(umask 077; jq -s '{keys: map(.entry)}' "$WORK/made" "$WORK/made2" >"$WORK/keys")
J=$WORK/several
mkdir "$J"
start_daemon --config config/tiny.jsonc --backend cpu --set limits.sequences=400 --set "journal.path=$J" --set "keys.file=$WORK/keys"
as() { curl -s -o /dev/null -H "Authorization: Bearer $(jq -r .key "$WORK/$1")" "${@:2}"; }
as made --json '{"id":1}' "$URL/v1/sequences"
as made2 "$URL/v1/sequences/1"
as made2 -X DELETE "$URL/v1/sequences/1"
as made "$URL/v1/sequences/1"
stop_daemon
target A
replay "$A" --all
expect 'a journal of several keys is sent with one, which is a reason' '0 ok 1' "$? $(tail -n 1 "$WORK/said") $(grep -c '  requests of several keys go with one here' "$WORK/said")"
stop_others

# ---- two journals beside each other
diff_() { "$CTL" diff "$@" >"$WORK/said" 2>&1; }
record 1 60 1 --set pool.blocks=1000
mv "$J" "$WORK/one"
J=$WORK/journal
record 5 60 1 --set pool.blocks=1000
mv "$J" "$WORK/five"
record 1 60 1 --set pool.blocks=990
mv "$J" "$WORK/smaller"
diff_ "$WORK/one" "$WORK/one"
expect 'a journal is the same as itself' '0 the same decisions' "$? $(tail -n 1 "$WORK/said")"
diff_ "$WORK/one" "$WORK/five"
expect 'another seed is other, from the first request on' '1 other decisions' "$? $(tail -n 1 "$WORK/said")"
expect 'which is named in both' 'A B' "$(sed -n 's/^  \([AB]\)  record [0-9]* (file 1, offset [0-9]*): .*/\1/p' "$WORK/said" | paste -sd' ')"
expect 'with the figures of both' true "$(grep -Eq '^  steps +[0-9]+ +[0-9]+' "$WORK/said" && grep -Eq '^  step, microseconds, p99 +[0-9.]+ +[0-9.]+' "$WORK/said" && echo true)"
diff_ "$WORK/one" "$WORK/smaller"
expect 'another pool is other at the first count' '1 1' "$? $(grep -c '^first one that differs, after [0-9]* that are the same: free_blocks: 1000 beside 990' "$WORK/said")"
expect 'and in the settings' 1 "$(grep -c '^    pool.blocks: 1000 beside 990' "$WORK/said")"
cp -r "$WORK/one" "$WORK/torn"
file=$(echo "$WORK"/torn/*.journal)
truncate -s -3 "$file"
diff_ "$WORK/one" "$WORK/torn"
expect 'a torn tail is said' 1 "$(grep -c 'note: the last file of B ends within a record' "$WORK/said")"
truncate -s $(($(stat -c %s "$file") / 2)) "$file"
diff_ "$WORK/one" "$WORK/torn"
expect 'one that ends earlier is other' '1 1' "$? $(grep -c '^first one that differs: B ends after [0-9]* that are the same' "$WORK/said")"
cp "$WORK"/one/*.journal "$file"
offset=$(($(stat -c %s "$file") / 2))
byte=$(dd if="$file" bs=1 skip=$offset count=1 status=none | od -An -tu1)
printf '%b' "\\x$(printf %x $((byte ^ 4)))" | dd of="$file" bs=1 seek=$offset conv=notrunc status=none
diff_ "$WORK/one" "$WORK/torn"
expect 'a flipped bit is named, with file and offset' '2 1 1' "$? $(grep -c "^attnctl: $file:[0-9]*: record [0-9]*: " "$WORK/said") $(grep -c '^attnctl: diff: B cannot be read to its end' "$WORK/said")"
target A --set pool.blocks=1000
J=$WORK/torn
replay "$A"
expect 'replay says so, too' '69 1' "$? $(grep -c "^attnctl: $file:[0-9]*: record [0-9]*: " "$WORK/said")"
stop_others

# ---- the command line
refusal() { "$CTL" "$@" 2>&1 | tail -n 1; }
expect 'replay wants a journal' 'attnctl: replay wants a journal: FILE for a daemon, or --check PATH (attnctl replay --help says what it takes)' "$(refusal replay)"
expect 'one' 'attnctl: "b" is one operand too many; usage: attnctl replay [FILE]' "$(refusal replay a b)"
expect '--check takes no daemon' 'attnctl: replay --check PATH computes nothing, and takes no FILE and no daemon (attnctl replay --help says what it takes)' "$(refusal replay --check a --beside b)"
expect 'diff wants two' 'attnctl: something is missing; usage: attnctl diff A B' "$(refusal diff a)"
expect 'and no more' 'attnctl: "c" is one operand too many; usage: attnctl diff A B' "$(refusal diff a b c)"
finish
