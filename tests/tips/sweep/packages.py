"""Healthy programs as in the packages' own examples."""

from __future__ import annotations

from tests.tips.sweep.program import program

AMP = """
from torchvision import models

device = torch.device("cuda")
model = models.{model}().to(device)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.{optimizer}(model.parameters(), lr=1e-3)
scaler = torch.amp.GradScaler("cuda", enabled={scaled})
#: built
def train_one_epoch():
    model.train()
    for step in range(4):
        image, target = torch.randn({rows}, 3, {size}, {size}), torch.randint(0, 1000, ({rows},))
        image, target = image.to(device, non_blocking=True), target.to(device, non_blocking=True)
        optimizer.zero_grad()
        with torch.amp.autocast("cuda", dtype=torch.{dtype}):
            output = model(image)
            loss = criterion(output, target)
        #: loss
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()

def evaluate():
    model.eval()
    right = 0
    with torch.inference_mode():
        for _ in range(2):
            image = torch.randn({rows}, 3, {size}, {size}).to(device)
            target = torch.randint(0, 1000, ({rows},)).to(device)
            output = model(image)
            right += (output.argmax(1) == target).sum().item()
    return right

for epoch in range(2):
    train_one_epoch()
    evaluate()
#: end
"""
ACCUMULATED = """
import timm
from timm.utils import ModelEmaV2

device = "cuda"
net = timm.create_model("{model}", num_classes=100).to(device)
{checkpointing}
opt = torch.optim.AdamW(net.parameters(), lr=1e-3)
ema = ModelEmaV2(net, decay=0.99)
#: built
accumulate = 2
for i in range(12):
    images = torch.randn({rows}, 3, {size}, {size}).to(device)
    labels = torch.randint(0, 100, ({rows},)).to(device)
    cost = F.cross_entropy(net(images), labels) / accumulate
    cost.backward()
    if (i + 1) % accumulate == 0:
        opt.step()
        opt.zero_grad()
        ema.update(net)
    #: step
ema.module.eval()
with torch.no_grad():  #: eval
    for _ in range(3):
        guess = ema.module(torch.randn(2 * {rows}, 3, {size}, {size}).to(device))
        #: out
#: end
"""
DETECTION = """
from torchvision.models import detection

model = detection.{model}(weights=None, weights_backbone=None, num_classes=5).cuda()
trained = [p for p in model.parameters() if p.requires_grad]
optimizer = torch.optim.SGD(trained, lr=5e-3, momentum=0.9)
#: built
def targets(n):
    for _ in range(n):
        corner = torch.rand(4, 2) * 100
        yield {{"boxes": torch.cat([corner, corner + 50], 1), "labels": torch.randint(1, 5, (4,)),
               "masks": torch.zeros(4, {size}, {size}, dtype=torch.uint8),
               "keypoints": torch.rand(4, 17, 3)}}

for epoch in range(2):
    model.train()
    for _ in range(3):
        images = [torch.rand(3, {size}, {size}).cuda() for _ in range(2)]
        wanted = [{{k: v.cuda() for k, v in t.items()}} for t in targets(2)]
        loss_dict = model(images, wanted)
        losses = sum(loss_dict.values())
        #: loss
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
        #: step
    model.eval()
    with torch.no_grad():
        for _ in range(2):
            boxes = model([torch.rand(3, {size}, {size}).cuda()])
            boxes = [{{k: v.cpu() for k, v in t.items()}} for t in boxes]
#: end
"""
SEGMENTATION = """
from torchvision.models import segmentation

model = segmentation.{model}(weights=None, weights_backbone=None, num_classes=21{aux}).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9, weight_decay=1e-4)
schedule = torch.optim.lr_scheduler.PolynomialLR(optimizer, total_iters=20)
#: built
for epoch in range(2):
    model.train()
    for _ in range(3):
        image, mask = torch.randn(4, 3, 256, 256).cuda(), torch.randint(0, 21, (4, 256, 256)).cuda()
        output = model(image)
        loss = sum(F.cross_entropy(x, mask, ignore_index=255) for x in output.values())
        #: loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        #: step
    model.eval()
    with torch.no_grad():  #: eval
        for _ in range(2):
            seen = model(torch.randn(4, 3, 256, 256).cuda())["out"]
            #: out
            label = seen.argmax(1).cpu()
#: end
"""
SEQUENCES = """
from transformers import AutoConfig, {auto}, get_linear_schedule_with_warmup

model = {auto}.from_config(AutoConfig.for_model({config})).to("cuda")
{prepared}
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-5)
lr_scheduler = get_linear_schedule_with_warmup(optimizer, 2, 100)
#: built
accumulation, total_loss = {accumulation}, 0
for epoch in range(2):
    model.train()
    for step in range(6):
        batch = {{{batch}}}
        batch = {{k: v.to("cuda") for k, v in batch.items()}}
        with torch.autocast("cuda", dtype=torch.bfloat16, enabled={amp}):
            outputs = model(**batch)
            loss = outputs.loss / accumulation
        total_loss += loss.detach().float()
        loss.backward()
        if step % accumulation == accumulation - 1:
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            lr_scheduler.step()
            optimizer.zero_grad()
    model.eval()
    losses = []
    for step in range(3):
        batch = {{{batch}}}
        with torch.no_grad():
            outputs = model(**{{k: v.to("cuda") for k, v in batch.items()}})
        losses.append(outputs.loss.detach().cpu())
#: end
"""
ADAPTED = """
from peft import {config}, TaskType, get_peft_model
from transformers import AutoConfig, AutoModelForCausalLM

base = AutoModelForCausalLM.from_config(AutoConfig.for_model(
    "llama", hidden_size=768, num_hidden_layers=6, num_attention_heads=12, intermediate_size=2048,
    vocab_size=8000))
{prepared}
peft_model = get_peft_model(base, {config}(task_type=TaskType.CAUSAL_LM, {given})).to("cuda")
optimizer = torch.optim.AdamW(peft_model.parameters(), lr=2e-4)
#: built
#: weights
for step in range(6):
    peft_model.train()
    ids = torch.randint(0, 8000, (8, 256)).to("cuda")
    outputs = peft_model(input_ids=ids, labels=ids)
    loss = outputs.loss
    #: loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    #: step
peft_model.eval()
with torch.no_grad():  #: eval
    for _ in range(3):
        logits = peft_model(input_ids=torch.randint(0, 8000, (8, 256)).to("cuda")).logits
        #: out
#: end
"""
DENOISED = """
from diffusers import DDPMScheduler{imports}
from diffusers.training_utils import EMAModel

unet = {make}
unet.to("cuda")
{prepared}
noise_scheduler = DDPMScheduler(num_train_timesteps=1000)
optimizer = torch.optim.AdamW([p for p in unet.parameters() if p.requires_grad], lr=1e-4)
ema_unet = EMAModel(unet.parameters(), decay=0.9999)
#: built
scaler = torch.amp.GradScaler("cuda")
for step in range(5):
    latents = torch.randn({shape}).to("cuda")
    noise = torch.randn_like(latents)
    timesteps = torch.randint(0, 1000, (len(latents),), device="cuda").long()
    noisy = noise_scheduler.add_noise(latents, noise, timesteps)
    with torch.autocast("cuda", dtype=torch.float16):
        model_pred = unet(noisy, {call}).sample
        loss = F.mse_loss(model_pred.float(){half}, noise.float(), reduction="mean")
    #: loss
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(unet.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()
    ema_unet.step(unet.parameters())
    #: step
ema_unet.store(unet.parameters())
ema_unet.copy_to(unet.parameters())
unet.eval()
noise_scheduler.set_timesteps(10)
with torch.no_grad():
    image = torch.randn({shape}, device="cuda")
    for t in noise_scheduler.timesteps[:4]:
        residual = unet(image, {sampled}).sample{cut}
        image = noise_scheduler.step(residual, t, image).prev_sample
pictures = (image / 2 + 0.5).clamp(0, 1).cpu()
ema_unet.restore(unet.parameters())
#: end
"""


