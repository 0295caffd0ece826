#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Alerts and dashboard: promtool takes the rules and their tests, every alert has a test, every metric that they name is one of /metrics, and
# Prometheus understands every expression of the dashboard.
. tests/integration/lib.sh
rules=packaging/prometheus/attnd.rules.yml dashboard=packaging/grafana/attnd.json
"$ATTND" --describe metrics | awk -F'\t' '{print $1; if ($2 == "histogram") print $1 "_bucket\n" $1 "_sum\n" $1 "_count"}' | sort >"$WORK/metrics"
expressions() { jq -r '.panels[].targets[].expr, .annotations.list[].expr' $dashboard; }
named() { grep -oE '\<(attnd|process)_[a-z_]+' | sort -u; } # records have a colon

expect 'every metric of the rules is one' '' "$(comm -23 <(sed -n 's/^ *expr: //p' $rules | named) "$WORK/metrics")"
expect 'every metric of the dashboard is one' '' "$(comm -23 <(expressions | named) "$WORK/metrics")"
expect 'panels have numbers of their own, and places that do not overlap' "$(jq '.panels | length' $dashboard)" \
    "$(jq '[.panels[] | [.id, .gridPos.x, .gridPos.y]] | [(map(.[0]) | unique | length), (map(.[1:]) | unique | length)] | min' $dashboard)"
expect 'every alert has a test that it fires' '' "$(sed -n 's/.*- alert: //p' $rules | while read -r alert; do
    awk -v alert="$alert" '$0 ~ "alertname: " alert "$" {found = 1} END {exit !found}' packaging/prometheus/attnd.rules.test.yml || echo "$alert"
done)"
expect 'and one that it does not' '' "$(sed -n 's/.*- alert: //p' $rules | while read -r alert; do
    grep -q "{alertname: $alert, .*exp_alerts: \[\]}" packaging/prometheus/attnd.rules.test.yml || echo "$alert"
done)"
expect 'docs/OPERATIONS.md says what to do for every alert, and for no other' "$(sed -n 's/.*- alert: //p' $rules | sort)" \
    "$(sed -n '/^### What to do for each alert/,/^## /p' docs/OPERATIONS.md | grep '^\*\*' | grep -oE '\*\*Attnd[A-Za-z]+' | tr -d '*' | sort)"
if command -v promtool >/dev/null; then
    expect 'promtool takes the rules' 0 "$(promtool check rules $rules >"$WORK/said" 2>&1; echo $?)"
    expect 'and their tests' 0 "$(promtool test rules packaging/prometheus/attnd.rules.test.yml >"$WORK/said" 2>&1; code=$?; [ $code -eq 0 ] || cat "$WORK/said"; echo $code)"
    sed 's/eval_time: 12m/eval_time: 2m/' packaging/prometheus/attnd.rules.test.yml >"$WORK/attnd.rules.test.yml"
    cp $rules "$WORK"
    expect 'which can fail' 1 "$(promtool test rules "$WORK/attnd.rules.test.yml" >/dev/null 2>&1; echo $?)"
    { # as rules, since promtool reads no dashboard
        printf 'groups:\n  - name: dashboard\n    rules:\n'
        expressions | jq -R -r '. | gsub("\\$__rate_interval"; "1m") | gsub("\\$instance"; ".*") | @json' | awk '{printf "      - record: dashboard:%d\n        expr: %s\n", NR, $0}'
    } >"$WORK/dashboard.yml"
    expect 'and the expressions of the dashboard' 0 "$(promtool check rules "$WORK/dashboard.yml" >"$WORK/said" 2>&1; code=$?; [ $code -eq 0 ] || cat "$WORK/said"; echo $code)"
else
    lacks 'promtool: not installed'
fi
finish
