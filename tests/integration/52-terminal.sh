#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# attnctl as people use it: its help, what it says of mistakes, its screens in a terminal of 80 x 24 (tmux), what Ctrl-C leaves, and
# names that try to change the screen.
. tests/integration/lib.sh
ATTNCTL=$(dirname "$ATTND")/attnctl
ctl() { timeout $HANG_S "$ATTNCTL" "$@" 2>"$WORK/err"; }
# What it says on stderr, and its exit code.
said() { ctl "$@" >/dev/null; echo "$? $(sed 's/^attnctl: //' "$WORK/err")"; }

# ---- the command line; no daemon is needed
commands=$(ctl --help | sed -n 's/^  \([a-z]*\)  *[a-z].*/\1/p')
expect 'the help lists commands' yes "$([ "$(wc -l <<<"$commands")" -gt 7 ] && echo yes)"
expect 'it is as wide as a terminal' '' "$(ctl --help | grep -E '.{81}')"
expect '-h is --help' "$(ctl --help)" "$(ctl -h)"
for command in $commands; do
    expect "$command has a help of its own" "0 attnctl $command - " "$(ctl "$command" --help >"$WORK/help"; echo $?) $(head -n 1 "$WORK/help" | grep -o '^[^-]*- ')"
    expect "$command: 80 columns" '' "$(grep -E '.{81}' "$WORK/help")"
    expect "$command: one way to ask for it" "$(cat "$WORK/help")" "$(ctl help "$command")"
done
expect 'the version is that of the daemon' "$("$ATTND" --version | head -n 1 | sed 's/^attnd/attnctl/')" "$(ctl --version)"
while IFS='|' read -r line want; do
    # shellcheck disable=SC2086
    expect "attnctl $line" "2 $want" "$(said $line)"
done <<'LIST'
|a command is missing (--help lists the commands)
frobnicate|there is no command "frobnicate" (--help lists the commands)
rum|there is no command "rum"; did you mean run? (--help lists the commands)
blcoks|there is no command "blcoks"; did you mean blocks? (--help lists the commands)
stat|there is no command "stat"; did you mean stats? (--help lists the commands)
fork 7|there is no command "fork"; did you mean seq fork? (--help lists the commands)
delete 7|there is no command "delete"; did you mean seq delete or lease delete? (--help lists the commands)
version|there is no command "version"; did you mean --version? (--help lists the commands)
stats now|"now" is one operand too many; usage: attnctl stats
seq frok 7|seq has no "frok"; did you mean fork? It has list, new, show, fork, truncate and delete (attnctl seq --help says what it takes)
seq rm 7|seq has no "rm"; did you mean delete? It has list, new, show, fork, truncate and delete (attnctl seq --help says what it takes)
workload ls|workload has no "ls"; did you mean list? It has list, show, events and cancel (attnctl workload --help says what it takes)
workload rm 7|workload has no "rm"; did you mean cancel? It has list, show, events and cancel (attnctl workload --help says what it takes)
key list|key has no "list". It has new (attnctl key --help says what it takes)
key gen|key has no "gen"; did you mean new? It has new (attnctl key --help says what it takes)
create|there is no command "create"; did you mean seq new or lease new or key new? (--help lists the commands)
rm 7|there is no command "rm"; did you mean seq delete or lease delete? (--help lists the commands)
ls|there is no command "ls"; did you mean workload list or seq list or lease list? (--help lists the commands)
status|there is no command "status"; did you mean stats? (--help lists the commands)
sequences|there is no command "sequences"; did you mean seq? (--help lists the commands)
append|something is missing; usage: attnctl append ID --k ROWS --v ROWS [OPTION]... or attnctl append ID [--count N] [--seed N] [OPTION]...
attend 1 2|"2" is one operand too many; usage: attnctl attend ID --q ROWS [--layer N] or attnctl attend ID [--count N] [--seed N] [--layer N]
seq fork|something is missing; usage: attnctl seq fork ID [--count N]
seq truncate 7 x|LENGTH wants an integer in 0..4294967295, not "x" (attnctl seq --help says what it takes)
seq show -1|the id wants an integer in 1..9007199254740991, not "-1" (attnctl seq --help says what it takes)
seq fork 1 2 --count 2|there are two counts: --count 2 and 2 (attnctl seq --help says what it takes)
seq truncate 1 --length=3|seq has no option --length; LENGTH is an operand: attnctl seq truncate ID LENGTH
append 1 --rows 3|append has no option --rows (attnctl append --help says what it takes)
run --coutn 5|run has no option --coutn; did you mean --count? (attnctl run --help says what it takes)
run --count|a value is missing behind --count (attnctl run --help says what it takes)
run --shape azure-conv --count many|--count wants a number in 1..1e+09, not "many" (attnctl run --help says what it takes)
run --shape azure-conv --prefix-share 1:2:3|--prefix-share wants FRACTION:TOKENS, not "1:2:3" (attnctl run --help says what it takes)
seq delete abc|the id wants an integer in 1..9007199254740991, not "abc" (attnctl seq --help says what it takes)
--url ftp://x stats|--url ftp://x: a URL is http://HOST:PORT, https://HOST:PORT or unix:PATH (attnctl stats --help says what it takes)
move --to ftp://x 7|--to ftp://x: a URL is http://HOST:PORT, https://HOST:PORT or unix:PATH (attnctl move --help says what it takes)
compare --with ftp://x|--with ftp://x: a URL is http://HOST:PORT, https://HOST:PORT or unix:PATH (attnctl compare --help says what it takes)
run /|/: Is a directory
run /none.json|/none.json: No such file or directory
run README.md|README.md:1:1: a value was expected here
run config/tiny.jsonc|config/tiny.jsonc:1:1: this is a configuration of the daemon: attnd --config
run --trace /|/: Is a directory
--jsno stats|attnctl itself has no option --jsno; did you mean --json? (--help lists the commands)
top --json|top has no --json: the API's answers are JSON (attnctl top --help says what it takes)
stats --json=1|there is no value to --json=1 (attnctl stats --help says what it takes)
move 1|move wants --to URL, and ids or --all (attnctl move --help says what it takes)
LIST

