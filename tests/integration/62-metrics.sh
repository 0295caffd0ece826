#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# /metrics: the table is what is shown; answers are counted by route and status, with how long they took; connections, the drain and the
# process; promtool, where it is, finds nothing wrong.
. tests/integration/lib.sh
metric() { grep -F "$1 " "$WORK/metrics" | awk -v name="$1" 'substr($0, 1, length(name)) == name {print $NF}'; }
look() { curl -s "$URL/metrics" >"$WORK/metrics"; }
manage() { curl -s --unix-socket "$WORK/manage" "http://localhost$1"; }
status() { curl -s -o /dev/null -w '%{http_code}' "$@"; }

start_daemon --config config/tiny.jsonc --set management.listen="unix:$WORK/manage" --set limits.connections=3 --set drain.lame_duck_s=3600 --set drain.deadline_s=0
expect 'requests of several kinds' '200 200 201 404 404 405 400' "$(status "$URL/livez") $(status "$URL/livez") $(status -X POST "$URL/v1/sequences") \
$(status "$URL/v1/sequences/77") $(status "$URL/nothing") $(status -X DELETE "$URL/livez") $(status "$URL/v1/sequences?limit=x" | sed s/422/400/)"
look
expect 'the families are those of the table' '' "$(diff <(sed -n 's/^# TYPE \([^ ]*\) \([a-z]*\)$/\1 \2/p' "$WORK/metrics") <("$ATTND" --describe metrics | awk -F'\t' '{print $1, $2}'))"
expect 'labels, too' '' "$("$ATTND" --describe metrics | awk -F'\t' '$3 != "" && $3 !~ /^key/ && $2 != "histogram" {print $1 "\t" $3}' | while IFS=$'\t' read -r name labels; do
    shown=$(grep -m1 -F "$name{" "$WORK/metrics" | grep -oE '[a-z_]+="' | tr -d '="' | paste -sd, | sed 's/,/, /g')
    [ "$shown" = "$labels" ] || echo "$name: $shown, not $labels"
done)"
expect 'values of labels that have a fixed set are in the description' '' "$(for label in state pass listener; do
    sed -n "s/^\([a-z_]*\){$label=\"\([a-z]*\)\"}.*/\1 \2/p" "$WORK/metrics"
done | sed 's/refused/accepted/' | while read -r name value; do
    "$ATTND" --describe metrics | grep "^$name	" | grep -qw "$value" || echo "$name: $value"
done)"
expect 'the build is that of /v1/info and --version' "$(curl -s "$URL/v1/info" | jq -r .commit) $("$ATTND" --version | sed -n '1s/.*(\([^)]*\)).*/\1/p')" \
    "$(sed -n 's/^attnd_build_info{.*commit="\([^"]*\)".*/\1/p' "$WORK/metrics" | sed 's/.*/& &/')"
expect 'answers by route and status' '2 1 1 2 1' "$(metric 'attnd_http_requests_total{method="GET",route="/livez",status="200"}') \
$(metric 'attnd_http_requests_total{method="POST",route="/v1/sequences",status="201"}') \
$(metric 'attnd_http_requests_total{method="GET",route="/v1/sequences/{id}",status="404"}') \
$(($(metric 'attnd_http_requests_total{method="none",route="none",status="404"}') + $(metric 'attnd_http_requests_total{method="none",route="none",status="405"}'))) \
$(metric 'attnd_http_requests_total{method="GET",route="/v1/sequences",status="422"}')"
expect 'with how long they took' '2 2' "$(metric 'attnd_http_request_duration_seconds_bucket{method="GET",route="/livez",le="+Inf"}') \
$(metric 'attnd_http_request_duration_seconds_count{method="GET",route="/livez"}')"
expect 'which is some time' yes "$(metric 'attnd_http_request_duration_seconds_sum{method="GET",route="/livez"}' | awk '{print ($1 > 0 ? "yes" : "no")}')"
expect 'buckets of a histogram only grow' '' "$(awk '/_bucket[{]/ {
    series = $1; sub(/,?le="[^"]*"/, "", series)
    if (series == before && $2 < last) print $0
    before = series; last = $2 }' "$WORK/metrics")"
work() { for name in tokens_appended query_rows prompt_tokens prompt_tokens_cached; do metric "attnd_${name}_total"; done | paste -sd' '; }
curl -s -o /dev/null -N -H 'Accept: application/x-ndjson' --json '{"sequences":[{"count":2,"prompt":8,"decode":20}]}' "$URL/v1/workloads"
look
expect 'steps by what they took are all of them' "$(metric attnd_steps_total)" "$(metric attnd_step_duration_seconds_count)"
expect 'what a workload has appended and attended is counted' '56 40 16 0' "$(work)"
expect 'and there were some' yes "$(metric attnd_steps_total | awk '{print ($1 > 0 ? "yes" : "no")}')"
expect 'a malformed request is counted' 1 "$(printf 'NONSENSE\r\n\r\n' | perl -MIO::Socket::INET -e '
    my $s = IO::Socket::INET->new("127.0.0.1:$ENV{PORT}") or die; print $s join("", <STDIN>); my @a = <$s>;'; look
    metric 'attnd_http_requests_total{method="none",route="none",status="400"}')"

