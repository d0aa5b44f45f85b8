#!/usr/bin/env python3
"""Black-box driver for a multiprocess KV cache server.

It talks to ANY server that speaks the multiprocess ZMQ protocol, through the
real client library (`lmcache`, installed from PyPI), and checks the answers.

    drive.py --url tcp://127.0.0.1:PORT --scenario smoke

Scenarios
    smoke        one prefix: register, miss, store, hit, retrieve, verify
    prefix       many requests over a tree of shared prefixes, hit counts checked
    l2           more data than L1 holds: eviction, reload from L2, bytes checked
    l2-verify    after a restart: same --run-id as an earlier `l2`, bytes checked
    tenants      several cache_salts over the same tokens, no leak between them
    concurrent   N threads, each with its own client and instance
    abandoned    lookup without retrieve, end_session, locks
    pickle       inline (pickled tensors) data path; needs the real torch
    engine       vLLM's scheduler and worker adapters (from lmcache, no vLLM
                 needed) with paged CPU tensors; needs the real torch
    no-room      a store larger than the pool
    bad-input    wrong counts, unknown operations, garbage, unregistered instance
    short-frame  one message with a missing operation frame; server must survive
                 (kept apart: it permanently breaks lmcache 0.5.6)
    all          all of these except l2, l2-verify and short-frame

Every scenario prints `NAME: N passed, M failed`; the exit status is non-zero
when anything failed.

torch is optional. Without it, a small stand-in provides the handful of names
the client needs (dtypes, Size, frombuffer), so a test environment needs about
200 MB instead of 6 GB; the list is requirements-lean.txt beside this file.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import sys
import threading
import time
import types

import msgspec
import numpy as np
import zmq

os.environ.setdefault("LMCACHE_TRACK_USAGE", "false")
os.environ.setdefault("LMCACHE_DISABLE_BANNER", "1")
os.environ.setdefault("LMCACHE_LOG_LEVEL", "ERROR")


# --------------------------------------------------------------------------
# torch stand-in (only when torch is not installed)
# --------------------------------------------------------------------------


class _Block:
    """The few tensor operations the shared-memory client context performs."""

    def __init__(self, raw: np.ndarray, dtype, shape=None):
        self.raw, self.dtype = raw, dtype
        self.shape = tuple(shape) if shape is not None else (raw.nbytes // dtype.itemsize,)

    def view(self, shape):
        return _Block(self.raw, self.dtype, shape)

    def element_size(self):
        return self.dtype.itemsize


class _ShimDtype:
    def __init__(self, name, itemsize):
        self.name, self.itemsize = name, itemsize

    def __repr__(self):
        return f"torch.{self.name}"


class _LooseMeta(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return name


class _Loose(metaclass=_LooseMeta):
    def __init__(self, *_a, **_k):
        pass


def _loose_module(name, package=False, **attrs):
    mod = types.ModuleType(name)
    mod.__dict__.update(attrs)
    if package:
        mod.__path__ = []

    def missing(attr):
        if attr.startswith("__"):
            raise AttributeError(attr)
        return _Loose

    mod.__getattr__ = missing
    sys.modules[name] = mod
    return mod


def _install_torch_shim():
    torch = types.ModuleType("torch")
    torch.__path__ = []
    torch.__version__ = "0+shim"
    sizes = {
        "half": 2, "float16": 2, "bfloat16": 2, "float": 4, "float32": 4,
        "double": 8, "float64": 8, "int8": 1, "uint8": 1, "int16": 2,
        "int32": 4, "int64": 8, "bool": 1, "float8_e4m3fn": 1,
        "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1,
    }
    for name, size in sizes.items():
        setattr(torch, name, _ShimDtype(name, size))
    torch.dtype = _ShimDtype
    for cls in ("device", "Tensor", "Generator"):
        setattr(torch, cls, type(cls, (), {}))
    torch.Size = type("Size", (tuple,), {})
    torch.cuda = types.SimpleNamespace(is_available=lambda: False, device_count=lambda: 0)
    torch.version = types.SimpleNamespace(cuda=None, hip=None)
    nn = types.ModuleType("torch.nn")
    nn.Module = object
    torch.nn = sys.modules["torch.nn"] = nn

    def passthrough(*args, **_k):
        return args[0] if args and callable(args[0]) else (lambda fn: fn)

    torch.compile = torch.no_grad = torch.inference_mode = passthrough

    def empty(shape, dtype=None, **_k):
        return _Block(np.zeros(max(1, int(np.prod(shape))) * dtype.itemsize, np.uint8), dtype)

    def frombuffer(buf, *, dtype, count, offset=0):
        raw = np.frombuffer(buf, np.uint8, count=count * dtype.itemsize, offset=offset)
        return _Block(raw, dtype)

    torch.empty, torch.frombuffer = empty, frombuffer
    sys.modules["torch"] = torch

    # Heavy siblings that the wire client imports but never calls.
    _loose_module("lmcache.lmcache_native")
    _loose_module("lmcache.v1.gpu_connector", True, LayoutHints=dict)
    _loose_module("lmcache.v1.gpu_connector.utils", LayoutHints=dict)
    _loose_module("lmcache.v1.gpu_connector.kv_format", True)
    _loose_module("lmcache.v1.gpu_connector.kv_format.types", LayoutHints=dict, KVLayoutName=str)
    try:
        import numba  # noqa: F401
    except ImportError:
        fake = types.ModuleType("numba")
        fake.njit = fake.jit = passthrough
        fake.prange = range
        sys.modules["numba"] = fake


try:
    import torch

    REAL_TORCH = True
except ImportError:
    _install_torch_shim()
    import torch

    REAL_TORCH = False

from lmcache.v1.distributed.api import MemoryLayoutDesc  # noqa: E402
from lmcache.v1.multiprocess.custom_types import (  # noqa: E402
    IPCCacheServerKey,
    RegisterEngineDrivenContextPayload,
)
from lmcache.v1.multiprocess.transfer_context.base import (  # noqa: E402
    EngineDrivenContextMetadata,
    create_engine_driven_context,
)
from lmcache.v1.multiprocess.transport.factory import RequestClientFactory  # noqa: E402

RPC_TIMEOUT = 15.0


def raw_bytes(block) -> np.ndarray:
    """Flat uint8 view that shares memory with a client buffer."""
    if isinstance(block, _Block):
        return block.raw
    return block.reshape(-1).view(torch.uint8).numpy()


# --------------------------------------------------------------------------
# checks
# --------------------------------------------------------------------------


class Tally:
    def __init__(self, verbose=False):
        self.passed = self.failed = self.skipped = 0
        self.verbose = verbose
        self._lock = threading.Lock()

    def check(self, cond, what, got=None):
        with self._lock:
            if cond:
                self.passed += 1
                if self.verbose:
                    print(f"  ok    {what}", flush=True)
            else:
                self.failed += 1
                if self.failed <= 40:
                    extra = "" if got is None else f"  (got {got!r})"
                    print(f"  FAIL  {what}{extra}", flush=True)
        return bool(cond)

    def eq(self, got, want, what):
        return self.check(got == want and type(got) is type(want), f"{what} == {want!r}", got)

    def skip(self, what):
        self.skipped += 1
        print(f"  skip  {what}", flush=True)

    @staticmethod
    def note(text):
        print(f"  note  {text}", flush=True)


# --------------------------------------------------------------------------
# one worker instance as an inference engine would run it
# --------------------------------------------------------------------------


class Worker:
    """One registered instance: its client, its layout, its data path."""

    _ids = iter(range(1, 1 << 20))

    def __init__(self, url, model, *, layers=2, hidden=32, dtype="float16", mla=False,
                 slots=None, world_size=1, use_pickle=False, instance_id=None):
        self.client = RequestClientFactory.create(url)
        self.model, self.world_size = model, world_size
        self.chunk = self.client.get_chunk_size().result(RPC_TIMEOUT)
        slots = slots or self.chunk
        self.instance_id = instance_id or (os.getpid() << 16) + next(self._ids)
        self.payload = RegisterEngineDrivenContextPayload(
            instance_id=self.instance_id, model_name=model, world_size=world_size,
            block_size=16, num_layers=layers, hidden_dim_size=hidden, dtype_str=dtype,
            use_mla=mla, num_physical_slots=slots)
        self.dtype = getattr(torch, dtype)
        shape = [layers, slots, hidden] if mla else [2, layers, slots, hidden]
        self.shape = shape
        self.chunk_bytes = int(np.prod(shape)) * self.dtype.itemsize
        self.reply = self.client.register_kv_cache_engine_driven_context(
            self.payload).result(RPC_TIMEOUT)
        meta = EngineDrivenContextMetadata(
            layout_desc=MemoryLayoutDesc(shapes=[torch.Size(shape)], dtypes=[self.dtype]),
            block_size=16, use_mla=mla)
        self.ctx = create_engine_driven_context(
            meta, self.client, RPC_TIMEOUT, self.reply.shm_name, self.reply.pool_size,
            use_pickle=use_pickle)

    # -- keys -------------------------------------------------------------

    def key(self, tokens, rid, start=0, end=None, salt="", worker=0, readers=1):
        if end is None:
            end = len(tokens) // self.chunk * self.chunk
        return IPCCacheServerKey(
            model_name=self.model, world_size=self.world_size, worker_id=worker,
            token_ids=tuple(tokens), start=start, end=end, request_id=rid,
            cache_salt=salt, num_kv_readers=readers)

    # -- the calls an engine makes ---------------------------------------

    def lookup(self, tokens, rid, salt="", readers=1):
        """Chunks that hit, waiting for any load from the second tier."""
        k = self.key(tokens, rid, salt=salt, readers=readers).no_worker_id_version()
        ack = self.client.lookup(k, 1).result(RPC_TIMEOUT)
        if ack is not None:
            raise AssertionError(f"lookup answered {ack!r}, expected an empty reply")
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            hits = self.client.wait_prefetch_status(rid, 5.0).result(RPC_TIMEOUT)
            if hits is not None:
                return hits
        raise TimeoutError("prefetch did not finish in 60 s")

    def store(self, tokens, rid, start_chunk=0, end_chunk=None, salt="", fill=None):
        """Write the chunks the server asks for. Returns their indices."""
        end = None if end_chunk is None else end_chunk * self.chunk
        k = self.key(tokens, rid, start=start_chunk * self.chunk, end=end, salt=salt)
        buffers, indices = self.ctx.prepare_store(k, self.instance_id)
        if not indices:
            return []
        fill = fill or (lambda i: self.pattern(tokens, i, salt))
        for buf, idx in zip(buffers, indices):
            raw_bytes(buf)[:] = fill(start_chunk + idx)
        if self.ctx.commit_store(k, self.instance_id, buffers) is not True:
            raise AssertionError("commit_store did not answer True")
        return [start_chunk + i for i in indices]

    def retrieve(self, tokens, rid, start_chunk=0, end_chunk=None, salt="", want=None):
        """None on a miss, else whether every byte is the byte once stored."""
        end = None if end_chunk is None else end_chunk * self.chunk
        k = self.key(tokens, rid, start=start_chunk * self.chunk, end=end, salt=salt)
        buffers = self.ctx.prepare_retrieve(k, self.instance_id)
        if buffers is None:
            return None
        n = (k.end - k.start) // self.chunk
        want = want or (lambda i: self.pattern(tokens, i, salt))
        good = len(buffers) == n and all(
            np.array_equal(raw_bytes(buf), want(start_chunk + i)) for i, buf in enumerate(buffers))
        good = self.ctx.commit_retrieve(k, self.instance_id) is True and good
        return good

    def release(self, tokens, rid, start_chunk, end_chunk, salt="", readers=1):
        """Give back lookup locks on chunks that will not be retrieved."""
        k = self.key(tokens, rid, start_chunk * self.chunk, end_chunk * self.chunk,
                     salt=salt, readers=readers).no_worker_id_version()
        return self.client.free_lookup_locks(k, 1).result(RPC_TIMEOUT)

    def end(self, rid):
        return self.client.end_session(rid).result(RPC_TIMEOUT)

    def pattern(self, tokens, index, salt=""):
        """The bytes of one chunk: a function of model, salt and token prefix."""
        prefix = np.asarray(tokens[: (index + 1) * self.chunk], np.uint32).tobytes()
        seed = hashlib.sha256(f"{self.model}|{salt}|".encode() + prefix).digest()[:8]
        rng = np.random.Generator(np.random.SFC64(int.from_bytes(seed, "big")))
        return rng.integers(0, 256, self.chunk_bytes, np.uint8)

    def close(self, unregister=True):
        if unregister:
            self.client.unregister_kv_cache_engine_driven_context(
                self.instance_id).result(RPC_TIMEOUT)
        try:
            self.ctx.close()
        except BufferError:
            pass  # a test still holds a view; the mapping goes with the process
        self.client.close()


class Run:
    _rids = iter(range(1, 1 << 40))  # never reused: a request id names a session

    def __init__(self, args):
        self.url, self.args = args.url, args
        self.id = args.run_id or f"{os.getpid():x}{int(time.time()) & 0xFFFFF:x}"
        self.t = Tally(args.verbose)

    def model(self, name):
        return f"drive-{name}-{self.id}"

    def rid(self):
        return f"req-{self.id}-{os.getpid():x}-{next(Run._rids)}"

    def tokens(self, chunks, chunk_size, seed, extra=0):
        rng = np.random.Generator(np.random.PCG64(seed))
        return rng.integers(1, 150_000, chunks * chunk_size + extra).tolist()


# --------------------------------------------------------------------------
# scenarios
# --------------------------------------------------------------------------


def smoke(run: Run):
    t, model = run.t, run.model("smoke")
    w = Worker(run.url, model)
    c, cs, n = w.client, w.chunk, 4
    t.check(isinstance(cs, int) and cs > 0, "chunk size is a positive int", cs)
    t.eq(c.noop().result(RPC_TIMEOUT), "OK", "noop")
    t.eq(c.ping(None).result(RPC_TIMEOUT), True, "ping(None)")
    t.eq(c.ping(w.instance_id).result(RPC_TIMEOUT), True, "ping(instance)")
    if run.args.must_answer:  # kvtide tells an instance that it does not know once, so that it registers anew
        t.eq([c.ping(-7).result(RPC_TIMEOUT) for _ in range(3)], [False, True, True], "ping(unknown instance)")
    else:
        t.eq(c.ping(-7).result(RPC_TIMEOUT), True, "ping(unknown instance)")
    exp = c.get_experimental().result(RPC_TIMEOUT)
    t.check(isinstance(exp, list) and all(isinstance(x, str) for x in exp),
            "get_experimental is a list of str", exp)

    r = w.reply
    t.check(r.shm_name.startswith("lmcache_l1_pool_"), "pool name prefix", r.shm_name)
    t.check(r.pool_size > 0, "pool size", r.pool_size)
    again = c.register_kv_cache_engine_driven_context(w.payload).result(RPC_TIMEOUT)
    t.check((again.shm_name, again.pool_size) == (r.shm_name, r.pool_size),
            "registering twice answers the same", again)

    toks = run.tokens(n, cs, 1, extra=17)
    rid = run.rid()
    t.eq(w.lookup(toks, rid), 0, "cold lookup")
    t.eq(w.retrieve(toks, rid), None, "retrieve after a miss")

    # the reservation itself, before the data is there
    k = w.key(toks, rid)
    ctx = c.prepare_store(k, w.instance_id).result(RPC_TIMEOUT).context
    slots = ctx.get("slots", [])
    t.eq(ctx.get("chunk_indices"), list(range(n)), "chunk_indices of a new prefix")
    t.check(len(slots) == n, "one slot per chunk", len(slots))
    t.check(all(set(s) == {"offset", "length", "shape", "dtype"} for s in slots), "slot fields")
    t.check(all(s["length"] == w.chunk_bytes for s in slots), "slot length", slots[:1])
    t.check(all(list(s["shape"]) == w.shape for s in slots), "slot shape", slots[:1])
    t.check(all(s["dtype"] == "float16" for s in slots), "slot dtype", slots[:1])
    spans = sorted((s["offset"], s["offset"] + s["length"]) for s in slots)
    t.check(all(a[1] <= b[0] for a, b in zip(spans, spans[1:])), "slots do not overlap", spans)
    t.check(spans[0][0] >= 0 and spans[-1][1] <= r.pool_size, "slots lie in the pool", spans)
    t.check(all(s["offset"] % 4096 == 0 for s in slots), "slots are 4 KiB aligned", spans)

    # a reserved, uncommitted chunk
    other = run.rid()
    t.eq(w.lookup(toks, other), 0, "lookup sees nothing before commit")
    ctx2 = c.prepare_store(w.key(toks, other), w.instance_id).result(RPC_TIMEOUT).context
    t.eq(ctx2, {"slots": [], "chunk_indices": []}, "a second prepare_store gets no slots")
    w.end(other)

    for i, buf in enumerate(w.ctx._build_slot_tensors(slots)):
        raw_bytes(buf)[:] = w.pattern(toks, i)
        del buf
    t.eq(c.commit_store(k, w.instance_id, b"").result(RPC_TIMEOUT), True, "commit_store")
    t.eq(c.commit_store(k, w.instance_id, b"").result(RPC_TIMEOUT), False, "commit_store twice")
    t.eq(w.end(rid), None, "end_session")
    t.eq(w.end(rid), None, "end_session twice")
    rid = run.rid()
    t.eq(w.store(toks, rid), [], "nothing left to store")
    w.end(rid)

    rid = run.rid()
    t.eq(w.lookup(toks, rid), n, "hot lookup (partial last chunk ignored)")
    t.eq(c.query_prefetch_status(rid).result(RPC_TIMEOUT), 0, "a result is handed out once")
    t.eq(w.retrieve(toks, rid), True, "retrieved bytes")
    t.eq(c.commit_retrieve(w.key(toks, rid), w.instance_id).result(RPC_TIMEOUT), True,
         "commit_retrieve twice")
    w.end(rid)

    rid = run.rid()
    k = w.key(toks, rid).no_worker_id_version()
    c.lookup(k, 1).result(RPC_TIMEOUT)
    hits, polls = None, 0
    while hits is None and polls < 1000:
        hits = c.query_prefetch_status(rid).result(RPC_TIMEOUT)
        polls += 1
    t.eq(hits, n, "hot lookup by polling query_prefetch_status")
    t.eq(w.retrieve(toks, rid, 0, 2), True, "retrieve of the first two chunks only")
    t.eq(w.release(toks, rid, 2, n), None, "free_lookup_locks of the rest")
    w.end(rid)

    longer = toks[: n * cs] + run.tokens(2, cs, 2)
    fork = toks[: 2 * cs] + run.tokens(2, cs, 3)
    early = [toks[0] + 1] + toks[1:]
    for what, tt, want in (("longer", longer, n), ("forked after 2", fork, 2),
                           ("first token differs", early, 0), ("shorter than a chunk", toks[: cs - 1], 0),
                           ("exactly one chunk", toks[:cs], 1), ("no tokens", [], 0)):
        rid = run.rid()
        t.eq(w.lookup(tt, rid), want, f"lookup: {what}")
        if want:
            t.eq(w.retrieve(tt, rid, 0, want), True, f"retrieve: {what}")
        w.end(rid)

    # new tail only
    rid = run.rid()
    hits = w.lookup(longer, rid)
    t.eq(w.retrieve(longer, rid, 0, hits), True, "retrieve the shared part")
    t.eq(w.store(longer, rid, hits), [n, n + 1], "store the new tail")
    w.end(rid)
    rid = run.rid()
    t.eq(w.lookup(longer, rid), n + 2, "lookup finds shared part and tail")
    t.eq(w.retrieve(longer, rid), True, "retrieve both")
    w.end(rid)

    t.eq(w.store(longer, run.rid(), 0, 0), [], "empty range")
    t.eq(w.retrieve(toks, run.rid()), None, "retrieve without a lookup")

    # other layouts share nothing with this model
    for dtype, mla in (("bfloat16", False), ("float32", False), ("uint8", True), ("float16", True)):
        v = Worker(run.url, f"{model}-{dtype}-{int(mla)}", dtype=dtype, mla=mla, layers=3, hidden=40)
        rid = run.rid()
        t.eq(v.lookup(toks, rid), 0, f"{dtype} mla={mla}: own namespace")
        t.eq(v.store(toks, rid), list(range(n)), f"{dtype} mla={mla}: store")
        w.end(rid)
        rid = run.rid()
        t.eq(v.lookup(toks, rid), n, f"{dtype} mla={mla}: lookup")
        t.eq(v.retrieve(toks, rid), True, f"{dtype} mla={mla}: bytes")
        v.end(rid)
        v.close()

    t.eq(c.unregister_kv_cache_engine_driven_context(w.instance_id).result(RPC_TIMEOUT), None,
         "unregister")
    t.eq(c.unregister_kv_cache_engine_driven_context(w.instance_id).result(RPC_TIMEOUT), None,
         "unregister twice")
    t.eq(w.lookup(toks, run.rid()), 0, "lookup for a model nobody serves")
    v = Worker(run.url, model)
    rid = run.rid()
    t.eq(v.lookup(toks, rid), n, "data outlives the registration")
    t.eq(v.retrieve(toks, rid), True, "and can be retrieved by the next instance")
    v.end(rid)
    v.close()
    w.close(unregister=False)


def prefix(run: Run):
    t = run.t
    w = Worker(run.url, run.model("prefix"))
    cs, rng = w.chunk, random.Random(7)
    stored, total_hit, total = set(), 0, 0
    bodies = [run.tokens(3, cs, 100 + i) for i in range(4)]
    for i in range(run.args.requests):
        toks = list(rng.choice(bodies))
        for depth in range(rng.randrange(0, 4)):
            toks += run.tokens(1, cs, 1000 + rng.randrange(3) + 10 * depth)
        toks += run.tokens(0, cs, i, extra=rng.randrange(cs))
        chunks = len(toks) // cs
        paths = [tuple(toks[: (j + 1) * cs]) for j in range(chunks)]
        want = 0
        while want < chunks and hash(paths[want]) in stored:
            want += 1
        rid = run.rid()
        got = w.lookup(toks, rid)
        t.eq(got, want, f"request {i}: hit chunks")
        if got:
            t.eq(w.retrieve(toks, rid, 0, got), True, f"request {i}: bytes")
        new = w.store(toks, rid, got) if got < chunks else []
        t.eq(new, list(range(want, chunks)), f"request {i}: stored chunks")
        w.end(rid)
        stored.update(hash(p) for p in paths)
        total_hit, total = total_hit + got, total + chunks
    print(f"  {run.args.requests} requests, {total} chunks, {total_hit} hits", flush=True)
    w.close()


def tenants(run: Run):
    t = run.t
    w = Worker(run.url, run.model("tenants"))
    n = 3
    toks = run.tokens(n, w.chunk, 5)
    salts = ["", "a", "A", "tenant-b", "x" * 128, "naïve 空間", "with space", "a.b:c=d"]
    for s in salts:
        rid = run.rid()
        t.eq(w.lookup(toks, rid, s), 0, f"salt {s[:12]!r}: nothing leaks in")
        t.eq(w.store(toks, rid, salt=s), list(range(n)), f"salt {s[:12]!r}: store")
        w.end(rid)
    for s in salts:
        rid = run.rid()
        t.eq(w.lookup(toks, rid, s), n, f"salt {s[:12]!r}: lookup")
        t.eq(w.retrieve(toks, rid, salt=s), True, f"salt {s[:12]!r}: own bytes")
        w.end(rid)
    rid = run.rid()
    t.eq(w.lookup(toks, rid, "never-seen"), 0, "unknown salt")
    w.end(rid)
    for bad in ("a@b", "a/b", "a\\b", "a\0b", "x" * 129):
        try:
            w.key(toks, run.rid(), salt=bad)
            t.check(False, f"client refuses salt {bad[:5]!r}")
        except ValueError:
            t.check(True, f"client refuses salt {bad[:5]!r}")
    w.close()


def concurrent(run: Run):
    t, n_threads, rounds = run.t, run.args.threads, run.args.rounds
    model = run.model("concurrent")
    shared_tokens = None
    start = threading.Barrier(n_threads)
    ops = [0] * n_threads

    def body(idx):
        try:
            w = Worker(run.url, model)
            cs = w.chunk
            shared = run.tokens(4, cs, 77)
            start.wait(30)
            for r in range(rounds):
                toks = shared + run.tokens(2, cs, 10_000 + idx * 1000 + r)
                rid = f"c-{run.id}-{idx}-{r}"
                hits = w.lookup(toks, rid)
                t.check(0 <= hits <= 4, f"thread {idx} round {r}: only the shared part can hit", hits)
                if hits:
                    t.eq(w.retrieve(toks, rid, 0, hits), True, f"thread {idx} round {r}: bytes")
                wrote = w.store(toks, rid, hits)
                t.check(set(wrote) >= {4, 5}, f"thread {idx} round {r}: private chunks stored", wrote)
                w.end(rid)
                rid += "-b"
                hits = w.lookup(toks, rid)
                t.check(hits == 6 or r == 0, f"thread {idx} round {r}: all 6 hit", hits)
                if hits:
                    t.eq(w.retrieve(toks, rid, 0, hits), True, f"thread {idx} round {r}: bytes again")
                w.end(rid)
                ops[idx] += 1
            w.close(unregister=False)
        except Exception as exc:  # a dead thread is a failed check
            t.check(False, f"thread {idx}: {type(exc).__name__}: {exc}")

    t0 = time.monotonic()
    threads = [threading.Thread(target=body, args=(i,)) for i in range(n_threads)]
    for th in threads:
        th.start()
    for th in threads:
        th.join(300)
    t.check(all(not th.is_alive() for th in threads), "all threads finished")
    dt = time.monotonic() - t0
    print(f"  {n_threads} threads, {sum(ops)} store+retrieve rounds in {dt:.2f} s", flush=True)

    # requests pipelined on one connection
    w = Worker(run.url, model)
    futs = [w.client.noop() for _ in range(200)] + [w.client.ping(None) for _ in range(200)]
    t.check(all(f.result(RPC_TIMEOUT) in ("OK", True) for f in futs), "400 pipelined requests answered")
    toks = [run.tokens(1, w.chunk, 50_000 + i) for i in range(64)]
    rids = [run.rid() for _ in toks]
    acks = [w.client.lookup(w.key(k, r).no_worker_id_version(), 1) for k, r in zip(toks, rids)]
    t.check(all(a.result(RPC_TIMEOUT) is None for a in acks), "64 pipelined lookups acknowledged")
    waits = [w.client.wait_prefetch_status(r, 5.0) for r in rids]
    t.check(all(f.result(RPC_TIMEOUT) == 0 for f in waits), "64 pipelined waits answered")
    for r in rids:
        w.end(r)
    w.close()


def abandoned(run: Run):
    t = run.t
    w = Worker(run.url, run.model("abandoned"))
    c, n = w.client, 3
    toks = run.tokens(n, w.chunk, 9)
    rid = run.rid()
    w.lookup(toks, rid)
    t.eq(w.store(toks, rid), [0, 1, 2], "store")
    w.end(rid)

    # lookup acknowledged, result never asked for
    rid = run.rid()
    c.lookup(w.key(toks, rid).no_worker_id_version(), 1).result(RPC_TIMEOUT)
    t.eq(w.end(rid), None, "end_session with an unread lookup")
    # lookup read, never retrieved
    rid = run.rid()
    t.eq(w.lookup(toks, rid), n, "lookup")
    t.eq(w.end(rid), None, "end_session with unretrieved locks")
    # retrieve prepared, never committed
    rid = run.rid()
    t.eq(w.lookup(toks, rid), n, "lookup")
    t.check(c.prepare_retrieve(w.key(toks, rid), w.instance_id).result(RPC_TIMEOUT).success,
            "prepare_retrieve")
    t.eq(w.end(rid), None, "end_session with an uncommitted retrieve")
    # many of them; the entries stay usable
    for _ in range(20):
        rid = run.rid()
        t.eq(w.lookup(toks, rid), n, "lookup after abandoned ones")
        w.end(rid)
    rid = run.rid()
    t.eq(w.lookup(toks, rid), n, "lookup")
    t.eq(w.retrieve(toks, rid), True, "bytes")
    w.end(rid)

    # the same request id looked up twice in a row
    rid = run.rid()
    c.lookup(w.key(toks, rid).no_worker_id_version(), 1).result(RPC_TIMEOUT)
    t.eq(w.lookup(toks, rid), n, "second lookup under one request id")
    t.eq(w.retrieve(toks, rid), True, "bytes after the second lookup")
    w.end(rid)

    # does an ended session still pin its objects?  A non-forced clear keeps
    # what is locked.
    t.eq(c.clear(False).result(RPC_TIMEOUT), None, "clear(force=False)")
    rid = run.rid()
    kept = w.lookup(toks, rid)
    t.note(f"after 24 abandoned lookups and clear(force=False): {kept} of {n} chunks still there "
           f"({'locks outlive end_session' if kept else 'end_session released the locks'})")
    w.end(rid)
    t.eq(c.clear(True).result(RPC_TIMEOUT), None, "clear(force=True)")
    rid = run.rid()
    left = w.lookup(toks, rid)
    if run.args.l2:
        t.note(f"after clear(force=True), with a second tier: {left} of {n} chunks")
    else:
        t.eq(left, 0, "clear(force=True) drops locked objects too")
    w.end(rid)

    # a well-behaved reader leaves nothing pinned
    toks = run.tokens(n, w.chunk, 10)
    rid = run.rid()
    w.lookup(toks, rid)
    w.store(toks, rid)
    w.end(rid)
    rid = run.rid()
    t.eq(w.lookup(toks, rid), n, "lookup")
    t.eq(w.retrieve(toks, rid, 0, 1), True, "retrieve one chunk")
    w.release(toks, rid, 1, n)
    w.end(rid)
    c.clear(False).result(RPC_TIMEOUT)
    if not run.args.l2:
        rid = run.rid()
        t.eq(w.lookup(toks, rid), 0, "clear(force=False) after a complete request")
        w.end(rid)

    # two declared readers: two retrieves work, a third finds nothing held
    toks = run.tokens(n, w.chunk, 11)
    rid = run.rid()
    w.lookup(toks, rid)
    w.store(toks, rid)
    w.end(rid)
    rid = run.rid()
    t.eq(w.lookup(toks, rid, readers=2), n, "lookup for two readers")
    t.eq(w.retrieve(toks, rid), True, "first reader")
    t.eq(w.retrieve(toks, rid), True, "second reader")
    t.eq(w.retrieve(toks, rid), None, "a third, undeclared reader is refused")
    w.end(rid)

    # locks are counted per object, not per request: a request that never looked
    # up can use, and give back, what another one holds
    toks = run.tokens(n, w.chunk, 13)
    rid = run.rid()
    w.lookup(toks, rid)
    w.store(toks, rid)
    w.end(rid)
    holder, thief = run.rid(), run.rid()
    t.eq(w.lookup(toks, holder), n, "lookup by the holder")
    got = w.retrieve(toks, thief)
    w.end(thief)
    still = w.retrieve(toks, holder)
    w.end(holder)
    t.note(f"a request without lookup retrieves: {got}; the request that did look up then gets: {still} "
           f"({'locks can be taken by others' if got else 'locks belong to their request'})")
    t.check(got is None or got is True, "whatever was retrieved was right", got)
    t.check(still is None or still is True, "whatever was left was right", still)

    # one request id, two prompts, no end_session in between.  The prompts differ
    # from the first token on, so nothing of one may be found under the other.
    one, two = run.tokens(2, w.chunk, 14), run.tokens(3, w.chunk, 15)
    rid = run.rid()
    first = w.store(one, rid)
    second = w.store(two, rid)
    w.end(rid)
    seen = {}
    for name, toks in (("first", one), ("second", two), ("mixed", one + two[2 * w.chunk:])):
        rid = run.rid()
        seen[name] = w.lookup(toks, rid)
        w.release(toks, rid, 0, seen[name]) if seen[name] else None
        w.end(rid)
    t.check(first == [0, 1] and seen["first"] == 2, "first prompt of a reused request id", (first, seen))
    t.note(f"second prompt under the same request id: stored {second}, found {seen['second']} of 3; "
           f"a prompt nobody sent (first + tail of second) hits {seen['mixed']} of 3 "
           f"({'WRONG DATA is served under it' if seen['mixed'] > 2 else 'kept apart'})")

    # end_session after the model is gone
    v = Worker(run.url, w.model + "-gone")
    toks = run.tokens(1, w.chunk, 16)
    rid = run.rid()
    v.lookup(toks, rid)
    v.close()
    fut = w.client.end_session(rid)
    t.note("end_session of a request whose model was unregistered: "
           f"{'answered' if fut.wait(1.0) else 'NO ANSWER (the client waits for its timeout)'}")

    # an instance that disappears between prepare and commit
    v = Worker(run.url, w.model)
    toks = run.tokens(n, w.chunk, 12)
    rid = run.rid()
    ctx = v.client.prepare_store(v.key(toks, rid), v.instance_id).result(RPC_TIMEOUT).context
    t.check(len(ctx["slots"]) == n, "prepare_store by the instance that will vanish")
    v.close()
    rid = run.rid()
    seen = w.lookup(toks, rid)
    t.note(f"prepare_store, no data written, instance unregistered: lookup hits {seen} of {n} "
           f"({'never-written bytes are published' if seen else 'reservation dropped'})")
    w.end(rid)
    w.close()


def pickle_path(run: Run):
    import pickle

    t = run.t
    if not REAL_TORCH:
        t.skip("pickle path needs the real torch")
        return
    w = Worker(run.url, run.model("pickle"), use_pickle=True)
    c, n = w.client, 2
    toks = run.tokens(n, w.chunk, 21)

    def chunk(i):
        return torch.from_numpy(w.pattern(toks, i).copy()).view(w.dtype).reshape(w.shape)

    chunks = [chunk(i) for i in range(n)]
    rid = run.rid()
    t.eq(w.ctx.commit_store(w.key(toks, rid), w.instance_id, chunks), True,
         "commit_store with inline data, no prepare")
    w.end(rid)
    rid = run.rid()
    t.eq(w.lookup(toks, rid), n, "lookup")
    resp = c.prepare_retrieve(w.key(toks, rid), w.instance_id).result(RPC_TIMEOUT)
    t.eq(resp.success, True, "prepare_retrieve")
    if resp.data:
        got = pickle.loads(resp.data)
        t.check(all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(got, chunks)),
                "inline bytes")
    else:
        from lmcache.v1.multiprocess.transfer_context.shm import EngineDrivenContextShm

        shm = EngineDrivenContextShm(w.ctx.metadata, c, RPC_TIMEOUT, w.reply.shm_name, w.reply.pool_size)
        got = shm._build_slot_tensors(resp.context["slots"])
        t.check(all(torch.equal(a.view(torch.uint8), b.view(torch.uint8)) for a, b in zip(got, chunks)),
                "bytes of inline data, read back through the pool")
    t.eq(c.commit_retrieve(w.key(toks, rid), w.instance_id).result(RPC_TIMEOUT), True, "commit_retrieve")
    w.end(rid)
    short = run.tokens(2, w.chunk, 22)
    t.eq(c.commit_store(w.key(short, run.rid()), w.instance_id, pickle.dumps(chunks[:1]))
         .result(RPC_TIMEOUT), False, "inline data with a chunk missing")
    wrong = [x.reshape(-1) for x in chunks]
    t.eq(c.commit_store(w.key(run.tokens(2, w.chunk, 23), run.rid()), w.instance_id, pickle.dumps(wrong))
         .result(RPC_TIMEOUT), False, "inline data of another shape")
    w.close()


def engine(run: Run):
    """The adapters an inference engine loads, with paged KV tensors on the CPU."""
    t = run.t
    if not REAL_TORCH:
        t.skip("engine adapters need the real torch")
        return
    from lmcache.integration.vllm.vllm_multi_process_adapter import (
        LMCacheMPSchedulerAdapter,
        LMCacheMPWorkerAdapter,
        LoadStoreOp,
        ParallelStrategy,
    )

    one = ParallelStrategy(mla_only=False, vllm_world_size=1, vllm_worker_id=0, tp_size=1, pp_size=1, n_servers=1)
    conf = {"lmcache.mp.mq_timeout": RPC_TIMEOUT}
    ctx, model, block = zmq.Context.instance(), run.model("engine"), 16
    sched = LMCacheMPSchedulerAdapter([run.url], ctx, model, block, one, extra_config=conf)
    work = LMCacheMPWorkerAdapter(run.url, ctx, model, block, one, extra_config=conf)
    chunk = sched.num_blocks_per_chunk() * block
    blocks = 4 * chunk // block
    kv = {f"layers.{i}": torch.randn(2, 2 * blocks, block, 2, 64).to(torch.bfloat16) for i in range(4)}
    want = {k: v[:, :blocks].clone() for k, v in kv.items()}
    work.register_kv_caches(kv)
    toks = run.tokens(4, chunk, 61)

    def poll(fn, secs=10.0):
        end = time.monotonic() + secs
        while time.monotonic() < end:
            got = fn()
            if got is not None:
                return got
            time.sleep(0.002)
        return None

    def hit(rid):
        sched.maybe_submit_lookup_request(rid, toks)
        return poll(lambda: sched.check_lookup_result(rid))

    def finish(rid):
        sched.end_session(rid)
        sched.cleanup_lookup_result(rid)

    a, b, c = run.rid(), run.rid(), run.rid()
    t.check(sched.is_healthy, "scheduler adapter reports a healthy server")
    t.eq(hit(a), 0, "scheduler: cold lookup, in tokens")
    op = LoadStoreOp(token_ids=toks, block_ids=[list(range(blocks))], start=0, end=4 * chunk)
    work.submit_store_request(a, op, work.create_recorded_event())
    t.eq(poll(lambda: work.get_finished({a})[0] or None), {a}, "worker: store finished")
    finish(a)
    for v in kv.values():
        v.zero_()
    t.eq(hit(b), 4 * chunk, "scheduler: hot lookup, in tokens")
    op = LoadStoreOp(token_ids=toks, block_ids=[list(range(blocks, 2 * blocks))], start=0, end=4 * chunk)
    work.submit_retrieve_request(b, op, work.create_recorded_event())
    t.eq(poll(lambda: work.get_finished(set())[1] or None), {b}, "worker: retrieve finished")
    t.check(all(torch.equal(kv[k][:, blocks:], want[k]) for k in kv), "paged blocks hold the stored bytes")
    t.check(all(not v[:, :blocks].any() for v in kv.values()), "other blocks untouched")
    finish(b)
    t.eq(sched.reset_cache(), True, "scheduler: reset_cache")
    if not run.args.l2:
        t.eq(hit(c), 0, "scheduler: nothing after reset_cache")
        finish(c)
    work.shutdown()
    sched.shutdown()


def _l2_plan(run: Run, w: Worker):
    per = run.args.l2_chunks
    total = int(w.reply.pool_size * run.args.l2_factor)
    count = max(4, total // (per * w.chunk_bytes))
    return per, count


def l2(run: Run):
    t = run.t
    w = Worker(run.url, run.model("l2"), layers=8, hidden=128)
    per, count = _l2_plan(run, w)
    size = per * count * w.chunk_bytes
    print(f"  {count} prefixes x {per} chunks x {w.chunk_bytes >> 10} KiB = {size >> 20} MiB "
          f"through a pool of {w.reply.pool_size >> 20} MiB", flush=True)
    starved = 0
    t0 = time.monotonic()
    for i in range(count):
        toks = run.tokens(per, w.chunk, 300_000 + i)
        rid = run.rid()
        t.eq(w.lookup(toks, rid), 0, f"prefix {i}: new")
        done, deadline = set(), time.monotonic() + 30
        while len(done) < per and time.monotonic() < deadline:
            got = w.store(toks, rid)
            done.update(got)
            if len(done) < per:
                # an empty answer means "cached" or "no room": only a lookup tells
                probe = run.rid()
                seen = w.lookup(toks, probe)
                w.release(toks, probe, 0, seen) if seen else None
                w.end(probe)
                if seen == per:
                    break
                starved += 1
                time.sleep(0.05)
        t.check(len(done) == per, f"prefix {i}: every chunk stored", sorted(done))
        w.end(rid)
        time.sleep(run.args.l2_pace)
    dt = time.monotonic() - t0
    print(f"  stored in {dt:.1f} s ({size / dt / 1e9:.2f} GB/s); {starved} times the pool had no room",
          flush=True)
    time.sleep(run.args.l2_settle)
    _l2_check(run, w, per, count)
    w.close()


def _l2_check(run: Run, w: Worker, per, count):
    t, hits_total = run.t, 0
    t0 = time.monotonic()
    for i in range(count):
        toks = run.tokens(per, w.chunk, 300_000 + i)
        rid = run.rid()
        hits = w.lookup(toks, rid)
        hits_total += hits
        if run.args.l2:
            t.eq(hits, per, f"prefix {i}: found in either tier")
        else:
            t.check(0 <= hits <= per, f"prefix {i}: hits", hits)
        if hits:
            t.eq(w.retrieve(toks, rid, 0, hits), True, f"prefix {i}: bytes")
        w.end(rid)
    dt = time.monotonic() - t0
    print(f"  {hits_total} of {per * count} chunks read back and verified in {dt:.1f} s", flush=True)


def l2_verify(run: Run):
    if not run.args.run_id:
        raise SystemExit("l2-verify needs the --run-id of the l2 run")
    run.args.l2 = True
    w = Worker(run.url, run.model("l2"), layers=8, hidden=128)
    per, count = _l2_plan(run, w)
    _l2_check(run, w, per, count)
    w.close()


def no_room(run: Run):
    """A store that cannot fit. The answer looks like "everything is cached"."""
    t = run.t
    probe = Worker(run.url, run.model("no-room-probe"))
    pool = probe.reply.pool_size
    probe.close()
    layers = max(1, pool // 8 // (2 * 256 * 1024 * 2))
    w = Worker(run.url, run.model("no-room"), layers=layers, hidden=1024, slots=256)
    c, many = w.client, pool // w.chunk_bytes + 4  # chunks of an eighth of the pool
    c.clear(True).result(RPC_TIMEOUT)
    toks = run.tokens(many, w.chunk, 41)
    rid = run.rid()
    k = w.key(toks, rid)
    if run.args.must_answer:  # kvtide keeps the longest prefix that fits
        kept = w.store(toks, rid)
        t.check(0 < len(kept) < many and kept == list(range(len(kept))), "the longest prefix that fits is stored", kept)
        w.end(rid)
        rid = run.rid()
        t.eq(w.lookup(toks, rid), len(kept), "and is found")
        t.eq(w.retrieve(toks, rid, 0, len(kept)), True, "with its bytes")
        w.end(rid)
        c.clear(True).result(RPC_TIMEOUT)
        rid = run.rid()
    else:
        ctx = c.prepare_store(k, w.instance_id).result(RPC_TIMEOUT).context
        t.eq(ctx, {"slots": [], "chunk_indices": []}, f"{many} chunks of {w.chunk_bytes >> 20} MiB: no slots at all")
        t.eq(c.commit_store(k, w.instance_id, b"").result(RPC_TIMEOUT), False, "and nothing to commit")
        w.end(rid)
        rid = run.rid()
        t.eq(w.lookup(toks, rid), 0, "nothing was stored")
        w.end(rid)
    rid = run.rid()
    t.eq(w.store(toks, rid, 0, 2), [0, 1], "a store that fits still works")
    w.end(rid)
    rid = run.rid()
    t.eq(w.lookup(toks, rid), 2, "and is found")
    t.eq(w.retrieve(toks, rid, 0, 2), True, "with its bytes")
    w.end(rid)
    c.clear(True).result(RPC_TIMEOUT)
    w.close()


# -- raw frames --------------------------------------------------------------

ENC = msgspec.msgpack.encode
OP = dict(register=14, unregister=15, lookup=8, query=9, wait=10, free=12, end=13,
          prepare_store=16, commit_store=17, prepare_retrieve=18, commit_retrieve=19,
          clear=20, chunk=21, ping=22, report=23, noop=24, store=6, p2p=29, experimental=32)


class Wire:
    """A bare DEALER socket, to send what the client library would refuse to."""

    def __init__(self, url):
        self.url, self.ctx = url, zmq.Context.instance()
        self.sock = None
        self.uid = 0
        self.reopen()

    def reopen(self):
        if self.sock is not None:
            self.sock.close(linger=0)
        self.sock = self.ctx.socket(zmq.DEALER)
        self.sock.linger = 0
        self.sock.connect(self.url)

    def call(self, op, *payloads, uid=None, wait=3000, raw_op=None, raw=False):
        """Reply frames, or None when the server stays silent."""
        self.uid += 1
        b_uid = ENC(self.uid) if uid is None else uid
        b_op = ENC(op) if raw_op is None else raw_op
        frames = [p if raw or isinstance(p, Raw) else ENC(p) for p in payloads]
        self.sock.send_multipart([b_uid, b_op, *map(bytes, frames)])
        deadline = time.monotonic() + wait / 1000
        while (left := deadline - time.monotonic()) > 0:
            if not self.sock.poll(max(1, int(left * 1000))):
                return None
            reply = self.sock.recv_multipart()
            if reply and reply[0] == b_uid:
                return reply
        return None

    def alive(self, wait=3000):
        return self.call(OP["noop"], wait=wait) is not None


class Raw(bytes):
    """Payload bytes that are sent as they are."""


def refusal(reply, b_op) -> bool:
    """True when a reply is the negative value of its type, or makes the client's future fail."""
    if reply[1] != b_op:
        return True
    if len(reply) == 2:
        return True
    try:
        v = msgspec.msgpack.decode(reply[2])
    except msgspec.DecodeError:
        return False
    if isinstance(v, dict):
        slots = v.get("context", {}).get("slots", []) if isinstance(v.get("context"), dict) else []
        return not v.get("success") and not slots and not v.get("shm_name")
    return v in (None, False, 0, [], [b"", False], [1, False])


