-- Runs a user's script, with its arguments, its folder for require, and errors for undefined globals.
local core = require "memtide.core"
local experiment = require "memtide.sweep.experiment"
local hf = require "memtide.net.hf"
local multi_trainer = require "memtide.net.multi_trainer"
local repl = require "memtide.sweep.repl"
local safe = require "memtide.sweep.safe"
local util = require "memtide.base.util"

local script = {}

function script.exists(path)
  local file = io.open(path, "rb")
  if file then file:close() end
  return file ~= nil
end

-- The scripts in the current folder that make an experiment, as a text for messages: "; in this folder: a.lua, b.lua"
function script.here()
  local names = {}
  for _, name in ipairs(core.files_in "." or {}) do
    local file <close> = name:find "%.lua$" and io.open(name, "rb") or nil
    local text = file and file:read "a" -- nil: it is a folder
    if text and text:find("experiment%s*[{(]") then names[#names + 1] = name end
  end
  return #names > 0 and "; in this folder: " .. table.concat(names, ", ") or ""
end

local function set_arguments(globals, name, args)
  globals.arg = {[0] = name}
  for i, value in ipairs(args) do globals.arg[i] = value end
end

-- Files that are given in the place of a script, by the end of their names
local NO_SCRIPT = {csv = "a file of results", pickle = "a recording of PyTorch's memory", safetensors = "a file of weights",
  py = "one in Python: memtide import FILE.py:NAME writes a script of a model"}

-- The text of a script; that of a Hugging Face config.json is the script that memtide import writes of it.
local function read_text(path)
  if path:find "%.json$" then return (hf.import(path)) end
  local other = NO_SCRIPT[path:match "%.(%w+)$"]
  if other then util.fail_usage("%s: expected a script in Lua, found %s", path, other) end
  local file, message = io.stdin, nil
  if path ~= "-" then file, message = io.open(path, "rb") end
  local text = file and file:read("a")
  if file and path ~= "-" then file:close() end
  if text then return text end
  local reason = message and message:sub(#path + 1) or ": it is no file" -- io.open says "PATH: reason"
  error(util.failure(('cannot open the script "%s"%s'):format(path, reason), "file"), 0)
end

-- A to-be-closed variable makes `return mt.experiment{...}` no tail call, so that an error in it knows the line.
local KEEP_FRAME = "local memtide_script <close> = nil "

local function read_chunk(path, text, globals)
  text = text:gsub("^\xEF\xBB\xBF", ""):gsub("^#[^\n]*", "")
  local chunk, message = load(KEEP_FRAME .. text, path == "-" and "=stdin" or "@" .. path, "t", globals)
  if not chunk then error(message, 0) end
  return chunk
end

-- Runs the file ("-": standard input) with `args` as `...`, and returns what it returns. It can require modules beside
-- it. text: the file's text if it was read before, else nil.
function script.run(path, args, text)
  text = text or read_text(path)
  local folder = path:match("^(.*)/[^/]*$") or "."
  local globals = safe.space(folder == "" and "/" or folder)
  if folder ~= "." then package.path = folder .. "/?.lua;" .. package.path end
  set_arguments(globals, path, args)
  local chunk = read_chunk(path, text, globals)
  return chunk(table.unpack(args))
end

-- Returns the script's experiment and its text. Workers run this text, even if the file is edited meanwhile.
function script.load_experiment(path, args, text)
  text = text or read_text(path)
  multi_trainer.refused_in = path
  local found = script.run(path, args, text)
  multi_trainer.refused_in = nil
  if not experiment.is(found) then
    error(("%s returns no experiment: it must end in return mt.experiment{...}; memtide %s runs a plain program")
      :format(path, path), 0)
  end
  return found, text
end

-- ---- memtide [-e CODE] [-l MODULE] [-i] [-v] [SCRIPT or -] [ARGS], as lua does it

local SWITCHES = {
  ["-e"] = function(text, globals)
    local chunk, message = load(text, "=(command line)", "t", globals)
    if not chunk then error(message, 0) end
    chunk()
  end,
  ["-l"] = function(name, globals)
    local global, module = name:match("^(.-)=(.*)$")
    globals[global or name] = globals.require(module or name)
  end,
}

-- Runs a plain program. If -e or -l come first, --safe confines it to the current folder.
function script.plain(arguments, state)
  local i, prompt, done = 1, false, false
  local switched = (arguments[1] or ""):match("^%-%a$")
  local globals = switched and safe.space(".")
  if globals then set_arguments(globals, arguments[0], {}) end
  while arguments[i] and arguments[i]:match("^%-%a$") do
    local switch = SWITCHES[arguments[i]]
    if arguments[i] == "-i" then prompt = true
    elseif arguments[i] == "-v" then state.verbose = true
    elseif not switch then error(util.failure("unknown option " .. arguments[i], "usage"), 0)
    else
      i = i + 1
      if not arguments[i] then error(util.failure(arguments[i - 1] .. ": an argument is missing", "usage"), 0) end
      switch(arguments[i], globals)
      done = true
    end
    i = i + 1
  end
  local path = arguments[i] or not done and not prompt and "-" or nil
  local found = path and script.run(path, table.move(arguments, i + 1, #arguments, 1, {}))
  if experiment.is(found) then
    io.stderr:write(("memtide: %s is an experiment: memtide run %s\n"):format(path, path))
  end
  if prompt then repl.run(globals) end
  return 0
end

return script
