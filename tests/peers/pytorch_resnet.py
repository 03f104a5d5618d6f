"""ResNet-18 under torchvision's names, without torchvision: loads FOLDER/ours and writes its logits in evaluation mode,
then writes weights of its own, after two batches of training that move the running statistics, and theirs."""
import math
import sys

import torch
from pytorch_weights import read, write
from networks import NETWORKS
from torch import nn


def images(offset):
    return torch.tensor([math.sin(0.37 * i + offset) for i in range(2 * 3 * 64 * 64)]).reshape(2, 3, 64, 64)


def save_logits(net, path):
    with torch.no_grad(), open(path, "w") as f:
        f.writelines(f"{y:.9g}\n" for y in net.eval()(images(0)).flatten().tolist())


def main(folder):
    net = NETWORKS["resnet18"].build(nn)
    print("#", net.load_state_dict(read(f"{folder}/ours")))
    print("# batches", net.bn1.num_batches_tracked.item())
    save_logits(net, f"{folder}/ours.txt")
    torch.manual_seed(1)
    net = NETWORKS["resnet18"].build(nn)
    for offset in (1, 2):
        net(images(offset))
    write(f"{folder}/theirs", net.state_dict())
    save_logits(net, f"{folder}/theirs.txt")


if __name__ == "__main__":
    main(sys.argv[1])
