-- Trained weights and interrupted runs in safetensors files.
--
-- Weights are the parameters and the layers' buffers (running statistics) with the names and shapes of PyTorch's
-- state_dict, in fp32; such files can be exchanged with PyTorch. A state is every persistent buffer in its own type
-- (parameters, master copies, optimizer states, loss scale, counters of steps and of random numbers) and, in the
-- metadata, the settings under which the run continues bit by bit.
local adapters = require "memtide.net.adapters"
local core = require "memtide.core"
local data = require "memtide.net.data"
local quantized = require "memtide.net.quantized"
local util = require "memtide.base.util"

local weights = {}
local STATE_FORMAT = "memtide state 2"
local NO_CHECKSUMS = "memtide state 1" -- written by versions without checksums
local SHOWN = 8 -- names of a list that a message shows
local MOST = 1 << 53 -- limit of epochs, and of batches in one

-- A number without dimensions is (1) here; PyTorch's load_state_dict takes (1) for it, too.
local function shape_text(shape) return #shape == 0 and "(1)" or "(" .. table.concat(shape, ", ") .. ")" end

local function by_name(list)
  local map = {}
  for _, tensor in ipairs(list) do map[tensor.name] = tensor end
  return map
end

-- All persistent buffers as {name, dtype, shape, as, number, master}, where number is their index for the core, and master
-- that of a weight's fp32 copy
local function persistent(trainer)
  local list = core.persistent(trainer.runtime)
  for i, buffer in ipairs(list) do buffer.number = i end
  return list
end

