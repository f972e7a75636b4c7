"""After facebookresearch/sam2#456: a large video takes up a lot of memory or fails when it is segmented."""

import torch
import torch.nn as nn

CURED = False


def load_video_frames(num_frames, image_size, offload_video_to_cpu):
    images = torch.zeros(
        num_frames,
        3,
        image_size,
        image_size,
        dtype=torch.float32,
        device="cpu" if offload_video_to_cpu else "cuda",
    )
    img_mean = torch.full((3, 1, 1), 0.5, device=images.device)
    img_std = torch.full((3, 1, 1), 0.25, device=images.device)
    if not offload_video_to_cpu:
        images -= img_mean
        images /= img_std
    return images


class SAM2VideoPredictor(nn.Module):
    def __init__(self, dim=256):
        super().__init__()
        self.image_encoder = nn.Sequential(
            nn.Conv2d(3, dim, 16, 16), nn.GELU(), nn.Conv2d(dim, dim, 3, padding=1)
        )
        self.mask_decoder = nn.ConvTranspose2d(dim, 1, 4, 4)

    def init_state(self, num_frames, offload_video_to_cpu=False):
        images = load_video_frames(num_frames, 1024, offload_video_to_cpu)
        return {"images": images, "num_frames": num_frames, "output_dict": {}}

    @torch.inference_mode()
    def propagate_in_video(self, inference_state):
        for frame_idx in range(0, inference_state["num_frames"], 60):
            image = inference_state["images"][frame_idx].cuda().float().unsqueeze(0)
            features = self.image_encoder(image)
            yield frame_idx, self.mask_decoder(features).sigmoid() > 0.5


predictor = SAM2VideoPredictor().cuda().eval()
inference_state = predictor.init_state(600, offload_video_to_cpu=CURED)
for frame_idx, masks in predictor.propagate_in_video(inference_state):
    mask = masks.cpu()
print("frames", inference_state["num_frames"])
