# What a sweep will be: axes and options of the command line, dry runs, status, what cannot fit, the largest batch.
. tests/tap.sh

cat >small.lua <<'SCRIPT'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
return mt.experiment{
  name = "small", input = {3, 8, 8}, classes = 4,
  options = {{"width", 8, "channels of the first layer"}, {"deep", false, "one layer more"}, {"rate", 0.5, "unused"}},
  model = function(s)
    return nn.Sequential{nn.Conv2d(3, s.width, 3), nn.ReLU(), s.deep and nn.ReLU() or nn.Tanh(), nn.Flatten(),
      nn.Linear(s.width * 6 * 6, 4)}
  end,
  loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.01},
  sweep = {{"batch", {4, 8, 16}}, {"precision", {"fp32", "amp_bf16"}}},
  where = function(s) return s.batch == "max" or s.batch * s.width < 1000 end,
  steps = 2, warmup = 1,
}
SCRIPT
value() { # COLUMN LINE FILE
    awk -F, -v name="$1" -v line="$2" '
        NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i }
        NR == line { print $at }' "$3"
}
cells() { memtide predict small.lua -q --csv - "$@"; echo "$out" | wc -l; }

# ---- axes and options of the command line
is "$(cells)" 7 "a header and a row per cell"
is "$(cells --set batch=8..64:8)" 17 "a range"
is "$(cells --set batch=8..64*2)" 9 "a geometric range"
is "$(cells --set batch=1,8..64*2,100)" 13 "and values beside it"
is "$(cells --set batch=100,200)" 3 "the filter counts"
memtide predict small.lua --set batch=200,300
is $status 65 "a filter that leaves nothing"
has "$err" "small.lua:3: experiment: there is no cell to run: where (small.lua:12) lets none of 4 pass" "is told"
memtide predict small.lua -q --csv - --width 4 --deep --rate=2
is "$(echo "$out" | wc -l)" 7 "options of the script"
echo "$out" >p.csv
is "$(value width 2 p.csv) $(value deep 2 p.csv) $(value rate 2 p.csv)" "4 true 2" "are columns"
is "$(cells --width 4,8)" 13 "with two values an axis"
is "$(cells -- --width 4,8)" 13 "also after --"
memtide predict small.lua --widht 4
is $status 64 "a misspelt option of the script's"
has "$err" 'unknown option --widht (did you mean "width"?); the script'"'"'s are --width, --deep, --rate' "is told"
memtide predict small.lua --width x
is $status 64 "a value of another type"
has "$err" '--width: expected a whole number, found "x"' "is told"
memtide predict small.lua -- --width
has "$err" '--width: N is missing' "as is a missing one"
memtide predict --width 4 small.lua
is $status 2 "in front of the script there are memtide's options alone"
memtide run small.lua --help
is $status 0 "help of a script"
has "$out" "--width N            channels of the first layer (default: 8)" "names its options"
has "$out" "--deep               one layer more (default: false)" "and flags"

