"""After allenai/open-instruct#777: finetuning with the sum loss holds the logits too long."""

import torch
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM

CURED = False
DEVICE = "cuda"
VOCAB, SEQUENCE, BATCH_SIZE, EXAMPLES, EPOCHS = 32_000, 512, 2, 6, 1
ACCUMULATION, CLIP_GRAD_NORM = 1, 1.0

config = LlamaConfig(
    vocab_size=VOCAB,
    hidden_size=256,
    intermediate_size=688,
    num_hidden_layers=4,
    num_attention_heads=4,
    num_key_value_heads=4,
    max_position_embeddings=SEQUENCE,
    tie_word_embeddings=True,
)


def tokenized_example():
    input_ids = torch.randint(0, VOCAB, (SEQUENCE,))
    labels = input_ids.clone()
    labels[: SEQUENCE // 8] = -100  # the prompt
    attention_mask = torch.ones(SEQUENCE, dtype=torch.long)
    return {"input_ids": input_ids, "labels": labels, "attention_mask": attention_mask}


def main():
    torch.manual_seed(42)
    model = LlamaForCausalLM(config).to(DEVICE)
    embedding_size = model.get_input_embeddings().weight.shape[0]
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-5)
    lr_scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, EXAMPLES)
    dataset = [tokenized_example() for _ in range(EXAMPLES)]
    train_dataloader = DataLoader(dataset, batch_size=BATCH_SIZE, shuffle=True)
    local_total_tokens = 0
    for epoch in range(EPOCHS):
        model.train()
        total_loss = 0
        for step, batch in enumerate(train_dataloader):
            batch = {key: value.to(DEVICE) for key, value in batch.items()}
            local_total_tokens += batch["attention_mask"].sum()
            # Standard forward pass
            outputs = model(**batch, use_cache=False)
            # reduce loss is sum: this ensures that we weight all tokens in the dataset equally
            logits = outputs.logits
            labels = batch["labels"]
            # Shift so that tokens < n predict n
            shift_logits = logits[..., :-1, :].contiguous()
            shift_labels = labels[..., 1:].contiguous()
            if CURED:
                del logits
            # Flatten the tokens
            loss_fct = torch.nn.CrossEntropyLoss(reduction="sum")
            shift_logits = shift_logits.view(-1, embedding_size)
            shift_labels = shift_labels.view(-1).to(shift_logits.device)
            loss = loss_fct(shift_logits, shift_labels)
            if CURED:
                del shift_logits
                del outputs
            # We keep track of the loss at each logged step
            total_loss += loss.detach().float()
            loss.backward()
            if step % ACCUMULATION == ACCUMULATION - 1:
                torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_GRAD_NORM)
                optimizer.step()
                optimizer.zero_grad()
                lr_scheduler.step()
                print(step, (total_loss / local_total_tokens).item())


main()
