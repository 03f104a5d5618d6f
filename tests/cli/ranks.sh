# Cells that several ranks train, by MPI: the rows of one rank with as many micro-batches, and one row for all ranks where one
# of them dies, hangs, runs out of memory or raises, after which the sweep goes on and nothing is left.
. tests/tap.sh
if ! command -v mpirun >/dev/null || ! [ -e "$(dirname "$MEMTIDE")/memtide_mpi.so" ]; then
    skip "ranks" "no mpirun, or memtide is built without MPI"
    finish
fi

# ---- ranks that fail: their sweep waits most of the time, and is judged below
cat >fates.lua <<'END'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
local rank = tonumber(os.getenv "OMPI_COMM_WORLD_RANK")
local function shell(text) os.execute(text) end
local FATES = {
  kill = function() shell "kill -KILL $PPID; sleep 60" end,
  segv = function() shell "kill -SEGV $PPID; sleep 60" end,
  leave = function() os.exit(7) end,
  hang = function() while true do end end,
  raise = function() error "on purpose" end,
  speak = function() print(("words "):rep(20000)) end,
  other = function(width) return width * 2 end,
}
return mt.experiment{
  name = "fates", input = {8}, classes = 4, batch = 4, warmup = 1, steps = 3,
  model = function(settings)
    local fate, width = FATES[settings.fate], 8
    if fate and (rank == settings.at or settings.at == 9 and rank) then width = fate(width) or width end
    return nn.Sequential{nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 4)}
  end,
  loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.1},
  cases = {
    {case = "killed", world = 3, fate = "kill", at = 2}, {case = "crashed", world = 2, fate = "segv", at = 1},
    {case = "left", world = 2, fate = "leave", at = 1}, {case = "hung", world = 2, fate = "hang", at = 0},
    {case = "raised", world = 3, fate = "raise", at = 1}, {case = "spoke", world = 2, fate = "speak", at = 9},
    {case = "another network", world = 2, fate = "other", at = 1}, {case = "fine", world = 2, fate = "none", at = 0},
  },
}
END
"$MEMTIDE" run fates.lua -q --retry none --timeout 8s >/dev/null 2>&1 </dev/null &
fates=$!

cat >modes.lua <<'END'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
return mt.experiment{
  name = "modes", input = {20}, classes = 10, batch = 8, steps = 4, warmup = 1,
  model = nn.Sequential{nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10)},
  loss = nn.CrossEntropyLoss(), optimizer = optim.Adam{lr = 1e-3},
  cases = {
    {case = "alone", accumulate = 2}, {case = "data", world = 2}, {case = "states", world = 2, zero = 1, overlap_comm = true, bucket_bytes = 4096},
    {case = "gradients", world = 2, zero = 2, overlap_comm = true, bucket_bytes = 4096}, {case = "weights", world = 2, zero = 3},
    {case = "products", world = 2, mesh = {tensor = 2}, accumulate = 2},
  },
}
END
column() { # file, name -> the column's values, one a line
    awk -F, -v name="$2" 'NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i } NR > 1 { print $at }' "$1"
}
memtide run modes.lua -q
is $status 0 "every mode runs"
is "$(column modes.csv status | sort -u)" ok "and each rank needs what was predicted"
is "$(column modes.csv loss_last | head -5 | sort -u | wc -l)" 1 "two ranks give the loss of one, bit for bit"
is "$(column modes.csv effective_batch | sort -u)" 16 "and have as many samples"
is "$(column modes.csv peak_bytes)" "$(column modes.csv predicted_peak_bytes)" "a row has the largest peak, predicted and measured"
is "$(column modes.csv ranks_bytes)" "$(column modes.csv predicted_sum_bytes)" "the sum of all, too"
is "$(column modes.csv peak_rank)" "$(column modes.csv predicted_peak_rank)" "of the same rank"
is "$(column modes.csv rank_peaks | tail -5 | awk 'NF != 2' | wc -l)" 0 "and that of each rank"
# (of so small a network the workspace, which depends on the processor, is the larger part)
column modes.csv workspace_bytes >workspaces
less=$(column modes.csv peak_bytes | paste -d ' ' - workspaces | awk '{ print $1 - $2 }' | sed -n '2,5p' | sort -rnc 2>&1)
is "$less" "" "each stage needs less than the one before, or as much"

