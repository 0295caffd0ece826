#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# run.sh - the tests on a GPU, from the folder that scripts/check_cuda.sh made.
#
#   PART=NAME    one part instead of all: conformance, engine, library, integration, sanitizer, bench; or mutants
#   CSV=FILE     where the benchmark's results go
#   SANITIZER=PROGRAM   that compute-sanitizer; racecheck of CUDA 13.0's sees hazards behind named barriers that 13.5's does not
#
# Prints "ok", "not ok" and "skip" lines as the other tests do; the last line is their number.
set -u
cd "$(dirname "$0")" || exit 1
[ ! -d tools ] || PATH=$PATH:$PWD/tools
export ATTND=$PWD/build/release/attnd
export XDG_CACHE_HOME=${XDG_CACHE_HOME:-$PWD/cache}
SANITIZER=${SANITIZER:-compute-sanitizer}
HANG_S=14400 # far beyond what any of it takes: it only ends what hangs
log=$(mktemp)
jobs=$(($(nproc) > 2 ? $(nproc) - 1 : 1))

# Every kernel against double precision: all grids, in parts side by side.
paths=()
for path in cuda cuda-flashinfer cuda-columns cuda-vllm; do
    for values in '' -wide -extreme; do paths+=("$path$values"); done
done
paths+=(cuda-spans-wide cuda-odd-wide cuda-large-wide)
conformance() {
    local i path
    for i in $(seq 0 $((jobs - 1))); do
        {
            [ "$i" -eq 0 ] || exec 2>&1 # one of them says how far it is
            for path in "${paths[@]}"; do
                build/release/tests/conformance --isa "$path" --part "$i/$jobs"
                [ $? -le 1 ] || echo "not ok $path, part $i of $jobs: it died"
            done
        } >"$log.$i" &
    done
    wait
    cat "$log".[0-9]*
    same_digests
}

