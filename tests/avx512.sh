#!/bin/sh
# Runs tests of the CPU's kernels on a processor with AVX-512, which Bochs emulates with the PC around it: `make avx512-check`. Tested is
# what kernels compute there, what they write, and that what they need is what was predicted. Nothing can be said about speed; and Bochs'
# processors have neither AMX nor AVX-512's instructions for bf16.
#
# It needs bochs, isolinux, xorriso, busybox-static and cpio; Debian's kernel is unpacked beside the build (KERNEL=FILE: another one).
# A second of the machine's clock is 3.5 billion instructions, about a minute here: SECONDS_EACH says the same on every machine. Each lane of
# a floating-point instruction is computed by itself, so short forms are those with few products.
set -eu
unset MAKEFLAGS MFLAGS MAKELEVEL
# A line, or a part between commas: a test, in a short form where the whole would take long. CHECKS: others
CHECKS=${CHECKS:-"t_sequence SAMPLE=20
t_rounded
t_pool
t_pointwise
t_fuzz FUZZ=60
t_grad SAMPLE=4
t_pages PAGES=60
t_threads SAMPLE=2 OPS=8
t_kernels SAMPLE=6
t_onednn SAMPLE=1"}
MINUTES=${MINUTES:-120}             # for all of them, by this machine's clock
SECONDS_EACH=${SECONDS_EACH:-30}    # for each, by the emulated one
BUILD=${BUILD:-build}
at=$BUILD/avx512
for tool in bochs xorriso busybox cpio; do
    command -v $tool >/dev/null || { echo "avx512-check: $tool is missing: apt-get install bochs isolinux xorriso busybox-static cpio" >&2; exit 1; }
done
. tests/guest.sh
rm -rf "$at/disk" "$at/results"
mkdir -p "$at/disk" "$at/results"
echo "$CHECKS" | tr ',' '\n' | sed 's/^ *//; s/ *$//; /^$/d' >"$at/checks"
tests=$(sed "s|^\([^ ]*\).*|$BUILD/tests/device/\1|" "$at/checks" | sort -u)
# shellcheck disable=SC2086
make BUILD="$BUILD" NVCC= $tests
# shellcheck disable=SC2086
guest_programs "$at/root" $tests
kernel=$(guest_kernel "$at")

# ---- what runs there. glibc saves registers by XSAVEC where a function of a library is called for the first time; XRSTOR of Bochs 2.7 does
# not restore AVX-512's, or faults. So all functions are bound before.
cp "$at/checks" "$at/root/"
cat >"$at/root/init" <<E
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin HOME=/tmp LD_BIND_NOW=1 MEMTIDE_CUDA=none MEMTIDE_PLAN=none OMP_WAIT_POLICY=passive OMP_NUM_THREADS=${THREADS:-1}
mount -t proc none /proc; mount -t devtmpfs none /dev; mount -t tmpfs none /tmp
exec >/dev/ttyS1 2>&1
stty raw -echo <&1
n=0
while read -r name variables; do
    n=\$((n + 1))
    echo "[begin \$n]"
    read -r begun _ </proc/uptime
    grep -qw avx512bw /proc/cpuinfo && env \$variables timeout $SECONDS_EACH "\$name"
    echo "[end \$n \$? \$begun \$(cat /proc/uptime)]"
done </checks
stty raw <&1 # waits until all is sent
poweroff -f
E
chmod +x "$at/root/init"

# ---- the disc that starts it. Bochs describes PKU's state, and what XSAVES and XSAVEC save, in a way for which Linux would use no AVX.
(cd "$at/root" && find . | cpio --quiet -o -H newc) >"$at/disk/initrd"
cp "$kernel" "$at/disk/linux"
cp /usr/lib/ISOLINUX/isolinux.bin /usr/lib/syslinux/modules/bios/ldlinux.c32 "$at/disk/"
chmod u+w "$at"/disk/*
cat >"$at/disk/isolinux.cfg" <<E
default linux
label linux
kernel linux
append initrd=initrd console=ttyS0,115200 mitigations=off nokaslr clearcpuid=pku,xsaves,xsavec panic=-1
E
xorriso -as mkisofs -quiet -o "$at/disk.iso" -b isolinux.bin -c boot.cat -no-emul-boot -boot-load-size 4 -boot-info-table "$at/disk" 2>"$at/xorriso"

# ---- the machine. Of Bochs 2.7's processors with AVX-512 Linux 6.1 does not start on corei7_icelake_u.
cat >"$at/machine" <<E
config_interface: textconfig
display_library: rfb, options="timeout=0"
memory: guest=2048, host=2048
romimage: file=/usr/share/bochs/BIOS-bochs-latest
vgaromimage: file=/usr/share/bochs/VGABIOS-lgpl-latest
cpu: model=${MODEL:-corei7_skylake_x}, count=1, ips=100000000, reset_on_triple_fault=0
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
echo c >"$at/commands" # Debian's bochs begins in its debugger
rm -f "$at/console" "$at/tap"
echo "avx512-check: what tests print comes into $at/tap"
timeout "${MINUTES}m" bochs -q -f "$at/machine" -rc "$at/commands" </dev/null >"$at/out" 2>&1 || true
[ -s "$at/tap" ] || { echo "avx512-check: the machine ran no test: see $at/console, $at/out, $at/log" >&2; exit 1; }

# ---- what each test printed, and its exit status, or 255 where it did not end
n=0
while read -r name variables; do
    n=$((n + 1))
    tr -d '\r' <"$at/tap" | awk -v n=$n -v what="$name${variables:+ $variables}" '
        $0 == "[begin " n "]" { on = 1; next }
        on && $1 == "[end" && $2 == n { status = $3; took = sprintf("%.1f s of the machine", $5 - $4); exit }
        on { print; checks += /^(not )?ok/ }
        END {
            print "avx512-check: " what ": " checks + 0 " checks, " (took ? took : "did not end") >"/dev/stderr"
            print took ? status : 255
        }' >"$at/results/$(printf %02d $n)-$name"
done <"$at/checks"
cat >"$at/replay" <<'E'
sed '$d' "$1"
exit "$(tail -n 1 "$1")"
E
# shellcheck disable=SC2086
prove --exec "sh $at/replay" ${PROVE:-} "$at"/results/*
