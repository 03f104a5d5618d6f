# What a sweep shows while it runs: the screen, plain lines, memtide watch, what is run after it, completions.
. tests/tap.sh
PYTHON=$(command -v python3)

cat >slow.lua <<'END'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
return mt.experiment{
  name = "slow", input = {8}, classes = 4, batch = 4, warmup = 1, steps = 2,
  model = function(settings)
    if settings.fate == "slow" then os.execute "sleep 0.5" end
    if settings.fate == "wait" then os.execute "until [ -e go ]; do sleep 0.1; done" end
    while settings.fate == "spin" do end
    while settings.fate == "hang" do os.execute "sleep 0.1" end
    if settings.fate == "raise" then error "on purpose" end
    return nn.Sequential{nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)}
  end,
  loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.1},
  cases = {
    {case = "first", fate = "none"}, {case = "second", fate = "slow", batch = 8}, {case = "third", fate = "raise"},
    {case = "\u{e4}rgerlich lang \u{6f22}\u{5b57}\u{6f22}\u{5b57} " .. ("x"):rep(80) .. "\27[7m\tend", fate = "slow"},
  },
}
END

# ---- on a terminal
# COLUMNS LINES [--interrupt TEXT] ARGUMENTS...: what is seen in the end in $seen, all pictures in $frames, counts in
# $did
terminal() {
    shown=$1x$2 columns=$1 lines=$2 words=
    shift 2
    if [ "$1" = --interrupt ]; then words="--interrupt $2"; shift 2; fi
    all=$(TERM=${TERMINAL:-xterm} timeout 60 "$PYTHON" "$ROOT/tests/cli/terminal.py" "$columns" "$lines" frames.txt \
        $words "$MEMTIDE" "$@" 2>&1)
    seen=$(echo "$all" | sed '$d') did=$(echo "$all" | tail -1) frames=$(cat frames.txt)
}
clean() { rm -rf go slow.csv slow.csv.* slow.logs slow.samples.csv; }
lacks() { case $1 in *"$2"*) result 1 "$3"; echo "# found: $1" ;; *) result 0 "$3" ;; esac; }

if [ -z "$PYTHON" ] || ! "$PYTHON" -c "import pty" 2>/dev/null; then
    result 0 "the screen on a terminal # SKIP no python3 with pty"
