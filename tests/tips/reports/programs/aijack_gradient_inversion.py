"""After Koukyosyumei/AIJack#133: the gradient inversion attack with a group of workers runs out of GPU memory."""

import copy
import torch
import torch.nn as nn

CURED = False
DEVICE = "cuda"


def l2(fake_gradients, received_gradients):
    return sum(((f - r) ** 2).sum() for f, r in zip(fake_gradients, received_gradients))


def total_variation(x):
    dx = torch.mean(torch.abs(x[:, :, :, :-1] - x[:, :, :, 1:]))
    return dx + torch.mean(torch.abs(x[:, :, :-1, :] - x[:, :, 1:, :]))


def bn_regularizer(feature_maps, bn_layers):
    reg = 0
    for i, layer in enumerate(bn_layers):
        fm = feature_maps[i]
        reg += torch.norm(fm.mean((0, 2, 3)) - layer.running_mean.detach(), 2)
    return reg


def group_consistency(fake_x, group_fake_x):
    mean_group = sum(x.detach() for x in group_fake_x) / len(group_fake_x)
    return torch.norm(fake_x - mean_group, p=2)


class LeNet(nn.Module):
    def __init__(self, channel=1, num_classes=10, width=12):
        super().__init__()
        act = nn.Sigmoid
        self.body = nn.Sequential(
            nn.Conv2d(channel, width, 5, padding=2, stride=2),
            nn.BatchNorm2d(width),
            act(),
            nn.Conv2d(width, width, 5, padding=2, stride=2),
            nn.BatchNorm2d(width),
            act(),
            nn.Conv2d(width, width, 5, padding=2, stride=1),
            nn.BatchNorm2d(width),
            act(),
        )
        self.fc = nn.Linear(width * 16 * 16, num_classes)

    def forward(self, x):
        return self.fc(self.body(x).flatten(1))