def bad_input(run: Run):
    t, quiet = run.t, run.args.silence_ms
    model = run.model("bad")
    w = Worker(run.url, model)
    cs, iid, wire = w.chunk, w.instance_id, Wire(run.url)
    good = dict(model_name=model, world_size=1, worker_id=0, token_ids=[3] * cs, start=0, end=cs,
                request_id="bad", cache_salt="", request_configs=None, num_kv_readers=1)

    def key(**over):
        d = dict(good, request_id=run.rid())
        d.update(over)
        return {k: v for k, v in d.items() if v is not ...}

    def silent(what, op, *payloads, **kw):
        """A request that cannot be served: lmcache 0.5.6 says nothing; with --must-answer the
        server has to answer at once with the negative value (or an answer that fails the future)."""
        if not run.args.must_answer:
            r = wire.call(op, *payloads, wait=quiet, **kw)
            t.check(r is None, f"no answer: {what}", r)
        else:
            nameless = "raw_op" in kw  # no operation to answer: silence is right, too
            r = wire.call(op, *payloads, wait=quiet if nameless else 3000, **kw)
            ok = refusal(r, kw.get("raw_op", ENC(op))) if r is not None else nameless
            t.check(ok, f"refused: {what}", r)
        if not t.check(wire.alive(), f"server lives after: {what}"):
            raise SystemExit("server stopped answering")

    def answers(what, want, op, *payloads, **kw):
        r = wire.call(op, *payloads, **kw)
        body = None if r is None else ([msgspec.msgpack.decode(x) for x in r[2:]])
        t.check(r is not None and body == want, f"{what} -> {want!r}", r)
        return body

    # envelope: uid and operation come back byte for byte
    for uid in (b"", b"\xc1\xff", ENC("text"), ENC(2**63), b"x" * 4096):
        r = wire.call(OP["noop"], uid=uid)
        t.check(r == [uid, ENC(24), ENC("OK")], f"uid {uid[:6]!r} echoed", r)
    r = wire.call("noop")
    t.check(r is not None and r[1:] == [ENC("noop"), ENC("OK")], "operation by name", r)
    r = wire.call(0, raw_op=b"\xcc\x18")
    t.check(r is not None and r[1:] == [b"\xcc\x18", ENC("OK")], "operation in a wider int encoding", r)
    answers("chunk size", [cs], OP["chunk"])
    answers("experimental", [w.client.get_experimental().result(RPC_TIMEOUT)], OP["experimental"])

    # payload count
    silent("noop with a payload", OP["noop"], 1)
    silent("ping without its payload", OP["ping"])
    silent("ping with two payloads", OP["ping"], None, None)
    silent("lookup with the key only", OP["lookup"], key())
    silent("commit_store without data", OP["commit_store"], key(), iid)
    silent("clear without its flag", OP["clear"])

    # operations
    for op in (0, 11, 34, 999, -1, 2**63, "nosuch", "", "NOOP", 1.5, None, [24], {"a": 1}, b"noop", False):
        silent(f"operation {op!r}", op)
    silent("operation byte 0xc1", 0, raw_op=b"\xc1")
    silent("operation with trailing bytes", 0, raw_op=b"\x18\x00")
    silent("operation truncated", 0, raw_op=b"\xcd\x00")
    for ctl in (b"ack", b"cancel", b"", b"other"):
        silent(f"stream control {ctl!r} for no stream", 0, Raw(ctl), raw_op=b"")
    silent("empty operation, no payload", 0, raw_op=b"")

    # payload types
    answers("ping(nil)", [True], OP["ping"], None)
    for v in ("x", 1.0, True, [1], {}):
        silent(f"ping({v!r})", OP["ping"], v)
    silent("ping(garbage)", OP["ping"], Raw(b"\xc1"))
    silent("ping(empty frame)", OP["ping"], Raw(b""))
    for what, k in (
            ("not msgpack", Raw(b"\xff\xff\xc1")), ("an int", 5), ("an array", [1, 2]),
            ("empty map", {}), ("no end", key(end=...)), ("no request_id", key(request_id=...)),
            ("string tokens", key(token_ids="abc")), ("float token", key(token_ids=[1.5] * cs)),
            ("null model", key(model_name=None)), ("salt with @", key(cache_salt="a@b")),
            ("salt with /", key(cache_salt="a/b")), ("salt with NUL", key(cache_salt="a\0b")),
            ("salt of 129", key(cache_salt="s" * 129)), ("readers = 0", key(num_kv_readers=0)),
            ("readers absent", key(num_kv_readers=...)), ("token over 32 bits", key(token_ids=[2**32] * cs)),
            ("negative token", key(token_ids=[-1] * cs))):
        silent(f"lookup key: {what}", OP["lookup"], k, 1)
    # integers are coerced, unknown fields skipped, defaults filled in
    answers("lookup, tp_size as text", [], OP["lookup"], key(worker_id=None), "1")
    answers("lookup, unknown key field", [], OP["lookup"], key(worker_id=None, future_field=[1]), 1)
    answers("lookup, salt absent", [], OP["lookup"], key(worker_id=None, cache_salt=...), 1)
    answers("lookup, configs present", [], OP["lookup"], key(request_configs={"a": {"b": 1}}), 1)
    answers("lookup, unknown model", [], OP["lookup"], key(model_name="nobody", num_kv_readers=0), 1)
    answers("lookup, unknown world size", [], OP["lookup"], key(world_size=77), 1)
    for what, k in (("less than a chunk", key(token_ids=[3] * (cs - 1), end=cs - 1)),
                    ("end not aligned", key(token_ids=[3] * (2 * cs), end=cs + 44)),
                    ("end past the tokens", key(end=10 * cs)), ("end = 0", key(end=0))):
        answers(f"lookup, {what}", [], OP["lookup"], k, 1)
        answers(f"lookup, {what}: result", [0], OP["wait"], k["request_id"], 5.0)

    # results and sessions nobody knows
    answers("query of an unknown request", [0], OP["query"], "nobody")
    answers("wait for an unknown request", [0], OP["wait"], "nobody", 1.0)
    answers("wait, integer timeout", [0], OP["wait"], "nobody", 1)
    silent("wait, text timeout", OP["wait"], "nobody", "1")
    answers("end of an unknown session", [], OP["end"], "nobody")
    silent("end of a numeric session", OP["end"], 5)
    answers("free locks of an unknown request", [], OP["free"], key(), 1)
    answers("free locks, empty range", [], OP["free"], key(end=0), 1)
    answers("unregister an unknown instance", [], OP["unregister"], 987654321)

    # transfers
    for op in ("prepare_store", "prepare_retrieve", "commit_retrieve"):
        silent(f"{op} by an unregistered instance", OP[op], key(), 987654321)
        silent(f"{op} with a scheduler key", OP[op], key(worker_id=None), iid) \
            if op != "commit_retrieve" else None
    silent("commit_store by an unregistered instance", OP["commit_store"], key(), 987654321, b"")
    silent("prepare_store, end not aligned", OP["prepare_store"], key(token_ids=[3] * (2 * cs), end=cs + 44), iid)
    silent("prepare_store, end past the tokens", OP["prepare_store"], key(end=2 * cs), iid)
    silent("prepare_store, start not aligned", OP["prepare_store"], key(start=1), iid)
    empty = [{"context": {"slots": [], "chunk_indices": []}}]
    answers("prepare_store, empty range", empty, OP["prepare_store"], key(end=0), iid)
    answers("prepare_store, start after end", empty, OP["prepare_store"], key(start=cs, end=0), iid)
    answers("commit_store without prepare", [False], OP["commit_store"], key(), iid, b"")
    answers("commit_retrieve without prepare", [True], OP["commit_retrieve"], key(), iid)
    answers("prepare_retrieve without lookup", [{"success": False, "data": b"", "context": {}}],
            OP["prepare_retrieve"], key(), iid)
    silent("commit_store with garbage data", OP["commit_store"], key(), iid, b"not a pickle")
    silent("commit_store with text data", OP["commit_store"], key(), iid, "text")

    # registration
    reg = dict(instance_id=987650001, model_name=model + "-r", world_size=1, block_size=16, num_layers=1,
               hidden_dim_size=8, dtype_str="float16", use_mla=False, num_physical_slots=cs)
    silent("register, unknown dtype", OP["register"], dict(reg, dtype_str="float17"))
    silent("register, a torch name that is no dtype", OP["register"], dict(reg, dtype_str="Size"))
    silent("register, zero slots", OP["register"], dict(reg, num_physical_slots=0))
    silent("register, negative slots", OP["register"], dict(reg, num_physical_slots=-1))
    silent("register, missing field", OP["register"], {k: v for k, v in reg.items() if k != "use_mla"})
    silent("register, text id", OP["register"], dict(reg, instance_id="1"))
    silent("register, as an array", OP["register"], list(reg.values()))
    ok = [{"shm_name": w.reply.shm_name, "pool_size": w.reply.pool_size}]
    answers("register", ok, OP["register"], reg)
    answers("register, same id, other model", ok, OP["register"], dict(reg, model_name=model + "-s"))
    answers("register, slots absent", ok, OP["register"],
            {k: (v if k != "instance_id" else 987650002) for k, v in reg.items() if k != "num_physical_slots"})
    for i in (987650001, 987650002):
        answers("unregister", [], OP["unregister"], i)

    # operations of the other transfer mode or of optional modules
    silent("store (engine reads device memory)", OP["store"], key(), iid, [[1]], b"")
    silent("blend rope registration", 25)
    silent("blend handshake", 33, 1)
    answers("block allocation report", [], OP["report"], iid, model,
            [dict(req_id="x", new_block_ids=[1], new_token_ids=[2])])

    # large and many frames
    answers("1 MiB request id", [0], OP["query"], "r" * (1 << 20))
    silent("200 payload frames", OP["noop"], *([0] * 200))
    silent("8 MiB of garbage as a key", OP["lookup"], Raw(os.urandom(8 << 20)), 1)
    for _ in range(50):
        wire.reopen()
        wire.sock.send_multipart([b"\x01", ENC(OP["noop"])])
    wire.reopen()
    t.check(wire.alive(), "50 clients that left before their answer")
    rng = random.Random(3)
    for _ in range(300):
        n = rng.randrange(2, 7)
        frames = [rng.randbytes(rng.randrange(0, 40)) for _ in range(n)]
        if rng.random() < 0.7:
            frames[1] = ENC(rng.choice([6, 8, 9, 10, 12, 13, 15, 16, 17, 18, 19, 21, 22, 23, 24, 29, 30]))
        wire.sock.send_multipart(frames)
    wire.reopen()
    t.check(wire.alive(10_000), "300 random messages")

    rid = run.rid()
    toks = run.tokens(2, cs, 31)
    t.eq(w.lookup(toks, rid), 0, "normal service afterwards: lookup")
    t.eq(w.store(toks, rid), [0, 1], "normal service afterwards: store")
    w.end(rid)
    rid = run.rid()
    t.eq(w.lookup(toks, rid), 2, "normal service afterwards: hit")
    t.eq(w.retrieve(toks, rid), True, "normal service afterwards: bytes")
    w.end(rid)
    w.close()


