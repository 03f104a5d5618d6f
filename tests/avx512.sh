#!/bin/sh
# Runs tests of the CPU's kernels on a processor with AVX-512, which Bochs emulates with the PC around it: `make avx512-check`. Tested is
# what kernels compute there, what they write and which of oneDNN's they take. Nothing can be said about speed; and Bochs' processors have
# none of AVX-512's instructions for bf16, nor AMX.
#
# It needs bochs, isolinux, xorriso, busybox-static and cpio; Debian's kernel is unpacked beside the build (KERNEL=FILE: another one).
# The machine's clock counts instructions, 100 million a second: a check's limit (SECONDS_EACH) is the same on every machine.
set -eu
# A line, or a part between commas: variables and a test, in a short form where the whole would take long. CHECKS: others
CHECKS=${CHECKS:-"t_kernels
t_rounded
t_sequence
t_grad
t_pool
t_pointwise
t_fuzz FUZZ=100
t_threads OPS=20
t_pages PAGES=150"}
MODEL=${MODEL:-corei7_skylake_x}    # Linux 6.1 does not start on corei7_icelake_u and tigerlake of Bochs 2.7
MINUTES=${MINUTES:-60}              # for all, by this machine's clock
SECONDS_EACH=${SECONDS_EACH:-600}   # for one check, by the emulated clock
BUILD=${BUILD:-build}
at=$BUILD/avx512
for tool in bochs xorriso busybox cpio; do
    command -v $tool >/dev/null || { echo "avx512-check: $tool is missing: apt-get install bochs isolinux xorriso busybox-static cpio" >&2; exit 1; }
done
mkdir -p "$at"
if [ -z "${KERNEL:-}" ] && ! ls "$at"/kernel/boot/vmlinuz-* >/dev/null 2>&1; then
    package=$(apt-cache depends linux-image-cloud-amd64 | sed -n 's/.*Depends: \(linux-image-.*\)/\1/p' | head -n 1)
    (cd "$at" && apt-get download -q "$package") || { echo "avx512-check: no kernel: as root, apt-get update" >&2; exit 1; }
    dpkg -x "$at"/linux-image-*.deb "$at/kernel"
fi
rm -rf "$at/root" "$at/disk" "$at/results"
mkdir -p "$at/root/bin" "$at/root/proc" "$at/root/dev" "$at/root/tmp" "$at/disk" "$at/results"
echo "$CHECKS" | tr ',' '\n' | sed 's/^ *//; s/ *$//; /^$/d' >"$at/root/checks"
tests=$(sed "s|^\([^ ]*\).*|$BUILD/tests/device/\1|" "$at/root/checks" | sort -u)
make BUILD="$BUILD" NVCC= $tests

# ---- the machine's files: what runs there, without symbols, and its libraries
cp "$(command -v busybox)" "$at/root/bin/"
for file in $tests; do
    strip -o "$at/root/bin/${file##*/}" "$file"
    ldd "$file" | sed -n 's/.* => \(\/[^ ]*\) .*/\1/p; s/^[[:space:]]*\(\/[^ ]*\) .*/\1/p' | while read -r library; do
        [ -e "$at/root$library" ] || install -D "$library" "$at/root$library"
    done
done
cat >"$at/root/init" <<E
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp MEMTIDE_CUDA=none MEMTIDE_PLAN=none OMP_WAIT_POLICY=passive OMP_NUM_THREADS=${THREADS:-1}
mount -t proc none /proc; mount -t devtmpfs none /dev; mount -t tmpfs none /tmp
exec >/dev/ttyS1 2>&1
stty raw -echo <&1
n=0
while read -r name variables; do
    n=\$((n + 1)) began=\$(cut -d. -f1 /proc/uptime)
    echo "[avx512 begin \$n]"
    grep -qw avx512bw /proc/cpuinfo && env \$variables timeout $SECONDS_EACH "\$name"
    status=\$?
    echo "# \$((\$(cut -d. -f1 /proc/uptime) - began)) emulated seconds"
    echo "[avx512 end \$n \$status]"
done </checks
sleep 1
poweroff -f
E
chmod +x "$at/root/init"

# ---- the disc it starts from. Bochs describes what XSAVES saves, and the state of PKU, as Linux does not believe: Linux would use no AVX.
(cd "$at/root" && find . | cpio --quiet -o -H newc) >"$at/disk/initrd"
cp "${KERNEL:-$(ls "$at"/kernel/boot/vmlinuz-*)}" "$at/disk/linux"
cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 "$at/disk/"
chmod u+w "$at"/disk/*
cat >"$at/disk/isolinux.cfg" <<E
default linux
label linux
kernel linux
append initrd=initrd console=ttyS0,115200 mitigations=off nokaslr clearcpuid=pku,xsaves,xsavec panic=-1
E
xorriso -as mkisofs -quiet -o "$at/disk.iso" -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table "$at/disk" 2>"$at/xorriso.log"
cat >"$at/machine" <<E
config_interface: textconfig
display_library: rfb, options="timeout=0"
memory: guest=2048, host=2048
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
cpu: model=$MODEL, count=1, ips=100000000, reset_on_triple_fault=0
clock: sync=none, time0=1000000000
ata0-master: type=cdrom, path=$at/disk.iso, status=inserted
boot: cdrom
com1: enabled=1, mode=file, dev=$at/console
com2: enabled=1, mode=file, dev=$at/tap
speaker: enabled=0
sound: driver=dummy
log: $at/log
panic: action=fatal
error: action=ignore
info: action=ignore
E

# ---- run, and what each check printed; its last line here is its exit status, 255 where it printed no end
rm -f "$at/console" "$at/tap"
echo c >"$at/commands"  # Debian's bochs waits in its debugger
timeout "${MINUTES}m" bochs -q -f "$at/machine" -rc "$at/commands" </dev/null >"$at/out" 2>&1 || true
[ -s "$at/tap" ] || { echo "avx512-check: the machine did not start: see $at/console, $at/out, $at/log" >&2; exit 1; }
n=0
while read -r name variables; do
    n=$((n + 1))
    tr -d '\r' <"$at/tap" | awk -v n=$n '$0 == "[avx512 begin " n "]" { on = 1; next } on && $1 " " $2 " " $3 == "[avx512 end " n { status = $4 + 0; ended = 1; exit }
        on { print } END { print ended ? status : 255 }' >"$at/results/$n-$name"
done <"$at/root/checks"
cat >"$at/replay" <<'E'
sed '$d' "$1"
exit "$(tail -n 1 "$1")"
E
prove --exec "sh $at/replay" ${PROVE:-} $(cd "$at/results" && ls | sort -n | sed "s|^|$at/results/|")
