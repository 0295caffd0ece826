#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# bench_http.sh [SECONDS] - the loop by itself: GET /livez by wrk with 64 connections, beside nginx that returns as many bytes, one worker each
# on the same processor, in turn, three times SECONDS (5) each; and what a call of one row takes beyond its step, over TCP and a unix socket
# (bench_latency). Wants wrk, nginx and four processors.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/integration/lib.sh
seconds=${1:-5}
export PATH=$PATH:/usr/sbin
cpus=$(nproc)
server=0 clients=1-$((cpus > 8 ? 7 : cpus - 1))

rate() { taskset -c "$clients" wrk -t 3 -c 64 -d "${seconds}s" "$1/livez" | awk '/Requests\/sec/ {print $2} /Non-2xx/ {print "failed"}' | paste -sd' '; }
if command -v wrk >/dev/null && command -v nginx >/dev/null; then
    port=$(perl -MIO::Socket::INET -e 'print IO::Socket::INET->new(Listen => 1, LocalAddr => "127.0.0.1:0")->sockport')
    cat >"$WORK/nginx.conf" <<CONF
worker_processes 1;
pid $WORK/nginx.pid;
error_log stderr error;
events { worker_connections 1024; }
http {
    access_log off;
    keepalive_requests 1000000000;
    client_body_temp_path $WORK/body;
    proxy_temp_path $WORK/proxy;
    fastcgi_temp_path $WORK/fastcgi;
    uwsgi_temp_path $WORK/uwsgi;
    scgi_temp_path $WORK/scgi;
    server {
        listen 127.0.0.1:$port;
        location / { default_type application/json; return 200 '{"status":"live"}\n'; }
    }
}
CONF
    taskset -c $server nginx -p "$WORK" -c "$WORK/nginx.conf" -g 'daemon off; master_process off;' 2>"$WORK/nginx.log" &
    nginx=$!
    start_daemon --config config/tiny.jsonc --backend cpu --set backend.threads=1
    taskset -acp $server "$DAEMON" >/dev/null
    answers() { curl -s "http://127.0.0.1:$port/livez" >/dev/null || ! kill -0 "$nginx"; }
    eventually answers
    kill -0 "$nginx" || cat "$WORK/nginx.log"
    for round in 1 2 3; do
        echo "http: requests a second, round $round: attnd $(rate "$URL"), nginx $(rate "http://127.0.0.1:$port")"
    done
    kill $nginx
    wait $nginx 2>/dev/null
    stop_daemon
else
    echo 'http: skip /livez: wrk and nginx are not both here'
fi

export ATTND
"${ATTND%/attnd}/bench/bench_latency"
