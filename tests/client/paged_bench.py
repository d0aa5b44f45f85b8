#!/usr/bin/env python3
"""Figures of server-driven transfer on CPU tensors: servers alternate, medians, ratios.

    paged_bench.py --server NAME URL PID [--server NAME URL PID] [--rounds 5] [--mib 64]

For every layout and size of a chunk: GB/s of a store and of a retrieve, from the request to its
end, CPU milliseconds of the server per GB, and the same bytes copied by this process, block by
block, on one thread.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time

os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("LMCACHE_DISABLE_BANNER", "1")
os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")

import torch  # noqa: E402
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey  # noqa: E402
from lmcache.v1.multiprocess.transfer_context import create_transfer_context  # noqa: E402
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory  # noqa: E402

TIMEOUT, BLOCK, LAYERS = 120.0, 16, 8
# name: bytes of a chunk of 256 tokens, heads, elements of a head (float16, K and V, 8 layers)
SIZES = {"256 KiB": (2, 16), "2 MiB": (2, 128), "8 MiB": (8, 128)}
FORMATS = {"NHD": lambda nb, nh, hs: (2, nb, BLOCK, nh, hs),
           "HND": lambda nb, nh, hs: (nb, nh, BLOCK, 2 * hs)}


def cpu(pid):
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Side:
    ids = iter(range(1, 1 << 20))

    def __init__(self, name, url, pid, layout, size, chunks):
        heads, width = SIZES[size]
        self.name, self.pid, self.chunks = name, pid, chunks
        self.rpc = RequestClientFactory.create(url)
        self.chunk = self.rpc.get_chunk_size().result(TIMEOUT)
        self.each = self.chunk // BLOCK
        blocks = 2 * chunks * self.each + 1
        shape = FORMATS[layout](blocks, heads, width)
        self.axis = 1 if layout == "NHD" else 0
        self.kv = {f"l{i}": torch.ones(shape, dtype=torch.float16) for i in range(LAYERS)}
        self.model = f"bench-{layout}-{size}-{os.getpid()}"
        self.context = create_transfer_context(
            self.kv, instance_id=(os.getpid() << 20) + next(self.ids), req_client=self.rpc,
            mode="lmcache_driven")
        self.context.register(self.kv, self.model, 1, self.each, TIMEOUT,
                              layout_hints={"kv_layout": layout})
        # No block beside its neighbour: nothing can be merged.
        order = torch.arange(1, blocks).reshape(-1, 2)
        self.source, self.target = order[:, 0].tolist(), order[:, 1].tolist()
        self.bytes = chunks * self.each * BLOCK * 2 * LAYERS * heads * width * 2

    def key(self, tokens, worker, request):
        return IPCCacheServerKey.from_token_ids(
            self.model, 1, worker, tokens, 0, len(tokens), request)

    def timed(self, submit):
        before, start = cpu(self.pid), time.perf_counter()
        done = submit().result(timeout=TIMEOUT)
        took = time.perf_counter() - start
        if done is not True:
            raise SystemExit(f"{self.name}: a transfer failed")
        return self.bytes / took / 1e9, (cpu(self.pid) - before) * 1e3 / (self.bytes / 1e9)

    def round(self, number):
        tokens = [number + 1] * (self.chunks * self.chunk)
        request = f"bench-{os.getpid()}-{number}-{self.name}"
        event = self.context.create_recorded_event()
        store = self.timed(lambda: self.context.submit_store(
            request, self.key(tokens, 0, request), self.kv, [self.source], event, self.each))
        deadline = time.monotonic() + TIMEOUT
        while True:
            self.rpc.lookup(self.key(tokens, None, request), 1).result(TIMEOUT)
            while (hit := self.rpc.query_prefetch_status(request).result(TIMEOUT)) is None:
                pass
            if hit == self.chunks or time.monotonic() > deadline:
                break
        load = self.timed(lambda: self.context.submit_retrieve(
            request, self.key(tokens, 0, request), self.kv, [self.target], event, self.each))
        self.rpc.end_session(request).result(TIMEOUT)
        self.rpc.clear(True).result(TIMEOUT)
        return store, load

    def copied(self):
        """GB/s of copying the same blocks into one run of memory, block by block."""
        into = torch.empty((len(self.source),) + tuple(
            self.kv["l0"].select(self.axis, 0).shape), dtype=torch.float16)
        start = time.perf_counter()
        for tensor in self.kv.values():
            torch.index_select(tensor.transpose(0, self.axis), 0, torch.tensor(self.source),
                               out=into)
        return self.bytes / (time.perf_counter() - start) / 1e9

    def close(self):
        self.context.close()
        self.rpc.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", nargs=3, action="append", required=True,
                        metavar=("NAME", "URL", "PID"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mib", type=int, default=64)
    args = parser.parse_args()
    torch.set_num_threads(1)
    median = statistics.median
    print("| layout | chunk | who | store GB/s | retrieve GB/s | server CPU ms/GB, store | retrieve "
          "| copy GB/s |\n|---|---|---|---|---|---|---|---|")
    for layout in FORMATS:
        for size in SIZES:
            heads, width = SIZES[size]
            chunks = max(1, (args.mib << 20) // (256 * 2 * LAYERS * heads * width * 2))
            sides = [Side(name, url, int(pid), layout, size, chunks)
                     for name, url, pid in args.server]
            got = {side.name: [] for side in sides}
            copies = []
            for number in range(args.rounds + 1):
                for side in sides:
                    got[side.name].append(side.round(number))
                copies.append(sides[0].copied())
            copy = median(copies[1:])
            for side in sides:
                # The first round is for warming up.
                rounds = got[side.name][1:]
                store, load = ([each[part] for each in rounds] for part in (0, 1))
                print(f"| {layout} | {size} | {side.name} | {median(s[0] for s in store):.2f} "
                      f"| {median(s[0] for s in load):.2f} | {median(s[1] for s in store):.0f} "
                      f"| {median(s[1] for s in load):.0f} | {copy:.2f} |", flush=True)
            for side in sides:
                side.close()


if __name__ == "__main__":
    sys.exit(main())
