#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# K and V out of one daemon and into another: ranges, their ETags and digests, what is refused, what calls on a sequence that has moved are
# told; attnctl move, also while the sequence grows.
. tests/integration/lib.sh
CTL=$(dirname "$ATTND")/attnctl
geometry='--config config/tiny.jsonc --set geometry.layers=2 --set geometry.query_heads=2 --set geometry.kv_heads=1'
B='' wide='' sunk='' plain='' small='' windowed='' # URLs of other daemons
problem() { jq -r '"\(.status) \(.code) \(.detail)"'; }
# rows FROM TO - numbers of tokens FROM..TO-1 at both layers, as JSON [2, T, 1, 8].
rows() { jq -nc --argjson a "$1" --argjson b "$2" '[range(2) as $l | [range($a; $b) as $t | [[range(8) as $d | (($t * 7 + $l * 3 + $d) % 11) / 8]]]]'; }
# append URL ID FROM TO [MEMBERS]
append() {
    curl -s --json "{\"sequences\":[$2],\"indptr\":[0,$(($4 - $3))],\"positions\":[$3],\"k\":$(rows "$3" "$4"),\"v\":$(rows "$3" "$4")${5:-}}" "$1/v1/append"
}
# seen URL ID - what a query sees of it at both layers.
seen() {
    for layer in 0 1; do
        curl -s --json "{\"layer\":$layer,\"sequences\":[$2],\"q\":[[[1,0.5,0,0,1,0,0,0],[0,1,0,0.25,0,0,1,0]]],\"lse\":true}" "$1/v1/attend" | jq -c '[.o, .lse]'
    done | paste -sd' '
}
out() { curl -s -o "$WORK/kv" -D "$WORK/head" "$URL/v1/sequences/$1/kv?range=$2" "${@:3}"; }
etag() { tr -d '\r' <"$WORK/head" | sed -n 's/^ETag: //p'; }
in_() { curl -s -X PUT -H 'Content-Type: application/x-safetensors' --data-binary "@${3:-$WORK/kv}" "$1/v1/sequences/$2"; }
metadata() { header "$WORK/kv" | jq -r ".__metadata__.$1"; }
is_of() { jq -c '[.id, .length, .lengths, .bits]'; }

# shellcheck disable=SC2086 # options are words
start_daemon $geometry --set pool.blocks=150 --set pool.host_blocks=400
# shellcheck disable=SC2086
another B $geometry --set pool.blocks=2000
ids=$(jq -nc '[range(10)]')
curl -s -o /dev/null --json "{\"id\":7,\"tokens\":$ids}" "$URL/v1/sequences"
append "$URL" 7 0 37 >/dev/null
curl -s -o /dev/null --json '{"id":9}' "$B/v1/sequences"

# ---- out
out 7 0:20
expect 'K and V of a range, of all layers, and the ids of its first tokens' '[["k","F32",[2,20,1,8]],["token_ids","I64",[10]],["v","F32",[2,20,1,8]]]' \
    "$(header "$WORK/kv" | jq -c 'del(.__metadata__) | to_entries | map([.key, .value.dtype, .value.shape]) | sort')"
expect 'what they are of' '7 0:20 37' "$(metadata sequence) $(metadata range) $(metadata length)"
expect 'the numbers that were appended' "$(rows 0 20 | jq -c flatten)" "[$(perl -e 'local $/; $_ = <STDIN>; my $n = unpack("Q<", $_); print join(",", unpack("f<320", substr($_, 8 + $n)))' <"$WORK/kv")]"
tag=$(etag)
append "$URL" 7 37 40 >/dev/null
out 7 20:40 -H "If-Match: $tag"
expect 'its ETag stays as it grows' "$tag 40" "$(etag) $(metadata length)"
cp "$WORK/kv" "$WORK/second"
curl -s -o /dev/null --json '{"length":40}' "$URL/v1/sequences/7/truncate"
out 7 0:20 -H "If-Match: $tag"
expect 'and when nothing is cut off' "$tag" "$(etag)"
cp "$WORK/kv" "$WORK/first"
refused() { curl -s "$URL/v1/sequences/$1" "${@:2}" | problem; }
expect 'a range that is not there' '409 position_gap sequence 7 has 40 tokens; 30..40 are not all there' "$(refused '7/kv?range=30:41')"
expect 'no range' '422 invalid parameter range: is missing: FIRST:END, the first token and the one behind the last' "$(refused 7/kv)"
for range in 5:5 6:5 5 :5 x 1:2:3 -1:2 1:x ''; do
    expect "a range \"$range\"" '422 invalid parameter range: wants FIRST:END, the first token and the one behind the last' "$(refused "7/kv?range=$range")"
