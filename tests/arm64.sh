#!/bin/sh
# Compiles memtide and its tests for arm64, and runs them under qemu's emulator of a processor: `make arm64-check`. What a kernel
# does without x86's instructions is tested so, and what the core's C leaves to a compiler. Nothing can be said about speed.
#
# It needs gcc-aarch64-linux-gnu and qemu-user-static, and, once, as root: dpkg --add-architecture arm64 && apt-get update.
# Debian's packages of the libraries are unpacked beside the build, since those with headers cannot be installed for two machines.
set -eu
unset MAKEFLAGS MFLAGS MAKELEVEL
LIBRARIES="libc6 libgcc-s1 libstdc++6 libgomp1 libdnnl2 libdnnl-dev liblua5.4-dev zlib1g zlib1g-dev"
# As many as run in some minutes; CHECKS: others
CHECKS=${CHECKS:-$(ls tests/unit/t_*.c | grep -v t_checkpoint_budget) $(printf 'tests/device/%s.c ' t_kernels t_sequence t_pointwise t_pool t_updates t_pages)}
# Of these a sample (tests/device/sample.h): they have thousands of cases
SAMPLED=${SAMPLED:-tests/device/t_onednn.c}
BUILD=${BUILD:-build}/arm64
root=$PWD/$BUILD/root

for tool in aarch64-linux-gnu-gcc qemu-aarch64-static; do
    command -v $tool >/dev/null || { echo "arm64-check: $tool is missing: apt-get install gcc-aarch64-linux-gnu qemu-user-static" >&2; exit 1; }
done
if [ ! -e "$root/usr/include/oneapi" ]; then
    mkdir -p "$root" "$BUILD/packages"
    (cd "$BUILD/packages" && apt-get download -q $(printf '%s:arm64 ' $LIBRARIES)) ||
        { echo "arm64-check: no packages for arm64: as root, dpkg --add-architecture arm64 && apt-get update" >&2; exit 1; }
    for package in "$BUILD"/packages/*.deb; do dpkg -x "$package" "$root"; done
fi

lib=$root/usr/lib/aarch64-linux-gnu
built() { echo "$@" | tr ' ' '\n' | sed "s|^tests/\(.*\)\.c$|$BUILD/tests/\1|"; }
tests=$(built $CHECKS) sampled=$(built $SAMPLED)
make BUILD="$BUILD" CC=aarch64-linux-gnu-gcc NVCC= MPICC= CUDNN= LUA_CFLAGS="-I$root/usr/include/lua5.4" \
    EXTRA="-isystem $root/usr/include -isystem $root/usr/include/aarch64-linux-gnu -L$lib -Wl,-rpath-link,$lib" "$BUILD/memtide" $tests $sampled
# LD_LIBRARY_PATH: libraries are loaded by paths that hold outside of the root, too, since qemu does not look there in every system call.
cat >"$BUILD/emulated" <<RUN
#!/bin/sh
exec qemu-aarch64-static -L "$root" -E LD_LIBRARY_PATH="$root/lib/aarch64-linux-gnu:$lib" "\$@"
RUN
chmod +x "$BUILD/emulated"
"$BUILD/emulated" "$BUILD/memtide" devices
emulate() { OMP_NUM_THREADS=${THREADS:-1} MEMTIDE_PLAN=none MEMTIDE_CUDA=none BUILD=$BUILD prove --exec "$BUILD/emulated" ${PROVE:--j2} "$@"; }
emulate $tests
export SAMPLE=${SAMPLE:-2}
emulate $sampled