else
    for size in "80 24" "30 6" "200 50"; do
        clean
        terminal $size run slow.lua
        has "$did" "status 1 wraps 0 above 0 unknown 0" "$shown: no line wraps, nothing but its own lines is touched"
        has "$frames" "slow  [#" "... there is a bar"
        has "$frames" "> second: " "... and the running cell"
        lacks "$seen" "slow  [" "... which is gone in the end"
        case $seen in case*) result 0 "... when the table stands there" ;; *) result 1 "... when the table stands there"
            echo "# found: $seen" ;; esac
    done
    name=a-name-that-says-far-more-than-forty-columns-can-hold-of-it
    sed "s/case = \"first\"/case = \"$name\"/" slow.lua >named.lua
    clean
    terminal 200 24 run named.lua
    has "$frames" "  $name  ok, " "a long name is whole on a wide terminal"
    has "$seen" "$name" "... in the table, too"
    clean
    terminal 60 24 run named.lua
    lacks "$seen" "$name" "... and is cut on a narrow one"
    has "$seen" "a-name-that-says-far-more-than-forty-c.. " "... to forty columns"
    terminal 200 24 status named.lua
    has "$seen" "$name" "status has it whole"
    clean
    terminal 80 24 run slow.lua
    is "$(echo "$seen" | grep -vc 'timed steps were disturbed')" 5 "the table has its head and a line for each cell"
    has "$seen" "case" "names"
    has "$seen" "first" "in the script's order"
    lacks "$seen" "accumulate" "without what is the same in all"
    has "$frames" "2 ok, 1 error" "statuses are counted"
    has "$frames" "  first   ok, " "what has ended is listed"
    has "$frames" "  third   error, slow.lua:" "with reasons"
    has "$frames" "of 4 cells, 75 %" "and the share"
    lacks "$did" "colours 0" "failed cells have a colour"
    is "$(ls slow.csv.live* 2>/dev/null)" "" "no file is left"
    terminal 80 24 run slow.lua --retry none
    has "$seen" "third" "a sweep that has nothing to do"
    has "$did" "status 1 " "has its table, too"
    clean
    NO_COLOR=1 terminal 80 24 run slow.lua
    has "$did" "unknown 0 colours 0 ups" "NO_COLOR: none"
    lacks "$did" "ups 0" "but the screen"
    for how in "xterm --plain" "dumb"; do
        clean
        TERMINAL=${how%% *} terminal 80 24 run slow.lua $(echo "$how" | sed 's/^[a-z]* *//')
        has "$did" "above 0 unknown 0 colours" "$how: plain lines"
        has "$did" "ups 0" "... without a move of the cursor"
        has "$seen" "[1/4] first: ok, " "... one for each cell"
    done
    clean
    terminal 80 24 run slow.lua --json
    has "$did" "ups 0" "rows on the same terminal have no screen between them"

    # ---- Ctrl-C, in the workers' parent and in a sweep without workers
    clean
    for words in "building --case first" "first --case first --in-process"; do
        clean
        terminal 80 24 --interrupt ${words%% *} run slow.lua --set fate=spin ${words#* }
        has "$did" "status 130 wraps 0 above 0 unknown 0" "Ctrl-C, run ${words#* }"
        lacks "$seen" "slow  [" "... leaves nothing of the screen"
        has "$seen" "memtide: interrupted" "... but the reason"
        is "$(ls slow.csv.live* slow.csv.lock 2>/dev/null)" "" "... and no file"
    done
fi

# ---- in a pipe
clean
memtide run slow.lua
has "$err" "[2/4] second: ok, " "in a pipe there is a line for each cell"
is "$(cat out.txt err.txt | tr -cd '\033' | wc -c)" 0 "and no escape sequence, not even from a name"
has "$out" "on purpose" "the table has the reasons of what failed"
memtide run slow.lua --retry none --markdown
has "$out" "| case " "a table in Markdown"
has "$out" "| --: |" "with its rule"
is "$(echo "$out" | grep -c '^|.*|$')" 6 "and a line for each row"

# ---- status of a file
memtide status slow.csv
is $status 0 "status of a file"
has "$out" "slow.csv: 4 cells: 3 done (3 ok), 1 failed (1 error), 0 stale, 0 missing" "counts its cells"
has "$(echo "$out" | grep failed)" "on purpose" "and says why some failed"
memtide status slow.csv --json
is "$(echo "$out" | grep -c '"state":"done","status":"ok"')" 3 "as JSON"
has "$out" '"repeat":1' "with numbers"
memtide status none.csv
is $status 66 "status of a file that is not there"
has "$err" "there is no none.csv, and no sweep that writes it" "says so"

# ---- status beside a sweep
sed 's/if settings.fate == "wait" then/if os.getenv "WAIT" then/; s/name = "slow"/name = "waits"/' slow.lua >waits.lua
WAIT=1 "$MEMTIDE" run waits.lua --case second --set fate=none --set batch=1,2,3,4,5 -q </dev/null >/dev/null 2>&1 &
job=$!
for _ in $(seq 100); do
    memtide watch waits.csv --once
    case $out in *"> second batch=1"*) break ;; esac
    sleep 0.1
