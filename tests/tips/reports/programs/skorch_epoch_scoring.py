"""After skorch-dev/skorch#509: GPU memory skyrockets in the validation of a multi-label model."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

CURED = False
DEVICE = "cuda"
FEATURES, HIDDEN, TARGETS, TRAIN, VALID, BATCH_SIZE, EPOCHS = 300, 128, 20_000, 512, 2560, 128, 3


class EpochScoring:
    """Callback that performs scoring on the predictions of a whole epoch"""

    def __init__(self, scoring, name, on_train=False, use_caching=True):
        self.scoring, self.name_ = scoring, name
        self.on_train, self.use_caching = on_train, use_caching

    def _initialize_cache(self):
        self.y_trues_, self.y_preds_ = [], []

    def on_epoch_begin(self, net):
        self._initialize_cache()

    def on_batch_end(self, net, batch, y_pred, training):
        if not self.use_caching or training != self.on_train:
            return
        # We collect references to the prediction and target data emitted by the training process
        _, y = batch
        self.y_trues_.append(y)
        self.y_preds_.append(y_pred)

    def on_epoch_end(self, net):
        scores = [self.scoring(y_pred, y) for y_pred, y in zip(self.y_preds_, self.y_trues_)]
        net.history[-1][self.name_] = sum(scores) / len(scores)

    def on_train_end(self, net):
        self._initialize_cache()


class NeuralNet:
    def __init__(self, module, criterion, lr, batch_size, max_epochs, callbacks, device):
        self.module_, self.criterion_, self.device = module.to(device), criterion, device
        self.optimizer_ = torch.optim.SGD(self.module_.parameters(), lr=lr)
        self.batch_size, self.max_epochs, self.callbacks_ = batch_size, max_epochs, callbacks
        self.history = []

    def notify(self, method_name, **kwargs):
        for cb in self.callbacks_:
            if method := getattr(cb, method_name, None):
                method(self, **kwargs)

    def infer(self, x):
        return self.module_(x.to(self.device))

    def get_loss(self, y_pred, y_true):
        return self.criterion_(y_pred, y_true.to(y_pred.device))

    def train_step(self, batch):
        self.module_.train()
        Xi, yi = batch
        self.optimizer_.zero_grad()
        y_pred = self.infer(Xi)
        loss = self.get_loss(y_pred, yi)
        loss.backward()
        self.optimizer_.step()
        return {"loss": loss, "y_pred": y_pred}

    def validation_step(self, batch):
        self.module_.eval()
        Xi, yi = batch
        with torch.no_grad():
            y_pred = self.infer(Xi)
            loss = self.get_loss(y_pred, yi)
        return {"loss": loss, "y_pred": y_pred.to("cpu") if CURED else y_pred}

    def run_single_epoch(self, iterator, training, prefix, step_fn):
        losses = []
        for batch in iterator:
            step = step_fn(batch)
            losses.append(step["loss"].item())
            self.notify("on_batch_end", batch=batch, y_pred=step["y_pred"], training=training)
        self.history[-1][f"{prefix}_loss"] = sum(losses) / len(losses)

    def fit(self, dataset_train, dataset_valid):
        for epoch in range(self.max_epochs):
            self.history.append({"epoch": epoch})
            self.notify("on_epoch_begin")
            train = DataLoader(dataset_train, self.batch_size, shuffle=True)
            self.run_single_epoch(train, True, "train", self.train_step)
            valid = DataLoader(dataset_valid, self.batch_size)
            self.run_single_epoch(valid, False, "valid", self.validation_step)
            self.notify("on_epoch_end")
            print(self.history[-1])
        self.notify("on_train_end")
        return self


def make_dataset(samples):
    X = torch.randn(samples, FEATURES)
    labels = torch.randint(0, TARGETS, (samples, 5))
    return TensorDataset(X, torch.zeros(samples, TARGETS).scatter_(1, labels, 1))


def precision_at_5(y_pred, y_true):
    top = y_pred.topk(5, dim=1).indices
    return y_true.to(top.device).gather(1, top).mean().item()


module = nn.Sequential(nn.Linear(FEATURES, HIDDEN), nn.ReLU(), nn.Linear(HIDDEN, TARGETS))
callbacks = [EpochScoring(precision_at_5, name="valid_p5")]
net = NeuralNet(module, nn.BCEWithLogitsLoss(), 0.1, BATCH_SIZE, EPOCHS, callbacks, DEVICE)
net.fit(make_dataset(TRAIN), make_dataset(VALID))
