# memtide slurm: the scripts, run by programs that stand for Slurm's, and by a Slurm of the test's own where its
# programs are here. SLURM=need (make slurm-check): its lack is a failure, and the time limit is waited for, too.
. tests/tap.sh
NEED=${SLURM:-}
unset SLURM_CONF

# A sweep whose cells take a moment, in a folder that the shell must be told of with care
mkdir "a sweep's"
cd "a sweep's" || exit 1
cat >slow.lua <<'SCRIPT'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
local nap = ...
return mt.experiment{
  name = "slow", input = {3, 8, 8}, classes = 4,
  options = {{"width", 4, "channels"}},
  model = function(s)
    if os.getenv "SLURM_JOB_ID" then os.execute("sleep " .. nap) end
    return nn.Sequential{nn.Conv2d(3, s.width, 3), nn.ReLU(), nn.Flatten(), nn.Linear(s.width * 36, 4)}
  end,
  loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.01},
  sweep = {{"batch", {4, 8, 16, 32}}, {"precision", {"fp32", "amp_bf16"}}}, steps = 2, warmup = 1,
}
SCRIPT
rows() { for part in 1 2; do tail -n +2 "out/slow.$part-of-2.csv" 2>/dev/null; done | wc -l; }
write_scripts() { # seconds that a cell takes, options...
    nap=$1
    shift
    rm -rf out
    memtide slurm slow.lua --shards 2 -o out/ --set batch=4,8,16 --width=8 "$@" -- "$nap"
}

# ---- the scripts
memtide slurm slow.lua --shards 2 --gres gpu:1 --partition long --time 8:00:00 -- 0
is "$status $out" "0 slow.slurm: 8 cells in 2 parts of 4; sh slow.slurm/submit.sh" "a folder is written"
is "$(ls slow.slurm | tr '\n' ' ')" "array.sh cells.csv merge.sh submit.sh " "with its files"
for line in "--array=1-2" "--signal=USR1@120" "--requeue" "--open-mode=append" "--time=8:00:00" "--partition=long" \
    "--gres=gpu:1"; do
    is "$(grep -cx "#SBATCH $line" slow.slurm/array.sh)" 1 "the array has $line"
done
is "$(grep -c -e --time -e --gres slow.slurm/merge.sh)" 0 "the merge needs no GPU"
is "$(memtide slurm slow.lua --partition 'a b' -- 0; echo $status)" 2 "a partition that is no word"
"$MEMTIDE" slurm - -- 0 <slow.lua >/dev/null 2>&1
is $? 2 "a script that no job could read"
write_scripts 0 --quiet
is "$status" 0 "settings, options and arguments of the script"
for file in array merge submit; do
    sh -n out/$file.sh
    result $? "$file.sh is a shell script"
done

