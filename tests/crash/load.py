#!/usr/bin/env python3
"""One client of a crash round: the real client library under content-tagged load.

    load.py --role worker --rank 0 --name worker-0.1 --url tcp://127.0.0.1:PORT --folder DIR

Everybody of a round stores and retrieves chunks of the same documents. Each chunk carries who wrote
it, in which of its operations, and for which key; the rest of its bytes follow from that. So every
byte that is read tells whether it is right, and whose it is.

What a client does goes into its history, `DIR/NAME.jsonl`: one line before each call and one after
it, each written at once, so that whoever is killed leaves behind what it was about to do. Nobody
judges here: `verdict.rs` does, when all is over.

Roles
    scheduler    looks up for two ranks and tells the two workers what to retrieve and to store
    worker       does what the scheduler tells it; --rank says which of the two it is
    loner        scheduler and worker in one, over documents that two loners share
    files        no client: says of each object below DIR/objects whose it is, one JSON a line

SIGTERM ends a client in order: it finishes what it is at, unregisters, and ends with status 0.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import socket
import struct
import sys
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "client"))

import numpy as np  # noqa: E402
from drive import (  # noqa: E402
    EngineDrivenContextMetadata,
    IPCCacheServerKey,
    MemoryLayoutDesc,
    RegisterEngineDrivenContextPayload,
    RequestClientFactory,
    create_engine_driven_context,
    raw_bytes,
    torch,
)

CALL_SECS = 1.0
CHUNK_TOKENS = 256
LAYERS, HIDDEN = 2, 8
SHAPE = [2, LAYERS, CHUNK_TOKENS, HIDDEN]
CHUNK_BYTES = int(np.prod(SHAPE)) * 2

# Documents: families that share their first chunks and then fork. A new family comes up every half
# second, for everybody, and four of them are in use: there is always something to store and to hit.
FORKS, CHUNKS, FORK_AT = 3, 6, 3
FAMILIES, FAMILY_NS = 4, 500_000_000


class Lost(Exception):
    """A call was not answered in time."""


# --------------------------------------------------------------------------
# what is stored
# --------------------------------------------------------------------------


def labels(family: int, fork: int, chunks: int) -> list[str]:
    """Names of a document's chunks. A name stands for the chunk and all before it."""
    return [f"{family}:{c}" if c < FORK_AT else f"{family}.{fork}:{c}" for c in range(chunks)]