# The digests of the parts add up to that of their grid, which has to be the known one.
same_digests() {
    local path digest sum known
    for path in "${paths[@]}"; do
        sum=0
        for digest in $(cat "$log".[0-9]* | sed -n "s/^ok $path conforms: .* digest \([0-9a-f]*\),.*/\1/p"); do
            sum=$((sum + 16#$digest))
        done
        known=$(awk -v path=$path '$1 == path && $2 == "conformance" { print $3 }' tests/digests.txt)
        digest=$(printf %016x $sum)
        if [ "$digest" = "${known:-$digest}" ]; then echo "ok $path has the bits that it always had: digest $digest"
        else echo "not ok $path has the bits that it always had: $digest, wanted $known"; fi
    done
}

engine() { bash tests/cuda/engine.sh; }

# libattnd on the GPU: its own tests, the Python package's, and Hugging Face models where torch and transformers are.
library() {
    export BACKEND=cuda ATTND_LIBRARY=$PWD/lib/libattnd.so.0 PYTHONPATH=$PWD/clients/python
    one() {
        if "${@:2}" >"$log.one" 2>&1; then
            echo "ok $1"
            grep '^bfloat16\|^batch' "$log.one"
        else
            tail -n 60 "$log.one"
            echo "not ok $1"
        fi
    }
    [ -e lib/libattnd.so.0 ] || {
        echo 'skip the library: it was not built'
        return
    }
    one 'the library' build/release/tests/library
    python3 -c 'import numpy' 2>/dev/null || {
        echo 'skip the Python package: there is no NumPy'
        return
    }
    one 'the Python package' python3 -W ignore clients/python/tests/test_engine.py
    if python3 -c 'import torch; torch.cuda.current_device()' 2>/dev/null; then
        one 'tensors on the GPU' python3 -W ignore clients/python/tests/test_streams.py
        one 'regions of GPU memory' python3 -W ignore clients/python/tests/test_gpu_regions.py
        one 'PyTorch operators' python3 -W ignore clients/python/tests/test_torch.py
        one 'the example that compares kernels' python3 -W ignore clients/python/examples/compare_kernels.py
    fi
    python3 -c 'import torch, transformers' 2>/dev/null || {
        echo 'skip Hugging Face models: torch and transformers are not installed'
        return
    }
    one "Hugging Face models, $(python3 -c 'import torch, transformers; print("torch", torch.__version__, "transformers", transformers.__version__)')" \
        env DEVICE=cuda python3 -W ignore clients/python/tests/test_transformers.py
}

# The black-box scripts, with the daemon on the GPU.
integration() {
    local script
    for script in tests/integration/[0-9]*.sh; do
        case $script in
            *other-processors* | *compile-kernels* | *emulated-kernels* | *hanging-device*) continue ;; # nothing of the GPU's
        esac
        echo "# $script"
        timeout $HANG_S bash "$script" || echo "not ok $script ended with $?"
    done
}

# sanitize TOOL I ISA CASES... - some cases of a grid, as process I. Where there are none the tool complains that nothing ran.
sanitize() {
    local status tool=$1 process=$2
    shift 2
    timeout $HANG_S "$SANITIZER" --tool "$tool" --error-exitcode 9 build/release/tests/conformance --isa "$@" \
        >"$log.part$process" 2>&1
    status=$?
    cat "$log.part$process"
    [ $status = 0 ] || grep -q 'conforms: 0 cases' "$log.part$process" ||
        echo "failed with $status (124: out of time): --isa $*"
}

# compute-sanitizer over a few cases of the grids; some machines refuse it.
sanitizer() {
    local tool
    if ! command -v "$SANITIZER" >/dev/null; then
        echo 'skip sanitizer: there is no compute-sanitizer'
        return
    fi
    for tool in memcheck racecheck initcheck synccheck; do
        if ! "$SANITIZER" --tool $tool --error-exitcode 9 build/release/tests/conformance --isa cuda --case 0 >"$log.s" 2>&1 &&
            grep -q 'not supported\|Error: \|LibraryNotLoaded' "$log.s"; then
            echo "skip $tool: $(grep -m 1 'not supported\|Error: ' "$log.s")"
            continue
        fi
        rm -f "$log".s[0-7]
        for i in 0 1 2 3 4 5 6 7; do
            {
                for isa in cuda cuda-flashinfer cuda-vllm; do
                    sanitize $tool $i $isa --every "${EVERY:-22}" --part $i/8
                done
                sanitize $tool $i cuda-columns --every 3 --part $i/8
            } >>"$log.s$i" &
        done
        wait
        if cat "$log".s[0-7] | grep -q 'failed with\|^not ok'; then
            # the summaries of those that went well say "0 errors"
            grep -h -B 12 -A 12 '^not ok\|failed with\|===== *Error' "$log".s[0-7] | grep -v '(0 errors' | head -80
            echo "not ok $tool"
        else
            echo "ok $tool ($(cat "$log".s[0-7] | grep -c '^ok cuda.*: [1-9][0-9]* cases') processes)"
        fi
    done
}

# Programs with a defect each, kept by scripts/check_mutants.sh: of each path that is named the bits are others.
mutants() {
    local name of path sound got
    [ -e mutants/list ] || echo 'skip mutants: none were kept'
    [ ! -e mutants/list ] || while read -r name of; do
        {
            for path in $of; do
                sound=$(few build/release/tests/conformance "$path")
                got=$(LD_LIBRARY_PATH=$PWD/lib few "mutants/$name" "$path")
                if [ -z "$sound" ]; then echo "skip $name: nothing here has $path"
                elif [ "$got" = "$sound" ]; then echo "not ok $name: the bits of $path are the same"
                else echo "ok $name: $path ${got:-fails} instead of $sound"; fi
            done
        } </dev/null &
    done <mutants/list
    wait
}
# few PROGRAM PATH - the bits of some cases: of those whose kernels are compiled for it, few
few() {
    local every=13
    case $2 in *columns*) every=4 ;; amx*) every=2 ;; esac
    "$1" --isa "$2" --every $every 2>/dev/null |
        sed -n 's/^ok .* digest \([0-9a-f]*\),.*/\1/p; s/^not ok .*/differs/p'
}

bench() {
    build/release/bench/bench_cuda --csv "${CSV:-bench-cuda.csv}" --commit "$(cat commit)" \
        --driver "$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -1)" &&
        echo 'ok the benchmark runs' || echo 'not ok the benchmark runs'
}

nvidia-smi --query-gpu=name,driver_version,clocks.max.sm,clocks.max.mem --format=csv,noheader 2>/dev/null
date -u +%F
for part in ${PART:-conformance engine library integration sanitizer bench}; do
    start=$SECONDS
    $part 2>&1 | tee -a "$log"
    echo "# $part: $((SECONDS - start)) s"
done
echo "$(grep -c '^ok ' "$log") passed, $(grep -c '^not ok ' "$log") failed, $(grep -c '^skip ' "$log") skipped"
status=0
grep -q '^not ok ' "$log" && status=1
rm -f "$log" "$log".*
exit $status