done
memtide status waits.lua --case second --set fate=none --set batch=1,2,3,4,5
has "$out" "0 done, 1 running, 0 failed, 0 stale, 4 missing" "status: the running cell is not missing"
has "$(echo "$out" | grep '^second batch=1 ')" "running" "... and is named"
memtide status waits.csv
has "$out" "running" "status of the file: the running cell"
has "$err" "waits: 0 of 5 cells" "... and the sweep"
memtide status waits.csv --json
has "$out" '"case":"second batch=1' "... as JSON"
has "$out" '"state":"running"' "... with its state"
touch go
wait $job
memtide status waits.lua --case second --set fate=none --set batch=1,2,3,4,5
has "$out" "5 done (5 ok), 0 failed" "in the end all are done"

# ---- watch
memtide watch slow.lua
is $status 0 "watch without a sweep"
has "$err" "no sweep runs on slow.csv" "says so"
has "$err" "cells with rows in slow.csv: 4, 3 ok, 1 error" "and what there is"
has "$out" "second" "with the table"
memtide watch none.csv
is $status 66 "watch without a file"
has "$err" "there is no none.csv" "says so"
wait_for() { # TEXT: until a picture from outside has it
    for _ in $(seq 100); do
        memtide watch slow.lua --once
        case $out in *"$1"*) return ;; esac
        sleep 0.1
    done
}
clean
"$MEMTIDE" run slow.lua --case second --set fate=wait --set batch=1,2,3,4,5 -q </dev/null >/dev/null 2>&1 &
job=$!
wait_for "> second batch=1"
"$MEMTIDE" watch slow.csv >watched.txt 2>watched_err.txt </dev/null &
watcher=$!
has "$out" "slow  [" "watch --once: the picture"
has "$out" "of 5 cells" "... of all cells"
has "$out" "> second batch=" "... and the one that runs"
memtide watch slow.lua --once --json
for word in '"state":"running"' '"name":"slow"' "\"process\":$job" '"total":5' '"running":[{' '"counts":{' '"oom":0'; do
    has "$out" "$word" "watch --json: $word"
done
if [ -n "$PYTHON" ]; then
    echo "$out" | "$PYTHON" -c "import json, sys; json.load(sys.stdin)"
    is $? 0 "is JSON"
    (sleep 1; touch go) &
    terminal 80 24 watch slow.lua
    has "$did" "status 0 wraps 0 above 0 unknown 0" "watch on a terminal"
    has "$frames" "> second batch=" "shows the same"
    lacks "$seen" "slow  [" "until the sweep ends"
    has "$seen" "batch  status" "and then the table"
fi
touch go
wait $job
wait $watcher
is $? 0 "watch ends with the sweep"
has "$(cat watched.txt)" "slow: 0 of 5 cells" "having told how far it was"
has "$(cat watched_err.txt)" "cells with rows in slow.csv: 5, 5 ok" "and what there is in the end"
is "$(tr -cd '\033' <watched.txt | wc -c)" 0 "without escape sequences in a pipe"

clean
"$MEMTIDE" run slow.lua --set fate=none,hang --case first -q </dev/null >/dev/null 2>&1 &
job=$!
wait_for "> first fate=hang"
"$MEMTIDE" watch slow.lua >watched.txt 2>watched_err.txt </dev/null &
watcher=$!
sleep 0.3
kill -KILL $job
wait $job 2>/dev/null
wait $watcher
is $? 1 "a sweep that is killed is no end"
has "$(cat watched_err.txt)" "process $job, which ran the sweep, was killed" "watch says so"
has "$(cat watched_err.txt)" "cells with rows in slow.csv: 1, 1 ok" "how far it was"
has "$(cat watched_err.txt)" "first fate=hang was running" "and at what"
memtide watch slow.lua --once --json
is "$status $(echo "$out" | grep -c '"state":"died"')" "1 1" "also later"
memtide run slow.lua --case first -q
is "$(ls slow.csv.live* 2>/dev/null)" "" "the next sweep on the file removes what was left"

