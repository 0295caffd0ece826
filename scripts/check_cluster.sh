#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# check_cluster.sh - packaging/kubernetes in a cluster: three pods, their volumes, probes and Services, a move from pod to pod, requests while all of them are
# replaced, evictions against the budget, a kill, keys that change, and a scale down and up again onto a volume that was copied. All of it by kubectl, in a
# namespace of its own, which is removed at the end.
#
#   KUBECONFIG=FILE   says which cluster, as always: kind, k3s, one of yours, or that of small_cluster.sh
#   IMAGE=NAME        the image, as its nodes know it (localhost/attnd:0.1.0)
#   KEEP=1            leaves the namespace
#   BUILD=build/release
#
# Wants kubectl 1.25 or later, and of the cluster 1.28, a default class of volumes, DNS, and 0.3 processors and 3 GiB for the pods. What the API server does not know is
# left out, and said: HTTPRoute and PodMonitor without their definitions, before 1.21 the budget as it is. Without leave for a pod that sees its node's processes none is killed.
set -u
cd "$(dirname "$0")/.." || exit 1
BUILD=${BUILD:-build/release} IMAGE=${IMAGE:-localhost/attnd:0.1.0}
. scripts/check_lib.sh
needs_tools demo jq
command -v kubectl >/dev/null || { echo 'check-cluster: kubectl is missing' >&2; exit 69; }
ns=attnd-check-$$
k() { kubectl --namespace "$ns" "$@"; }
end() {
    if [ -n "${KEEP:-}" ]; then
        echo "# the namespace $ns is left"
    else # pods first: a namespace that has some waits for all of their grace
        k delete statefulsets,pods --all --wait >/dev/null 2>&1
        kubectl delete namespace "$ns" --wait >/dev/null 2>&1
    fi
}
stop() { # WHY - nothing of the rest can be told
    echo "check-cluster: $1" >&2
    k get pods -o wide >&2
    k get events --sort-by=.lastTimestamp | tail -n 15 >&2
    exit 1
}
kubectl kustomize --help | grep -q -e --output || { echo 'check-cluster: kubectl is older than 1.25' >&2; exit 69; }
kubectl get --raw /readyz >/dev/null || { echo 'check-cluster: no API server answers' >&2; exit 69; }
echo "# Kubernetes $(kubectl version -o json 2>/dev/null | jq -r .serverVersion.gitVersion), $(kubectl get nodes -o json | jq -r '.items | "\(length) nodes, \(.[0].status.nodeInfo | "\(.containerRuntimeVersion), \(.kernelVersion)")"')"

# ---- the manifests, small, and as far as the API server knows them
cp -r packaging/kubernetes "$work/kubernetes"
mkdir "$work/mine"
sed -i 's/^# \(- networkpolicy.yaml\)/  \1/' "$work/kubernetes/kustomization.yaml"
sed -i "s/: inference}/: $ns}/" "$work/kubernetes/networkpolicy.yaml" # whose client this is
cat >"$work/mine/small.yaml" <<'END'
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: attnd}
spec:
  template:
    spec:
      containers:
        - name: attnd
          env:
            - {name: ATTND_POOL__BYTES, value: 64MiB}
            - {name: ATTND_MEMORY__BYTES, value: 256MiB}
            - {name: ATTND_BACKEND__THREADS, value: '2'}
            - {name: ATTND_LOG__FORMAT, value: json}
          resources:
            requests: {cpu: 100m, memory: 512Mi}
            limits: {memory: 1Gi}
  volumeClaimTemplates:
    - metadata: {name: state}
      spec:
        accessModes: [ReadWriteOnce]
        resources: {requests: {storage: 1Gi}}
END
cat >"$work/mine/kustomization.yaml" <<END
apiVersion: kustomize.config.k8s.io/v1beta1
kind: Kustomization
namespace: $ns
resources: [../kubernetes]
images:
  - {name: attnd, newName: '${IMAGE%:*}', newTag: '${IMAGE##*:}'}
patches:
  - {path: small.yaml}
END
kubectl api-resources --api-group=gateway.networking.k8s.io -o name | grep -q ^httproutes || cat >>"$work/mine/kustomization.yaml" <<'END'
  - {target: {kind: HTTPRoute}, patch: '{"$patch": delete, apiVersion: gateway.networking.k8s.io/v1, kind: HTTPRoute, metadata: {name: attnd}}'}
END
if kubectl api-resources --api-group=monitoring.coreos.com -o name | grep -q ^podmonitors; then
    sed -i 's/^# \(- podmonitor.yaml\)/  \1/' "$work/kubernetes/kustomization.yaml"