memtide predict "$ROOT/experiments/parallel.lua" -q --csv parallel.csv
is "$status $(grep -c ',predicted,' parallel.csv)" "0 26" "every mode of a deeper network is predicted"
figure() { # case, column: of the fp32 row
    sed 's/"\([^",]*\),\([^"]*\)"/\1\2/' parallel.csv | awk -F, -v row="$1 precision=fp32" -v name="$2" \
        'NR == 1 { for (i = 1; i <= NF; i++) if ($i == name) at = i } $2 == row { print $at }'
}
holds() { # an expression of awk, what it says
    result $((1 - $(awk "BEGIN { print ($1) ? 1 : 0 }"))) "$2: $1"
}
states=$(figure "data parallel" optimizer_bytes) sent=$(figure "data parallel" predicted_sent_bytes)
for stage in 1 2 3; do
    divided=$(figure "ZeRO-$stage" optimizer_bytes)
    holds "2 * $divided >= $states && 2 * $divided < 1.02 * $states" "stage $stage has half of the optimizer's states"
done
is "$(figure ZeRO-1 predicted_sent_bytes) $(figure ZeRO-2 predicted_sent_bytes)" "$sent $sent" "stages 1 and 2 send what data parallel sends"
# Light ops that run again gather small weights once more.
holds "$(figure ZeRO-3 predicted_sent_bytes) > 1.45 * $sent && $(figure ZeRO-3 predicted_sent_bytes) <= 1.52 * $sent" "stage 3 half as much again"
holds "$(figure "stage 2 two micro-batches" gradients_bytes) < 0.6 * $(figure "stage 0 two micro-batches" gradients_bytes)" "stage 2 halves gradients that are kept"
holds "$(figure ZeRO-3 weights_bytes) < 0.6 * $(figure ZeRO-2 weights_bytes)" "stage 3 halves weights, but for the layer that computes"
holds "$(figure tensor activations_bytes) < 0.8 * $(figure "one rank" activations_bytes)" "divided products have fewer activations"

# ---- stages of a pipeline
sed 's/"modes"/"stages"/; s/^    {case = .*$//' modes.lua >stages.lua
cat >cases.txt <<'END'
    {case = "alone", accumulate = 4}, {case = "1f1b", world = 2, mesh = {pipeline = 2}, accumulate = 4},
    {case = "gpipe", world = 2, mesh = {pipeline = 2}, accumulate = 4, pipeline_schedule = "gpipe"},
    {case = "both", world = 4, mesh = {data = 2, pipeline = 2}, accumulate = 2},
END
sed -i '/cases = {/r cases.txt' stages.lua
memtide run stages.lua -q
is $status 0 "stages run"
is "$(column stages.csv status | sort -u)" ok "each rank needs what was predicted"
is "$(column stages.csv loss_last | head -3 | sort -u | wc -l)" 1 "two stages give the loss of one rank, bit for bit"
is "$(column stages.csv effective_batch | sort -u)" 32 "all have as many samples"
is "$(column stages.csv peak_bytes)" "$(column stages.csv predicted_peak_bytes)" "the largest peak is that of the stage that needs most"
sed 's/"stages"/"wide"/; s/nn.Linear(48, 10)/nn.Linear(48, 900), nn.Linear(900, 10)/' stages.lua >wide.lua
"$MEMTIDE" run wide.lua -q --case 1f1b >/dev/null 2>&1
"$MEMTIDE" predict wide.lua -q --csv foreseen.csv --case 1f1b >/dev/null 2>&1
is "$(column wide.csv peak_rank) $(column foreseen.csv predicted_peak_bytes)" "1 $(column wide.csv peak_bytes)" "a prediction without a run is that of the hungriest stage"
"$MEMTIDE" run stages.lua -q --csv evaluated.csv --case 1f1b --set mode=eval >/dev/null 2>&1
is "$(column evaluated.csv reason | grep -c "a pipeline trains")" 1 "a pipeline does not evaluate"

# ---- a rank that fails
wait $fates
is $? 1 "a sweep whose ranks fail"
reason() { grep "^fates,$1" fates.csv; }
for expected in "killed=crashed,rank 2: killed by signal 9" "crashed=crashed,2nd attempt: rank 1: killed by signal 11" \
    "left=crashed,2nd attempt: rank 1: ended with exit status 7" "hung=timeout," "raised=error,rank 1: fates.lua:" "spoke=ok" \
    "another network=error,\"rank" "fine=ok"; do
    case $(reason "${expected%%=*}") in
    *,"${expected#*=}"*) result 0 "$expected" ;;
    *) result 1 "$expected"; echo "# $(reason "${expected%%=*}")" ;;
    esac