# ---- run by programs that stand for Slurm's
mkdir bin
cat >bin/srun <<'STUB'
#!/bin/sh
exec "$@"
STUB
cat >bin/scontrol <<'STUB'
#!/bin/sh
echo "$@" >>requeued.txt
STUB
cat >bin/sbatch <<'STUB'
#!/bin/sh
for last; do :; done
echo "$@" >>submitted.txt
case $last in *array.sh) echo "7;cluster" ;; *) echo 8 ;; esac
STUB
chmod +x bin/*
here=$PWD
array() { # part, attempt
    PATH=$here/bin:$PATH SLURM_ARRAY_JOB_ID=7 SLURM_ARRAY_TASK_ID=$1 SLURM_JOB_ID=9 SLURM_RESTART_COUNT=$2 \
        sh out/array.sh >array.log 2>&1 </dev/null
}
array 1 0
is "$? $(rows)" "0 3" "a part"
array 2 ""
is "$? $(rows)" "0 6" "the other"
is "$(sh out/merge.sh 2>&1)" "out/slow.csv: 6 rows (6 ok) of 2 files; 0 the same, 0 in conflict" "and the merge"
memtide verify out/slow.csv slow.lua --set batch=4,8,16 --width 8 -- 0
is "$status" 0 "of the cells that were meant"
is "$(PATH=$here/bin:$PATH sh out/submit.sh --time=5)" "array job 7, merge job 8" "both are submitted"
has "$(head -1 submitted.txt)" "--output=out/%a.log --time=5 out/array.sh" "with options of sbatch's"
has "$(cat submitted.txt)" "--dependency=afterany:7 out/merge.sh" "the merge after the array"
sed -i 's/SGD{lr = 0.01}/SGD{lr = 0.02}/' slow.lua
array 1 0
is $? 65 "a script that is edited later"
has "$(cat array.log)" "out/cells.csv: the script or the command line is not what the list was made of" "is told"
sed -i 's/SGD{lr = 0.02}/SGD{lr = 0.01}/' slow.lua
is "$(test -e requeued.txt || echo none)" none "nothing of this is queued again"
cat >bin/srun <<'STUB'
#!/bin/sh
exit 75
STUB
array 2 19
is "$? $(cat requeued.txt)" "75 requeue 7_2" "a part that could not end is"
array 2 20
is "$? $(wc -l <requeued.txt)" "75 1" "but not without end"

# ---- a Slurm of the test's own: one node, no accounting, its own ports and folders
PATH=$PATH:/usr/sbin
lacking=
for program in slurmctld slurmd sbatch srun; do command -v $program >/dev/null || lacking="no $program"; done
[ "$(id -u)" = 0 ] || lacking="${lacking:-not root}"
S=$WORK/slurm
end_slurm() {
    scancel --user=root 2>/dev/null
    for _ in 1 2 3 4 5 6; do [ -z "$(squeue -h 2>/dev/null)" ] && break; sleep 1; done
    for name in slurmd ctld; do [ -s "$S/$name.pid" ] && kill "$(cat "$S/$name.pid")" 2>/dev/null; done
    for _ in 1 2 3 4 5 6 7 8; do
        [ -e "$S/slurmd.pid" ] || [ -e "$S/ctld.pid" ] || break
        sleep 0.5
    done
}
# Nobody is asked who they are: other machines may not reach it.
only_here() {
    for port in $control_port $node_port; do
        grep -q ": 0100007F:$(printf %04X "$port") 00000000:0000 0A " /proc/net/tcp || return 1
    done
}
start_slurm() {
    control_port=$((20000 + $$ % 20000)) node_port=$((40000 + $$ % 20000))
    mkdir -p "$S/state" "$S/spool"
    node=$(hostname -s)
    cat >"$S/slurm.conf" <<CONF
ClusterName=memtide
SlurmctldHost=$node(127.0.0.1)
NodeName=$node NodeAddr=127.0.0.1 CPUs=2 State=UNKNOWN
PartitionName=main Nodes=$node Default=YES MaxTime=INFINITE State=UP
AuthType=auth/none
CredType=cred/none
SlurmctldPort=$control_port
SlurmdPort=$node_port
SlurmUser=root
SlurmdUser=root
StateSaveLocation=$S/state
SlurmdSpoolDir=$S/spool
SlurmctldPidFile=$S/ctld.pid
SlurmdPidFile=$S/slurmd.pid
SlurmctldLogFile=$S/ctld.log
SlurmdLogFile=$S/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,batch_sched_delay=0
KillWait=3
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
JobAcctGatherType=jobacct_gather/none
CONF
    export SLURM_CONF=$S/slurm.conf
    slurmctld -c -f "$SLURM_CONF" >"$S/out.txt" 2>&1 && slurmd -f "$SLURM_CONF" >>"$S/out.txt" 2>&1 || return 1
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        [ "$(sinfo -ho %t 2>/dev/null)" = idle ] && only_here && return 0
        sleep 0.5
    done
    return 1
}
if [ -z "$lacking" ]; then
    trap 'end_slurm; rm -rf "$WORK"' EXIT
    start_slurm || lacking="no Slurm could be started: $(cat "$S/out.txt" "$S"/*.log 2>/dev/null | tail -3)"
fi
if [ -n "$lacking" ]; then
    if [ -n "$NEED" ]; then result 1 "a real Slurm: $lacking"
    else result 0 "a sweep in a real Slurm # SKIP $lacking"; fi
    finish
fi

wait_for() { # seconds, command...: until it holds
    most=$(($1 * 4))
    shift
    while [ $most -gt 0 ] && ! "$@"; do most=$((most - 1)); sleep 0.25; done
    "$@"
}
idle() { left=$(squeue -h) && [ -z "$left" ]; }
queued_again() { [ "$(squeue -h -t PD -r -o %r "$@" | grep -c BeginTime)" = 1 ]; }
at_work() { [ "$(rows)" -ge 2 ]; }
job() { scontrol -o show job "$1" | tr ' ' '\n' | sed -n "s/^$2=//p" | head -1; }
log() { # where something went wrong: what the jobs and Slurm said
    [ $failed = 0 ] || tail -n 20 out/*.log "$S"/*.log | sed 's/^/# /'
}
submit() {
    said=$(sh out/submit.sh "$@" 2>&1) || echo "# $said"
    array=$(echo "$said" | sed -n 's/.*array job \([0-9]*\).*/\1/p') merge=$(echo "$said" | sed -n 's/.*merge job //p')
}

