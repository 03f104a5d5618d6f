# What two busy neighbours cost two threads: the median step beside two busy loops over that without, in pairs; at most
# MOST times. It needs a machine of two processors that nothing else uses.
. tests/tap.sh
MOST=3 PAIRS=${PAIRS:-3}
unset OMP_WAIT_POLICY GOMP_SPINCOUNT
export OMP_NUM_THREADS=2

cat >mlp.lua <<'E'
local mt = require "memtide"
local nn = mt.nn
return mt.experiment{name = "mlp", model = nn.Sequential{nn.Linear(784, 128), nn.ReLU(), nn.Linear(128, 10)},
  input = {784}, classes = 10, batch = 8, loss = nn.CrossEntropyLoss(), optimizer = mt.optim.Adam(), steps = 6000,
  warmup = 200}
E
cat >convnet.lua <<'E'
local mt = require "memtide"
local nn = mt.nn
return mt.experiment{name = "convnet", model = nn.Sequential{nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 128, 3),
  nn.ReLU(), nn.Flatten(), nn.Linear(128 * 28 * 28, 10)}, input = {3, 32, 32}, classes = 10, batch = 8,
  loss = nn.CrossEntropyLoss(), optimizer = mt.optim.Adam(), steps = 40, warmup = 5}
E

# The median step of a script: its column step_ms
step_ms() {
    rm -f rows.csv
    memtide run "$1" --quiet --csv rows.csv
    awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "step_ms") at = i } NR == 2 { print $at }' rows.csv
}
median() { sort -n | awk '{ x[NR] = $1 } END { print x[int((NR + 1) / 2)] }'; }

# How much of a second of all processors is used, in %. Of /proc/stat's times the fourth and fifth are idle.
used() {
    { head -n 1 /proc/stat; sleep 1; head -n 1 /proc/stat; } | awk '
        { all = 0; for (i = 2; i <= NF; i++) all += $i; idle = $5 + $6 }
        NR == 1 { first = all; first_idle = idle }
        END { printf "%.0f", 100 - 100 * (idle - first_idle) / (all - first) }'
}

cannot() { echo "ok 1 - a busy neighbour # SKIPPED: $1"; echo "$0: SKIPPED: $1" >&2; echo 1..1; exit 0; }
[ "$(getconf _NPROCESSORS_ONLN)" = 2 ] || cannot "needs a machine of two processors, which two loops can crowd"
busy=$(used)
[ "$busy" -le 10 ] || cannot "other programs use $busy % of the processors: a quiet machine is needed"

for script in mlp convnet; do
    : >alone
    : >beside
    for _ in $(seq "$PAIRS"); do
        step_ms $script.lua >>alone
        (while :; do :; done) &
        first=$!
        (while :; do :; done) &
        second=$!
        trap 'kill $first $second 2>/dev/null; rm -rf "$WORK"' EXIT
        sleep 0.2
        step_ms $script.lua >>beside
        kill $first $second
        wait $first $second 2>/dev/null
    done
    alone=$(median <alone) beside=$(median <beside)
    factor=$(awk "BEGIN { printf \"%.2f\", $beside / $alone }")
    result "$(awk "BEGIN { print !($factor <= $MOST) }")" \
        "$script: $alone ms, $beside ms beside two busy loops: $factor times"
done
finish
