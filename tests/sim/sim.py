#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Where the home of a file becomes the bottleneck: a discrete-event simulation of the protocol of docs/design.md, section 8,
for up to a thousand nodes. docs/scaling.md has its results and says what they mean.

Nodes run streams of faults. As it is built, a fault has the home place each piece in the node's frames (FAULT, PLACE and its answer: time on
the processors of both), which the node reads from the home's memory over both NICs. As it was planned, a fault asks the home (FETCH, GRANT:
a message each way, time on one of the home's processors) and then reads the granted units from the frames of the home, or of another holder.
Now and then a stream releases pages that it has stored to, and acquires. Processors and NICs serve one after another, first come first served;
nothing is lost, nothing fails. costs.json has what each step costs: what is measured says with which command.

sim.py [--nodes 1,10,100,1000] [--case NAME] [--answer NAME] [--json FILE]
sim.py --check: the simulation against sums that are known; ends with one line `N passed, N failed, N skipped`.
"""
import argparse
import hashlib
import heapq
import json
import os
import random
import statistics
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
UNIT = 64 << 10
SECOND = 1e6  # times are microseconds

# What nodes do. files: shared by all (None: each stream has one of its own); zipf: how uneven (0: all alike); stores: pages of a unit
# that are stored to; every: batches between two releases, each followed by an acquire.
CASES = {
    "private": {"files": None, "zipf": 0, "stores": 0, "every": 0},
    "one hot file, read": {"files": 1, "zipf": 0, "stores": 0, "every": 0},
    "many files, read": {"files": 1000, "zipf": 1.0, "stores": 0, "every": 0},
    "one file, falsely shared": {"files": 1, "zipf": 0, "stores": 4, "every": 4},
    "many files, shared and stored to": {"files": 1000, "zipf": 1.0, "stores": 4, "every": 4},
}
# What is done about it. ranges: a home for each 64 MiB of a file instead of one for all of it; holders: the home grants from any node that
# has the unit; batch: units of a FETCH, or of a PLACE; built: not by grants, but as it is built, by pieces that cost so much (costs.json).
ANSWERS = {
    "as built, in a row": {"ranges": False, "holders": False, "batch": 4, "built": "stream_256k"},
    "as built, single units": {"ranges": False, "holders": False, "batch": 1, "built": "fault_64k"},
    "a message for each unit": {"ranges": False, "holders": False, "batch": 1},
    "one home": {"ranges": False, "holders": False, "batch": 16},
    "holders serve": {"ranges": False, "holders": True, "batch": 16},
    "homes of ranges": {"ranges": True, "holders": False, "batch": 16},
    "both": {"ranges": True, "holders": True, "batch": 16},
}
BUILT_MESSAGES = 25 / 8  # of a piece: FAULT, PLACE, its answer, and that eight FAULTs were served
BUILT_STORES = ("first_store_page", "release_page", "collect_page", "acquire_stale_page")
BUILT_RUN_MESSAGES = 10  # of pages stored to: FETCH of twins, PROTECT, FETCH, DIGESTS, DROP
RANGES = 256  # of a hot file: 16 GiB
STREAMS = 4   # of a node, each with a batch under way: the batch reader's depth in all


def load_costs():
    with open(os.path.join(HERE, "costs.json")) as file:
        return {name: entry["value"] for name, entry in json.load(file).items() if isinstance(entry, dict)}


def home_of(key, nodes):
    """Rendezvous hashing over many nodes has the same outcome as any good hash: each is as likely as the others."""
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big") % nodes


class Line:
    """Servers that work off what comes, in the order in which it comes."""

    def __init__(self, servers=1):
        self.free, self.busy = [0.0] * servers, 0.0

    def serve(self, now, takes):
        start = max(now, heapq.heappop(self.free))
        heapq.heappush(self.free, start + takes)
        self.busy += takes
        return start + takes


class Simulation:
    def __init__(self, nodes, case, answer, costs, seed=1, batches=40):
        self.nodes, self.case, self.answer, self.costs = nodes, case, answer, costs
        self.random = random.Random(seed)
        self.cpu = [Line(int(costs["home_threads"])) for _ in range(nodes)]
        self.out = [Line() for _ in range(nodes)]
        self.into = [Line() for _ in range(nodes)]
        self.events, self.sequence, self.now = [], 0, 0.0
        self.left = batches * nodes * STREAMS
        self.counted = 30 * nodes * STREAMS  # the last so many; before that lines fill
        self.latencies, self.messages, self.begun, self.last = [], 0, 0.0, 0.0
        self.bytes = [0] * nodes
        if case["files"]:
            weights = [1 / (i + 1) ** case["zipf"] for i in range(case["files"])]
            self.cumulative, total = [], 0.0
            for weight in weights:
                total += weight
                self.cumulative.append(total)

    # --- events ---

    def at(self, when, what, *arguments):
        self.sequence += 1
        heapq.heappush(self.events, (when, self.sequence, what, arguments))

    def run(self):
        for node in range(self.nodes):
            for stream in range(STREAMS):
                self.at(self.random.random() * 50, self.begin, node, stream, 0)
        while self.events:
            self.now, _, what, arguments = heapq.heappop(self.events)
            what(*arguments)
        return self.result()

    # --- a stream ---

    def place(self, node, stream):
        """(the home, whether others have it) of the next batch."""
        if not self.case["files"]:
            return home_of(f"{node}/{stream}", self.nodes), False
        chosen = self.random.choices(range(self.case["files"]), cum_weights=self.cumulative)[0]
        part = self.random.randrange(RANGES) if self.answer["ranges"] else 0
        return home_of(f"shared/{chosen}/{part}", self.nodes), True

    def begin(self, node, stream, count):
        if not self.left:
            return
        self.left -= 1
        home, shared = self.place(node, stream)
        every = self.case["every"]
        if every and count and count % every == 0:
            self.at(self.now + self.wire(node, home), self.synchronize, node, stream, count, home, shared)
        else:
            self.ask(node, stream, count, home, shared)

    def ask(self, node, stream, count, home, shared):
        units = 16
        # As many messages as batches of units; they go one after another in the home's line.
        messages = -(-units // self.answer["batch"])
        self.at(self.now + self.wire(node, home), self.granted, node, stream, count, home, shared, units, messages, self.now)

    def wire(self, a, b):
        return self.costs["wire_latency_us"] if a != b else 0.0

    def placed(self, node, stream, count, home, units, pieces, began):
        """As built: the home's threads look at the pieces beside each other."""
        takes = self.costs[f"{self.answer['built']}_home_us"]
        done = max(self.cpu[home].serve(self.now, takes) for _ in range(pieces))
        self.messages += BUILT_MESSAGES * pieces if home != node else 0
        self.at(done + 2 * self.wire(node, home), self.read, node, stream, count, home, units, began)

    def expose(self, node, stream, count, source, units, size, began):
        """As built: what the agent's threads do for the pieces, before and after their bytes have come."""
        pieces = -(-units // self.answer["batch"])
        takes = self.costs[f"{self.answer['built']}_agent_us"]
        done = max(self.cpu[node].serve(self.now, takes) for _ in range(pieces)) if source != node else self.now
        self.at(done, self.end, node, stream, count, size, began)

    def granted(self, node, stream, count, home, shared, units, messages, began):
        if self.answer.get("built"):
            self.placed(node, stream, count, home, units, messages, began)
            return
        takes = messages * self.costs["message_us"] + units * self.costs["grant_unit_us"]
        done = self.cpu[home].serve(self.now, takes)
        self.messages += 2 * messages if home != node else 0
        source = home
        if self.answer["holders"] and shared and self.nodes > 2:
            source = self.random.randrange(self.nodes)  # whoever read it before
        self.at(done + 2 * self.wire(node, home), self.read, node, stream, count, source, units, began)

    def read(self, node, stream, count, source, units, began):
        size = units * UNIT
        if source == node:
            done = self.now + size / self.costs["memory_bytes_per_s"] * SECOND
        else:
            takes = size / self.costs["nic_bytes_per_s"] * SECOND
            sent = self.out[source].serve(self.now, takes)
            # Cut through: it arrives as it is sent, unless others come in at the same time.
            done = max(sent, self.into[node].serve(sent - takes, takes)) + self.wire(node, source)
        if self.answer.get("built"):
            self.at(done, self.expose, node, stream, count, source, units, size, began)
        else:
            self.at(done, self.end, node, stream, count, size, began)

    def end(self, node, stream, count, size, began):
        if self.left < self.counted:
            self.count(node, size, began)
        computes = size / self.costs["device_bytes_per_s"] * SECOND * STREAMS
        self.at(self.now + computes, self.begin, node, stream, count + 1)

    def count(self, node, size, began):
        if not self.latencies:
            self.begun = self.now
            self.counted_messages = self.messages
            for lines in (self.cpu, self.out, self.into):
                for line in lines:
                    line.before = line.busy
        self.latencies.append(self.now - began)
        self.bytes[node] += size
        self.last = self.now

    def synchronize(self, node, stream, count, home, shared):
        """A release of what was stored to, and an acquire, in one message each; others' copies are dropped, and what was stored to is
        collected by who reads it next: the home pays for comparing and merging, and reads the page from its device."""
        pages = self.case["stores"] * self.case["every"]
        if self.answer.get("built"):
            self.synchronize_as_built(node, stream, count, home, shared, pages)
            return
        takes = 2 * self.costs["message_us"] + pages * (self.costs["release_page_us"] + self.costs["collect_page_us"])
        done = self.cpu[home].serve(self.now, takes)
        if home != node:
            self.messages += 4
            moved = pages * 4096 / self.costs["nic_bytes_per_s"] * SECOND
            done = max(done, self.into[home].serve(self.out[node].serve(self.now, moved) - moved, moved))
        self.at(done + self.wire(node, home), self.ask, node, stream, count, home, shared)

    def synchronize_as_built(self, node, stream, count, home, shared, pages):
        """The same: the home looks at each page, in the agent's frames, and has it then."""
        home_us, agent_us = (self.costs[f"acquire_unchanged_{who}_us"] + pages * sum(self.costs[f"{step}_{who}_us"] for step in BUILT_STORES)
                             for who in ("home", "agent"))
        done = self.cpu[home].serve(self.now, home_us)
        if home != node:
            done = max(done, self.cpu[node].serve(self.now, agent_us))
            self.messages += 4 + BUILT_RUN_MESSAGES * self.case["every"]
            moved = 2 * pages * 4096 / self.costs["nic_bytes_per_s"] * SECOND
            done = max(done, self.into[home].serve(self.out[node].serve(self.now, moved) - moved, moved))
        self.at(done + 5 * self.wire(node, home), self.ask, node, stream, count, home, shared)

    # --- what came of it ---

    def result(self):
        took = max(self.last - self.begun, 1e-9)

        def busiest(lines):
            return max((line.busy - getattr(line, "before", 0)) / took / len(line.free) for line in lines)

        ordered = sorted(self.latencies)
        return {"nodes": self.nodes, # The median: a home reads its own files from memory.
                "gb_per_s_per_node": statistics.median(self.bytes) / took * SECOND / 1e9,
                "p50_us": statistics.median(ordered), "p99_us": ordered[len(ordered) * 99 // 100],
                "busiest_home_cpu": busiest(self.cpu), "busiest_nic_out": busiest(self.out),
                "messages_per_gb": (self.messages - self.counted_messages) / (sum(self.bytes) / 1e9)}


def simulate(nodes, case, answer, costs, **more):
    return Simulation(nodes, CASES[case], ANSWERS[answer], costs, **more).run()


# --- against what is known --------------------------------------------------------------------------------------------

def alone():
    """One stream on two nodes, nobody else: a batch takes the sum of its parts."""
    costs = {**load_costs(), "device_bytes_per_s": 1e6}  # it computes for so long that no two are under way
    sim = Simulation(2, CASES["one hot file, read"], ANSWERS["one home"], costs, batches=40)
    result = sim.run()
    home = home_of("shared/0/0", 2)
    assert sim.cpu[home].busy > 0 and sim.cpu[1 - home].busy == 0
    grant = costs["message_us"] + 16 * costs["grant_unit_us"]
    far = 4 * costs["wire_latency_us"] + grant + 16 * UNIT / costs["nic_bytes_per_s"] * SECOND
    near = grant + 16 * UNIT / costs["memory_bytes_per_s"] * SECOND
    for latency in sim.latencies:
        assert min(abs(latency - far), abs(latency - near)) < 1e-6, (latency, far, near)
    assert result["nodes"] == 2


def one_nic():
    """All read one file: no more leaves its home than the NIC carries, and no less when it is the bottleneck."""
    costs = load_costs()
    result = simulate(50, "one hot file, read", "one home", costs)
    bound = costs["nic_bytes_per_s"] / 1e9 / 49  # the home reads from memory
    assert 0.95 * bound < result["gb_per_s_per_node"] < 1.05 * bound, (result, bound)
    assert 0.93 < result["busiest_nic_out"] <= 1.05, result


def one_processor():
    """A slow home and a fast wire: as many grants as the processors can make."""
    costs = {**load_costs(), "grant_unit_us": 1000.0, "nic_bytes_per_s": 1e12, "home_threads": 2}
    result = simulate(20, "one hot file, read", "one home", costs)
    bound = 2 * UNIT / (1000.0 + costs["message_us"] / 16) * SECOND / 1e9 / 20
    assert 0.95 * bound < result["gb_per_s_per_node"] < 1.05 * bound, (result, bound)


def alone_as_built():
    """One stream on two nodes, nobody else: a batch takes the sum of its parts, the pieces being looked at beside each other."""
    costs = {**load_costs(), "device_bytes_per_s": 1e6}
    for answer, pieces in (("as built, in a row", 4), ("as built, single units", 16)):
        sim = Simulation(2, CASES["one hot file, read"], ANSWERS[answer], costs, batches=40)
        sim.run()
        turns = pieces / costs["home_threads"]
        home_us, agent_us = (turns * costs[f"{ANSWERS[answer]['built']}_{who}_us"] for who in ("home", "agent"))
        far = 4 * costs["wire_latency_us"] + home_us + agent_us + 16 * UNIT / costs["nic_bytes_per_s"] * SECOND
        near = home_us + 16 * UNIT / costs["memory_bytes_per_s"] * SECOND
        for latency in sim.latencies:
            assert min(abs(latency - far), abs(latency - near)) < 1e-6, (answer, latency, far, near)


def one_processor_as_built():
    """Many agents, a wire that is never full: as many pieces as the home's processors can place."""
    costs = {**load_costs(), "nic_bytes_per_s": 1e12, "memory_bytes_per_s": 1e12}
    result = simulate(50, "one hot file, read", "as built, single units", costs)
    bound = costs["home_threads"] * UNIT / costs["fault_64k_home_us"] * SECOND / 1e9 / 50
    assert 0.95 * bound < result["gb_per_s_per_node"] < 1.05 * bound, (result, bound)


def private_scales():
    """Nothing shared: a node of a hundred does what a node of ten does."""
    costs = load_costs()
    few, many = (simulate(n, "private", "one home", costs)["gb_per_s_per_node"] for n in (20, 200))
    assert 0.8 < many / few < 1.25, (few, many)


def same_seed():
    costs = load_costs()
    one, two = (simulate(30, "many files, shared and stored to", "both", costs, seed=7) for _ in range(2))
    assert one == two


def never_too_fast():
    """No answer makes a node take more than its device asks for, nor its NIC carries."""
    costs = load_costs()
    for case in CASES:
        for answer in ANSWERS:
            result = simulate(8, case, answer, costs, batches=34)
            assert result["gb_per_s_per_node"] <= 1.01 * costs["device_bytes_per_s"] / 1e9, (case, answer, result)
            assert result["busiest_nic_out"] < 1.05 and result["busiest_home_cpu"] < 1.05, (case, answer, result)


def check():
    failed = 0
    tests = (alone, one_nic, one_processor, alone_as_built, one_processor_as_built, private_scales, same_seed, never_too_fast)
    for test in tests:
        try:
            test()
        except AssertionError as problem:
            failed += 1
            print(f"{test.__name__}: {problem}")
    print(f"{len(tests) - failed} passed, {failed} failed, 0 skipped")
    return 1 if failed else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--nodes", default="1,10,100,1000")
    parser.add_argument("--case", action="append", choices=CASES)
    parser.add_argument("--answer", action="append", choices=ANSWERS)
    parser.add_argument("--json")
    args = parser.parse_args()
    if args.check:
        return check()
    costs, results = load_costs(), []
    print("| what nodes do | answer | nodes | GB/s a node | p50 us | p99 us | busiest home's processors | busiest NIC | "
          "messages a GB |\n|---|---|---|---|---|---|---|---|---|")
    for case in args.case or CASES:
        for answer in args.answer or ANSWERS:
            for nodes in map(int, args.nodes.split(",")):
                r = simulate(nodes, case, answer, costs)
                results.append({"case": case, "answer": answer, **r})
                print(f"| {case} | {answer} | {nodes} | {r['gb_per_s_per_node']:.2f} | {r['p50_us']:.0f} | "
                      f"{r['p99_us']:.0f} | {r['busiest_home_cpu']:.0%} | {r['busiest_nic_out']:.0%} | "
                      f"{r['messages_per_gb']:.0f} |", flush=True)
    if args.json:
        with open(args.json, "w") as file:
            json.dump({"costs": costs, "results": results}, file, indent=1)
            file.write("\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
