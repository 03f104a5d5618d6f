# memtide show: the current rows of a file, the columns in which they differ, in readable units, in an order.
. tests/tap.sh

cat >net.lua <<'LUA'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
return mt.experiment{
  name = "net", input = {64}, classes = 8, loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.01},
  model = function(s) return nn.Sequential{nn.Linear(64, s.width), nn.ReLU(), nn.Linear(s.width, 8)} end,
  sweep = {{"width", {512, 1024}}, {"batch", {8, 16}}}, steps = 2, warmup = 0,
}
LUA
memtide run net.lua -q
memtide show net.csv
is $status 0 "show"
head=$(echo "$out" | head -n 1)
is "$(echo "$out" | wc -l)" 5 "the head and a line for each row"
has "$head" "batch" "the columns that vary"
has "$head" "width" "those of the script, too"
has "$head" "status" "and the status"
for column in case cell started_at precision predicted_peak_bytes effective_batch device; do
    is "$(echo "$head" | grep -cw "$column")" 0 "not $column: it is the same in all, or said by others, or nothing to read"
done
has "$(echo "$out" | sed -n 2p)" " KiB" "bytes are readable"
is "$(echo "$out" | sed -n 2p | grep -cE '[0-9] [mu]s( |$)')" 1 "times, too" # of a first step: a busy machine takes milliseconds
is "$(echo "$out" | grep -c '^$')" 0 "no line is empty"

memtide show net.csv --columns width,batch,peak_bytes --sort -batch
is "$(echo "$out" | sed 's/ *[0-9.]* [KM]iB$//' | tr -s ' ' | sed 's/^ //' | tr '\n' ';')" "width batch peak_bytes;512 16;1024 16;512 8;1024 8;" \
    "these columns in this order, and rows of equal values as they were"
memtide show net.csv --columns case,batch --sort width
is "$(echo "$out" | sed -n 2p | tr -s " ")" "width=512 batch=8 8" "a case that was asked for is whole"
memtide show net.csv --columns all --markdown
is "$(echo "$out" | head -n 1 | tr '|' ',' | tr -d ' ')" ",$(head -n 1 net.csv)," "all of them, as Markdown"
memtide show net.csv --json --columns batch,peak_bytes,graph
is "$(echo "$out" | sed -n 3p | sed 's/:[0-9]\{3,\}/:N/')" '{"batch":8,"peak_bytes":N,"graph":true}' "as JSON, with types"

# ---- rows that later ones replace
memtide run net.lua -q --retry all --case "width=512 batch=8"
is "$(tail -n +2 net.csv | wc -l)" 5 "a cell is run again"
memtide show net.csv
is "$(echo "$out" | wc -l)" 5 "its current row is shown"
memtide merge merged.csv net.csv -q
memtide show merged.csv --json --columns cell,started_at,step_ms
cp out.txt merged.txt
memtide show net.csv --json --columns cell,started_at,step_ms
is "$out" "$(cat merged.txt)" "as merge decides"

# ---- one row
head -n 2 net.csv >one.csv
memtide show one.csv
is "$(echo "$out" | grep ^width | tr -s ' ')" "width 512" "a single row stands upright"
has "$(echo "$out" | grep ^precision)" "fp32" "with all its columns"
is "$(echo "$out" | grep -c ^reason)" 0 "that are not empty"

# ---- mistakes
fails() { # status, message, what, words ...
    expected=$1 message=$2 what=$3
    shift 3
    memtide "$@"
    is $status "$expected" "$what"
    has "$err" "$message" "... is told"
}
fails 2 'show: --columns: the file has no column "peek_bytes" (did you mean "peak_bytes"?)' "an unknown column" show net.csv \
    --columns batch,peek_bytes
fails 2 'show: --sort: the file has no column "widht" (did you mean "width"?)' "and order" show net.csv --sort widht
fails 2 "show: expected one file of results, found 0" "no file" show
fails 66 "there is no none.csv" "none of that name" show none.csv
echo "a,b" >other.csv
fails 65 "no results of memtide: there is no column case" "a file of something else" show other.csv
head -n 1 net.csv >empty.csv
memtide show empty.csv
is "$status $(echo "$out" | wc -l)" "0 1" "a file without rows"

# ---- help of the columns
memtide help columns
for word in peak_bytes step_ms "median time of a step"; do has "$out" "$word" "help columns: $word"; done
finish