# Completion offers each of them, and of each command all verbs and options.
offers() { # of the words so far, the last one unfinished
    bash -c '. clients/completion/attnctl.bash; COMP_WORDS=(attnctl "$@"); COMP_CWORD=$#; _attnctl; printf "%s\n" "${COMPREPLY[@]}"' _ "$@"
}
expect 'completion knows the commands' "$(sort <<<"$commands")" "$(offers '' | grep -v '^-' | grep -v '^help$' | sort)"
for command in $commands; do
    ctl "$command" --help >"$WORK/help"
    expect "completion of $command: options" "$(sed -n 's/^  \(--[a-z-]*\).*/\1/p' "$WORK/help" | sort)" \
        "$(offers "$command" -- | grep -vxE -- '--(url|key-file|ca-file|node|json|help)' | sort)"
    verbs=$(sed -n "s/^\(usage:\|      \) attnctl $command \([a-z]\+\).*/\2/p" "$WORK/help" | sort)
    [ -z "$verbs" ] || expect "completion of $command: verbs" "$verbs" "$(offers "$command" '' | sort)"
done
expect 'completion of values' 'azure-code azure-conv' "$(offers run --shape az | sort | paste -sd' ')"
expect 'of --url, too' '--url' "$(offers --ur)"
if command -v zsh >/dev/null; then
    expect 'the zsh one is zsh' 0 "$(zsh -n clients/completion/_attnctl; echo $?)"
else
    echo 'skip completion in zsh: it is not installed'
fi
for command in $commands; do
    ctl "$command" --help >"$WORK/help"
    expect "zsh completion of $command" '' "$(for word in "$command" $(sed -n 's/^  \(--[a-z-]*\).*/\1/p' "$WORK/help"); do
        grep -qE -- "['(]${word}[][':=]" clients/completion/_attnctl || echo "$word"; done)"
    expect "man page of $command" '' "$(for word in "$command" $(sed -n 's/^  --\([a-z-]*\).*/\1/p' "$WORK/help"); do
        tr -d '\\' <man/attnctl.1 | grep -qE -- "^\\.(It|Ss|Op|Fl) .*\b$word\b" || echo "$word"; done)"
done
if command -v mandoc >/dev/null; then
    expect 'the man page is clean for mandoc' '' "$(mandoc -T lint -W warning man/attnctl.1 2>&1)"
fi
if command -v man >/dev/null && command -v groff >/dev/null; then
    expect 'the man page is clean for man' '' "$(LC_ALL=C MANROFFSEQ='' man --warnings -E UTF-8 -l -Tutf8 -Z man/attnctl.1 2>&1 >/dev/null)"
else
    echo 'skip man --warnings: man and groff are not installed'
fi

# ---- what a daemon says may come from others: names with control characters, and such that turn text around
cat >"$WORK/stub.pl" <<'PERL'
use IO::Socket::INET;
my ($file, @answer) = @ARGV;
my $s = IO::Socket::INET->new(Listen => 5, LocalAddr => "127.0.0.1") or die;
open my $f, ">", "$file.new"; print $f $s->sockport; close $f; rename "$file.new", $file;
while (my $c = $s->accept) {
    my ($path) = (<$c> // "") =~ m{^\S+ ([^ ?]*)};
    while (<$c>) { last if /^\r?$/ }
    my ($status, $text) = @answer;
    if (-d $text) { # a folder of answers, a file a path
        $status = "404 Not Found" unless open my $body, "<", "$text$path";
        $text = $status =~ /^2/ ? do { local $/; <$body> } : "{}";
    }
    printf $c "HTTP/1.1 %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\nConnection: close\r\n\r\n%s", $status,
        length $text, $text;
    close $c;
}
PERL
# stub STATUS BODY COMMAND...: what attnctl says, told this by whatever answers.
stub() {
    local status=$1 body=$2 code
    shift 2
    rm -f "$WORK/port"
    perl "$WORK/stub.pl" "$WORK/port" "$status" "$body" &
    local server=$!
    eventually test -e "$WORK/port"
    ctl --url "http://127.0.0.1:$(cat "$WORK/port")" "$@" | cat
    code=${PIPESTATUS[0]}
    kill $server
    wait $server 2>/dev/null
    return "$code"
}
name='a\u001b[2J\u202eb\u200b\u0085c\\d'
shown='a\x1b[2J\u202eb\u200b\x85c\d'
expect 'an owner cannot move the cursor' "$shown" \
    "$(stub '200 OK' "{\"items\":[{\"id\":1,\"state\":\"running\",\"owner\":\"$name\"}]}" workload list | sed -n '2s/.* s  //p')"
stub '404 Not Found' "{\"code\":\"not_found\",\"detail\":\"no $name\"}" seq show 1
expect 'nor a problem' "attnctl: 404 not_found: no $shown" "$(cat "$WORK/err")"
expect 'nor what is not UTF-8' 'attnctl: there is no command "\xc3(\x1b" (--help lists the commands)' "$(ctl $'\xc3(\x1b'; cat "$WORK/err")"

# ---- answers of others (bug: a port that speaks TLS was answered with "400 : ")
page='<html><head><title>400</title></head>
<body>The plain HTTP request was sent to HTTPS port</body></html>'
stub '400 Bad Request' "$page" waiting
expect 'http to a TLS port' 'attnctl: 400, and no JSON: application/json, "400 The plain HTTP request was sent to HTTPS port"; https?' "$(cat "$WORK/err")"
expect 'a success that is no JSON is none' '1 attnctl: 200, and no JSON: application/json, "hello"; is attnd there?' "$(stub '200 OK' 'hello' seq show 1; echo $?) $(cat "$WORK/err")"
stub '502 Bad Gateway' '' waiting
expect 'an answer without a body' 'attnctl: 502, and no JSON: application/json; is attnd there?' "$(cat "$WORK/err")"

# ---- top beside a daemon that says what waits, and of steps
mkdir -p "$WORK/told/v1"
jq -nc '{uptime_s: 3723, backend: {name: "cuda", isa: "sm_90a", threads: 1}, pool: {blocks: 100, free: 3, held: 90, shared: 40, cached: 7},
    counters: {}, scheduler: {queued: 4, steps: 20, roof_gb_per_s: 100, latest: {bytes_read: 2e9, seconds: 0.05}}, sequences: {count: 0}, leases: 0}' >"$WORK/told/stats"
jq -nc '{epoch: 9, count: 3, others: 3, items: [{kind: "attend", sequences: [7], workload: null, since_s: 0.8, reason: "blocks",
    detail: "needs 12 blocks; 3 free, 0 can be reclaimed; behind workload 4"}, {kind: "workload\u001b[H", sequences: [], workload: 4, since_s: 12, detail: "x"},
    {kind: "workload", sequences: [], workload: 5, since_s: 1, detail: "not due yet"}]}' >"$WORK/told/v1/waiting"
