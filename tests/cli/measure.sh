# Times that hold, claims, and two files side by side.
. tests/tap.sh
cat >small.lua <<'END2'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
return mt.experiment{
  name = "small", input = {3, 8, 8}, classes = 4, batch = 4, warmup = 1,
  model = nn.Sequential{nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 6 * 6, 4)},
  loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.01},
  cases = {{case = "base"}, {case = "half", batch = 2}},
  claims = {{claim = "half is less", source = "a test", of = "peak_bytes", less = {"half", "base"}}},
  steps = 8, rounds = 3, time_limit = 20,
}
END2
value() {
    awk -F, -v name="$1" -v line="$2" '
        NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i }
        NR == line { print $at }' "$3"
}
counted() { awk -F, -v round="$1" 'NR > 1 && $3 == round' small.samples.csv | wc -l; }

# ---- rounds, samples
memtide run small.lua
is "$status" 0 "a run whose claim is reproduced"
has "$out" "half is less  REPRODUCED" "which the table at the end says"
timed=$(awk -F, 'NR > 1 && $8 != "warmup"' small.samples.csv | wc -l)
flagged=$(awk -F, 'NR > 1 && $8 != "warmup" && $8 != ""' small.samples.csv | wc -l)
has "$err" "memtide: $flagged of $timed timed steps were disturbed" "how many times were disturbed is told"
is "$(wc -l <small.csv)" 3 "a row for each cell, however often it was visited"
is "$(cut -d, -f3 small.samples.csv | sort -u | tr '\n' ' ')" "1 2 3 round " "three rounds of samples"
for r in 1 2 3; do
    is "$(awk -F, -v r=$r '$3 == r { print $1 }' small.samples.csv | uniq | wc -l)" 2 "round $r visits each cell once"
done
is "$(awk -F, 'NR > 1 && $6 == 1 && $8 != "warmup"' small.samples.csv | wc -l)" 0 "the first step of a visit is warm-up"
steps=$(value steps 2 small.csv)
[ "$steps" -ge 24 ]
result $? "the row's median is of all rounds: $steps steps"
cp small.csv before.csv
memtide run small.lua
is "$(cmp small.csv before.csv && echo same)" same "a second run measures nothing"
has "$out" "REPRODUCED" "and judges what is there"

# ---- damage, and a run that was interrupted between samples and row
lines=$(wc -l <small.samples.csv)
printf 'torn,1,' >>small.samples.csv
steps=$(value steps 3 small.csv)
sed -i 3d small.csv
memtide run small.lua
is "$status" 0 "a torn last line is no obstacle"
has "$err" "small.samples.csv: an incomplete last line was moved to small.samples.csv.torn" "it is told"
is "$(cat small.samples.csv.torn)" "torn,1," "and kept"
is "$(counted 4 | awk '{ print ($1 > 0) }')" 1 "what was measured counts: one more visit, not three"
is "$(counted 5)" 0 "... and no further one"
[ "$(value steps 3 small.csv)" -gt "$steps" ]
result $? "the row is of the samples of both runs"
sed -i '5s/,[^,]*$//' small.samples.csv
memtide run small.lua
is $status 65 "a damaged line is refused"
has "$err" 'small.samples.csv", line 5: expected 18 values, found 17' "with its number"
echo "a,b" >small.samples.csv
memtide run small.lua
is $status 65 "as is a file of other columns"
is "$(cat small.samples.csv)" "a,b" "which is left as it is"
rm -f small.csv small.samples.csv
(trap '' XFSZ; ulimit -f 2; "$MEMTIDE" run small.lua --in-process 2>err.txt >out.txt) # blocks of 512 bytes
is $? 66 "a full disk stops the sweep"
has "$(cat err.txt)" "cannot write to small.samples.csv: File too large" "and says so"
cut=$(tail -c 1 small.samples.csv | wc -l) # 1: the limit fell between two lines
memtide run small.lua
is $status 0 "the next run goes on"
is "$(echo "$err" | grep -c "moved to small.samples.csv.torn")" $((1 - cut)) "after what was written, without a line that is cut off"
is "$(awk -F, 'NR > 1 && NF != 18' small.samples.csv | wc -l)" 0 "of which every line is whole"
rm -f small.csv small.samples.csv

# ---- the same run, however often it is visited
memtide run small.lua --set rounds=1 --csv one.csv -q
for column in loss_first loss_last peak_bytes; do
    is "$(value $column 2 one.csv)" "$(value $column 2 before.csv)" "more rounds change no $column"
done
memtide run small.lua --set confidence=2 --csv x.csv
is $status 2 "a confidence that is none"
has "$err" "confidence: expected a number from 0.0001 to 1, found 2" "is told"
sed 's/, rounds = 3, time_limit = 20//; s/"small"/"plain"/' small.lua >plain.lua
memtide run plain.lua --in-process
cell=$(value cell 2 plain.csv)
good=$(awk -F, -v cell="$cell" '$1 == cell && $8 == ""' plain.samples.csv | wc -l)
is "$(value steps 2 plain.csv)" "$([ "$good" -ge 6 ] && echo "$good" || echo 8)" \
    "without rounds: the steps of the script, but those that were disturbed"
is "$(wc -l <plain.samples.csv)" 19 "with a sample of each in the side file"
memtide predict plain.lua --csv predicted.csv
is "$(ls predicted*)" predicted.csv "a prediction has no samples"

