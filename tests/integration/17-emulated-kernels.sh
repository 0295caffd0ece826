#!/usr/bin/env bash
# Device code on the CPU: append, paged_v1 and paged_v2 against double precision, merge and rows of members against a fold of
# one state after the other; a thread of the host for each of the GPU's (tests/emulation). For machines without a GPU, which
# is where continuous integration runs.
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/../.." || exit 1
build=$(dirname "$ATTND")
if ! command -v g++ >/dev/null || [ ! -e "$build/libattnd.a" ]; then
    echo 'skip device code on the CPU: no g++'
    exit 0
fi
case $build in
    */asan | */ubsan | */tsan)
        echo 'skip device code on the CPU: built without sanitizers only'
        exit 0
        ;;
esac

# emulate NAME FLAG... - build and run tests/emulation/NAME.cc
emulate() {
    # shellcheck disable=SC2046
    g++ -std=c++17 -O1 -ffp-contract=off -w -I. "${@:2}" -o "$WORK/$1" "tests/emulation/$1.cc" "$build/libattnd.a" -pthread \
        $(pkg-config --libs libuv libcjson libxxhash) -lm && "$WORK/$1"
}
# paged HEAD_DIM BLOCK_SIZE KV_HEADS GROUP Q KV VERT_STRIDE LOCAL_BLOCKS SPARSE_BLOCK HEAD_STEP TP_RANK ALIBI
paged() {
    emulate paged -DHEAD_DIM="$1" -DBLOCK_SIZE="$2" -DKV_HEADS="$3" -DGROUP="$4" -DQ_DTYPE=DTYPE_"$5" -DKV_DTYPE=DTYPE_"$6" \
        -DLAYOUT=LAYOUT_VLLM -DSPARSE_VERT_STRIDE="$7" -DSPARSE_LOCAL_BLOCKS="$8" -DSPARSE_BLOCK_SIZE="$9" \
        -DSPARSE_HEAD_STEP="${10}" -DSPARSE_TP_RANK="${11}" -DALIBI="${12}"
}
while read -r geometry; do
    # shellcheck disable=SC2086
    expect "paged on the CPU: $geometry" ' 0' "$(paged $geometry 2>&1) $?"
done <<'TABLE'
64 16 2 2 BF16 BF16 0 1 64 0 0 0
128 8 1 3 F32 F32 0 1 64 0 0 1
80 32 2 1 F16 E4M3 3 1 32 0 0 0
32 8 1 2 F32 E5M2 4 2 64 2 1 1
120 16 1 2 F16 F16 5 1 32 -3 1 1
TABLE

# merge HEAD_DIM KV_HEADS GROUP
merge() {
    emulate merge -DHEAD_DIM="$1" -DKV_HEADS="$2" -DGROUP="$3" -DQ_DTYPE=DTYPE_F32 -DKV_DTYPE=DTYPE_BF16 -DENGINE=1
}
while read -r geometry; do
    # shellcheck disable=SC2086
    expect "merges on the CPU: $geometry" ' 0' "$(merge $geometry 2>&1) $?"
done <<'TABLE'
64 1 2
16 2 3
80 1 5
256 1 1
TABLE
finish
