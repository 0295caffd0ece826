#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What must be refused on the wire: requests that two parsers could read differently, and limits.
. tests/integration/lib.sh
start_daemon --set limits.header_timeout_s=3600 --set limits.connections=4

# Send raw bytes (printf escapes), each argument when the one before has been read; print the status of each answer.
raw() {
    local part
    exec 3<>"/dev/tcp/127.0.0.1/$PORT"
    for part in "$@"; do
        # shellcheck disable=SC2059
        printf "$part" >&3
        [ $# -eq 1 ] || caught_up
    done
    timeout $HANG_S cat <&3 | tr -d '\r' | grep -a '^HTTP/1.1 ' | cut -d' ' -f2 | paste -sd' '
    exec 3<&- 3>&-
}
close='Connection: close\r\n'
host="Host: localhost\r\n$close"

expect 'a plain request' 200 "$(raw "GET /livez HTTP/1.1\r\n$host\r\n")"
expect 'two pipelined requests' '200 404' "$(raw "GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\nGET /x HTTP/1.1\r\n$host\r\n")"
expect 'HTTP/1.0 needs no Host' 200 "$(raw 'GET /livez HTTP/1.0\r\n\r\n')"

while IFS='|' read -r name want request; do
    expect "$name" "$want" "$(raw "$request")"
done <<LIST
CR inside a header (CVE-2023-30589)|400|GET /livez HTTP/1.1\r\nHost: localhost\r\nX:\rTransfer-Encoding: chunked\r\n\r\n
folded Transfer-Encoding|400|POST /livez HTTP/1.1\r\n${host}Transfer-Encoding:\r\n chunked\r\n\r\n0\r\n\r\n
space before a header name (CVE-2024-27982)|400|GET /livez HTTP/1.1\r\n${host} Content-Length: 1\r\n\r\nx
empty header name|400|GET /livez HTTP/1.1\r\n${host}: x\r\n\r\n
bare LF|400|GET /livez HTTP/1.1\n${host}\r\n\r\n
no Host|400|GET /livez HTTP/1.1\r\n\r\n
two Hosts|400|GET /livez HTTP/1.1\r\nHost: localhost\r\nHost: localhost\r\n\r\n
Content-Length and Transfer-Encoding|400|POST /livez HTTP/1.1\r\n${host}Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n
two Content-Lengths|400|POST /livez HTTP/1.1\r\n${host}Content-Length: 1\r\nContent-Length: 1\r\n\r\nx
two Content-Lengths that differ|400|POST /livez HTTP/1.1\r\n${host}Content-Length: 1\r\nContent-Length: 2\r\n\r\nab
a good request behind a bad one|400|GET /livez HTTP/1.1\r\nHost: localhost\r\nX: a\r\n b\r\n\r\nGET /livez HTTP/1.1\r\n${host}\r\n
a good request behind a head of bare LFs|400|GET /livez HTTP/1.1\nHost: localhost\n\nGET /livez HTTP/1.1\r\n${host}\r\n
a body over 1 MiB that waits to be asked for|413|POST /v1/sequences HTTP/1.1\r\n${host}Expect: 100-continue\r\nContent-Length: 1048577\r\n\r\n
Content-Length +1|400|POST /livez HTTP/1.1\r\n${host}Content-Length: +1\r\n\r\nx
Transfer-Encoding gzip, chunked|400|POST /livez HTTP/1.1\r\n${host}Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n
Transfer-Encoding in HTTP/1.0|400|POST /livez HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n
a wrong chunk end|400|POST /livez HTTP/1.1\r\n${host}Transfer-Encoding: chunked\r\n\r\n1\r\nxab0\r\n\r\n
a trailer|400|POST /livez HTTP/1.1\r\n${host}Transfer-Encoding: chunked\r\n\r\n0\r\nX: y\r\n\r\n
HTTP/2.0|505|GET /livez HTTP/2.0\r\n${host}\r\n
a chunked body that a bare LF ends|400|POST /livez HTTP/1.1\r\n${host}Transfer-Encoding: chunked\r\n\r\n0\r\n\n
a chunk size that a bare LF ends|400|POST /livez HTTP/1.1\r\n${host}Transfer-Encoding: chunked\r\n\r\n1\nx\r\n0\r\n\r\n
RTSP|400|GET /livez RTSP/1.0\r\n${host}\r\n
RTSP, with a method of its own|400|DESCRIBE /livez RTSP/1.0\r\n${host}\r\n
ICE|400|SOURCE /livez ICE/1.0\r\n${host}\r\n
TLS|400|\026\003\001\002\000\001
HTTP/0.9|400|GET /livez\r\n\r\n
two Origins|400|GET /livez HTTP/1.1\r\n${host}Origin: http://evil.example\r\nOrigin: http://localhost\r\n\r\n
a foreign Origin|403|GET /livez HTTP/1.1\r\n${host}Origin: http://evil.example\r\n\r\n
an upgrade is not taken|405 200|POST /livez HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\nContent-Length: 1\r\n\r\nxGET /livez HTTP/1.1\r\n${host}\r\n
an upgrade without a body|200 200|GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nGET /livez HTTP/1.1\r\n${host}\r\n
an absolute URL|200|GET http://localhost:8400/livez HTTP/1.1\r\n${host}\r\n
an absolute URL without a path is the page|200|GET http://localhost HTTP/1.1\r\n${host}\r\n
its query belongs to the page|422|GET http://localhost?x HTTP/1.1\r\n${host}\r\n
the host of an absolute URL counts|403|GET http://evil.example/livez HTTP/1.1\r\n${host}\r\n
a foreign Host|403|GET /livez HTTP/1.1\r\nHost: evil.example\r\n$close\r\n
a port that is none|403|GET /livez HTTP/1.1\r\nHost: localhost:abc\r\n$close\r\n
a port that is too large|403|GET /livez HTTP/1.1\r\nHost: [::1]:65536\r\n$close\r\n
a port, and an IPv6 host|200|GET /livez HTTP/1.1\r\nHost: [::1]:8400\r\n$close\r\n
a body that is compressed|415|POST /v1/sequences HTTP/1.1\r\n${host}Content-Encoding: gzip\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}
a body that is said not to be|201|POST /v1/sequences HTTP/1.1\r\n${host}Content-Encoding: identity\r\nContent-Length: 2\r\nContent-Type: application/json\r\n\r\n{}
bytes after Connection: close are no request|200|GET /livez HTTP/1.1\r\n${host}\r\nGET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n
CONNECT|400|CONNECT localhost:1 HTTP/1.1\r\n${host}\r\n
an unknown method|405|BREW /livez HTTP/1.1\r\n${host}\r\n
what is no method|400|br3w /livez HTTP/1.1\r\n${host}\r\n
a method nobody serves|405|PATCH /livez HTTP/1.1\r\n${host}\r\n
Expect something else|417|POST /livez HTTP/1.1\r\n${host}Expect: cake\r\nContent-Length: 1\r\n\r\nx
a body over 1 MiB|413|POST /livez HTTP/1.1\r\n${host}Content-Length: 1048577\r\n\r\n
a length of 2^64 - 1|413|POST /livez HTTP/1.1\r\n${host}Content-Length: 18446744073709551615\r\n\r\n
LIST

