# memtide run in worker processes: what a failing cell costs, limits, retries, signals, locks, logs.
. tests/tap.sh
FAULTS=$(cd "$ROOT" && realpath "${BUILD:-build}/tests/faults.so")

cat >fates.lua <<'END'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
print("loading")
local FATES = {
  once = function() -- dies the first time
    local file = io.open("died", "r")
    if file then return file:close() end
    io.open("died", "w"):close()
    os.execute "kill -SEGV $PPID; sleep 60"
  end,
  -- a device that fails once, and one that fails always
  lost = function(settings)
    local file = io.open("lost" .. settings.n, "r")
    if file then return file:close() end
    if settings.n == 1 then io.open("lost1", "w"):close() end
    require "memtide.core".runtime = function() return nil, "the device is lost", "device" end
  end,
  segv = function() os.execute "kill -SEGV $PPID; sleep 60" end,
  kill = function() os.execute "kill -KILL $PPID; sleep 60" end,
  hang = function() while true do end end,
  stubborn = function() os.execute "trap '' TERM; while :; do sleep 0.1; done" end,
  hog = function() local all = {} while true do all[#all + 1] = ("x"):rep(1 << 20) .. #all end end,
  raise = function() error "on purpose" end,
  speak = function() print "words" end,
  long = function() error(("x"):rep(16000000)) end,
  word = function() error "the download was interrupted by the server" end,
  mute = function() error(setmetatable({}, {__tostring = function() error "no" end})) end,
  babble = function() require "memtide.core".worker_channel():send "x" os.execute "sleep 60" end,
  flood = function() -- a message that takes for ever
    local channel = require "memtide.core".worker_channel()
    channel:send((1 << 28) .. "\n")
    while true do channel:send(("x"):rep(100)) end
  end,
  wait = function() print("waits", os.getenv "GOMP_SPINCOUNT", os.getenv "OMP_WAIT_POLICY") end,
}
return mt.experiment{
  name = "fates", input = {8}, classes = 4, batch = 4, warmup = 1, steps = 2,
  model = function(settings)
    local _ = settings.n -- tells cells apart
    if FATES[settings.fate] then FATES[settings.fate](settings) end
    return nn.Sequential{nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)}
  end,
  loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.1},
  sweep = {{"fate", {"none", "raise"}}, {"n", {1, 2}}},
}
END

# the statuses of a file's rows, in order
statuses() { grep -oE ',(ok|predicted|oom|diverged|timeout|crashed|error|skipped),' "$1" | tr -d ',' | tr '\n' ' ' | sed 's/ $//'; }

run() { memtide run fates.lua --csv f.csv "$@"; }
fresh() { rm -rf f.csv f.csv.* f.logs; run "$@"; }

# ---- crashes
fresh --set fate=none,segv,raise --set n=1
is "$status $(statuses f.csv)" "1 ok crashed error" "a cell that crashes is a row, and the next ones run"
has "$(cat f.csv)" "2nd attempt: " "with the attempt"
has "$(cat f.csv)" " while building; log: f.logs/" "with what it was doing, and the log"
is "$(ls f.logs | wc -l)" 1 "one log"
has "$(cat f.logs/*)" "fate=segv" "which names the cell"
case $out in loading*fate*) told=0 ;; *) told=1 ;; esac
result $told "what the script prints comes once"
is "$(echo "$out" | grep -c loading)" 1 "not from the workers too"
fresh --set fate=once --set n=1
is "$status $(statuses f.csv)" "0 ok" "a crash is tried again in a fresh worker"
fresh --set fate=lost,none --set n=1,2
is "$status $(statuses f.csv)" "1 ok error ok ok" "a device error is tried again in a fresh worker"
has "$(cat f.csv)" "2nd attempt: the device is lost" "once, and the worker is replaced after it"
fresh --set fate=kill,none --set n=1
has "$(cat f.csv)" "killed by SIGKILL while building: not by memtide" "a SIGKILL from elsewhere is told"
fresh --set fate=speak,none --set n=1
is "$(cat f.logs/* | tail -1)" words "what a cell prints goes to its log"
is "$(ls f.logs | wc -l)" 1 "and a silent cell has none"
memtide predict fates.lua --set fate=speak --set n=1
has "$err" "words" "without a file of rows, to standard error"

