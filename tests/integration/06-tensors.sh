#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The same calls with safetensors instead of JSON: a header of JSON, then the numbers as they lie in memory.
. tests/integration/lib.sh
start_daemon --config config/tiny.jsonc --set geometry.dtype=bf16 --set geometry.kv_dtype=bf16

one=1,0,0,0,0,0,0,0 zero=0,0,0,0,0,0,0,0
curl -s -X POST "$URL/v1/sequences" >/dev/null
expect 'append two tokens' '{"sequences":[{"id":1,"length":2,"lengths":[2]}]}' \
    "$(tensors sequences I64 1 1 indptr I64 2 0,2 k BF16 2,1,8 "$one,$one" v BF16 2,1,8 "1,1,1,1,1,1,1,1,3,3,3,3,3,3,3,3" | post /v1/append)"

tensors sequences I64 1 1 q BF16 1,1,8 $zero | post '/v1/attend?lse=1' >"$WORK/o"
expect 'the answer holds o and lse' '{"o":["BF16",[1,1,8]],"lse":["F32",[1,1]]}' \
    "$(header "$WORK/o" | jq -c 'del(.__metadata__) | map_values([.dtype, .shape])')"
expect 'o is the mean of both values' 2,2,2,2,2,2,2,2 "$(numbers "$WORK/o" 16)"
expect 'timing is in the metadata' '["bytes_read","kernel","queue_us","roof_fraction","rows_in_step","step_us"]' "$(header "$WORK/o" | jq -c '.__metadata__ | keys')"
expect 'JSON on request' '[[[2,2,2,2,2,2,2,2]]]' \
    "$(tensors sequences I64 1 1 q BF16 1,1,8 $zero | post '/v1/attend?accept=json' | jq -c .o)"
expect 'the same as a call in JSON' '[[[2,2,2,2,2,2,2,2]]]' \
    "$(curl -s --json "{\"sequences\":[1],\"q\":[[[$zero]]]}" "$URL/v1/attend" | jq -c .o)"

# Many tokens in one call.
many=$(perl -e 'print join(",", (0) x (8 * 200))')
expect 'two hundred tokens at once' 202 \
    "$(tensors sequences I64 1 1 indptr I64 2 0,200 k BF16 200,1,8 "$many" v BF16 200,1,8 "$many" | post /v1/append | jq '.sequences[0].length')"

# Where tensors lie does not matter; those that cannot be used there are copied once.
copied() { curl -s "$URL/metrics" | sed -n 's/^attnd_tensors_copied_total //p'; }
ask() { tensors sequences I64 1 1 q BF16 1,1,8 $one | "$@" | post '/v1/attend?accept=json' | jq -c .o; }
odd() { perl -e 'local $/; $_ = <STDIN>; print pack("Q<", unpack("Q<", $_) + 1), substr($_, 8, unpack("Q<", $_)), " ", substr($_, 8 + unpack("Q<", $_))'; }
expected=$(ask cat)
expect 'no tensor was copied' 0 "$(copied)"
expect 'a header of any length' "$expected" "$(ask odd)"
expect 'one was' 1 "$(copied)"
expect 'a body in chunks' "$expected" "$(tensors sequences I64 1 1 q BF16 1,1,8 $one |
    curl -s -H 'Content-Type: application/x-safetensors' -H 'Transfer-Encoding: chunked' --data-binary @- "$URL/v1/attend?accept=json" | jq -c .o)"
expect 'another one' 2 "$(copied)"
expect 'staging memory comes back' 0 "$(caught_up && curl -s "$URL/metrics" | sed -n 's/^attnd_staging_bytes_used //p')"

# Large bodies that never come leave room for small ones.
used() { curl -s "$URL/metrics" | sed -n 's/^attnd_staging_bytes_used //p'; }
is_used() { test "$(used)" "$@"; }
promise() {
    perl -e 'use IO::Socket; my @all = map {
        my $s = IO::Socket::INET->new("127.0.0.1:$ARGV[0]") or die;
        print $s "POST /v1/attend HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/x-safetensors\r\nContent-Length: 67108864\r\n\r\n";
        $s->flush; $s } 1 .. 8;
        sleep 3600' "$PORT" &
    promising=$!
}
promise
eventually is_used -ge $((6 * 64 << 20))
expect 'another large body finds no room' 503 \
    "$(head -c 60000000 /dev/zero | curl -s -o /dev/null -w '%{http_code}' -H 'Content-Type: application/x-safetensors' --data-binary @- "$URL/v1/attend")"
