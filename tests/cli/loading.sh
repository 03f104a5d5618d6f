# experiments/loading.lua: samples in memory, on disk, compressed and in tar shards train alike, and a file that is cut
# off ends its cells with an error that names it.
. tests/tap.sh

# column NAME: the column's values in loading.csv, each once, in order
column() {
    awk -F, -v name="$1" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i } NR > 1 { print $at }' loading.csv |
        sort -u | tr '\n' ' '
}

memtide run "$ROOT/experiments/loading.lua" --set steps=3 --set warmup=0 -- 1
is $status 0 "it runs"
is "$(wc -l <loading.csv)" 13 "four sources times three numbers of batches ahead"
is "$(column status)" "ok " "every cell ends well"
is "$(column prefetch)" "0 1 4 " "prefetch is a column"
is "$(column loss_last | wc -w)" 1 "all of them see the same samples"

cat >cut.lua <<'E'
local mt = require "memtide"
local nn = mt.nn
local data = mt.data.npy("loading/1.x.npy", "loading/1.y.npy")
return mt.experiment{name = "cut", data = data, batch = 4, steps = 4, loss = nn.CrossEntropyLoss(), model = function(s)
  os.execute "truncate -s 1000 loading/1.x.npy"
  return nn.Sequential{nn.Flatten(), nn.Linear(3 * 64 * 64, 10)}
end, sweep = {{"prefetch", {0, 2}}}}
E
cp loading/1.x.npy whole.npy
for n in 0 2; do
    cp whole.npy loading/1.x.npy
    memtide run cut.lua --set prefetch=$n --csv cut$n.csv
    has "$(cut -d, -f 18- cut$n.csv)" 'loading/1.x.npy: ' "a file that is cut off is an error with its name, prefetch = $n"
    has "$(cut -d, -f 18- cut$n.csv)" 'cut off after it was opened' "and the reason"
done
finish
