#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# fetch_cuda.sh [DIRECTORY] - get CUDA's headers and NVRTC from PyPI into DIRECTORY (build/cuda): include/ and lib/.
#
# The CUDA backend is compiled with cuda.h and nvrtc.h, and NVRTC compiles its kernels when it starts. NVIDIA publishes both as wheels
# for CUDA 13: 61 MB to download, 150 MB on disk. make finds the headers in build/cuda. Debian's nvidia-cuda-dev is CUDA 11.8, whose
# NVRTC is too old, and a download of 1.5 GB. Needs python3-venv, no root.
set -eu
cd "$(dirname "$0")/.."
to=${1:-build/cuda}
mkdir -p "$to"
python3 -m venv "$to/venv" >"$to/log" 2>&1 || {
    cat "$to/log" >&2
    echo 'fetch_cuda: this needs pip in a virtual environment (Debian: apt-get install python3-venv)' >&2
    exit 69
}
"$to/venv/bin/pip" install -q --only-binary :all: --target "$to/packages" --upgrade 'nvidia-cuda-runtime>=13,<14' 'nvidia-cuda-nvrtc>=13,<14'
rm -rf "$to/venv" "$to/log"
for folder in include lib; do ln -sfn "packages/nvidia/cu13/$folder" "$to/$folder"; done
[ -e "$to/include/cuda.h" ] && [ -e "$to/include/nvrtc.h" ] && [ -e "$to/lib/libnvrtc.so.13" ]
echo "fetch_cuda: headers are in $to/include. Where no other NVRTC is installed: export LD_LIBRARY_PATH=$(realpath "$to")/lib"
