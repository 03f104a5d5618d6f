-- A cell that several ranks train: the worker starts them as a group by mpirun, and hears from rank 0. A rank that dies ends
-- them all, and the cell with one row that names it.
local cell = require "memtide.net.cell"
local core = require "memtide.core"
local util = require "memtide.base.util"
local wire = require "memtide.sweep.wire"

local ranks = {}
local leave = os.exit -- which a script under --safe does not have

local ENDING = 10   -- seconds in which a group ends after its last word
local LOOK = 60     -- seconds between two looks at it

-- The words before the program's name. MEMTIDE_MPIRUN: others, such as "srun --mpi=pmix -n {}", where {} is the number of ranks.
-- Ranks share the processors, unless OMP_NUM_THREADS says otherwise. Bound, each of them would take the first ones.
local function launcher(world)
  local given, words = os.getenv "MEMTIDE_MPIRUN", {}
  if not given or given == "" then
    given = "mpirun -n {} --oversubscribe --bind-to none -x OMP_PROC_BIND=false" .. (core.is_root() and " --allow-run-as-root" or "")
    local threads = cell.device("cpu"):info().threads
    if not os.getenv "OMP_NUM_THREADS" then given = ("%s -x OMP_NUM_THREADS=%d"):format(given, math.max(1, threads // world)) end
  end
  for word in given:gmatch "%S+" do words[#words + 1] = word == "{}" and tostring(world) or word end
  return words
end

-- What mpirun and srun say of a rank that has ended early: a pattern, and what it means
local SAID = {
  {"process rank (%d+) with PID %d+ on node %S+ exited on signal (%d+)", "killed by signal %s"},
  {"Process name: %[%[%d+,%d+%],(%d+)%]%s+Exit code:%s+(%d+)", "ended with exit status %s"},
  {"tasks? (%d+)[%d,%-]*: (Killed)", "killed by signal 9"},
  {"tasks? (%d+)[%d,%-]*: Exited with exit code (%d+)", "ended with exit status %s"},
  {"tasks? (%d+)[%d,%-]*: (%u[%w %(%)]*)", "%s"}, -- "Segmentation fault (core dumped)", "Out Of Memory"
}

local LAST_WORDS = 2 -- seconds in which ranks that are ended say what they were doing: less than the pool's patience

-- What the ranks were doing, from their last words in the log: that of those for which the others wait, if they do -> "rank 2
-- was running step 3 of 12, for which the others waited"; nil: they have said nothing. mpirun may end before it has forwarded
-- the words of a rank, and a rank that is stuck has none.
local function held_up(log, world)
  local busy, doing, all = {}, {}, nil
  for number, how, what in log:gmatch "memtide: rank (%d+) (%l+) ([^\n]+)" do
    what = what:gsub("^while ", "")
    all, doing[tonumber(number)] = all or what, how == "waits" and "waiting" or what
  end
  for number = 0, world - 1 do
    local what = doing[number]
    if what ~= "waiting" then busy[#busy + 1] = ("rank %d %s"):format(number, what and "was " .. what or "gave no sign") end
  end
  if #busy == 0 or #busy == world then return all end
  return table.concat(busy, ", ") .. ", for which the others waited"
end

-- The pool ends this worker: its group says what it was doing, and ends first.
local function end_with(process, world, progress)
  process:signal "TERM"
  process:wait(LAST_WORDS)
  local log = process:log(util.MOST_TEXT)
  local found = held_up(log, world)
  if found then progress(found) end
  io.stderr:write(log)
  leave(143)
end

-- Why the group has ended, from its log -> "rank 2: killed by signal 9"
local function cause_in(log)
  for _, one in ipairs(SAID) do
    local rank, what = log:match(one[1])
    if rank then return ("rank %s: "):format(rank) .. one[2]:format(what) end
  end
end

local function ended(process, note)
  local kind, what = process:wait(ENDING)
  local log = process:log(util.MOST_TEXT)
  local during = note ~= "" and " while " .. note or ""
  if kind == "exit" and what == 127 and log == "" then
    return {status = "error", reason = "the ranks cannot be started: there is no " .. launcher(1)[1], code = "unsupported"}
  end
  local cause = cause_in(log) or log:gsub("^%s+", ""):match "[^\n]+" or ("%s %s"):format(kind or "stuck", what or "")
  return {status = "crashed", reason = cause .. during, code = cause:find "signal 9$" and "killed" or "crash"}
end

-- The next message of rank 0; nil: none is complete. Raises where what was started is no rank.
local function heard(read, bytes)
  local good, said = util.try(read, nil, bytes)
  if good then return said end
  error(util.failure(("%s has said what is no rank's message: %s"):format(launcher(1)[1], util.cut((bytes or ""):match "[^\n]*")), "unsupported"), 0)
end

-- How many processes this one was started with, by mpirun or srun
function ranks.started_with()
  for _, name in ipairs{"OMPI_COMM_WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "PMI_SIZE"} do
    local number = tonumber(os.getenv(name) or "")
    if number then return number end
  end
  return 1
end

local signals = setmetatable({}, {__close = function() core.restore_signals() end})

-- Runs the worker's cell k in a group of `world` ranks -> as cell.run, with peaks = {bytes of each rank}, peak_rank. message:
-- what each rank needs to find the cell; progress(text, i, n): what rank 0 is doing.
function ranks.run(world, message, progress)
  local words = launcher(world)
  table.move({util.must(core.program(), "the program's file cannot be told", "internal"), "--rank"}, 1, 2, #words + 1, words)
  local process <close> = util.must(core.spawn(words, 0, true))
  process:send(wire.frame(message))
  local read, note, failed, found = wire.reader(), "", nil, nil
  core.catch_signals()
  local _ <close> = signals
  while true do
    local _, signal = core.poll({process}, LOOK)
    if signal then end_with(process, world, progress) end
    local bytes = process:receive()
    local said = heard(read, bytes)
    while said do
      if said.word == "note" then
        note = ("%s %d of %d"):format(said.text, said.i, said.n)
        progress(said.text, said.i, said.n)
      elseif said.word == "failed" then failed = failed or said
      else found = said.found end
      said = heard(read)
    end
    if not bytes then break end
  end
  io.stderr:write(process:log(util.MOST_TEXT))
  if failed then
    process:wait(ENDING)
    return {status = failed.status, reason = ("rank %d: %s"):format(failed.rank, failed.reason), code = failed.code}
  end
  if not found then return ended(process, note) end
  process:wait(ENDING)
  return found
end

return ranks
