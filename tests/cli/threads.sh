# How many threads the CPU device takes, and where they run: what the process may use, and what OMP_PROC_BIND says.
. tests/tap.sh
unset OMP_NUM_THREADS OMP_PROC_BIND OMP_PLACES GOMP_CPU_AFFINITY

# Prints how many threads the device has, and where those of the process may run once all have worked.
cat >where.lua <<'E'
local core = require "memtide.core"
local device = core.device "cpu"
device:stream()
local places = {}
for task in io.popen(("ls /proc/%d/task"):format(io.open("/proc/self/stat"):read "n")):lines() do
  places[#places + 1] = io.open(("/proc/self/task/%s/status"):format(task)):read "a":match "Cpus_allowed_list:%s*(%S+)"
end
table.sort(places)
local file <close> = assert(io.open(os.getenv "WHERE" or "/dev/stdout", "a"))
file:write(device:info().threads, ": ", table.concat(places, " "), "\n")
E

# The same beside a thread that reads batches ahead
cat >reads.lua <<'E'
local data = require "memtide".data
local loader = data.loader{data.random{shape = {4}, classes = 2, count = 64, seed = 1}, batch = 8, prefetch = 1}
for _ in loader:epoch() do break end
dofile "where.lua"
E

# A sweep whose processes say it: the program and its worker
cat >sweep.lua <<'E'
local mt = require "memtide"
dofile "where.lua"
return mt.experiment{
  name = "sweep", input = {8}, classes = 2, model = mt.nn.Linear(8, 2), loss = mt.nn.CrossEntropyLoss(),
  optimizer = mt.optim.SGD{lr = 0.1}, sweep = {{"batch", {8}}}, steps = 2,
}
E

processors=$(nproc)
all=$(sed -n 's/^Cpus_allowed_list:[[:space:]]*//p' /proc/self/status)
first=${all%%[-,]*}
is "$(taskset -c "$first" "$MEMTIDE" where.lua)" "1: $first" "a thread for each processor that the process may use"
is "$(OMP_NUM_THREADS=3 "$MEMTIDE" where.lua)" "3: $all $all $all" "or as many as OMP_NUM_THREADS says, of which none is bound"
OMP_NUM_THREADS=1 memtide devices
has "$out" ", 1 thread on $processors processor" "devices says so"
OMP_NUM_THREADS=1 memtide devices --json
has "$out" "\"threads\":1,\"processors\":$processors,\"memory_nodes\":" "for programs, too"

# ---- a control group that leaves little time: a tree of groups of this process's own, in which all have half a processor
limited() {
    unshare --user --map-root-user --mount sh -c 'mount -t tmpfs none /sys/fs/cgroup && mkdir /sys/fs/cgroup/cpu && cd /sys/fs/cgroup &&
        echo "50000 100000" >cpu.max && echo 50000 >cpu/cpu.cfs_quota_us && echo 100000 >cpu/cpu.cfs_period_us && cd "$0" && exec "$@"' "$WORK" "$@" 2>&1
}
if [ "$processors" = 1 ]; then
    skip "a limit of time" "there is one processor"
elif [ "$(limited echo good)" != good ]; then
    skip "a limit of time" "there can be no groups of one's own here"
else
    has "$(limited "$MEMTIDE" devices)" ", 1 thread on $processors processors (time of 0.5)" "no more threads than have time"
    has "$(limited env OMP_NUM_THREADS=2 "$MEMTIDE" devices)" ", 2 threads on $processors processors (time of 0.5)" "but where the user says how many"
fi

# ---- threads that stay where they are
if [ "$processors" = 1 ]; then
    skip "threads that are bound" "there is one processor"
else
    export WHERE="$WORK/where.txt"
    for bound in "OMP_PROC_BIND=close OMP_PLACES=threads" "GOMP_CPU_AFFINITY=$all"; do
        rm -f "$WHERE" sweep.csv sweep.samples.csv
        # shellcheck disable=SC2086
        env $bound OMP_NUM_THREADS=2 "$MEMTIDE" run sweep.lua -q --csv sweep.csv >/dev/null 2>&1 </dev/null
        is "$(sort "$WHERE" | uniq -c | sed -n 's/^ *\([0-9]*\) 2: [0-9]* [0-9]*$/\1/p')" 2 "$bound: program and worker have two threads, each on one processor"
        is "$(sed -n '1s/.*: \([0-9]*\) \1$/same/p' "$WHERE")" "" "which is its own"
    done
    rm -f "$WHERE" sweep.csv sweep.samples.csv
    env OMP_PROC_BIND=true "$MEMTIDE" run sweep.lua -q --csv sweep.csv >/dev/null 2>&1 </dev/null
    is "$(sed 's/:.*//' "$WHERE" | uniq)" "$processors" "without a number there are as many as processors, in a worker, too"
    unset WHERE
    has "$(OMP_NUM_THREADS=1 OMP_PROC_BIND=true OMP_PLACES=threads "$MEMTIDE" reads.lua) " " $all " "a thread that reads batches ahead is not bound"
fi

# ---- ranks, as a launcher is told
if [ -e "$(dirname "$MEMTIDE")/memtide_mpi.so" ]; then
    mkdir launcher
    printf '#!/bin/sh\necho "$*" >>"%s/launched.txt"\n' "$WORK" >launcher/mpirun
    chmod +x launcher/mpirun
    PATH="$WORK/launcher:$PATH" OMP_PROC_BIND=true WHERE=/dev/null "$MEMTIDE" run sweep.lua -q --world 2 --csv ranks.csv >/dev/null 2>&1 </dev/null
    has "$(cat launched.txt)" " --bind-to none -x OMP_PROC_BIND=false " "ranks are not bound to the same processors"
else
    skip "ranks" "memtide is built without MPI"
fi
finish
