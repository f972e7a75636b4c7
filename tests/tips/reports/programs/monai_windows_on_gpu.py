"""After Project-MONAI/MONAI#854: sliding_window_inference runs out of memory on large volumes."""

from itertools import product

import torch
from torch import nn

CURED = False
IMAGE_SIZE, ROI_SIZE, SW_BATCH_SIZE, CLASSES = (192, 192, 128), (64, 64, 64), 5, 4


class HighRes3DNet(nn.Module):
    def __init__(self, features=8):
        super().__init__()
        self.conv_0 = nn.Sequential(
            nn.Conv3d(1, features, 3, padding=1), nn.BatchNorm3d(features), nn.ReLU(inplace=True)
        )
        self.dilated = nn.ModuleList(
            nn.Conv3d(features, features, 3, padding=d, dilation=d) for d in (1, 2, 4)
        )
        self.final = nn.Conv3d(features, CLASSES, 1)

    def forward(self, x):
        x = self.conv_0(x)
        for conv in self.dilated:
            x = x + torch.relu(conv(x))
        return torch.softmax(self.final(x), dim=1)


def dense_patch_slices(image_size, patch_size, scan_interval):
    starts = [
        [min(s, size - patch) for s in range(0, size - patch + interval, interval)]
        for size, patch, interval in zip(image_size, patch_size, scan_interval)
    ]
    return [
        tuple(slice(s, s + patch) for s, patch in zip(corner, patch_size))
        for corner in product(*starts)
    ]


def compute_importance_map(patch_size, device):
    importance_map = torch.ones((), device=device)
    for size in patch_size:
        x = torch.arange(size, device=device) - (size - 1) / 2
        importance_map = importance_map.unsqueeze(-1) * torch.exp(-0.5 * (x / (0.125 * size)) ** 2)
    return importance_map.clamp(min=1e-3)


def sliding_window_inference(inputs, roi_size, sw_batch_size, predictor, overlap=0.5):
    image_size = inputs.shape[2:]
    scan_interval = [int(roi * (1 - overlap)) for roi in roi_size]
    slices = dense_patch_slices(image_size, roi_size, scan_interval)
    device = torch.device("cpu") if CURED else inputs.device

    slice_batches = []
    for slice_index in range(0, len(slices), sw_batch_size):
        input_slices = [
            inputs[0, :, sl[0], sl[1], sl[2]]
            for sl in slices[slice_index : slice_index + sw_batch_size]
        ]
        slice_batches.append(torch.stack(input_slices).to(device))

    # perform predictions
    output_rois = []
    for data in slice_batches:
        seg_prob = predictor(data.to(inputs.device))
        output_rois.append(seg_prob.to(device))

    # stitch the output image
    output_shape = [1, output_rois[0].shape[1], *image_size]
    importance_map = compute_importance_map(roi_size, device)
    output_image = torch.zeros(output_shape, device=device)
    count_map = torch.zeros(output_shape, device=device)
    for window_id, slice_index in enumerate(range(0, len(slices), sw_batch_size)):
        for i, sl in enumerate(slices[slice_index : slice_index + sw_batch_size]):
            part = (0, slice(None), *sl)
            output_image[part] += importance_map * output_rois[window_id][i]
            count_map[part] += importance_map
    return output_image / count_map


model = HighRes3DNet().cuda().eval()
with torch.no_grad():
    for case in range(2):
        val_images = torch.randn(1, 1, *IMAGE_SIZE).cuda()
        val_labels = torch.randint(0, CLASSES, (1, 1, *IMAGE_SIZE))
        val_outputs = sliding_window_inference(val_images, ROI_SIZE, SW_BATCH_SIZE, model)
        accuracy = (val_outputs.argmax(1, keepdim=True).cpu() == val_labels).float().mean()
        print("case", case, "accuracy", accuracy.item())
