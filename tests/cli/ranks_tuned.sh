# Several ranks fine-tune: every mode with all parameters, with LoRA and DoRA, over a plain base and one of 4 bits, with precisions, checkpointing,
# offloading and accumulation in turns. A row is "ok" where each rank needs what was predicted, and claims hold the losses
# against those of one rank. TUNED=all: every combination.
. tests/tap.sh
if ! command -v mpirun >/dev/null || ! [ -e "$(dirname "$MEMTIDE")/memtide_mpi.so" ]; then
    skip "ranks" "no mpirun, or memtide is built without MPI"
    finish
fi

cat >tuned.lua <<'END2'
local mt = require "memtide"
local nn, optim = mt.nn, mt.optim
local all = ... == "all"
local MODES = {
  {"data", world = 2}, {"states", world = 2, zero = 1}, {"gradients", world = 2, zero = 2}, {"weights", world = 2, zero = 3},
  {"products", world = 2, mesh = {tensor = 2}}, {"both", world = 4, mesh = {tensor = 2}, zero = 3},
}
local VARIANTS = { -- micro-batches of all ranks, and settings
  {2, precision = "fp32"}, {4, precision = "amp_bf16", checkpoint = "all"}, {2, precision = "bf16", offload = "all"},
  {4, precision = "master_bf16", checkpoint = "selective", offload = "all"}, {4, precision = "fp32", checkpoint = "sqrt"},
  {2, precision = "amp_fp16", checkpoint = "marked"},
}
local function name(way, method, v) return ("%s, %s, variant %d"):format(way, method, v) end
local function put(cases, case, method, variant, more)
  local one = {case = case, method = method}
  for key, value in pairs(variant) do if key ~= 1 then one[key] = value end end
  for key, value in pairs(more) do if key ~= 1 then one[key] = value end end
  cases[#cases + 1] = one
end
local cases, claims, turn = {}, {}, 0
for v, variant in ipairs(VARIANTS) do
  for _, method in ipairs{"full", "lora", "qlora", "dora", "qdora"} do
    local alone, needed = name("alone", method, v), false
    for _, mode in ipairs(MODES) do
      turn = turn + 1
      if all or turn % 7 == v then
        if not needed then put(cases, alone, method, variant, {accumulate = variant[1]}) end
        needed = true
        local case, tensor = name(mode[1], method, v), mode.mesh and 2 or 1
        put(cases, case, method, variant, mode)
        cases[#cases].accumulate = variant[1] * tensor // mode.world
        local exact = variant.precision == "fp32" and tensor == 1 and variant[1] == 2
        claims[#claims + 1] = {claim = case, of = "loss_last", equal = {case, alone}, tolerance = exact and 0 or
          variant.precision == "fp32" and 1e-5 or 1e-2}
        if mode[1] ~= "data" and method == "full" then claims[#claims + 1] = {claim = case, of = "peak_bytes", less = {case, alone}} end
      end
    end
  end
end
return mt.experiment{
  name = "tuned", input = {8}, batch = 2, steps = 3, warmup = 1, cases = cases, claims = claims,
  model = function(s)
    local model = mt.models.Llama{vocab_size = 96, hidden_size = 64, intermediate_size = 128, num_hidden_layers = 2,
      num_attention_heads = 4, num_key_value_heads = 2, max_position_embeddings = 8}
    if s.method == "full" then return model end
    if s.method:sub(1, 1) == "q" then
      mt.peft.quantize(model, {load_in_4bit = true, bnb_4bit_quant_type = "nf4", bnb_4bit_use_double_quant = true})
    end
    return mt.peft.lora(model, {r = 4, lora_alpha = 8, target_modules = "all-linear", use_dora = s.method:find "dora" ~= nil})
  end,
  loss = nn.CrossEntropyLoss(), optimizer = optim.SGD{lr = 0.05, momentum = 0.9},
}
END2
memtide run tuned.lua -q -- ${TUNED:-some}
is "$(grep -c '^tuned,' tuned.csv)" "$(grep -c '^tuned,.*,ok,' tuned.csv)" "every rank of every cell needs what was predicted"
is "$(grep '^tuned,' tuned.csv | grep -v ',ok,' | cut -c1-400)" "" "no row is anything else"
is "$(echo "$out" | grep -c REPRODUCED)" "$(echo "$out" | grep -c ', variant [0-9]  *[RI][EN]')" "each has the loss of one rank, and where all is trained less memory"
is "$(echo "$out" | grep -e REFUTED -e INCONCLUSIVE)" "" "none has another"
finish