write_scripts 1
submit
wait_for 60 at_work
result $? "Slurm runs both parts"
scancel --signal=USR1 "${array}_2" # what --signal does, earlier
wait_for 30 queued_again -j "${array}_2"
result $? "a part that is warned ends with status 75 and is queued again"
has "$(cat out/2.log)" "memtide: stopped as asked by SIGUSR1; " "after the cell that ran"
is "$(cut -d, -f19 out/slow.2-of-2.csv | sort -u | tr '\n' ' ')" "ok status " "which has its row"
is "$(job "${array}_1" Restarts)" 0 "the other part is left alone"
is "$(job "$merge" Reason)" Dependency "the merge waits"
# not within the second in which it ended: a node takes the new job's credential for the revoked one's then
scontrol update jobid="${array}_2" starttime=now+3
wait_for 60 idle
result $? "all jobs end"
is "$(cat out/merge.log)" "out/slow.csv: 6 rows (6 ok) of 2 files; 0 the same, 0 in conflict" "with all rows"
memtide verify out/slow.csv slow.lua --set batch=4,8,16 --width 8 -- 1
is "$status" 0 "as they should be"
log

write_scripts 1
submit
wait_for 60 at_work
scancel "${array}_1"
wait_for 60 idle
has "$(cat out/merge.log)" "cells are missing" "a part that was cancelled is missed"
is "$(grep -c crashed out/slow.1-of-2.csv)" 0 "and leaves no row of the cell that ran"
submit
wait_for 60 idle
has "$(tail -1 out/merge.log)" "out/slow.csv: 6 rows (6 ok) of 3 files" "the same command makes the rest"
log

# ---- cells that several ranks train, started by srun or by mpirun inside of an allocation
if command -v mpirun >/dev/null && [ -e "$(dirname "$MEMTIDE")/memtide_mpi.so" ]; then
    cat >ranks.lua <<'SCRIPT'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
local rank = tonumber(os.getenv "SLURM_PROCID" or "")
return mt.experiment{
  name = "ranks", input = {8}, classes = 4, batch = 4, warmup = 1, steps = 3,
  model = function(settings)
    if settings.fate == "killed" and rank == 1 and os.getenv "SLURM_NTASKS" == "2" then os.execute "kill -KILL $PPID" end
    if settings.fate == "left" and rank == 1 and os.getenv "SLURM_NTASKS" == "2" then os.exit(7) end
    return nn.Sequential{nn.Linear(8, 600), nn.ReLU(), nn.Linear(600, 4)}
  end,
  loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.1},
  cases = {{case = "alone", accumulate = 2, fate = "none"}, {case = "fine", world = 2, zero = 3, fate = "none"},
    {case = "killed", world = 2, fate = "killed"}, {case = "left", world = 2, fate = "left"}},
}
SCRIPT
    row_of() { # file, case: its status and reason
        grep "^ranks,$2," "$1" | sed -n 's/.*,\(ok\|crashed\|error\),\([^,;]*\).*/\1 \2/p'
    }
    salloc -n 1 "$MEMTIDE" run ranks.lua -q --csv mpirun.csv --case fine >salloc.log 2>&1 </dev/null
    is "$(row_of mpirun.csv fine)" "ok " "mpirun starts ranks inside of an allocation"
    MEMTIDE_MPIRUN="srun --overlap --mpi=pmix --kill-on-bad-exit=1 -n {}" \
        salloc -n 2 "$MEMTIDE" run ranks.lua -q --retry none --csv srun.csv >>salloc.log 2>&1 </dev/null
    is "$(row_of srun.csv fine)" "ok " "and srun starts them"
    losses=$(for case in alone fine; do grep "^ranks,$case," srun.csv | sed 's/.*,\([0-9.]*,[0-9.]*\),1,.*/\1/'; done | sort -u | wc -l)
    is "$losses" 1 "with the losses of one rank"
    has "$(row_of srun.csv killed)" "rank 1: killed by signal 9" "a rank that is killed is named"
    has "$(row_of srun.csv left)" "rank 1: ended with exit status 7" "and one that leaves"
    is "$(srun -n 2 --overcommit "$MEMTIDE" run ranks.lua -q 2>&1 | grep -c "start memtide once, and say world = 2")" 2 "srun memtide is refused"
    [ $failed = 0 ] || sed 's/^/# /' salloc.log
fi

if [ -n "$NEED" ]; then # the time limit: a minute, of which the warning leaves some seconds
    write_scripts 9
    submit --time=1 --signal=USR1@50
    wait_for 100 queued_again -j "${array}_1"
    result $? "the time limit warns a part"
    has "$(cat out/1.log)" "memtide: stopped as asked by SIGUSR1; " "which ends after the cell that ran"
    is "$(grep -c 'DUE TO TIME LIMIT' out/1.log)" 0 "in time"
fi
finish