def short_frame(run: Run):
    t = run.t
    wire = Wire(run.url)
    if not t.check(wire.alive(), "server answers"):
        return
    for frames in ([b"x"], [b""], [ENC(1)]):
        wire.sock.send_multipart(frames)
        t.check(wire.alive(), f"server lives after a message of one frame {frames[0]!r}")
        wire.reopen()
        t.check(wire.alive(), "and answers other connections")


SCENARIOS = {
    "smoke": smoke, "prefix": prefix, "l2": l2, "l2-verify": l2_verify, "tenants": tenants,
    "concurrent": concurrent, "abandoned": abandoned, "pickle": pickle_path, "engine": engine,
    "no-room": no_room, "bad-input": bad_input, "short-frame": short_frame,
}
ALL = ["smoke", "prefix", "tenants", "concurrent", "abandoned", "pickle", "engine", "no-room", "bad-input"]


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--url", required=True)
    ap.add_argument("--scenario", required=True, choices=[*SCENARIOS, "all"])
    ap.add_argument("--run-id", default="", help="namespace of the run; default: a fresh one")
    ap.add_argument("--requests", type=int, default=120, help="prefix: number of requests")
    ap.add_argument("--threads", type=int, default=8, help="concurrent: threads")
    ap.add_argument("--rounds", type=int, default=12, help="concurrent: rounds per thread")
    ap.add_argument("--l2", action="store_true", help="the server has a second tier")
    ap.add_argument("--l2-factor", type=float, default=2.5, help="l2: data as a multiple of the pool")
    ap.add_argument("--l2-chunks", type=int, default=8, help="l2: chunks per prefix")
    ap.add_argument("--l2-pace", type=float, default=0.02, help="l2: pause between stores, seconds")
    ap.add_argument("--l2-settle", type=float, default=2.0, help="l2: pause before reading back, seconds")
    ap.add_argument("--must-answer", action="store_true",
                    help="assert kvtide's contract where lmcache 0.5.6 falls short: refused requests are answered, "
                         "an unknown instance is told once, the longest prefix that fits is stored")
    ap.add_argument("--silence-ms", type=int, default=200, help="bad-input: how long silence must last")
    ap.add_argument("-v", "--verbose", action="store_true")
    args = ap.parse_args()
    names = ALL if args.scenario == "all" else [args.scenario]
    bad = 0
    for name in names:
        print(f"== {name} ({'torch' if REAL_TORCH else 'torch stand-in'}) {args.url}", flush=True)
        run = Run(args)
        t0 = time.monotonic()
        try:
            SCENARIOS[name](run)
        except SystemExit as exc:
            run.t.check(False, f"stopped: {exc}")
        except Exception as exc:
            import traceback

            traceback.print_exc()
            run.t.check(False, f"stopped by {type(exc).__name__}: {exc}")
        t = run.t
        skipped = f", {t.skipped} skipped" if t.skipped else ""
        print(f"{name}: {t.passed} passed, {t.failed} failed{skipped}  [{time.monotonic() - t0:.1f} s]", flush=True)
        bad += t.failed
    sys.stdout.flush()
    os._exit(1 if bad else 0)  # client threads and mapped views need no tidy end


if __name__ == "__main__":
    main()
