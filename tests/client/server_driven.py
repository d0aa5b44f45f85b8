#!/usr/bin/env python3
"""Server-driven transfer by the real client (lmcache 0.5.6 with torch) on CPU tensors.

    server_driven.py --url tcp://127.0.0.1:PORT --http 127.0.0.1:PORT [--only WORD] [--stores N]

The client puts every tensor into a shared memory segment; the server maps none of them, it copies.
What is compared over HTTP is what the peer's own server answers: there `--only checksums` and
`--only status` pass as well.
Every scenario prints `NAME: N passed, M failed`; the exit status is non-zero when anything failed.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import sys
import threading
import time

os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("LMCACHE_DISABLE_BANNER", "1")
os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")

import torch  # noqa: E402
import zmq  # noqa: E402
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


def connect(url):
    """The client names a monitor by its descriptor; one that was just closed may still have it."""
    for _ in range(100):
        try:
            return RequestClientFactory.create(url)
        except zmq.ZMQError as error:
            if error.errno != zmq.EADDRINUSE:
                raise
            time.sleep(0.05)
    return RequestClientFactory.create(url)


class Engine:
    """One worker with its own paged cache."""

    _ids = iter(range(1, 1 << 20))

    def __init__(self, run, model, layout, mode, *, world=1, rank=0, readers=1):
        self.hint, make, self.axis = LAYOUTS[layout]
        self.run, self.model, self.world, self.rank = run, model, world, rank
        self.readers, self.id = readers, (os.getpid() << 20) + next(self._ids)
        self.kv = make()
        self.client = connect(run.url)
        self.chunk = self.client.get_chunk_size().result(RPC_TIMEOUT)
        self.per_chunk = self.chunk // BLOCK
        if 4 * self.per_chunk >= BLOCKS:
            raise SystemExit("these caches are for a server with --chunk-size 16")
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

    def __init__(self, url, http_address, stores):
        self.url, self.http, self.stores, self.t = url, http_address, stores, Tally()

    def ask(self, method, path, body=None):
        """Status and JSON."""
        connection = http.client.HTTPConnection(self.http, timeout=RPC_TIMEOUT)
        head = {} if body is None else {"content-type": "application/json"}
        connection.request(method, path, body=body and json.dumps(body), headers=head)
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        return answer.status, json.loads(text)

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


# What the peer calls these layouts, and whether it sums their blocks.
FLASH, INFER = "vLLM non-MLA flash attention", "vLLM non-MLA flash infer"
FUSED = "vLLM non-MLA blocks-first, fused K/V"
FORMATS = {
    "planes-nhd": ("NL_X_TWO_NB_BS_NH_HS", "[2, NB, BS, NH, HS]", FLASH, True),
    "planes-hnd": ("NL_X_TWO_NB_NH_BS_HS", "[2, NB, NH, BS, HS]", f"{FLASH} (HND layout)", True),
    "blocks-nhd": ("NL_X_NB_TWO_BS_NH_HS", "[NB, 2, BS, NH, HS]", INFER, True),
    "blocks-hnd": ("NL_X_NB_TWO_NH_BS_HS", "[NB, 2, NH, BS, HS]", f"{INFER} (HND layout)", True),
    "fused-nhd": ("NL_X_NB_BS_NH_CS", "[NB, BS, NH, CS]", f"{FUSED} (NHD)", False),
    "fused-hnd": ("NL_X_NB_NH_BS_CS", "[NB, NH, BS, CS]", f"{FUSED} (HND)", False),
    "mla": ("NL_X_NB_BS_HS", "[NB, BS, HS]", "vLLM MLA / SGLang MLA (MP)", True),
    "indexer": ("NL_X_NB_BSV_BSS", "[NB, BSxVALS, BSxSCALES]", "vLLM MLA", True),
    "one-head": ("NL_X_NB_BS_NH_CS", "[NB, BS, NH, CS]", f"{FUSED} (NHD)", False),
}


def sums(engine, blocks, per_chunk):
    """The MD5 of each chunk of blocks, for every layer and for all of them together."""
    layers, whole = [], []
    for at in range(0, len(blocks), per_chunk):
        together = hashlib.md5()
        for layer, tensor in enumerate(engine.take(blocks[at : at + per_chunk])):
            wide = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
            content = wide.contiguous().numpy().tobytes()
            together.update(content)
            if layer == len(layers):
                layers.append([])
            layers[layer].append(hashlib.md5(content).hexdigest())
        whole.append(together.hexdigest())
    return whole, {f"layer_{layer}": each for layer, each in enumerate(layers)}


def checksums(run):
    """MD5 over an engine's blocks, read through its own memory."""
    t = run.t

    def post(**body):
        return run.ask("POST", "/cache/checksums", body)

    t.eq(post(block_ids=[1], chunk_size=4, instance_id=7),
         (404, {"detail": "instance_id 7 not registered"}), "nobody")
    for layout, (name, *_, is_summed) in FORMATS.items():
        engine = Engine(run, f"paged-sums-{layout}-{os.getpid()}", layout, SERVER)
        blocks = [7, 3, 4, 5, 6, 39, 0, 38, 37, 9, 9]
        ranges = [7, [3, 6], 39, 0, 38, 37, 9, 9]
        ask = {"block_ids": blocks, "chunk_size": 4, "instance_id": engine.id}
        if not is_summed:
            refusal = f"checksum not supported for GPU KV format {name}"
            t.eq(post(**ask), (501, {"detail": refusal}), f"{layout}: not summed")
            engine.close()
            continue
        whole, layers = sums(engine, blocks, 4)
        answer = {"status": "success", "chunk_size": 4, "num_chunks": 3,
                  "chunk_checksums": whole, "layerwise": False, "block_id_ranges": ranges}
        t.eq(post(**ask), (200, answer), f"{layout}: sums")
        answer |= {"chunk_checksums": layers, "layerwise": True}
        t.eq(post(**ask, layerwise=True), (200, answer), f"{layout}: sums of layers")
        next(iter(engine.kv.values())).zero_()
        whole, _ = sums(engine, [0, 1], 100)
        answer = {"status": "success", "chunk_size": 100, "num_chunks": 1,
                  "chunk_checksums": whole, "layerwise": False, "block_id_ranges": [0, 1]}
        t.eq(post(block_ids=[0, 1], chunk_size=100, instance_id=engine.id), (200, answer),
             f"{layout}: sums of what is there now")
        t.eq(post(block_ids=[], chunk_size=0, instance_id=engine.id),
             (400, {"detail": "block_ids is required"}), f"{layout}: no ids")
        for size in [0, -1]:
            t.eq(post(block_ids=[1], chunk_size=size, instance_id=engine.id),
                 (400, {"detail": "chunk_size must be positive"}), f"{layout}: chunks of {size}")
        engine.close()


