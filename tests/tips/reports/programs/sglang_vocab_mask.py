"""After sgl-project/sglang#20697: the memory grows with every decoding step of structured output."""

from collections import deque

import torch
from torch import nn

CURED = False
VOCAB, HIDDEN, REQUESTS, STEPS = 151936, 512, 128, 48


class Grammar:
    """Allowed next tokens of one request's JSON schema, by its state."""

    def __init__(self, seed):
        self.state = seed

    def fill_vocab_mask(self, vocab_mask, idx):
        start = self.state * 37 % VOCAB
        vocab_mask[idx, start : start + 5000] = False

    def accept_token(self, token):
        self.state += 1 + token % 3


class SamplingBatchInfo:
    def __init__(self, grammars):
        self.temperatures = torch.ones(len(grammars), 1, device="cuda")
        self.grammars, self.vocab_mask = grammars, None

    def update_regex_vocab_mask(self):
        self.vocab_mask = torch.ones(len(self.grammars), VOCAB, dtype=torch.bool)
        for i, grammar in enumerate(self.grammars):
            grammar.fill_vocab_mask(self.vocab_mask, i)
        self.vocab_mask = self.vocab_mask.to("cuda", non_blocking=True)

    def apply_logits_bias(self, logits):
        logits.masked_fill_(self.vocab_mask, float("-inf"))


class ForwardBatch:
    def __init__(self, input_ids, sampling_info):
        self.input_ids, self.sampling_info = input_ids, sampling_info


class LogitsProcessorOutput:
    def __init__(self, next_token_logits, hidden_states):
        self.next_token_logits, self.hidden_states = next_token_logits, hidden_states


class GenerationBatchResult:
    def __init__(self, logits_output):
        self.logits_output, self.next_token_ids = logits_output, None
        self.delay_sample_func = None


class ModelRunner:
    def __init__(self):
        self.embed = nn.Embedding(VOCAB, HIDDEN).cuda().half()
        self.layers = nn.Sequential(nn.Linear(HIDDEN, HIDDEN), nn.SiLU(), nn.Linear(HIDDEN, HIDDEN))
        self.layers.cuda().half()
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False).cuda().half()

    def forward(self, forward_batch):
        hidden_states = self.layers(self.embed(forward_batch.input_ids))
        return LogitsProcessorOutput(self.lm_head(hidden_states).float(), hidden_states)

    def sample(self, logits_output, forward_batch):
        sampling_info = forward_batch.sampling_info
        sampling_info.update_regex_vocab_mask()
        sampling_info.apply_logits_bias(logits_output.next_token_logits)
        if CURED:
            sampling_info.vocab_mask = None
        logits_output.next_token_logits.div_(sampling_info.temperatures)
        return logits_output.next_token_logits.argmax(-1)


class TpModelWorker:
    def __init__(self):
        self.model_runner = ModelRunner()

    def forward_batch_generation(self, forward_batch):
        logits_output = self.model_runner.forward(forward_batch)
        batch_result = GenerationBatchResult(logits_output)

        def sample_batch_func():
            batch_result.next_token_ids = self.model_runner.sample(logits_output, forward_batch)
            return batch_result

        batch_result.delay_sample_func = sample_batch_func
        return batch_result


class Scheduler:
    def __init__(self, requests):
        self.tp_worker = TpModelWorker()
        self.grammars = [Grammar(seed) for seed in range(requests)]
        self.input_ids = torch.randint(0, VOCAB, (requests,), device="cuda")
        self.result_queue, self.batch_record_buf = deque(), [None] * 2
        self.output_ids = [[] for _ in range(requests)]

    def get_next_batch_to_run(self, step):
        batch = ForwardBatch(self.input_ids, SamplingBatchInfo(self.grammars))
        self.batch_record_buf[step % 2] = batch
        return batch

    def launch_batch_sample(self, batch_result):
        batch_result.delay_sample_func()
        if CURED:
            batch_result.delay_sample_func = None
            batch_result.logits_output.next_token_logits = None
        self.input_ids = batch_result.next_token_ids

    def process_batch_result(self, batch_result):
        next_token_ids = batch_result.next_token_ids.tolist()
        for grammar, output, token in zip(
            self.grammars, self.output_ids, next_token_ids, strict=True
        ):
            output.append(token)
            grammar.accept_token(token)

    def event_loop_overlap(self, steps):
        for step in range(steps):
            batch_result = self.tp_worker.forward_batch_generation(self.get_next_batch_to_run(step))
            self.result_queue.append(batch_result)
            if len(self.result_queue) > 1:
                self.process_batch_result(self.result_queue.popleft())
            self.launch_batch_sample(batch_result)


with torch.no_grad():
    scheduler = Scheduler(REQUESTS)
    # CURE
    scheduler.event_loop_overlap(STEPS)
print(len(scheduler.output_ids[0]))
