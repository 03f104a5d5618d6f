# A minimal Debian 12 to try things in, for scripts that run as root with debootstrap:
#
#   . tests/root.sh
#   make_root git,make     # debootstrap's minbase and these packages, in $root
#   inside "COMMAND"       # runs it there, as root in /root
#
# It lies in a folder under /tmp. Nothing of this machine is mounted into it: it has the device nodes that debootstrap makes,
# and /proc and terminals of its own in a mount namespace that ends with the command. So it can be removed, at the end of the script.
unset MAKEFLAGS MFLAGS MAKELEVEL # those of the make that runs the script
what=$(basename "$0" .sh)
[ "$(id -u)" = 0 ] || { echo "$what: needs root"; exit 77; }
command -v debootstrap >/dev/null || { echo "$what: needs debootstrap (apt-get install debootstrap)"; exit 77; }
folder=$(mktemp -d /tmp/memtide-root.XXXXXX) root=$folder/root

remove_root() {
    if grep -q " $folder/" /proc/self/mountinfo; then echo "$what: $folder has mounts: left there" >&2
    else rm -rf --one-file-system "$folder"; fi
}
trap remove_root EXIT

make_root() {
    mkdir "$root"
    debootstrap --variant=minbase --include="ca-certificates,$1" bookworm "$root" ${MIRROR:+"$MIRROR"} >"$folder/log" 2>&1 ||
        { tail "$folder/log"; exit 1; }
    # how this machine reaches its packages
    for file in sources.list sources.list.d apt.conf.d; do
        [ ! -e "/etc/apt/$file" ] || { rm -rf "$root/etc/apt/$file" && cp -rL "/etc/apt/$file" "$root/etc/apt/"; }
    done
    cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
}

inside() {
    unshare --mount --pid --fork --propagation private sh -c '
        mount -t proc proc "$0/proc" && mkdir -p "$0/dev/pts" && mount -t devpts -o ptmxmode=0666 devpts "$0/dev/pts" && exec chroot "$0" sh -ec "cd /root && export HOME=/root LC_ALL=C.UTF-8 && $1"' "$root" "$1"
}
