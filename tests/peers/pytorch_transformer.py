"""An encoder and a decoder: loads FOLDER/ours and writes its outputs in evaluation mode, then writes weights of its own
and theirs (tests/lua/t_transformer.lua)."""
import sys

import torch
from pytorch_cases import Translator
from pytorch_weights import read, write


def save_outputs(net, path):
    x = torch.sin(0.37 * torch.arange(2 * 12 * 16, dtype=torch.float64)).float().reshape(2, 12, 16)
    with torch.no_grad(), open(path, "w") as f:
        f.writelines(f"{y:.9g}\n" for y in net.eval()(x).flatten().tolist())


def main(folder):
    net = Translator(16, 4, 7)
    print("#", net.load_state_dict(read(f"{folder}/ours")))
    save_outputs(net, f"{folder}/ours.txt")
    torch.manual_seed(1)
    net = Translator(16, 4, 7)
    write(f"{folder}/theirs", net.state_dict())
    save_outputs(net, f"{folder}/theirs.txt")


if __name__ == "__main__":
    main(sys.argv[1])
