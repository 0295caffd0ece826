#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A call that takes longer than a step may, or has more rows, goes into several steps: slices of appends, of queries and of
# segments of 4 096 tokens. The bits are those of one step.
. tests/integration/lib.sh

# Rows of 8 numbers that differ: SEED ROWS.
row_numbers() { perl -e 'my ($s, $n) = @ARGV; print join(",", map { $s = ($s * 1103515245 + 12345) % 2**31; sprintf("%.2f", $s / 2**30 - 1) } 1 .. 8 * $n)' "$1" "$2"; }
queries=300

# large NAME [ARG...] - a sequence of 9 000 tokens, 300 queries at its end, and 300 more tokens with their queries; o goes to
# $WORK/NAME.
large() {
    local name=$1 i
    shift
    start_daemon --config config/tiny.jsonc --set geometry.dtype=bf16 --set geometry.kv_dtype=bf16 --set pool.blocks=700 --set geometry.block_size=16 --set backend.threads=2 "$@"
    curl -s -X POST "$URL/v1/sequences" >/dev/null
    for i in $(seq 9); do
        tensors sequences I64 1 1 indptr I64 2 0,1000 k BF16 1000,1,8 "$(row_numbers "$i" 1000)" v BF16 1000,1,8 "$(row_numbers "$((i + 99))" 1000)" |
            post /v1/append >"$WORK/appended"
    done
    expect "$name: appended" 9000 "$(jq '.sequences[0].length' "$WORK/appended")"
    tensors sequences I64 1 1 indptr I64 2 0,$queries q BF16 $queries,1,8 "$(row_numbers 7 $queries)" | post /v1/attend >"$WORK/o"
    numbers "$WORK/o" 4800 >"$WORK/$name"
    rows_in_step=$(header "$WORK/o" | jq -r '.__metadata__.rows_in_step')
    tensors sequences I64 1 1 indptr I64 2 0,$queries q BF16 $queries,1,8 "$(row_numbers 3 $queries)" k BF16 $queries,1,8 "$(row_numbers 4 $queries)" \
        v BF16 $queries,1,8 "$(row_numbers 5 $queries)" positions I64 1 9000 | tee "$WORK/body" | post /v1/attend >"$WORK/o"
    numbers "$WORK/o" 4800 >"$WORK/second"
    { echo && cat "$WORK/second"; } >>"$WORK/$name"
    post /v1/attend <"$WORK/body" >"$WORK/o"
    numbers "$WORK/o" 4800 >"$WORK/again"
    expect "$name: a retry is compared, and answered alike" "$(md5sum <"$WORK/second")" "$(md5sum <"$WORK/again")"
    expect "$name: all queries are answered" 4800 "$(tr ',' '\n' <"$WORK/$name" | grep -c "[1-9]")"
    expect "$name: it grew once" 9300 "$(curl -s "$URL/v1/sequences/1" | jq .length)"
    expect "$name: the books balance" true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"
}

large whole --set scheduler.step_us_max=60000000 --set scheduler.step_us_shared=60000000
expect 'whole: in one step' $queries "$rows_in_step"
stop_daemon
large sliced --set scheduler.step_us_max=20
expect 'sliced: in several steps' true "$([ "$rows_in_step" -lt $queries ] && echo true)"
expect 'sliced: the same bits' "$(md5sum <"$WORK/whole")" "$(md5sum <"$WORK/sliced")"
stop_daemon
large rows --set scheduler.step_rows_max=16
expect 'rows: 16 rows a step' true "$([ "$rows_in_step" -le 16 ] && echo true)"
expect 'rows: the same bits' "$(md5sum <"$WORK/whole")" "$(md5sum <"$WORK/rows")"
stop_daemon

# What no step can be cut for.
start_daemon --config config/tiny.jsonc --set limits.rows_per_call=2
curl -s -X POST "$URL/v1/sequences" >/dev/null
row='[[1,0,0,0,0,0,0,0]]'
expect 'more rows than a call may have' '422 3 rows of 1 sequence; limits.rows_per_call is 2' \
    "$(curl -s --json "{\"sequences\":[1],\"indptr\":[0,3],\"k\":[$row,$row,$row],\"v\":[$row,$row,$row]}" "$URL/v1/append" | jq -r '"\(.status) \(.detail)"')"
expect 'the limit is told' 2 "$(curl -s "$URL/v1/info" | jq .limits.rows_per_call)"
stop_daemon
expect 'it ends cleanly' 0 $?
finish
