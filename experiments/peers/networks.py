"""The networks of experiments/peers.lua in PyTorch, by their name in the column "model"."""
from collections import namedtuple

Network = namedtuple("Network", "build input classes")  # build(torch.nn); shape of one sample


def convnet(nn, width):
    return nn.Sequential(nn.Conv2d(3, width, 3), nn.ReLU(), nn.Conv2d(width, 2 * width, 3), nn.ReLU(),
                         nn.Flatten(), nn.Linear(2 * width * 28 * 28, 10))


def mnist_cnn(nn):
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2, 2), nn.Flatten(),
                         nn.Linear(16 * 14 * 14, 10))


def mlp(nn):
    return nn.Sequential(nn.Linear(784, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 10))


def vgg16(nn):
    layers, channels = [], 3
    for width, depth in (64, 2), (128, 2), (256, 3), (512, 3), (512, 3):
        for _ in range(depth):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2, 2))
    return nn.Sequential(nn.Sequential(*layers), nn.Flatten(),
                         nn.Linear(512 * 7 * 7, 4096), nn.ReLU(inplace=True), nn.Dropout(),
                         nn.Linear(4096, 4096), nn.ReLU(inplace=True), nn.Dropout(), nn.Linear(4096, 1000))


NETWORKS = {
    "simple_convnet": Network(lambda nn: convnet(nn, 64), (3, 32, 32), 10),
    "smaller_convnet": Network(lambda nn: convnet(nn, 32), (3, 32, 32), 10),
    "mnist_cnn": Network(mnist_cnn, (1, 28, 28), 10),
    "mlp": Network(mlp, (784,), 10),
    "vgg16": Network(vgg16, (3, 224, 224), 1000),
}