done
expect 'one behind all limits' '422 invalid parameter range: ends behind limits.sequence_tokens' "$(refused '7/kv?range=0:99999999999999999999')"
expect 'one too long for an answer' "422 invalid parameter range: is of 131072 tokens, and K and V of at most $(curl -s "$URL/v1/info" | jq .limits.kv_range_tokens) fit an answer and a body: ask for it in parts" \
    "$(refused '7/kv?range=0:131072')"
expect 'an ETag of something else' '412 changed If-Match is no ETag of this daemon since its start' "$(refused '7/kv?range=0:1' -H 'If-Match: "1-1"')"
expect 'a sequence that is not there' '404 not_found there is no sequence 8' "$(refused '8/kv?range=0:1')"
expect 'an Accept without tensors' 406 "$(curl -s -o /dev/null -w '%{http_code}' -H 'Accept: application/json' "$URL/v1/sequences/7/kv?range=0:1")"

# ---- in
before=$(seen "$URL" 7)
expect 'the same bytes go into another daemon' '[9,20,[20,20],"same"]' "$(in_ "$B" '9/kv?range=0:20' "$WORK/first" | is_of)"
expect 'and once more, which changes nothing' '[9,20,[20,20],"same"]' "$(in_ "$B" '9/kv?range=0:20' "$WORK/first" | is_of)"
expect 'a range behind a gap' '409 position_gap' "$(in_ "$B" '9/kv?range=21:41' "$WORK/second" | jq -r '"\(.status) \(.code)"')"
expect 'other content at the same place' '409 content_conflict' "$(in_ "$B" '9/kv?range=0:20' "$WORK/second" | jq -r '"\(.status) \(.code)"')"
expect 'a range of another length' '422 invalid /k: wants 19 tokens, as range says, has F32 [2, 20, 1, 8]' "$(in_ "$B" '9/kv?range=20:39' "$WORK/second" | problem)"
expect 'the rest, without a range' '[9,40,[40,40],"same"]' "$(in_ "$B" 9/kv "$WORK/second" | is_of)"
expect 'what is seen of it is the same to the bit' "$before" "$(seen "$B" 9)"
expect 'an id that is another' '409 content_conflict' "$(curl -s -o /dev/null --json '{"id":10}' "$B/v1/sequences"; in_ "$B" 10/kv "$WORK/first" >/dev/null; in_ "$B" '10/kv?range=0:20' "$WORK/second" | jq -r '"\(.status) \(.code)"')"
perl -0777 -pe 'my $n = unpack("Q<", $_); substr($_, 8 + $n + 5, 1) ^= "\x01"' "$WORK/first" >"$WORK/damaged"
expect 'a bit that was changed on the way' '422 invalid' "$(curl -s -o /dev/null --json '{"id":11}' "$B/v1/sequences"; in_ "$B" 11/kv "$WORK/damaged" | jq -r '"\(.status) \(.code)"')"
expect 'it says so' 'they were changed on their way' "$(in_ "$B" 11/kv "$WORK/damaged" | jq -r .detail | sed 's/.*: //')"
expect 'and nothing was written' 0 "$(curl -s "$B/v1/sequences/11" | jq .length)"
expect 'no tensors' '422 invalid /k: wants F32 [2, T, 1, 8], and is missing' "$(curl -s -X PUT --json '{}' "$B/v1/sequences/11/kv" | problem)"
expect 'tensors of one layer' '422 invalid /k: wants F32 [2, T, 1, 8], has F32 [1, 1, 8]' \
    "$(tensors k F32 1,1,8 8*1 v F32 1,1,8 8*1 | curl -s -X PUT -H 'Content-Type: application/x-safetensors' --data-binary @- "$B/v1/sequences/11/kv" | problem)"
expect 'a NaN' '422 invalid' "$(tensors k F32 2,1,1,8 15*1,nan v F32 2,1,1,8 16*1 | curl -s -X PUT -H 'Content-Type: application/x-safetensors' --data-binary @- "$B/v1/sequences/11/kv" | jq -r '"\(.status) \(.code)"')"
expect 'what somebody else has made, without a word where it comes from' '[11,1,[1,1],"unknown"]' \
    "$(tensors k F32 2,1,1,8 16*1 v F32 2,1,1,8 16*1 | curl -s -X PUT -H 'Content-Type: application/x-safetensors' --data-binary @- "$B/v1/sequences/11/kv" | is_of)"