# ---- a dry run
memtide run small.lua --dry-run --memory 58KiB --set precision=fp32
is $status 0 "a dry run"
is "$(ls ./*.csv)" ./p.csv "writes nothing"
has "$out" "needs 59776 bytes, 384 more than the 59392 of --memory" "tells what cannot fit"
has "$out" "3 cells, 2 of them to run, 1 that cannot; " "counts the cells"
has "$out" "the time of their steps is unknown: nothing was measured on this device yet" "and no time that rests on nothing"
is "$(echo "$out" | grep -cE ' unknown$')" 2 "of no cell"
memtide run small.lua --dry-run --memory 58KiB --set precision=fp32 --json
is "$status:$(echo "$out" | grep -c '^{"case":"[^"]*","state":"missing","fits":true,"predicted_peak_bytes":[0-9]*}$')" 0:2 "JSON: an object for each cell"
has "$out" '"fits":false,"reason":"needs 59776 bytes, 384 more than the 59392 of --memory","predicted_peak_bytes":59776}' "with what it lacks"
is "$(echo "$out" | wc -l)" 3 "and nothing else"
memtide run small.lua -q
memtide run small.lua --dry-run
has "$out" "6 cells, 0 of them to run, 0 that cannot" "nothing is left to run"
memtide run small.lua --dry-run --steps 3
has "$out" "6 cells, 6 of them to run, 0 that cannot" "other settings are"
is "$(echo "$out" | grep -c -e guess -e unknown)" 0 "what was measured is no guess"
memtide run small.lua --dry-run --steps 3 --json
is "$(echo "$out" | grep -c '"seconds":[0-9.e-]*,"source":"estimated"')" 6 "JSON has the times"
memtide run small.lua --dry-run --steps 3 --set precision=bf16
has "$out" "a guess: nothing like it was measured yet" "what was measured in other precisions is a guess"
is "$(test -s cache/memtide/rates.txt && echo kept)" kept "rates are kept for the next sweep"

# ---- status
memtide status small.lua
has "$out" "small.csv: 6 cells: 6 done (6 ok), 0 failed, 0 stale, 0 missing" "all is done"
sed -i '2s/,ok,/,crashed,/; 3d' small.csv
memtide status small.lua
has "$out" "4 done (4 ok), 1 failed (1 crashed), 0 stale, 1 missing" "failed and missing cells are told"
memtide status small.lua --json
is "$(echo "$out" | grep -c '"state":"done"')" 4 "JSON"
memtide status small.lua --steps 3
has "$out" "5 stale (5 steps changed), 1 missing" "other settings make rows stale"
has "$out" "steps changed" "and which"
memtide status small.lua --seed 9
has "$out" "seed changed" "a seed"
sed 's/nn.Tanh/nn.Sigmoid/' small.lua >other.lua
memtide status other.lua
has "$out" "network changed" "another network"
memtide run small.lua -q
is "$(tail -n +2 small.csv | wc -l)" 7 "only what failed or is missing is run"
memtide status small.lua
has "$out" "6 done (6 ok)" "and then all is done"
memtide run small.lua -q --retry all --case "batch=4 precision=fp32"
is "$(tail -n +2 small.csv | wc -l)" 8 "--retry all runs what is done"
sed 's/0\.1\.0[^,]*,\([^,]*\)$/0.0.1,\1/' small.csv >old.csv
memtide status small.lua --csv old.csv
has "$out" "another version" "rows of another version are stale"

# ---- what cannot fit
sed 's/where = .*,$//; s/steps = 2/steps = 1/; s/"small"/"oom"/' small.lua >oom.lua
count() { grep -c ",$1," "$2"; }
set -- oom.lua -q --memory 80000 --set precision=fp32 --set batch=4,16,64,100
memtide run "$@"
is "$status $(count ok oom.csv) $(count skipped oom.csv)" "0 2 2" "cells that cannot fit are skipped, and results"
is "$(grep -c 'more than the 80000 of --memory' oom.csv)" 2 "each with what lacks"
memtide run "$@" --try-oom --csv tried.csv
is "$(count ok tried.csv) $(count oom tried.csv) $(count skipped tried.csv)" "2 1 1" \
    "--try-oom runs the first; the larger ones are skipped by it"
has "$(cat tried.csv)" "implied: a smaller cell ran out of memory: batch=64" "which the reason names"
memtide run "$@" --try-oom --csv tried.csv
is "$(wc -l <tried.csv)" 5 "and is not skipped again by the same command"
memtide run "$@" --try-oom --csv alone.csv --in-process
is "$(count oom alone.csv) $(count skipped alone.csv)" "1 1" "in one process, too"
sed 's/steps = 1/monotone = false, steps = 1/' oom.lua >free.lua
shift
memtide run free.lua "$@" --try-oom --csv free.csv
is "$(count oom free.csv)" 2 "unless the script says that no axis is monotone"

