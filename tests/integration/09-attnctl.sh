#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# attnctl: the same daemon from the terminal. Also the demo, small: it must pass, and fail when anything in it does.
. tests/integration/lib.sh
ATTNCTL=$(dirname "$ATTND")/attnctl
start_daemon --set pool.blocks=300
export ATTNCTL_URL=$URL
ctl() { timeout $HANG_S "$ATTNCTL" "$@" 2>"$WORK/err"; }

expect 'nothing is said in a sentence' 'node n0: there is no sequence: attnctl seq new makes one node n0: there is no lease: attnctl lease new BLOCKS takes one' "$(ctl seq list) $(ctl lease list)"
expect 'a new sequence' 1 "$(ctl --json seq new | jq .id)"
expect 'two forks of it' 2 "$(ctl seq fork 1 2 | wc -l)"
expect 'three in the list' '3 node n0: 3 sequences' "$(ctl seq | grep -c '^ ') $(ctl seq | head -n 1)"
expect 'one of them' 1 "$(ctl seq show 2 | awk '{ print ($1 == 2) }')"
ctl append 1 --count 20 >/dev/null
expect 'a fork says what it shares (bug: "0 shared")' '(2 shared)' "$(ctl seq fork 1 | grep -o '([0-9]* shared)')"
ctl seq delete 4
ctl seq delete 2
expect 'two are left' '2: 2 idle' "$(ctl stats | sed -n 's/^  sequences *\(.*idle\).*/\1/p')"
ctl seq delete 77
expect 'what the daemon refuses is said' '1 attnctl: 404 not_found: there is no sequence 77' "$? $(cat "$WORK/err")"

report=$(ctl --json run --shape azure-code --count 30 --length-scale 0.02 --verify 16 --prefix-share 0.5:16 --fork-share 0.5:2)
expect 'a shape is run and verified' '0 finished true' "$? $(jq -r '"\(.state) \(.verify.ok)"' <<<"$report")"
expect 'as it says, on what it shares' on "$(ctl --json run --shape azure-code --count 1 --length-scale 0.01 --sharing on | jq -r .sharing)"
expect 'as a table too' ok "$(ctl run --shape azure-code --count 3 --length-scale 0.02 --verify 4 | sed -n 's/^  verified.*: //p')"
printf 'TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:15:46.68,37,4\n' >"$WORK/t.csv"
expect 'a trace' '4 off' "$(ctl --json run --trace "$WORK/t.csv" --sharing off | jq -r '"\(.tokens.done) \(.sharing)"')"
echo '{"sequences":[{"prompt":9,"decode":3}]}' >"$WORK/w.json"
expect 'a file' 3 "$(ctl --json run "$WORK/w.json" | jq .tokens.done)"
ctl run "$WORK/none.json"
expect 'a file that is not there' 2 $?
ctl run --shape nope
expect 'a shape that is not there' '1 /shape: wants azure-conv, azure-code, mooncake-conv or arxiv-summary' \
    "$? $(sed 's/.*invalid: //' "$WORK/err")"
ctl run --shape azure-conv --prefix-share x
expect 'an option that makes no sense' 2 $?
ctl frobnicate
expect 'a command that is not there' 2 $?

expect 'a map of the pool' 300 "$(ctl blocks | sed -n 's/^ *[0-9]*  //p' | tr -d '\n' | wc -c)"
ctl seq new 50 >/dev/null
expect 'one is singular' '1 token 1 block' "$(ctl append 50 | awk '{ print $3, $4, $5, $6 }')"
expect 'the rate is that since the start' 1 "$(ctl stats | grep -c '^  read .* GB since the start, at .* GB/s in steps, ')"
expect 'audit' 'node n0: audit: ok, 8 invariants' "$(ctl audit)"
ATTNCTL_URL=unix:$WORK/none ctl stats
expect 'a socket that is not there is named' "69 attnctl: unix:$WORK/none: No such file or directory; is attnd running there?" "$? $(cat "$WORK/err")"
stop_daemon
expect 'it ends cleanly' 0 $?
ctl stats
expect 'no daemon' '69 is attnd running there?' "$? $(sed 's/.*; //' "$WORK/err")"

WORKLOAD="$WORK/w.json" bash scripts/demo.sh >"$WORK/demo" 2>&1
expect 'a demo passes' '0 demo: ok' "$? $(tail -n 1 "$WORK/demo")"
echo '{"sequences":[{"prompt":9000000}]}' >"$WORK/w.json"
WORKLOAD="$WORK/w.json" bash scripts/demo.sh >"$WORK/demo" 2>&1
expect 'a demo that is refused fails' '1 demo: FAILED' "$? $(tail -n 1 "$WORK/demo")"
finish
