# SPDX-License-Identifier: Apache-2.0
"""Several nodes in the machine of rdma.py: node a on one device, node b on the other, one data directory (tool_nodes.c, tool_survive.c, and
rdma_nodes.sh). What the machine prints of each test is a line "node test NAME: ok" or "...: failed: why"."""
import json
import os
import re
import shutil
import statistics

import image

# As long as a call of a survivor may take, and a third more for an emulator on a busy machine. peer_timeout is 3 s.
LIMIT_MS = 12000
MOUNT = "device_cache=1M,peer_timeout=3"
PROGRAMS = ("tool_nodes", "tool_survive")
LITTLE = "registering .* bytes: RLIMIT_MEMLOCK allows 1048576 bytes"
# The slots of two sessions (io/call_internal.h), and nothing for their links.
SLOTS = 2 * 32 * 256 * 1024
PAIRS = ("CPU of a to soft:0 of b", "CPU of b to soft:0 of a", "soft:0 of a to CPU of b", "soft:0 of b to CPU of a",
         "soft:0 of a and of b", "bytes of one page, devices and write()", "bytes of one page, CPUs", "more than the agent's device holds")
# tests/run.sh has no time for all with home b, which is as home a with the nodes changed about: make check-long.
GATE = bool(os.environ.get("GAIA_GATE"))
NAMES = ([f"{name}, home {home}" for home in "ab" for name in PAIRS if home == "a" or not GATE or name == PAIRS[-1]] + ["an acquire is one round trip, home a"] +
         [f"{what}, node {node} unmounts" for what in ("all is well", "b is stopped", "the wire is silent", "the queue pairs are in error", "the device goes")
          for node in "ab"] +
         ["b is killed", "b is killed, node a unmounts", "b is stopped", "b was stopped, and the nodes meet again",
          "the wire is silent", "the wire was silent, and the nodes meet again", "the queue pairs are in error",
          "the device goes", "the device was away, and the nodes meet again",
          "the port is taken", "no device has the address", "the port is not up", "little memory to lock", "memory to lock for no links",
          "a GPU of b's has bytes of a", "a GPU of b's gets them by way of the host", "a GPU is there, node a unmounts", "a GPU is there, node b unmounts",
          "the devices of both nodes were those of the other's files"])


# Pages that are stored to are written back at once, and not only where somebody waits for it (before Linux 6.16 by copies, which
# come when they come).
FLUSHER_AT_WORK = ["cd /proc/sys/vm", "echo 1 >dirty_writeback_centisecs", "echo 1 >dirty_expire_centisecs",
                   "echo 4096 >dirty_background_bytes", "cd /"]


def programs():
    """What the machine needs for this, and what shows stacks there (elfutils), if it is here."""
    shows = shutil.which("eu-stack")
    return {**({"/bin/eu-stack": shows} if shows else {}),
            **{f"/bin/{name}": os.path.join(image.TOP, "build", "gcc", "tests", "vm", name) for name in PROGRAMS}}


def shell():
    with open(os.path.join(image.HERE, "rdma_nodes.sh")) as file:
        return file.read()


# What Soft-iWARP is not asked for: its kernel half waits as long as TCP does for a connection that nobody answers, and so does
# whoever asked for it. The others come after that.
WIRE = ("the wire", "the queue pairs are in error", "the device", "the port is not up")


def names(kind):
    return [name for name in NAMES if kind == "rxe" or not name.startswith(WIRE)]


