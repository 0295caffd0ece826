#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# POST /v1/merge: attention over parts of the keys, merged, is attention over all of them.
. tests/integration/lib.sh
start_daemon --config config/tiny.jsonc
call() { curl -s --json "$2" "$URL$1"; }
# near WANT GOT: numbers separated by commas, within a few units of f32
near() { perl -e 'my ($a, $b) = @ARGV; my @a = split /,/, $a; my @b = split /,/, $b; print "no" and exit if @a != @b or !@a;
    for (0 .. $#a) { print "no: $a[$_] $b[$_]" and exit if abs($a[$_] - $b[$_]) > 2e-6 * (1 + abs $a[$_]) } print "yes"' "$1" "$2"; }

# Three sequences: tokens 0 and 1, token 2, and all three. The same query looks at each.
k='[[[1,0,0.5,0,0,0,0,2]]],[[[0,1,0,-1,0,3,0,0]]],[[[0.25,0,1,0,0,-2,0,1]]]'
v='[[[1,2,3,4,5,6,7,8]]],[[[-1,0.5,0,1,1,1,0,0]]],[[[9,8,7,6,5,4,3,2]]]'
IFS=' ' read -r k0 k1 k2 <<<"$(sed 's/\]\]\],\[\[\[/]]] [[[/g' <<<"$k")"
IFS=' ' read -r v0 v1 v2 <<<"$(sed 's/\]\]\],\[\[\[/]]] [[[/g' <<<"$v")"
rows() { sed 's/^\[//; s/\]$//' <<<"$1"; }
for _ in 1 2 3; do call /v1/sequences '{}' >/dev/null; done
call /v1/append "{\"sequences\":[1],\"indptr\":[0,2],\"k\":[$(rows "$k0"),$(rows "$k1")],\"v\":[$(rows "$v0"),$(rows "$v1")]}" >/dev/null
call /v1/append "{\"sequences\":[2],\"k\":$k2,\"v\":$v2}" >/dev/null
call /v1/append "{\"sequences\":[3],\"indptr\":[0,3],\"k\":[$(rows "$k0"),$(rows "$k1"),$(rows "$k2")],\"v\":[$(rows "$v0"),$(rows "$v1"),$(rows "$v2")]}" >/dev/null
q='[[[0.3,-1,2,0.5,1,0.7,-0.2,1]]]'
attend() { call /v1/attend "{\"sequences\":[$1],\"q\":$q,\"lse\":true}"; }
first=$(attend 1) second=$(attend 2) all=$(attend 3)
both=$(jq -nc --argjson a "$first" --argjson b "$second" '{o: [$a.o, $b.o], lse: [$a.lse, $b.lse]}')
merged=$(call /v1/merge "$both")
expect 'two parts are the whole' yes "$(near "$(jq -r '.o[0][0] | join(",")' <<<"$all")" "$(jq -r '.o[0][0] | join(",")' <<<"$merged")")"
expect 'and so is lse' yes "$(near "$(jq -r '.lse[0][0]' <<<"$all")" "$(jq -r '.lse[0][0]' <<<"$merged")")"
expect 'the other way round' "$(jq -c '[.o, .lse]' <<<"$merged")" \
    "$(call /v1/merge "$(jq -c '{o: (.o | reverse), lse: (.lse | reverse)}' <<<"$both")" | jq -c '[.o, .lse]')"
expect 'one state is itself' "$(jq -c '.o, .lse' <<<"$first")" \
    "$(call /v1/merge "$(jq -c '{o: [.o], lse: [.lse]}' <<<"$first")" | jq -c '.o, .lse')"
expect 'a state without keys adds nothing' "$(jq -c '.o, .lse' <<<"$first")" \
    "$(call /v1/merge "$(jq -c '{o: [.o, [[[9,9,9,9,9,9,9,9]]]], lse: [.lse, [[null]]]}' <<<"$first")" | jq -c '.o, .lse')"
expect 'none have keys' '[[[0,0,0,0,0,0,0,0]]] [[null]]' \
    "$(call /v1/merge '{"o":[[[[1,1,1,1,1,1,1,1]]]],"lse":[[[null]]]}' | jq -rc '"\(.o) \(.lse)"')"

# As safetensors: two states of two rows.
tensors o F32 2,2,1,8 '8*1,8*2,8*3,8*4' lse F32 2,2,1 '0,0,0,-100' | post /v1/merge >"$WORK/merged"
expect 'safetensors: o and lse' '[2,1,8] [2,1]' "$(header "$WORK/merged" | jq -rc '"\(.o.shape) \(.lse.shape)"')"
got=$(perl -e 'local $/; $_ = <STDIN>; my $n = unpack("Q<", $_); print join(",", unpack("f<18", substr($_, 8 + $n)))' <"$WORK/merged")
expect 'their values' yes "$(near '2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,2,0.6931472,0' "$got")"

# What is wrong is said.
while IFS='|' read -r name want body; do
    expect "$name" "$want" "$(call /v1/merge "$body" | jq -r '"\(.status) \(.detail)"')"
done <<'TABLE'
no states|422 /o: wants F32 [n, T, 1, 8], n and T at least 1, has F32 [0]|{"o":[],"lse":[]}
a head too many|422 /o: wants F32 [n, T, 1, 8], n and T at least 1, has F32 [1, 1, 2, 8]|{"o":[[[[1,1,1,1,1,1,1,1],[1,1,1,1,1,1,1,1]]]],"lse":[[[0]]]}
lse of another number of states|422 /lse: wants F32 [1, 1, 1], as o is, has F32 [2, 1, 1]|{"o":[[[[1,1,1,1,1,1,1,1]]]],"lse":[[[0]],[[0]]]}
an lse that is none|422 /lse/0/0/0: wants a number, or null for minus infinity|{"o":[[[[1,1,1,1,1,1,1,1]]]],"lse":[[["x"]]]}
an unknown member|422 /v: there is no such member|{"o":[[[[1,1,1,1,1,1,1,1]]]],"lse":[[[0]]],"v":1}
TABLE
tensors o F32 1,1,1,4 '4*1' lse F32 1,1,1 0 | post /v1/merge >"$WORK/refused"
expect 'safetensors of another shape' '/o: wants F32 [n, T, 1, 8], n and T at least 1, has F32 [1, 1, 1, 4]' "$(jq -r .detail "$WORK/refused")"
tensors o F32 1,1,1,8 '8*1' lse F32 1,1,1 nan | post /v1/merge >"$WORK/refused"
expect 'an lse that is NaN' '/lse: state 0, row 0, head 0: wants a number, minus infinity for a state without keys' "$(jq -r .detail "$WORK/refused")"
stop_daemon
finish
