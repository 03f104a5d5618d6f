-- memtide import: the script of a model that is there already: a constructor in Python, or Hugging Face's config.json.
local check = require "memtide.import.check"
local core = require "memtide.core"
local first_cell = require "memtide.cli.first_cell"
local hf = require "memtide.net.hf"
local options = require "memtide.cli.options"
local python = require "memtide.import.python"
local scripts = require "memtide.import.script"
local script = require "memtide.sweep.script"
local spelling = require "memtide.import.spelling"
local terminal = require "memtide.base.terminal"
local util = require "memtide.base.util"

local fail = util.fail_usage
local CHECKED = 4 -- samples of the step that --check runs

-- "3,224,224" or "128:int64:30522" -> {shape, type, below}
local function take_input(given, text)
  local sizes, type, below = text:match "^([%d,]+):?([%a%d]*):?(%d*)$"
  local input = {shape = {}, type = type ~= "" and type or "float32", below = math.tointeger(tonumber(below))}
  for word in (sizes or ""):gmatch "[^,]+" do input.shape[#input.shape + 1] = math.tointeger(tonumber(word)) end
  local known = input.type == "float32" or input.type:find "^int%d+$"
  local good = known and #input.shape > 0 and not (sizes .. ","):find ",,"
  for _, size in ipairs(input.shape) do good = good and size > 0 end
  if not good then
    fail('--input: expected the shape of one sample such as 3,224,224, or 128:int64:30522 for 128 tokens, found "%s"',
      text)
  end
  given.input = given.input or {}
  table.insert(given.input, input)
end

-- Options that only a constructor in Python has, beside --description
local OF_PYTHON = {
  {name = "args", argument = "TEXT", text = "the constructor's arguments, as in Python: num_classes=10"},
  {name = "input", argument = "SHAPE", take = take_input, repeated = true,
    text = "one sample without the batch (3,224,224); 128:int64:30522 are 128 tokens below 30522; once for each input"},
  {name = "python", argument = "PROGRAM", completes = {files = "*"}, text = "the Python that has torch (python3)"},
  {name = "weights", text = "also NAME.safetensors, the state_dict, from which the script starts"},
  {name = "check", text = "also one step in both: the largest differences of loss, outputs and gradients"},
}

local import = {words = "MODULE:NAME or DIR",
  text = "a script of a PyTorch model (torchvision.models:resnet50, FILE.py:NAME), or of a config.json in DIR",
  options = {
    options.output,
    OF_PYTHON,
    {name = "description", argument = "FILE", completes = {files = "*.json"},
      text = "what PyTorch said of the model: written, or read if no model is named"},
  }, completes = {DIR = {files = "*"}}}

local function say_error(problem)
  local where = problem.where ~= "" and (" (%s)"):format(problem.where) or ""
  error(util.failure(terminal.harmless(problem.message .. where), problem.kind == "usage" and "usage" or "script"), 0)
end

local function times(count) return count == 1 and "once" or ("%d times"):format(count) end

-- Raises with everything that the script cannot say.
local function refuse(source, problems)
  local lines = {("%s: memtide cannot say everything that it calls:"):format(source)}
  for _, one in ipairs(problems) do
    local gives = one.elements > 0 and ("gives %d numbers of each sample"):format(one.elements)
      or "takes no memory of its own"
    local where = one.where ~= "" and one.where or "-"
    lines[#lines + 1] = terminal.harmless(("  %s: %s, %s; %s"):format(where, one.what, times(one.count), gives))
  end
  error(util.failure(table.concat(lines, "\n"), "unsupported"), 0)
end

local function request_of(source, given)
  local leaves = util.sorted_keys(spelling.classes())
  return {source = source, args = given.args or "", inputs = given.input, leaves = leaves}
end

-- Writes the script, and says what it needs. expected: numbers of a step to compare with, and the path of its weights;
-- nil
local function finish(text, notes, given, expected, path)
  util.replace(given.output or "/dev/stdout", function(write) write(text) end)
  for _, note in ipairs(notes) do given.say(terminal.harmless(note)) end
  local experiment, first
  local good, problem = pcall(function()
    experiment = script.load_experiment(given.output or "(standard output)", {}, text)
    first = first_cell(experiment, {set = {}, say = function() end})
  end)
  if not good and problem ~= util.interrupted then
    local message = util.is_failure(problem) and problem.message or problem
    problem = util.failure(("memtide has no words for what the script says: %s"):format(message), util.is_failure(problem) and problem.code or "script")
  end
  if not good then error(problem, 0) end
  given.say(("%s: %d parameters; %s needs %s"):format(first.model_name, first.network:parameters(), first.name,
    util.show_bytes(first.prediction.peak.bytes)))
  for _, line in ipairs(expected and check(experiment, path, expected) or {}) do given.say(line) end
  return 0
end

-- A file that goes when it is closed
local function temporary()
  return setmetatable({path = os.tmpname()}, {__close = function(file) os.remove(file.path) end})
end

function import.folder(path, given)
  local text, notes = hf.import(path)
  return finish(text, notes, given)
end

-- source: MODULE:NAME, or nil: from the description alone
function import.constructor(source, given)
  given.input = given.input or {{shape = {3, 224, 224}, type = "float32"}}
  local from = source or given.description
  local name = (source or from:gsub("%.json$", "")):match "([^/.:]*)$":gsub("[^%w_-]", "_")
  if not source and (given.check or given.weights) then
    fail("import: --%s: expected MODULE:NAME beside it", given.check and "check" or "weights")
  end
  local request = request_of(source, given)
  local weights = given.weights and (given.output or name):gsub("%.lua$", "") .. ".safetensors" or nil
  local aside <close> = given.check and not weights and temporary() or nil
  request.weights, request.check = weights or aside and aside.path, given.check and CHECKED or nil
  local text = source and python.describe(given.python or "python3", request)
    or util.read_file(from, "import: --description")
  local description = util.must(core.json(text, source and "the description" or from))
  if description.error then say_error(description.error) end
  if source and given.description then
    util.replace(given.description, function(write) write(text) end)
  end
  local written, problems, notes = scripts.write(description, {name = name, weights = weights,
    title = ("%s, with torch %s"):format(description.source, description.torch)})
  if not written then refuse(from, problems) end
  return finish(written, notes, given, description.check, request.weights)
end

function import.alone(words, given)
  if #words > 1 or #words == 0 and not given.description then
    fail("import: expected one MODULE:NAME or one folder, found %d words", #words)
  end
  if #words == 0 or words[1]:find ":" then return import.constructor(words[1], given) end
  for _, option in ipairs(OF_PYTHON) do
    for _, one in ipairs(given.given) do
      if one.name == option.name then
        fail("import: --%s: expected MODULE:NAME beside it, found %s", one.name, words[1])
      end
    end
  end
  core.check_path(words[1], "import")
  return import.folder(words[1], given)
end

return import
