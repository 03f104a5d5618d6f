-- memtide slurm: a sweep as an array of Slurm jobs. Writes the list of cells with their parts, the script of the array,
-- that of the merge behind it, and one that submits both. Nothing is submitted here.
local core = require "memtide.core"
local freeze = require "memtide.sweep.cell_list"
local util = require "memtide.base.util"

local slurm = {}

local WARNING = 120 -- seconds before the time limit
local REQUEUES = 20 -- times that a part puts itself into the queue again

local function quote(text) return "'" .. text:gsub("'", "'\\''") .. "'" end

-- Of this command; every other one is memtide run's, and repeated.
local OWN = {shards = true, time = true, partition = true, gres = true, output = true, quiet = true, verbose = true}
local SBATCH = {"time", "partition", "gres"}

-- The words behind `memtide run`: the script, options and arguments as they were given.
local function run_words(options)
  local words = {quote(options.script.path)}
  for _, given in ipairs(options.given) do
    if not OWN[given.name] then
      words[#words + 1] = quote("--" .. given.name .. (given.value and "=" .. given.value or ""))
    end
  end
  for _, own in ipairs(options.own) do
    words[#words + 1] = quote("--" .. own.name .. (own.value and "=" .. own.value or ""))
  end
  return table.concat(words, " ")
end

local function arguments_text(args)
  local words = {}
  for _, word in ipairs(args) do words[#words + 1] = " " .. quote(word) end
  return #words > 0 and " --" .. table.concat(words) or ""
end

-- Folder and program of this process, which a job will not know otherwise.
local function here()
  local pipe <close> = assert(io.popen('pwd -P && readlink "/proc/$PPID/exe"'))
  return pipe:read("l"), pipe:read("l")
end

-- "#SBATCH --name=value" for each that was given
local function directives(options, names)
  local lines = {}
  for _, name in ipairs(names) do
    local value = options[name]
    if value and value:find("[%s%c'\"\\]") then
      error(util.failure(('--%s: expected a word of Slurm\'s, found "%s"'):format(name, value), "usage"), 0)
    end
    if value then lines[#lines + 1] = ("#SBATCH --%s=%s\n"):format(name, value) end
  end
  return table.concat(lines)
end

-- @name@ in the template: a text of `values`
local function fill(template, values) return (template:gsub("@(%l+)@", values)) end

local ARRAY = [[
#!/bin/sh
#SBATCH --array=1-@parts@
#SBATCH --ntasks=1
#SBATCH --signal=USR1@@warning@
#SBATCH --requeue
#SBATCH --open-mode=append
@directives@
# One part of the cells in cells.csv. Slurm's warning lets the cell that runs end; status 75 says that others are left:
# then this part is put into the queue again, at most @requeues@ times, and goes on where it stopped.
part=$SLURM_ARRAY_TASK_ID
[ -z "${SLURM_CPUS_PER_TASK:-}" ] || export SRUN_CPUS_PER_TASK="$SLURM_CPUS_PER_TASK" # srun does not know it else
status=0
srun "${MEMTIDE:-@program@}" run @words@ \
    --cells @cells@ --shard "$part/@parts@" --csv @folder@/@name@".$part-of-@parts@.csv"@args@ || status=$?
if [ $status = 75 ] && [ "${SLURM_RESTART_COUNT:-0}" -lt @requeues@ ]; then
    scontrol requeue "${SLURM_ARRAY_JOB_ID}_$part" # its SLURM_JOB_ID may be the whole array's
fi
exit $status
]]

local MERGE = [[
#!/bin/sh
#SBATCH --ntasks=1
#SBATCH --open-mode=append
@directives@
# The rows of all parts as one file. Status 1: a part has ended without all of its rows.
set --
part=1
while [ $part -le @parts@ ]; do
    set -- "$@" @folder@/@name@".$part-of-@parts@.csv"
    part=$((part + 1))
done
exec "${MEMTIDE:-@program@}" merge @folder@/@name@.csv "$@" --cells @cells@
]]

local SUBMIT = [[
#!/bin/sh
# sh submit.sh [options of sbatch]: all parts, and the merge when they have ended, however they did. Once more where
# cells are missing: what has its row is not run again.
set -e
cd @here@
array=$(sbatch --parsable --job-name=@job@ --output=@log@%a.log "$@" @folder@/array.sh)
merge=$(sbatch --parsable --job-name=@job@-merge --output=@log@merge.log \
    --dependency="afterany:${array%%;*}" @folder@/merge.sh)
echo "array job ${array%%;*}, merge job ${merge%%;*}"
]]

local FILES = {["array.sh"] = ARRAY, ["merge.sh"] = MERGE, ["submit.sh"] = SUBMIT}

function slurm.main(experiment, options)
  if options.script.path == "-" then
    error(util.failure("slurm: expected a script in a file: jobs have no standard input", "usage"), 0)
  end
  local folder = (options.output or options.name .. ".slurm"):gsub("(.)/+$", "%1"):gsub("^%-", "./-")
  local parts, folder_now, program = options.shards or 1, here()
  local values = {
    parts = parts, warning = WARNING, requeues = REQUEUES, words = run_words(options),
    args = arguments_text(options.args), here = quote(folder_now), folder = quote(folder),
    name = quote(options.name), cells = quote(folder .. "/cells.csv"), program = program:gsub('["$`\\]', "\\%0"),
    job = quote(options.name:gsub("[^%w_.-]", "_")), log = quote(folder:gsub("%%", "%%%%") .. "/"),
  }
  local of_array, of_merge = directives(options, SBATCH), directives(options, {"partition"})
  util.must(core.make_folder(folder))
  local counts, all = freeze.write(experiment, options, parts, folder .. "/cells.csv")
  for name, template in pairs(FILES) do
    values.directives = name == "array.sh" and of_array or of_merge
    util.replace(folder .. "/" .. name, function(write) write(fill(template, values)) end)
  end
  print(("%s: %s; sh %s/submit.sh"):format(folder, freeze.text(counts, all), folder))
  return 0
end

return slurm
