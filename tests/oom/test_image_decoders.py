"""A VAE of diffusers that runs out in its decoder is told slices and tiles."""

from importlib.util import find_spec

import pytest
import torch

import nbmem
from nbmem import virtual

pytestmark = pytest.mark.torch
of_diffusers = pytest.mark.skipif(find_spec("diffusers") is None, reason="the VAE is diffusers'")

LIKE_DIFFUSERS = """
import torch
from torch import nn

class AutoencoderKL(nn.Module):
    def __init__(self):
        super().__init__()
        self.decoder = nn.Sequential(
            nn.Conv2d(4, 64, 1), nn.Upsample(scale_factor=2), nn.SiLU(), nn.Conv2d(64, 64, 1),
            nn.SiLU(), nn.Conv2d(64, 3, 1),
        )
        self.use_slicing = self.use_tiling = False
        self.tile_sample_min_size = 512
        self._internal_dict = {"block_out_channels": [32, 64]}

    def enable_slicing(self):
        self.use_slicing = True

    def decode(self, z):
        if self.use_slicing:
            return torch.cat([self.decoder(one) for one in z.split(1)])
        return self.decoder(z)
"""
OWN = """
vae = AutoencoderKL().half().cuda().eval()
latents = torch.zeros({images}, 4, {side}, {side}, dtype=torch.float16, device="cuda")
with torch.no_grad():
    vae.decode(latents)
"""
DIFFUSERS = """
import torch
from diffusers import AutoencoderKL
vae = AutoencoderKL(
    down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
    block_out_channels=(128, 256, 512, 512), layers_per_block=2,
).half().cuda().eval()
latents = torch.zeros({images}, 4, {side}, {side}, dtype=torch.float16, device="cuda")
"""
DECODED = """
with torch.no_grad():
    vae.decode(latents)
"""
FILE = "/site-packages/diffusers/models/autoencoders/autoencoder_kl.py"


def decoded(code, *, fails, file=None):
    """Run a program on a virtual T4, with the VAE's class in a file of that name."""
    names = {"__name__": "__main__"}
    trace = nbmem.trace("cell", namespace=names)
    with virtual.activated("T4"):
        torch.cuda.init()
        if file is not None:
            exec(compile(LIKE_DIFFUSERS, file, "exec"), names)
        if fails:
            with pytest.raises(torch.OutOfMemoryError), trace:
                exec(compile(code, "cell.py", "exec"), names)
        else:
            with trace:
                exec(compile(code, "cell.py", "exec"), names)
    return trace


def test_a_batch_of_images_is_decoded_in_slices(tmp_path):
    code = OWN.format(images=16, side=1024)
    trace = decoded(code, fails=True, file=FILE)
    decoding = trace.session.refusals[0].decoding
    assert (decoding.name, decoding.images, decoding.pixels) == ("vae", 16, 2048**2)
    assert (decoding.tile, decoding.pixel_bytes) == (512**2, 4 * 64 * 2)
    (found,) = trace.report().ooms[0].remedies
    assert found.title.startswith("Let the VAE decode one image at a time, `vae.enable_slicing()`")
    assert found.high == 15 * 2048**2 * 4 * 64 * 2
    saved = nbmem.open(trace.save(tmp_path / "one.nbmem"))
    assert saved.session.refusals[0].decoding == decoding
    pasted = code.replace("with torch", f"{found.code}\nwith torch")
    decoded(pasted, fails=False, file=FILE)


def test_one_large_image_is_decoded_in_tiles_and_not_in_slices():
    trace = decoded(OWN.format(images=1, side=4096), fails=True, file=FILE)
    (found,) = trace.report().ooms[0].remedies
    assert found.code == "vae.enable_tiling()"


@pytest.mark.parametrize("change", ["vae.use_slicing = True", "other, vae = vae, None"])
def test_a_decoder_in_slices_already_and_one_without_a_name_are_told_nothing_of_it(change):
    code = OWN.format(images=2, side=6144).replace("with torch", f"{change}\nwith torch")
    code = code.replace("vae.decode", "(vae or globals().pop('other')).decode")
    found = decoded(code, fails=True, file=FILE).report().ooms[0].remedies
    assert "vae.enable_slicing()" not in [one.code for one in found]


def test_a_decoder_of_another_library_is_told_nothing_of_it():
    code = OWN.format(images=16, side=1024)
    found = decoded(code, fails=True, file="/site-packages/other.py").report().ooms[0].remedies
    assert "image_decoder" not in {one.rule for one in found}


@of_diffusers
@pytest.mark.parametrize(
    ("images", "side", "calls"),
    [
        (16, 128, ["vae.enable_slicing()"]),
        (6, 192, ["vae.enable_slicing()"]),
    ],
)
def test_the_decoder_of_diffusers_decodes_with_what_is_told(images, side, calls):
    load = DIFFUSERS.format(images=images, side=side)
    trace = decoded(load + DECODED, fails=True)
    found = trace.report().ooms[0].remedies[0]
    assert found.code.splitlines() == calls
    decoded(f"{load}\n{found.code}\n{DECODED}", fails=False)