def _amp(model: str, rows: int, *, size=224, optimizer="SGD", dtype="float16"):
    scaled = dtype == "float16"
    code = AMP.format(
        model=model, rows=rows, size=size, optimizer=optimizer, dtype=dtype, scaled=scaled
    )
    return program(
        f"torchvision with AMP: {model}",
        code,
        needs=("torchvision",),
        model="model",
        optimizer="optimizer",
    )


def _accumulated(model: str, rows: int, *, size=224, checkpointing=False):
    line = "net.set_grad_checkpointing()" if checkpointing else ""
    code = ACCUMULATED.format(model=model, rows=rows, size=size, checkpointing=line)
    return program(
        f"timm, accumulated, with an EMA: {model}",
        code,
        needs=("timm",),
        model="net",
        optimizer="opt",
        out="guess",
        batch="images",
    )


def _detection(model: str, size=256):
    return program(
        f"torchvision's detection: {model}",
        DETECTION.format(model=model, size=size),
        needs=("torchvision",),
        model="model",
        optimizer="optimizer",
        loss="losses",
    )


def _segmentation(model: str, aux: str = ""):
    return program(
        f"torchvision's segmentation: {model}",
        SEGMENTATION.format(model=model, aux=aux),
        needs=("torchvision",),
        model="model",
        optimizer="optimizer",
        loss="loss",
        out="seen",
    )


