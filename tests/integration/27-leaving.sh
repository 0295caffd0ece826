#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Clients that send no more, and those that are no more: the first get their answers, what was made for the others is undone.
. tests/integration/lib.sh
call() { curl -s --json "$2" "$URL$1"; }
count() { curl -s "$URL/stats" | jq .sequences.count; }
has() { [ "$(count)" = "$1" ]; }

# half PATH BODY, gone PATH BODY - send a request, then shut down the sending side and print the last status of what comes; or close.
client() {
    perl -MIO::Socket::INET -MIO::Socket::UNIX -e '
        my ($what, $where, $path, $body) = @ARGV;
        my $s = $where =~ m{^/} ? IO::Socket::UNIX->new(Peer => $where) : IO::Socket::INET->new(PeerAddr => "127.0.0.1:$where");
        $s or die;
        syswrite $s, "POST $path HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " .
            length($body) . "\r\n\r\n$body";
        exit if $what eq "gone";
        shutdown $s, 1;
        my $all = join "", <$s>;
        $all =~ s/^HTTP\/1.1 100 Continue\r\n\r\n//;
        print substr($all, 9, 3), "\n";' "$@"
}

# leave N PATH BODY - N clients ask and go, before any of them is answered.
leave() {
    kill -STOP "$DAEMON"
    for _ in $(seq "$1"); do client gone "$place" "$2" "$3"; done
    kill -CONT "$DAEMON"
}

# Rows wait for company until something is to change blocks, so there is a queue to look at.
for where in tcp unix; do
    start_daemon --config config/tiny.jsonc --set scheduler.batch_window_us=600000000 --set listen=127.0.0.1:0
    place=$PORT
    if [ $where = unix ]; then
        stop_daemon
        : >"$WORK/log" # else the daemon before is read in it (bug: the first call found no socket, and the test waited for ever)
        "$ATTND" --config config/tiny.jsonc --set scheduler.batch_window_us=600000000 --set "listen=unix:$WORK/s" 2>"$WORK/log" &
        DAEMON=$!
        eventually has_logged 'listening on'
        URL=http://localhost place=$WORK/s
        curl() { command curl -m $HANG_S --unix-socket "$WORK/s" "$@"; }
    fi
    call /v1/sequences '{"id":1}' >/dev/null
    call /v1/append '{"sequences":[1],"k":[[[1,1,1,1,1,1,1,1]]],"v":[[[1,1,1,1,1,1,1,1]]]}' >"$WORK/appended" &
    waiting=$!
    eventually are_queued '[1]'
    flush 1
    wait $waiting
    expect "$where: a client that sends no more is answered" 201 "$(client half "$place" /v1/sequences '{"id":2}')"
    q='"q":[[[1,0,0,0,0,0,0,0]]]'
    client half "$place" /v1/attend "{\"sequences\":[1],$q}" >"$WORK/half" &
    waiting=$!
    eventually are_queued '[1]'
    caught_up
    flush 1
    wait $waiting
    expect "$where: also when its call has to wait" 200 "$(cat "$WORK/half")"
    client gone "$place" /v1/append '{"sequences":[1],"k":[[[2,2,2,2,2,2,2,2]]],"v":[[[2,2,2,2,2,2,2,2]]]}'
    eventually is_alone
    flush 1
    expect "$where: the call of one that has gone is dropped" 1 "$(curl -s "$URL/v1/sequences/1" | jq .length)"
    wanted=$(call /v1/attend "{\"sequences\":[1],$q}" & eventually are_queued '[1]'; caught_up; flush 1; wait)
    call /v1/attend "{\"sequences\":[1,2],\"indptr\":[0,1,2],\"q\":[[[1,0,0,0,0,0,0,0]],[[1,0,0,0,0,0,0,0]]]}" >/dev/null &
    leaves=$!
    eventually are_queued '[1,2]'
    call /v1/attend "{\"sequences\":[1],$q}" >"$WORK/stays" &
    waiting=$!
    caught_up
    kill -9 $leaves
    wait $leaves 2>/dev/null
    flush 2
    flush 1
    wait $waiting
    expect "$where: one that goes takes nobody beside it along" "$(jq -c .o <<<"$wanted")" "$(jq -c .o "$WORK/stays")"
    before=$(call /v1/sequences '{}' | jq .id)
    leave 20 /v1/sequences '{}'
    eventually is_alone
    expect "$where: what was created for clients that have gone is undone" 0 "$(eventually has 3; echo $?)"
    expect "$where: and it was created" true "$(call /v1/sequences '{}' | jq ".id > $before")"
    leave 5 /v1/sequences/1/fork '{"count":3}'
    leave 5 /v1/leases '{"blocks":2}'
    eventually is_alone
    expect "$where: so are forks" 0 "$(eventually has 4; echo $?)"
    has_leases() { [ "$(curl -s "$URL/v1/leases" | jq '.items | length')" = "$1" ]; }
    expect "$where: and leases" 0 "$(eventually has_leases 0; echo $?)"
    expect "$where: the books balance" true "$(curl -s -X POST "$URL/v1/audit" | jq .ok)"
    stop_daemon
    expect "$where: it ends cleanly" 0 $?
