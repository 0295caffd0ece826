#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_systemd.sh - the Debian package under systemd, which boots in a bare Debian: start, reload, watchdog, crash, wrong configuration, an address that is taken, upgrade, sockets, removal.
#
#   BASE=DIR   a bare Debian 12 (debootstrap --variant=minbase bookworm DIR), which is copied; without it one is made
#   BUILD=build/release
#
# Wants root, systemd-nspawn, debootstrap and Debian's archive; the kernel has to let root mount. The machine itself need not run systemd.
set -u
cd "$(dirname "$0")/.." || exit 1
BUILD=${BUILD:-build/release}
. scripts/check_lib.sh
needs package debootstrap systemd-nspawn nsenter dpkg-deb jq
export DEBFULLNAME='A. Maintainer' DEBEMAIL=maintainer@debian.org
nspawn=
root=$work/debian
end() {
    [ -z "$nspawn" ] || { kill "$nspawn" 2>/dev/null && wait "$nspawn" 2>/dev/null; }
}
clean=(/usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C)
inside() { nsenter --target "$init" --mount --uts --ipc --net --pid --root --wd "${clean[@]}" "$@"; }
until_true() { # COMMAND... - wait for what systemd does by itself; what hangs is ended by whoever waits for this script
    for _ in $(seq 6000); do
        "$@" >/dev/null 2>&1 && return
        sleep 0.1
    done
    return 1
}
property() { inside systemctl show attnd "--property=$1" --value; }
is() { [ "$(property "$1")" = "$2" ]; }
another_pid() { ! is MainPID "$pid" && is ActiveState active; } # in this order: it is active still when the process ends
ask() { inside curl -s "$@"; }
url=http://127.0.0.1:8400
seen() { inside attnctl --url $url attend 7 --json | jq -c .o | sha256sum; } # what K and V give
make_one() { # of 40 tokens, whose K and V give $held
    ask -o /dev/null --json '{"id":7,"max_tokens":64}' $url/v1/sequences
    inside attnctl --url $url append 7 --count 40 >"$work/said" 2>&1
    held=$(seen)
}
logged() { inside journalctl --unit attnd --no-pager --output cat --grep "$1" >/dev/null; }

BUILD=$BUILD REVISION=1 bash scripts/make_deb.sh >"$work/first" || exit 1
BUILD=$BUILD REVISION=2 bash scripts/make_deb.sh >"$work/second" || exit 1
first=$(tail -1 "$work/first") second=$(tail -1 "$work/second")

# ---- boot, and install what needs the network before
bare_debian "$root" || exit 1
cp /etc/resolv.conf "$root/etc/resolv.conf"
cp "$first" "$second" "$root/root/"
{
    chroot "$root" "${clean[@]}" apt-get update -q &&
        chroot "$root" "${clean[@]}" apt-get install -y -q --no-install-recommends systemd systemd-sysv dbus curl &&
        chroot "$root" "${clean[@]}" apt-get satisfy -y -q --no-install-recommends "$(dpkg-deb --field "$first" Depends)"
} >"$work/said" 2>&1 || { tail -5 "$work/said"; exit 1; }
systemd-nspawn --directory="$root" --boot --register=no --keep-unit --private-network --machine=attnd-check --link-journal=no --console=pipe </dev/null >"$work/boot" 2>&1 &
nspawn=$!
has_init() { init=$(pgrep --parent $nspawn | head -n 1) && [ -n "$init" ] && inside systemctl is-system-running --wait; }
until_true has_init
expect 'systemd has booted' running "$(inside systemctl is-system-running)"
inside dpkg -i "/root/${first##*/}" >"$work/said" 2>&1
expect 'the package is installed' 0 $?

