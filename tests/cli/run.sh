# memtide run and predict: rows, resuming, limits, exit statuses.
. tests/tap.sh

cat >small.lua <<'END'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
return mt.experiment{
  name = "small", input = {3, 8, 8}, classes = 4, batch = 4,
  model = nn.Sequential{nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 4)},
  loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.01},
  cases = {{case = "base"}, {case = "half", batch = 2}, {case = "kept", checkpoint = "all"}},
  steps = 2, warmup = 1,
}
END

# value COLUMN LINE FILE; the test's values hold no commas
value() {
    awk -F, -v name="$1" -v line="$2" '
        NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i }
        NR == line { print $at }' "$3"
}

# ---- run
memtide run small.lua
is $status 0 "run succeeds"
is "$(wc -l <small.csv)" 4 "a header and a row per cell"
has "$out" "base" "the table names the cases"
has "$err" "[3/3] kept: ok" "progress is a line per cell when it is no terminal"
is "$(value status 2 small.csv)" ok "status"
is "$(value predicted_peak_bytes 2 small.csv)" "$(value peak_bytes 2 small.csv)" "predicted = measured"
is "$(value effective_batch 3 small.csv)" 2 "a case overrides the experiment"
is "$(value steps 2 small.csv)" 2 "timed steps without the warm-up"
sum=0
for c in weights gradients optimizer activations activation_gradients input workspace other; do
    sum=$((sum + $(value ${c}_bytes 2 small.csv)))
done
is $sum "$(value peak_bytes 2 small.csv)" "the categories sum to the peak"

# ---- one quick visit
sed 's/steps = 2, warmup = 1,/steps = 2, warmup = 1, rounds = 3, confidence = 0.001, time_limit = 60,/' small.lua >careful.lua
memtide run careful.lua --csv quick.csv --quick
is $status 0 "a quick visit of each cell"
is "$(wc -l <quick.csv)" 4 "a row per cell, of the script's first steps"
is "$(tail -n +2 quick.samples.csv | wc -l)" 9 "one visit: a warm-up and two steps of each of three cells, nothing for the confidence"

rm -f careful.lua quick.csv quick.samples.csv

# ---- a file that a spreadsheet has saved
{ printf '\357\273\277'; cat small.csv; } >marked.csv
memtide run small.lua --csv marked.csv
is "$status $err" "65 memtide: \"marked.csv\" begins with a byte order mark, as spreadsheets write it: expected UTF-8 without one" \
    "a byte order mark is named"
rm marked.csv

# ---- resuming
cp small.csv before.csv
memtide run small.lua
is $status 0 "a second run succeeds"
is "$(cmp small.csv before.csv && echo same)" same "and adds nothing"
has "$err" "3 of 3 cells were in small.csv already" "and says so"
memtide run small.lua --case half --steps 3
is "$(wc -l <small.csv)" 5 "other settings are another cell"
head -c -20 before.csv >small.csv
memtide run small.lua -q
is "$(wc -l <small.csv)" 4 "a torn row is run again"
is "$(test -s small.csv.torn && echo kept)" kept "and what was torn is kept"
is "$err" "" "--quiet says nothing"
printf 'a,b\n1,2\n' >other.csv
memtide run small.lua --csv other.csv
is $status 65 "a file of other columns is refused"
is "$(cat other.csv)" "$(printf 'a,b\n1,2')" "and left as it is"

sed 's/"small"/"own"/; s/cases = .*/sweep = {{"cfg", {{8, 2}, {16, 2}}}}, where = function(s) return s.cfg end,/' small.lua >own.lua
memtide run own.lua -q
memtide run own.lua -q
is "$(wc -l <own.csv)" 3 "values that are tables are known again"
has "$(cat own.csv)" '"cfg={8, 2}"' "and named by what is in them"

# ---- limits
memtide predict small.lua --csv - -q
is "$(echo "$out" | wc -l)" 4 "rows on standard output"
need=$(echo "$out" >p.csv; value predicted_peak_bytes 2 p.csv)
memtide run small.lua --memory $((need - 64)) --csv oom.csv -q
is $status 0 "running out of memory is a result"
is "$(value status 2 oom.csv)" skipped "what cannot fit is not run"
has "$(cat oom.csv)" "needs $need bytes, 64 more than the $((need - 64)) of --memory" "the reason tells what lacks"
memtide run small.lua --memory $((need - 64)) --csv oom.csv -q --try-oom
is "$status $(wc -l <oom.csv) $(value status 5 oom.csv)" "0 6 oom" "unless it is asked for: the two that were skipped"
has "$(tail -1 oom.csv)" "limit $((need - 64))" "the reason tells the limit"
is "$(value status 3 oom.csv)" ok "a smaller case still fits"
has "$(cat oom.csv)" "$need" "the prediction is filled in all the same"
memtide run small.lua --memory $need --case base --csv fits.csv -q
is "$(value status 2 fits.csv)" ok "exactly the predicted bytes are enough"