expect 'prompts are published there' 8 "$(curl -s --json "{\"tokens\":$ids}" "$B/v1/sequences" | jq .cached_tokens)"

# shellcheck disable=SC2086
another wide $geometry --set geometry.softcap=30
curl -s -o /dev/null --json '{"id":9}' "$wide/v1/sequences"
expect 'another geometry' '422 invalid k and v come from layers 2, query_heads 2, kv_heads 1, head_dim 8, dtype f32, kv_dtype f32, scale 0.353553385, softcap 0; this daemon has layers 2, query_heads 2, kv_heads 1, head_dim 8, dtype f32, kv_dtype f32, scale 0.353553385, softcap 30' \
    "$(in_ "$wide" 9/kv "$WORK/first" | problem)"
# shellcheck disable=SC2086
another sunk $geometry --set geometry.sinks=1
curl -s -o /dev/null --json '{"id":9}' "$sunk/v1/sequences"
expect 'other parameters' '422 invalid' "$(in_ "$sunk" 9/kv "$WORK/first" | jq -r '"\(.status) \(.code)"')"
# shellcheck disable=SC2086
another plain $geometry --set backend.name=reference
curl -s -o /dev/null --json '{"id":9}' "$plain/v1/sequences"
expect 'another backend says that bits may differ' '[9,20,[20,20],"within_rounding"]' "$(in_ "$plain" 9/kv "$WORK/first" | is_of)"
# shellcheck disable=SC2086
another windowed $geometry --set 'geometry.window=[0,4]'
# shellcheck disable=SC2086
another small $geometry --set geometry.dtype=bf16 --set geometry.kv_dtype=e4m3
curl -s -o /dev/null --json '{"id":9}' "$small/v1/sequences"
stored() { tensors k F8_E4M3 2,1,1,8 "$1" v F8_E4M3 2,1,1,8 16*56 | curl -s -X PUT -H 'Content-Type: application/x-safetensors' --data-binary @- "$small/v1/sequences/9/kv"; }
expect 'a code that is a NaN' '422 invalid' "$(stored 15*56,127 | jq -r '"\(.status) \(.code)"')"
expect 'codes as they are' '[9,1,[1,1],"unknown"]' "$(stored 1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16 | is_of)"
curl -s -o "$WORK/kv" "$small/v1/sequences/9/kv?range=0:1"
expect 'come back as they are' '1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16' "$(perl -e 'local $/; $_ = <STDIN>; my $n = unpack("Q<", $_); print join(" ", unpack("C16", substr($_, 8 + $n)))' <"$WORK/kv")"

# ---- swapped out
for id in 101 102 103 104; do
    curl -s -o /dev/null --json "{\"id\":$id}" "$URL/v1/sequences"
    append "$URL" $id 0 200 >/dev/null
done
swapped() { [ "$(curl -s "$URL/v1/sequences/$1" | jq -r .state)" = swapped ]; }
if swapped 7; then
    out 7 0:20
    expect 'a sequence in host memory is brought in' "$(metadata digest)" "$(cp "$WORK/kv" "$WORK/again"; cp "$WORK/first" "$WORK/kv"; metadata digest)"
fi

# ---- moved
moved() { curl -s --json "$2" "$URL/v1/sequences/$1/moved" "${@:3}"; }
expect 'no place' '422 invalid /moved_to: wants a URL (http://, https://) or a path' "$(moved 7 '{"moved_to":"ftp://x","length":40}' | problem)"
expect 'no length' '422 invalid /length: is missing' "$(moved 7 '{"moved_to":"/x"}' | problem)"
expect 'another length' '409 position_gap sequence 7 has 40 tokens, not 20: move the others, too' "$(moved 7 '{"moved_to":"/x","length":20}' | problem)"
expect 'another content' '412 changed If-Match is no ETag of this daemon since its start' "$(moved 7 '{"moved_to":"/x","length":40}' -H 'If-Match: "1-1"' | problem)"
told_of_move() { has_logged "info sequence 7 has moved to $B/v1/sequences/9 (request "; }
expect 'it is given up' 204 "$(moved 7 "{\"moved_to\":\"$B/v1/sequences/9\",\"length\":40}" -H "If-Match: $tag" -o /dev/null -w '%{http_code}')"
expect 'which has a line in the log (bug: it had none)' 0 "$(eventually told_of_move; echo $?)"
for path in 7 7/blocks '7/kv?range=0:1'; do
    expect "who asks for /v1/sequences/$path is told where it is" "410 moved $B/v1/sequences/9" "$(curl -s "$URL/v1/sequences/$path" | jq -r '"\(.status) \(.code) \(.moved_to)"')"