def seeded(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


_TOKENS: dict[str, tuple[int, ...]] = {}


def tokens(keys: list[str]) -> tuple[int, ...]:
    out: tuple[int, ...] = ()
    for key in keys:
        if key not in _TOKENS:
            rng = np.random.Generator(np.random.PCG64(seeded(key)))
            _TOKENS[key] = tuple(rng.integers(1, 150_000, CHUNK_TOKENS).tolist())
        out += _TOKENS[key]
    return out


# Magic, writer, number of the writer's operation, digest of the key.
STAMP = struct.Struct("<8s32sQ16s")
MAGIC = b"kvtcrash"


def digest(model: str, key: str, rank: int, world: int) -> bytes:
    return hashlib.sha256(f"{model}|{key}|{rank}/{world}".encode()).digest()[:16]


def payload(stamp: bytes) -> bytes:
    seed = int.from_bytes(hashlib.sha256(stamp).digest()[:8], "big")
    rng = np.random.Generator(np.random.SFC64(seed))
    return stamp + rng.bytes(CHUNK_BYTES - STAMP.size)


def judge(got: bytes, want: bytes) -> dict:
    """Whose bytes these are, or what is wrong with them."""
    magic, writer, number, key = STAMP.unpack_from(got)
    if magic != MAGIC:
        return {"wrong": f"no stamp: {got[:16].hex()}"}
    whose = {"writer": writer.rstrip(b"\0").decode(errors="replace"), "op": number}
    if key != want:
        return {"wrong": "another key's bytes", **whose}
    right = payload(got[: STAMP.size])
    if got != right:
        at = next(i for i, (a, b) in enumerate(zip(got, right)) if a != b)
        return {"wrong": f"torn from byte {at} on", **whose}
    return whose


# --------------------------------------------------------------------------
# one client
# --------------------------------------------------------------------------


class Client:
    def __init__(self, args):
        self.name, self.model, self.world, self.rank = args.name, args.model, args.world, args.rank
        self.folder, self.rng = args.folder, random.Random(f"{args.seed}/{args.name}")
        self.instance = (os.getpid() << 16) + 1
        self.leaving, self.parent = False, os.getppid()
        self.ops = self.requests = 0
        path = os.path.join(args.folder, f"{args.name}.jsonl")
        self.history = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND | os.O_EXCL)
        signal.signal(signal.SIGTERM, lambda *_: setattr(self, "leaving", True))
        self.client = RequestClientFactory.create(args.url)
        self.context = None
        self.write(who=self.name, instance=self.instance)

    def write(self, **line):
        text = json.dumps({"t": time.monotonic_ns(), **line}, separators=(",", ":"))
        os.write(self.history, text.encode() + b"\n")

    def begin(self, do: str, **line) -> int:
        """The line before a call. Names the operation in all of its later lines."""
        self.ops += 1
        self.write(op=self.ops, do=do, **line)
        return self.ops

    def call(self, op: int, future):
        try:
            return future.result(CALL_SECS)
        except TimeoutError:
            self.write(op=op, lost=True)
            raise Lost from None

    # -- health, as an engine sees to it -----------------------------------

    def ping(self, instance) -> bool:
        op = self.begin("ping")
        ok = bool(self.call(op, self.client.ping(instance)))
        self.write(op=op, did="ping", ok=ok)
        return ok

    def register(self):
        op = self.begin("register", instance=self.instance)
        reply = self.call(op, self.client.register_kv_cache_engine_driven_context(
            RegisterEngineDrivenContextPayload(
                instance_id=self.instance, model_name=self.model, world_size=self.world,
                block_size=16, num_layers=LAYERS, hidden_dim_size=HIDDEN, dtype_str="float16",
                use_mla=False, num_physical_slots=CHUNK_TOKENS)))
        if self.context is not None:
            try:
                self.context.close()
            except BufferError:
                pass  # a view is still held; the mapping goes with the process
        layout = MemoryLayoutDesc(shapes=[torch.Size(SHAPE)], dtypes=[torch.float16])
        meta = EngineDrivenContextMetadata(layout_desc=layout, block_size=16, use_mla=False)
        self.context = create_engine_driven_context(
            meta, self.client, CALL_SECS, reply.shm_name, reply.pool_size)
        if not hasattr(self.context, "_build_slot_tensors"):
            # The server that answered is gone, and its segment with it.
            self.write(op=op, lost=True)
            raise Lost
        self.write(op=op, did="register", pool=reply.shm_name)

    def goes_on(self) -> bool:
        if os.getppid() != self.parent:
            os._exit(1)  # whoever watches the round is gone
        return not self.leaving

    def recover(self, has_instance: bool):
        """Pings until that is answered with true, then registers anew."""
        while self.goes_on():
            try:
                if self.ping(self.instance if has_instance else None):
                    if has_instance:
                        self.register()
                    return
            except Lost:
                continue

    def leave(self, has_instance: bool):
        if has_instance:
            op = self.begin("leave")
            self.call(op, self.client.unregister_kv_cache_engine_driven_context(self.instance))
            self.write(op=op, did="leave")

    def live(self, step, has_instance: bool):
        """Steps until it is told to leave. A lost call or a false ping makes it recover first."""
        self.recover(has_instance)
        while self.goes_on():
            try:
                if self.rng.random() < 0.1 and not self.ping(self.instance if has_instance else None):
                    self.recover(has_instance)
                step()
            except Lost:
                self.recover(has_instance)
        try:
            self.leave(has_instance)
        except Lost:
            sys.exit("its last word was not answered")

    # -- the calls that move or find chunks ----------------------------------

    def key(self, keys, request, first, end, worker, readers=1):
        # An engine sends the tokens of the whole prompt, whatever range it is about.
        return IPCCacheServerKey(
            model_name=self.model, world_size=self.world, worker_id=worker,
            token_ids=tokens(keys), start=first * CHUNK_TOKENS, end=end * CHUNK_TOKENS,
            request_id=request, cache_salt="", num_kv_readers=readers)

    def lookup(self, request, keys, readers=1) -> int:
        op = self.begin("lookup", request=request, model=self.model, world=self.world, keys=keys,
                        readers=readers)
        key = self.key(keys, request, 0, len(keys), None, readers)
        self.call(op, self.client.lookup(key, 1))
        hit = None
        while hit is None:
            hit = self.call(op, self.client.wait_prefetch_status(request, 0.5))
        self.write(op=op, did="lookup", hit=hit)
        return hit

    def free(self, request, keys):
        op = self.begin("free", request=request)
        self.call(op, self.client.free_lookup_locks(
            self.key(keys, request, 0, len(keys), None), 1))
        self.write(op=op, did="free")

    def end(self, request):
        op = self.begin("end", request=request)
        self.call(op, self.client.end_session(request))
        self.write(op=op, did="end")

    def store(self, request, keys, first, end):
        op = self.begin("store", request=request, model=self.model, world=self.world,
                        rank=self.rank, keys=keys[first:end])
        key = self.key(keys, request, first, end, self.rank)
        context = self.call(op, self.client.prepare_store(key, self.instance)).context or {}
        slots, indices = context.get("slots", []), context.get("chunk_indices", [])
        lent = [keys[first + i] for i in indices]
        self.write(op=op, did="prepare", lent=lent, context="slots" in context)
        if not slots:
            return
        for view, name in zip(self.context._build_slot_tensors(slots), lent):
            want = digest(self.model, name, self.rank, self.world)
            whole = np.frombuffer(payload(STAMP.pack(MAGIC, self.name.encode(), op, want)), np.uint8)
            # Whoever dies here leaves half of a chunk.
            half = len(whole) // 2
            raw_bytes(view)[:half] = whole[:half]
            if self.rng.random() < 0.3:
                self.write(op=op, wrote=name)
            raw_bytes(view)[half:] = whole[half:]
        self.write(op=op, do="commit")
        ok = self.call(op, self.client.commit_store(key, self.instance, b""))
        self.write(op=op, did="store", ok=bool(ok))

    def retrieve(self, request, keys, first, end):
        op = self.begin("retrieve", request=request, model=self.model, world=self.world,
                        rank=self.rank, keys=keys[first:end])
        key = self.key(keys, request, first, end, self.rank)
        reply = self.call(op, self.client.prepare_retrieve(key, self.instance))
        slots = reply.context.get("slots", []) if reply.success else []
        self.write(op=op, did="prepare", hit=reply.success)
        if not reply.success:
            return
        if len(slots) != end - first:
            self.write(op=op, did="retrieve", read=[], ok=False)
            raise Lost
        read = []
        views = [raw_bytes(view) for view in self.context._build_slot_tensors(slots)]
        for view, name in zip(views, keys[first:end]):
            want = digest(self.model, name, self.rank, self.world)
            found = judge(view.tobytes(), want)
            if self.rng.random() < 0.3:
                # Until its commit a reader may look as often and as late as it likes.
                self.write(op=op, reading=name)
                again = judge(view.tobytes(), want)
                if again != found:
                    again = {"wrong": f"changed under the reader: {found} became {again}"}
                found = again
            read.append(found)
        del views, view
        self.write(op=op, did="read", read=read)
        ok = self.call(op, self.client.commit_retrieve(key, self.instance))
        if self.rng.random() < 0.05:
            self.call(op, self.client.commit_retrieve(key, self.instance))
        self.write(op=op, did="retrieve", ok=bool(ok))

    def new_request(self) -> str:
        self.requests += 1
        return f"{self.name}/{self.requests}"

    def pick(self) -> list[str]:
        rng = self.rng
        family = time.monotonic_ns() // FAMILY_NS - rng.randrange(FAMILIES)
        return labels(family, rng.randrange(FORKS), rng.randint(1, CHUNKS))


