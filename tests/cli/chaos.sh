# A sweep whose cells crash, hang and fail in every way, while the sweep itself is killed: each row once, and the same
# rows as of a sweep that nobody disturbed. CELLS of each kind (1) and KILLS (3); make soak runs it whole.
. tests/tap.sh
CELLS=${CELLS:-1} KILLS=${KILLS:-3} SEED=${SEED:-$$}
export CELLS

cat >chaos.lua <<'END'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
local function shell(text) os.execute(text) end
-- looks at the worker's note until it says that the steps of such a cell run
local dies_computing = [[(while [ -e /proc/$PPID/fd/4 ]; do
  if grep -q "of 1000000001" /proc/$PPID/fd/4; then kill -SEGV $PPID; fi
  sleep 0.02
done) >/dev/null 2>&1 &]]
local FATES = {
  segv = function() shell "kill -SEGV $PPID; sleep 60" end,
  abort = function() shell "kill -ABRT $PPID; sleep 60" end,
  leave = function() os.exit(7) end,
  late = function() shell(dies_computing) end,
  hang = function() while true do end end,
  raise = function() error "on purpose" end,
  speak = function() print "words" end,
}
local n = {}
for i = 1, tonumber(os.getenv "CELLS") do n[i] = i end
return mt.experiment{
  name = "chaos", input = {8}, classes = 4, batch = 4, warmup = 1, steps = 2,
  model = function(settings)
    local _ = settings.n -- tells cells apart
    if FATES[settings.fate] then FATES[settings.fate]() end
    return nn.Sequential{nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)}
  end,
  loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.1},
  sweep = {{"n", n}},
  cases = {
    {case = "fine", fate = "none"}, {case = "segv", fate = "segv"}, {case = "abort", fate = "abort"},
    {case = "leave", fate = "leave"}, {case = "late", fate = "late", steps = 1000000000},
    {case = "hang", fate = "hang"}, {case = "raise", fate = "raise"}, {case = "speak", fate = "speak"},
    {case = "large", fate = "none", batch = 4096},
    {case = "nan", fate = "none", optimizer = optim.SGD{lr = 1e30}, steps = 9},
  },
}
END
set -- run chaos.lua -q --retry none --try-oom --memory 64KiB --timeout "${TIMEOUT:-5s}"
total=$((10 * CELLS))

# Without what differs from one run to the next: times, how many of them count, and the step in which a cell died
rows() {
    awk -F, -v OFS=, '
        NR == 1 { for (i = 1; i <= NF; i++) if ($i ~ /_ms|^steps$|samples_per_s|untracked|device_used/) drop[i] = 1 }
        { for (i in drop) $i = ""; gsub(/step [0-9]+ of/, "step of"); gsub(/20[0-9-]+T[0-9:]+Z/, ""); print }' "$1" |
        sort
}

# Programs of this test that still run
running() {
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/cwd" 2>/dev/null)" = "$PWD" ] || continue
        case $(readlink "$process/exe") in "$MEMTIDE"*) echo "${process#/proc/}" ;; esac
    done
}

mkdir calm wild
cp chaos.lua calm
cp chaos.lua wild
cd calm || exit 1
memtide "$@"
is $status 1 "the undisturbed sweep ends"
cd ../wild || exit 1
count_alive=0
kill=0
echo "# SEED=$SEED"
while [ $kill -lt "$KILLS" ]; do
    kill=$((kill + 1))
    "$MEMTIDE" "$@" >/dev/null 2>&1 </dev/null &
    job=$!
    sleep "$(awk -v seed="$SEED$kill" 'BEGIN { srand(seed); printf "%.3f", 0.05 + 0.95 * rand() }')"
    kill -KILL $job 2>/dev/null
    wait $job 2>/dev/null
    sleep 0.2
    count_alive=$((count_alive + $(running | wc -l)))
done
is $count_alive 0 "no worker outlives its parent, killed $KILLS times"
memtide "$@"
is $status 1 "the sweep goes on to its end"
is "$(wc -l <chaos.csv)" $((total + 1)) "$total rows"
is "$(cut -d, -f3 chaos.csv | sort | uniq -d)" "" "each once"
rows ../calm/chaos.csv >../calm.txt
rows chaos.csv >../wild.txt
is "$(diff ../calm.txt ../wild.txt)" "" "the same rows as undisturbed"
is "$(ls ../calm/chaos.logs)" "$(ls chaos.logs)" "and the same logs"

statuses() { # case -> its statuses, each once
    grep "^chaos,$1 " chaos.csv | grep -oE ',(ok|oom|diverged|timeout|crashed|error),' | sort -u | tr -d ',\n'
}
for pair in fine:ok segv:crashed abort:crashed leave:crashed late:crashed hang:timeout raise:error speak:ok large:oom \
    nan:diverged; do
    is "$(statuses "${pair%:*}")" "${pair#*:}" "$pair"
done
finish
