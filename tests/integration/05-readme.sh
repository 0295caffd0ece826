#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every command of the README's session, in order, against its printed output. (The daemon listens on a free port instead of
# 8400; the session shows no times or figures of the machine, so nothing needs masking.)
. tests/integration/lib.sh
start_daemon --config config/tiny.jsonc
sed -n '/^## A first look/,/^## Configuration/p' README.md >"$WORK/session"
check_session README "$WORK/session"
stop_daemon
expect 'it ends cleanly' 0 $?
finish