jq -nc '{next: 3, columns: {step: [1,2,3], roof_fraction: [0, 0.55, 1], queue_us: [10,20,null], compute_us: [100,100,400], merge_us: [null,null,null]}}' >"$WORK/told/v1/steps"
stub '200 OK' "$WORK/told" top >"$WORK/top"
expect 'what waits, and why' '  attend 7  0.8 s  needs 12 blocks; 3 free, 0 can be reclaimed; behind workload 4' "$(grep -A 1 '^waiting   3:' "$WORK/top" | tail -n 1)"
expect 'a kind cannot move the cursor' '  workload\x1b[H workload 4  12.0 s  x' "$(grep workload..1b "$WORK/top")"
expect 'a workload' '  workload 5  1.0 s  not due yet' "$(grep 'not due' "$WORK/top")"
expect 'those of others are counted' '  and 3 of other keys' "$(grep 'of other' "$WORK/top")"
expect 'the strip of steps' 'of roof   | +@|' "$(grep '^of roof' "$WORK/top")"
expect 'where their time goes' 'us a step queue 15, compute 200' "$(grep '^us a step' "$WORK/top")"
expect 'the bar of the pool' 'pool      [SSSSSSSSSS############c.] 100: 90 held (40 Shared), 7 cached, 3 free' "$(grep '^pool' "$WORK/top")"
expect 'the same as a list' '6 wait|attend 7              0.8 s  needs 12 blocks; 3 free, 0 can be reclaimed; behind workload 4|workload\x1b[H workload 4     12.0 s  x|workload 5            1.0 s  not due yet|3 of other keys' \
    "$(stub '200 OK' "$WORK/told" waiting | paste -sd'|')"
rm "$WORK/told/v1/waiting" "$WORK/told/v1/steps"
stub '200 OK' "$WORK/told" top >"$WORK/top"
expect 'without them it says so, in a line each' 'steps     no /v1/steps at this daemon: no strip of steps|waiting   4 sequences queued; no /v1/waiting at this daemon: not said why' \
    "$(grep 'no /v1/' "$WORK/top" | paste -sd'|')"

# ---- the tour: its calls, made again on another daemon like its own, have the same answers
own() { find /tmp -maxdepth 1 -name 'attnctl-*' -type d 2>/dev/null | sort; }
before=$(own)
"$ATTNCTL" tour --own >"$WORK/tour" </dev/null
expect 'a tour on a daemon of its own' '0 6' "$? $(grep -c '^[1-6] of 6: ' "$WORK/tour")"
expect 'nothing of it is left' "$before" "$(own)"
after() { sed -n "/^$1 of 6/,/^$(($1 + 1)) of 6/p" "$WORK/tour" | sed -n '/^after/,$p' | sed -n 's/^[^[]*\(\[.*\)/\1/p' | paste -sd' '; }
expect 'a fork shares' '[0 4/4 x2] [1 2/4 x2] [0 4/4 x2] [1 2/4 x2]' "$(after 3)"
expect 'a write copies' '[0 4/4 x2] [1 2/4] [0 4/4 x2] [2 3/4]' "$(after 4)"
expect 'a prompt is found' 8 "$(sed -n 's/.*"cached_tokens":\([1-9][0-9]*\).*/\1/p' "$WORK/tour")"
expect 'one is swapped' 1 "$(grep -c 'swapped to host memory$' "$WORK/tour")"
start_daemon --set backend.name=cpu --config config/tiny.jsonc --set pool.blocks=16 --set pool.host_blocks=16
while IFS= read -r line; do
    case $line in
        curl* | jq*) command=$(sed "s,--unix-socket [^ ]* ,,; s,http://localhost,$URL,g" <<<"$line") ;;
        *) expect "the tour's ${command:0:60}" "$line" "$(eval "$command")" ;;
    esac
done < <(sed -n 's/^    \([cj{]\)/\1/p' "$WORK/tour")
stop_daemon

# ---- a workload that cannot begin (bug: it waited without a word, and the summary said that it ran)
start_daemon --config config/tiny.jsonc --set pool.blocks=64 --set limits.sequences=2
export ATTNCTL_URL=$URL
expect 'nothing waits' 'node n0: nothing waits' "$(ctl waiting)"
echo '{"sequences":[{"prompt":40,"decode":3}]}' >"$WORK/w.json"
# begun COMMAND... - start it, wait until it says why it waits, and end it; what it has said on both streams.
begun() {
    local pid
    : >"$WORK/why"
    "$ATTNCTL" "$@" >"$WORK/out" 2>"$WORK/why" &
    pid=$!
    says_why() { grep -q '^waits: ' "$WORK/why"; }
    eventually says_why
    ctl waiting >"$WORK/list"
    ctl workload list >"$WORK/workloads"
    kill -INT $pid
    wait $pid
    echo "$?" "$(grep -v interrupted "$WORK/why")"
}
ctl seq new >/dev/null
ctl seq new >/dev/null
slots='limits.sequences is 2: 2 taken, 1 needed'
expect 'run says that there is no slot for a sequence' "130 waits: $slots" "$(begun run "$WORK/w.json")"
expect 'its summary is true' "had not begun after|waited for $slots" "$(sed -nE 's/^workload [0-9]+ (had .*after) .*/\1/p; s/^  (waited for)  */\1 /p' "$WORK/out" | paste -sd'|')"
expect 'in a list it waits (bug: running)' waiting "$(awk 'NR > 1 { print $2 }' "$WORK/workloads")"
expect 'waiting says it, too' "$slots" "$(sed -n 's/^workload 1  *[0-9.]* s  //p' "$WORK/list")"
expect 'so does a sweep' "130 waits: $slots" "$(begun sweep --batch 1 --context 16 --shared 0 --decode 4)"
expect 'which has no empty table then' ' attnctl: interrupted; nothing was measured' "$(cat "$WORK/out") $(grep interrupted "$WORK/why")"
for id in $(ctl --json seq | jq '.items[].id'); do ctl seq delete "$id" >/dev/null; done
ctl lease new 60 >/dev/null
expect 'run says that there are no blocks' '130 waits: with all that run it needs 11 blocks up to their end; 4 can be had' "$(begun run "$WORK/w.json")"
stop_daemon