# ---- start
expect 'it runs, and will at the next boot' 'active enabled' "$(property ActiveState) $(property UnitFileState)"
expect 'it has said when it was ready, and what it does' "notify serving on $url" "$(property Type) $(property StatusText)"
pid=$(property MainPID)
expect 'its status is 200' 200 "$(ask -o /dev/null -w '%{http_code}' $url/readyz)"
status() { inside sed -n "s/^$1:[[:space:]]*//p" "/proc/$pid/status" | cut -f1; }
expect 'as its user, without capabilities, with the filter' "$(inside id -u attnd) 0000000000000000 2 1" "$(status Uid) $(status CapEff) $(status Seccomp) $(status NoNewPrivs)"
expect 'systemd-analyze: 3.0 at most' yes "$(inside systemd-analyze security --no-pager attnd 2>&1 | awk '/Overall exposure/ {for (i = 1; i < NF; i++) if ($i == "attnd.service:") print ($(i + 1) <= 3.0 ? "yes" : $(i + 1))}')"
expect 'its folders' 'attnd 700 attnd 700 attnd 755' "$(inside stat -c '%U %a' /var/lib/attnd /var/cache/attnd /run/attnd | paste -sd' ')"
make_one
expect 'a sequence has K and V' 40 "$(ask $url/v1/sequences/7 | jq .length)"

# ---- reload and restart
inside systemctl reload attnd
expect 'a reload is no restart' "0 $pid" "$? $(property MainPID)"
inside systemctl restart attnd
expect 'a restart keeps K and V, to the bit' "$held" "$(seen)"

# ---- keys: a reload that refuses them fails, and signals nothing
inside cp /etc/attnd/attnd.jsonc /root/right.jsonc
inside sed -i 's|^  "state":|  "keys": { "file": "/etc/attnd/keys.json" },\n&|' /etc/attnd/attnd.jsonc
made=$(inside attnctl --json key new search infer)
jq '{keys: [.entry]}' <<<"$made" >"$work/keys"
put_keys() { inside sh -c 'umask 077; cat >/etc/attnd/keys.json; chown attnd: /etc/attnd/keys.json' <"$1"; }
put_keys "$work/keys"
inside systemctl restart attnd
with_key() { ask -o /dev/null -w '%{http_code}' -H "Authorization: Bearer $(jq -r .key <<<"$made")" $url/stats; }
expect 'with keys it wants one' '200 401' "$(with_key) $(ask -o /dev/null -w '%{http_code}' $url/stats)"
pid=$(property MainPID)
echo '{"keys": [' >"$work/broken"
put_keys "$work/broken"
inside systemctl reload attnd >"$work/said" 2>&1
expect 'a keys file that is refused fails the reload' "1 active $pid" "$? $(property ActiveState) $(property MainPID)"
expect 'its journal says why, and nothing was signalled' 'yes no' \
    "$(logged 'keys.file: /etc/attnd/keys.json: line 2, column 1' && echo yes) $(logged SIGHUP && echo yes || echo no)"
expect 'the daemon has the keys of before' 200 "$(with_key)"
put_keys "$work/keys"
inside systemctl reload attnd
expect 'mended, the reload reads them' "0 $pid 200" "$? $(property MainPID) $(with_key)"
has_read() { logged 'SIGHUP: 1 key'; }
until_true has_read
expect 'and says so' yes "$(has_read && echo yes)"
inside rm /etc/attnd/keys.json
inside cp /root/right.jsonc /etc/attnd/attnd.jsonc
inside systemctl restart attnd

