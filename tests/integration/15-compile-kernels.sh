#!/usr/bin/env bash
# Every CUDA kernel compiles, without local memory in the attention kernels, for every GPU that we name and the geometries
# of all presets; a cache that was damaged is made anew. Needs NVRTC but no GPU.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/../.." || exit 1
cache=$WORK/cache

# compile ARCH CONFIG [ARG...] - with the cache of this test
compile() { "$ATTND" --compile-kernels --arch "$1" --config "$2" --set backend.cache="$cache" "${@:3}"; }
export -f compile
export cache ATTND WORK

compile sm_90a config/tiny.jsonc >"$WORK/first" 2>&1
status=$?
if [ $status -eq 69 ]; then
    echo "skip CUDA kernels compile: $(tail -n 1 "$WORK/first" | sed 's/^attnd: //')"
    exit 0
fi
expect 'the first one' 0 $status
kernels=$(grep -c registers "$WORK/first")
expect 'it is found again' '  in the cache' "$(compile sm_90a config/tiny.jsonc | tail -n 1)"
file=$(echo "$cache"/*)
truncate -s -100 "$file"
expect 'a truncated file is not used' "$kernels" "$(compile sm_90a config/tiny.jsonc | grep -c registers)"
printf 'x' | dd of="$file" bs=1 seek=5000 conv=notrunc status=none
expect 'nor a damaged one' "$kernels" "$(compile sm_90a config/tiny.jsonc | grep -c registers)"
expect 'and it is whole again' '  in the cache' "$(compile sm_90a config/tiny.jsonc | tail -n 1)"
expect 'a kind of GPU that nobody knows' 2 "$(compile sm_12 config/tiny.jsonc >/dev/null 2>&1; echo $?)"

for arch in sm_75 sm_80 sm_86 sm_89 sm_90a sm_100a sm_120; do
    for preset in config/*.jsonc; do
        echo "$arch $preset"
    done
done >"$WORK/all"
# shellcheck disable=SC2016
xargs -P "$(nproc)" -L 1 bash -c 'compile "$1" "$2" >/dev/null 2>"$WORK/$1-$(basename "$2")" && echo "$1 $2"' _ \
    <"$WORK/all" >"$WORK/compiled"
for arch in sm_75 sm_80 sm_86 sm_89 sm_90a sm_100a sm_120; do
    expect "every preset for $arch" "$(grep -c "^$arch " "$WORK/all") " \
        "$(grep -c "^$arch " "$WORK/compiled") $(cat "$WORK/$arch"-*)"
done
# Where shared memory is small, wide kernels are left out, and what is left fits (tile.h).
for dim in 8 40 64 80 120 128 192 256; do
    for kv in bf16 e4m3; do
        echo "sm_86 config/llama-3-8b.jsonc $dim $kv"
    done
done >"$WORK/dims"
for dim in 144 192 256; do # where the copy engine brings K and V
    echo "sm_90a config/llama-3-8b.jsonc $dim e4m3"
done >>"$WORK/dims"
dims() {
    compile "$1" "$2" --set geometry.head_dim="$3" --set geometry.kv_dtype="$4" >/dev/null && echo "$*"
}
export -f dims
# shellcheck disable=SC2016
xargs -P "$(nproc)" -L 1 bash -c 'dims "$@"' _ <"$WORK/dims" >"$WORK/compiled" 2>"$WORK/errors"
expect 'every head_dim on a GPU with little shared memory, long fp8 rows on one with a copy engine' "$(wc -l <"$WORK/dims") " \
    "$(wc -l <"$WORK/compiled") $(cat "$WORK/errors")"

# The kernels of the vllm layout, over what vLLM has kernels for.
for arch in sm_75 sm_90a sm_120; do
    for dim in 32 64 80 96 112 120 128 192 256; do
        for block in 8 16 32; do
            echo "$arch config/llama-3-8b.jsonc $dim $block"
        done
    done
done >"$WORK/vllm"
vllm() {
    compile "$1" "$2" --set geometry.layout=vllm --set geometry.head_dim="$3" --set geometry.block_size="$4" \
        --set geometry.sparse_vert_stride=$(($3 % 3)) >/dev/null && echo "$*"
}
export -f vllm
# shellcheck disable=SC2016
xargs -P "$(nproc)" -L 1 bash -c 'vllm "$@"' _ <"$WORK/vllm" >"$WORK/compiled" 2>"$WORK/errors"
expect 'the vllm layout, every head_dim and block_size' "$(wc -l <"$WORK/vllm") " \
    "$(wc -l <"$WORK/compiled") $(cat "$WORK/errors")"
finish