done
is "$(wc -l <fates.csv)" 9 "one row each"
# mpirun may end before it has forwarded the last words of a rank
named=$(reason hung) tries=1
until echo "$named" | grep -q "while rank 0 was building, for which the others waited" || [ $tries -ge 4 ]; do
    tries=$((tries + 1))
    rm -f hung.csv
    "$MEMTIDE" run fates.lua -q --csv hung.csv --case hung --timeout 4s >/dev/null 2>&1 </dev/null
    named=$(grep "^fates,hung" hung.csv)
done
has "$named" "while rank 0 was building, for which the others waited" "a rank that hangs is named"
running() {
    for process in /proc/[0-9]*; do
        [ "$(readlink "$process/cwd" 2>/dev/null)" = "$PWD" ] || continue
        case $(readlink "$process/exe") in "$MEMTIDE"* | *mpirun* | *orterun*) echo "${process#/proc/}" ;; esac
    done
}
sleep 1
is "$(running)" "" "and no process is left"

# ---- a sweep that is killed takes its ranks with it
"$MEMTIDE" run fates.lua -q --csv killed.csv --case hung --timeout 60s >/dev/null 2>&1 </dev/null &
job=$!
for _ in $(seq 100); do [ "$(running | wc -l)" -ge 5 ] && break; sleep 0.1; done
result $(($(running | wc -l) < 5)) "ranks of a sweep run"
kill -KILL $job
wait $job 2>/dev/null
for _ in $(seq 50); do [ "$(running | wc -l)" = 0 ] && break; sleep 0.1; done
is "$(running)" "" "and end with it"

# ---- memory that ranks do not have
memtide run modes.lua -q --csv small.csv --memory 64KiB --try-oom --case data
is "$(column small.csv status)" oom "ranks run out of memory"
is "$(column small.csv reason | grep -c "rank [01]: ")" 1 "and the row says which"