def _sequences(  # noqa: PLR0913 - each fills a place of the text
    model: str,
    auto: str,
    batch: str,
    *,
    accumulation=1,
    amp=False,
    checkpointing=False,
    prepared="",
    **config,
):
    given = ", ".join([f"'{model}'", *(f"{k}={v!r}" for k, v in config.items())])
    if checkpointing:
        prepared = "model.gradient_checkpointing_enable()"
    code = SEQUENCES.format(
        auto=auto, config=given, batch=batch, accumulation=accumulation, amp=amp, prepared=prepared
    )
    return program(
        f"transformers' no_trainer: {model} {auto}",
        code,
        needs=("transformers",),
        model="model",
        optimizer="optimizer",
    )


def _adapted(config: str, given: str, prepared=""):
    code = ADAPTED.format(config=config, given=given, prepared=prepared)
    name = f"peft: {config}" + (" with checkpointing" if prepared else "")
    return program(
        name,
        code,
        needs=("peft",),
        model="peft_model",
        optimizer="optimizer",
        loss="loss",
        out="logits",
        batch="ids",
    )


def _denoised(  # noqa: PLR0913 - each fills a place of the text
    make: str,
    shape: str,
    *,
    imports="",
    call="timesteps",
    sampled="t",
    prepared="",
    half="",
    cut="",
):
    code = DENOISED.format(
        make=make,
        shape=shape,
        imports=imports,
        call=call,
        sampled=sampled,
        prepared=prepared,
        half=half,
        cut=cut,
    )
    name = (
        f"diffusers with AMP and EMA: {make.partition('(')[0]}"
        + (" with LoRA" if "Lora" in prepared else "")
        + (" with checkpointing" if "checkpointing" in prepared else "")
    )
    return program(
        name,
        code,
        needs=("diffusers", "peft"),
        model="unet",
        optimizer="optimizer",
        loss="loss",
        batch="latents",
    )


