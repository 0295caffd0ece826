# SPDX-License-Identifier: Apache-2.0
# lib.sh - what the integration scripts share. Source it first; it starts nothing by itself.
#
#   start_daemon [ARG...]   start $ATTND on a free loopback port; sets URL, PORT and DAEMON (its process id)
#   another NAME [ARG...]   start one more; its URL is in the variable NAME, its output in $WORK/log.NAME
#   stop_others             end those, and wait
#   make_keys NAME...       a file of keys, $WORK/keys: root may do all, the others infer
#   as NAME [ARG...]        curl with a key of these
#   stop_daemon             SIGTERM, and wait; its exit code is the result
#   expect NAME WANT GOT    print ok or not ok
#   eventually COMMAND...   wait until it succeeds
#   caught_up               wait until the daemon has read what was sent to it before
#   are_queued [ID,...]     whether calls on these sequences, and no others, wait for company
#   is_alone                whether no connection is open but the one that asks
#   flush ID                run what is queued on sequence ID and before it: a truncate that cuts nothing waits for no company
#   lacks WHAT: REASON      skip it for want of a tool; where CI is true that is a failure
#   keep_notes              be the service manager: what it is told is in $WORK/notes
#   tensors, post, header, numbers   safetensors: see below
# shellcheck shell=bash
set -u
ATTND=${ATTND:-$PWD/build/release/attnd}
WORK=$(mktemp -d)
DAEMON=
others=() # processes
end_all() {
    local status=$?
    for pid in ${others[@]+"${others[@]}"} ${DAEMON:+"$DAEMON"}; do kill -9 "$pid" && wait "$pid"; done 2>/dev/null
    rm -rf "$WORK"
    exit $status
}
trap end_all EXIT

# Tests wait for events and never measure time, so that a slow machine passes them too. This bound only ends what hangs.
HANG_S=1800
# With EXCHANGES, a directory, what was sent and received is kept there for 99-contract.sh.
curl() { command curl -m $HANG_S ${EXCHANGES:+--trace "$EXCHANGES/$BASHPID-$RANDOM$RANDOM"} "$@"; }
eventually() {
    local end=$((SECONDS + HANG_S))
    until "$@"; do
        [ $SECONDS -lt $end ] || return 1
        sleep 0.02
    done
}
# The loop takes connections in the order in which they become ready, so those before this one have had their turn.
caught_up() { curl -s -o /dev/null "$URL/livez"; }
is_alone() { [ "$(curl -s "$URL/metrics" | sed -n 's/^attnd_connections //p')" = 1 ]; }
are_queued() { [ "$(curl -s "$URL/v1/sequences?state=queued" | jq -c '[.items[].id] | sort')" = "$1" ]; }
flush() { curl -s -o /dev/null --json '{"length":4000000000}' "$URL/v1/sequences/$1/truncate"; }

has_ended() { ! kill -0 "$DAEMON" 2>/dev/null; }
insist() { until has_ended; do kill -TERM "$DAEMON" 2>/dev/null; sleep 0.2; done; } # after SIGTERM; a second one at once is the same
has_logged() { grep -q "$1" "$WORK/log"; }
listens_or_ended() { has_logged 'listening on' || has_ended; }

start_daemon() {
    : >"$WORK/log" # it is looked at before the daemon has begun
    "$ATTND" --set listen=127.0.0.1:0 "$@" 2>"$WORK/log" &
    DAEMON=$!
    eventually listens_or_ended
    URL=$(sed -n 's/.*listening on \(http[^"]*\).*/\1/p' "$WORK/log")
    export PORT=${URL##*:}
    if [ -z "$URL" ]; then
        echo "not ok the daemon starts: $(cat "$WORK/log")"
        exit 1
    fi
}

another() {
    local name=$1
    shift
    : >"$WORK/log.$name"
    "$ATTND" --set listen=127.0.0.1:0 "$@" 2>"$WORK/log.$name" &
    others+=($!)
    there() { grep -q 'listening on' "$WORK/log.$1" || ! kill -0 "${others[-1]}" 2>/dev/null; }
    eventually there "$name"
    printf -v "$name" %s "$(sed -n 's/.*listening on \(http[^"]*\).*/\1/p' "$WORK/log.$name")"
}
stop_others() {
    kill -TERM "${others[@]}"
    wait "${others[@]}"
    others=()
}

