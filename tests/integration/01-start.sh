#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Starting, asking who it is, stopping; and what attnd says when it cannot start.
. tests/integration/lib.sh

start_daemon
expect 'it lives' '{"status":"live"}' "$(curl -s "$URL/livez")"
expect 'it is ready' '{"status":"ready"}' "$(curl -s "$URL/readyz")"

# Who are you? The geometry and the pool, as configured.
curl -s "$URL/v1/info" >"$WORK/info"
expect 'info is JSON with a name' attnd "$(jq -r .name "$WORK/info")"
expect 'info shows the geometry' '4 8 2 64 16 bf16 0.125' \
    "$(jq -r '.geometry | "\(.layers) \(.query_heads) \(.kv_heads) \(.head_dim) \(.block_size) \(.dtype) \(.scale)"' "$WORK/info")"
expect 'info shows the backend' 'true true true true' \
    "$(jq -r '.backend | "\(.name | IN("cpu", "cuda")) \(.bit_stable) \(.roof_gb_per_s > 0) \(.grouping_us >= 0)"' "$WORK/info")"
expect 'info shows the pool' '4096 32768' "$(jq -r '.pool | "\(.blocks) \(.bytes_per_block)"' "$WORK/info")"

# Every answer carries a request id, the client's if it is sane.
expect 'the request id comes back' 'my-id' \
    "$(curl -s -o /dev/null -D - -H 'X-Request-Id: my-id' "$URL/livez" | tr -d '\r' | sed -n 's/^X-Request-Id: //p')"
expect 'every answer names its node' 'n0' \
    "$(curl -s -o /dev/null -D - "$URL/livez" | tr -d '\r' | sed -n 's/^X-Attnd-Node: //p')"

# Mistakes are problems with a code, a sentence, and the right status.
expect 'unknown path' '404 not_found' "$(curl -s "$URL/v1/nope" | jq -r '"\(.status) \(.code)"')"
expect 'wrong method' '405 method_not_allowed' "$(curl -s -X POST -d '' "$URL/v1/info" | jq -r '"\(.status) \(.code)"')"
expect 'Allow' 'GET, HEAD' "$(curl -s -o /dev/null -D - -X DELETE "$URL/v1/info" | tr -d '\r' | sed -n 's/^Allow: //p')"
expect 'unknown parameter' 422 "$(curl -s -o /dev/null -w '%{http_code}' "$URL/v1/info?x=1")"
expect 'HEAD has no body' '200 0' "$(curl -s -I -o /dev/null -w '%{http_code} %{size_download}' "$URL/v1/info")"
expect 'another Host (DNS rebinding)' 403 "$(curl -s -o /dev/null -w '%{http_code}' -H 'Host: evil.example' "$URL/livez")"
expect 'a foreign Origin' 403 "$(curl -s -o /dev/null -w '%{http_code}' -H 'Origin: https://evil.example' "$URL/livez")"

has_ignored() { [ "$(grep -c 'there is nothing to reload' "$WORK/log")" = "$1" ]; }
seen=0
for signal in HUP USR1 USR2; do
    kill -$signal "$DAEMON"
    eventually has_ignored $((++seen))
done
expect 'signals that ask to reload do not end it' '{"status":"live"}' "$(curl -s "$URL/livez")"
stop_daemon
expect 'SIGTERM ends it with 0' 0 $?

# A unix socket; one left behind by a crash is replaced.
start_socket() {
    : >"$WORK/log"
    "$ATTND" --set "listen=unix:$WORK/s" 2>"$WORK/log" &
    DAEMON=$!
    eventually listens_or_ended
}
start_socket
kill -9 "$DAEMON"
wait "$DAEMON" 2>/dev/null
start_socket
expect 'a unix socket serves' '{"status":"live"}' "$(curl -s --unix-socket "$WORK/s" http://attnd/livez)"
expect 'nor one in a folder that is not there, which it says' "attnd: cannot listen on unix:$WORK/none/s: no such file or directory (set listen=...)" \
    "$("$ATTND" --set "listen=unix:$WORK/none/s" 2>&1 | grep '^attnd: cannot')"
