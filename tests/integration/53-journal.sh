#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The journal: what it records is run again by attnd --replay-check, with every id and count the same; also after kill -9, cuts and a disk
# that is full. Bits that were flipped and files that are lost are named. What is secret is not in it. KILLS=100 kills more often.
# That the check finds defects is scripts/check_journal.sh's, damage in the files tests/unit/test_journal_file.c's.
. tests/integration/lib.sh
J=$WORK/journal
mkdir "$J"
check() { "$ATTND" --replay-check "${1:-$J}"; }
journal() { curl -s "$URL/stats" | jq -r ".journal | $1"; }
start() { start_daemon --config config/tiny.jsonc --backend cpu --set "journal.path=$J" --set pool.blocks=40 --set pool.host_blocks=30 --set limits.sequences=40 "$@"; }

# ---- recorded and run again
# Somebody looks on meanwhile, as an open page does: that changes nothing, and is not recorded.
look_on() {
    local now
    while :; do
        now=$(curl -s "$URL/v1/blocks?limit=1000" | jq .epoch)
        for look in "blocks?epoch=$((now > 3 ? now - 3 : 0))" 'blocks?state=held&limit=3' "tables?epoch=$((now > 3 ? now - 3 : 0))" prefixes waiting 'steps?limit=9' blocks/3/history sequences workloads; do
            curl -s -o /dev/null "$URL/v1/$look"
        done
        curl -s -o /dev/null -X POST "$URL/v1/audit"
    done
}
start --set journal.file_bytes=64KiB
curl -sN -o "$WORK/events" "$URL/v1/events" &
listener=$!
look_on &
looker=$!
python3 tests/journal_traffic.py "$URL" 1 80
expect 'clients are served' 0 $?
kill "$looker" "$listener"
wait "$looker" "$listener" 2>/dev/null
expect 'and listeners' true "$([ -s "$WORK/events" ] && echo true)"
are_written() { [ "$(journal '.files >= 3 and .stopped == null')" = true ]; }
eventually are_written
expect 'it goes on, in some files' true "$(journal '.files >= 3 and .records > 500 and .bytes > 100000 and .stopped == null')"
expect 'which is in the metrics' '0' "$(curl -s "$URL/metrics" | sed -n 's/^attnd_journal_stopped //p')"
stop_daemon
expect 'it ends cleanly' 0 $?
expect 'files are for the daemon alone' 600 "$(stat -c %a "$J"/* | sort -u)"
said=$(check)
expect 'every id and count is the same' 'ok 0' "${said%%:*} $?"
expect 'attnctl has the daemon do it' "$said" "$("$(dirname "$ATTND")/attnctl" replay --check "$J")"
# shellcheck disable=SC2012 # names are known
expect 'a file of it names it, too' "$said" "$(check "$(ls "$J"/*.journal | tail -n 1)")"
"$ATTND" --journal-print "$J" >"$WORK/lines"
expect 'it is printed' 0 $?
expect 'a line of JSON a record, in their order' "$(sed 's/^ok: \([0-9]*\) records, \([0-9]*\) turns, \([0-9]*\) requests, \([0-9]*\) steps.*/\1 \2 \3 \4 true/' <<<"$said")" \
    "$(jq -rs '[length, (map(.kind) | map(select(. == "turn")), map(select(. == "request")), map(select(. == "step done")) | length),
        ([.[].record] == [range(length)])] | map(tostring) | join(" ")' "$WORK/lines")"
expect 'every request that was answered is there' true "$(jq -s '[.[] | select(.kind == "request") | .request] as $asked | [.[] | select(.kind == "answer") | .request] - $asked == []' "$WORK/lines")"
expect 'with its configuration' '4 40' "$(head -n 1 "$WORK/lines" | jq -r '"\(.geometry.block_size) \(.settings.pool.blocks)"')"

# ---- damaged
files=("$J"/*.journal)
last=${files[-1]} middle=${files[1]}
mv "$middle" "$WORK/middle"
expect 'a lost file is named' "cannot be checked: $middle: this file of the journal is missing 69" "$(check) $(check >"$WORK/said"; echo $?)"
mv "$WORK/middle" "$middle"
cp "$last" "$WORK/last"
for cut in 1 2 3 4 5; do
    truncate -s $(($(stat -c %s "$WORK/last") * cut / 7 + cut)) "$last"
    expect "cut off, what is whole is checked ($cut)" ok "$(check | cut -d: -f1)"
    "$ATTND" --journal-print "$J" >"$WORK/lines"
    expect "it is printed ($cut)" 0 $?
    expect "with a last line that says so ($cut)" "$(check | grep -c 'ends within')" "$(tail -n 1 "$WORK/lines" | grep -c '"kind":"torn"')"
    cp "$WORK/last" "$last"
done
offset=$(($(stat -c %s "$middle") / 2))
byte=$(dd if="$middle" bs=1 skip=$offset count=1 status=none | od -An -tu1)
printf '%b' "\\x$(printf %x $((byte ^ 4)))" | dd of="$middle" bs=1 seek=$offset conv=notrunc status=none
found=$(check | sed -n "s|^cannot be checked: $middle:\([0-9]*\): record [0-9]*: .*damaged|\1|p")
expect 'a flipped bit is named, with its record' true "$([ "${found:-0}" -gt 0 ] && [ "$found" -le $offset ] && echo true)"
printed=$("$ATTND" --journal-print "$J" 2>&1 >"$WORK/lines")
expect 'what is printed ends there' "attnd: $middle:$found: 69" "${printed%% record*} $("$ATTND" --journal-print "$J" >"$WORK/lines" 2>&1; echo $?)"
expect 'what is no journal is refused' 69 "$(check "$WORK/log" >"$WORK/said"; echo $?)"

# ---- killed while it is written
for kill in $(seq "${KILLS:-3}"); do
    rm -f "$J"/*
    start
    python3 tests/journal_traffic.py "$URL" "$kill" 0 2>"$WORK/traffic" &
    traffic=$!
    has_some() { [ "$(journal .records)" -gt 300 ]; }
    eventually has_some
    kill -9 "$DAEMON"
    wait "$DAEMON" "$traffic" 2>/dev/null
    DAEMON=
    expect "killed, it is checked to its end ($kill)" ok "$(check | cut -d: -f1)"
done

# ---- a file for swapped blocks: what it has done, and when, is recorded; what is in it is not needed
mkdir -m 700 "$WORK/state"
for run in fresh restored; do
    rm -f "$J"/*
    start --set limits.sequence_tokens=48 --set pool.host_blocks=13 --set pool.file_blocks=200 --state-dir "$WORK/state"
    seed=0
    file_is_used() { # earlier clients have left sequences, up to limits.sequences: without some of them there is room for what comes
        seed=$((seed + 1))
        for id in $(curl -s "$URL/stats" | jq '.sequences.items[:12][].id'); do curl -s -o /dev/null -X DELETE "$URL/v1/sequences/$id"; done
        python3 tests/journal_traffic.py "$URL" $seed 120
        [ "$(curl -s "$URL/stats" | jq -c '.pool.file | .writes > 0 and .reads > 0')" = true ]
    }
    eventually file_is_used
    expect "blocks go to the file and come back ($run)" 0 $?
    stop_daemon
    expect "it ends cleanly ($run)" 0 $?
    expect "which is checked ($run)" ok "$(check | cut -d: -f1)"
done
"$ATTND" --journal-print "$J" >"$WORK/lines"
expect 'each is in it' true "$(jq -s 'map(select(.kind == "block swapped")) | (map(select(.write)) | length > 0) and (map(select(.write | not)) | length > 0)' "$WORK/lines")"

# ---- it ends, and the daemon goes on
rm -f "$J"/*
start --set journal.bytes=256KiB --set journal.file_bytes=64KiB
python3 tests/journal_traffic.py "$URL" 2 100
has_stopped() { [ "$(journal '.stopped != null')" = true ]; }
eventually has_stopped
expect 'bounded, it stops' 'journal.bytes are written' "$(journal .stopped)"
expect 'which is counted' 1 "$(curl -s "$URL/metrics" | sed -n 's/^attnd_journal_stopped //p')"
expect 'and logged' 1 "$(grep -c 'journal.path: journal.bytes are written; nothing more is recorded' "$WORK/log")"
expect 'clients are served' true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"
stop_daemon
expect 'it ends cleanly' 0 $?
bytes=$(cat "$J"/* | wc -c)
expect "it kept to its bound" true "$([ "$bytes" -le 262144 ] && echo true || echo "$bytes bytes")"
expect 'what there is is checked' ok "$(check | cut -d: -f1)"
rm -f "$J"/*
ulimit -S -f 100 # KiB
start
python3 tests/journal_traffic.py "$URL" 3 80
eventually has_stopped
expect 'a disk that is full stops it' 'the file may not grow (ulimit -f)' "$(journal .stopped)"
stop_daemon
expect 'it ends cleanly' 0 $?
ulimit -S -f unlimited
expect 'what there is is checked' ok "$(check | cut -d: -f1)"

# ---- what is not in it
id='{"id":5,"tokens":[1886350457,1886350458,1886350459,1886350460],"salt":"not-to-be-read"}' # of the bytes "ylop" and on
for ids in off on; do
    rm -f "$J"/*
    start --set journal.token_ids=$ids
    curl -s -o /dev/null --json "$id" "$URL/v1/sequences"
    stop_daemon
    expect "ids of tokens are in it: $ids" "$ids" "$(grep -q -a ylop "$J"/* && echo on || echo off)"
    expect 'salts are not' 1 "$(grep -q -a not-to-be-read "$J"/*; echo $?)"
    expect 'it is checked' ok "$(check | cut -d: -f1)"
done

# ---- what does not start
refusal() { "$ATTND" --set listen=127.0.0.1:0 "$@" 2>&1 | tail -n 1; }
expect 'a file' "attnd: journal.path: $WORK/log: is no folder" "$(refusal --set "journal.path=$WORK/log" --config config/tiny.jsonc)"
expect 'a folder that is not there' "attnd: journal.path: $WORK/none: No such file or directory" "$(refusal --set "journal.path=$WORK/none" --config config/tiny.jsonc)"
finish
