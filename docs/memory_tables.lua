-- The predicted tables of docs/memory.md, in Markdown: memtide docs/memory_tables.lua TABLE
local mt = require "memtide"
local common = dofile "docs/tables.lua"
local nn, grouped, put, script = mt.nn, common.grouped, common.put, common.script

local tables = {}

local function peak(row) return grouped(row.predicted_peak_bytes) end

-- What GoogLeNet's two further heads need: 224 x 224, batch 32, SGD
function tables.heads()
  local ce = nn.CrossEntropyLoss()
  local lines, checkpoints = {{"`checkpoint`"}, {"with heads, MiB"}, {"without"}}, {"none", "all", "sqrt", "selective"}
  for i, checkpoint in ipairs(checkpoints) do
    lines[1][i + 1] = ("`%s`"):format(checkpoint)
    for k, heads in ipairs{true, false} do
      local found = common.predicted(mt.experiment{name = "googlenet", input = {3, 224, 224}, classes = 1000, batch = 32,
        model = mt.models.GoogLeNet{aux_logits = heads}, loss = heads and ce + 0.3 * ce + 0.3 * ce or ce,
        optimizer = mt.optim.SGD{lr = 0.01}, checkpoint = checkpoint})
      lines[k + 1][i + 1] = ("%.1f"):format(found[1].predicted_peak_bytes / 2 ^ 20)
    end
  end
  put(lines)
end

-- What a large weight needs whose gradient is made some rows at a time
function tables.slices()
  local lines = {{"", "updated as a whole", "in slices", ""}}
  for _, one in ipairs{{"VGG16, batch 1, SGD", "vgg16_memory", 1}, {"VGG16, batch 4, Adam", "peers", 4, "vgg16"},
                       {"ResNet-18, 64 × 64, batch 16, Adam", "peers", 16, "resnet18"}} do
    local function bytes(sliced)
      local set = {batch = one[3], precision = "fp32", checkpoint = "none", framework = "memtide", sliced_updates = sliced}
      local found = common.predicted(script(one[2]), set, function(values) return not one[4] or values.case == one[4] end)
      return found[1].predicted_peak_bytes
    end
    local whole, sliced = bytes(false), bytes(true)
    lines[#lines + 1] = {one[1], grouped(whole), grouped(sliced), common.percent(sliced, whole)}
  end
  put(lines)
end

-- Fewer heads of keys and values
function tables.kv_heads()
  local words = {[32] = "32 heads of keys, as of queries", [8] = "8, as published", [1] = "1"}
  local lines = {{"Llama-3-8B, `amp_bf16`, AdamW, batch 1, 8,192 steps", "peak", "activations at the peak", "peak, `checkpoint = selective`"}}
  for _, heads in ipairs{32, 8, 1} do
    local found = common.predicted(script "llama", {size = "Llama-3-8B", batch = 1, seq = 8192, precision = "amp_bf16",
      checkpoint = {"none", "selective"}, kv_heads = heads})
    lines[#lines + 1] = {words[heads], peak(found[1]), grouped(found[1].activations_bytes), peak(found[2])}
  end
  put(lines)
end

-- What the states of optimizers need: GPT-2 small
function tables.states()
  local optimizers, lines = {"AdamW", "AdamW8bit", "SGD"}, {{""}, {"optimizer's states, 16 bytes of step count included"}}
  local settings = {{8, "fp32"}, {8, "amp_bf16"}, {1, "amp_bf16"}}
  for i, one in ipairs(settings) do lines[i + 2] = {("peak, batch %d, `%s`"):format(table.unpack(one))} end
  for k, name in ipairs(optimizers) do
    lines[1][k + 1] = ("`%s`"):format(name)
    for i, one in ipairs(settings) do
      local found = common.predicted(mt.experiment{name = "gpt2", model = mt.models.GPT(), input = {1024}, batch = one[1], precision = one[2],
        loss = nn.CrossEntropyLoss(), optimizer = mt.optim[name]{lr = 1e-4}})
      lines[2][k + 1], lines[i + 2][k + 1] = grouped(found[1].optimizer_bytes), peak(found[1])
    end
  end
  put(lines)
end

-- experiments/lora.lua: each method in both steps, with and without checkpoints
function tables.fine_tuning()
  local rows, lines = common.predicted(script "lora"), {{"", "memtide", "checkpointed", "PyTorch", "checkpointed"}}
  local devices = {memtide = "cpu", pytorch = "pytorch:rtx4090"}
  for _, method in ipairs{"full", "lora", "qlora"} do
    local line = {method}
    for _, framework in ipairs{"memtide", "pytorch"} do
      for _, checkpoint in ipairs{"none", "marked"} do
        line[#line + 1] = peak(rows[("method=%s checkpoint=%s framework=%s device=%s"):format(method, checkpoint, framework, devices[framework])])
      end
    end
    lines[#lines + 1] = line
  end
  put(lines)
end

-- experiments/lora.lua, all parameters, with checkpoints: what paged states leave on the device
function tables.paged()
  local lines = {{"", "memtide", "on the host", "PyTorch", "on the host"}}
  for _, kind in ipairs{"AdamW", "PagedAdamW", "PagedAdamW8bit"} do
    local line = {("`%s`"):format(kind)}
    for _, framework in ipairs{"memtide", "pytorch"} do
      local found = common.predicted(script "lora", {method = "full", checkpoint = "marked", optimizer = {mt.optim[kind]{lr = 2e-4}}},
        function(values) return values.framework == framework end)
      line[#line + 1], line[#line + 2] = peak(found[1]), grouped(found[1].host_bytes)
    end
    lines[#lines + 1] = line
  end
  put(lines)
end

common.run(tables, ...)