# ---- claims and their exit statuses
claim() { sed "s/less = .*/$1}},/; s/\"small\"/\"$2\"/" plain.lua >"$2.lua"; }
claim 'less = {"base", "half"}' refuted
memtide run refuted.lua
is $status 5 "a claim that is refuted"
has "$out" "REFUTED" "is told"
memtide run refuted.lua --no-claims
is "$status $(echo "$out" | grep -c REFUTED)" "0 0" "unless nobody wants to know"
memtide run refuted.lua --json -q
is $status 5 "JSON"
has "$out" '"claim":"half is less","source":"a test","verdict":"REFUTED","claimed_low":0,"claimed_high":1,"ratio":' \
    "holds the verdict"
memtide run refuted.lua --case base
is $status 6 "a claim without its cells is inconclusive"
has "$out" '"half" was not run' "with the reason"
claim 'less = {"base", "haif"}' slip
memtide run slip.lua
is $status 65 "a cell that is not there is the script's mistake"
has "$err" 'claims[1]: less[2]: expected a cell, but "haif" is no cell of this sweep' "and told"

# ---- compare
sed 's/classes = 4, batch = 4/classes = 4, batch = 4, allocator = "direct"/' plain.lua >direct.lua
memtide run direct.lua --csv b.csv -q
memtide compare plain.csv b.csv
is $status 0 "two files are compared"
has "$out" "A: plain.csv, allocator planned, version" "what is the same in all rows of a file is told once"
line=$(echo "$out" | grep '^half')
has "$line" "[" "times have intervals where there are samples"
rm b.samples.csv
memtide compare plain.csv b.csv
is "$(echo "$out" | grep '^half' | grep -c '\[')" 0 "and none without"
sed -i 's/,half,/,third,/' b.csv
memtide compare plain.csv b.csv
has "$out" "$(printf 'only in plain.csv:\n  half')" "a cell that only the first file has"
has "$out" "$(printf 'only in b.csv:\n  third')" "or only the second"
memtide compare plain.csv b.csv --json
is "$(echo "$out" | wc -l)" 1 "JSON: an object for each pair"
has "$out" '"a_peak_bytes":' "with the figures"
sed 's/,half,\(.*\),ok,/,half,\1,oom,/' plain.csv >oom.csv

# Of a script that was edited the file has rows of two networks under one name: they are no repeats of one cell.
cp plain.csv edited.csv
awk -F, -v OFS=, 'NR == 1 { for (i = 1; i <= NF; i++) at[$i] = i } NR > 1 {
    split($at["cell"], id, "-"); $at["cell"] = id[1] "-new-" id[3]; $at["peak_bytes"] *= 3; print }' plain.csv >>edited.csv
memtide compare plain.csv edited.csv --json
is "$status:$(echo "$out" | grep -c '"peak_bytes_ratio":1,')" "0:$(($(wc -l <plain.csv) - 1))" "rows of the same network"
is "$(echo "$out" | grep -c '"b_network-data":"new-.*"peak_bytes_ratio":3,')" "$(($(wc -l <plain.csv) - 1))" \
    "those of the other one stand by themselves"
memtide compare edited.csv edited.csv --json
is "$(echo "$out" | grep -c '"peak_bytes_ratio":1,')" "$((2 * ($(wc -l <plain.csv) - 1)))" "where both files have them, each beside its own"
memtide compare plain.csv oom.csv
has "$(echo "$out" | grep '^half')" "ok" "another status is shown"
has "$(echo "$out" | grep '^half')" "oom" "of either file"
head -c -5 plain.csv >torn.csv
memtide compare plain.csv torn.csv
has "$err" "torn.csv: the last line is incomplete, and left out" "a file that is still written"
sed '2s/,/,"/' plain.csv >quotes.csv
memtide compare plain.csv quotes.csv
is $status 65 "a damaged file is refused"
has "$err" 'quotes.csv", line 2: its quotes do not match' "with its line"
echo "a,b" >other.csv
memtide compare plain.csv other.csv
has "$err" 'other.csv", line 1: no results of memtide: there is no column model' "as is another file"
memtide compare plain.csv none.csv
is "$status $err" '66 memtide: cannot open "none.csv": No such file or directory' "a file that is not there"
memtide compare plain.csv .
is $status 66 "a folder"
: >empty.csv
memtide compare plain.csv empty.csv
is $status 65 "an empty file"
memtide compare plain.csv
is $status 2 "one file"
memtide run plain.lua --set offload=all --csv offload.csv -q
sed '2,$s/\(,all,\)[0-9]*,ok,/\112345,ok,/' offload.csv >more.csv
is "$(grep -c ',all,12345,ok,' more.csv)" 2 "offloading has two columns"
memtide compare offload.csv more.csv
is "$status $(echo "$out" | grep -c -e ^base -e ^half)" "0 2" "of which the bytes of the host are a result: rows are not joined on it"
sed 's/,train,/,eval,/' plain.csv >eval.csv
memtide compare plain.csv eval.csv
is $status 1 "nothing in common"
# ---- how long it will take is known before the first row: from the visits of cells that are visited again
cat >long.lua <<'END'
local mt = require "memtide"
return mt.experiment{
  name = "long", input = {8}, classes = 4, steps = 5000, warmup = 1, rounds = 2, confidence = 0.0001, time_limit = 600,
  model = mt.nn.Linear(8, 4), loss = mt.nn.CrossEntropyLoss(), sweep = {{"batch", mt.range(1, 60)}},
}
END
"$MEMTIDE" run long.lua -q >long.txt 2>&1 </dev/null &
sweep=$!
for _ in $(seq 100); do
    memtide watch long.csv --once --json
    case $out in *'"left":{'*) break ;; esac
    sleep 0.2
done
kill -TERM $sweep
wait $sweep
has "$out" '"ended":0' "before a cell has ended"
has "$out" '"left":{' "the sweep knows how long it will take"
finish