# ---- what an error says
fresh --set fate=long,none --set n=1
is "$status $(statuses f.csv)" "1 error ok" "an error text of 16 MB"
has "$(cat f.csv)" "xxx... (15.3 MiB cut)," "is cut in its row"
fresh --set fate=none,word,mute --set n=1
is "$status $(statuses f.csv)" "1 ok error error" "errors that look like others are errors"
has "$(cat f.csv)" "fates.lua:26: the download was interrupted by the server" "with what they say"
has "$(cat f.csv)" "an error (a table) that cannot be shown" "if that can be said"
fresh --set fate=babble,none --set n=1
is "$status $(statuses f.csv)" "1 crashed ok" "a worker that talks nonsense is ended"
has "$(cat f.csv)" "2nd attempt: what the worker sent while building is no message" "which nobody else is blamed for"
sed 's/sweep = /where = function() error "it was interrupted" end, sweep = /' fates.lua >where.lua
memtide run where.lua
is $status 65 "an error with such a word in a filter is a mistake of the script"
has "$err" "it was interrupted (in where, for the cell fate=none n=1)" "which is told"
echo 'local t = {} for i = 1, 1e9 do t[i] = {i} end' >memory.lua
if ( ulimit -v 400000 && "$MEMTIDE" --version >/dev/null 2>&1 ); then
    ( ulimit -v 400000; "$MEMTIDE" run memory.lua >out.txt 2>err.txt )
    is "$? $(cat err.txt)" "71 memtide: not enough memory" "no memory in the parent's Lua"
else result 0 "no memory in the parent's Lua # SKIP a sanitizer wants more than any limit"
fi
rm -f f.samples.csv
fresh --set fate=none --set n=1 --steps 2500
is "$(cut -d, -f6 f.samples.csv | tail -n +2 | sort -n | uniq | wc -l) $(wc -l <f.samples.csv)" "2501 2502" \
    "a sample for each step, in several messages"
memtide verify f.csv
is $status 0 "of which the row's time is made"