def script(seed, kind):
    lines = [
        shell(), *(["export GAIA_GATE=1"] if GATE else []), f"nodes_limit_ms={LIMIT_MS} seed={seed}", "mkdir -p /tmp/data /tmp/other",
        "echo nodes began $(cut -d' ' -f1 /proc/uptime)",
        f"node_mount a {MOUNT},unit=4K", f"node_mount b {MOUNT},unit=4K",
        *FLUSHER_AT_WORK,
        f"limited 400 tool_nodes check /tmp/a /tmp/b /tmp/data {seed}",
        "echo node stat a: $(gaiactl stat --json /tmp/a)", "echo node stat b: $(gaiactl stat --json /tmp/b)",
        "node_umount b 'all is well'",
        # a is still there.
        "refused 'the port is taken' '10.0.0.1:7500: Address already in use' mount.gaiafs /tmp/other /mnt -f -o node=a,$nodes_peers",
        "node_umount a 'all is well'",
        "refused 'no device has the address' 'no RDMA device has the address 192.0.2.1:7500' "
        "mount.gaiafs /tmp/other /mnt -f -o node=a,peers=a@192.0.2.1:7500/b@10.0.1.1:7500",
        f"refused 'little memory to lock' '{LITTLE}' tool_survive little 1048576 mount.gaiafs /tmp/other /mnt -f -o node=a,$nodes_peers",
        f"refused 'memory to lock for no links' 'RLIMIT_MEMLOCK allows {SLOTS} bytes' "
        f"tool_survive little {SLOTS} mount.gaiafs /tmp/other /mnt -f -o node=a,$nodes_peers",
        # A stand-in (tests/cuda) whose memory an RDMA device can register by its address: rdma.py.
        "export LD_LIBRARY_PATH=/cuda GAIA_DEVICE=cuda:0", "node_mount a peer_timeout=10", "node_mount b peer_timeout=10",
        "limited 120 tool_touch /tmp/b /tmp/data $seed 100 $(tool_nodes name /tmp/data a touched) && echo node gpu: $(gaiactl stat --json /tmp/b)",
        "node_umount b 'a GPU is there'",
        # And one where what is written goes nowhere.
        "STANDIN_CUDA=opaque=2 node_mount b peer_timeout=10",
        "limited 120 tool_touch /tmp/b /tmp/data $seed 50 $(tool_nodes name /tmp/data a lost) && echo node lost: $(gaiactl stat --json /tmp/b)",
        "umount /tmp/b",
        "node_umount a 'a GPU is there'", "unset LD_LIBRARY_PATH GAIA_DEVICE",
        f"node_mount a {MOUNT}", f"node_mount b {MOUNT}",
        "survive a 'b is killed' kill -9 $pid_b", "wait $pid_b; umount -l /tmp/b", "node_umount a 'b is killed'",
        f"node_mount a {MOUNT}", f"node_mount b {MOUNT}",
        "survive a 'b is stopped' kill -STOP $pid_b", "kill -CONT $pid_b",
        "limited 60 tool_nodes acquire /tmp/a /tmp/b /tmp/data 10 && echo 'node test b was stopped, and the nodes meet again: ok'",
        "node_umount a 'b is stopped'", "node_umount b 'b is stopped'"]
    return lines + [*(wire() if kind == "rxe" else ()), "echo nodes ended $(cut -d' ' -f1 /proc/uptime)"]


def wire():
    return [
        f"node_mount a {MOUNT}", f"node_mount b {MOUNT}",
        "survive a 'the wire is silent' wire_silent", "wire_heard", "nodes_met",
        "limited 60 tool_nodes acquire /tmp/a /tmp/b /tmp/data 10 && echo 'node test the wire was silent, and the nodes meet again: ok'",
        "node_umount a 'the wire is silent'", "node_umount b 'the wire is silent'",
        f"node_mount a {MOUNT}", f"node_mount b {MOUNT}", "nodes_met",
        "limited 60 tool_nodes acquire /tmp/a /tmp/b /tmp/data 10", "device_away 'the device goes'", "device_back", "nodes_met",
        "limited 60 tool_nodes acquire /tmp/a /tmp/b /tmp/data 10 && echo 'node test the device was away, and the nodes meet again: ok'",
        "node_umount a 'the device goes'", "node_umount b 'the device goes'",
        # Long before peer_timeout the device gives up: what ends the link is the queue pair's error. A side whose messages have all
        # arrived, and that only waits for answers, finds out by its next keepalive: a quarter of peer_timeout later at most.
        "node_mount a device_cache=1M,peer_timeout=24", "node_mount b device_cache=1M,peer_timeout=24", "nodes_limit_ms=18000",
        # Where one request waits for its acknowledgement and the next one fails, rxe of Linux 6.1 completes neither, nor any later one,
        # and says that the queue pair is ready: only peer_timeout ends such a link. So nothing is under way when the addresses go.
        "nodes_still=still", "survive a 'the queue pairs are in error' addresses_away", "nodes_still=", "addresses_back",
        # One may take the other for alive until peer_timeout, and ask it to collect what its devices have; and wait a minute for who
        # writes back (cache/leave.c).
        "nodes_ends_tenths=1000", "node_umount a 'the queue pairs are in error'", "node_umount b 'the queue pairs are in error'",
        # The last: what a link that goes down leaves of rxe is not to be relied on.
        "port_down", "refused 'the port is not up' 'port 1 of rxe0 is not up: ' mount.gaiafs /tmp/other /mnt -f -o node=a,$nodes_peers",
    ]


def far_devices(text):
    """Each node was home of files that the other's device had, with more of them than it holds."""
    for node in "ab":
        said = re.search(rf"^node stat {node}: (\{{.*\}})$", text, re.M)
        if not said:
            return f"no counters of {node}"
        far = [device for device in json.loads(said[1])["devices"] if device["device"].startswith("node:")]
        if not far or not far[0]["bytes_in"] or not far[0]["evictions"] or not far[0]["bytes_out"]:
            return f"{node}: {far}"
    return ""


def gpu_of_an_agent(text, name):
    """All bytes that it had were its home's, and came by reads straight into its memory; or all were copied."""
    said = re.search(rf"^node {name}: (\{{.*\}})$", text, re.M)
    stat = json.loads(said[1]) if said else {"nodes": {}, "devices": [{}]}
    nodes, found = stat["nodes"], stat["devices"][-1].get("gpudirect_nodes")
    placed, copied = nodes.get("pages_placed", 0), nodes.get("pages_placed_by_copy", 0)
    good = (placed >= 1500 and not copied and found == "proven") if name == "gpu" else (copied >= 1500 and not placed and found == "unreachable")
    return "ok" if good else f"failed: {nodes or 'nothing was touched'}, {found}"


