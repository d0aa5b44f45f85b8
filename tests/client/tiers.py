#!/usr/bin/env python3
"""Documents through the real client, where lower tiers may lose them but never alter them.

    tiers.py --url tcp://127.0.0.1:PORT --model NAME --do store --first 0 --end 40
    tiers.py --url tcp://127.0.0.1:PORT --model NAME --do read --steps 200 --seed 1
    tiers.py --url tcp://127.0.0.1:PORT --model NAME --do churn --steps 200 --delete 0.1 \\
             --folder DIR --admin 127.0.0.1:HTTP

Every byte of a chunk follows from its model and its tokens, so whoever reads it knows whether it is
right, whoever has stored it. Unlike the scenarios of drive.py a miss is no failure here.

    store    stores each document once
    read     reads documents: each once, or --steps of them chosen uniformly at random
    churn    reads documents chosen uniformly at random and stores what they lack; before a step,
             with the probability of --delete, takes an object of --folder away through the server

The last line is JSON: documents asked for, chunks stored, asked for, hit and deleted, chunks whose
bytes were wrong, promises of a lookup that the retrieve did not keep, stores that were refused. The
status is 1 where bytes were wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import urllib.request

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))

import numpy as np  # noqa: E402
from drive import Worker  # noqa: E402

CHUNKS = 4


class Documents:
    def __init__(self, args):
        self.args = args
        self.worker = Worker(args.url, args.model, layers=args.layers, hidden=args.hidden)
        self.requests = 0
        self.tally = dict.fromkeys(
            ["documents", "stored", "asked", "hit", "deleted", "wrong", "broken", "refused"], 0)

    def tokens(self, document: int) -> list[int]:
        rng = np.random.Generator(np.random.PCG64(900_000 + document))
        return rng.integers(1, 150_000, CHUNKS * self.worker.chunk).tolist()

    def request(self) -> str:
        self.requests += 1
        return f"{self.args.model}/{os.getpid()}/{self.requests}"

    def store(self, tokens, request, first):
        try:
            self.tally["stored"] += len(self.worker.store(tokens, request, first, CHUNKS))
        except AssertionError:
            self.tally["refused"] += 1

    def read(self, tokens, request) -> int:
        hit = self.worker.lookup(tokens, request)
        self.tally["documents"] += 1
        self.tally["asked"] += CHUNKS
        self.tally["hit"] += hit
        if hit:
            right = self.worker.retrieve(tokens, request, 0, hit)
            self.tally["broken"] += right is None
            if right is False:
                self.tally["wrong"] += hit
                print(f"wrong bytes within {hit} chunks of {request}", flush=True)
        return hit

    def delete(self, rng):
        """An object that lies in the folder: `model@0xrank@group@hash.data`."""
        names = [name for name in os.listdir(self.args.folder) if name.endswith(".data")]
        if not names:
            return
        model, rank, _, digest = rng.choice(names).removesuffix(".data").split("@")
        key = {"model_name": model, "kv_rank": int(rank, 16), "chunk_hash_hex": digest}
        body = json.dumps({"keys": [key], "tier": "all"}).encode()
        request = urllib.request.Request(
            f"http://{self.args.admin}/cache/objects", body,
            {"Content-Type": "application/json"}, method="DELETE")
        with urllib.request.urlopen(request, timeout=30) as answer:
            self.tally["deleted"] += json.load(answer)["deleted"]

    def run(self):
        args, rng = self.args, random.Random(self.args.seed)
        documents = range(args.first, args.end)
        if args.do != "store" and args.steps:
            documents = (rng.randrange(args.first, args.end) for _ in range(args.steps))
        for document in documents:
            if rng.random() < args.delete:
                self.delete(rng)
            tokens, request, hit = self.tokens(document), self.request(), 0
            if args.do != "store":
                hit = self.read(tokens, request)
            if args.do != "read" and hit < CHUNKS:
                self.store(tokens, request, hit)
            self.worker.end(request)
        self.worker.close()


def main():
    ap = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("--url", required=True)
    ap.add_argument("--model", required=True)
    ap.add_argument("--do", required=True, choices=["store", "read", "churn"])
    ap.add_argument("--first", type=int, default=0, help="the first document")
    ap.add_argument("--end", type=int, required=True, help="the one after the last")
    ap.add_argument("--steps", type=int, default=0, help="documents chosen at random; 0: each once")
    ap.add_argument("--seed", type=int, default=0)
    ap.add_argument("--layers", type=int, default=8)
    ap.add_argument("--hidden", type=int, default=64, help="1 KiB of a chunk each, in every layer")
    ap.add_argument("--delete", type=float, default=0.0)
    ap.add_argument("--folder", help="where the objects lie that may be deleted")
    ap.add_argument("--admin", help="HOST:PORT of the server's HTTP side, for deletes")
    args = ap.parse_args()
    documents = Documents(args)
    documents.run()
    print(json.dumps(documents.tally), flush=True)
    os._exit(1 if documents.tally["wrong"] else 0)  # client threads need no tidy end


if __name__ == "__main__":
    main()
