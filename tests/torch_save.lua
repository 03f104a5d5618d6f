-- What torch.save writes of a state_dict, byte by byte: a zip archive of a pickle and of the storages' bytes.
local torch_save = {}

-- ---- the archive: {{name, bytes}, ...}; method: of zip, 0 = stored

function torch_save.zip(entries, method)
  local body, directory = {}, {}
  local at = 0
  for _, one in ipairs(entries) do
    local name, bytes = "archive/" .. one[1], one[2]
    local fields = ("<I2I2I2I2I4I4I4I2I2"):pack(0, method or 0, 0, 0, 0, #bytes, #bytes, #name, 0)
    body[#body + 1] = "PK\3\4\0\0" .. fields .. name .. bytes
    directory[#directory + 1] = "PK\1\2\0\0\0\0" .. fields .. ("<I2I2I2I4I4"):pack(0, 0, 0, 0, at) .. name
    at = at + #body[#body]
  end
  local list = table.concat(directory)
  return table.concat(body) .. list .. "PK\5\6" .. ("<I2I2I2I2I4I4I2"):pack(0, 0, #entries, #entries, #list, at, 0)
end

-- ---- the pickle, of protocol 2

local function text(word) return "X" .. ("<s4"):pack(word) end
function torch_save.int(n) return "J" .. ("<i4"):pack(n) end
local function tuple(list)
  local parts = {}
  for i, n in ipairs(list) do parts[i] = torch_save.int(n) end
  return "(" .. table.concat(parts) .. "t"
end

-- {type, key = of its storage, count = of the storage's numbers, offset, shape, stride}
function torch_save.tensor(t)
  local storage = "(" .. text "storage" .. "ctorch\n" .. t.type .. "\n" .. text(t.key) .. text "cpu" ..
    torch_save.int(t.count) .. "tQ"
  return "ctorch._utils\n_rebuild_tensor_v2\n(" .. storage .. torch_save.int(t.offset or 0) .. tuple(t.shape) .. tuple(t.stride) ..
    "\x89ccollections\nOrderedDict\n)RtR"
end

-- items: {{name, pickled value}, ...}
function torch_save.pickle(items)
  local parts = {}
  for i, one in ipairs(items) do parts[i] = text(one[1]) .. one[2] end
  return "\x80\2ccollections\nOrderedDict\n)R(" .. table.concat(parts) .. "u}" .. text "_metadata" .. "}sb."
end

function torch_save.floats(...) return ("<" .. ("f"):rep(select("#", ...))):pack(...) end

-- The file of these items, with the storages {{"data/KEY", bytes}, ..., {"byteorder", "little"}}
function torch_save.archive(items, storages, method)
  return torch_save.zip({{"data.pkl", torch_save.pickle(items)}, table.unpack(storages)}, method)
end

return torch_save
