#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The CUDA kernels compile, without local memory in the attention kernels, for every GPU that we name, to the same code however many
# threads compile them; a cache that was damaged is made anew. Needs NVRTC but no GPU. Such a command is in docs/GPU.md.
#
#   FULL=1    every preset for every GPU, every head_dim, the vllm layout in every size: some minutes (make check-full). Without
#             it a GPU gets one preset, and each thing that the code is compiled for occurs at least once.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/../.." || exit 1
cache=$WORK/cache

# compile ARCH PRESET [KEY=VALUE...] - keys of the geometry; with the cache of this test
compile() {
    local key sets=()
    for key in "${@:3}"; do sets+=(--set "geometry.$key"); done
    "$ATTND" --compile-kernels --arch "$1" --config "config/$2.jsonc" --set backend.cache="$cache" "${sets[@]}"
}
# The same as a test.
compiles() {
    local said
    if said=$(compile "$@" 2>&1 >/dev/null) && [ -z "$said" ]; then
        echo "ok compiles: $*"
    else
        echo "not ok compiles: $*: $said"
        return 1
    fi
}
export -f compile compiles
export cache ATTND

compile sm_75 tiny >"$WORK/first" 2>&1
status=$?
expect 'what is compiled is said before what is wrong' 'kernels for sm_75, ' "$(head -n 1 "$WORK/first" | grep -o '^kernels for sm_75, ')"
if [ $status -eq 69 ]; then
    if grep -q 'no NVRTC' "$WORK/first"; then # and not: no CUDA backend
        expect 'where one can be had is said' 1 "$(grep -c 'make cuda-headers gets one: LD_LIBRARY_PATH=build/cuda/lib' "$WORK/first")"
    fi
    echo "skip CUDA kernels compile: $(tail -n 1 "$WORK/first" | sed 's/^attnd: //')"
    finish
fi
expect 'the first one: f32, head_dim 8, one head on one' 0 $status
kernels=$(grep -c registers "$WORK/first")
expect 'it is found again' '  in the cache' "$(compile sm_75 tiny | tail -n 1 | cut -d: -f1)"
file=$(echo "$cache"/*)
expect 'it says which file it wrote' "  written to $file" "$(tail -n 1 "$WORK/first")"
truncate -s -100 "$file"
expect 'a truncated file is not used' "$kernels" "$(compile sm_75 tiny | grep -c registers)"
printf 'x' | dd of="$file" bs=1 seek=5000 conv=notrunc status=none
expect 'nor a damaged one' "$kernels" "$(compile sm_75 tiny | grep -c registers)"
expect 'and it is whole again' "  in the cache: $file" "$(compile sm_75 tiny | tail -n 1)"
mkdir "$WORK/alone"
said=$(cache=$WORK/alone taskset -c "$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')" bash -c 'compile sm_75 tiny' | grep -o 'by 1 thread in')
expect 'on one processor they are compiled one by one' 'by 1 thread in' "$said"
cmp -s "$WORK/alone/"* "$file"
expect 'to the same code' 0 $?
touch "$WORK/no-folder"
said=$(cache=$WORK/no-folder/below compile sm_75 tiny 2>&1 >/dev/null)
expect 'a cache that cannot be written' 69 $?
[[ $said == *"$WORK/no-folder/below/"*'Not a directory' ]]
expect 'it says which file, and why' 0 $?
expect 'a kind of GPU that nobody knows' 2 "$(compile sm_12 tiny >/dev/null 2>&1; echo $?)"

# A GPU a line, and a few more for sm_90a, which has two kernels beside those of the others.
some() {
    cat <<'LIST'
sm_75 qwen3-8b layout=vllm dtype=f16 kv_dtype=f16 head_dim=80 block_size=32
sm_80 qwen3-8b dtype=f16 kv_dtype=f16 head_dim=120 layout=nhd alibi="seeded"
sm_86 gemma-2-9b
sm_89 gpt-oss-20b kv_dtype=e4m3
sm_90a llama-3-8b
sm_100a llama-3-70b-tp8 query_heads=64 kv_dtype=e5m2
sm_120 demo
sm_86 llama-3-8b head_dim=192 kv_dtype=e4m3
sm_90a llama-3-8b head_dim=192 kv_dtype=e4m3
sm_90a llama-3-8b layout=vllm head_dim=256 kv_dtype=e4m3 block_size=8 sparse_vert_stride=2
LIST
}
# Where shared memory is small (sm_86) wide kernels are left out, and what is left fits (tile.h); long fp8 rows have little room
# where the copy engine brings them.
all() {
    local arch preset dim kv block
    for arch in sm_75 sm_80 sm_86 sm_89 sm_90a sm_100a sm_120; do
        for preset in config/*.jsonc; do
            echo "$arch $(basename "$preset" .jsonc)"
        done
    done
    for dim in 8 40 64 80 120 128 192 256; do
        for kv in bf16 e4m3; do echo "sm_86 llama-3-8b head_dim=$dim kv_dtype=$kv"; done
    done
    for dim in 144 192 256; do echo "sm_90a llama-3-8b head_dim=$dim kv_dtype=e4m3"; done
    for arch in sm_75 sm_90a sm_120; do
        for dim in 32 64 80 96 112 120 128 192 256; do # what vLLM has kernels for
            for block in 8 16 32; do
                echo "$arch llama-3-8b layout=vllm head_dim=$dim block_size=$block sparse_vert_stride=$((dim % 3))"
            done
        done
    done
    some
}
if [ -n "${FULL:-}" ]; then all; else some; fi >"$WORK/list"
# shellcheck disable=SC2016,SC2034
xargs -P "$(nproc)" -L 1 bash -c 'compiles "$@"' _ < <(sed 's/"/\\"/g' "$WORK/list") || FAILED=1
finish
