#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# small_cluster.sh - a Kubernetes of two nodes on this machine, out of Debian 12's archive alone, for check_cluster.sh where there is no other:
#
#   small_cluster.sh build DIR             Debian's source of Kubernetes, 1.20.2, compiled, and an image for pause
#   small_cluster.sh up DIR [ARCHIVE...]   start it, with the images of these archives (podman save) on its nodes, and print what KUBECONFIG is to be
#   small_cluster.sh down DIR              end it, and leave nothing of it but what was built
#
# etcd, the API server, what controls the nodes, and DNS are processes of the machine, on the address of a bridge. A node is a namespace of mounts and of network
# with containerd, kubelet and kube-proxy in it, and has the cgroup /attnd-nodeN. Volumes are folders below DIR, twelve a node, of a class `local`. DNS is dnsmasq
# with what kubectl says of Services and Endpoints: Debian has no CoreDNS. Nothing enforces network policies. One token may do everything.
#
# To the source is added what attnd.yaml wants of 1.28, the label apps.kubernetes.io/pod-index. Wants root, cgroups of version 1, a kubectl, deb-src in apt's sources, and what
# `bash bootstrap --list cluster` says. It listens on 10.213.8.1 (6443 and 53), and on 127.0.0.1 (12379, 12380, 10257, 10259).
set -eu
usage() { sed -n '3,/^set -eu/s/^# \{0,1\}//p' "$0" | head -n -1 >&2; exit 2; }
if [ $# -lt 2 ] || [ "$(id -u)" -ne 0 ]; then usage; fi
what=$1 dir=$(mkdir -p "$2" && realpath "$2") archives=("${@:3}") bridge=attnd-cluster host=10.213.8.1
export KUBECONFIG=$dir/kubeconfig
address() { echo "10.213.8.$((10 + $1))"; }
of_node() { ctr --address "$dir/node$1/containerd.sock" --namespace k8s.io "${@:2}"; }
tunables='vm/overcommit_memory kernel/panic kernel/panic_on_oops' # of the machine: a kubelet sets them

build() {
    local us=k8s.io/kubernetes inputs
    cd "$dir"
    compgen -G 'kubernetes-1.20*/' >/dev/null || apt-get source --only-source -q kubernetes/bookworm
    mkdir -p bin gopath/src/k8s.io pause
    ln -sfn "$(realpath kubernetes-1.20*/)" gopath/src/$us
    cd gopath/src/$us
    grep -q pod-index pkg/controller/statefulset/stateful_set_utils.go ||
        sed -i 's|^\tpod.Labels\[apps.StatefulSetPodNameLabel\] = pod.Name$|&\n\tpod.Labels["apps.kubernetes.io/pod-index"] = strconv.Itoa(getOrdinal(pod))|' pkg/controller/statefulset/stateful_set_utils.go
    export GOPATH=$dir/gopath GO111MODULE=off CGO_ENABLED=0 GOCACHE=$dir/cache PATH=/usr/lib/go-1.19/bin:$PATH
    # As build/root/Makefile.generated_files has it: the one thing that the source lacks.
    go build -o "$dir/bin/" $us/vendor/k8s.io/kube-openapi/cmd/openapi-gen
    inputs=$(grep -rl --include='*.go' '+k8s:openapi-gen=' vendor/k8s.io/*/ pkg cmd plugin | grep -v -e '_test\.go' -e /code-generator/ -e /sample-apiserver/ -e kube-openapi |
        xargs -n1 dirname | sort -u | sed "s,^,$us/," | paste -sd,)
    "$dir/bin/openapi-gen" -i "$inputs" -p $us/pkg/generated/openapi -O zz_generated.openapi -h vendor/k8s.io/code-generator/hack/boilerplate.go.txt -r "$dir/violations" --output-base "$GOPATH/src"
    go build -ldflags "-s -w $(printf -- "-X $us/vendor/k8s.io/%s/version.gitVersion=v1.20.2 " component-base client-go/pkg)" -o "$dir/bin/" $us/cmd/kube{let,-apiserver,-controller-manager,-scheduler,-proxy}
    cd "$dir/pause"
    echo 'int pause(void); int main(void) { for (;;) pause(); }' | gcc -static -x c -o pause -
    printf 'FROM scratch\nCOPY pause /pause\nENTRYPOINT ["/pause"]\n' >Containerfile
    export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
    buildah build -q -t localhost/pause:1 . >/dev/null
    rm -f ../pause.tar
    buildah push -q localhost/pause:1 oci-archive:../pause.tar:localhost/pause:1
}

start() { # NAME COMMAND... - in the background
    setsid "${@:2}" >"$dir/log/$1" 2>&1 </dev/null &
    echo $! >"$dir/run/$1"
}
wait_for() { # WHAT COMMAND...
    for ((i = 0; i < 600; i++)); do
        ! "${@:2}" >/dev/null 2>&1 || return 0
        sleep 0.1
    done
    echo "small_cluster.sh: no $1 within a minute; see $dir/log" >&2
    exit 1
}
names() { # keep what DNS knows
    while sleep 1; do
        kubectl get endpoints -A --watch -o name | while read -r _; do
            kubectl get services,endpoints -A -o json | jq -r '.items as $all | [$all[] | select(.spec.clusterIP == "None").metadata | [.namespace, .name]] as $headless | $all[] |
                "\(.metadata | "\(.name).\(.namespace)").svc.cluster.local" as $name |
                if .kind == "Service" then select(.spec.clusterIP != "None") | "\(.spec.clusterIP) \($name)"
                else select(.metadata | [.namespace, .name] | IN($headless[])).subsets[]?.addresses[]? | "\(.ip) \($name)", (select(.hostname) | "\(.ip) \(.hostname).\($name)") end' >"$dir/names.new"
            mv "$dir/names.new" "$dir/names"
            kill -HUP "$(cat "$dir/run/dnsmasq")"
        done
    done
}
start_node() { # N
    local n=$1 of=$dir/node$1 ns=attnd-node$1 pods=10.214.$1.0/24 within
    mkdir -p "$of"/{cni,volumes/{1..12}}
    ip netns add "$ns"
    printf '%s\n' "link add $ns type veth peer name eth0 netns $ns" "link set $ns master $bridge up" "route add $pods via $(address "$n")" | ip -batch -
    printf '%s\n' "address add $(address "$n")/24 dev eth0" 'link set lo up' 'link set eth0 up' "route add default via $host" "route add 10.214.$((3 - n)).0/24 via $(address $((3 - n)))" | ip -n "$ns" -batch -
    find /sys/fs/cgroup -mindepth 1 -maxdepth 1 -type d -exec mkdir -p "{}/$ns" ';'
    printf '{"cniVersion": "0.4.0", "name": "pods", "plugins": [{"type": "bridge", "bridge": "pods", "isGateway": true, "hairpinMode": true, "ipam": {"type": "host-local", "dataDir": "%s", "ranges": [[{"subnet": "%s"}]], "routes": [{"dst": "0.0.0.0/0"}]}}]}' \
        "$of/cni" "$pods" >"$of/cni/pods.conflist"
    printf '%s\n' 'version = 2' "root = '$of/containerd'" "state = '/run/containerd-attnd'" '[grpc]' "address = '$of/containerd.sock'" '[plugins."io.containerd.grpc.v1.cri"]' "sandbox_image = 'localhost/pause:1'" \
        'restrict_oom_score_adj = true' '[plugins."io.containerd.grpc.v1.cri".cni]' "bin_dir = '/usr/lib/cni'" "conf_dir = '$of/cni'" >"$of/containerd.toml"
    # Mounts of a node are its own, and so are /run and /var/log.
    # shellcheck disable=SC2016 # the inner shell's
    start "containerd-$n" nsenter --net="/run/netns/$ns" unshare --mount --propagation private sh -euc 'mount --make-rshared /
        for d in /run /var/log; do mount -t tmpfs tmpfs $d; done
        echo 1 >/proc/sys/net/ipv4/ip_forward
        echo 1 >/proc/sys/net/bridge/bridge-nf-call-iptables
        exec containerd --config "$0"' "$of/containerd.toml"
    wait_for "containerd of node $n" of_node "$n" version
    for archive in "$dir/pause.tar" "${archives[@]}"; do of_node "$n" images import "$archive" >>"$dir/log/images"; done
    within=(nsenter --target "$(cat "$dir/run/containerd-$n")" --mount --net)
    start "kubelet-$n" "${within[@]}" "$dir/bin/kubelet" --kubeconfig="$KUBECONFIG" --hostname-override="node$n" --node-ip="$(address "$n")" --node-labels="topology.kubernetes.io/zone=zone$n" \
        --root-dir="$of/kubelet" --cert-dir="$of/pki" --volume-plugin-dir="$of/plugins" --container-runtime=remote --container-runtime-endpoint="unix://$of/containerd.sock" \
        --cgroup-driver=cgroupfs --cgroup-root="/$ns" --fail-swap-on=false --oom-score-adj=0 --anonymous-auth=true --authorization-mode=AlwaysAllow \
        --cluster-dns=$host --cluster-domain=cluster.local --resolv-conf= --eviction-hard='memory.available<100Mi' --image-gc-high-threshold=100
    start "proxy-$n" "${within[@]}" "$dir/bin/kube-proxy" --kubeconfig="$KUBECONFIG" --hostname-override="node$n" --proxy-mode=iptables --cluster-cidr=10.214.0.0/16 --oom-score-adj=0 \
        --conntrack-max-per-core=0 --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0
    for i in {1..12}; do
        printf '{"apiVersion": "v1", "kind": "PersistentVolume", "metadata": {"name": "node%s-%s"}, "spec": {"capacity": {"storage": "16Gi"}, "accessModes": ["ReadWriteOnce"], "storageClassName": "local", "local": {"path": "%s"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["node%s"]}]}]}}}}' "$n" "$i" "$of/volumes/$i" "$n"
    done | kubectl create -f - >>"$dir/log/volumes"
}
up() {
    [ ! -e "$dir/run" ] || { echo "small_cluster.sh: it runs, or was not ended: $0 down $dir" >&2; exit 1; }
    mkdir -p "$dir"/{run,log,pki}
    for t in $tunables; do echo "$t $(cat "/proc/sys/$t")"; done >"$dir/run/tunables.before"
    printf '%s\n' "link add $bridge type bridge" "address add $host/24 dev $bridge" "link set $bridge up" | ip -batch -
    openssl genrsa -out "$dir/pki/accounts.key" 2048 2>/dev/null
    token=$(openssl rand -hex 16)
    (umask 077; echo "$token,admin,admin,system:masters" >"$dir/pki/tokens")
    start etcd etcd --data-dir "$dir/etcd" --listen-client-urls http://127.0.0.1:12379 --advertise-client-urls http://127.0.0.1:12379 --listen-peer-urls http://127.0.0.1:12380 --unsafe-no-fsync
    start apiserver "$dir/bin/kube-apiserver" --etcd-servers=http://127.0.0.1:12379 --advertise-address=$host --bind-address=$host --secure-port=6443 --cert-dir="$dir/pki" \
        --service-cluster-ip-range=10.215.0.0/24 --service-account-issuer=https://kubernetes.default.svc --service-account-{signing-,}key-file="$dir/pki/accounts.key" \
        --token-auth-file="$dir/pki/tokens" --authorization-mode=RBAC --anonymous-auth=false --kubelet-preferred-address-types=InternalIP
    wait_for 'certificate of the API server' test -s "$dir/pki/apiserver.crt"
    (umask 077; printf '{"apiVersion": "v1", "kind": "Config", "clusters": [{"name": "small", "cluster": {"server": "https://%s:6443", "certificate-authority": "%s"}}], "users": [{"name": "admin", "user": {"token": "%s"}}],
        "contexts": [{"name": "small", "context": {"cluster": "small", "user": "admin"}}], "current-context": "small"}\n' $host "$dir/pki/apiserver.crt" "$token" >"$KUBECONFIG")
    wait_for 'API server' kubectl get --raw /readyz
    start controllers "$dir/bin/kube-controller-manager" --kubeconfig="$KUBECONFIG" --service-account-private-key-file="$dir/pki/accounts.key" --root-ca-file="$dir/pki/apiserver.crt" --leader-elect=false --bind-address=127.0.0.1 --port=0
    start scheduler "$dir/bin/kube-scheduler" --kubeconfig="$KUBECONFIG" --leader-elect=false --bind-address=127.0.0.1 --port=0
    printf '%s' '{"apiVersion": "storage.k8s.io/v1", "kind": "StorageClass", "metadata": {"name": "local", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}}, "provisioner": "kubernetes.io/no-provisioner", "volumeBindingMode": "WaitForFirstConsumer"}' |
        kubectl create -f - >"$dir/log/volumes"
    : >"$dir/names"
    start dnsmasq dnsmasq --keep-in-foreground --user=root --conf-file=/dev/null --pid-file= --no-resolv --no-hosts --addn-hosts="$dir/names" --listen-address=$host --bind-interfaces --local=/cluster.local/ --local-ttl=0 --no-negcache
    start names bash "$0" names "$dir"
    for n in 1 2; do start_node $n; done
    for n in 1 2; do wait_for "node $n" kubectl wait --for=condition=Ready --timeout=1s "node/node$n"; done
    echo "KUBECONFIG=$KUBECONFIG"
}
end() { # NAME - that process, and its children
    ! kill -- "-$(cat "$dir/run/$1" 2>/dev/null)" 2>/dev/null || tail --pid="$(cat "$dir/run/$1")" -f /dev/null
}
down() {
    for name in names {kubelet,proxy}-{1,2} scheduler controllers apiserver etcd dnsmasq; do end "$name"; done
    for n in 1 2; do
        for task in $(of_node $n tasks list -q 2>/dev/null); do of_node $n tasks delete --force "$task" >/dev/null 2>&1 || :; done
        end containerd-$n
        ip netns delete attnd-node$n 2>/dev/null || :
        find /sys/fs/cgroup -path "/sys/fs/cgroup/*/attnd-node$n*" -depth -type d -exec rmdir {} +
    done
    ip link delete $bridge 2>/dev/null || :
    [ ! -e "$dir/run/tunables.before" ] || while read -r t value; do echo "$value" >"/proc/sys/$t"; done <"$dir/run/tunables.before"
    rm -rf --one-file-system "$dir"/{run,node1,node2,etcd,pki,kubeconfig,names}
}
case $what in
    build | up | down | names) $what ;; # names: of `up`
    *) usage ;;
esac
