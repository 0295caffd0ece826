#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""manifests.py split FOLDER OUT | check FOLDER | configuration FOLDER | render FOLDER | memory FOLDER | same FOLDER KUBECTL | images FOLDER, with [COMPONENT...], or routes FILE NODES - the Kubernetes
manifests, taken apart: all files of FOLDER, changed by components (gpu) and by kustomization.yaml, as `kubectl kustomize` does it.

split          a file for each core object: OUT/core-KIND-NAME.yaml
check          that they fit each other, and that the route chooses the right node; prints ok and not ok
configuration  attnd.jsonc of the ConfigMap
render         all of them
memory         the limit of the daemon's container, in bytes
same           that KUBECTL makes the same of them, with each line of kustomization.yaml that is commented out
images         of the containers, by FOLDER's kustomization.yaml as it is
routes         that those of FILE, a gateway.yaml, choose the right one of so many nodes
"""
import glob
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

import yaml

GPU_BYTES_MOST = 140 << 30  # of an H200
VOLUME_BYTES_PER_S = 250e6

failed = False


def expect(name, want, got):
    global failed
    if want == got:
        print(f"ok {name}")
    else:
        print(f"not ok {name}: wanted {want!r}, got {got!r}")
        failed = True


def merged(old, new):
    """A strategic merge patch, as far as ours go: maps member by member, lists of what has a name by names, other lists whole."""
    if isinstance(old, dict) and isinstance(new, dict):
        return old | {key: merged(old.get(key), value) for key, value in new.items()}
    if isinstance(old, list) and isinstance(new, list) and all("name" in item for item in old + new):
        of_name = {item["name"]: item for item in old}
        return list((of_name | {item["name"]: merged(of_name.get(item["name"]), item) for item in new}).values())
    return new


def renamed(found, images):
    for o in found:
        pod = o["spec"]["template"]["spec"] if o["kind"] == "StatefulSet" else {}
        for container in pod.get("containers", []) + pod.get("initContainers", []):
            for image in images:
                name, tag = container["image"].rsplit(":", 1)
                if name == image["name"]:
                    exactly = "@" + image["digest"] if "digest" in image else ":" + image.get("newTag", tag)
                    container["image"] = image.get("newName", name) + exactly


def loaded(path):
    with open(path, encoding="utf-8") as file:
        return [o for o in yaml.safe_load_all(file) if o]


def rendered(folder, found=(), **instead):
    """What FOLDER's kustomization.yaml makes of FOUND and of its resources: components first, then its own patches and images."""
    what = loaded(folder + "/kustomization.yaml")[0] | instead
    unknown = set(what) - {"apiVersion", "kind", "resources", "components", "patches", "images"}
    assert not unknown, f"{folder}: {unknown} is not known here"
    found = list(found)
    for path in [f"{folder}/{name}" for name in what.get("resources", [])]:
        found += rendered(path) if os.path.isdir(path) else loaded(path)
    for component in what.get("components", []):
        found = rendered(f"{folder}/{component}", found)
    for patch in [o for entry in what.get("patches", []) for o in loaded(f"{folder}/{entry['path']}")]:
        at = [i for i, o in enumerate(found) if (o["kind"], o["metadata"]["name"]) == (patch["kind"], patch["metadata"]["name"])]
        assert len(at) == 1, (folder, patch["kind"])
        found[at[0]] = merged(found[at[0]], patch)
    renamed(found, what.get("images", []))
    return found


def objects(folder, components=()):
    files = [os.path.basename(path) for path in sorted(glob.glob(folder + "/*.yaml"))]
    return rendered(folder, resources=[name for name in files if name != "kustomization.yaml"], components=components)