# ---- a workload that is interrupted
start_daemon --set limits.body_bytes=1MiB
export ATTNCTL_URL=$URL
is_running() { [ "$(curl -s "$URL/v1/workloads" | jq -r '.items[0].state')" = running ] && [ "$(curl -s "$URL/v1/workloads" | jq '.items[0].tokens.done')" -gt 0 ]; }
is_cancelled() { [ "$(curl -s "$URL/v1/workloads" | jq -r '.items[0].state')" = cancelled ]; }
echo '{"sequences":[{"prompt":9,"decode":60000}]}' >"$WORK/w.json"
"$ATTNCTL" run "$WORK/w.json" >"$WORK/out" 2>"$WORK/err" &
pid=$!
eventually is_running
kill -INT $pid
wait $pid
expect 'Ctrl-C ends it' '130 attnctl: interrupted; the daemon cancels the workload. So far:' "$? $(tail -n 1 "$WORK/err")"
expect 'with its summary so far' 'workload 1 running' "$(grep -o '^workload 1 [a-z]*' "$WORK/out" | sed 's/cancelled/running/')" # by now
expect 'what was done is told' 1 "$(grep -c '^  tokens *[0-9]' "$WORK/out")"
eventually is_cancelled
expect 'and cancels it' cancelled "$(ctl --json workload show 1 | jq -r .state)"

# Bug: of a daemon that was killed it said "transfer closed with outstanding read data remaining", and no word of the workload.
victim=''
kill_victim() { kill -9 "${others[-1]}"; wait "${others[-1]}" 2>/dev/null; unset 'others[-1]'; }
another victim --set node=5
jq -nc '{trace: [(range(8) | {arrival_s: 0, prompt: 64, decode: 16000}), {arrival_s: 1e5, prompt: 1, decode: 1}]}' >"$WORK/long.json"
for json in '' --json; do
    : >"$WORK/err"
    # shellcheck disable=SC2086
    "$ATTNCTL" --url "$victim" $json run "$WORK/long.json" >"$WORK/out" 2>"$WORK/err" &
    pid=$!
    has_steps() { [ "$(curl -s "$victim/v1/workloads" | jq '.items[0].steps // 0')" -gt 0 ]; }
    eventually has_steps
    sleep 1 # reports come four times a second
    kill_victim
    wait $pid
    expect "a daemon that is killed amid a workload ($json)" '1 attnctl: the daemon (node n5) went away amid the workload, which does not outlast it. Its last report:' "$? $(tail -n 1 "$WORK/err")"
    [ -n "$json" ] || another victim --set node=5
    [ -n "$json" ] || expect 'how far it was' "workload $(((5 << 40) + 1)) running, 1" "$(grep -o '^workload [0-9]* running' "$WORK/out"), $(grep -c '^  tokens *[0-9]' "$WORK/out")"
done
# Bug: likewise of events.
for command in 'events --types sequence' 'workload events 1'; do
    another victim
    curl -s -o /dev/null --json '{"trace":[{"arrival_s":500,"prompt":1,"decode":1}]}' "$victim/v1/workloads"
    : >"$WORK/events"
    # shellcheck disable=SC2086
    "$ATTNCTL" --url "$victim" $command >"$WORK/events" 2>"$WORK/err" &
    pid=$!
    has_events() { curl -s -o /dev/null -X POST "$victim/v1/sequences" && [ -s "$WORK/events" ]; }
    eventually has_events
    kill_victim
    wait $pid
    code=$?
    last=$(awk '$3 == "s" { last = "; the last one was " $1 } END { print last }' "$WORK/events")
    expect "a daemon that is killed amid $command" "69 attnctl: the daemon (node n0) went away amid its events$last" "$code $(cat "$WORK/err")"
done
expect 'also in JSON' 'running true' "$(jq -r '"\(.state) \(.steps > 0)"' "$WORK/out")"
curl -s -o /dev/null --json '{"trace":[{"arrival_s":500,"prompt":1,"decode":1}],"verify":{"rows":1}}' "$URL/v1/workloads"
ctl workload cancel 2 >"$WORK/out"
expect 'what was cancelled is not wrong' 'not verified (cancelled)' "$(sed -n 's/^  verified *//p' "$WORK/out")"
expect 'what was not timed has no figures' '- - - - -' "$(sed -nE 's/^  (step|queue|first token|per token|read)  +//p' "$WORK/out" | paste -sd' ')"

# ---- workloads of others
echo '{"sequences":[{"prompt":9,"decode":3}]}' >"$WORK/w.json"
expect 'a workload from standard input' 3 "$(ctl --json run - <"$WORK/w.json" | jq .tokens.done)"
expect 'they are listed' 'finished cancelled cancelled' "$(ctl workload list | awk 'NR > 1 { print $2 }' | paste -sd' ')"
expect 'one of them' 'workload 3 finished' "$(ctl workload show 3 | grep -o '^workload [0-9]* [a-z]*')"
expect 'its events' 'workload 3 finished' "$(ctl workload events 3 | grep -o '^workload [0-9]* [a-z]*')"
curl -s -o /dev/null --json '{"trace":[{"arrival_s":500,"prompt":1,"decode":1}]}' "$URL/v1/workloads"
expect 'one is cancelled' 'workload 4 cancelled' "$(ctl workload cancel 4 | grep -o '^workload [0-9]* [a-z]*')"
expect 'one that is not there' '1 404 not_found: there is no workload 9' "$(said workload show 9)"
printf '{"timestamp":0,"input_length":9,"output_length":2,"hash_ids":[1]}\n' >"$WORK/t.ndjson"
expect 'a trace of JSON lines by either name' 2 "$(ctl --json run --trace "$WORK/t.ndjson" --prefix-share 0.5:4 --fork-share 0:1 | jq .tokens.done)"


# ---- in the words of others: the API's create, a count as an operand or an option, ids in their order
expect 'seq create is seq new' 70 "$(ctl --json seq create 70 | jq .id)"
expect 'likewise of leases' 71 "$(ctl --json lease create 1 --id 71 | jq .id)"
expect 'a count of forks, either way' '2 2' "$(ctl seq fork 70 --count 2 | wc -l) $(ctl seq fork 70 2 | wc -l)"
expect 'a count of tokens, either way' '3 8' "$(ctl append 70 --count 3 | awk '{ print $3 }') $(ctl append 70 5 | awk '{ print $3 }')"
ctl seq new 20 >"$WORK/out"
expect 'sequences are listed by id (bug: by slot, which a restore changes)' "20 70" "$(ctl seq list | awk '$1 == 20 || $1 == 70 { print $1 }' | paste -sd' ')"
expect 'sorted' "$(ctl seq list | sort -n)" "$(ctl seq list)"
for id in $(ctl --json seq | jq '.items[].id'); do ctl seq delete "$id" >"$WORK/out"; done
ctl lease delete 71

