-- What may stand after --device, --case and --set: `memtide --safe completion device|case|set [SCRIPT [WORD]]` prints it,
-- one a line, for the completions of shells. A script that cannot be read offers nothing of its own.
local cards = require "memtide.net.cards"
local core = require "memtide.core"
local script = require "memtide.sweep.script"
local settings = require "memtide.net.settings"
local util = require "memtide.base.util"

local offers = {}

-- The script's experiment; nil: there is none, or it is wrong.
local function experiment_of(path)
  if not path or path == "" then return nil end
  local good, found = pcall(script.load_experiment, path, {})
  return good and found or nil
end

-- Not those of a GPU that is here: to look for it takes longer than a key may.
function offers.device()
  local out = {"cpu", "cuda:0", "cuda:h200"}
  for _, name in ipairs(cards.names) do out[#out + 1] = "pytorch:" .. name end
  out[#out + 1] = "pytorch:all"
  return out
end

function offers.case(path)
  local out, experiment = {}, experiment_of(path)
  for _, case in ipairs(experiment and experiment.cases or {}) do out[#out + 1] = case.case end
  return out
end

-- {name = {values as texts}}: the settings with their words, and what the script sweeps or declares
local function values_by_name(experiment)
  local known = {}
  local function add(name, value)
    local list = known[name] or {}
    known[name], list[#list + 1] = list, value ~= nil and settings.text(value) or nil
  end
  for _, setting in ipairs(settings.list) do
    add(setting.name)
    for _, word in ipairs(setting.words or {}) do if word ~= "budget" then add(setting.name, word) end end
  end
  for _, kind in ipairs(core.optimizer_kinds()) do add("optimizer", kind.name) end
  for _, name in ipairs(offers.device()) do add("device", name) end
  for _, option in ipairs(experiment and experiment.options or {}) do add(option.name, option.default) end
  for _, axis in ipairs(experiment and experiment.axes or {}) do
    for _, row in ipairs(axis.rows) do for k, name in ipairs(axis.names) do add(name, row[k]) end end
  end
  return known
end

-- word: what is there already: "pre", or "precision=fp32,am"
function offers.set(path, word)
  local known, out, seen = values_by_name(experiment_of(path)), {}, {}
  local name, before = (word or ""):match "^([^=]+)=(.-)[^,]*$"
  if not name then
    for _, one in ipairs(util.sorted_keys(known)) do out[#out + 1] = one .. "=" end
    return out
  end
  for _, value in ipairs(known[name] or {}) do
    if not seen[value] then seen[value], out[#out + 1] = true, ("%s=%s%s"):format(name, before, value) end
  end
  return out
end

return offers
