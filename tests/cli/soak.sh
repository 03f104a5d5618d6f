# A sweep that lives through everything at random: it and its worker are killed, stopped and asked to end, another sweep
# wants the same file, the disk is full for a while, the worker dies at some message. At the end each cell has one row,
# nothing is found wrong, and no worker has grown. CELLS (40) and MINUTES (0.15); make soak-long takes an hour for
# 5,000.
. tests/tap.sh
CELLS=${CELLS:-40} MINUTES=${MINUTES:-0.15} SEED=${SEED:-$$}
FAULTS=$(cd "$ROOT" && realpath "${BUILD:-build}/tests/faults.so")
export ASAN_OPTIONS="${ASAN_OPTIONS:-}:verify_asan_link_order=0" CELLS
export FULL="$WORK/full" PAUSE # seconds of a cell
seconds=$(awk "BEGIN { print int(60 * $MINUTES) }")
PAUSE=$(awk "BEGIN { print 0.4 * $seconds / $CELLS }")
LONGEST=$(awk "BEGIN { t = 40 * $seconds / 3600; print t < 0.6 ? 0.6 : t }") # between two events
LIMIT=$(awk "BEGIN { t = 20 * $PAUSE; print t < 2 ? 2 : t }")s

cat >soak.lua <<'END'
local mt = require "memtide"
local core = require "memtide.core"
local nn, optim = mt.nn, mt.optim
local cells, pause = math.tointeger(tonumber(os.getenv "CELLS")), tonumber(os.getenv "PAUSE")
local function slowly()
  core.poll({}, pause / 2)
  return 1
end
return mt.experiment{
  name = "soak", model_name = "m", input = {8}, classes = 4, steps = 2, warmup = 0,
  sweep = {{"batch", mt.range(1, 10)}, {"width", mt.range(1, cells // 10)}},
  model = function(s) return nn.Sequential{nn.Linear(8, s.width), nn.ReLU(), nn.Linear(s.width, 4)} end,
  loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.1}, schedule = optim.LambdaLR(slowly),
}
END

turn=0
roll() { turn=$((turn + 1)); rolled=$(awk -v seed="$SEED$turn" -v n="$1" 'BEGIN { srand(seed); print n * rand() }'); }
say() { echo "# $(($(date +%s) - began)) s: $*"; }
sweep() { LD_PRELOAD=$FAULTS exec "$MEMTIDE" run soak.lua -q --timeout "$LIMIT" "$@" >/dev/null 2>>err.txt </dev/null; }
worker() { cat "/proc/$job/task/$job/children" 2>/dev/null | cut -d\  -f1; }
alive() { kill -0 "$job" 2>/dev/null; }
anonymous() { awk '/^RssAnon/ { print $2 }' "/proc/$1/status" 2>/dev/null; } # KiB
rows() { tail -n +2 soak.csv 2>/dev/null | cut -d, -f3,4 | sort -u | wc -l; }

# How the sweep has ended: killed, interrupted, terminated, stopped by USR1 (138: before it listens to that), a full
# disk or a failed row are no surprise.
ended() {
    wait "$job"
    how=$?
    job=
    case $how in 0 | 1 | 66 | 75 | 130 | 137 | 138 | 143) ;; *)
        surprises="$surprises $how"
        say "ended with status $how: $(tail -n 1 err.txt)" ;;
    esac
}

began=$(date +%s) job= surprises= events=0 refused=0 full=0 most=0 tries=0
echo "# SEED=$SEED CELLS=$CELLS MINUTES=$MINUTES: $PAUSE s for a cell"
: >err.txt
while [ $(($(date +%s) - began)) -lt "$seconds" ]; do
    if [ -z "$job" ]; then
        roll 3
        tries=$((tries + 1))
        case $rolled in
        0*)
            roll 60
            : >once
            ( export DIE_AT="${rolled%%.*}" DIE_WHEN=half DIE_ONCE="$PWD/once"; sweep ) & ;;
        *) sweep & ;;
        esac
        job=$!
    fi
    roll "$LONGEST"
    sleep "$rolled"
    size=$(anonymous "$(worker)")
    [ "${size:-0}" -gt $most ] && most=$size
    alive || { ended; continue; }
    roll 10
    events=$((events + 1))
    victim=$(worker)
    case $rolled in
    0* | 1*) kill -KILL $job ;;
    2* | 3*) [ -z "$victim" ] || kill -KILL $victim 2>/dev/null ;;
    4*) kill -TERM $job ;;
    5*) kill -INT $job ;;
    6*) kill -USR1 $job ;;
    7*) [ -z "$victim" ] || kill -STOP $victim 2>/dev/null ;;
    8*)
        ( sweep )
        other=$?
        alive || continue
        case $other in 66) refused=$((refused + 1)) ;; *) surprises="$surprises second:$other" ;; esac ;;
    *)
        [ $full -lt 3 ] || continue
        full=$((full + 1))
        say "full disk, $(rows) rows"
        : >"$FULL"
        sleep "$(awk "BEGIN { print $seconds / 60 }")"
        rm "$FULL"
        say "free again, $(rows) rows" ;;
    esac
    [ $((events % 20)) != 0 ] || say "$events events, $tries sweeps, $(rows) rows, at most $most KiB"
done
[ -z "$job" ] || { kill -TERM $job 2>/dev/null; ended; }
say "$events events, $tries sweeps, $(rows) rows: now undisturbed"
is "$surprises" "" "$tries sweeps ended as they may ($refused others were refused)"

PAUSE=0
memtide run soak.lua -q
is $status 0 "and the last one to the end"
cp soak.csv before.csv
memtide run soak.lua -q
is "$status $(cmp soak.csv before.csv)" "0 " "nothing is left to do"
is "$(rows)" "$CELLS" "$CELLS rows, one for each cell and repeat"
memtide verify soak.csv soak.lua
echo "# $out"
is $status 0 "verify finds nothing"
memtide merge merged.csv soak.csv
is "$(grep -c ',ok,' merged.csv) $(wc -l <merged.csv)" "$CELLS $((CELLS + 1))" "all of them ok"
is "$(ls soak.csv.lock soak.csv.live 2>/dev/null)" "" "no lock is left"
[ $most -lt 32768 ]
result $? "no worker had more than 32 MiB ($most KiB)"
finish