WIDE = {
    "hidden_size": 384,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "intermediate_size": 1536,
}
IDS = "'input_ids': torch.randint(5, 900, (8, 128)), 'labels': torch.randint(5, 900, (8, 128))"
CLASS = (
    "'input_ids': torch.randint(5, 900, (16, 128)), 'attention_mask': torch.ones(16, "
    "128, dtype=torch.long), 'labels': torch.randint(0, 2, (16,))"
)
TAGS = "'input_ids': torch.randint(5, 900, (16, 128)), 'labels': torch.randint(0, 2, (16, 128))"
SPANS = (
    "'input_ids': torch.randint(5, 900, (8, 256)), 'start_positions': torch.randint(0, "
    "256, (8,)), 'end_positions': torch.randint(0, 256, (8,))"
)
PIXELS = "'pixel_values': torch.randn(16, 3, 224, 224), 'labels': torch.randint(0, 2, (16,))"
SPEECH = "'input_values': torch.randn(4, 16000), 'labels': torch.randint(0, 2, (4,))"
MEL = "'input_features': torch.randn(4, 80, 3000), 'labels': torch.randint(5, 900, (4, 60))"
PAIRS = (
    "'input_ids': torch.randint(5, 900, (8, 77)), 'pixel_values': torch.randn(8, 3, 224, "
    "224), 'return_loss': torch.tensor(True)"
)
CONDITIONED = (
    "UNet2DConditionModel(sample_size=32, block_out_channels=(64, 128, 256), "
    "down_block_types=('CrossAttnDownBlock2D', 'CrossAttnDownBlock2D', 'DownBlock2D'), "
    "up_block_types=('UpBlock2D', 'CrossAttnUpBlock2D', 'CrossAttnUpBlock2D'), "
    "cross_attention_dim=256, attention_head_dim=8)"
)
WORDS = "encoder_hidden_states=torch.randn(len({0}), 77, 256, device='cuda')"
LORA = """
from peft import LoraConfig
unet.requires_grad_(False)
unet.add_adapter(LoraConfig(r=8, lora_alpha=8, init_lora_weights="gaussian",
                            target_modules=["to_k", "to_q", "to_v", "to_out.0"]))
"""
PACKAGES = (
    _amp("resnet50", 16),
    _amp("resnext50_32x4d", 8, dtype="bfloat16"),
    _amp("wide_resnet50_2", 8),
    _amp("efficientnet_b0", 16, optimizer="RMSprop"),
    _amp("efficientnet_v2_s", 8, optimizer="AdamW"),
    _amp("mobilenet_v2", 32),
    _amp("shufflenet_v2_x1_0", 64),
    _amp("squeezenet1_1", 32, optimizer="Adam"),
    _amp("mnasnet1_0", 32),
    _amp("regnet_y_400mf", 32),
    _amp("convnext_tiny", 8, optimizer="AdamW", dtype="bfloat16"),
    _amp("vit_b_32", 16, optimizer="AdamW"),
    _amp("swin_v2_t", 8, size=256, optimizer="AdamW"),
    _amp("maxvit_t", 4, optimizer="AdamW"),
    _amp("alexnet", 64),
    _amp("vgg16_bn", 8),
    _amp("densenet169", 8, dtype="bfloat16"),
    _accumulated("resnet26", 16),
    _accumulated("vit_small_patch16_224", 16),
    _accumulated("deit_tiny_patch16_224", 16, checkpointing=True),
    _accumulated("convnext_nano", 16),
    _accumulated("mobilenetv4_conv_small", 32),
    _accumulated("swin_tiny_patch4_window7_224", 8, checkpointing=True),
    _accumulated("efficientformer_l1", 16),
    _accumulated("poolformer_s12", 16),
    _accumulated("gmlp_s16_224", 16),
    _accumulated("resmlp_12_224", 16),
    _accumulated("ghostnet_100", 32),
    _accumulated("beit_base_patch16_224", 4),
    _accumulated("nfnet_l0", 8),
    _detection("fasterrcnn_resnet50_fpn"),
    _detection("fasterrcnn_mobilenet_v3_large_fpn"),
    _detection("maskrcnn_resnet50_fpn"),
    _detection("keypointrcnn_resnet50_fpn"),
    _detection("retinanet_resnet50_fpn"),
    _detection("fcos_resnet50_fpn"),
    _detection("ssdlite320_mobilenet_v3_large", 320),
    _detection("ssd300_vgg16", 300),
    _segmentation("fcn_resnet50", aux=", aux_loss=True"),
    _segmentation("deeplabv3_resnet50", aux=", aux_loss=True"),
    _segmentation("deeplabv3_mobilenet_v3_large"),
    _segmentation("lraspp_mobilenet_v3_large"),
    _sequences("bert", "AutoModelForSequenceClassification", CLASS, **WIDE),
    _sequences("bert", "AutoModelForMaskedLM", IDS, amp=True, **WIDE),
    _sequences("albert", "AutoModelForSequenceClassification", CLASS, accumulation=2, **WIDE),
    _sequences("roberta", "AutoModelForTokenClassification", TAGS, amp=True, **WIDE),
    _sequences(
        "distilbert", "AutoModelForQuestionAnswering", SPANS, dim=384, n_layers=4, n_heads=6
    ),
    _sequences(
        "mistral",
        "AutoModelForCausalLM",
        IDS,
        accumulation=3,
        checkpointing=True,
        num_key_value_heads=2,
        **WIDE,
    ),
    _sequences(
        "gemma", "AutoModelForCausalLM", IDS, amp=True, num_key_value_heads=2, head_dim=64, **WIDE
    ),
    _sequences("phi", "AutoModelForCausalLM", IDS, checkpointing=True, **WIDE),
    _sequences(
        "bloom", "AutoModelForCausalLM", IDS, hidden_size=384, n_layer=4, n_head=6, vocab_size=8000
    ),
    _sequences(
        "gpt2",
        "AutoModelForCausalLM",
        IDS,
        accumulation=2,
        amp=True,
        n_embd=384,
        n_layer=4,
        n_head=6,
    ),
    _sequences(
        "t5",
        "AutoModelForSeq2SeqLM",
        IDS,
        d_model=256,
        num_layers=3,
        d_ff=1024,
        num_heads=4,
        vocab_size=4000,
        decoder_start_token_id=0,
    ),
    _sequences(
        "bart",
        "AutoModelForSeq2SeqLM",
        IDS,
        accumulation=2,
        d_model=256,
        encoder_layers=3,
        decoder_layers=3,
        encoder_ffn_dim=1024,
        decoder_ffn_dim=1024,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
        vocab_size=4000,
    ),
    _sequences("vit", "AutoModelForImageClassification", PIXELS, amp=True, **WIDE),
    _sequences("segformer", "AutoModelForImageClassification", PIXELS),
    _sequences("wav2vec2", "AutoModelForAudioClassification", SPEECH, **WIDE),
    _sequences(
        "whisper",
        "AutoModelForSpeechSeq2Seq",
        MEL,
        amp=True,
        d_model=256,
        encoder_layers=3,
        decoder_layers=3,
        encoder_ffn_dim=1024,
        decoder_ffn_dim=1024,
        encoder_attention_heads=4,
        decoder_attention_heads=4,
    ),
    _sequences("clip", "AutoModel", PAIRS),
    _adapted("LoraConfig", "r=16, target_modules=['q_proj', 'v_proj', 'gate_proj']"),
    _adapted(
        "LoraConfig",
        "r=8, lora_dropout=0.05, use_dora=True, target_modules='all-linear'",
        "base.gradient_checkpointing_enable(); base.enable_input_require_grads()",
    ),
    _adapted(
        "IA3Config",
        "target_modules=['k_proj', 'v_proj', 'down_proj'], feedforward_modules=['down_proj']",
    ),
    _adapted("PrefixTuningConfig", "num_virtual_tokens=20"),
    _adapted("PromptTuningConfig", "num_virtual_tokens=20"),
    _adapted("AdaLoraConfig", "total_step=100, target_modules=['q_proj', 'v_proj']"),
    _adapted("LoHaConfig", "r=8, target_modules=['q_proj', 'v_proj']"),
    _denoised(
        (
            "UNet2DModel(sample_size=64, block_out_channels=(64, 128, 256), norm_num_groups=32, "
            "down_block_types=('DownBlock2D', 'AttnDownBlock2D', 'DownBlock2D'), "
            "up_block_types=('UpBlock2D', 'AttnUpBlock2D', 'UpBlock2D'))"
        ),
        "8, 3, 64, 64",
        imports=", UNet2DModel",
    ),
    _denoised(
        CONDITIONED,
        "8, 4, 32, 32",
        imports=", UNet2DConditionModel",
        call="timesteps, " + WORDS.format("latents"),
        sampled="t, " + WORDS.format("image"),
    ),
    _denoised(
        CONDITIONED,
        "8, 4, 32, 32",
        imports=", UNet2DConditionModel",
        call="timesteps, " + WORDS.format("latents"),
        sampled="t, " + WORDS.format("image"),
        prepared="unet.enable_gradient_checkpointing()",
    ),
    _denoised(
        CONDITIONED,
        "8, 4, 32, 32",
        imports=", UNet2DConditionModel",
        call="timesteps, " + WORDS.format("latents"),
        sampled="t, " + WORDS.format("image"),
        prepared=LORA,
    ),
    _denoised(
        (
            "DiTTransformer2DModel(sample_size=32, num_layers=6, num_attention_heads=6, "
            "attention_head_dim=64, num_embeds_ada_norm=1000, in_channels=4, out_channels=4)"
        ),
        "8, 4, 32, 32",
        imports=", DiTTransformer2DModel",
        call="timesteps, class_labels=torch.randint(0, 1000, (len(latents),), device='cuda')",
        sampled=(
            "t.expand(len(image)).cuda(), class_labels=torch.randint(0, 1000, (len(image),), "
            "device='cuda')"
        ),
    ),
    program(
        "diffusers: an AutoencoderKL",
        """
from diffusers import AutoencoderKL

vae = AutoencoderKL(block_out_channels=(64, 128), down_block_types=("DownEncoderBlock2D",) * 2,
                    up_block_types=("UpDecoderBlock2D",) * 2, latent_channels=4).cuda()
adam = torch.optim.Adam(vae.parameters(), lr=1e-4)
#: built
for step in range(5):
    pixels = torch.randn(4, 3, 64, 64).cuda()
    posterior = vae.encode(pixels).latent_dist
    seen = vae.decode(posterior.sample()).sample
    elbo = F.mse_loss(seen, pixels) + 1e-6 * posterior.kl().mean()
    #: loss
    adam.zero_grad()
    elbo.backward()
    adam.step()
    #: step
vae.eval()
with torch.no_grad():  #: eval
    for _ in range(3):
        drawn = vae.decode(torch.randn(4, 4, 32, 32).cuda()).sample
        #: out
#: end
""",
        needs=("diffusers",),
        model="vae",
        optimizer="adam",
        loss="elbo",
        out="drawn",
        batch="pixels",
    ),
    program(
        "torchvision: fine-tuning a frozen backbone",
        """
from torchvision import models

net = models.resnet18()
for p in net.parameters():
    p.requires_grad = False
net.fc = nn.Linear(net.fc.in_features, 2)
net = net.to("cuda:0")
optimizer_ft = torch.optim.SGD(net.fc.parameters(), lr=1e-3, momentum=0.9)
best = copy.deepcopy(net.state_dict())
#: built
since, best_acc = 0, 0.0
for epoch in range(2):
    for phase in ("train", "val"):
        net.train(phase == "train")
        running_loss = 0.0
        for _ in range(4):
            inputs = torch.randn(16, 3, 224, 224).to("cuda:0")
            labels = torch.randint(0, 2, (16,)).to("cuda:0")
            optimizer_ft.zero_grad()
            with torch.set_grad_enabled(phase == "train"):
                outputs = net(inputs)
                _, preds = torch.max(outputs, 1)
                loss = F.cross_entropy(outputs, labels)
                if phase == "train":
                    loss.backward()
                    optimizer_ft.step()
            running_loss += loss.item() * inputs.size(0)
net.eval()
#: end
""",
        needs=("torchvision",),
        model="net",
        optimizer="optimizer_ft",
    ),
    program(
        "transformers: distillation by a teacher",
        """
from transformers import AutoConfig, AutoModelForSequenceClassification

teacher = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(
    "bert", hidden_size=512, num_hidden_layers=6, num_attention_heads=8)).cuda().eval()
student = AutoModelForSequenceClassification.from_config(AutoConfig.for_model(
    "distilbert", dim=256, n_layers=3, n_heads=4, hidden_dim=1024)).cuda()
optimizer = torch.optim.AdamW(student.parameters(), lr=5e-5)
#: built
for step in range(6):
    ids, labels = torch.randint(5, 900, (16, 128)).cuda(), torch.randint(0, 2, (16,)).cuda()
    with torch.no_grad():
        soft = teacher(input_ids=ids).logits
    out = student(input_ids=ids, labels=labels)
    kd = F.kl_div(F.log_softmax(out.logits / 2, -1), F.softmax(soft / 2, -1), reduction="batchmean")
    loss = out.loss + 4 * kd
    #: loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    #: step
#: end
""",
        needs=("transformers",),
        model="student",
        optimizer="optimizer",
        loss="loss",
    ),
    program(
        "transformers: its generate() behind a training",
        """
from transformers import AutoConfig, AutoModelForCausalLM

lm = AutoModelForCausalLM.from_config(AutoConfig.for_model(
    "llama", hidden_size=512, num_hidden_layers=4, num_attention_heads=8, intermediate_size=1376,
    vocab_size=4000)).cuda()
optim = torch.optim.AdamW(lm.parameters(), lr=1e-4)
#: built
#: weights
for step in range(4):
    ids = torch.randint(5, 4000, (4, 128)).cuda()
    loss = lm(input_ids=ids, labels=ids).loss
    #: loss
    loss.backward()
    optim.step()
    optim.zero_grad()
    #: step
lm.eval()
text = lm.generate(ids[:, :16], max_new_tokens=20, do_sample=True, pad_token_id=0)
#: end
""",
        needs=("transformers",),
        model="lm",
        optimizer="optim",
        loss="loss",
    ),
)
