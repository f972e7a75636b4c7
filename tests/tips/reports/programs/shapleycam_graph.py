"""After jacobgil/pytorch-grad-cam#575: ShapleyCAM takes more GPU memory with every image."""

import torch
from torch import nn

CURED = False
DEVICE = "cuda"
BATCHES, BATCH_SIZE, SIZE, WIDTH, CLASSES = 6, 8, 112, 32, 100


class ActivationsAndGradients:
    """Class for extracting activations and registering gradients from targeted layers"""

    def __init__(self, model, target_layers):
        self.model = model
        self.gradients, self.activations = [], []
        self.handles = []
        for target_layer in target_layers:
            self.handles.append(target_layer.register_forward_hook(self.save_activation))
            self.handles.append(target_layer.register_forward_hook(self.save_gradient))

    def save_activation(self, module, input, output):
        self.activations.append(output)

    def save_gradient(self, module, input, output):
        if not output.requires_grad:
            return

        def _store_grad(grad):
            self.gradients = [grad, *self.gradients]

        output.register_hook(_store_grad)

    def __call__(self, x):
        self.gradients, self.activations = [], []
        return self.model(x)

    def release(self):
        for handle in self.handles:
            handle.remove()
        if CURED:
            self.gradients, self.activations = [], []


class ClassifierOutputTarget:
    def __init__(self, category):
        self.category = category

    def __call__(self, model_output):
        return model_output[self.category]


class ShapleyCAM:
    """Weights the activations using gradient and Hessian-vector product"""

    def __init__(self, model, target_layers):
        self.model, self.target_layers = model.eval(), target_layers
        self.activations_and_grads = ActivationsAndGradients(model, target_layers)

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.activations_and_grads.release()
        if CURED:
            self.outputs = None

    def __call__(self, input_tensor):
        input_tensor = input_tensor.to(DEVICE).requires_grad_()
        self.outputs = outputs = self.activations_and_grads(input_tensor)
        targets = [ClassifierOutputTarget(category) for category in outputs.argmax(-1).tolist()]
        loss = sum(target(output) for target, output in zip(targets, outputs))
        # create_graph is needed for the Hessian-vector product
        torch.autograd.grad(loss, input_tensor, retain_graph=True, create_graph=True)
        cams = self.compute_cam_per_layer()
        return torch.stack(cams).mean(0)

    def compute_cam_per_layer(self):
        activations_list = self.activations_and_grads.activations
        cams = []
        for activations, grads in zip(activations_list, self.activations_and_grads.gradients):
            weights = self.get_cam_weights(activations, grads)[:, :, None, None]
            cam = (weights * activations.detach().cpu()).sum(1).clamp(min=0)
            cams.append(cam / (cam.amax((1, 2), keepdim=True) + 1e-7))
        return cams

    def get_cam_weights(self, activations, grads):
        hvp = torch.autograd.grad(
            outputs=grads, inputs=activations, grad_outputs=activations, allow_unused=True
        )[0]
        return (grads - 0.5 * (0 if hvp is None else hvp)).detach().cpu().mean((2, 3))


def conv_block(in_channels, out_channels):
    conv = nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(out_channels), nn.SiLU())


features = [conv_block(3, WIDTH), conv_block(WIDTH, WIDTH), conv_block(WIDTH, WIDTH)]
pool = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
head = nn.Sequential(pool, nn.Linear(WIDTH, CLASSES), nn.Softmax(1))
model = nn.Sequential(*features, head).to(DEVICE)
for images in torch.rand(BATCHES, BATCH_SIZE, 3, SIZE, SIZE):
    with ShapleyCAM(model=model, target_layers=[model[2]]) as cam:
        grayscale_cam = cam(images)
    print(grayscale_cam.shape, grayscale_cam.mean().item())