# ---- what clients do: a token counts once, a retry not again, a prompt as far as it was cached
row='[[1,0,0,0,0,0,0,0]]'
make() { curl -s -o /dev/null --json "{\"id\":$1,\"tokens\":[1,2,3,4,5]}" "$URL/v1/sequences"; }
make 7
for retry in 0 1; do
    expect "four tokens, asked $((retry + 1)) times" 200 "$(status --json "{\"sequences\":[7],\"positions\":[0],\"indptr\":[0,4],\"k\":[$row,$row,$row,$row],\"v\":[$row,$row,$row,$row]}" "$URL/v1/append")"
done
make 8
expect 'a query' 200 "$(status --json "{\"sequences\":[7],\"q\":[$row]}" "$URL/v1/attend")"
look
expect 'tokens, queries, prompts and what was cached of these are counted' "$((56 + 4)) $((40 + 1)) $((16 + 10)) $((0 + 4))" "$(work)"
expect 'under the names that vLLM has, too' '26 4' \
    "$(metric 'vllm:prefix_cache_queries_total{model_name="attnd",engine="0"}') $(metric 'vllm:prefix_cache_hits_total{model_name="attnd",engine="0"}')"
expect 'the waits of calls are counted' '3 3' "$(metric 'attnd_call_queue_seconds_bucket{le="+Inf"}') $(metric attnd_call_queue_seconds_count)"
expect 'refusals by code: all that there are' 'invalid 1,malformed 1,method_not_allowed 1,not_found 2' \
    "$(sed -n 's/^attnd_problems_total{code="\(.*\)"} \([1-9].*\)/\1 \2/p' "$WORK/metrics" | sort | paste -sd,)"
expect 'codes that were not needed are there, too' 0 "$(metric 'attnd_problems_total{code="blocks_exhausted"}')"

# ---- names that others know
expect 'the pool in use, as vLLM has it' yes "$(metric 'vllm:kv_cache_usage_perc{model_name="attnd",engine="0"}' | awk -v held="$(metric 'attnd_blocks{state="held"}')" \
    -v fenced="$(metric 'attnd_blocks{state="fenced"}')" '{print ($1 - (held + fenced) / 64) ^ 2 < 1e-12 ? "yes" : "no: " $1}')"
expect 'the process has started' yes "$(metric process_start_time_seconds | awk -v now="$(date +%s)" '{print ($1 <= now && $1 > now - 86400 ? "yes" : "no: " $1)}')"
expect 'has files open' yes "$(metric process_open_fds | awk -v there="$(find "/proc/$DAEMON/fd" -mindepth 1 | wc -l)" '{print ($1 >= 3 && $1 <= there + 8 && $1 >= there - 8 ? "yes" : "no: " $1 " of " there)}')"
expect 'and memory' yes "$(metric process_resident_memory_bytes | awk '{print ($1 > 1e6 ? "yes" : "no: " $1)}')"

# ---- connections
for i in 3 4 5; do eval "exec $i<>/dev/tcp/127.0.0.1/$PORT"; done
refused() { [ "$(manage /metrics | sed -n 's/^attnd_connections_refused_total{listener="clients"} //p')" -ge 1 ]; }
too_many() { status "$URL/livez" >/dev/null; refused; }
expect 'a connection too many is counted' 0 "$(eventually too_many; echo $?)"
for i in 3 4 5; do eval "exec $i>&-"; done
eventually is_alone

# ---- the drain
expect 'it is not draining' 0 "$(manage /metrics | sed -n 's/^attnd_draining //p')"
curl -s -o /dev/null -X POST "$URL/v1/drain"
expect 'then it is' 1 "$(manage /metrics | sed -n 's/^attnd_draining //p')"
if command -v promtool >/dev/null; then
    manage /metrics | grep -v "vllm:" >"$WORK/metrics" # whose colons are vLLM's own
    expect 'promtool finds nothing wrong' '' "$(promtool check metrics <"$WORK/metrics" 2>&1)"
else
    lacks 'promtool: not installed'
fi
kill -9 "$DAEMON" # it serves for an hour more
wait "$DAEMON" 2>/dev/null
DAEMON=
finish