# ---- tokens from the command line
seq_new() { ctl --json seq new "$@" | jq .id; }
a=$(seq_new) b=$(seq_new)
ctl append "$a" --k 0:0 --v 1:3 >"$WORK/out"
expect 'two tokens are appended' "$a idle 2 tokens" "$(awk '{ print $1, $2, $3, $4 }' "$WORK/out")"
expect 'a query that likes both gets their mean' 'row 0 head 7    2 2 2 2 2 2 2 2 ... lse 0.69315' "$(ctl attend "$a" --q 0 --layer 3 | sed -n '8s/  */ /gp' | sed 's/head 7/head 7   /')"
expect 'rows of a head' '[1,2]' "$(ctl append "$b" --k 0 --v "$(seq -s, 64)" >/dev/null; ctl --json attend "$b" --q 0 | jq -c '.o[0][5][:2]')"
ctl append "$a" --count 1200 --tokens "$(seq -s, 1200)" >/dev/null
expect 'generated ones are cut as the daemon takes them' '1202 1202' "$(ctl --json seq show "$a" | jq -r '"\(.length) \(.lengths[3])"')"
c=$(seq_new) d=$(seq_new)
for s in "$c" "$d"; do ctl append "$s" --count 40 --seed 5 >/dev/null; done
expect 'a seed names numbers' "$(ctl --json attend "$c" --count 3 --seed 9 | jq -c '[.o, .lse]' | md5sum)" "$(ctl --json attend "$d" --count 3 --seed 9 | jq -c '[.o, .lse]' | md5sum)"
expect 'another seed others' different "$(ctl append "$d" >/dev/null; ctl append "$c" --seed 6 >/dev/null; [ "$(ctl --json attend "$c" | jq -c .o)" = "$(ctl --json attend "$d" | jq -c .o)" ] || echo different)"
p=$(seq_new)
ctl append "$p" --count 32 --tokens "$(seq -s, 32)" >/dev/null
expect 'what may be shared of a prompt' '32 2 0' "$(ctl prefixes | awk 'NR == 3 { print $2, $3, $4 }')"
expect 'a new sequence finds it' '32 tokens found in the cache' "$(ctl seq new --tokens "$(seq -s, 33)" | grep -o '[0-9]* tokens found.*cache')"
expect 'under another salt it does not' 0 "$(ctl seq new --salt x --tokens "$(seq -s, 33)" | grep -c found)"
expect 'likewise as JSON' 32 "$(ctl --json prefixes | jq '.items[0].tokens')"
expect 'what has happened' "sequence $p created 0 tokens, 0 blocks" "$(grep -m 1 -x ".*sequence $p .*" <("$ATTNCTL" events --since 0 --types sequence) | sed 's/.*sequence/sequence/; s/  */ /g')"
expect 'of a block, how many refer to it' '1 reference' "$(grep -m 1 -oE '[0-9]+ references?' <("$ATTNCTL" events --since 0 --types block))"
while IFS='|' read -r line want; do
    # shellcheck disable=SC2086
    expect "attnctl $line" "$want" "$(said $line)"
done <<LIST
append $a --k 1|2 append wants --k and --v, or --count and --seed for generated numbers (attnctl append --help says what it takes)
append $a --k 1 --v 1:2|2 --k has 1 row, and --v 2 (attnctl append --help says what it takes)
append $a --k 1,2 --v 1|2 --k: row 1 wants 1, 64 or 128 finite numbers with commas between; rows have : between (attnctl append --help says what it takes)
append $a --k nan --v 1|2 --k: row 1 wants 1, 64 or 128 finite numbers with commas between; rows have : between (attnctl append --help says what it takes)
append $a --count 2 --tokens 1|2 --tokens wants an id for each of 2 tokens, with commas between (attnctl append --help says what it takes)
append $a --layer 4|2 --layer wants an integer in 0..3, not "4" (attnctl append --help says what it takes)
seq new --tokens 1,x|2 --tokens wants ids with commas between, not "1,x" (attnctl seq --help says what it takes)
append 999|1 404 not_found: there is no sequence 999
events --types x|1 422 invalid: parameter types: wants some of block,sequence,step
events --types X|2 --types wants some of block,sequence,step, not "X" (attnctl events --help says what it takes)
attend $a --q 1 --seed 2|2 attend wants --q, or --count and --seed for generated numbers (attnctl attend --help says what it takes)
lease new 0|2 BLOCKS wants an integer in 1..100000, not "0" (attnctl lease --help says what it takes)
batch|2 batch wants operations, or --file FILE (attnctl batch --help says what it takes)
batch fork|2 an operation is create[:ID], fork:ID[:COUNT], truncate:ID:LENGTH or delete:ID, not "fork" (attnctl batch --help says what it takes)
batch delete:7:8|2 an operation is create[:ID], fork:ID[:COUNT], truncate:ID:LENGTH or delete:ID, not "delete:7:8" (attnctl batch --help says what it takes)
batch create delete:999|1 404 not_found: ops[1]: there is no sequence 999
parameters /none.json|2 /none.json: No such file or directory
drain --cancel --deadline 3|2 drain --cancel takes back what others ask for (attnctl drain --help says what it takes)
drain --lame-duck 86401|2 --lame-duck wants an integer in 0..86400, not "86401" (attnctl drain --help says what it takes)
drain --deadline 0|2 --deadline wants an integer in 1..86400, not "0" (attnctl drain --help says what it takes)
LIST

# ---- an append that is cut into several calls (bug: what can never fit began all the same, and --json did not say that it had stopped)
another SMALL --config config/tiny.jsonc --set limits.rows_per_call=8 --set limits.sequence_tokens=300
# shellcheck disable=SC2153 # another sets it
small=(--url "$SMALL")
ctl "${small[@]}" seq new 1 >"$WORK/out"
ctl "${small[@]}" append 1 4 >"$WORK/out"
expect 'more than the pool has' '1 sequence 1 would have 257 tokens and needs 65 blocks; the pool has 64: nothing was appended' "$(said "${small[@]}" append 1 253)"
expect 'more than a sequence may have' '1 sequence 1 would have 304 tokens; limits.sequence_tokens is 300: nothing was appended' "$(said "${small[@]}" append 1 300)"
ctl "${small[@]}" seq new 2 --max-tokens 20 >"$WORK/out"
expect 'more than it declared' '1 sequence 2 would have 21 tokens; it declared max_tokens 20: nothing was appended' "$(said "${small[@]}" append 2 21)"
ctl "${small[@]}" seq delete 2
expect 'nothing was' 4 "$(ctl "${small[@]}" --json seq show 1 | jq .length)"
expect 'what fits is appended' 256 "$(ctl "${small[@]}" append 1 252 | awk '{ print $3 }')"
expect 'a length that it does not have cuts nothing, which is said (bug: not a word)' 'attnctl: sequence 1 has 256 tokens: nothing was truncated 256' \
    "$(ctl "${small[@]}" seq truncate 1 257 >"$WORK/out"; cat "$WORK/err") $(awk '{ print $3 }' "$WORK/out")"
