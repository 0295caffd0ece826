#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""as_unit.py [--net] [--no-mounts] [--syscalls FILE] UNIT ROOT [ARG...] - run ExecStart of a unit, and ARG..., as systemd would, where systemd does not run.

Its restrictions are rebuilt from the unit's own lines, in namespaces of this process: user, groups and no capabilities; a
root that is read-only but for the unit's folders; /tmp of its own; of /dev what DeviceAllow says; limits; the filter of system
calls, address families, namespaces and real-time policies (libseccomp). Directives that this does not know end it, so that none is
forgotten. Wants root. ROOT is a chroot, or /.

  --net            a network of its own, with lo
  --no-mounts      where not even root may mount: everything else
  --syscalls FILE  what `systemd-analyze syscall-filter` has said, for machines without it
"""
import argparse
import ctypes
import errno
import glob
import grp
import os
import pwd
import resource
import shlex
import socket
import struct
import subprocess
import sys
import tempfile

libc = ctypes.CDLL(None, use_errno=True)
NEWNS, NEWIPC, NEWNET = 0x00020000, 0x08000000, 0x40000000
NAMESPACES = 0x7E020080  # every CLONE_NEW...
RDONLY, NOSUID, NODEV, REMOUNT, BIND, REC, PRIVATE = 1, 2, 4, 32, 4096, 16384, 1 << 18
ALLOW, EQ, MASKED_EQ = 0x7FFF0000, 4, 7
PR_CAPBSET_DROP, PR_SET_NO_NEW_PRIVS = 24, 38

# Lines that need no work here: who restarts, watches and stops is the test; the others restrict what is not reachable any more,
# or what a process without capabilities may not do.
KNOWN = set("""Type NotifyAccess ExecStart ExecReload WatchdogSec Restart RestartSec RestartPreventExitStatus TimeoutStopSec User Group
    SupplementaryGroups RuntimeDirectory CacheDirectory CacheDirectoryMode StateDirectory StateDirectoryMode ConfigurationDirectory Environment LimitNOFILE
    LimitMEMLOCK UMask DevicePolicy DeviceAllow NoNewPrivileges CapabilityBoundingSet AmbientCapabilities ProtectSystem ProtectHome PrivateTmp PrivateIPC
    ProtectProc ProtectClock ProtectHostname ProtectKernelLogs ProtectKernelModules ProtectKernelTunables ProtectControlGroups LockPersonality
    RestrictNamespaces RestrictRealtime RestrictSUIDSGID RemoveIPC KeyringMode RestrictAddressFamilies SystemCallArchitectures SystemCallFilter
    SystemCallErrorNumber MemoryDenyWriteExecute""".split())


def check(rc, what):
    if rc != 0:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


def mount(source, target, kind=None, flags=0, data=None):
    as_bytes = [x.encode() if x else None for x in (source, target, kind, data)]
    check(libc.mount(as_bytes[0], as_bytes[1], as_bytes[2], ctypes.c_ulong(flags), as_bytes[3]), f"mount {target}")


def read_unit(path):
    lines, section = {}, None
    for line in open(path):
        line = line.strip()
        if line.startswith("["):
            section = line
        elif section == "[Service]" and line and line[0] not in "#;":
            name, value = line.split("=", 1)
            if name not in KNOWN:
                sys.exit(f"as_unit.py: {name}= is not known here: teach it")
            lines.setdefault(name, []).append(value)
    return lines


def last(unit, name, default=""):
    return unit.get(name, [default])[-1]


def in_root(root, function):
    """What a child says that has `root` as its root: names of users there are not ours."""
    read, write = os.pipe()
    if os.fork() == 0:
        os.chroot(root)
        os.write(write, repr(function()).encode())
        os._exit(0)
    os.close(write)
    os.wait()
    with os.fdopen(read) as answer:
        return eval(answer.read())  # pylint: disable=eval-used # what the line above has written


def make_folder(root, path, mode, uid, gid, bound=True):
    os.makedirs(root + path, exist_ok=True)
    os.chmod(root + path, mode)
    os.chown(root + path, uid, gid)
    if not bound:
        return
    mount(root + path, root + path, flags=BIND)  # writable, whatever becomes of what it lies in


def make_dev(root, unit):
    dev = tempfile.mkdtemp()
    mount("tmpfs", dev, "tmpfs", NOSUID, "mode=0755")
    nodes = ["/dev/" + name for name in ("null", "zero", "full", "random", "urandom", "tty")]  # DevicePolicy=closed
    for allowed in unit.get("DeviceAllow", []):
        kind = allowed.split()[0]
        nodes += glob.glob("/dev/" + kind[5:]) + glob.glob(f"/dev/{kind[5:].rstrip('*')}-caps/*") if kind.startswith("char-") else [kind]
    for node in sorted(set(nodes)):
        if not os.path.exists(node) or os.path.isdir(node):
            continue
        os.makedirs(os.path.dirname(dev + node[4:]), exist_ok=True)
        open(dev + node[4:], "w").close()
        mount(node, dev + node[4:], flags=BIND)
    for name in ("shm",):
        os.mkdir(f"{dev}/{name}")
        mount("tmpfs", f"{dev}/{name}", "tmpfs", NOSUID | NODEV, "mode=1777")
    os.symlink("/proc/self/fd", dev + "/fd")
    os.makedirs(root + "/dev", exist_ok=True)
    mount(dev, root + "/dev", flags=BIND | REC)


def make_root(unit, root, uid, gid):
    """The root that the unit sees, in mounts of our own."""
    at = tempfile.mkdtemp()
    mount("none", "/", flags=REC | PRIVATE)
    mount(root, at, flags=BIND | REC)
    below = sorted(line.split()[4] for line in open("/proc/self/mountinfo") if line.split()[4].startswith(at + "/"))
    for name, base in (("RuntimeDirectory", "/run/"), ("CacheDirectory", "/var/cache/"), ("StateDirectory", "/var/lib/")):
        for folder in last(unit, name).split():
            make_folder(at, base + folder, int(last(unit, name + "Mode", "0755"), 8), uid, gid)
    for path in [at] + below:  # ProtectSystem=strict
        try:
            mount("none", path, flags=REMOUNT | BIND | RDONLY)
        except OSError:
            if path == at:
                raise
    for path in ("/tmp", "/var/tmp"):
        mount("tmpfs", at + path, "tmpfs", NOSUID | NODEV, "mode=1777")
    for path in ("/home", "/root", "/run/user", "/usr/lib/modules"):
        if os.path.isdir(at + path):
            mount("tmpfs", at + path, "tmpfs", NOSUID | NODEV | RDONLY, "mode=0000")
    make_dev(at, unit)
    os.makedirs(at + "/proc", exist_ok=True)
    mount("proc", at + "/proc", "proc", NOSUID | NODEV, "hidepid=invisible")
    for path in ("/proc/sys", "/proc/irq", "/proc/bus"):
        if os.path.isdir(at + path):
            mount(at + path, at + path, flags=BIND)
            mount("none", at + path, flags=REMOUNT | BIND | RDONLY)
    if os.path.isdir(at + "/sys"):
        mount("/sys", at + "/sys", flags=BIND)
        mount("none", at + "/sys", flags=REMOUNT | BIND | RDONLY)
    return at


def system_calls(group, text):
    """Names in a group such as @system-service, which has groups in it."""
    names, inside = [], False
    for line in text.splitlines():
        if line and not line.startswith(" "):
            inside = line.strip() == group
        elif inside and line.strip() and not line.strip().startswith("#"):
            name = line.strip()
            names += system_calls(name, text) if name.startswith("@") else [name]
    return names


class Compare(ctypes.Structure):
    _fields_ = [("arg", ctypes.c_uint), ("op", ctypes.c_int), ("a", ctypes.c_uint64), ("b", ctypes.c_uint64)]


# Memory is never writable and executable, nor made executable.
NO_WRITABLE_CODE = {"mmap": [Compare(2, MASKED_EQ, 6, value) for value in (0, 2, 4)], "mprotect": [Compare(2, MASKED_EQ, 4, 0)],
                    "pkey_mprotect": [Compare(2, MASKED_EQ, 4, 0)], "shmat": [Compare(2, MASKED_EQ, 0o100000, 0)]}


def make_filter(unit, text):
    seccomp = ctypes.CDLL("libseccomp.so.2", use_errno=True)
    seccomp.seccomp_init.restype = ctypes.c_void_p
    denied = 0x00050000 | getattr(errno, last(unit, "SystemCallErrorNumber", "EPERM"))
    context = ctypes.c_void_p(seccomp.seccomp_init(denied))
    names = set()
    for word in " ".join(unit["SystemCallFilter"]).split():
        if word.startswith("~"):
            names -= set(system_calls(word[1:], text)) or {word[1:]}
        else:
            names |= set(system_calls(word, text)) or {word}
    if len(names) < 100:
        sys.exit(f"as_unit.py: {len(names)} system calls in {unit['SystemCallFilter']}")
    rules = {"socket": [Compare(0, EQ, getattr(socket, family), 0) for family in last(unit, "RestrictAddressFamilies").split()],
             "clone": [Compare(0, MASKED_EQ, NAMESPACES, 0)],
             "sched_setscheduler": [Compare(1, EQ, policy, 0) for policy in (0, 3, 5)],
             **(NO_WRITABLE_CODE if last(unit, "MemoryDenyWriteExecute") == "yes" else {}),
             "personality": [Compare(0, EQ, value, 0) for value in (0, 0xFFFFFFFF)]}
    names -= {"unshare", "setns", "clone3"}

    def add(action, number, compare=None):
        array = (Compare * 1)(compare) if compare else None
        rc = seccomp.seccomp_rule_add_array(context, ctypes.c_uint32(action), number, 1 if compare else 0, array)
        if rc not in (0, -errno.EEXIST):
            raise OSError(-rc, "seccomp_rule_add")

    for name in sorted(names):
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        for compare in rules.get(name, [None]):
            if number >= 0:
                add(ALLOW, number, compare)
    add(0x00050000 | errno.ENOSYS, seccomp.seccomp_syscall_resolve_name(b"clone3"))  # as systemd has it: callers use clone then
    return lambda: seccomp.seccomp_load(context)


def bring_up_loopback():
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        libc.ioctl(s.fileno(), 0x8914, struct.pack("16sh22x", b"lo", 1 | 64))


def enter(unit, o, uid, gid):
    """Namespaces of our own; the root in them."""
    check(libc.unshare(NEWNS | (NEWIPC if last(unit, "PrivateIPC") == "yes" else 0) | (NEWNET if o.net else 0)), "unshare")
    if o.net:
        bring_up_loopback()
    return make_root(unit, o.root.rstrip("/") or "/", uid, gid)


def set_limit(unit, name, which):
    value = last(unit, name)
    if value:
        number = resource.RLIM_INFINITY if value == "infinity" else int(value)
        try:
            resource.setrlimit(which, (number, number))
        except ValueError:
            print(f"as_unit.py: {name} stays as it is: this machine allows no more", file=sys.stderr)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--net", action="store_true")
    parser.add_argument("--no-mounts", action="store_true")
    parser.add_argument("--syscalls")
    parser.add_argument("unit")
    parser.add_argument("root")
    parser.add_argument("args", nargs=argparse.REMAINDER)
    o = parser.parse_args()
    unit = read_unit(o.unit)
    text = open(o.syscalls).read() if o.syscalls else subprocess.run(
        ["systemd-analyze", "syscall-filter", "--no-pager"], capture_output=True, text=True, check=True).stdout
    load_filter = make_filter(unit, text)
    user = last(unit, "User")
    uid, gid = in_root(o.root, lambda: (pwd.getpwnam(user).pw_uid, grp.getgrnam(last(unit, "Group")).gr_gid))
    groups = in_root(o.root, lambda: [grp.getgrnam(name).gr_gid for name in last(unit, "SupplementaryGroups").split()])
    if o.no_mounts:
        for name, base in (("RuntimeDirectory", "/run/"), ("CacheDirectory", "/var/cache/"), ("StateDirectory", "/var/lib/")):
            for folder in last(unit, name).split():
                make_folder("", base + folder, int(last(unit, name + "Mode", "0755"), 8), uid, gid, bound=False)
        at = "/"
    else:
        at = enter(unit, o, uid, gid)
    os.chroot(at)
    os.chdir("/")
    set_limit(unit, "LimitNOFILE", resource.RLIMIT_NOFILE)
    set_limit(unit, "LimitMEMLOCK", resource.RLIMIT_MEMLOCK)
    os.umask(int(last(unit, "UMask", "0022"), 8))
    for capability in range(64):
        if libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0) != 0:
            break
    os.setgroups(groups)
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)
    environment = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin", "HOME": "/var/lib/attnd", "USER": user, "LOGNAME": user}
    environment.update(pair.split("=", 1) for line in unit.get("Environment", []) for pair in shlex.split(line))
    environment.update((name, os.environ[name]) for name in ("NOTIFY_SOCKET", "LD_LIBRARY_PATH") if name in os.environ)
    check(libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs")
    command = shlex.split(last(unit, "ExecStart")) + o.args
    if load_filter() != 0:
        sys.exit("as_unit.py: the filter of system calls was refused")
    os.execve(command[0], command, environment)


main()
