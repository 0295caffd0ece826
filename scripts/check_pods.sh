#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_pods.sh - the image, built of the Containerfile, and two pods of packaging/kubernetes/attnd.yaml, run by podman on a network of their own: probes,
# users, keys, a move from one to the other, the end that a cluster gives them, and a new pod on the same volume. Then the image for GPUs, and a pod of the
# component gpu, where no GPU is: it says so, serves from the processor if it may, and compiles kernels. It is no cluster: tests/package/pod.py plays the
# kubelet, and this script who calls it.
#
#   BASE=DIR         a bare Debian 12 (debootstrap --variant=minbase bookworm DIR), for the image's base; without it one is made
#   IMAGE=NAME       an image that is there already
#   GPU_IMAGE=NAME   likewise, for GPUs; GPU_IMAGE= leaves that part out
#   BUILD=build/release
#
# Wants root, buildah, podman, runc (Debian's packages), debootstrap, Debian's archive, and PyPI. Certificate authorities of /usr/local/share/ca-certificates
# are put into the base, for a network whose proxy has its own.
set -u
cd "$(dirname "$0")/.." || exit 1
BUILD=${BUILD:-build/release}
. scripts/check_lib.sh
needs containers buildah podman runc ip debootstrap jq python3
export STORAGE_DRIVER=${STORAGE_DRIVER:-vfs} BUILDAH_ISOLATION=${BUILDAH_ISOLATION:-chroot}
manifest=packaging/kubernetes/attnd.yaml
tag=attnd-check-$$
podman=(podman --runtime runc --cgroup-manager cgroupfs)
end() {
    for n in 0 1; do
        "${podman[@]}" rm --force --time 0 "$tag-$n" >/dev/null 2>&1
        ip netns delete "$tag-$n" 2>/dev/null
    done
    ip link delete attnd-check 2>/dev/null
}

# ---- the images
image=$(sed -n 's/^ *image: *//p' $manifest | sort -u)
make_base() { # of what debootstrap has downloaded nothing
    local base
    [ -n "${BASE:-}" ] || { bare_debian "$work/base" && BASE=$work/base; } || return 1
    tar -C "$BASE" --exclude='./var/cache/apt/archives/*.deb' -cf "$work/base.tar" . && with_authorities "$work/authorities" || return 1
    base=$(buildah from scratch) && buildah add -q "$base" "$work/base.tar" / >/dev/null && rm "$work/base.tar" &&
        buildah add -q "$base" "$work/authorities" / >/dev/null && buildah commit -q "$base" "localhost/$tag-base" >/dev/null && buildah rm "$base" >/dev/null
    git archive --format=tar HEAD | tar -x -C "$(mkdir -p "$work/source" && echo "$work/source")"
}
build() { # NAME OPTION...
    buildah build -q --build-arg BASE="localhost/$tag-base" --build-arg COMMIT="$(bash scripts/version.sh commit)" "${@:2}" -t "localhost/$tag$1" \
        -f packaging/container/Containerfile "$work/source" >"$work/said" 2>&1
    expect "the image $tag$1 is built" 0 $?
    [ $failed -eq 0 ] || { tail -20 "$work/said"; exit 1; }
    echo "# $(buildah images --format '{{.Size}}' "localhost/$tag$1") on a base of $(buildah images --format '{{.Size}}' "localhost/$tag-base")"
    expect 'and knows its commit' "attnd $(bash scripts/version.sh version) ($(bash scripts/version.sh commit))" "$(within "localhost/$tag$1" attnd --version | head -n 1)"
}
within() { "${podman[@]}" run --rm --network none --entrypoint '[]' "$@"; }
if [ -z "${IMAGE:-}" ] || [ -z "${GPU_IMAGE+x}" ]; then make_base || exit 1; fi
[ -n "${IMAGE:-}" ] || { build '' && IMAGE=localhost/$tag; }
[ -n "${GPU_IMAGE+x}" ] || { build -gpu --build-arg GPU=1 && GPU_IMAGE=localhost/$tag-gpu; }