fi
kubectl kustomize "$work/mine" >"$work/all.yaml" || exit 1
for kind in HTTPRoute PodMonitor; do grep -q "^kind: $kind" "$work/all.yaml" || echo "skip $kind: the cluster has no such definition"; done
policy=policy/v1
if ! kubectl api-versions | grep -qx policy/v1; then
    policy=policy/v1beta1
    sed -i "s,^apiVersion: policy/v1\$,apiVersion: $policy,; /unhealthyPodEvictionPolicy/d; /livenessProbe:/,/readinessProbe:/{/terminationGracePeriodSeconds/d}" "$work/all.yaml"
    echo 'skip unhealthyPodEvictionPolicy, and the grace of the liveness probe: the cluster is older than 1.21'
fi
new_key() { # NAME - $work/NAME, and $work/keys.json with its entry
    "$BUILD/attnctl" --json key new "$1" infer >"$work/key" || exit 1
    jq -j .key "$work/key" >"$work/$1"
    jq -c '{keys: [.entry]}' "$work/key" >"$work/keys.json"
}
put_secret() { k create secret generic "$1" "${@:2}" --dry-run=client -o yaml | k apply -f - >/dev/null || exit 1; } # NAME --from-file=FILE...
kubectl create namespace "$ns" >/dev/null || exit 1
new_key first
put_secret attnd-keys --from-file="$work/keys.json"
put_secret client --from-file="$work/first"
kubectl apply -f "$work/all.yaml" >"$work/said" 2>&1
expect 'the API server takes it' '0 ' "$? $(grep -vE '(created|configured)$|^Warning: ' "$work/said")"

# ---- pods, and a client beside them
pod() { # NAME USER - a pod of the image, which waits; what it has beside that comes from standard input
    { cat <<END; sed 's/^/  /'; } | k apply -f - >"$work/said" 2>&1
apiVersion: v1
kind: Pod
metadata: {name: $1}
spec:
  terminationGracePeriodSeconds: 1
  automountServiceAccountToken: false
  securityContext: {runAsUser: $2, runAsGroup: $2, fsGroup: $2, fsGroupChangePolicy: OnRootMismatch, seccompProfile: {type: RuntimeDefault}}
END
}
pod client 64320 <<END
containers:
  - name: client
    image: $IMAGE
    command: [sleep, infinity]
    volumeMounts: [{name: keys, mountPath: /keys}, {name: tmp, mountPath: /tmp}]
volumes:
  - {name: keys, secret: {secretName: client}}
  - {name: tmp, emptyDir: {}}
END
k wait --for=condition=Ready pod/client --timeout=120s >/dev/null || stop 'no client'
settled() { k rollout status statefulset/attnd --timeout=300s >/dev/null || stop 'the pods do not become ready'; }
settled
expect 'three pods are ready, none has been restarted' 'attnd-0 true 0, attnd-1 true 0, attnd-2 true 0' \
    "$(k get pods -l app.kubernetes.io/name=attnd -o json | jq -r '[.items[] | "\(.metadata.name) \(.status.containerStatuses[0] | "\(.ready) \(.restartCount)")"] | join(", ")')"