expect 'one that it has does' '0 4' "$(said "${small[@]}" seq truncate 1 4)$(ctl "${small[@]}" --json seq show 1 | jq .length)"
ctl "${small[@]}" lease new 60 >"$WORK/out"
ctl "${small[@]}" --json append 1 40 >"$WORK/out"
expect 'one that stops half-way says so on stdout, too' '1 8 40 503 blocks_exhausted' "$? $(tail -n 1 "$WORK/out" | jq -r '"\(.appended) \(.wanted) \(.problem.status) \(.problem.code)"')"
expect 'behind the answers of the calls' '[12] null' "$(jq -sc '.[0].sequences[0].lengths, .[2]' "$WORK/out" | paste -sd' ')"
expect 'and how it is taken back' 'attnctl: 8 of 40 tokens were appended, 8 a call; attnctl seq truncate 1 4 takes them back' "$(tail -n 1 "$WORK/err")"
# Bug: it named the way back where there was nothing to take back.
another victim --config config/tiny.jsonc --set pool.blocks=30000 --set limits.rows_per_call=1
for way in deleted killed; do
    ctl --url "$victim" seq new 7 >"$WORK/made"
    : >"$WORK/out"
    "$ATTNCTL" --url "$victim" --json append 7 100000 >"$WORK/out" 2>"$WORK/err" &
    pid=$!
    has_some() { [ "$(wc -l <"$WORK/out")" -gt 2 ]; }
    eventually has_some
    if [ $way = deleted ]; then curl -s -o /dev/null -X DELETE "$victim/v1/sequences/7"; else kill_victim; fi
    wait $pid
    expect "where it is $way there is no way back" '100000 tokens were appended, 1 a call' "$(tail -n 1 "$WORK/err" | sed 's/attnctl: [0-9]* of //')"
done
expect 'one that was done says nothing of it' 'false' "$(ctl "${small[@]}" --json append 1 | jq 'has("problem")')"

# ---- in and out of files
ctl export "$a" "$WORK/a" >"$WORK/out"
expect 'a sequence of several ranges is exported' "tokens 0:1202 of sequence $a" "$(cat "$WORK/out")"
expect 'nothing else is left' a "$(cd "$WORK" && echo a*)"
expect 'as one safetensors' '[4,1202,2,64] 1202' "$(header "$WORK/a" | jq -r '"\(.k.shape | tojson) \(.v.shape[1])"')"
expect 'in ranges' yes "$([ "$(header "$WORK/a" | jq -r '.__metadata__.ranges' | wc -w)" -gt 2 ] && echo yes)"
ctl --json import "$WORK/a" >"$WORK/out"
e=$(jq .id "$WORK/out")
expect 'it is imported' '1202 same' "$(jq -r '"\(.length) \(.bits)"' "$WORK/out")"
ctl export "$e" "$WORK/e" >/dev/null
cut_() { tail -c $((1202 * 4 * 2 * 128 * 2)) "$1" | md5sum; }
expect 'with the same bytes' "$(cut_ "$WORK/a")" "$(cut_ "$WORK/e")"
perl -0777 -pe 'substr($_, -100000, 1) ^= "\x01"' "$WORK/a" >"$WORK/damaged"
count() { curl -s "$URL/stats" | jq .sequences.count; }
before=$(count)
expect 'a byte that has changed' '1 422 invalid: they were changed on their way' "$(said import "$WORK/damaged" | sed 's/k and v have.*: //')"
expect 'leaves nothing' "$before" "$(count)"
ctl export "$a" "$WORK/part" --range 10:20 >/dev/null
expect 'a range' '[4,10,2,64]' "$(header "$WORK/part" | jq -c .k.shape)"
expect 'through a pipe, to the end of one' "sequence $b has 11 tokens, 10 of them from the file; bits same" "$(ctl export "$a" - --range 10:20 | ctl import - "$b")"
expect 'no safetensors' "1 $WORK/w.json is no safetensors" "$(said import "$WORK/w.json")"
expect 'a range that is not there' '2 --range wants FIRST:END within its 1202 tokens (attnctl export --help says what it takes)' "$(said export "$a" "$WORK/x" --range 1200:1203)"
expect 'a folder that is not there (bug: it named a file x.part)' "1 $WORK/none/x: No such file or directory" "$(said export "$a" "$WORK/none/x")"
expect 'an empty sequence' '1 sequence' "$(said export "$(seq_new)" "$WORK/x" | cut -d' ' -f1-2)"

# ---- several at once, blocks, parameters
expect 'a batch' "create:900 -> 900|fork:$a:2 -> N -> N|truncate:900:0 -> 900|delete:900" "$(ctl batch create:900 "fork:$a:2" truncate:900:0 delete:900 | sed "2s/-> [0-9]*/-> N/g" | paste -sd'|')"
expect 'a batch of a file' 'operation -> 901' "$(echo '{"ops":[{"op":"create","id":901}]}' | ctl batch --file -)"
expect 'a lease' '902 3 blocks' "$(ctl lease new 3 --id 902 | awk '{ print $1, $2, $3 }')"
expect 'it is listed and shown' "node n0: 1 lease|$(ctl lease show 902)" "$(ctl lease | paste -sd'|')"
ctl lease delete 902
expect 'and given back' '1 404 not_found: there is no lease 902' "$(said lease show 902)"
expect 'trim' 'cached blocks are free now, node n0: 0 cached blocks are free now' "$(ctl trim | cut -d' ' -f4-), $(ctl trim)"
expect 'selftest' ok "$(ctl selftest | sed 's/.*: //')"
expect 'roof' GB/s: "$(ctl roof | awk '{ print $4 }')"
jq -nc '{sinks: [range(4) | [range(8) | 0.5]]}' >"$WORK/p.json"
expect 'parameters that come too late' '1 409 parameters_fixed: something was appended already; they are fixed from then on' "$(said parameters "$WORK/p.json")"
for id in $(ctl --json seq | jq '.items[].id'); do ctl seq delete "$id"; done

# ---- the tour where it is not alone
before=$(count)
expect 'a tour where somebody is' '0 1' "$(ctl seq new >/dev/null; ctl tour </dev/null >"$WORK/tour"; echo $?) $(grep -c '^Left out: ' "$WORK/tour")"
expect 'it has deleted what it made' $((before + 1)) "$(count)"
for id in $(ctl --json seq | jq '.items[].id'); do ctl seq delete "$id"; done