# ---- predict, JSON, --set
memtide predict small.lua
is $status 0 "predict succeeds"
is "$(ls ./*.csv | grep -vc samples)" 7 "and writes no file unasked"
memtide predict small.lua --json -q --case base
has "$out" '"predicted_peak_bytes":'"$need" "JSON holds numbers"
has "$out" '"case":"base"' "and text"
memtide predict small.lua -q --json --case base --set batch=1,2 --set precision=bf16
is "$(echo "$out" | wc -l)" 2 "--set makes an axis"
has "$out" '"case":"base batch=2"' "of its values"
has "$out" '"precision":"bf16"' "and settings"

for words in 4,,5 4,5, ,4; do
    memtide predict small.lua --set batch=$words
    is $status 2 "--set batch=$words: an empty value is wrong usage"
    has "$err" "--set: batch: expected a whole number from 1 to 2147483647, found \"\"" "and told"
done
memtide predict own.lua --set cfg=,7
has "$err" "--set: cfg: expected a word" "also of an axis of the script's own"
memtide predict small.lua --set batch=4,4
has "$err" "--set: batch: 4 is there already, as value 1" "as is a value twice"
memtide predict own.lua --set name=other
is $status 2 "a key that is no setting is wrong usage"
has "$err" "what can be set: device, batch, accumulate" "told with what can be set"
has "$err" "repeats, rounds, confidence, time_limit, cfg" "the script's own axes included"

# ---- every technique with every other: no cell is refused, and none measures what was not predicted
cat >matrix.lua <<'END'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
local function block() return nn.Sequential{nn.Conv2d(8, 8, 3, {padding = 1}), nn.GELU(), nn.Dropout(0.1)} end
return mt.experiment{
  name = "matrix", input = {3, 8, 8}, batch = 4, loss = nn.CrossEntropyLoss(), optimizer = optim.Adam{lr = 1e-2},
  model = nn.Sequential{nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Residual(block()), nn.Checkpoint(block()), nn.MaxPool2d(2),
    nn.Flatten(), nn.Linear(72, 5)},
  sweep = {
    {"allocator", {"planned", "caching", "direct"}},
    {"precision", {"fp32", "tf32", "amp_bf16", "amp_fp16", "master_bf16", "fp16"}},
    {"checkpoint", {"none", "marked", "all", "sqrt", "8MiB"}}, {"accumulate", {1, 3}},
    {"inplace", {"marked", true, false}}, {"mode", {"train", "eval"}},
  },
  steps = 2, warmup = 1,
}
END
memtide run matrix.lua -q
is $status 0 "1080 combinations run"
is "$(grep -c ',ok,' matrix.csv)" 1080 "and all are ok"

# ---- cells that fail
sed 's/checkpoint = "all"/model = nn.Linear(7, 3)/; s/"small"/"broken"/' small.lua >broken.lua
memtide run broken.lua
is $status 1 "a cell in error makes the status 1"
has "$(cat broken.csv)" "use nn.Flatten before it" "its row has the reason"
is "$(value status 3 broken.csv)" ok "the other cells are run"
memtide run broken.lua
is "$(wc -l <broken.csv)" 5 "a cell in error is run again, and only that"
has "$err" "1 of 3 cells had ended in an error, a crash or a timeout in broken.csv: they were run again" "and says so"
sed 's/,error,/,crashed,/' broken.csv >crashed.csv
memtide run broken.lua --csv crashed.csv -q
is "$(wc -l <crashed.csv)" 6 "as one that had crashed is"
sed 's/8 \* 6 \* 6/99/; s/"small"/"wrong"/' small.lua >wrong.lua
memtide run wrong.lua
is $status 65 "a script of which no cell can be built is a mistake"
has "$err" "memtide: layer 3 Linear (wrong.lua:5): expected 99" "told with layer and line"
is "$(test -e wrong.csv || echo none)" none "and no file is made"
sed 's/lr = 0.01/lr = 1e30/; s/"small"/"diverging"/; s/steps = 2/steps = 9/' small.lua >diverging.lua
memtide run diverging.lua -q --case base
is "$status $(value status 2 diverging.csv)" "1 diverged" "a loss that is no number"

# ---- the exit status is that of the rows, whichever call made them
memtide run diverging.lua -q --case base
is "$status $(wc -l <diverging.csv)" "1 2" "a cell that diverged is not run again, and the status stays"
memtide run broken.lua -q --retry none
is "$status $(wc -l <broken.csv)" "1 5" "--retry none tells of an error that is there"
memtide run broken.lua -q --retry none --case half
is "$status" 0 "but not of one that was not asked for"
memtide run diverging.lua -q --set batch=4 --set optimizer=SGD --csv cured.csv
is "$status" 0 "a sweep without failures"
memtide run diverging.lua -q --shard 1/2
memtide run diverging.lua -q --shard 1/2
is "$status $(($(wc -l <diverging.1-of-2.csv) > 1))" "1 1" "a part that is run again"
memtide run broken.lua --in-process -q --retry none
is $status 1 "in one process, too"
memtide predict broken.lua --csv planned.csv -q
memtide predict broken.lua --csv planned.csv -q --retry none
is $status 1 "of predictions, too"
memtide merge merged.csv broken.csv
is "$status ${out##*the same, }" "0 0 in conflict" "merge tells whether it is complete"
memtide run broken.lua --csv merged.csv --retry none -q
is $status 1 "and run what is in it"

finish