done
expect 'and who attends to it' "410 moved $B/v1/sequences/9" \
    "$(curl -s --json '{"layer":0,"sequences":[7],"q":[[[1,0,0,0,0,0,0,0],[1,0,0,0,0,0,0,0]]]}' "$URL/v1/attend" | jq -r '"\(.status) \(.code) \(.moved_to)"')"
curl -s -o /dev/null --json '{"id":7}' "$URL/v1/sequences"
expect 'the id may be taken again' 0 "$(curl -s "$URL/v1/sequences/7" | jq .length)"
append "$URL" 7 0 20 >/dev/null
out 7 0:20
expect 'and is another one then' '412 changed sequence 7 was cut since, or is another one' "$(refused '7/kv?range=0:1' -H "If-Match: $tag")"
tag=$(etag)
curl -s -o /dev/null --json '{"length":19}' "$URL/v1/sequences/7/truncate"
expect 'what is cut has another content' '412 changed sequence 7 was cut since, or is another one' "$(refused '7/kv?range=0:1' -H "If-Match: $tag")"

# ---- attnctl move
before=$(seen "$URL" 101)
said=$("$CTL" --url "$URL" move --to "$B" 101)
place=$(sed -n 's/^101 -> \([^ ]*\) .*/\1/p' <<<"$said")
expect 'attnctl says where it is' "$B" "${place%/v1/*}"
expect 'how it went' '200 tokens, 0.0 MB, bits same' "${said#*  }"
expect 'it is the same' "$before" "$(seen "$B" "${place##*/}")"
expect 'calls on it are told' "$place" "$(curl -s "$URL/v1/sequences/101" | jq -r .moved_to)"
# Bug: they "stay where they were".
# Bug: one that never was is "gone".
expect 'one that is not there' '1 attnctl: there is no sequence 999' "$("$CTL" --url "$URL" move --to "$B" 999 >"$WORK/said" 2>&1; echo $?) $(cat "$WORK/said")"
curl -s -o /dev/null --json '{"id":998,"blocks":1}' "$URL/v1/leases"
expect 'a lease' '1 attnctl: 998 is a lease: leases are not moved' "$("$CTL" --url "$URL" move --to "$B" 998 >"$WORK/said" 2>&1; echo $?) $(cat "$WORK/said")"
curl -s -o /dev/null -X DELETE "$URL/v1/leases/998"
expect 'one that has moved' "1 attnctl: sequence 101 has moved already: 410" "$("$CTL" --url "$URL" move --to "$B" 101 >"$WORK/said" 2>&1; echo $?) $(grep -o '.* 410' "$WORK/said")"
# Bug: sequences without tokens moved to a daemon of another geometry, and the others were refused one by one.
empty=$(curl -s -X POST "$URL/v1/sequences" | jq .id)
for what in --all 102 "$empty"; do
    # shellcheck disable=SC2086
    expect "another geometry is refused before anything is moved ($what)" '1 attnctl: --to has another geometry: geometry.softcap is 30 there and 0 here: nothing is moved' \
        "$("$CTL" --url "$URL" move $what --to "$wide" >"$WORK/said" 2>&1; echo $?) $(cat "$WORK/said")"
done
expect 'all that differs is named' 'attnctl: --to has another geometry: geometry.dtype is "bf16" there and "f32" here, geometry.kv_dtype is "e4m3" there and "f32" here: nothing is moved' "$("$CTL" --url "$URL" move --all --to "$small" 2>&1)"
expect 'other parameters' 'attnctl: --to has another geometry: geometry.sinks is true there and false here: nothing is moved' "$("$CTL" --url "$URL" move --all --to "$sunk" 2>&1)"
expect 'a list is not shown' 'attnctl: --to has another geometry: geometry.window differs: nothing is moved' "$("$CTL" --url "$URL" move --all --to "$windowed" 2>&1)"
expect 'the empty one stays, too' "[$empty,0]" "$(curl -s "$URL/v1/sequences/$empty" | jq -c '[.id, .length]')"
curl -s -o /dev/null -X DELETE "$URL/v1/sequences/$empty"
expect 'there nothing is made' 1 "$(curl -s "$wide/stats" | jq .sequences.count)"
expect 'and here it is as it was' 200 "$(curl -s "$URL/v1/sequences/102" | jq .length)"
expect 'no daemon there' 69 "$("$CTL" --url "$URL" move --to http://127.0.0.1:1 102 >/dev/null 2>&1; echo $?)"
expect 'in the words of every command' 'attnctl: http://127.0.0.1:1/v1/info: Failed to connect; is attnd running there?' \
    "$("$CTL" --url "$URL" move --to http://127.0.0.1:1 102 2>&1 | sed 's/\(Failed to connect\)[^;]*/\1/')"
expect 'no ids' 'attnctl: move wants --to URL, and ids or --all (attnctl move --help says what it takes)' "$("$CTL" --url "$URL" move --to "$B" 2>&1)"

# Somebody appends to it until it is gone, and then goes on where it is. No token is lost, and none is there twice.
follow() {
    local url=$URL id=102 at=200 told answer
    while [ $at -lt 230 ] || { [ "$url" = "$URL" ] && [ $at -lt 400 ]; }; do
        answer=$(append "$url" $id $at $((at + 1)))
        told=$(jq -r '.moved_to // empty' <<<"$answer")
        if [ -n "$told" ]; then
            url=${told%/v1/*} id=${told##*/}
        else
            at=$((at + 1))
            [ $at -ne 205 ] || : >"$WORK/grows"
        fi
    done
    echo "$url $id $at" >"$WORK/followed"
}
follow &
follower=$!
grows() { [ -e "$WORK/grows" ]; }
eventually grows
"$CTL" --url "$URL" --json move --to "$B" 102 >"$WORK/moved"
wait $follower
read -r url id at <"$WORK/followed"
expect 'a sequence that grows is moved' "$B $(jq -r '.moved_to | sub(".*/"; "")' "$WORK/moved")" "$url $id"
expect 'with every token' "$at" "$(curl -s "$B/v1/sequences/$id" | jq .length)"
curl -s -o "$WORK/kv" "$B/v1/sequences/$id/kv?range=0:$at"
expect 'as it was appended' "$(rows 0 "$at" | jq -c flatten | md5sum)" \
    "$(perl -e 'local $/; $_ = <STDIN>; my $n = unpack("Q<", $_); print "[" . join(",", unpack("f<" . shift() * 16, substr($_, 8 + $n))) . "]\n"' "$at" <"$WORK/kv" | md5sum)"
left=$(curl -s "$URL/v1/sequences" | jq -c '[.items[].id] | sort')
expect 'all that are left' "$left" "$("$CTL" --url "$URL" --json move --to "$B" --all | jq -s -c 'map(.id) | sort')"
expect 'where there is none, that is said' '0 there are no sequences to move' "$("$CTL" --url "$URL" move --to "$B" --all >"$WORK/said" 2>&1; echo $?) $(cat "$WORK/said")"
# Bug: no word of what else is there.
for id in 996 997; do curl -s -o /dev/null --json "{\"id\":$id,\"blocks\":1}" "$URL/v1/leases"; done
workload=$(curl -s --json '{"trace":[{"arrival_s":5000,"prompt":1,"decode":1}]}' "$URL/v1/workloads" | jq .id)
expect 'and what else is there, which stays' '0 there are no sequences to move|2 leases and 1 running workload stay: only sequences are moved' \
    "$("$CTL" --url "$URL" move --to "$B" --all >"$WORK/said" 2>&1; echo $?) $(paste -sd'|' "$WORK/said")"
curl -s -o /dev/null -X DELETE "$URL/v1/leases/996"
curl -s -o /dev/null -X DELETE "$URL/v1/workloads/$workload"
cancelled() { [ "$(curl -s "$URL/v1/workloads/$workload" | jq -r .state)" = cancelled ]; }
eventually cancelled
curl -s -o /dev/null -X POST "$URL/v1/sequences"
expect 'also behind those that were moved' '0 1 lease stays: only sequences are moved' "$("$CTL" --url "$URL" move --to "$B" --all >/dev/null 2>"$WORK/said"; echo $?) $(tail -n 1 "$WORK/said")"
expect 'in JSON it need not be said' 'there are no sequences to move' "$("$CTL" --url "$URL" --json move --to "$B" --all 2>&1)"
curl -s -o /dev/null -X DELETE "$URL/v1/leases/997"
expect 'none is left then' 0 "$(curl -s "$URL/v1/sequences" | jq '.items | length')"
# Of all, one is gone and one has moved before it is their turn: the first is waited for, since its layers are uneven.
for _ in 1 2 3 4; do curl -s -o /dev/null -X POST "$URL/v1/sequences"; done
mapfile -t all < <(curl -s "$URL/v1/sequences" | jq '.items[].id')
"$CTL" --url "$URL" append "${all[0]}" --layer 0 --count 1 >/dev/null
looks() { curl -s "$URL/metrics" | sed -n 's|^attnd_http_request_duration_seconds_count{method="GET",route="/v1/sequences/{id}"} ||p'; }
before=$(looks)
"$CTL" --url "$URL" --json move --to "$B" --all >"$WORK/moved" 2>"$WORK/said" &
mover=$!
looked() { [ "$(looks)" -gt "$before" ]; }
eventually looked
curl -s -o /dev/null -X DELETE "$URL/v1/sequences/${all[1]}"
curl -s -o /dev/null --json '{"moved_to":"/x","length":0}' "$URL/v1/sequences/${all[2]}/moved"
"$CTL" --url "$URL" append "${all[0]}" --layer 1 --count 1 >/dev/null
wait $mover
expect 'of all, what is not here any more is no failure' "0 ${all[0]} ${all[3]}" "$? $(jq .id "$WORK/moved" | paste -sd' ')"
expect 'and said' "attnctl: sequence ${all[1]} is gone: 404,attnctl: sequence ${all[2]} has moved already: 410" "$(grep -oE '.*: 4[0-9]+' "$WORK/said" | paste -sd,)"
expect 'every count adds up' 'true true' "$(for url in "$URL" "$B"; do curl -s -X POST "$url/v1/audit" | jq .ok; done | paste -sd' ')"
stop_daemon
expect 'it ends cleanly' 0 $?

# ---- a move does not keep sharing: it is counted before (bug: half of the sequences stayed, one by one, for want of blocks)
narrow=''
start_daemon --config config/tiny.jsonc
another narrow --config config/tiny.jsonc
"$CTL" --url "$URL" seq new >/dev/null
"$CTL" --url "$URL" append 1 --count 9 >/dev/null
"$CTL" --url "$URL" seq fork 1 40 >/dev/null
for to in "--all --to http://localhost:$PORT" "1 --to $URL/"; do
    # shellcheck disable=SC2086
    expect "a move to the daemon itself is refused ($to)" '2 attnctl: --to is the daemon that has them: nothing is moved' "$("$CTL" --url "$URL" move $to >"$WORK/said" 2>&1; echo $?) $(cat "$WORK/said")"
done
expect 'and changes nothing' '[1,9]' "$(curl -s "$URL/v1/sequences/1" | jq -c '[.id, .length]')"
expect 'forks that cannot fit there are refused' '1 attnctl: 41 sequences need at most 123 blocks there, which has 64; here 3 are held, but what is shared is moved once for each. Nothing is moved; --force moves what fits' \
    "$("$CTL" --url "$URL" move --to "$narrow" --all >"$WORK/said" 2>&1; echo $?) $(cat "$WORK/said")"
expect 'and stay' '41 0' "$(curl -s "$URL/stats" | jq .sequences.count) $(curl -s "$narrow/stats" | jq .sequences.count)"
expect 'with --force those are moved that fit' '1 21 64' \
    "$("$CTL" --url "$URL" --json move --to "$narrow" --all --force >"$WORK/said" 2>/dev/null; echo $?) $(wc -l <"$WORK/said") $(curl -s "$narrow/stats" | jq '.pool.held + .pool.free')"
for id in $(seq 23 41); do "$CTL" --url "$URL" seq delete "$id" >/dev/null; done
curl -s -o /dev/null -X DELETE "$narrow/v1/sequences/1"
expect 'what fits is said' '0 1 sequence needs at most 3 blocks there, which has 4' "$("$CTL" --url "$URL" move --to "$narrow" --all 2>"$WORK/said" >/dev/null; echo $?) $(cat "$WORK/said")"
stop_daemon
expect 'it ends cleanly then' 0 $?

# ---- keys
made() { "$CTL" --json key new "$@"; }
ann=$(made ann infer) bob=$(made bob infer) eve=$(made eve read)
(umask 077; jq -n --argjson a "$ann" --argjson b "$bob" --argjson c "$eve" '{keys: [$a.entry, $b.entry, $c.entry]}' >"$WORK/keys")
as() { curl -s -H "Authorization: Bearer $(jq -r .key <<<"$1")" "${@:2}"; }
# shellcheck disable=SC2086
start_daemon $geometry --set "keys.file=$WORK/keys"
as "$ann" -o /dev/null --json '{"id":7}' "$URL/v1/sequences"
as "$ann" -o /dev/null --json "{\"sequences\":[7],\"k\":$(rows 0 1),\"v\":$(rows 0 1)}" "$URL/v1/append"
expect 'K and V need the scope infer' '403 forbidden the key "eve" lacks the scope infer' "$(as "$eve" "$URL/v1/sequences/7/kv?range=0:1" | problem)"
expect "another key's sequence does not exist" '404 not_found there is no sequence 7' "$(as "$bob" "$URL/v1/sequences/7/kv?range=0:1" | problem)"
expect 'nor can it be put into' '404 not_found there is no sequence 7' \
    "$(as "$bob" -X PUT -H 'Content-Type: application/x-safetensors' --data-binary "@$WORK/first" "$URL/v1/sequences/7/kv" | problem)"
expect 'nor moved' '404 not_found there is no sequence 7' "$(as "$bob" --json '{"moved_to":"/x","length":1}' "$URL/v1/sequences/7/moved" | problem)"
expect 'its own can' 204 "$(as "$ann" -o /dev/null -w '%{http_code}' --json '{"moved_to":"/x","length":1}' "$URL/v1/sequences/7/moved")"
expect 'where it is only they learn' '/x null' "$(as "$ann" "$URL/v1/sequences/7" | jq -r .moved_to) $(as "$bob" "$URL/v1/sequences/7" | jq -r .moved_to)"
stop_daemon
expect 'it ends cleanly, too' 0 $?

# ---- owners (bug: what an admin moved was the admin's, and 404 for the clients whose it was)
keyed='' keyless=''
root=$(made root admin) carl=$(made carl infer)
(umask 077
    jq -n --argjson a "$ann" --argjson b "$bob" --argjson c "$carl" --argjson r "$root" '{keys: [$a.entry, $b.entry, $c.entry, $r.entry]}' >"$WORK/keys"
    jq -n --argjson a "$ann" --argjson b "$bob" --argjson r "$root" '{keys: [$r.entry, $b.entry + {quotas: {sequences: 2, blocks: 6}}, $a.entry]}' >"$WORK/keys.there"
    jq -r .key <<<"$root" >"$WORK/root"
    jq -r .key <<<"$bob" >"$WORK/bob")
# shellcheck disable=SC2086
start_daemon $geometry --set "keys.file=$WORK/keys" --set 'listen=[{"address": "127.0.0.1:0", "anonymous": "infer"}]'
# shellcheck disable=SC2086
another keyed $geometry --set "keys.file=$WORK/keys.there" --set 'listen=[{"address": "127.0.0.1:0", "anonymous": "infer"}]'
# shellcheck disable=SC2086
another keyless $geometry
holds() { as "$1" -o /dev/null --json "{\"id\":$2}" "$URL/v1/sequences"; as "$1" -o /dev/null --json "{\"sequences\":[$2],\"indptr\":[0,$3],\"k\":$(rows 0 "$3"),\"v\":$(rows 0 "$3")}" "$URL/v1/append"; }
holds "$ann" 21 9
holds "$bob" 22 6
holds "$carl" 23 1
holds "$root" 24 1
curl -s -o /dev/null --json '{"id":25}' "$URL/v1/sequences"
expect 'an admin sees whose they are' 'ann bob carl root ' "$(for id in 21 22 23 24 25; do as "$root" "$URL/v1/sequences/$id" | jq -r .owner; done | paste -sd' ')"
expect 'and nobody else' 'false false' "$(as "$ann" "$URL/v1/sequences/21" | jq 'has("owner")') $(curl -s "$URL/v1/sequences/25" | jq 'has("owner")')"
seen_by() {
    for layer in 0 1; do
        as "$1" --json "{\"layer\":$layer,\"sequences\":[$3],\"q\":[[[1,0.5,0,0,1,0,0,0],[0,1,0,0.25,0,0,1,0]]],\"lse\":true}" "$2/v1/attend" | jq -c '[.o, .lse]'
    done | paste -sd' '
}
before=$(seen_by "$ann" "$URL" 21)
moves() { "$CTL" --url "$URL" --key-file "$WORK/${KEY:-root}" move --to "$@" 2>"$WORK/said" >"$WORK/moved"; echo $?; }
expect 'who has no keys takes none that belongs to one' '1 attnctl: sequence 21 stays where it was: no sequence there: 422 owner: this daemon has no keys (keys.file)' "$(moves "$keyless" 21) $(cat "$WORK/said")"
expect 'those move whose key is there' '1 3 sequences moved with their owners (3 other keys)' "$(moves "$keyed" 21 22 23 24 25) $(tail -n 1 "$WORK/said")"
expect 'the others stay' 'attnctl: sequence 23 stays where it was: no sequence there: 422 owner: there is no key "carl"' "$(head -n 1 "$WORK/said")"
expect 'as they were' 1 "$(as "$carl" "$URL/v1/sequences/23" | jq .length)"
cp "$WORK/moved" "$WORK/places"
(umask 077; jq -r .key <<<"$carl" >"$WORK/carl")
# Bug: 69, and --key-file, which is the key for the other daemon.
expect 'a daemon that refuses the key is named, and the option of its key' "1 attnctl: $keyed: 401 unauthorized; attnctl takes it from --to-key-file FILE (default: the same key)" \
    "$(KEY=carl moves "$keyed" 23) $(sed 's/\( unauthorized\)[^;]*/\1/' "$WORK/said")"
at() { sed -n "s|^$1 -> .*/\([0-9]*\)  .*|\1|p" "$WORK/places"; }
expect 'a client is told where its own is' "$keyed/v1/sequences/$(at 21)" "$(as "$ann" "$URL/v1/sequences/21" | jq -r .moved_to)"
expect 'and finds it' "$before" "$(seen_by "$ann" "$keyed" "$(at 21)")"
expect 'it goes on there' "[$(at 21),10]" "$(as "$ann" --json "{\"sequences\":[$(at 21)],\"indptr\":[0,1],\"positions\":[9],\"k\":$(rows 9 10),\"v\":$(rows 9 10)}" "$keyed/v1/append" | jq -c '[.sequences[0] | .id, .length]')"
expect 'and none of the others' '404 404 404 404' "$(for id in 22 24 25; do as "$ann" "$keyed/v1/sequences/$(at $id)" | jq .status; done | paste -sd' ') $(as "$bob" "$keyed/v1/sequences/$(at 21)" | jq .status)"
expect 'nor clients without a key' '404 404 0' "$(for id in 21 22; do curl -s "$keyed/v1/sequences/$(at $id)" | jq .status; done | paste -sd' ') $(curl -s "$keyed/v1/sequences/$(at 25)" | jq .length)"
expect 'the admin sees whose they are there' 'ann bob root ' "$(for id in 21 22 24 25; do as "$root" "$keyed/v1/sequences/$(at $id)" | jq -r .owner; done | paste -sd' ')"
holds "$bob" 26 20
expect "quotas of the owner count: its blocks" '1 attnctl: sequence 26 stays where it was: K and V are not taken there: 429' "$(moves "$keyed" 26) $(grep -o '.* 429' "$WORK/said")"
expect 'and its sequences' '201 429' "$(for _ in 1 2; do as "$bob" -o /dev/null -w '%{http_code}\n' -X POST "$keyed/v1/sequences"; done | paste -sd' ')"
expect 'there nothing is left of it' 5 "$(as "$root" "$keyed/stats" | jq .sequences.count)"
expect 'here it is as it was' 20 "$(as "$bob" "$URL/v1/sequences/26" | jq .length)"
expect 'in JSON, too' '{"owner":"carl"}' "$(as "$root" -o /dev/null -X DELETE "$URL/v1/sequences/26"
    (umask 077; cp "$WORK/keys" "$WORK/keys.there"); kill -HUP "${others[-2]}"
    knows() { [ "$(as "$carl" -o /dev/null -w '%{http_code}' "$keyed/v1/info")" = 200 ]; }
    eventually knows; "$CTL" --url "$URL" --key-file "$WORK/root" --json move --to "$keyed" --all | jq -c '{owner}')"
