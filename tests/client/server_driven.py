#!/usr/bin/env python3
"""Server-driven transfer by the real client (lmcache 0.5.6 with torch) on CPU tensors.

    server_driven.py --url tcp://127.0.0.1:PORT [--only WORD] [--stores N]

The client puts every tensor into a shared memory segment; the server maps none of them, it copies.
Every scenario prints `NAME: N passed, M failed`; the exit status is non-zero when anything failed.
"""

from __future__ import annotations

import argparse
import os
import sys
import threading

os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("LMCACHE_DISABLE_BANNER", "1")
os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")

import torch  # noqa: E402
from lmcache.v1.multiprocess.custom_types import IPCCacheServerKey  # noqa: E402
from lmcache.v1.multiprocess.transfer_context import create_transfer_context  # noqa: E402
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory  # noqa: E402

RPC_TIMEOUT = 20.0
SERVER, ENGINE = "lmcache_driven", "engine_driven"


class Tally:
    def __init__(self):
        self.passed, self.failed, self._lock = 0, 0, threading.Lock()

    def eq(self, got, want, what):
        with self._lock:
            if got == want and type(got) is type(want):
                self.passed += 1
                return
            self.failed += 1
            print(f"  FAIL  {what} == {want!r}  (got {got!r})", flush=True)


# ---------------------------------------------------------------------------------- layouts
# On the CPU the client takes contiguous tensors only; other strides are for `tests/properties`.

BLOCKS, BLOCK, HEADS, WIDTH, LAYERS = 40, 4, 2, 8, 3


def random(shape, dtype):
    if dtype == torch.uint8:
        return torch.randint(0, 256, shape, dtype=dtype)
    return torch.randn(shape).to(dtype)


def plain(*shape, dtype=torch.bfloat16):
    return lambda: {f"layers.{i}": random(shape, dtype) for i in range(LAYERS)}


def one_head():
    return {f"layers.{i}": random((BLOCKS, BLOCK, 1, WIDTH), torch.float32) for i in range(LAYERS)}


# name: (hint, tensors, axis of blocks)
LAYOUTS = {
    "planes-nhd": ("NHD", plain(2, BLOCKS, BLOCK, HEADS, WIDTH), 1),
    "planes-hnd": ("HND", plain(2, BLOCKS, HEADS, BLOCK, WIDTH), 1),
    "blocks-nhd": ("NHD", plain(BLOCKS, 2, BLOCK, HEADS, WIDTH), 0),
    "blocks-hnd": ("HND", plain(BLOCKS, 2, HEADS, BLOCK, WIDTH), 0),
    "fused-nhd": ("NHD", plain(BLOCKS, BLOCK, HEADS, 2 * WIDTH, dtype=torch.float16), 0),
    "fused-hnd": ("HND", plain(BLOCKS, HEADS, BLOCK, 2 * WIDTH), 0),
    "mla": ("NHD", plain(BLOCKS, BLOCK, WIDTH, dtype=torch.float32), 0),
    "indexer": ("NHD", plain(BLOCKS, BLOCK, 132, dtype=torch.uint8), 0),
    "one-head": ("NHD", one_head, 0),
}
# Both modes put these into the same objects, as the same client gathers them.
SHARED = ["planes-nhd", "planes-hnd", "blocks-nhd", "blocks-hnd", "fused-nhd", "fused-hnd", "mla"]


# ---------------------------------------------------------------------------------- an engine