# ---- what ends badly
pid=$(property MainPID)
inside sh -c "kill -KILL $pid"
until_true another_pid
expect 'killed, it is started again' 'active 1' "$(property ActiveState) $(property NRestarts)"
inside mkdir /run/systemd/system/attnd.service.d
printf '[Service]\nWatchdogSec=2\n' >"$work/drop-in"
inside sh -c 'cat >/run/systemd/system/attnd.service.d/watchdog.conf' <"$work/drop-in"
inside systemctl daemon-reload
inside systemctl restart attnd
pid=$(property MainPID)
inside sh -c "kill -STOP $pid"
until_true another_pid
expect 'one that hangs is ended by the watchdog, and started again' yes "$(logged 'Watchdog timeout' && is ActiveState active && echo yes)"
inside rm /run/systemd/system/attnd.service.d/watchdog.conf
inside sh -c 'echo "{\"pool\":{\"blokcs\":1}}" >/etc/attnd/attnd.jsonc'
inside systemctl daemon-reload
inside systemctl restart attnd >"$work/said" 2>&1
until_true is ActiveState failed
expect 'a wrong configuration is not tried again' 'failed 78 0' "$(property ActiveState) $(property ExecMainStatus) $(property NRestarts)"
expect 'and says what is wrong' yes "$(logged 'did you mean pool.blocks' && echo yes)"
inside cp /root/right.jsonc /etc/attnd/attnd.jsonc
inside systemctl reset-failed attnd
inside systemctl start attnd
expect 'mended, it starts' active "$(property ActiveState)"
inside systemctl stop attnd
inside systemd-run --quiet --collect --unit=other --property=Type=notify /usr/bin/attnd --set listen=127.0.0.1:8400 >"$work/said" 2>&1
inside systemctl start --no-block attnd
tried_often() { [ "$(property NRestarts)" -gt 5 ] || is ActiveState failed; }
until_true tried_often
expect 'an address that is taken is tried again, beyond the start limit' 'activating yes' "$(property ActiveState) $(logged 'status=69/' && echo yes)"
inside systemctl stop other
until_true is ActiveState active
expect 'and when it is free, the daemon runs' active "$(property ActiveState)"

# ---- upgrade
make_one
pid=$(property MainPID)
inside dpkg -i "/root/${second##*/}" >"$work/said" 2>&1
expect 'it is upgraded, and another process' '0 yes' "$? $(another_pid && echo yes)"
expect 'K and V are there, to the bit' "$held" "$(seen)"

# ---- a socket that systemd holds: who comes while the daemon is away waits for it
inside sh -c 'printf "[Socket]\nListenStream=127.0.0.1:8500\n" >/run/systemd/system/attnd.socket'
inside sh -c 'printf "[Service]\nExecStart=\nExecStart=/usr/bin/attnd --config /etc/attnd/attnd.jsonc --set listen=fd:3\n" >/run/systemd/system/attnd.service.d/socket.conf'
inside systemctl daemon-reload
inside systemctl stop attnd
inside systemctl start attnd.socket
expect 'a client starts it' '200 active' "$(ask -o /dev/null -w '%{http_code}' http://127.0.0.1:8500/livez) $(property ActiveState)"
pid=$(property MainPID)
inside sh -c "kill -KILL $pid"
expect 'and after a crash the next one is answered' '200 yes' "$(ask -o /dev/null -w '%{http_code}' --retry 20 http://127.0.0.1:8500/livez) $(another_pid && echo yes)"
inside systemctl stop attnd.socket attnd
inside rm /run/systemd/system/attnd.socket /run/systemd/system/attnd.service.d/socket.conf
inside systemctl daemon-reload
inside systemctl start attnd
make_one

# ---- stop, remove and purge
inside systemctl stop attnd
expect 'it stops cleanly' 'inactive success' "$(property ActiveState) $(property Result)"
inside dpkg -r attnd >"$work/said" 2>&1
expect 'removed, it is unknown to systemd, and what it saved is there' 'masked yes' "$(property LoadState) $(inside test -s /var/lib/attnd/snapshot && echo yes)"
inside dpkg -i "/root/${second##*/}" >"$work/said" 2>&1
expect 'installed again, it runs and has it' "active $held" "$(property ActiveState) $(seen)"
inside dpkg -P attnd >"$work/said" 2>&1
expect 'purged, nothing is left' '0 not-found' "$? $(property LoadState)"
expect 'nor a folder' '' "$(inside ls -d /etc/attnd /var/lib/attnd /var/cache/attnd /run/attnd 2>/dev/null)"

verdict 30
