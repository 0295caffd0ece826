#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# in_group.sh MIB COMMAND...: run a command in a control group of its own, "attnd", that has MIB of memory (and no swap); root only.
# What it took at most is read there afterwards (memory.max_usage_in_bytes, memory.peak), and how often the limit was met.
set -eu

most=$(($1 << 20))
shift
if [[ -e /sys/fs/cgroup/cgroup.controllers ]]; then
    group=/sys/fs/cgroup/attnd
    mkdir -p $group
    echo "$most" >$group/memory.max
    echo 0 >$group/memory.swap.max 2>/dev/null || true
else # version 1 counts the buffers of sockets apart, and only where they have a limit
    group=/sys/fs/cgroup/memory/attnd
    mkdir -p $group
    echo "$most" >$group/memory.limit_in_bytes
    echo "$most" >$group/memory.kmem.tcp.limit_in_bytes
    echo 0 >$group/memory.max_usage_in_bytes
    echo 0 >$group/memory.kmem.tcp.max_usage_in_bytes
    echo 0 >$group/memory.failcnt
fi
echo $$ >$group/cgroup.procs
exec "$@"
