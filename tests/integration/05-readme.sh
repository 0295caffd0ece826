#!/usr/bin/env bash
# Every command of the README's session, in order, against its printed output. (The daemon listens on a free port instead of
# 8400; the session shows no times or figures of the machine, so nothing needs masking.)
. tests/integration/lib.sh
start_daemon --config config/tiny.jsonc
session=$(sed -n '/^## A first look/,/^## Configuration/p' README.md)
command='' wanted='' count=0
check() {
    [ -n "$command" ] || return 0
    count=$((count + 1))
    expect "README: ${command:0:70}" "$wanted" "$(eval "$command")"
}
while IFS= read -r line; do
    case $line in
        '    $ '*)
            check
            command=${line#'    $ '} wanted=''
            ;;
        '    '*) [ -z "$command" ] || wanted=${wanted:+$wanted$'\n'}${line#    } ;;
        *)
            check
            command=''
            ;;
    esac
done <<<"$session"
expect 'the session was found' yes "$([ $count -ge 10 ] && echo yes || echo "no: $count commands")"
stop_daemon
expect 'it ends cleanly' 0 $?
finish