make_keys() {
    local name made entries=()
    for name in "$@"; do
        made=$("$(dirname "$ATTND")/attnctl" --json key new "$name" "$([ "$name" = root ] && echo admin || echo infer)")
        (umask 077 && jq -r .key <<<"$made" >"$WORK/$name")
        entries+=("$(jq -c .entry <<<"$made")")
    done
    (IFS=, && umask 077 && printf '{"keys": [%s]}\n' "${entries[*]}" >"$WORK/keys")
}
as() { curl -s -H "Authorization: Bearer $(cat "$WORK/$1")" "${@:2}"; }

stop_daemon() {
    kill -TERM "$DAEMON"
    wait "$DAEMON"
    local code=$?
    DAEMON=
    check_turns
    return $code
}

# No request keeps the loop from the others. A turn is to take a millisecond of processor time at most, docs/PERFORMANCE.md has what is
# measured. Here the third longest is looked at, and ten times that allowed: what a hypervisor takes from a turn counts as the turn's. More
# is allowed where the machine or a sanitizer is slow.
slowness() { # of this machine: processor time of a fixed piece of work over what it is on a fast one, at least 1
    perl -e 'my ($x, $u) = (0); $x += $_ * 1.1 for 1 .. 400000; ($u) = times; my $s = $u / 0.02; printf "%d", $s < 1 ? 1 : $s + 1'
}
check_turns() {
    local took
    took=$(sed -n 's/.*the longest turns of the loop took .* and \([0-9]*\)[.].*/\1/p' "$WORK/log" | tail -1)
    [ -n "$took" ] && [ "$took" -ge 10 ] || return 0
    [ "$took" -lt $((10 * $(slowness) * ${TURN_FACTOR:-1})) ] ||
        expect 'no turns of the loop take long' 'less than 10 ms' "$took ms"
}

expect() {
    if [ "$2" = "$3" ]; then
        echo "ok $1"
    else
        echo "not ok $1: wanted '$2', got '$3'"
        FAILED=1
    fi
}

# tensors NAME DTYPE SHAPE NUMBERS ... - a safetensors body (perl is part of every Debian). NUMBERS are
# separated by commas; "N*x" is x, N times.
tensors() {
    perl -e '
        my ($at, $data, @parts) = (0, "");
        while (my ($name, $dtype, $shape, $numbers) = splice(@ARGV, 0, 4)) {
            my @n = map { /^([0-9]+)[*](.*)$/ ? ($2) x $1 : $_ } split(/,/, $numbers);
            my $raw = $dtype eq "I64" ? pack("q<*", @n) : $dtype eq "F32" ? pack("f<*", @n)
                    : $dtype =~ /^F8/ ? pack("C*", @n)                            # F8_E4M3: the bits
                    : pack("v*", map { unpack("V", pack("f<", $_)) >> 16 } @n);    # BF16: the upper half of an f32
            push @parts, sprintf("\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%d,%d]}", $name, $dtype, $shape,
                                 $at, $at + length $raw);
            $at += length $raw;
            $data .= $raw;
        }
        my $header = "{" . join(",", @parts) . "}";
        $header .= " " x (-length($header) % 8); # as the safetensors library does
        print pack("Q<", length $header), $header, $data;' "$@"
}
# post PATH - send the body on standard input.
post() { curl -s -H 'Content-Type: application/x-safetensors' --data-binary @- "$URL$1"; }
# The header of a safetensors answer, and the first N numbers of its first BF16 tensor.
header() { perl -e 'local $/; $_ = <STDIN>; print substr($_, 8, unpack("Q<", $_))' <"$1"; }
numbers() {
    perl -e 'local $/; $_ = <STDIN>; my $n = unpack("Q<", $_);
        print join(",", map { unpack("f<", pack("V", $_ << 16)) } unpack("v*", substr($_, 8 + $n, shift)))' "$2" <"$1"
}


# Keep what is sent to the socket $WORK/notify in $WORK/notes, a message a line; `listener` does.
has_notify() { [ -S "$WORK/notify" ]; }
keep_notes() {
    : >"$WORK/notes"
    perl -MIO::Socket::UNIX -e '
        my $s = IO::Socket::UNIX->new(Type => SOCK_DGRAM, Local => "$ARGV[0]/notify") or die;
        open my $f, ">>", "$ARGV[0]/notes"; $f->autoflush;
        while (defined $s->recv(my $m, 4096)) { $m =~ tr/\n/ /; print $f "$m\n" }' "$WORK" &
    # shellcheck disable=SC2034 # who ends it
    listener=$!
    eventually has_notify
}

lacks() {
    if [ "${CI:-}" = true ]; then
        echo "not ok $1"
        FAILED=1
    else
        echo "skip $1"
    fi
}

finish() { exit "${FAILED:-0}"; }
