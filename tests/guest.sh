# guest.sh: an emulated machine's kernel and programs, for scripts that start one (numa.sh, avx512.sh), which read this by `.`
# shellcheck shell=sh

# Writes the name of Debian's kernel, which is unpacked in folder $1 unless it is there; KERNEL=FILE: that one.
guest_kernel() {
    if [ -z "${KERNEL:-}" ] && ! ls "$1"/kernel/boot/vmlinuz-* >/dev/null 2>&1; then
        package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-.*\)/\1/p' | head -n 1)
        (cd "$1" && apt-get download -q "$package" >&2) || { echo "no kernel: as root, apt-get update" >&2; return 1; }
        dpkg -x "$1"/linux-image-*.deb "$1/kernel"
    fi
    echo "${KERNEL:-$(ls "$1"/kernel/boot/vmlinuz-* | head -n 1)}"
}

# Puts busybox and the programs after $1, without symbols, into folder $1, and libraries where they look for them.
guest_programs() {
    to=$1
    shift
    rm -rf "$to"
    mkdir -p "$to/bin" "$to/proc" "$to/sys" "$to/dev" "$to/tmp"
    cp "$(command -v busybox)" "$to/bin/"
    for program; do
        strip -o "$to/bin/${program##*/}" "$program"
        ldd "$program" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p; s/^[[:space:]]*\(\/[^ ]*\) .*/\1/p' | while read -r library; do
            [ -e "$to$library" ] || install -D "$library" "$to$library"
        done
    done
}