# ---- a network, a secret, and two pods
ip link add attnd-check type bridge && ip address add 10.213.7.1/24 dev attnd-check && ip link set attnd-check up || exit 1
mkdir "$work/secret"
"$BUILD/attnctl" --json key new somebody infer >"$work/key" || exit 1
jq -r .key "$work/key" >"$work/of-client"
chmod 600 "$work/of-client"
jq -c '{keys: [.entry]}' "$work/key" >"$work/secret/keys.json"
address() { echo "10.213.7.$((10 + $1))"; }
run() { # N init|main OPTION... - a container of that pod
    local n=$1 which=$2 arguments
    shift 2
    mapfile -d '' arguments < <(python3 tests/package/pod.py "$manifest" "$n" "$work" "$which")
    [ ${#arguments[@]} -gt 0 ] || return 1
    "${podman[@]}" run "$@" --network "ns:/run/netns/$tag-$n" --add-host "attnd-0.attnd-nodes:$(address 0)" --add-host "attnd-1.attnd-nodes:$(address 1)" \
        "${arguments[@]/#$image/$IMAGE}"
}
get() { curl -s --max-time 20 -H "Authorization: Bearer $(cat "$work/of-client")" "$@"; }
probe() { curl -s -o /dev/null -w '%{http_code}' "http://$(address "$1"):8401$2"; }
start() { # N OPTION...
    run "$1" init --rm >"$work/said" 2>&1 || { cat "$work/said"; return 1; }
    run "$1" main --detach --name "$tag-$1" --env ATTND_POOL__BYTES=64MiB "${@:2}" >"$work/said" 2>&1 || { cat "$work/said"; return 1; }
    until [ "$(probe "$1" /readyz)" = 200 ]; do
        [ "$("${podman[@]}" inspect --format '{{.State.Running}}' "$tag-$1")" = true ] || { "${podman[@]}" logs "$tag-$1"; return 1; }
        sleep 0.1
    done
}
grace=$(sed -n 's/^      terminationGracePeriodSeconds: *//p' $manifest) # the pod's, not a probe's
ctl() { "$BUILD/attnctl" --url "http://$(address "$1"):8400" --key-file "$work/of-client" "${@:2}"; }
seen() { ctl "$1" attend "$2" --json | jq -c .o | sha256sum; } # what K and V give
for n in 0 1; do
    ip netns add "$tag-$n" && ip link add "attnd-v$n" type veth peer name eth0 netns "$tag-$n" && ip link set "attnd-v$n" master attnd-check up || exit 1
    ip -n "$tag-$n" address add "$(address $n)/24" dev eth0 && ip -n "$tag-$n" link set eth0 up && ip -n "$tag-$n" link set lo up
    start $n
    expect "pod $n is ready, and lives, by its probes" '200 200' "$(probe $n /readyz) $(probe $n /livez)"
done
pid=$("${podman[@]}" inspect --format '{{.State.Pid}}' "$tag-0")
status() { sed -n "s/^$1:[[:space:]]*//p" "/proc/$pid/status" | cut -f1; }
expect 'as its user, without capabilities, filtered, without new privileges' '64320 0000000000000000 0000000000000000 2 1' \
    "$(status Uid) $(status CapEff) $(status CapBnd) $(status Seccomp) $(status NoNewPrivs)"
expect 'its root is read-only' 'sh: 1: cannot create /etc/x: Read-only file system' "$("${podman[@]}" exec "$tag-0" sh -c 'echo >/etc/x' 2>&1 | head -n 1)"
expect 'its memory is bounded' "$(($(sed -n 's/^ *limits: {memory: \(.*\)Gi}/\1/p' $manifest) << 30))" "$("${podman[@]}" inspect --format '{{.HostConfig.Memory}}' "$tag-0")"
expect 'the number of the pod is that of the node' '0 1' "$(for n in 0 1; do get "http://$(address $n):8400/v1/info" | jq .node; done | xargs)"
expect 'who has no key gets nothing' 401 "$(curl -s -o /dev/null -w '%{http_code}' "http://$(address 0):8400/v1/sequences")"
expect 'metrics are of the management listener' yes "$(curl -s "http://$(address 0):8401/metrics" | grep -q '^attnd_build_info' && echo yes)"

# ---- a move, by the names that pods have
id=$(get --json '{"max_tokens":64}' "http://$(address 0):8400/v1/sequences" | jq .id)
ctl 0 append "$id" --count 40 >"$work/said" 2>&1
held=$(seen 0 "$id")
there=$(ctl 0 move "$id" --to "http://$(address 1):8400" --as http://attnd-1.attnd-nodes:8400 2>"$work/said" | sed -n 's|.*/sequences/\([0-9]*\).*|\1|p' | tail -n 1)
expect 'a sequence moves to the other pod, to the bit' "$held" "$(seen 1 "${there:-0}")"
expect 'and its old clients are told where it is' '410 http://attnd-1.attnd-nodes:8400' "$(get "http://$(address 0):8400/v1/sequences/$id" | jq -r '"\(.status) \(.location // .detail)"' | sed 's|/v1/.*||; s|^410 .*\(http://[^/ ]*\).*|410 \1|')"

# ---- the end that a cluster gives a pod, and the next one on its volume
end_pod() { "${podman[@]}" kill --signal TERM "$tag-1" >/dev/null && timeout "$grace" "${podman[@]}" wait "$tag-1" && "${podman[@]}" rm "$tag-1" >/dev/null; }
"${podman[@]}" kill --signal TERM "$tag-1" >/dev/null
until [ "$(probe 1 /readyz)" = 503 ]; do
    [ "$("${podman[@]}" inspect --format '{{.State.Running}}' "$tag-1")" = true ] || break
done
expect 'it says first that it takes nothing new, and lives' '503 200' "$(probe 1 /readyz) $(probe 1 /livez)"
expect "it ends within $grace s, with 0" 0 "$(timeout "$grace" "${podman[@]}" wait "$tag-1")"
"${podman[@]}" rm "$tag-1" >/dev/null
start 1
expect 'a new pod on its volume has the sequence, to the bit' "$held" "$(seen 1 "${there:-0}")"
expect 'it ends again, with 0' 0 "$(end_pod)"
chmod g-s "$work/state-1" # as a volume that was copied: the kubelet gives all of it to the group again
run 1 init --rm
expect 'what the kubelet opens to the group, the init container closes' 'snapshot ' \
    "$(cd "$work/state-1/state" && ls snapshot) $(find "$work/state-1/state" -perm /077)"
start 1
expect 'a new pod on a volume that was copied has the sequence, to the bit' "$held" "$(seen 1 "${there:-0}")"

# ---- the image for GPUs, where there is none
if [ -n "$GPU_IMAGE" ]; then
    "${podman[@]}" rm --force --time 0 "$tag-0" >/dev/null
    rm -rf "$work/state-0" "$work/cache-0"
    of_image() { "${podman[@]}" image inspect --format "{{range .Config.Env}}{{println .}}{{end}}" "$1" | sed -n "s/^$2=//p"; }
    expect "it asks for all GPUs, and for the driver's libraries that it needs" 'all compute,utility' "$(of_image "$GPU_IMAGE" NVIDIA_VISIBLE_DEVICES) $(of_image "$GPU_IMAGE" NVIDIA_DRIVER_CAPABILITIES)"
    expect 'the image for processors asks for none' ' ' "$(of_image "$IMAGE" NVIDIA_VISIBLE_DEVICES) $(of_image "$IMAGE" NVIDIA_DRIVER_CAPABILITIES)"
    expect 'CUDA is built into its daemon' 'CUDA: built in' "$(within "$GPU_IMAGE" attnd --version | sed -n 's/^\(CUDA: .*\);.*/\1/p')"
    expect 'with NVRTC and its licence, without compiler and Python' '/usr/lib/libnvrtc.so.13 /usr/share/doc/attnd/LICENSE.nvrtc' \
        "$(within "$GPU_IMAGE" sh -c 'ls /usr/lib/libnvrtc.so.13 /usr/share/doc/attnd/LICENSE.nvrtc /usr/bin/gcc /usr/bin/python3' 2>/dev/null | paste -sd' ')"
    python3 tests/package/manifests.py render packaging/kubernetes gpu >"$work/gpu.yaml"
    manifest=$work/gpu.yaml IMAGE=$GPU_IMAGE
    image=$(sed -n 's/^ *image: *//p' "$manifest" | sort -u)
    run 0 init --rm >"$work/said" 2>&1
    code=0
    run 0 main --rm >"$work/said" 2>&1 || code=$?
    expect 'a pod whose node has no GPU says why, and starts no more: 69' '69 attnd: no CUDA driver (libcuda.so.1: cannot open shared object file: No such file or directory)' "$code $(tail -n 1 "$work/said")"
    start 0 --env ATTND_BACKEND__NAME=auto --env ATTND_POOL__MEMORY=0
    expect 'where it may, it serves from the processor' 200 "$(probe 0 /readyz)"
    expect 'and says why' 1 "$("${podman[@]}" logs "$tag-0" 2>&1 | grep -c 'info computing on the CPU: no CUDA driver (libcuda.so.1: ')"
    compile() { "${podman[@]}" exec "$tag-0" attnd --compile-kernels --arch sm_90a >"$work/said" 2>&1; echo "$? $(tail -n 1 "$work/said" | cut -d/ -f1-4)"; }
    expect 'it compiles kernels, as its user, with a read-only root' '0   written to /var/cache/attnd' "$(compile)"
    expect 'and finds them again' '0   in the cache: /var/cache/attnd' "$(compile)"
fi
"${podman[@]}" rmi --force "localhost/$tag" "localhost/$tag-gpu" "localhost/$tag-base" >/dev/null 2>&1

verdict "$([ -n "$GPU_IMAGE" ] && echo 25 || echo 16)"