expect 'small ones do' "$expected" "$(ask cat)"
kill "$promising"
eventually is_used -eq 0

# Mistakes.
wrong() { expect "$1" "$2" "$(tensors "${@:3}" | post /v1/attend | jq -r '"\(.status) \(.detail)"')"; }
wrong 'another dtype' '422 /q: wants BF16 [1, 1, 8], has F32 [1, 1, 8]' sequences I64 1 1 q F32 1,1,8 $zero
wrong 'another shape' '422 /q: wants BF16 [1, 1, 8], has BF16 [8]' sequences I64 1 1 q BF16 8 $zero
wrong 'no q' '422 /q: is missing' sequences I64 1 1
wrong 'an unknown tensor' '422 /slot_mapping: there is no such tensor' \
    sequences I64 1 1 slot_mapping I64 1 0 q BF16 1,1,8 $zero
wrong 'a NaN' '422 /q: row 0, head 0, element 1 is not finite' sequences I64 1 1 q BF16 1,1,8 0,nan,0,0,0,0,0,0
wrong 'a negative id' '422 /sequences: entry 0: wants an id in 1..9007199254740991' sequences I64 1 -1 q BF16 1,1,8 $zero
wrong 'indptr beyond 32 bits' '422 /indptr: wants numbers that rise from 0, each by at least 1' \
    sequences I64 1 1 indptr I64 2 0,4294967297 q BF16 1,1,8 $zero
wrong 'a position beyond 32 bits' '422 /positions: entry 0: wants a position in 0..2147483647' \
    sequences I64 1 1 positions I64 1 4294967296 q BF16 1,1,8 $zero
wrong 'indptr that falls' '422 /indptr: wants numbers that rise from 0, each by at least 1' \
    sequences I64 1 1 indptr I64 2 0,-1 q BF16 1,1,8 $zero
detail() { jq -r '"\(.status) \(.detail)"'; }
expect 'a parameter among the tensors' '422 /layer: belongs in the query' \
    "$(tensors sequences I64 1 1 q BF16 1,1,8 $zero layer I64 1 0 | post /v1/attend | detail)"
expect 'a tensor in the query' '422 parameter q: belongs in the body' "$(tensors sequences I64 1 1 | post '/v1/attend?q=1' | detail)"
expect 'a member in the query' '422 parameter layer: belongs in the body' \
    "$(curl -s --json '{"sequences":[1],"q":[[[0,0,0,0,0,0,0,0]]]}' "$URL/v1/attend?layer=0" | detail)"
expect 'a parameter twice' '422 parameter layer: is there twice' "$(tensors sequences I64 1 1 | post '/v1/attend?layer=0&layer=0' | detail)"
expect 'JSON that asks for safetensors' "$(tensors sequences I64 1 1 q BF16 1,1,8 "$zero" | post '/v1/attend?lse=1' | wc -c)" \
    "$(curl -s --json '{"sequences":[1],"lse":true,"accept":"safetensors","q":[[[0,0,0,0,0,0,0,0]]]}' "$URL/v1/attend" | wc -c)"
expect 'not safetensors' '400 3 bytes are too short for safetensors' "$(printf abc | post /v1/attend | jq -r '"\(.status) \(.detail)"')"
expect 'an unknown parameter' 422 "$(tensors sequences I64 1 1 q BF16 1,1,8 $zero | post '/v1/attend?layer=1' | jq .status)"
expect 'JSON over 64 KiB' 413 "$(head -c 70000 /dev/zero | tr '\0' ' ' | curl -s -o /dev/null -w '%{http_code}' --json @- "$URL/v1/attend")"
expect 'nothing has changed' 202 "$(curl -s "$URL/v1/sequences/1" | jq .length)"
expect 'bytes that are no safetensors' '400 no safetensors: the first 8 bytes announce a header of 7310308002159816558 bytes, and 4 follow' \
    "$(printf 'nonsense, no' | post /v1/append | jq -r '"\(.status) \(.detail)"')"
expect 'a header that is too long' '422 a header of more than 65536 bytes' \
    "$(perl -e 'print pack("Q<", 70000), " " x 70000' | post /v1/append | jq -r '"\(.status) \(.detail)"')"
stop_daemon
expect 'it ends cleanly' 0 $?
finish
