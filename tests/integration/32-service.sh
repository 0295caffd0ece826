#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a service manager and the daemon say to each other: readiness, the watchdog, the end; and sockets that are handed over.
. tests/integration/lib.sh
export WORK URL

keep_notes
noted() { grep -q "$1" "$WORK/notes"; }
export NOTIFY_SOCKET=$WORK/notify WATCHDOG_USEC=3000000
start_daemon --config config/tiny.jsonc
expect 'it says when it is ready, and where' 0 "$(eventually noted "^READY=1 STATUS=serving on $URL\$"; echo $?)"
expect 'it feeds the watchdog' 0 "$(eventually noted '^WATCHDOG=1$'; echo $?)"
stop_daemon
expect 'it says that it ends, and how long that may take' 0 "$(eventually noted '^STOPPING=1 STATUS=draining: 0 s for clients, then 25 s for what is under way EXTEND_TIMEOUT_USEC=35000000$'; echo $?)"
kill $listener
wait $listener 2>/dev/null
# Of a daemon that has said STOPPING=1 systemd waits for the end, and sends no SIGTERM: a lame duck that was asked for is no such.
rm "$WORK/notify"
keep_notes
start_daemon --config config/tiny.jsonc --set drain.lame_duck_s=1
curl -s -o /dev/null --json '{"lame_duck_s":3000}' "$URL/v1/drain"
expect 'a lame duck that was asked for can be ended by a signal: systemd has to send it' '0 0' \
    "$(eventually noted '^STATUS=draining: clients are served for 3000 s more$'; echo $?) $(grep -c STOPPING "$WORK/notes")"
stop_daemon
expect 'which ends it, as the first one (bug: at once, and nothing was saved)' 0 $?
expect 'and says for how long' 0 "$(eventually noted '^STOPPING=1 STATUS=draining: 1 s for clients, then 25 s for what is under way EXTEND_TIMEOUT_USEC=36000000$'; echo $?)"
kill $listener
unset NOTIFY_SOCKET WATCHDOG_USEC

# Sockets that listen already, as fd:3 and fd:4: TCP and unix.
handed() { # ARG... - the daemon with both
    exec perl -MIO::Socket::INET -MIO::Socket::UNIX -MPOSIX -e '
        my $tcp = IO::Socket::INET->new(Listen => 5, LocalAddr => "127.0.0.1:0") or die;
        my $unix = IO::Socket::UNIX->new(Listen => 5, Local => "$ENV{WORK}/handed") or die;
        my ($a, $b) = (POSIX::dup2(fileno($tcp), 20), POSIX::dup2(fileno($unix), 21));
        POSIX::dup2(20, 3); POSIX::dup2(21, 4); POSIX::close(20); POSIX::close(21);
        @ENV{qw(LISTEN_FDS LISTEN_PID)} = (2, $$);
        exec @ARGV;' "$ATTND" --config config/tiny.jsonc "$@" 2>"$WORK/log"
}
handed --set 'listen=["fd:3","fd:4"]' &
DAEMON=$!
listens_on_both() { [ "$(grep -c 'listening on' "$WORK/log")" = 2 ]; }
eventually listens_on_both
URL=$(sed -n 's/.*listening on \(http.*\)/\1/p' "$WORK/log")
expect 'a TCP socket that was handed over' 200 "$(curl -s -o /dev/null -w '%{http_code}' "$URL/livez")"
expect 'a unix socket' 200 "$(curl -s -o /dev/null -w '%{http_code}' --unix-socket "$WORK/handed" http://localhost/livez)"
expect 'loopback names only, there too' 403 "$(curl -s -o /dev/null -w '%{http_code}' -H 'Host: example.org' "$URL/livez")"
stop_daemon
expect 'it ends cleanly' 0 $?
expect 'and leaves the file of a socket that is not its own' yes "$([ -S "$WORK/handed" ] && echo yes)"
rm "$WORK/handed"
(handed --set 'listen=["fd:5"]')
expect 'one that was not' '78 attnd: listen: fd:5: no such socket was handed over (LISTEN_FDS counts them, from fd:3 on): "fd:5"' "$? $(tail -1 "$WORK/log")"
expect 'of another process' 78 "$(LISTEN_FDS=1 LISTEN_PID=1 "$ATTND" --set listen=fd:3 2>/dev/null; echo $?)"

# The unit: what is not there yet is tried again as long as it takes, a wrong configuration is not.
mkdir "$WORK/bin"
ln -s "$(realpath "$ATTND")" "$WORK/bin/attnd"
sed "s|@PREFIX@|$WORK|g" packaging/attnd.service.in >"$WORK/attnd.service"
if command -v systemd-analyze >/dev/null; then
    expect 'systemd takes the unit' '0 ' "$(systemd-analyze verify --man=no "$WORK/attnd.service" >"$WORK/said" 2>&1; echo "$? $(grep -F attnd "$WORK/said")")"
else
    lacks 'verify the unit: systemd-analyze is not installed'
fi
of_unit() { sed -n "s/^$1=//p" "$WORK/attnd.service"; }
expect 'it waits for addresses' 'network-online.target yes' "$(of_unit Wants) $(of_unit After | grep -qw network-online.target && echo yes)"
expect '78 is not tried again; all else is, without a limit' '78 on-failure 0' "$(of_unit RestartPreventExitStatus) $(of_unit Restart) $(of_unit StartLimitIntervalSec)"
expect 'a reload checks the keys of its configuration before it signals' \
    "$(of_unit ExecStart) --check-keys|/bin/sh -c 'kill -HUP \${MAINPID}'" "$(of_unit ExecReload | paste -sd'|')"
finish