# --------------------------------------------------------------------------
# roles
# --------------------------------------------------------------------------


def mailbox(folder: str, name: str) -> socket.socket:
    """Where a role is told things. Whoever takes a role over takes over its mailbox."""
    path = os.path.join(folder, f"{name}.sock")
    if os.path.exists(path):
        os.unlink(path)
    box = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    box.bind(path)
    return box


def post(box: socket.socket, folder: str, name: str, message: dict) -> bool:
    try:
        box.sendto(json.dumps(message).encode(), socket.MSG_DONTWAIT,
                   os.path.join(folder, f"{name}.sock"))
        return True
    except OSError:
        return False  # nobody there, or somebody who does not read


def take(box: socket.socket, secs: float):
    box.settimeout(secs)
    try:
        return json.loads(box.recv(1 << 16))
    except TimeoutError:
        return None


class Scheduler(Client):
    def run(self):
        self.box = mailbox(self.folder, "scheduler")
        self.live(self.step, has_instance=False)

    def step(self):
        keys, request, rng = self.pick(), self.new_request(), self.rng
        hit = self.lookup(request, keys)
        fate = rng.random()
        if fate < 0.1:
            return  # forgotten; only time ends it
        if fate < 0.2:
            self.free(request, keys)
            self.end(request)
            return
        if fate < 0.35:
            self.end(request)  # its workers come late
        first = rng.randrange(hit) if hit and rng.random() < 0.2 else 0
        order = {"request": request, "keys": keys, "first": first, "hit": hit}
        waits = {w for w in range(self.world) if post(self.box, self.folder, f"worker-{w}", order)}
        while waits:
            done = take(self.box, 1.0)
            if done is None:
                break
            if done["request"] == request:
                waits.discard(done["rank"])
        if fate >= 0.35:
            self.end(request)
            if rng.random() < 0.05:
                self.end(request)


