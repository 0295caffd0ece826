# SPDX-License-Identifier: Apache-2.0
# documents.sh - run what documents show. Source it after lib.sh.
#
#   check_document NAME FILE [LEAST]   run the blocks of a document, in order; at least LEAST commands are expected
#   check_python NAME FILE PYTHON      run its Python blocks, in order, in one process
#   check_marks FILE                   look at the marks of a document without running it
#
# A block of code is fenced, with its kind behind the fence, or indented by four spaces. What happens to it follows from its kind:
#
#   console   "$ COMMAND" is run, "> " continues it; what it prints is compared with the lines behind it
#   sh        commands; each has to succeed
#   json      has to be JSON
#   python    run by check_python
#   others    are only shown (text, c, ...)
#
# An indented block is console if its first line begins with "$ ", sh if a line of it begins as a command does, else text. In what
# is expected a line "..." stands for any lines, and the character "…" for anything.
#
# An HTML comment above a block marks it:
#
#   <!-- not run: REASON -->   it is shown only
#   <!-- run by: FILE -->      that test runs it; FILE has to name the document (", WORDS" may follow)
#   <!-- file: NAME -->        it is written to NAME first, where the commands find it
#
# and in the first three lines of a document <!-- all run by: FILE --> is said of all of its commands.
#
# Commands run in a folder that has everything of the repository, with the build under test in build/release. A command
# "attnd ... &" starts a daemon on a free port instead of 8400, and, with listen=127.0.0.1:84NN, one more, on a free port instead of that.
# Those end with the test.
# shellcheck shell=bash

ROOT=$PWD
FENCE='```'
COMMANDS=' apt apt-get attnctl attnd bash cc cd chmod cp curl docker dpkg env export gcc git jq kill ls make mkdir mount '
COMMANDS+='nginx npm node nvidia-cuda-mps-control nvidia-smi openssl pip pip3 podman python python3 rm sed sh sudo systemctl tar wget '

