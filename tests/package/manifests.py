#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""manifests.py split FOLDER OUT | check FOLDER | configuration FOLDER - the Kubernetes manifests, taken apart.

split          a file for each core object: OUT/core-KIND-NAME.yaml
check          that they fit each other, and that the route chooses the right node; prints ok and not ok
configuration  attnd.jsonc of the ConfigMap
"""
import glob
import random
import re
import sys

import yaml

failed = False


def expect(name, want, got):
    global failed
    if want == got:
        print(f"ok {name}")
    else:
        print(f"not ok {name}: wanted {want!r}, got {got!r}")
        failed = True


def objects(folder):
    return [o for path in sorted(glob.glob(folder + "/*.yaml")) for o in yaml.safe_load_all(open(path)) if o]


def one(all_objects, kind, name="attnd"):
    found = [o for o in all_objects if o["kind"] == kind and o["metadata"]["name"] == name]
    assert len(found) == 1, (kind, name)
    return found[0]


def choose(route, path, headers):
    """The backend of the first rule that matches: of the Gateway API, a header comes before no header here, since rules are in this order and
    regular expressions before prefixes."""
    for rule in route["spec"]["rules"]:
        for match in rule["matches"]:
            fits = all(headers.get(h["name"].lower()) == h["value"] for h in match.get("headers", []))
            if "path" in match:
                kind, value = match["path"]["type"], match["path"]["value"]
                fits = fits and (re.fullmatch(value, path) is not None if kind == "RegularExpression" else path.startswith(value))
            if fits:
                return rule["backendRefs"][0]["name"]
    return None


def check_route(all_objects, nodes):
    route = one(all_objects, "HTTPRoute")
    for node in range(nodes):
        expect(f"the header n{node} names its node", f"attnd-{node}", choose(route, "/v1/attend", {"x-attnd-node": f"n{node}"}))
        expect("before the path", f"attnd-{node}", choose(route, f"/v1/sequences/{((node + 1) % nodes << 40) + 5}", {"x-attnd-node": f"n{node}"}))
    for path in ("/v1/sequences", "/v1/attend", "/v1/sequences/", "/v1/sequences/x", "/v1/sequencesx/1", "/", "/v1/sequences/1x"):
        expect(f"{path} goes to any", "attnd", choose(route, path, {}))
    expect("another node's header goes to any", "attnd", choose(route, "/v1/attend", {"x-attnd-node": "n77"}))
    rng, wrong = random.Random(1), []
    ids = [node * (1 << 40) + d for node in range(nodes + 1) for d in (-1, 0, 1, 2)] + [10**k + d for k in range(1, 16) for d in (-1, 0, 1)]
    ids += [rng.randrange(nodes << 40) for _ in range(20000)] + [rng.randrange(10 ** rng.randrange(1, 13)) for _ in range(20000)]
    for i in ids:
        want = f"attnd-{i >> 40}" if 1 <= i < nodes << 40 else "attnd"
        for path in (f"/v1/sequences/{i}", f"/v1/leases/{i}/blocks"):
            if i >= 0 and choose(route, path, {}) != want:
                wrong.append(path)
    expect(f"{len(ids)} ids go to their nodes", [], wrong[:3])


def check_set(all_objects):
    stateful = one(all_objects, "StatefulSet")
    pod = stateful["spec"]["template"]
    container = pod["spec"]["containers"][0]
    nodes = stateful["spec"]["replicas"]
    expect("its Service is there", stateful["spec"]["serviceName"], one(all_objects, "Service", "attnd-nodes")["metadata"]["name"])
    labels = pod["metadata"]["labels"]
    for o in [one(all_objects, "Service"), one(all_objects, "Service", "attnd-nodes")]:
        expect(f"Service {o['metadata']['name']} finds the pods", True, o["spec"]["selector"].items() <= labels.items())
    budget = one(all_objects, "PodDisruptionBudget")["spec"]
    expect("so does the budget", True, budget["selector"]["matchLabels"].items() <= labels.items())
    ports = {p["name"] for p in container["ports"]}
    expect("probes ask a port that is there", True, {container[p]["httpGet"]["port"] for p in ("startupProbe", "livenessProbe", "readinessProbe")} <= ports)
    expect("and what says it", ["/livez", "/livez", "/readyz"], [container[p]["httpGet"]["path"] for p in ("startupProbe", "livenessProbe", "readinessProbe")])
    volumes = {v["name"] for v in pod["spec"]["volumes"]} | {c["metadata"]["name"] for c in stateful["spec"]["volumeClaimTemplates"]}
    mounts = [m["name"] for c in pod["spec"]["containers"] + pod["spec"]["initContainers"] for m in c["volumeMounts"]]
    expect("volumes are mounted, and there", volumes, set(mounts))
    security = pod["spec"]["securityContext"]
    expect("it is not root, and its root is read-only", [True, True, False, ["ALL"]],
           [security["runAsNonRoot"] and security["runAsUser"] > 0, container["securityContext"]["readOnlyRootFilesystem"],
            container["securityContext"]["allowPrivilegeEscalation"], container["securityContext"]["capabilities"]["drop"]])
    text = one(all_objects, "ConfigMap")["data"]["attnd.jsonc"]
    seconds = sum(int(re.search(rf'"{key}": (\d+)', text).group(1)) for key in ("lame_duck_s", "deadline_s", "save_deadline_s"))
    expect("there is time for the drain", True, pod["spec"]["terminationGracePeriodSeconds"] >= seconds + 10)
    route_backends = {r["backendRefs"][0]["name"] for r in one(all_objects, "HTTPRoute")["spec"]["rules"]}
    expect("the route's Services are there, one a node", route_backends, {"attnd"} | {one(all_objects, "Service", f"attnd-{n}")["metadata"]["name"] for n in range(nodes)})
    return nodes


def main():
    all_objects = objects(sys.argv[2])
    if sys.argv[1] == "split":
        for o in all_objects:
            if o["apiVersion"] != "gateway.networking.k8s.io/v1":
                yaml.safe_dump(o, open(f"{sys.argv[3]}/core-{o['kind']}-{o['metadata']['name']}.yaml", "w"))
    elif sys.argv[1] == "configuration":
        print(one(all_objects, "ConfigMap")["data"]["attnd.jsonc"])
    else:
        check_route(all_objects, check_set(all_objects))
    sys.exit(failed)


main()
