# A worker that dies at each message of its protocol: before it, in the middle of it, after it. Whatever the sweep has
# done before, the next one ends with one row for each cell, and nothing that was finished is lost.
. tests/tap.sh
LD_PRELOAD_FAULTS=$(cd "$ROOT" && realpath "${BUILD:-build}/tests/faults.so")
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:verify_asan_link_order=0"

cat >deaths.lua <<'END'
local mt = require "memtide"
local nn = mt.nn
return mt.experiment{
  name = "deaths", model = nn.Linear(4, 2), model_name = "m", input = {4}, classes = 2, loss = nn.CrossEntropyLoss(),
  steps = 2, warmup = 0, sweep = {{"batch", {1, 2}}},
}
END

# Runs the sweep while one worker dies at message $1, $2 it (before: in the work that leads to it), by signal $3.
dying() { (
    export LD_PRELOAD="$LD_PRELOAD_FAULTS" DIE_AT=$1 DIE_WHEN=$2 DIE_SIGNAL=$3 DIE_ONCE=$PWD/alive
    : >alive
    "$MEMTIDE" run deaths.lua --plain >out.txt 2>err.txt </dev/null
) }
calm() { memtide run deaths.lua -q; }
fresh() { rm -rf deaths.csv* deaths.samples.csv* deaths.logs; }
cells() { cut -d, -f3,4 deaths.csv | tail -n +2 | sort -u | wc -l; }
statuses() { grep -oE ',(ok|crashed|error),' deaths.csv | tr -d ',' | tr '\n' ' '; }

# messages of a worker: ready; of each cell built, columns, samples, done, or built, skipped
# (before the next is after the last)
died=0 wrong=
for when in half after; do
    for at in 1 2 3 4 5 6 7 8 9; do
        fresh
        dying $at $when 9
        [ -e alive ] || died=$((died + 1))
        before=$(cells)
        calm
        memtide verify deaths.csv deaths.lua
        [ "$status $before $(cells)" = "0 2 2" ] || wrong="$wrong $when $at ($status, $before, $(cells))"
    done
done
is "$died" 18 "a worker dies at each message"
is "$wrong" "" "and the sweep, run again, ends with one row for each cell"

fresh
calm
cp deaths.csv finished.csv
died=0 wrong=
for when in half after; do
    for at in 1 2 3 4 5; do
        dying $at $when 9
        [ -e alive ] || died=$((died + 1))
        cmp -s deaths.csv finished.csv || wrong="$wrong $when $at"
    done
done
is "$died" 10 "a worker that finds rows dies at each message"
is "$wrong" "" "and the file stays as it was"

dying 2 before 9
has "$(cat err.txt)" "batch=1: its row in deaths.csv stays, but it could not be built: killed by SIGKILL" \
    "where the cell could not be built, that is told"
dying 2 before 11
is "$? $(cat err.txt | grep -c stays)" "0 0" "but not where it can at the second attempt"

# ---- cells that cannot be built at first: rows of ids without a network
cat >unbuilt.lua <<'END'
local mt = require "memtide"
local nn = mt.nn
return mt.experiment{
  name = "deaths", model_name = "m", input = {4}, classes = 2, loss = nn.CrossEntropyLoss(), batch = 10000,
  epochs = 1,
  sweep = {{"n", {1, 2}}},
  model = function(s)
    if s.n == 2 and os.getenv "FATE" == "raise" then error({}) end
    if s.n == 2 and os.getenv "FATE" == "die" then os.execute "kill -9 $PPID; sleep 60" end
    return nn.Linear(4, 2)
  end,
}
END
fated() { FATE=$1 memtide run unbuilt.lua --plain --csv deaths.csv ${2:-}; }
for fate in raise die; do
    fresh
    fated $fate
    is "$status $(cells)" "1 2" "$fate: a cell that cannot be built has a row"
    fated $fate "--retry none"
    is "$(wc -l <deaths.csv)" 3 "... which --retry none leaves alone"
    fated $fate
    is "$(wc -l <deaths.csv) $(cells)" "4 2" "... which is replaced when it cannot be built again"
    FATE=none memtide status unbuilt.lua --csv deaths.csv
    has "$out" "1 done (1 ok), 1 failed" "... is its own, as failed"
    fated none
    memtide verify deaths.csv unbuilt.lua
    is "$status $(cells)" "0 2" "... and stays its own when it can be built"
    cp deaths.csv finished.csv
    fated $fate
    is "$status $(cmp deaths.csv finished.csv)" "1 " "... a result stays when it cannot be built any more"
    has "$err" "n=2: its row in deaths.csv stays, but it could not be built" "... and that is told"
done

# ---- a file of an earlier memtide: a row whose id no cell has, beside the cell's own
cp finished.csv old.csv
fresh
fated raise
grep ',error,' deaths.csv >>old.csv
memtide verify old.csv unbuilt.lua
is $status 1 "verify sees a row of an id that no cell has"
has "$out" "old.csv:6: cell: n=2, repeat 1: this row's id is without a network, but line 5 has the cell" "and where"
memtide merge new.csv old.csv
has "$out" "new.csv: 2 rows (2 ok)" "merge leaves it out"
memtide verify new.csv unbuilt.lua
is $status 0 "and then nothing is wrong"
finish
