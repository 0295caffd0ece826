#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_container.sh - each line of packaging/container/Containerfile, in chroots, where no builder of images is there; then the daemon as the image
# starts it: its user, no capabilities, a root that is read-only.
#
#   BASE=DIR   a bare Debian 12 (debootstrap --variant=minbase bookworm DIR), which is copied; without it one is made
#   GPU=1      the image for GPUs
set -eu
cd "$(dirname "$0")/.."
. scripts/check_lib.sh
needs package debootstrap python3
file=packaging/container/Containerfile
daemon=
end() { [ -z "$daemon" ] || kill -9 "$daemon" 2>/dev/null || true; }

[ -n "${BASE:-}" ] || { bare_debian "$work/base" && BASE=$work/base; }
root=$work stage='' stages=0 user=0:0 entry='' environment=() arguments=()
declare -A named=()
# Arguments of the build, as ARG has them without a value of ours.
GPU=${GPU:-} COMMIT=$(bash scripts/version.sh commit)
inside() { chroot --userspec="$user" "$root" /usr/bin/env -i "${arguments[@]}" PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive LC_ALL=C "$@"; }
run_line() { # INSTRUCTION REST
    local rest=$2 from
    case $1 in
        FROM)
            stages=$((stages + 1))
            stage=${rest##* AS }
            root=$work/stage$stages user=0:0 environment=() arguments=()
            cp -a "$BASE" "$root"
            cp /etc/resolv.conf "$root/etc/resolv.conf"
            with_authorities "$root"
            printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
            chmod +x "$root/usr/sbin/policy-rc.d"
            named[$stage]=$root
            ;;
        RUN) inside /bin/sh -c "$rest" >"$work/said" 2>&1 ;;
        COPY)
            if [[ $rest == --from=* ]]; then
                from=${named[$(sed 's/^--from=\([^ ]*\) .*/\1/' <<<"$rest")]}
                set -- ${rest#* }
                cp -a "$from$1/." "$root$2"
            else
                set -- $rest
                mkdir -p "$root$2"
                tar -c --exclude-vcs --exclude=./build --exclude=./shared -C "$1" . | tar -x --no-same-owner -C "$root$2"
            fi
            ;;
        ENV) eval "environment+=(\"$rest\")" ;;
        ARG)
            rest=${rest%%=*}
            [ "$rest" = BASE ] || arguments+=("$rest=${!rest}")
            ;;
        USER) user=$rest ;;
        ENTRYPOINT) entry=$rest ;;
        VOLUME | EXPOSE | STOPSIGNAL | LABEL) ;;
        *) echo "check-container: $1 is not known here" >&2 && return 1 ;;
    esac
}
while read -r instruction rest; do
    code=0
    run_line "$instruction" "$rest" || code=$?
    expect "$instruction ${rest:0:90}" 0 $code
    [ $code -eq 0 ] || { tail -20 "$work/said"; exit 1; }
done < <(grep -vE '^(#|$)' $file)

expect 'the base is pinned to a day' 1 "$(grep -cE '^ARG BASE=.*debian:bookworm-[0-9]{8}(-slim)?$' $file)"
expect "and what runs has Debian's updates since that day" 1 "$(sed '1,/^FROM ${BASE}$/d' $file | grep -c '^RUN apt-get update .*&& apt-get upgrade -y ')"
expect 'the daemon knows its commit, and has a CUDA backend if it is to' "($COMMIT) $([ -z "$GPU" ] && echo not || echo built)" \
    "$(inside attnd --version | awk 'NR == 1 {commit = $3} /^CUDA:/ {print commit, $2}')"
expect 'and NVRTC' "$([ -z "$GPU" ] || echo /usr/lib/libnvrtc.so.13)" "$(cd "$root" && find usr/lib -maxdepth 1 -name 'libnvrtc.so.*' -printf '/%p')"
expect 'GPUs are asked for' "${GPU:+all}" "$(printf '%s\n' "${environment[@]}" | sed -n 's/^NVIDIA_VISIBLE_DEVICES=//p')"
[ -z "$GPU" ] || expect 'which compiles kernels' 0 "$(inside attnd --compile-kernels --arch sm_90a --set backend.cache=/var/cache/attnd >"$work/said" 2>&1; echo $?)"
expect 'it is not root' yes "$([ "${user%%:*}" -gt 0 ] && echo yes)"
expect 'no compiler is in the image' no "$([ -e "$root/usr/bin/gcc" ] && echo yes || echo no)"

# As a runtime starts it: the root read-only, /tmp and /run/attnd in memory, the volume writable; a network of its own.
cat >"$work/start.py" <<'PYTHON'
import ctypes, json, os, socket, struct, sys
root, user, entry = sys.argv[1], [int(x) for x in sys.argv[2].split(":")], json.loads(sys.argv[3])
libc = ctypes.CDLL(None, use_errno=True)
def call(rc, what):
    if rc: raise OSError(ctypes.get_errno(), what)
def mount(a, b, kind, flags, data=None):
    call(libc.mount(a.encode(), b.encode(), kind and kind.encode(), ctypes.c_ulong(flags), data and data.encode()), "mount " + b)
call(libc.unshare(0x00020000 | 0x40000000), "unshare")
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    libc.ioctl(s.fileno(), 0x8914, struct.pack("16sh22x", b"lo", 65))
mount("none", "/", None, 16384 | 1 << 18)
mount(root, root, None, 4096)
mount(root + "/var/lib/attnd", root + "/var/lib/attnd", None, 4096)
mount("none", root, None, 32 | 4096 | 1)
mount("tmpfs", root + "/tmp", "tmpfs", 6, "mode=1777")
mount(sys.argv[4], root + "/run/attnd", None, 4096)
mount("proc", root + "/proc", "proc", 6)
mount("/dev/null", root + "/dev/null", None, 4096)
os.chroot(root); os.chdir("/")
for capability in range(64):
    if libc.prctl(24, capability, 0, 0, 0): break
os.setgroups([]); os.setresgid(user[1], user[1], user[1]); os.setresuid(user[0], user[0], user[0])
libc.prctl(38, 1, 0, 0, 0)
os.execve(entry[0], entry + sys.argv[5:], dict(pair.split("=", 1) for pair in os.environ["IMAGE_ENV"].split("\n") if pair) | {"PATH": "/usr/bin:/bin"})
PYTHON
mkdir "$work/run"
chown "$user" "$work/run"
IMAGE_ENV=$(printf '%s\n' "${environment[@]}") python3 "$work/start.py" "$root" "$user" "$entry" "$work/run" \
    --set 'listen=["127.0.0.1:8400","unix:/run/attnd/test"]' --state-dir /var/lib/attnd 2>"$work/log" &
daemon=$!
ask() { curl -s --unix-socket "$work/run/test" "$@"; }
answers() { [ "$(ask -o /dev/null -w '%{http_code}' http://localhost/readyz)" = 200 ]; }
until answers; do kill -0 $daemon 2>/dev/null || { cat "$work/log"; break; }; sleep 0.05; done
expect 'it starts with a read-only root' '{"status":"ready"}' "$(ask http://localhost/readyz)"
expect 'as its user' "${user%%:*}" "$(awk '/^Uid:/ {print $2}' "/proc/$daemon/status")"
ask -o /dev/null --json '{"id":7,"max_tokens":8}' http://localhost/v1/sequences
kill -TERM $daemon
code=0
wait $daemon || code=$?
daemon=
expect 'it ends cleanly' 0 $code
expect 'and has saved into its volume' yes "$([ -s "$root/var/lib/attnd/snapshot" ] && echo yes)"
verdict 1
