# A sweep in parts: lists of cells, shards, merge, verify.
. tests/tap.sh

cat >small.lua <<'SCRIPT'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
return mt.experiment{
  name = "small", input = {3, 8, 8}, classes = 4,
  options = {{"width", 8, "channels"}},
  model = function(s)
    if s.fate == "crash" and os.getenv "CRASH" then os.execute "kill -SEGV $PPID; sleep 60" end
    if s.fate == "signal" then os.execute "kill -USR1 $PPID" end
    if s.fate == "raise" then error "on purpose" end
    return nn.Sequential{nn.Conv2d(3, s.width, 3), nn.ReLU(), nn.Flatten(), nn.Linear(s.width * 36, 4)}
  end,
  loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.01},
  sweep = {{"batch", {4, 8, 16, 32}}, {"precision", {"fp32", "amp_bf16"}}, {"fate", {"none"}}},
  claims = {{claim = "less is less", of = "peak_bytes", less = {{batch = 4, precision = "fp32"},
    {batch = 8, precision = "fp32"}}}},
  steps = 3, warmup = 1,
}
SCRIPT
value() { # COLUMN LINE FILE
    awk -F, -v name="$1" -v line="$2" '
        NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i }
        NR == line { print $at }' "$3"
}
column() { # COLUMN FILE...: all its values, sorted
    name=$1
    shift
    awk -F, -v name="$name" '
        FNR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i }
        FNR > 1 { print $at }' "$@" | sort
}
change() { # COLUMN LINE TEXT FILE
    awk -F, -v OFS=, -v name="$1" -v line="$2" -v text="$3" '
        NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i }
        NR == line { $at = text }
        { print }' "$4" >changed.tmp && mv changed.tmp "$4"
}
rest() { tail -n +2 "$1"; }