def check_same(folder, kubectl, components):
    """kustomize is asked itself, where there is one."""
    with tempfile.TemporaryDirectory() as there:
        copy = shutil.copytree(folder, there + "/copy")
        with open(copy + "/kustomization.yaml", encoding="utf-8") as file:
            lines = file.read()
        commented = dict(re.findall(r"^# (- (\S+\.yaml)|components: \[gpu\]|images: .*\])", lines, re.M))
        expect("kustomization.yaml has a line for each file, also for those that it leaves out", sorted(os.path.basename(p) for p in glob.glob(folder + "/*.yaml")),
               sorted(loaded(folder + "/kustomization.yaml")[0]["resources"] + [name for name in commented.values() if name] + ["kustomization.yaml"]))
        for line, name in commented.items():
            if name or components or line.startswith("images"):
                lines = lines.replace("# " + line, ("  " if name else "") + line)
        with open(copy + "/kustomization.yaml", "w", encoding="utf-8") as file:
            file.write(lines)
        made = subprocess.run([kubectl, "kustomize", copy], capture_output=True, text=True, check=False)
        expect("kustomize says nothing", [0, ""], [made.returncode, made.stderr])

        def by_name(some):
            return sorted(some, key=lambda o: (o["kind"], o["metadata"]["name"]))

        same = by_name(rendered(copy)) == by_name(o for o in yaml.safe_load_all(made.stdout) if o)
        expect(f"kustomize makes the same, with {' '.join(components) or 'no component'}", True, same)
        expect("all lines of kustomization.yaml: the image has that name", {"registry.example/attnd:0.1.0" + "".join("-" + c for c in components)}, images(rendered(copy)))


def one(all_objects, kind, name="attnd"):
    found = [o for o in all_objects if o["kind"] == kind and o["metadata"]["name"] == name]
    assert len(found) == 1, (kind, name)
    return found[0]


def images(all_objects):
    pod = one(all_objects, "StatefulSet")["spec"]["template"]["spec"]
    return {c["image"] for c in pod["containers"] + pod["initContainers"]}


def bytes_of(quantity):
    number, unit = re.fullmatch(r"(\d+)(Mi|Gi)", quantity).groups()
    return int(number) << {"Mi": 20, "Gi": 30}[unit]


def choose(rules, path, headers):
    """The backend of the match that comes first: regular expressions before prefixes, which the specification leaves to the Gateway, then more
    headers before fewer, then the order, of routes, rules and matches."""
    found = []
    for rule in rules:
        for match in rule["matches"]:
            named = match.get("headers", [])
            where = match.get("path", {"type": "PathPrefix", "value": "/"})
            regular = where["type"] == "RegularExpression"
            fits = re.fullmatch(where["value"], path) is not None if regular else path.startswith(where["value"])
            if fits and all(headers.get(h["name"].lower()) == h["value"] for h in named):
                found.append((not regular, -len(named), rule["backendRefs"][0]["name"]))
    return min(found, key=lambda f: f[:2])[2] if found else None