def described(layout, tensor):
    """What `/status` says of the tensors of a layout."""
    name, shape, backend, _ = FORMATS[layout]
    sizes = list(tensor.shape)
    # It has no words for the numbers of these.
    unknown = f"Unknown (EngineKVFormat.{name})"
    concrete = unknown if "C" in shape else f"{LAYERS} x {sizes}"
    return {
        "num_layers": LAYERS,
        "num_blocks": BLOCKS,
        "cache_size_per_token":
            LAYERS * tensor.numel() * tensor.element_size() // (BLOCKS * BLOCK),
        "kernel_groups": [{
            "kernel_group_idx": 0,
            "engine_group_idx": 0,
            "object_group_idx": 0,
            "num_layers": LAYERS,
            "layer_indices": list(range(LAYERS)),
            "tokens_per_block": BLOCK,
            "slots_per_block": BLOCK,
            "dtype": str(tensor.dtype),
            "engine_kv_concrete_shape": concrete,
            "is_mla": "MLA" in backend.replace("non-MLA", ""),
            "engine_kv_format": name,
            "engine_kv_shape": f"NL x {shape}",
            "attention_backend": backend,
        }],
    }


def status(run):
    """What `/status` says of an engine whose memory the server has opened."""
    t = run.t
    for layout in FORMATS:
        engine = Engine(run, f"paged-status-{layout}-{os.getpid()}", layout, SERVER)
        code, document = run.ask("GET", "/status")
        t.eq(code, 200, "status")
        t.eq(engine.id in document["registered_gpu_ids"], True, f"{layout}: its id")
        t.eq(engine.id in document.get("registered_non_cuda_instance_ids", []), False,
             f"{layout}: its id among those that copy themselves")
        meta = {"model_name": engine.model, "world_size": 1,
                "kv_cache_layout": described(layout, next(iter(engine.kv.values())))}
        t.eq(document["cache_context_meta"].get(str(engine.id)), meta, f"{layout}: its memory")
        engine.close()


SCENARIOS = [layouts, modes, ranks, readers, at_once, at_sight, checksums, status]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--http", required=True)
    parser.add_argument("--only", default="")
    parser.add_argument("--stores", type=int, default=500)
    args = parser.parse_args()
    failed, scenarios = 0, [each for each in SCENARIOS if args.only in each.__name__]
    for scenario in scenarios:
        run = Run(args.url, args.http, args.stores)
        print(f"== {scenario.__name__}", flush=True)
        scenario(run)
        print(f"{scenario.__name__}: {run.t.passed} passed, {run.t.failed} failed", flush=True)
        failed += run.t.failed
    print(f"server-driven: {len(scenarios)} scenarios, {failed} failures", flush=True)
    sys.exit(failed > 0 or not scenarios)


if __name__ == "__main__":
    main()
