#!/bin/sh
# How long README's two commands take in a minimal Debian 12 that has git and make and nothing else: `make minimal-check`.
# As root, with debootstrap. TESTS=1: the tests, too.
#
# The root file system lies in a folder under /tmp. Nothing of this machine is mounted into it: it has the device nodes that
# debootstrap makes, and a /proc of its own in a mount namespace that ends with the check. So it can be removed.
set -eu
[ "$(id -u)" = 0 ] || { echo "minimal-check: needs root"; exit 77; }
command -v debootstrap >/dev/null || { echo "minimal-check: needs debootstrap (apt-get install debootstrap)"; exit 77; }
folder=$(mktemp -d /tmp/memtide-minimal.XXXXXX) root=$folder/root
checkout=$(git rev-parse --show-toplevel)

finish() {
    if grep -q " $folder/" /proc/self/mountinfo; then echo "minimal-check: $folder has mounts: left there" >&2
    else rm -rf --one-file-system "$folder"; fi
}
trap finish EXIT
inside() { # a command in the root file system
    unshare --mount --pid --fork --propagation private sh -c '
        mount -t proc proc "$0/proc" && exec chroot "$0" sh -c "cd /root && export HOME=/root LC_ALL=C.UTF-8 && $1"' "$root" "$1"
}
seconds() { # WHAT COMMAND: runs it inside, and says how long it took
    begun=$(date +%s)
    inside "$2"
    echo "minimal-check: $1 took $(($(date +%s) - begun)) s (load $(cut -d' ' -f1 /proc/loadavg), $(nproc) processors)"
}

mkdir "$root"
debootstrap --variant=minbase --include=git,make,ca-certificates bookworm "$root" ${MIRROR:+"$MIRROR"} >"$folder/log" 2>&1 ||
    { tail "$folder/log"; exit 1; }
# how this machine reaches its packages
for file in sources.list sources.list.d apt.conf.d; do
    [ ! -e "/etc/apt/$file" ] || { rm -rf "$root/etc/apt/$file" && cp -rL "/etc/apt/$file" "$root/etc/apt/"; }
done
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
git clone -q --bare "$checkout" "$root/memtide.git"
seconds "from the clone to the first table" "git clone -q /memtide.git memtide && cd memtide && make deps run"
[ -z "${TESTS:-}" ] || seconds "make deps test" "cd memtide && make deps test"