class Engine:
    """One worker with its own paged cache."""

    _ids = iter(range(1, 1 << 20))

    def __init__(self, run, model, layout, mode, *, world=1, rank=0, readers=1):
        self.hint, make, self.axis = LAYOUTS[layout]
        self.run, self.model, self.world, self.rank = run, model, world, rank
        self.readers, self.id = readers, (os.getpid() << 20) + next(self._ids)
        self.kv = make()
        self.client = RequestClientFactory.create(run.url)
        self.chunk = self.client.get_chunk_size().result(RPC_TIMEOUT)
        self.per_chunk = self.chunk // BLOCK
        self.context = create_transfer_context(
            self.kv, instance_id=self.id, req_client=self.client, mode=mode)
        self.context.register(self.kv, model, world, self.per_chunk, RPC_TIMEOUT,
                              layout_hints={"kv_layout": self.hint})

    def key(self, tokens, request, start=0, end=None, scheduler=False):
        whole = len(tokens) // self.chunk * self.chunk
        return IPCCacheServerKey(
            model_name=self.model, world_size=self.world,
            worker_id=None if scheduler else self.rank, token_ids=tuple(tokens), start=start,
            end=whole if end is None else end, request_id=request, cache_salt="",
            num_kv_readers=self.readers)

    def store(self, tokens, blocks, request=None, **range_):
        key = self.key(tokens, request or self.run.request(), **range_)
        event = self.context.create_recorded_event()
        future = self.context.submit_store(
            key.request_id, key, self.kv, [blocks], event, self.per_chunk)
        return future.result(timeout=RPC_TIMEOUT)

    def lookup(self, tokens, request):
        key = self.key(tokens, request, scheduler=True)
        self.client.lookup(key, 1).result(RPC_TIMEOUT)
        return self.client.wait_prefetch_status(request, 10.0).result(RPC_TIMEOUT)

    def retrieve(self, tokens, blocks, request, skip=0, **range_):
        key = self.key(tokens, request, **range_)
        event = self.context.create_recorded_event()
        future = self.context.submit_retrieve(
            request, key, self.kv, [blocks], event, self.per_chunk, skip)
        return future.result(timeout=RPC_TIMEOUT)

    def end(self, request):
        self.client.end_session(request).result(RPC_TIMEOUT)

    def take(self, blocks):
        """A copy of these blocks, layer by layer."""
        at = torch.tensor(blocks)
        return [tensor.index_select(self.axis, at) for tensor in self.kv.values()]

    def close(self):
        self.context.close()
        self.client.close()


def same(one, other):
    return all(torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))
               for a, b in zip(one, other, strict=True))


class Run:
    _requests = iter(range(1, 1 << 40))

    def __init__(self, url, stores):
        self.url, self.stores, self.t = url, stores, Tally()

    def request(self):
        return f"paged-{os.getpid():x}-{next(Run._requests)}"

    def tokens(self, chunks, chunk, seed):
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(1, 150_000, (chunks * chunk,), generator=generator).tolist()


