"""After roboflow/inference#2682: instance segmentation of a large picture with many detections runs out of memory in the postprocessing."""

from dataclasses import dataclass
import torch
import torch.nn as nn
import torch.nn.functional as F

CURED = False
DEVICE = "cuda"
NUM_CLASSES = 80
NUM_MASKS = 32
MAX_DETECTIONS = 300
MASK_PROCESSING_CHUNK_SIZE = 16


@dataclass
class ImageDimensions:
    height: int
    width: int


@dataclass
class StaticCropOffset:
    offset_x: int
    offset_y: int


@dataclass
class PreProcessingMetadata:
    pad_left: int
    pad_top: int
    pad_right: int
    pad_bottom: int
    original_size: ImageDimensions
    size_after_pre_processing: ImageDimensions
    inference_size: ImageDimensions
    scale_width: float
    scale_height: float
    static_crop_offset: StaticCropOffset


@dataclass
class InstanceDetections:
    xyxy: torch.Tensor
    class_id: torch.Tensor
    confidence: torch.Tensor
    mask: torch.Tensor


class YOLOSegNetwork(nn.Module):
    def __init__(self, width=48):
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.SiLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.SiLU()
        )
        self.stage3 = nn.Sequential(nn.Conv2d(2 * width, 4 * width, 3, 2, 1), nn.SiLU())
        self.stage4 = nn.Sequential(nn.Conv2d(4 * width, 8 * width, 3, 2, 1), nn.SiLU())
        self.head3 = nn.Conv2d(4 * width, 4 + NUM_CLASSES + NUM_MASKS, 1)
        self.head4 = nn.Conv2d(8 * width, 4 + NUM_CLASSES + NUM_MASKS, 1)
        self.proto = nn.Conv2d(2 * width, NUM_MASKS, 3, padding=1)

    def forward(self, images):
        p2 = self.stem(images)
        p3 = self.stage3(p2)
        p4 = self.stage4(p3)
        instances = torch.cat([self.head3(p3).flatten(2), self.head4(p4).flatten(2)], dim=2)
        return instances, self.proto(p2)


def pre_process_network_input(image, inference_size):
    original = ImageDimensions(image.shape[-2], image.shape[-1])
    scale = min(inference_size.height / original.height, inference_size.width / original.width)
    height, width = round(original.height * scale), round(original.width * scale)
    resized = F.interpolate(image, size=(height, width), mode="bilinear", align_corners=False)
    pad_top, pad_left = (inference_size.height - height) // 2, (inference_size.width - width) // 2
    pad_bottom, pad_right = (
        inference_size.height - height - pad_top,
        inference_size.width - width - pad_left,
    )
    padded = F.pad(resized, (pad_left, pad_right, pad_top, pad_bottom), value=0.5)
    meta = PreProcessingMetadata(
        pad_left,
        pad_top,
        pad_right,
        pad_bottom,
        original,
        original,
        inference_size,
        scale,
        scale,
        StaticCropOffset(0, 0),
    )
    return padded, meta


def select_instances(output, max_detections=MAX_DETECTIONS):
    """A stand-in for the NMS: the best boxes by score, as (x1, y1, x2, y2, confidence, class, mask coefficients)."""
    boxes, scores, coefficients = output.permute(0, 2, 1).split([4, NUM_CLASSES, NUM_MASKS], dim=2)
    results = []
    for box, score, coefficient in zip(boxes, scores.sigmoid(), coefficients):
        confidence, class_id = score.max(dim=1)
        confidence, keep = confidence.topk(max_detections)
        results.append(
            torch.cat(
                [box[keep], confidence[:, None], class_id[keep, None].float(), coefficient[keep]],
                dim=1,
            )
        )
    return results


def preprocess_segmentation_masks(protos, masks_in):
    return torch.einsum("chw,nc->nhw", protos, masks_in)


def crop_masks_to_boxes(boxes, masks, scaling=0.25):
    n, h, w = masks.shape
    x1, y1, x2, y2 = (boxes * scaling)[:, :, None, None].unbind(1)
    rows = torch.arange(w, device=masks.device)[None, None, :]
    cols = torch.arange(h, device=masks.device)[None, :, None]
    crop_mask = (rows >= x1) & (rows < x2) & (cols >= y1) & (cols < y2)
    return masks * crop_mask


