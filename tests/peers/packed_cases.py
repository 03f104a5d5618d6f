"""Writes tests/oracle/packed.lua: what transformers computes of rows that hold several sequences, for tests/lua/t_packed.lua.

    python tests/peers/packed_cases.py > tests/oracle/packed.lua        needs torch and transformers

The models get position_ids that start anew at each sequence, as from DataCollatorWithFlattening, and make a mask of them.
Parameters and tokens are those of hf_cases.py."""
import torch
import transformers as T

from hf_cases import SHOWN, STEPS, TEXT, WIDE, fill, lua, mixed, tokens

LENGTHS = [[5, 1, 4, 2], [3, 9]]  # of the sequences of each row
GPT2 = dict(n_embd=16, n_layer=2, n_head=4, vocab_size=50, n_positions=10, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0)
CASES = [
    ("Llama", "LlamaForCausalLM", T.LlamaConfig, dict(TEXT, num_key_value_heads=2)),
    ("Mistral", "MistralForCausalLM", T.MistralConfig, dict(TEXT, num_key_value_heads=2, sliding_window=3)),
    ("Qwen2", "Qwen2ForCausalLM", T.Qwen2Config, dict(TEXT, num_key_value_heads=2, tie_word_embeddings=True)),
    ("GPTNeoX", "GPTNeoXForCausalLM", T.GPTNeoXConfig, WIDE),
    ("GPT2", "GPT2LMHeadModel", T.GPT2Config, GPT2),  # fewer positions than a row has steps
]


def case(name, architecture, kind, options):
    config = kind(**options, bos_token_id=None, eos_token_id=None)
    config._attn_implementation = "sdpa"
    model = getattr(T, architecture)(config).float().eval()
    fill(model)
    assert model.config._attn_implementation == "sdpa"
    positions = torch.tensor([[i for n in lengths for i in range(n)] for lengths in LENGTHS])
    labels = mixed(torch.arange(2 * STEPS), torch.tensor(2)) % config.vocab_size
    labels[torch.cat([positions[:, 1:] == 0, torch.ones(2, 1, dtype=torch.bool)], 1).flatten()] = -100
    logits = model(input_ids=tokens(STEPS), position_ids=positions, use_cache=False).logits.flatten(0, 1)
    loss = torch.nn.functional.cross_entropy(logits, labels)
    loss.backward()
    norm = sum((p.grad.double() ** 2).sum() for p in model.parameters() if p.grad is not None) ** 0.5
    flat = logits.flatten()
    step = max(1, flat.numel() // SHOWN)
    shown = ", ".join("%s = %s" % (key, lua(value).lower()) for key, value in options.items())
    print('  {name = "%s", options = {%s},' % (name, shown))
    print("    loss = %s, norm = %s, step = %d," % (lua(loss.item()), lua(norm.item()), step))
    print("    logits = %s}," % lua(flat[::step].tolist()))


if __name__ == "__main__":
    print("-- What transformers %s computes of several sequences in a row, by tests/peers/packed_cases.py." % T.__version__)
    print("return {lengths = %s," % lua(LENGTHS))
    for one in CASES:
        case(*one)
    print("}")
