#!/bin/sh
# How long README's two commands take in a minimal Debian 12 that has git and make and nothing else: `make minimal-check`.
# As root, with debootstrap. TESTS=1: the tests, too.
set -eu
. tests/root.sh

seconds() { # WHAT COMMAND: runs it inside, and says how long it took
    begun=$(date +%s)
    inside "$2"
    echo "minimal-check: $1 took $(($(date +%s) - begun)) s (load $(cut -d' ' -f1 /proc/loadavg), $(nproc) processors)"
}

make_root git,make
git clone -q --bare "$(git rev-parse --show-toplevel)" "$root/memtide.git"
seconds "from the clone to the first table" "git clone -q /memtide.git memtide && cd memtide && make deps run"
[ -z "${TESTS:-}" ] || seconds "make deps test" "cd memtide && make deps test"
