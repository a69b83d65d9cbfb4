#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""NFS, in a virtual machine with the kernel's server and clients of it.

A mount is exported: what programs write by NFS and in the mount, and what soft:0 stores, is seen by all of them, names and handles too,
also when the server's kernel has forgotten them (tool_export.c). The data directory of two mounts is on NFS, each with a client of its own,
with -o shared (tool_shared.c). And so is that of two nodes: what rdma.py has of two nodes is run over that (tool_nodes.c), by the local
carrier, and one is killed (tool_survive.c).

Ends with one line `N passed, N failed, N skipped`; skipped, with the reason, where no virtual machine can be had.
"""
import os
import re
import sys
import time

import image
import machine
import rdma_nodes

PACKAGES = ("nfs-kernel-server", "nfs-common", "libtirpc3", "libwrap0", "libevent-core-2.1-7", "libnfsidmap1", "keyutils")
MODULES = ("nfsd", "nfsv4", "veth")
LIMIT_S = 300
EXPORT = ("bytes by turns", "bytes of shared pages", "names", "handles of what was forgotten", "locks", "the mount that was exported unmounts", "shared",
          "a file that is replaced at the server", "a file is claimed", "a file that a machine had which is gone")


NODES = tuple(f"{name}, home {home}" for home in "ab" for name in rdma_nodes.PAIRS) + (
    "all is well, node a unmounts", "all is well, node b unmounts", "b is killed", "b is killed, node a unmounts")
PEERS = "peers=a@local:node_a/b@local:node_b"


def packages():
    """Programs of Debian's packages, unpacked and not installed; where their libraries are is in the environment from then on."""
    folders = {name: image.unpack(name) for name in PACKAGES}
    found = [os.path.join(folder, where, "x86_64-linux-gnu") for folder in folders.values() for where in ("lib", "usr/lib")]
    os.environ["LD_LIBRARY_PATH"] = ":".join([*found, os.environ.get("LD_LIBRARY_PATH", "")]).rstrip(":")
    server = os.path.join(folders["nfs-kernel-server"], "usr", "sbin")
    return {f"/sbin/{name}": os.path.join(server, name) for name in ("rpc.mountd", "rpc.nfsd", "exportfs")} | {
        "/usr/sbin/ip": "/usr/sbin/ip", "/sbin/mke2fs": "/sbin/mke2fs"}


def shell(name):
    with open(os.path.join(image.HERE, name)) as file:
        return file.read()


def mount_node(node):
    return [f"mkdir -p /tmp/{node}", f"mount.gaiafs /net/{node}/data /tmp/{node} -f -o node={node},{PEERS},device_cache=1M,unit=4K,peer_timeout=3 "
            f">/tmp/{node}.log 2>&1 & pid_{node}=$!"]


def script(seed):
    """The end of each part is said: a test that said nothing has failed."""
    nodes = [*mount_node("a"), *mount_node("b"),
             "for n in $(seq 100); do grep -q ' /tmp/a ' /proc/mounts && grep -q ' /tmp/b ' /proc/mounts && break; sleep 0.1; done"]
    return "\n".join([
        shell("nfs.sh"), shell("rdma_nodes.sh"), "nfs_serve", f"nodes_limit_ms={rdma_nodes.LIMIT_MS} nodes_data=/net/a/data",
        # A mount is exported.
        "mkdir -p /tmp/data /net/here", "mount.gaiafs /tmp/data /srv/mnt -o device_cache=1M", "exportfs -a", "nfs_client client 1",
        f"limited 100 tool_export /srv/mnt /net/client/mnt {seed}",
        "umount /net/client", "nfs_unserve /srv/mnt && echo 'nfs test the mount that was exported unmounts: ok'",
        # The data directory is on NFS.
        "exportfs -a", "nfs_client a 2", "nfs_client b 3",
        *[f"mkdir -p /tmp/{node}; mount.gaiafs /net/{node}/data /tmp/{node} -o shared" for node in "ab"],
        f"limited 60 tool_shared turns /tmp/a /tmp/b /net/a/data {seed}", "umount /tmp/a; umount /tmp/b",
        "nfs_client late 4 ,actimeo=1", "mkdir -p /tmp/late; mount.gaiafs /net/late/data /tmp/late -o shared", "nfs_replaced /tmp/late",
        "umount /tmp/late",
        *nodes, f"limited 120 tool_nodes check /tmp/a /tmp/b /net/a/data {seed} /net/b/data",
        "node_umount b 'all is well'", "node_umount a 'all is well'",
        *nodes, # Of b's machine nothing is heard any more, neither here nor by the server; what b has locked is free when its lease is over.
             "name=$(tool_nodes name /net/a/data b claimed)", "echo some >/net/a/data/$name",
             "tool_shared map /tmp/b/$name 5 60 'a file is claimed' & holder=$!", "sleep 2",
             "kill -STOP $pid_b", "$ip link set vb down",
             "limited 100 tool_shared map /tmp/a/$name 60 0 'a file that a machine had which is gone'",
             "$ip link set vb up", "kill -9 $pid_b $holder", "wait $pid_b; umount -l /tmp/b", "node_umount a 'b is killed'",
        *nodes, "survive a 'b is killed' kill -9 $pid_b", "wait $pid_b; umount -l /tmp/b", "node_umount a 'b is killed'", "true"])


def judge(lines, what, names):
    """(passed, failed) of one kind of tests."""
    said = {}
    for line in lines:
        match = re.match(rf"{what} test (.*?): (ok|failed)", line)
        if match and said.get(match[1], "ok") == "ok":
            said[match[1]] = match[2]
    missing = [name for name in names if name not in said]
    for name in missing:
        print(f"{what} test {name}: nothing was said")
    failed = sum(result != "ok" for result in said.values())
    return len(said) - failed, failed + len(missing)


def run():
    programs, files = packages(), {}
    tree, more = image.tree()
    programs |= tree | {f"/bin/{name}": os.path.join(image.TOP, "build", "gcc", "tests", "vm", name) for name in ("tool_export", "tool_nodes", "tool_shared", "tool_survive")}
    files |= more
    kernel, initramfs = image.build(programs, files, MODULES)
    seed = os.environ.get("GAIA_TEST_SEED") or int(time.time())
    with machine.Machine(kernel, initramfs, script(seed), limit_s=LIMIT_S) as guest:
        try:
            guest.wait()
            problem = None
        except AssertionError as error:
            problem = error
        lines = list(guest.lines)
    export, nodes = judge(lines, "nfs", EXPORT), judge(lines, "node", NODES)
    passed, failed = export[0] + nodes[0], export[1] + nodes[1] + (problem is not None)
    if failed or any(line.startswith("failed: ") for line in lines):
        print("\n".join(lines))
        failed = failed or 1
    else:
        print("\n".join(line for line in lines if re.match(r"(nfs|node) test |seed ", line)))
    return passed, failed, 0


def main():
    try:
        machine.check()
        passed, failed, skipped = run()
    except image.Unavailable as problem:
        print(f"skipped: no virtual machine here: {problem}")
        passed, failed, skipped = 0, 0, 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