def check_routes(all_objects, nodes, samples=20000):
    routes = [o for o in all_objects if o["kind"] == "HTTPRoute"]
    expect("the routes have names of their own, and the same Gateway", [["attnd", *(f"attnd-{i}" for i in range(1, (nodes + 14) // 15))], True],
           [[o["metadata"]["name"] for o in routes], all(o["spec"]["parentRefs"] == [{"name": "attnd"}] for o in routes)])
    # What every version of the Gateway API takes.
    expect("a route has at most 16 rules, of at most 8 matches, and 1024 characters of a path", [True, True, True],
           [all(1 <= len(o["spec"]["rules"]) <= 16 for o in routes), all(1 <= len(r["matches"]) <= 8 for o in routes for r in o["spec"]["rules"]),
            all(len(m.get("path", {"value": ""})["value"]) <= 1024 for o in routes for r in o["spec"]["rules"] for m in r["matches"])])
    rules = [rule for o in routes for rule in o["spec"]["rules"]]
    expect("their Services are there, one a node", {"attnd"} | {one(all_objects, "Service", f"attnd-{n}")["metadata"]["name"] for n in range(nodes)},
           {r["backendRefs"][0]["name"] for r in rules})
    wrong = []
    for node in range(nodes):
        header = {"x-attnd-node": f"n{node}"}
        for path in ("/v1/attend", f"/v1/sequences/{(node << 40) + 5}", "/v1/sequences"):
            if choose(rules, path, header) != f"attnd-{node}":
                wrong.append((node, path))
    expect(f"headers of {nodes} nodes name theirs", [], wrong[:3])
    expect("the id in the path is whose it is, whatever the header", "attnd-0", choose(rules, "/v1/sequences/5", {"x-attnd-node": "n1"}))
    for path in ("/v1/sequences", "/v1/attend", "/v1/sequences/", "/v1/sequences/x", "/v1/sequencesx/1", "/", "/v1/sequences/1x"):
        expect(f"{path} goes to any", "attnd", choose(rules, path, {}))
    expect("another node's header goes to any", "attnd", choose(rules, "/v1/attend", {"x-attnd-node": "n77"}))
    rng, wrong = random.Random(1), []
    ids = [node * (1 << 40) + d for node in range(nodes + 1) for d in (-1, 0, 1, 2)] + [10**k + d for k in range(1, 16) for d in (-1, 0, 1)]
    ids += [rng.randrange(nodes << 40) for _ in range(samples)] + [rng.randrange(10 ** rng.randrange(1, 13)) for _ in range(samples)]
    for i in ids:
        want = f"attnd-{i >> 40}" if 1 <= i < nodes << 40 else "attnd"
        for path in (f"/v1/sequences/{i}", f"/v1/leases/{i}/blocks"):
            if i >= 0 and choose(rules, path, {}) != want:
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
    policy, budget = one(all_objects, "NetworkPolicy")["spec"], one(all_objects, "PodDisruptionBudget")["spec"]
    expect("so does the budget, which lets pods that are not ready go", [True, "AlwaysAllow"],
           [budget["selector"]["matchLabels"].items() <= labels.items(), budget.get("unhealthyPodEvictionPolicy")])
    ports = {p["name"] for p in container["ports"]}
    expect("probes ask a port that is there", True, {container[p]["httpGet"]["port"] for p in ("startupProbe", "livenessProbe", "readinessProbe")} <= ports)
    expect("and what says it", ["/livez", "/livez", "/readyz"], [container[p]["httpGet"]["path"] for p in ("startupProbe", "livenessProbe", "readinessProbe")])
    expect("one that hangs is not given the time to save", True, container["livenessProbe"].get("terminationGracePeriodSeconds", 1e9) <= 30)
    volumes = {v["name"] for v in pod["spec"]["volumes"]} | {c["metadata"]["name"] for c in stateful["spec"]["volumeClaimTemplates"]}
    mounts = [m["name"] for c in pod["spec"]["containers"] + pod["spec"]["initContainers"] for m in c["volumeMounts"]]
    expect("volumes are mounted, and there", volumes, set(mounts))
    expect("what is not kept has a limit", {"run": True, "tmp": True},
           {v["name"]: "sizeLimit" in v["emptyDir"] for v in pod["spec"]["volumes"] if "emptyDir" in v and v["name"] != "cache"})
    security = pod["spec"]["securityContext"]
    expect("it is not root, and its root is read-only", [True, True, False, ["ALL"]],
           [security["runAsNonRoot"] and security["runAsUser"] > 0, container["securityContext"]["readOnlyRootFilesystem"],
            container["securityContext"]["allowPrivilegeEscalation"], container["securityContext"]["capabilities"]["drop"]])
    # Always, the default, gives all files to the group for each new pod: the daemon refuses a snapshot that others can read.
    expect("a volume is given to the group once", "OnRootMismatch", security.get("fsGroupChangePolicy"))
    spread = pod["spec"].get("topologySpreadConstraints", [])
    expect("pods are spread over nodes and zones, where they can be", [(key, "ScheduleAnyway", True) for key in ("kubernetes.io/hostname", "topology.kubernetes.io/zone")],
           [(s["topologyKey"], s["whenUnsatisfiable"], s["labelSelector"]["matchLabels"].items() <= labels.items()) for s in spread])
    monitor = one(all_objects, "PodMonitor")["spec"]
    expect("the PodMonitor finds the pods, and a port that is there", [True, True],
           [monitor["selector"]["matchLabels"].items() <= labels.items(), {e["port"] for e in monitor["podMetricsEndpoints"]} <= ports])
    with open("packaging/prometheus/attnd.rules.yml", encoding="utf-8") as file:
        jobs = set(re.findall(r'\bjob="([^"]*)"', file.read()))
    expect("and gives them the job that the alerts name", jobs, {labels.get(monitor.get("jobLabel"))})
    text = one(all_objects, "ConfigMap")["data"]["attnd.jsonc"]
    threads = re.search(r'"threads": (\d+)', text)
    if '"cuda"' not in text:
        expect("as many threads as processors are requested", container["resources"]["requests"]["cpu"], threads and threads.group(1))
    seconds = sum(int(re.search(rf'"{key}": (\d+)', text).group(1)) for key in ("lame_duck_s", "deadline_s", "save_deadline_s"))
    expect("there is time for the drain", True, pod["spec"]["terminationGracePeriodSeconds"] >= seconds + 10)
    expect("the policy is of the pods, and of ports that are there", [True, True],
           [policy["podSelector"]["matchLabels"].items() <= labels.items(), {p["port"] for rule in policy["ingress"] for p in rule["ports"]} == ports])
    return nodes


def check_gpu(all_objects):
    pod = one(all_objects, "StatefulSet")["spec"]["template"]["spec"]
    container = pod["containers"][0]
    expect("a GPU for each", 1, container["resources"]["limits"]["nvidia.com/gpu"])
    expect("on nodes that have one, whatever keeps others away", [{"nvidia.com/gpu.present": "true"}, "nvidia.com/gpu"], [pod["nodeSelector"], pod["tolerations"][0]["key"]])
    expect("both of its containers have the image for GPUs", {"attnd:0.1.0-gpu"}, images(all_objects))
    text = one(all_objects, "ConfigMap")["data"]["attnd.jsonc"]
    pool = float(re.search(r'"memory": ([0-9.]+)', text).group(1)) * GPU_BYTES_MOST
    storage = one(all_objects, "StatefulSet")["spec"]["volumeClaimTemplates"][0]["spec"]["resources"]["requests"]["storage"]
    expect("a full pool of the largest GPU has room in the volume", True, bytes_of(storage) >= pool * 1.25)
    expect("and is saved in the time for that", True, int(re.search(r'"save_deadline_s": (\d+)', text).group(1)) >= pool / VOLUME_BYTES_PER_S)
    probe = container["startupProbe"]
    expect("and restored, twice as slow, before it counts as hanging", True, probe["periodSeconds"] * probe["failureThreshold"] >= 2 * pool / VOLUME_BYTES_PER_S + 60)
    # The image asks for all, and a runtime that goes by the variable gives them also to what has no GPU of the device plugin.
    seen = {c["name"]: [e.get("value") for e in c.get("env", []) if e["name"] == "NVIDIA_VISIBLE_DEVICES"] for c in pod["initContainers"] + pod["containers"]}
    expect("the init container gets none, and the daemon what the device plugin says", {"state": ["void"], "attnd": []}, seen)
    expect("what is not of the GPU stays", [["ALL"], 6], [container["securityContext"]["capabilities"]["drop"], len(container["volumeMounts"])])


def main():
    action, folder, arguments = sys.argv[1], sys.argv[2], sys.argv[3:]
    out = arguments.pop(0) if action in ("split", "same") else None
    if action == "routes":
        check_routes(loaded(folder), int(arguments[0]), 1000)
        sys.exit(failed)
    all_objects = objects(folder, arguments) if action != "images" else []
    if action == "split":
        for o in all_objects:
            if o["apiVersion"].partition("/")[0] not in ("gateway.networking.k8s.io", "monitoring.coreos.com"): # these have schemas of their own
                with open(f"{out}/core-{o['kind']}-{o['metadata']['name']}.yaml", "w", encoding="utf-8") as file:
                    yaml.safe_dump(o, file)
    elif action == "configuration":
        print(one(all_objects, "ConfigMap")["data"]["attnd.jsonc"])
    elif action == "render":
        yaml.safe_dump_all(all_objects, sys.stdout)
    elif action == "images":
        print(*sorted(images(rendered(folder))))
    elif action == "memory":
        print(bytes_of(one(all_objects, "StatefulSet")["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"]))
    elif action == "same":
        check_same(folder, out, arguments)
    else:
        check_routes(all_objects, check_set(all_objects))
        if "gpu" in arguments:
            check_gpu(all_objects)
    sys.exit(failed)


main()
