-- Prints C source with the given files as an array of modules: lua/memtide/net/nn.lua becomes "memtide.net.nn". Chunks are
-- named after their files, so that tracebacks show them. What is no module of memtide's (Python programs, the scripts of
-- experiments/start/) is one that returns its text: experiments/start/cnn.lua becomes "memtide.start.cnn".
local function module_name(path)
  local name = path:match("^lua/memtide/(.*)%.%a+$") or path:match("^experiments/(.*)%.%a+$")
  name = name:gsub("/", ".")
  return name == "init" and "memtide" or "memtide." .. name
end

local function c_bytes(source)
  local out = {}
  for i = 1, #source, 32 do
    out[#out + 1] = table.concat({source:byte(i, math.min(i + 31, #source))}, ",")
  end
  return table.concat(out, ",\n")
end

local rows = {}
print('#include <stddef.h>\n')
print('struct EmbeddedModule { const char *name, *chunk; const unsigned char *source; size_t length; };')
print('extern const struct EmbeddedModule embedded_modules[];\n')
for i, path in ipairs(arg) do
  local source = assert(assert(io.open(path, "rb")):read("a"))
  if path:find "%.py$" or not path:find "^lua/" then source = ("return %q"):format(source) end
  assert(load(source, "@" .. path))
  print(("static const unsigned char source_%d[] = {\n%s};\n"):format(i, c_bytes(source)))
  rows[i] = ('    {"%s", "@%s", source_%d, %d},'):format(module_name(path), path:match("memtide/.*$") or path, i, #source)
end
print("const struct EmbeddedModule embedded_modules[] = {\n" .. table.concat(rows, "\n")
  .. "\n    {NULL, NULL, NULL, 0},\n};")
