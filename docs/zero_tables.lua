-- The predicted tables of docs/ranks.md, in Markdown: memtide docs/zero_tables.lua TABLE
local common = dofile "docs/tables.lua"
local scripts = require "memtide.sweep.script"

local tables = {}

local N, K = 8, 12 -- ranks; bytes of Adam's states of a parameter, and of its fp32 copy (Rajbhandari et al. 2020, section 3.1)

-- Bytes of weights, gradients and states of `psi` parameters, by the paper's figure 1
local FORMULAS = {
  [0] = function(psi) return 2 * psi + 2 * psi + K * psi end,
  function(psi) return 2 * psi + 2 * psi + K * psi / N end,
  function(psi) return 2 * psi + (2 + K) * psi / N end,
  function(psi) return (2 + 2 + K) * psi / N end,
}

local function gib(bytes) return ("%.2f"):format(bytes / 2 ^ 30) end

-- Llama-2-7B on 8 ranks, a sample of 512 tokens on each: the formula beside the peak of a rank, by category
local function stages(checkpoint)
  local experiment = scripts.load_experiment("experiments/llama-2-7b.json", {})
  local psi = 6738415616
  local rows = common.predicted(experiment, {world = N, zero = {0, 1, 2, 3}, batch = 1, precision = "master_bf16", checkpoint = checkpoint})
  local lines = {{"stage", "formula, GiB", "the peak of a rank", "weights", "gradients", "states", "activations", "rest", "at"}}
  for i, row in ipairs(rows) do
    local rest = row.predicted_peak_bytes - row.weights_bytes - row.gradients_bytes - row.optimizer_bytes - row.activations_bytes
      - row.activation_gradients_bytes
    lines[#lines + 1] = {tostring(i - 1), gib(FORMULAS[i - 1](psi)), gib(row.predicted_peak_bytes), gib(row.weights_bytes),
      gib(row.gradients_bytes), gib(row.optimizer_bytes), gib(row.activations_bytes + row.activation_gradients_bytes), gib(rest),
      ("`%s`"):format(row.peak_op)}
  end
  common.put(lines)
end

function tables.stages() stages "none" end
function tables.checkpointed() stages "all" end

common.run(tables, ...)
