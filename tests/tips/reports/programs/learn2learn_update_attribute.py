"""After learnables/learn2learn#284: MAML on mini-ImageNet runs out of memory."""

import copy

import torch
from torch import nn, optim

CURED = False
DEVICE = "cuda"
WAYS, SHOTS, SIZE, HIDDEN = 5, 5, 42, 48
META_BATCH_SIZE, ADAPTATION_STEPS, NUM_ITERATIONS, FAST_LR, META_LR = 2, 1, 3, 0.5, 0.003


def clone_module(module):
    """A copy whose parameters are functions of the parameters of the module"""
    clone = copy.copy(module)
    clone._parameters = {
        key: None if param is None else param.clone() for key, param in module._parameters.items()
    }
    clone._modules = {key: clone_module(child) for key, child in module._modules.items()}
    return clone


def update_module(module):
    for param_key, p in module._parameters.items():
        if p is not None and hasattr(p, "update") and p.update is not None:
            updated = p + p.update
            if CURED:
                p.update = None
            module._parameters[param_key] = updated
    for child in module._modules.values():
        update_module(child)
    return module


def maml_update(model, lr, grads):
    for p, g in zip(model.parameters(), grads):
        p.update = -lr * g
    return update_module(model)


class MAML(nn.Module):
    def __init__(self, model, lr):
        super().__init__()
        self.module, self.lr = model, lr

    def forward(self, x):
        return self.module(x)

    def adapt(self, loss):
        params = list(self.module.parameters())
        gradients = torch.autograd.grad(loss, params, create_graph=True)
        self.module = maml_update(self.module, self.lr, gradients)

    def clone(self):
        return MAML(clone_module(self.module), self.lr)


def conv_block(in_channels):
    conv = nn.Conv2d(in_channels, HIDDEN, 3, padding=1)
    norm = nn.BatchNorm2d(HIDDEN, track_running_stats=False)
    return nn.Sequential(conv, norm, nn.ReLU(), nn.MaxPool2d(2))


class MiniImagenetCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(conv_block(3), conv_block(HIDDEN), conv_block(HIDDEN))
        self.classifier = nn.Linear(HIDDEN * (SIZE // 8) ** 2, WAYS)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


def sample():
    labels = torch.arange(WAYS).repeat_interleave(2 * SHOTS)
    return torch.randn(len(labels), 3, SIZE, SIZE) + labels[:, None, None, None], labels


def fast_adapt(batch, learner, loss):
    data, labels = batch[0].to(DEVICE), batch[1].to(DEVICE)
    # Separate data into adaptation/evaluation sets
    adaptation_data, adaptation_labels = data[::2], labels[::2]
    evaluation_data, evaluation_labels = data[1::2], labels[1::2]
    for _ in range(ADAPTATION_STEPS):
        learner.adapt(loss(learner(adaptation_data), adaptation_labels))
    predictions = learner(evaluation_data)
    accuracy = (predictions.argmax(1) == evaluation_labels).float().mean()
    return loss(predictions, evaluation_labels), accuracy


maml = MAML(MiniImagenetCNN().to(DEVICE), FAST_LR)
opt = optim.Adam(maml.parameters(), META_LR)
loss = nn.CrossEntropyLoss()
for iteration in range(NUM_ITERATIONS):
    opt.zero_grad()
    meta_train_error = meta_valid_error = meta_valid_accuracy = 0.0
    for task in range(META_BATCH_SIZE):
        # meta-training
        learner = maml.clone()
        evaluation_error, evaluation_accuracy = fast_adapt(sample(), learner, loss)
        evaluation_error.backward()
        meta_train_error += evaluation_error.item()
        # meta-validation
        learner = maml.clone()
        evaluation_error, evaluation_accuracy = fast_adapt(sample(), learner, loss)
        meta_valid_error += evaluation_error.item()
        meta_valid_accuracy += evaluation_accuracy.item()
    print(iteration, meta_train_error, meta_valid_error, meta_valid_accuracy / META_BATCH_SIZE)
    for p in maml.parameters():
        p.grad.mul_(1.0 / META_BATCH_SIZE)
    opt.step()
