# SPDX-License-Identifier: Apache-2.0
# stub.sh - programs of a test's own, and the daemon on a stub of CUDA's driver (tests/cuda). Source it behind lib.sh.
#
#   needs_build WHAT    skip WHAT where there is no library to link with, or one with sanitizers
#   build NAME ARG...   compile and link with the daemon's library
#   on_stub_driver      build the stub, and let $ATTND be a daemon on it; false where there are no CUDA headers
# shellcheck shell=bash
build_folder=$(dirname "$ATTND")
cuda=
for folder in /usr/local/cuda/include /usr/include; do
    [ -n "$cuda" ] || [ ! -e $folder/cuda.h ] || cuda=$folder
done

needs_build() {
    case $build_folder in
        */asan | */tsan)
            echo "skip $1: built without sanitizers only"
            exit 0
            ;;
    esac
    if [ ! -e "$build_folder/daemon.a" ]; then
        echo "skip $1: no build here"
        exit 0
    fi
}

build() {
    # shellcheck disable=SC2046
    ${CC:-cc} -std=c11 -O1 -D_GNU_SOURCE -I. ${cuda:+-isystem $cuda} -o "$WORK/$1" "${@:2}" "$build_folder/daemon.a" -pthread \
        $(pkg-config --libs libuv libcjson libmd) -lm || exit 1
}

wrap=('-Wl,--wrap=cuda_compile,--wrap=cuda_self_test_part' tests/cuda/stub_kernels.c)
on_stub_driver() {
    case $("$ATTND" --version) in
        *'CUDA: built in'*) [ -n "$cuda" ] || return 1 ;;
        *) return 1 ;;
    esac
    build libcuda.so.1 -shared -fPIC tests/cuda/stub_driver.c
    build attnd "${wrap[@]}" "$build_folder/obj/server/main.o"
    export LD_LIBRARY_PATH=$WORK STUB_HANGS=$WORK/hangs
    ATTND=$WORK/attnd
}