done
unset -f curl

# Each has a line and is counted, as 499, which proxies use for it (bug: it was in no log and no metric).
lines() { jq -c "select(.code == \"$1\") | [.level, .method, .route, .status]" "$WORK/log"; }
has_lines() { [ "$(lines "$1" | wc -l)" = "$2" ]; }
counted() { curl -s "$URL/metrics" | sed -n "s/^attnd_http_requests_total{\(.*status=\"499\"\)} /\1 /p" | sort; }
start_daemon --config config/tiny.jsonc --set log.format=json --set scheduler.batch_window_us=600000000 --set limits.body_timeout_s=1 \
    --set "listen=[\"127.0.0.1:0\",\"unix:$WORK/t\"]"
call /v1/sequences '{"id":1}' >/dev/null
exec 3<>"/dev/tcp/127.0.0.1/$PORT"
printf 'POST /v1/batch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 5\r\n\r\n{' >&3
caught_up
exec 3>&-
eventually has_lines client_gone 1
client gone "$PORT" /v1/append '{"sequences":[1],"k":[[[2,2,2,2,2,2,2,2]]],"v":[[[2,2,2,2,2,2,2,2]]]}'
eventually has_lines client_gone 2
curl -s -N "$URL/v1/events" | head -c 1 >/dev/null
expect 'who leaves has a line' '["info","POST","/v1/batch",499] ["info","POST","/v1/append",499]' "$(lines client_gone | paste -sd' ')"
expect 'that says when' 'while its body arrived,before it was answered' "$(jq -r 'select(.code == "client_gone").msg' "$WORK/log" | sed 's/.*went away \(.*\), after.*/\1/' | paste -sd,)"
expect 'and is counted' 'method="POST",route="/v1/append",status="499" 1 method="POST",route="/v1/batch",status="499" 1' "$(counted | paste -sd' ')"
client gone "$WORK/t" /nowhere '{}'
refusals() { curl -s "$URL/metrics" | sed -n 's/^attnd_problems_total{code="not_found"} //p'; }
is_refused() { [ "$(refusals)" = 1 ]; }
eventually is_refused
expect 'a refusal that did not arrive is one, and has its line only' 1 "$(jq -c 'select(.route == null and .method)' "$WORK/log" | wc -l)"
# One who does not read an answer of more than the sockets hold.
expect 'who does not read on has a line, a warning' '["warning","GET","/openapi.json",499]' "$(
    perl -MIO::Socket::INET -e '
        my $s = IO::Socket::INET->new(PeerAddr => "127.0.0.1:$ARGV[0]") or die;
        syswrite $s, "GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n" x 100;
        sleep 600;' "$PORT" &
    eventually has_lines client_slow 1
    kill $!
    lines client_slow)"
stop_daemon
start_daemon --config config/tiny.jsonc --set log.format=json --set log.requests=all
curl -s -N "$URL/v1/events" | head -c 1 >/dev/null
eventually has_lines client_gone 1
expect 'a stream is ended by its client: that is no 499' '["info","GET","/v1/events",200]' "$(lines client_gone)"
stop_daemon
# ---- a streamed workload ends with its client (bug: it was cancelled "by request", and the request's line was at debug)
start_daemon --config config/tiny.jsonc --set log.format=json
curl -s -N -H 'X-Request-Id: whose' -H 'Accept: application/x-ndjson' --json '{"trace":[{"arrival_s":5000,"prompt":4,"decode":2}]}' "$URL/v1/workloads" | head -c 1 >/dev/null
eventually has_lines client_gone 1
expect 'the request has a line' '["info","POST","/v1/workloads",200]' "$(lines client_gone)"
eventually has_logged 'workload 1 was cancelled'
expect 'both of the workload say whose request it was' 'workload_begun workload_ended' "$(jq -r 'select(.request == "whose" and .event).event' "$WORK/log" | paste -sd' ')"
expect 'and why it has ended' 'client since its client went away' \
    "$(curl -s "$URL/v1/workloads/1" | jq -r .reason) $(jq -r 'select(.event == "workload_ended").msg' "$WORK/log" | grep -o 'since [^:]*')"
stop_daemon
finish
