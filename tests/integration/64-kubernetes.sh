#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The manifests, for processors and with the component for GPUs: core objects are what Kubernetes takes, the configuration in them is what attnd takes, and the
# routes' expressions choose the node whose id it is, for the ends of every range and for numbers at random.
. tests/integration/lib.sh
venv=build/venv-kubernetes
if [ ! -x $venv/bin/kubernetes-validate ]; then
    rm -rf $venv
    python3 -m venv $venv >/dev/null 2>&1 && $venv/bin/pip install -q 'kubernetes-validate==1.37.0' >/dev/null 2>&1
fi
python3 packaging/kubernetes/make_gateway.py 3 >"$WORK/gateway.yaml"
expect 'make_gateway.py is a program' 3 "$(./packaging/kubernetes/make_gateway.py 3 | grep -c '^kind: Service')"
expect 'gateway.yaml is what make_gateway.py writes' '' "$(diff packaging/kubernetes/gateway.yaml "$WORK/gateway.yaml" | head -3)"
# refused [ARG...] - the exit code, and the last line of what it says
refused() { python3 packaging/kubernetes/make_gateway.py "$@" >"$WORK/made" 2>"$WORK/said"; echo "$? $(wc -c <"$WORK/made") $(tail -n 1 "$WORK/said")"; }
expect 'how many nodes, is wanted' '2 0 make_gateway.py: error: the following arguments are required: NODES' "$(refused)"
for wrong in x 0 -1 8193 2.5; do
    expect "nodes: $wrong" "2 0 make_gateway.py: error: argument NODES: wants an integer in 1..8192, has '$wrong'" "$(refused -- $wrong)"
done
if [ ! -x $venv/bin/kubernetes-validate ]; then
    lacks 'the manifests: kubernetes-validate cannot be had from PyPI'
    finish
fi
# What the folder has, and what the component changes for GPUs. Route and PodMonitor have schemas of their own.
attnctl=$(dirname "$ATTND")/attnctl
(umask 077 && "$attnctl" --json key new somebody infer | jq '{keys: [.entry]}' >"$WORK/keys.json")
mkdir -m 700 "$WORK/state"
manifests() { $venv/bin/python tests/package/manifests.py "$1" packaging/kubernetes "${@:2}"; }
validate() { $venv/bin/kubernetes-validate -k 1.28 --strict --quiet "$1" >"$WORK/said" 2>&1; local code=$?; [ $code -eq 0 ] || cat "$WORK/said"; echo $code; }
for nodes in 1 8 15 16 40; do # 16: a second route
    echo "# $nodes nodes"
    python3 packaging/kubernetes/make_gateway.py $nodes >"$WORK/gateway-$nodes.yaml"
    $venv/bin/python tests/package/manifests.py routes "$WORK/gateway-$nodes.yaml" $nodes || FAILED=1
done
for component in '' gpu; do
    echo "# ${component:-processors}"
    out=$WORK/of-$component
    mkdir "$out"
    manifests split "$out" $component
    for file in "$out"/core-*.yaml; do
        expect "Kubernetes takes $(basename "$file" .yaml)" 0 "$(validate "$file")"
    done
    manifests check $component || FAILED=1
    manifests configuration $component | sed "s,/etc/attnd/keys/keys.json,$WORK/keys.json,; s,/var/lib/attnd/state,$WORK/state,; s,/var/cache/attnd,$WORK," >"$WORK/attnd.jsonc"
    # Its memory: all that --check-config counts, with a pool that is the GPU's: no pool, but staging and the driver, and the history of the largest one.
    limit=$(manifests memory $component)
    "$ATTND" --config "$WORK/attnd.jsonc" --set pool.memory=0 --set backend.name=cpu ${component:+--set pool.bytes=126GiB} --check-config 2>/dev/null |
        awk -v on_gpu="${component:+1}" '/^(pool, memory|host blocks|  together|history of blocks|the daemon|clients)/ && !(on_gpu && /^pool/) { for (i = 1; i <= NF; i++) if ($(i + 1) == "bytes") sum += $i; lines++ }
            END { printf "%.0f %d\n", sum + (on_gpu ? (544 + 2048) * 1048576 : 0), lines + (on_gpu ? 1 : 0) }' >"$WORK/sum"
    expect "its memory, $(cut -d' ' -f1 "$WORK/sum") bytes, fits into the limit" '6 1' "$(cut -d' ' -f2 "$WORK/sum") $(($(cut -d' ' -f1 "$WORK/sum") <= limit))"
    # A pool that is a share of a GPU's memory is not known before there is one.
    expect 'attnd takes the configuration' 0 "$(ATTND_NODE=2 "$ATTND" --config "$WORK/attnd.jsonc" --set pool.bytes=64MiB --set pool.memory=0 --set backend.name=cpu --set memory.bytes=256MiB \
        --check-config >"$WORK/said" 2>&1; code=$?; [ $code -eq 0 ] || cat "$WORK/said"; echo $code)"
    expect 'and the number of its node' '  "node": 2,' "$(ATTND_NODE=2 "$ATTND" --config "$WORK/attnd.jsonc" --print-config 2>/dev/null | grep -o '.*"node": 2,')"
    if kubectl kustomize --help 2>/dev/null | grep -q -e --output; then # Debian's, of 1.20, knows no components
        manifests same kubectl $component || FAILED=1
    else
        echo 'skip what kustomize makes of it: no kubectl of 1.25 or later'
    fi
done
# The kustomization that OPERATIONS shows, beside the folder: with its line for GPUs and without, and with a digest.
mkdir -p "$WORK/beside/mine"
cp -r packaging/kubernetes "$WORK/beside/kubernetes"
mine=$WORK/beside/mine/kustomization.yaml digest=sha256:$(printf %064d 7)
images_of() { # of the containers, as our renderer makes them and as kustomize does
    $venv/bin/python tests/package/manifests.py images "$WORK/beside/mine"
    ! kubectl kustomize --help 2>/dev/null | grep -q -e --output || kubectl kustomize "$WORK/beside/mine" 2>&1 | sed -n 's/^ *image: *//p' | sort -u
}
sed -n '/^# kustomization.yaml, in a folder of yours/,/^```$/p' docs/OPERATIONS.md | grep -v '^```' >"$mine"
expect "the kustomization of one's own that OPERATIONS shows" registry.example/attnd:0.1.0-gpu "$(images_of | sort -u)"
sed -i '/^components:/d' "$mine"
expect 'the same, for processors' registry.example/attnd:0.1.0 "$(images_of | sort -u)"
sed -i "s/newName: [^,}]*/&, digest: '$digest'/" "$mine"
expect 'the same, of a digest' "registry.example/attnd@$digest" "$(images_of | sort -u)"
if kubectl kustomize --help 2>/dev/null | grep -q -e --output; then
    kinds() { kubectl kustomize "$WORK/beside/mine" 2>&1 | grep -c "^kind: $1$"; }
    expect 'it has routes' yes "$([ "$(kinds HTTPRoute)" -gt 0 ] && echo yes)"
    services=$(kinds Service)
    grep -F '$patch: delete' docs/OPERATIONS.md >>"$mine"
    expect 'for a cluster without the Gateway API it has none, as OPERATIONS shows, and all Services' "0 $services" "$(kinds HTTPRoute) $(kinds Service)"
fi
expect 'what is wrong is refused' 1 "$(sed 's/serviceName: .*/serviceNames: x/' "$WORK"/of-/core-StatefulSet-attnd.yaml >"$WORK/wrong.yaml"
    validate "$WORK/wrong.yaml" | tail -n 1)"
finish
