#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Scores beyond the range of f32, on every path of this processor (kernels/plan.h has the rule): a key at +inf outweighs all others,
# one at -inf has no weight, the difference of infinities counts as -inf. Nothing becomes NaN.
. tests/integration/lib.sh
call() { curl -s --json "$2" "$URL$1"; }
# token K0 K1 V: one whose key is K0, K1, 0.. and whose values are all V
token() { echo "[[$1,$2,0,0,0,0,0,0]]/[[$3,$3,$3,$3,$3,$3,$3,$3]]"; }
# append ID TOKEN..
append() {
    local id=$1 both k='' v=''
    shift
    for both in "$@"; do
        k=$k,${both%/*}
        v=$v,${both#*/}
    done
    call /v1/append "{\"sequences\":[$id],\"indptr\":[0,$#],\"k\":[${k#,}],\"v\":[${v#,}]}"
}
# attend ID Q0 Q1 - one element of o, since all are the same, and lse
attend() {
    call /v1/attend "{\"sequences\":[$1],\"q\":[[[$2,$3,0,0,0,0,0,0]]],\"lse\":true}" |
        sed 's/.*"lse":\[\[\([^]]*\).*/& \1/' | while read -r answer lse; do
        echo "$(jq -r '.o[0][0] | unique | join(" ")' <<<"$answer") $lse" # jq would not keep the digits of lse
    done
}
largest=3.4028235e+38 # what JSON has for +inf
while read -r isa flag; do
    if { [ "$flag" ] && ! grep -qw "$flag" /proc/cpuinfo; } || { [ "$isa" = cuda ] && [ ! -e /dev/nvidiactl ]; }; then
        echo "skip $isa: this machine has none"
        continue
    fi
    backend=(--set backend.name=cpu --set backend.isa="$isa")
    [ "$isa" = cuda ] || [ "$isa" = reference ] && backend=(--set backend.name="$isa")
    start_daemon --config config/tiny.jsonc "${backend[@]}"
    for _ in 1 2 3; do call /v1/sequences '{}' >/dev/null; done
    append 1 "$(token 1e30 0 1)" "$(token 1 0 100)" "$(token 1e30 0 3)" "$(token -1e30 0 7)" >/dev/null
    append 2 "$(token -1e30 0 1)" "$(token -1e31 0 2)" >/dev/null
    append 3 "$(token 1e30 1e30 9)" "$(token 0 0 5)" >/dev/null
    expect "$isa: keys at +inf share all" "2 $largest" "$(attend 1 1e30 0)"
    expect "$isa: one key at +inf" "7 $largest" "$(attend 1 -1e30 0)"
    expect "$isa: all keys at -inf" '0 null' "$(attend 2 1e30 0)"
    case $isa in
        reference) ;; # to which it is 0, in double precision
        cuda)         # tensor cores add many products at once: either infinity, or NaN
            expect "$isa: a difference of infinities has a sign, or no weight" yes \
                "$(attend 3 1e30 -1e30 | sed "s/^\(9 $largest\|5 0\)$/yes/")" ;;
        *) expect "$isa: a difference of infinities has no weight" '5 0' "$(attend 3 1e30 -1e30)" ;;
    esac
    expect "$isa: a query of 0" '27.75' "$(attend 1 0 0 | cut -d' ' -f1)"
    stop_daemon
done <<'TABLE'
portable
avx2 avx2
avx512 avx512vl
amx amx_bf16
cuda
reference
TABLE

start_daemon --config config/tiny.jsonc
call /v1/sequences '{}' >/dev/null
expect 'a value whose sums would not be finite' '/v: row 0, head 0, element 0 is 2^97 (1.6e29) or more' \
    "$(append 1 "$(token 1 0 1.6e29)" | jq -r .detail)"
expect 'one just below' 1 "$(append 1 "$(token 1 0 1.58e29)" | jq '.sequences[0].length')"
expect 'an output whose sums would not be finite' '/o: state 0, row 0, head 0 is 2^97 (1.6e29) or more' \
    "$(call /v1/merge '{"o":[[[[1e30,1,1,1,1,1,1,1]]]],"lse":[[[0]]]}' | jq -r .detail)"
# States with an lse of +inf: they weigh the same, and all others nothing.
tensors o F32 3,1,1,8 '8*2,8*5,8*4' lse F32 3,1,1 inf,0,inf | post /v1/merge >"$WORK/merged"
expect 'merged' '3,3,3,3,3,3,3,3,Inf' \
    "$(perl -e 'local $/; $_ = <STDIN>; my $n = unpack("Q<", $_); print join(",", unpack("f<9", substr($_, 8 + $n)))' <"$WORK/merged")"
expect 'merged as JSON' '3 3.4028235e+38' "$(call /v1/merge '{"o":[[[[2,2,2,2,2,2,2,2]]],[[[5,5,5,5,5,5,5,5]]],[[[4,4,4,4,4,4,4,4]]]],"lse":[[[3.4028235e38]],[[0]],[[3.4028235e38]]]}' |
    grep -o '"o":\[\[\[[0-9]*\|"lse":\[\[[^]]*' | sed 's/.*\[//' | xargs)"
stop_daemon
finish
