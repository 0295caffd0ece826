# SPDX-License-Identifier: Apache-2.0
# attnctl.bash - completion of attnctl for bash; source it, or install it as share/bash-completion/completions/attnctl.
# shellcheck shell=bash disable=SC2207 # words of completion have no spaces

_attnctl_words() {
    case $1 in
        workload) echo list show events cancel ;;
        seq) echo list new show fork truncate delete ;;
        lease) echo list new show delete ;;
        key) echo new ;;
    esac
}

_attnctl_options() {
    case $1 in
        top) echo --interval --once ;;
        tour) echo --own --attnd --no-wait --keep ;;
        blocks) echo --watch --interval --from --count ;;
        events) echo --since --types ;;
        run) echo --shape --trace --count --seed --length-scale --time-scale --verify --prefill --sharing --prefix-share --fork-share --arrival-rate --arrival-cv --deadline ;;
        sweep) echo --batch --context --shared --block-size --at --decode --repeat --seed --csv --svg --attnd --config --pool ;;
        compare) echo --batch --context --repeat --seed --with --own --attnd --config ;;
        seq) echo --count --max-tokens --tokens --salt ;;
        append) echo --k --v --count --seed --tokens --layer ;;
        attend) echo --q --count --seed --layer ;;
        batch) echo --file ;;
        lease) echo --id --idle-timeout ;;
        export) echo --range ;;
        replay) echo --check --beside --beside-key-file --tolerance --patience --all --attnd ;;
        diff) echo --attnd ;;
        move) echo --to --to-node --all --force --to-key-file --as --salt ;;
        drain) echo --lame-duck --deadline --cancel ;;
    esac
}

# Options whose value is one of some words, a file, or anything; those that are left have none.
_attnctl_value() {
    case $1 in
        --shape) COMPREPLY=($(compgen -W "azure-conv azure-code mooncake-conv arxiv-summary" -- "$2")) ;;
        --prefill) COMPREPLY=($(compgen -W "append attend" -- "$2")) ;;
        --sharing) COMPREPLY=($(compgen -W "auto on off" -- "$2")) ;;
        --ca-file | --key-file | --to-key-file | --beside-key-file | --trace | --check | --file | --csv | --svg | --attnd | --config) COMPREPLY=($(compgen -f -- "$2")) ;;
        --url | --arrival-cv | --arrival-rate | --as | --at | --batch | --beside | --block-size | --context | \
            --count | --deadline | --decode | --fork-share | --from | --id | --idle-timeout | \
            --interval | --k | --layer | --length-scale | --max-tokens | --patience | --pool | --prefix-share | \
            --q | --range | --repeat | --salt | --seed | --shared | --since | --time-scale | --to | --to-node | --tokens | --tolerance | \
            --types | --v | --verify | --with) COMPREPLY=() ;;
        *) return 1 ;;
    esac
}

_attnctl() {
    local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]} command='' at=1 commands
    commands='help top tour stats blocks waiting events prefixes audit run workload sweep compare seq append attend batch lease export import move replay diff key parameters trim selftest roof drain'
    _attnctl_value "$before" "$current" && return
    # The command is the first word that is neither an option nor the value of one.
    while [ "$at" -lt "$COMP_CWORD" ]; do
        case ${COMP_WORDS[at]} in
            --url | --key-file | --ca-file | --node) at=$((at + 1)) ;;
            -*) ;;
            *)
                command=${COMP_WORDS[at]}
                break
                ;;
        esac
        at=$((at + 1))
    done
    if [[ $current == -* ]]; then
        COMPREPLY=($(compgen -W "$(_attnctl_options "$command") --url --key-file --ca-file --node --json --help $([ "$command" ] || echo --version)" -- "$current"))
    elif [ -z "$command" ] || [ "$command" = help ]; then
        COMPREPLY=($(compgen -W "$commands" -- "$current"))
    elif [ "$at" -eq $((COMP_CWORD - 1)) ] && [ "$(_attnctl_words "$command")" ]; then
        COMPREPLY=($(compgen -W "$(_attnctl_words "$command")" -- "$current"))
    else
        COMPREPLY=($(compgen -f -- "$current"))
    fi
}

complete -o filenames -F _attnctl attnctl