-- Those that a run changes: without constants, which are the script's
local function buffers(trainer)
  local list = {}
  for _, buffer in ipairs(persistent(trainer)) do
    if not buffer.constant then list[#list + 1] = buffer end
  end
  return list
end

local function shorten(list, separator)
  local text = util.printable(table.concat(list, separator, 1, math.min(#list, SHOWN)))
  return #list > SHOWN and ("%s%s... (%d in all)"):format(text, separator, #list) or text
end

local function check_options(method, path, options, known)
  util.check_type(("trainer:%s: path"):format(method), path, "string")
  options = options or {}
  util.check_keys("trainer:" .. method, options, known)
  for _, flag in ipairs{"stored", "strict"} do
    util.check_flag(("trainer:%s: %s"):format(method, flag), options[flag])
  end
  return options
end

-- Compares the tensors of a file with the wanted ones -> {missing names}, {unexpected names}, {messages about shapes
-- and types}. found: by name; fits: the field that must be equal, "as" or "dtype"; nil: none. Of what is stored as it is
-- in the file it is always the type.
local function compare(wanted, found, fits)
  local missing, unexpected, misfits = {}, {}, {}
  for _, want in ipairs(wanted) do
    local tensor = found[want.name]
    if not tensor then missing[#missing + 1] = want.name
    elseif shape_text(tensor.shape) ~= shape_text(want.shape) then
      misfits[#misfits + 1] = ("%s: expected the shape %s, found %s"):format(want.name, shape_text(want.shape),
        shape_text(tensor.shape))
    elseif fits and tensor[want.stored and "dtype" or fits] ~= want[want.stored and "dtype" or fits] then
      misfits[#misfits + 1] = ("%s: expected %s, found %s"):format(want.name, want.dtype, tensor.dtype)
    end
  end
  local names = by_name(wanted)
  for _, name in ipairs(util.sorted_keys(found)) do
    if not names[name] then unexpected[#unexpected + 1] = name end
  end
  return missing, unexpected, misfits
end

-- Raises one error that names everything, unless all three lists are empty.
local function must_fit(method, path, missing, unexpected, misfits)
  local parts = {}
  if #missing > 0 then parts[1] = "missing: " .. shorten(missing, ", ") end
  if #unexpected > 0 then parts[#parts + 1] = "unexpected: " .. shorten(unexpected, ", ") end
  if #misfits > 0 then parts[#parts + 1] = shorten(misfits, "; ") end
  if #parts > 0 then
    util.fail("trainer:%s: %s does not fit this trainer: %s", method, path, table.concat(parts, "; "))
  end
end

-- The tensors of PyTorch's state_dict: parameters, and buffers such as running statistics. A layer that has an adapter (peft.lua)
-- is also known by the name that it has without one.
local function tensors_of(network)
  local list, more = network:params(), network:buffers()
  table.move(more, 1, #more, #list + 1, list)
  for _, tensor in ipairs(list) do
    local plain, wrapped = tensor.name:gsub("%.base_layer%.", ".")
    if wrapped > 0 then table.insert(tensor.aliases, plain) end
  end
  return list
end

-- {name = true} of all names that its tensors have, shared ones several
local function names_of(trainer)
  local names = {}
  for _, tensor in ipairs(tensors_of(trainer.network)) do
    names[tensor.name] = true
    for _, text in ipairs(tensor.quantized and quantized.names(tensor) or {}) do names[text] = true end
    for _, alias in ipairs(tensor.aliases or {}) do names[alias] = true end
  end
  return names
end

-- Moves tensors from the other names of a shared parameter to its first name.
local function resolve_aliases(trainer, found)
  for _, param in ipairs(tensors_of(trainer.network)) do
    for _, alias in ipairs(param.aliases) do
      found[param.name], found[alias] = found[param.name] or found[alias], nil
    end
  end
end

-- Reads those of the wanted tensors that were found -> true; nil, message, code. Constants come first: they are compared.
local function read_all(runtime, wanted, found, stored)
  for _, constant in ipairs{true, false} do
    for _, want in ipairs(wanted) do
      local tensor = (want.constant or false) == constant and found[want.name]
      if tensor then
        local done, message, code = tensor.file:read(tensor.name, runtime, want.number, stored or want.stored)
        if not done then return nil, message, code end
      end
    end
  end
  return true
end

-- The buffers of all parameters and of the layers' buffers. exact: of a parameter with an fp32 master copy, that copy.
local function parameters(trainer, exact)
  local list, all = {}, persistent(trainer)
  local found, numbered = by_name(all), {}
  for _, buffer in ipairs(all) do numbered[buffer.number] = buffer end
  for i, param in ipairs(tensors_of(trainer.network)) do
    local buffer = found[param.name]
    if exact and buffer.master then buffer = numbered[buffer.master] end
    list[i] = {name = param.name, shape = buffer.shape, dtype = buffer.dtype, as = buffer.as, number = buffer.number,
      constant = buffer.constant, quantized = param.quantized, derived = param.derived}
  end
  return list
end

-- ---- checksums: the metadata "crc32" has a line for the other metadata, then a line "crc name" for each tensor

local function checksum_of_texts(texts)
  local all = {}
  for _, key in ipairs(util.sorted_keys(texts)) do
    if key ~= "crc32" then all[#all + 1] = key .. "\0" .. texts[key] .. "\0" end
  end
  return core.checksum(table.concat(all))
end

-- The text of that metadata for a file that will be written; nil, message, code
local function checksums(runtime, texts, tensors)
  local lines = {checksum_of_texts(texts) .. " \n"}
  for i, tensor in ipairs(tensors) do
    local sum, message, code = core.checksum(runtime, tensor.number)
    if not sum then return nil, message, code end
    lines[i + 1] = ("%s %s\n"):format(sum, tensor.name)
  end
  return table.concat(lines)
end

-- Compares the file with its checksums: the metadata, then the tensors -> true; nil, message, code
local function check_texts(path, saved)
  if saved.format ~= STATE_FORMAT then return true end
  if (saved.crc32 or ""):match "^(%x+) \n" == checksum_of_texts(saved) then return true end
  return nil, ("%s: the metadata of the saved run is damaged: its checksum is wrong"):format(path), "format"
end

local function check_tensors(path, file, saved)
  if saved.format ~= STATE_FORMAT then return true end
  local expected = {}
  for sum, name in (saved.crc32 or ""):gmatch "(%x+) (%C+)\n" do expected[name] = sum end
  for _, tensor in ipairs(file:list()) do
    local found, message, code = file:checksum(tensor.name)
    if not found then return nil, message, code end
    if found ~= expected[tensor.name] then
      local text = '%s: tensor "%s" is damaged: expected the checksum %s, found %s'
      return nil, util.printable(text:format(path, tensor.name, expected[tensor.name] or "none", found)), "format"
    end
  end
  return true
end

-- ---- files: one, several with an index, or a folder with either

local INDEX = ".index.json" -- ends the name of an index: {"weight_map": {tensor = file beside it}}
local IN_FOLDER = {"model.safetensors", "model.safetensors" .. INDEX}

-- The names of the files of an index
local function shards(path)
  local index, message, code = core.json(util.read_file(path, "trainer:load: path"), path)
  if not index then return nil, message, code end
  local map, names, seen = type(index) == "table" and index.weight_map, {}, {}
  if type(map) ~= "table" then return nil, path .. ': expected "weight_map", the file of each tensor', "format" end
  for _, tensor in ipairs(util.sorted_keys(map)) do
    local name = map[tensor]
    if type(name) ~= "string" or name:find "/" then
      return nil, ('%s: weight_map: %s: expected the name of a file beside it'):format(path, tostring(tensor)), "format"
    end
    if not seen[name] then seen[name], names[#names + 1] = true, name end
  end
  return names
end

-- The paths of the files that a path stands for; nil, message, code
local function paths_of(path)
  if core.is_folder(path, "trainer:load: path") then
    for _, name in ipairs(IN_FOLDER) do
      if core.can_read(path .. "/" .. name, "trainer:load: path") then return paths_of(path .. "/" .. name) end
    end
    return nil, ("%s has neither %s"):format(path, table.concat(IN_FOLDER, " nor ")), "file"
  end
  if path:sub(-#INDEX) ~= INDEX then return {path} end
  local names, message, code = shards(path)
  if not names then return nil, message, code end
  for i, name in ipairs(names) do names[i] = (path:match "^.*/" or "") .. name end
  return names
end

local Files = {}
Files.__close = function(files) for _, file in ipairs(files) do file:close() end end

-- Opens all files -> {file, ..., tensors = {name = {name, file, ...}}, paths}; nil, message, code
local function open_all(path)
  local paths, why, kind = paths_of(path)
  if not paths then return nil, why, kind end
  local files = setmetatable({tensors = {}, paths = paths}, Files)
  for i, one in ipairs(paths) do
    local file, message, code = core.safetensors(one)
    if not file then
      Files.__close(files)
      return nil, message, code
    end
    files[i] = file
    for _, tensor in ipairs(file:list()) do files.tensors[tensor.name], tensor.file = tensor, file end
  end
  return files
end

-- What PyTorch puts into the names of a state_dict: torch.compile before each module that it wraps, DataParallel and
-- DistributedDataParallel at the beginning
local WRAPPERS = {"_orig_mod%.", "^module%."}

local function unwrapped(name)
  for _, pattern in ipairs(WRAPPERS) do name = name:gsub(pattern, "") end
  return name
end

-- {name = true} of the network's masks: buffers in PyTorch, which no memory holds here
local function masks_of(network)
  local names = {}
  for _, layer in ipairs(network:layers()) do
    if layer.kind == "Mask" then names[layer.path] = true end
  end
  return names
end

-- Gives the tensors `found` the names that the target's network has for them, and drops those that it has none for. target.files: rules
-- of the model, see model.define; nil: none
local function rename(target, found)
  local rules, known, masks = target.files or {}, names_of(target), masks_of(target.network)
  local function name_of(name)
    for _, rule in ipairs(rules.names or {}) do name = name:gsub(rule[1], rule[2]) end
    return not known[name] and rules.base and known[rules.base .. name] and rules.base .. name or name
  end
  -- A rule is for whole names: those of files without the head get their prefix first.
  local function whole_name(name)
    local plain = name_of(name)
    return known[plain] and plain or rules.base and name_of(rules.base .. name) or plain
  end
  local function is_ignored(name)
    for _, pattern in ipairs(rules.ignored or {}) do
      if name:find(pattern) or rules.base and (rules.base .. name):find(pattern) then return true end
    end
    return masks[name]
  end
  for _, name in ipairs(util.sorted_keys(found)) do
    local tensor, plain = found[name], unwrapped(name)
    local other = not known[name] and whole_name(plain)
    if other and known[other] then found[name], found[other] = nil, found[other] or tensor
    elseif other and is_ignored(plain) then found[name] = nil end
  end
  resolve_aliases(target, found)
end

-- ---- weights

local function names_and_numbers(list)
  local flat = {}
  for _, tensor in ipairs(list) do
    flat[#flat + 1] = tensor.name
    flat[#flat + 1] = tensor.number
  end
  return flat
end

local WRITTEN = {"format", "pt", "version", core.version} -- the metadata of weights

local MAGNITUDE = ".lora_magnitude_vector.default.weight"

-- The parameters as the model without adapters has them -> the list, {[name] = {number of lora_A, of lora_B, scaling,
-- number of the magnitude of DoRA}}
local function merged(trainer, list)
  local found, kept, sums = by_name(list), {}, {}
  for _, module in ipairs(trainer.adapters and trainer.adapters.modules or {}) do
    local a, b = found[module.path .. ".lora_A.default.weight"], found[module.path .. ".lora_B.default.weight"]
    local magnitude = found[module.path .. MAGNITUDE]
    sums[module.path .. ".weight"] = {a.number, b.number, module.scaling, magnitude and magnitude.number}
  end
  for _, tensor in ipairs(list) do
    tensor.name = tensor.name:gsub("%.base_layer%.", ".")
    if not adapters.file_name(tensor.name) then kept[#kept + 1] = tensor end
  end
  return quantized.as_numbers(kept, sums), sums
end

-- save(path, {stored = true, merged = true}) -> true; nil, message, code. stored: in the types that the run keeps them in, not in
-- fp32; merged: with adapters added to the weights that they belong to, as PEFT's merge_and_unload, under the names without them
function weights.save(trainer, path, options)
  options = check_options("save", path, options, {"stored", "merged"})
  local stored, sums = options.stored or false, nil
  if stored and options.merged then util.fail "trainer:save: merged weights are sums in fp32: stored must not be true" end
  local list = parameters(trainer, not stored)
  if options.merged then list, sums = merged(trainer, list) end
  local entries = quantized.save(names_and_numbers(list), list, function(name) return (trainer:read(name)) end)
  return core.save_tensors(trainer.runtime, path, entries, WRITTEN, stored, sums)
end

-- Reads the tensors of `found`, which are of these files, into the parameters `wanted` -> {missing = {names}, unexpected =
-- {names}}; nil, message, code. Raises before anything is changed where shapes do not fit, or names unless lax.
local function load_found(trainer, method, path, files, wanted, found, lax)
  local values
  wanted, values = quantized.expect(path, wanted, found)
  local missing, unexpected, misfits = compare(wanted, found, "as")
  must_fit(method, path, lax and {} or missing, lax and {} or unexpected, misfits)
  local done, message, code
  for i, file in ipairs(files) do
    done, message, code = check_tensors(files.paths[i], file, file:metadata())
    if not done then return nil, message, code end
  end
  done, message, code = read_all(trainer.runtime, wanted, found, false)
  if not done then return nil, message, code end
  for name, value in pairs(values) do trainer:write(name, {value}) end
  return {missing = missing, unexpected = unexpected}
end

-- The parameters that `found` must have: those of adapters only where it has some
local function without_adapters(wanted, found)
  local kept = {}
  for _, want in ipairs(wanted) do
    if adapters.file_name(want.name) and found[want.name] then return wanted end
    if not adapters.file_name(want.name) then kept[#kept + 1] = want end
  end
  return kept
end

-- The numbers of DoRA's magnitudes that are still what they start as, the norms of their weights, and that the file, which brings
-- weights, does not have; nil, message, code
local function untrained(trainer, wanted)
  local list, among = {}, by_name(wanted)
  for _, param in ipairs(parameters(trainer)) do
    if param.name:sub(-#MAGNITUDE) == MAGNITUDE and not among[param.name] then
      local is, message, code = core.is_norm(trainer.runtime, param.number)
      if is == nil then return nil, message, code end
      if is then list[#list + 1] = param.number end
    end
  end
  return list
end

-- load(path, {strict = true, skip = {names}}) -> {missing = {names}, unexpected = {names}}; nil, message, code
-- path: a file, an index of several, or a folder that has a model.safetensors or its index
-- As PyTorch's load_state_dict: shapes must agree, names too unless strict is false. Tensors named in skip are ignored. A file
-- of the model without adapters leaves the adapters as they are; but DoRA's magnitudes that were not trained become the norms of
-- the weights that are loaded.
-- If something does not fit, it raises before anything is changed.
function weights.load(trainer, path, options)
  options = check_options("load", path, options, {"strict", "skip"})
  local files <close>, message, code = open_all(path)
  if not files then return nil, message, code end
  local wanted, found = parameters(trainer), files.tensors
  for _, name in ipairs(options.skip or {}) do
    if not found[name] then
      util.fail("trainer:load: skip: %s has no tensor \"%s\"%s", path, tostring(name),
        util.meant(name, util.sorted_keys(found)))
    end
    found[name] = nil
  end
  rename(trainer, found)
  wanted = without_adapters(wanted, found)
  local follow, loaded, done
  follow, message, code = untrained(trainer, wanted)
  if not follow then return nil, message, code end
  loaded, message, code = load_found(trainer, "load", path, files, wanted, found, options.strict == false)
  if not loaded then return nil, message, code end
  for _, number in ipairs(follow) do
    done, message, code = core.set_norm(trainer.runtime, number)
    if not done then return nil, message, code end
  end
  return loaded
end

-- ---- adapters

local function need_adapters(method, trainer)
  return trainer.adapters or util.fail("trainer:%s: the model has no adapters: mt.peft.lora makes them", method)
end

-- The parameters of adapters, under the names of their files
local function adapter_parameters(trainer, exact)
  local list = {}
  for _, tensor in ipairs(parameters(trainer, exact)) do
    tensor.name = adapters.file_name(tensor.name)
    if tensor.name then list[#list + 1] = tensor end
  end
  return list
end

-- save_adapter(folder) -> true; nil, message, code. As PEFT's save_pretrained: the adapters' values in fp32, and what they were
-- made with. The folder is made; its parent must exist.
function weights.save_adapter(trainer, folder)
  local made = need_adapters("save_adapter", trainer)
  check_options("save_adapter", folder, nil, {})
  if not core.make_folder(folder) then return nil, ("cannot make the folder %s"):format(folder), "file" end
  local done, message, code = core.save_tensors(trainer.runtime, folder .. "/" .. adapters.WEIGHTS,
    names_and_numbers(adapter_parameters(trainer, true)), WRITTEN, false)
  if not done then return nil, message, code end
  util.replace(folder .. "/" .. adapters.CONFIG, function(write) write(adapters.config_text(made.config)) end)
  return true
end

-- load_adapter(folder) -> true; nil, message, code. Raises before anything is changed where names or shapes do not fit, or where
-- the adapter was made with another r, lora_alpha or use_rslora.
function weights.load_adapter(trainer, folder)
  local made = need_adapters("load_adapter", trainer)
  check_options("load_adapter", folder, nil, {})
  adapters.check_config(folder, made.config)
  local path = folder .. "/" .. adapters.WEIGHTS
  local files <close>, message, code = open_all(path)
  if not files then return nil, message, code end
  local done
  done, message, code = load_found(trainer, "load_adapter", path, files, adapter_parameters(trainer), files.tensors)
  if not done then return nil, message, code end
  return true
end

-- What trainer:load would find in the files of `path` -> {missing names}, {unexpected names}, {messages about shapes};
-- nil, message, code. target: {network, files}, of a model
function weights.compare(target, path)
  local files <close>, message, code = open_all(path)
  if not files then return nil, message, code end
  rename(target, files.tensors)
  return compare((quantized.expect(path, tensors_of(target.network), files.tensors)), files.tensors)
end

-- Does the path lead to weights that trainer:load takes?
function weights.exist(path)
  local paths = paths_of(path)
  return paths ~= nil and core.can_read(paths[1], "weights: path")
end

-- ---- states

-- What must be the same when a run continues, as text
local function identity(trainer, loader)
  local same = {loader = loader and loader.text or "none"}
  for key, text in pairs(trainer.identity) do same[key] = text end
  return same
end

local function check_loader(method, loader)
  if loader ~= nil and not data.is_loader(loader) then
    util.fail("trainer:%s: loader: expected a loader of mt.data, found a %s", method, type(loader))
  end
  return loader
end

-- save_state(path, {loader = loader}) -> true; nil, message, code
function weights.save_state(trainer, path, options)
  options = check_options("save_state", path, options, {"loader"})
  local loader = check_loader("save_state", options.loader)
  local texts, metadata = identity(trainer, loader), {}
  texts.format, texts.version, texts.updates = STATE_FORMAT, core.version, tostring(core.updates(trainer.runtime))
  if loader then texts.place = ("epoch %d batch %d"):format(loader:place()) end
  local list = buffers(trainer)
  local sums, message, code = checksums(trainer.runtime, texts, list)
  if not sums then return nil, message, code end
  texts.crc32 = sums
  for _, key in ipairs(util.sorted_keys(texts)) do
    metadata[#metadata + 1] = key
    metadata[#metadata + 1] = texts[key]
  end
  return core.save_tensors(trainer.runtime, path, names_and_numbers(list), metadata, true)
end

-- The first line in which two texts differ: that of each text.
local function difference(expected, found)
  local a, b = expected:gmatch "[^\n]+", found:gmatch "[^\n]+"
  local line, other = a(), b()
  while line and line == other do line, other = a(), b() end
  return (line or "nothing"):match "^%s*(.*)", (other or "nothing"):match "^%s*(.*)"
end

-- Raises at the first setting that differs from that of the saved run.
local function check_settings(path, expected, saved)
  for _, key in ipairs(util.sorted_keys(expected)) do
    local found = saved[key] or "none"
    if expected[key] ~= found then
      util.fail("trainer:load_state: %s: %s: expected %s, found %s", path, key, difference(expected[key], found))
    end
  end
end

-- The number of these digits; nil: it is none, or not below MOST.
local function count(digits)
  local n = math.tointeger(tonumber(digits or ""))
  return n and n < MOST and n or nil
end

-- The saved numbers: updates made, and the loader's epoch and batch -> nil: one is damaged
local function counts(saved, loader)
  local updates = count((saved.updates or ""):match "^%d+$")
  local epoch, batch = (saved.place or ""):match "^epoch (%d+) batch (%d+)$"
  epoch, batch = count(epoch), count(batch)
  if updates and updates < 1 << 32 and (not loader or epoch and batch) then return updates, epoch, batch end
end

-- load_state(path, {loader = loader, strict = true}) -> true; nil, message, code
-- The run continues as the saved one would have. strict = false: settings such as the learning rate or the batch may
-- differ, but not the buffers.
function weights.load_state(trainer, path, options)
  options = check_options("load_state", path, options, {"loader", "strict"})
  local loader = check_loader("load_state", options.loader)
  local file <close>, message, code = core.safetensors(path)
  if not file then return nil, message, code end
  local saved, wanted, found = file:metadata(), buffers(trainer), by_name(file:list())
  for _, tensor in pairs(found) do tensor.file = file end
  local lax = options.strict == false
  if saved.format ~= STATE_FORMAT and saved.format ~= NO_CHECKSUMS then
    local text = '%s: expected a saved run ("%s"), found "%s"'
    return nil, util.printable(text:format(path, STATE_FORMAT, saved.format or "none")), "format"
  end
  local whole
  whole, message, code = check_texts(path, saved)
  if not whole then return nil, message, code end
  if not lax then check_settings(path, identity(trainer, loader), saved) end
  must_fit("load_state", path, compare(wanted, found, "dtype"))
  whole, message, code = check_tensors(path, file, saved)
  if not whole then return nil, message, code end
  local updates, epoch, batch = counts(saved, loader)
  if not updates then
    local text = "%s: expected the updates made, and the loader's epoch and batch, found %s and %s"
    return nil, util.printable(text:format(path, saved.updates or "none", saved.place or "none")), "format"
  end
  if loader then loader:seek(epoch, batch) end
  local done
  done, message, code = read_all(trainer.runtime, wanted, found, true)
  if not done then return nil, message, code end
  core.updates(trainer.runtime, updates)
  return true
end

return weights
