# Experiments of several trainings, at the command line: rows at once, runs that measure what was predicted, a sweep that
# was killed and goes on, and what every other command says of them.
. tests/tap.sh

gan=$ROOT/experiments/gan.lua

memtide predict "$gan" --csv predicted.csv --set batch=4,8 --set precision=fp32,amp_bf16
is "$status" 0 "a GAN's round is predicted"
is "$(grep -c ,predicted, predicted.csv)" 4 "a row for each setting"
has "$out" "4  fp32" "and a line"

run="run $gan --csv gan.csv --set batch=4,8 --set precision=fp32,amp_bf16 --set steps=300"
# shellcheck disable=SC2086
"$MEMTIDE" $run --quiet >/dev/null 2>&1 &
job=$!
for _ in $(seq 300); do
    grep -q ,ok, gan.csv 2>/dev/null && break
    sleep 0.1
done
kill -KILL $job
wait $job 2>/dev/null
first=$(grep -m 1 ,ok, gan.csv)
# shellcheck disable=SC2086
memtide $run
is "$status" 0 "a run that was killed goes on"
is "$(grep -c ,ok, gan.csv)" 4 "until each setting has its row"
has "$(cat gan.csv)" "$first" "of which the first is not run again"
peaks() { awk -F, -v name="$2" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i; next }
    { gsub(/"[^"]*"/, "-"); print $at }' "$1" | sort | tr '\n' ' '; }
is "$(peaks gan.csv peak_bytes)" "$(peaks predicted.csv predicted_peak_bytes)" "measured is what was predicted"
# shellcheck disable=SC2086
memtide status ${run#run}
is "$status" 0 "status"
has "$out" "4 done (4 ok), 0 failed, 0 stale, 0 missing" "counts all as done"
memtide verify gan.csv
is "$status" 0 "the rows hold"

memtide fit "$gan" --memory 2MiB --set precision=fp32
is "$status" 0 "fit"
is "$(echo "$out" | grep -qE " (selective|sqrt|all) " && echo some)" some "tries techniques"
memtide dump "$gan"
has "$out" "# training judge" "dump shows each training's program"
memtide dump "$gan" --network
has "$out" "# training sample" "or its network"
memtide dump "$gan" --plan
has "$out" "ledger at the peak (generate: " "or its plan, and the peak's training"
memtide explain "$gan"
is "$status" 2 "explain"
has "$err" "explain: not offered with trainings" "says that it has nothing for them"
memtide predict "$gan" --set framework=pytorch
is "$status" 65 "PyTorch's step"
has "$err" 'gan.lua:14: experiment: framework = "pytorch" is not offered with trainings' "is not offered, in one line"
memtide run "$ROOT/experiments/distill.lua" --teacher nowhere.safetensors --set width=4 --set precision=fp32 --csv d.csv
has "$err$out" "nowhere.safetensors" "weights of a training that are not there are told"
finish