expect 'a second daemon on it cannot' 69 "$("$ATTND" --set "listen=unix:$WORK/s" 2>/dev/null; echo $?)"
stop_daemon
expect 'the socket is gone after a clean end' no "$([ -e "$WORK/s" ] && echo yes || echo no)"

# Without the standard files: nothing that is opened takes their numbers.
is_there() { curl -s --unix-socket "$WORK/s" http://attnd/livez >/dev/null; }
"$ATTND" --set "listen=unix:$WORK/s" 0<&- 1>&- 2>&- &
DAEMON=$!
eventually is_there
expect 'a daemon whose standard files are closed serves' '{"status":"live"}' "$(curl -s --unix-socket "$WORK/s" http://attnd/livez)"
expect 'they are /dev/null' '/dev/null /dev/null /dev/null' "$(readlink "/proc/$DAEMON/fd/0" "/proc/$DAEMON/fd/1" "/proc/$DAEMON/fd/2" | paste -sd' ')"
stop_daemon
expect 'and it ends cleanly' 0 $?

# Open files: as many as connections want, or a word about it.
files() { awk '/open files/ { print $4 }' "/proc/$DAEMON/limits"; }
soft=$(ulimit -Sn)
ulimit -Sn 100
start_daemon --set limits.connections=200
expect 'the limit of open files is raised' 392 "$(files)"
stop_daemon
ulimit -Sn "$soft"
(
    ulimit -n 100
    start_daemon --set limits.connections=200
    grep -c 'want 392 open files, and 100 are allowed' "$WORK/log" >"$WORK/said"
    stop_daemon
)
expect 'or its shortage is said' 1 "$(cat "$WORK/said")"

# It cannot start: exit code and message.
start_daemon --set limits.header_timeout_s=3600
expect 'address in use' "attnd: cannot listen on 127.0.0.1:$PORT: address already in use (set listen=...)" \
    "$("$ATTND" --set "listen=127.0.0.1:$PORT" 2>&1 | grep '^attnd: cannot')"
"$ATTND" --set "listen=127.0.0.1:$PORT" 2>/dev/null
expect 'address in use exits 69' 69 $?
"$ATTND" --set listen=0.0.0.0:8400 2>"$WORK/err"
expect 'other addresses are a configuration error' 78 $?
"$ATTND" --config /nonexistent 2>/dev/null
expect 'no such file exits 78' 78 $?
"$ATTND" --nonsense 2>/dev/null
expect 'an unknown option exits 2' 2 $?
said() { "$ATTND" "$@" 2>"$WORK/err"; echo "$? $(tail -n 1 "$WORK/err")"; }
expect 'a port says which key it is' '2 attnd: did you mean --set listen=HOST:PORT?' "$(said --port 9000)"
expect 'so does an option that is near to one' '2 attnd: did you mean --config?' "$(said --confg x)"
expect '-v, too' '2 attnd: did you mean --version?' "$(said -v)"
expect 'with a value' '2 attnd: did you mean --set?' "$(said --sett=pool.blocks=64)"
expect 'and one that is near to none' '2 attnd: --help lists the options; a key of the configuration is given as --set PATH=VALUE' "$(said --frobnicate)"
expect 'a value that is another word' '2 attnd: --set pool.blocks: wants PATH=VALUE, in one word' "$(said --set pool.blocks 64)"
expect 'a folder is no configuration' "78 attnd: $WORK: Is a directory" "$(said --config "$WORK")"
expect 'a pool in bytes is called so' '69 attnd: pool.bytes: ' "$(said --backend cpu --set pool.bytes=40TiB | cut -c1-22)"
expect 'a variable with one underscore is near to a key' 1 \
    "$(ATTND_POOL_BLOCKS=64 "$ATTND" --print-config 2>&1 >/dev/null | grep -c 'ATTND_POOL_BLOCKS: no key of attnd; did you mean ATTND_POOL__BLOCKS? ')"
expect 'what Kubernetes sets is near to none' 2 \
    "$(ATTND_PORT=tcp://a:1 ATTND_SERVICE_PORT=1 "$ATTND" --print-config 2>&1 >/dev/null | grep -c 'no key of attnd (attnd --help lists them); ignored')"
expect '-h and -V are short' "$("$ATTND" --help | md5sum) $("$ATTND" --version | md5sum)" "$("$ATTND" -h | md5sum) $("$ATTND" -V | md5sum)"
expect 'a file says which option it wants' '2 attnd: config/tiny.jsonc: is no option; a configuration is given as --config FILE (--help lists the options)' \
    "$(said config/tiny.jsonc)"
"$ATTND" --set pool.blocks=100000000000 2>/dev/null
expect 'an impossible pool exits 78' 78 $?
"$ATTND" --set pool.bytes=50TiB 2>"$WORK/err"
expect 'a pool larger than memory exits 69' 69 $?
expect 'and shows the arithmetic' 1 "$(grep -c 'blocks of 32768 bytes are 52428800 MiB' "$WORK/err")"
case $ATTND in
    */asan/* | */tsan/*) ;; # they take more address space than that
    *)
        (
            ulimit -v 4000000
            "$ATTND" --backend cpu --set pool.bytes=50TiB 2>"$WORK/err"
        )
        expect 'before anything is made for each of its blocks' 1 "$(grep -c 'are 52428800 MiB and do not fit' "$WORK/err")"
        ;;
esac
"$ATTND" --set backend.isa=sse9 2>/dev/null
expect 'an unknown instruction set exits 78' 78 $?
expect '--backend is short for a key' 'backend.name: "reference"' \
    "$("$ATTND" --backend reference --print-config | sed -n 's/.*"name": "\([a-z]*\)".*/backend.name: "\1"/p')"
expect 'and no other backend goes' 78 "$("$ATTND" --backend gpu 2>/dev/null; echo $?)"
expect '--check-config shows the arithmetic' 'pool                     4096 blocks = 65536 tokens' \
    "$("$ATTND" --check-config | grep '^pool  *[0-9]* blocks')"
# What a start refuses, --check-config refuses too, with the same words and the same exit code (bug: it said 0); and it leaves nothing behind.
varies='s/[0-9]* MiB are available/N MiB are available/; s/may take [0-9]* MiB/may take N MiB/'
refused() { # NAME CODE WORDS [ARG...]
    local name=$1 code=$2 words=$3
    shift 3
    "$ATTND" "$@" --check-config >/dev/null 2>"$WORK/checked"
    expect "--check-config: $name" "$code attnd: $words" "$? $(tail -n 1 "$WORK/checked" | sed "$varies")"
    "$ATTND" --set listen=127.0.0.1:0 "$@" 2>"$WORK/err"
    expect "a start: $name" "$code attnd: $words" "$? $(grep -v '^attnd: [0-9]\{4\}-' "$WORK/err" | tail -n 1 | sed "$varies")" # the log is written by a thread, perhaps after that
}
keys=$WORK/wrong-keys
refused 'no keys file' 78 "keys.file: $keys: No such file or directory" --set "keys.file=$keys"
echo '{"keys": [{"name": "x"}]}' >"$keys"
chmod 644 "$keys"
refused 'a keys file that all can read' 78 "keys.file: $keys: its mode is 0644: others can read or change it (chmod 600)" --set "keys.file=$keys"
chmod 000 "$keys"
printf '#!/bin/sh\nexec setpriv --bounding-set=-all --inh-caps=-all "%s" "$@"\n' "$ATTND" >"$WORK/attnd" # root, too, may not
chmod 755 "$WORK/attnd"
if [ "$(id -u)" != 0 ] || setpriv --bounding-set=-all --inh-caps=-all true 2>/dev/null; then
    ATTND_BEFORE=$ATTND
    [ "$(id -u)" != 0 ] || ATTND=$WORK/attnd
    refused 'a keys file that the daemon may not read' 78 "keys.file: $keys: Permission denied: the daemon runs as $(id -un)" --set "keys.file=$keys"
    ATTND=$ATTND_BEFORE
else
    echo 'skip a keys file that the daemon may not read: setpriv takes nothing from root here'
fi
chmod 600 "$keys"
refused 'a key without a digest' 78 "keys.file: $keys: key \"x\": sha256: wants 64 hex digits, as attnctl key new prints them" --set "keys.file=$keys"
refused 'an instruction set that is none' 78 "backend.isa: there is no \"neon\"; this machine takes auto$("$ATTND" --version | sed -n 's/^instruction sets.*://p' | sed 's/ /, /g')" --backend cpu --set backend.isa=neon
refused 'a backend that is none' 78 'backend.name: there is no "gpu", only auto, cuda, cpu and reference' --backend gpu
refused 'a layout for GPUs' 78 'geometry.layout: vllm is for a GPU (and the reference backend), not for the CPU' --backend cpu --set geometry.layout=vllm
refused 'a port out of range' 78 'management.listen: 127.0.0.1:99999: port 99999: wants 1 to 65535, or 0: any free one' \
    --set management.listen=127.0.0.1:99999
refused 'a host that is a name' 78 'listen: example.org:80: the host is a numeric address or localhost: "example.org:80"' --set listen=example.org:80
refused 'no keys on a network' 78 'listen: 0.0.0.0:8400: without keys.file only loopback addresses and unix sockets are listened on' --set listen=0.0.0.0:8400
refused 'two listeners with one address' 78 'management.listen: [::1]:8400: listen has this address already' --set 'listen=["127.0.0.1:0", "[::1]:8400"]' \
    --set management.listen=[::1]:8400
refused 'or with one socket file' 78 "transport.listen: unix:$WORK/s: listen has this address already" --set "listen=unix:$WORK/s" --set "transport.listen=unix:$WORK/s"
refused 'no folder for a socket' 69 "cannot listen on unix:$WORK/none/s: no such file or directory (set listen=...)" --set "listen=unix:$WORK/none/s"
refused 'nor for one of managers' 69 "cannot listen on unix:$WORK/none/s: no such file or directory (set management.listen=...)" --set "management.listen=unix:$WORK/none/s"
refused 'a socket that nobody hands over' 78 'listen: fd:99: no such socket was handed over (LISTEN_FDS counts them, from fd:3 on): "fd:99"' --set listen=fd:99
refused 'too little memory for anybody' 78 '--set memory.bytes=32MiB: memory.bytes: wants at least 64MiB, or 0: what is left after the start' --set memory.bytes=32MiB
refused 'more memory than there is' 69 'memory.bytes: 943718400 MiB are wanted; N MiB are available after the start, of which limits.connections (1024) may take N MiB, and the history of 4096 blocks 3 MiB' \
    --set memory.bytes=900TiB
refused 'a group that is none' 78 "listen: unix:$WORK/s: there is no such group" --set "listen={\"address\": \"unix:$WORK/s\", \"group\": \"nobody-has-it\"}"
refused 'clients with registered memory by TCP' 78 'transport.listen: 127.0.0.1:1: wants unix:PATH or fd:N, without proxy_protocol' --set transport.listen=127.0.0.1:1
refused 'proxies that are none' 78 'trusted_proxies: wants ADDRESS or ADDRESS/BITS, has "banana"' --set trusted_proxies=banana
refused 'no folder for the journal' 78 "journal.path: $WORK/none: No such file or directory" --set "journal.path=$WORK/none"
refused 'no state.dir' 78 "state.dir: $WORK/none: No such file or directory" --state-dir "$WORK/none"
if [ "$(id -u)" = 0 ]; then
    refused 'a folder in which nothing can be made' 78 'journal.path: /proc: no file can be written there: No such file or directory' --set journal.path=/proc
else
    mkdir -m 500 "$WORK/closed"
    refused 'a folder in which nothing may be made' 78 "journal.path: $WORK/closed: Permission denied" --set "journal.path=$WORK/closed"
    refused 'nor a socket' 69 "cannot listen on unix:$WORK/closed/s: permission denied (set listen=...)" --set "listen=unix:$WORK/closed/s"
fi
mkdir -m 700 "$WORK/small"
if unshare -rm mount -t tmpfs -o size=16k tmpfs "$WORK/small" 2>/dev/null; then
    ATTND_BEFORE=$ATTND
    cat >"$WORK/on-full-disk" <<END
#!/bin/sh
mount -t tmpfs -o size=16k,mode=700 tmpfs "$WORK/small" && : >"$WORK/small/lock"
cat /dev/zero >"$WORK/small/full" 2>/dev/null
exec "$ATTND" "\$@"
END
    printf '#!/bin/sh\nexec unshare -rm sh "%s" "$@"\n' "$WORK/on-full-disk" >"$WORK/attnd"
    chmod 755 "$WORK/attnd"
    ATTND=$WORK/attnd
    refused 'a journal on a full disk' 78 "journal.path: $WORK/small: no file can be written there: the disk is full" --set "journal.path=$WORK/small"
    refused 'a state.dir on a full disk' 78 'state.dir: the file ids cannot be written: No space left on device' --config config/tiny.jsonc --state-dir "$WORK/small"
    ATTND=$ATTND_BEFORE
else
    echo 'skip a full disk: no file system can be mounted here'
fi
mkdir -m 700 "$WORK/damaged"
echo nonsense >"$WORK/damaged/ids"
refused 'a state.dir whose ids are damaged' 78 'state.dir: the file ids is damaged: which ids were given out is not known. Remove it if no client has any from before, or give the daemon another node' \
    --config config/tiny.jsonc --state-dir "$WORK/damaged"
mkdir -m 755 "$WORK/open"
refused 'a state.dir that others can read' 78 "state.dir: $WORK/open: it is not the daemon's own, or others can read it (chmod 700)" --state-dir "$WORK/open"
mkdir -m 700 "$WORK/full"
refused 'a disk that is too small for pool.file_blocks' 69 'pool.file_blocks: state.dir has no room for 62500000 MiB: No space left on device' --state-dir "$WORK/full" \
    --set pool.blocks=64 --set pool.host_blocks=128 --set pool.file_blocks=2000000000
if "$ATTND" --version | grep -q '^CUDA: not built in'; then
    refused 'a backend that was not built' 69 \
        'this build of attnd has no CUDA backend; container images whose tag ends with -gpu have it, and packages and wheels that are built where CUDA headers are (docs/GPU.md)' --backend cuda
fi
mkdir -m 700 "$WORK/journal"
echo '{"keys": []}' >"$keys"
"$ATTND" --set "listen=[\"127.0.0.1:$PORT\", \"unix:$WORK/checked.s\", \"fd:3\"]" --set "journal.path=$WORK/journal" --set "keys.file=$keys" --check-config >/dev/null 2>"$WORK/err"
expect 'beside a daemon, with a socket that another process will have' '0 1' "$? $(wc -l <"$WORK/err")"
no_keys="warning keys.file: $keys: has no keys: nobody can do anything until it has one"
expect 'and says that no keys are of use to nobody' 1 "$(grep -c "$no_keys" "$WORK/err")"
another NOBODY --set "keys.file=$keys"
expect 'as a start does' 1 "$(grep -c "$no_keys" "$WORK/log.NOBODY")"
stop_others
expect 'but not where some need none' 0 "$("$ATTND" --set 'listen={"address": "127.0.0.1:0", "anonymous": "read"}' --set "keys.file=$keys" --check-config 2>&1 | grep -c 'has no keys')"
expect 'what comes with the start' '0 ' "$("$ATTND" --set listen=unix:/run/attnd-none/s --check-config 2>&1 >/dev/null; echo $?) "
expect 'nothing was made' no "$([ -e "$WORK/checked.s" ] || [ -n "$(ls "$WORK/journal")" ] && echo yes || echo no)"
expect '--version names it' attnd "$("$ATTND" --version | head -n 1 | cut -d' ' -f1)"
expect 'and the instruction sets' ' portable' "$("$ATTND" --version | grep -o ' portable')"

# The second signal ends a drain that waits for a slow client.
exec 3<>"/dev/tcp/127.0.0.1/$PORT"
printf 'GET /livez HTTP/1.1\r\n' >&3
caught_up
kill -TERM "$DAEMON"
eventually has_logged 'SIGTERM: draining'
kill -0 "$DAEMON" 2>/dev/null
expect 'a drain waits for a request that has begun' 0 $?
insist
wait "$DAEMON"
expect 'the second signal ends it with 1' 1 $?
DAEMON=

# A signal while the pool is touched (bug: it was looked at when all of the pool had been). The daemon is stopped before it gets
# the signal, to be sure that it does not listen yet; where it does, it was too fast, and is tried again.
touches_or_ended() { has_logged 'touching the pool\|listening on' || has_ended; }
is_stopped() { ! grep -L '^State:.*stopped' /proc/"$DAEMON"/task/*/status | grep -q .; }
start_touching() {
    : >"$WORK/log"
    "$ATTND" --backend cpu --set listen=127.0.0.1:0 --set backend.threads=1 --set pool.memory=0.5 --set log.level=debug \
        2>"$WORK/log" &
    DAEMON=$!
    eventually touches_or_ended
    kill -STOP "$DAEMON"
    eventually is_stopped
    ! has_logged 'listening on'
}
end_touching() {
    kill -9 "$DAEMON"
    wait "$DAEMON" 2>/dev/null
}
for signal in TERM INT; do
    for _ in 1 2 3 4 5; do
        start_touching && break
        end_touching
    done
    if has_logged 'listening on'; then
        echo "skip SIG$signal while the pool is touched: half of the memory is touched too fast"
        continue
    fi
    kill -$signal "$DAEMON"
    kill -CONT "$DAEMON"
    wait "$DAEMON"
    expect "SIG$signal while the pool is touched ends it with 0" 0 $?
    expect 'it never listens' '' "$(grep 'listening on\| error ' "$WORK/log")"
    expect 'and says why it ends' 1 "$(grep -c "info signal $(kill -l $signal) while starting: stopped" "$WORK/log")"
done
DAEMON=
# A log that nobody reads (bug: the daemon waited for it for ever, SIGTERM included): a pipe that is full from the start.
mkfifo "$WORK/fifo"
exec 8<>"$WORK/fifo"
perl -e 'use Fcntl; open my $p, "+<&=", 8; fcntl($p, 1031, 4096); fcntl($p, F_SETFL, O_NONBLOCK); 1 while syswrite($p, "x" x 4096);
    fcntl($p, F_SETFL, 0)'
"$ATTND" --set "listen=unix:$WORK/s" 2>&8 &
DAEMON=$!
unix() { curl -s --unix-socket "$WORK/s" "http://localhost$1"; }
is_up() { unix /livez >/dev/null; }
eventually is_up
for _ in $(seq 30); do unix /nowhere >/dev/null; done
expect 'a log that nobody reads: it serves' '{"status":"ready"}' "$(unix /readyz)"
kill -TERM "$DAEMON"
wait "$DAEMON"
expect 'and ends' 0 $?
DAEMON=
exec 8>&-
# One that cannot be written (bug: nobody knew).
"$ATTND" --set "listen=unix:$WORK/s" 2>/dev/full &
DAEMON=$!
eventually is_up
for _ in 1 2 3; do unix /nowhere >/dev/null; done
are_dropped() { [ "$(unix /metrics | sed -n 's/^attnd_log_lines_dropped_total //p')" -ge 4 ]; } # the daemon's start has some, too
expect 'lines for which the disk has no room are counted' yes "$(HANG_S=20 && eventually are_dropped && echo yes)"
kill -TERM "$DAEMON"
wait "$DAEMON"
expect 'and it ends' 0 $?
DAEMON=

start_daemon --set log.format=json
curl -s -o /dev/null -H 'X-Request-Id: me' "$URL/nowhere\"quoted\""
pid=$DAEMON
stop_daemon
expect 'a log in JSON' '["info","info","info","info"] "me"' \
    "$(jq -sc '[.[-4:][].level]' "$WORK/log") $(jq -c 'select(.request).request' "$WORK/log")"
expect 'with what it is about' 'GET 404 not_found /nowhere"quoted"' "$(jq -r 'select(.request) | "\(.method) \(.status) \(.code) \(.path)"' "$WORK/log")"
expect 'its events have names, its end a code' '["starting","listening","signal","drain","stopped"] 0 asked to end' \
    "$(jq -sc '[.[].event | values]' "$WORK/log") $(jq -r 'select(.event == "stopped") | "\(.exit_code) \(.reason)"' "$WORK/log")"
expect 'its start says who it is' "node n0, pid $pid, no configuration file" "$(jq -r "select(.event == \"starting\" and .pid == $pid).msg" "$WORK/log" | sed 's/.* starts: //')"
not_started() { "$ATTND" --set log.format=json "$@" 2>&1 | jq -r '"\(.level) \(.event) \(.msg)"'; }
expect 'a start that fails says why in JSON' 'error not_started listen: 1.2.3.4:80: without keys.file only loopback addresses and unix sockets are listened on' "$(not_started --set listen=1.2.3.4:80)"
expect 'so does a configuration that is wrong' 'error not_started --set pool.blocks=0: pool.blocks: wants an integer in' "$(not_started --set pool.blocks=0 | sed 's/ in .*/ in/')"

# Requests that succeed: at info, without debug, with figures as numbers.
requests_logged() { jq -sc "[.[] | select(.method)] | $1" "$WORK/log"; }
start_daemon --config config/tiny.jsonc --set log.format=json --set log.requests=all --set "management.listen=unix:$WORK/manage"
probed=$(for path in readyz metrics; do curl -s -o /dev/null -w '%{http_code} ' --unix-socket "$WORK/manage" http://localhost/$path; done)
sizes=$(for path in '/v1/sequences/7 -I' '/v1/sequences/7' '/v1/info' '/v1/sequences/8'; do
    # shellcheck disable=SC2086 # an option
    curl -s -o /dev/null -w '%{size_download}\n' "$URL"$path
done | jq -sc .)
sizes=$(jq -c ". + [$(curl -s -H 'Accept: application/x-ndjson' --json '{"trace":[{"prompt":4,"decode":2}]}' "$URL/v1/workloads" | wc -c)]" <<<"$sizes")
stop_daemon
expect 'an access log: each request once' '[404,404,200,404,200]' "$(requests_logged 'map(.status)')"
expect 'but not what probes and metrics read, where managers are served' '200 200 0' "$probed$(requests_logged 'map(select(.path == "/readyz" or .path == "/metrics")) | length')"
expect 'mistakes of clients are no warnings' '["info"]' "$(requests_logged 'map(.level) | unique')"
expect 'with the route' '["/v1/sequences/{id}","/v1/sequences/{id}","/v1/info","/v1/sequences/{id}","/v1/workloads"]' "$(requests_logged 'map(.route)')"
expect 'the bytes of the answer' "$(jq -c '.[1:]' <<<"$sizes")" "$(requests_logged '.[1:] | map(.bytes)')"
expect 'and the time, a number' true "$(requests_logged 'all(.ms | type == "number" and . >= 0)')"
# Bug: no line said which sequence was made, appended to, attended or leased.
start_daemon --config config/tiny.jsonc --set log.format=json --set log.requests=all
row='[[1,0,0,0,0,0,0,0]]'
ask() { curl -s -o /dev/null --json "$2" "$URL/v1/$1"; }
ask sequences '{"id":90}'
ask sequences/90/fork '{"ids":[91,92]}'
ask append "{\"sequences\":[91,90],\"k\":[$row,$row],\"v\":[$row,$row]}"
ask attend "{\"sequences\":[90],\"q\":[$row]}"
ask batch '{"ops":[{"op":"truncate","id":92,"length":0},{"op":"truncate","id":90,"length":1}]}'
ask leases '{"id":70,"blocks":1}'
ask append "{\"sequences\":[91,90],\"k\":[$row],\"v\":[$row]}"
ask sequences/92/truncate '{"length":0}'
ask batch '{"ops":[{"op":"fork","id":90,"ids":[94,95]}]}'
ask sequences '{"id":90}'
stop_daemon
expect 'which sequences, or lease, a request has made or used' \
    '[201,[90],null] [201,[90,91,92],null] [200,[91,90],null] [200,[90],null] [200,[92,90],null] [201,null,[70]] [422,null,null] [200,[92],null] [200,[90,94,95],null] [409,[90],null]' \
    "$(requests_logged '.[] | [.status, .sequence_ids, .lease_ids]' | paste -sd' ')"
expect 'in the sentence, too' ', sequences 90 91 92|, lease 70|' "$(requests_logged '.[1, 5, 7].msg | sub(".* ms"; "")' | jq -r . | paste -sd'|')"
for slow_ms in 0 86400000; do
    start_daemon --config config/tiny.jsonc --set log.format=json --set log.requests=slow --set log.slow_ms=$slow_ms
    curl -s -o /dev/null "$URL/v1/info"
    stop_daemon
    expect "a slow log, of more than $slow_ms ms" $((slow_ms == 0)) "$(requests_logged length)"
done
finish
