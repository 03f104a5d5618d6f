-- memtide fit --method: the largest batch by each method of fine-tuning, held against predictions of scripts that say the same.
local tap = dofile "tests/tap.lua"
local core = require "memtide.core"
local folder = dofile "tests/lua/folder.lua"

local run, write = folder.run, folder.write

local CONFIG = write("small.json", [[{"model_type": "llama", "vocab_size": 500, "hidden_size": 64, "intermediate_size": 160,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}]])

local text, status = run(("fit %s --method full,lora,qlora,qdora --seq 32,128 --device pytorch:rtx4090,pytorch:t4 --memory 2GiB --json"):format(CONFIG))
tap.is(status, 0, "the command")
local lines = {}
for line in text:gmatch "[^\n]+" do lines[#lines + 1] = assert(core.json(line, "line")) end
tap.is(#lines, 2 * 4 * 2 * 4, "a line for each card, method, length and step")
local by = {}
for _, line in ipairs(lines) do
  by[("%s %s %d %s %s"):format(line.card, line.method, line.tokens, line.framework, line.checkpoint)] = line
end

-- The same by a script: predicted bytes of a batch
local SCRIPT = [[
local mt = require "memtide"
local method = ...
local function Model()
  local model = mt.models.Llama{vocab_size = 500, hidden_size = 64, intermediate_size = 160, num_hidden_layers = 2,
    num_attention_heads = 4, num_key_value_heads = 2, max_position_embeddings = 256}
  if method == "qlora" or method == "qdora" then
    mt.peft.quantize(model, {load_in_4bit = true, bnb_4bit_quant_type = "nf4", bnb_4bit_use_double_quant = true})
  end
  if method ~= "full" then
    mt.peft.lora(model, {r = 16, lora_alpha = 32, lora_dropout = 0.05, target_modules = "all-linear", use_dora = method == "qdora"})
  end
  return model
end
return mt.experiment{name = "by_hand", model = Model, input = function(s) return {s.tokens} end, options = {{"tokens", 32, "of a sample"}},
  loss = mt.nn.CrossEntropyLoss(), optimizer = mt.optim.AdamW{lr = 5e-5, weight_decay = 0.01}, precision = "bf16", predict_only = true}
]]
local script = write("by_hand.lua", SCRIPT)
local function predicted(line, batch)
  local pytorch = line.framework == "pytorch"
  local found = run(("%s %s --json --quiet --device %s --set tokens=%d --set checkpoint=%s --set batch=%d -- %s"):format(
    pytorch and "explain" or "predict", script, pytorch and "pytorch:" .. line.card or "cpu", line.tokens, line.checkpoint, batch,
    line.method))
  local row = assert(core.json(assert(found:match "{[^\n]*}", found), "row"))
  return row.max_memory_reserved or row.predicted_peak_bytes
end
for _, key in ipairs{"rtx4090 full 32 memtide none", "rtx4090 lora 128 memtide marked", "t4 qlora 32 memtide none",
  "rtx4090 full 32 pytorch none", "rtx4090 lora 32 pytorch marked", "t4 qlora 128 pytorch marked",
  "t4 qdora 32 memtide marked", "rtx4090 qdora 32 pytorch none"} do
  local line = assert(by[key], key)
  tap.is(line.room, 2 << 30, key .. ": the room of --memory")
  tap.ok(line.batch > 0, key .. ": a batch fits")
  local own = predicted(line, line.batch) -- PyTorch's allocator gives cached memory back where it comes to the limit
  tap.ok(line.bytes == own or line.framework == "pytorch" and line.bytes < own, key .. ": its bytes are the prediction's")
  tap.is(line.next_bytes, predicted(line, line.batch + 1), key .. ": those of the next batch, too")
  tap.ok(line.bytes <= line.room, key .. ": the batch fits")
  tap.ok(line.framework == "pytorch" or line.next_bytes > line.room, key .. ": the next one does not")
end

local table_text = run(("fit %s --method lora --target q_proj,v_proj --rank 4 --device pytorch:t4"):format(CONFIG))
tap.has(table_text, "adapters: r = 4, lora_alpha = 8, lora_dropout = 0.05, target_modules = q_proj, v_proj", "the adapters are named")
tap.has(table_text, "precision = bf16, AdamW(lr=5e-05)", "and precision and optimizer")
local wide = write("wide.json", [[{"model_type": "llama", "vocab_size": 500, "hidden_size": 256, "intermediate_size": 640,
  "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 256}]])
local least = {}
for _, optimizer in ipairs{"AdamW", "PagedAdamW"} do
  local found = run(("fit %s --method full --seq 32 --device pytorch:t4 --memory 1KiB --json --set optimizer=%s"):format(wide, optimizer))
  for line in found:gmatch "[^\n]+" do
    line = assert(core.json(line, "line"))
    if line.checkpoint == "marked" then least[line.framework .. " " .. optimizer] = line.next_bytes end
  end
end
for _, framework in ipairs{"memtide", "pytorch"} do
  local whole, paged = least[framework .. " AdamW"], least[framework .. " PagedAdamW"]
  tap.ok(paged < whole, ("%s: a paged optimizer is chosen by --set: %d bytes instead of %d"):format(framework, paged, whole))
end
tap.has(run(("fit %s --method qlora --device pytorch:t4 --set optimizer=PagedAdamW8bit"):format(CONFIG)),
  "precision = bf16, PagedAdamW8bit()\n", "and named")
local csv_text = run(("fit %s --method lora --device pytorch:t4 --csv -"):format(CONFIG))
tap.has(csv_text, "card,method,tokens,framework,checkpoint,batch,bytes,next_bytes,room\n", "CSV")

for _, case in ipairs{
  {"--method lora,loftq", 'expected some of full, lora, qlora, dora, qdora, found "loftq"'},
  {"--method lora --seq x", 'whole numbers of at least 1, found "x"'},
  {"--seq 128", "--seq: expected --method beside it"},
  {"--method lora --device cuda:0", "expected cards such as --device pytorch:rtx4090"},
  {"--method lora --target q_porj --device pytorch:t4", 'the model has no layer "q_porj" (did you mean "q_proj"?)'},
} do
  local said, ended = run(("fit %s %s"):format(CONFIG, case[1]))
  tap.has(said, case[2], case[1])
  tap.ok(ended ~= 0, case[1] .. ": exit status")
end
local fixed = write("fixed.lua", [[local mt = require "memtide"
return mt.experiment{name = "fixed", model = mt.nn.Linear(4, 3), input = {4}, loss = mt.nn.CrossEntropyLoss()}]])
tap.has((run(("fit %s --method full --device pytorch:t4"):format(fixed))), "expected a script whose model is a function", "a layer for a model")

-- a config.json stands for the script that memtide import writes of it, in every command
local row = run(("predict %s --set batch=1 --set checkpoint=none --set precision=fp32"):format(CONFIG))
tap.has(row, "predicted", "predict config.json")
folder.remove()
tap.done()
