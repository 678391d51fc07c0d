"""The gradients of well-known networks, as lists of shapes. Pure: imports nothing heavy."""

from math import prod


def resnet50():
    """161 tensors, 25.6 million elements: 53 convolutions with their batch norms, and the head."""
    shapes = []

    def convolution(kernel, inputs, outputs):
        shapes.extend([(kernel, kernel, inputs, outputs), (outputs,), (outputs,)])

    convolution(7, 3, 64)
    channels = 64
    for blocks, width in ((3, 64), (4, 128), (6, 256), (3, 512)):
        for block in range(blocks):
            if block == 0:
                convolution(1, channels, 4 * width)  # the shortcut changes the number of channels
            convolution(1, channels, width)
            convolution(3, width, width)
            convolution(1, width, 4 * width)
            channels = 4 * width
    return [*shapes, (channels, 1000), (1000,)]


def bert_base():
    """199 tensors, 109.5 million elements: embeddings, 12 layers, the pooler."""
    hidden, inner = 768, 3072
    dense = [(hidden, hidden), (hidden,)]
    norm = [(hidden,), (hidden,)]
    feed_forward = [(hidden, inner), (inner,), (inner, hidden), (hidden,)]
    embeddings = [(30522, hidden), (512, hidden), (2, hidden), *norm]
    return [*embeddings, *(12 * [*(4 * dense), *norm, *feed_forward, *norm]), *dense]


def small500():
    """500 tensors of 4 kB: the cost of a tensor, not of a byte."""
    return 500 * [(1000,)]


SETS = {"resnet50": resnet50, "bert": bert_base, "small500": small500}


def elements(shapes):
    """Return how many numbers all shapes hold together."""
    return sum(prod(shape) for shape in shapes)
