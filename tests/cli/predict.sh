# memtide predict: what fits is predicted, what does not is skipped, and either is a result.
. tests/tap.sh

cat >small.lua <<'LUA'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
return mt.experiment{
  name = "small", input = {1024}, classes = 4, loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.01},
  model = function(s)
    if s.batch == 3 then error "on purpose" end
    return nn.Sequential{nn.Linear(1024, 16), nn.ReLU(), nn.Linear(16, 4)}
  end,
  sweep = {{"batch", {8, 64, 512}}}, steps = 2, warmup = 1,
}
LUA
value() { # COLUMN LINE FILE; the test's values hold no commas
    awk -F, -v name="$1" -v line="$2" '
        NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i }
        NR == line { print $at }' "$3"
}
statuses() { awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == "status") at = i } NR > 1 { print $at }' "$1" |
    tr '\n' ' '; }

memtide predict small.lua --csv all.csv
is "$status $(statuses all.csv)" "0 predicted predicted predicted " "what fits into the machine's memory"
is "$(echo "$out" | grep -c reason)" 0 "has nothing to explain"
need=$(value predicted_peak_bytes 4 all.csv)
memtide predict small.lua --memory $((need - 1)) --csv less.csv
is "$status $(statuses less.csv)" "0 predicted predicted skipped " "what does not fit is skipped, and a result"
has "$out" "needs $need bytes, 1 more than the $((need - 1)) of --memory" "whose reason tells what lacks"
has "$err" "batch=512: skipped" "as the line for the cell says"
has "$(sed -n 4p less.csv)" "--memory\",$need," "with the bytes that it would need"
memtide predict small.lua --memory $need --csv fits.csv -q
is "$(statuses fits.csv)" "predicted predicted predicted " "exactly these are enough"
memtide predict small.lua --memory $((need - 1)) --csv less.csv
is "$status $(statuses less.csv)" "0 predicted predicted skipped " "they are in the file already"
has "$err" "3 of 3 cells were in less.csv already" "as is told"
memtide verify less.csv small.lua --memory $((need - 1))
is "$status $out" "0 less.csv: 3 rows, 0 samples: nothing found" "verify knows them"

# ---- without --memory: what the device has
memtide predict small.lua --set batch=2147483647 --csv huge.csv -q
total=$(awk '/^MemTotal/ { printf "%.0f", 1024 * $2 }' /proc/meminfo)
is "$status $(statuses huge.csv)" "0 skipped " "what no machine holds"
has "$(cat huge.csv)" " more than the $total of cpu" "does not fit into this one"
memtide verify huge.csv small.lua --set batch=2147483647
is "$status $out" "0 huge.csv: 1 rows, 0 samples: nothing found" "verify tells from the ids that they are predictions"
memtide predict small.lua --set batch=2147483647 --memory 100TB --csv - -q
has "$out" ",predicted,," "but into --memory it does"

# ---- a budget that no recomputation reaches
memtide predict small.lua --set checkpoint=1024 --csv tight.csv -q
is "$status $(statuses tight.csv)" "0 skipped skipped skipped " "a budget that cannot be met"
has "$(cat tight.csv)" "checkpoint: a budget of 1024 bytes is too small" "says so"

# ---- failures are failures; ok comes from a run
memtide predict small.lua --set batch=3,8 --csv failing.csv -q
is "$status $(statuses failing.csv)" "1 error predicted " "an error is one"
memtide run small.lua -q
is "$status $(statuses small.csv)" "0 ok ok ok " "a run"
sed 's/steps = 2/predict_only = true, steps = 2/; s/"small"/"only"/' small.lua >only.lua
memtide run only.lua --csv only.csv -q
is "$status $(statuses only.csv)" "0 predicted predicted predicted " "predict_only"
sed 's/predict_only = true,/&claims = {{claim = "weights grow with the batch", of = "weights_bytes", less = {{batch = 8}, {batch = 64}}}},/' only.lua >claimed.lua
memtide run claimed.lua --csv only.csv -q --markdown
is "$status" 5 "claims on predictions are judged"
has "$out" "| weights grow with the batch | REFUTED | < 1 | 1 |" "as Markdown, too"
sed 's/,predicted,/,ok,/' all.csv >damaged.csv
memtide verify damaged.csv
has "$out" "damaged.csv:2: peak_bytes: measured nil, predicted " "ok without a measurement is found"

finish