expect 'only an admin names an owner' '403 forbidden owner: the key "bob" lacks the scope admin' "$(as "$bob" --json '{"owner":"bob"}' "$URL/v1/sequences" | problem)"
expect 'also of K and V' '403 forbidden owner: the key "bob" lacks the scope admin' \
    "$(as "$bob" -X PUT -H 'Content-Type: application/x-safetensors' --data-binary "@$WORK/first" "$keyed/v1/sequences/$(at 22)/kv?owner=ann" | problem)"
expect 'who is not the owner is none of it' "404 not_found there is no sequence $(at 22)" \
    "$(as "$root" -X PUT -H 'Content-Type: application/x-safetensors' --data-binary "@$WORK/first" "$keyed/v1/sequences/$(at 22)/kv?owner=ann" | problem)"
expect 'not in a batch' 422 "$(as "$root" --json '{"ops":[{"op":"create","owner":"bob"}]}' "$URL/v1/batch" | jq .status)"
holds "$bob" 27 1
expect 'a client moves its own as before' '0 ' "$(KEY=bob moves "$keyed" 27) $(cat "$WORK/said")"
expect 'every count adds up there' true "$(as "$root" -X POST "$keyed/v1/audit" | jq .ok)"
stop_daemon
expect 'it ends cleanly, with owners' 0 $?
finish
