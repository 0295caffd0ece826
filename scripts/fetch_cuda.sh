#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# fetch_cuda.sh [DIRECTORY] - get CUDA's headers and NVRTC from PyPI into DIRECTORY (build/cuda): include/ and lib/.
#
# The CUDA backend is compiled with cuda.h and nvrtc.h, and NVRTC compiles its kernels when it starts. NVIDIA publishes both as wheels: 92 MB to
# download, 116 MB on disk. make finds the headers in build/cuda. Debian's nvidia-cuda-dev is CUDA 11.8, whose NVRTC is too old, and a download of
# 1.5 GB. Needs python3-venv, no root.
#
# The versions are fixed, by digests for x86-64 and 64-bit Arm: docs/PERFORMANCE.md and docs/KERNELS.md have figures of NVRTC 13.0.
set -eu
cd "$(dirname "$0")/.."
to=${1:-build/cuda}
mkdir -p "$to"
python3 -m venv "$to/venv" >"$to/log" 2>&1 || {
    cat "$to/log" >&2
    echo 'fetch_cuda: this needs pip in a virtual environment (Debian: apt-get install python3-venv)' >&2
    exit 69
}
cat >"$to/list" <<'LIST'
nvidia-cuda-nvrtc==13.0.88 --hash=sha256:ad9b6d2ead2435f11cbb6868809d2adeeee302e9bb94bcf0539c7a40d80e8575 --hash=sha256:d27f20a0ca67a4bb34268a5e951033496c5b74870b868bacd046b1b8e0c3267b
nvidia-cuda-runtime==13.0.96 --hash=sha256:7f82250d7782aa23b6cfe765ecc7db554bd3c2870c43f3d1821f1d18aebf0548 --hash=sha256:ef9bcbe90493a2b9d810e43d249adb3d02e98dd30200d86607d8d02687c43f55
LIST
"$to/venv/bin/pip" install -q --only-binary :all: --no-deps --no-cache-dir --target "$to/packages" --upgrade -r "$to/list"
rm -rf "$to/venv" "$to/log" "$to/list" "$to"/packages/nvidia/cu13/lib/*.alt.* # the same with another allocator
for folder in include lib; do ln -sfn "packages/nvidia/cu13/$folder" "$to/$folder"; done
[ -e "$to/include/cuda.h" ] && [ -e "$to/include/nvrtc.h" ] && [ -e "$to/lib/libnvrtc.so.13" ]
echo "fetch_cuda: headers are in $to/include. Where no other NVRTC is installed: export LD_LIBRARY_PATH=$(realpath "$to")/lib"