# ---- the list of cells
memtide cells small.lua --shards 3
is "$status $out" "0 small.cells.csv: 8 cells in 3 parts of 2 to 4" "the list of cells"
is "$(cut -d, -f1 small.cells.csv | sort -u | tr '\n' ' ')" "1 2 3 shard " "each of a part"
work() { awk -F, -v part="$1" '
    NR == 1 { for (i = 1; i <= NF; i++) if ($i == "batch") at = i }
    $1 == part { sum += $at }
    END { print sum }' small.cells.csv; }
is "$(for part in 1 2 3; do work $part; done | sort -n | tr '\n' ' ')" "40 40 40 " "which have the same work"
cp small.cells.csv again.csv
memtide cells small.lua --shards 3 -o small.cells.csv -q
is "$(cmp small.cells.csv again.csv && echo same)" same "it is the same each time"
memtide cells small.lua --shards 9
is "$status $err" "2 memtide: expected at most as many parts as there are cells, 8, found 9" "there are no empty parts"

# ---- parts
for part in 1 2 3; do memtide run small.lua --cells small.cells.csv --shard $part/3 -q; done
is "$status" 0 "every part runs, and judges no claims"
is "$(column cell small.?-of-3.csv)" "$(column cell small.cells.csv)" "all cells, each in one file"
is "$(ls ./*.csv | tr '\n' ' ')" "./again.csv ./small.1-of-3.csv ./small.1-of-3.samples.csv ./small.2-of-3.csv \
./small.2-of-3.samples.csv ./small.3-of-3.csv ./small.3-of-3.samples.csv ./small.cells.csv " "with its samples"
cp small.2-of-3.csv again.csv
memtide run small.lua --cells small.cells.csv --shard 2/3 -q
is "$(cmp small.2-of-3.csv again.csv && echo same)" same "a part is resumed"
rm -f two.csv
memtide run small.lua --shard 2/3 --csv two.csv --devices cpu,cpu -q
is "$(column cell two.csv)" "$(column cell small.2-of-3.csv)" "without a list the parts are the same"
memtide run small.lua --shard 2/3 --dry-run
has "$out" "2 cells, 0 of them to run" "a dry run of a part"
for shard in 0/3 4/3 x 1/; do
    memtide run small.lua --shard $shard
    is $status 2 "--shard $shard is none"
done
memtide run small.lua --cells small.cells.csv
is $status 2 "a list without --shard"

# ---- a script that is no more what the list was made of
other() { # what is expected, what, options...
    wanted=$1 what=$2
    shift 2
    rm -f x.csv
    memtide run "${script:-small.lua}" --cells small.cells.csv --shard 1/3 --csv x.csv "$@"
    is "$status $(test -e x.csv && echo rows)" "65 " "$what runs nothing"
    has "$err" "small.cells.csv: the script or the command line is not what the list was made of: $wanted" "and is told"
}
other "it lists 8 cells, there are 6" "another number of cells" --set batch=4,8,16
other "cell 7 was batch=32 precision=fp32 fate=none (repeat 1), it is batch=64" "another axis" --set batch=4,8,16,64
other "width, network of the cell batch=" "another option" --width 4
other "settings of the cell batch=" "another number of steps" --steps 5
sed 's/SGD{lr = 0.01}/SGD{lr = 0.02}/' small.lua >edited.lua
script=edited.lua other "optimizer of the cell batch=" "an edited script"
sed 's/nn.ReLU()/nn.Tanh()/' small.lua >edited.lua
script=edited.lua other "network of the cell batch=" "another network"
sed 's/name = "small"/name = "other"/' small.lua >edited.lua
script=edited.lua other "it is of the experiment small, this is other" "another experiment"
memtide run small.lua --cells small.cells.csv --shard 1/4
is "$status $err" "2 memtide: --shard 1/4: small.cells.csv has 3 parts" "another number of parts"
head -c -9 small.cells.csv >half.csv
memtide run small.lua --cells half.csv --shard 1/3
has "$err" "the list of cells is incomplete" "half a list"
memtide run small.lua --cells small.1-of-3.csv --shard 1/3
has "$err" "expected the columns shard, experiment, case, cell, repeat of a list of memtide cells" "a file that is none"

# ---- merge
memtide merge all.csv small.1-of-3.csv small.2-of-3.csv small.3-of-3.csv --cells small.cells.csv
is "$status $out" "0 all.csv: 8 rows (8 ok) of 3 files; 0 the same, 0 in conflict" "all parts as one"
is "$(cut -d, -f3 all.csv)" "$(cut -d, -f4 small.cells.csv)" "in the order of the list"
is "$(rest all.csv | sort)" "$(for f in small.?-of-3.csv; do rest $f; done | sort)" "the rows as they were"
is "$(rest all.samples.csv | sort)" "$(for f in small.?-of-3.samples.csv; do rest $f; done | sort)" "and the samples"
is "$(ls ./*.tmp* ./*.lock 2>/dev/null)" "" "nothing else is left"
memtide verify all.csv small.lua
is "$status $out" "0 all.csv: 8 rows, 32 samples: nothing found" "the result is verified"
cp all.csv small.csv
cp all.samples.csv small.samples.csv
memtide run small.lua
has "$err" "8 of 8 cells were in small.csv already" "memtide run has nothing left to do"
has "$out" "less is less  REPRODUCED" "but to judge the claims"
cp all.csv before.csv
cp all.samples.csv before.samples.csv
memtide merge all.csv small.1-of-3.csv small.2-of-3.csv small.3-of-3.csv
is "$out" "all.csv: 8 rows (8 ok) of 4 files; 8 the same, 0 in conflict" "once more adds nothing"
is "$(cmp all.csv before.csv && cmp all.samples.csv before.samples.csv && echo same)" same "not a byte"
memtide merge part.csv small.1-of-3.csv none.csv --cells small.cells.csv
is $status 1 "a part that is not there"
has "$err" "none.csv: there is no such file; left out" "is told"
has "$out" "cells are missing" "with its cells"
has "$out" "missing: batch=" "by name"
is "$(echo "$out" | grep -c '^missing: .*, repeat 1, of part [23]$')" "$(grep -c '^[23]' small.cells.csv)" "and part"
memtide merge part.csv small.2-of-3.csv small.3-of-3.csv --cells small.cells.csv
is "$status $(wc -l <part.csv)" "0 9" "what the file had already counts"
memtide merge all.csv none.csv
is $status 66 "none of the files"
memtide merge all.csv small.1-of-3.csv small.1-of-3.csv
is $status 2 "one file twice"
memtide merge all.csv
is $status 2 "nothing to merge"
memtide merge all.csv small.cells.csv
is $status 65 "a file that holds no results"
has "$err" '"small.cells.csv", line 1: no results of memtide: there is no column status' "is told"
is "$(cmp all.csv before.csv && echo same)" same "and the result left as it is"
sed '3s/,/,"/' small.1-of-3.csv >bad.csv
memtide merge all.csv bad.csv
is "$status $err" '65 memtide: "bad.csv", line 3: its quotes do not match' "as for a damaged line"

# ---- conflicts, torn lines, other columns
cp small.1-of-3.csv a.csv
cp small.1-of-3.csv b.csv
change status 2 error b.csv
change started_at 2 2099-01-01T00:00:00Z b.csv
change started_at 3 2099-01-01T00:00:00Z b.csv
change step_ms 3 77 b.csv
printf 'torn,1,' >>b.csv
cp a.csv a.before
cp b.csv b.before
rm -f m.csv
memtide merge m.csv a.csv b.csv
is $status 0 "files that contradict each other"
has "$out" "in conflict" "is told"
has "$err" "b.csv: the last line is incomplete, and left out" "with the torn line"
has "$err" "kept is a.csv line 2 (ok, " "a result is kept before a failure"
has "$err" "kept is b.csv line 3 (ok, 2099-01-01T00:00:00Z), left out is a.csv line 3" "of two results the later"
is "$(value status 2 m.csv) $(value step_ms 3 m.csv)" "ok 77" "which is so"
is "$(cmp a.csv a.before && cmp b.csv b.before && echo same)" same "what is read stays as it is"
sed '1s/,version,/,version,humidity,/; 2,$s/\(,[^,]*\)$/,40\1/' small.2-of-3.csv >wide.csv
rm -f m.csv
memtide merge m.csv small.1-of-3.csv wide.csv
is "$(head -1 m.csv)" "$(head -1 wide.csv)" "columns that only one file has"
is "$(value humidity 2 m.csv) $(column humidity m.csv | grep -c 40)" " $(rest wide.csv | wc -l)" \
    "are empty for the others"

# ---- cells that fail: the list was made where they did not, or cannot know them
memtide cells small.lua --set fate=none,raise,crash --set batch=4 --shards 2 -o fates.csv
is "$(awk -F, '$3 ~ /raise/ { print $4 }' fates.csv | grep -c '^[0-9a-f]*$')" 2 \
    "of a cell that cannot be built the settings are listed"
export CRASH=1
for part in 1 2; do
    memtide run small.lua --set fate=none,raise,crash --set batch=4 --cells fates.csv --shard $part/2 --csv f$part.csv
    is $status 1 "part $part has failures"
done
unset CRASH
memtide merge f.csv f1.csv f2.csv --cells fates.csv
is "$status $out" "0 f.csv: 6 rows (2 crashed, 2 error, 2 ok) of 2 files; 0 the same, 0 in conflict" \
    "a failure is a row, and none is missing"
memtide verify f.csv
is $status 0 "and nothing that a file may not have"
memtide verify f.csv small.lua --set fate=none,raise,crash --set batch=4
is "$status $(echo "$out" | grep -cE 'cell: .* is (failed|stale)')" "1 4" "but the script's cells are not done"

memtide run small.lua --set fate=signal --set batch=4 --csv signal.csv -q --no-claims
is "$status $(column status signal.csv | sort -u)" "0 ok" "a warning that reaches the worker, too, ends no cell"
(trap '' XFSZ; ulimit -f 2; "$MEMTIDE" merge full.csv small.1-of-3.csv small.2-of-3.csv >out.txt 2>err.txt)
is $? 66 "a full disk"
has "$(cat err.txt)" "cannot write full." "is told"
is "$(ls full* 2>/dev/null)" "" "and leaves nothing"

# ---- verify
memtide verify small.1-of-3.csv small.lua --shard 1/3
is $status 2 "verify takes a whole file's cells"
damage() { # COLUMN LINE TEXT, what is expected, what: a damaged value
    cp before.csv d.csv
    cp before.samples.csv d.samples.csv
    change "$1" "$2" "$3" d.csv
    memtide verify d.csv
    is $status 1 "$5"
    has "$out" "d.csv:$2: $4" "... with its place"
}
damage status 3 fine 'status: expected one of ok predicted oom skipped diverged timeout crashed error, found "fine"' "another status"
damage cell 4 47 'cell: expected an id such as ' "a cell that is none"
damage batch 2 many 'batch: expected a whole number from 1 or "max", found "many"' "a word for a number"
damage started_at 2 today 'started_at: expected a time' "another time"
damage version 2 "" 'version: expected a text, found ""' "a column that is never empty"
damage peak_bytes 5 17 "peak_bytes: measured 17, predicted $(value predicted_peak_bytes 5 before.csv)" \
    "a peak that was not predicted"
damage activations_bytes 5 1 "weights_bytes: the categories sum to " "categories that do not sum to the peak"
damage lower_bound_bytes 6 999999999 "lower_bound_bytes: 999999999 is above" "a bound that is none"
damage effective_batch 3 5 "effective_batch: expected " "a batch that is no product"
damage step_ms_min 3 1e9 "step_ms: 3 steps of " "a least that is not the least"
damage samples_per_s 3 12 "samples_per_s: 12, but " "another rate"
damage loss_last 3 nan "loss_last: expected a number in a row that is ok, found" "a loss that is none"
damage steps 4 2 "step_ms: 2 steps of " "another number of steps than there are samples"
damage step_ms 4 "$(value step_ms_p90 4 before.csv)" "step_ms: 3 steps of " "another median than that of the samples"
damage status 3 error "reason: there is none for the status error" "a failure without a reason"

cp before.csv d.csv
rm -f d.samples.csv
tail -1 before.csv >>d.csv
memtide verify d.csv
has "$out" "d.csv:10: cell: batch=" "a row that is there twice"
has "$out" "is the same as line 9" "with the other one"
cp before.csv d.csv
change version 9 0.0.1 d.csv
tail -1 before.csv >>d.csv
memtide verify d.csv
is "$status $out" "0 d.csv: 9 rows, 1 of them replaced by later ones, 0 samples: nothing found" "a later row is none"
head -c -9 before.csv >d.csv
memtide verify d.csv
is "$status $out" "1 d.csv:9: line: the last line has no end
d.csv: 7 rows, 0 samples: 1 found" "a torn line"
sed '3s/,/,"/' before.csv >d.csv
memtide verify d.csv
has "$out" "d.csv:3: line: its quotes do not match" "quotes"
sed '3s/,/,,/' before.csv >d.csv
memtide verify d.csv
has "$out" "d.csv:3: line: expected 51 values, found 52" "another number of values"
sed '1s/peak_op/peak/' before.csv >d.csv
memtide verify d.csv
has "$out" "d.csv:1: peak: column " "another column"
memtide verify small.cells.csv
is $status 1 "another file"
: >d.csv
memtide verify d.csv
is "$status $out" "1 d.csv:1: line: there is no header
d.csv: 0 rows, 0 samples: 1 found" "an empty file"
memtide verify none.csv
is "$status $err" '66 memtide: cannot open "none.csv": No such file or directory' "no file"
memtide verify
is $status 2 "no word"

cp before.csv d.csv
cp before.samples.csv d.samples.csv
change flag 4 noisy d.samples.csv
memtide verify d.csv
has "$out" 'd.samples.csv:4: flag: expected flags of docs/sweeps.md, found "noisy"' "samples are looked at too"
sed 3d before.samples.csv >d.samples.csv
memtide verify d.csv
is "$status $(echo "$out" | grep -c 'd.csv:.: step_ms: 3 steps of .* but the samples are 2 of')" "1 1" "one is lacking"

sed 4d before.csv >d.csv
rm -f d.samples.csv
memtide verify d.csv small.lua
has "$out" "d.csv:1: cell: batch=" "with the script: a cell that is missing"
memtide verify before.csv small.lua --set batch=4,8,16
is "$status $(echo "$out" | grep -c 'is no cell of the script')" "1 2" "and cells that are not the script's"
memtide predict small.lua --csv predicted.csv -q
memtide verify predicted.csv small.lua
is "$status $out" "0 predicted.csv: 8 rows, 0 samples: nothing found" "predictions"
memtide run small.lua --set rounds=3 --csv rounds.csv -q --no-claims --set batch=4
memtide verify rounds.csv
is "$status $(echo "$out" | grep -c 'nothing found')" "0 1" "the median of several rounds"
finish
