#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh [TEST...] - the page in a headless Chromium, and what it computes under node. Tools are named by their paths in Debian; one that is
# missing is a failure (bash bootstrap check-browser installs them). The last line: N passed, N failed, N skipped.
set -u
cd "$(dirname "$0")/../.." || exit 1
export ATTND=$PWD/build/${MODE:-release}/attnd PYTHONPATH=tests/browser PYTHONDONTWRITEBYTECODE=1
for tool in /usr/bin/chromium /usr/bin/chromedriver /usr/bin/node /usr/bin/curl /usr/sbin/haproxy /usr/bin/openssl; do
    [ -x $tool ] || { echo "not ok $tool is not installed: bash bootstrap check-browser"; exit 1; }
done
/usr/bin/python3 -c 'import selenium' || { echo 'not ok python3-selenium is not installed: bash bootstrap check-browser'; exit 1; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
/usr/bin/node --test --test-reporter=tap tests/browser/pure.test.mjs | sed -n 's/^\(not \)\{0,1\}ok [0-9]* - /\1ok pure.js: /p' | tee "$log"
for test in "${@:-tests/browser/test_*.py}"; do
    for script in $test; do
        echo "-- $script"
        /usr/bin/python3 "$script" | tee -a "$log"
        [ "${PIPESTATUS[0]}" -eq 0 ] || grep -q '^not ok' "$log" || echo "not ok $script ends well" | tee -a "$log"
    done
done
failed=$(grep -c '^not ok' "$log")
echo "$(grep -c '^ok' "$log") passed, $failed failed, $(grep -c '^skip' "$log") skipped"
[ "$failed" -eq 0 ]
