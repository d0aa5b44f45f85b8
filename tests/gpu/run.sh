#!/usr/bin/env bash
# Server-driven transfer on cards, alone: the driver layer, then the server's binary with engines
# beside it. Says at its end which driver that was. `cargo test --workspace`, which is what CI runs,
# has both suites in it, always on the fake driver; this is for a machine with a card, and for
# whoever works on it.
#
#   tests/gpu/run.sh [words for the test programs: the name of a test, --nocapture]
#
# A real driver is taken where nvidia-smi shows a card and libcuda.so.1 is found (or KVTIDE_CUDA
# names it); KVTIDE_CUDA= (empty) keeps to the fake. The driver layer's own tests use the fake on
# any machine: they order faults.
set -euo pipefail
cd "$(dirname "$0")/../.."

find_driver() {
    nvidia-smi -L 2>/dev/null | grep -q '^GPU' || return 1
    local path
    path=$(ldconfig -p 2>/dev/null | awk '$1 == "libcuda.so.1" { print $NF; exit }')
    for path in $path /usr/lib/x86_64-linux-gnu /usr/lib64 /usr/local/nvidia/lib64; do
        [ -d "$path" ] && path=$path/libcuda.so.1
        [ -e "$path" ] && printf '%s\n' "$path" && return 0
    done
    return 1
}

driver=${KVTIDE_CUDA-$(find_driver || true)}
unset KVTIDE_CUDA
cargo test -p kvtide-gpu -p kvtide-fake-cuda -- "$@"
if [ -n "$driver" ]; then
    KVTIDE_CUDA=$driver cargo test -p kvtide-tests --test gpu -- "$@"
    echo "== the server ran on the real driver: $driver"
else
    cargo test -p kvtide-tests --test gpu -- "$@"
    echo "== the server ran on the fake driver: no card here"
fi
