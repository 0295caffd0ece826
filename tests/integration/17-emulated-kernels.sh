#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Device code on the CPU: append, paged_v1 and paged_v2 against double precision, merge and rows of members against a fold of
# one state after the other, work tiles of lengths that the GPU finds against the planner and lowering, compares, reads and merges of
# steps with the backend's host side, decode with that of the library; a thread of the host for each of the GPU's (tests/emulation). The
# ring by which K and V come, over a model of its barriers and copies. For machines without a GPU, which is where continuous integration
# runs.
#
#   PIPELINE=GEOMETRY   that line of the ring's table only (scripts/check_mutants.sh)
# shellcheck source=tests/integration/lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/../.." || exit 1
build=$(dirname "$ATTND")
if ! command -v g++ >/dev/null || [ ! -e "$build/daemon.a" ]; then
    [ "${CI:-}" = true ] && echo 'not ok device code on the CPU: no g++' && exit 1
    echo 'skip device code on the CPU: no g++'
    exit 0
fi
case $build in
    */asan | */tsan)
        echo 'skip device code on the CPU: built without sanitizers only'
        exit 0
        ;;
esac

# emulate NAME FLAG... - build and run tests/emulation/NAME.cc
emulate() {
    # shellcheck disable=SC2046
    g++ -std=c++17 -O1 -U_FORTIFY_SOURCE -ffp-contract=off -w -I. "${@:2}" -o "$WORK/$1" "tests/emulation/$1.cc" "$build/daemon.a" -pthread \
        $(pkg-config --libs libuv libcjson libmd) -lm && "$WORK/$1"
}

# pipeline HEAD_DIM BLOCK_SIZE LAYOUT KV ARCH TMA WGMMA - of the formats, e4m3 goes with q in bf16
built_in=0
case $("$ATTND" --version) in *'CUDA: built in'*) built_in=1 ;; esac
declare -A sm_bytes=([sm_80]=167936 [sm_86]=102400 [sm_90a]=233472)
pipeline() {
    emulate pipeline -DHEAD_DIM="$1" -DBLOCK_SIZE="$2" -DKV_HEADS=2 -DGROUP=1 -DQ_DTYPE=DTYPE_BF16 -DKV_DTYPE=DTYPE_"$4" \
        -DLAYOUT=LAYOUT_"$3" -DTENSOR_CORES=1 -DSOFTCAP=0 -DCOLUMNS_MAX=8 -DARCH="$5" -DSM_BYTES="${sm_bytes[$5]}" -DTMA="$6" \
        -DWGMMA="$7" -DBUILT_IN=$built_in
}
while read -r geometry; do
    [ "${PIPELINE:-$geometry}" = "$geometry" ] || continue
    # shellcheck disable=SC2086
    expect "the ring on the CPU: $geometry" ' 0' "$(pipeline $geometry 2>&1) $?"
done <<'TABLE'
64 16 HND BF16 sm_90a 1 1
128 16 HND BF16 sm_90a 1 1
80 8 NHD BF16 sm_90a 1 1
72 64 HND BF16 sm_90a 1 1
256 192 HND BF16 sm_90a 1 0
96 16 HND E4M3 sm_90a 1 0
128 192 NHD E4M3 sm_90a 1 0
256 8 NHD E4M3 sm_90a 1 0
64 1 HND BF16 sm_90a 0 1
96 4 NHD BF16 sm_90a 0 1
128 2 HND BF16 sm_80 0 0
256 24 NHD BF16 sm_86 0 0
80 24 HND E4M3 sm_86 0 0
72 16 NHD E4M3 sm_90a 0 0
TABLE
[ -z "${PIPELINE:-}" ] || finish

${CC:-cc} -std=c11 -O1 -I. -c -o "$WORK/extreme.o" tests/conformance/extreme.c || exit 1

