"""Healthy programs around models of other libraries."""

from __future__ import annotations

from tests.tips.sweep.program import program

PICTURES = """
import {package}

net = {make}.cuda()
opt = torch.optim.{optimizer}(net.parameters(), lr=1e-3)
#: built
for epoch in range(2):
    net.train()
    for _ in range(4):
        images = torch.randn({rows}, 3, {size}, {size}).cuda()
        labels = torch.randint(0, 1000, ({rows},)).cuda()
        {head}
        scores = net(images)
        cost = F.cross_entropy(scores, labels)
        #: loss
        cost.backward()
        opt.step()
        {tail}
        #: step
    net.eval()
    with torch.no_grad():  #: eval
        for _ in range(2):
            guess = net(torch.randn(2 * {rows}, 3, {size}, {size}).cuda())
            #: out
#: end
"""
TEXTS = """
from transformers import AutoConfig, {auto}

llm = {auto}.from_config(AutoConfig.for_model({config})).cuda()
adamw = torch.optim.AdamW(llm.parameters(), lr=1e-4)
#: built
#: weights
llm.train()
for step in range(6):
    ids = torch.randint(0, 900, (8, 128)).cuda()
    result = llm(input_ids=ids, labels={labels})
    objective = result.loss
    #: loss
    objective.backward()
    torch.nn.utils.clip_grad_norm_(llm.parameters(), 1.0)
    adamw.step()
    adamw.zero_grad()
    #: step
llm.eval()
with torch.no_grad():  #: eval
    for _ in range(3):
        reply = llm(input_ids=torch.randint(0, 900, (16, 128)).cuda()).logits
        #: out
#: end
"""
HEAD, TAIL = ("opt.zero_grad()", "pass"), ("pass", "opt.zero_grad(set_to_none=True)")


def _pictures(package: str, model: str, rows: int, optimizer: str = "SGD", size: int = 224):
    make = f"timm.create_model('{model}')" if package == "timm" else f"{package}.{model}()"
    head, tail = HEAD if len(model) % 2 else TAIL
    return program(
        f"{package}: {model}",
        PICTURES.format(
            package=package, make=make, optimizer=optimizer, rows=rows, size=size, head=head,
            tail=tail,
        ),
        needs=(package.partition(".")[0],),
        model="net", optimizer="opt", loss="cost", out="guess", batch="images",
    )  # fmt: skip


def _texts(model: str, auto: str, labels: str, **config: int):
    given = ", ".join([f"'{model}'", *(f"{k}={v}" for k, v in config.items())])
    return program(
        f"transformers: {model}",
        TEXTS.format(auto=auto, config=given, labels=labels),
        needs=("transformers",),
        model="llm", optimizer="adamw", loss="objective", out="reply", batch="ids",
    )  # fmt: skip


SMALL = {"hidden_size": 512, "num_hidden_layers": 6, "num_attention_heads": 8}
CAUSAL, CLASSES = "AutoModelForCausalLM", "AutoModelForSequenceClassification"
TWO = "torch.randint(0, 2, (8,)).cuda()"
LIBRARIES = (
    _pictures("torchvision.models", "resnet18", 32),
    _pictures("torchvision.models", "mobilenet_v3_large", 32, "RMSprop"),
    _pictures("torchvision.models", "densenet121", 8),
    _pictures("torchvision.models", "vgg11", 16),
    _pictures("torchvision.models", "vit_b_16", 8, "AdamW"),
    _pictures("torchvision.models", "swin_t", 16, "AdamW"),
    _pictures("timm", "convnext_tiny", 16, "AdamW"),
    _pictures("timm", "efficientnet_b0", 16, "RMSprop"),
    _pictures("timm", "mixer_s32_224", 32, "Adam"),
    _pictures("timm", "regnety_008", 32),
    _texts("llama", CAUSAL, "ids", intermediate_size=1376, **SMALL),
    _texts("gpt2", CAUSAL, "ids", n_embd=512, n_layer=6, n_head=8),
    _texts("qwen2", CAUSAL, "ids", intermediate_size=1376, num_key_value_heads=4, **SMALL),
    _texts("gpt_neox", CAUSAL, "ids", intermediate_size=2048, **SMALL),
    _texts("opt", CAUSAL, "ids", ffn_dim=2048, word_embed_proj_dim=512, **SMALL),
    _texts("distilbert", CLASSES, TWO, dim=512, n_layers=4, n_heads=8),
    _texts("roberta", CLASSES, TWO, **SMALL),
    _texts("deberta-v2", CLASSES, TWO, **SMALL),
    _texts("electra", CLASSES, TWO, **SMALL),
    program(
        "diffusers: a UNet2DModel that denoises",
        """
from diffusers import DDPMScheduler, UNet2DModel

unet = UNet2DModel(sample_size=64, block_out_channels=(64, 128, 256), norm_num_groups=32,
                   down_block_types=("DownBlock2D", "AttnDownBlock2D", "DownBlock2D"),
                   up_block_types=("UpBlock2D", "AttnUpBlock2D", "UpBlock2D")).cuda()
adam = torch.optim.AdamW(unet.parameters(), lr=1e-4)
#: built
#: weights
for step in range(6):
    clean = torch.randn(8, 3, 64, 64).cuda()
    noise, t = torch.randn_like(clean), torch.randint(0, 1000, (8,), device="cuda")
    predicted = unet(clean + noise, t).sample
    mse = F.mse_loss(predicted, noise)
    #: loss
    mse.backward()
    adam.step()
    adam.zero_grad()
    #: step
unet.eval()
x = torch.randn(16, 3, 64, 64, device="cuda")
with torch.no_grad():  #: eval
    for t in (900, 500, 100):
        residual = unet(x, t).sample
        #: out
        x = x - 0.1 * residual
#: end
""",
        needs=("diffusers",),
        model="unet",
        optimizer="adam",
        loss="mse",
        out="residual",
        batch="clean",
    ),
    program(
        "peft: LoRA on a Llama",
        """
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

base_llm = LlamaForCausalLM(LlamaConfig(hidden_size=512, num_hidden_layers=6, num_attention_heads=8,
                                        intermediate_size=1376, vocab_size=8000))
tuned = get_peft_model(base_llm, LoraConfig(r=8, target_modules=["q_proj", "v_proj"])).cuda()
optim = torch.optim.AdamW([p for p in tuned.parameters() if p.requires_grad], lr=2e-4)
#: built
for step in range(6):
    ids = torch.randint(0, 8000, (8, 128)).cuda()
    cost = tuned(input_ids=ids, labels=ids).loss
    #: loss
    cost.backward()
    optim.step()
    optim.zero_grad()
    #: step
tuned.eval()
with torch.no_grad():  #: eval
    for _ in range(3):
        reply = tuned(input_ids=ids).logits
        #: out
#: end
""",
        needs=("peft",),
        model="tuned",
        optimizer="optim",
        loss="cost",
        out="reply",
        batch="ids",
    ),
    program(
        "accelerate: prepared by its Accelerator",
        """
from accelerate import Accelerator

accelerator = Accelerator()
mind = nn.Sequential(*(nn.Sequential(nn.Linear(2048, 2048), nn.GELU()) for _ in range(4)))
steps = torch.optim.AdamW(mind.parameters())
data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(6 * 512, 2048)), 512)
mind, steps, data = accelerator.prepare(mind, steps, data)
#: built
for (part,) in data:
    cost = mind(part.to("cuda")).square().mean()
    accelerator.backward(cost)
    steps.step()
    steps.zero_grad()
    #: step
#: end
""",
        needs=("accelerate",),
    ),
)
