#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""pod.py MANIFEST N FOLDER (init|main) - what `podman run` is told for the Nth pod of the StatefulSet, each argument with a NUL behind it.

Each thing that the pod's template says is translated; one that this does not know ends it, so that none is forgotten. Of volumes FOLDER has those that
the kubelet would make, with the owner and mode that it gives them: claim-N, configuration, secrets. With `init`, the start of a pod, what is on its claims is
given to fsGroup, as the kubelet does it."""
import os
import shutil
import sys

import yaml

# What tells a kubelet when to do something, or the scheduler where: the script that calls this plays their part.
ELSEWHERE = {"terminationGracePeriodSeconds", "automountServiceAccountToken", "enableServiceLinks", "securityContext", "initContainers", "containers", "volumes",
             "nodeSelector", "tolerations", "topologySpreadConstraints"}
OF_CONTAINER = {"startupProbe", "livenessProbe", "readinessProbe", "ports", "name", "image", "imagePullPolicy", "command"}


def give_to_group(volume, group, policy):
    """pkg/volume/volume_linux.go: the group may read and write everything, and what is made in a folder is the group's; the root comes last."""
    root = os.stat(volume)
    if policy == "OnRootMismatch" and root.st_gid == group and root.st_mode & 0o2770 == 0o2770:
        return
    for folder, folders, files in os.walk(volume, topdown=False):
        for path in [f"{folder}/{name}" for name in files + folders if os.path.islink(f"{folder}/{name}") or name in files] + [folder]:
            os.chown(path, -1, group, follow_symlinks=False)
            if not os.path.islink(path):
                os.chmod(path, os.stat(path).st_mode & 0o7777 | (0o2770 if path == folder else 0o660))


def known(found, all_known, where):
    unknown = set(found) - set(all_known)
    if unknown:
        sys.exit(f"pod.py: {where}: {', '.join(sorted(unknown))} is not known here")


def main():
    manifest, number, folder, which = sys.argv[1], int(sys.argv[2]), sys.argv[3], sys.argv[4]
    objects = [o for o in yaml.safe_load_all(open(manifest)) if o]
    of_kind = {o["kind"]: o for o in objects if o["metadata"]["name"] == "attnd"}
    template = of_kind["StatefulSet"]["spec"]["template"]
    labels = template["metadata"]["labels"] | {"apps.kubernetes.io/pod-index": str(number)}
    pod = template["spec"]
    known(pod, ELSEWHERE, "pod")
    container = pod["initContainers" if which == "init" else "containers"][0]
    known(container, OF_CONTAINER | {"env", "securityContext", "resources", "volumeMounts"}, which)

    of_pod, own = pod["securityContext"], container["securityContext"]
    known(of_pod, {"runAsNonRoot", "runAsUser", "runAsGroup", "fsGroup", "fsGroupChangePolicy", "seccompProfile"}, "securityContext")
    known(own, {"allowPrivilegeEscalation", "readOnlyRootFilesystem", "capabilities"}, "securityContext")
    assert of_pod["runAsNonRoot"] and of_pod["runAsUser"] > 0 and of_pod["seccompProfile"] == {"type": "RuntimeDefault"}, "as podman does it"
    group = of_pod["fsGroup"]
    arguments = [f"--user={of_pod['runAsUser']}:{of_pod['runAsGroup']}", f"--group-add={group}"]
    if own["readOnlyRootFilesystem"]:
        arguments += ["--read-only", "--read-only-tmpfs=false"]
    if not own["allowPrivilegeEscalation"]:
        arguments.append("--security-opt=no-new-privileges")
    arguments += [f"--cap-drop={c}" for c in own["capabilities"]["drop"]]
    known(container["resources"]["limits"], {"memory", "nvidia.com/gpu"}, "limits") # of GPUs the script's machine has none
    arguments.append("--memory=" + container["resources"]["limits"]["memory"].replace("Gi", "g").replace("Mi", "m"))
    for variable in container.get("env", []):
        if "value" in variable:
            value = variable["value"]
        else:
            path = variable["valueFrom"]["fieldRef"]["fieldPath"]
            value = labels[path.removeprefix("metadata.labels[").strip("']")]
        arguments.append(f"--env={variable['name']}={value}")

    def owned(path, mode):
        os.chown(path, 0, group)
        os.chmod(path, mode)

    volumes = {v["name"]: v for v in pod["volumes"]}
    for mount in container["volumeMounts"]:
        volume = volumes.get(mount["name"], {"claim": mount["name"]})
        at, option = mount["mountPath"], ":ro" if mount.get("readOnly") else ""
        if "configMap" in volume:
            path = f"{folder}/configuration"
            with open(path, "w") as file:
                file.write(of_kind["ConfigMap"]["data"][mount["subPath"]])
            owned(path, 0o644)
        elif "secret" in volume:
            path = f"{folder}/secrets-{number}" # pkg/volume/util/atomic_writer.go: links to a folder that is exchanged
            os.makedirs(f"{path}/..of-today", exist_ok=True)
            shutil.copy(f"{folder}/secret/keys.json", f"{path}/..of-today")
            for link, target in (("..data", "..of-today"), ("keys.json", "..data/keys.json")):
                if not os.path.islink(f"{path}/{link}"):
                    os.symlink(target, f"{path}/{link}")
            owned(f"{path}/keys.json", volume["secret"]["defaultMode"])
            owned(f"{path}/..of-today", 0o2755)
            owned(path, 0o3777)
        elif "emptyDir" in volume and volume["emptyDir"].get("medium") == "Memory":
            limit = volume["emptyDir"]["sizeLimit"].replace("Gi", "g").replace("Mi", "m")
            arguments.append(f"--tmpfs={at}:mode=3777,size={limit}")
            continue
        else:
            path = f"{folder}/{mount['name']}-{number}"
            os.makedirs(path, exist_ok=True)
            if "claim" not in volume:
                owned(path, 0o2777)
            elif which == "init":
                give_to_group(path, group, of_pod.get("fsGroupChangePolicy", "Always"))
        arguments.append(f"--volume={path}:{at}{option}")
    arguments.append(container["image"])
    arguments += container.get("command", [])
    if "command" in container:
        arguments.insert(0, "--entrypoint=")
    print("\0".join(arguments), end="\0")


main()