# ---- how long threads of a worker wait for each other awake
waits() ( # VARIABLE=VALUE...: what a cell finds
    unset GOMP_SPINCOUNT OMP_WAIT_POLICY
    [ $# = 0 ] || export "$@"
    fresh --set fate=wait --set n=1
    tail -1 f.logs/* | tr '\t' ' '
)
is "$(waits)" "waits nil nil" "as in any process, by the load"
is "$(waits OMP_WAIT_POLICY=active)" "waits nil active" "or as the user says"
is "$(waits GOMP_SPINCOUNT=7)" "waits 7 nil" "in either way"

# ---- limits
fresh --set fate=hang,none --set n=1 --timeout 1s
is "$status $(statuses f.csv)" "1 timeout ok" "a hanging cell is ended"
has "$(cat f.csv)" "no end after 1 s while building" "and told how long it had"
fresh --set fate=stubborn,none --set n=1 --timeout 1s
is "$(statuses f.csv)" "timeout ok" "also with a program that ignores SIGTERM"
fresh --set fate=hog,none --set n=1 --host-memory 300MiB --timeout 60s
if [ $status = 70 ]; then result 0 "--host-memory # SKIP a sanitizer wants more than any limit"
else
    is "$status $(statuses f.csv)" "0 oom ok" "a cell that takes more of the host than it may"
    has "$(cat f.csv)" "not enough memory" "is out of memory"
fi
fresh --max-failures 1 --set fate=none,raise,segv
is "$status $(statuses f.csv)" "4 ok ok error" "--max-failures stops"
has "$err" "1 cell in a row has failed, the last: fate=raise n=1: fates.lua" "and says why"
has "$err" "3 of 6 cells have their rows in f.csv" "and how far it came"
for words in "--timeout soon" "--timeout 0s" "--host-memory much" "--max-failures 0" "--retry some" \
    "--device cpu --devices cpu" "--devices cpu --in-process" "--jobs 2"; do
    run $words
    is $status 2 "$words is wrong usage"
done
memtide --worker
is $status 2 "--worker is not for the command line"

# ---- which rows are made anew
fresh --set n=1
run --set n=1 --retry none
is "$(statuses f.csv)" "ok error" "--retry none makes nothing anew"
run --set n=1
is "$(statuses f.csv)" "ok error error" "what failed is, unasked"
run --set n=1 --retry ok
is $status 2 "an outcome that is none"
run --set n=1 --retry all
is "$(statuses f.csv)" "ok error error ok error" "--retry all makes every row anew"
sed -i 's/,0\.1\.[^,]*,/,0.0.1,/' f.csv
run --set n=1
has "$err" "1 of 2 cells had been run by another version of memtide" "a row of another version is stale"

# ---- several workers
fresh --set fate=none,speak,segv --set n=1,2 --devices cpu,cpu
is "$(cut -d, -f3 f.csv | sort -u | wc -l) $(wc -l <f.csv)" "7 7" "two workers: each row once"
fresh --set fate=none --set n=1,2 --device cpu
run --set fate=none --set n=1,2 --devices cpu,cpu
has "$err" "2 of 2 cells were in f.csv already" "the cells are the same on one device and on several"
memtide run fates.lua --devices cpu,cuda:99 --csv g.csv
is $status 69 "a device that is not here"
memtide predict fates.lua --set fate=none --set n=1,2,3,4,5 --jobs 3 --json -q
is "$(echo "$out" | grep -c '"status":"predicted"')" 5 "predict with three workers"
rm -f f.csv
"$MEMTIDE" run - --csv f.csv --set fate=none <fates.lua >out.txt 2>err.txt
is "$(statuses f.csv)" "ok ok" "a script from standard input"
fresh --set fate=none,raise --in-process
is "$status $(statuses f.csv)" "1 ok ok error error" "--in-process"

# ---- the script is read once
sed 's/print("loading")/os.execute "echo broken >edited.lua"/' fates.lua >edited.lua
memtide run edited.lua --set fate=none --csv e.csv
is "$status $(statuses e.csv)" "0 ok ok" "a script that is edited meanwhile runs as it was read"

# ---- stopping
holds() { for _ in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15; do test -s f.csv.lock && break; sleep 0.3; done; sleep 1; }
started() { for _ in 1 2 3 4 5 6 7 8 9; do test -s f.csv && return; sleep 0.3; done; }
stops() { # signal, exit status, rows, what
    rm -f f.csv
    "$MEMTIDE" run fates.lua --csv f.csv --set fate=none,hang --set n=1 --timeout 3s >out.txt 2>err.txt </dev/null &
    job=$!
    started
    kill -"$1" $job
    wait $job
    is "$? $(statuses f.csv)" "$2 $3" "$4"
    is "$(test -e f.csv.lock || echo none)" none "... and leaves no lock"
}
stops TERM 143 ok "SIGTERM ends the cell that runs"
has "$(cat err.txt)" "memtide: terminated; 1 of 2 cells have their rows in f.csv" "and says how far it came"
stops INT 130 ok "SIGINT too"
stops USR1 75 "ok timeout" "SIGUSR1 lets it end, and starts no other"

answers_term() {
    holds
    kill -TERM $job
    ( sleep 20; kill -KILL $job ) 2>/dev/null &
    watcher=$!
    wait $job
    is $? 143 "$1"
    kill $watcher 2>/dev/null
}
"$MEMTIDE" run fates.lua --csv f.csv --set fate=flood --set n=1 >out.txt 2>err.txt </dev/null &
job=$!
answers_term "SIGTERM is answered while a long message arrives"
{ cat fates.lua; head -c 1000000 /dev/zero | tr '\0' '-'; } >large.lua # a comment
stops_early() {
    LD_PRELOAD=$FAULTS STOP_WORKER=1 ASAN_OPTIONS="${ASAN_OPTIONS:-}:verify_asan_link_order=0" \
        exec "$MEMTIDE" run large.lua --csv f.csv --set fate=none --set n=1 >out.txt 2>err.txt </dev/null
}
stops_early &
job=$!
answers_term "and while a worker does not take a long one"
"$MEMTIDE" run fates.lua --in-process --csv f.csv --set fate=hang --set n=1 >out.txt 2>err.txt </dev/null &
job=$!
holds
kill -INT $job
wait $job
is "$? $(cat err.txt)" "130 memtide: interrupted; 0 of 1 cells have their rows in f.csv" "SIGINT ends an endless loop"

rm -f f.csv
nohup "$MEMTIDE" run fates.lua --csv f.csv --set fate=none,hang --set n=1 --timeout 3s >out.txt 2>err.txt </dev/null &
job=$!
started
kill -HUP $job
wait $job
is "$? $(statuses f.csv)" "1 ok timeout" "under nohup a sweep outlives its terminal"

# ---- one sweep for each file
rm -f f.csv
"$MEMTIDE" run fates.lua --csv f.csv --set fate=none,hang --set n=1 >out.txt 2>err.txt </dev/null &
job=$!
started
run --set fate=none,speak --set n=1
is $status 66 "a second sweep of the same file is refused"
has "$err" "\"f.csv\" is in use by process $job" "with the first one's process"
kill -KILL $job
wait $job 2>/dev/null
run --set fate=none,speak --set n=1
is "$status $(statuses f.csv)" "0 ok ok" "one that was killed holds nothing"

# ---- a file system without locks (NFS without lockd, Lustre without -o flock)
without_locks() { LD_PRELOAD=$FAULTS FLOCK_ERRNO=$1 ASAN_OPTIONS="${ASAN_OPTIONS:-}:verify_asan_link_order=0" \
    "$MEMTIDE" run fates.lua --csv f.csv --set fate="$2" --set n=1 >out.txt 2>err.txt </dev/null; }
for number in 37 38 95; do # ENOLCK, ENOSYS, EOPNOTSUPP
    rm -f f.csv
    without_locks $number none
    is "$? $(statuses f.csv) $(ls f.csv.lock 2>/dev/null)" "0 ok " \
        "flock fails with $number: a sweep runs, and leaves no lock"
done
without_locks 37 hang &
job=$!
holds
without_locks 37 speak
is "$? $(cut -d\  -f2,3 f.csv.lock)" "66 on $(hostname)" "a second one is refused"
has "$(cat err.txt)" "in use by process $(cut -d\  -f1 f.csv.lock) on $(hostname); this file system has no locks" \
    "with the first one's process"
kill -KILL "$(cut -d\  -f1 f.csv.lock)"
wait $job 2>/dev/null
without_locks 37 speak
is $? 66 "after a kill, too"
has "$(cat err.txt)" 'if that process has ended, remove "f.csv.lock"' "with what is to be done"
rm f.csv.lock
without_locks 37 speak
is "$? $(statuses f.csv)" "0 ok ok" "and then it goes on"
without_locks 5 speak
is $? 66 "any other failure of flock is one"

# ---- what a worker needs
TMPDIR=/nowhere memtide run fates.lua --csv f.csv --set fate=none
is "$status $err" '66 memtide: cannot create a worker'"'"'s log in "/nowhere": No such file or directory; '"0 of 2 cells \
have their rows in f.csv" "a folder for logs that is not there"

# ---- a full disk
if ( ulimit -f 0 ) 2>/dev/null; then
    fresh --set fate=none --set n=1,2
    ln -sf /dev/null f.samples.csv # the rows are what fails
    (
        ulimit -f 2 # of 512 or 1024 bytes
        "$MEMTIDE" run fates.lua --csv f.csv --set fate=none --set n=1,2,3,4,5,6,7,8 >out.txt 2>err.txt </dev/null
        echo $? >status.txt
    )
    is "$(cat status.txt)" 66 "a disk that is full ends the sweep"
    has "$(cat err.txt)" 'cannot write "f.csv": File too large; ' "with the reason"
    has "$(cat err.txt)" "this row could not be written: fates,n=" "and the row"
    run --set fate=none --set n=1,2,3,4,5,6,7,8
    is "$status $(cut -d, -f3 f.csv | sort -u | wc -l)" "0 9" "it goes on where there is room again"
    is "$(cut -d, -f3 f.csv | sort | uniq -d)" "" "with each row once"
fi
finish