# ---- with a key that is not admin: what is one's own, and what is everybody's
make_keys root alice bob
another KEYED --config config/tiny.jsonc --set keys.file="$WORK/keys"
# shellcheck disable=SC2154
ctl_as() { ctl --url "$KEYED" --key-file "$WORK/$1" "${@:2}"; }
for _ in 1 2; do ctl_as alice seq new >"$WORK/out"; done
ctl_as alice append 1 10 >"$WORK/out"
ctl_as alice seq fork 1 >"$WORK/out"
ctl_as bob seq new >"$WORK/out"
ctl_as bob append 4 7 >"$WORK/out"
sum() { ctl_as "$1" stats | sed -n 's/^  sequences *//p'; }
expect 'stats: of an admin' '4: 4 idle, 0 queued, 0 running, 0 swapped' "$(sum root)"
expect 'of another key (bug: "1: 4 idle")' '1 yours; of all keys: 4 idle, 0 queued, 0 running, 0 swapped' "$(sum bob)"
expect 'it says whose the rest is' 1 "$(ctl_as bob stats | grep -c '; blocks, tokens and steps are those of all keys$')"
expect 'top likewise' 'sequences 1, leases 0 yours; all keys: 0 running, 0 queued, 0 swapped, 4 idle' "$(ctl_as bob top | grep '^sequences')"
expect 'blocks of another key have a mark (bug: 0)' xxx11. "$(ctl_as bob blocks --count 6 | sed -n '2s/^ *0  //p')"
expect 'which the legend has' "x another key's" "$(ctl_as bob blocks | grep -o "x another.*")"
expect 'in 80 columns' '' "$(ctl_as bob blocks | grep -E '.{81}')"
expect 'for an admin there is none' '22211. 0' "$(ctl_as root blocks --count 6 | sed -n '2s/^ *0  //p') $(ctl_as root blocks | grep -c another)"
echo '{"sequences":[{"count":2,"prompt":4,"decode":2}]}' >"$WORK/w.json"
ctl_as bob run "$WORK/w.json" >"$WORK/out"
expect "a report's blocks are named as the pool's (bug: another key's counted as its own)" '64 blocks held at most, 2 saved by sharing' \
    "$(sed -n 's/^  whole pool  *[0-9]* of //p' "$WORK/out")"
ctl_as bob tour </dev/null >"$WORK/tour"
expect 'a tour beside another key takes no blocks from it (bug: all that were free)' 1 "$(grep -c '^Left out: ' "$WORK/tour")"
stop_others

# ---- measuring
"$ATTNCTL" sweep --block-size 4,16 --batch 1,2 --context 32,64 --shared 0,0.5 --decode 4 --pool 1MiB --csv "$WORK/s.csv" --svg "$WORK/s.svg" >"$WORK/sweep"
expect 'a sweep of 16 points' '0 16 17' "$? $(grep -c '^ *[12] ' "$WORK/sweep") $(wc -l <"$WORK/s.csv")"
expect 'blocks of any size have the same outputs' 8 "$(tail -n +2 "$WORK/s.csv" | cut -d, -f1-3,16 | sort -u | wc -l)"
expect 'every number is there' 0 "$(tail -n +2 "$WORK/s.csv" | awk -F, 'NF != 16 || $7 <= 0 || $9 <= 0 || $10 <= 0' | wc -l)"
expect 'the picture is XML with a line each' '0 16' "$(python3 -c 'import sys, xml.dom.minidom as x; x.parse(sys.argv[1])' "$WORK/s.svg"; echo $?) $(grep -c '<polyline' "$WORK/s.svg")"
expect 'what does not fit is said' '1 does not fit: needs 9 blocks of 8' "$(ctl sweep --block-size 16 --pool 256KiB --batch 1 --context 140 --shared 0 --decode 4 >"$WORK/sweep"; echo $?) $(sed -n 's/.*| //p' "$WORK/sweep" | tail -n 1)"
expect 'the daemon at hand' "$(ctl sweep --batch 1 --context 16 --shared 0 --decode 4 | tail -n 1 | awk '{ print $1, $2, $4 }')" '1 16 16'
expect 'two daemons that are given' 2 "$(ctl sweep --at "$URL,$URL" --batch 1 --context 16 --shared 0 --decode 4 | grep -c '^ *1 ')"
expect 'a list that is none' '2 --batch wants at most 16 integers in 1..65536, with commas between, not "1,x" (attnctl sweep --help says what it takes)' "$(said sweep --batch 1,x)"
expect 'a daemon that does not start is said why' '69 /none/attnd: No such file or directory' "$(ctl sweep --block-size 7 --attnd /none/attnd >/dev/null; echo $?) $(tail -n 1 "$WORK/err")"
"$ATTNCTL" sweep --batch 1 --context 16,50000 --shared 0 --decode 4000 --csv "$WORK/s.csv" >"$WORK/sweep" 2>"$WORK/err" &
pid=$!
eventually grep -q '^ *1  *16 ' "$WORK/sweep"
kill -INT $pid
wait $pid
expect 'Ctrl-C ends a sweep with what it has' '130 attnctl: interrupted; that is what was measured 2' "$? $(cat "$WORK/err") $(wc -l <"$WORK/s.csv")"
expect 'compare: the native kernel' '0 A' "$(ctl compare --batch 3 --context 37 --repeat 3 >"$WORK/compare"; echo $?) $(sed -n 's/^http.* //p' "$WORK/compare")"
expect 'its error is that of bf16' yes "$(awk '/^http/ { print ($7 > 0 && $7 < 0.02) ? "yes" : $7 }' "$WORK/compare")"
expect 'a share of the roof above 1 has its reason there, and no other' yes \
    "$(awk '/^http/ { if ($6 > most) most = $6 } /^of roof above 1: K and V/ { said = 1 } END { print (most > 1.01 && !said || most < 0.99 && said) ? most " " said : "yes" }' "$WORK/compare")"
expect 'and what the others need' 1 "$(grep -c '^Not compared: .*paged_v1 and paged_v2' "$WORK/compare")"
expect 'another one beside it has the same bits' 'A A' "$(ctl compare --batch 3 --context 37 --repeat 3 --with "$URL" | sed -n 's/^http.* //p' | paste -sd' ')"
expect 'no lease is left' 0 "$(curl -s "$URL/stats" | jq .leases)"