# Whether a line begins as a command does: with a name of the list or a path to a program, perhaps behind assignments.
looks_like_command() {
    local words word
    read -ra words <<<"${1#'$ '}"
    for word in ${words[@]+"${words[@]}"}; do
        case $word in
            [A-Z_]*=*) ;;
            build/release/*[!,:] | scripts/*.sh | tests/*.sh | venv/bin/* | ./*) return 0 ;;
            *)
                [[ $COMMANDS == *" $word "* ]]
                return
                ;;
        esac
    done
    return 1
}

# each_block FILE FUNCTION - call FUNCTION for each block, with `kind`, `mark`, `line_number` and the array `block` set.
each_block() {
    local line='' at=0 inside='' blank=yes kind='' mark='' line_number=0 held=0
    local block=()
    end_block() {
        [ "$inside" = indented ] && kind=$(kind_of_indented)
        "$1"
        inside='' mark='' block=() held=0
    }
    while IFS= read -r line || [ -n "$line" ]; do
        at=$((at + 1))
        if [ "$inside" = fenced ]; then
            if [ "$line" = "$FENCE" ]; then end_block "$2"; else block+=("$line"); fi
            continue
        fi
        if [ "$inside" = indented ]; then
            case $line in
                '    '*)
                    while [ $held -gt 0 ]; do block+=('') held=$((held - 1)); done
                    block+=("${line#    }")
                    continue
                    ;;
                '')
                    held=$((held + 1))
                    continue
                    ;;
            esac
            [ $held -gt 0 ] && blank=yes || blank=
            end_block "$2"
        fi
        case $line in
            "$FENCE"*) inside=fenced kind=${line#"$FENCE"} line_number=$at ;;
            '    '*) [ -z "$blank" ] || { inside=indented line_number=$at block=("${line#    }"); } ;;
            '<!-- '*' -->') mark=${line#'<!-- '} mark=${mark%' -->'} ;;
            '') ;;
            *) mark= ;;
        esac
        [ "$line" = '' ] && blank=yes || blank=
        case $line in '<!-- '*) blank=yes ;; esac
    done <"$1"
    if [ -n "$inside" ]; then end_block "$2"; fi
}
kind_of_indented() {
    local each
    case ${block[0]} in '$ '*) echo console && return ;; esac
    for each in "${block[@]}"; do looks_like_command "$each" && echo sh && return; done
    echo text
}

is_run() { case $1 in console | sh | python | json) true ;; *) false ;; esac }

# check_marks FILE - every block has a kind, every mark is one of the three, and whoever is said to run a block names the document.
check_marks() {
    local whole document=$1 problems=''
    whole=$(head -n 3 "$document" | sed -n 's/^<!-- all run by: \(.*\) -->$/\1/p')
    complain() { problems+="line $line_number: $1; "; }
    names_it() { [ -e "${1%%,*}" ] && grep -q -F -e "$document" "${1%%,*}" || complain "$1 does not run $document"; }
    look_at_marks() {
        local each
        case $mark in
            'not run: '?* | 'file: '?*) ;;
            'run by: '?*) names_it "${mark#run by: }" ;;
            'not run:'* | 'run by:'* | 'file:'*) complain "'$mark' says nothing" ;;
        esac
        [ -n "$kind" ] || complain 'the fence does not say what it is'
        is_run "$kind" || for each in "${block[@]}"; do
            case $mark in 'not run: '?* | 'run by: '?*) continue ;; esac
            ! looks_like_command "$each" || complain "'$kind' with a command: $each"
        done
        case $kind:$mark in
            python:'not run: '* | python:'run by: '* | python:'file: '*) ;; # a command runs the file
            python:*) names_it tests/integration/47-python.sh ;;
        esac
    }
    [ -z "$whole" ] || line_number=1 names_it "$whole"
    each_block "$document" look_at_marks
    expect "the blocks of $document are run, or say why not" '' "$problems"
    expect "the links of $document lead somewhere" '' "$(broken_links "$document")"
}
broken_links() {
    [ -e Makefile ] || return 0 # a folder for a machine with a GPU has some of the files
    grep -o '](\([^)#: ]*\)[)#]' "$1" | sed 's/^](//; s/[)#]$//' | while read -r link; do
        [ -z "$link" ] || [ -e "$(dirname "$1")/$link" ] || echo "$link"
    done
}

# Whether a text is what was expected, where "..." alone on a line and "…" stand for anything.
is_expected() {
    local pattern
    # shellcheck disable=SC2001 # of every line
    pattern=$(sed 's/[][*?\\]/\\&/g; s/^\.\.\.$/*/; s/…/*/g' <<<"$1")
    # shellcheck disable=SC2053 # it is a pattern
    [[ $2 == $pattern ]]
}

# More daemons than one: the free port of each that a document names.
declare -A ports=()
start_another() { # PORT [ARG...] - the last argument that names the address is taken, so this one comes last
    local port=$1 url=other_$1
    shift
    another "$url" "$@" --set listen=127.0.0.1:0
    ports[$port]=${!url##*:}
    expect "$name: another daemon, for port $port" yes "$([ -n "${ports[$port]}" ] && echo yes || cat "$WORK/log.$url")"
}

# Run a command in this shell, so that variables stay; what it prints goes to $WORK/said.
run_command() {
    local command=$1 port back="s/127\.0\.0\.1:${PORT:-8400}/127.0.0.1:8400/g"
    if [[ $command =~ ^(build/release/)?attnd\ (.*listen=127\.0\.0\.1:(84[0-9][0-9]).*)\ \&$ ]]; then
        : >"$WORK/said"
        eval "start_another ${BASH_REMATCH[3]} ${BASH_REMATCH[2]}"
        return 0
    fi
    command=${command//127.0.0.1:8400/127.0.0.1:${PORT:-8400}}
    for port in "${!ports[@]}"; do
        command=${command//127.0.0.1:$port/127.0.0.1:${ports[$port]}}
        back+=";s/127\.0\.0\.1:${ports[$port]}/127.0.0.1:$port/g"
    done
    if [[ $command =~ ^(build/release/)?attnd(\ .*)?\ \&(\ *#.*)?$ ]]; then
        end_started
        : >"$WORK/said"
        eval "start_daemon ${BASH_REMATCH[2]}"
        started=yes drained=
        export ATTNCTL_URL=$URL
        return 0
    fi
    case $command in *'/v1/drain'*) drained=yes ;; esac
    eval "$command" >"$WORK/said.raw" 2>&1 </dev/null
    local status=$?
    sed "$back" "$WORK/said.raw" >"$WORK/said"
    return $status
}
# End the daemon that a document has started, unless it was drained.
end_started() {
    [ -n "${started:-}" ] || return 0
    started=
    if [ -n "${drained:-}" ]; then
        eventually has_ended
        wait "$DAEMON"
    else
        stop_daemon
    fi
    expect "$name: the daemon ends cleanly" 0 $?
    DAEMON=
}

check_document() {
    local name=$1 count=0 started='' drained='' old_path=$PATH
    local folder=$WORK/tree file
    file=$(realpath "$2")
    if [ ! -e "$folder" ]; then
        mkdir -p "$folder/build"
        ln -s "$ROOT"/* "$folder" 2>/dev/null
        rm -f "$folder/build/build"
        ln -s "$(dirname "$ATTND")" "$folder/build/release"
    fi
    PATH=$(dirname "$ATTND"):$PATH
    cd "$folder" || exit 1
    each_block "$file" run_block
    cd "$ROOT" || exit 1
    end_started
    PATH=$old_path
    expect "the commands of $name were found" yes "$([ $count -ge "${3:-0}" ] && echo yes || echo "no: $count commands")"
}
run_block() {
    local each command='' wanted=''
    case $mark in
        'not run:'* | 'run by:'*) return ;;
        'file: '*) printf '%s\n' "${block[@]}" >"${mark#file: }" ;;
    esac
    case $kind in
        console)
            for each in "${block[@]}"; do
                case $each in
                    '$ '*)
                        compare
                        command=${each#'$ '} wanted=''
                        ;;
                    '> '*) command+=$'\n'${each#'> '} ;;
                    *) wanted=${wanted:+$wanted$'\n'}$each ;;
                esac
            done
            compare
            ;;
        sh)
            for each in "${block[@]}"; do
                case $command in *\\) command=${command%\\}$each ;; *) command=$each ;; esac
                case $command in '' | '#'* | *\\) continue ;; esac
                count=$((count + 1))
                run_command "$command"
                expect "$name, line $line_number: ${command:0:70}" 0 $?
            done
            ;;
        json)
            printf '%s\n' "${block[@]}" | jq -e . >"$WORK/said" 2>&1
            expect "$name, line $line_number: it is JSON" 0 $?
            ;;
    esac
}
compare() {
    [ -n "$command" ] || return 0
    count=$((count + 1))
    run_command "$command"
    local said
    said=$(cat "$WORK/said")
    if is_expected "$wanted" "$said"; then said=$wanted; fi
    expect "$name: ${command:0:70}" "$wanted" "$said"
}

check_python() {
    local program=$WORK/blocks.py
    : >"$program"
    add_python() {
        [ "$kind" = python ] || return 0
        case $mark in 'not run: '*) return 0 ;; esac
        printf '%s\n' "${block[@]//127.0.0.1:8400/127.0.0.1:${PORT:-8400}}" >>"$program"
    }
    each_block "$2" add_python
    expect "$1 has Python" yes "$([ -s "$program" ] && echo yes)"
    "$3" -W error "$program" >"$WORK/said" 2>&1
    expect "the Python of $1" 0 $? || cat "$WORK/said"
}