def judge(lines, kind="rxe"):
    """(passed, failed) and prints what failed. A test that said nothing has failed."""
    text = "\n".join(lines)
    why = far_devices(text)
    lines = lines + ["node test " + NAMES[-1] + (f": failed: {why}" if why else ": ok")]
    lines.append(f"node test a GPU of b's has bytes of a: {gpu_of_an_agent(text, 'gpu')}")
    lines.append(f"node test a GPU of b's gets them by way of the host: {gpu_of_an_agent(text, 'lost')}")
    said = {}
    for line in lines:
        match = re.match(r"node test (.*?): (ok|failed)(.*)", line)
        if match and said.get(match[1], "ok") == "ok":
            said[match[1]] = match[2]
    missing = [name for name in names(kind) if name not in said]
    failed = [name for name, result in said.items() if result != "ok"]
    for name in missing:
        print(f"node test {name}: nothing was said")
    for line in lines:
        if re.match(r"node test .*: failed|node test .* unmounts: |stack |log |nodes (began|ended)|more than the device|an acquire of|seed |  .*, the longest ", line):
            print(line)
    return len(said) - len(failed), len(failed) + len(missing)


# --- bench ----------------------------------------------------------------------------------------------------------

def bench_script(table, turns, here, there):
    """Faults on b's soft:0 of a file whose home is a, as rdma.py's: in each turn theirs, ours, ours, theirs. Then acquires with
    nothing changed, between round trips of one message over the same transport."""
    lines, port = [shell(), "mkdir -p /tmp/data", "name=$(tool_nodes name /tmp/data a streamed)"], 21000
    for _ in range(turns):
        for number, (_, unit, size, threads, program, count) in enumerate(table):
            deep = f"-t {threads}" if program == "ib_read_bw" else ""
            peer = f"{program} -F -x 1 -s {unit} -n {count} {deep}"
            theirs = [f"{peer} -d rxe0 >/tmp/peer 2>&1 &", "perf_pid=$!", "sleep 1",
                      f"echo perftest {number}: $({peer} -d rxe1 {here} 2>&1 | grep '^ {unit} ')", "wait $perf_pid"]
            mounts = [f"node_mount {node} device_cache=64M,unit={unit >> 10}K" for node in "ab"]
            ours = [f"echo pull {number}: $(tool_stream /tmp/b {size} {unit} {threads} $name)"] * 2
            lines += theirs + mounts + ours + ["node_umount b 'all is well'", "node_umount a 'all is well'"] + theirs
        port += 2
        trip = "echo trip: $(tool_pull rdma {}:0 {}:{} 0 500 1 1 0 | grep messages)"
        lines += [trip.format(there, here, port), *[f"node_mount {node} device_cache=64M" for node in "ab"],
                  *["echo acquire: $(tool_nodes acquire /tmp/a /tmp/b /tmp/data 300)"] * 2,
                  "node_umount b 'all is well'", "node_umount a 'all is well'", trip.format(there, here, port + 1)]
    return "\n".join(lines)


def acquire_rows(lines, turns):
    """One row: an acquire against one round trip of a message. What a kernel before 6.16 needs besides (a close(), of at most a
    round trip) is measured by itself and taken off."""
    text = "\n".join(lines)
    trips = [json.loads(said)["us_each"] for said in re.findall(r"^trip: (\{.*\})$", text, re.M)]
    acquires = [json.loads(said) for said in re.findall(r"^acquire: (\{.*\})$", text, re.M)]
    if len(trips) != 2 * turns or len(acquires) != 2 * turns:
        print(text)
        print(f"{len(trips)} round trips and {len(acquires)} acquires of {2 * turns}")
        return []
    ours = [statistics.mean(a["p50_us"] - a["late_us"] for a in acquires[i:i + 2]) for i in range(0, 2 * turns, 2)]
    theirs = [statistics.mean(trips[i:i + 2]) for i in range(0, 2 * turns, 2)]
    last, mine, base = acquires[-1], statistics.median(ours), statistics.median(theirs)
    row = {"measured": "RDMA (Soft-RoCE in qemu), nodes, an acquire of 48 pages on an agent, nothing changed", "value": f"{mine:.1f} us",
           "baseline": f"one message there and back {base:.1f} us", "ratio": round(mine / base, 2), "goal": "one round trip, no page",
           "met": last["there"] - last["late_there"] < 1.3 and last["bytes"] < 4096,
           "with_late_write_backs": f"{statistics.median(a['p50_us'] for a in acquires):.1f} us", "messages_there": last["there"],
           "messages_back": last["back"], "messages_of_late_write_backs": last["late_there"], "bytes_on_the_wire": last["bytes"],
           "ours": ours, "theirs": theirs}
    print(f"nodes, an acquire with nothing changed: {row['value']} ({row['with_late_write_backs']} with what kernels before 6.16 need), "
          f"{row['baseline']}, ratio {row['ratio']}; {last['there'] - last['late_there']:.2f} messages there, {last['bytes']} bytes in all")
    return [row]