json='Content-Type: application/json\r\n'
expect '100 Continue comes before the body' '100 201' \
    "$(raw "POST /v1/sequences HTTP/1.1\r\n$host${json}Expect: 100-continue\r\nContent-Length: 2\r\n\r\n" '{}')"
curl -s -o /dev/null -X PATCH "$URL/livez?in-the-log"
curl -s -o /dev/null -I "$URL/in-the-log"
eventually has_logged 'HEAD /in-the-log'
expect 'the log has the method that was sent (bug: "-" of one that nobody serves)' 'PATCH /livez,HEAD /in-the-log' \
    "$(sed -n 's/.* refused \(PATCH \/livez\|HEAD [^ ]*\) .*/\1/p' "$WORK/log" | tail -n 2 | paste -sd,)"
expect 'but not where nobody takes one' '405 404' \
    "$(raw "POST /livez HTTP/1.1\r\n${host}Expect: 100-continue\r\nContent-Length: 1\r\n\r\n") $(raw \
        "POST /nowhere HTTP/1.1\r\n${host}Expect: 100-continue\r\nContent-Length: 1\r\n\r\n")"
phrase() { curl -s -o /dev/null -D - "$@" | tr -d '\r' | sed -n '1s/^HTTP.1.1 //p'; }
expect 'the phrases are those of the standard' '200 OK, 404 Not Found, 405 Method Not Allowed' \
    "$(phrase "$URL/livez"), $(phrase "$URL/x"), $(phrase -X DELETE "$URL/livez")"
