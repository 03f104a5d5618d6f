#!/bin/sh
# memtide on a machine with several memory nodes, which qemu emulates: `make numa-check`. Seen is where the pages of a training lie, how
# many threads there are in a control group and under an affinity, and that bits are those of one thread. Nothing can be said about speed.
#
# It needs qemu-system-x86 and busybox-static; Debian's kernel is unpacked beside the build (KERNEL=FILE: another one, with NUMA).
set -eu
BUILD=${BUILD:-build}
at=$BUILD/numa
for tool in qemu-system-x86_64 busybox cpio; do
    command -v $tool >/dev/null || { echo "numa-check: $tool is missing: apt-get install qemu-system-x86 busybox-static cpio" >&2; exit 1; }
done
mkdir -p "$at"
. tests/guest.sh
kernel=$(guest_kernel "$at")

# ---- what the machine runs
root=$at/root
guest_programs "$root" "$BUILD/memtide" "$BUILD/tests/device/t_machine"

cat >"$root/train.lua" <<'E'
-- Trains a step; prints a hash of loss and weights, and how many pages of interleaved memory lie on each node: "f00d N0 512 N1 511"
local core, mt = require "memtide.core", require "memtide"
local nn = mt.nn
local device = core.device "cpu"
local network = assert(core.network(nn.Sequential{nn.Linear(512, 2048), nn.ReLU(), nn.Linear(2048, 512)}, nn.CrossEntropyLoss(), {8, 512}))
local program = assert(core.compile(network, {optimizer = mt.optim.Adam{lr = 1e-3}}, device))
local runtime <close> = assert(core.runtime{programs = {program}, allocator = "planned", seed = 3})
local x, t = {}, {}
for i = 1, 8 * 512 do x[i] = math.sin(0.377 * i) end
for i = 1, 8 do t[i] = i end
local made = {("%a"):format((assert(runtime:step(1, x, t))))}
for _, param in ipairs(network:params()) do
  for _, value in ipairs(runtime:read(param.name, 1)) do made[#made + 1] = ("%a"):format(value) end
end
local pages = {[0] = 0, 0}
for line in io.lines "/proc/self/numa_maps" do
  if line:find " interleave:" then
    for node, n in line:gmatch " N(%d)=(%d+)" do pages[tonumber(node)] = pages[tonumber(node)] + n end
  end
end
print(("%s N0 %d N1 %d"):format(core.hash(table.concat(made, " ")), pages[0], pages[1]))
E

cat >"$root/init" <<'E'
#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin MEMTIDE_CUDA=none MEMTIDE_PLAN=none OMP_WAIT_POLICY=passive HOME=/tmp
mount -t proc none /proc; mount -t sysfs none /sys; mount -t devtmpfs none /dev; mount -t tmpfs none /tmp
mount -t cgroup2 none /sys/fs/cgroup
count=0
result() { count=$((count + 1)); if [ "$1" = 0 ]; then echo "ok $count - $2"; else echo "not ok $count - $2"; fi; }
is() { [ "$1" = "$2" ]; result $? "$3"; [ "$1" = "$2" ] || echo "# found $1, expected $2"; }
devices() { "$@" memtide devices | sed -n 's/^cpu .*, \([0-9]* thread[^,]*, [0-9]* memory[^,]*\),.*/\1/p'; }

echo # after what the firmware has left on the line
is "$(devices env)" "4 threads on 4 processors, 2 memory nodes (interleaved)" "two nodes"
is "$(devices taskset 0x0c)" "2 threads on 2 processors, 1 memory node" "the processors of one"
is "$(devices env OMP_NUM_THREADS=1)" "1 thread on 4 processors, 2 memory nodes" "one thread"
mkdir /sys/fs/cgroup/job && echo +cpu >/sys/fs/cgroup/cgroup.subtree_control && echo "150000 100000" >/sys/fs/cgroup/job/cpu.max
result $? "a control group"
is "$(sh -c 'echo $$ >/sys/fs/cgroup/job/cgroup.procs; exec memtide devices' | sed -n 's/^cpu .*, \([0-9]* thread[^,]*\),.*/\1/p')" \
    "2 threads on 4 processors (time of 1.5)" "which has the time of 1.5 processors"

alone=$(OMP_NUM_THREADS=1 memtide train.lua)
all=$(memtide train.lua)
echo "# one thread: $alone; four threads: $all"
is "${all%% *}" "${alone%% *}" "four threads on two nodes have the bits of one thread"
is "${alone#* }" "N0 0 N1 0" "of which no page is interleaved"
is "$(echo "$all" | sed -n 's/.* N0 \([0-9]*\) N1 \([0-9]*\)/\1 \2/p' | awk '{ d = $1 - $2; print ($1 + $2 > 6000 && d * d < 0.01 * $1 * $1) }')" 1 \
    "the pages of four threads lie half on each node"
is "$(taskset 0x0c memtide train.lua | cut -d' ' -f2-)" "N0 0 N1 0" "on one node's processors memory lies where it is touched"
OMP_NUM_THREADS=1 t_machine >/tmp/log
is "$? $(grep -c '^not ok\|SKIP' /tmp/log)" "0 0" "t_machine"
grep '^not ok\|SKIP' /tmp/log
echo "1..$count"
poweroff -f
E
chmod +x "$root/init"
(cd "$root" && find . | cpio --quiet -o -H newc | gzip -1) >"$at/root.gz"

qemu-system-x86_64 -nographic -no-reboot -m 2G -smp 4,sockets=2,cores=2 -accel tcg -cpu max \
    -object memory-backend-ram,id=m0,size=1G -object memory-backend-ram,id=m1,size=1G \
    -numa node,nodeid=0,cpus=0-1,memdev=m0 -numa node,nodeid=1,cpus=2-3,memdev=m1 -numa dist,src=0,dst=1,val=20 \
    -kernel "$kernel" -initrd "$at/root.gz" \
    -append "console=ttyS0 quiet panic=-1 transparent_hugepage=madvise" </dev/null |
    sed -u 's/\r$//' | tee "$at/log" | grep --line-buffered '^ok\|^not ok\|^#\|^1\.\.'
! grep -q '^not ok' "$at/log" && grep -q '^1\.\.' "$at/log"
