# verify, and the times of a cell, where the clock is set back or a cell is run twice in one second.
. tests/tap.sh

# CLOCK: what is added to the seconds of the clock, or "stopped"
cat >clock.lua <<'LUA'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
local clock, date = os.getenv "CLOCK" or "0", os.date
os.date = function(format, time)
  return date(format, time or (clock == "stopped" and 1.8e9 or os.time() + tonumber(clock)) // 1)
end
return mt.experiment{
  name = "clock", input = {4}, classes = 2, loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.01},
  model = function(s)
    if s.batch == 3 then error "on purpose" end
    return nn.Linear(4, 2)
  end,
  sweep = {{"batch", {1, 2, 3}}}, steps = 5, warmup = 1,
}
LUA
run() { CLOCK=$1 && shift && export CLOCK && memtide run clock.lua --retry all -q "$@"; }
clean() { # FILE, what
    memtide verify "$1"
    is "$status ${out##*samples: }" "0 nothing found" "$2"
    [ "$status" = 0 ] || echo "$out" | sed 's/^/# /'
}

run 0
run -86400
clean clock.csv "a clock that was set back by a day"
is "$(wc -l <clock.csv) $(wc -l <clock.samples.csv)" "7 25" "both runs are there"
run -172800
clean clock.csv "and by another one"

run stopped --csv twice.csv
run stopped --csv twice.csv
clean twice.csv "cells that are run twice in one second"
is "$(sed 1d twice.csv | cut -d, -f3 | sort | uniq -c | tr -s ' ' | cut -d' ' -f2 | uniq)" 2 "each twice"
head -n -3 twice.csv >resumed.csv
cp twice.samples.csv resumed.samples.csv
memtide verify resumed.csv
clean resumed.csv "rows that did not reach the disk, though their samples did"
run stopped --csv resumed.csv
clean resumed.csv "and cells that are run again in the same second"

run stopped --csv rounds.csv --set batch=1,2 --set rounds=3
run stopped --csv rounds.csv --set batch=1,2 --set rounds=3
clean rounds.csv "rounds, where a median is over all visits"
run -86400 --csv rounds.csv --set batch=1,2 --set rounds=3
clean rounds.csv "also from then on backwards"
CLOCK=stopped
memtide predict clock.lua --csv predicted.csv -q
memtide predict clock.lua --csv predicted.csv -q --retry all
is "$(sed 1d predicted.csv | sort -u | wc -l)" 3 "predictions that are the same, byte by byte"
clean predicted.csv "are none of them copies"

# ---- what is wrong is found all the same
awk -F, -v OFS=, '
    NR == 1 { for (i = 1; i <= NF; i++) if ($i == "step_ms") at = i }
    NR == 5 { $at = $at * 1.0001 }
    { print }' twice.csv >other.csv
cp twice.samples.csv other.samples.csv
memtide verify other.csv
has "$out" "other.csv:5: step_ms: 5 steps of " "a median that no visit has"
awk -F, 'NR == 1 || $6 != 3' twice.samples.csv >other.samples.csv
cp twice.csv other.csv
memtide verify other.csv
has "$out" "step_ms: 5 steps of " "a sample that is missing in every visit"
cp twice.csv copied.csv
tail -3 twice.csv | head -1 >>copied.csv
memtide verify copied.csv
has "$out" "copied.csv:8: cell: batch=1, repeat 1: this row is the same as line 5" "a measured row that was copied"

finish