class GradientInversion_Attack:
    def __init__(
        self,
        target_model,
        x_shape,
        num_iteration=100,
        optimizer_class=torch.optim.SGD,
        lossfunc=nn.CrossEntropyLoss(),
        distancefunc=l2,
        tv_reg_coef=0.0,
        l2_reg_coef=0.0,
        bn_reg_coef=0.0,
        gc_reg_coef=0.0,
        bn_reg_layers=(),
        pos_of_final_fc_layer=-2,
        device="cpu",
        log_interval=10,
        group_num=5,
        **kwargs,
    ):
        self.target_model, self.x_shape, self.num_iteration = target_model, x_shape, num_iteration
        self.optimizer_class, self.lossfunc, self.distancefunc = (
            optimizer_class,
            lossfunc,
            distancefunc,
        )
        self.tv_reg_coef, self.l2_reg_coef = tv_reg_coef, l2_reg_coef
        self.bn_reg_coef, self.gc_reg_coef = bn_reg_coef, gc_reg_coef
        self.bn_reg_layers, self.bn_reg_layer_inputs = bn_reg_layers, {}
        for i, bn_layer in enumerate(bn_reg_layers):
            bn_layer.register_forward_hook(self._get_hook_for_input(i))
        self.pos_of_final_fc_layer = pos_of_final_fc_layer
        self.device, self.log_interval, self.group_num, self.kwargs = (
            device,
            log_interval,
            group_num,
            kwargs,
        )

    def _get_hook_for_input(self, name):
        def hook(model, inp, output):
            self.bn_reg_layer_inputs[name] = inp[0]

        return hook

    def _initialize_x(self, batch_size):
        return torch.randn((batch_size,) + self.x_shape, device=self.device).requires_grad_()

    def _estimate_label(self, received_gradients, batch_size):
        order = torch.argsort(torch.min(received_gradients[self.pos_of_final_fc_layer], dim=-1)[0])
        return order.repeat(batch_size // len(order) + 1)[:batch_size].to(self.device)

    def _culc_regularization_term(self, fake_x, group_fake_x):
        reg_term = 0
        if self.tv_reg_coef != 0:
            reg_term += self.tv_reg_coef * total_variation(fake_x)
        if self.l2_reg_coef != 0:
            reg_term += self.l2_reg_coef * torch.norm(fake_x, p=2)
        if self.bn_reg_coef != 0:
            reg_term += self.bn_reg_coef * bn_regularizer(
                self.bn_reg_layer_inputs, self.bn_reg_layers
            )
        if group_fake_x is not None and self.gc_reg_coef != 0:
            reg_term += self.gc_reg_coef * group_consistency(fake_x, group_fake_x)
        return reg_term

    def _setup_closure(self, optimizer, fake_x, fake_label, received_gradients, group_fake_x=None):
        def closure():
            optimizer.zero_grad()
            fake_pred = self.target_model(fake_x)
            loss = self.lossfunc(fake_pred, fake_label)
            fake_gradients = torch.autograd.grad(
                loss, self.target_model.parameters(), create_graph=True
            )
            distance = self.distancefunc(fake_gradients, received_gradients)
            distance += self._culc_regularization_term(fake_x, group_fake_x)
            if CURED:
                distance.backward()
            else:
                distance.backward(retain_graph=True)
            return distance

        return closure

    def _setup_attack(self, received_gradients, batch_size):
        fake_x = self._initialize_x(batch_size)
        fake_label = self._estimate_label(received_gradients, batch_size)
        return fake_x, fake_label, self.optimizer_class([fake_x], **self.kwargs)

    def group_attack(self, received_gradients, batch_size=1):
        group_fake_x, group_fake_label, group_optimizer = [], [], []
        for _ in range(self.group_num):
            fake_x, fake_label, optimizer = self._setup_attack(received_gradients, batch_size)
            group_fake_x.append(fake_x)
            group_fake_label.append(fake_label)
            group_optimizer.append(optimizer)
        best_distance = [float("inf") for _ in range(self.group_num)]
        best_fake_x = copy.deepcopy(group_fake_x)
        best_iteration = [0 for _ in range(self.group_num)]
        for i in range(self.num_iteration):
            for worker_id in range(self.group_num):
                closure = self._setup_closure(
                    group_optimizer[worker_id],
                    group_fake_x[worker_id],
                    group_fake_label[worker_id],
                    received_gradients,
                    group_fake_x,
                )
                distance = group_optimizer[worker_id].step(closure)
                if torch.isnan(distance).item():
                    raise ValueError("stop because the culculated distance is Nan")
                if best_distance[worker_id] > distance:
                    with torch.no_grad():
                        best_fake_x[worker_id] = group_fake_x[worker_id].detach().cpu()
                    best_distance[worker_id] = distance
                    best_iteration[worker_id] = i
            if self.log_interval != 0 and i % self.log_interval == 0:
                print(
                    f"iter={i}: {[round(float(d), 4) for d in best_distance]}, best_iter={best_iteration}"
                )
        return best_fake_x, group_fake_label


def main():
    net = LeNet().to(DEVICE)
    x_batch, y_batch = (
        torch.rand(48, 1, 64, 64, device=DEVICE),
        torch.arange(48, device=DEVICE) % 10,
    )
    loss = nn.CrossEntropyLoss()(net(x_batch), y_batch)
    received_gradients = [g.detach() for g in torch.autograd.grad(loss, net.parameters())]
    gradinversion = GradientInversion_Attack(
        net,
        (1, 64, 64),
        num_iteration=3,
        lr=1e-1,
        log_interval=1,
        distancefunc=l2,
        bn_reg_layers=[net.body[1], net.body[4], net.body[7]],
        group_num=4,
        tv_reg_coef=0.0,
        l2_reg_coef=0.0001,
        bn_reg_coef=0.001,
        gc_reg_coef=0.001,
        device=DEVICE,
    )
    result = gradinversion.group_attack(received_gradients, batch_size=48)
    reconstructed = sum(x.detach().cpu() for x in result[0]) / len(result[0])
    print(
        f"reconstructed {tuple(reconstructed.shape)}, the most {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB"
    )


if __name__ == "__main__":
    main()