def scattered(engine, chunks, seed):
    """Blocks for so many chunks, none of them the null block, in no order."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(BLOCKS - 1, generator=generator) + 1
    return order[: chunks * engine.per_chunk].tolist()


# ---------------------------------------------------------------------------------- scenarios


def layouts(run):
    t = run.t
    for number, layout in enumerate(LAYOUTS):
        model = f"paged-{layout}-{os.getpid()}"
        a = Engine(run, model, layout, SERVER)
        n = 4
        tokens = run.tokens(n, a.chunk, 100 + number)
        blocks = scattered(a, n, number)
        request = run.request()
        t.eq(a.lookup(tokens, request), 0, f"{layout}: cold lookup")
        t.eq(a.retrieve(tokens, blocks, request), False, f"{layout}: a miss")
        a.end(request)
        stored = a.take(blocks)
        three = 3 * a.chunk
        t.eq(a.store(tokens, blocks[: 3 * a.per_chunk], end=three), True, f"{layout}: store of 3")
        t.eq(a.store(tokens, blocks[: 3 * a.per_chunk], end=three), True, f"{layout}: again")
        request = run.request()
        t.eq(a.lookup(tokens, request), 3, f"{layout}: 3 of 4 hit")
        a.end(request)
        t.eq(a.store(tokens, blocks), True, f"{layout}: store of 4, 1 new")
        t.eq(a.retrieve(tokens, blocks, run.request()), False, f"{layout}: without a lookup")

        b = Engine(run, model, layout, SERVER)
        target = scattered(b, n, 50 + number)
        before = b.take(list(range(BLOCKS)))
        request = run.request()
        t.eq(b.lookup(tokens, request), n, f"{layout}: all hit")
        t.eq(b.retrieve(tokens, target, request, BLOCK), True, f"{layout}: retrieve, 1 block skipped")
        b.end(request)
        wanted = [block.narrow(b.axis, 1, len(target) - 1) for block in stored]
        t.eq(same(b.take(target[1:]), wanted), True, f"{layout}: bytes")
        rest = [block for block in range(BLOCKS) if block not in target[1:]]
        kept = [block.index_select(b.axis, torch.tensor(rest)) for block in before]
        t.eq(same(b.take(rest), kept), True, f"{layout}: other blocks are untouched")
        request = run.request()
        t.eq(b.lookup(tokens, request), n, f"{layout}: all hit again")
        last = 3 * b.chunk
        t.eq(b.retrieve(tokens, target[: b.per_chunk], request, start=last), True,
             f"{layout}: the last chunk alone")
        wanted = [block.narrow(b.axis, 3 * b.per_chunk, b.per_chunk) for block in stored]
        t.eq(same(b.take(target[: b.per_chunk]), wanted), True, f"{layout}: its bytes")
        b.end(request)
        t.eq(b.retrieve(tokens, target[:-1], run.request()), False, f"{layout}: too few blocks")
        a.close()
        b.close()


def modes(run):
    """What one mode has stored the other reads."""
    t = run.t
    for number, layout in enumerate(SHARED):
        for writer, reader in [(SERVER, ENGINE), (ENGINE, SERVER)]:
            name = f"{layout}, {writer} to {reader}"
            model = f"paged-modes-{layout}-{writer}-{os.getpid()}"
            a, b = Engine(run, model, layout, writer), Engine(run, model, layout, reader)
            tokens = run.tokens(3, a.chunk, 200 + number)
            source, target = scattered(a, 3, number), scattered(a, 3, 90 + number)
            stored = a.take(source)
            t.eq(a.store(tokens, source), True, f"{name}: store")
            request = run.request()
            t.eq(b.lookup(tokens, request), 3, f"{name}: lookup")
            t.eq(b.retrieve(tokens, target, request), True, f"{name}: retrieve")
            t.eq(same(b.take(target), stored), True, f"{name}: bytes")
            b.end(request)
            a.close()
            b.close()


def ranks(run):
    """A hit needs every rank; each reads back its own part."""
    t = run.t
    for world in [2, 4]:
        model = f"paged-tp{world}-{os.getpid()}"
        workers = [Engine(run, model, "fused-hnd", SERVER, world=world, rank=rank)
                   for rank in range(world)]
        tokens = run.tokens(3, workers[0].chunk, 300 + world)
        blocks = [scattered(worker, 3, 10 + rank) for rank, worker in enumerate(workers)]
        stored = [worker.take(each) for worker, each in zip(workers, blocks)]
        for rank, worker in enumerate(workers[:-1]):
            t.eq(worker.store(tokens, blocks[rank]), True, f"tp{world}: rank {rank} stores 3")
        last = workers[-1]
        t.eq(last.store(tokens, blocks[-1][: last.per_chunk], end=last.chunk), True,
             f"tp{world}: the last rank stores 1")
        request = run.request()
        t.eq(workers[0].lookup(tokens, request), 1, f"tp{world}: 1 chunk is whole")
        for rank, worker in enumerate(workers):
            target = list(range(1, 1 + worker.per_chunk))
            t.eq(worker.retrieve(tokens, target, request, end=worker.chunk), True,
                 f"tp{world}: rank {rank} retrieves")
            wanted = [block.narrow(worker.axis, 0, worker.per_chunk) for block in stored[rank]]
            t.eq(same(worker.take(target), wanted), True, f"tp{world}: rank {rank}, bytes")
        workers[0].end(request)
        for worker in workers:
            worker.close()


def readers(run):
    """MLA: one object per chunk, which every rank reads once."""
    t = run.t
    model = f"paged-mla8-{os.getpid()}"
    workers = [Engine(run, model, "mla", SERVER, readers=8) for _ in range(8)]
    tokens = run.tokens(2, workers[0].chunk, 400)
    source = scattered(workers[0], 2, 7)
    stored = workers[0].take(source)
    t.eq(workers[0].store(tokens, source), True, "the first rank stores")
    request = run.request()
    t.eq(workers[0].lookup(tokens, request), 2, "lookup for 8 readers")
    target = list(range(1, 1 + 2 * workers[0].per_chunk))
    for rank, worker in enumerate(workers):
        t.eq(worker.retrieve(tokens, target, request), True, f"reader {rank}")
        t.eq(same(worker.take(target), stored), True, f"reader {rank}, bytes")
    t.eq(workers[0].retrieve(tokens, target, request), False, "a ninth read has no lease")
    workers[0].end(request)
    for worker in workers:
        worker.close()


def at_once(run):
    """Four engines store the same and other prefixes at the same time, and then read them."""
    t = run.t
    model, count = f"paged-four-{os.getpid()}", 4
    stored = threading.Barrier(count)

    def engine(number):
        worker = Engine(run, model, "planes-hnd", SERVER)
        for step in range(30):
            name = f"engine {number}, step {step}"
            tokens = run.tokens(2, worker.chunk, 500 + (step if step % 3 else 1000 * number + step))
            # What is stored is the same whoever stores it.
            source, target = list(range(1, 9)), list(range(20, 28))
            generator = torch.Generator().manual_seed(sum(tokens))
            for tensor in worker.kv.values():
                shape = (2, 8, HEADS, BLOCK, WIDTH)
                tensor[:, 1:9] = torch.randn(shape, generator=generator).to(tensor.dtype)
            wanted = worker.take(source)
            t.eq(worker.store(tokens, source), True, f"{name}: store")
            stored.wait(RPC_TIMEOUT)
            request = run.request()
            t.eq(worker.lookup(tokens, request), 2, f"{name}: lookup")
            t.eq(worker.retrieve(tokens, target, request), True, f"{name}: retrieve")
            t.eq(same(worker.take(target), wanted), True, f"{name}: bytes")
            worker.end(request)
        worker.close()
        t.eq(True, True, f"engine {number} is through")

    threads = [threading.Thread(target=engine, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # A thread that ended with an exception did not get that far.
    t.eq(t.passed + t.failed, count * (4 * 30 + 1), "steps")


def at_sight(run):
    """A store's objects are there for the lookup that follows at once."""
    t = run.t
    worker = Engine(run, f"paged-sight-{os.getpid()}", "planes-nhd", SERVER)
    blocks, missed = list(range(1, 1 + worker.per_chunk)), 0
    for step in range(run.stores):
        tokens = [step + 1] * worker.chunk
        stored = worker.store(tokens, blocks)
        request = run.request()
        missed += not stored or worker.lookup(tokens, request) != 1
        worker.end(request)
    t.eq(missed, 0, f"{run.stores} stores, each looked up at once: misses")
    worker.close()


SCENARIOS = [layouts, modes, ranks, readers, at_once, at_sight]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--stores", type=int, default=500)
    args = parser.parse_args()
    failed = 0
    for scenario in SCENARIOS:
        if args.only not in scenario.__name__:
            continue
        run = Run(args.url, args.stores)
        print(f"== {scenario.__name__}", flush=True)
        scenario(run)
        print(f"{scenario.__name__}: {run.t.passed} passed, {run.t.failed} failed", flush=True)
        failed += run.t.failed
    sys.exit(failed > 0)


if __name__ == "__main__":
    main()