sed 's/FATES = {/FATES = { hoard = function() local t = {} while true do t[#t + 1] = ("x"):rep(4096):rep(4096) end end,/
    s/cases = {/cases = { {case = "hoarded", world = 2, fate = "hoard", at = 1},/' fates.lua >hoard.lua
memtide run hoard.lua -q --csv hoard.csv --case hoarded --host-memory 512MiB
is "$(column hoard.csv status) $(column hoard.csv reason | cut -d';' -f1)" "oom rank 1: not enough memory" "a rank has not enough of the host's"

# ---- reliable times: all ranks make the same steps
{
    echo 'if os.getenv "OMPI_COMM_WORLD_RANK" == "1" then require("memtide.results.measure").TIME_LIMIT = -1 end'
    cat modes.lua
} >hasty.lua # rank 1 wants no step more than the five, after which rank 0 does not even know the pace
memtide run hasty.lua -q --csv rounds.csv --case data --set rounds=1 --timeout 10s
is "$(column rounds.csv status)" ok "ranks make the steps of reliable times that rank 0 wants"
steps=$(awk -F, 'NR > 1' rounds.samples.csv 2>/dev/null | wc -l)
holds "$steps >= 7" "which are more than the others want"

# ---- whose samples: iterators, epochs and files of test data; the largest batch
cat >samples.lua <<'END'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
local function numbers(count, seed)
  return mt.data.random{count = count, shape = {6}, classes = 3, seed = seed}
end
local function iterator(settings)
  local i = 0
  return function()
    i = i + 1
    if i > 7 then return nil end -- an odd number: ranks go on with the next pass in turns
    local x, y = {}, {}
    for k = 1, settings.batch do
      for f = 1, 6 do x[#x + 1] = math.sin(i * 100 + k * 10 + f) end
      y[k] = (i + k) % 3
    end
    return x, y
  end
end
local way = ...
local all = {name = way, batch = 4, warmup = 0, loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.1},
  model = nn.Sequential{nn.Linear(6, 200), nn.ReLU(), nn.Linear(200, 3)},
  cases = {{case = "alone", accumulate = 2}, {case = "data", world = 2}, {case = "weights", world = 2, zero = 3}}}
if way == "iterator" then all.input, all.classes, all.data, all.steps = {6}, 3, iterator, 9
else all.data, all.test_data, all.epochs, all.drop_last = numbers(100, 1), numbers(41, 2), 3, true end
return mt.experiment(all)
END
for way in iterator epochs; do
    memtide run samples.lua -q -- $way
    is "$(column $way.csv status | sort -u)" ok "$way: ranks run"
    is "$(column $way.csv loss_first | sort -u | wc -l) $(column $way.csv loss_last | sort -u | wc -l)" "1 1" "$way: the losses of one rank"
done
is "$(column epochs.csv test_accuracy | sort -u | wc -l) $(column epochs.csv test_accuracy | grep -c .)" "1 3" "all test samples are counted"
memtide run modes.lua -q --csv max.csv --case weights --set batch=max --memory 1MiB
is "$(column max.csv status)" ok "the largest batch of each rank"
result $(($(column max.csv batch) < 100)) "which is large"
memtide predict modes.lua -q --world 3 --case states --csv world.csv
is "$(column world.csv world)" 3 "--world"

# ---- what is refused
cat >tell.lua <<'END'
-- What a worker would tell its ranks, but for one thing
local core, wire = require "memtide.core", require "memtide.sweep.wire"
local message = {setup = {path = "modes.lua", args = {}, purpose = "run", options = {set = {}}}, k = 1, device = "cpu", batch = 8,
  version = core.version, world = 1, id = "none"}
local name, value = ...
message[name] = math.tointeger(value) or value
io.write(wire.frame(message))
END
for one in "version none" "world 3" "id x"; do
    said=$("$MEMTIDE" tell.lua $one | "$MEMTIDE" --rank 2>/dev/null)
    has "$said" ", what has started them has ${one#* }" "${one%% *}: ranks that are not the worker's"
done
cat >refused.lua <<'END'
local mt = require "memtide"
local nn = mt.nn
local one = {model = nn.Linear(2, 3), input = {2}, loss = nn.CrossEntropyLoss()}
local function said(make, options)
  local good, problem = pcall(make, options)
  print(good, problem)
end
one.world = 2
said(mt.trainer, one)
one.name = "judge"
said(mt.joint, {programs = {one}})
END
memtide refused.lua
is "$(echo "$out" | grep -c "world: expected 1, found 2: this is one process")" 2 "a trainer of several ranks"
cat >several.lua <<'END'
local mt = require "memtide"
local nn = mt.nn
return mt.experiment{name = "several", world = 2, batch = 2,
  trainings = {one = {model = nn.Linear(2, 3), input = {2}, loss = nn.CrossEntropyLoss()}},
  data = {d = mt.data.random{count = 8, shape = {2}, classes = 3, seed = 1}},
  round = function(t, draw) return t.one:step(draw "d") end}
END
memtide run several.lua
has "$out$err" 'experiment: "trainings" is not offered with several ranks: expected world = 1, found 2' "rounds of several ranks"
memtide predict modes.lua --case data --set gradient_exponents=true
has "$out$err" '"gradient_exponents" is not offered with several ranks' "exponents of several ranks"
memtide profile modes.lua --case data
has "$err" "profile: world: expected 1, found 2" "a profile of several ranks"
memtide run modes.lua -q --case data --in-process --csv inside.csv
is "$(column inside.csv reason)" "world: ranks are started by a worker process" "ranks of a sweep that has no workers"
memtide run modes.lua --world x
has "$err" '--world: expected a whole number of at least 1, found "x"' "--world of no number"
MEMTIDE_MPIRUN="echo hello {}" "$MEMTIDE" run modes.lua -q --csv hello.csv --case data >/dev/null 2>&1
is "$(column hello.csv reason | cut -c1-48)" "echo has said what is no rank's message: hello 2" "a launcher that starts something else"
is "$(OMPI_COMM_WORLD_SIZE=2 "$MEMTIDE" run modes.lua -q 2>&1 | grep -c "start memtide once, and say world = 2")" 1 "mpirun memtide"
is "$("$MEMTIDE" run modes.lua -q --csv no.csv --case data --set world=2,3 --set "mesh=tensor=2" 2>&1 | grep -c mesh)" 1 "sizes that do not multiply to world"
MEMTIDE_MPIRUN="no-such-launcher -n {}" "$MEMTIDE" run modes.lua -q --csv none.csv --case data >/dev/null 2>&1
is "$(column none.csv reason)" "the ranks cannot be started: there is no no-such-launcher" "a launcher that is not there"
MEMTIDE_MPI=/dev/null "$MEMTIDE" run modes.lua -q --csv plugin.csv --case data >/dev/null 2>&1
is "$(column plugin.csv status) $(column plugin.csv reason | grep -c "rank [01]: the MPI plugin cannot be loaded")" "error 1" "a plugin that is none"
is "$("$MEMTIDE" --rank </dev/null 2>&1 | grep -c "not for the command line")" 1 "memtide --rank by hand"
finish