while IFS='|' read -r want path accept; do
    expect "Accept: $accept, of $path" "$want" "$(curl -s -o /dev/null -w '%{http_code}' -H "Accept: $accept" "$URL$path")"
done <<'LIST'
406|/v1/info|text/html
200|/v1/info|text/html, */*;q=0.1
200|/v1/info|text/html,Application/JSON;q=0.5
200|/v1/info|application/*
406|/v1/info|application/json;q=0
406|/v1/info|application/json;q=0.000, text/*
406|/v1/info|application/jso
200|/metrics|text/*
406|/metrics|application/json
200|/livez|text/html
LIST
expect 'what is served is named' 'Accept is "text/html", and this path answers with application/json' \
    "$(curl -s -H 'Accept: text/html' "$URL/v1/info" | jq -r .detail)"
expect 'a body of tensors that is too large is told the limit' "bytes; a body has at most 67108864" \
    "$(curl -s -H 'Content-Type: application/x-safetensors' -H 'Content-Length: 67108865' --data-binary x "$URL/v1/append" |
        jq -r .detail | cut -d' ' -f2-)"
expect 'a request in three pieces' 200 "$(raw 'GET /liv' "ez HTTP/1.1\r\n$host\r" '\n')"
long=$(head -c 5000 /dev/zero | tr '\0' a)
expect 'a URL over 4 KiB' 414 "$(raw "GET /$long HTTP/1.1\r\n$host\r\n")"
expect 'a head over 16 KiB' 431 "$(raw "GET / HTTP/1.1\r\n${host}A: $long$long$long$long\r\n\r\n")"
many=$(for i in $(seq 70); do printf 'X-%d: y\\r\\n' "$i"; done)
expect 'more than 64 headers' 431 "$(raw "GET / HTTP/1.1\r\n$host$many\r\n")"

# A chunked body is read to its end; the connection stays usable.
expect 'chunked body, then another request' '405 200' \
    "$(raw "POST /livez HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\nGET /livez HTTP/1.1\r\n$host\r\n")"

expect 'also when its last byte comes with the next request' '405 200' \
    "$(raw 'POST /livez HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r' '\nGET /li' "vez HTTP/1.1\r\n$host\r\n")"
expect 'a bare LF that ends it alone' 400 \
    "$(raw "POST /livez HTTP/1.1\r\n${host}Transfer-Encoding: chunked\r\n\r\n0\r\n" '\n')"

# Connections beyond the limit are told so.
is_served() { [ "$(curl -s -o /dev/null -w '%{http_code}' "$URL/livez")" = 200 ]; }
exec 4<>"/dev/tcp/127.0.0.1/$PORT" 5<>"/dev/tcp/127.0.0.1/$PORT" 6<>"/dev/tcp/127.0.0.1/$PORT" 7<>"/dev/tcp/127.0.0.1/$PORT"
expect 'one connection too many' 503 "$(curl -s -o /dev/null -w '%{http_code}' "$URL/livez")"
exec 8<>"/dev/tcp/127.0.0.1/$PORT"
expect 'before it asks for anything' 'HTTP/1.1 503 Service Unavailable' "$(timeout $HANG_S head -1 <&8 | tr -d '\r')"
expect 'also a hundred of them, none of which leaves' "$(printf '503%.0s\n' $(seq 100))" "$(
    for _ in $(seq 100); do
        exec {fd}<>"/dev/tcp/127.0.0.1/$PORT"
        timeout $HANG_S head -1 <&$fd | cut -d' ' -f2
    done)"
exec 4>&- 5>&- 6>&- 7>&- 8>&-
expect 'and when they are gone' 0 "$(eventually is_served; echo $?)"

stop_daemon
expect 'it ends cleanly after all that' 0 $?

start_daemon --set limits.header_timeout_s=1
expect 'a head that never ends is told so' 408 "$(raw 'GET / HTTP/1.1\r\nHost: localhost\r\n')"
expect 'one of bare LFs, too' 408 "$(raw 'GET /livez HTTP/1.1\nHost: localhost\n\n')"
drip() { # a byte of a header at a time, each well before the time is over
    exec 3<>"/dev/tcp/127.0.0.1/$PORT"
    printf 'GET /livez HTTP/1.1\r\nHost: localhost\r\nX: ' >&3
    until read -r -t 0.3 status <&3; do printf x >&3; done
    echo "$status" | tr -d '\r'
    exec 3<&- 3>&-
}
expect 'and one that comes byte by byte' 'HTTP/1.1 408 Request Timeout' "$(drip 2>/dev/null)"
stop_daemon
expect 'it ends cleanly' 0 $?

start_daemon --config config/tiny.jsonc --set limits.keepalive_s=1
expect 'a connection that asks for nothing more ends without a word' 200 "$(raw 'GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n')"
body='{"sequences":[{"prompt":3,"decode":2}]}'
stream() {
    exec 3<>"/dev/tcp/127.0.0.1/$PORT"
    printf 'POST /v1/workloads HTTP/1.0\r\nAccept: application/x-ndjson\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s' ${#body} "$body" >&3
    timeout $HANG_S cat <&3 | tr -d '\r'
    exec 3<&- 3>&-
}
stream >"$WORK/stream"
expect 'a stream of HTTP/1.0 is not in chunks' 0 "$(grep -ci '^transfer-encoding' "$WORK/stream")"
expect 'and ends with the connection' finished "$(tail -n 1 "$WORK/stream" | jq -r .state)"
tiny() {
    perl -MIO::Socket::INET -e '
        my $s = IO::Socket::INET->new(PeerAddr => "127.0.0.1:$ARGV[0]") or die;
        local $SIG{PIPE} = "IGNORE";
        my $head = "POST /v1/sequences HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
        my $all = $head . "1\r\n \r\n" x 400000;
        for (my $at = 0; $at < length $all;) { my $n = syswrite($s, $all, 65536, $at) or last; $at += $n; }
        print substr(<$s>, 9, 3);' "$PORT"
}
expect 'a body in 400 000 chunks of a byte' 413 "$(tiny)"
stop_daemon
expect 'it ends cleanly then' 0 $?
# Bug: each of these was "- /" in the log.
start_daemon --config config/tiny.jsonc
for head in 'NOTHING' 'POST /a?b HTTP/1.1\r\nBad Header' 'GET /c HTTP/9.9'; do
    raw "$head\r\n\r\n" >/dev/null
done
stop_daemon
expect 'the log says of a head that is refused what could be read' '- -,POST /a,GET /c' "$(sed -n 's/.* refused \(.*\) from .*/\1/p' "$WORK/log" | paste -sd,)"
finish