# ---- screens
is_empty() { [ "$(count)" = 0 ]; } # the sweep that was interrupted: its workload is cancelled, which may take a step
eventually is_empty
for _ in 1 2 3; do ctl seq new >/dev/null; done
ids=$(ctl --json seq | jq -c '[.items[].id]')
id=$(jq .[0] <<<"$ids")
token=$(jq -c '[range(4) | [[range(2) | [range(64) | 0.5]]]]' <<<null)
append() { curl -s -o /dev/null --json "{\"sequences\":[$1],\"k\":$token,\"v\":$token}" "$URL/v1/append"; }
append "$id"
ctl seq fork "$id" >/dev/null
expect 'a shared block is a 2' 2 "$(ctl blocks --count 1 | sed -n 's/^ *0  //p')"
expect 'no colours where there is no terminal' 0 "$(ctl blocks | grep -c $'\033')"
expect 'blocks from one on' '64  ...' "$(ctl blocks --from 64 --count 3 | sed -n '2s/^ *//p')"
expect 'all pages as JSON' "$(curl -s "$URL/stats" | jq .pool.blocks)" "$(ctl --json blocks | jq -s 'map(.blocks | length) | add')"
expect 'top once, as text' 0 "$(ctl top >"$WORK/top"; echo $?; grep -c $'\033' "$WORK/top" | sed 's/^0$//')"
expect 'of the pool' 1 "$(grep -c '^pool  .* 1 held (1 Shared), ' "$WORK/top")"
expect 'of sequences' 4 "$(grep -c '^ *[0-9]*  idle ' "$WORK/top")"

if ! command -v tmux >/dev/null; then
    echo 'skip screens in a terminal: tmux is not installed'
    stop_daemon
    expect 'it ends cleanly' 0 $?
    finish
fi
mux() { tmux -S "$WORK/tmux" -f /dev/null "$@"; }
# shellcheck disable=SC2154
trap 'status=$?; mux kill-server 2>/dev/null; [ -z "$DAEMON" ] || kill -9 $DAEMON 2>/dev/null; rm -rf "$WORK"; exit $status' EXIT
mux new-session -d -x 80 -y 24 "env -u NO_COLOR TERM=screen PS1='ready> ' ATTNCTL_URL=$URL PATH=$(dirname "$ATTNCTL"):$PATH bash --norc --noprofile"
sees() { mux capture-pane -p | grep -q -- "$1"; }
types() { mux send-keys -- "$@"; }
# Whether the shell has the terminal back: its own screen, a cursor, and what is typed is seen.
is_back() { [ "$(mux display -p '#{alternate_on}#{cursor_flag}')" = 01 ] && mux capture-pane -p | grep -v '^$' | tail -n 1 | grep -q '^ready> *$'; }
eventually is_back
types 'echo what was there before' Enter
eventually sees '^what was there before'
types 'attnctl top --interval 0.1' Enter
eventually sees '^pool '
expect 'top is on a screen of its own' 1 "$(mux display -p '#{alternate_on}')"
mux capture-pane -p >"$WORK/frame"
expect 'it fits' '24 0' "$(wc -l <"$WORK/frame") $(grep -cE '.{81}' "$WORK/frame")"
expect 'it is coloured' yes "$(mux capture-pane -e -p | grep -q $'\033\\[3[0-9]m' && echo yes)"
ctl seq fork "$id" 3 >/dev/null
eventually sees '^sequences 7: '
expect 'it sees what is new' 0 $?
types C-c
eventually is_back
expect 'Ctrl-C gives the terminal back' 0 $?
expect 'with what was there' yes "$(sees '^what was there before' && echo yes)"
types 'stty -a | grep -o " echo \| icanon\| susp = ^Z" | tr -d "\n"; echo' Enter
eventually sees '^ susp = ^Z icanon echo'
expect 'and its ways' 0 $?
types 'attnctl blocks --watch --interval 0.1' Enter
eventually sees '^       0  5\.'
expect 'the map is drawn' 0 $?
expect 'references have colours' yes "$(mux capture-pane -e -p | grep -q $'\033\\[33m5' && echo yes)"
expect 'it has a legend' yes "$(sees 'held by so many sequences' && echo yes)"
ctl seq fork "$id" 6 >/dev/null
eventually sees '^       0  +\.'
expect 'it changes' 0 $?
types ' '
eventually sees '^node n0: blocks 1280 to '
expect 'space shows the next blocks' 0 $?
types q
eventually is_back
expect 'q gives the terminal back' 0 $?
types 'clear; NO_COLOR=1 attnctl blocks --watch --interval 0.1' Enter
eventually sees '^       0  +\.'
expect 'NO_COLOR has none' 0 "$(mux capture-pane -e -p | grep -c $'\033\\[[0-9;]*m')"
kill -TERM "$(pgrep -f 'attnctl blocks --watch' -P "$(mux display -p '#{pane_pid}')")"
eventually is_back
expect 'SIGTERM gives it back, too' 0 $?
mux resize-window -x 40 -y 10
types 'clear; attnctl top --interval 0.1' Enter
eventually sees '^pool '
expect 'a small terminal' '10 0' "$(mux capture-pane -p | wc -l) $(mux capture-pane -p | grep -cE '.{41}')"
expect 'a folder without a journal' "69 attnctl: $WORK: there is no journal in it" "$(ctl replay "$WORK"; echo "$? $(head -n 1 "$WORK/err")")"
expect 'drain ends the daemon' 'node n0: draining: what is under way has 5 s, then the daemon ends' "$(ctl drain --deadline 5)"
wait "$DAEMON"
expect 'cleanly' 0 $?
DAEMON=
eventually sees '^no answer'
is_back
expect 'that does not end top' 1 $?
eventually sees '^no answer since [0-9][0-9]:[0-9][0-9]:[0-9][0-9]:'
eventually sees 'running there?$'
expect 'which says why, in lines that fit (bug: it ended)' yes "$(sees "^  http://127.0.0.1:$PORT/stats" && echo yes)"
"$ATTND" --set "listen=127.0.0.1:$PORT" 2>"$WORK/log" &
DAEMON=$!
eventually sees '^pool '
eventually sees '^sequences 0'
expect 'and goes on when there is one again' 0 "$(mux capture-pane -p | grep -c 'no answer')"
kill -9 "$DAEMON"
wait "$DAEMON" 2>/dev/null
DAEMON=
eventually sees '^no answer since '
types q
eventually is_back
expect 'until it is ended' 0 $?
types 'clear; attnctl top --interval 0.1' Enter
eventually sees '^attnctl: http'
expect 'one that begins without a daemon ends' 0 $?
finish