echo "# on $(k get pods -l app.kubernetes.io/name=attnd -o json | jq -r '[.items[].spec.nodeName] | unique | length') nodes"
client() { k exec client -- "$@"; }
within() { k exec "attnd-$1" -c attnd -- "${@:2}"; }
key=first
any() { client attnctl --url http://attnd:8400 --key-file /keys/$key "$@"; }                              # by the Service
ctl() { client attnctl --url "http://attnd-$1.attnd-nodes:8400" --key-file /keys/$key "${@:2}"; } # N...: by the pod's name
eventually() { # WHAT COMMAND... - a kubelet looks at secrets every minute or two
    local i
    for ((i = 0; i < 180; i++)); do
        ! "${@:2}" >/dev/null 2>&1 || return 0
        sleep 1
    done
    stop "no $1"
}
seen() { ctl "$1" attend "$2" --json 2>/dev/null | jq -c .o | sha256sum; }  # N ID: what K and V give
make() { # N - a sequence there
    local id
    id=$(ctl "$1" seq new --json | jq .id) && ctl "$1" append "$id" --count 40 >/dev/null && echo "$id"
}
expect 'the number of the pod is that of the node' '0 1 2' "$(for n in 0 1 2; do within $n printenv ATTND_NODE; done | xargs)"
expect 'as its user, without capabilities, filtered, without new privileges' '64320 64320 0000000000000000 0000000000000000 2 1' \
    "$(within 0 cat /proc/1/status | awk '/^(Uid|Gid|CapEff|CapBnd|NoNewPrivs|Seccomp):/ { value[$1] = $2 } END { print value["Uid:"], value["Gid:"], value["CapEff:"], value["CapBnd:"], value["Seccomp:"], value["NoNewPrivs:"] }')"
expect 'its root is read-only' 'touch: Read-only' "$(within 0 touch /etc/x 2>&1 | sed -n 's/^\(touch\):.*\(Read-only\).*/\1: \2/p')"
modes() { within "$1" sh -c 'stat -c "%g" /var/lib/attnd; stat -c "%u %a" /var/lib/attnd/state | sed "s/ 2/ /"; find /var/lib/attnd/state -perm /077' | xargs; }
expect 'the volume is the group'"'"'s, its folder the daemon'"'"'s alone' '64320 64320 700' "$(modes 0)"
expect 'kubectl logs has its log, JSON a line' listening "$(k logs attnd-0 -c attnd | jq -r .msg | grep -o 'listening' | head -n 1)"

# ---- Services
nodes_seen() { # what any daemon makes, until all have made one
    local i found=''
    for ((i = 0; i < 60; i++)); do
        found+=" $(any seq new --json | jq '.id / 1099511627776 | floor')"
        [ "$(tr ' ' '\n' <<<"$found" | sort -u | xargs)" != '0 1 2' ] || break
    done
    tr ' ' '\n' <<<"$found" | sort -u | xargs
}
expect 'the Service reaches all of them' '0 1 2' "$(nodes_seen)"
expect 'a workload by the Service is verified' 0 "$(any run --shape azure-conv --count 20 --length-scale 0.2 --verify 4 >"$work/said" 2>&1; echo $?)"
expect 'each pod has a Service of its own' 3 "$(for n in 0 1 2; do client attnctl --url "http://attnd-$n:8400" --key-file /keys/first stats >/dev/null 2>&1 && echo; done | wc -l)"
expect 'who has no key gets nothing' '1 401' "$(client attnctl --url http://attnd:8400 seq list >"$work/said" 2>&1; echo "$? $(grep -o 401 "$work/said" | head -n 1)")"

# ---- a move, by the names that pods have
id=$(make 0)
held=$(seen 0 "$id")
there=$(ctl 0 move "$id" --to http://attnd-1.attnd-nodes:8400 2>"$work/said" | sed -n 's|.*/sequences/\([0-9]*\).*|\1|p' | tail -n 1)
expect 'a sequence moves to another pod, to the bit' "$held" "$(seen 1 "${there:-0}")"
expect 'and its old clients are told where it is' http://attnd-1.attnd-nodes:8400 "$(ctl 0 attend "$id" 2>&1 | grep -o 'http://attnd-1[^/ ]*' | head -n 1)"

# ---- a pod is deleted: it drains, saves, and the next one restores
k delete pod attnd-1 --wait=false >/dev/null
served=0
while [ "$(k get pod attnd-1 -o 'jsonpath={.metadata.deletionTimestamp}' 2>/dev/null)" ]; do
    [ "$(seen 1 "$there")" != "$held" ] || [[ " $(k get endpoints attnd -o 'jsonpath={.subsets[*].addresses[*].targetRef.name}') " == *' attnd-1 '* ]] || served=1
    [ $served -eq 0 ] || break
done
expect 'while it ends, it serves its sequences by its name, and is no longer of the Service' 1 $served
k wait --for=delete pod/attnd-1 --timeout=10s >/dev/null 2>&1
settled
expect 'the next pod has the sequence, to the bit' "$held" "$(seen 1 "$there")"

# ---- all are replaced, one by one, while a client asks
ids=() bits=()
for n in 0 1 2; do
    ids+=("$(make $n)")
    bits+=("$(seen $n "${ids[n]}")")
done
all_bits() { for n in 0 1 2; do seen $n "${ids[n]}"; done; }
# shellcheck disable=SC2016 # the pod's shell
client sh -c 'touch /tmp/go; while [ -e /tmp/go ]; do attnctl --url http://attnd:8400 --key-file /keys/first seq new >/dev/null 2>>/tmp/said && echo made || echo failed; sleep 0.1; done >/tmp/answers 2>/dev/null </dev/null &'
k rollout restart statefulset/attnd >/dev/null
settled
client rm /tmp/go
expect 'a rolling update keeps every sequence, to the bit' "$(printf '%s\n' "${bits[@]}")" "$(all_bits)"
expect 'and no request by the Service fails meanwhile' '' "$(client sh -c 'grep -q made /tmp/answers || echo none; grep -c failed /tmp/answers | grep -v "^0$"; head -n 3 /tmp/said')"
echo "# $(client grep -c made /tmp/answers) requests"

# ---- evictions, as a drain of the machine makes them
evict() { # POD - 201, or why not
    printf '{"apiVersion": "%s", "kind": "Eviction", "metadata": {"name": "%s", "namespace": "%s"}}' $policy "$1" "$ns" |
        kubectl create --raw "/api/v1/namespaces/$ns/pods/$1/eviction" -f - 2>&1 | grep -oE '"Success"|disruption budget' | head -n 1
}
may_go() { [ "$(k get poddisruptionbudgets attnd -o 'jsonpath={.status.disruptionsAllowed}')" = 1 ]; }
eventually 'pod that may go' may_go
expect 'the budget lets one go, and no second one' '"Success", disruption budget' "$(evict attnd-0), $(evict attnd-1)"
k wait --for=delete pod/attnd-0 --timeout=100s >/dev/null 2>&1
settled
expect 'its sequences are back' "${bits[0]}" "$(seen 0 "${ids[0]}")"

# ---- the daemon is killed
pod killer 0 <<END
nodeName: $(k get pod attnd-2 -o 'jsonpath={.spec.nodeName}')
hostPID: true
containers: [{name: killer, image: $IMAGE, command: [sleep, infinity]}]
END
if k wait --for=condition=Ready pod/killer --timeout=60s >/dev/null 2>&1; then
    of_pod=$(k get pod attnd-2 -o 'jsonpath={.metadata.uid}' | tr - .)
    # shellcheck disable=SC2016 # the pod's shell
    k exec killer -- sh -c 'for p in /proc/[0-9]*; do [ "$(cat "$p/comm" 2>/dev/null)" != attnd ] || ! grep -q "$0" "$p/cgroup" || kill -KILL "${p#/proc/}"; done' "$of_pod"
    k wait --for=condition=Ready=false pod/attnd-2 --timeout=60s >/dev/null
    k wait --for=condition=Ready pod/attnd-2 --timeout=120s >/dev/null
    expect 'a daemon that is killed is started again, in the same pod' '1 137' "$(k get pod attnd-2 -o json | jq -r '.status.containerStatuses[0] | "\(.restartCount) \(.lastState.terminated.exitCode)"')"
    expect 'it says that its sequences are lost' 1 "$(k logs attnd-2 -c attnd | jq -r .event | grep -c '^sequences_lost$')"
else
    echo "skip a kill: $(tail -n 1 "$work/said")"
fi

# ---- keys change
new_key second
put_secret attnd-keys --from-file="$work/keys.json"
put_secret client --from-file="$work/first" --from-file="$work/second"
digest=$(jq -r '.keys[0].sha256' "$work/keys.json")
k annotate pods --all attnd/keys=second >/dev/null # so that the kubelet looks now
eventually 'the new key on its volume' client test -s /keys/second
for n in 0 1 2; do eventually "the new key file on the volume of attnd-$n" within $n grep -q "$digest" /etc/attnd/keys/keys.json; done
with_keys() { for key in first second; do ctl 0 seq list >/dev/null 2>&1; echo $?; done | xargs; }
expect 'a new key file is not read before SIGHUP' '0 1' "$(with_keys)"
for n in 0 1 2; do within $n sh -c 'kill -HUP 1'; done
key=second
for n in 0 1 2; do eventually "attnd-$n that takes the new key" ctl $n seq list; done
expect 'and is then, and the old key is none' '1 0' "$(with_keys)"

# ---- down to two, and up again, on a volume that the kubelet has given to another group meanwhile, as one that was copied
ids[2]=$(make 2) bits[2]=$(seen 2 "${ids[2]}")
k scale statefulset/attnd --replicas=2 >/dev/null
k wait --for=delete pod/attnd-2 --timeout=120s >/dev/null 2>&1
pod copy 0 <<END
containers: [{name: copy, image: $IMAGE, command: [sleep, infinity], volumeMounts: [{name: state, mountPath: /state}]}]
volumes: [{name: state, persistentVolumeClaim: {claimName: state-attnd-2}}]
END
k wait --for=condition=Ready pod/copy --timeout=120s >/dev/null || stop 'the claim of attnd-2 is not to be had'
expect 'scaled down, its claim and its snapshot are left' snapshot "$(k exec copy -- ls /state/state | grep snapshot)"
echo "# as another pod has it: $(k exec copy -- sh -c 'cd /state && stat -c "%u:%g %a %n" . state state/snapshot' | paste -sd,)"
k delete pod copy --wait=true >/dev/null
k scale statefulset/attnd --replicas=3 >/dev/null
settled
expect 'scaled up again, it has its sequences, to the bit' "${bits[2]}" "$(seen 2 "${ids[2]}")"
expect 'and its folder is its own again' '64320 64320 700' "$(modes 2)"
expect 'nobody else was restarted' '0 0' "$(for n in 0 1; do k get pod attnd-$n -o 'jsonpath={.status.containerStatuses[0].restartCount}{"\n"}'; done | xargs)"

verdict 25