# paged HEAD_DIM BLOCK_SIZE KV_HEADS GROUP Q KV VERT_STRIDE LOCAL_BLOCKS SPARSE_BLOCK HEAD_STEP TP_RANK ALIBI
paged() {
    emulate paged -DHEAD_DIM="$1" -DBLOCK_SIZE="$2" -DKV_HEADS="$3" -DGROUP="$4" -DQ_DTYPE=DTYPE_"$5" -DKV_DTYPE=DTYPE_"$6" \
        -DLAYOUT=LAYOUT_VLLM -DSPARSE_VERT_STRIDE="$7" -DSPARSE_LOCAL_BLOCKS="$8" -DSPARSE_BLOCK_SIZE="$9" \
        -DSPARSE_HEAD_STEP="${10}" -DSPARSE_TP_RANK="${11}" -DALIBI="${12}" "$WORK/extreme.o"
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
    emulate merge -DHEAD_DIM="$1" -DKV_HEADS="$2" -DGROUP="$3" -DQ_DTYPE=DTYPE_F32 -DKV_DTYPE=DTYPE_BF16 -DTMA=1 -DTENSOR_CORES=1
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

# tiles GROUP BLOCK_SIZE
tiles() { emulate tiles -DGROUP="$1" -DBLOCK_SIZE="$2" -DKV_HEADS=1 -DTENSOR_CORES=1; }
while read -r geometry; do
    # shellcheck disable=SC2086
    expect "work tiles of lengths that the GPU finds, on the CPU: $geometry" ' 0' "$(tiles $geometry 2>&1) $?"
done <<'TABLE'
1 16
4 256
80 24
TABLE

# Compares, reads and merges of steps: the CUDA backend on a stub of the driver that runs the kernels. Built twice: as it is, and with
# so little room for tensors and results that a step is issued in many parts.
cuda=
for folder in /usr/local/cuda/include /usr/include; do
    [ -n "$cuda" ] || [ ! -e $folder/cuda.h ] || cuda=$folder
done
[ $built_in = 1 ] || cuda=
if [ -z "$cuda" ]; then
    echo 'skip operations on the CPU: no CUDA headers'
    finish
fi
compile() { ${CC:-cc} -std=c11 -O1 -D_GNU_SOURCE -isystem "$cuda" "$@" || exit 1; }
compile -I. -shared -fPIC -o "$WORK/libcuda.so.1" tests/cuda/stub_driver.c
compile -I. -c -o "$WORK/tests.o" tests/conformance/operations.c
compile -I. -c -o "$WORK/stub.o" tests/cuda/stub_kernels.c
mkdir -p "$WORK/narrow/kernels/cuda"
sed 's/CUDA_GIVEN_BYTES = 64 << 20/CUDA_GIVEN_BYTES = 24576/; s/CUDA_COMPARED_MAX = 1 << 16/CUDA_COMPARED_MAX = 3/' \
    kernels/cuda/cuda_backend.h >"$WORK/narrow/kernels/cuda/cuda_backend.h"
narrow=()
for part in backend memory step operations self_test; do
    compile -I"$WORK/narrow" -I. -c -o "$WORK/$part.o" kernels/cuda/cuda_$part.c
    narrow+=("$WORK/$part.o")
done
export LD_LIBRARY_PATH=$WORK
# operations ROOM HEAD_DIM BLOCK_SIZE KV_HEADS GROUP Q KV GIVEN LAYOUT
operations() {
    local objects=("$WORK/tests.o" "$WORK/stub.o" '-Wl,--wrap=cuda_compile,--wrap=cuda_self_test_part')
    [ "$1" = narrow ] && objects+=("${narrow[@]}")
    emulate operations -DHEAD_DIM="$2" -DBLOCK_SIZE="$3" -DKV_HEADS="$4" -DGROUP="$5" -DQ_DTYPE=DTYPE_"$6" -DKV_DTYPE=DTYPE_"$7" \
        -DGIVEN=DTYPE_"$8" -DLAYOUT=LAYOUT_"$9" "${objects[@]}"
}
while read -r case; do
    # shellcheck disable=SC2086
    expect "operations on the CPU: $case" ' 0' "$(operations $case 2>&1) $?"
done <<'TABLE'
wide 64 16 2 2 BF16 BF16 BF16 NHD
narrow 64 16 2 2 BF16 BF16 BF16 HND
narrow 24 5 3 1 F32 E4M3 F32 HND
wide 32 8 1 5 F32 F32 F32 NHD
narrow 80 32 2 1 F16 E5M2 F16 VLLM
wide 96 16 1 2 BF16 E4M3 E4M3 VLLM
narrow 128 16 1 2 BF16 F32 BF16 NHD
TABLE

# decode HEAD_DIM BLOCK_SIZE KV_HEADS GROUP - attention over a caller's cache by the library, on the same stub
library=()
for part in library calls sequences operators; do
    compile -I. -c -o "$WORK/library_$part.o" library/$part.c
    library+=("$WORK/library_$part.o")
done
decode() {
    emulate decode -DHEAD_DIM="$1" -DBLOCK_SIZE="$2" -DKV_HEADS="$3" -DGROUP="$4" -DQ_DTYPE=DTYPE_BF16 -DKV_DTYPE=DTYPE_BF16 \
        -DLAYOUT=LAYOUT_HND -DTMA=1 -DTENSOR_CORES=1 "${library[@]}" "$WORK/stub.o" '-Wl,--wrap=cuda_compile,--wrap=cuda_self_test_part'
}
while read -r geometry; do
    # shellcheck disable=SC2086
    expect "decode over a caller's cache, on the CPU: $geometry" ' 0' "$(decode $geometry 2>&1) $?"
done <<'TABLE'
64 16 2 4
64 16 1 40
80 8 1 2
TABLE
finish