# ---- the largest batch
memtide run oom.lua --memory 1MiB --set batch=max -q --csv max.csv
is "$status $(count ok max.csv)" "0 2" "the largest batch is run, for each precision"
most=$(value batch 2 max.csv)
is "$(value effective_batch 2 max.csv)" "$most" "and its row has the number"
memtide run oom.lua --memory 1MiB --set precision=fp32 --set "batch=$((most - 1)),$((most + 1))" -q --csv around.csv \
    --try-oom
is "$(value status 2 around.csv) $(value status 3 around.csv)" "ok oom" "one less runs, one more does not"
memtide run oom.lua --memory 1000 --set batch=max --set precision=fp32 -q --csv none.csv
has "$(cat none.csv)" "skipped" "where nothing fits, one sample says what lacks"

# ---- fit, and what it says really run
memtide fit oom.lua --memory 1MiB --set precision=fp32,bf16 --csv fit.csv
is $status 0 "fit"
has "$out" "effective" "a table"
is "$(head -1 fit.csv | cut -d, -f1-2)" "case,precision" "and CSV"
memtide fit oom.lua --memory 1MiB --json -q
is "$(echo "$out" | head -1 | grep -c '"effective_batch":')" 1 "or JSON"
memtide fit small.lua --memory 1MiB --csv - -q
is "$(echo "$out" | wc -l)" 1 "what the script's filter refuses is no answer"
awk -F, 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i }
    NR > 1 && $at["inplace"] == "marked" {
        print $at["precision"], $at["accumulate"], $at["checkpoint"], $at["batch"] }' \
    fit.csv >answers.txt
is "$(wc -l <answers.txt)" 16 "two precisions, two accumulations, four checkpoints"
while read -r precision accumulate checkpoint batch; do
    memtide run oom.lua -q --try-oom --memory 1MiB --csv check.csv --set precision="$precision" \
        --set accumulate="$accumulate" --set checkpoint="$checkpoint" --set batch="$batch,$((batch + 1))"
    tail -2 check.csv >last.csv
    is "$(count ok last.csv) $(count oom last.csv)" "1 1" \
        "$precision, $accumulate, $checkpoint: $batch runs, one more does not"
done <answers.txt
memtide fit small.lua --memory much
is $status 2 "no size"

# ---- until
memtide run small.lua -q --csv until.csv --until 25:00
is $status 2 "no time of day"
later=$(date -d '+5 minutes' +%H:%M)
memtide run small.lua -q --csv until.csv --until "$later"
is "$status $(wc -l <until.csv)" "0 7" "what can end in time is run"
sed 's/steps = 2/repeats = 2, steps = 1/; s/"small"/"twice"/' small.lua >twice.lua
memtide run twice.lua -q --until "$later"
is "$(cut -d, -f4 twice.csv | tr '\n' ' ')" "repeat 1 1 1 1 1 1 2 2 2 2 2 2 " "every cell once before any is repeated"
memtide run small.lua --csv late.csv --steps 2000000000 --until "$later"
is $status 75 "what cannot end is not begun"
has "$err" "6 of 6 cells are left: they could not have ended by $later" "and told"
is "$(test -e late.csv || echo none)" none "without a row"

# ---- a thousand cells
sed 's/where = .*,$//' small.lua >many.lua
# processor time, which other programs do not change as much as the time of the clock
spent() { awk 'END { for (i = 1; i <= 2; i++) { split($i, t, /[ms]/); sum += 60000 * t[1] + 1000 * t[2] }; print int(sum) }' "$1"; }
times >before.txt
memtide predict many.lua -q --csv many.csv --set batch=1..500
times >after.txt
took=$(($(spent after.txt) - $(spent before.txt)))
is "$(wc -l <many.csv)" 1001 "1,000 cells"
if [ "${BUILD:-build}" = build ]; then
    # 2 s; make overhead measures it
    result "$((took >= 6000))" "are predicted in under 6 s ($took ms)"
fi

finish