class Worker(Client):
    def run(self):
        self.box = mailbox(self.folder, f"worker-{self.rank}")
        self.live(self.step, has_instance=True)

    def step(self):
        order = take(self.box, 0.3)
        if order is None:
            if not self.ping(self.instance):
                self.recover(has_instance=True)
            return
        request, keys, hit = order["request"], order["keys"], order["hit"]
        if hit > order["first"]:
            self.retrieve(request, keys, order["first"], hit)
        if hit < len(keys) and self.rng.random() < 0.9:
            self.store(request, keys, hit, len(keys))
        post(self.box, self.folder, "scheduler", {"request": request, "rank": self.rank})


class Loner(Client):
    def run(self):
        self.live(self.step, has_instance=True)

    def step(self):
        keys, request, rng = self.pick(), self.new_request(), self.rng
        readers = rng.randint(1, 2)
        hit = self.lookup(request, keys, readers)
        if rng.random() < 0.1:
            return
        if hit:
            for _ in range(readers):
                self.retrieve(request, keys, 0, hit)
        if hit < len(keys) or rng.random() < 0.1:
            self.store(request, keys, rng.randint(0, hit), len(keys))
        self.end(request)


ROLES = {"scheduler": Scheduler, "worker": Worker, "loner": Loner}


def files(folder: str):
    """Whatever has the name of an object is one, and whole. Its key stands in its stamp, too."""
    objects = os.path.join(folder, "objects")
    for name in sorted(os.listdir(objects)):
        if name.endswith(".data"):
            with open(os.path.join(objects, name), "rb") as file:
                got = file.read()
            if len(got) == CHUNK_BYTES:
                found = judge(got, got[STAMP.size - 16:STAMP.size])
            else:
                found = {"wrong": f"{len(got)} bytes of {CHUNK_BYTES}"}
            print(json.dumps({"file": name, **found}), flush=True)


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--role", required=True, choices=[*ROLES, "files"])
    ap.add_argument("--name", help="of this process; no other one of the round has it")
    ap.add_argument("--url")
    ap.add_argument("--folder", required=True, help="where histories and mailboxes are")
    ap.add_argument("--model")
    ap.add_argument("--rank", type=int, default=0)
    ap.add_argument("--world", type=int, default=1, help="ranks of the model")
    ap.add_argument("--seed", type=int, default=0)
    args = ap.parse_args()
    if args.role == "files":
        files(args.folder)
    else:
        ROLES[args.role](args).run()
    os._exit(0)  # the client's own threads need no tidy end


if __name__ == "__main__":
    main()