def align_instance_segmentation_results(
    image_bboxes,
    masks,
    padding,
    scale_width,
    scale_height,
    original_size,
    size_after_pre_processing,
    inference_size,
    static_crop_offset,
):
    pad_left, pad_top, pad_right, pad_bottom = padding
    image_bboxes[:, :4].sub_(
        torch.tensor([pad_left, pad_top, pad_left, pad_top], device=image_bboxes.device)
    )
    scale = torch.as_tensor(
        [scale_width, scale_height, scale_width, scale_height],
        dtype=image_bboxes.dtype,
        device=image_bboxes.device,
    )
    image_bboxes[:, :4].div_(scale)
    n, mh, mw = masks.shape
    mask_h_scale, mask_w_scale = mh / inference_size.height, mw / inference_size.width
    top, bottom = round(mask_h_scale * pad_top), round(mask_h_scale * pad_bottom)
    left, right = round(mask_w_scale * pad_left), round(mask_w_scale * pad_right)
    masks = masks[:, top : mh - bottom, left : mw - right]
    target = (size_after_pre_processing.height, size_after_pre_processing.width)
    if CURED:
        aligned = torch.empty((n, *target), dtype=torch.bool, device=masks.device)
        for start in range(0, n, MASK_PROCESSING_CHUNK_SIZE):
            part = masks[start : start + MASK_PROCESSING_CHUNK_SIZE]
            part = F.interpolate(part[None], size=target, mode="bilinear", align_corners=False)[0]
            aligned[start : start + MASK_PROCESSING_CHUNK_SIZE] = part > 0.0
        masks = aligned
    else:
        masks = (
            F.interpolate(masks[None], size=target, mode="bilinear", align_corners=False)[0]
            .gt_(0.0)
            .to(dtype=torch.bool)
        )
    if static_crop_offset.offset_x > 0 or static_crop_offset.offset_y > 0:
        mask_canvas = torch.zeros(
            (n, original_size.height, original_size.width), dtype=torch.bool, device=masks.device
        )
        x, y = static_crop_offset.offset_x, static_crop_offset.offset_y
        mask_canvas[:, y : y + masks.shape[1], x : x + masks.shape[2]] = masks
        masks = mask_canvas
    return image_bboxes, masks


class YOLOForInstanceSegmentation:
    def __init__(self, inference_size=ImageDimensions(640, 640)):
        self.inference_size = inference_size
        self.model = YOLOSegNetwork().eval().to(DEVICE)

    def pre_process(self, image):
        return pre_process_network_input(image.to(DEVICE).float().div(255), self.inference_size)

    def post_process(self, model_results, pre_processing_meta):
        instances, protos = model_results
        final_results = []
        for image_bboxes, image_protos, image_meta in zip(
            select_instances(instances), protos, pre_processing_meta
        ):
            pre_processed_masks = preprocess_segmentation_masks(
                protos=image_protos, masks_in=image_bboxes[:, 6:]
            )
            cropped_masks = crop_masks_to_boxes(image_bboxes[:, :4], pre_processed_masks)
            padding = (
                image_meta.pad_left,
                image_meta.pad_top,
                image_meta.pad_right,
                image_meta.pad_bottom,
            )
            aligned_boxes, aligned_masks = align_instance_segmentation_results(
                image_bboxes=image_bboxes,
                masks=cropped_masks,
                padding=padding,
                scale_height=image_meta.scale_height,
                scale_width=image_meta.scale_width,
                original_size=image_meta.original_size,
                size_after_pre_processing=image_meta.size_after_pre_processing,
                inference_size=image_meta.inference_size,
                static_crop_offset=image_meta.static_crop_offset,
            )
            final_results.append(
                InstanceDetections(
                    xyxy=aligned_boxes[:, :4].round().int(),
                    class_id=aligned_boxes[:, 5].int(),
                    confidence=aligned_boxes[:, 4],
                    mask=aligned_masks,
                )
            )
        return final_results

    @torch.inference_mode()
    def infer(self, image):
        pre_processed, meta = self.pre_process(image)
        return self.post_process(self.model(pre_processed), [meta])


def main():
    model = YOLOForInstanceSegmentation()
    for height, width in ((1080, 1920), (2250, 3000)):
        image = torch.randint(0, 256, (1, 3, height, width), dtype=torch.uint8)
        detections = model.infer(image)[0]
        areas = [int(mask.sum()) for mask in detections.mask[:3]]
        print(f"{width}x{height}: {len(detections.xyxy)} instances, first areas {areas}")


if __name__ == "__main__":
    main()