# ---- commands after the sweep
show='echo $MEMTIDE_NAME $MEMTIDE_STATUS $MEMTIDE_CSV $MEMTIDE_OK $MEMTIDE_ERROR $MEMTIDE_ENDED $MEMTIDE_CELLS'
clean
memtide run slow.lua --case first --on-done "$show" --on-fail "echo failed" -q
has "$err" "slow 0 slow.csv 1 0 1 1" "--on-done has the counts"
lacks "$err" failed "--on-fail is for failures"
lacks "$out" slow.csv "standard output is for rows"
run() { memtide run slow.lua --set fate=none,raise -q "$@"; }
run --case first --on-done "echo done" --on-fail "$show"
is "$status" 1 "the exit status stays"
has "$err" "slow 1 slow.csv 1 1 2 2" "--on-fail, where cells failed"
run --case first --on-done "$show"
has "$err" "slow 1 slow.csv 1 1 2 2" "else --on-done tells it, too"
run --case first --max-failures 1 --on-fail 'echo "<$MEMTIDE_STATUS $MEMTIDE_MESSAGE>"'
has "$err" "<4 1 cell in a row has failed, the last: first fate=raise: " "a sweep that was stopped says why"
memtide run slow.lua --case first --on-done "exit 7" -q
is $status 0 "a command that fails changes nothing"
memtide run slow.lua --case first --on-done "exit 7"
has "$err" "--on-done: the command ended with status 7" "and is told"
memtide run slow.lua --set nothing=1 --on-fail "echo ran"
lacks "$err" ran "a sweep that did not begin runs none"

# ---- completions and help
memtide completion tcsh
is $status 2 "a shell that nobody knows"
for shell in bash zsh fish; do
    memtide completion $shell
    cp out.txt completion.$shell
    if command -v $shell >/dev/null; then
        $shell -n completion.$shell
        is $? 0 "completions for $shell can be parsed"
    else result 0 "completions for $shell can be parsed # SKIP no $shell"; fi
    has "$(cat completion.$shell)" "max-failures" "and have the options"
done
if command -v bash >/dev/null; then
    mkdir -p bin && ln -sf "$(command -v "$MEMTIDE")" bin/memtide # as the shell will find it
    offers() { # words, the last of which is to be completed; readline breaks them at = and :, too
        PATH=$PWD/bin:$PATH bash -c '. ./completion.bash; COMP_LINE="memtide $*" COMP_POINT=${#COMP_LINE} COMP_WORDS=(memtide "$@")
            COMP_CWORD=$#; COMP_POINT=${#COMP_LINE}; _memtide; echo "${COMPREPLY[*]}"' bash "$@"
    }
    is "$(offers pre)" predict "a command"
    is "$(offers run --max)" --max-failures "an option of its"
    is "$(offers dump --max)" "" "and of no other"
    is "$(offers run slo)" slow.lua "a script"
    is "$(offers watch slow.c)" slow.csv "rows"
    is "$(offers status slow.c)" slow.csv "of status, too"
    is "$(offers run slow.lua --retry st)" stale "a value"
    is "$(offers run --device cu)" "cuda:0 cuda:h200" "a device"
    is "$(offers run --device pytorch:rtx40)" rtx4090 "a card, after the colon"
    is "$(offers run slow.lua --set prec)" precision= "a setting"
    is "$(offers run slow.lua --set precision=fp32,amp_b)" fp32,amp_bf16 "its values, after others"
    is "$(offers run slow.lua --case fi)" first "a case of the script"
    is "$(offers run nothing.lua --case fi)" "" "a script that is not there has none"
fi
memtide help watch
has "$out" "memtide watch SCRIPT or FILE.csv" "help of a command"
memtide help run slow.lua
has "$out" "slow.lua declares no options" "and of a script"
memtide watch slow.csv --help
is $status 0 "and of a command after a file"
memtide help wtach
is $status 2 "help of a command that there is not"
has "$err" 'unknown command "wtach" (did you mean "watch"?)' "with the one that was meant"

finish
